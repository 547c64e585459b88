"""Requests to the byte, and the arguments that they are made of."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import attrs
import h11
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meeting_async import Timeouts
from meeting_async._protocol.requests import (
    auth_base,
    default_header_pairs,
    host_and_port,
    json_bytes,
    json_request,
    method_path,
    room_id_bytes,
    upload_request,
)
from meeting_async.errors import ConfigurationError, InvalidInput
from meeting_async.signers import HmacSigner, SignedHeaders

MEET = "https://meet.example.com"


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        *((MEET + end, f"{MEET}/auth") for end in ("", "/", "//", "/auth", "/auth/")),
        *((f"{MEET}/p/q{end}", f"{MEET}/p/q/auth") for end in ("", "/", "/auth", "/auth/")),
        (f"{MEET}/x-auth/", f"{MEET}/x-auth/auth"),
        ("https://auth", "https://auth/auth"),
        (f"{MEET}:8443/p", f"{MEET}:8443/p/auth"),
        ("https://[2001:db8::1]:8443/p/", "https://[2001:db8::1]:8443/p/auth"),
        ("https://bücher.example", "https://bücher.example/auth"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/auth"),
        ("HTTPS://Meet.Example.com/Prefix", "https://Meet.Example.com/Prefix/auth"),
        *((f"http://{host}", f"http://{host}/auth")
          for host in ("localhost:8080", "LOCALHOST.", "a.localhost", "127.5.6.7", "[::1]:8080")),
    ],
)  # fmt: skip
def test_base_urls(base_url: str, expected: str) -> None:
    """However it is written, ``/auth`` stands once behind it, and httpx understands the result."""
    assert auth_base(base_url) == expected
    assert httpx.URL(f"{expected}/room/create").path.endswith("/auth/room/create")


@pytest.mark.parametrize(
    ("base_url", "problem"),
    [
        *((url, "not an http(s) URL") for url in ("", "meet.example.com", "meet.example.com:8443")),
        *((url, "not an http(s) URL") for url in ("//meet.example.com", "https:/m.example.com")),
        *((url, "not an http(s) URL") for url in ("https://", "https:///p", "ftp://m.example.com")),
        *((MEET + port, "not a URL") for port in (":port", ":65536", ":-1")),
        ("https://[2001:db8::1", "not a URL"),
        *((MEET + end, "query or a fragment") for end in ("?", "/?a=b", "/#", "#frag")),
        *((f"https://{user}@m.example.com", "user name") for user in ("anna:hush", "anna", "")),
        *((url, "blanks") for url in (f" {MEET}", f"{MEET} ", f"{MEET}\n", f"{MEET}/\r\nX: y")),
        *((url, "") for url in (  # a URL with a typing error still holds its password
            "https://anna:hush@m.test:port", "https://anna:h@hush@m.test",
            "https://anna:h/hush@m.test", "https://anna:hush#x@m.test",
            "https:\\\\anna:hush@m.test", "anna:hush@m.test", f"{MEET}?api_secret=hush",
            f"{MEET}#a?hush", f"{MEET}/{'a' * 300}?hush",
        )),
        *((MEET + end, "") for end in ("/\0", "\\@evil.example", "\u200b", "/\ud800")),
        *((f"http://{host}", "clear text")
          for host in ("meet.example.com", "10.0.0.1", "0.0.0.0", "[2001:db8::1]",
                       "localhost.evil.test", "127.0.0.1.evil.test")),
    ],
    ids=lambda text: ascii(text)[:60],
)  # fmt: skip
def test_unusable_base_urls(base_url: str, problem: str) -> None:
    """Found at once, not at the first call; the setting is named, and no password is shown."""
    with pytest.raises(ConfigurationError) as caught:
        auth_base(base_url)
    assert caught.value.field == "base_url"
    assert problem in caught.value.problem
    assert "hush" not in f"{caught.value} {caught.value!r}"


def test_plaintext_is_a_decision_of_the_caller() -> None:
    """Plain http leaves this machine only with allow_plaintext=True."""
    assert auth_base("http://meet.lan:8080", allow_plaintext=True) == "http://meet.lan:8080/auth"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://m.test/auth", "m.test:443"),
        ("http://localhost/auth", "localhost:80"),
        ("https://[2001:db8::1]/auth", "[2001:db8::1]:443"),
        ("https://m.test:8443/p/auth", "m.test:8443"),
    ],
)
def test_hosts_have_a_port(url: str, expected: str) -> None:
    """Errors and events name host and port."""
    assert host_and_port(url) == expected


# --- paths, rooms, payloads ----------------------------------------------------------------------


@pytest.mark.parametrize("path", ["room/create", "/room/create", "getClientFiles", "v1.2/r-x/~y_z"])
def test_method_paths(path: str) -> None:
    """With or without a leading slash."""
    assert method_path(path) == path.removeprefix("/")


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "//room/create", "room/create/", "room//create", "..", "../x", "room/../../x"),
        *("room/create?a=b", "room/create#a", "room/create\n", "room\r\nX: y", "room/%2e%2e", "."),
        *("room\\create", "röm/create", "https://evil.test/auth/x", "@evil.test", "room:create"),
        *("auth/room/create", "/auth/room/create", "auth"),
    ],
)
def test_unusable_method_paths(path: str) -> None:
    """A path that leaves ``/auth``, or the server, would carry a signature elsewhere."""
    with pytest.raises(InvalidInput) as caught:
        method_path(path)
    assert caught.value.field == "path"


@pytest.mark.parametrize(
    "room_id", ["room01", "raum-ä", "會議", "%2F", "a/b", "a b", "u\u0308", "a" * 1024, "é" * 512]
)
def test_room_ids(room_id: str) -> None:
    """In UTF-8, neither normalised nor percent-encoded."""
    assert room_id_bytes(room_id) == room_id.encode()


@pytest.mark.parametrize(
    "room_id",
    [
        *("", " ", " room01", "room01 ", "\troom01", "room01\u00a0", "room01\n", "room\r\nX: 1"),
        *("room\x0001", "room\x7f", "room\x85x", "room\ud800", "a" * 1025, "é" * 513, "a" * 10_240),
    ],
    ids=lambda room_id: ascii(room_id)[:30],
)
def test_unusable_room_ids(room_id: str) -> None:
    """What does not survive a header would be signed as something else; refused before any I/O."""
    with pytest.raises(InvalidInput) as caught:
        room_id_bytes(room_id)
    assert caught.value.field == "room_id"
    assert len(str(caught.value)) < 300


@given(st.text(max_size=20))
def test_an_accepted_room_id_survives_a_header(room_id: str) -> None:
    """The server signs what arrives: the very bytes that were signed here (RFC 9110 5.5)."""
    try:
        room = room_id_bytes(room_id)
    except InvalidInput:
        return
    sent = h11.Connection(h11.CLIENT).send(
        h11.Request(method="POST", target="/", headers=[(b"Host", b"h"), (b"Room-Id", room)])
    )
    server = h11.Connection(h11.SERVER)
    server.receive_data(sent or b"")
    event = server.next_event()
    assert isinstance(event, h11.Request)
    assert dict(event.headers)[b"room-id"] == room


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({}, b"{}"),
        ({"b": 1, "a": 2, "c": 3}, b'{"b":1,"a":2,"c":3}'),
        ({"title": "ä會😀"}, '{"title":"ä會😀"}'.encode()),
        ({"a": [1, 2.5, True, None, {"x": ()}]}, b'{"a":[1,2.5,true,null,{"x":[]}]}'),
        ({"n": 2**64}, b'{"n":18446744073709551616}'),
        (MappingProxyType({"a": 1}), b'{"a":1}'),
    ],
)
def test_json_bodies(payload: Any, expected: bytes) -> None:
    """Compact UTF-8 in the caller's order; these very bytes are signed and sent."""
    assert json_bytes(payload) == expected


