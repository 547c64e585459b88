"""What follows each history, and what a history is, as tables and properties without a loop."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from math import inf
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.decisions import (
    LARGE,
    RANDOMS,
    SMALL,
    Story,
    record_of,
    seconds_of,
    seen,
    stopped,
    story,
)
from meeting_async import Verdict
from meeting_async._delivery.decide import (
    Done,
    Limits,
    RetrySafety,
    Stop,
    Wait,
    decide,
    error_of,
    proves_loss,
)
from meeting_async._delivery.history import History, Step, loaded, stored
from meeting_async._delivery.server import Server
from meeting_async._models import UNREACHED
from meeting_async._protocol.replies import ParsedReply
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    DocumentMisplaced,
    ProcessingFailed,
    ReplyTooLarge,
    RequestRefused,
    ResourceExhausted,
    RoomBusy,
    RoomNotFound,
    ServerFailed,
    Throttled,
    UnexpectedReply,
    UploadInterrupted,
    UploadOutcomeUnknown,
)

NEVER, NO_ANSWER, PARTIAL, BUSY, REFUSED, THROTTLED, FAILED, UNKNOWN, ACCEPTED, FOUND, NOT_FOUND = (
    Verdict
)
AT_MOST, AT_LEAST, EXACTLY, IDEMPOTENT, ONCE = RetrySafety

# --- verdicts ------------------------------------------------------------------------------------

# Verdict; what follows for an upload at most, at least and exactly once (here without a session, so
# that nothing can be found out), for an idempotent call and for any other.
TABLE: list[tuple[Verdict, Any, Any, Any, Any, Any]] = [
    (NEVER, Wait, Wait, Wait, Wait, Wait),
    (PARTIAL, Wait, Wait, Wait, Wait, ConnectionLost),
    (BUSY, Wait, Wait, Wait, UnexpectedReply, UnexpectedReply),
    (REFUSED, RequestRefused, RequestRefused, RequestRefused, RequestRefused, RequestRefused),
    (THROTTLED, Wait, Wait, Wait, Wait, Wait),
    (FAILED, ProcessingFailed, ProcessingFailed, ProcessingFailed, ServerFailed, ServerFailed),
    (UNKNOWN, UploadOutcomeUnknown, Wait, UploadOutcomeUnknown, Wait, ConnectionLost),
    (ACCEPTED, Done, Done, Done, Done, Done),
]
CELLS = [(row[0], safety, row[1 + n]) for row in TABLE for n, safety in enumerate(RetrySafety)]
WAITS = [cell[:2] for cell in CELLS if cell[2] is Wait]


@pytest.mark.parametrize(("verdict", "safety", "expected"), CELLS)
def test_what_follows_each_verdict(verdict: Verdict, safety: RetrySafety, expected: type) -> None:
    """Each verdict for each kind of call: wait, be done, or stop with the error for it."""
    decision = story(safety).after(verdict)
    assert type(decision.error if isinstance(decision, Stop) else decision) is expected
    if isinstance(decision, Wait):
        assert decision.kind == ("room" if verdict is BUSY else "retry")


# --- histories -----------------------------------------------------------------------------------


def at(seconds: float, verdict: Verdict, kind: str | None = None, **facts: Any) -> Any:
    """Make a step of a row."""
    return verdict, kind, seconds, facts


def row(*verdicts: Verdict) -> list[Any]:
    """Make steps every two seconds."""
    return [at(2.0 * number, verdict) for number, verdict in enumerate(verdicts)]


def locked(seconds: float) -> Any:
    """Make a form that was answered *locked*."""
    return at(seconds, BUSY, "probe")


def said(status: int, code: str = "") -> dict[str, Any]:
    """Make the facts of a step that was answered by a page, or by the server itself."""
    return {"answer": ParsedReply(status, record_of(code) if code else None, size=9)}


FATAL: dict[str, Any] = {"error": ConnectFailed("not trusted", "meet.test:443")}
FATAL["error"].permanent = True
TOO_LARGE: dict[str, Any] = {"error": ReplyTooLarge("longer than 1 MiB")}
SOON, FIRST = (0.25, 20.0), (0.25, 0.5)
OFFICE: dict[str, Any] = {"is_office": True, "can_be_alone": True, "size": SMALL}
CLASH = (ProcessingFailed, "Another conversion on the server at the same moment may be the cause")
LEAST, CALL, TEN = {"safety": AT_LEAST}, {"safety": IDEMPOTENT}, {"max_wait": 10}

# What is set, the steps, and what follows the last one: the error and a part of its text, or the
# least and the longest wait.
HISTORIES: dict[str, tuple[dict[str, Any], list[Any], Any]] = {
    # --- what counts ---
    "interrupted twice": ({}, row(PARTIAL, PARTIAL), SOON),
    "interrupted three times": ({}, row(*[PARTIAL] * 3), (UploadInterrupted, "meet.test:443")),
    "a lock between interruptions": ({}, row(PARTIAL, PARTIAL, BUSY, PARTIAL, PARTIAL), SOON),
    "a locked form between interruptions": (
        {}, [*row(PARTIAL, PARTIAL), locked(3), at(5, PARTIAL)], (UploadInterrupted, "no line"),
    ),
    "at least once: interrupted often": (LEAST, row(*[PARTIAL] * 4), SOON),
    "at least once: five attempts": (LEAST, row(*[PARTIAL] * 5), (UploadInterrupted, "")),
    "five attempts": ({}, row(*[THROTTLED, PARTIAL] * 2, THROTTLED), (Throttled, "HTTP 429")),
    "throttled questions in a row, some without an answer": (
        {}, [at(2 * n, NEVER if n % 2 else THROTTLED, "check") for n in range(9)],
        (Throttled, "HTTP 429"),
    ),
    "throttled questions of a long wait": (
        {}, [step for n in range(9) for step in (locked(4 * n), at(4 * n + 2, THROTTLED, "check"))],
        SOON,
    ),
    "locks do not count": ({}, row(*[BUSY] * 9, THROTTLED), SOON),
    "outages do not count": ({}, row(*[NEVER] * 9, PARTIAL, PARTIAL), SOON),
    "attempts of a call": (
        CALL | {"began": -2.0}, row(*[NEVER] * 5),
        (ConnectFailed, "no line; after 5 attempts in 10 s; nothing was sent"),
    ),
    "max_attempts": (
        {"safety": ONCE, "max_attempts": 3}, row(NEVER, THROTTLED, NEVER), (ConnectFailed, ""),
    ),
    # --- what would fail again ---
    "permanent": ({}, [at(0, NEVER, **FATAL)], (ConnectFailed, "not trusted")),
    "permanent, to a check": ({}, [at(0, NEVER, "check", **FATAL)], (ConnectFailed, "")),
    "permanent, of a call": (CALL, [at(0, UNKNOWN, **FATAL)], (ConnectFailed, "")),
    "amid a document": ({}, [at(0, PARTIAL, **FATAL)], SOON),
    "a reply that is too large": (CALL, [at(0, UNKNOWN, **TOO_LARGE)], (ReplyTooLarge, "")),
    "a foreign success": (CALL, [at(0, UNKNOWN, **said(200))], (UnexpectedReply, "not from a")),
    "a proxy's page": (CALL, [at(0, UNKNOWN, **said(502))], SOON),
    # --- outages ---
    "one minute": ({}, [*row(*[NEVER] * 5), at(59, NEVER)], (1, 1)),
    "one minute is over": (
        {}, [at(0, NEVER), at(60, NEVER)],
        (ConnectFailed, "no line; after 2 attempts in 60 s; nothing was sent"),
    ),
    "never given up, but in time": (
        {"max_outage": inf, "ends_at": 20.0}, [at(3, NEVER), at(20, NEVER)],
        (ConnectFailed, "after 2 attempts in 17 s"),
    ),
    "no outage": ({"max_outage": 0}, [at(0, NEVER)], (ConnectFailed, "nothing was sent")),
    "it ends with an answer": (
        {}, [at(0, NEVER), at(59, NEVER), at(61, BUSY), at(62, NEVER), at(121, NEVER)], (0.5, 1),
    ),
    "the next one is over": (
        {}, [at(0, NEVER), at(61, BUSY), at(62, NEVER), at(122, NEVER)],
        (ConnectFailed, "no line; after 2 attempts in 60 s"),
    ),
    "a proxy's page to a check": (
        {}, [at(t, NO_ANSWER, "check", **said(502)) for t in (0, 60)], (UnexpectedReply, "a proxy"),
    ),
    "the server's own 500 to a check": (
        {}, [at(t, NO_ANSWER, "check", **said(500, "OOPS")) for t in (0, 60)],
        (ServerFailed, "OOPS"),
    ),
    "Retry-After of no answer": (
        {}, [at(0, NO_ANSWER, "check", hint=9.0, **said(500))], (9, 11.25),
    ),
    # --- limits of waits ---
    "sending is no wait": (TEN, [locked(0), at(1, PARTIAL, took=400)], SOON),
    "asking is no wait": (TEN, [at(0, BUSY), at(1, NO_ANSWER, "check", took=50)], SOON),
    "max_wait": (TEN, [at(0, BUSY), locked(9.5)], (0.5, 0.5)),
    "too little is left of it": (TEN, [at(0, BUSY), locked(9.8)], (RoomBusy, "waited 9.8 s")),
    "max_wait=0": (
        {"max_wait": 0}, [locked(0)],
        (RoomBusy, "another client has locked it (HTTP 409: in use); waited 0.0 s"),
    ),
    "a hint beyond max_wait": (TEN, [locked(0), at(2, THROTTLED, hint=50)], (Throttled, "")),
    "a document that may hold the room": (
        TEN | LEAST, [at(0, UNKNOWN), at(2, THROTTLED, hint=50)], (Throttled, ""),
    ),
    "a hint, and no lock": (TEN, [at(2, THROTTLED, hint=50)], (50, 62.5)),
    "max_retry_after": ({"max_retry_after": 5}, [at(2, THROTTLED, hint=50)], (5, 6.25)),
    "any lock": ({}, [at(0, BUSY), locked(329)], (1, 1)),
    "longer than any lock": ({}, [at(0, BUSY), locked(330)], (RoomBusy, "330.0 s, the long")),
    "free proves nothing": (
        {}, [at(0, BUSY), at(290, BUSY, after_free=True), locked(330)], (RoomBusy, "in 260 s"),
    ),
    "another lock": (LEAST, [at(0, BUSY), at(290, UNKNOWN), locked(300), locked(600)], (1.5, 2.5)),
    "the quickest policy": ({"initial_delay": 0.25, "max_delay": 0.25}, row(PARTIAL), (0.25, 0.25)),
    "without asking": ({"probe": False}, row(BUSY), (18, 22.5)),
    "without asking, on a slow line": (
        {"probe": False}, [at(0, BUSY, took=100, body_seconds=100)], (100, 125),
    ),
    "without asking, but slower": ({"probe": False, "min_delay": 60}, row(BUSY), (60, 75)),
    # --- after an unknown outcome ---
    "sent again after a form": (LEAST | {"size": SMALL}, [at(0, UNKNOWN)], FIRST),
    "sent again blindly": (LEAST | {"probe": False}, [at(0, UNKNOWN)], (300, 300)),
    # --- after a failed conversion ---
    "an office document": (OFFICE, row(FAILED), FIRST),
    "an office document again": (OFFICE, row(FAILED, FAILED), CLASH),
    "max_failed_conversions": (OFFICE | {"max_failed_conversions": 2}, row(FAILED, FAILED), FIRST),
    "max_failed_conversions=0": (OFFICE | {"max_failed_conversions": 0}, row(FAILED), CLASH),
    "not in a batch": ({"is_office": True}, row(FAILED), CLASH),
    "a PDF": ({"can_be_alone": True}, row(FAILED), (ProcessingFailed, "in use)")),
    "no time to send it again": (OFFICE | {"ends_at": 0.25}, row(FAILED), CLASH),
    "no budget is spent": (OFFICE | {"server": Server(tokens=0)}, row(FAILED), FIRST),
    "no attempt is counted": (OFFICE, row(*[THROTTLED] * 4, FAILED), FIRST),
    "the fifth attempt": (OFFICE, row(*[THROTTLED] * 4, FAILED, THROTTLED), (Throttled, "429")),
    "another lock after it": (
        OFFICE, [at(0, BUSY), at(290, FAILED), locked(300), locked(600)], (1.5, 2.5),
    ),
    "a stream that was read": (
        OFFICE, [at(0, FAILED, is_consumed=True)], (ProcessingFailed, "Another conversion"),
    ),
    "the server's own 500 to a check of it": (
        OFFICE, [at(t, NO_ANSWER, "check", **said(500, "OOPS")) for t in (0, 60)],
        (ServerFailed, "in use)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "steps", "expected"), HISTORIES.values(), ids=HISTORIES)
def test_what_follows_each_history(
    settings: dict[str, Any], steps: list[Any], expected: Any
) -> None:
    """All but the last step of a history are followed by a wait; the last one as the row says."""
    for random in RANDOMS:
        told = story(**settings)
        *earlier, last = [told.after(*step, random=random, **facts) for *step, facts in steps]
        assert {type(decision) for decision in earlier} <= {Wait}
        first, second = expected
        if isinstance(last, Wait):
            assert first <= last.seconds <= second
        else:
            error = stopped(last)
            assert type(error) is first
            assert second in str(error)


@pytest.mark.parametrize("safety", [AT_MOST, AT_LEAST, EXACTLY])
def test_an_office_document_whose_conversion_has_failed_is_sent_alone(safety: RetrySafety) -> None:
    """In every mode, as nothing is stored then; and the server is asked before, however small."""
    told = story(safety, **OFFICE)
    assert told.after(FAILED).kind == "alone"
    assert (told.server.tokens, told.asks) == (Server().tokens, True)
    assert isinstance(told.after(ACCEPTED), Done)


LIMITS: dict[str, tuple[dict[str, Any], float, str, str]] = {
    # settings, when the last 409 comes: which limit, in which words
    "max_wait": ({"max_wait": 400}, 400, "max_wait", "waited 400.0 s; it should be free by now"),
    "a short one": ({"max_wait": 9}, 9, "max_wait", "waited 9.0 s; it must be free in 291 s"),
    "none": ({}, 330, "window", "330.0 s, the longest without max_wait; it should be free by now"),
    "another window": ({"window": 90}, 120, "window", "120.0 s, the longest without max_wait;"),
    "timeout": ({"ends_at": 20}, 20, "timeout", "20.0 s, and timeout allows no more; it must be"),
    "timeout, later": ({"max_wait": 900, "ends_at": 310}, 310, "timeout", "no more; it should be"),
}


@pytest.mark.parametrize(("settings", "ends", "limit", "text"), LIMITS.values(), ids=LIMITS)
def test_which_limit_ended_the_wait(
    settings: dict[str, Any], ends: float, limit: str, text: str
) -> None:
    """The caller's, or that of a lock if the caller has set none; no lock ends *in 0 s*."""
    told = story(**settings)
    told.after(BUSY, at=0)
    error = stopped(told.after(BUSY, at=ends))
    assert isinstance(error, RoomBusy)
    assert error.limit == limit
    assert text in str(error)


