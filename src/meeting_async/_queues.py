"""Which room is next: jobs in order per room, the room with the most left to do first.

Rooms are chains: one document after another. With rooms side by side, beginning with the longest
chain ends soonest (for jobs of one length that is Hu's algorithm of 1961, and optimal). Now and
then it is the turn of the room that has stood there for longest, so that a short queue is not
passed by for as long as long ones are filled up. Every step takes constant time, on average over
many, but for the moving of a long queue's pointers.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

import attrs

T = TypeVar("T")

PATIENCE = 64
"""So many rooms are chosen by length, then one by age."""


@attrs.define
class RoomQueues(Generic[T]):
    """Jobs that were not begun yet, per room."""

    _queues: dict[str, list[T]] = attrs.field(factory=dict, init=False)
    """Lists: a deque takes 760 bytes, be it for one job, and moving the pointers of the thousands
    of jobs that a window lets into one room takes a microsecond."""
    _busy: set[str] = attrs.field(factory=set, init=False)
    """Rooms in which a job was begun and is not over."""
    _ready: dict[int, OrderedDict[str, None]] = attrs.field(factory=dict, init=False)
    """Rooms that have jobs and are not busy, by the number of their jobs, oldest first.

    Not in plain dicts: to find the first entry of one takes as long as many were deleted before it.
    """
    _waiting: OrderedDict[str, None] = attrs.field(factory=OrderedDict, init=False)
    """The same rooms in the order in which they became ready."""
    _longest: int = attrs.field(default=0, init=False)
    _total: int = attrs.field(default=0, init=False)
    _passed: int = attrs.field(default=0, init=False)
    """Rooms chosen by length since one was chosen by age."""

    def __len__(self) -> int:
        """Jobs in all queues."""
        return self._total

    def __contains__(self, room: str) -> bool:
        """Whether the room has jobs, begun or not."""
        return room in self._queues or room in self._busy

    @property
    def longest(self) -> int:
        """Jobs in the longest queue of a room that is not busy."""
        while self._longest and self._longest not in self._ready:
            self._longest -= 1
        return self._longest

    def left(self, room: str) -> int:
        """Jobs of a room that were not begun."""
        return len(self._queues.get(room, ()))

    def put(self, room: str, job: T) -> None:
        """Append a job to its room's queue."""
        queue = self._queues.setdefault(room, [])
        if room not in self._busy:
            self._remove_ready(room, len(queue))
            self._add_ready(room, len(queue) + 1)
            self._waiting[room] = None
        queue.append(job)
        self._total += 1

    def take(self) -> tuple[str, T] | None:
        """Begin the first job of the room whose turn it is; the room is busy until `done`."""
        if not self._waiting:
            return None
        room = self._next()
        queue = self._queues[room]
        self._remove_ready(room, len(queue))
        del self._waiting[room]
        self._busy.add(room)
        self._total -= 1
        job = queue.pop(0)
        if not queue:
            del self._queues[room]
        return room, job

    def done(self, room: str) -> None:
        """Note that the job that was begun in a room is over."""
        self._busy.remove(room)
        if room in self._queues:
            self._add_ready(room, len(self._queues[room]))
            self._waiting[room] = None

    def drain(self, room: str) -> list[T]:
        """Take all jobs out of a room's queue."""
        queue = self._queues.pop(room, [])
        if room not in self._busy:
            self._remove_ready(room, len(queue))
            self._waiting.pop(room, None)
        self._total -= len(queue)
        return queue

    def drain_all(self) -> list[T]:
        """Take all jobs out of all queues."""
        return [job for room in list(self._queues) for job in self.drain(room)]

    def _next(self) -> str:
        """Choose a room that is ready."""
        self._passed += 1
        if self._passed > PATIENCE:
            self._passed = 0
            return next(iter(self._waiting))
        return next(iter(self._ready[self.longest]))

    def _add_ready(self, room: str, length: int) -> None:
        self._ready.setdefault(length, OrderedDict())[room] = None
        self._longest = max(self._longest, length)

    def _remove_ready(self, room: str, length: int) -> None:
        """Take a room out; of no length it is not in."""
        if length:
            rooms = self._ready[length]
            del rooms[room]
            if not rooms:
                del self._ready[length]
