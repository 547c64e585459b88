"""A running call: its number, time limit, history, errors and events."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, TypeGuard

import anyio
import anyio.lowlevel
import attrs

from meeting_async import _events
from meeting_async._clock import Clock, clock_of
from meeting_async._delivery.history import History, Step
from meeting_async._delivery.observer import Observer, check_callback
from meeting_async._delivery.room_wait import RoomWait
from meeting_async._delivery.session import Options, Session, call_numbers
from meeting_async._events import OnEvent
from meeting_async._log import logger
from meeting_async._models import UNREACHED, Attempt, Verdict, bytes_resent, bytes_sent, count_of
from meeting_async._protocol.signing import key_hint
from meeting_async._text import one_line, short_repr
from meeting_async.errors import (
    AuthenticationFailed,
    DeadlineExceeded,
    InvalidInput,
    MeetingError,
    UploadOutcomeUnknown,
    UploadPutBack,
)


@attrs.define(eq=False)
class Call:
    """A running call."""

    session: Session
    options: Options
    loop: object
    operation: str
    room_id: str
    """``""``: the call is about no room."""
    observer: Observer
    history: History
    key: str | None
    index: int | None
    began: float
    timeout: float | None
    """Seconds for the whole call, not checked yet: :func:`running` does that."""
    ends_at: float
    """When the timeout ends the call, on the event loop's clock; ``inf``: never."""
    document: str | None = None
    """Name of the document, once known."""
    size: int | None = None
    """Bytes of the document, once known; ``None`` for a link and a JSON call."""
    phase: str = "starting"
    """What the call is doing, in words that can follow "while"."""
    number: int = attrs.field(factory=lambda: next(call_numbers))
    now: Clock = attrs.field(init=False)
    _earlier: tuple[Attempt, ...] = attrs.field(init=False)
    """Attempts of earlier calls of the same job."""

    def __attrs_post_init__(self) -> None:
        self.now = clock_of(self.loop)
        self._earlier = tuple(self.history.attempts)

    # --- events ----------------------------------------------------------------------------------

    def emit(self, kind: type[_events.Event], **facts: Any) -> None:
        """Emit an event to the log, to ``on_event`` and to the observers of the session."""
        self.observer.emit(kind, facts, self._facts)

    def emit_progress(self, sent: int, total: int) -> None:
        """Emit the progress of the document."""
        if self.observer.callback is not None:
            attempt = self.history.attempted + 1
            event = _events.BytesSent(**self._facts(), attempt=attempt, sent=sent, total=total)
            self.observer.emit_progress(event, is_last=sent == total)

    def _facts(self) -> dict[str, Any]:
        """Return the fields that all events share; a caller's text becomes one line."""
        return {
            "call": self.number,
            "operation": one_line(self.operation),
            "host": self.session.host,
            "room_id": one_line(self.room_id) or None,
            "document": self.document,
            "key": self.key,
            "index": self.index,
        }

    def record(self, step: Step) -> None:
        """Add a step to the history, and to what all calls know of the server."""
        was_retried = any(attempt.verdict in _REPEATED for attempt in self.history.attempts)
        self.history.add(step, call_began=self.began)
        self.session.server.learn(step, was_retried=was_retried)

    # --- the end ---------------------------------------------------------------------------------

    def add_facts_to(self, error: MeetingError) -> None:
        """Add the facts of the call to an error."""
        facts = self._facts()
        error.operation = error.operation or facts["operation"]
        error.room_id = error.room_id or facts["room_id"]
        if getattr(error, "document", None) is None:
            error.document = self.document
        if isinstance(error, AuthenticationFailed) and error.status_code == "INVALID_API_KEY":
            error.hint = key_hint(self.session.signer)
        error.session = self.history.session
        error.attempts = error.attempts or tuple(self.history.attempts)

    def final(self, error: Exception) -> Exception:
        """Return the error to raise: `UploadOutcomeUnknown` if the document may have arrived."""
        is_told = isinstance(error, UploadOutcomeUnknown | UploadPutBack)  # put back: not the end
        if self.history.unknown_since is None or is_told:
            return error
        if isinstance(error, MeetingError):
            self.add_facts_to(error)
        if isinstance(error, DeadlineExceeded):
            reason = f"the timeout of {error.seconds:g} s ended it while {error.phase}"
        else:
            reason = str(error) or type(error).__name__
        window = self.options.lock.window
        return self.history.unknown(reason, self.now(), size=self.size, window=window)

    def add_note_to(self, cancellation: BaseException) -> None:
        """Add a note to a cancellation: the document was accepted, or may have arrived."""
        name, room = short_repr(self.document), short_repr(self.room_id)
        if self.history.answer is not None:
            cancellation.add_note(f"{name} was accepted by room {room} before this")
        elif self.history.unknown_since is not None:
            look = "look into the room before sending it again"
            cancellation.add_note(f"{name} may have arrived in room {room}: {look}")

    def finish(self, error: BaseException | None) -> None:
        """Emit the last event of the call."""
        ours = error if isinstance(error, MeetingError) else None
        if ours is not None:
            self.add_facts_to(ours)
        verdict = self.history.verdict(error)
        if self.observer.wants(_events.Finished, {"verdict": verdict, "error": ours}):
            self._emit_finished(verdict, ours)
        self.history.forget_reply()

    def _emit_finished(self, verdict: Verdict, ours: MeetingError | None) -> None:
        attempts, earlier, now = self.history.attempts, self._earlier, self.now()
        self.emit(
            _events.Finished,
            verdict=verdict,
            attempts=self.history.attempted - count_of(earlier),
            seconds=now - self.began,
            bytes_sent=bytes_sent(attempts) - bytes_sent(earlier),
            bytes_resent=bytes_resent(attempts) - bytes_resent(earlier),
            waited=RoomWait(history=self.history, policy=self.options.lock).waited(now),
            error=ours,
        )


