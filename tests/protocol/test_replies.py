"""What servers say, whatever it contains: records, malformed contents, hints, rooms."""

from __future__ import annotations

import copy
import gzip
import itertools
import json
import math
import pickle
import time
from typing import Any

import attrs
import pytest

from meeting_async import ActiveRoom, Attempt, UploadReceipt, Verdict
from meeting_async._models import Secret
from meeting_async._protocol.hiding import OVERLAP_BYTES, PIECE_BYTES
from meeting_async._protocol.replies import (
    KEPT_BODY_BYTES,
    ParsedReply,
    parse_reply,
    retry_after,
)
from meeting_async.transports import Reply

RECORD = b'{"status": true, "msg": "file uploaded successfully", "status_code": "SUCCESS"}'


def read(content: bytes, *headers: tuple[bytes, bytes]) -> ParsedReply:
    """Decipher a reply of status 200."""
    return parse_reply(Reply(200, headers, content))


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
        (b'{"status":1,"msg":"m","status_code":"S"}', None, False, "S"),
        (b'{"Status":true}', None, False, None),
        (b'{"room":{"status":true}}', None, False, None),
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
    *(b"{}" + b" " * 300_000 + b"{}", b'{"a": 1, "a": 2}' + b" " * 300_000),
    *(RECORD.decode().encode(name) for name in ("utf-16", "utf-32")),
    gzip.compress(b"[" * 1_000_000, mtime=0),
    *(b'{"status": True}', b'{"status": true,}', RECORD.replace(b'"', b"'")),
]


@pytest.mark.parametrize("content", NOT_AN_OBJECT, ids=lambda content: ascii(content)[:40])
def test_what_is_no_json_object(content: bytes) -> None:
    """Not a crash and not a guess: no payload, and a description of what came."""
    answer = read(content, (b"Content-Type", b"text/html"))
    assert (answer.payload, answer.accepted, answer.is_record) == (None, None, False)
    assert answer.msg == (f"{len(content):,} bytes of text/html" if content else "no content")


@pytest.mark.parametrize(
    ("content", "kind", "msg"),
    [
        (b'{"msg": "no room"}', b"application/json", "no room"),
        (b'{"msg": ""}', b"application/json", "11 bytes of application/json"),
        (b'{"msg": 5}', b"", "10 bytes of "),
        (b"<b>", b"a\x1b[31mb", r"3 bytes of a\x1b[31mb"),
        (b"", b"text/html", "no content"),
    ],
)
def test_what_a_reply_is_called(content: bytes, kind: bytes, msg: str) -> None:
    """The server's message, else type and size; never the content of a stranger."""
    assert read(content, (b"CONTENT-TYPE", kind)).msg == msg
    assert read(b"<b>").msg == "3 bytes of unknown type"


def test_what_is_kept_of_a_reply_is_limited() -> None:
    """A message of 1,000 characters, a kilobyte of the content, 80 of the content type."""
    content = json.dumps({"status": False, "msg": "ü" * 100_000, "status_code": "X" * 9_999})
    answer = read(content.encode(), (b"Content-Type", b"x" * 8_000), (b"X-Request-Id", b"r-1"))
    assert answer.msg == "ü" * 1000
    assert len(answer.status_code or "") == 100
    assert len(answer.body) == KEPT_BODY_BYTES == 1024
    assert len(attrs.evolve(answer, payload=None).msg) < 200
    assert ("x-request-id", "r-1") in answer.headers
    assert "ü" not in repr(answer)
    assert "hush" not in repr(read(b'{"status": true, "token": "hush"}'))


SECRET_HEADERS = [
    *("X-Api-Key", "apikey", "Ocp-Apim-Subscription-Key", "X-Auth", "Proxy-Authorization"),
    *("COOKIE", "X-Csrf-Token", "X-Session"),
]
OTHER_HEADERS = ["X-Request-Id", "Idempotency-Key", "User-Agent", "X-Tenant"]


def test_which_headers_are_credentials() -> None:
    """Their values are replaced where a reply repeats them; an operator needs the others."""
    reply = Reply(400, ((b"X-Debug", b"a-value-of-a-header"),), b'{"msg": "a-value-of-a-header"}')
    for name in SECRET_HEADERS + OTHER_HEADERS:
        answer = parse_reply(reply, ((name.encode(), Secret(b"a-value-of-a-header")),))
        is_shown = "a-value-of-a-header" in f"{answer.msg} {answer.headers}"
        assert is_shown is (name in OTHER_HEADERS), name


