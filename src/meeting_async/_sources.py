"""Where a document's bytes come from: measured once, opened afresh for every attempt.

Reads never block the event loop. Bytes that the operating system has at hand are taken directly
where it can promise not to block (``preadv`` with ``RWF_NOWAIT``); everything else is read in
worker threads on a limiter of our own, so that slow disks and other users of the loop's default
threads do not hold each other up.
"""

from __future__ import annotations

import functools
import os
import stat
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
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
        file = _File(self.path)
        try:
            await _in_thread(lambda: file.open(measure))
            yield _FileReader(file, measure)
        finally:
            file.close()

    def _measure(self) -> Measure:
        try:
            descriptor = _open_regular(self.path)
            try:
                status = os.fstat(descriptor)
                return Measure(status.st_size, os.read(descriptor, HEAD_BYTES), _stamp(status))
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise _unreadable(self.path, error) from error


def _open_regular(path: str) -> int:
    """Open a file, but nothing that would wait for its other end or do something by itself."""
    _check_regular(os.stat(path))
    try:
        descriptor = os.open(path, _OPEN_FLAGS | getattr(os, "O_NONBLOCK", 0))
    except BlockingIOError:  # a file server holds a lease on it, and gives it back shortly
        descriptor = os.open(path, _OPEN_FLAGS)
    try:
        _check_regular(os.fstat(descriptor))  # something else may stand there by now
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not a regular file")


def _unreadable(path: str, error: OSError | ValueError) -> DocumentUnreadable:
    return DocumentUnreadable(path, getattr(error, "strerror", None) or str(error))


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    """Tell files and their states apart; the change time catches a restored modification time."""
    times = status.st_mtime_ns, status.st_ctime_ns
    return (status.st_dev, status.st_ino, status.st_size, *times)


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


class _File:
    """A descriptor that is closed when nobody uses it any more.

    A thread may outlive the task that waits for it: asyncio's own cancellation does not wait for
    threads. Whoever is last, closes.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._in_use = threading.Lock()
        self._unwanted = False

    def open(self, measure: Measure) -> None:
        """Open the file in a thread, and see that it is the one that was measured."""
        with self._used():
            try:
                self._descriptor = _open_regular(self.path)
            except FileNotFoundError as error:
                raise DocumentChanged(self.path, "it is gone") from error
            except OSError as error:
                raise _unreadable(self.path, error) from error
            _check_unchanged(self.path, measure, os.fstat(self._open_descriptor()))

    def read(self, limit: int, offset: int, how: Callable[[int, int, int], T]) -> T:
        """Read with ``how``, in a thread or where it is sure not to block."""
        with self._used():
            try:
                return how(self._open_descriptor(), limit, offset)
            except OSError as error:
                raise _unreadable(self.path, error) from error

    def check(self, measure: Measure) -> None:
        """See that the open file, and what stands at its path, are what was measured."""
        with self._used():
            _check_unchanged(self.path, measure, os.fstat(self._open_descriptor()))
            try:
                status = os.stat(self.path)
            except OSError as error:
                raise DocumentChanged(self.path, "it is gone") from error
            _check_unchanged(self.path, measure, status)

    def close(self) -> None:
        """Close the file, now or when the thread that uses it is done."""
        self._unwanted = True
        self._close_if_idle()

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise DocumentUnreadable(self.path, "it was closed meanwhile")
        return self._descriptor

    @contextmanager
    def _used(self) -> Generator[None, None, None]:
        try:
            with self._in_use:
                yield
        finally:
            if self._unwanted:
                self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._in_use.acquire(blocking=False):
            descriptor, self._descriptor = self._descriptor, None
            self._in_use.release()
            if descriptor is not None:
                os.close(descriptor)


_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@attrs.define
class _FileReader:
    _file: _File
    _measure: Measure
    _offset: int = 0

    async def read(self, limit: int, /) -> bytes:
        chunk = self._file.read(limit, self._offset, _read_at_hand)
        if chunk is None:
            read = functools.partial(self._file.read, limit, self._offset, _read_blocking)
            chunk = await _in_thread(read)
        self._offset += len(chunk)
        return chunk

    async def finish(self) -> None:
        await _in_thread(lambda: self._file.check(self._measure))


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
