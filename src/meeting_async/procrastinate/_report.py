"""What became of queued uploads: outcomes, the report of a batch, and what waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

import attrs

from meeting_async._batch.results import BatchReport, UploadOutcome
from meeting_async._text import link_label
from meeting_async.errors import BatchFailed, UploadOutcomeUnknown
from meeting_async.procrastinate._table import Row


@attrs.define(kw_only=True, repr=False)
class QueueReport(BatchReport):
    """The results of a batch in a queue so far."""

    queued: int = 0
    """Documents that have no outcome yet."""
    scheduled: int = 0
    """Those of them whose time has not come."""
    due: int = 0
    """Those of them whose time has come, and that wait for older ones of the room, or a worker."""
    due_for: float = 0.0
    """Seconds for which one of these waits at most."""
    began: datetime | None = None
    """When the first upload was deferred; ``None``: the server has no such batch."""

    def _add_queued(self, due_for: float | None) -> None:
        self.queued += 1
        if due_for is not None:
            self.scheduled += due_for < 0
            self.due += due_for >= 0
            self.due_for = max(self.due_for, due_for)

    def raise_for_failures(self) -> None:
        """Raise unless every document is in its room; what is queued is not.

        Raises:
            BatchFailed: With the numbers, and the first upload that failed.

        """
        super().raise_for_failures()
        if self.queued:
            raise BatchFailed(
                total=self.total + self.queued,
                refused=0,
                failed=0,
                unknown=0,
                skipped=self.queued,
                first=f"{self.queued:,} documents have no outcome yet",
            )


@attrs.frozen(kw_only=True)
class RoomStatus:
    """What is queued for a room."""

    room_id: str
    waiting: int
    scheduled: int
    """Documents whose time has not come."""
    running: int
    oldest: float
    """Seconds for which the oldest one is queued; negative: until its time."""
    cause: str | None
    """Why the last run was put back; ``None``: there was none."""


@attrs.frozen
class QueueStatus:
    """What is queued for a server."""

    workers: int
    """Workers that have sent a heartbeat lately, of all queues of the database."""
    rooms: Sequence[RoomStatus]
    """The one with the oldest document first."""

    @property
    def waiting(self) -> int:
        """Documents that wait."""
        return sum(room.waiting for room in self.rooms)

    @property
    def scheduled(self) -> int:
        """Documents whose time has not come."""
        return sum(room.scheduled for room in self.rooms)

    @property
    def running(self) -> int:
        """Documents that are being sent."""
        return sum(room.running for room in self.rooms)

    @property
    def oldest(self) -> float | None:
        """Seconds for which the oldest document is queued; ``None``: nothing is due."""
        ages = [room.oldest for room in self.rooms if room.waiting or room.running]
        return max(ages, default=None)

    @property
    def causes(self) -> Mapping[str, int]:
        """Why documents wait, and how many, those behind them included."""
        causes = Counter[str]()
        for room in self.rooms:
            if room.waiting:
                causes[room.cause or "their turn, or a worker"] += room.waiting
        return dict(causes.most_common())


def outcome_of(row: Row, index: int, began: datetime, window: float) -> UploadOutcome | None:
    """Return the outcome of an upload of a batch; ``None``: it has none yet.

    ``began`` is the beginning of the batch, ``window`` the longest lock in seconds.
    """
    state = row.state
    if state == "ready" or state == "sent":  # noqa: PLR1714 - narrows the type
        return None
    label = link_label(row.source) if row.kind == "link" else row.filename or row.source
    error = row.error
    if error is not None:
        error.room_id, error.attempts = row.room_id, row.attempts
        error.document = error.document or label
    if isinstance(error, UploadOutcomeUnknown):
        error.size = error.bytes_sent = row.size
        error.lock_free_in = max(0.0, window - (row.sent_ago or 0.0))
    started = row.started_at or row.changed_at
    return UploadOutcome(
        index=index,
        room_id=row.room_id,
        document=label,
        status=state,
        size=row.size,
        key=row.key,
        session=row.session,
        started=(started - began).total_seconds(),
        seconds=(row.changed_at - started).total_seconds(),
        attempts=row.attempts,
        error=error,
    )
