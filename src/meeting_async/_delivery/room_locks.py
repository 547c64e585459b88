"""Room locks: one upload at a time to each room, first come, first served.

A server accepts one upload per room at a time. Uploads of this process queue here instead of
sending a document that would get 409.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import anyio
import anyio.lowlevel
import attrs


class RoomLocks(Protocol):
    """Allows one upload per room at a time. Implement it to coordinate several processes."""

    def acquire(self, room: str, *, timeout: float | None) -> AbstractAsyncContextManager[object]:
        """Return a context manager that holds the room's lock.

        Args:
            room: A text that names the server and the room, the same in every process that uses
                the same base URL.
            timeout: Seconds to wait for the lock; 0: do not wait; ``None``: no limit.

        Raises:
            TimeoutError: On entering: the lock was not free in time.
            RoomLocksUnavailable: On entering: the locks do not answer; nothing was sent. An
                exception on leaving is logged: it does not change the outcome of the upload.

        """
        ...


@attrs.define(eq=False)
class LocalRoomLocks:
    """The locks of one event loop: first come, first served."""

    _lines: dict[str, deque[anyio.Event]] = attrs.field(factory=dict, init=False, repr=False)
    """Uploads per room in order of arrival; the first one holds the lock."""

    @asynccontextmanager
    async def acquire(self, room: str, *, timeout: float | None) -> AsyncGenerator[None, None]:
        """Hold the lock of a room; see :class:`RoomLocks`."""
        if timeout is not None and timeout <= 0 and room in self._lines:
            raise TimeoutError(f"another upload of this application has locked {room}")
        line = self._lines.setdefault(room, deque())
        place = anyio.Event()
        line.append(place)
        try:
            if line[0] is not place:
                with anyio.fail_after(timeout):
                    await place.wait()
            yield
        finally:
            self._leave(room, line, place)

    def _leave(self, room: str, line: deque[anyio.Event], place: anyio.Event) -> None:
        line.remove(place)
        if line:
            line[0].set()
        else:
            del self._lines[room]


_local_locks = anyio.lowlevel.RunVar[LocalRoomLocks]("meeting_async.room_locks")


def local_room_locks() -> LocalRoomLocks:
    """Return the locks that all clients of the running event loop share."""
    try:
        return _local_locks.get()
    except LookupError:
        locks = LocalRoomLocks()
        _local_locks.set(locks)
        return locks
