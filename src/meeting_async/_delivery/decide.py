"""What to do after an attempt: pure decisions (sans-I/O). The caller passes time and randomness.

Every retry waits at least ``MIN_WAIT`` seconds. If a wait does not fit into the rest of
``max_wait`` or ``timeout``, the call ends at once with the error of the attempt. Times are seconds
of the event loop's clock; ``random`` is a number in [0, 1).
"""

from __future__ import annotations

import enum
import math
from typing import Literal

import attrs

from meeting_async._delivery.history import (
    PAUSES,
    History,
    Step,
    is_failed_conversion,
    is_unknown,
)
from meeting_async._delivery.room_wait import JITTER, MIN_WAIT, PROBE_ABOVE, RoomWait
from meeting_async._delivery.server import Server
from meeting_async._models import UNREACHED, Verdict
from meeting_async._policies import LockPolicy, RetryPolicy
from meeting_async._protocol.replies import ParsedReply, reply_error
from meeting_async.errors import (
    DocumentMisplaced,
    MeetingError,
    ReplyTooLarge,
    ResourceExhausted,
    TransportError,
    UploadInterrupted,
    UploadOutcomeUnknown,
)


class RetrySafety(enum.Enum):
    """How safe it is to send a call again."""

    AT_MOST_ONCE = "at_most_once"
    """An upload that must not appear twice."""
    AT_LEAST_ONCE = "at_least_once"
    """An upload that may appear twice."""
    EXACTLY_ONCE = "exactly_once"
    """An upload that must not appear twice; after an unknown outcome, evidence is asked for."""
    IDEMPOTENT = "idempotent"
    """A JSON call that changes nothing, or has the same effect each time."""
    NON_IDEMPOTENT = "non_idempotent"
    """Any other JSON call."""


_RETRYABLE: dict[Verdict, frozenset[RetrySafety]] = {
    Verdict.NEVER_SENT: frozenset(RetrySafety),
    Verdict.NO_ANSWER: frozenset(RetrySafety),
    Verdict.PARTIAL: frozenset(RetrySafety) - {RetrySafety.NON_IDEMPOTENT},
    Verdict.THROTTLED: frozenset(RetrySafety),
    Verdict.UNKNOWN: frozenset({RetrySafety.AT_LEAST_ONCE, RetrySafety.IDEMPOTENT}),
}
"""Which kinds of call are retried after which verdict; all others stop, except after BUSY."""


@attrs.frozen
class Done:
    """The call is accepted."""

    answer: ParsedReply


@attrs.frozen
class Stop:
    """The call has failed."""

    error: MeetingError


WaitKind = Literal["queue", "room", "retry", "alone", "evidence", "inactive"]
"""What an upload waits for: another upload of this application, the room's lock, its next attempt,
the end of all other uploads of the batch, evidence, or a session in the room."""


@attrs.frozen
class Wait:
    """Retry after this many seconds."""

    seconds: float
    kind: WaitKind = "retry"
    limit: str = ""
    """At the first retry of an outage: for how long, or how often, to retry, in words."""


# --- one call ------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Limits:
    """What limits the attempts of a call."""

    safety: RetrySafety
    retry: RetryPolicy = attrs.field(factory=RetryPolicy)
    lock: LockPolicy = attrs.field(factory=LockPolicy)
    may_ask: bool = True
    """Whether checks and probes may be sent (the option ``preflight``)."""
    began: float = -math.inf
    """When the call began."""
    ends_at: float = math.inf
    """When the call's ``timeout`` ends it."""
    size: int | None = None
    """Bytes of the document; ``None`` for a link and a JSON call."""
    is_office: bool = False
    """Whether the server converts the document with an office program. Of two such conversions at
    the same moment one fails, in any rooms (``docs/interface.md``, Seen on a running server)."""
    can_be_alone: bool = False
    """Whether the upload can wait until no other upload of its batch runs."""
    follows_sessions: bool = True
    """Whether a document that may have gone with its session is sent to the next one."""

    @property
    def is_upload(self) -> bool:
        """Whether the call sends a document to a room."""
        return self.safety not in {RetrySafety.IDEMPOTENT, RetrySafety.NON_IDEMPOTENT}

    @property
    def is_small(self) -> bool:
        """Whether sending the document costs hardly more than a probe; true for a link."""
        return (self.size or 0) <= PROBE_ABOVE

    @property
    def asks(self) -> bool:
        """Whether probes may be sent."""
        return self.may_ask and self.lock.probe

    def waiting(self, history: History) -> RoomWait:
        """Return how long an upload has waited for its room."""
        return RoomWait(history=history, policy=self.lock, asks=self.asks)


