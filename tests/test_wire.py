"""The wire: URLs, room ids, bodies and headers out; replies in."""

from __future__ import annotations

import gzip
import json
import math
import traceback
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import attrs
import h11
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meeting_async._wire as wire
from _properties import fuzz
from meeting_async._records import Reply, SignedHeaders
from meeting_async._signing import HmacSigner
from meeting_async._wire import (
    Answer,
    auth_base,
    decipher,
    is_loopback,
    json_bytes,
    json_headers,
    json_object,
    method_path,
    retry_after,
    room_id_bytes,
    upload_headers,
)
from meeting_async.errors import ConfigurationError, InvalidInput

# --- base URLs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("https://meet.example.com", "https://meet.example.com/auth"),
        ("https://meet.example.com/", "https://meet.example.com/auth"),
        ("https://meet.example.com//", "https://meet.example.com/auth"),
        ("https://meet.example.com/prefix", "https://meet.example.com/prefix/auth"),
        ("https://meet.example.com/prefix/", "https://meet.example.com/prefix/auth"),
        ("https://meet.example.com/a/b//", "https://meet.example.com/a/b/auth"),
        ("https://meet.example.com/auth", "https://meet.example.com/auth"),
        ("https://meet.example.com/auth/", "https://meet.example.com/auth"),
        ("https://meet.example.com/auth//", "https://meet.example.com/auth"),
        ("https://meet.example.com/prefix/auth", "https://meet.example.com/prefix/auth"),
        ("https://meet.example.com/prefix/auth/", "https://meet.example.com/prefix/auth"),
        ("https://meet.example.com/prefix//auth/", "https://meet.example.com/prefix/auth"),
        ("https://meet.example.com/auth/v2", "https://meet.example.com/auth/v2/auth"),
        ("https://meet.example.com/xauth", "https://meet.example.com/xauth/auth"),
        ("https://meet.example.com/authx", "https://meet.example.com/authx/auth"),
        ("https://meet.example.com/x-auth/", "https://meet.example.com/x-auth/auth"),
        ("https://auth", "https://auth/auth"),
        ("https://auth/", "https://auth/auth"),
        ("https://auth/auth", "https://auth/auth"),
        ("https://auth:8443", "https://auth:8443/auth"),
        ("https://auth.example.com", "https://auth.example.com/auth"),
        ("https://meet.example.com:8443/p", "https://meet.example.com:8443/p/auth"),
        ("https://192.0.2.7:8443", "https://192.0.2.7:8443/auth"),
        ("https://[2001:db8::1]", "https://[2001:db8::1]/auth"),
        ("https://[2001:db8::1]:8443/p/", "https://[2001:db8::1]:8443/p/auth"),
        ("https://bücher.example", "https://bücher.example/auth"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/auth"),
        ("https://meet.example.com/pr%C3%A4fix", "https://meet.example.com/pr%C3%A4fix/auth"),
        ("HTTPS://Meet.Example.com/Prefix", "https://Meet.Example.com/Prefix/auth"),
        ("http://localhost", "http://localhost/auth"),
        ("http://localhost:8080/", "http://localhost:8080/auth"),
        ("http://LOCALHOST.:8080", "http://LOCALHOST.:8080/auth"),
        ("http://meet.localhost:8080", "http://meet.localhost:8080/auth"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/auth"),
        ("http://127.5.6.7", "http://127.5.6.7/auth"),
        ("http://[::1]:8080", "http://[::1]:8080/auth"),
    ],
)
def test_base_urls(base_url: str, expected: str) -> None:
    """However it is written, ``/auth`` stands once behind it, and httpx understands the result."""
    assert auth_base(base_url) == expected
    assert httpx.URL(f"{expected}/room/create").path.endswith("/auth/room/create")


