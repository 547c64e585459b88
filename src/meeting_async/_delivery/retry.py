"""What to do after an attempt: pure decisions (sans-I/O). The caller passes time and randomness.

Every retry waits at least ``MIN_WAIT`` seconds. A wait that does not fit into the rest of
``max_wait`` or ``timeout`` ends the call at once, with the error of the attempt. Times are seconds
of the caller's clock; ``random`` is a number in [0, 1). Waiting for a locked room is decided in
``room_wait``.
"""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Mapping

import attrs

from meeting_async._delivery.room_wait import JITTER, MIN_WAIT, RoomWait
from meeting_async._models import Verdict
from meeting_async._policies import RetryPolicy
from meeting_async._protocol.replies import ParsedReply, reply_error
from meeting_async._text import one_line
from meeting_async.errors import (
    MeetingError,
    ReplyTooLarge,
    ResourceExhausted,
    TransportError,
    UploadInterrupted,
    UploadOutcomeUnknown,
)

MAX_REASON_CHARACTERS = 500
"""Longest reason of an attempt; a transport of the caller's may say anything."""


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
        return one_line(str(reason), MAX_REASON_CHARACTERS) or type(self.error).__name__

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
    limit: str = ""
    """At the first retry of an outage: for how long it is retried, in words."""


# --- what all calls of a client share ------------------------------------------------------------

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
class Outage:
    """Whether the server cannot be reached now, as the calls of a client have seen it.

    Uploads that queue behind one that cannot connect have waited for the server, too.
    """

    since: float | None = None
    error: MeetingError | None = None
    """The error of the last attempt, as it would end a call."""

    def seen(self, since: float, error: MeetingError) -> None:
        """Count an attempt that did not reach the server."""
        self.since = since if self.since is None else self.since
        self.error = _copied(error)  # as its call adds its own facts

    def another_error(self) -> MeetingError | None:
        """Return an error like the last one, for another call; ``None`` if there is no outage."""
        return None if self.error is None else _copied(self.error)

    def ended(self) -> None:
        """The server has answered."""
        self.since = self.error = None


# --- one call ------------------------------------------------------------------------------------


