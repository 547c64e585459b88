"""What follows an attempt, as tables without a loop (DESIGN.md sections 4 and 5)."""

from __future__ import annotations

import itertools
import random as random_module
from collections import Counter
from typing import Any

import pytest

from meeting_async._delivery.retry import (
    AttemptResult,
    Done,
    ProbeReliability,
    RetryBudget,
    RetrySafety,
    RetryState,
    Stop,
    Wait,
)
from meeting_async._models import Verdict
from meeting_async._policies import LockPolicy, RetryPolicy
from meeting_async._protocol.replies import ParsedReply
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    MeetingError,
    ProcessingFailed,
    RequestRefused,
    RoomBusy,
    ServerFailed,
    Throttled,
    UnexpectedReply,
    UploadInterrupted,
    UploadOutcomeUnknown,
)

NEVER, PARTIAL, BUSY, REFUSED = Verdict.NEVER_SENT, Verdict.PARTIAL, Verdict.BUSY, Verdict.REFUSED
THROTTLED, FAILED, UNKNOWN = Verdict.THROTTLED, Verdict.FAILED, Verdict.UNKNOWN
ACCEPTED = Verdict.ACCEPTED
AT_MOST, AT_LEAST = RetrySafety.AT_MOST_ONCE, RetrySafety.AT_LEAST_ONCE
IDEMPOTENT, ONCE = RetrySafety.IDEMPOTENT, RetrySafety.NON_IDEMPOTENT

LARGE = 30 * 1024**2
RANDOMS = (0.0, 0.5, 0.999)
STATUS = {BUSY: 409, REFUSED: 400, THROTTLED: 429, FAILED: 500, ACCEPTED: 200}
LOCKED = ParsedReply(409, {"status": False, "msg": "in use", "status_code": "CONFLICT"})


def new_state(kind: RetrySafety = AT_MOST, **settings: Any) -> RetryState:
    """Make the state of an upload of 30 MiB, unless told otherwise."""
    lock = {
        name: settings.pop(name)
        for name in ("max_wait", "probe", "window", "min_delay")
        if name in settings
    }
    retry = {
        name: settings.pop(name)
        for name in ("max_outage", "max_attempts", "max_retry_after")
        if name in settings
    }
    usual = {"size": LARGE if kind.is_upload else None}
    return RetryState(
        retry_safety=kind, lock=LockPolicy(**lock), retry=RetryPolicy(**retry), **usual | settings
    )  # fmt: skip


def result(verdict: Verdict, began: float = 0.0, took: float = 0.0, **facts: Any) -> AttemptResult:
    """Make what an attempt came to, with the reply or the error that belongs to it."""
    hint = facts.pop("hint", None)
    usual: dict[str, Any] = {"answer": None, "error": None, "bytes_sent": 7}
    if verdict in STATUS:
        usual["answer"] = ParsedReply(STATUS[verdict], {"status": False, "msg": "in use"}, hint)
    else:
        kind = ConnectFailed if verdict is NEVER else ConnectionLost
        usual["error"] = kind("no line", "meet.test:443")
    return AttemptResult(verdict=verdict, began=began, ended=began + took, **usual | facts)


def follow(
    state: RetryState, verdict: Verdict, now: float = 0.0, random: float = 0.5, **facts: Any
) -> Any:
    """Say what follows an attempt that took no time."""
    return state.decide(result(verdict, now, **facts), now, random)


def waited(
    state: RetryState, verdict: Verdict, now: float = 0.0, random: float = 0.5, **facts: Any
) -> float:
    """Say how long is waited after an attempt."""
    decision = follow(state, verdict, now, random, **facts)
    assert isinstance(decision, Wait)
    return decision.seconds


def stopped(decision: object) -> MeetingError:
    """Take the error out of a decision to stop."""
    assert isinstance(decision, Stop)
    return decision.error


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
    state = RetryState(
        retry_safety=AT_MOST, retry=quick, lock=LockPolicy(min_delay=0.25, max_delay=0.1)
    )
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


# --- a room that is taken ------------------------------------------------------------------------


