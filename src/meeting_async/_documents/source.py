"""What a source of bytes must do, and the simplest one: bytes in memory.

A source is prepared once per upload: a snapshot is taken, and a stream is spooled until the upload
ends. Each attempt opens the content again, so that no file is open while the upload waits.
"""

from __future__ import annotations

import abc
import errno
import io
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

import attrs

from meeting_async._documents.checks import HEAD_BYTES
from meeting_async._text import short_repr
from meeting_async.errors import DocumentUnreadable, MeetingError, ResourceExhausted

Buffer = bytes | bytearray | memoryview


@attrs.frozen
class Snapshot:
    """State of a document when its upload begins."""

    size: int
    """Bytes."""
    head: bytes = attrs.field(default=b"", repr=False)
    """The first bytes (at most 32), to tell images from documents."""
    fingerprint: tuple[int, ...] = ()
    """What must not change until the document is sent; empty if it cannot change.

    For a path: size, device, inode, modification time and change time (nanoseconds).
    """
    start: int = 0
    """Offset in bytes at which the document begins in its file."""


class Reader(abc.ABC):
    """A document that is open for one attempt, read once from its beginning to its end."""

    @abc.abstractmethod
    async def read(self, limit: int, /) -> bytes:
        """Return the next bytes (a stream: also more than ``limit``); ``b""`` only at the end."""

    async def finish(self) -> None:  # noqa: B027 - bytes do not change
        """Raise :class:`DocumentChanged` if the document does not match its snapshot."""

    def close(self) -> None:  # noqa: B027 - only a file is open
        """Release what is open."""


class Content(abc.ABC):
    """The bytes of a document during one upload."""

    snapshot: Snapshot
    is_consumed: bool = False
    """Whether the bytes were read and cannot be read again."""

    @abc.abstractmethod
    async def open(self) -> Reader:
        """Open the content for one attempt."""


class Source(Protocol):
    """Where the bytes of a document come from."""

    def prepare(self, name: str, max_size: int | None) -> AbstractAsyncContextManager[Content]:
        """Prepare the content for one upload.

        ``name`` is for errors. At most ``max_size`` bytes of a stream are read.
        """
        ...


@attrs.frozen
class BytesSource(Content):
    """A document in memory, which is always ready."""

    data: bytes = attrs.field(repr=lambda data: f"{len(data)} bytes")
    snapshot: Snapshot = attrs.field(init=False, repr=False, eq=False)

    @snapshot.default
    def _snapshot(self) -> Snapshot:
        return Snapshot(len(self.data), self.data[:HEAD_BYTES])

    def prepare(self, name: str, max_size: int | None) -> AbstractAsyncContextManager[Content]:
        """Return it as it is."""
        return nullcontext(self)

    async def open(self) -> Reader:
        """Read from the start."""
        return BytesReader(self.data)


class BytesReader(Reader):
    """Reads bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    async def read(self, limit: int, /) -> bytes:
        """Return the next bytes."""
        return self._file.read(limit)


# --- errors --------------------------------------------------------------------------------------


def unreadable(name: str, error: BaseException) -> MeetingError:
    """Return the error of a document that cannot be read."""
    if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
        return ResourceExhausted(f"{name!r} cannot be opened: {error.strerror}")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return DocumentUnreadable(name, reason[:500])


def as_view(data: object) -> memoryview:
    """Return a view of the single bytes of a buffer, as a ``read`` should return."""
    if data is None:
        raise TypeError("it returned None instead of bytes: it must wait for its bytes")
    if not isinstance(data, Buffer):
        raise TypeError(f"it returned {short_repr(data, 40)} instead of bytes")
    view = memoryview(data)
    return view.cast("B") if view.c_contiguous else memoryview(bytes(view))