BAD_BASE_URLS = [
    ("", "not an http(s) URL"),
    ("meet.example.com", "not an http(s) URL"),
    ("meet.example.com:8443", "not an http(s) URL"),
    ("//meet.example.com", "not an http(s) URL"),
    ("https:meet.example.com", "not an http(s) URL"),
    ("https:/meet.example.com", "not an http(s) URL"),
    ("https://", "not an http(s) URL"),
    ("https:///prefix", "not an http(s) URL"),
    ("https://:8443", "not an http(s) URL"),
    ("ftp://meet.example.com", "not an http(s) URL"),
    ("wss://meet.example.com", "not an http(s) URL"),
    ("https://meet.example.com:port", "not a URL"),
    ("https://meet.example.com:65536", "not a URL"),
    ("https://meet.example.com:-1", "not a URL"),
    ("https://[2001:db8::1", "not a URL"),
    ("https://[meet.example.com]", "not a URL"),
    ("https://meet.example.com?", "query or a fragment"),
    ("https://meet.example.com/?a=b", "query or a fragment"),
    ("https://meet.example.com/#", "query or a fragment"),
    ("https://meet.example.com#frag", "query or a fragment"),
    ("https://anna:hush@meet.example.com", "user name or password"),
    ("https://anna@meet.example.com", "user name or password"),
    ("https://@meet.example.com", "user name or password"),
    (" https://meet.example.com", "blanks"),
    ("https://meet.example.com ", "blanks"),
    ("https://meet.example.com\n", "control characters"),
    ("https://meet.exa\tmple.com", "control characters"),
    ("https://meet.example.com/\r\nX: y", "control characters"),
    ("https://meet.example.com/\0", "control characters"),
    ("https://meet.example.com\\@evil.example", "backslashes"),
    ("http://meet.example.com", "clear text"),
    ("http://meet.example.com:8080/prefix", "clear text"),
    ("http://10.0.0.1", "clear text"),
    ("http://0.0.0.0", "clear text"),
    ("http://[2001:db8::1]", "clear text"),
    ("http://localhost.evil.example", "clear text"),
    ("http://127.0.0.1.evil.example", "clear text"),
    ("http://127.0.0.1%25.evil.example", "clear text"),
    # In which words does not matter, but no call may be the first to find out.
    ("https://meet.exa\u200bmple.com", ""),
    ("https://meet.example.com\x85", ""),
    ("https://meet.example.com/\ud800", ""),
    ("https://meet\ud800.example.com", ""),
]


@pytest.mark.parametrize(("base_url", "problem"), BAD_BASE_URLS, ids=lambda text: ascii(text)[:60])
def test_unusable_base_urls(base_url: str, problem: str) -> None:
    """Found at once, not at the first call; the setting is named."""
    with pytest.raises(ConfigurationError) as caught:
        auth_base(base_url)
    assert caught.value.field == "base_url"
    assert problem in caught.value.problem
    assert caught.value.fix


@pytest.mark.parametrize("base_url", [None, b"https://meet.example.com", 5])
def test_base_url_is_text(base_url: object) -> None:
    """The type is named."""
    with pytest.raises(TypeError, match="base_url must be a str"):
        auth_base(base_url)


def test_plaintext_is_a_decision_of_the_caller() -> None:
    """Inside a network one trusts; it makes nothing else right."""
    url = "http://meet.internal:8080"
    assert auth_base(url, allow_plaintext=True) == f"{url}/auth"
    with pytest.raises(ConfigurationError, match="allow_plaintext=True"):
        auth_base(url)
    with pytest.raises(ConfigurationError, match="user name"):
        auth_base("http://anna:hush@meet.internal", allow_plaintext=True)


