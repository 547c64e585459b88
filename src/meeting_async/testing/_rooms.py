"""Rooms: their state, their upload lock and the files they received (``docs/interface.md``)."""

from __future__ import annotations

import json
import math
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Literal

import attrs

from meeting_async.testing._files import OFFICE_KINDS
from meeting_async.testing._messages import Refused
from meeting_async.testing._settings import Clock, Settings

CONVERSION_FAILED = "the conversion failed"

ENDING_SECONDS = 5.0
"""Seconds for which an upload to an ended room gets ROOM_NOT_ACTIVE, and later ROOM_NOT_FOUND."""


@attrs.frozen(kw_only=True)
class ReceivedFile:
    """One file that a room accepted."""

    name: str
    """Name in the form (raw UTF-8, RFC 7578 section 4.2)."""
    stored_name: str
    """Name in the room's list: the basename, at most 255 bytes."""
    size: int
    """Bytes."""
    sha256: str
    """Lowercase hex."""
    content_type: str
    """Media type in the form; ``""`` if there is none."""
    kind: str
    """Kind detected from the content, for example ``"pdf"``."""
    via: Literal["document", "document_link"]
    """Name of the form field."""
    at: float
    """When the upload was accepted, in seconds of the server's clock."""
    session: str = ""
    """``sid`` of the session whose list it joined."""
    content: bytes | None = attrs.field(default=None, repr=False)
    """The bytes, if the server has ``keep_content=True``."""


@attrs.define(eq=False)
class Lock:
    """A lock of a room, until a time of the server's clock.

    With a file it is an accepted upload, whose conversion ends at that time.
    """

    until: float
    file: ReceivedFile | None = None
    problem: str = ""
    """Why the file is not converted; ``""`` if it is."""
    saved: float = 0.0
    """When the file was stored, in seconds since 1970."""
    saved_by: Contacts | None = None
    """Whose instance received the file."""