_REPEATED = {*UNREACHED, Verdict.PARTIAL, Verdict.THROTTLED, Verdict.UNKNOWN}


def new_call(
    session: Session,
    options: Options,
    operation: str,
    room_id: object,
    *,
    on_event: OnEvent | None = None,
    history: History | None = None,
    key: str | None = None,
    index: int | None = None,
    began: float | None = None,
    timeout: float | None = None,
) -> Call:
    """Make a call with a new number; its own ``on_event`` replaces the client's.

    Pass a ``history`` to have it after a cancellation, too. ``key``, ``index`` and ``began`` belong
    to a job of a batch; ``timeout`` (seconds) counts from ``began``.
    """
    if on_event is not None:
        check_callback(None, None, on_event)
    loop = anyio.lowlevel.current_token()
    began = clock_of(loop)() if began is None else began
    return Call(
        session=session,
        options=options,
        loop=loop,
        operation=operation,
        room_id=room_id if isinstance(room_id, str) else "",
        observer=Observer(options.on_event if on_event is None else on_event, session.observers),
        history=History() if history is None else history,
        key=key,
        index=index,
        began=began,
        timeout=timeout,
        ends_at=began + timeout if _is_seconds(timeout) else math.inf,
    )


@asynccontextmanager
async def running(call: Call) -> AsyncGenerator[None, None]:
    """Apply the call's timeout, and emit its first and its last event, exactly once each.

    If the document may have arrived, an error becomes ``UploadOutcomeUnknown`` (not
    ``UploadPutBack``). If it was accepted, an error is logged, and the block ends without one.

    Raises:
        DeadlineExceeded: The timeout is over.
        InvalidInput: The timeout is not a positive number.

    """
    try:
        call.emit(_events.Started)
        with call.session.in_use(call.loop):
            if call.timeout is None:
                yield
            else:
                async with _limited(call, checked_seconds(call.timeout)):
                    yield
    except Exception as error:
        if call.history.answer is not None:
            logger.warning(_AFTERWARDS, call.number, exc_info=True, extra={"action": "Afterwards"})
            call.finish(None)
            return
        final = call.final(error)
        call.finish(final)
        if final is error:
            raise
        raise final from error
    except BaseException as error:
        call.add_note_to(error)
        call.finish(error)
        raise
    call.finish(None)


_AFTERWARDS = "call %d was accepted; what came after that has failed"


@asynccontextmanager
async def _limited(call: Call, timeout: float) -> AsyncGenerator[None, None]:
    with anyio.CancelScope(deadline=call.ends_at) as scope:
        yield
    if scope.cancelled_caught:
        raise DeadlineExceeded(timeout, call.phase)


def _is_seconds(timeout: object) -> TypeGuard[float]:
    return isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0


def checked_seconds(timeout: float) -> float:
    """Return a ``timeout`` in seconds; `InvalidInput` if it is not a positive number."""
    if not _is_seconds(timeout):
        problem, fix = "is not a positive number of seconds", "give seconds, or None for no limit"
        raise InvalidInput("timeout", short_repr(timeout), problem, fix)
    return timeout