def test_errors_carry_what_is_known() -> None:
    """Size, bytes sent, host, and seconds until the lock must be free; ``__cause__`` is kept."""
    told = story()
    told.after(UNKNOWN, at=0, took=5.0, sent=LARGE)
    unknown = stopped(decide(told.history, told.limits, told.server, 15.0, 0.5))
    assert isinstance(unknown, UploadOutcomeUnknown)
    assert (unknown.size, unknown.bytes_sent, unknown.lock_free_in) == (LARGE, LARGE, 290)
    assert unknown.__cause__ is told.history.last.error is not None
    link = stopped(story(size=None).after(UNKNOWN, sent=0))
    assert isinstance(link, UploadOutcomeUnknown)
    assert (link.size, link.bytes_sent) == (None, None)
    told = story()
    *_, last = (told.after(PARTIAL, at=now, sent=7) for now in (0, 10, 20))
    cut = stopped(last)
    assert isinstance(cut, UploadInterrupted)
    assert (cut.reason, cut.host, cut.bytes_sent) == ("no line", "meet.test:443", 7)


def test_a_stream_that_cannot_be_read_again_is_not_repeated() -> None:
    """The error says so; what would be waited for does not matter."""
    for verdict in (BUSY, THROTTLED, PARTIAL, NEVER):
        error = stopped(story().after(verdict, is_consumed=True))
        assert "cannot be read a second time" in " ".join(error.__notes__)