@pytest.mark.parametrize("depth", [100, 500, 900])
def test_a_credential_deep_in_a_reply(depth: int) -> None:
    """However deep it stands, it is replaced, or the reply is no JSON."""
    content = b'{"a": %b"a-value-of-a-header"%b}' % (b"[" * depth, b"]" * depth)
    answer = parse_reply(Reply(200, (), content), ((b"API-KEY", Secret(b"a-value-of-a-header")),))
    assert b"a-value-of-a-header" not in answer.body
    found = (answer.payload or {}).get("a", [])
    while isinstance(found, list) and found:
        found = found[0]
    assert found in ([], "(hidden)")


ESCAPED = b"".join(b"\\\\u%04x" % letter for letter in b"a-value-of-a-header")
"""Escaped twice."""


@pytest.mark.parametrize("value", [b"a-value-of-a-header", ESCAPED])
@pytest.mark.parametrize("before", [0, 100, PIECE_BYTES - 20, PIECE_BYTES + OVERLAP_BYTES - 20])
def test_a_credential_in_a_long_reply(value: bytes, before: int) -> None:
    """Wherever it stands; a text of some 100 KiB is replaced as a whole, others stay."""
    long, short = b"x" * before + value + b"x" * before, b"a-value"
    content = b'{"status": true, "list": ["%b", "%b"]}' % (long, short)
    sent = ((b"API-KEY", Secret(b"a-value-of-a-header")),)
    answer = parse_reply(Reply(200, (), content), sent)
    hidden = "(hidden)" if before > 100 else "x" * before + "(hidden)" + "x" * before
    assert (answer.payload or {})["list"] == [hidden, "a-value"]


@pytest.mark.parametrize("count", [14, 18])
@pytest.mark.parametrize("escaped", [b"%c", b"\\u%04x", b"%%%02X", b"&#%d;"])
def test_a_credential_in_a_reply_that_was_cut_off(escaped: bytes, count: int) -> None:
    """A part of it is hidden as the whole would be, also if its last escape is cut, too."""
    letters = b"".join(escaped % letter for letter in b"A-VALUE-OF-A-HEADER"[:count])
    sent = ((b"API-KEY", Secret(b"a-value-of-a-header")),)
    for end in {len(letters), len(letters) - (escaped != b"%c")}:
        reply = Reply(403, (), b"<p>you sent " + letters[:end], is_cut=True)
        body = parse_reply(reply, sent).body
        assert body in {b"<p>you sent (hidden)", b"(hidden)"}
        assert parse_reply(attrs.evolve(reply, content=b"a value of a"), sent).body[:1] == b"a"


def test_what_a_transport_adds_is_hidden_too() -> None:
    """It may repeat what the transport adds to the request; that is in no copy of the reply."""
    added = ((b"Proxy-Authorization", b"Basic a-value-of-a-header"),)
    reply = Reply(400, (), b'{"msg": "a-value-of-a-header"}', added=added)
    assert parse_reply(reply).msg == "(hidden)"
    for copied in (copy.deepcopy(reply), pickle.loads(pickle.dumps(reply))):
        assert (copied, copied.added) == (reply, ())
    assert b"a-value" not in pickle.dumps(attrs.evolve(reply, content=b""))
    assert "a-value" not in f"{reply!r} {reply.added!r}"


# --- Retry-After ---------------------------------------------------------------------------------

NOON = 1_767_268_800.0  # 2026-01-01 12:00:00 UTC
set_time_zone: Any = getattr(time, "tzset", bool)  # Windows has its own


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
        set_time_zone()
        assert retry_after(value, now=NOON) == expected
    set_time_zone()


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        (b"Thu, 01 Jan 2026 10:00:00 GMT", 30),
        (b"Thu, 01 Jan 2026 14:00:00 GMT", 0),
        (b"just now", 7230),
    ],
)
def test_a_date_counts_from_that_of_the_reply(date: bytes, expected: float) -> None:
    """Clocks may differ by hours; without a valid one there that of this machine counts."""
    headers = ((b"Date", date), (b"Retry-After", b"Thu, 01 Jan 2026 10:00:30 GMT"))
    answer = parse_reply(Reply(429, headers, b""), now=NOON - 4 * 3600)
    assert answer.retry_after == expected


def test_the_first_of_several_hints_counts() -> None:
    """A repeated header is no sum; names are read in any case."""
    answer = read(b"", (b"retry-AFTER", b"7"), (b"Retry-After", b"8"))
    assert answer.retry_after == 7


ODD: list[Any] = [None, [], {}]


