"""Which job is next, and how many run at the same time.

The jobs of a room run in order, one at a time, and the room with most jobs left goes first. That
gives the shortest total time (for jobs of equal length it is Hu's algorithm of 1961, and optimal).
First in, first out takes 1.5 times as long if one room has ten times as many jobs as the others:
at the end only this room has jobs left, and they run one by one. One heap has all candidates for
the next permit: rooms whose next job can begin, and jobs that need a permit again after a wait.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
import attrs

T = TypeVar("T")

PATIENCE = 128
"""A room with one more job goes first, unless the other one was ready this many permits earlier.
Otherwise a room with few jobs would wait for as long as jobs are added to another room."""


@attrs.define(eq=False)
class Scheduler(Generic[T]):
    """Jobs that have not begun, jobs that need a permit again, and the permits.

    A permit is held while a document is prepared, sent and answered, and never in a wait.
    """

    begin: Callable[[str, T], None]
    """Called with a room and its job, which begins with a permit."""
    limit: int = 1
    """How many permits there are."""
    in_use: int = 0
    _queues: dict[str, list[T]] = attrs.field(factory=dict)
    """Lists: a deque takes 760 bytes even for one job."""
    _busy: set[str] = attrs.field(factory=set)
    """Rooms in which a job has begun and not ended."""
    _alone: set[object] = attrs.field(factory=set)
    """Jobs that are to be sent alone: while there are any, there is one permit."""
    _heap: list[tuple[float, int]] = attrs.field(factory=list)
    """Rank and number of each candidate; removed ones are dropped when they come up."""
    _candidates: dict[int, str | Callable[[], None]] = attrs.field(factory=dict)
    """By number: a room whose next job begins, or a function to be called, with a permit."""
    _ready: dict[str, int] = attrs.field(factory=dict)
    """Number of the candidate of each room whose next job can begin."""
    _numbers: itertools.count[int] = attrs.field(factory=itertools.count)
    _given: int = 0
    """Permits that were given out so far."""

    def set_limit(self, limit: int) -> None:
        """Change how many permits there are."""
        self.limit = limit
        self._dispatch()

    @property
    def is_full(self) -> bool:
        """Whether all permits are held."""
        return self.in_use >= (min(self.limit, 1) if self._alone else self.limit)

    def set_alone(self, job: object, *, is_alone: bool) -> None:
        """Say whether a job that has begun is to be sent alone, from its next permit on.

        That comes when no other permit is held, and no job begins then until it is released.
        """
        if is_alone:
            self._alone.add(job)
        elif job in self._alone:
            self._alone.remove(job)
            self._dispatch()

    def add(self, room: str, job: T) -> None:
        """Append a job to the queue of its room."""
        self._queues.setdefault(room, []).append(job)
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
        if room in self._ready:
            del self._candidates[self._ready.pop(room)]
        return jobs

    def drop_all(self) -> list[T]:
        """Remove and return all jobs that have not begun."""
        return [job for room in list(self._queues) for job in self.drop(room)]

    async def acquire(self) -> None:
        """Wait for a permit, for a job that has begun and waited."""
        granted = anyio.Event()
        number = self.rejoin(granted.set)
        try:
            await granted.wait()
        except BaseException:
            if granted.is_set():
                self.release()
            else:
                del self._candidates[number]
            raise

    def rejoin(self, granted: Callable[[], None]) -> int:
        """Queue a job that has waited; ``granted`` is called when it gets a permit.

        It is before all that have not begun: it keeps its room's line, and other uploads wait.
        """
        number = self._push(math.inf, granted)
        self._dispatch()
        return number

    def release(self) -> None:
        """Release a permit."""
        self.in_use -= 1
        self._dispatch()

    def _dispatch(self) -> None:
        """Give free permits to the first candidates."""
        while self._heap and not self.is_full:
            candidate = self._candidates.pop(heapq.heappop(self._heap)[1], None)
            if candidate is None:
                continue
            self.in_use += 1
            self._given += 1
            if isinstance(candidate, str):
                self._begin(candidate)
            else:
                candidate()

    def _make_ready(self, room: str) -> None:
        """Rank a room by its jobs; one more job gives it a new rank."""
        if room in self._ready:
            del self._candidates[self._ready[room]]
        self._ready[room] = self._push(len(self._queues[room]), room)

    def _begin(self, room: str) -> None:
        del self._ready[room]
        self._busy.add(room)
        queue = self._queues[room]
        job = queue.pop(0)
        if not queue:
            del self._queues[room]
        self.begin(room, job)

    def _push(self, jobs_left: float, candidate: str | Callable[[], None]) -> int:
        number = next(self._numbers)
        self._candidates[number] = candidate
        heapq.heappush(self._heap, (self._given - PATIENCE * jobs_left, number))
        if len(self._heap) > 2 * len(self._candidates) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._candidates]
            heapq.heapify(self._heap)
        return number