@pytest.mark.parametrize(
    "base_url",
    [
        "https://anna:hush@meet.example.com",
        "http://anna:hush@meet.example.com",
        "https://anna:hush@meet.example.com:port",
        "https://anna:hush @meet.example.com",
        "https://anna:h@hush@meet.example.com",
        "https://anna:h/hush@meet.example.com",
        "https://anna:hush?x@meet.example.com",
        "https://anna:hush#x@meet.example.com",
        "https:\\\\anna:hush@meet.example.com",
        "https:/anna:hush@meet.example.com",
        "anna:hush@meet.example.com",
        "ftp://anna:hush@meet.example.com",
        "https://meet.example.com?api_secret=hush",
        "https://meet.example.com#hush",
        "https://meet.example.com#a?hush",
        "https://meet.example.com/" + "a" * 300 + "?hush",
    ],
    ids=lambda url: url[:50],
)
def test_credentials_of_a_base_url_are_hidden(base_url: str) -> None:
    """A URL with a typing error still holds its password."""
    with pytest.raises(ConfigurationError) as caught:
        auth_base(base_url)
    assert "hush" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LocalHost", True),
        ("localhost.", True),
        ("meet.localhost", True),
        ("Meet.LocalHost", True),
        ("127.0.0.1", True),
        ("127.255.255.254", True),
        ("::1", True),
        ("::1%lo", True),
        ("0:0:0:0:0:0:0:1", True),
        ("", False),
        ("localhost.example.com", False),
        ("notlocalhost", False),
        ("localhostX", False),
        ("127.0.0.1.example.com", False),
        ("127.0.0.1%.example.com", False),
        ("127.0.0.1%lo", False),
        ("126.0.0.1", False),
        ("128.0.0.1", False),
        ("0.0.0.0", False),
        ("192.168.1.1", False),
        ("::", False),
        ("::2", False),
        ("fe80::1%lo", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    """Names and addresses of this machine only; a zone belongs to IPv6 (RFC 4007)."""
    assert is_loopback(host) is expected


# --- method paths --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("room/create", "room/create"),
        ("/room/create", "room/create"),
        ("getClientFiles", "getClientFiles"),
        ("/recording/fetch", "recording/fetch"),
        ("a/b/c/d", "a/b/c/d"),
        ("v1.2/room-x/~y_z", "v1.2/room-x/~y_z"),
        ("authors/list", "authors/list"),
        ("room/auth", "room/auth"),
        ("...", "..."),
    ],
)
def test_method_paths(path: str, expected: str) -> None:
    """With or without a leading slash."""
    assert method_path(path) == expected


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "//room/create", "room/create/", "room//create", "room/./create"),
        *("..", "../room/create", "room/../../admin", ".", "/.."),
        *("room/create?a=b", "room/create#a", "room/create\n", "room\r\nX: y", "room/ create"),
        *("room/%2e%2e", "room%2Fcreate", "room\\create", "röm/create", "room/create\0"),
        *("https://evil.example/auth/room/create", "@evil.example", "room:create"),
        *("auth/room/create", "/auth/room/create", "auth"),
    ],
)
def test_unusable_method_paths(path: str) -> None:
    """A path that leaves ``/auth``, or the server, would carry a signature elsewhere."""
    with pytest.raises(InvalidInput) as caught:
        method_path(path)
    assert caught.value.field == "path"
    assert caught.value.value == repr(path)


@pytest.mark.parametrize("path", [None, b"room/create", 5])
def test_method_path_is_text(path: object) -> None:
    """The type is named."""
    with pytest.raises(TypeError, match="path must be a str"):
        method_path(path)


# --- room ids ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("room_id", "expected"),
    [
        ("room01", b"room01"),
        ("raum-ä", b"raum-\xc3\xa4"),
        ("會議", b"\xe6\x9c\x83\xe8\xad\xb0"),
        ("😀", b"\xf0\x9f\x98\x80"),
        ("%2F", b"%2F"),
        ("a/b", b"a/b"),
        ("a b", b"a b"),
        ("0", b"0"),
        ("u\u0308", b"u\xcc\x88"),
        ("a" * 1024, b"a" * 1024),
        ("é" * 512, b"\xc3\xa9" * 512),
    ],
)
def test_room_ids(room_id: str, expected: bytes) -> None:
    """As they are, in UTF-8, neither normalised nor percent-encoded."""
    assert room_id_bytes(room_id) == expected


