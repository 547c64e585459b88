"""Where a document's bytes come from: what every kind of source promises, and bytes in memory.

A source is *held* for one upload: what has to be kept for all its attempts, such as the spool of
a stream, is made then and gone when the block ends. What is held is measured once and opened
afresh for every attempt, so that nothing is open while the upload waits.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Protocol, Self

import attrs

from meeting_async._limits import HEAD_BYTES, shown
from meeting_async._multipart import Reader
from meeting_async.errors import DocumentUnreadable


@attrs.frozen
class Measure:
    """What a document was when its upload began."""

    size: int
    """Bytes."""
    head: bytes = b""
    """The first bytes, to tell images from documents."""
    stamp: tuple[int, ...] = ()
    """What must stay the same until the document is out."""
    start: int = 0
    """Where the document begins in its file, in bytes."""


class Content(Protocol):
    """A document's bytes, for one upload."""

    async def measure(self) -> Measure:
        """Find out size and first bytes."""
        ...

    def open(self, measure: Measure) -> AbstractAsyncContextManager[Reader]:
        """Open it for one attempt; it is closed when the block ends."""
        ...


class Source(Protocol):
    """Where a document's bytes come from."""

    def held(self, name: str, max_size: int | None) -> AbstractAsyncContextManager[Content]:
        """Keep the bytes at hand for one upload.

        ``name`` is what errors call it. No more than ``max_size`` bytes need be kept.
        """
        ...


@attrs.frozen
class BytesSource:
    """A document in memory."""

    data: bytes = attrs.field(repr=lambda data: f"{len(data)} bytes")

    def held(self, name: str, max_size: int | None) -> AbstractAsyncContextManager[Self]:
        """Nothing to keep."""
        return nullcontext(self)

    async def measure(self) -> Measure:
        """Nothing to ask."""
        return Measure(len(self.data), self.data[:HEAD_BYTES])

    @asynccontextmanager
    async def open(self, measure: Measure) -> AsyncGenerator[Reader, None]:
        """Read from the start."""
        yield BytesReader(self.data)


@attrs.define
class BytesReader:
    """Reads what is in memory."""

    _data: bytes = attrs.field(repr=False)
    _offset: int = 0

    async def read(self, limit: int, /) -> bytes:
        """Return the next bytes."""
        chunk = self._data[self._offset : self._offset + limit]
        self._offset += len(chunk)
        return chunk

    async def finish(self) -> None:
        """Bytes do not change."""


def unreadable(name: str, error: BaseException) -> DocumentUnreadable:
    """Say why a document cannot be read, in the words of what failed."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return DocumentUnreadable(name, reason)


def checked_bytes(name: str, data: object) -> bytes:
    """Return what a ``read`` brought, if it is bytes."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise not_bytes(name, data)


def not_bytes(name: str, data: object) -> DocumentUnreadable:
    """Say what came instead of bytes."""
    if data is None:
        return DocumentUnreadable(name, "a read brought None: it must wait for its bytes")
    return DocumentUnreadable(name, f"it brought {shown(data, 40)} instead of bytes")
