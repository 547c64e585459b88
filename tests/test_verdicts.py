"""The verdict table, cell by cell, as literal tuples; and that no cell can change unnoticed.

The rows are those of the table "What a failed attempt means" in the design, refined by what a
server may combine: HTTP status, body, Retry-After, and how much of the request was out.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from meeting_async import _verdicts, errors
from meeting_async._records import Reply
from meeting_async._verdicts import (
    Repeatability,
    Sent,
    Step,
    Verdict,
    hint,
    judge,
    next_step,
    reply_error,
)
from meeting_async._wire import Answer, decipher

NEVER, PARTIAL, BUSY, REFUSED = Verdict.NEVER_SENT, Verdict.PARTIAL, Verdict.BUSY, Verdict.REFUSED
THROTTLED, FAILED, UNKNOWN = Verdict.THROTTLED, Verdict.FAILED, Verdict.UNKNOWN
ACCEPTED = Verdict.ACCEPTED

# --- the replies ---------------------------------------------------------------------------------

YES = {"status": True, "msg": "file uploaded successfully", "status_code": "SUCCESS"}
NO = {"status": False, "msg": "no", "status_code": "SOME_CODE"}
BARE_YES = {"status": True}
BARE_NO = {"status": False}
TEXT_YES = {"status": "true", "msg": "", "status_code": "SUCCESS"}
NUMBER_YES = {"status": 1, "msg": "", "status_code": "SUCCESS"}
NULL = {"status": None}
UNTYPED = {"status": False, "msg": None, "status_code": 500}
ROOM = {"room": {"room_info": {"room_id": "room01"}}}
EMPTY: dict[str, Any] = {}
HTML = "<html>Bad Gateway</html>"
LIST: list[Any] = []

Row = tuple[int | None, Any, str | None, Verdict, Verdict, Verdict]

# HTTP status (None: no complete reply), body, Retry-After; then the verdict with nothing sent,
# with part of the form sent, and with the closing boundary handed over.
UPLOAD: list[Row] = [
    # Silence, resets, truncated replies: the boundary alone decides.
    (None, None, None, NEVER, PARTIAL, UNKNOWN),
    # Accepted: 200 and `status: true`, once the form was complete. A success before that
    # contradicts itself, and nothing can be built on it.
    (200, YES, None, UNKNOWN, UNKNOWN, ACCEPTED),
    (200, BARE_YES, None, UNKNOWN, UNKNOWN, ACCEPTED),
    (200, YES, "5", UNKNOWN, UNKNOWN, ACCEPTED),
    # Refused: 200 with `status: false`.
    (200, NO, None, REFUSED, REFUSED, REFUSED),
    (200, BARE_NO, None, REFUSED, REFUSED, REFUSED),
    (200, UNTYPED, None, REFUSED, REFUSED, REFUSED),
    # A foreign reply says nothing: it is as if there were none.
    (200, HTML, None, NEVER, PARTIAL, UNKNOWN),
    (200, "", None, NEVER, PARTIAL, UNKNOWN),
    (200, LIST, None, NEVER, PARTIAL, UNKNOWN),
    (200, EMPTY, None, NEVER, PARTIAL, UNKNOWN),
    (200, ROOM, None, NEVER, PARTIAL, UNKNOWN),
    (200, TEXT_YES, None, NEVER, PARTIAL, UNKNOWN),
    (200, NUMBER_YES, None, NEVER, PARTIAL, UNKNOWN),
    (200, NULL, None, NEVER, PARTIAL, UNKNOWN),
    (201, YES, None, UNKNOWN, UNKNOWN, UNKNOWN),
    (201, HTML, None, NEVER, PARTIAL, UNKNOWN),
    (202, HTML, None, NEVER, PARTIAL, UNKNOWN),
    (204, "", None, NEVER, PARTIAL, UNKNOWN),
    (299, BARE_YES, None, UNKNOWN, UNKNOWN, UNKNOWN),
    # Redirects are refusals, never followed.
    *((status, HTML, None, REFUSED, REFUSED, REFUSED) for status in (300, 301, 302, 303, 304)),
    *((status, YES, None, REFUSED, REFUSED, REFUSED) for status in (301, 307, 308, 399)),
    (302, HTML, "5", REFUSED, REFUSED, REFUSED),
    # Refused: any 4xx but 408, 409 and 429, with and without the server's own record.
    *((status, NO, None, REFUSED, REFUSED, REFUSED) for status in (400, 401, 403, 404, 413, 499)),
    *((status, HTML, None, REFUSED, REFUSED, REFUSED) for status in (400, 401, 407, 410, 413, 415)),
    (413, HTML, "5", REFUSED, REFUSED, REFUSED),
    (400, YES, None, REFUSED, REFUSED, REFUSED),
    # Busy: 409, whatever its body.
    *((409, body, None, BUSY, BUSY, BUSY) for body in (NO, YES, HTML, "", LIST, EMPTY)),
    (409, NO, "5", BUSY, BUSY, BUSY),
    # Request timeout: the server, or a proxy, gave up reading, or waiting for the answer.
    (408, HTML, None, NEVER, PARTIAL, UNKNOWN),
    (408, NO, None, NEVER, PARTIAL, UNKNOWN),
    (408, HTML, "5", NEVER, PARTIAL, UNKNOWN),
    # Throttled: 429, and 503 that says when to come again.
    *((429, body, None, THROTTLED, THROTTLED, THROTTLED) for body in (NO, YES, HTML, "")),
    (429, NO, "5", THROTTLED, THROTTLED, THROTTLED),
    (503, NO, "5", THROTTLED, THROTTLED, THROTTLED),
    (503, HTML, "0", THROTTLED, THROTTLED, THROTTLED),
    (503, HTML, "Thu, 01 Jan 2026 00:00:00 GMT", THROTTLED, THROTTLED, THROTTLED),
    # Failed: 5xx with the server's own record; Retry-After counts with 503 only, junk never.
    *((status, NO, None, FAILED, FAILED, FAILED) for status in (500, 501, 502, 503, 504, 599)),
    (500, YES, None, FAILED, FAILED, FAILED),
    (500, NO, "5", FAILED, FAILED, FAILED),
    (503, NO, "soon", FAILED, FAILED, FAILED),
    # 5xx of a proxy: the server may go on behind it.
    *((status, HTML, None, NEVER, PARTIAL, UNKNOWN) for status in (500, 502, 503, 504, 520, 599)),
    *((500, body, None, NEVER, PARTIAL, UNKNOWN) for body in ("", LIST, EMPTY, BARE_NO, UNTYPED)),
    (500, TEXT_YES, None, NEVER, PARTIAL, UNKNOWN),
    (503, HTML, "soon", NEVER, PARTIAL, UNKNOWN),
    (503, HTML, "1e400", NEVER, PARTIAL, UNKNOWN),
    (504, HTML, "5", NEVER, PARTIAL, UNKNOWN),
]

# The same for JSON calls, whose body goes out at once: nothing sent, or all.
JSON: list[tuple[int | None, Any, str | None, Verdict, Verdict]] = [
    (None, None, None, NEVER, UNKNOWN),
    (200, YES, None, ACCEPTED, ACCEPTED),
    (200, BARE_YES, None, ACCEPTED, ACCEPTED),
    # What these calls answer is "not shown": an object without a `status` will do.
    (200, ROOM, None, ACCEPTED, ACCEPTED),
    (200, EMPTY, None, ACCEPTED, ACCEPTED),
    (200, NO, None, REFUSED, REFUSED),
    (200, BARE_NO, None, REFUSED, REFUSED),
    (200, TEXT_YES, None, NEVER, UNKNOWN),
    (200, NUMBER_YES, None, NEVER, UNKNOWN),
    (200, NULL, None, NEVER, UNKNOWN),
    (200, HTML, None, NEVER, UNKNOWN),
    (200, "", None, NEVER, UNKNOWN),
    (200, LIST, None, NEVER, UNKNOWN),
    (204, "", None, NEVER, UNKNOWN),
    (301, HTML, None, REFUSED, REFUSED),
    (400, NO, None, REFUSED, REFUSED),
    (401, NO, None, REFUSED, REFUSED),
    (404, HTML, None, REFUSED, REFUSED),
    # Only uploads wait for a room.
    (409, NO, None, REFUSED, REFUSED),
    (413, HTML, None, REFUSED, REFUSED),
    (408, HTML, None, NEVER, UNKNOWN),
    (429, HTML, None, THROTTLED, THROTTLED),
    (503, HTML, "5", THROTTLED, THROTTLED),
    (500, NO, None, FAILED, FAILED),
    (503, NO, None, FAILED, FAILED),
    (500, HTML, None, NEVER, UNKNOWN),
    (502, HTML, None, NEVER, UNKNOWN),
    (504, EMPTY, None, NEVER, UNKNOWN),
]

DONE, STOP, RETRY = Step.DONE, Step.STOP, Step.RETRY
WAIT_FOR_ROOM, WAIT_OUT_LOCK = Step.WAIT_FOR_ROOM, Step.WAIT_OUT_LOCK
AT_MOST, AT_LEAST = Repeatability.AT_MOST_ONCE, Repeatability.AT_LEAST_ONCE
IDEMPOTENT, ONCE = Repeatability.IDEMPOTENT, Repeatability.ONCE

STEPS: list[tuple[Verdict, Repeatability, Step]] = [
    (NEVER, AT_MOST, RETRY),
    (NEVER, AT_LEAST, RETRY),
    (NEVER, IDEMPOTENT, RETRY),
    (NEVER, ONCE, RETRY),
    (PARTIAL, AT_MOST, RETRY),
    (PARTIAL, AT_LEAST, RETRY),
    (PARTIAL, IDEMPOTENT, RETRY),
    (PARTIAL, ONCE, STOP),
    (BUSY, AT_MOST, WAIT_FOR_ROOM),
    (BUSY, AT_LEAST, WAIT_FOR_ROOM),
    (BUSY, IDEMPOTENT, STOP),
    (BUSY, ONCE, STOP),
    (REFUSED, AT_MOST, STOP),
    (REFUSED, AT_LEAST, STOP),
    (REFUSED, IDEMPOTENT, STOP),
    (REFUSED, ONCE, STOP),
    (THROTTLED, AT_MOST, RETRY),
    (THROTTLED, AT_LEAST, RETRY),
    (THROTTLED, IDEMPOTENT, RETRY),
    (THROTTLED, ONCE, RETRY),
    (FAILED, AT_MOST, STOP),
    (FAILED, AT_LEAST, STOP),
    (FAILED, IDEMPOTENT, STOP),
    (FAILED, ONCE, STOP),
    (UNKNOWN, AT_MOST, STOP),
    (UNKNOWN, AT_LEAST, WAIT_OUT_LOCK),
    (UNKNOWN, IDEMPOTENT, RETRY),
    (UNKNOWN, ONCE, STOP),
    (ACCEPTED, AT_MOST, DONE),
    (ACCEPTED, AT_LEAST, DONE),
    (ACCEPTED, IDEMPOTENT, DONE),
    (ACCEPTED, ONCE, DONE),
]


def answer(status: int | None, body: Any, retry_after: str | None = None) -> Answer | None:
    """Decipher the reply of a row."""
    if status is None:
        return None
    headers = ((b"Retry-After", retry_after.encode()),) if retry_after is not None else ()
    content = body if isinstance(body, str) else json.dumps(body)
    return decipher(Reply(status, headers, content.encode()), now=1_767_000_000.0)


def named(row: tuple[Any, ...], sent: Sent) -> str:
    """Name a cell."""
    status, body, retry_after = row[:3]
    return f"{status} {json.dumps(body)[:24]} {retry_after} {sent.value}"


UPLOAD_CELLS = [
    pytest.param(*row[:3], sent, verdict, id=named(row, sent))
    for row in UPLOAD
    for sent, verdict in zip(Sent, row[3:], strict=True)
]
JSON_CELLS = [
    pytest.param(*row[:3], sent, verdict, id=named(row, sent))
    for row in JSON
    for sent, verdict in zip((Sent.NOTHING, Sent.ALL), row[3:], strict=True)
]


@pytest.mark.parametrize(("status", "body", "retry_after", "sent", "verdict"), UPLOAD_CELLS)
def test_uploads(
    status: int | None, body: Any, retry_after: str | None, sent: Sent, verdict: Verdict
) -> None:
    """What an attempt at an upload came to, and what follows from it in both modes."""
    assert judge(answer(status, body, retry_after), sent, upload=True) is verdict
    for row_verdict, repeatability, step in STEPS:
        if row_verdict is verdict and repeatability in {AT_MOST, AT_LEAST}:
            assert next_step(verdict, repeatability) is step


@pytest.mark.parametrize(("status", "body", "retry_after", "sent", "verdict"), JSON_CELLS)
def test_json_calls(
    status: int | None, body: Any, retry_after: str | None, sent: Sent, verdict: Verdict
) -> None:
    """What an attempt at a JSON call came to, and what follows from it for both kinds."""
    assert judge(answer(status, body, retry_after), sent, upload=False) is verdict
    for row_verdict, repeatability, step in STEPS:
        if row_verdict is verdict and repeatability in {IDEMPOTENT, ONCE}:
            assert next_step(verdict, repeatability) is step


@pytest.mark.parametrize("upload", [True, False])
def test_a_json_body_of_which_a_part_went_out(upload: bool) -> None:
    """A transport may know as much; it is the same for both kinds of call."""
    assert judge(None, Sent.PART, upload=upload) is PARTIAL


def check_steps() -> None:
    """Compare the library's table with the literal one above."""
    assert [(verdict, kind, next_step(verdict, kind)) for verdict, kind, _ in STEPS] == STEPS