@pytest.mark.parametrize(
    ("room_id", "problem"),
    [
        ("", "is empty"),
        (" ", "blank"),
        (" room01", "blank"),
        ("room01 ", "blank"),
        ("\troom01", "blank"),
        ("room01\u00a0", "blank"),
        ("\u3000room01", "blank"),
        ("room01\n", "blank"),
        ("room01\r\nX-Evil: 1", "control characters"),
        ("room\n01", "control characters"),
        ("room\r01", "control characters"),
        ("room\t01", "control characters"),
        ("room\x0001", "control characters"),
        ("\0", "control characters"),
        ("room\x7f", "control characters"),
        ("room\x85x", "control characters"),
        ("room\ud800", "no Unicode text"),
        ("\udcff", "no Unicode text"),
        ("a" * 1025, "longer than 1,024 bytes"),
        ("é" * 513, "longer than 1,024 bytes"),
        ("a" * 10_240, "longer than 1,024 bytes"),
    ],
)
def test_unusable_room_ids(room_id: str, problem: str) -> None:
    """What cannot be sent as it is would be signed as something else; refused before any I/O."""
    with pytest.raises(InvalidInput) as caught:
        room_id_bytes(room_id)
    assert caught.value.field == "room_id"
    assert problem in caught.value.problem
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("room_id", [None, 7, b"room01", ["room01"]])
def test_a_room_id_is_text(room_id: object) -> None:
    """The type is named."""
    with pytest.raises(TypeError, match="room_id must be a str"):
        room_id_bytes(room_id)


@fuzz
@given(st.text(max_size=20))
def test_an_accepted_room_id_survives_a_header(room_id: str) -> None:
    """The server signs what arrives: the very bytes that were signed here (RFC 9110 5.5)."""
    try:
        room = room_id_bytes(room_id)
    except InvalidInput:
        return
    assert room.decode() == room_id
    sent = h11.Connection(h11.CLIENT).send(
        h11.Request(method="POST", target="/", headers=[(b"Host", b"h"), (b"Room-Id", room)])
    )
    server = h11.Connection(h11.SERVER)
    server.receive_data(sent or b"")
    event = server.next_event()
    assert isinstance(event, h11.Request)
    assert dict(event.headers)[b"room-id"] == room


# --- JSON bodies ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({}, b"{}"),
        ({"room_id": "room01"}, b'{"room_id":"room01"}'),
        ({"b": 1, "a": 2, "c": 3}, b'{"b":1,"a":2,"c":3}'),
        ({"title": "ä會😀"}, b'{"title":"\xc3\xa4\xe6\x9c\x83\xf0\x9f\x98\x80"}'),
        ({"a": [1, 2.5, True, None, {"x": ()}]}, b'{"a":[1,2.5,true,null,{"x":[]}]}'),
        ({"a": '"\\\n\x00\x7f/'}, b'{"a":"\\"\\\\\\n\\u0000\x7f/"}'),
        ({"n": 2**64}, b'{"n":18446744073709551616}'),
        ({"a": "\u2028"}, b'{"a":"\xe2\x80\xa8"}'),
        (MappingProxyType({"a": 1}), b'{"a":1}'),
    ],
)
def test_json_bodies(payload: Any, expected: bytes) -> None:
    """Compact UTF-8 in the caller's order: no re-serialisation may come between sign and send."""
    assert json_bytes(payload) == expected


