"""What a reply says, whatever it contains: records, malformed contents, hints, descriptions."""

from __future__ import annotations

import gzip
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meeting_async._models import Reply
from meeting_async._protocol.replies import (
    KEPT_BODY_BYTES,
    LARGE_REPLY_BYTES,
    Answer,
    decipher,
    json_object,
    retry_after,
)

RECORD = b'{"status": true, "msg": "file uploaded successfully", "status_code": "SUCCESS"}'


def read(content: bytes, *headers: tuple[bytes, bytes]) -> Answer:
    """Decipher a reply of status 200."""
    return decipher(Reply(200, headers, content))


@pytest.mark.parametrize(
    ("content", "accepted", "is_record", "status_code"),
    [
        (RECORD, True, True, "SUCCESS"),
        (b"\xef\xbb\xbf" + RECORD, True, True, "SUCCESS"),  # a byte order mark
        (b"\r\n\t " + RECORD + b"\n", True, True, "SUCCESS"),
        (b'{"status":false,"msg":"m","status_code":"BRAND_NEW"}', False, True, "BRAND_NEW"),
        (b'{"status":false,"msg":"","status_code":""}', False, True, ""),
        (b'{"status":true}', True, False, None),
        (b'{"status":false,"msg":"m","status_code":500}', False, False, None),
        (b'{"status":true,"msg":null,"status_code":"S"}', True, False, "S"),
        (b'{"status":"true","msg":"m","status_code":"S"}', None, False, "S"),
        (b'{"status":1,"msg":"m","status_code":"S"}', None, False, "S"),
        (b'{"status":null}', None, False, None),
        (b'{"Status":true}', None, False, None),
        (b'{"room":{"status":true}}', None, False, None),
        (b"{}", None, False, None),
    ],
)
def test_what_an_object_says(
    content: bytes, accepted: bool | None, is_record: bool, status_code: str | None
) -> None:
    """Only JSON's own true and false count; the server's own record is complete and typed."""
    answer = read(content)
    assert (answer.accepted, answer.is_record) == (accepted, is_record)
    assert answer.status_code == status_code
    assert answer.payload == json.loads(content.decode("utf-8-sig"))