def asks_first(history: History, limits: Limits, server: Server) -> bool:
    """Return whether to send a probe before the document."""
    is_taken = history.was_sent or history.is_room_taken
    return limits.asks and (not limits.is_small or is_taken or server.fails_documents)


def outage_ends_at(history: History, limits: Limits, server: Server) -> float:
    """Return when an upload stops trying to reach the server; ``inf``: no outage, or no upload."""
    return _outage_began(history, limits, server) + limits.retry.max_outage


def _outage_began(history: History, limits: Limits, server: Server) -> float:
    """Return when the outage began for an upload; ``inf``: no outage, or no upload.

    That is when the call began or the first attempt of any call failed, whichever is later. Waits
    for a place or a session do not count.
    """
    unreached = history.unreached
    if not (limits.is_upload and unreached):
        return math.inf
    since = min(unreached[0].began, math.inf if server.away_since is None else server.away_since)
    pauses = [step.seconds for step in history.steps if step.kind in PAUSES and step.began > since]
    return max(limits.began, since) + sum(pauses)


def decide(
    history: History, limits: Limits, server: Server, now: float, random: float
) -> Done | Stop | Wait:
    """Decide what to do after the last step of a history."""
    return _Decision(history, limits, server, now, random).made()


def error_of(history: History, limits: Limits, server: Server, now: float) -> MeetingError:
    """Return the error for a call that ends with the last step of its history."""
    return _Decision(history, limits, server, now, 0.0).error()