def test_steps() -> None:
    """Every verdict and every kind of call has its step, and it is the designed one."""
    assert len(STEPS) == len(Verdict) * len(Repeatability)
    assert {row[:2] for row in STEPS} == {(v, kind) for v in Verdict for kind in Repeatability}
    check_steps()


@pytest.mark.parametrize("other", Step, ids=lambda step: step.value)
@pytest.mark.parametrize("column", range(len(Repeatability)))
@pytest.mark.parametrize("verdict", Verdict, ids=lambda verdict: verdict.value)
def test_no_cell_changes_unnoticed(
    monkeypatch: pytest.MonkeyPatch, verdict: Verdict, column: int, other: Step
) -> None:
    """Flipping any cell of the table to any other step breaks the check above."""
    row = _verdicts._STEPS[verdict]
    changed = (*row[:column], other, *row[column + 1 :])
    monkeypatch.setitem(_verdicts._STEPS, verdict, changed)
    if other is row[column]:
        check_steps()
        return
    with pytest.raises(AssertionError):
        check_steps()


def test_nothing_is_sent_twice_by_default() -> None:
    """At most once: no step but the wait for a lock and the harmless repetitions."""
    harmless = {NEVER, PARTIAL, THROTTLED}
    for verdict in Verdict:
        step = next_step(verdict, AT_MOST)
        assert (step is RETRY) is (verdict in harmless)
        assert step is not WAIT_OUT_LOCK


