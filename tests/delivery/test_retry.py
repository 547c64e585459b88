"""What follows an attempt, as tables without a loop."""

from __future__ import annotations

import itertools
import random as random_module
from collections import Counter
from typing import Any

import pytest

from meeting_async._delivery.retry import (
    Done,
    Outage,
    RetryBudget,
    RetrySafety,
    RetryState,
    Stop,
    Wait,
)
from meeting_async._delivery.room_wait import RoomWait
from meeting_async._models import Verdict
from meeting_async._policies import LockPolicy, RetryPolicy
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    MeetingError,
    ProcessingFailed,
    ReplyTooLarge,
    RequestRefused,
    ResourceExhausted,
    RoomBusy,
    ServerFailed,
    Throttled,
    UnexpectedReply,
    UploadInterrupted,
    UploadOutcomeUnknown,
)
from support.decisions import (
    ACCEPTED,
    AT_LEAST,
    AT_MOST,
    BUSY,
    FAILED,
    IDEMPOTENT,
    LARGE,
    NEVER,
    ONCE,
    PARTIAL,
    RANDOMS,
    REFUSED,
    THROTTLED,
    UNKNOWN,
    follow,
    new_state,
    result,
    stopped,
    waited,
)

# --- the table -----------------------------------------------------------------------------------

# Verdict; what follows for an upload at most once, at least once, an idempotent and any other call.
TABLE: list[tuple[Verdict, Any, Any, Any, Any]] = [
    (NEVER, Wait, Wait, Wait, Wait),
    (PARTIAL, Wait, Wait, Wait, ConnectionLost),
    (BUSY, Wait, Wait, UnexpectedReply, UnexpectedReply),
    (REFUSED, RequestRefused, RequestRefused, RequestRefused, RequestRefused),
    (THROTTLED, Wait, Wait, Wait, Wait),
    (FAILED, ProcessingFailed, ProcessingFailed, ServerFailed, ServerFailed),
    (UNKNOWN, UploadOutcomeUnknown, Wait, Wait, ConnectionLost),
    (ACCEPTED, Done, Done, Done, Done),
]
CELLS = [(row[0], kind, row[1 + n]) for row in TABLE for n, kind in enumerate(RetrySafety)]


@pytest.mark.parametrize(("verdict", "kind", "expected"), CELLS)
def test_what_follows(verdict: Verdict, kind: RetrySafety, expected: type) -> None:
    """Each verdict for each kind of call: wait, be done, or stop with the error for it."""
    decision = follow(new_state(kind), verdict)
    if isinstance(decision, Stop):
        assert type(decision.error) is expected
    else:
        assert type(decision) is expected
        assert not isinstance(decision, Wait) or decision.is_for_room is (verdict is BUSY)


def test_errors_carry_what_is_known() -> None:
    """Size, bytes sent, host, and seconds until the lock must be free; ``__cause__`` is kept."""
    lost = result(UNKNOWN, 0.0, took=5.0, bytes_sent=LARGE)
    unknown = stopped(new_state().decide(lost, 15.0, 0.5))
    assert isinstance(unknown, UploadOutcomeUnknown)
    assert (unknown.size, unknown.bytes_sent, unknown.lock_free_in) == (LARGE, LARGE, 290)
    assert unknown.__cause__ is lost.error
    link = stopped(follow(new_state(size=None), UNKNOWN, bytes_sent=0))
    assert isinstance(link, UploadOutcomeUnknown)
    assert (link.size, link.bytes_sent) == (None, None)
    state = new_state()
    decisions = [follow(state, PARTIAL, now) for now in (0, 10, 20)]
    cut = stopped(decisions[-1])
    assert isinstance(cut, UploadInterrupted)
    assert (cut.reason, cut.host, cut.bytes_sent) == ("no line", "meet.test:443", 7)