# --- how long ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verdict", "safety"), WAITS, ids=str)
def test_a_hint_makes_a_wait_longer_never_shorter(verdict: Verdict, safety: RetrySafety) -> None:
    """Nothing is attempted again within 0.25 s; of a hint at most 60 s count, and jitter."""
    hints, races = (None, 0.0, 1.0, 2.0, 60.0, 3600.0), (0, 3) if verdict is BUSY else (0,)
    for hint, lost, random in itertools.product(hints, races, RANDOMS):
        waits = []
        for told_hint in (None, hint):
            told = story(safety, max_outage=1e4)
            for _ in range(lost):
                told.after(BUSY, took=10.0, body_seconds=10.0, after_free=True)
            answer = {} if verdict in {BUSY, THROTTLED} else said(502)
            waits.append(seconds_of(told.after(verdict, random=random, hint=told_hint, **answer)))
        plain, hinted = waits
        longest = min(hint or 0.0, 60.0)
        assert max(0.25, plain, longest) <= hinted <= max(plain, longest * 1.25)


@pytest.mark.parametrize("random", RANDOMS)
def test_backoff_doubles(random: float) -> None:
    """0.5 s at first, twice as much each time, 20 s at most, between half and all of it."""
    call, upload = story(IDEMPOTENT, max_attempts=10), story(max_outage=1e4)
    for told, verdict in ((call, UNKNOWN), (upload, NEVER)):
        for now, limit in enumerate([0.5, 1, 2, 4, 8, 16, 20, 20, 20]):
            delay = seconds_of(told.after(verdict, at=now * 100.0, random=random))
            assert max(0.25, limit / 2) <= delay <= limit


