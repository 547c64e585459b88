"""A descriptor for one attempt: read in threads or directly, closed when nobody uses it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from meeting_async._sources import unreadable
from meeting_async._threads import Lease
from meeting_async.errors import DocumentUnreadable

T = TypeVar("T")


class Descriptor:
    """A descriptor that is closed when nobody uses it any more.

    A thread may outlive the task that waits for it: asyncio's own cancellation does not wait for
    threads.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._descriptor: int | None = None
        self._buffer = bytearray()
        self._lease = Lease(self._end)

    def open(self, opened: Callable[[], int]) -> None:
        """Open it, in a thread."""
        with self._lease.used():
            self._descriptor = opened()

    def use(self, function: Callable[[int], T]) -> T:
        """Do something with the open descriptor, in a thread or where it is sure not to block."""
        with self._lease.used():
            if self._descriptor is None:
                raise DocumentUnreadable(self._label, "it was closed meanwhile")
            try:
                return function(self._descriptor)
            except OSError as error:
                raise unreadable(self._label, error) from error

    def at_hand(self, limit: int, offset: int) -> bytes | None:
        """Read what needs no waiting; ``None`` when the disk would have to be asked.

        All reads go into one buffer: a new one each time takes a little more CPU. What is handed
        on is a copy, as a transport may still hold the last chunk.
        """
        if not hasattr(os, "RWF_NOWAIT"):
            return None
        if len(self._buffer) < limit:
            self._buffer = bytearray(limit)
        view = memoryview(self._buffer)[:limit]
        return self.use(lambda fd: _read_at_hand(fd, view, offset))

    def fetch(self, limit: int, offset: int) -> bytes:
        """Read, in a thread."""
        return self.use(lambda fd: read_at(fd, limit, offset))

    def close(self) -> None:
        """Close it, now or when the thread that uses it is done."""
        self._lease.give_up()

    def _end(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _read_at_hand(fd: int, view: memoryview, offset: int) -> bytes | None:
    try:
        count = os.preadv(fd, [view], offset, os.RWF_NOWAIT)
    except OSError:  # would block, or this file system cannot tell: the thread finds out
        return None
    return bytes(view[:count]) if count else None


def read_at(fd: int, limit: int, offset: int) -> bytes:
    """Read up to ``limit`` bytes at a place."""
    if hasattr(os, "pread"):
        return os.pread(fd, limit, offset)
    os.lseek(fd, offset, os.SEEK_SET)  # pragma: no cover - Windows
    return os.read(fd, limit)  # pragma: no cover - Windows
