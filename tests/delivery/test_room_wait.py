"""Waiting for a locked room, as tables without a loop."""

from __future__ import annotations

import random as random_module
from typing import Any

import pytest

from meeting_async._delivery.retry import RetryState, Stop, Wait
from meeting_async._delivery.room_wait import ProbeReliability
from meeting_async.errors import RoomBusy
from support.decisions import (
    ACCEPTED,
    BUSY,
    LARGE,
    LOCKED,
    PARTIAL,
    RANDOMS,
    follow,
    new_state,
    result,
    stopped,
    waited,
)

# --- a room that is taken ------------------------------------------------------------------------


def ask_until(state: RetryState, end: float, now: float, random: float = 0.5) -> list[float]:
    """Ask a room that stays locked; return the delays until it is given up, or until ``end``."""
    delays = []
    while now < end and state.room.must_probe:
        decision = state.after_locked(LOCKED, now, random)
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
    assert state.room.must_probe
    later = ask_until(state, 60, first, random)
    assert max(later[:2]) <= max(2.5, min_delay * 1.25)
    assert all(max(2, min_delay) * 0.75 <= delay <= max(2, min_delay) * 1.25 for delay in later[2:])
    assert len(later) >= 60 // (max(2, min_delay) * 1.25) - 1
    state.after_free()
    assert not state.room.must_probe


@pytest.mark.parametrize("random", RANDOMS)
@pytest.mark.parametrize(("hint", "seconds"), [(0.0, 0.25), (1.0, 1), (60.0, 60), (3600.0, 60)])
def test_retry_after(hint: float, seconds: float, random: float) -> None:
    """It is waited for that long, up to 60 s, or up to a quarter more."""
    assert seconds <= waited(new_state(), BUSY, 0.0, random, hint=hint) <= seconds * 1.25


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
    assert state.room.must_probe is asks


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
    state = new_state(reliability=probe_reliability)
    follow(state, BUSY, 0)
    for now, still_asks in ((10, True), (20, False)):
        assert state.room.must_probe
        state.after_free()
        follow(state, BUSY, now)
        assert state.room.must_probe is still_asks
    other = new_state(reliability=probe_reliability)
    follow(other, BUSY, 30)
    other.room.set_doubt(25.0)
    assert not other.room.must_probe


def test_bodies_that_are_not_vain_in_a_row() -> None:
    """A document that is accepted right after *free* shows that the answers can be believed."""
    probe_reliability = ProbeReliability()
    for now in range(0, 1000, 100):
        state = new_state(reliability=probe_reliability)
        follow(state, BUSY, now)
        for verdict in (BUSY, ACCEPTED):
            assert state.room.must_probe
            state.after_free()
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
            state.after_locked(LOCKED, now, random)
            if state.room.must_probe
            else follow(state, BUSY, now, random)
        )
    error = stopped(decision)
    assert isinstance(error, RoomBusy)
    assert 329.7 <= now <= 330
    assert error.waited == pytest.approx(now)
    assert (error.held_by, error.free_in, error.reason) == ("another client", 0, "in use")


def test_one_lock_lasts_until_the_upload_gets_in() -> None:
    """An answer *free* proves nothing: the wait goes on from the first 409."""
    state = new_state()
    follow(state, BUSY, 0)
    ask_until(state, 290, 0.5)
    state.after_free()
    assert isinstance(follow(state, BUSY, 290), Wait)
    assert sum(ask_until(state, 1e9, 290.5)) <= 40


@pytest.mark.parametrize(("hours", "most"), [(1, 200), (6, 400)])
@pytest.mark.parametrize("free", [0.3, 0.5, 1.0])
@pytest.mark.parametrize(
    ("size", "body"), [(1000, 0.001), (2**20, 0.001), (2**20, 0.1), (2**25, 2.0)]
)
@pytest.mark.parametrize("is_proven", [True, False])
def test_lost_races_cost_a_few_hundred_bodies(
    hours: int, most: int, free: float, size: int, body: float, is_proven: bool
) -> None:
    """Whatever the server answers to questions, if it answers each document with 409."""
    generator = random_module.Random(7)
    state, now, bodies = new_state(max_wait=1e9, size=size), 0.0, 0
    state.room.reliability.is_proven = is_proven
    while now < hours * 3600:
        if state.room.must_probe and generator.random() >= free:
            decision: Any = state.after_locked(LOCKED, now, generator.random())
        else:
            if state.room.must_probe:
                state.after_free()
            bodies += 1
            refused = result(BUSY, now, body, body_seconds=body)
            decision = state.decide(refused, now + body, generator.random())
            now += body
        assert isinstance(decision, Wait)
        now += decision.seconds
    assert bodies <= most


@pytest.mark.parametrize(("max_wait", "queued"), [(0, 0), (0.1, 0), (0.2, 0), (5, 5), (5, 4.9)])
def test_no_time_to_wait_means_no_wait(max_wait: float, queued: float) -> None:
    """``max_wait=0`` never waits, and a rest below 0.25 s is no wait either."""
    state = new_state(max_wait=max_wait)
    state.room.queued += queued
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
    assert state.room.queue_limit() == max_wait
    state.room.queued += queued
    assert state.room.queue_limit() == max_wait - queued
    state.room.set_doubt(95.0 if kind == "doubt" else None)
    assert state.room.must_probe is (kind == "doubt")
    now, total = 100.0, queued
    decision: Any = None
    for _ in range(10_000):
        decision = (
            state.after_locked(LOCKED, now, 0.5)
            if state.room.must_probe
            else follow(state, BUSY, now)
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
        state.after_free()
        assert isinstance(state.decide(result(PARTIAL, 1, 400), 401, 0.5), Wait)
        small = new_state(size=1000, **limits)
        follow(small, BUSY, 0)
        assert isinstance(small.decide(result(PARTIAL, 1, 400), 401, 0.5), Wait)


def test_waiting_for_a_place_is_not_waiting_for_the_room() -> None:
    """A batch's concurrency limit does not use up ``max_wait``."""
    state = new_state(max_wait=10)
    follow(state, BUSY, 0)
    state.room.paused(500)
    assert sum(ask_until(state, 1e9, 500)) == pytest.approx(10, abs=0.3)


# --- a room in doubt -----------------------------------------------------------------------------


@pytest.mark.parametrize("probe", [True, False])
def test_whose_lock_it_is(probe: bool) -> None:
    """Our own lost upload, until its lock must have ended; then another client."""
    own = new_state(max_wait=0, probe=probe)
    own.room.set_doubt(since=-10.0)
    assert own.room.must_probe is probe
    error = stopped(own.after_locked(LOCKED, 0, 0.5) if probe else follow(own, BUSY, 0))
    assert isinstance(error, RoomBusy)
    assert (error.held_by, error.free_in) == ("an upload of unknown outcome", 290)
    late, now = new_state(probe=probe), 0.0
    late.room.set_doubt(since=-10.0)
    decision: Any = None
    while not isinstance(decision, Stop):
        decision = (
            late.after_locked(LOCKED, now, 0.5) if late.room.must_probe else follow(late, BUSY, now)
        )
        now += decision.seconds if isinstance(decision, Wait) else 0
    assert isinstance(decision.error, RoomBusy)
    assert now > 290
    assert decision.error.held_by == "another client"
