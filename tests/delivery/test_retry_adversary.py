"""The promises of ``RetryState`` against a server, a proxy and a network that do what they like.

Every reply, error and duration is drawn, lies included; a virtual clock and no event loop.
"""

from __future__ import annotations

import math
import random as random_module
from collections.abc import Iterator
from itertools import cycle, pairwise
from typing import Any

import attrs
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from meeting_async._delivery.retry import (
    AttemptResult,
    Done,
    Questions,
    Repeatability,
    RetryBudget,
    RetryState,
    Stop,
    Wait,
)
from meeting_async._models import Verdict
from meeting_async._policies import LockPolicy, RetryPolicy
from meeting_async._protocol.replies import Answer
from meeting_async._protocol.verdicts import Sent, judge
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    MeetingError,
    RoomBusy,
    UploadOutcomeUnknown,
)

MANY = 150
"""Steps after which a course that need not end is cut."""

RECORD = {"status": False, "msg": "no", "status_code": "X"}


@attrs.frozen
class Move:
    """What an adversary does to one request."""

    status: int | None
    """HTTP status; ``None``: no reply."""
    sent: Sent
    took: float
    hint: float | None
    is_record: bool
    lies_free: bool
    """To a question: whatever holds the room, do not say 409."""

    def answer(self) -> Answer | None:
        """Make the reply."""
        if self.status is None:
            return None
        payload = {"status": self.status == 200, "msg": "no", "status_code": "X"}
        return Answer(self.status, payload if self.is_record else None, self.hint)

    def error(self) -> MeetingError | None:
        """Make what comes instead of a reply."""
        if self.status is not None:
            return None
        return ConnectFailed("refused") if self.sent is Sent.NOTHING else ConnectionLost("reset")


durations = st.sampled_from([0.0, 0.001, 0.3, 2.0, 60.0, 400.0])
moves = st.builds(
    Move,
    status=st.sampled_from([None, None, 409, 409, 409, 429, 503, 500, 502, 408, 400, 302, 200]),
    sent=st.sampled_from(Sent),
    took=durations,
    hint=st.sampled_from([None, None, 0.0, 0.1, 5.0, 1e9]),
    is_record=st.booleans(),
    lies_free=st.booleans(),
)
states = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(Repeatability),
        "max_wait": st.sampled_from([None, 0.0, 0.1, 0.3, 1.0, 10.0, 100.0]),
        "timeout": st.sampled_from([math.inf, math.inf, 0.2, 1.0, 30.0, 1000.0]),
        "size": st.sampled_from([None, 1, 64 * 1024 + 1, 30 * 1024**2]),
        "probe": st.booleans(),
        "queued": st.sampled_from([0.0, 0.05, 5.0]),
        "doubt": st.sampled_from([None, 0.0, -100.0, -299.9]),
        "tokens": st.sampled_from([500.0, 7.0, 0.0]),
        "window": st.sampled_from([300.0, 10.0, 0.0]),
    }
)


@attrs.define
class Course:
    """What happened to one call."""

    requests: list[float] = attrs.field(factory=list)
    """When each attempt, or question that was answered with 409, began."""
    verdicts: list[Verdict] = attrs.field(factory=list)
    waits: list[tuple[float, Wait]] = attrs.field(factory=list)
    """Each wait, with the moment it began."""
    room_wait: float = 0.0
    """Seconds waited for the room, as the caller of ``max_wait`` counts them."""
    end: Done | Stop | None = None
    ended: float = 0.0


def run(facts: dict[str, Any], script: Iterator[Move], random: Any) -> Course:
    """Play a call against an adversary, as the loop around the state does."""
    lock = LockPolicy(max_wait=facts["max_wait"], probe=facts["probe"], window=facts["window"])
    state = RetryState(
        repeatability=facts["kind"],
        lock=lock,
        budget=RetryBudget(facts["tokens"]),
        questions=Questions(),
        size=facts["size"],
        ends_at=facts["timeout"],
    )
    course, now = Course(), 0.0
    if facts["kind"].is_upload and facts["queued"] <= (
        lock.max_wait if lock.max_wait is not None else 9
    ):
        state.queued(facts["queued"])
        course.room_wait = now = facts["queued"]
        state.set_doubt(facts["doubt"])
    for _ in range(MANY):
        move = next(script)
        began = now
        decision: Any = None
        if state.must_ask:
            now += min(move.took, 15.0)
            locked = (
                Answer(409, RECORD, move.hint)
                if move.status == 409 and not move.lies_free
                else None
            )
            decision = state.answered(locked, now, random())
        if decision is None:
            started, now = now, now + move.took
            verdict = judge(move.answer(), move.sent, upload=facts["kind"].is_upload)
            result = AttemptResult(
                verdict=verdict, began=started, ended=now, answer=move.answer(), error=move.error()
            )
            course.verdicts.append(verdict)
            decision = state.next(result, now, random())
        course.requests.append(began)
        course.ended = now
        if not isinstance(decision, Wait):
            course.end = decision
            return course
        course.waits.append((now, decision))
        is_doubt = facts["kind"].is_upload and course.verdicts[-1:] == [Verdict.UNKNOWN]
        course.room_wait += decision.seconds if decision.is_for_room or is_doubt else 0
        now += decision.seconds
    return course


