"""Which job begins next: in order within a room, the room with most left to do first. Pure.

A room is a chain: one document after another. With rooms side by side, beginning with the longest
chain ends soonest (for jobs of one length this is Hu's algorithm of 1961, and optimal). All that
may use the next permit is in one heap: rooms whose next job can begin, and jobs that want their
permit back after a wait.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

T = TypeVar("T")

PATIENCE = 64
"""A room with one job more goes first, unless the other was ready so many permits earlier. Without
that a short room would wait for as long as a long one is filled up."""

RETURN_DELAY = 8 * PATIENCE
"""Permits by which a job that returns from a wait goes behind what has not begun. A room that was
locked may still be locked; then its attempt occupies a permit in vain."""


@attrs.define(eq=False)
class Candidate(Generic[T]):
    """Something that wants a permit: a job that begins, or one that returns from a wait."""

    room: str
    job: T | None = None
    """The job that begins."""
    granted: Callable[[], None] | None = None
    """Called when a job that returns gets its permit."""
    is_open: bool = True
    """Whether it still wants a permit."""


@attrs.define
class RoomScheduler(Generic[T]):
    """Jobs that have not begun, and those that want to go on."""

    _queues: dict[str, list[T]] = attrs.field(factory=dict, init=False)
    """Lists: a deque takes 760 bytes even for one job."""
    _busy: set[str] = attrs.field(factory=set, init=False)
    """Rooms in which a job has begun and not ended."""
    _ready: dict[str, Candidate[T]] = attrs.field(factory=dict, init=False)
    """The open candidate of each room whose next job can begin."""
    _heap: list[tuple[int, int, Candidate[T]]] = attrs.field(factory=list, init=False)
    """Candidates by rank; those that are no longer open are dropped when they come up."""
    _open: int = attrs.field(default=0, init=False)
    _numbers: itertools.count[int] = attrs.field(factory=itertools.count, init=False)
    _queued: int = attrs.field(default=0, init=False)
    _given: int = attrs.field(default=0, init=False)
    """Permits that were given out so far."""

    def __len__(self) -> int:
        """Jobs that have not begun."""
        return self._queued

    def add(self, room: str, job: T) -> None:
        """Append a job to the queue of its room."""
        self._queues.setdefault(room, []).append(job)
        self._queued += 1
        if room not in self._busy:
            self._make_ready(room)

    def next(self) -> Candidate[T] | None:
        """Give a permit to the candidate that comes first.

        A room whose job begins is busy until :meth:`finish`.
        """
        while self._heap:
            _, _, candidate = heapq.heappop(self._heap)
            if candidate.is_open:
                self._close(candidate)
                self._given += 1
                return candidate if candidate.granted else self._begun(candidate)
        return None

    def finish(self, room: str) -> None:
        """Note that the job of a room has ended."""
        self._busy.remove(room)
        if room in self._queues:
            self._make_ready(room)

    def rejoin(self, room: str, granted: Callable[[], None], permits: int) -> Candidate[T]:
        """Queue a job that has waited; ``granted`` is called when it gets a permit.

        If the rest of its room takes longer, one document after another, than everything that is
        queued takes with so many permits, it decides when the batch ends, and does not go behind.
        """
        left = 1 + len(self._queues.get(room, ()))
        delay = 0 if left * permits >= self._queued else RETURN_DELAY
        candidate = Candidate[T](room, granted=granted)
        self._push(candidate, self._given + delay - PATIENCE * left)
        return candidate

    def withdraw(self, candidate: Candidate[T]) -> None:
        """Forget a candidate that no longer wants a permit."""
        if candidate.is_open:
            self._close(candidate)

    def drop(self, room: str) -> list[T]:
        """Take all jobs that have not begun out of a room."""
        if room in self._ready:
            self._close(self._ready.pop(room))
        jobs = self._queues.pop(room, [])
        self._queued -= len(jobs)
        return jobs

    def drop_all(self) -> list[T]:
        """Take all jobs that have not begun out of all rooms."""
        return [job for room in list(self._queues) for job in self.drop(room)]

    def _begun(self, candidate: Candidate[T]) -> Candidate[T]:
        queue = self._queues[candidate.room]
        candidate.job = queue.pop(0)
        self._queued -= 1
        if not queue:
            del self._queues[candidate.room]
        del self._ready[candidate.room]
        self._busy.add(candidate.room)
        return candidate

    def _make_ready(self, room: str) -> None:
        """Rank a room by its jobs; one more job makes a new candidate of it."""
        earlier = self._ready.get(room)
        if earlier is not None:
            self._close(earlier)
        candidate = self._ready[room] = Candidate[T](room)
        self._push(candidate, self._given - PATIENCE * len(self._queues[room]))

    def _push(self, candidate: Candidate[T], rank: int) -> None:
        heapq.heappush(self._heap, (rank, next(self._numbers), candidate))
        self._open += 1
        if len(self._heap) > 2 * self._open + 64:
            self._heap = [entry for entry in self._heap if entry[2].is_open]
            heapq.heapify(self._heap)

    def _close(self, candidate: Candidate[T]) -> None:
        candidate.is_open = False
        self._open -= 1
