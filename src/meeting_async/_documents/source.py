"""Where the bytes of a document come from.

A source is prepared once per upload: its content has a snapshot, and a stream has a spool until the
upload ends. Each attempt opens the content again, so that no file is open while the upload waits.
"""

from __future__ import annotations

import abc
import errno
import hashlib
import io
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress

import attrs

from meeting_async._system import NO_DESCRIPTOR, in_use
from meeting_async._text import short_repr
from meeting_async.errors import DocumentUnreadable, MeetingError, ResourceExhausted

HEAD_BYTES = 32
"""Number of first bytes that are enough to detect an image."""

Buffer = bytes | bytearray | memoryview

Held = tuple[int, int]
"""``id`` and size of bytes in memory: what several jobs of a batch share must count only once, so
that a document for many rooms does not soon reach the batch's limit."""


@attrs.frozen
class Snapshot:
    """State of a document when its upload begins."""

    size: int
    """Bytes."""
    head: bytes = attrs.field(default=b"", repr=False)
    """The first bytes (at most 32), to tell images from documents."""
    fingerprint: tuple[int, ...] = ()
    """What must not change until the document is sent; empty if it cannot change.

    For a path: size, device, inode, modification time and change time (nanoseconds; on Windows 0).
    """
    start: int = 0
    """Offset in bytes at which the document begins in its file."""


class Opened(abc.ABC):
    """A document that is open for one attempt, read once from its beginning to its end."""

    @abc.abstractmethod
    async def read(self, limit: int, /) -> bytes:
        """Return the next bytes (a stream: also more than ``limit``); ``b""`` only at the end."""

    async def finish(self) -> None:  # noqa: B027 - bytes do not change
        """Raise :class:`DocumentChanged` if the document does not match its snapshot."""

    def close(self) -> None:  # noqa: B027 - only a file is open
        """Release what is open."""


@attrs.frozen(eq=False)
class Content:
    """The bytes of a document during one upload."""

    snapshot: Snapshot
    open: Callable[[], Awaitable[Opened]]
    """Opens it for one attempt."""
    is_consumed: Callable[[], bool] = bool
    """Returns whether the bytes were read and cannot be read again."""


class Source(abc.ABC):
    """Where the bytes of a document come from."""

    is_single_use: bool = False
    """Whether it can be uploaded only once."""
    path: str | None = None
    """The path that was given, if it leads to the document in another process, too."""

    @abc.abstractmethod
    def prepare(self, name: str, max_size: int | None) -> AbstractAsyncContextManager[Content]:
        """Prepare the content for one upload.

        ``name`` is for errors. A stream above ``max_size`` bytes is refused.
        """

    def identity(self) -> tuple[str, str] | None:
        """Return the kind and an id by which a journal recognises the document in another run.

        ``None``: it cannot. Bytes in memory are hashed, which may take long.
        """
        return None

    def held(self) -> Held | None:
        """Return ``id`` and size of the bytes that it keeps in memory, if any."""
        return None

    def version(self, snapshot: Snapshot | None = None) -> str | None:
        """Return what a journal compares to notice a change; ``None``: not known.

        With a snapshot it is the version then; without one it is looked up now, which blocks.
        """
        return None


@attrs.frozen
class BytesSource(Source):
    """A document in memory."""

    data: bytes = attrs.field(repr=lambda data: f"{len(data)} bytes")

    def prepare(self, name: str, max_size: int | None) -> AbstractAsyncContextManager[Content]:
        """Return the bytes as they are."""
        return nullcontext(Content(Snapshot(len(self.data), self.data[:HEAD_BYTES]), self._open))

    def identity(self) -> tuple[str, str]:
        """Return a hash of the bytes."""
        return "bytes", hashlib.sha256(self.data).hexdigest()

    def held(self) -> Held:
        """Return ``id`` and size of its bytes."""
        return id(self.data), len(self.data)

    async def _open(self) -> Opened:
        return OpenedBytes(self.data)


class OpenedBytes(Opened):
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    async def read(self, limit: int, /) -> bytes:
        """Return the next bytes."""
        return self._file.read(limit)


def unreadable(name: str, error: BaseException) -> MeetingError:
    """Return the error for a document that cannot be read."""
    if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
        return ResourceExhausted(f"{name!r} cannot be opened: {error.strerror}")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return DocumentUnreadable(name, reason[:500] + in_use(error) + _fix_of(name, error))


def _fix_of(name: str, error: BaseException) -> str:
    """Return how to fix a path that names no file."""
    is_missing = isinstance(error, FileNotFoundError)
    is_content = is_missing and (_CONTENT.match(name) or len(name) > MAX_NAME)
    if is_content or getattr(error, "errno", None) == errno.ENAMETOOLONG:
        return "; if it is a document, in base64 or not, pass bytes, with filename="
    if is_missing and not os.path.isabs(name):
        with suppress(OSError):
            where = f"the current folder is {short_repr(os.getcwd())}; the room id comes first"
            return f"; fix the path ({where})"
    return "; fix the path" if is_missing else ""


MAX_NAME = 255
"""Longest name of a file in characters."""

_CONTENT = re.compile(r"%PDF-|JVBERi|UEsDB|data:")
"""First characters of documents, plain and in base64, and of ``data:`` URLs."""


def as_view(data: object) -> memoryview:
    """Return a view of what a ``read`` returned, byte by byte; ``TypeError`` if it is not bytes."""
    if data is None:
        raise TypeError("it returned None instead of bytes: it must wait for its bytes")
    try:
        view = memoryview(data)  # type: ignore[arg-type]  # some libraries have a class of their own
    except TypeError:
        raise TypeError(f"it returned {short_repr(data, 40)} instead of bytes") from None
    return view.cast("B") if view.c_contiguous else memoryview(bytes(view))
