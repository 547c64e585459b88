"""Streams: bytes that can be read only once, from an iterable or a file that cannot seek.

A stream is spooled before its upload begins, so that its size is known and retries are possible:
up to 1 MiB in memory, more in a temporary file in ``TMPDIR``. The file is written in threads, and
is open only while it is written or sent. With a declared size and without retries a stream need not
be spooled.
"""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import anyio.lowlevel
import attrs

from meeting_async._clock import CLEANUP_SECONDS
from meeting_async._documents.files import PathSource
from meeting_async._documents.source import (
    BytesSource,
    Content,
    Opened,
    Snapshot,
    Source,
    as_view,
    unreadable,
)
from meeting_async._log import logger
from meeting_async._threads import at_disk, in_thread
from meeting_async.errors import (
    DocumentChanged,
    DocumentError,
    DocumentTooLarge,
    DocumentUnreadable,
    ResourceExhausted,
)

T = TypeVar("T")

PIECE_BYTES = 256 * 1024
"""Most bytes that are read from a stream at once; about as many are written to disk at once."""

MEMORY_BYTES = 1024**2
"""Most bytes of a spool in memory; a thousand waiting uploads use 1 GiB at most."""

_CHECKPOINT_ITEMS = 64
"""After so many items (well below 1 ms), other tasks run, even if the stream never waits."""

_GRACE_SECONDS = 0.1
"""Two cleanups together stay within the 0.25 s by which a call may exceed its timeout."""


@attrs.frozen(eq=False)
class StreamSource(Source):
    """A stream, for one upload only."""

    stream: Any
    """The caller's object."""
    iterate: Callable[[Any], AsyncIterator[object]] = aiter
    """Iterates over it: :func:`reads` or :func:`pulled` if it is not an async iterable."""
    size: int | None = None
    """Bytes, as declared; ``None`` if unknown."""
    replayable: bool = True
    """Whether it is spooled, so that retries are possible."""
    is_single_use = True

    @asynccontextmanager
    async def prepare(self, name: str, max_size: int | None) -> AsyncGenerator[Content, None]:
        """Spool the stream if it is replayable; at the end close it and delete the spool.

        Raises:
            DocumentUnreadable: The stream was already used for an upload.

        """
        if not _claim(self.stream):
            reason = "the stream was already used for an upload; make a new one for each upload, "
            raise DocumentUnreadable(name, reason + "or pass a path or bytes")
        pieces = self.pieces(name)
        try:
            if self.size is not None and max_size is not None and self.size > max_size:
                raise DocumentTooLarge(name, self.size, max_size)
            if self.size is not None and not self.replayable:
                unspooled = _Unspooled(name, pieces)
                yield Content(Snapshot(self.size), unspooled.open, lambda: unspooled.was_read)
                return
            async with (
                spooled(name, pieces, max_size) as source,
                source.prepare(name, None) as content,
            ):
                yield content
        finally:
            await pieces.aclose()
            await _close(name, self.stream)  # in case the first piece was never requested

    async def pieces(self, name: str) -> AsyncGenerator[memoryview, None]:
        """Yield the bytes of a stream in pieces of up to ``PIECE_BYTES``, without copying them.

        A piece is valid until the next one is requested: the stream may reuse its buffer.

        Raises:
            DocumentChanged: There are not exactly as many bytes as were declared.
            DocumentUnreadable: The stream raised, or ended early.

        """
        items: AsyncIterator[object] | None = None
        count = size = 0
        try:
            items = self.iterate(self.stream)
            async for item in items:
                count += 1
                if count % _CHECKPOINT_ITEMS == 0:
                    await anyio.lowlevel.checkpoint()
                view = as_view(item)
                size += len(view)
                _check_declared(name, size, self.size)
                for start in range(0, len(view), PIECE_BYTES):
                    yield view[start : start + PIECE_BYTES]
            _check_declared(name, size, self.size, has_ended=True)
            _check_end(name, self.stream)
            with _claiming:
                _kept.pop(id(self.stream), None)
        except (DocumentError, ResourceExhausted):
            raise
        except Exception as error:  # whatever the stream raises
            raise unreadable(name, error) from error
        finally:
            await _close(name, items)