NOT_AN_OBJECT = [
    *(b"", b" ", b"null", b"true", b"5", b'"text"', b"[]", b"[" + RECORD + b"]"),
    *(b"<html>413</html>", RECORD + RECORD, RECORD + b"x", RECORD + b"\0", b")]}'\n" + RECORD),
    b'{"status": true, "status": false, "msg": "", "status_code": ""}',
    b'{"status": true, "room": {"a": 1, "a": 2}}',
    *(b'{"status": true, "n": ' + word + b"}" for word in (b"NaN", b"Infinity", b"-Infinity")),
    *(b'{"status": true, "msg": "' + text + b'"}' for text in (b"\xff", b"\xed\xa0\x80")),
    b'{"status": true, "n": ' + b"9" * 5_000 + b"}",
    b'{"status": true, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    *(b"[" * 100_000, b'{"a":' * 100_000, b"{}" + b" " * LARGE_REPLY_BYTES + b"{}"),
    b"[" * (LARGE_REPLY_BYTES + 1),
    b'{"a": 1, "a": 2}' + b" " * LARGE_REPLY_BYTES,
    *(RECORD.decode().encode(name) for name in ("utf-16", "utf-32")),
    gzip.compress(b"[" * 1_000_000, mtime=0),
    *(b'{"status": True}', b'{"status": true,}', RECORD.replace(b'"', b"'")),
]


@pytest.mark.parametrize("content", NOT_AN_OBJECT, ids=lambda content: ascii(content)[:40])
def test_what_is_no_json_object(content: bytes) -> None:
    """Not a crash and not a guess: no payload, and a description of what came."""
    answer = read(content, (b"Content-Type", b"text/html"))
    assert (answer.payload, answer.accepted, answer.is_record) == (None, None, False)
    assert answer.msg == f"{len(content):,} bytes of text/html"


def test_a_record_that_is_cut_off_anywhere_is_none() -> None:
    """Truncated at every byte."""
    assert [n for n in range(len(RECORD) + 1) if json_object(RECORD[:n])] == [len(RECORD)]


@pytest.mark.parametrize("filler", ['ä\u2028\\" \U0001f600', "1", "[]"])
def test_large_replies_are_read_like_small_ones(filler: str) -> None:
    """Above the size at which another decoder is used, the result is the same."""
    payload = {"status": True, "msg": "m", "n": 2**64, "s": "18446744073709551615", "f": 1.5e3}
    payload["items"] = [{"text": filler, "deep": [[None]]}] * 20_000
    content = json.dumps(payload).encode()
    assert len(content) > LARGE_REPLY_BYTES
    assert json_object(content) == payload


@given(st.binary())
def test_no_content_is_an_error(content: bytes) -> None:
    """Anything may come from the network."""
    payload = read(content).payload
    assert payload is None or isinstance(payload, dict)


@pytest.mark.parametrize(
    ("content", "kind", "msg"),
    [
        (b'{"msg": "no room"}', b"application/json", "no room"),
        (b'{"msg": ""}', b"application/json", "11 bytes of application/json"),
        (b'{"msg": 5}', b"", "10 bytes of "),
        (b"", b"a\x1b[31mb", r"0 bytes of a\x1b[31mb"),
    ],
)
def test_what_a_reply_is_called(content: bytes, kind: bytes, msg: str) -> None:
    """The server's message, else type and size; never the content of a stranger."""
    assert read(content, (b"CONTENT-TYPE", kind)).msg == msg
    assert read(b"").msg == "0 bytes of no content type"


def test_what_is_kept_of_a_reply_is_limited() -> None:
    """A message of 500 characters, a kilobyte of the content, 80 of the content type."""
    content = json.dumps({"status": False, "msg": "ü" * 100_000, "status_code": "X" * 9_999})
    answer = read(content.encode(), (b"Content-Type", b"x" * 8_000), (b"X-Request-Id", b"r-1"))
    assert answer.msg == "ü" * 500
    assert len(answer.status_code or "") == 100
    assert len(answer.body) == KEPT_BODY_BYTES == 1024
    assert len(answer.description) < 200
    assert ("x-request-id", "r-1") in answer.headers
    assert "ü" not in repr(answer)
    assert "hush" not in repr(read(b'{"status": true, "token": "hush"}'))


# --- Retry-After ---------------------------------------------------------------------------------

NOON = 1_767_268_800.0  # 2026-01-01 12:00:00 UTC


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("0", 0), ("5", 5), (" 5 ", 5), ("1.5", 1.5), ("9999999999", 9_999_999_999)),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30),
        ("Thu, 01 Jan 2026 11:59:59 GMT", 0),  # past
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0),
        ("Thursday, 01-Jan-26 12:00:30 GMT", 30),  # RFC 850
        ("Thu Jan  1 12:00:30 2026", 30),  # asctime
        ("Thu, 01 Jan 2026 12:00:30", 30),  # no zone: GMT, not local time
        ("Thu, 01 Jan 2026 13:00:30 +0100", 30),
        ("Fri, 01 Jan 2027 12:00:00 GMT", 365 * 86_400),
        *((text, None) for text in (None, "", " ", "-1", "+1", ".5", "5.", "1e3", "1e400", "NaN")),
        *((text, None) for text in ("inf", "0x10", "\u0665", "5, 5", "5 s", "soon", "1_0")),
        ("Thu, 99 Jan 2026 12:00:30 GMT", None),
        ("Thu, 01 Jan 99999 00:00:00 GMT", None),
    ],
)  # fmt: skip
def test_retry_after(
    value: str | None, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds or an HTTP date, never negative; all else is ignored (RFC 9110 section 10.2.3)."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC-9")  # nine hours ahead
        time.tzset()
        assert retry_after(value, now=NOON) == expected
    time.tzset()


def test_the_first_of_several_hints_counts() -> None:
    """A repeated header is no sum; names are read in any case."""
    answer = read(b"", (b"retry-AFTER", b"7"), (b"Retry-After", b"8"))
    assert answer.retry_after == 7
