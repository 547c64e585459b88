"""Room locks: one upload at a time to each room, first come, first served.

A server accepts one upload per room at a time. Uploads of this process queue here instead of
sending a document that would get 409.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, Self

import anyio
import anyio.lowlevel
import attrs


class RoomLocks(Protocol):
    """Allow one upload per room at a time. Implement it to coordinate several processes."""

    def acquire(self, room: str, *, timeout: float | None) -> AbstractAsyncContextManager[object]:
        """Return a context manager that holds the room's lock.

        Args:
            room: Names the server and the room; the same in every process with the same base URL.
            timeout: Seconds to wait for the lock; 0: do not wait; ``None``: no limit.

        Raises:
            TimeoutError: On entering: the lock was not free in time.
            RoomLocksUnavailable: On entering: the locks do not answer; nothing was sent. An
                exception on leaving is only logged.

        """
        ...


@attrs.define(eq=False)
class Place:
    """A place in the line of a room; a context manager that leaves the line at its end."""

    _lines: dict[str, deque[Place]]
    _room: str
    _reached: anyio.Event = attrs.field(factory=anyio.Event)

    @property
    def is_first(self) -> bool:
        """Whether it is the first place of the line."""
        return self._reached.is_set()

    async def reach(self, timeout: float | None) -> None:
        """Wait until it is the first place; `TimeoutError` after ``timeout`` seconds."""
        if not self.is_first:
            with anyio.fail_after(timeout):
                await self._reached.wait()

    def advance(self) -> None:
        """Called when it has become the first place."""
        self._reached.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the line, wherever it is; the next one becomes the first."""
        line = self._lines[self._room]
        line.remove(self)
        if line:
            line[0].advance()
        else:
            del self._lines[self._room]


@attrs.define(eq=False)
class LocalRoomLocks:
    """The locks of one event loop: first come, first served."""

    _lines: dict[str, deque[Place]] = attrs.field(factory=dict, repr=False)
    """Uploads per room in order of arrival; the first one holds the lock."""

    @asynccontextmanager
    async def acquire(self, room: str, *, timeout: float | None) -> AsyncGenerator[None, None]:
        """Hold the lock of a room; see :meth:`RoomLocks.acquire`."""
        if timeout is not None and timeout <= 0 and room in self._lines:
            raise TimeoutError(f"another upload of this application has locked {room}")
        with self.line_up(room) as place:
            await place.reach(timeout)
            yield

    def line_up(self, room: str) -> Place:
        """Take the last place in the line of a room, without waiting."""
        place = Place(self._lines, room)
        line = self._lines.setdefault(room, deque())
        line.append(place)
        line[0].advance()
        return place


_local_locks = anyio.lowlevel.RunVar[LocalRoomLocks]("meeting_async.room_locks")


def local_room_locks() -> LocalRoomLocks:
    """Return the locks that all clients of the running event loop share."""
    try:
        return _local_locks.get()
    except LookupError:
        locks = LocalRoomLocks()
        _local_locks.set(locks)
        return locks
