"""Which room is next: jobs in order per room, the room with the most left to do first.

Rooms are chains: one document after another. With rooms side by side, beginning with the longest
chain ends soonest (for jobs of one length that is Hu's algorithm of 1961, and optimal). Every step
takes constant time, on average over many.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import attrs

T = TypeVar("T")


@attrs.define
class RoomQueues(Generic[T]):
    """Jobs that were not begun yet, per room."""

    _queues: dict[str, deque[T]] = attrs.field(factory=dict, init=False)
    _busy: set[str] = attrs.field(factory=set, init=False)
    """Rooms in which a job was begun and is not over."""
    _ready: list[dict[str, None]] = attrs.field(factory=lambda: [{}], init=False)
    """Rooms that have jobs and are not busy, by the number of their jobs, oldest first."""
    _longest: int = attrs.field(default=0, init=False)
    _total: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        """Jobs in all queues."""
        return self._total

    def __contains__(self, room: str) -> bool:
        """Whether the room has jobs, begun or not."""
        return room in self._queues or room in self._busy

    @property
    def longest(self) -> int:
        """Jobs in the longest queue of a room that is not busy."""
        while self._longest and not self._ready[self._longest]:
            self._longest -= 1
        return self._longest

    def left(self, room: str) -> int:
        """Jobs of a room that were not begun."""
        return len(self._queues.get(room, ()))

    def put(self, room: str, job: T) -> None:
        """Append a job to its room's queue."""
        queue = self._queues.setdefault(room, deque())
        if room not in self._busy:
            self._remove_ready(room, len(queue))
            self._add_ready(room, len(queue) + 1)
        queue.append(job)
        self._total += 1

    def take(self) -> tuple[str, T] | None:
        """Begin the first job of the room with most of them; its room is busy until `done`."""
        if not self.longest:
            return None
        room = next(iter(self._ready[self._longest]))
        queue = self._queues[room]
        self._remove_ready(room, len(queue))
        self._busy.add(room)
        self._total -= 1
        job = queue.popleft()
        if not queue:
            del self._queues[room]
        return room, job

    def done(self, room: str) -> None:
        """Note that the job that was begun in a room is over."""
        self._busy.remove(room)
        if room in self._queues:
            self._add_ready(room, len(self._queues[room]))

    def drain(self, room: str) -> deque[T]:
        """Take all jobs out of a room's queue."""
        queue = self._queues.pop(room, deque())
        if room not in self._busy:
            self._remove_ready(room, len(queue))
        self._total -= len(queue)
        return queue

    def drain_all(self) -> list[T]:
        """Take all jobs out of all queues."""
        return [job for room in list(self._queues) for job in self.drain(room)]

    def _add_ready(self, room: str, length: int) -> None:
        while len(self._ready) <= length:
            self._ready.append({})
        self._ready[length][room] = None
        self._longest = max(self._longest, length)

    def _remove_ready(self, room: str, length: int) -> None:
        if length:
            del self._ready[length][room]
