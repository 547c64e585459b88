"""Delivery that can be proved: no schedule of faults, however malicious, breaks a promise.

A schedule (``_schedules``) is several uploads of one client to one or two rooms, and everything
that is not up to the client: who else holds the rooms, and what happens to each attempt. The model
(``_model``) plays it in virtual time; the promises (``_promises``) are checked against what the
model knows. Each test run plays the same 500 schedules. The nightly profile plays 10,000, others
each time::

    MEETING_ASYNC_PROOF=nightly python -m pytest tests/test_proof.py tests/test_mutations.py
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import trio
from hypothesis import HealthCheck, Phase, example, given, register_random, settings

from _courses import lost, virtually
from _fakes import accepted, busy, reply
from _faults import Fault, Point, Seen
from _promises import LAST, OF_A_CALL, OF_THE_CLIENT, check
from _runs import Run, played
from _schedules import Job, Schedule, schedules
from meeting_async import Event, LockPolicy, WaitingForRoom, _ledger, _verdicts
from meeting_async._attempts import Attempt
from meeting_async._delivery import Delivery
from meeting_async._ledger import Ledger
from meeting_async._multipart import MultipartBody
from meeting_async._rooms import Turnstile
from meeting_async._verdicts import Sent, Step, Verdict
from meeting_async._wire import Answer
from meeting_async.errors import RoomBusy, UploadOutcomeUnknown

IS_NIGHTLY = os.environ.get("MEETING_ASYNC_PROOF") == "nightly"

profile = settings(
    max_examples=10_000 if IS_NIGHTLY else 500,
    derandomize=not IS_NIGHTLY,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
quick = settings(profile, max_examples=300, derandomize=True, phases=[Phase.generate])

pytestmark = pytest.mark.timeout(3600 if IS_NIGHTLY else 240)


@pytest.fixture(autouse=True, scope="module")
def _same_each_time() -> Iterator[None]:
    """Let trio's scheduler throw hypothesis' dice, as pytest-trio does, and keep the log silent."""
    run, logger = trio._core._run, logging.getLogger("meeting_async")
    register_random(run._r)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        patch.setattr(logger, "disabled", True)
        yield


LOST = Fault(seen=Seen.RESET, processing=300.0)
"""The form was out, the server works on it for as long as it may, and the reply never comes."""


REACHED = {
    *(verdict.value for verdict in Verdict),
    *("UploadReceipt", "UploadOutcomeUnknown", "RoomBusy", "DeadlineExceeded", "NoneType"),
    *("ConnectFailed", "UploadInterrupted", "ProcessingFailed", "Throttled"),
    *("at_most_once: 0", "at_most_once: 1"),
    *("at_least_once: 0", "at_least_once: 1", "at_least_once: 2"),
}
"""What the schedules come to, at least: verdicts, ends of calls, how often documents arrived."""


def test_every_promise_holds_under_every_schedule() -> None:
    """The promises are the functions in ``_promises``; and the schedules reach everything."""
    seen: Counter[str] = Counter()

    @profile
    @given(schedules)
    @example(Schedule(jobs=(Job(faults=(LOST,)), Job(delay=1), Job(delay=2, max_wait=0))))
    @example(Schedule(jobs=(Job(delivery="at_least_once", faults=(LOST, LOST)), Job(delay=1))))
    @example(Schedule(jobs=(Job(faults=(Fault(seen=Seen.RESET, point=Point(1)),)), Job(delay=1))))
    @example(Schedule(jobs=(Job(faults=(LOST,), deadline=200), Job(delay=1, deadline=300.5))))
    @example(Schedule(jobs=(Job(faults=(Fault(processing=60),), cancelled_after=5), Job(delay=1))))
    def holds(schedule: Schedule) -> None:
        run = played(schedule)
        seen.update(_ends(run))
        check(run)

    holds()
    assert set(seen) >= REACHED


def _ends(run: Run) -> Iterator[str]:
    for call in run.calls[: len(run.schedule.jobs)]:
        yield type(call.outcome).__name__
        yield f"{call.job.delivery}: {min(len(call.accepted), 2)}"
        yield from (attempt.verdict for attempt in getattr(call.outcome, "attempts", ()))


# --- that this can fail --------------------------------------------------------------------------


def found(look: Callable[[Run], None], examples: settings = quick) -> str:
    """Play schedules until a look at one fails; return the name of the promise that was broken."""

    @examples
    @given(schedules)
    def attempt(schedule: Schedule) -> None:
        look(played(schedule))

    try:
        attempt()
    except Exception as error:  # noqa: BLE001 - examined by the test
        return _promise(error)
    return "no promise was broken"


def _promise(error: BaseException) -> str:
    """Name the promise in whose function an error was raised, or the error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    names = {promise.__name__ for promise in [*OF_THE_CLIENT, *OF_A_CALL]}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_name in names:
            return traceback.tb_frame.f_code.co_name
        traceback = traceback.tb_next
    return repr(error)