CIRCULAR: dict[str, Any] = {}
CIRCULAR["self"] = CIRCULAR
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param({"a": math.nan}, id="NaN"),
        pytest.param({"a": math.inf}, id="infinity"),
        pytest.param({"a": [-math.inf]}, id="-infinity"),
        pytest.param({"a": {1}}, id="set"),
        pytest.param({"a": b"x"}, id="bytes"),
        pytest.param({"a": object()}, id="object"),
        pytest.param({"a": datetime(2026, 1, 1, tzinfo=UTC)}, id="datetime"),
        pytest.param({(1, 2): 3}, id="tuple as a name"),
        pytest.param({"a": "\ud800"}, id="surrogate"),
        pytest.param({"\udfff": 1}, id="surrogate in a name"),
        pytest.param(CIRCULAR, id="circular"),
        pytest.param({"a": DEEP}, id="too deep"),
        pytest.param({1: "a", "1": "b"}, id="names that are the same in JSON"),
    ],
)
def test_payloads_that_are_no_json(payload: Any) -> None:
    """Refused before anything is signed; the error is short whatever the payload."""
    with pytest.raises(InvalidInput) as caught:
        json_bytes(payload)
    assert caught.value.field == "payload"
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("payload", [None, [], "{}", b"{}", 5, [("a", 1)]])
def test_a_payload_is_a_mapping(payload: object) -> None:
    """The type is named."""
    with pytest.raises(TypeError, match="payload must be a mapping"):
        json_bytes(payload)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abcä"), inner),
    max_leaves=10,
)  # fmt: skip


@fuzz
@given(st.dictionaries(st.text("abcä"), values))
def test_what_is_written_can_be_read(payload: dict[str, Any]) -> None:
    """By the standard library and by ourselves, in the same order."""
    written = json_bytes(payload)
    assert json.loads(written) == payload
    assert json_object(written) == payload
    assert list(json.loads(written)) == list(payload)


# --- headers -------------------------------------------------------------------------------------

# Computed once with: printf '%s' MESSAGE | openssl dgst -sha256 -hmac s3cret-key
RAUM_SIGNATURE = "2c34e43c1a01d1c181395636524f2f4b9c88b382e70c66aaea9c877861b6061b"
RAUM_JSON_SIGNATURE = "99362310581eecab6a1dabbbe6949c81812f04d373d9ce7c5d7a2aa8bbd6aff5"


def test_json_request_to_the_byte() -> None:
    """Interface sections 4.1 and 5: the body that is sent is the message that was signed."""
    body = json_bytes({"room_id": "raum-ä"})
    signed = HmacSigner("devkey", "s3cret-key").sign(body)
    assert body == b'{"room_id":"raum-\xc3\xa4"}'
    assert json_headers(signed, body) == (
        (b"API-KEY", b"devkey"),
        (b"HASH-SIGNATURE", RAUM_JSON_SIGNATURE.encode()),
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"21"),
        (b"Accept", b"application/json"),
        (b"Accept-Encoding", b"identity"),
    )


def test_upload_request_to_the_byte() -> None:
    """Interface sections 4.2 and 5: the room's bytes that are sent are the message."""
    room = room_id_bytes("raum-ä")
    signed = HmacSigner("devkey", "s3cret-key").sign(room)
    headers = upload_headers(
        signed, room, content_type=b"multipart/form-data; boundary=b", length=12_345_678_901
    )
    assert headers == (
        (b"API-KEY", b"devkey"),
        (b"HASH-SIGNATURE", RAUM_SIGNATURE.encode()),
        (b"Room-Id", b"raum-\xc3\xa4"),
        (b"Content-Type", b"multipart/form-data; boundary=b"),
        (b"Content-Length", b"12345678901"),
        (b"Accept", b"application/json"),
        (b"Accept-Encoding", b"identity"),
    )