@pytest.mark.parametrize(("verdict", "safety"), WAITS, ids=str)
def test_a_wait_that_does_not_fit_ends_the_call_now(verdict: Verdict, safety: RetrySafety) -> None:
    """Near the end of ``timeout`` no wait is clipped."""
    stopped(story(safety, ends_at=100.2).after(verdict, at=100.0))
    hinted = story(safety, ends_at=104.0).after(verdict, at=100.0, hint=5.0)
    assert isinstance(hinted, Stop if verdict in {THROTTLED, BUSY} else Wait)
    assert isinstance(story(safety, ends_at=110.0).after(verdict, at=100.0, hint=5.0), Wait)


@pytest.mark.parametrize(
    ("verdict", "hint", "spread"),
    [(NEVER, None, 0.2), (THROTTLED, 5.0, 0.2), (THROTTLED, 0.0, 0.1), (BUSY, None, 0.1),
     (BUSY, 5.0, 0.2)],
)  # fmt: skip
def test_uploads_that_failed_together_do_not_wake_together(
    verdict: Verdict, hint: float | None, spread: float
) -> None:
    """Chance spreads their waits over this many seconds at least."""
    shortest, middle, longest = (
        seconds_of(story().after(verdict, random=random, hint=hint)) for random in RANDOMS
    )
    assert shortest + spread / 4 <= middle <= longest - spread / 4
    assert longest - shortest >= spread


# --- evidence ------------------------------------------------------------------------------------

KNOWN: dict[str, Any] = {"session": "RM_1", "since": 1_700_000_000, "sent": LARGE}
"""What evidence needs."""

# Seconds since a document was lost or accepted; whether the server has shown a document before, and
# whether the room is free; whether "not found" proves that it is not there.
PROOFS: list[tuple[Verdict, float, bool | None, bool, bool]] = [
    (UNKNOWN, 64.9, True, True, False),
    (UNKNOWN, 65.0, True, True, True),
    (UNKNOWN, 65.0, True, False, False),
    (UNKNOWN, 300.0, True, False, True),  # no server locks a room longer
    (UNKNOWN, 300.0, None, True, False),
    (UNKNOWN, 300.0, False, True, False),
    (ACCEPTED, 4.9, True, False, False),
    (ACCEPTED, 5.0, True, False, True),
    (ACCEPTED, 5.0, None, False, False),
]


@pytest.mark.parametrize(("outcome", "age", "shows", "is_free", "proven"), PROOFS)
def test_what_not_found_proves(
    outcome: Verdict, age: float, *, shows: bool | None, is_free: bool, proven: bool
) -> None:
    """Only from a server that shows files, when nothing can still deliver the form."""
    document = seen("document", outcome, 100.0, **KNOWN)
    limits, server = story(EXACTLY).limits, Server(shows_files=shows)
    assert proves_loss(document, server, limits, 100.0 + age, is_free=is_free) is proven


def after_evidence(*evidence: tuple[Verdict, float], outcome: Verdict = UNKNOWN, **how: Any) -> Any:
    """Say what follows a document that was sent at 0 s and was looked for at these times.

    *Not found* proves something after 65 s, or 5 s after it was accepted.
    """
    told = story(EXACTLY, **how)
    decision = told.after(outcome, **KNOWN)
    for verdict, seconds in evidence:
        answer = ParsedReply(200) if verdict is FOUND else None
        facts: dict[str, Any] = {
            "proves": verdict is NOT_FOUND and seconds % 65 in {0, 5},
            "reason": "HTTP 404",
            "session": KNOWN["session"],
        }
        decision = told.after(verdict, "evidence", seconds, answer=answer, **facts)
    return decision


COURSES: dict[str, tuple[list[tuple[Verdict, float]], Any]] = {
    "lost": ([], Wait),
    "lost, not seen yet": ([(NOT_FOUND, 1.0), (UNKNOWN, 64.0)], Wait),
    "lost, found": ([(UNKNOWN, 1.0), (FOUND, 2.0)], Done),
    "lost, not there": ([(NOT_FOUND, 65.0)], Wait),
    "lost, not told in time": ([(UNKNOWN, 70.0), (UNKNOWN, 76.0)], UploadOutcomeUnknown),
    "lost three times": (
        [(NOT_FOUND, 65.0), (NOT_FOUND, 130.0), (NOT_FOUND, 195.0)],
        UploadInterrupted,
    ),
}


def test_what_is_proven_to_be_lost_is_not_unknown() -> None:
    """Also if no time is left to send it again."""
    error = stopped(after_evidence((NOT_FOUND, 65.0), ends_at=65.1))
    assert isinstance(error, UploadInterrupted)
    assert "not there" in str(error)


def test_questions_for_a_document_are_no_attempts() -> None:
    """However often it could not be told, ``max_attempts`` is about the document."""
    told = story(EXACTLY)
    told.after(UNKNOWN, **KNOWN)
    for seconds in range(1, 8):
        told.after(UNKNOWN, "evidence", seconds)
    assert isinstance(told.after(THROTTLED, "check", 70.0), Wait)


