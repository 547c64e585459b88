"""What the rooms of a batch are doing: events in, a row for each active room. No clock, no I/O."""

from __future__ import annotations

import enum
from itertools import islice

import attrs

from meeting_async import (
    AttemptStarted,
    BytesSent,
    Event,
    Finished,
    Queued,
    RetryScheduled,
    WaitingForRoom,
    WaitingUntilActive,
)


class Phase(enum.Enum):
    """What the upload to a room is doing."""

    QUEUED = "waiting for its turn"
    SENDING = "sending"
    PROCESSING = "processing"
    LOCKED = "waiting for the lock"
    RETRYING = "trying again"
    INACTIVE = "waiting for the room to become active"


_MOVING = frozenset({Phase.SENDING, Phase.PROCESSING})


@attrs.define
class RoomRow:
    """A room with an upload under way. Times are seconds of the clock that is passed in."""

    room_id: str
    document: str
    phase: Phase = Phase.QUEUED
    attempt: int = 1
    share: float = 0.0
    """Part of the document that is out, 0 to 1."""
    sent: int = 0
    """Bytes that are out in this attempt."""
    due: float | None = None
    """When it goes on."""
    reason: str = ""

    @property
    def is_moving(self) -> bool:
        """Whether it sends or is answered, rather than waits."""
        return self.phase in _MOVING

    def words(self, now: float) -> str:
        """Say it in a few words."""
        due = f"{max(0.0, (self.due or now) - now):.0f} s"
        again = f" (attempt {self.attempt})" if self.attempt > 1 else ""
        match self.phase:
            case Phase.SENDING:
                return f"sending {int(100 * self.share)} %{again}"
            case Phase.PROCESSING:
                return f"processing{again}"
            case Phase.LOCKED:
                return f"waiting for the lock (attempt {self.attempt}, next in {due})"
            case Phase.RETRYING:
                return f"attempt {self.attempt + 1} in {due}: {self.reason}"
            case Phase.QUEUED if self.due is not None:
                return f"shut after an unknown outcome, goes on in {due}"
        return str(self.phase.value)


@attrs.define
class BatchRooms:
    """The active rooms, in two queues: where a document had to wait, and where none had to.

    A room keeps its place in its queue until its document is over, so that the oldest trouble is
    the first and rows do not jump about.
    """

    bytes_sent: int = attrs.field(default=0, init=False)
    """Bytes that went out to all rooms, delivered or not."""
    moving: int = attrs.field(default=0, init=False)
    """In how many rooms a document is sent or processed at the moment."""
    _troubled: dict[str, RoomRow] = attrs.field(factory=dict, init=False)
    _smooth: dict[str, RoomRow] = attrs.field(factory=dict, init=False)

    @property
    def active(self) -> int:
        """How many rooms have an upload under way."""
        return len(self._troubled) + len(self._smooth)

    def hear(self, event: Event, now: float) -> None:
        """Take an event of an upload; those of other calls say nothing about a document."""
        room_id, document = event.room_id, event.document
        if room_id is None or document is None:
            return
        if isinstance(event, Finished):
            self._remove(room_id)
            return
        row = self._troubled.get(room_id) or self._smooth.get(room_id)
        if row is None:
            row = self._smooth[room_id] = RoomRow(room_id, document)
        row.document = document
        self.moving -= row.is_moving
        self._change(row, event, now)
        self.moving += row.is_moving
        if not row.is_moving and room_id in self._smooth:
            self._troubled[room_id] = self._smooth.pop(room_id)

    def over(self, room_id: str) -> None:
        """Note an outcome in a room; by then the next document may be under way there.

        Only a wait for a room to become active ends without an event.
        """
        row = self._troubled.get(room_id)
        if row is not None and row.phase is Phase.INACTIVE:
            self._remove(room_id)

    def _remove(self, room_id: str) -> None:
        row = self._troubled.pop(room_id, None) or self._smooth.pop(room_id, None)
        self.moving -= row is not None and row.is_moving

    def visible(self, most: int) -> list[RoomRow]:
        """Return the rows to be shown: those in trouble, then the others, the oldest first.

        Neither kind takes more than half from the other.
        """
        troubled = max(most // 2, most - len(self._smooth))
        shown = list(islice(self._troubled.values(), troubled))
        return shown + list(islice(self._smooth.values(), most - len(shown)))

    def _change(self, row: RoomRow, event: Event, now: float) -> None:
        row.due = None
        match event:
            case Queued():
                row.phase, row.due = Phase.QUEUED, now + event.shut_for if event.shut_for else None
            case AttemptStarted():
                row.phase, row.attempt, row.share, row.sent = Phase.SENDING, event.attempt, 0.0, 0
            case BytesSent():
                self._send(row, event)
            case WaitingForRoom():
                row.phase, row.attempt = Phase.LOCKED, event.attempt
                row.due = now + event.retry_in
            case RetryScheduled():
                row.phase, row.attempt = Phase.RETRYING, event.attempt
                row.due, row.reason = now + event.retry_in, event.reason
            case WaitingUntilActive():
                row.phase = Phase.INACTIVE

    def _send(self, row: RoomRow, event: BytesSent) -> None:
        self.bytes_sent += event.sent - row.sent
        row.sent, row.share = event.sent, event.sent / event.total
        row.phase = Phase.SENDING if event.sent < event.total else Phase.PROCESSING