# --- a stream is used once -----------------------------------------------------------------------

_used: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
"""Streams that were used, by ``id``: they need not be hashable."""

_kept: dict[int, object] = {}
"""Used streams without support for weak references: the rest of one must not be uploaded as a
document. One that was read to its end is forgotten."""

MAX_KEPT = 100
"""Most streams that are kept, as each may hold a document; the oldest is forgotten."""

_claiming = threading.Lock()


def _claim(stream: object) -> bool:
    """Mark a stream as used; return whether it was not used before."""
    with _claiming:
        if _used.get(id(stream)) is stream or id(stream) in _kept:
            return False
        try:
            _used[id(stream)] = stream
        except TypeError:
            _kept[id(stream)] = stream
            if len(_kept) > MAX_KEPT:
                del _kept[next(iter(_kept))]
        return True


# --- sent as it comes ----------------------------------------------------------------------------


@attrs.define(eq=False)
class _Unspooled(Opened):
    """A stream of declared size that is not spooled. It is its own reader, for one attempt."""

    name: str
    pieces: AsyncIterator[memoryview]
    was_read: bool = False

    async def open(self) -> Opened:
        """Return the stream itself; raise if an attempt has read from it."""
        if self.was_read:
            raise DocumentUnreadable(self.name, "the stream was already read by an attempt")
        return self

    async def read(self, limit: int, /) -> bytes:
        """Return the next piece, whatever its size."""
        self.was_read = True
        return bytes(await anext(self.pieces, b""))

    async def finish(self) -> None:
        """Read the end of the stream; raise ``DocumentChanged`` if more bytes come."""
        await anext(self.pieces, None)


# --- spooled -------------------------------------------------------------------------------------


@asynccontextmanager
async def spooled(
    name: str, pieces: AsyncIterator[memoryview], max_size: int | None
) -> AsyncGenerator[Source, None]:
    """Read a stream to its end into a spool, which is deleted when the block ends."""
    size, memory = 0, bytearray()
    file: TemporaryFile | None = None
    try:
        async for piece in pieces:
            size += len(piece)
            if max_size is not None and size > max_size:
                error = DocumentTooLarge(name, size, max_size)
                error.add_note("The stream was not read any further; it may be larger still.")
                raise error
            memory += piece
            del piece  # this frame lives as long as the upload
            if len(memory) > (PIECE_BYTES if file else MEMORY_BYTES):
                if file is None:
                    file = await _on_disk(name, TemporaryFile)
                await _on_disk(name, partial(file.append, memory))
                memory = bytearray()
        if file is None:
            data, memory = bytes(memory), bytearray()
            yield BytesSource(data)
        else:
            await _on_disk(name, partial(file.append, memory))
            yield PathSource(file.path, label="")
    finally:
        if file is not None:
            with cleanup_scope():
                try:
                    await at_disk(file.delete)
                except ResourceExhausted:  # no thread
                    file.delete()


async def _on_disk(name: str, function: Callable[[], T]) -> T:
    return await at_disk(partial(_written, name, function))


def _written(name: str, function: Callable[[], T]) -> T:
    """Write; if that fails, raise ``ResourceExhausted``, which names the folder."""
    import tempfile  # noqa: PLC0415 - takes time, and few need it

    try:
        return function()
    except OSError as error:
        # Not `gettempdir()`, which tries all folders again, and raises if none can be used.
        folder = f" in {tempfile.tempdir}" if tempfile.tempdir else ""
        reason = error.strerror or str(error)
        problem = f"{name!r} cannot be written to a temporary file{folder}: {reason}"
        fix = "free space there, or set TMPDIR to a folder that can be written"
        raise ResourceExhausted(f"{problem}; {fix}") from error