def test_a_question_without_an_answer_shows_no_server() -> None:
    """It may have reached nobody: others that wait for the server still wait."""
    server = Server()
    server.mark_away(0.0, ConnectFailed("nobody listens"))
    server.learn(seen("evidence", UNKNOWN, 1.0), was_retried=False)
    assert server.away_since == 0.0
    server.learn(seen("evidence", NOT_FOUND, 2.0), was_retried=False)
    assert server.away_since is None


@pytest.mark.parametrize("course", COURSES)
def test_what_follows_evidence(course: str) -> None:
    """It is asked for until it tells; what is not there is sent again, a few times."""
    evidence, expected = COURSES[course]
    decision = after_evidence(*evidence)
    assert type(decision.error if isinstance(decision, Stop) else decision) is expected
    if course == "lost, not told in time":
        assert "what became of it cannot be told: HTTP 404" in str(stopped(decision))


@pytest.mark.parametrize(
    ("verdict", "seconds", "shows", "expected"),
    [(FOUND, 0.1, None, Done), (UNKNOWN, 0.1, None, Done), (UNKNOWN, 0.1, True, Wait),
     (UNKNOWN, 5.0, True, Done), (NOT_FOUND, 0.1, None, Wait),
     (NOT_FOUND, 0.1, False, Done), (NOT_FOUND, 5.5, None, Done),
     (NOT_FOUND, 5.0, True, DocumentMisplaced)],
)  # fmt: skip
def test_what_was_accepted_is_looked_for(
    verdict: Verdict, seconds: float, *, shows: bool | None, expected: type
) -> None:
    """For some seconds, if the server may show it; only *not there* ends the call with an error."""
    server = Server(shows_files=shows)
    decision = after_evidence((verdict, seconds), outcome=ACCEPTED, server=server)
    assert type(decision.error if isinstance(decision, Stop) else decision) is expected


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        ({"session": ""}, "named no session"),
        ({"since": None}, "told no time"),
        ({"sent": 0}, "link"),
    ],
)
def test_evidence_that_cannot_be_had(missing: dict[str, Any], why: str) -> None:
    """It is not waited for; the error says why."""
    error = stopped(story(EXACTLY).after(UNKNOWN, **{**KNOWN, **missing}))
    assert isinstance(error, UploadOutcomeUnknown)
    assert why in error.reason


def test_errors_recommend_exactly_once_where_it_works() -> None:
    """On a server that has shown documents the error of a lost answer names ``exactly_once``."""
    for shows in (True, None):
        error = stopped(story(AT_MOST, server=Server(shows_files=shows)).after(UNKNOWN, **KNOWN))
        assert ('delivery="exactly_once"' in str(error)) is bool(shows)


# --- the server: budget and outage ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "safety"),
    [(THROTTLED, AT_MOST), (PARTIAL, AT_MOST), (UNKNOWN, IDEMPOTENT), (NEVER, ONCE)],
)
def test_an_empty_budget_ends_calls_with_their_own_error(
    verdict: Verdict, safety: RetrySafety
) -> None:
    """100 repetitions in a row without a success, by all calls of a client together.

    A success gives a fifth of one back, and no more than there were; waits for a room are free.
    """
    server = Server()
    story(safety, server=server).after(ACCEPTED)
    *waits, last = [story(safety, server=server).after(verdict) for _ in range(101)]
    assert {type(decision) for decision in waits} == {Wait}
    error = stopped(last)
    assert type(error) is type(story(safety, server=Server(tokens=0)).after(verdict).error)
    assert "repeated recently" in " ".join(error.__notes__)
    assert isinstance(story(server=server).after(BUSY), Wait)
    for number in range(5):
        assert isinstance(story(safety, server=server).after(verdict), Stop), number
        story(safety, server=server).after(ACCEPTED)
    assert isinstance(story(safety, server=server).after(verdict), Wait)


@pytest.mark.parametrize("took", [0.0, 0.2, 10.0])
@pytest.mark.parametrize("max_outage", [0.0, 5.0, 60.0, 600.0])
@pytest.mark.parametrize("tokens", [0.0, 4.0, 100.0])
def test_a_dead_server_is_given_up(max_outage: float, took: float, tokens: float) -> None:
    """At ``max_outage``, or within a second after it if the budget is empty: not all together.

    Or after a second attempt, if the first alone took so long: the process may have been frozen.
    """
    longest = took if 0 < max_outage <= took else max_outage
    for random in RANDOMS:
        told, moments = story(max_outage=max_outage, server=Server(tokens=tokens)), [0.0]
        while told.waits(told.after(NEVER, took=took, random=random)):
            moments.append(told.now)
        assert all(b - a >= took + 0.25 for a, b in itertools.pairwise(moments))
        assert len(moments) <= 8 + max_outage / (took + 10)
        assert longest <= told.now <= longest + took + (0.25 if tokens == 100 else 1.25)
        assert longest == max_outage or len(moments) == 2


def test_who_waited_behind_another_upload_has_waited_for_the_server() -> None:
    """The outage counts from the call, or from the first attempt of any call that failed."""
    server = Server()
    first = story(server=server)
    assert isinstance(first.after(NEVER, at=10), Wait)
    assert isinstance(story(server=server, began=5.0).after(NEVER, at=70), Stop)
    assert isinstance(story(server=server, began=65.0).after(NEVER, at=70), Wait)
    first.after(BUSY, at=71)
    server.mark_away(60.0, ConnectFailed("lost before the answer to another one"))
    assert server.away_since == 71
    server.mark_reached(72.0)
    assert isinstance(story(server=server, began=5.0).after(NEVER, at=100), Wait)