@attrs.define(eq=False, repr=False)
class Room:
    """A room of a meeting server; every attribute and method may be used from any thread.

    ``active``, ``presenter`` (whether a presenter is in the room) and ``participants`` (the names
    of the other users) may be set at any time. ``processing_seconds`` overrides the server's
    setting for uploads that are accepted after that; with ``fail_conversion`` their conversions
    fail.
    """

    room_id: str
    _settings: Settings
    _clock: Clock
    title: str = attrs.field(default=attrs.Factory(lambda room: room.room_id, takes_self=True))
    active: bool = False
    presenter: bool = False
    participants: Sequence[str] = ()
    processing_seconds: float | None = None
    fail_conversion: bool = False
    sid: str = attrs.field(init=False)
    """Id of the session; each session has its own."""
    _created: int = attrs.field(init=False)
    _gone_at: float = attrs.field(init=False)
    _lock: Lock = attrs.field(factory=lambda: Lock(-math.inf), init=False)
    _holds: list[tuple[float, float]] = attrs.field(factory=list, init=False)
    """Start and length of scheduled locks."""
    _uploads: list[Lock] = attrs.field(factory=list, init=False)
    _guard: threading.RLock = attrs.field(factory=threading.RLock, init=False)

    def __attrs_post_init__(self) -> None:
        self._begin_session()

    def __repr__(self) -> str:
        state = "active" if self.active else "not active"
        return f"<Room {self.room_id!r}, {state}, {len(self._uploads)} uploads accepted>"

    # --- files -----------------------------------------------------------------------------------

    @property
    def received(self) -> tuple[ReceivedFile, ...]:
        """The files in the session's list now, in the order of acceptance."""
        now = self._clock.latest()
        done = [lock.file for lock in self._uploads if lock.until <= now and not lock.problem]
        return tuple(file for file in done if file and file.session == self.sid)

    @property
    def accepted(self) -> tuple[ReceivedFile, ...]:
        """All files of all sessions, also those whose conversion still runs or has failed."""
        return tuple(lock.file for lock in self._uploads if lock.file)

    def stored(self, name: str) -> list[Lock]:
        """Return the uploads of that stored name in the session, unless it has ended."""
        uploads = [] if self.has_ended() else self._uploads
        return [
            lock
            for lock in uploads
            if (file := lock.file) and (file.session, file.stored_name) == (self.sid, name)
        ]

    def converts_office(self) -> bool:
        """Whether an office document of this room is in conversion now."""
        now = self._clock.now()
        running = [lock.file for lock in self._uploads if lock.until > now and not lock.problem]
        return any(file and file.kind in OFFICE_KINDS for file in running)

    # --- lock ------------------------------------------------------------------------------------

    @property
    def locked(self) -> bool:
        """Whether an upload would be refused with 409 now."""
        return self._is_locked(self._clock.latest())

    def lock(self, seconds: float | None = None, *, after: float | None = None) -> None:
        """Lock the room, like an upload of another client.

        Args:
            seconds: How long; by default the server's ``lock_seconds``.
            after: Lock the room this many seconds from now, if it is free then. By default lock it
                now, even if it is locked.

        """
        held = self._settings.lock_seconds if seconds is None else seconds
        if held < 0 or (after or 0) < 0:
            raise ValueError("the seconds of a lock must be at least 0")
        now = self._clock.now()
        with self._guard:
            if after is None:
                self._lock = Lock(now + held)
            else:
                self._holds = sorted([*self._holds, (now + after, held)])

    def unlock(self) -> None:
        """Free the room, also from the lock of an upload."""
        with self._guard:
            self._is_locked(self._clock.latest())
            self._lock = Lock(-math.inf)

    def acquire(self) -> Lock:
        """Acquire the lock for ``lock_seconds``; refused if the room is locked."""
        now = self._clock.now()
        with self._guard:
            if self._is_locked(now):
                raise Refused("CONFLICT", "another upload for this room is in progress")
            self._lock = Lock(now + self._settings.lock_seconds)
            return self._lock

    def release(self, lock: Lock) -> None:
        """Release this lock early; another lock of the room is not changed."""
        with self._guard:
            self._is_locked(self._clock.now())
            lock.until = -math.inf

    def accept(self, lock: Lock, file: ReceivedFile, *, problem: str, listed_in: Room) -> None:
        """Begin the conversion of ``file`` and hold the lock until it ends, never longer.

        The file joins the list of the room ``listed_in``, which is this one unless the server mixes
        up its rooms.
        """
        seconds = self.processing_seconds
        seconds = self._settings.processing_seconds if seconds is None else seconds
        with self._guard:
            lock.file = attrs.evolve(file, session=listed_in.sid)
            if file.at + seconds > lock.until:
                lock.problem = "the conversion timed out"
            else:
                lock.problem = problem or (CONVERSION_FAILED if self.fail_conversion else "")
            lock.until = min(file.at + seconds, lock.until)
            listed_in._uploads.append(lock)

    def _is_locked(self, now: float) -> bool:
        """Apply scheduled locks whose time has come, if the room was free then."""
        with self._guard:
            while self._holds and self._holds[0][0] <= now:
                start, seconds = self._holds.pop(0)
                if start >= self._lock.until:
                    self._lock = Lock(start + seconds)
            return now < self._lock.until

    # --- session ---------------------------------------------------------------------------------

    def has_ended(self) -> bool:
        """Whether the room's session was ended, not only switched off by ``active``."""
        return not self.active and self._gone_at < math.inf

    def is_gone(self) -> bool:
        """Whether the room has ended so long ago that it is forgotten."""
        return not self.active and self._clock.now() >= self._gone_at

    def open(self, title: str) -> None:
        """Begin a session with nobody in it, unless one is running."""
        if not self.active:
            self.active, self.presenter, self.participants = True, False, ()
            self.title = title
            self._begin_session()

    def _begin_session(self) -> None:
        self.sid = f"RM_{uuid.uuid4().hex[:12]}"
        self._created = int(time.time())
        self._gone_at = math.inf

    def join(self, name: str, *, as_presenter: bool) -> None:
        """Add a user."""
        if as_presenter:
            self.presenter = True
        else:
            self.participants = (*self.participants, name)

    def end(self) -> dict[str, object]:
        """End the session and return its record for the list of past rooms."""
        self.active = False
        self._gone_at = self._clock.now() + ENDING_SECONDS
        kept = ("room_title", "room_id", "joined_participants", "webhook_url")
        times = {"created": _timestamp(self._created), "ended": _timestamp(time.time())}
        return {name: self.info()[name] for name in kept} | {"room_sid": self.sid} | times

    def info(self) -> dict[str, object]:
        """Return the room record: 64-bit integers as strings, metadata as JSON text, flags 0/1."""
        return {
            "room_title": self.title,
            "room_id": self.room_id,
            "sid": self.sid,
            "joined_participants": str(len(self._people())),
            "is_running": int(self.active),
            "is_recording": 0,
            "is_active_rtmp": 0,
            "webhook_url": "",
            "is_breakout_room": 0,
            "parent_room_id": "",
            "creation_time": str(self._created),
            "metadata": json.dumps({"room_title": self.title}),
        }

    def participants_info(self) -> list[dict[str, object]]:
        """Return one record per user in the room, the presenter first."""
        return [
            {
                "sid": f"PA_{index:04}",
                "identity": f"{self.room_id}-{index}",
                "name": name,
                "state": "ACTIVE",
                "metadata": json.dumps({"is_presenter": is_presenter}),
                "joined_at": str(self._created),
                "version": 1,
            }
            for index, (name, is_presenter) in enumerate(self._people(), start=1)
        ]

    def _people(self) -> list[tuple[str, bool]]:
        presenter = [("Presenter", True)] if self.presenter else []
        return presenter + [(name, False) for name in self.participants]


