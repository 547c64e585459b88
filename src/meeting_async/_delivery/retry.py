"""What to do after an attempt: pure decisions (sans-I/O). The caller passes time and randomness.

Every retry waits at least :data:`MIN_WAIT` seconds. A wait that does not fit into the rest of
``max_wait`` or ``timeout`` ends the call at once, with the error of the attempt. Times are seconds
of the caller's clock; ``random`` is a number in [0, 1).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping

import attrs

from meeting_async._models import Verdict
from meeting_async._policies import LockPolicy, RetryPolicy
from meeting_async._protocol.replies import ParsedReply, reply_error
from meeting_async.errors import (
    MeetingError,
    RoomBusy,
    UploadInterrupted,
    UploadOutcomeUnknown,
)

MIN_WAIT = 0.25
"""Shortest wait in seconds before any retry, even if the server asks for less."""

PROBE_ABOVE = 64 * 1024
"""Bytes of a document above which an empty form asks whether the room is free, before the document
is sent again. A smaller document costs hardly more than the question."""

PROBE_INTERVAL = 2.0
"""Longest time in seconds between two questions, before jitter; users hardly notice it."""

LOST_RACE_FACTOR = 4.0
"""Time between two questions after a lost race, as a multiple of the time that the document takes
to send. A race is lost if a document gets 409 right after the answer *free*: then other uploads
wait, too. While one of them sends, the room still answers *free*, and all that ask would send."""

MAX_LOST_RACE_FACTOR = 8.0
"""The same after more lost races. Both values come from the simulation in ``benchmarks/``."""

LOST_RACE_JITTER = 0.8
"""Random share of that time, so that uploads that lost together do not ask together."""

MAX_FALSE_FREE_ANSWERS = 2
"""After this many documents in a row that got 409 right after the answer *free*, stop asking this
server, if no question ever got 409: its answers mean something else."""

LOCK_GRACE = 30.0
"""Seconds that an upload waits by default after a lock must have ended: clocks differ."""

MAX_ROOM_HINT = 60.0
"""Longest Retry-After in seconds that is obeyed for a locked room."""

JITTER = 0.25
"""Random share of a delay, so that waiting uploads do not continue together."""

GROWTH = 4.0
"""Delay as a multiple of the time already waited, up to the longest delay."""

RESEND_FACTOR = 1.5
"""Shortest delay before a document is sent again without asking, as a multiple of the time that it
takes to send: a slow line stays free for others for 60 % of the time."""


class RetrySafety(enum.Enum):
    """What may be retried, by kind of call."""

    AT_MOST_ONCE = "at_most_once"
    """An upload that must not appear twice."""
    AT_LEAST_ONCE = "at_least_once"
    """An upload that may appear twice."""
    IDEMPOTENT = "idempotent"
    """A call that changes nothing, or has the same effect each time."""
    NON_IDEMPOTENT = "non_idempotent"
    """Any other call."""

    @property
    def is_upload(self) -> bool:
        """Whether a document is sent to a room."""
        return self in {RetrySafety.AT_MOST_ONCE, RetrySafety.AT_LEAST_ONCE}


_RETRYABLE: dict[Verdict, frozenset[RetrySafety]] = {
    Verdict.NEVER_SENT: frozenset(RetrySafety),
    Verdict.PARTIAL: frozenset(RetrySafety) - {RetrySafety.NON_IDEMPOTENT},
    Verdict.THROTTLED: frozenset(RetrySafety),
    Verdict.UNKNOWN: frozenset({RetrySafety.AT_LEAST_ONCE, RetrySafety.IDEMPOTENT}),
}
"""Which kinds of call are retried after which verdict; others stop. BUSY waits for the room."""


@attrs.frozen(kw_only=True)
class AttemptResult:
    """Result of one attempt."""

    verdict: Verdict
    began: float
    ended: float
    answer: ParsedReply | None = None
    error: BaseException | None = None
    """The exception, if there is no answer."""
    bytes_sent: int = 0
    """Bytes of the document that were handed to the operating system."""
    body_seconds: float | None = None
    """Seconds until the whole document was sent; ``None`` if it was not."""
    is_consumed: bool = False
    """Whether the document is a stream that was read and cannot be read again."""

    @property
    def reason(self) -> str:
        """What was seen, in a few words."""
        if self.answer is not None:
            return f"HTTP {self.answer.status} ({self.answer.msg})"
        reason = getattr(self.error, "reason", None) or str(self.error)
        return str(reason) or type(self.error).__name__

    @property
    def hint(self) -> float | None:
        """``Retry-After`` of the answer, in seconds."""
        return self.answer.retry_after if self.answer else None


@attrs.frozen
class Done:
    """The call is accepted."""

    answer: ParsedReply


@attrs.frozen
class Stop:
    """The call has failed."""

    error: MeetingError


@attrs.frozen
class Wait:
    """Retry after this many seconds."""

    seconds: float
    is_for_room: bool = False
    """Whether the reason is that the room is locked."""


CAPACITY = 500.0
"""Tokens of a full budget: enough for 100 retries in a row without a success."""
REPETITION_COST = 5.0
SUCCESS_REFUND = 1.0
"""Tokens for a call that succeeds at once; one that succeeds after a retry gets its cost back."""


@attrs.define
class RetryBudget:
    """The retries of all calls of a client: a token bucket.

    While most calls succeed, the bucket stays full. If most calls fail, it becomes empty, and calls
    end with their own error instead of adding load to the server.
    """

    tokens: float = CAPACITY

    def take(self) -> bool:
        """Take the tokens for one retry; ``False`` if there are not enough."""
        if self.tokens < REPETITION_COST:
            return False
        self.tokens -= REPETITION_COST
        return True

    def refund(self, *, repeated: bool) -> None:
        """Put tokens back after a success."""
        earned = REPETITION_COST if repeated else SUCCESS_REFUND
        self.tokens = min(self.tokens + earned, CAPACITY)


@attrs.define
class ProbeReliability:
    """Whether answers to an empty form are reliable on this server; shared by a client's calls."""

    are_answered: bool = True
    false_free_answers: int = 0
    """Documents in a row that got 409 right after the answer *free*."""
    is_proven: bool = False
    """Whether any question got 409. Then the server checks its lock, and a document that gets 409
    after *free* has lost a race."""

    def answered_busy(self) -> None:
        """Count a question that got 409."""
        self.is_proven = True

    def confirmed(self) -> None:
        """Count a document that was accepted right after the answer *free*."""
        self.false_free_answers = 0

    def refused_after_free(self) -> None:
        """Count a document that got 409 right after the answer *free*."""
        self.false_free_answers += 1
        if self.false_free_answers >= MAX_FALSE_FREE_ANSWERS and not self.is_proven:
            self.are_answered = False