def test_the_error_for_who_waits_behind_an_outage() -> None:
    """A copy, as each call adds facts of its own; none once the server is there, or hours later."""
    told = story()
    for verdict, facts, expected in (
        (NEVER, {"error": ResourceExhausted("no descriptor")}, (None, None)),  # this machine's
        (NEVER, {}, (3.0, ConnectFailed)),
        (BUSY, {"kind": "probe"}, (None, None)),
    ):
        told.after(verdict, at=3.0, **facts)
        one, other = (told.server.error_for_another(63.0, max_outage=60) for _ in range(2))
        assert (told.server.away_since, one and type(one)) == expected
        assert one is None or one is not other
        assert told.server.error_for_another(64.0, max_outage=60) is None


def test_only_the_first_retry_of_an_outage_names_the_limit() -> None:
    """It is logged as a warning; one for all uploads, and none for this machine's descriptors."""
    told, call = story(), story(IDEMPOTENT)
    assert [told.after(NEVER).limit for _ in range(2)] == ["for up to 60 s", ""]
    assert story(server=told.server).after(NEVER).limit == ""
    assert story().after(NEVER, error=ResourceExhausted("no descriptor")).limit == ""
    assert [call.after(UNKNOWN).limit for _ in range(2)] == ["up to 5 attempts", ""]
    assert story(ONCE).after(NEVER).limit == "up to 5 attempts"
    assert {story(s).after(THROTTLED).limit for s in (AT_MOST, ONCE)} == {""}


# --- asking --------------------------------------------------------------------------------------

DOUBT = [at(0, UNKNOWN)]


@attrs.frozen
class AskRow:
    """What an upload has met, and whether a form comes before its document."""

    asks: bool
    steps: list[Any] = attrs.field(factory=list)
    how: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
    """Settings and size."""
    others: bool | None = attrs.field(default=None, kw_only=True)
    """Whether the next upload to the server asks, too, if that differs."""


ASKS = {
    "large": AskRow(True),
    "64 KiB": AskRow(False, how={"size": 64 * 1024}),
    "a byte more": AskRow(True, how={"size": 64 * 1024 + 1}),
    "a link": AskRow(False, how={"size": None}),
    "no questions": AskRow(False, [at(0, BUSY)], how={"probe": False}),
    "no preflight": AskRow(False, DOUBT, how={"may_ask": False}),
    "small, in doubt": AskRow(True, DOUBT, how={"size": SMALL}),
    "a link, in doubt, locked since": AskRow(True, [*DOUBT, locked(9)], how={"size": None}),
    "small, locked": AskRow(True, [at(0, BUSY)], how={"size": SMALL}, others=False),
    "a link, locked, then not reached": AskRow(
        True, [at(0, BUSY), at(9, NEVER)], how={"size": None}, others=False
    ),
    "small, conversion failed": AskRow(True, [at(0, FAILED)], how={"size": SMALL}),
    "small, failed, then asked": AskRow(
        True, [at(0, FAILED), locked(9)], how={"size": SMALL}, others=False
    ),
    "free was false": AskRow(True, [at(t, BUSY, after_free=True) for t in range(5)]),
}


@pytest.mark.parametrize("row", ASKS.values(), ids=ASKS)
def test_whether_a_form_comes_first(row: AskRow) -> None:
    """By size, by what was met, and by what the server's answers are worth to all uploads."""
    told = story(**row.how)
    for *step, facts in row.steps:
        told.after(*step, **facts)
    assert told.asks is row.asks
    if told.history.unknown_since is not None:  # or an earlier run of the job was cut off
        told.history = History(was_sent=True)
        assert told.asks is row.asks
    else:
        others = row.asks if row.others is None else row.others
        assert story(server=told.server, **row.how).asks is others


# --- a room that is locked -----------------------------------------------------------------------


def in_locked_room(told: Story, random: float = 0.5, end: float = 1e9) -> Iterator[float]:
    """Wait in a room that stays locked; yield the delays."""
    while told.now < end:
        decision = told.after(BUSY, "probe" if told.asks else "document", random=random)
        if not told.waits(decision):
            assert type(stopped(decision)) is RoomBusy
            return
        yield decision.seconds


@pytest.mark.parametrize("random", RANDOMS)
@pytest.mark.parametrize("min_delay", [0.25, 0.4, 5.0])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_questions_in_proportion(min_delay: float, random: float, size: int) -> None:
    """Again after a tenth of the time that the lock has lasted, give or take 25 %; at most 2 s."""
    lasted = 0.0
    for delay in in_locked_room(story(min_delay=min_delay, size=size), random, 50):
        expected = max(lasted / 10, min_delay)
        assert min(max(expected * 0.75, 0.25), 1.5) <= delay <= max(expected * 1.25, 0.25)
        assert delay <= max(2, min_delay * 1.25)
        lasted += delay


@pytest.mark.parametrize("random", RANDOMS)
def test_a_lost_race_delays_by_the_time_of_the_document(random: float) -> None:
    """3 times as long after the first, 6 times after the second, 6.5 times at most."""
    told = story()
    told.after(BUSY, "probe")
    for factor in (3, 6, 6.5, 6.5):
        facts: Any = {"took": 10.0, "body_seconds": 10.0, "after_free": True}
        delay = seconds_of(told.after(BUSY, random=random, **facts))
        assert delay == pytest.approx(10 * factor * (0.2 + 1.6 * random))


@pytest.mark.parametrize("random", RANDOMS)
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_any_one_lock_is_waited_for_until_it_must_have_ended(size: int, random: float) -> None:
    """By default 300 s and 30 s more; waits for a place in a batch do not count."""
    for pause in (0.0, 500.0):
        told = story(size=size)
        first = told.after(BUSY)
        told.waits(first)
        told.paused(pause)
        assert 329.7 <= seconds_of(first) + sum(in_locked_room(told, random)) <= 330.001
        assert told.now == pytest.approx(330 + pause, abs=0.3)


