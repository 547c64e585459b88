"""States and results for tables of decisions."""

from __future__ import annotations

from typing import Any

from meeting_async._delivery.retry import AttemptResult, RetrySafety, RetryState, Stop, Wait
from meeting_async._delivery.room_wait import RoomWait
from meeting_async._models import Verdict
from meeting_async._policies import LockPolicy, RetryPolicy
from meeting_async._protocol.replies import ParsedReply
from meeting_async.errors import ConnectFailed, ConnectionLost, MeetingError

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
    facts: dict[str, Any] = {"size": LARGE if kind.is_upload else None}
    facts |= {name: settings.pop(name) for name in ("size", "reliability") if name in settings}
    retry = {
        name: settings.pop(name)
        for name in ("max_outage", "max_attempts", "max_retry_after")
        if name in settings
    }
    room = RoomWait(policy=LockPolicy(**lock), **facts)
    return RetryState(retry_safety=kind, room=room, retry=RetryPolicy(**retry), **settings)


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
    """Say what follows an attempt."""
    return state.decide(result(verdict, now, **facts), now + facts.get("took", 0.0), random)


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
