"""The table of verdicts, cell by cell: what an attempt means (docs/delivery.md)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from meeting_async._models import Reply, Verdict
from meeting_async._protocol.replies import ParsedReply, parse_reply, reply_error
from meeting_async._protocol.verdicts import (
    Answer,
    Sent,
    answer_to_check,
    answer_to_probe,
    classify,
)
from meeting_async.errors import (
    AuthenticationFailed,
    DocumentRefused,
    ProcessingFailed,
    ReplyError,
    RequestRefused,
    RoomNotActive,
    RoomNotFound,
    ServerFailed,
    Throttled,
    UnexpectedReply,
)

NEVER, PARTIAL, BUSY, REFUSED = Verdict.NEVER_SENT, Verdict.PARTIAL, Verdict.BUSY, Verdict.REFUSED
THROTTLED, FAILED, UNKNOWN = Verdict.THROTTLED, Verdict.FAILED, Verdict.UNKNOWN
ACCEPTED = Verdict.ACCEPTED

YES = {"status": True, "msg": "file uploaded successfully", "status_code": "SUCCESS"}
NO = {"status": False, "msg": "no", "status_code": "SOME_CODE"}
TEXT_YES = {"status": "true", "msg": "", "status_code": "SUCCESS"}
NUMBER_YES = {"status": 1, "msg": "", "status_code": "SUCCESS"}
UNTYPED = {"status": False, "msg": None, "status_code": 500}
ROOM = {"room": {"room_info": {"room_id": "room01"}}}
BARE_YES, BARE_NO, NULL = {"status": True}, {"status": False}, {"status": None}
TWICE = '{"status": true, "status": true}'
HTML = "<html>Bad Gateway</html>"
FOREIGN: list[Any] = [HTML, "", "null", []]
DATE = "Thu, 01 Jan 2026 00:00:00 GMT"

Columns = tuple[Verdict, Verdict, Verdict]
"""With nothing sent, with part of the form sent, and after the closing boundary."""
SAYS_NOTHING: Columns = (NEVER, PARTIAL, UNKNOWN)
"""As if no reply had come: how much was sent alone decides."""
NONE = (None,)
ANY = (None, "5")
JUNK = ("soon", "-1", "1e400", "NaN")

# Status (None: no complete reply), body, Retry-After: every combination; then the verdicts.
Row = tuple[Sequence[Any], Sequence[Any], Sequence[Any], Columns]
UPLOAD: list[Row] = [
    (NONE, NONE, NONE, SAYS_NOTHING),
    # Accepted only after the boundary: an early 200 is nothing that one can rely on.
    ([200], [YES, BARE_YES], ANY, (UNKNOWN, UNKNOWN, ACCEPTED)),
    ([200], [NO, BARE_NO, UNTYPED], ANY, (REFUSED,) * 3),
    # A foreign 200, or one that says nothing about success.
    ([200], [*FOREIGN, ROOM, {}, TEXT_YES, NUMBER_YES, NULL, TWICE], ANY, SAYS_NOTHING),
    ([201, 202, 204, 206], [HTML, ""], NONE, SAYS_NOTHING),
    ([201], [YES], NONE, (UNKNOWN,) * 3),
    # Refused: any 3xx, and 4xx but 408, 409 and 429; whatever the body and Retry-After.
    ([300, 301, 302, 303, 304, 307, 308], [NO, YES, HTML, ""], ANY, (REFUSED,) * 3),
    ([400, 401, 403, 404, 407, 413, 415, 431, 499], [NO, YES, HTML, ""], ANY, (REFUSED,) * 3),
    # Busy: 409 with any body at any moment.
    ([409], [NO, YES, {}, *FOREIGN], ANY, (BUSY,) * 3),
    # A proxy gave up waiting for us, or for the server.
    ([408], [NO, HTML, ""], ANY, SAYS_NOTHING),
    # Throttled: 429; 503 with Retry-After before the boundary, or as the server's own record.
    ([429], [NO, YES, HTML, ""], ANY, (THROTTLED,) * 3),
    ([503], [NO], ["0", "5", DATE], (THROTTLED,) * 3),
    ([503], [HTML, "", {}, UNTYPED, BARE_NO], ["0", "5", DATE], (THROTTLED, THROTTLED, UNKNOWN)),
    # Failed: 5xx with the server's own record; Retry-After counts with 503 only, junk never.
    ([500, 501, 502, 504, 599], [NO], ANY, (FAILED,) * 3),
    ([503], [NO], [None, *JUNK], (FAILED,) * 3),
    # 5xx of a proxy or a cache: the server may go on behind it.
    ([500, 501, 502, 504, 520, 599], [HTML, ""], ANY, SAYS_NOTHING),
    ([503], [HTML, ""], [None, *JUNK], SAYS_NOTHING),
    ([500], [*FOREIGN, {}, BARE_NO, UNTYPED, TEXT_YES], NONE, SAYS_NOTHING),
]

# The same for JSON calls; a part of their small body tells nothing new.
JSON: list[Row] = [
    (NONE, NONE, NONE, SAYS_NOTHING),
    ([200], [YES, BARE_YES, ROOM, {}], NONE, (ACCEPTED,) * 3),
    ([200], [NO, BARE_NO], NONE, (REFUSED,) * 3),
    ([200], [*FOREIGN, TEXT_YES, NUMBER_YES, NULL], NONE, SAYS_NOTHING),
    ([204], [""], NONE, SAYS_NOTHING),
    ([301, 400, 401, 404, 409, 413], [NO, HTML], NONE, (REFUSED,) * 3),
    ([408], [NO, HTML], NONE, SAYS_NOTHING),
    ([429], [NO, HTML], ANY, (THROTTLED,) * 3),
    ([503], [NO], ["5"], (THROTTLED,) * 3),
    ([503], [HTML], ["5"], (THROTTLED, THROTTLED, UNKNOWN)),
    ([500, 503], [NO], NONE, (FAILED,) * 3),
    ([500, 502, 503, 504], [HTML], NONE, SAYS_NOTHING),
]


def refusal(code: str) -> dict[str, Any]:
    """Make the record of a refusal."""
    return {"status": False, "msg": "no", "status_code": code}


ABSENT = [refusal("ROOM_NOT_FOUND"), refusal("ROOM_NOT_ACTIVE")]
CREDENTIALS = [refusal("INVALID_API_KEY"), refusal("INVALID_TOKEN_OR_SIGNATURE")]

QuestionRow = tuple[Sequence[Any], Sequence[Any], Sequence[Any], Answer]

# Whether a room is active (docs/delivery.md): what its answer allows.
CHECK: list[QuestionRow] = [
    ([200], [YES, BARE_YES, ROOM], ANY, Answer.GO_ON),
    # Key and signature are wrong for every upload.
    ([401], [*CREDENTIALS, *ABSENT, NO, HTML], ANY, Answer.REFUSED),
    ([200, 400, 403], CREDENTIALS, ANY, Answer.REFUSED),
    # What the server says about the room may be wrong: an empty form decides.
    ([200, 400, 404], [*ABSENT, NO, BARE_NO], ANY, Answer.ABSENT),
    # Not a meeting server's: the base URL is wrong.
    ([200], [*FOREIGN, {}, TEXT_YES, NUMBER_YES, NULL, TWICE], ANY, Answer.REFUSED),
    ([200], [TEXT_YES | ROOM, NULL | ROOM], ANY, Answer.REFUSED),
    ([201, 204, 301, 302, 404, 413], [HTML, "", ROOM, YES], ANY, Answer.REFUSED),
    # No answer of the server itself, and what asks for patience.
    (NONE, NONE, NONE, Answer.NOTHING),
    ([408, 409, 500, 502, 504, 520], [HTML, "", NO, YES, *CREDENTIALS], ANY, Answer.NOTHING),
    ([503], [HTML, "", NO, YES], [None, *JUNK], Answer.NOTHING),
    ([429], [HTML, "", NO, YES], ANY, Answer.LATER),
    ([503], [HTML, "", NO, YES], ["0", "5", DATE], Answer.LATER),
]

# Whether a room is free: every answer of the server itself but a 409 says that it is.
PROBE: list[QuestionRow] = [
    ([409], [NO, YES, {}, *FOREIGN], ANY, Answer.LOCKED),
    ([200, 400, 404, 413, 500], [NO, YES, refusal("INVALID_PARAMETERS")], ANY, Answer.GO_ON),
    ([401], [*CREDENTIALS, NO, HTML], ANY, Answer.REFUSED),
    ([200, 400, 403, 404, 500], [*ABSENT, *CREDENTIALS], ANY, Answer.REFUSED),
    (NONE, NONE, NONE, Answer.NOTHING),
    ([200, 204, 302, 400, 404, 408, 413, 500, 502], [*FOREIGN, {}, UNTYPED], ANY, Answer.NOTHING),
    ([503], [HTML, NO, YES], [None, *JUNK], Answer.NOTHING),
    ([429], [HTML, NO, YES], ANY, Answer.LATER),
    ([503], [HTML, NO, YES], ["0", "5", DATE], Answer.LATER),
]


def read(status: int, body: Any, retry_after: str | None = None) -> ParsedReply:
    """Decipher a reply."""
    headers = ((b"Retry-After", retry_after.encode()),) if retry_after is not None else ()
    content = body if isinstance(body, str) else json.dumps(body)
    return parse_reply(Reply(status, headers, content.encode()), now=1_767_000_000.0)


@pytest.mark.parametrize("row", UPLOAD, ids=str)
def test_every_cell_for_uploads(row: Row) -> None:
    """Reply and bytes sent decide together what an attempt came to."""
    check(row, upload=True)


@pytest.mark.parametrize("row", JSON, ids=str)
def test_every_cell_for_json_calls(row: Row) -> None:
    """The same for calls that send no document."""
    check(row, upload=False)


@pytest.mark.parametrize("row", CHECK, ids=str)
def test_every_answer_to_the_question_whether_a_room_is_active(row: QuestionRow) -> None:
    """Only an answer of a meeting server counts as one."""
    check_answer(row, answer_to_check)


@pytest.mark.parametrize("row", PROBE, ids=str)
def test_every_answer_to_the_question_whether_a_room_is_free(row: QuestionRow) -> None:
    """The same for an empty form."""
    check_answer(row, answer_to_probe)


def check_answer(row: QuestionRow, says: Callable[[ParsedReply | None], Answer]) -> None:
    """Compare every combination of a row."""
    *facts, expected = row
    for status, body, hint in itertools.product(*facts):
        answer = None if status is None else read(status, body, hint)
        assert says(answer) is expected, (status, body, hint)


def check(row: Row, *, upload: bool) -> None:
    """Compare every cell of a row."""
    *facts, columns = row
    for status, body, hint in itertools.product(*facts):
        answer = None if status is None else read(status, body, hint)
        found = tuple(classify(answer, sent, upload=upload) for sent in Sent)
        assert found == columns, (status, body, hint)


@pytest.mark.parametrize("body", [YES, NO, HTML, "", {}, []])
@pytest.mark.parametrize("hint", [None, "0", "5"])
def test_what_a_room_may_have_is_never_repeated(hint: str | None, body: Any) -> None:
    """After the boundary, only the server's own word or a 429 allows to send again, or says no."""
    for status in range(100, 600):
        verdict = classify(read(status, body, hint), Sent.ALL, upload=True)
        assert verdict not in {NEVER, PARTIAL}
        if verdict is THROTTLED:
            assert status == 429 or (status == 503 and body in (YES, NO) and hint is not None)
        if verdict in {REFUSED, FAILED} and not 300 <= status < 500:
            assert body in (YES, NO)


