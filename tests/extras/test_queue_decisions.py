"""What a queue decides after a failure: pure decisions, as tables."""

from __future__ import annotations

import json

import pytest

from meeting_async import errors
from meeting_async._delivery.history import Step
from meeting_async._models import Attempt, Verdict
from meeting_async.procrastinate._brake import DocumentNotFound, Later, Seen, decide, seen_in
from meeting_async.procrastinate._run import last_error
from meeting_async.procrastinate._table import packed

DAY = 86_400.0
LOST = errors.ConnectFailed("refused", "host:443")
REFUSED = errors.RequestRefused(400, "NO", "no")
THROTTLED = errors.Throttled(429, None, "slower")
FOREIGN = errors.UnexpectedReply(502, None, "Bad Gateway")
CUT = errors.UploadInterrupted("reset", "host:443", 5)
KEY = errors.AuthenticationFailed(401, None, "wrong")
UNREADABLE = errors.DocumentUnreadable("a.pdf", "No such file")


def kind(later: Later | None) -> str:
    """Name a decision."""
    if later is None:
        return "outcome"
    return "away" if later.is_away else "unreadable" if later.is_unreadable else "key"


@pytest.mark.parametrize(
    ("error", "away_for", "unreadable", "decision"),
    [
        (KEY, 0, 0, "key"),
        (KEY, 10 * DAY, 9, "key"),
        (LOST, 0, 0, "away"),
        (LOST, DAY - 1, 0, "away"),
        (LOST, DAY, 0, "outcome"),
        (THROTTLED, 0, 0, "away"),
        (FOREIGN, 0, 0, "away"),
        (errors.RoomLocksUnavailable("gone"), 0, 0, "away"),
        (CUT, 0, 0, "outcome"),
        (REFUSED, 0, 0, "outcome"),
        (errors.ProcessingFailed(500, "X", "broken"), 0, 0, "outcome"),
        (errors.RoomNotFound(400, "X", "none"), 0, 0, "outcome"),
        (UNREADABLE, 0, 0, "unreadable"),
        (UNREADABLE, 0, 2, "unreadable"),
        (UNREADABLE, 0, 3, "outcome"),
        (DocumentNotFound("KeyError"), 0, 0, "unreadable"),
        (ValueError("bug"), 0, 0, "outcome"),
    ],
)
def test_what_a_failure_means(
    error: Exception, away_for: float, unreadable: int, decision: str
) -> None:
    """Only the server's word about a document, or time, ends its upload."""
    later = decide(error, away_for=away_for, unreadable=unreadable, max_outage=DAY)
    assert kind(later) == decision


@pytest.mark.parametrize(("away_for", "low", "high"), [(0, 1, 2), (40, 5, 10), (DAY / 2, 30, 60)])
def test_pauses_of_an_outage(away_for: float, low: float, high: float) -> None:
    """A quarter of the time so far, from two seconds to a minute, and never all at once."""
    found = [decide(LOST, away_for=away_for, unreadable=0, max_outage=DAY) for _ in range(50)]
    seconds = [later.seconds for later in found if later]
    assert low <= min(seconds) < max(seconds) <= high


def attempt(verdict: Verdict, number: int = 1) -> Attempt:
    """Make an attempt."""
    return Attempt(number, 0.0, 0.1, verdict, None, "")


@pytest.mark.parametrize(
    ("verdict", "seen"),
    [
        (Verdict.NEVER_SENT, "trouble"),
        (Verdict.PARTIAL, "trouble"),
        (Verdict.THROTTLED, "trouble"),
        (Verdict.UNKNOWN, "trouble"),
        (Verdict.BUSY, "answer"),
        (Verdict.REFUSED, "answer"),
        (Verdict.FAILED, "answer"),
        (Verdict.ACCEPTED, "answer"),
    ],
)
def test_what_an_attempt_says_of_the_server(verdict: Verdict, seen: Seen) -> None:
    """The last one counts."""
    assert seen_in([attempt(Verdict.BUSY), attempt(verdict)], None) == seen


def test_what_a_run_without_attempts_says_of_the_server() -> None:
    """A refused question is an answer; what is wrong here says nothing."""
    assert seen_in([], REFUSED) == "answer"
    assert seen_in([], UNREADABLE) == "nothing"
    assert seen_in([], None) == "nothing"


def test_what_went_wrong_last() -> None:
    """After an unknown outcome what came later counts, and not what made it unknown."""
    unknown = errors.UploadOutcomeUnknown("silence", 5, 5, 1.0)
    unknown.__cause__ = LOST
    earlier = Step(kind="document", began=0.0, ended=1.0, verdict=Verdict.UNKNOWN)
    pause = Step(kind="pause", began=1.0, ended=2.0)
    assert last_error(unknown, [earlier, pause]) is unknown
    for later in (Verdict.NEVER_SENT, Verdict.REFUSED):
        asked = Step(kind="check", began=2.0, ended=3.0, verdict=later)
        assert last_error(unknown, [earlier, pause, asked]) is LOST
    assert last_error(LOST, [earlier]) is LOST


def test_the_attempts_of_a_long_outage() -> None:
    """What is stored does not grow with it; attempts that sent something are all kept."""
    attempts = [attempt(Verdict.UNKNOWN, 1)]
    attempts += [attempt(Verdict.NEVER_SENT, number) for number in range(2, 2000)]
    attempts += [attempt(Verdict.ACCEPTED, 2000)]
    numbers = [kept[0] for kept in json.loads(packed(attempts))]
    assert len(numbers) == 52
    assert numbers == sorted(numbers)
    assert {1, 2, 1999, 2000} <= set(numbers)
