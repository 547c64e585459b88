"""Open files that are read by their own methods: in memory, spooled, compressed, in a store.

Such a file is read by seeking, and its position is restored when its last user is done. So every
attempt begins at the same position, and a file in which seeking back is expensive is read about
once.
"""

from __future__ import annotations

import inspect
import io
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

import attrs

from meeting_async._documents.file_source import File, FileSource, State
from meeting_async._documents.source import as_view


class _Shared:
    """The positions of a file object that several uploads may read."""

    def __init__(self) -> None:
        # Garbage that is collected during a read may be of an abandoned upload, and close itself.
        self.lock = threading.RLock()
        self.users: set[int] = set()
        self.original: int = 0
        """Position of the caller's file, to which the last user puts it back."""
        self.current: int | None = None
        """Its position now, if that is known."""


_shared: weakref.WeakValueDictionary[int, _Shared] = weakref.WeakValueDictionary()
"""What all uploads of a file object share, by its ``id``: it need not be hashable. What refers to a
value here refers to its file, too, so no other object gets that ``id`` meanwhile."""

_shared_guard = threading.Lock()


@attrs.frozen(eq=False)
class FileObjectSource(FileSource):
    """An open file with synchronous methods: the rest of it, from its current position."""

    file: BinaryIO
    owner: object
    """The object that holds the file; some close it when they are collected."""
    shared: _Shared = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        with _shared_guard:
            shared = _shared.setdefault(id(self.file), _Shared())
        object.__setattr__(self, "shared", shared)

    def use(self) -> File:
        """Begin to use the file."""
        return _FileObject(self)


def _position(file: BinaryIO) -> int:
    try:
        found: object = file.tell()
    except RuntimeError as error:
        if "no running event loop" not in str(error):  # of obstore, as this is a thread
            raise
        found = None
    if inspect.iscoroutine(found):
        found.close()
    if not isinstance(found, int):
        raise TypeError("its methods are asynchronous: pass an async iterable of its bytes")
    return found


class _FileObject(File):
    """A file object in use. It seeks only if it has to, because that may be expensive.

    To go back by one byte, a compressed file is read again from its beginning.
    """

    def __init__(self, source: FileObjectSource) -> None:
        self._source: FileObjectSource | None = source
        self._file, self._shared = source.file, source.shared
        with self._shared.lock:
            if not self._shared.users:
                self._shared.original = self._shared.current = _position(self._file)
            self._shared.users.add(id(self))
            self.start = self._shared.original

    def measure(self) -> State:
        """Go to its end."""
        with self._shared.lock:
            self._shared.current = None
            self._file.seek(0, io.SEEK_END)
            end = self._shared.current = self._file.tell()
        return (end,)

    def states(self, end: int | None = None) -> Iterator[State]:
        """Yield nothing at the beginning, and at the end whether more bytes follow."""
        if end is not None:
            yield (end + len(self.read(1, end)),)

    def read(self, limit: int, offset: int, /) -> bytes:
        shared = self._shared
        with shared.lock:
            if self._source is None:
                raise ValueError("the attempt has ended")
            if shared.current != offset:
                self._file.seek(offset)
            shared.current = None
            data = bytes(as_view(self._file.read(limit)))
            shared.current = offset + len(data)
        if len(data) > limit:
            raise ValueError(f"a read of {limit:,} bytes returned {len(data):,} bytes")
        return data

    def close(self) -> None:
        """Put the file back to where it stood, if this was its last user."""
        shared = self._shared
        with shared.lock, suppress(Exception):  # of a file that the caller has closed
            is_open, self._source = self._source is not None, None
            shared.users.discard(id(self))
            if is_open and not shared.users and shared.current != shared.original:
                shared.current = None
                self._file.seek(shared.original)

    __del__ = close