@attrs.define(kw_only=True)
class RetryState:
    """All counters, budgets and limits of one call; :meth:`decide` decides after an attempt."""

    retry_safety: RetrySafety
    retry: RetryPolicy = attrs.field(factory=RetryPolicy)
    budget: RetryBudget = attrs.field(factory=RetryBudget)
    outage: Outage = attrs.field(factory=Outage)
    room: RoomWait = attrs.field(factory=RoomWait)
    """Of an upload."""
    began: float = -math.inf
    """When the call began."""
    ends_at: float = math.inf
    """When the call's ``timeout`` ends it."""
    _failures: int = attrs.field(default=0, init=False)
    """Failed attempts that count for ``max_attempts``."""
    _unconnected: int = attrs.field(default=0, init=False)
    """Attempts without a connection in the last outage; ``max_outage`` limits them."""
    _interruptions: int = attrs.field(default=0, init=False)
    _outage_since: float | None = attrs.field(default=None, init=False)
    _was_reached: bool = attrs.field(default=False, init=False)
    """Whether the server may have received anything of this call."""

    # --- a call that goes on in another process --------------------------------------------------

    def saved(self, now: float) -> dict[str, float | None]:
        """Return counters, and ages in seconds instead of times, for :meth:`restore`."""
        return {
            "failures": float(self._failures),
            "unconnected": float(self._unconnected),
            "interruptions": float(self._interruptions),
            "outage_age": None if self._outage_since is None else now - self._outage_since,
            **self.room.saved(now),
        }

    def restore(self, saved: Mapping[str, float | None], now: float) -> None:
        """Go on at the moment that :meth:`saved` was given; the time since then does not count."""
        self._failures = int(saved.get("failures") or 0)
        self._unconnected = int(saved.get("unconnected") or 0)
        self._interruptions = int(saved.get("interruptions") or 0)
        age = saved.get("outage_age")
        self._outage_since = None if age is None else now - age
        self._was_reached = True  # which is not saved
        self.room.restore(saved, now)

    # --- after a question whether the room is free -----------------------------------------------

    def after_locked(self, answer: ParsedReply, now: float, random: float) -> Wait | Stop:
        """Decide after a question that got 409."""
        self._reached()
        self.room.probe_got_409()
        return self._wait_for_room(answer, now, random)

    def after_free(self) -> None:
        """Send after a question that was answered *free*."""
        self._reached()
        self.room.probe_said_free()

    # --- after an attempt ------------------------------------------------------------------------

    def decide(self, result: AttemptResult, now: float, random: float) -> Done | Stop | Wait:
        """Decide what to do after an attempt."""
        verdict, room = result.verdict, self.room
        if verdict is not Verdict.PARTIAL:
            self._interruptions = 0
        if verdict is not Verdict.NEVER_SENT:
            self._reached()
        if verdict is not Verdict.BUSY:
            room.sent_for(result.ended - result.began)
        if verdict is Verdict.ACCEPTED and result.answer is not None:
            self.budget.refund(repeated=self._failures + self._unconnected > 0)
            room.document_got_in()
            return Done(result.answer)
        decision = self._after_failure(result, now, random)
        room.answered()
        if isinstance(decision, Wait) and result.is_consumed:
            return Stop(_noted(self._error(result, now), _READ_ONCE))
        return decision

    def _reached(self) -> None:
        self._outage_since, self._was_reached = None, True
        self.outage.ended()

    def _after_failure(self, result: AttemptResult, now: float, random: float) -> Stop | Wait:
        is_upload = self.retry_safety.is_upload
        if result.verdict is Verdict.BUSY and is_upload:
            took = result.body_seconds
            self.room.document_got_409(result.ended - result.began if took is None else took)
            return self._wait_for_room(result.answer, now, random)
        if self.retry_safety not in _RETRYABLE.get(result.verdict, ()):
            return Stop(self._error(result, now))
        if _is_final(result, is_upload=is_upload):
            return Stop(self._error(result, now))
        limit = ""
        if result.verdict is Verdict.NEVER_SENT:
            limit = self._note_outage(result, now)
            if is_upload:
                return self._retry_connecting(result, limit, now, random)
        elif result.verdict is Verdict.UNKNOWN and not (is_upload or self._failures):
            limit = self._limit
        self._failures += 1
        self._interruptions += result.verdict is Verdict.PARTIAL
        if self._failures >= self.retry.max_attempts or self._is_interrupted:
            return Stop(self._error(result, now))
        if not self.budget.take():
            return Stop(_noted(self._error(result, now), _OVERDRAWN))
        if result.verdict is Verdict.UNKNOWN and is_upload:
            return self._retry_after_unknown(result, now, random)
        seconds = self._backoff(self._failures, result.hint, random)
        return self._wait_or_stop(seconds, result, now, limit)

    @property
    def _is_interrupted(self) -> bool:
        is_strict = self.retry_safety is RetrySafety.AT_MOST_ONCE
        return is_strict and self._interruptions > self.retry.max_interruptions

    def _note_outage(self, result: AttemptResult, now: float) -> str:
        """Count an attempt that did not reach the server.

        The seconds count from the call, or later, from the first attempt of any call that failed.
        If this is the first, return for how long it is retried, in words.
        """
        is_first = self.outage.since is None
        if self._outage_since is None:
            shared = result.began if self.outage.since is None else self.outage.since
            self._outage_since, self._unconnected = max(self.began, shared), 0
        self._unconnected += 1
        if isinstance(result.error, ResourceExhausted):  # that is this machine
            return ""
        self.outage.seen(result.began, self._error(result, now))
        return self._limit if is_first else ""

    @property
    def _limit(self) -> str:
        """For how long a server that is away is tried, in words."""
        if self.retry_safety.is_upload:
            return f"for up to {self.retry.max_outage:g} s"
        return f"up to {self.retry.max_attempts} attempts"

    def _retry_connecting(
        self, result: AttemptResult, limit: str, now: float, random: float
    ) -> Stop | Wait:
        """Retry while the server cannot be reached, for ``max_outage`` seconds at most.

        If the budget is empty, the longest delay applies: the call goes on, and a server that comes
        back is not flooded.
        """
        assert self._outage_since is not None  # noqa: S101 - it was noted
        if now - self._outage_since >= self.retry.max_outage:
            return Stop(self._error(result, now))
        if self.budget.take():
            seconds = self._backoff(self._unconnected, result.hint, random)
        else:
            seconds = self.retry.max_delay * (0.5 + 0.5 * random)
        return self._wait_or_stop(max(seconds, MIN_WAIT), result, now, limit)

    def _retry_after_unknown(self, result: AttemptResult, now: float, random: float) -> Stop | Wait:
        """Retry an upload that may have arrived, when its room is free."""
        self.room.begin_doubt(result.ended)
        if self.room.must_probe:
            return self._wait_or_stop(self._backoff(self._failures, None, random), result, now)
        return self._wait_or_stop(max(self.room.policy.window, MIN_WAIT), result, now)

    def _backoff(self, failures: int, hint: float | None, random: float) -> float:
        """Seconds before the next attempt; a hint of the server wins.

        The delay doubles with each failure; a random part of up to a half is subtracted ("equal
        jitter").
        """
        if hint is not None:
            return max(min(hint, self.retry.max_retry_after), MIN_WAIT) * (1 + JITTER * random)
        ceiling = self.retry.initial_delay * 2.0 ** min(failures - 1, 32)
        return max(min(ceiling, self.retry.max_delay) * (0.5 + 0.5 * random), MIN_WAIT)

    def _wait_or_stop(
        self, seconds: float, result: AttemptResult, now: float, limit: str = ""
    ) -> Stop | Wait:
        """Wait, or stop if the wait does not fit into the rest of a limit."""
        is_limited = self.room.policy.max_wait is not None and self.room.is_waiting
        room_time = self.room.time_left(now) if is_limited else math.inf
        if now + seconds >= self.ends_at or seconds > room_time:
            return Stop(self._error(result, now))
        return Wait(seconds, limit=limit)

    def _wait_for_room(self, answer: ParsedReply | None, now: float, random: float) -> Stop | Wait:
        seconds = self.room.next_wait(answer, now, random)
        if seconds is None or now + seconds >= self.ends_at:
            return Stop(self.room.busy_error(answer, now))
        return Wait(seconds, is_for_room=True)

    # --- errors ----------------------------------------------------------------------------------

    def _error(self, result: AttemptResult, now: float) -> MeetingError:
        """Return the error for a call that ends with this attempt."""
        error = self._made_error(result, now)
        if error is not result.error:
            error.__cause__ = result.error
        if not self.retry_safety.is_upload:
            error.tried = self._tried(self._failures, result.ended - self.began)
        elif result.verdict is Verdict.NEVER_SENT and self._outage_since is not None:
            error.tried = self._tried(self._unconnected, result.ended - self._outage_since)
        return error

    def _tried(self, attempts: int, seconds: float) -> str:
        """Say for how long the server was away, and that nothing was sent if that is certain."""
        many = f"after {attempts} attempts in {seconds:.0f} s"
        one = f"after {seconds:.0f} s without a connection" if attempts and seconds >= 1 else ""
        nothing = "" if self._was_reached else "nothing was sent"
        return "; ".join(filter(None, [many if attempts > 1 else one, nothing]))

    def _made_error(self, result: AttemptResult, now: float) -> MeetingError:
        is_upload = self.retry_safety.is_upload
        if is_upload and result.verdict is Verdict.UNKNOWN:
            sent = None if self.room.size is None else result.bytes_sent
            free_in = max(0.0, result.ended + self.room.policy.window - now)
            return UploadOutcomeUnknown(result.reason, self.room.size, sent, free_in)
        if is_upload and result.verdict is Verdict.PARTIAL:
            host = getattr(result.error, "host", "")
            reason = getattr(result.error, "reason", result.reason)
            return UploadInterrupted(reason, host, result.bytes_sent)
        if is_upload and result.verdict is Verdict.BUSY:
            return self.room.busy_error(result.answer, now)
        if isinstance(result.error, MeetingError):
            return result.error
        if result.verdict is Verdict.NEVER_SENT and result.answer is not None:  # to a question
            verdict = Verdict.FAILED if result.answer.is_record else Verdict.UNKNOWN
            return reply_error(verdict, result.answer, upload=False)
        return reply_error(result.verdict, result.answer or ParsedReply(0), upload=is_upload)


def _is_final(result: AttemptResult, *, is_upload: bool) -> bool:
    """Return whether another attempt would fail in the same way."""
    if isinstance(result.error, TransportError) and result.error.permanent:
        return result.verdict is Verdict.NEVER_SENT or not is_upload
    is_page = result.answer is not None and 200 <= result.answer.status < 300
    is_foreign = is_page and result.verdict is Verdict.UNKNOWN  # and no meeting server's
    return not is_upload and (is_foreign or isinstance(result.error, ReplyTooLarge))


def _copied(error: MeetingError) -> MeetingError:
    """Return a copy with the same cause."""
    other = copy.copy(error)
    other.__cause__ = error.__cause__
    return other


def _noted(error: MeetingError, note: str) -> MeetingError:
    error.add_note(note)
    return error


_READ_ONCE = "It was not tried again: the stream cannot be read a second time."
_OVERDRAWN = "It was not tried again: too many calls of this client had to be repeated recently."
