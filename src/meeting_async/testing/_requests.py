"""What was asked of the server: one record per request, without keys and signatures."""

import threading

import attrs
from starlette.types import Scope


@attrs.frozen(kw_only=True)
class RecordedRequest:
    """A request as the server saw it so far.

    ``room_id`` is the Room-Id header's or the JSON body's, None if there is none. ``status`` is
    the HTTP status answered, whether or not anybody still listened, and None while (or because)
    nothing was answered. ``body_bytes`` counts the bytes of the body that have arrived. ``at`` is
    when the request began, in seconds of the server's clock.
    """

    method: str
    path: str
    room_id: str | None
    status: int | None
    body_bytes: int
    at: float


@attrs.define(eq=False)
class Entry:
    """The line of a request in the log, filled in as the request goes on."""

    method: str
    path: str
    at: float
    room_id: str | None = None
    status: int | None = None
    body_bytes: int = 0

    def snapshot(self) -> RecordedRequest:
        """Return what is known by now."""
        return RecordedRequest(**attrs.asdict(self))


@attrs.define(eq=False)
class RequestLog:
    """All requests in the order of their arrival; usable from any thread."""

    _entries: list[Entry] = attrs.field(factory=list, init=False)
    _guard: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def open(self, scope: Scope, at: float) -> Entry:
        """Begin the line of a request."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        entry = Entry(scope["method"], path, at)
        with self._guard:
            self._entries.append(entry)
        return entry

    def snapshot(self) -> list[RecordedRequest]:
        """Return all lines as they stand."""
        with self._guard:
            return [entry.snapshot() for entry in self._entries]
