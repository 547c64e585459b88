"""Waiting for a room, to the second."""

import time
from collections.abc import Callable
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from _courses import (
    BOTH,
    MIB,
    OWN_500,
    PDF,
    InVirtualTime,
    connected,
    refused,
    virtually,
)
from _fakes import (
    Act,
    FakeTransport,
    accepted,
    busy,
    reply,
)
from meeting_async import (
    LockPolicy,
    Request,
)
from meeting_async.errors import (
    ProcessingFailed,
    RoomBusy,
    Throttled,
)

pytestmark = pytest.mark.anyio

# --- waiting for the room ------------------------------------------------------------------------


def lock_waits(until: float, *, budget: float = 330.0) -> list[float]:
    """Say when the attempts on a room that is locked until then begin (docs/waiting.md).

    Four times the time waited, at least 0.5 s, at most 7.5 s; after 120 s less and less, and on
    the end of the lock's window; the last one at the budget's end.
    """
    moments = [0.0]
    while moments[-1] < until and moments[-1] < budget:
        waited = moments[-1]
        longest = 7.5 if waited <= 120 else max(7.5 * 120 / waited, 7.5 / 4)
        delay = max(min(waited * 4, longest), 0.5)
        left = max(300 - waited, 0.5) if waited < 300 else budget
        moments.append(min(waited + min(delay, left), budget))
    return moments


def locked_until(moment: float) -> Callable[[Request], Act]:
    """Answer 409 until then."""
    return lambda _: accepted() if anyio.current_time() >= moment - 1e-9 else busy()


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize("held", [0.1, 10, 299, 301, 329.9, 330])
def test_a_lock_that_ends_is_waited_for(mode: str, held: float) -> None:
    """Attempts fall exactly where the policy says; the last one on the edge of the budget."""
    course = virtually(then=locked_until(held), delivery=mode)
    assert course.accepted
    expected = lock_waits(held)
    assert course.began == pytest.approx(expected)
    assert len(expected) == len(course.verdicts)
    assert course.verdicts == ["busy"] * (len(expected) - 1) + ["accepted"]


def test_how_often_a_body_is_sent_in_vain() -> None:
    """Ten seconds cost 3 refusals, the whole window 59."""
    assert virtually(then=locked_until(10)).sends == 4
    assert virtually(then=locked_until(299)).sends == 60


@pytest.mark.parametrize("mode", BOTH)
def test_a_lock_that_never_ends(mode: str) -> None:
    """The last attempt is made at the end of the budget, then it is ``RoomBusy``."""
    course = virtually(then=lambda _: busy(), delivery=mode)
    error = course.error
    assert type(error) is RoomBusy
    assert isinstance(error, TimeoutError)
    assert error.room_id == "room01"
    assert error.waited == pytest.approx(330)
    assert "409" in error.reason
    assert course.began == pytest.approx(lock_waits(10_000))
    assert course.seconds == pytest.approx(330)
    assert len(error.attempts) == course.sends
    assert course.verdict == "busy"


def test_the_budget_counts_from_the_first_409() -> None:
    """Backoffs before it do not shorten the wait, slow replies are part of it."""
    course = virtually(
        reply(429, b"", retry_after="50"), then=lambda _: busy(replying=3), max_wait=20
    )
    assert type(course.error) is RoomBusy
    first = course.transport.exchanges[1].ended
    last = course.transport.exchanges[-1].began
    assert first == 53
    assert last == pytest.approx(73)


@pytest.mark.parametrize("max_wait", [0, 0.0])
def test_a_budget_of_nothing(max_wait: float) -> None:
    """``max_wait=0`` sends once and is told at once."""
    course = virtually(busy(), max_wait=max_wait)
    assert type(course.error) is RoomBusy
    assert (course.sends, course.seconds, course.error.waited) == (1, 0, 0)
    accepted_at_once = virtually(accepted(), max_wait=max_wait)
    assert accepted_at_once.accepted


def test_max_wait_wins_over_the_policy() -> None:
    """The argument of a single upload, in both directions."""
    short = virtually(then=lambda _: busy(), max_wait=7)
    assert short.began == pytest.approx(lock_waits(10_000, budget=7))
    long = virtually(then=locked_until(9), max_wait=10, lock=LockPolicy(jitter=0, max_wait=1))
    assert long.accepted
    forever = virtually(then=locked_until(5000), max_wait=float("inf"))
    assert forever.accepted


