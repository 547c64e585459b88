"""Which job is next, and how many run at the same time.

The jobs of a room run in order, one at a time, and the room with most jobs left goes first. That
gives the shortest total time (for jobs of equal length it is Hu's algorithm of 1961, and optimal).
One heap has all candidates for the next permit: rooms whose next job can begin, and jobs that need
a permit again after a wait.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
import attrs

T = TypeVar("T")

PATIENCE = 64
"""A room with one more job goes first, unless the other one was ready this many permits earlier.
Otherwise a room with few jobs would wait for as long as jobs are added to another room."""

RETURN_DELAY = 8 * PATIENCE
"""Permits by which a job that returns from a wait is put behind jobs that have not begun. Its room
may still be locked; then its attempt uses a permit in vain."""


@attrs.define(eq=False)
class Scheduler(Generic[T]):
    """Jobs that have not begun, jobs that need a permit again, and the permits.

    A permit is held while a document is prepared, sent and answered, and never in a wait.
    """

    begin: Callable[[str, T], None]
    """Called with a room and its job, which begins with a permit."""
    limit: int = 1
    """How many permits there are."""
    in_use: int = attrs.field(default=0, init=False)
    _queues: dict[str, list[T]] = attrs.field(factory=dict, init=False)
    """Lists: a deque takes 760 bytes even for one job."""
    _busy: set[str] = attrs.field(factory=set, init=False)
    """Rooms in which a job has begun and not ended."""
    _heap: list[tuple[int, int, str]] = attrs.field(factory=list, init=False)
    """Rank, number and room of each candidate; removed ones are dropped when they come up."""
    _turns: dict[int, Callable[[], None] | None] = attrs.field(factory=dict, init=False)
    """Per candidate, the function that is called with its permit; ``None``: a job begins."""
    _ready: dict[str, int] = attrs.field(factory=dict, init=False)
    """Number of the candidate of each room whose next job can begin."""
    _numbers: itertools.count[int] = attrs.field(factory=itertools.count, init=False)
    _queued: int = attrs.field(default=0, init=False)
    _given: int = attrs.field(default=0, init=False)
    """Permits that were given out so far."""

    def __len__(self) -> int:
        """Jobs that have not begun."""
        return self._queued

    def set_limit(self, limit: int) -> None:
        """Change how many permits there are."""
        self.limit = limit
        self._dispatch()

    def add(self, room: str, job: T) -> None:
        """Append a job to the queue of its room."""
        self._queues.setdefault(room, []).append(job)
        self._queued += 1
        if room not in self._busy:
            self._make_ready(room)
            self._dispatch()

    def finish(self, room: str) -> None:
        """Let the next job of a room begin."""
        self._busy.remove(room)
        if room in self._queues:
            self._make_ready(room)
            self._dispatch()

    def drop(self, room: str) -> list[T]:
        """Remove and return all jobs of a room that have not begun."""
        jobs = self._queues.pop(room, [])
        self._queued -= len(jobs)
        if room in self._ready:
            del self._turns[self._ready.pop(room)]
        return jobs

    def drop_all(self) -> list[T]:
        """Remove and return all jobs that have not begun."""
        return [job for room in list(self._queues) for job in self.drop(room)]

    async def acquire(self, room: str) -> None:
        """Wait for a permit, for a job that has begun and waited."""
        granted = anyio.Event()
        number = self.rejoin(room, granted.set)
        try:
            await granted.wait()
        except BaseException:
            if granted.is_set():
                self.release()
            else:
                del self._turns[number]
            raise

    def rejoin(self, room: str, granted: Callable[[], None]) -> int:
        """Queue a job that has waited; ``granted`` is called when it gets a permit.

        If the rest of its room, one job after another, takes longer than all queued jobs with all
        permits, the room determines the total time, and the job is not put behind.
        """
        left = 1 + len(self._queues.get(room, ()))
        delay = 0 if left * self.limit >= self._queued else RETURN_DELAY
        number = self._push(room, self._given + delay - PATIENCE * left, granted)
        self._dispatch()
        return number

    def release(self) -> None:
        """Release a permit."""
        self.in_use -= 1
        self._dispatch()

    def _dispatch(self) -> None:
        """Give free permits to the first candidates."""
        while self.in_use < self.limit and self._heap:
            _, number, room = heapq.heappop(self._heap)
            if number not in self._turns:
                continue
            granted = self._turns.pop(number)
            self.in_use += 1
            self._given += 1
            if granted is None:
                self._begin(room)
            else:
                granted()

    def _begin(self, room: str) -> None:
        del self._ready[room]
        self._busy.add(room)
        queue = self._queues[room]
        job = queue.pop(0)
        self._queued -= 1
        if not queue:
            del self._queues[room]
        self.begin(room, job)

    def _make_ready(self, room: str) -> None:
        """Rank a room by its jobs; one more job gives it a new rank."""
        if room in self._ready:
            del self._turns[self._ready[room]]
        rank = self._given - PATIENCE * len(self._queues[room])
        self._ready[room] = self._push(room, rank, None)

    def _push(self, room: str, rank: int, granted: Callable[[], None] | None) -> int:
        number = next(self._numbers)
        self._turns[number] = granted
        heapq.heappush(self._heap, (rank, number, room))
        if len(self._heap) > 2 * len(self._turns) + 64:
            self._heap = [turn for turn in self._heap if turn[1] in self._turns]
            heapq.heapify(self._heap)
        return number
