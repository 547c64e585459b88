"""Regular files, by path or opened by the caller, and other open files that can seek.

A regular file is read through its own descriptor, which does not move the caller's position. It is
closed with its last reference: when the attempt ends, or when an abandoned thread returns. Any
other file (in memory, spooled, compressed) is read by seeking, and its position is restored after
each read. So every attempt begins at the same position, and the caller's file is unchanged.
"""

from __future__ import annotations

import io
import os
import stat
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import attrs

from meeting_async._documents.file_content import FileSource, OpenedFile
from meeting_async._documents.source import as_view


@attrs.frozen
class PathSource(FileSource):
    """A file on disk."""

    path: str
    name: str | None = None
    """Name in errors, instead of the path."""

    def label(self, name: str) -> str:
        """Return the path, which tells more than a name."""
        return self.name or self.path

    def open(self) -> OpenedFile:
        """Open the file."""
        return _RegularFile(_open_regular(self.path), path=self.path)


@attrs.frozen(eq=False)
class OpenFileSource(FileSource):
    """A regular file that the caller has opened, from its current position.

    A duplicate of its descriptor is read: if the caller closes the file, its number may soon belong
    to another one.
    """

    file: BinaryIO
    owner: object
    """The object that holds the file; some delete it when they are collected."""

    def open(self) -> OpenedFile:
        """Duplicate the descriptor."""
        if self.file.writable():
            self.file.flush()
        return _RegularFile(_checked(os.dup(self.file.fileno())), start=self.file.tell())


class _Descriptor:
    """A descriptor that is closed with its last reference."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class _RegularFile(OpenedFile):
    """An open regular file; if it has a path, the path must still lead to it."""

    def __init__(self, number: int, *, start: int = 0, path: str | None = None) -> None:
        self.start = start
        self._path = path
        self._descriptor: _Descriptor | None = _Descriptor(number)
        self._buffer = bytearray()

    def fingerprints(self) -> Iterator[tuple[int, ...]]:
        with self._used() as number:
            status = os.fstat(number)
        yield self._fingerprint(status)
        if self._path is not None:
            yield self._fingerprint(os.stat(self._path))

    def read(self, limit: int, offset: int, /) -> bytes:
        with self._used() as number:
            if hasattr(os, "pread"):
                return os.pread(number, limit, offset)
            os.lseek(number, offset, os.SEEK_SET)  # pragma: no cover - Windows
            return os.read(number, limit)  # pragma: no cover - Windows

    def read_nowait(self, limit: int, offset: int, /) -> bytes | None:
        # One buffer for all reads saves CPU. The caller gets a copy, as a transport may still hold
        # the last chunk.
        if self._descriptor is None or not hasattr(os, "RWF_NOWAIT"):
            return None
        if len(self._buffer) < limit:
            self._buffer = bytearray(limit)
        view = memoryview(self._buffer)[:limit]
        try:
            count = os.preadv(self._descriptor.number, [view], offset, os.RWF_NOWAIT)
        except OSError:  # it would block, or the file system cannot tell: a thread finds out
            return None
        return bytes(view[:count]) or None

    def close(self) -> None:
        self._descriptor = None

    @contextmanager
    def _used(self) -> Iterator[int]:
        """Keep the descriptor open during a call; a kept error does not keep this frame."""
        descriptor = self._descriptor
        if descriptor is None:
            raise ValueError("the attempt has ended")
        yield descriptor.number

    def _fingerprint(self, status: os.stat_result) -> tuple[int, ...]:
        state = (status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns)
        # By path, the change time catches a modification time that was restored. The owner of an
        # open file may rename or delete it.
        return state if self._path is None else (*state, status.st_ctime_ns)


_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def _open_regular(path: str) -> int:
    """Open a file, but nothing that would wait for its other end."""
    _check_regular(os.stat(path))
    try:
        descriptor = os.open(path, _OPEN_FLAGS | getattr(os, "O_NONBLOCK", 0))
    except BlockingIOError:  # a file server holds a lease on it, which ends shortly
        descriptor = os.open(path, _OPEN_FLAGS)
    return _checked(descriptor)  # something else may have the path by now


def _checked(descriptor: int) -> int:
    try:
        _check_regular(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise OSError("it is a directory: give a file; `meeting-async batch` uploads a folder")
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not a regular file")


# --- other files that can seek -------------------------------------------------------------------


@attrs.define(eq=False)
class SharedFile:
    """A file object, and the lock that all uploads of it share."""

    file: BinaryIO
    lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    @contextmanager
    def position_kept(self) -> Iterator[int]:
        """Use the file exclusively, and restore its position."""
        with self.lock:
            position = self.file.tell()
            try:
                yield position
            finally:
                self.file.seek(position)


_shared: weakref.WeakValueDictionary[int, SharedFile] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def shared_file(file: BinaryIO) -> SharedFile:
    """Return the one :class:`SharedFile` of a file object, which need not be hashable.

    It keeps the file alive, so its ``id`` cannot become that of another object meanwhile.
    """
    with _shared_lock:
        return _shared.setdefault(id(file), SharedFile(file))


@attrs.frozen(eq=False)
class FileObjectSource(FileSource):
    """An open file with synchronous methods: the rest of it, from its current position."""

    shared: SharedFile
    owner: object
    """The object that holds the file; some close it when they are collected."""

    def open(self) -> OpenedFile:
        """Find the position; there is nothing to open."""
        with self.shared.position_kept() as position:
            return _FileObject(self.shared, position)


@attrs.frozen(eq=False)
class _FileObject(OpenedFile):
    _shared: SharedFile
    start: int

    def fingerprints(self) -> Iterator[tuple[int, ...]]:
        with self._shared.position_kept():
            self._shared.file.seek(0, io.SEEK_END)
            end = self._shared.file.tell()
        yield (end,)

    def read(self, limit: int, offset: int, /) -> bytes:
        with self._shared.position_kept():
            self._shared.file.seek(offset)
            data = self._shared.file.read(limit)
        if as_view(data).nbytes > limit:
            raise ValueError(f"a read of {limit:,} bytes returned {len(data):,} bytes")
        return bytes(data)