_TIMES = ("doubt", "_outage", "_busy", "_lock")
_COUNTERS: dict[str, type[bool | int | float]] = {
    "must_probe": bool,
    "_failures": int,
    "_unconnected": int,
    "_interruptions": int,
    "_queued": float,
    "_lost_races": int,
    "_body_seconds": float,
}
"""What :meth:`RetryState.saved` keeps."""


@attrs.define(kw_only=True)
class RetryState:
    """All counters, budgets and limits of one call; :meth:`decide` decides after an attempt."""

    retry_safety: RetrySafety
    retry: RetryPolicy = attrs.field(factory=RetryPolicy)
    lock: LockPolicy = attrs.field(factory=LockPolicy)
    budget: RetryBudget = attrs.field(factory=RetryBudget)
    probe_reliability: ProbeReliability = attrs.field(factory=ProbeReliability)
    size: int | None = None
    """Bytes of the document; ``None`` for a link and a JSON call."""
    ends_at: float = math.inf
    """When the call's ``timeout`` ends it."""

    doubt_since: float | None = attrs.field(default=None, init=False)
    """When the room got in doubt: an upload of unknown outcome may still hold its lock."""
    must_probe: bool = attrs.field(default=False, init=False)
    """Whether to ask with an empty form before the next attempt."""
    _said_free: bool = attrs.field(default=False, init=False)
    """Whether a question just before the attempt was not answered with 409."""
    _failures: int = attrs.field(default=0, init=False)
    """Failed attempts that count for ``max_attempts``."""
    _unconnected: int = attrs.field(default=0, init=False)
    """Attempts without a connection in the last outage; ``max_outage`` limits them."""
    _interruptions: int = attrs.field(default=0, init=False)
    _outage_since: float | None = attrs.field(default=None, init=False)
    _queued: float = attrs.field(default=0.0, init=False)
    """Seconds spent behind other uploads of this application."""
    _busy_since: float | None = attrs.field(default=None, init=False)
    """When the room was first found locked."""
    _lock_since: float | None = attrs.field(default=None, init=False)
    """When the present lock of the room was first seen."""
    _lost_races: int = attrs.field(default=0, init=False)
    """Documents that got 409 right after the answer *free*."""
    _body_seconds: float = attrs.field(default=0.0, init=False)
    """How long the last refused document took to send."""

    # --- a call that goes on in another process --------------------------------------------------

    def saved(self, now: float) -> dict[str, float]:
        """Return counters, and ages in seconds instead of times, for :meth:`restore`."""
        times = ((name, getattr(self, f"{name}_since")) for name in _TIMES)
        ages = {name: now - since for name, since in times if since is not None}
        return {**ages, **{name: float(getattr(self, name)) for name in _COUNTERS}}

    def restore(self, saved: Mapping[str, float], now: float) -> None:
        """Go on at the moment that :meth:`saved` was given; the time since then does not count."""
        for name in _TIMES:
            if name in saved:
                setattr(self, f"{name}_since", now - saved[name])
        for name, kind in _COUNTERS.items():
            setattr(self, name, kind(saved.get(name, 0)))

    # --- before an attempt -----------------------------------------------------------------------

    def set_doubt(self, since: float | None) -> None:
        """Start with a room in doubt since that time: ask first. ``None``: no doubt."""
        self.doubt_since = since
        self.must_probe = since is not None and self._can_probe

    def queue_limit(self) -> float | None:
        """Longest wait in seconds behind other uploads of this application; ``None``: no limit."""
        return None if self.lock.max_wait is None else max(0.0, self.lock.max_wait - self._queued)

    def queued(self, seconds: float) -> None:
        """Count a wait behind other uploads of this application."""
        self._queued += seconds

    def paused(self, seconds: float) -> None:
        """Do not count a wait for a permit as waiting for the room."""
        if self._busy_since is not None:
            self._busy_since += seconds
        if self._lock_since is not None:
            self._lock_since += seconds

    def after_probe(
        self, locked: ParsedReply | None, now: float, random: float
    ) -> Wait | Stop | None:
        """Decide after a question; ``locked`` is its 409, if any. ``None``: send."""
        self.must_probe = False
        if locked is None:
            self._said_free, self._lock_since, self.doubt_since = True, None, None
            return None
        self.probe_reliability.answered_busy()
        return self._wait_for_room(locked, now, random)

    @property
    def _can_probe(self) -> bool:
        return self.lock.probe and self.probe_reliability.are_answered

    # --- after an attempt ------------------------------------------------------------------------

    def decide(self, result: AttemptResult, now: float, random: float) -> Done | Stop | Wait:
        """Decide what to do after an attempt."""
        verdict = result.verdict
        if verdict is not Verdict.PARTIAL:
            self._interruptions = 0
        if verdict is not Verdict.NEVER_SENT:
            self._outage_since = None
        if verdict is not Verdict.BUSY and self._busy_since is not None:
            self._busy_since += result.ended - result.began  # sending is not waiting for the room
        if verdict is Verdict.ACCEPTED and result.answer is not None:
            self.budget.refund(repeated=self._failures + self._unconnected > 0)
            if self._said_free:
                self.probe_reliability.confirmed()
            return Done(result.answer)
        decision = self._after_failure(result, now, random)
        self._said_free = False
        if isinstance(decision, Wait) and result.is_consumed:
            return Stop(_noted(self._error(result, now), _READ_ONCE))
        return decision

    def _after_failure(self, result: AttemptResult, now: float, random: float) -> Stop | Wait:
        if result.verdict is Verdict.BUSY and self.retry_safety.is_upload:
            return self._body_refused(result, now, random)
        if self.retry_safety not in _RETRYABLE.get(result.verdict, ()):
            return Stop(self._error(result, now))
        if result.verdict is Verdict.NEVER_SENT and self.retry_safety.is_upload:
            return self._retry_connecting(result, now, random)
        self._failures += 1
        self._interruptions += result.verdict is Verdict.PARTIAL
        if self._failures >= self.retry.max_attempts or self._is_interrupted:
            return Stop(self._error(result, now))
        if not self.budget.take():
            return Stop(_noted(self._error(result, now), _OVERDRAWN))
        if result.verdict is Verdict.UNKNOWN and self.retry_safety.is_upload:
            return self._retry_after_unknown(result, now, random)
        return self._wait_or_stop(self._backoff(self._failures, result.hint, random), result, now)

    @property
    def _is_interrupted(self) -> bool:
        is_strict = self.retry_safety is RetrySafety.AT_MOST_ONCE
        return is_strict and self._interruptions > self.retry.max_interruptions

    def _retry_connecting(self, result: AttemptResult, now: float, random: float) -> Stop | Wait:
        """Retry while no connection can be made, for ``max_outage`` seconds at most.

        If the budget is empty, the longest delay applies: the call goes on, and a server that comes
        back is not flooded.
        """
        if self._outage_since is None:
            self._outage_since, self._unconnected = result.began, 0
        self._unconnected += 1
        if now - self._outage_since >= self.retry.max_outage:
            return Stop(self._error(result, now))
        if self.budget.take():
            seconds = self._backoff(self._unconnected, result.hint, random)
        else:
            seconds = self.retry.max_delay * (0.5 + 0.5 * random)
        return self._wait_or_stop(max(seconds, MIN_WAIT), result, now)

    def _retry_after_unknown(self, result: AttemptResult, now: float, random: float) -> Stop | Wait:
        """Retry an upload that may have arrived, when its room is free."""
        self.doubt_since, self._lock_since = result.ended, None
        if self._busy_since is None:
            self._busy_since = result.ended
        self.must_probe = self._can_probe
        if self.must_probe:
            return self._wait_or_stop(self._backoff(self._failures, None, random), result, now)
        return self._wait_or_stop(max(self.lock.window, MIN_WAIT), result, now)

    def _backoff(self, failures: int, hint: float | None, random: float) -> float:
        """Seconds before the next attempt; a hint of the server wins.

        The delay doubles with each failure; a random part of up to a half is subtracted ("equal
        jitter").
        """
        if hint is not None:
            return max(min(hint, self.retry.max_retry_after), MIN_WAIT) * (1 + JITTER * random)
        ceiling = self.retry.initial_delay * 2.0 ** min(failures - 1, 32)
        return max(min(ceiling, self.retry.max_delay) * (0.5 + 0.5 * random), MIN_WAIT)

    def _wait_or_stop(self, seconds: float, result: AttemptResult, now: float) -> Stop | Wait:
        """Wait, or stop if the wait does not fit into the rest of a limit."""
        is_limited = self.lock.max_wait is not None and self._busy_since is not None
        room_time = self._room_time_left(now) if is_limited else math.inf
        if now + seconds >= self.ends_at or seconds > room_time:
            return Stop(self._error(result, now))
        return Wait(seconds)

    # --- a locked room ---------------------------------------------------------------------------

    def waited(self, now: float) -> float:
        """Seconds that the upload has waited for its room so far."""
        return self._queued + (0.0 if self._busy_since is None else now - self._busy_since)

    def _body_refused(self, result: AttemptResult, now: float, random: float) -> Stop | Wait:
        took = result.body_seconds
        self._body_seconds = result.ended - result.began if took is None else took
        if self._said_free:
            self._lost_races += 1
            self.probe_reliability.refused_after_free()
        return self._wait_for_room(result.answer, now, random)

    def _wait_for_room(self, answer: ParsedReply | None, now: float, random: float) -> Stop | Wait:
        if self._busy_since is None:
            self._busy_since = now
        if self._lock_since is None:
            self._lock_since = now
        if self.doubt_since is not None and now >= self.doubt_since + self.lock.window:
            self.doubt_since = None  # that lock must have ended: another client holds this one
        self.must_probe = self._can_probe and self._is_worth_probing
        left = self._room_time_left(now)
        hint = answer.retry_after if answer else None
        if hint is not None:
            seconds = max(min(hint, MAX_ROOM_HINT), MIN_WAIT) * (1 + JITTER * random)
        else:
            seconds = min(self._room_delay(now, random), left)
        if not MIN_WAIT <= seconds <= left or now + seconds >= self.ends_at:
            return Stop(self._busy(answer, now))
        return Wait(seconds, is_for_room=True)

    @property
    def _is_worth_probing(self) -> bool:
        return self.doubt_since is not None or (self.size or 0) > PROBE_ABOVE

    def _room_time_left(self, now: float) -> float:
        if self.lock.max_wait is not None:
            return self.lock.max_wait - self.waited(now)
        return self.lock.window + LOCK_GRACE - self._lock_age(now)

    def _lock_age(self, now: float) -> float:
        """Seconds since the present lock of the room was first seen."""
        return 0.0 if self._lock_since is None else now - self._lock_since

    def _busy(self, answer: ParsedReply | None, now: float) -> RoomBusy:
        doubt = self.doubt_since
        holder = "another client" if doubt is None else "an upload of unknown outcome"
        age = self._lock_age(now) if doubt is None else now - doubt
        free_in = max(0.0, self.lock.window - age)
        return RoomBusy(self.waited(now), holder, free_in, answer.msg if answer else "")

    def _room_delay(self, now: float, random: float) -> float:
        """Seconds until the next question or attempt."""
        waited = self._lock_age(now)
        is_small = not (self.must_probe or self._is_worth_probing)  # it is sent without asking
        longest = PROBE_INTERVAL if self.must_probe or is_small else self.lock.max_delay
        seconds = max(min(waited * GROWTH, longest), self.lock.min_delay)
        if not self.must_probe:
            seconds = max(seconds, self._body_seconds * RESEND_FACTOR)
        rivals = self._lost_race_interval(random) if self.must_probe and waited > 0 else 0.0
        return max(seconds * (1 + JITTER * (2 * random - 1)), rivals, MIN_WAIT)

    def _lost_race_interval(self, random: float) -> float:
        """Seconds between questions after lost races."""
        share = min(LOST_RACE_FACTOR * self._lost_races, MAX_LOST_RACE_FACTOR)
        return self._body_seconds * share * (1 + LOST_RACE_JITTER * (2 * random - 1))

    # --- errors ----------------------------------------------------------------------------------

    def _error(self, result: AttemptResult, now: float) -> MeetingError:
        """Return the error for a call that ends with this attempt."""
        error = self._made_error(result, now)
        if error is not result.error:
            error.__cause__ = result.error
        return error

    def _made_error(self, result: AttemptResult, now: float) -> MeetingError:
        is_upload = self.retry_safety.is_upload
        if is_upload and result.verdict is Verdict.UNKNOWN:
            sent = None if self.size is None else result.bytes_sent
            free_in = max(0.0, result.ended + self.lock.window - now)
            return UploadOutcomeUnknown(result.reason, self.size, sent, free_in)
        if is_upload and result.verdict is Verdict.PARTIAL:
            host = getattr(result.error, "host", "")
            reason = getattr(result.error, "reason", result.reason)
            return UploadInterrupted(reason, host, result.bytes_sent)
        if is_upload and result.verdict is Verdict.BUSY:
            return self._busy(result.answer, now)
        if isinstance(result.error, MeetingError):
            return result.error
        return reply_error(result.verdict, result.answer or ParsedReply(0), upload=is_upload)


def _noted(error: MeetingError, note: str) -> MeetingError:
    error.add_note(note)
    return error


_READ_ONCE = "It was not tried again: the stream cannot be read a second time."
_OVERDRAWN = "It was not tried again: too many calls of this client had to be repeated recently."
