"""Regular files: by their path, or open in the caller's hands.

Both are read through a descriptor of our own, which is there only during an attempt and does not
move the caller's position. Bytes that the operating system has at hand are taken directly where it
can promise not to block (``preadv`` with ``RWF_NOWAIT``); everything else is read in threads.
"""

from __future__ import annotations

import abc
import os
import stat
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import BinaryIO, Self

import attrs

from meeting_async._ahead import reading_ahead
from meeting_async._descriptors import Descriptor, read_at
from meeting_async._limits import HEAD_BYTES
from meeting_async._multipart import Reader
from meeting_async._pace import CHUNK_BYTES
from meeting_async._sources import BytesReader, Measure, unreadable
from meeting_async._threads import in_thread
from meeting_async.errors import DocumentChanged


class _FileSource(abc.ABC):
    """A regular file, however we get at it. The abstract methods run in worker threads."""

    label: str
    """What errors call it."""

    @abc.abstractmethod
    def _opened(self) -> int:
        """Return a new descriptor of the file."""

    @abc.abstractmethod
    def _start(self) -> int:
        """Return where the document begins in the file."""

    @abc.abstractmethod
    def _stamp(self, status: os.stat_result) -> tuple[int, ...]:
        """Return what tells files and their states apart, device and inode first."""

    @abc.abstractmethod
    def _check_place(self, measure: Measure) -> None:
        """See that the file is still where it was."""

    # --- what is the same for both ---------------------------------------------------------------

    async def measure(self) -> Measure:
        """Look at the file, in a thread."""
        return await in_thread(self._measure)

    @asynccontextmanager
    async def open(self, measure: Measure) -> AsyncGenerator[Reader, None]:
        """Open the file, unless it is no longer the one that was measured.

        What fits into one chunk is opened, read, checked and closed in one go: a hop to a thread
        and back costs more than all of that.
        """
        if measure.size <= CHUNK_BYTES:
            yield BytesReader(await in_thread(lambda: self._read_whole(measure)))
            return
        descriptor = Descriptor(self.label)
        try:
            await in_thread(lambda: descriptor.open(lambda: self._reopened(measure)))
            check = lambda: descriptor.use(lambda fd: self._check(fd, measure))  # noqa: E731
            async with reading_ahead(
                descriptor, measure.start, measure.size, lambda: in_thread(check)
            ) as reader:
                yield reader
        finally:
            descriptor.close()

    def _measure(self) -> Measure:
        try:
            fd = self._opened()
            try:
                status, start = os.fstat(fd), self._start()
                head = read_at(fd, HEAD_BYTES, start)
                size = max(0, status.st_size - start)
                return Measure(size, head, self._stamp(status), start)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path; a closed file
            raise unreadable(self.label, error) from error

    def _reopened(self, measure: Measure) -> int:
        try:
            fd = self._opened()
        except FileNotFoundError as error:
            raise DocumentChanged(self.label, "it is gone") from error
        except (OSError, ValueError) as error:
            raise unreadable(self.label, error) from error
        try:
            self._compare(measure, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _read_whole(self, measure: Measure) -> bytes:
        fd = self._reopened(measure)
        try:
            parts, left = [], measure.size
            while left and (part := read_at(fd, left, measure.start + measure.size - left)):
                parts.append(part)
                left -= len(part)
            self._check(fd, measure)
            return b"".join(parts)
        except OSError as error:
            raise unreadable(self.label, error) from error
        finally:
            os.close(fd)

    def _check(self, fd: int, measure: Measure) -> None:
        self._compare(measure, os.fstat(fd))
        self._check_place(measure)

    def _compare(self, measure: Measure, status: os.stat_result) -> None:
        stamp, size = self._stamp(status), measure.start + measure.size
        if stamp == measure.stamp:
            return
        if stamp[:2] != measure.stamp[:2]:
            change = "another file stands in its place"
        elif status.st_size != size:
            change = f"it has {status.st_size:,} bytes instead of {size:,}"
        else:
            change = "it was written to"
        raise DocumentChanged(self.label, change)


@attrs.frozen
class PathSource(_FileSource):
    """A document on disk."""

    path: str
    label: str = attrs.field(default=attrs.Factory(lambda self: self.path, takes_self=True))

    def held(self, name: str, max_size: int | None) -> AbstractAsyncContextManager[Self]:
        """Nothing to keep."""
        return nullcontext(self)

    def _opened(self) -> int:
        return _open_regular(self.path)

    def _start(self) -> int:
        return 0

    def _stamp(self, status: os.stat_result) -> tuple[int, ...]:
        # The change time catches a modification time that was restored.
        times = status.st_mtime_ns, status.st_ctime_ns
        return (status.st_dev, status.st_ino, status.st_size, *times)

    def _check_place(self, measure: Measure) -> None:
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise DocumentChanged(self.label, "it is gone") from error
        self._compare(measure, status)


@attrs.frozen(eq=False)
class OpenFileSource(_FileSource):
    """A regular file that the caller has open: the rest of it, from its current position.

    It is read through a duplicate of its descriptor, so that the caller's position stays, and
    that a file closed meanwhile is never mixed up with the next one of its number.
    """

    file: BinaryIO
    owner: object
    """What holds the file; some delete it when they are gone."""
    label: str = ""

    def held(self, name: str, max_size: int | None) -> AbstractAsyncContextManager[Self]:
        """Nothing to keep."""
        return nullcontext(attrs.evolve(self, label=name))

    def _opened(self) -> int:
        if self.file.writable():
            self.file.flush()
        fd = os.dup(self.file.fileno())
        try:
            _check_regular(os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _start(self) -> int:
        return self.file.tell()

    def _stamp(self, status: os.stat_result) -> tuple[int, ...]:
        # Not the change time: whoever has the file may rename or delete its path.
        return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def _check_place(self, measure: Measure) -> None:
        """Nothing to see: its place is the descriptor."""


_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


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