# --- how long ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "kind"), [cell[:2] for cell in CELLS if cell[2] is Wait], ids=str
)
def test_nothing_is_attempted_again_at_once(verdict: Verdict, kind: RetrySafety) -> None:
    """At least 0.25 s, also after Retry-After: 0; a hint is obeyed, up to 60 s and jitter."""
    for random, hint in itertools.product(RANDOMS, (None, 0.0, 0.001, 5.0, 60.0, 9e9)):
        state = new_state(kind)
        for now in range(0, 4000, 1000):
            decision = follow(state, verdict, now, random, hint=hint)
            if not isinstance(decision, Wait):
                break
            assert decision.seconds >= 0.25
            if hint and verdict in {THROTTLED, BUSY}:
                assert min(hint, 60) <= decision.seconds <= min(max(hint, 0.25), 60) * 1.25


@pytest.mark.parametrize("random", RANDOMS)
def test_backoff_doubles(random: float) -> None:
    """0.5 s at first, twice as much each time, 20 s at most, between half and all of it."""
    state = new_state(IDEMPOTENT, max_attempts=10)
    delays = [waited(state, UNKNOWN, now, random) for now in range(0, 900, 100)]
    longest = [0.5, 1, 2, 4, 8, 16, 20, 20, 20]
    for delay, limit in zip(delays, longest, strict=True):
        assert max(0.25, limit / 2) <= delay <= limit


@pytest.mark.parametrize(
    ("verdict", "kind", "error"),
    [
        (THROTTLED, AT_MOST, Throttled),
        (PARTIAL, AT_MOST, UploadInterrupted),
        (NEVER, AT_MOST, ConnectFailed),
        (BUSY, AT_MOST, RoomBusy),
        (UNKNOWN, AT_LEAST, UploadOutcomeUnknown),
        (UNKNOWN, IDEMPOTENT, ConnectionLost),
        (THROTTLED, ONCE, Throttled),
    ],
)
def test_a_wait_that_does_not_fit_ends_the_call_now(
    verdict: Verdict, kind: RetrySafety, error: type[MeetingError]
) -> None:
    """Near the end of ``timeout`` no wait is clipped: the error that caused it ends the call."""
    assert type(stopped(follow(new_state(kind, ends_at=100.2), verdict, 100.0))) is error
    hinted = follow(new_state(kind, ends_at=104.0), verdict, 100.0, hint=5.0)
    if verdict in {THROTTLED, BUSY}:
        assert type(stopped(hinted)) is error
    assert isinstance(follow(new_state(kind, ends_at=110.0), verdict, 100.0, hint=5.0), Wait)


@pytest.mark.parametrize("random", RANDOMS)
def test_the_quickest_policy_waits_a_quarter_of_a_second(random: float) -> None:
    """Jitter makes no wait shorter than that."""
    quick = RetryPolicy(initial_delay=0.25, max_delay=0.25)
    room = RoomWait(policy=LockPolicy(min_delay=0.25, max_delay=0.1))
    state = RetryState(retry_safety=AT_MOST, retry=quick, room=room)
    for verdict in (NEVER, THROTTLED, PARTIAL, BUSY):
        assert waited(state, verdict, 0.0, random) >= 0.25


def test_a_hint_beyond_max_wait_ends_the_call() -> None:
    """Once the room was found taken, every wait counts for ``max_wait``."""
    state = new_state(max_wait=10)
    assert waited(state, THROTTLED, 0, hint=50.0) >= 50
    follow(state, BUSY, 60)
    assert type(stopped(follow(state, THROTTLED, 62, hint=50.0))) is Throttled


# --- budgets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [IDEMPOTENT, ONCE])
def test_attempts_of_a_call_are_limited(kind: RetrySafety) -> None:
    """``max_attempts`` counts every attempt of a JSON call."""
    state = new_state(kind, max_attempts=3)
    decisions = [follow(state, NEVER, now) for now in range(3)]
    assert [type(decision) for decision in decisions] == [Wait, Wait, Stop]


