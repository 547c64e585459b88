"""Files that can be read at any offset: by path, opened by the caller, and other file objects.

A snapshot is taken once. The file is opened for each attempt, and compared with the snapshot before
and after it is read. A file of up to 256 KiB is opened, read, checked and closed in one call of a
thread, because such a call costs more than all of that.

A regular file is read through its own descriptor, which does not move the caller's position. It is
closed with its last reference: when the attempt ends, or when an abandoned thread returns. Any
other file (in memory, spooled, compressed) is read by seeking, and its position is restored after
each read. So every attempt begins at the same position, and the caller's file is unchanged.
"""

from __future__ import annotations

import abc
import io
import os
import stat
import threading
import weakref
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from typing import BinaryIO

import attrs

from meeting_async._documents.checks import HEAD_BYTES
from meeting_async._documents.source import (
    BytesReader,
    Content,
    Reader,
    Snapshot,
    as_view,
    unreadable,
)
from meeting_async._threads import in_thread
from meeting_async.errors import DocumentChanged, MeetingError

WHOLE_BYTES = 256 * 1024
"""Largest file that is read in one call of a thread."""


class OpenedFile(abc.ABC):
    """A file that is open for one attempt. All but ``read_nowait`` and ``close`` run in threads."""

    start = 0
    """Offset at which the document begins."""

    @abc.abstractmethod
    def fingerprints(self) -> Iterator[tuple[int, ...]]:
        """Yield the state of the open file, then the state of what has its path now, if any.

        A state is the offset of the end, then device, inode and times, as far as known.
        """

    @abc.abstractmethod
    def read(self, limit: int, offset: int, /) -> bytes:
        """Return up to ``limit`` bytes; ``b""`` only at the end."""

    def read_nowait(self, limit: int, offset: int, /) -> bytes | None:
        """Return bytes if that is sure not to block, else ``None``."""
        return None

    def close(self) -> None:  # noqa: B027 - the caller's file stays open
        """Close it, after a read that is running in a thread."""

    def read_all(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes, or as many as there are."""
        parts, end = [], offset + size
        while offset < end and (part := self.read(end - offset, offset)):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)


class FileSource(abc.ABC):
    """A file that can be opened again for each attempt."""

    @abc.abstractmethod
    def open(self) -> OpenedFile:
        """Open the file, in a thread."""

    def label(self, name: str) -> str:
        """Return what errors call the file."""
        return name

    @asynccontextmanager
    async def prepare(self, name: str, max_size: int | None) -> AsyncGenerator[Content, None]:
        """Take the snapshot; the file is closed after that."""
        label = self.label(name)
        yield _FileContent(self, label, await in_thread(partial(_snapshot, self, label)))


def _snapshot(source: FileSource, label: str) -> Snapshot:
    with _errors_of(label), closing(source.open()) as opened:
        fingerprint = next(opened.fingerprints())
        size = max(0, fingerprint[0] - opened.start)
        head = opened.read_all(opened.start, min(size, HEAD_BYTES))
        if not fingerprint[0] and opened.read(1, 0):  # in /proc, for example
            raise OSError("it has content, but no size: copy it to a file on disk")
        return Snapshot(size, head, fingerprint, opened.start)


@attrs.define(eq=False)
class _FileContent(Content):
    source: FileSource
    label: str
    snapshot: Snapshot

    async def open(self) -> Reader:
        """Open the file, if it still matches the snapshot."""
        return await in_thread(self._open)

    def _open(self) -> Reader:
        with _errors_of(self.label, again=True), ExitStack() as stack:
            opened = stack.enter_context(closing(self.source.open()))
            self.check(opened)
            if self.snapshot.size > WHOLE_BYTES:
                stack.pop_all()
                return _FileReader(self, opened)
            data = opened.read_all(self.snapshot.start, self.snapshot.size)
            self.check(opened)
            return BytesReader(data)

    def check(self, opened: OpenedFile) -> None:
        """Raise :class:`DocumentChanged` if the file does not match the snapshot."""
        for fingerprint in opened.fingerprints():
            if fingerprint != self.snapshot.fingerprint:
                raise DocumentChanged(self.label, _difference(self.snapshot, fingerprint))


def _difference(snapshot: Snapshot, found: tuple[int, ...]) -> str:
    if found[1:3] != snapshot.fingerprint[1:3]:
        return "another file has its place"
    if found[0] == snapshot.fingerprint[0]:
        return "it was written to"
    size = max(0, found[0] - snapshot.start)
    return f"it has {size:,} bytes instead of {snapshot.size:,}"


@attrs.define(eq=False)
class _FileReader(Reader):
    """Reads a large file: directly if that cannot block, otherwise in threads.

    It does not read ahead, because the operating system does.
    """

    _content: _FileContent
    _opened: OpenedFile
    _offset: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._offset = self._content.snapshot.start

    async def read(self, limit: int, /) -> bytes:
        data = self._opened.read_nowait(limit, self._offset)
        if data is None:
            data = await in_thread(partial(self._read, limit, self._offset))
        self._offset += len(data)
        return data

    async def finish(self) -> None:
        await in_thread(self._finish)

    def close(self) -> None:
        """Close the file; a thread that reads it keeps it open."""
        self._opened.close()

    def _read(self, limit: int, offset: int) -> bytes:
        with _errors_of(self._content.label):
            return self._opened.read(limit, offset)

    def _finish(self) -> None:
        with _errors_of(self._content.label, again=True):
            self._content.check(self._opened)
        self._opened.close()


@contextmanager
def _errors_of(label: str, *, again: bool = False) -> Iterator[None]:
    """Raise our errors for those of a file; ``again``: it was readable before."""
    try:
        yield
    except MeetingError:
        raise
    except Exception as error:
        if again and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise DocumentChanged(label, "it is gone") from error
        raise unreadable(label, error) from error


# --- regular files -------------------------------------------------------------------------------


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


def file_version(size: int, modified: int) -> str:
    """Return what tells a journal whether a file is still the same; ``modified``: nanoseconds."""
    return f"{size} bytes, {modified}"


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


_locks: weakref.WeakValueDictionary[int, threading.Lock] = weakref.WeakValueDictionary()
"""The lock that all uploads of a file object share, by its ``id``: it need not be hashable. What
holds a lock holds its file, too, so the ``id`` cannot become that of another object meanwhile."""

_locks_guard = threading.Lock()


def _lock_of(source: FileObjectSource) -> threading.Lock:
    with _locks_guard:
        return _locks.setdefault(id(source.file), threading.Lock())


@attrs.frozen(eq=False)
class FileObjectSource(FileSource):
    """An open file with synchronous methods: the rest of it, from its current position."""

    file: BinaryIO
    owner: object
    """The object that holds the file; some close it when they are collected."""
    _lock: threading.Lock = attrs.field(
        init=False, default=attrs.Factory(_lock_of, takes_self=True)
    )

    def open(self) -> OpenedFile:
        """Find the position; there is nothing to open."""
        with self.position_kept() as position:
            return _FileObject(self, position)

    @contextmanager
    def position_kept(self) -> Iterator[int]:
        """Use the file exclusively, and restore its position."""
        with self._lock:
            position = self.file.tell()
            try:
                yield position
            finally:
                self.file.seek(position)


@attrs.frozen(eq=False)
class _FileObject(OpenedFile):
    _source: FileObjectSource
    start: int

    def fingerprints(self) -> Iterator[tuple[int, ...]]:
        with self._source.position_kept():
            self._source.file.seek(0, io.SEEK_END)
            end = self._source.file.tell()
        yield (end,)

    def read(self, limit: int, offset: int, /) -> bytes:
        with self._source.position_kept():
            self._source.file.seek(offset)
            data = self._source.file.read(limit)
        if as_view(data).nbytes > limit:
            raise ValueError(f"a read of {limit:,} bytes returned {len(data):,} bytes")
        return bytes(data)