def _timestamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


@attrs.define(eq=False)
class Contacts:
    """Which rooms the server has heard of since its start, for the setting ``mixes_up_rooms``."""

    asked: set[str] = attrs.field(factory=set)
    """Ids of the rooms about which ``getActiveRoomInfo`` was asked."""
    latest: Room | None = None
    """The room that the header ``Room-Id`` named last."""


@attrs.frozen(eq=False)
class Rooms:
    """All rooms by their id, and the records of past sessions."""

    settings: Settings
    clock: Clock = attrs.field(factory=Clock)
    by_id: dict[str, Room] = attrs.field(factory=dict)
    past: list[dict[str, object]] = attrs.field(factory=list)
    contacts: Contacts = attrs.field(factory=Contacts)

    def get(self, room_id: str) -> Room:
        """Return a room; if it does not exist, add it, not active and without users."""
        return self.by_id.setdefault(room_id, Room(room_id, self.settings, self.clock))

    def stored(self, sid: str, name: str) -> Lock | None:
        """Return the latest upload of that name that this instance finds in its storage now."""
        before = self.clock.now() - self.settings.stored_files_after
        for room in tuple(self.by_id.values()):
            for lock in room.stored(name)[::-1] if room.sid == sid else ():
                is_here = self.settings.stored_files == "shared" or lock.saved_by is self.contacts
                if is_here and lock.file and lock.file.at <= before:
                    return lock
        return None

    def office_is_busy(self) -> bool:
        """Whether an office document fails now, as another one is in conversion in any room."""
        rooms = tuple(self.by_id.values())
        return self.settings.office_documents_clash and any(r.converts_office() for r in rooms)

    def list_for(self, room: Room) -> Room:
        """Return the room that lists an upload to ``room``: that one, or a mixed-up one."""
        latest, self.contacts.latest = self.contacts.latest, room
        is_mixed_up = self.settings.mixes_up_rooms and room.room_id not in self.contacts.asked
        return latest if is_mixed_up and latest else room

    def active(self, room_id: str, *, for_upload: bool = False) -> Room:
        """Return an active room; refused if it does not exist or is not active.

        A room that has just ended is not active for an upload, and does not exist for a call.
        """
        room = self.by_id.get(room_id)
        if room is None or room.is_gone() or (room.has_ended() and not for_upload):
            raise Refused("ROOM_NOT_FOUND", "the room does not exist")
        if not room.active:
            raise Refused("ROOM_NOT_ACTIVE", "the room is not active")
        return room