def _step(verdict: Verdict, column: int, step: Step) -> tuple[Any, Any, object]:
    row = _verdicts._STEPS[verdict]
    return _verdicts._STEPS, verdict, (*row[:column], step, *row[column + 1 :])


def _delayed(by: float) -> Callable[..., float | None]:
    original = LockPolicy.delay

    def delay(*args: Any, **facts: Any) -> float | None:
        seconds = original(*args, **facts)
        return None if seconds is None else seconds + by

    return delay


def _shut_for(share: float) -> Callable[..., Any]:
    original = Turnstile.shut
    return lambda self, room, seconds: original(self, room, seconds * share)


@asynccontextmanager
async def _open_turnstile(*_: object) -> AsyncIterator[None]:
    yield


async def _spoilt(body: MultipartBody) -> bytes:
    chunk = await _read(body)
    return bytes([chunk[0] ^ 1]) + chunk[1:]


def _judge_as_if_all_was_sent(answer: Answer, _: Sent, *, upload: bool) -> Verdict:
    return _judge_200(answer, Sent.ALL, upload=upload)


def _attempt_of_nothing(**facts: Any) -> Attempt:
    return Attempt(**{**facts, "bytes_sent": 0})


_read, _judge_200 = MultipartBody._read, _verdicts._judge_200
_ALWAYS_PART = {**_verdicts._WITHOUT_ANSWER, Sent.ALL: Verdict.PARTIAL}
_ALWAYS_UNKNOWN = {**_verdicts._WITHOUT_ANSWER, Sent.PART: Verdict.UNKNOWN}
UNKNOWN, AT_MOST, AT_LEAST = Verdict.UNKNOWN, 0, 1

