"""Events go to the log, to ``on_event`` and to observers; their exceptions do not end a call."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import attrs

from meeting_async import _events
from meeting_async._events import Event, OnEvent
from meeting_async._log import logger
from meeting_async._models import Verdict
from meeting_async._text import short_repr
from meeting_async.errors import ConfigurationError, UploadPutBack

PROGRESS_INTERVAL = 0.1
"""Seconds between two progress events of an attempt: ten per second look smooth."""

OBSERVER_SHARE = 0.1
"""Largest share of the time spent in progress callbacks: a slow one gets fewer events."""


_CALL = "call %(call)d, %(operation)s on %(server_host)s%(target)s: "

_MESSAGES: dict[type[Event], tuple[int, str]] = {
    _events.Queued: (logging.INFO, _CALL + "waits behind other uploads of this application"),
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
        _CALL + "%(verdict)s in %(seconds).2f s; attempts: %(attempts)d; %(ended)s",
    ),
}

_FINISHED_LEVELS = {Verdict.ACCEPTED: logging.DEBUG, Verdict.UNKNOWN: logging.ERROR}


@attrs.define
class Observer:
    """Logs events and passes them to the call's ``on_event`` and to the session's observers."""

    callback: OnEvent | None = None
    observers: Sequence[OnEvent] = ()
    _next_progress: float = 0.0

    def wants(self, kind: type[Event], facts: Mapping[str, Any]) -> bool:
        """Return whether an event with these facts would be logged or passed on."""
        is_heard = self.callback is not None or bool(self.observers)
        return is_heard or _is_logged(_level(kind, facts))

    def emit(
        self, kind: type[Event], facts: Mapping[str, Any], common: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Log an event and pass it on; it is made only if it is wanted.

        ``common`` returns the facts that all events of the call have.
        """
        if not self.wants(kind, facts):
            return
        event, level = kind(**common(), **facts), _level(kind, facts)
        if _is_logged(level):
            _log(level, event)
        if self.callback is not None:
            _notify(self.callback, event)
        for observer in self.observers:
            _notify(observer, event)

    def emit_progress(self, event: _events.BytesSent, *, is_last: bool) -> None:
        """Pass progress on, at most ten times a second, and less often to a slow callback."""
        began = anyio.current_time()
        if self.callback is None or (began < self._next_progress and not is_last):
            return
        _notify(self.callback, event)
        now = anyio.current_time()
        self._next_progress = now + max(PROGRESS_INTERVAL, (now - began) / OBSERVER_SHARE)


def check_callback(_instance: object, _field: object, value: Any) -> None:
    """Validate ``on_event``: it must be a plain function.

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
    with harmless():
        result: object = callback(event)  # type: ignore[func-returns-value]  # a lambda's
        if inspect.iscoroutine(result):
            result.close()
            _warn_once(callback)


def _warn_once(callback: OnEvent) -> None:
    function = getattr(callback, "__func__", callback)  # each access makes a new bound method
    with suppress(TypeError):  # no support for weak references
        if function in _warned:
            return
        _warned.add(function)
    text = "on_event %s returned a coroutine, which is not awaited: give a plain function"
    logger.warning(text, short_repr(callback), extra=_OBSERVER)


_warned: weakref.WeakSet[OnEvent] = weakref.WeakSet()


@contextmanager
def harmless() -> Iterator[None]:
    """Log what an observer raises; the call goes on."""
    try:
        yield
    # A plain function cannot be cancelled, so it has raised a cancellation exception itself.
    except (Exception, anyio.get_cancelled_exc_class()):
        logger.warning("an observer raised; the call goes on", exc_info=True, extra=_OBSERVER)


_OBSERVER = {"action": "observer"}


def _level(kind: type[Event], facts: Mapping[str, Any]) -> int:
    """Return the level at which an event is logged; 0: not at all."""
    if facts.get("limit"):
        return logging.WARNING
    if kind is not _events.Finished:
        return _MESSAGES.get(kind, (0, ""))[0]
    if isinstance(facts["error"], UploadPutBack):
        return logging.INFO
    return _FINISHED_LEVELS.get(facts["verdict"], logging.WARNING)


def _is_logged(level: int) -> bool:
    return level > 0 and logger.isEnabledFor(level)


def _log(level: int, event: Event) -> None:
    facts = _fields(event)
    named = (("room", event.room_id), ("document", event.document))
    target = "".join(f", {kind} {name}" for kind, name in named if name is not None)
    limit = facts.get("limit")
    how_long = f", {limit}" if limit else ""
    texts = {"target": target, "how_long": how_long, "ended": _ended(event)}
    logger.log(level, _MESSAGES[type(event)][1], facts | texts, extra=facts)


def _fields(event: Event) -> dict[str, Any]:
    """Return the fields of a log record: strings and numbers.

    ``host`` and ``error`` are renamed: the Elastic Common Schema has objects of these names.
    """
    facts = {"action": type(event).__name__, **attrs.asdict(event, recurse=False)}
    facts["server_host"] = facts.pop("host")
    if "error" in facts:
        error = facts.pop("error")
        facts["error_type"] = None if error is None else type(error).__name__
        facts["error_message"] = None if error is None else str(error)
    return facts


def _ended(event: Event) -> str:
    """Return how a call ended, in words."""
    if not isinstance(event, _events.Finished) or event.verdict is Verdict.ACCEPTED:
        return "no error"
    if event.error is None:
        return "it was cancelled, or an exception ended it that is not of this library"
    return f"error: {event.error}"
