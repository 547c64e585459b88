"""What a batch would do without its priorities, to see what they bring."""

from __future__ import annotations

from collections import deque
from typing import Any


class InputOrder:
    """Stands in for the queues of a batch: the earliest job whose room is free comes next."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Any]] = {}
        self._busy: set[str] = set()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __contains__(self, room: str) -> bool:
        return room in self._queues or room in self._busy

    @property
    def longest(self) -> int:
        """Tell whether there is something to begin."""
        return int(any(room not in self._busy for room in self._queues))

    def left(self, room: str) -> int:
        """Say of every room that nothing is left, so that none counts as the longest."""
        return 0

    def put(self, room: str, job: Any) -> None:
        """Append a job to its room's queue."""
        self._queues.setdefault(room, deque()).append(job)

    def take(self) -> tuple[str, Any] | None:
        """Begin the job that was read first."""
        ready = [room for room in self._queues if room not in self._busy]
        if not ready:
            return None
        room = min(ready, key=lambda name: self._queues[name][0].index)
        job = self._queues[room].popleft()
        if not self._queues[room]:
            del self._queues[room]
        self._busy.add(room)
        return room, job

    def done(self, room: str) -> None:
        """Note that the job that was begun in a room is over."""
        self._busy.remove(room)

    def drain(self, room: str) -> deque[Any]:
        """Take all jobs out of a room's queue."""
        return self._queues.pop(room, deque())

    def drain_all(self) -> list[Any]:
        """Take all jobs out of all queues."""
        return [job for room in list(self._queues) for job in self.drain(room)]