def ask_until(state: RetryState, end: float, now: float, random: float = 0.5) -> list[float]:
    """Ask a room that stays locked; return the delays until it is given up, or until ``end``."""
    delays = []
    while now < end and state.must_probe:
        decision = state.after_probe(LOCKED, now, random)
        if isinstance(decision, Stop):
            break
        assert isinstance(decision, Wait)
        delays.append(decision.seconds)
        now += decision.seconds
    return delays


@pytest.mark.parametrize("random", RANDOMS)
@pytest.mark.parametrize("min_delay", [0.25, 0.5, 5.0])
def test_ask_then_send(min_delay: float, random: float) -> None:
    """The first 409 costs a body; then a question after 0.5 s, and every 2 s, give or take 25 %."""
    state = new_state(min_delay=min_delay)
    first = waited(state, BUSY, 0.0, random)
    assert min_delay * 0.75 <= first <= min_delay * 1.25
    assert first >= 0.25
    assert state.must_probe
    later = ask_until(state, 60, first, random)
    assert max(later[:2]) <= max(2.5, min_delay * 1.25)
    assert all(max(2, min_delay) * 0.75 <= delay <= max(2, min_delay) * 1.25 for delay in later[2:])
    assert len(later) >= 60 // (max(2, min_delay) * 1.25) - 1
    assert state.after_probe(None, 60, random) is None  # free: send now
    assert not state.must_probe


@pytest.mark.parametrize(
    ("size", "probe", "asks"),
    [
        (64 * 1024, True, False),
        (64 * 1024 + 1, True, True),
        (LARGE, True, True),
        (LARGE, False, False),
        (None, True, False),  # a link
    ],
)
def test_what_is_asked_for(size: int | None, probe: bool, asks: bool) -> None:
    """A document of up to 64 KiB, or a link, is its own question; ``probe=False`` never asks."""
    state = new_state(size=size, probe=probe)
    assert isinstance(follow(state, BUSY), Wait)
    assert state.must_probe is asks


def test_documents_without_questions_come_ever_more_rarely() -> None:
    """Delays grow with the time waited, and on a slow line with the time of a body."""
    state, now, delays = new_state(probe=False), 0.0, []
    while now < 250:
        delays.append(waited(state, BUSY, now))
        now += delays[-1]
    assert delays[0] == 0.5
    assert max(delays) == 7.5
    assert len(delays) < 60
    slow = new_state(probe=False)
    assert waited(slow, BUSY, 100, body_seconds=100) >= 50
    assert waited(slow, BUSY, 150, body_seconds=100) >= 50


def test_two_vain_bodies_and_no_more_questions() -> None:
    """A server that says *free* and then 409, twice in a row, is asked no more, by no call."""
    probe_reliability = ProbeReliability()
    state = new_state(probe_reliability=probe_reliability)
    follow(state, BUSY, 0)
    for now, still_asks in ((10, True), (20, False)):
        assert state.must_probe
        assert state.after_probe(None, now, 0.5) is None
        follow(state, BUSY, now)
        assert state.must_probe is still_asks
    other = new_state(probe_reliability=probe_reliability)
    follow(other, BUSY, 30)
    other.set_doubt(25.0)
    assert not other.must_probe


def test_bodies_that_are_not_vain_in_a_row() -> None:
    """A document that is accepted right after *free* shows that the answers can be believed."""
    probe_reliability = ProbeReliability()
    for now in range(0, 1000, 100):
        state = new_state(probe_reliability=probe_reliability)
        follow(state, BUSY, now)
        for verdict in (BUSY, ACCEPTED):
            assert state.must_probe
            state.after_probe(None, now + 10, 0.5)
            follow(state, verdict, now + 10)


@pytest.mark.parametrize("random", RANDOMS)
@pytest.mark.parametrize("size", [1000, LARGE])
def test_any_one_lock_is_waited_for_until_it_must_have_ended(size: int, random: float) -> None:
    """By default 300 s and 30 s more; the error says for how long and that it must be free."""
    state, now = new_state(size=size), 0.0
    decision = follow(state, BUSY, now, random)
    while isinstance(decision, Wait):
        now += decision.seconds
        decision = (
            state.after_probe(LOCKED, now, random)
            if state.must_probe
            else follow(state, BUSY, now, random)
        )
    error = stopped(decision)
    assert isinstance(error, RoomBusy)
    assert 329.7 <= now <= 330
    assert error.waited == pytest.approx(now)
    assert (error.held_by, error.free_in, error.reason) == ("another client", 0, "in use")


