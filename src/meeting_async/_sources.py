"""Where a document's bytes come from: measured once, opened afresh for every attempt.

Reads never block the event loop. Bytes that the operating system has at hand are taken directly
where it can promise not to block (``preadv`` with ``RWF_NOWAIT``); everything else is read in
worker threads on a limiter of our own, so that slow disks and other users of the loop's default
threads do not hold each other up.
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs

from meeting_async._limits import HEAD_BYTES
from meeting_async._multipart import Reader
from meeting_async.errors import DocumentChanged, DocumentUnreadable

T = TypeVar("T")

READ_THREADS = 16
"""Documents read from slow storage at the same time; more only queue at the disk."""

_limiters: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar(
    "meeting_async_read_threads"
)


async def _in_thread(function: Callable[[], T]) -> T:
    limiter = _limiters.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(READ_THREADS)
        _limiters.set(limiter)
    return await anyio.to_thread.run_sync(function, limiter=limiter)


@attrs.frozen
class Measure:
    """What a document was when its upload began."""

    size: int
    """Bytes."""
    head: bytes = b""
    """The first bytes, to tell images from documents."""
    stamp: tuple[int, ...] = ()
    """What must stay the same until the document is out."""


class Source(Protocol):
    """Where a document's bytes come from. It can be read any number of times."""

    async def measure(self) -> Measure:
        """Find out size and first bytes."""
        ...

    def open(self, measure: Measure) -> AbstractAsyncContextManager[Reader]:
        """Open the source for one attempt; it is closed when the block ends."""
        ...


# --- bytes ---------------------------------------------------------------------------------------


@attrs.frozen
class BytesSource:
    """A document in memory."""

    data: bytes = attrs.field(repr=lambda data: f"{len(data)} bytes")

    async def measure(self) -> Measure:
        """Nothing to ask."""
        return Measure(len(self.data), self.data[:HEAD_BYTES])

    @asynccontextmanager
    async def open(self, measure: Measure) -> AsyncGenerator[Reader, None]:
        """Read from the start."""
        yield _BytesReader(self.data)


@attrs.define
class _BytesReader:
    _data: bytes = attrs.field(repr=False)
    _offset: int = 0

    async def read(self, limit: int, /) -> bytes:
        chunk = self._data[self._offset : self._offset + limit]
        self._offset += len(chunk)
        return chunk

    async def finish(self) -> None:
        pass


# --- files ---------------------------------------------------------------------------------------


@attrs.frozen
class PathSource:
    """A document on disk."""

    path: str

    async def measure(self) -> Measure:
        """Look at the file, in a thread."""
        return await _in_thread(self._measure)

    @asynccontextmanager
    async def open(self, measure: Measure) -> AsyncGenerator[Reader, None]:
        """Open the file, unless it is no longer the one that was measured."""
        fd = await _in_thread(lambda: self._open(measure))
        try:
            yield _FileReader(self.path, fd, measure)
        finally:
            os.close(fd)

    def _measure(self) -> Measure:
        try:
            status = os.stat(self.path)
            if not stat.S_ISREG(status.st_mode):
                raise DocumentUnreadable(self.path, "it is not a regular file")
            fd = os.open(self.path, _OPEN_FLAGS)
            try:
                return Measure(status.st_size, os.read(fd, HEAD_BYTES), _stamp(os.fstat(fd)))
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            if isinstance(error, DocumentUnreadable):
                raise
            raise _unreadable(self.path, error) from error

    def _open(self, measure: Measure) -> int:
        try:
            fd = os.open(self.path, _OPEN_FLAGS)
        except FileNotFoundError as error:
            raise DocumentChanged(self.path, "it is gone") from error
        except OSError as error:
            raise _unreadable(self.path, error) from error
        try:
            _check_unchanged(self.path, measure, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd


_OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a FIFO put in the file's place must not hold the thread
)


def _unreadable(path: str, error: OSError | ValueError) -> DocumentUnreadable:
    return DocumentUnreadable(path, getattr(error, "strerror", None) or str(error))


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _check_unchanged(path: str, measure: Measure, status: os.stat_result) -> None:
    if _stamp(status) == measure.stamp:
        return
    if _stamp(status)[:2] != measure.stamp[:2]:
        change = "another file stands in its place"
    elif status.st_size != measure.size:
        change = f"it has {status.st_size:,} bytes instead of {measure.size:,}"
    else:
        change = "it was written to"
    raise DocumentChanged(path, change)


@attrs.define
class _FileReader:
    _path: str
    _fd: int
    _measure: Measure
    _offset: int = 0

    async def read(self, limit: int, /) -> bytes:
        try:
            chunk = _read_at_hand(self._fd, limit, self._offset)
            if chunk is None:
                chunk = await _in_thread(lambda: _read_blocking(self._fd, limit, self._offset))
        except OSError as error:
            raise _unreadable(self._path, error) from error
        self._offset += len(chunk)
        return chunk

    async def finish(self) -> None:
        await _in_thread(self._check)

    def _check(self) -> None:
        _check_unchanged(self._path, self._measure, os.fstat(self._fd))
        try:
            status = os.stat(self._path)
        except OSError as error:
            raise DocumentChanged(self._path, "it is gone") from error
        _check_unchanged(self._path, self._measure, status)


def _read_at_hand(fd: int, limit: int, offset: int) -> bytes | None:
    """Read what needs no waiting; ``None`` when the disk would have to be asked."""
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    buffer = bytearray(limit)
    try:
        count = os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
    except OSError:  # would block, or this file system cannot tell: the thread finds out
        return None
    return bytes(memoryview(buffer)[:count]) if count else None


def _read_blocking(fd: int, limit: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(fd, limit, offset)
    os.lseek(fd, offset, os.SEEK_SET)  # pragma: no cover - Windows
    return os.read(fd, limit)  # pragma: no cover - Windows
