"""The table of verdicts, cell by cell: what a reply means (docs/delivery.md)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from meeting_async import Verdict
from meeting_async._protocol.replies import ParsedReply, parse_reply, reply_error
from meeting_async._protocol.verdicts import Asked, Sent, denies_room, overrules_denial, read
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
from meeting_async.transports import Reply

NEVER, PARTIAL, BUSY, REFUSED = Verdict.NEVER_SENT, Verdict.PARTIAL, Verdict.BUSY, Verdict.REFUSED
NO_ANSWER = Verdict.NO_ANSWER
THROTTLED, FAILED, UNKNOWN = Verdict.THROTTLED, Verdict.FAILED, Verdict.UNKNOWN
ACCEPTED = Verdict.ACCEPTED


def code(status_code: str) -> dict[str, Any]:
    """Make the server's own record of a refusal."""
    return {"status": False, "msg": "the message", "status_code": status_code}


YES = {"status": True, "msg": "file uploaded successfully", "status_code": "SUCCESS"}
NO = code("SOME_CODE")
TEXT_YES, NUMBER_YES = YES | {"status": "true"}, YES | {"status": 1}
UNTYPED = {"status": False, "msg": None, "status_code": 500}
ROOM = {"room": {"room_info": {"room_id": "room01"}}}
BARE_YES, BARE_NO, NULL = {"status": True}, {"status": False}, {"status": None}
TWICE = '{"status": true, "status": true}'
HTML = "<html>Bad Gateway</html>"
FOREIGN: list[Any] = [HTML, "", "null", []]
ABSENT = [code("ROOM_NOT_FOUND"), code("ROOM_NOT_ACTIVE")]
CREDENTIALS = [code("INVALID_API_KEY"), code("INVALID_TOKEN_OR_SIGNATURE")]
PARAMETERS = code("INVALID_PARAMETERS")
DATE = "Thu, 01 Jan 2026 00:00:00 GMT"
HINTS = ["0", "5", DATE]
JUNK = [None, "soon", "-1", "1e400", "NaN"]

SAYS_NOTHING = (NEVER, PARTIAL, UNKNOWN)
"""With nothing sent, with a part, and after the closing boundary: as if no reply had come."""
NONE = [None]
ANY = [None, "5"]