def test_another_lock_is_waited_for_anew() -> None:
    """Once the room was free, the next 409 is another lock."""
    state = new_state()
    follow(state, BUSY, 0)
    ask_until(state, 290, 0.5)
    assert state.after_probe(None, 290, 0.5) is None
    assert isinstance(follow(state, BUSY, 290), Wait)
    assert sum(ask_until(state, 1e9, 290.5)) >= 310


@pytest.mark.parametrize(("max_wait", "queued"), [(0, 0), (0.1, 0), (0.2, 0), (5, 5), (5, 4.9)])
def test_no_time_to_wait_means_no_wait(max_wait: float, queued: float) -> None:
    """``max_wait=0`` never waits, and a rest below 0.25 s is no wait either."""
    state = new_state(max_wait=max_wait)
    state.queued(queued)
    error = stopped(follow(state, BUSY))
    assert isinstance(error, RoomBusy)
    assert (error.waited, error.free_in) == (queued, 300)


@pytest.mark.parametrize("kind", ["409", "doubt", "small", "no questions"])
@pytest.mark.parametrize(("max_wait", "queued"), [(0.3, 0), (7, 3), (60, 0), (1000, 600)])
def test_a_number_limits_the_sum_of_waits(max_wait: float, queued: float, kind: str) -> None:
    """Local queue, 409 and doubt together; the last try is at the edge, not far before."""
    state = new_state(
        max_wait=max_wait, size=1000 if kind == "small" else LARGE, probe=kind != "no questions"
    )
    assert state.queue_limit() == max_wait
    state.queued(queued)
    assert state.queue_limit() == max_wait - queued
    state.set_doubt(95.0 if kind == "doubt" else None)
    assert state.must_probe is (kind == "doubt")
    now, total = 100.0, queued
    decision: Any = None
    for _ in range(10_000):
        decision = (
            state.after_probe(LOCKED, now, 0.5) if state.must_probe else follow(state, BUSY, now)
        )
        if isinstance(decision, Stop):
            break
        now, total = now + decision.seconds, total + decision.seconds
    assert isinstance(decision, Stop)
    assert max_wait - 0.3 <= total <= max_wait + 1e-6


def test_sending_into_a_free_room_is_no_wait() -> None:
    """What was sent after *free* and cut off is sent again, however long it took."""
    unlimited: dict[str, Any] = {}
    for limits in ({"max_wait": 10}, unlimited):
        state = new_state(**limits)
        follow(state, BUSY, 0)
        state.after_probe(None, 1, 0.5)
        assert isinstance(state.decide(result(PARTIAL, 1, 400), 401, 0.5), Wait)
        small = new_state(size=1000, **limits)
        follow(small, BUSY, 0)
        assert isinstance(small.decide(result(PARTIAL, 1, 400), 401, 0.5), Wait)


def test_waiting_for_a_place_is_not_waiting_for_the_room() -> None:
    """A batch's concurrency limit does not use up ``max_wait``."""
    state = new_state(max_wait=10)
    follow(state, BUSY, 0)
    state.paused(500)
    assert sum(ask_until(state, 1e9, 500)) == pytest.approx(10, abs=0.3)


# --- a room in doubt -----------------------------------------------------------------------------


@pytest.mark.parametrize("probe", [True, False])
def test_whose_lock_it_is(probe: bool) -> None:
    """Our own lost upload, until its lock must have ended; then another client."""
    own = new_state(max_wait=0, probe=probe)
    own.set_doubt(since=-10.0)
    assert own.must_probe is probe
    error = stopped(own.after_probe(LOCKED, 0, 0.5) if probe else follow(own, BUSY, 0))
    assert isinstance(error, RoomBusy)
    assert (error.held_by, error.free_in) == ("an upload of unknown outcome", 290)
    late, now = new_state(probe=probe), 0.0
    late.set_doubt(since=-10.0)
    decision: Any = None
    while not isinstance(decision, Stop):
        decision = (
            late.after_probe(LOCKED, now, 0.5) if late.must_probe else follow(late, BUSY, now)
        )
        now += decision.seconds if isinstance(decision, Wait) else 0
    assert isinstance(decision.error, RoomBusy)
    assert now > 290
    assert decision.error.held_by == "another client"
