"""Open files that are read by their own methods: in memory, spooled, compressed, remote.

The position of such a file is restored when its last user is done, so every attempt begins at the
same one. It is moved only if needed: a file in which seeking back is expensive is read about once.
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
        # Reentrant: garbage collection during a read may close the file of an abandoned upload.
        self.lock = threading.RLock()
        self.users: set[int] = set()
        self.original: int = 0
        """Position to which the last user restores the caller's file."""
        self.current: int | None = None
        """Position now; ``None``: not known."""


_shared: weakref.WeakValueDictionary[int, _Shared] = weakref.WeakValueDictionary()
"""What all uploads of a file object share, by its ``id``: it need not be hashable. Whatever refers
to a value also refers to the file, so no other object has that ``id`` meanwhile."""

_shared_guard = threading.Lock()


@attrs.frozen(eq=False)
class FileObjectSource(FileSource):
    """An open file with synchronous methods: the rest of it, from its current position."""

    file: BinaryIO
    owner: object
    """The object that holds the file; some close it when they are garbage-collected."""
    shared: _Shared = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        with _shared_guard:
            shared = _shared.setdefault(id(self.file), _Shared())
        object.__setattr__(self, "shared", shared)

    def use(self) -> File:
        """Open the file object for one use."""
        return _FileObject(self)


def _position(file: BinaryIO) -> int:
    try:
        found: object = file.tell()
    except RuntimeError as error:
        if "no running event loop" not in str(error):  # raised by obstore in this thread
            raise
        found = None
    if inspect.iscoroutine(found):
        found.close()
    if not isinstance(found, int):
        raise TypeError("its methods are asynchronous: pass an async iterable of its bytes")
    return found


class _FileObject(File):
    """A file object in use. It seeks only if it has to: that may be expensive.

    To go back by one byte, a compressed file is read again from its beginning.
    """

    def __init__(self, source: FileObjectSource) -> None:
        self._source: FileObjectSource | None = None  # until the position is known
        self._file, self._shared = source.file, source.shared
        with self._shared.lock:
            if not self._shared.users:
                self._shared.original = self._shared.current = _position(self._file)
            self._shared.users.add(id(self))
            self.start = self._shared.original
            self._source = source

    def measure(self) -> State:
        """Return the offset of its end, the only known part of its state."""
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
        """Restore the position of the file, if this was its last user."""
        shared = self._shared
        with shared.lock, suppress(Exception):  # the caller may have closed the file
            is_open, self._source = self._source is not None, None
            shared.users.discard(id(self))
            if is_open and not shared.users and shared.current != shared.original:
                shared.current = None
                self._file.seek(shared.original)

    __del__ = close