@pytest.mark.parametrize(
    ("kind", "verdicts", "expected"),
    [
        (AT_MOST, [PARTIAL] * 3, [Wait, Wait, Stop]),
        (AT_MOST, [PARTIAL, PARTIAL, BUSY, PARTIAL, PARTIAL], [Wait, Wait, Wait, Wait, Wait]),
        (AT_LEAST, [PARTIAL] * 5, [Wait] * 4 + [Stop]),
        (AT_MOST, [THROTTLED, PARTIAL] * 2 + [THROTTLED], [Wait] * 4 + [Stop]),
        (AT_MOST, [BUSY] * 9 + [THROTTLED], [Wait] * 10),
        # Attempts without a connection count for `max_outage` alone.
        (AT_MOST, [NEVER] * 9 + [PARTIAL, PARTIAL], [Wait] * 11),
        (AT_MOST, [NEVER] * 9 + [THROTTLED], [Wait] * 10),
        (AT_LEAST, [NEVER] * 9 + [UNKNOWN], [Wait] * 10),
    ],
)
def test_what_counts(kind: RetrySafety, verdicts: list[Verdict], expected: list[type]) -> None:
    """Twice in a row cut off with bytes sent; five attempts; rooms and outages do not count."""
    state = new_state(kind, size=1000)
    decisions = [follow(state, verdict, now * 2.0) for now, verdict in enumerate(verdicts)]
    assert [type(decision) for decision in decisions] == expected


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [(THROTTLED, AT_MOST), (PARTIAL, AT_MOST), (UNKNOWN, IDEMPOTENT), (NEVER, ONCE)],
)
def test_an_empty_budget_ends_calls_with_their_own_error(
    verdict: Verdict, kind: RetrySafety
) -> None:
    """100 repetitions in a row without a success, by all calls of a client together."""
    budget = RetryBudget()
    waits = [follow(new_state(kind, budget=budget), verdict) for _ in range(101)]
    assert {type(decision) for decision in waits[:100]} == {Wait}
    error = stopped(waits[100])
    assert not isinstance(error, RoomBusy)
    assert "repeated recently" in " ".join(error.__notes__)
    for _ in range(10):  # what succeeds gives back
        follow(new_state(kind, budget=budget), ACCEPTED)
    assert isinstance(follow(new_state(kind, budget=budget), verdict), Wait)


def test_waiting_for_a_room_costs_no_budget() -> None:
    """409 is no trouble of the server."""
    state = new_state(budget=RetryBudget(0.0))
    assert all(isinstance(follow(state, BUSY, now), Wait) for now in range(50))


def test_a_stream_that_cannot_be_read_again_is_not_repeated() -> None:
    """The error says so; what would be waited for does not matter."""
    for verdict in (BUSY, THROTTLED, PARTIAL, NEVER):
        error = stopped(follow(new_state(), verdict, is_consumed=True))
        assert "cannot be read a second time" in " ".join(error.__notes__)


# --- no connection -------------------------------------------------------------------------------


def outage(state: RetryState, *, took: float = 0.0, random: float = 0.5) -> list[float]:
    """Return when each attempt began, while nothing connects."""
    now, moments = 0.0, []
    for _ in range(10_000):
        moments.append(now)
        decision = state.decide(result(NEVER, now, took), now + took, random)
        now += took
        if isinstance(decision, Stop):
            assert isinstance(decision.error, ConnectFailed)
            return [*moments, now]
        now += decision.seconds  # type: ignore[union-attr]
    raise AssertionError("it never ends")


@pytest.mark.parametrize("took", [0.0, 0.2, 10.0])
@pytest.mark.parametrize("max_outage", [0.0, 5.0, 60.0, 600.0])
def test_a_dead_server_is_given_up(max_outage: float, took: float) -> None:
    """Within ``max_outage`` plus one backoff, not before; whatever the other uploads do."""
    for random, tokens in itertools.product(RANDOMS, (0.0, 20.0, 500.0)):
        state = new_state(AT_MOST, max_outage=max_outage, budget=RetryBudget(tokens))
        *moments, end = outage(state, took=took, random=random)
        assert max_outage <= end <= max_outage + 20 + took
        assert len(moments) <= 8 + max_outage / (took + 10)
        assert all(b - a >= took + 0.25 for a, b in itertools.pairwise(moments))