def test_jitter_spreads_the_waiters(in_virtual_time: InVirtualTime) -> None:
    """Fifty rooms that are refused at the same moment do not come back together."""

    async def main() -> list[float]:
        transport = FakeTransport(then=locked_until(0.1))
        client = connected(transport, lock=LockPolicy())
        async with client, anyio.create_task_group() as group:
            for number in range(50):
                job = partial(client.upload_whiteboard_file, f"room{number}", PDF)
                group.start_soon(partial(job, filename="deck.pdf"))
        return [exchange.began for exchange in transport.exchanges[50:]]

    moments = in_virtual_time(main)
    assert len(set(moments)) == 50
    assert 0.375 <= min(moments) < 0.4
    assert 0.6 < max(moments) <= 0.625


def test_a_slow_line_is_left_mostly_free() -> None:
    """After a refusal one waits 0.75 times as long as the body took to send, then 1.5 times."""
    course = virtually(busy(sending=40), busy(sending=40), accepted(), document=MIB)
    assert course.waits == pytest.approx([30, 60], rel=0.01)


def test_a_slow_line_counts_when_refused_early() -> None:
    """A 409 that comes in the middle of the body does not make the line any faster."""
    course = virtually(busy(take=600_000, sending=40), accepted(), document=MIB)
    first = course.transport.exchanges[0]
    assert first.ended is not None
    assert course.waits[0] >= 0.75 * (first.ended - first.began) > 15


def test_a_slow_reply_is_no_slow_line() -> None:
    """What counts is how long the body took, not how long the server thought about the 409."""
    course = virtually(busy(sending=3, replying=60), accepted(), document=MIB)
    assert course.waits == [pytest.approx(2.25, rel=0.01)]


@pytest.mark.parametrize(
    ("hint", "wait"),
    [
        ("30", 30),
        ("60", 60),
        ("61", 60),
        ("9999999999", 60),
        ("0", 0.5),
        ("soon", 0.5),
        ("-1", 0.5),
        ("1e400", 0.5),
    ],
)
def test_the_hint_of_a_busy_server_wins(hint: str, wait: float) -> None:
    """Retry-After replaces the computed delay, capped, and never below the shortest delay."""
    course = virtually(busy(retry_after=hint, sending=5), accepted(), document=MIB)
    expected = wait if hint.isdigit() else 3.75
    assert course.waits == [pytest.approx(expected, rel=0.01)]


def test_a_hint_beyond_the_budget_is_cut_to_its_end() -> None:
    """The last attempt falls on the end of the budget, whatever the server asks for."""
    course = virtually(then=lambda _: busy(retry_after="45"), max_wait=100)
    assert course.began == [0, 45, 90, 100]


def test_busy_then_failed() -> None:
    """A failure after a wait is final."""
    course = virtually(busy(), OWN_500)
    assert type(course.error) is ProcessingFailed
    assert course.verdicts == ["busy", "failed"]


def test_busy_and_throttled_in_turn() -> None:
    """Waiting for the lock does not use up the attempts; throttling does."""
    turns = [busy(), reply(503, b"", retry_after="2")] * 5
    course = virtually(*turns)
    assert type(course.error) is Throttled
    assert course.verdicts == ["busy", "throttled"] * 5
    assert course.began == pytest.approx([0, 0.5, 2.5, 10, 12, 19.5, 21.5, 29, 31, 38.5])


def test_busy_and_throttled_in_turn_then_accepted() -> None:
    """The budget goes on from the first 409 while other things happen."""
    script = [busy(), reply(503, b"", retry_after="2")] * 4
    course = virtually(*script, then=lambda _: busy(), max_wait=10)
    assert type(course.error) is RoomBusy
    assert course.error.waited >= 10
    assert course.seconds <= 13


def test_the_wall_clock_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summer time or a corrected clock in the middle of a wait changes nothing."""
    real, jumps = time.time, iter([3600.0, -7200.0, 86400.0] * 100)
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    course = virtually(reply(429, b"", retry_after="9"), refused(), then=locked_until(30))
    assert course.accepted
    began = [moment - course.began[2] for moment in course.began[2:]]
    assert began == pytest.approx(lock_waits(30 - course.began[2]))
    assert course.began[1] == 9
