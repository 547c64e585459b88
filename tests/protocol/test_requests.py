"""What is signed and sent, to the byte, and the arguments that it is made of."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import attrs
import httpx
import pytest

from meeting_async import Timeouts
from meeting_async._protocol.multipart import (
    document_form,
    empty_form,
    file_name,
    link_form,
    media_type,
)
from meeting_async._protocol.requests import (
    Room,
    auth_base,
    default_header_pairs,
    host_and_port,
    json_bytes,
    json_request,
    method_path,
    room_of,
    upload_request,
)
from meeting_async.errors import ConfigurationError, InvalidInput
from meeting_async.signers import HmacSigner, SignedHeaders
from support.parsers import PARSERS
from support.telling import containing, traceback_with_locals

MEET = "https://meet.example.com"

# --- arguments -----------------------------------------------------------------------------------

USABLE: list[tuple[Callable[[Any], object], list[tuple[Any, object]]]] = [
    # However it is written, ``/auth`` stands once behind it.
    (auth_base, [
        *((MEET + end, f"{MEET}/auth") for end in ("", "/", "//", "/auth", "/auth/")),
        *((f"{MEET}/p/q{end}", f"{MEET}/p/q/auth") for end in ("", "/", "/auth", "/auth/")),
        (f"{MEET}/x-auth/", f"{MEET}/x-auth/auth"),
        ("https://auth", "https://auth/auth"),
        ("https://[2001:db8::1]:8443/p/", "https://[2001:db8::1]:8443/p/auth"),
        *((url, f"{url}/auth") for url in ("https://bücher.test", "https://xn--bcher-kva.test")),
        ("HTTPS://Meet.Example.com/Prefix", "https://Meet.Example.com/Prefix/auth"),
        *((f"http://{host}", f"http://{host}/auth")
          for host in ("localhost:8080", "LOCALHOST.", "a.localhost", "127.5.6.7", "[::1]:8080")),
        ("http://a.localhost.", "http://a.localhost./auth"),
    ]),
    # With or without a leading slash.
    (method_path, [
        *((path, path) for path in ("room/create", "getClientFiles", "v1.2/r-x/~y_z")),
        ("/room/create", "room/create"),
    ]),
    # In UTF-8, neither normalised nor percent-encoded.
    (room_of, [
        (room, Room(room, room.encode())) for room in (
            "room01", "raum-ä", "會議", "%2F", "a/b", "a b", "u\u0308", "a" * 1024, "é" * 512,
        )
    ]),
    # Compact UTF-8 in the caller's order; these very bytes are signed and sent.
    (json_bytes, [
        ({"b": 1, "a": 2, "c": 3}, b'{"b":1,"a":2,"c":3}'),
        ({"title": "ä會😀"}, '{"title":"ä會😀"}'.encode()),
        ({"a": [2**64, 2.5, True, None, {"x": ()}]},
         b'{"a":[18446744073709551616,2.5,true,null,{"x":[]}]}'),
        (MappingProxyType({"a": 1}), b'{"a":1}'),
    ]),
    # The last component, in NFC, without what servers change, cut before the extension.
    (file_name, [
        ("/srv/files/deck.pdf", "deck.pdf"),
        ("C:/Users\\anna\\deck.pdf", "deck.pdf"),
        ("C:deck.pdf", "C_deck.pdf"),
        (" .hidden.pdf. ", "hidden.pdf"),
        ("u\u0308bung.pdf", "übung.pdf"),  # NFD to NFC
        ('a"b<c>d:e|f?g*h.pdf', "a_b_c_d_e_f_g_h.pdf"),
        ("a\r\nb\tc\x1b\x7f\x85.pdf", "a__b_c___.pdf"),
        ("ü 會 😀 ; ' =.pdf", "ü 會 😀 ; ' =.pdf"),
        ("x" * 300, "x" * 200),
        ("x" * 196 + ".pdf", "x" * 196 + ".pdf"),
        ("x" * 197 + ".pdf", "x" * 196 + ".pdf"),
        ("é" * 150 + ".pptx", "é" * 97 + ".pptx"),  # 97 * 2 + 5 = 199: no half characters
        ("x" * 300 + "." + "y" * 100, "x" * 200),  # that is no extension
        ("x" * 100 + " " * 200 + ".pdf", "x" * 100 + ".pdf"),
    ]),
    # A type, a subtype, and parameters as needed.
    (media_type, [
        (kind, kind) for kind in (
            "application/pdf", "image/svg+xml", "text/plain;charset=utf-8", 'a/b ; c="d"; e=f',
        )
    ]),
    (default_header_pairs, [(None, ()), ({}, ())]),
    # Errors and events name host and port.
    (host_and_port, [
        ("https://m.test/auth", "m.test:443"),
        ("http://localhost/auth", "localhost:80"),
        ("https://[2001:db8::1]/auth", "[2001:db8::1]:443"),
        ("https://m.test:8443/p/auth", "m.test:8443"),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "given_value", "expected"),
    [(function, *row) for function, rows in USABLE for row in rows],
    ids=lambda value: getattr(value, "__name__", ascii(value)[:30]),
)
def test_usable_arguments(function: Any, given_value: Any, expected: object) -> None:
    """What becomes of base URLs, paths, rooms, payloads, names and types of documents."""
    assert function(given_value) == expected
    if function is auth_base:
        assert httpx.URL(f"{expected}/room/create").path.endswith("/auth/room/create")


CIRCULAR: dict[str, Any] = {}
CIRCULAR["self"] = CIRCULAR
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]

UNUSABLE: list[tuple[Callable[[Any], object], str, list[Any]]] = [
    # No address; one with a typing error still holds its password ("hush").
    (auth_base, "base_url", [
        *("//meet.example.com", "https:/m.example.com", "https://", "https:///p", "ftp://m.test"),
        *(MEET + port for port in (":port", ":65536", ":-1")),
        *("https://[2001:db8::1", "https://anna:hush@m.test", "https://@m.test"),
        *(MEET + end for end in ("?", "/?a=b", "/#", "#frag", " ", "/\r\nX: y", "/\0", "\u200b")),
        *(MEET + end for end in ("\\@evil.example", "/\ud800", "?api_secret=hush", "#a?hush")),
        *("https://anna:h/hush@m.test", "https://anna:hush#x@m.test", "https:\\\\anna:hush@m.test"),
        *("https://anna:hush@m.test:port", "https://anna:h@hush@m.test", "anna:hush@m.test"),
        f"{MEET}/{'a' * 300}?hush",
    ]),
    # A signature in clear text is for this machine only.
    (auth_base, "base_url", [
        f"http://{host}" for host in (
            "meet.example.com", "10.0.0.1", "0.0.0.0", "[2001:db8::1]", "localhost.evil.test",
            "127.0.0.1.evil.test",
        )
    ]),
    # A path that leaves ``/auth``, or the server, would carry a signature elsewhere.
    (method_path, "path", [
        *("", "/", "//room/create", "room/create/", "room//create", "..", "../x", "room/../../x"),
        *("room/create?a=b", "room/create#a", "room/create\n", "room\r\nX: y", "room/%2e%2e", "."),
        *("room\\create", "röm/create", "https://evil.test/auth/x", "@evil.test", "room:create"),
        *("auth/room/create", "/auth/room/create", "auth"),
    ]),
    # What does not survive a header would be signed as something else.
    (room_of, "room_id", [
        *("", " ", " room01", "room01 ", "\troom01", "room01\u00a0", "room01\n", "room\r\nX: 1"),
        *("room\x0001", "room\x7f", "room\x85x", "room\ud800", "a" * 1025, "é" * 513, "a" * 10_240),
    ]),
    # No JSON.
    (json_bytes, "payload", [
        *({"a": value} for value in (math.nan, math.inf, {1}, b"x", object(), "\ud800", DEEP)),
        *({"a": datetime(2026, 1, 1, tzinfo=UTC)}, {(1, 2): 3}, {"\udfff": 1}, CIRCULAR),
        {1: "a", "1": "b"},
    ]),
    # Nothing is left, or it cannot be written.
    (file_name, "filename", [
        *("", ".", "..", "...", " ", " . ", "/", "\\", "dir/", "C:\\", "a/..", "a/ "),
        *("a\0b.pdf", "\0", "a\ud800.pdf", "\udcff" * 1000),
    ]),
    # What could open another header, or is no type.
    (media_type, "content_type", [
        *("", "pdf", "application/", "/pdf", "a/b/c", " a/b", "a/b ", "a/p df", "a/b, c/d", "*/*"),
        *("a/b\r\nX-Evil: 1", "a/b\n", "a/b; c=\r\nX: 1", "a/b; c=\0", "a/b; c=ü", "ä/b", "a/b\tc"),
    ]),
    # What cannot be sent, and what the library sets itself.
    (default_header_pairs, "default_headers", [
        *({name: "x"} for name in ("", "a b", "a:", "ä", "a\r\nb", 5, None)),
        *({"X-A": value} for value in ("a\r\nX-B: 1", "a\n", "\0", "ä", " a", "a ", 5, None, b"x")),
        *({name: "x"} for name in ("api-key", "Hash-Signature", "ROOM-ID", "Host", "Content-Length",
                                   "content-type", "Transfer-Encoding", "Connection", "Expect")),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "field", "given_value"),
    [(function, field, value) for function, field, values in UNUSABLE for value in values],
    ids=[f"{row[1]}-{number}" for row in UNUSABLE for number in range(len(row[2]))],
)
def test_unusable_arguments(function: Any, field: str, given_value: Any) -> None:
    """Refused before anything is signed or sent; the error names the argument, and is short.

    No password is shown.
    """
    with pytest.raises((InvalidInput, ConfigurationError)) as caught:
        function(given_value)
    assert caught.value.field == field
    assert len(str(caught.value)) < 300
    assert "hush" not in f"{caught.value} {caught.value!r}"


# --- signatures ----------------------------------------------------------------------------------

SECRET = "s3cret-key"

# Each computed once with: printf '%s' MESSAGE | openssl dgst -sha256 -hmac SECRET
# (keys that are no text with -mac HMAC -macopt hexkey:...).
VECTORS: list[tuple[str | bytes, bytes, str]] = [
    (SECRET, b"room01", "971f33ad0b2630662929c978c3935e4079d20bf6cefcf11ab014bbfdd0510cbb"),
    (SECRET, "raum-ä".encode(), "2c34e43c1a01d1c181395636524f2f4b9c88b382e70c66aaea9c877861b6061b"),
    (SECRET, b"", "03b5d47de6f8548b83940d24f99f8345cb156d953238ce3a1b7cb6ece090dcd5"),
    ("geheim-ü-鍵", b"room01", "b080249773cafcccfbcec852ffdc0928cdb3140427e54bbda47cd5c0d0a2eb81"),
    (b"\xff\x80\xfe\x01", b"room01",
     "889bec62920670bc6e3bced0251f99dd31778a2aef8413739563ecfb2ddd6b25"),
]  # fmt: skip


@pytest.mark.parametrize(("secret", "message", "signature"), VECTORS)
def test_golden_vectors(secret: str | bytes, message: bytes, signature: str) -> None:
    """Lowercase hexadecimal HMAC-SHA256 over the exact bytes; text counts as UTF-8."""
    signer = HmacSigner("devkey", secret)
    assert signer.sign(message) == SignedHeaders("devkey", signature)
    assert signer.verify(message, signature)
    if isinstance(secret, str):
        assert HmacSigner("devkey", secret.encode()).sign(message) == signer.sign(message)


@pytest.mark.parametrize("signature", ["", "971f33ad", VECTORS[0][2].upper(), "ä" * 64, "\udcff"])
def test_verify_refuses_everything_else(signature: str) -> None:
    """What a stranger sends makes it false, never an error."""
    assert HmacSigner("devkey", SECRET).verify(b"room01", signature) is False
    assert HmacSigner("devkey", "another").verify(b"room01", VECTORS[0][2]) is False


@pytest.mark.parametrize(
    ("typed", "secret"),
    [(f"{SECRET}\r\n", SECRET), (b"\xff\n\n", b"\xff"), (" s3 cret \n", " s3 cret ")],
)
def test_a_line_break_at_the_end_is_stripped_with_a_warning(typed: Any, secret: Any) -> None:
    """It comes from reading a file; other blanks belong to the secret."""
    with pytest.warns(UserWarning, match="line break") as caught:
        signer = HmacSigner("devkey", typed)
    assert caught[0].filename == __file__
    assert signer.sign(b"m") == HmacSigner("devkey", secret).sign(b"m")


BAD_KEYS = [
    *(("k", bad, ConfigurationError) for bad in ("", b"", "hush\0", b"hu\0sh", "hush\ud800")),
    *((bad, "hush", ConfigurationError) for bad in ("", "a b", "k\n", "k\r\nX: y", "k\0", "ü")),
    *(("k", bad, TypeError) for bad in (None, 5, bytearray(b"hush"), ["hush"])),
    *((bad, "hush", TypeError) for bad in (None, b"devkey", 5)),
]  # fmt: skip


@pytest.mark.parametrize(("key", "secret", "kind"), BAD_KEYS)
def test_unusable_keys_and_secrets(key: Any, secret: Any, kind: type[Exception]) -> None:
    """Named, not shown: neither in the error nor in the local variables of a traceback."""
    with pytest.raises(kind) as caught:
        HmacSigner(key, secret)
    assert "hush" not in f"{caught.value} {caught.value!r}"
    assert "api_" in str(caught.value)
    assert containing(traceback_with_locals(caught.value), ["hush"]) == []


@pytest.mark.parametrize("value", [HmacSigner("k", "hush"), SignedHeaders("k", "hush")])
def test_what_holds_a_secret_prints_nothing_and_does_not_pickle(value: object) -> None:
    """A log shows ``(hidden)``; a pickle on a disk or a queue would carry the secret."""
    assert "(hidden)" in repr(value)
    assert "hush" not in f"{value} {value!r}"
    for protocol in (0, pickle.HIGHEST_PROTOCOL):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(value, protocol)


# --- requests ------------------------------------------------------------------------------------

EXTRA = default_header_pairs({"X-Request-Id": "r-1", "Authorization": "Basic aHVzaDpodXNo"})
COMMON = (
    (b"Accept", b"application/json"),
    (b"Accept-Encoding", b"identity"),
    (b"X-Request-Id", b"r-1"),
    (b"Authorization", b"Basic aHVzaDpodXNo"),
)
# Computed once with: printf '%s' MESSAGE | openssl dgst -sha256 -hmac s3cret-key
RAUM_JSON_SIGNATURE = "99362310581eecab6a1dabbbe6949c81812f04d373d9ce7c5d7a2aa8bbd6aff5"
SIGNER = HmacSigner("devkey", SECRET)
TIMEOUTS = Timeouts(connect=1, send_stall=2, reply=3, upload_reply=4)


class Form:
    """A body of some gigabytes."""

    length = 12_345_678_901


def test_requests_to_the_byte() -> None:
    """``docs/interface.md``, Authentication: what is sent is what was signed.

    The server may take its time with a document, which never rides idle lines. No credential shows.
    """
    body, room = json_bytes({"room_id": "raum-ä"}), room_of("raum-ä")
    call = json_request(MEET, body, SIGNER.sign(body), EXTRA, TIMEOUTS, idempotent=True)
    assert call.body == body
    kind = b"multipart/form-data; boundary=b"
    forms: list[Any] = [Form(), b"question"]
    document, question = (
        upload_request(MEET, room, kind, form, SIGNER.sign(room.raw), EXTRA, TIMEOUTS)
        for form in forms
    )
    of_call = [(b"Content-Type", b"application/json"), (b"Content-Length", b"21")]
    of_form = [(b"Room-Id", b"raum-\xc3\xa4"), (b"Content-Type", kind)]
    for request, signature, own, reply_timeout in (
        (call, RAUM_JSON_SIGNATURE, of_call, 3),
        (document, VECTORS[1][2], [*of_form, (b"Content-Length", b"12345678901")], 4),
        (question, VECTORS[1][2], [*of_form, (b"Content-Length", b"8")], 3),
    ):
        keys = [(b"API-KEY", b"devkey"), (b"HASH-SIGNATURE", signature.encode())]
        assert request.headers == (*keys, *own, *COMMON)
        assert (request.method, request.url) == ("POST", MEET)
        assert (request.connect_timeout, request.stall_timeout) == (1.0, 2.0)
        assert request.reply_timeout == reply_timeout
        assert request.idempotent == (request is call)
        assert request.max_reply_bytes == 1024**2
        words = ["devkey", signature, "aHVzaDpodXNo"]
        assert [word for word in words if word in repr(request)] == []


@pytest.mark.parametrize("value", ["", "a hush", "hush\n", "hüsh", "hush\0", None, b"h"])
@pytest.mark.parametrize("field", ["api_key", "signature"])
def test_what_a_signer_returns_is_checked(field: str, value: Any) -> None:
    """A signer that reads a file with a line break is named, and what it read is not shown."""
    signed = attrs.evolve(SignedHeaders("devkey", "0123abcd"), **{field: value})
    with pytest.raises(InvalidInput) as caught:
        json_request(MEET, b"{}", signed, (), TIMEOUTS, idempotent=False)
    assert caught.value.field == field
    assert "hush" not in f"{caught.value} {caught.value!r}"


# --- forms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("parse", PARSERS)
def test_the_question_has_neither_field(parse: Any) -> None:
    """A form of some 300 bytes at most, which lists nothing in a room."""
    content_type, form = empty_form(boundary="0123456789abcdef" * 2)
    (part,) = parse(content_type, form)
    assert part[0] not in {"document", "document_link"}
    assert part[1] is None
    assert len(form) < 300


def test_a_form_to_the_byte() -> None:
    """RFC 7578 and RFC 2046 section 5.1, with the closing boundary as a chunk of its own."""
    framing = document_form("a.pdf", "application/pdf", 5, boundary="xyz")
    assert framing.content_type == b"multipart/form-data; boundary=xyz"
    assert framing.part_headers + b"%PDF-" + framing.closing_boundary == (
        b'--xyz\r\nContent-Disposition: form-data; name="document"; filename="a.pdf"\r\n'
        b"Content-Type: application/pdf\r\n\r\n%PDF-\r\n--xyz--\r\n"
    )
    assert framing.closing_boundary == b"\r\n--xyz--\r\n"
    assert framing.length == len(framing.part_headers + b"%PDF-" + framing.closing_boundary)
    assert link_form("https://f.test/?hush", boundary="xyz").size == 20
    assert "hush" not in repr(link_form("https://f.test/?hush", boundary="xyz"))
    assert document_form("a", "a/b", 10**12, boundary="xyz").length > 10**12
