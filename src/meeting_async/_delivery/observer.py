"""Events go to the log, to ``on_event`` and to observers, whose exceptions do not end a call."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import Any

import anyio
import attrs

from meeting_async import _events
from meeting_async._events import Event, OnEvent
from meeting_async._log import logger
from meeting_async._models import Verdict
from meeting_async._text import short_repr
from meeting_async.errors import ConfigurationError, MeetingError, UploadPutBack

PROGRESS_INTERVAL = 0.1
"""Seconds between two progress events of an attempt: ten per second look smooth."""

OBSERVER_SHARE = 0.1
"""Largest share of the time for progress events: a slow callback gets fewer of them."""


_CALL = "call %(call)d, %(operation)s on %(host)s%(target)s: "

_MESSAGES: dict[type[Event], tuple[int, str]] = {
    _events.Queued: (logging.INFO, _CALL + "waits behind another upload of this application"),
    _events.AttemptStarted: (logging.DEBUG, _CALL + "attempt %(attempt)d"),
    _events.WaitingForRoom: (
        logging.INFO,
        _CALL + "the room is locked, again in %(retry_in).1f s (waited %(waited).1f s)",
    ),
    _events.WaitingUntilActive: (
        logging.INFO,
        _CALL + "the room is not active, again in %(retry_in).1f s (waited %(waited).1f s)",
    ),
    _events.RetryScheduled: (
        logging.INFO,
        _CALL
        + "attempt %(attempt)d: %(verdict)s, again in %(retry_in).1f s%(how_long)s (%(reason)s)",
    ),
    _events.Finished: (
        logging.WARNING,
        _CALL + "%(verdict)s in %(seconds).2f s; attempts: %(attempts)d; error: %(error)s",
    ),
}

_FINISHED_LEVELS = {Verdict.ACCEPTED: logging.DEBUG, Verdict.UNKNOWN: logging.ERROR}


@attrs.define
class Observer:
    """Logs events and passes them to the callback and to the observers of the session.

    Their exceptions do not end the call.
    """

    callback: OnEvent | None = None
    observers: Sequence[OnEvent] = ()
    _next_progress: float = 0.0

    def emit(self, event: Event) -> None:
        """Log an event and pass it on."""
        _log(event)
        if self.callback is not None:
            _notify(self.callback, event)
        for observer in self.observers:
            _notify(observer, event)

    def ignores(self, level: int) -> bool:
        """Return whether an event of this level would go nowhere, so that it need not be made."""
        is_logged = level and logger.isEnabledFor(level)
        return self.callback is None and not self.observers and not is_logged

    def emit_progress(self, event: _events.BytesSent, *, is_last: bool) -> None:
        """Pass progress on, at most ten times a second, and less often to a slow callback."""
        began = anyio.current_time()
        if self.callback is None or (began < self._next_progress and not is_last):
            return
        _notify(self.callback, event)
        now = anyio.current_time()
        self._next_progress = now + max(PROGRESS_INTERVAL, (now - began) / OBSERVER_SHARE)


def check_callback(_instance: object, _field: object, value: Any) -> None:
    """Validate an ``on_event``: a plain function.

    Raises:
        ConfigurationError: It is a coroutine function, or not callable.

    """
    if not callable(value):
        fix = "give a function that takes an event"
        raise ConfigurationError("on_event", short_repr(value), "is not callable", fix)
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(value.__call__):
        problem = "is a coroutine function, but it is not awaited"
        fix = "give a plain function; let it put the event into a queue for what must be awaited"
        raise ConfigurationError("on_event", short_repr(value), problem, fix)


def _notify(callback: OnEvent, event: Event) -> None:
    try:
        callback(event)
    # A plain function cannot be cancelled, so a cancellation exception is its own error.
    except (Exception, anyio.get_cancelled_exc_class()):
        logger.warning("an observer raised; the call goes on", exc_info=True, extra=_OBSERVER)


_OBSERVER = {"action": "observer"}


def level_of(kind: type[Event], *, is_warning: bool = False) -> int:
    """Return the level at which such an event is logged; 0: not at all."""
    return logging.WARNING if is_warning else _MESSAGES.get(kind, (0, ""))[0]


def finished_level(verdict: Verdict, error: MeetingError | None) -> int:
    """Return the level at which the end of a call is logged."""
    if isinstance(error, UploadPutBack):
        return logging.INFO
    return _FINISHED_LEVELS.get(verdict, logging.WARNING)


def _log(event: Event) -> None:
    level, message = _MESSAGES.get(type(event), (0, ""))
    if isinstance(event, _events.Finished):
        level = finished_level(event.verdict, event.error)
    limit = event.limit if isinstance(event, _events.RetryScheduled) else ""
    if limit:
        level = logging.WARNING
    if level and logger.isEnabledFor(level):
        facts = attrs.asdict(event, recurse=False)
        named = (("room", event.room_id), ("document", event.document))
        target = "".join(f", {kind} {name}" for kind, name in named if name is not None)
        extra = {"action": type(event).__name__, **facts}
        texts = {"target": target, "how_long": limit and f", {limit}"}
        logger.log(level, message, facts | texts, extra=extra)