@pytest.mark.parametrize(
    "value", ["", "a b", "hush\n", "hush\r\nX-Evil: 1", "hüsh", "hush\0", " a"]
)
@pytest.mark.parametrize("field", ["api_key", "signature"])
def test_what_a_signer_returns_is_checked(field: str, value: str) -> None:
    """A signer that reads a file with a line break is told so, without showing what it read."""
    signed = attrs.evolve(SignedHeaders("devkey", "0123abcd"), **{field: value})
    with pytest.raises(InvalidInput) as caught:
        json_headers(signed, b"{}")
    assert caught.value.field == field
    assert caught.value.value == "(hidden)"
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("field", ["api_key", "signature"])
def test_locals_of_a_refusal_show_no_signature(field: str) -> None:
    """Error reporters send the local variables of each frame along."""
    signed = attrs.evolve(SignedHeaders("devkey", "0123abcd"), **{field: "hush\n"})
    with pytest.raises(InvalidInput) as caught:
        upload_headers(signed, b"room01", content_type=b"x/y", length=1)
    report = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    frames = [frame for frame in report.stack if frame.filename == wire.__file__]
    assert frames
    assert "hush" not in repr([frame.locals for frame in frames])


# --- replies -------------------------------------------------------------------------------------

RECORD = b'{"status": true, "msg": "file uploaded successfully", "status_code": "SUCCESS"}'


def read(content: bytes, **headers: str) -> Answer:
    """Decipher a reply of status 200."""
    pairs = tuple((name.replace("_", "-").encode(), v.encode()) for name, v in headers.items())
    return decipher(Reply(200, pairs, content))


def test_the_servers_own_record() -> None:
    """Status, message and code, as interface section 2 has them."""
    answer = read(RECORD, content_type="application/json")
    assert answer.status == 200
    assert answer.payload == json.loads(RECORD)
    assert answer.accepted is True
    assert answer.claims_status
    assert answer.is_record
    assert answer.msg == "file uploaded successfully"
    assert answer.status_code == "SUCCESS"
    assert answer.retry_after is None


@pytest.mark.parametrize(
    ("content", "accepted", "claims", "is_record", "status_code"),
    [
        (RECORD, True, True, True, "SUCCESS"),
        (b'{"status":false,"msg":"","status_code":""}', False, True, True, ""),
        (b'{"status":false,"msg":"m","status_code":"BRAND_NEW"}', False, True, True, "BRAND_NEW"),
        (b'{"status":true}', True, True, False, None),
        (b'{"status":false}', False, True, False, None),
        (b'{"status":true,"msg":"m"}', True, True, False, None),
        (b'{"status":true,"msg":"m","status_code":200}', True, True, False, None),
        (b'{"status":true,"msg":null,"status_code":"S"}', True, True, False, "S"),
        (b'{"status":"true","msg":"m","status_code":"S"}', None, True, False, "S"),
        (b'{"status":1,"msg":"m","status_code":"S"}', None, True, False, "S"),
        (b'{"status":null}', None, True, False, None),
        (b'{"Status":true}', None, False, False, None),
        (b"{}", None, False, False, None),
        (b'{"room":{"status":true}}', None, False, False, None),
        (b"[]", None, False, False, None),
        (b"null", None, False, False, None),
        (b"", None, False, False, None),
        (b"<html>413</html>", None, False, False, None),
    ],
)
def test_what_a_reply_says(
    content: bytes, accepted: bool | None, claims: bool, is_record: bool, status_code: str | None
) -> None:
    """Only JSON's own true and false count; a record is complete and typed."""
    answer = read(content)
    assert answer.accepted is accepted
    assert answer.claims_status is claims
    assert answer.is_record is is_record
    assert answer.status_code == status_code


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" ",
        b"null",
        b"true",
        b"5",
        b'"text"',
        b"[]",
        b"[" + RECORD + b"]",
        b"<!doctype html><title>413 Request Entity Too Large</title>",
        RECORD + RECORD,
        RECORD + b"x",
        RECORD + b"\0",
        b")]}'\n" + RECORD,
        RECORD.replace(b'"', b"'"),
        b'{"status": true, "status": false, "msg": "", "status_code": ""}',
        b'{"status": true, "status": true}',
        b'{"status": true, "room": {"a": 1, "a": 2}}',
        b'{"status": true, "n": NaN}',
        b'{"status": true, "n": Infinity}',
        b'{"status": true, "n": -Infinity}',
        b'{"status": true, "msg": "\xff"}',
        b'{"status": true, "msg": "\xed\xa0\x80"}',
        b'{"status": true, "n": ' + b"9" * 5_000 + b"}",
        b'{"status": true, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        RECORD.decode().encode("utf-16"),
        RECORD.decode().encode("utf-32"),
        gzip.compress(RECORD, mtime=0),
        gzip.compress(b"[" * 1_000_000, mtime=0),
        b'{"status": True}',
        b'{"status": true,}',
        b'{"status": true /* ok */}',
    ],
    ids=lambda content: ascii(content)[:40],
)
def test_what_is_no_json_object(content: bytes) -> None:
    """Not a crash, not a guess: there is no payload, and the description says what came."""
    answer = read(content, content_type="text/html")
    assert answer.payload is None
    assert answer.accepted is None
    assert not answer.is_record
    assert answer.msg == answer.description == f"{len(content):,} bytes of text/html"