def test_verdicts_are_the_rows_of_the_table() -> None:
    """Their values are public: in attempts, in events and in logs."""
    assert [verdict.value for verdict in Verdict] == [
        *("never sent", "partial", "busy", "refused"),
        *("throttled", "failed", "unknown", "accepted"),
    ]


def test_deliveries_are_kinds_of_repeatability() -> None:
    """The option's words are looked up among these."""
    assert Repeatability("at_most_once") is AT_MOST
    assert Repeatability("at_least_once") is AT_LEAST


# --- errors --------------------------------------------------------------------------------------

KNOWN_CODES: dict[str, type[errors.RequestRefused]] = {
    "INVALID_API_KEY": errors.AuthenticationFailed,
    "INVALID_TOKEN_OR_SIGNATURE": errors.AuthenticationFailed,
    "ROOM_NOT_FOUND": errors.RoomNotFound,
    "ROOM_NOT_ACTIVE": errors.RoomNotActive,
    "UNKNOWN_STATUS": errors.RequestRefused,
    "SUCCESS": errors.RequestRefused,
    "PERMISSION_DENIED": errors.RequestRefused,
    "NOT_FOUND": errors.RequestRefused,
    "CONFLICT": errors.RequestRefused,
    "INTERNAL_SERVER_ERROR": errors.RequestRefused,
    "INVALID_PARAMETERS": errors.RequestRefused,
    "MISSING_REQUIRED_PARAMETER": errors.RequestRefused,
    "USER_NOT_FOUND": errors.RequestRefused,
    "USER_BLOCKED": errors.RequestRefused,
    "USER_NOT_ACTIVE": errors.RequestRefused,
    "A_CODE_OF_NEXT_YEAR": errors.RequestRefused,
    "": errors.RequestRefused,
}


