"""Rooms: their state, their upload lock and the files they received (``docs/interface.md``)."""

from __future__ import annotations

import enum
import json
import math
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Literal

import attrs

from meeting_async.testing._settings import Clock, Settings

ENDING_SECONDS = 5.0
"""So long after its end a room is ROOM_NOT_ACTIVE; then it is ROOM_NOT_FOUND."""


@attrs.frozen(kw_only=True)
class ReceivedFile:
    """One file that a room accepted."""

    name: str
    """As the form carried it (raw UTF-8, RFC 7578 section 4.2)."""
    stored_name: str
    """The basename of at most 255 bytes under which the room lists it."""
    size: int
    """Bytes."""
    sha256: str
    """Lowercase hex."""
    content_type: str
    """As the sender declared it; ``""`` if nothing."""
    kind: str
    """What the content shows, for example ``"pdf"``."""
    via: Literal["document", "document_link"]
    """The form field that brought it."""
    at: float
    """When the upload was accepted, in seconds of the server's clock."""
    content: bytes | None = attrs.field(default=None, repr=False)
    """The bytes, if the server has ``keep_content=True``."""


class Outcome(enum.Enum):
    """How the conversion of an accepted upload ends."""

    CONVERTED = "converted"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@attrs.frozen
class Upload:
    """An accepted upload. When and how its conversion ends is fixed from the start."""

    file: ReceivedFile
    ends_at: float
    outcome: Outcome


@attrs.define(eq=False)
class Lock:
    """The right to upload to a room, until a moment of the server's clock."""

    until: float


@attrs.define(eq=False, repr=False)
class Room:
    """A room of a meeting server; every attribute and method may be used from any thread.

    ``active``, ``presenter`` (somebody with that role is there) and ``participants``, the names of
    the others, may be set at any time. ``processing_seconds`` overrides the server's setting for
    uploads accepted from now on; with ``fail_conversion`` their conversions fail.
    """

    room_id: str
    title: str
    active: bool
    presenter: bool
    participants: Sequence[str]
    _settings: Settings = attrs.field(alias="settings")
    _clock: Clock = attrs.field(alias="clock")
    processing_seconds: float | None = None
    fail_conversion: bool = False
    sid: str = attrs.field(init=False)
    _created: int = attrs.field(init=False)
    _gone_at: float = attrs.field(default=math.inf, init=False)
    _lock: Lock = attrs.field(factory=lambda: Lock(-math.inf), init=False)
    _holds: list[tuple[float, float]] = attrs.field(factory=list, init=False)
    """Start and length of the uploads of others that are still to come."""
    _uploads: list[Upload] = attrs.field(factory=list, init=False)
    _guard: threading.RLock = attrs.field(factory=threading.RLock, init=False)

    def __attrs_post_init__(self) -> None:
        self._begin_session()

    def __repr__(self) -> str:
        state = "active" if self.active else "not active"
        return f"<Room {self.room_id!r}, {state}, {len(self._uploads)} uploads accepted>"

    # --- files -----------------------------------------------------------------------------------

    @property
    def received(self) -> tuple[ReceivedFile, ...]:
        """The files on the whiteboard's list by now, in the order of acceptance."""
        now = self._clock.latest()
        with self._guard:
            return tuple(
                upload.file
                for upload in self._uploads
                if upload.outcome is Outcome.CONVERTED and upload.ends_at <= now
            )

    @property
    def accepted(self) -> tuple[ReceivedFile, ...]:
        """Every file accepted so far, whether its conversion goes on, ended or failed."""
        with self._guard:
            return tuple(upload.file for upload in self._uploads)

    # --- lock ------------------------------------------------------------------------------------

    @property
    def locked(self) -> bool:
        """Whether an upload would be refused with 409 now."""
        now = self._clock.latest()
        with self._guard:
            return self._is_locked(now)

    def lock(self, seconds: float | None = None, *, after: float | None = None) -> None:
        """Lock the room as somebody else's upload does.

        Args:
            seconds: How long; by default the server's ``lock_seconds``.
            after: In so many seconds, if the room is not locked then. By default now, whoever
                has the lock.

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
        """Free the room, whoever holds it."""
        now = self._clock.latest()
        with self._guard:
            self._is_locked(now)
            self._lock = Lock(-math.inf)

    def acquire(self) -> Lock | None:
        """Take the lock for ``lock_seconds``; None while somebody else has it."""
        now = self._clock.now()
        with self._guard:
            if self._is_locked(now):
                return None
            self._lock = Lock(now + self._settings.lock_seconds)
            return self._lock

    def release(self, lock: Lock) -> None:
        """Give the lock back before its time; no other lock of the room is touched."""
        now = self._clock.now()
        with self._guard:
            self._is_locked(now)
            lock.until = -math.inf

    def accept(self, lock: Lock, file: ReceivedFile, *, fails: bool) -> Upload:
        """Begin the conversion of ``file`` and hold the lock until it ends, never longer."""
        seconds = self.processing_seconds
        seconds = self._settings.processing_seconds if seconds is None else seconds
        with self._guard:
            ends_at = min(file.at + seconds, lock.until)
            outcome = Outcome.FAILED if fails or self.fail_conversion else Outcome.CONVERTED
            if file.at + seconds > lock.until:
                outcome = Outcome.TIMED_OUT
            upload = Upload(file, ends_at, outcome)
            self._uploads.append(upload)
            lock.until = ends_at
        return upload

    def _is_locked(self, now: float) -> bool:
        """Let the uploads of others that have come by now take the lock, if it was free then."""
        while self._holds and self._holds[0][0] <= now:
            start, seconds = self._holds.pop(0)
            if start >= self._lock.until:
                self._lock = Lock(start + seconds)
        return now < self._lock.until

    # --- session ---------------------------------------------------------------------------------

    def why_not_active(self) -> str:
        """Return the ``status_code`` for calls that need an active room; ``""`` if it is one."""
        if self.active:
            return ""
        is_gone = self._clock.now() >= self._gone_at
        return "ROOM_NOT_FOUND" if is_gone else "ROOM_NOT_ACTIVE"

    def open(self, title: str) -> None:
        """Begin a session with nobody in it, unless one is running."""
        if self.active:
            return
        self.active, self.presenter, self.participants = True, False, ()
        self.title = title
        self._begin_session()

    def _begin_session(self) -> None:
        self.sid = f"RM_{uuid.uuid4().hex[:12]}"
        self._created = int(time.time())
        self._gone_at = math.inf

    def join(self, name: str, *, as_presenter: bool) -> None:
        """Let somebody in."""
        if as_presenter:
            self.presenter = True
        else:
            self.participants = (*self.participants, name)

    def end(self) -> dict[str, object]:
        """End the session and return its record for the list of past rooms."""
        self.active = False
        self._gone_at = self._clock.now() + ENDING_SECONDS
        return {
            "room_title": self.title,
            "room_id": self.room_id,
            "room_sid": self.sid,
            "joined_participants": str(len(self._people())),
            "webhook_url": "",
            "created": _timestamp(self._created),
            "ended": _timestamp(int(time.time())),
        }

    def record(self) -> dict[str, object]:
        """Return the room and its people, as ``getActiveRoomInfo`` tells them."""
        return {"room_info": self.info(), "participants_info": self.participants_info()}

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
        """Return one record per person in the room, the presenter first."""
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


def _timestamp(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
