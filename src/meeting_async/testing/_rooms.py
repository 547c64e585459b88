"""A room: its state, its upload lock and the files it received (interface section 3)."""

import enum
import json
import math
import threading
import time
import uuid
from collections.abc import Sequence

import attrs

from ._clock import Clock
from ._files import ReceivedFile
from ._settings import Settings


class Outcome(enum.Enum):
    """How the conversion of an accepted upload ends."""

    CONVERTED = "converted"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@attrs.frozen
class Upload:
    """An accepted upload, with the end of its conversion (server's clock) already fixed."""

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

    ``active`` and ``presenter`` (somebody with that role is there) may be set at any time, and so
    may ``participants``, the names of the others. ``processing_seconds`` overrides the server's
    setting for uploads accepted from now on; with ``fail_conversion`` their conversions fail.
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
    sid: str = attrs.field(factory=lambda: f"RM_{uuid.uuid4().hex[:12]}", init=False)
    _created: int = attrs.field(factory=lambda: int(time.time()), init=False)
    _lock: Lock = attrs.field(factory=lambda: Lock(-math.inf), init=False)
    _uploads: list[Upload] = attrs.field(factory=list, init=False)
    _guard: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def __repr__(self) -> str:
        state = "active" if self.active else "not active"
        return f"<Room {self.room_id!r}, {state}, {len(self._uploads)} uploads accepted>"

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

    @property
    def locked(self) -> bool:
        """Whether an upload would be refused with 409 now."""
        return self._clock.latest() < self._lock.until

    def lock(self, seconds: float | None = None) -> None:
        """Lock the room as somebody else's upload does (default: the server's ``lock_seconds``)."""
        held = self._settings.lock_seconds if seconds is None else seconds
        with self._guard:
            self._lock = Lock(self._clock.now() + held)

    def unlock(self) -> None:
        """Free the room, whoever holds it."""
        with self._guard:
            self._lock = Lock(-math.inf)

    def acquire(self) -> Lock | None:
        """Take the lock for ``lock_seconds``; None while somebody else has it."""
        now = self._clock.now()
        with self._guard:
            if now < self._lock.until:
                return None
            self._lock = Lock(now + self._settings.lock_seconds)
            return self._lock

    def release(self, lock: Lock) -> None:
        """Give the lock back before its time; no other lock of the room is touched."""
        lock.until = -math.inf

    def accept(self, lock: Lock, file: ReceivedFile) -> Upload:
        """Begin the conversion of ``file`` and hold the lock until it ends, never longer."""
        seconds = self.processing_seconds
        done_at = file.at + (self._settings.processing_seconds if seconds is None else seconds)
        with self._guard:
            ends_at = min(done_at, lock.until)
            upload = Upload(file, ends_at, self._outcome(done_at, lock))
            self._uploads.append(upload)
            lock.until = ends_at
        return upload

    def info(self) -> dict[str, object]:
        """Return the room record: 64-bit integers as strings, metadata as JSON text, flags 0/1."""
        people = self._people()
        return {
            "room_title": self.title,
            "room_id": self.room_id,
            "sid": self.sid,
            "joined_participants": str(len(people)),
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

    def _outcome(self, done_at: float, lock: Lock) -> Outcome:
        if done_at > lock.until:
            return Outcome.TIMED_OUT
        return Outcome.FAILED if self.fail_conversion else Outcome.CONVERTED