@pytest.mark.parametrize(
    "settings", [{}, {"size": SMALL}, {"probe": False}], ids=["large", "small", "no questions"]
)
@pytest.mark.parametrize(
    ("max_wait", "queued"), [(0, 0), (0.2, 0), (0.3, 0), (5, 4.9), (7, 3), (60, 0), (1000, 600)]
)
def test_a_number_limits_the_sum_of_waits(
    max_wait: float, queued: float, settings: dict[str, Any]
) -> None:
    """Behind uploads from here and for the lock; the last try is at the edge, not far before."""
    told = story(max_wait=max_wait, **settings)
    told.paused(queued, "queue")
    assert told.room.queue_limit() == max_wait - queued
    told.waits(told.after(BUSY))
    told.paused(500)  # for a place
    total = sum(in_locked_room(told))
    error = stopped(told.after(BUSY))
    assert isinstance(error, RoomBusy)
    assert max_wait - 0.3 <= error.waited <= max_wait + 1e-6
    assert error.waited == pytest.approx(told.now - 500)
    assert total <= max_wait - queued


# --- the list of steps ---------------------------------------------------------------------------

FAILURES = [
    *(("check", verdict) for verdict in (NEVER, NO_ANSWER, THROTTLED)),
    *(("probe", verdict) for verdict in (NO_ANSWER, THROTTLED, *[BUSY] * 5)),
    *(("document", verdict) for verdict in (NEVER, PARTIAL, BUSY, THROTTLED, UNKNOWN)),
    *[("place", None)] * 2,
    ("session", None),
    ("queue", None),
]
SECONDS = st.integers(0, 40)
STEPS = st.lists(st.tuples(st.sampled_from(FAILURES), SECONDS, SECONDS, st.booleans()))
POLICIES = st.builds(
    lambda safety, size, settings: story(safety, size=size, began=-inf, **settings).limits,
    st.sampled_from([AT_MOST, AT_LEAST, EXACTLY]),
    st.sampled_from([SMALL, LARGE]),
    st.sampled_from(
        [{}, {"max_wait": 60}, {"probe": False}, {"max_outage": 100}, {"max_attempts": 3}]
    ),
)


def steps_of(rows: list[Any], now: float = 0.0) -> list[Step]:
    """Make steps that follow each other; the numbers are seconds before and during each."""
    steps = []
    for (kind, verdict), before, took, after_free in [*rows, (("probe", BUSY), 1, 0, False)]:
        now += before
        if verdict is None:
            steps.append(Step(kind=kind, began=now, ended=now + took))
        else:
            steps.append(seen(kind, verdict, now, took, after_free=after_free))
        now += took
    return steps


def all_that_counts(history: History, limits: Limits, now: float) -> Any:
    """Return what follows a history, and the numbers that are derived from it.

    Another upload may have lost the server right after it has answered this one.
    """
    answered = [one.ended for one in history.steps if one.verdict not in {None, NEVER, NO_ANSWER}]
    return [
        _what_counts(history, limits, now, Server(away_since=away_since))
        for away_since in (None, *answered[-1:])
    ]


def _what_counts(history: History, limits: Limits, now: float, server: Server) -> Any:
    decision: Any = decide(history, limits, server, now, 0.5)
    if isinstance(decision, Stop):
        decision = str(decision.error)
    room = limits.waiting(history)
    each = [(verdict,) for verdict in Verdict if verdict not in {BUSY, *UNREACHED}]
    rows = [sum(one.count for one in history.in_a_row(*some)) for some in (*each, UNREACHED)]
    busy = room.busy_error(None, now)
    return (
        decision,
        (busy.free_in, busy.place_waited),
        (room.waited(now), room.time_left(now), room.queue_limit(), rows),
        (history.last.verdict, history.may_have_arrived),
    )


@given(STEPS, POLICIES)
def test_a_merged_history_means_the_same(rows: list[Any], limits: Limits) -> None:
    """Locked answers and pauses in a row become few steps; nothing else changes."""
    steps, merged = steps_of(rows), History()
    for number, one in enumerate(steps):
        merged.add(one, call_began=0.0)
        if one.verdict is not None:
            whole = History(steps[: number + 1])
            counted = [all_that_counts(each, limits, one.ended) for each in (whole, merged)]
            assert counted[0] == counted[1]
    assert {(one.answer, one.error) for one in merged.steps[:-1]} <= {(None, None)}


def test_a_history_of_hours_in_a_locked_room_is_short() -> None:
    """Thousands of questions and pauses, five steps; and no attempt to tell of."""
    told = story(max_wait=90_000)
    told.after(BUSY)
    for _ in range(1_440):
        told.paused(2)
        told.now += 4
        decision = told.after(BUSY, "probe", random=0.5)
        assert isinstance(decision, Wait)
        assert len(told.history.steps) <= 5
    assert told.now == 8_640
    assert told.room.waited(told.now) == 1_440 * 4
    assert len(told.history.attempts) == 1


def test_a_history_of_days_without_a_server_is_short() -> None:
    """Thousands of attempts; the first and the last ones are told, and how many there were."""
    told = story(max_outage=1e6)
    for number in range(1, 3_001):
        decision = told.after(NEVER if number % 3 else NO_ANSWER, "check", random=0.5)
        assert isinstance(decision, Wait)
        told.waits(decision)
        told.paused(2)
        assert len(told.history.steps) <= 8
    numbers = [attempt.number for attempt in told.history.attempts]
    assert numbers == [1, *range(2_902, 3_001)]
    error = error_of(told.history, told.limits, Server(), told.now)
    assert "after 3000 attempts in " in str(error)