@settings(max_examples=400)
@given(states, st.lists(moves, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_whatever_the_world_does(facts: dict[str, Any], script: list[Move], seed: Any) -> None:
    """No request within 0.25 s of the last one's end; limits hold; errors say what is known."""
    course = run(facts, cycle(script), seed.random)
    for (_, wait), began, earlier in zip(
        course.waits, course.requests[1:], course.requests, strict=False
    ):
        assert wait.seconds >= 0.25
        assert began - earlier >= 0.25 - 1e-9
    for began, wait in course.waits:
        assert began + wait.seconds < facts["timeout"]
    if facts["max_wait"] is not None:
        assert course.room_wait <= facts["max_wait"] + 1e-6
    if facts["kind"] is Repeatability.AT_MOST_ONCE:
        assert Verdict.UNKNOWN not in course.verdicts[:-1]
    assert not {Verdict.REFUSED, Verdict.FAILED, Verdict.ACCEPTED} & {*course.verdicts[:-1]}
    if isinstance(course.end, Done):
        assert course.verdicts[-1] is Verdict.ACCEPTED
    if isinstance(course.end, Stop):
        check_error(course.end.error, course, facts)
    if isinstance(course.end, Stop | Done):
        event(type(course.end).__name__)


def check_error(error: MeetingError, course: Course, facts: dict[str, Any]) -> None:
    """Never "unknown" for what did not arrive, never anything else for what may have."""
    is_upload = facts["kind"].is_upload
    last = course.verdicts[-1] if course.verdicts else Verdict.BUSY
    if is_upload and last is Verdict.UNKNOWN:
        assert isinstance(error, UploadOutcomeUnknown | RoomBusy)
    else:
        assert not isinstance(error, UploadOutcomeUnknown)
    if isinstance(error, RoomBusy):
        assert is_upload
        assert error.free_in is None or 0 <= error.free_in <= facts["window"]
        assert error.waited >= 0


@given(
    states.filter(lambda facts: facts["kind"].is_upload),
    st.lists(durations, min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_a_dead_server_is_given_up(facts: dict[str, Any], took: list[float], seed: Any) -> None:
    """When nothing connects, an upload ends within ``max_outage`` plus one backoff."""
    script = [Move(None, Sent.NOTHING, seconds, None, False, True) for seconds in took]
    course = run(facts, cycle(script), seed.random)
    assert isinstance(course.end, Stop)
    assert isinstance(course.end.error, ConnectFailed)
    began = facts["queued"] if course.room_wait else 0.0
    assert course.ended <= began + 60 + 20 + max(took) + 15


@pytest.mark.parametrize("probe", [True, False])
@pytest.mark.parametrize("size", [1, 30 * 1024**2])
def test_an_honest_lock_costs_two_bodies(size: int, probe: bool) -> None:
    """A lock of 200 s: with questions one body is refused; without, they come rarely.

    A small document is its own question, every 2 s.
    """
    state = RetryState(
        repeatability=Repeatability.AT_MOST_ONCE, size=size, lock=LockPolicy(probe=probe)
    )
    random, now, bodies = random_module.Random(1).random, 0.0, 0
    while True:
        locked = Answer(409, RECORD) if now < 200 else None
        decision: Any = None
        if state.must_ask:
            decision = state.answered(locked, now, random())
        if decision is None:
            bodies += 1
            verdict = Verdict.BUSY if locked else Verdict.ACCEPTED
            answer = locked or Answer(200, {"status": True})
            result = AttemptResult(verdict=verdict, began=now, ended=now, answer=answer)
            decision = state.next(result, now, random())
        if isinstance(decision, Done):
            break
        now += decision.seconds
    assert now <= 200 + (2.5 if probe or size == 1 else 10)
    assert bodies == 2 if probe and size > 1 else bodies <= (40 if size > 1 else 140)


def test_a_thousand_uploads_and_a_server_that_comes_back() -> None:
    """Dead for 50 s: all of them get through, and not in the same instant."""
    random, budget, wakes = random_module.Random(3).random, RetryBudget(), []
    waiting = [
        (0.0, RetryState(repeatability=Repeatability.AT_MOST_ONCE, budget=budget))
        for _ in range(1000)
    ]
    while waiting:
        waiting.sort(key=lambda item: item[0])
        now, state = waiting.pop(0)
        if now >= 50:
            wakes.append(now)
            continue
        result = AttemptResult(
            verdict=Verdict.NEVER_SENT, began=now, ended=now, error=ConnectFailed("refused")
        )
        decision = state.next(result, now, random())
        assert isinstance(decision, Wait)
        waiting.append((now + decision.seconds, state))
    assert max(wakes) <= 50 + 20
    assert max(wakes) - min(wakes) > 5
    crowded = max(sum(1 for other in wakes if 0 <= other - wake < 0.01) for wake in wakes)
    assert crowded <= 50
    assert all(a <= b for a, b in pairwise(sorted(wakes)))


def test_default_policies_are_the_promised_ones() -> None:
    """The bounds above are those of the documentation."""
    assert (RetryPolicy().max_outage, RetryPolicy().max_delay, LockPolicy().window) == (60, 20, 300)
