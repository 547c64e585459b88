"""A running call: its number, time limit, attempts, errors and events."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

import anyio
import anyio.lowlevel
import attrs
from tenacity import AsyncRetrying, RetryCallState, retry_if_result

from meeting_async import _events
from meeting_async._clock import Clock, clock_of
from meeting_async._delivery.observer import Observer, check_callback
from meeting_async._delivery.retry import AttemptResult, Done, RetryState, Stop, Wait
from meeting_async._delivery.session import Options, Session, call_numbers
from meeting_async._events import OnEvent
from meeting_async._log import logger
from meeting_async._models import Attempt, Verdict, bytes_resent, bytes_sent
from meeting_async._protocol.replies import ParsedReply
from meeting_async._text import short_repr
from meeting_async.errors import (
    DeadlineExceeded,
    InvalidInput,
    MeetingError,
    RequestRefused,
    ResourceExhausted,
    RoomBusy,
    RoomNotActive,
    RoomNotFound,
    TransportError,
    UploadOutcomeUnknown,
)

P = ParamSpec("P")


@attrs.define
class AttemptLog:
    """The attempts of a call, or of all calls of a job, and whether one may have arrived."""

    attempts: list[Attempt] = attrs.field(factory=list, init=False)
    unknown_since: float | None = attrs.field(default=None, init=False)
    """When the last upload of unknown outcome ended, on the event loop's clock."""
    answer: ParsedReply | None = attrs.field(default=None, init=False)
    """The answer that accepted an upload. What comes after it does not change the outcome."""

    def add(self, result: AttemptResult, *, call_began: float, is_upload: bool) -> None:
        """Add the result of an attempt."""
        if result.verdict is Verdict.UNKNOWN and is_upload:
            self.unknown_since = result.ended
        if result.verdict is Verdict.ACCEPTED and is_upload:
            self.answer = result.answer
        self.attempts.append(
            Attempt(
                number=len(self.attempts) + 1,
                started=result.began - call_began,
                seconds=result.ended - result.began,
                verdict=result.verdict,
                status=result.answer.status if result.answer else None,
                reason=result.reason,
                bytes_sent=result.bytes_sent,
                body_seconds=result.body_seconds,
            )
        )

    def verdict(self, error: BaseException | None) -> Verdict:
        """Return the verdict on the whole call; ``error`` ended it."""
        if error is None or self.answer is not None:
            return Verdict.ACCEPTED
        if self.unknown_since is not None:
            return Verdict.UNKNOWN
        if isinstance(error, RoomBusy):
            return Verdict.BUSY
        if isinstance(error, RequestRefused):  # the room check may have been refused, too
            return Verdict.REFUSED
        return self.attempts[-1].verdict if self.attempts else Verdict.NEVER_SENT

    def unknown(
        self, reason: str, now: float, *, size: int | None, window: float
    ) -> UploadOutcomeUnknown:
        """Return the error for an upload that may have arrived; ``window``: longest lock."""
        if self.attempts and self.attempts[-1].verdict is not Verdict.UNKNOWN:
            reason = f"an earlier attempt was lost, then: {reason}"
        sent = max((attempt.bytes_sent for attempt in self.attempts), default=0)
        elapsed = now - (self.unknown_since or 0.0)
        return UploadOutcomeUnknown(
            reason, size, sent if size is not None else None, max(0.0, window - elapsed)
        )