class TemporaryFile:
    """A file that only its owner may read.

    It is deleted by ``delete()``, with the last reference, or when the interpreter exits.
    """

    def __init__(self) -> None:
        import tempfile  # noqa: PLC0415 - takes time, and few need it

        descriptor, self.path = tempfile.mkstemp(prefix="meeting-async-")
        self.delete = weakref.finalize(self, _remove, self.path, os.getpid())
        os.close(descriptor)

    def append(self, data: bytearray) -> None:
        """Append bytes; a file that was deleted is not created again."""
        with open(self.path, "r+b", buffering=0) as file:
            file.seek(0, os.SEEK_END)
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]


def _remove(path: str, process: int) -> None:
    """Delete a file, but not a parent process's; a failure is only logged."""
    if os.getpid() != process:
        return
    try:
        os.unlink(path)
    except OSError as error:
        extra = {"action": "SpoolLeft", "path": path}
        logger.warning("the temporary file %s could not be deleted: %s", path, error, extra=extra)


# --- what comes out of a stream ------------------------------------------------------------------


def _check_end(name: str, stream: Any) -> None:
    """Raise if a stream has ended, but announced more bytes.

    ``http.client``, and so ``urlopen``, returns ``b""`` when the connection breaks (CPython issue
    115997). urllib3 raises, unless that is switched off.
    """
    names = ["length_remaining"]
    if any(kind.__module__ == "http.client" for kind in type(stream).__mro__):
        names.append("length")
    counts = (getattr(stream, name, None) for name in names)
    if left := next((count for count in counts if type(count) is int and count > 0), 0):
        reason = f"it ended {left:,} bytes early: the connection to its source broke"
        raise DocumentUnreadable(name, reason)


def _check_declared(name: str, size: int, declared: int | None, *, has_ended: bool = False) -> None:
    if declared is not None and size > declared:
        raise DocumentChanged(name, f"it has more than the declared {declared:,} bytes")
    if declared is not None and has_ended and size < declared:
        reason = f"it ended after {size:,} of the declared {declared:,} bytes"
        raise DocumentChanged(name, reason)


async def reads(file: Any) -> AsyncGenerator[object, None]:
    """Yield what a file's ``read`` returns; a synchronous ``read`` runs in a thread."""
    read = file.read
    is_async = inspect.iscoroutinefunction(read)
    while True:
        data = read(PIECE_BYTES) if is_async else await at_disk(partial(read, PIECE_BYTES))
        if inspect.isawaitable(data):
            data = await data
        if not as_view(data).nbytes:
            return
        yield data


async def pulled(items: Iterator[object]) -> AsyncGenerator[object, None]:
    """Yield the items of a synchronous iterator, which runs in threads as it may block."""
    end = object()
    while (item := await at_disk(partial(next, items, end))) is not end:
        yield item


async def _close(name: str, iterator: Any) -> None:
    """Close a generator or a similar object, but not a file of the caller."""
    is_async = hasattr(iterator, "athrow")
    if not is_async and getattr(iterator, "gi_running", True):  # not a generator, or running
        return
    with cleanup_scope():
        try:
            await (iterator.aclose() if is_async else in_thread(iterator.close))
        except Exception as error:  # noqa: BLE001 - a caller's cleanup affects no upload
            extra = {"action": "StreamNotClosed", "document": name}
            logger.warning("closing the stream %r raised %r", name, error, extra=extra)


def cleanup_scope() -> anyio.CancelScope:
    """Shield a cleanup for at most 5 s, and at most 0.1 s after the call's time limit."""
    now = anyio.current_time()
    end = max(now, anyio.current_effective_deadline()) + _GRACE_SECONDS
    return anyio.CancelScope(shield=True, deadline=min(end, now + CLEANUP_SECONDS))
