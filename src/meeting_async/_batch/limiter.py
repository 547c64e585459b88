"""How many uploads are in flight at the same time: permits, given in the scheduler's order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
import attrs

from meeting_async._batch.scheduler import RoomScheduler

T = TypeVar("T")


@attrs.define(eq=False)
class ConcurrencyLimiter(Generic[T]):
    """Permits: held while a document is prepared, sent and answered, and never in a wait."""

    scheduler: RoomScheduler[T]
    begin: Callable[[str, T], None]
    """Called with a room and its job, which begins with a permit."""
    limit: int = 1
    in_use: int = attrs.field(default=0, init=False)

    def set_limit(self, limit: int) -> None:
        """Change how many permits there are."""
        self.limit = limit
        self.dispatch()

    def dispatch(self) -> None:
        """Give out what is free. Call it when a job was added or a room has finished."""
        while self.in_use < self.limit and (candidate := self.scheduler.next()) is not None:
            self.in_use += 1
            if candidate.granted is not None:
                candidate.granted()
            elif candidate.job is not None:
                self.begin(candidate.room, candidate.job)

    def release(self) -> None:
        """Give a permit back."""
        self.in_use -= 1
        self.dispatch()

    async def acquire(self, room: str) -> None:
        """Wait for a permit for a job that has begun, and waited since."""
        granted = anyio.Event()
        candidate = self.scheduler.rejoin(room, granted.set, self.limit)
        self.dispatch()
        try:
            await granted.wait()
        except BaseException:
            if granted.is_set():
                self.release()
            else:
                self.scheduler.withdraw(candidate)
            raise