def error_for(
    verdict: Verdict, status: int, body: Any, *, upload: bool = True, retry_after: str | None = None
) -> errors.ReplyError:
    """Turn a reply into its error."""
    seen = answer(status, body, retry_after)
    assert seen is not None
    operation = "room/uploadWhiteboardFile" if upload else "room/create"
    return reply_error(verdict, seen, operation=operation, room_id="room01", upload=upload)


@pytest.mark.parametrize("status", [200, 400, 403, 404])
@pytest.mark.parametrize(("code", "kind"), KNOWN_CODES.items())
def test_refusals_by_the_servers_code(
    code: str, kind: type[errors.RequestRefused], status: int
) -> None:
    """Known names have their error; unknown names are kept as text."""
    body = {"status": False, "msg": "the message", "status_code": code}
    for upload in (True, False):
        error = error_for(REFUSED, status, body, upload=upload)
        assert type(error) is kind
        assert error.status_code == code
        assert error.msg == "the message"
        assert error.status == status
        assert error.room_id == "room01"
        assert error.operation == ("room/uploadWhiteboardFile" if upload else "room/create")


@pytest.mark.parametrize(
    "code", ["INVALID_API_KEY", "INVALID_TOKEN_OR_SIGNATURE", "MISSING_REQUIRED_PARAMETER", "NEW"]
)
def test_401_is_about_authentication(code: str) -> None:
    """And ``status_code`` names which of its causes it was."""
    body = {"status": False, "msg": "", "status_code": code}
    error = error_for(REFUSED, 401, body)
    assert type(error) is errors.AuthenticationFailed
    assert error.status_code == code