def test_a_record_that_is_cut_off_anywhere_is_none() -> None:
    """Truncated at every byte."""
    assert json_object(RECORD) is not None
    for length in range(len(RECORD)):
        assert json_object(RECORD[:length]) is None


@pytest.mark.parametrize(
    "content",
    [RECORD, b"\xef\xbb\xbf" + RECORD, b"\r\n\t " + RECORD + b"\n", RECORD.replace(b" ", b"")],
    ids=["plain", "byte order mark", "blanks", "compact"],
)
def test_harmless_variations_of_a_record(content: bytes) -> None:
    """What RFC 8259 allows."""
    assert read(content).is_record


def test_64_bit_integers_keep_every_digit() -> None:
    """As JSON strings they are text, as numbers they are exact."""
    payload = json_object(b'{"a": "18446744073709551615", "b": 18446744073709551615}')
    assert payload == {"a": "18446744073709551615", "b": 2**64 - 1}


@fuzz
@given(st.binary())
def test_no_content_is_an_error(content: bytes) -> None:
    """Anything may come from the network."""
    answer = read(content)
    assert answer.payload is None or isinstance(answer.payload, dict)


@pytest.mark.parametrize(
    ("content", "headers", "msg"),
    [
        (b'{"msg": "no room"}', {}, "no room"),
        (b'{"msg": ""}', {}, "11 bytes of no content type"),
        (b'{"msg": 5}', {"Content_Type": "application/json"}, "10 bytes of application/json"),
        (b"", {"content_type": ""}, "0 bytes of no content type"),
        (
            b"x" * 1234,
            {"CONTENT_TYPE": "text/html; charset=x"},
            "1,234 bytes of text/html; charset=x",
        ),
        (b"", {"content_type": "a\x1b[31mb"}, r"0 bytes of a\x1b[31mb"),
    ],
)
def test_what_a_reply_is_called(content: bytes, headers: dict[str, str], msg: str) -> None:
    """The server's message, else type and size; never the content of a stranger."""
    assert read(content, **headers).msg == msg


def test_a_long_content_type_is_shortened_neatly() -> None:
    """A header of 8 KiB makes no error text of 8 KiB, and no bracket is lost."""
    description = read(b"", content_type="x" * 8_000).description
    assert len(description) < 200
    assert description.count("(") == description.count(")")


def test_an_answer_does_not_show_its_payload() -> None:
    """Replies carry access tokens."""
    assert "hush" not in repr(read(b'{"status": true, "token": "hush"}'))


# --- Retry-After ---------------------------------------------------------------------------------