@attrs.frozen
class _Decision:
    history: History
    limits: Limits
    server: Server
    now: float
    random: float

    @property
    def last(self) -> Step:
        return self.history.last

    @property
    def waiting(self) -> RoomWait:
        return self.limits.waiting(self.history)

    def made(self) -> Done | Stop | Wait:
        last = self.last
        is_lost = is_unknown(last) and self.limits.safety is RetrySafety.EXACTLY_ONCE
        if last.kind == "evidence" or is_lost:
            return self._after_doubt(last)
        if last.verdict is Verdict.ACCEPTED and last.answer is not None:
            return Done(last.answer)
        decision = self._after_failure(last)
        if isinstance(decision, Wait) and last.is_consumed:
            return Stop(_noted(self.error(), _READ_ONCE))
        return decision

    def _after_failure(self, last: Step) -> Stop | Wait:
        limits = self.limits
        if last.verdict is Verdict.BUSY and limits.is_upload:
            return self._wait_for_room(last)
        if self._may_have_clashed(last):
            return self._fitting(Wait(MIN_WAIT * (1 + self.random), "alone"))
        if last.verdict is None or limits.safety not in _RETRYABLE.get(last.verdict, ()):
            return Stop(self.error())
        if _is_final(last, is_upload=limits.is_upload):
            return Stop(self.error())
        if last.verdict in UNREACHED and limits.is_upload:
            return self._retry_connecting(last)
        if self._failures >= limits.retry.max_attempts or self._is_interrupted:
            return Stop(self.error())
        if not self.server.can_retry:
            return Stop(_noted(self.error(), _OVERDRAWN))
        if last.verdict is Verdict.UNKNOWN and limits.is_upload and not limits.asks:
            return self._wait_or_stop(max(limits.lock.window, MIN_WAIT))
        seconds = self._backoff(self._failures, last.hint)
        return self._wait_or_stop(seconds, self._limit_of_call(last))

    def _may_have_clashed(self, last: Step) -> bool:
        """Return whether to send an office document again, alone: its conversion has failed."""
        limits, failed = self.limits, self.history.failed_conversions
        is_likely = limits.is_office and limits.can_be_alone and is_failed_conversion(last)
        return is_likely and failed <= limits.retry.max_failed_conversions

    # --- evidence --------------------------------------------------------------------------------

    def _after_doubt(self, last: Step) -> Done | Stop | Wait:
        """Decide after a document of unknown outcome, or after evidence."""
        history, retry = self.history, self.limits.retry
        if last.verdict is Verdict.FOUND and history.answer is not None:
            return Done(history.answer)
        if last.proves:
            return self._after_loss(last)
        document = history.document or last
        seconds = evidence_wait(document, last, self.server, retry, self.now)
        if seconds is not None and not untellable(document, self.server):
            wait = Wait(max(seconds * (1 - JITTER * self.random), MIN_WAIT), "evidence")
            return wait if history.answer else self._fitting(wait)
        return Done(history.answer) if history.answer else Stop(self.error())

    def _after_loss(self, last: Step) -> Stop | Wait:
        """Decide after a proof that the document is not there: send it again, or stop."""
        history, limits = self.history, self.limits
        if history.answer is not None:
            size = limits.size
            return Stop(DocumentMisplaced(f"asking for its file: {last.reason}", size, size, 0.0))
        if history.unknown_since is not None and not limits.follows_sessions:
            return Stop(self.error())
        lost = sum(one.proves for one in history.steps)
        if history.document is not None and history.document.is_consumed:
            return Stop(_noted(self.error(), _READ_ONCE))
        if lost > limits.retry.max_interruptions:
            return Stop(self.error())
        return self._wait_or_stop(MIN_WAIT * (1 + self.random))

    # --- failures --------------------------------------------------------------------------------

    @property
    def _failures(self) -> int:
        """Failures that count for ``max_attempts``: all of documents, of others those in a row."""
        return sum(one.count for one in self._failed)

    @property
    def _failed(self) -> list[Step]:
        counted = {Verdict.PARTIAL, Verdict.THROTTLED, Verdict.UNKNOWN}
        if not self.limits.is_upload:
            counted = {*counted, Verdict.NEVER_SENT}
        found: list[Step] = []
        for one in self.history.steps:
            if one.kind == "evidence":
                continue
            if one.verdict in counted:
                found.append(one)
            elif one.verdict not in {None, *UNREACHED}:
                found = [one for one in found if one.kind == "document"]
        return found

    @property
    def _is_interrupted(self) -> bool:
        is_strict = self.limits.safety in {RetrySafety.AT_MOST_ONCE, RetrySafety.EXACTLY_ONCE}
        in_a_row = len(self.history.in_a_row(Verdict.PARTIAL))
        return is_strict and in_a_row > self.limits.retry.max_interruptions

    def _retry_connecting(self, last: Step) -> Stop | Wait:
        """Retry while the server cannot be reached, for ``max_outage`` seconds at most.

        The last wait is shortened. If the retry budget is empty, delays are long, and uploads do
        not end together, so that a server that comes back is not flooded.
        """
        retry = self.limits.retry
        left = outage_ends_at(self.history, self.limits, self.server) - self.now
        unreached = self.history.failed_to_reach
        # If a single attempt took so long, the process may have been suspended: try once more.
        is_frozen = unreached == 1 and last.ended - last.began >= retry.max_outage > 0
        if left <= 0 and not is_frozen:
            return Stop(self.error())
        if self.server.can_retry:
            seconds = self._backoff(unreached, last.hint)
        else:
            seconds, left = retry.max_delay * (0.5 + 0.5 * self.random), left + self.random
        limit = f"for up to {retry.max_outage:g} s" if self._is_first_of_outage(last) else ""
        return self._wait_or_stop(max(min(seconds, left), MIN_WAIT), limit)

    def _is_first_of_outage(self, last: Step) -> bool:
        if self.server.away_since is not None or isinstance(last.error, ResourceExhausted):
            return False
        return self.history.failed_to_reach <= 1

    def _limit_of_call(self, last: Step) -> str:
        """How often a JSON call is tried, in words; ``""`` except at its first failure."""
        is_first = last.verdict in UNREACHED and self._is_first_of_outage(last)
        is_first = is_first or (last.verdict is Verdict.UNKNOWN and self._failures == 1)
        is_first = is_first and not self.limits.is_upload
        return f"up to {self.limits.retry.max_attempts} attempts" if is_first else ""

    def _backoff(self, failures: int, hint: float | None) -> float:
        """Seconds before the next attempt; ``hint`` (Retry-After) makes them more, never fewer.

        The delay doubles with each failure; a random part of up to a half is subtracted ("equal
        jitter").
        """
        retry = self.limits.retry
        ceiling = retry.initial_delay * 2.0 ** min(failures - 1, 32)
        seconds = max(min(ceiling, retry.max_delay) * (0.5 + 0.5 * self.random), MIN_WAIT)
        if hint is None:
            return seconds
        return max(seconds, min(hint, retry.max_retry_after) * (1 + JITTER * self.random))

    def _wait_or_stop(self, seconds: float, limit: str = "") -> Stop | Wait:
        """Wait, or stop if the wait does not fit into the rest of a limit."""
        return self._fitting(Wait(seconds, limit=limit))

    def _fitting(self, wait: Wait) -> Stop | Wait:
        room = self.waiting
        is_limited = room.policy.max_wait is not None and self.history.is_room_taken
        if wait.kind == "evidence" and self.last.kind == "document":
            is_limited = False  # even with max_wait=0 evidence is asked for once
        room_time = room.time_left(self.now) if is_limited else math.inf
        if self.now + wait.seconds >= self.limits.ends_at or wait.seconds > room_time:
            is_sought = wait.kind == "evidence"
            return Stop(self._unknown(self.last, _NO_TIME) if is_sought else self.error())
        return wait

    def _wait_for_room(self, last: Step) -> Stop | Wait:
        seconds = self.waiting.next_wait(last.hint, self.now, self.random)
        if seconds is not None and self.now + seconds < self.limits.ends_at:
            return Wait(seconds, "room")
        limit = "timeout" if seconds is not None else self.waiting.limit
        return Stop(self.waiting.busy_error(last.answer, self.now, limit))

    # --- errors ----------------------------------------------------------------------------------

    def error(self) -> MeetingError:
        last, limits = self.last, self.limits
        error = self._error(last)
        if error is not last.error:
            error.__cause__ = last.error
        if not limits.is_upload:
            first = next(iter(self._failed), last)
            since = limits.began if first is self.history.steps[0] else first.began
            error.tried = self._tried(self._failures, last.ended - since)
        elif unreached := self.history.failed_to_reach:
            since = _outage_began(self.history, limits, self.server)
            error.tried = self._tried(unreached, last.ended - since)
        return error

    def _tried(self, attempts: int, seconds: float) -> str:
        """Return how often and how long it was tried, and whether certainly nothing was sent."""
        many = f"after {attempts} attempts in {seconds:.0f} s"
        one = f"after {seconds:.0f} s without a connection" if attempts and seconds >= 1 else ""
        verdicts = {step.verdict for step in self.history.steps} - {None}
        nothing = "nothing was sent" if verdicts <= UNREACHED else ""
        return "; ".join(filter(None, [many if attempts > 1 else one, nothing]))

    def _error(self, last: Step) -> MeetingError:
        limits, answer = self.limits, last.answer
        if last.proves and self.history.unknown_since is None:
            lost = sum(one.proves for one in self.history.steps)
            often = "once" if lost == 1 else f"{lost} times"
            return UploadInterrupted(f"lost {often}, and not there", "", limits.size or 0)
        if last.kind == "evidence" or is_unknown(last):
            return self._unknown(last)
        if limits.is_upload and last.verdict is Verdict.BUSY:
            return self.waiting.busy_error(answer, self.now)
        if last.kind == "document" and last.verdict is Verdict.PARTIAL:
            return UploadInterrupted(last.reason, getattr(last.error, "host", ""), last.sent)
        if isinstance(last.error, MeetingError):
            return last.error
        verdict = last.verdict or Verdict.UNKNOWN
        if verdict is Verdict.NO_ANSWER and answer is not None:
            verdict = Verdict.FAILED if answer.is_record else Verdict.UNKNOWN
        is_document = last.kind == "document"
        is_office = is_document and limits.is_office
        return reply_error(
            verdict, answer or ParsedReply(0), upload=is_document, is_office=is_office
        )

    def _unknown(self, last: Step, limit: str = "") -> UploadOutcomeUnknown:
        """Return the error for a document of unknown outcome, with why evidence did not help."""
        limits, document = self.limits, self.history.document or last
        sent = None if limits.size is None else document.sent
        free_in = max(0.0, document.ended + limits.lock.window - self.now)
        reason = document.reason
        if limits.safety is RetrySafety.EXACTLY_ONCE:
            seen = last.reason if last.kind == "evidence" else ""
            seen = untellable(document, self.server) or seen
            why = ", and ".join(filter(None, [seen, limit]))
            reason += f"; what became of it cannot be told: {why}"
        elif limits.safety is RetrySafety.AT_MOST_ONCE and self.server.shows_files:
            reason += '; with delivery="exactly_once" it would have been found out'
        return UploadOutcomeUnknown(reason, limits.size, sent, free_in)