def test_verdicts_are_public_words() -> None:
    """They stand in events, attempts and logs, and compare with text."""
    assert list(Verdict) == [
        "never sent", "partial", "busy", "refused", "throttled", "failed", "unknown", "accepted"
    ]  # fmt: skip


# --- the errors that follow ----------------------------------------------------------------------


def code(status_code: str) -> dict[str, Any]:
    """Make the server's own record of a failure."""
    return {"status": False, "msg": "the message", "status_code": status_code}


@pytest.mark.parametrize(
    ("verdict", "status", "body", "upload", "kind"),
    [
        (REFUSED, 401, HTML, True, AuthenticationFailed),
        (REFUSED, 401, code("MISSING_REQUIRED_PARAMETER"), False, AuthenticationFailed),
        (REFUSED, 413, HTML, True, DocumentRefused),
        (REFUSED, 413, code("INVALID_PARAMETERS"), True, DocumentRefused),
        (REFUSED, 413, HTML, False, RequestRefused),
        (REFUSED, 302, HTML, True, RequestRefused),
        *((REFUSED, status, code(name), True, kind)
          for status, (name, kind) in itertools.product((200, 400), {
            "INVALID_API_KEY": AuthenticationFailed,
            "INVALID_TOKEN_OR_SIGNATURE": AuthenticationFailed,
            "ROOM_NOT_FOUND": RoomNotFound,
            "ROOM_NOT_ACTIVE": RoomNotActive,
            "INVALID_PARAMETERS": RequestRefused,
            "A_CODE_OF_NEXT_YEAR": RequestRefused,
            "": RequestRefused,
          }.items())),
        (THROTTLED, 429, HTML, True, Throttled),
        (FAILED, 500, code("INTERNAL_SERVER_ERROR"), True, ProcessingFailed),
        (FAILED, 500, code("INTERNAL_SERVER_ERROR"), False, ServerFailed),
        (UNKNOWN, 502, HTML, False, UnexpectedReply),
        (NEVER, 408, HTML, True, UnexpectedReply),
    ],
)  # fmt: skip
def test_the_error_for_an_answer(
    verdict: Verdict, status: int, body: Any, upload: bool, kind: type[ReplyError]
) -> None:
    """By status where that is plain, else by the server's code; all facts are attributes."""
    error = reply_error(verdict, read(status, body, "7"), upload=upload)
    assert type(error) is kind
    assert error.status == status
    assert error.headers == (("retry-after", "7"),)
    if isinstance(body, dict):
        assert (error.status_code, error.msg) == (body["status_code"], "the message")
        assert json.loads(error.body) == body
    else:
        assert (error.status_code, error.body) == (None, HTML.encode())
    if isinstance(error, Throttled):
        assert error.retry_after == 7


@pytest.mark.parametrize(
    ("status", "body", "hint"),
    [
        (302, HTML, "Redirects are never followed"),
        (401, code("INVALID_API_KEY"), "API key"),
        (401, code("INVALID_TOKEN_OR_SIGNATURE"), "API secret"),
        (401, code("MISSING_REQUIRED_PARAMETER"), "did not arrive"),
    ],
)
def test_hints_name_what_to_fix(status: int, body: Any, hint: str) -> None:
    """Which of the three authentication errors it was, and why a redirect is no way."""
    assert hint in str(reply_error(REFUSED, read(status, body), upload=True))