# Asked; status (None: no complete reply), body, Retry-After: every combination; then the verdict,
# or three: with nothing sent, with a part of the form, and after its closing boundary.
Row = tuple[str, Sequence[Any], Sequence[Any], Sequence[Any], Verdict | tuple[Verdict, ...]]
TABLE: dict[str, Row] = {
    "no reply": ("document call", NONE, NONE, NONE, SAYS_NOTHING),
    "no reply to a question": ("check probe", NONE, NONE, NONE, (NEVER, NO_ANSWER, NO_ANSWER)),
    # --- documents and calls ---
    "taken, after the boundary": (
        "document", [200], [YES, BARE_YES], ANY, (UNKNOWN, UNKNOWN, ACCEPTED),
    ),
    "taken": ("call", [200], [YES, BARE_YES, ROOM, {}], ANY, ACCEPTED),
    "not taken": ("document call", [200], [NO, BARE_NO, UNTYPED], ANY, REFUSED),
    "foreign 200": (
        "document call", [200], [*FOREIGN, TEXT_YES, NUMBER_YES, NULL, TWICE], ANY, SAYS_NOTHING,
    ),
    "200 that does not say taken": ("document", [200], [ROOM, {}], ANY, SAYS_NOTHING),
    "other 2xx": ("document call", [201, 202, 204, 206], [HTML, "", NO], NONE, SAYS_NOTHING),
    "other 2xx that says taken": ("document call", [201], [YES], NONE, UNKNOWN),
    "redirect": (
        "document call", [300, 301, 302, 303, 304, 307, 308], [NO, YES, HTML, ""], ANY, REFUSED,
    ),
    "4xx": (
        "document call", [400, 401, 403, 404, 407, 413, 415, 431, 499], [NO, YES, HTML, ""], ANY,
        REFUSED,
    ),
    "409, whatever its body": ("document", [409], [NO, YES, {}, *FOREIGN], ANY, BUSY),
    "409 to a call": ("call", [409], [NO, HTML], ANY, REFUSED),
    "a proxy gave up waiting": ("document call", [408], [NO, HTML, ""], ANY, SAYS_NOTHING),
    "429": ("document call check probe", [429], [NO, YES, HTML, ""], ANY, THROTTLED),
    "503 of the server, later": ("document call", [503], [NO], HINTS, THROTTLED),
    "503 of a cache, later": (
        "document call", [503], [YES, HTML, "", {}, UNTYPED, BARE_NO], HINTS,
        (THROTTLED, THROTTLED, UNKNOWN),
    ),
    "5xx of the server": ("document call", [500, 501, 502, 504, 599], [NO], ANY, FAILED),
    "503 of the server, no hint": ("document call", [503], [NO], JUNK, FAILED),
    "5xx that says taken": ("document call", [500, 502], [YES, BARE_YES], ANY, SAYS_NOTHING),
    "5xx of a proxy": (
        "document call", [500, 501, 502, 504, 520, 599],
        [*FOREIGN, {}, BARE_NO, UNTYPED, TEXT_YES], ANY, SAYS_NOTHING,
    ),
    "503 of a proxy": ("document call", [503], [HTML, ""], JUNK, SAYS_NOTHING),
    # --- questions: accepted means go on ---
    "active": ("check", [200], [YES, BARE_YES, ROOM], ANY, ACCEPTED),
    "not active": ("check", [200, 400, 404], [*ABSENT, NO, BARE_NO], ANY, REFUSED),
    "wrong key, to a check": ("check", [200, 400, 401, 403], CREDENTIALS, ANY, REFUSED),
    "401 of a proxy, to a check": ("check", [401], [NO, HTML, "", ROOM], ANY, REFUSED),
    "no meeting server": (
        "check", [200], [*FOREIGN, {}, TEXT_YES, NUMBER_YES, NULL, TWICE, TEXT_YES | ROOM,
        NULL | ROOM], ANY, REFUSED,
    ),
    "no meeting server's status": (
        "check", [201, 204, 301, 302, 404, 413], [HTML, "", ROOM, YES], ANY, REFUSED,
    ),
    "no answer to a check": (
        "check", [408, 409], [HTML, "", NO, YES, *CREDENTIALS], ANY, NO_ANSWER,
    ),
    "locked": ("probe", [409], [NO, YES, {}, *FOREIGN], ANY, BUSY),
    "free": ("probe", [200, 302, 400, 404, 413], [NO, YES, PARAMETERS], ANY, ACCEPTED),
    "wrong key, to a form": ("probe", [200, 400, 401, 403], CREDENTIALS, ANY, REFUSED),
    "401 of the server, to a form": ("probe", [401], [NO], ANY, REFUSED),
    "401 of a proxy, to a form": ("probe", [401], [HTML, "", ROOM], ANY, NO_ANSWER),
    "no room, to a form": ("probe", [200, 400, 403, 404], ABSENT, ANY, REFUSED),
    "no answer to a form": (
        "probe", [200, 204, 302, 400, 404, 413], [*FOREIGN, {}, UNTYPED], ANY, NO_ANSWER,
    ),
    "a form that a proxy gave up": ("probe", [408], [NO, YES, HTML], ANY, NO_ANSWER),
    "5xx to a question, whoever says it": (
        "check probe", [500, 502, 504, 520], [HTML, "", NO, YES, PARAMETERS, *CREDENTIALS, *ABSENT],
        ANY, NO_ANSWER,
    ),
    "503 to a question": ("check probe", [503], [HTML, "", NO, YES], JUNK, NO_ANSWER),
    "503 to a question, later": ("check probe", [503], [HTML, "", NO, YES], HINTS, THROTTLED),
}  # fmt: skip
CELLS = [
    pytest.param(asked, *row, id=f"{asked}: {name}")
    for name, (kinds, *row) in TABLE.items()
    for asked in kinds.split()
]


def reply(status: int, body: Any, retry_after: str | None = None, **facts: Any) -> ParsedReply:
    """Make a reply as it is read."""
    headers = ((b"Retry-After", retry_after.encode()),) if retry_after is not None else ()
    content = body if isinstance(body, str) else json.dumps(body)
    return parse_reply(Reply(status, headers, content.encode(), **facts), now=1_767_000_000.0)


@pytest.mark.parametrize(("asked", "statuses", "bodies", "hints", "expected"), CELLS)
def test_every_cell_of_the_table(
    asked: Asked,
    statuses: Sequence[Any],
    bodies: Sequence[Any],
    hints: Sequence[Any],
    expected: Verdict | tuple[Verdict, ...],
) -> None:
    """What came, how much was sent and what was asked decide together."""
    columns = expected if isinstance(expected, tuple) else (expected,) * 3
    for status, body, hint in itertools.product(statuses, bodies, hints):
        answer = None if status is None else reply(status, body, hint)
        found = tuple(read(answer, sent, asked) for sent in Sent)
        assert found == columns, (status, body, hint)