CIRCULAR: dict[str, Any] = {}
CIRCULAR["self"] = CIRCULAR
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "payload",
    [
        *({"a": value} for value in (math.nan, math.inf, {1}, b"x", object(), "\ud800")),
        *(
            {"a": datetime(2026, 1, 1, tzinfo=UTC)},
            {(1, 2): 3},
            {"\udfff": 1},
            CIRCULAR,
            {"a": DEEP},
        ),
        {1: "a", "1": "b"},
    ],
    ids=[str(number) for number in range(12)],
)
def test_payloads_that_are_no_json(payload: Any) -> None:
    """Refused before anything is signed; the error is short and shows no content."""
    with pytest.raises(InvalidInput) as caught:
        json_bytes(payload)
    assert caught.value.field == "payload"
    assert len(str(caught.value)) < 500


# --- headers -------------------------------------------------------------------------------------

EXTRA = default_header_pairs({"X-Request-Id": "r-1", "Authorization": "Basic aHVzaDpodXNo"})
COMMON = (
    (b"Accept", b"application/json"),
    (b"Accept-Encoding", b"identity"),
    (b"X-Request-Id", b"r-1"),
    (b"Authorization", b"Basic aHVzaDpodXNo"),
)
# Computed once with: printf '%s' MESSAGE | openssl dgst -sha256 -hmac s3cret-key
RAUM_SIGNATURE = b"2c34e43c1a01d1c181395636524f2f4b9c88b382e70c66aaea9c877861b6061b"
RAUM_JSON_SIGNATURE = b"99362310581eecab6a1dabbbe6949c81812f04d373d9ce7c5d7a2aa8bbd6aff5"
SIGNER = HmacSigner("devkey", "s3cret-key")
TIMEOUTS = Timeouts(connect=1, send_stall=2, reply=3, upload_reply=4)