@attrs.define(kw_only=True, eq=False)
class Call:
    """A running call."""

    session: Session
    options: Options
    loop: anyio.lowlevel.EventLoopToken
    operation: str
    room_id: str
    """``""`` if the request names no room."""
    observer: Observer
    log: AttemptLog
    key: str | None
    index: int | None
    began: float
    document: str | None = attrs.field(default=None, init=False)
    """Name of the document, once known."""
    size: int | None = attrs.field(default=None, init=False)
    """Bytes of the document, once known; ``None`` for a link and a JSON call."""
    phase: str = attrs.field(default="starting", init=False)
    """What the call is doing, as words that can follow "while"."""
    retry_state: RetryState | None = attrs.field(default=None, init=False)
    """Once the arguments are checked."""
    ends_at: float = attrs.field(default=math.inf, init=False)
    """When ``timeout`` ends it, on the event loop's clock."""
    number: int = attrs.field(factory=lambda: next(call_numbers), init=False)
    now: Clock = attrs.field(init=False)
    _earlier: tuple[Attempt, ...] = attrs.field(init=False)
    """Attempts of earlier calls of the same job."""

    def __attrs_post_init__(self) -> None:
        self.now = clock_of(self.loop)
        self._earlier = tuple(self.log.attempts)

    # --- events ----------------------------------------------------------------------------------

    def emit(self, kind: type[_events.Event], **facts: Any) -> None:
        """Emit an event to the log, to ``on_event`` and to the observers of the session."""
        self.observer.emit(kind, facts, self._facts)

    def emit_progress(self, sent: int, total: int) -> None:
        """Emit the progress of the document."""
        if self.observer.callback is not None:
            attempt = len(self.log.attempts) + 1
            event = _events.BytesSent(**self._facts(), attempt=attempt, sent=sent, total=total)
            self.observer.emit_progress(event, is_last=sent == total)

    def _facts(self) -> dict[str, Any]:
        return {
            "call": self.number,
            "operation": self.operation,
            "host": self.session.host,
            "room_id": self.room_id or None,
            "document": self.document,
            "key": self.key,
            "index": self.index,
        }

    # --- attempts --------------------------------------------------------------------------------

    def record(self, result: AttemptResult, *, is_upload: bool) -> None:
        """Add an attempt to the log, and tell the session what it says of the server."""
        self.log.add(result, call_began=self.began, is_upload=is_upload)
        verdict, session = result.verdict, self.session
        if verdict is Verdict.FAILED:
            session.forget(self.room_id)
        elif verdict in _LOST and _is_of_server(result):
            session.forget_all()
        if is_upload and verdict is Verdict.ACCEPTED:
            session.settle_doubt(self.room_id)

    def apply_decision(self, state: RetryState, result: AttemptResult) -> ParsedReply | Wait:
        """Return the answer or the wait after an attempt, or raise the error that ends the call."""
        decision = state.decide(result, self.now(), random.random())
        if isinstance(decision, Done):
            return decision.answer
        if isinstance(decision, Stop):
            raise decision.error
        if decision.is_for_room:
            self.emit_room_wait(state, decision)
        else:
            self.phase = f"waiting to try again after {result.reason}"
            self.emit(
                _events.RetryScheduled,
                attempt=len(self.log.attempts),
                retry_in=decision.seconds,
                verdict=result.verdict,
                reason=result.reason,
                limit=decision.limit,
            )
        return decision

    def emit_room_wait(self, state: RetryState, wait: Wait) -> None:
        """Emit that the room is locked."""
        self.phase = "waiting for the room's lock"
        self.emit(
            _events.WaitingForRoom,
            attempt=len(self.log.attempts),
            retry_in=wait.seconds,
            waited=state.room.waited(self.now()),
            max_wait=state.room.policy.max_wait,
        )

    def leave_doubt(self) -> None:
        """Put the room in doubt if this upload may have arrived: the next one then asks first."""
        if self.log.unknown_since is not None and self.log.answer is None:
            self.session.put_in_doubt(self.room_id, self.log.unknown_since)

    # --- the end ---------------------------------------------------------------------------------

    def add_facts_to(self, error: MeetingError) -> None:
        """Add the facts of the call to an error."""
        error.operation = error.operation or self.operation
        error.room_id = error.room_id or self.room_id or None
        if getattr(error, "document", None) is None:
            error.document = self.document
        error.attempts = error.attempts or tuple(self.log.attempts)

    def final(self, error: Exception) -> Exception:
        """Return the error to raise: every error of an upload that may have arrived says so."""
        if self.log.unknown_since is None or isinstance(error, UploadOutcomeUnknown):
            return error
        if isinstance(error, DeadlineExceeded):
            reason = f"the timeout of {error.seconds:g} s ended it while {error.phase}"
        else:
            reason = str(error) or type(error).__name__
        window = self.options.lock.window
        return self.log.unknown(reason, self.now(), size=self.size, window=window)

    def finish(self, error: BaseException | None) -> None:
        """Emit the last event of the call."""
        ours = error if isinstance(error, MeetingError) else None
        if ours is not None:
            self.add_facts_to(ours)
        if isinstance(error, RoomNotFound | RoomNotActive):
            self.session.forget(self.room_id)
        verdict, state = self.log.verdict(error), self.retry_state
        locked_until = state.room.locked_until if state else None
        if locked_until is not None and verdict is not Verdict.ACCEPTED:
            self.session.seen_locked(self.room_id, locked_until)
        attempts, earlier, now = self.log.attempts, self._earlier, self.now()
        self.emit(
            _events.Finished,
            verdict=verdict,
            attempts=len(attempts) - len(earlier),
            seconds=now - self.began,
            bytes_sent=bytes_sent(attempts) - bytes_sent(earlier),
            bytes_resent=bytes_resent(attempts) - bytes_resent(earlier),
            waited=state.room.waited(now) if state else 0.0,
            error=ours,
        )