SABOTAGE: dict[str, tuple[tuple[Any, Any, object], str]] = {
    "never shut a room": ((Turnstile, "shut", lambda *_: None), "no_attempt_on_our_own_lock"),
    "shut it for too short": ((Turnstile, "shut", _shut_for(0.99)), "no_attempt_on_our_own_lock"),
    "shut it for too long": ((Turnstile, "shut", _shut_for(10)), "rooms_open_again"),
    "never queue": ((Turnstile, "turn", _open_turnstile), "siblings_never_meet"),
    "never wait for the window": (
        _step(UNKNOWN, AT_LEAST, Step.RETRY),
        "no_attempt_on_our_own_lock",
    ),
    "repeat what is unknown": (_step(UNKNOWN, AT_MOST, Step.WAIT_OUT_LOCK), "at_most_once"),
    "take unknown for accepted": (
        (_verdicts, "_judge_200", lambda *_, **__: Verdict.ACCEPTED),
        "accepted_means_accepted",
    ),
    "believe an early success": (
        (_verdicts, "_judge_200", _judge_as_if_all_was_sent),
        "accepted_means_accepted",
    ),
    "forget the boundary": (
        (_verdicts, "_WITHOUT_ANSWER", _ALWAYS_PART),
        "no_maybe_is_called_a_no",
    ),
    "fear a form that is cut": (
        (_verdicts, "_WITHOUT_ANSWER", _ALWAYS_UNKNOWN),
        "no_no_is_called_a_maybe",
    ),
    "spoil the document": ((MultipartBody, "_read", _spoilt), "documents_arrive_as_given"),
    "misstate the lock": (
        (Ledger, "lock_free_in", lambda _: 300.0),
        "unknown_says_all_that_is_known",
    ),
    "misstate the bytes": (
        (_ledger, "Attempt", _attempt_of_nothing),
        "attempts_are_told_as_they_were",
    ),
    "wait beyond the budget": ((LockPolicy, "delay", _delayed(0.5)), "no_wait_exceeds_its_budget"),
    "ignore the deadline": (
        (Delivery, "_within_deadline", Delivery._in_turn),
        "no_wait_exceeds_its_budget",
    ),
    "give up early": ((LockPolicy, "delay", lambda *_, **__: None), "nobody_gives_up_early"),
    "repeat for ever": ((Delivery, "_exhausted", lambda *_: False), "repetitions_are_limited"),
    "keep the turn": ((Turnstile, "_leave", lambda *_: None), "TimeoutError()"),
}
"""What is broken, and by which promise that is to be noticed."""


@pytest.mark.parametrize("sabotage", SABOTAGE)
def test_every_promise_can_be_broken(monkeypatch: pytest.MonkeyPatch, sabotage: str) -> None:
    """Broken in one place, the library is caught, and by the promise that is about it."""
    (owner, name, value), promise = SABOTAGE[sabotage]
    replace: Callable[..., None] = monkeypatch.setattr
    (monkeypatch.setitem if isinstance(owner, dict) else replace)(owner, name, value)
    checks: list[Any] = [one for one in [*OF_THE_CLIENT, *OF_A_CALL] if one.__name__ == promise]
    assert found(lambda run: check(run, checks)) == promise


def test_every_promise_is_put_to_the_test() -> None:
    """None is a promise that cannot be broken."""
    promises = {promise.__name__ for promise in [*OF_THE_CLIENT, *OF_A_CALL]}
    assert promises - {promise for _, promise in SABOTAGE.values()} == set()


# --- promises that are not kept yet --------------------------------------------------------------


def test_a_plea_for_patience_does_not_stretch_the_wait_for_a_room() -> None:
    """``max_wait`` counts from the first 409, whatever comes in between."""
    course = virtually(busy(), reply(429, b"", retry_after="50"), busy(), max_wait=5)
    assert isinstance(course.outcome, RoomBusy)
    assert course.outcome.waited <= 5 + LAST


def test_waiting_out_our_own_lock_leaves_the_budget_for_others() -> None:
    """At least once: the re-send goes through the busy path, as after any first 409."""
    script = [busy(), lost(), busy(), accepted()]
    course = virtually(*script, max_wait=60, delivery="at_least_once")
    assert course.accepted


def test_a_slow_observer_does_not_stretch_the_wait_for_a_room() -> None:
    """What an asynchronous observer takes is part of the wait."""

    async def observe(event: Event) -> None:
        await anyio.sleep(0.9 * isinstance(event, WaitingForRoom))

    course = virtually(then=lambda _: busy(), max_wait=10, on_event=observe)
    assert course.began[-1] <= 10 + LAST


def test_a_deadline_after_a_409_still_tells_of_our_own_lost_attempt() -> None:
    """The reader must learn that the 409 may be about the document that was lost."""
    course = virtually(lost(), then=lambda _: busy(), deadline=310, delivery="at_least_once")
    assert course.verdicts[-1] == "busy"
    assert isinstance(course.outcome, UploadOutcomeUnknown)
    assert "lost" in course.outcome.reason