class Form:
    """A body of some gigabytes."""

    length = 12_345_678_901
    sent = 0


def test_json_request_to_the_byte() -> None:
    """``docs/interface.md``, Authentication: the body that is sent is what was signed."""
    body = json_bytes({"room_id": "raum-ä"})
    url = f"{MEET}/auth/room/create"
    request = json_request(url, body, SIGNER.sign(body), EXTRA, TIMEOUTS, idempotent=True)
    assert request.headers == (
        (b"API-KEY", b"devkey"),
        (b"HASH-SIGNATURE", RAUM_JSON_SIGNATURE),
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"21"),
        *COMMON,
    )
    assert (request.method, request.url) == ("POST", url)
    assert request.body == body
    assert (request.connect_timeout, request.stall_timeout) == (1.0, 2.0)
    assert request.reply_timeout == 3
    assert request.idempotent
    assert request.max_reply_bytes == 1024**2


@pytest.mark.parametrize(
    ("body", "length", "reply"), [(Form(), b"12345678901", 4), (b"question", b"8", 3)]
)
def test_upload_request_to_the_byte(body: Any, length: bytes, reply: float) -> None:
    """The room's bytes that are sent are the signed message; a document never rides idle lines."""
    room = room_id_bytes("raum-ä")
    kind = b"multipart/form-data; boundary=b"
    request = upload_request(MEET, room, kind, body, SIGNER.sign(room), EXTRA, TIMEOUTS)
    assert request.headers == (
        (b"API-KEY", b"devkey"),
        (b"HASH-SIGNATURE", RAUM_SIGNATURE),
        (b"Room-Id", b"raum-\xc3\xa4"),
        (b"Content-Type", kind),
        (b"Content-Length", length),
        *COMMON,
    )
    assert request.reply_timeout == reply
    assert request.idempotent is isinstance(body, bytes)
    assert request.max_reply_bytes == 1024**2


def test_credentials_do_not_show() -> None:
    """Neither key and signature nor headers of the caller, which may be a proxy's password."""
    request = json_request(MEET, b"{}", SIGNER.sign(b"{}"), EXTRA, TIMEOUTS, idempotent=True)
    hidden = {name for name, value in request.headers if "(hidden)" in repr(value)}
    assert hidden >= {b"API-KEY", b"HASH-SIGNATURE", b"Authorization"}
    shown = repr(request)
    assert SIGNER.sign(b"{}").signature not in shown
    assert "devkey" not in shown
    assert "aHVzaDpodXNo" not in shown


@pytest.mark.parametrize(
    "value", ["", "a b", "hush\n", "hush\r\nX: 1", "hüsh", "hush\0", None, b"h"]
)
@pytest.mark.parametrize("field", ["api_key", "signature"])
def test_what_a_signer_returns_is_checked(field: str, value: Any) -> None:
    """A signer that reads a file with a line break is named, and what it read is not shown."""
    signed = attrs.evolve(SignedHeaders("devkey", "0123abcd"), **{field: value})
    with pytest.raises(InvalidInput) as caught:
        json_request(MEET, b"{}", signed, (), TIMEOUTS, idempotent=False)
    assert caught.value.field == field
    assert "hush" not in f"{caught.value} {caught.value!r}"


@pytest.mark.parametrize(
    "headers",
    [
        *({name: "x"} for name in ("", "a b", "a:", "ä", "a\r\nb", 5, None)),
        *({"X-A": value} for value in ("a\r\nX-B: 1", "a\n", "\0", "ä", " a", "a ", 5, None, b"x")),
        *({name: "x"} for name in ("api-key", "Hash-Signature", "ROOM-ID", "Host", "Content-Length",
                                   "content-type", "Transfer-Encoding", "Connection", "Expect")),
    ],
)  # fmt: skip
def test_unusable_default_headers(headers: Any) -> None:
    """What cannot be sent, and what the library sets itself, is refused when the client is made."""
    with pytest.raises(ConfigurationError) as caught:
        default_header_pairs(headers)
    assert caught.value.field == "default_headers"
    assert default_header_pairs(None) == default_header_pairs({}) == ()