_LOST = {Verdict.NEVER_SENT, Verdict.PARTIAL, Verdict.UNKNOWN}


def _is_of_server(result: AttemptResult) -> bool:
    """Return whether a lost attempt may come from a restart of the server."""
    if result.answer is not None or result.verdict is Verdict.UNKNOWN:
        return True
    is_transport = isinstance(result.error, TransportError)
    return is_transport and not isinstance(result.error, ResourceExhausted)


def new_call(
    session: Session,
    options: Options,
    operation: str,
    room_id: object,
    *,
    on_event: OnEvent | None = None,
    log: AttemptLog | None = None,
    key: str | None = None,
    index: int | None = None,
    began: float | None = None,
) -> Call:
    """Make a call with a new number; its own ``on_event`` replaces the client's.

    A caller with a ``log`` of its own has the attempts also after a cancellation. ``key``,
    ``index`` and ``began`` belong to a job of a batch; its ``timeout`` counts from ``began``.
    """
    if on_event is not None:
        check_callback(None, None, on_event)
    loop = anyio.lowlevel.current_token()
    return Call(
        session=session,
        options=options,
        loop=loop,
        operation=operation,
        room_id=room_id if isinstance(room_id, str) else "",
        observer=Observer(options.on_event if on_event is None else on_event, session.observers),
        log=AttemptLog() if log is None else log,
        key=key,
        index=index,
        began=clock_of(loop)() if began is None else began,
    )


@asynccontextmanager
async def running(call: Call, timeout: float | None) -> AsyncGenerator[None, None]:
    """Apply the call's timeout, and emit its first and its last event, exactly once each.

    If an attempt of an upload may have arrived, every error becomes ``UploadOutcomeUnknown``. What
    the server has accepted stays accepted: an error after that is logged, and the block just ends.
    """
    try:
        call.emit(_events.Started)
        with call.session.in_use(call.loop):
            if timeout is None:
                yield
            else:
                async with _limited(call, checked_seconds(timeout)):
                    yield
    except Exception as error:
        if call.log.answer is not None:
            logger.warning(_AFTERWARDS, call.number, exc_info=True, extra={"action": "Afterwards"})
            call.finish(None)
            return
        final = call.final(error)
        call.finish(final)
        if final is error:
            raise
        raise final from error
    except BaseException as error:
        call.finish(error)
        raise
    call.finish(None)


_AFTERWARDS = "call %d was accepted; what came after that has failed"


@asynccontextmanager
async def _limited(call: Call, timeout: float) -> AsyncGenerator[None, None]:
    call.ends_at = call.began + timeout
    with anyio.CancelScope(deadline=call.ends_at) as scope:
        yield
    if scope.cancelled_caught:
        raise DeadlineExceeded(timeout, call.phase)


def checked_seconds(timeout: float) -> float:
    """Return a caller's ``timeout``, which must be a positive number."""
    if type(timeout) not in {int, float} or not timeout > 0:
        problem, fix = "is not a positive number of seconds", "give seconds, or None for no limit"
        raise InvalidInput("timeout", short_repr(timeout), problem, fix)
    return timeout


# --- the loop ------------------------------------------------------------------------------------


async def retry_loop(
    attempt: Callable[P, Awaitable[ParsedReply | Wait]], *args: P.args, **kwargs: P.kwargs
) -> ParsedReply:
    """Attempt until there is an answer.

    tenacity begins with the second attempt: it takes 27 µs each time, 7 % of a small call.
    """
    outcome = await attempt(*args, **kwargs)
    if not isinstance(outcome, Wait):
        return outcome
    await anyio.sleep(outcome.seconds)
    retrying = AsyncRetrying(sleep=anyio.sleep, retry=retry_if_result(_is_wait), wait=_seconds)
    answer: ParsedReply = await retrying(attempt, *args, **kwargs)
    return answer


def _is_wait(outcome: object) -> bool:
    return isinstance(outcome, Wait)


def _seconds(state: RetryCallState) -> float:
    outcome = state.outcome.result() if state.outcome else None
    return outcome.seconds if isinstance(outcome, Wait) else 0.0
