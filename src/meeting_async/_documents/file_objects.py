"""Open binary files without a descriptor of their own: in memory, spooled, or behind methods.

They are read by seeking, and their position is put back after each read. So every attempt begins
where the first one did, and the caller finds the file as it was.
"""

from __future__ import annotations

import io
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import attrs

from meeting_async._documents.file_content import FileSource, OpenedFile
from meeting_async._documents.source import as_bytes


@attrs.define(eq=False)
class SharedFile:
    """A file object, and the lock that all uploads of it share."""

    file: BinaryIO
    lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)


_shared: weakref.WeakValueDictionary[int, SharedFile] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def shared_file(file: BinaryIO) -> SharedFile:
    """Return the one :class:`SharedFile` of a file object, which need not be hashable.

    It keeps the file alive, so its ``id`` cannot become that of another object meanwhile.
    """
    with _shared_lock:
        shared = _shared.get(id(file))
        if shared is None:
            shared = _shared[id(file)] = SharedFile(file)
        return shared


@attrs.frozen(eq=False)
class FileObjectSource(FileSource):
    """An open file with synchronous methods: the rest of it, from its current position."""

    shared: SharedFile
    owner: object
    """The object that holds the file; some close it when they are collected."""

    def open(self) -> OpenedFile:
        """Find the position; there is nothing to open."""
        with _position_kept(self.shared) as position:
            return _OpenedObject(self.shared, position)


@attrs.frozen(eq=False)
class _OpenedObject:
    _shared: SharedFile
    start: int

    def fingerprints(self) -> Iterator[tuple[int, ...]]:
        with _position_kept(self._shared):
            self._shared.file.seek(0, io.SEEK_END)
            end = self._shared.file.tell()
        yield (end,)

    def read(self, limit: int, offset: int, /) -> bytes:
        with _position_kept(self._shared):
            self._shared.file.seek(offset)
            data = as_bytes(self._shared.file.read(limit))
        if len(data) > limit:
            raise ValueError(f"a read of {limit:,} bytes returned {len(data):,} bytes")
        return data

    def read_nowait(self, _limit: int, _offset: int, /) -> bytes | None:
        return None

    def close(self) -> None:
        """The file is the caller's."""


@contextmanager
def _position_kept(shared: SharedFile) -> Iterator[int]:
    with shared.lock:
        position = shared.file.tell()
        try:
            yield position
        finally:
            shared.file.seek(position)