def test_what_a_room_may_have_is_never_repeated() -> None:
    """After the boundary, only the server's own word or a 429 allows to send again, or says no."""
    bodies: list[Any] = [YES, NO, HTML, "", {}]
    for status, body, hint in itertools.product(range(100, 600), bodies, [None, "5"]):
        verdict = read(reply(status, body, hint), Sent.ALL, "document")
        assert verdict not in {NEVER, PARTIAL}
        if verdict is THROTTLED:
            assert status == 429 or (status == 503 and body in (YES, NO) and hint is not None)
        if verdict in {REFUSED, FAILED} and not 300 <= status < 500:
            assert body in (YES, NO)


def test_a_success_before_the_last_byte_is_unknown() -> None:
    """A refusal counts at any time; a call has no document that could be missing."""
    early = [reply(200, body, early=True) for body in (YES, NO)]
    assert [read(answer, Sent.ALL, "document") for answer in early] == [UNKNOWN, REFUSED]
    assert read(early[0], Sent.ALL, "call") is ACCEPTED


@pytest.mark.parametrize(
    ("status", "text", "verdict"),
    [
        (200, '{"room": {', ACCEPTED),
        (200, '\ufeff\n {"a', ACCEPTED),
        (200, "<html>", REFUSED),
        (200, '["', REFUSED),
        (404, '{"room": {', REFUSED),
        (502, '{"room": {', NO_ANSWER),
    ],
)
def test_a_check_that_is_cut(status: int, text: str, verdict: Verdict) -> None:
    """A room with many people has a reply above 64 KiB: its beginning is enough."""
    answer = reply(status, text, is_cut=True)
    assert read(answer, Sent.ALL, "check") is verdict
    assert read(attrs.evolve(answer, is_cut=False), Sent.ALL, "check") is not ACCEPTED


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 409, 500])
def test_who_has_the_last_word_about_a_room(status: int) -> None:
    """A check may deny a room that is there; only 409 and INVALID_PARAMETERS overrule it."""
    denials = [*ABSENT, NO, BARE_NO, PARAMETERS]
    for body in [*denials, *CREDENTIALS, YES, *FOREIGN]:
        answer = reply(status, body)
        assert denies_room(answer) is (status != 401 and body in denials), body
        assert overrules_denial(answer) is (status == 409 or body == PARAMETERS), body
    assert denies_room(None) is overrules_denial(None) is False


def test_verdicts_are_public_words() -> None:
    """They stand in events, attempts and logs, and compare with text."""
    assert list(Verdict) == [
        "never sent", "no answer", "partial", "busy", "refused", "throttled", "failed", "unknown",
        "accepted", "found", "not found",
    ]  # fmt: skip


# --- the errors that follow ----------------------------------------------------------------------

FIXES: dict[str | int, str] = {
    302: "Redirects are never followed",
    "INVALID_API_KEY": "API key",
    "INVALID_TOKEN_OR_SIGNATURE": "API secret",
    "MISSING_REQUIRED_PARAMETER": "did not arrive",
}
"""What an error with that status or code says of the way out."""


@pytest.mark.parametrize(
    ("verdict", "status", "body", "upload", "kind"),
    [
        (REFUSED, 401, HTML, True, UnexpectedReply),
        (REFUSED, 401, HTML, False, UnexpectedReply),
        (REFUSED, 401, code("MISSING_REQUIRED_PARAMETER"), False, AuthenticationFailed),
        (REFUSED, 413, HTML, True, DocumentRefused),
        (REFUSED, 413, code("INVALID_PARAMETERS"), True, DocumentRefused),
        (REFUSED, 413, HTML, False, RequestRefused),
        (REFUSED, 302, HTML, True, RequestRefused),
        # To a check: no meeting server's.
        *((REFUSED, status, HTML, False, UnexpectedReply) for status in (200, 302, 404)),
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
        (NO_ANSWER, 408, HTML, True, UnexpectedReply),
    ],
)  # fmt: skip
def test_the_error_for_an_answer(
    verdict: Verdict, status: int, body: Any, upload: bool, kind: type[ReplyError]
) -> None:
    """By status where that is plain, else by the server's code; it says what to fix, if known.

    All facts are attributes.
    """
    error = reply_error(verdict, reply(status, body, "7"), upload=upload)
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
    assert FIXES.get(error.status_code or error.status, "") in str(error)