def test_an_outage_ends_with_the_first_connection() -> None:
    """What was tried before does not count for the next outage."""
    state = new_state(size=1000)
    assert isinstance(follow(state, NEVER, 0), Wait)
    assert isinstance(follow(state, NEVER, 59), Wait)
    assert isinstance(follow(state, BUSY, 61), Wait)
    assert isinstance(follow(state, NEVER, 62), Wait)
    assert isinstance(follow(state, NEVER, 121), Wait)
    assert isinstance(follow(state, NEVER, 122), Stop)


@pytest.mark.parametrize(
    ("verdict", "hint", "share"),
    [
        (NEVER, None, 0.05),
        (THROTTLED, 5.0, 0.05),
        (THROTTLED, 0.0, 0.3),
        (BUSY, None, 0.1),
        (BUSY, 5.0, 0.05),
    ],
)
def test_a_thousand_uploads_do_not_wake_together(
    verdict: Verdict, hint: float | None, share: float
) -> None:
    """Of 1,000 that failed in the same instant, few begin again within the same 10 ms."""
    random = random_module.Random(7).random
    budget, wakes = RetryBudget(), []
    for _ in range(1000):
        decision = follow(new_state(budget=budget), verdict, 0.0, random(), hint=hint)
        wakes += [decision.seconds] if isinstance(decision, Wait) else []
    assert wakes
    assert Counter(int(wake * 100) for wake in wakes).most_common(1)[0][1] <= share * len(wakes)


def test_who_waited_behind_another_upload_has_waited_for_the_server() -> None:
    """The outage counts from the call, or from the first attempt of any call that failed."""
    shared = Outage()
    first = new_state(outage=shared, began=0.0)
    assert isinstance(follow(first, NEVER, 10), Wait)
    queued = new_state(outage=shared, began=5.0)
    assert isinstance(follow(queued, NEVER, 70), Stop)
    fresh = new_state(outage=shared, began=65.0)
    assert isinstance(follow(fresh, NEVER, 70), Wait)
    follow(first, BUSY, 71)
    assert shared.since is None
    late = new_state(outage=shared, began=5.0)
    assert isinstance(follow(late, NEVER, 100), Wait)


def test_this_machine_is_no_outage_of_the_server() -> None:
    """No descriptor left says nothing of the server."""
    shared = Outage()
    follow(new_state(outage=shared), NEVER, error=ResourceExhausted("no descriptor"))
    assert shared.since is None


@pytest.mark.parametrize("kind", [IDEMPOTENT, ONCE])
def test_a_reply_that_is_too_large_would_be_so_again(kind: RetrySafety) -> None:
    """It ends the call at once."""
    error = ReplyTooLarge("longer than 1 MiB")
    assert stopped(follow(new_state(kind), UNKNOWN, error=error)) is error


@pytest.mark.parametrize("last", [PARTIAL, NEVER])
def test_an_upload_goes_on_in_another_process(last: Verdict) -> None:
    """All that counts is saved, as ages; the time between both processes does not count."""
    state = new_state(max_outage=50.0, max_wait=100.0)
    state.room.queued = 5.0
    state.after_free()
    follow(state, BUSY, 8, took=2.0)
    state.room.begin_doubt(9)
    follow(state, BUSY, 10, took=1.0)
    follow(state, PARTIAL, 14)
    follow(state, last, 16)
    saved = state.saved(20)
    is_away = last is NEVER
    others = {"interruptions"} if is_away else {"outage_age", "unconnected"}
    assert all(value for name, value in saved.items() if name not in others), saved
    other = new_state(max_outage=50.0, max_wait=100.0)
    other.restore(saved, 1020)
    assert other.saved(1020) == saved
    for one, now in ((state, 20), (other, 1020)):
        after = [type(follow(one, PARTIAL, now)) for _ in range(3)]
        assert after == [Wait if is_away else Stop, Wait if is_away else Stop, Stop]