# --- evidence ------------------------------------------------------------------------------------

CONFIRM_SECONDS = 5.0
"""Seconds during which evidence of an accepted document is asked for: a shared storage may lag."""

GRACE_SECONDS = 10.0
"""Seconds during which evidence is still asked for after ``RetryPolicy.settle_after``."""

EVIDENCE_SHARE = 0.25
"""Time between two requests for evidence, as a share of the time since the document was sent."""


NO_SESSION = "the server has named no session"
SESSION_ENDED = "its session has ended"


def untellable(document: Step, server: Server) -> str:
    """Return why evidence cannot tell what became of a document; ``""``: it can.

    A missing session is no reason if the server has shown a document: the next check may name it.
    """
    if not document.sent:
        return "it is a link"
    if not document.session and not server.shows_files:
        return NO_SESSION
    if document.since is not None:
        return ""
    return "the server has told no time, or an earlier upload of that name may still arrive"


def proves_loss(
    document: Step, server: Server, limits: Limits, asked_at: float, *, is_free: bool
) -> bool:
    """Return whether *not found* proves that a document is not there, and will not come.

    It does if the server has shown a document before, and nothing could still deliver this one when
    it was ``asked_at`` (an answer may come much later): no proxy (``settle_after`` is over), and
    not the server itself (then the room would be locked).
    """
    if not server.shows_files:
        return False
    age = asked_at - document.ended
    if document.verdict is Verdict.ACCEPTED:
        return age >= CONFIRM_SECONDS
    return age >= limits.retry.settle_after and (is_free or age >= limits.lock.window)


