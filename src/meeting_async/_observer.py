"""Telling what goes on: to the log, and to the caller's ``on_event``, which can break nothing."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable

import anyio
import attrs

from meeting_async import _events
from meeting_async._events import Event, OnEvent

PROGRESS_INTERVAL = 0.1
"""Seconds between two progress events of an attempt: ten a second look smooth to an eye."""

OBSERVER_LIMIT = 1.0
"""Seconds an asynchronous observer gets for one event before it is cut off."""

logger = logging.getLogger("meeting_async")
logger.addHandler(logging.NullHandler())  # whoever embeds the library decides where its log goes

_MESSAGES: dict[type[Event], tuple[int, str]] = {
    _events.Queued: (logging.DEBUG, "call %(call)d: queued for room %(room_id)r"),
    _events.AttemptStarted: (
        logging.DEBUG,
        "call %(call)d: %(operation)s attempt %(attempt)d, room %(room_id)r",
    ),
    _events.WaitingForRoom: (
        logging.INFO,
        "call %(call)d: room %(room_id)r is busy, next attempt in %(retry_in).1f s",
    ),
    _events.RetryScheduled: (
        logging.WARNING,
        "call %(call)d: attempt %(attempt)d: %(verdict)s (%(reason)s), again in %(retry_in).1f s",
    ),
    _events.Finished: (
        logging.DEBUG,
        "call %(call)d: %(verdict)s after %(attempts)d attempts and %(seconds).2f s",
    ),
}


@attrs.define
class Observer:
    """Passes events on. Whatever an observer does, the call goes on as if it had not."""

    callback: OnEvent | None = None
    _next_progress: float = 0.0

    def ignores(self, kind: type[Event]) -> bool:
        """Tell whether nobody would notice such an event; then it need not even be made."""
        return self.callback is None and not logger.isEnabledFor(_message(kind)[0])

    async def tell(self, event: Event) -> None:
        """Log the event and hand it to the caller's callback."""
        _log(event)
        if self.callback is None:
            return
        result = self._called(self.callback, event)
        if inspect.isawaitable(result):
            await _within_limit(result)

    def _called(self, callback: OnEvent, event: Event) -> object:
        try:
            return callback(event)
        # A function that awaits nothing cannot be cancelled: what looks like that is its own doing.
        except (Exception, anyio.get_cancelled_exc_class()):
            logger.warning(_RAISED, exc_info=True, extra=_OBSERVER)
            return None

    def wants_progress(self, *, done: bool) -> bool:
        """Tell whether progress is due: not more often than an eye can follow, and at the end."""
        now = anyio.current_time()
        if self.callback is None or (now < self._next_progress and not done):
            return False
        self._next_progress = now + PROGRESS_INTERVAL
        return True


async def _within_limit(result: Awaitable[object]) -> None:
    # In a task of its own: a CancelledError that it raises itself is then no cancellation of ours.
    try:
        with anyio.move_on_after(OBSERVER_LIMIT) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(_awaited, result)
    except BaseExceptionGroup as stops:  # what ends the program: KeyboardInterrupt, SystemExit
        raise stops.exceptions[0] from None
    if scope.cancelled_caught:
        logger.warning("on_event took over %g s and was cut off", OBSERVER_LIMIT, extra=_OBSERVER)


async def _awaited(result: Awaitable[object]) -> None:
    try:
        await result
    except Exception:
        logger.warning(_RAISED, exc_info=True, extra=_OBSERVER)


_RAISED = "on_event raised; the call goes on"
_OBSERVER = {"action": "observer"}


def _message(kind: type[Event]) -> tuple[int, str]:
    return _MESSAGES.get(kind, (logging.DEBUG, ""))


def _log(event: Event) -> None:
    level, message = _message(type(event))
    if message and logger.isEnabledFor(level):
        facts = attrs.asdict(event, recurse=False)
        logger.log(level, message, facts, extra={"action": type(event).__name__})