NOON = 1_767_268_800.0  # 2026-01-01 12:00:00 UTC


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"0", 0.0),
        (b"5", 5.0),
        (b" 5 ", 5.0),
        (b"1.5", 1.5),
        (b"0.001", 0.001),
        (b"9999999999", 9_999_999_999.0),
        (b"999999999999", 999_999_999_999.0),
        (b"Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        (b"Thu, 01 Jan 2026 12:00:00 GMT", 0.0),
        (b"Thu, 01 Jan 2026 11:59:59 GMT", 0.0),
        (b"Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        (b"Thursday, 01-Jan-26 12:00:30 GMT", 30.0),
        (b"Thu Jan  1 12:00:30 2026", 30.0),
        (b"Thu, 01 Jan 2026 12:00:30", 30.0),
        (b"Thu, 01 Jan 2026 12:00:30 -0000", 30.0),
        (b"Thu, 01 Jan 2026 13:00:30 +0100", 30.0),
        (b"Fri, 01 Jan 2027 12:00:00 GMT", 365 * 86_400.0),
        (None, None),
        (b"", None),
        (b" ", None),
        (b"-1", None),
        (b"+1", None),
        (b"-0", None),
        (b".5", None),
        (b"5.", None),
        (b"1e3", None),
        (b"1e400", None),
        (b"NaN", None),
        (b"nan", None),
        (b"inf", None),
        (b"Infinity", None),
        (b"5s", None),
        (b"5 seconds", None),
        (b"5, 10", None),
        (b"0x10", None),
        (b"1_000", None),
        (b"9" * 13, None),
        (b"9" * 5_000, None),
        ("٣".encode(), None),
        (b"\xb2", None),
        (b"soon", None),
        (b"Thu, ", None),
        (b"Thu, 32 Jan 2026 12:00:30 GMT", None),
        (b"Thu, 01 Foo 2026 12:00:30 GMT", None),
        (b"Thu, 01 Jan 2026 25:00:30 GMT", None),
        (b"Thu, 01 Jan 99999999999 12:00:30 GMT", None),
        (b"Thu, 01 Jan 2026 12:00:30 +999999", None),
        (b"2026-01-01T12:00:30Z", None),
        (b"1767268830", 1_767_268_830.0),
    ],
)
def test_retry_after(value: bytes | None, expected: float | None) -> None:
    """Seconds or an HTTP date (RFC 9110 section 10.2.3); junk is as if it were not there."""
    assert retry_after(value, now=NOON) == expected


@fuzz
@given(
    st.binary(max_size=30)
    | st.lists(
        st.sampled_from(
            "Thu, Thursday, 01 31-Dec-99 Jan 2026 0 12:00:30 12.0 GMT -0000 +9999 EST ::: "
            f"1:2:3:4 , - AM {'9' * 30}".split()
        ),
        max_size=7,
    ).map(lambda words: " ".join(words).encode()),
    st.sampled_from([0.0, NOON, 1e12]),
)
def test_no_retry_after_is_an_error(value: bytes, now: float) -> None:
    """Whatever a proxy writes there: nothing, or a number of seconds to wait."""
    seconds = retry_after(value, now=now)
    assert seconds is None or (seconds >= 0 and math.isfinite(seconds))


def test_headers_of_a_reply() -> None:
    """Names in any case; of a repeated header the first."""
    headers = ((b"RETRY-after", b"7"), (b"Retry-After", b"9"), (b"Content-type", b"text/plain"))
    answer = decipher(Reply(503, headers, b""), now=NOON)
    assert answer.retry_after == 7.0
    assert answer.description == "0 bytes of text/plain"
    dated = ((b"retry-after", b"Thu, 01 Jan 2026 12:00:30 GMT"),)
    assert decipher(Reply(503, dated, b""), now=NOON).retry_after == 30.0


def test_paths_of_the_two_endpoints() -> None:
    """Interface section 4."""
    assert wire.ACTIVE_ROOM_INFO == "room/getActiveRoomInfo"
    assert wire.UPLOAD_WHITEBOARD_FILE == "room/uploadWhiteboardFile"
