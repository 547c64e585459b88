"""What all parts of a meeting server share, and the log of what was asked of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import attrs

from meeting_async.testing._faults import Faults
from meeting_async.testing._links import HostedFiles
from meeting_async.testing._messages import Reply
from meeting_async.testing._rooms import Room
from meeting_async.testing._settings import Clock, Settings

_logger = logging.getLogger("meeting_async.testing")


@attrs.frozen(kw_only=True)
class RecordedRequest:
    """A request as the server saw it so far; as text it is one line."""

    method: str
    path: str
    room_id: str | None
    """The Room-Id header's or the JSON body's."""
    status: int | None
    """The HTTP status answered, whether or not anybody still listened; None while (or because)
    nothing was answered."""
    status_code: str
    """The name in the server's own record; ``""`` for other answers."""
    body_bytes: int
    """Bytes of the body that have arrived."""
    at: float
    """When the request began, in seconds of the server's clock."""
    seconds: float | None
    """How long it took; None while it goes on."""

    def __str__(self) -> str:
        answer = "no answer" if self.status is None else f"{self.status} {self.status_code}".strip()
        room = f" {self.room_id}" if self.room_id else ""
        seconds = "" if self.seconds is None else f" {self.seconds:.2f} s"
        line = f"{self.method} {self.path}{room} {answer} {self.body_bytes:,} bytes{seconds}"
        return "".join(c if c.isprintable() else "?" for c in line)


@attrs.define(eq=False)
class Entry:
    """The line of a request in the log, filled in as the request goes on."""

    method: str
    path: str
    at: float
    room_id: str | None = None
    status: int | None = None
    status_code: str = ""
    body_bytes: int = 0
    seconds: float | None = None

    def answer(self, reply: Reply) -> None:
        """Note what is answered."""
        self.status, self.status_code = reply.status, reply.status_code

    def snapshot(self) -> RecordedRequest:
        """Return what is known by now."""
        return RecordedRequest(**attrs.asdict(self))


@attrs.define(eq=False)
class RequestLog:
    """All requests in the order of their arrival; usable from any thread."""

    on_request: Callable[[RecordedRequest], object] | None = None
    _entries: list[Entry] = attrs.field(factory=list, init=False)
    _guard: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def open(self, method: str, path: str, at: float) -> Entry:
        """Begin the line of a request."""
        entry = Entry(method, path, at)
        with self._guard:
            self._entries.append(entry)
        return entry

    def close(self, entry: Entry, at: float) -> None:
        """Complete the line of a request and tell it."""
        entry.seconds = at - entry.at
        if self.on_request is None:
            return
        try:
            self.on_request(entry.snapshot())
        except Exception:
            _logger.exception("on_request failed")

    def snapshot(self) -> list[RecordedRequest]:
        """Return all lines as they stand."""
        with self._guard:
            return [entry.snapshot() for entry in self._entries]


@attrs.frozen(eq=False)
class State:
    """Settings, clock, rooms by id, past sessions, scripted faults, requests, hosted files."""

    settings: Settings
    log: RequestLog
    clock: Clock = attrs.field(factory=Clock)
    rooms: dict[str, Room] = attrs.field(factory=dict)
    past: list[dict[str, object]] = attrs.field(factory=list)
    faults: Faults = attrs.field(factory=Faults)
    hosted: HostedFiles = attrs.field(factory=HostedFiles)

    def room(self, room_id: str) -> Room:
        """Return a room; one that is not there is added, not active and with nobody in it."""
        if room_id not in self.rooms:
            self.rooms[room_id] = Room(
                room_id=room_id,
                title=room_id,
                active=False,
                presenter=False,
                participants=(),
                settings=self.settings,
                clock=self.clock,
            )
        return self.rooms[room_id]

    def why_not_active(self, room_id: str) -> str:
        """Return the ``status_code`` for a call that needs this room active; ``""`` if it is."""
        room = self.rooms.get(room_id)
        return "ROOM_NOT_FOUND" if room is None else room.why_not_active()
