"""The list of steps: short, without replies, and the same in another process."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meeting_async import Verdict
from meeting_async._delivery.decide import (
    Policies,
    RetrySafety,
    Server,
    Stop,
    Wait,
    decide,
    room_wait,
)
from meeting_async._delivery.history import History, Step, loaded, stored
from meeting_async.errors import DeadlineExceeded, RoomBusy, RoomNotFound, UploadOutcomeUnknown
from support.decisions import LARGE, SMALL, seen, story

NEVER, PARTIAL, BUSY, REFUSED, THROTTLED, _, UNKNOWN, ACCEPTED = Verdict

FAILURES = [
    *(("check", verdict) for verdict in (NEVER, THROTTLED)),
    *(("probe", verdict) for verdict in (NEVER, THROTTLED, *[BUSY] * 5)),
    *(("document", verdict) for verdict in (NEVER, PARTIAL, BUSY, THROTTLED, UNKNOWN)),
    *[("pause", None)] * 3,
    ("queue", None),
]
SECONDS = st.integers(0, 40)
STEPS = st.lists(st.tuples(st.sampled_from(FAILURES), SECONDS, SECONDS, st.booleans()))
POLICIES = st.builds(
    lambda safety, size, settings: story(safety, size=size, began=-inf, **settings).policies,
    st.sampled_from([RetrySafety.AT_MOST_ONCE, RetrySafety.AT_LEAST_ONCE]),
    st.sampled_from([SMALL, LARGE]),
    st.sampled_from([{}, {"max_wait": 60}, {"probe": False}, {"max_outage": 100}]),
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


def all_that_counts(history: History, policies: Policies, now: float) -> Any:
    """Return what follows a history, and the numbers that are derived from it."""
    server = Server()
    decision = decide(history, policies, server, now, 0.5)
    if isinstance(decision, Stop):
        decision = Stop(str(decision.error))  # type: ignore[arg-type]
    room = room_wait(history, policies, server.probes)
    rows = [len(history.in_a_row(verdict)) for verdict in Verdict if verdict is not BUSY]
    return (
        decision,
        (room.waited(now), room.time_left(now), room.queue_limit(), rows),
        (history.last.verdict, history.may_have_arrived),
    )


@given(STEPS, POLICIES)
def test_a_merged_history_means_the_same(rows: list[Any], policies: Policies) -> None:
    """Locked answers and pauses in a row become few steps; nothing else changes."""
    steps, merged = steps_of(rows), History()
    for number, one in enumerate(steps):
        merged.add(one, call_began=0.0)
        if one.verdict is not None:
            whole = History(steps[: number + 1])
            counted = [all_that_counts(each, policies, one.ended) for each in (whole, merged)]
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


@given(STEPS, STEPS, POLICIES)
def test_a_history_goes_on_in_another_process(
    before: list[Any], after: list[Any], policies: Policies
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
            counted = all_that_counts(here, policies, one.ended)
            assert counted == all_that_counts(there, policies, other.ended)


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
    history.add(Step(kind="pause", began=9, ended=9), call_began=0.0)
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
