"""Regular files, by path or opened by the caller.

A file is read through a descriptor of its own, which does not move the caller's position. It is
closed with its last reference: when the attempt ends, or when an abandoned thread returns.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import attrs

from meeting_async._documents.file_source import File, FileSource, State
from meeting_async._documents.source import Snapshot
from meeting_async._system import (
    NO_WAIT,
    READ_FLAGS,
    change_time,
    duplicate,
    openable,
    read_at,
    read_nowait,
    spelled_once,
)


@attrs.frozen
class PathSource(FileSource):
    """A file on disk."""

    path: str  # pyright: ignore[reportIncompatibleVariableOverride]  # never None here
    label: str = attrs.Factory(lambda self: self.path, takes_self=True)
    known_as: str = attrs.Factory(lambda self: self.path, takes_self=True)
    """Path by which a journal recognises it."""
    given: object = attrs.Factory(lambda self: self.path, takes_self=True)
    """What the caller gave, kept alive: an object that downloaded the file may delete it when it is
    garbage-collected."""

    def use(self) -> File:
        """Open the file."""
        path = openable(self.path)
        return _RegularFile(_open_regular(path), path)

    def identity(self) -> tuple[str, str]:
        """Return the path that was given, in one spelling; for remote data its address.

        In another working directory a relative path may lead to another file. That counts as a
        change of the document, which is reported, not as a new document.
        """
        if self.given is not self.path:
            return "path", str(self.given)
        return "path", spelled_once(self.known_as)

    def version(self, snapshot: Snapshot | None = None) -> str | None:
        """Return size and modification time: a file that was touched counts as changed."""
        if snapshot is not None:
            size, _, _, modified, *_ = snapshot.fingerprint
            return f"{size} bytes, {modified}"
        try:
            status = os.stat(openable(self.path))
        except (OSError, ValueError):
            return None
        return f"{status.st_size} bytes, {status.st_mtime_ns}"


@attrs.frozen(eq=False)
class OpenFileSource(FileSource):
    """A regular file that the caller has opened, from its current position.

    A duplicate of its descriptor is read: if the caller closes the file, another file may soon have
    its number.
    """

    file: BinaryIO
    owner: object
    """The object that holds the file; some delete it when they are garbage-collected."""

    def use(self) -> File:
        """Duplicate the descriptor."""
        if self.file.writable():
            self.file.flush()
        start = self.file.tell()
        return _RegularFile(_checked(duplicate(self.file.fileno())), start=start)


class _Descriptor:
    """A descriptor that is closed with its last reference."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class _RegularFile(File):
    """An open regular file; if it has a path, the path must still lead to it.

    Its descriptor belongs to one attempt, which reads it in one thread at a time: so uploads of one
    file do not disturb each other even where a read moves the descriptor's position.
    """

    def __init__(self, number: int, path: str | None = None, start: int = 0) -> None:
        self._path, self.start = path, start
        self._descriptor: _Descriptor | None = _Descriptor(number)
        self._buffer = bytearray()

    def measure(self) -> State:
        with self._used() as number:
            return self._state(os.fstat(number))

    def states(self, end: int | None = None) -> Iterator[State]:
        """Yield the state of the open file, then the state of what has its path now, if any."""
        yield self.measure()
        if self._path is not None:
            yield self._state(os.stat(self._path))

    def read(self, limit: int, offset: int, /) -> bytes:
        with self._used() as number:
            return read_at(number, limit, offset)

    def read_nowait(self, limit: int, offset: int, /) -> bytes | None:
        # One buffer for all reads saves CPU. The caller gets a copy: a transport may still use the
        # last chunk.
        if self._descriptor is None:
            return None
        if len(self._buffer) < limit:
            self._buffer = bytearray(limit)
        view = memoryview(self._buffer)[:limit]
        count = read_nowait(self._descriptor.number, view, offset)
        return bytes(view[:count]) if count else None  # a thread finds out

    def close(self) -> None:
        self._descriptor = None

    @contextmanager
    def _used(self) -> Iterator[int]:
        """Keep the descriptor open during a call, but not in the traceback of an error."""
        descriptor = self._descriptor
        if descriptor is None:
            raise ValueError("the attempt has ended")
        yield descriptor.number

    def _state(self, status: os.stat_result) -> State:
        state = (status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns)
        # For a path, the change time shows a change whose modification time was reset. It is left
        # out for an open file, which may be renamed or deleted: that changes it, too.
        return state if self._path is None else (*state, change_time(status))


def _open_regular(path: str) -> int:
    """Open a regular file; opening a FIFO would wait for its other end."""
    _check_regular(os.stat(path))
    try:
        descriptor = os.open(path, READ_FLAGS | NO_WAIT)
    except BlockingIOError:  # a file server holds a lease on it, which ends shortly
        descriptor = os.open(path, READ_FLAGS)
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