def evidence_wait(
    document: Step, last: Step, server: Server, retry: RetryPolicy, now: float
) -> float | None:
    """Return the seconds until evidence is asked for again; ``None``: not again."""
    age = now - document.ended
    if document.verdict is Verdict.ACCEPTED:
        may_be_late = last.verdict is Verdict.NOT_FOUND and server.shows_files is not False
        is_of_use = age < CONFIRM_SECONDS and (may_be_late or server.shows_files)
        return min(max(2 * age, 0.5), CONFIRM_SECONDS - age + MIN_WAIT) if is_of_use else None
    settled = retry.settle_after - age
    if settled <= 0:
        return 2.0 if -settled < GRACE_SECONDS else None
    # The last request must not come before ``settle_after``, though jitter shortens waits.
    return min(max(age * EVIDENCE_SHARE, 1.0), settled / (1 - JITTER) + MIN_WAIT)


def _is_final(last: Step, *, is_upload: bool) -> bool:
    """Return whether another attempt would fail in the same way."""
    if isinstance(last.error, TransportError) and last.error.permanent:
        return last.verdict in UNREACHED or not is_upload
    is_page = last.answer is not None and 200 <= last.answer.status < 300
    is_foreign = is_page and last.verdict is Verdict.UNKNOWN  # not from a meeting server
    return not is_upload and (is_foreign or isinstance(last.error, ReplyTooLarge))


def _noted(error: MeetingError, note: str) -> MeetingError:
    error.add_note(note)
    return error


_NO_TIME = "no time was left to look for it"
_READ_ONCE = "It was not tried again: the stream cannot be read a second time."
_OVERDRAWN = "It was not tried again: too many calls of this client had to be repeated recently."