def test_what_is_kept_of_a_room() -> None:
    """Unknown fields are in ``raw``; what may hold a token does not show."""
    hook = "https://lms.example.com/hook?token=hush"
    info = {"room_id": "room02", "webhook_url": hook, "metadata": '"hush"', "of_next_year": [1, 2]}
    anna = {"identity": "anna", "metadata": '{"note": "hush"}'}
    reply = {"status": True, "room": {"room_info": info, "participants_info": [anna, {}]}}
    active = ActiveRoom.from_reply("room01", reply)
    assert (active.room_id, active.webhook_url, active.raw) == ("room02", hook, reply)
    assert [person.identity for person in active.participants] == ["anna", None]
    assert [person.raw for person in active.participants] == [anna, {}]
    assert "hush" not in f"{active!r} {active.participants!r}"


@pytest.mark.parametrize(
    "reply",
    [
        *({"room": value} for value in ("room01", *ODD)),
        {},
        {"room": {"room_info": None, "participants_info": None}},
        {"room": {"room_info": 1, "participants_info": "anna"}},
        {"room": {"room_info": {"room_id": 5}, "participants_info": [None, 1, "anna", []]}},
    ],
)
def test_missing_and_odd_structure_is_never_an_error(reply: dict[str, Any]) -> None:
    """``docs/interface.md`` does not show this reply, so anything may be absent."""
    active = ActiveRoom.from_reply("room01", reply)
    assert (active.room_id, active.participants, active.raw) == ("room01", (), reply)
    assert {active.title, active.is_running, active.creation_time, active.metadata} == {None}


FIELD_VALUES: dict[tuple[str, ...], list[tuple[Any, object]]] = {
    # 64-bit integers arrive as JSON strings; signed and unsigned ones, and nothing else.
    ("creation_time", "joined_participants", "joined_at"): [
        *((0, 0), (-7, -7), ("7", 7), ("-7", -7), (2**64 - 1, 2**64 - 1)),
        ("18446744073709551615", 2**64 - 1),
        *((junk, None) for junk in ("", "-", "--7", "+7", " 7", "7.5", "1e3", "1_0", "٣", "²")),
        *((junk, None) for junk in ("9" * 5000, True, False, 7.5, *ODD)),
    ],
    # Flags are 0 and 1 on the wire; JSON's own booleans will do.
    ("is_running", "is_recording", "is_active_rtmp", "is_breakout_room"): [
        *((yes, True) for yes in (1, 2, "1", True)),
        *((no, False) for no in (0, "0", False)),
        *((junk, None) for junk in ("true", "", math.nan, *ODD)),
    ],
    ("room_title", "sid", "webhook_url", "parent_room_id", "identity", "name", "state"): [
        *((text, text) for text in ("", "Algebra 代數")),
        *((junk, None) for junk in (5, 7.5, True, *ODD)),
    ],
    # Metadata is a JSON text in JSON; what cannot be decoded stays as it is.
    ("metadata",): [
        ('{"a": [1, "ü"]}', {"a": [1, "ü"]}),
        *(("null", None), ("", None), (None, None), ({"a": 1}, {"a": 1})),
        *((text, text) for text in ("not json", "{", "[" * 100_000, "9" * 5_000)),
    ],
}


@pytest.mark.parametrize("fields", FIELD_VALUES, ids=lambda fields: fields[0])
def test_values_of_fields(fields: tuple[str, ...]) -> None:
    """Integers, flags, texts and metadata, however they are written; junk is ``None``."""
    for field, (value, expected) in itertools.product(fields, FIELD_VALUES[fields]):
        info = {"room_info": {field: value}, "participants_info": [{field: value}]}
        active = ActiveRoom.from_reply("room01", {"room": info})
        name = "title" if field == "room_title" else field
        found = [getattr(one, name) for one in (active, *active.participants) if hasattr(one, name)]
        assert found, field
        assert {type(one) for one in found} == {type(expected)}, (field, value)
        assert all(one == expected for one in found), (field, value)


def test_replies_and_receipts_do_not_show_their_content() -> None:
    """Replies carry access tokens and cookies."""
    cookies = ((b"Set-Cookie", b"session=hush"),)
    attempt = Attempt(1, 0.0, 1.0, Verdict.ACCEPTED, 200, "HTTP 200 (ok)", 9, 0.5)
    facts: Any = {"room_id": "r", "document": "a.pdf", "size": 9, "msg": "ok", "seconds": 1.0}
    facts |= {"status_code": "SUCCESS", "attempts": (attempt,), "raw": {"token": "hush"}}
    receipt = UploadReceipt(**facts, headers=(("set-cookie", "hush"),))
    assert "hush" not in f"{Reply(200, cookies, b'hush')} {receipt}"
    assert hash(receipt) == hash(attrs.evolve(receipt, raw={}))