@pytest.mark.parametrize("settings", [{}, {"max_attempts": 3}])
def test_every_short_history_of_a_locked_room(settings: dict[str, Any]) -> None:
    """The same, for each order of what may follow when a room was found locked."""
    limits = story(began=-inf, **settings).limits
    kinds = [(("document", BUSY), False), (("document", BUSY), True), (("probe", BUSY), False)]
    kinds += [(("document", THROTTLED), False), (("check", NEVER), False)]
    for order in itertools.product(kinds, repeat=4):
        rows = [(kind, 1, 2, after_free) for kind, after_free in (kinds[2], *order)]
        steps, merged = steps_of(rows), History()
        for number, one in enumerate(steps, 1):
            merged.add(one, call_began=0.0)
            if number > 4:
                counted = [
                    all_that_counts(each, limits, one.ended)
                    for each in (History(steps[:number]), merged)
                ]
                assert counted[0] == counted[1]


class Whole(History):
    """A history that keeps every step as it was."""

    def add(self, new: Step, *, call_began: float) -> None:
        """Add a step."""
        self.steps.append(new)


DAYS: dict[str, tuple[int, list[tuple[str, Verdict]], bool]] = {
    # size of the document, what each attempt meets in turn, whether documents follow *free*
    "a check without an answer": (LARGE, [("probe", BUSY), ("check", NO_ANSWER)], False),
    "two, and a probe": (
        LARGE, [("probe", BUSY), ("check", NEVER), ("check", THROTTLED), ("probe", NEVER)], False,
    ),
    "small documents": (SMALL, [("document", BUSY), ("check", NEVER)], False),
    "lost races": (
        LARGE, [("probe", BUSY), ("check", NEVER), ("document", BUSY), ("check", THROTTLED)], True,
    ),
    "no connection for a document": (LARGE, [("probe", BUSY), ("document", NEVER)], False),
}  # fmt: skip


@pytest.mark.parametrize(("size", "row", "after_free"), DAYS.values(), ids=DAYS)
def test_a_history_of_a_day_is_short_whatever_fails(
    size: int, row: list[tuple[str, Verdict]], after_free: bool
) -> None:
    """Between two answers that the room is locked anything may fail; what follows is the same."""
    told, whole = story(max_wait=90_000, size=size), Whole()
    longest = 0
    for number, (kind, verdict) in enumerate(itertools.cycle(row)):
        if told.now > 86_400:
            break
        told.paused(1)
        whole.steps.append(Step(kind="place", began=told.now - 1, ended=told.now))
        is_free = after_free and kind == "document"
        told.waits(told.after(verdict, kind, took=0.5, after_free=is_free))
        told.now = round(told.now * 64) / 64  # the sums of such numbers are exact
        whole.add(told.history.last, call_began=0.0)
        longest = max(longest, len(told.history.steps))
        if number % 997 == 0:
            counted = [
                all_that_counts(each, told.limits, told.now) for each in (whole, told.history)
            ]
            assert counted[0] == counted[1]
    assert len(whole.steps) > 500
    assert longest <= 40


@given(STEPS, STEPS, POLICIES)
def test_a_history_goes_on_in_another_process(
    before: list[Any], after: list[Any], limits: Limits
) -> None:
    """All that counts is stored, as ages: the time between both processes does not count."""
    now = steps_of(before)[-1].ended
    here, later = History(steps_of(before)), now + 4096
    rows = json.loads(json.dumps(stored(here.steps, now)))
    there = History(loaded(rows, later))
    assert stored(there.steps, later) == rows
    for one, other in zip(steps_of(after, now), steps_of(after, later), strict=True):
        here.add(one, call_began=0.0)
        there.add(other, call_began=0.0)
        if one.verdict is not None:
            counted = all_that_counts(here, limits, one.ended)
            assert counted == all_that_counts(there, limits, other.ended)


# --- how it ended --------------------------------------------------------------------------------

BUSY_HERE = RoomBusy(1.0, "another upload of this application", None)
LATE = DeadlineExceeded(1.0, "waiting")
NO_ROOM = RoomNotFound(200, "ROOM_NOT_FOUND", "no")


@pytest.mark.parametrize(
    ("verdicts", "error", "expected"),
    [
        ([NEVER, ACCEPTED], None, ACCEPTED),
        ([ACCEPTED], KeyError("afterwards"), ACCEPTED),
        ([BUSY, UNKNOWN, NEVER], LATE, UNKNOWN),
        ([UNKNOWN], BUSY_HERE, UNKNOWN),
        ([], BUSY_HERE, BUSY),
        ([NEVER], BUSY_HERE, BUSY),
        ([PARTIAL], NO_ROOM, REFUSED),
        ([PARTIAL, BUSY], LATE, BUSY),
        ([], LATE, NEVER),
    ],
)
def test_the_verdict_on_a_whole_call(
    verdicts: list[Verdict], error: Exception | None, expected: Verdict
) -> None:
    """What was accepted stays accepted, what may have arrived stays unknown; else the last step."""
    history = History()
    for number, verdict in enumerate(verdicts):
        history.add(seen("document", verdict, number), call_began=0.0)
    history.add(Step(kind="place", began=9, ended=9), call_began=0.0)
    assert history.verdict(error) is expected


def test_an_earlier_attempt_that_may_have_arrived() -> None:
    """The error says so, with the most that was sent and the rest of the lock."""
    history = History()
    history.add(seen("document", UNKNOWN, 10, 5, sent=SMALL), call_began=4.0)
    assert history.unknown("reset", 35.0, size=SMALL, window=300.0).args[0] == "reset"
    history.add(seen("document", PARTIAL, 20, 5, sent=7), call_began=4.0)
    error = history.unknown("no time", 35.0, size=SMALL, window=300.0)
    assert isinstance(error, UploadOutcomeUnknown)
    assert error.reason == "an earlier attempt was lost, then: no time"
    assert (error.size, error.bytes_sent, error.lock_free_in) == (SMALL, SMALL, 280)
    assert history.unknown("no time", 999.0, size=None, window=300.0).bytes_sent is None
    assert [(one.number, one.started, one.seconds) for one in history.attempts] == [
        (1, 6.0, 5.0),
        (2, 16.0, 5.0),
    ]