@pytest.mark.parametrize("body", [NO, HTML, "", EMPTY])
def test_413_is_about_the_document(body: Any) -> None:
    """With or without the server's own record: it may be a proxy in front."""
    assert type(error_for(REFUSED, 413, body)) is errors.DocumentRefused
    assert type(error_for(REFUSED, 401, body)) is errors.AuthenticationFailed


def test_413_for_a_json_call_is_not_about_a_document() -> None:
    """There is none in it."""
    assert type(error_for(REFUSED, 413, HTML, upload=False)) is errors.RequestRefused


@pytest.mark.parametrize(
    ("verdict", "status", "body", "upload", "kind"),
    [
        (REFUSED, 302, HTML, True, errors.RequestRefused),
        (REFUSED, 409, NO, False, errors.RequestRefused),
        (FAILED, 500, NO, True, errors.ProcessingFailed),
        (FAILED, 500, NO, False, errors.ServerFailed),
        (UNKNOWN, 200, HTML, False, errors.UnexpectedReply),
        (UNKNOWN, 502, HTML, False, errors.UnexpectedReply),
        (PARTIAL, 502, HTML, True, errors.UnexpectedReply),
        (NEVER, 502, HTML, True, errors.UnexpectedReply),
    ],
)
def test_other_errors(
    verdict: Verdict, status: int, body: Any, upload: bool, kind: type[errors.ReplyError]
) -> None:
    """By verdict; a reply without a message is described."""
    error = error_for(verdict, status, body, upload=upload)
    assert type(error) is kind
    assert error.status == status
    if body is HTML:
        assert error.msg == f"{len(HTML)} bytes of no content type"
        assert error.status_code is None


@pytest.mark.parametrize(("given", "expected"), [(None, None), ("7", 7.0), ("junk", None)])
def test_throttled_tells_the_hint(given: str | None, expected: float | None) -> None:
    """As the server gave it, uncapped."""
    error = error_for(THROTTLED, 429, NO, retry_after=given)
    assert isinstance(error, errors.Throttled)
    assert error.retry_after == expected


# --- hints ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308, 399])
def test_hint_for_redirects(status: int) -> None:
    """The commonest mistake: the base URL redirects to https or to another host."""
    text = hint(error_for(REFUSED, status, HTML))
    assert text is not None
    assert "never followed" in text
    assert "base URL" in text


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("INVALID_API_KEY", "API key"),
        ("INVALID_TOKEN_OR_SIGNATURE", "API secret"),
        ("MISSING_REQUIRED_PARAMETER", "proxy"),
    ],
)
def test_hint_for_authentication(code: str, word: str) -> None:
    """Each of the three causes has its own advice, in one line."""
    text = hint(error_for(REFUSED, 401, {"status": False, "msg": "", "status_code": code}))
    assert text is not None
    assert word in text
    assert text.isprintable()


@pytest.mark.parametrize(("status", "body"), [(400, NO), (404, HTML), (413, HTML), (200, BARE_NO)])
def test_no_hint_where_there_is_nothing_to_add(status: int, body: Any) -> None:
    """The error's own text is enough."""
    assert hint(error_for(REFUSED, status, body)) is None
