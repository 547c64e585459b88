"""Streams: bytes that come once, from an async iterable or from a ``read`` that cannot seek.

A stream is spooled before its upload begins, so that its size is known and an attempt can be
repeated. If its size is declared and no attempt needs to be repeated, it is sent as it comes.
"""

from __future__ import annotations

import collections
import inspect
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio.lowlevel
import attrs

from meeting_async._documents.checks import check_size
from meeting_async._documents.source import Content, Reader, Snapshot, as_view, unreadable
from meeting_async._documents.spool import Spool, cleanup_scope, logger
from meeting_async._documents.threads import in_thread
from meeting_async.errors import DocumentChanged, DocumentError, DocumentUnreadable

PIECE_BYTES = 256 * 1024
"""Most bytes of a stream that are taken at a time."""


@attrs.frozen(eq=False)
class StreamSource:
    """A stream, good for one upload."""

    stream: Any
    """An async iterable of bytes, or an object with ``read``, synchronous or not."""
    size: int | None = None
    """Bytes, as declared; ``None`` if unknown."""
    replayable: bool = True
    """Whether it is spooled, so that an attempt can be repeated."""

    @asynccontextmanager
    async def prepare(self, name: str, max_size: int | None) -> AsyncGenerator[Content, None]:
        """Spool the stream, or take it as it comes; at the end close it and delete the spool.

        Raises:
            DocumentUnreadable: The stream was used for an upload before, by whatever document.

        """
        if not _claim(self.stream):
            reason = "the stream was already used for an upload; make a new one for each upload, "
            raise DocumentUnreadable(name, reason + "or pass a path or bytes")
        pieces, spool = _Pieces(name, self.stream), Spool(name, max_size)
        try:
            if self.size is not None:
                check_size(name, self.size, max_size)
            if self.size is not None and not self.replayable:
                yield OnceContent(name, pieces, Snapshot(self.size))
                return
            await self._fill(name, pieces, spool)
            async with (await spool.source()).prepare(name, None) as content:
                yield content
        finally:
            try:
                await pieces.aclose()
            finally:
                await spool.delete()

    async def _fill(self, name: str, pieces: _Pieces, spool: Spool) -> None:
        while piece := await pieces.next():
            if self.size is not None and spool.size + len(piece) > self.size:
                raise _longer(name, self.size)
            await spool.add(piece)
        if self.size is not None and spool.size < self.size:
            raise _shorter(name, spool.size, self.size)


def _longer(name: str, size: int) -> DocumentChanged:
    return DocumentChanged(name, f"it has more than the declared {size:,} bytes")


def _shorter(name: str, got: int, size: int) -> DocumentChanged:
    return DocumentChanged(name, f"it ended after {got:,} of the declared {size:,} bytes")


# --- a stream is used once -----------------------------------------------------------------------

_used: dict[int, object] = {}
"""By ``id``: a reference that removes the entry together with its stream."""

_kept: collections.deque[object] = collections.deque()
"""Used streams that take no weak reference: an id stays theirs only while they exist."""

_MAX_KEPT = 1000


def _claim(stream: object) -> bool:
    """Return whether a stream is used for the first time."""
    number = id(stream)
    try:
        mark: object = weakref.ref(stream, lambda _: _used.pop(number, None))
    except TypeError:
        mark = object()
    is_first = _used.setdefault(number, mark) is mark
    if is_first and not isinstance(mark, weakref.ref):
        _kept.append(stream)
        if len(_kept) > _MAX_KEPT:
            _used.pop(id(_kept.popleft()), None)
    return is_first


# --- sent as it comes ----------------------------------------------------------------------------


@attrs.define(eq=False)
class OnceContent:
    """A stream of declared size that is sent as it comes, to the one attempt that reads it."""

    name: str
    _pieces: _Pieces
    snapshot: Snapshot
    """The declared size, which is checked on the way."""
    is_spent: bool = False
    _read: int = 0

    async def open(self) -> Reader:
        """Read the stream, the first time."""
        if self.is_spent:
            raise DocumentUnreadable(self.name, "the stream was already read by an attempt")
        self.is_spent = True
        return self

    async def read(self, limit: int, /) -> bytes:
        """Return the next bytes."""
        piece = bytes(await self._pieces.next(limit))
        self._read += len(piece)
        if not piece:
            raise _shorter(self.name, self._read, self.snapshot.size)
        return piece

    async def finish(self) -> None:
        """Check that nothing is left."""
        if await self._pieces.next():
            raise _longer(self.name, self.snapshot.size)

    def close(self) -> None:
        """The upload closes the stream."""

    def release(self) -> None:
        """Nothing was read ahead."""


# --- what comes out of a stream ------------------------------------------------------------------

_NOTHING = memoryview(b"")

_CHECKPOINT_ITEMS = 64
"""Items of a stream that never waits, until other tasks can run: well below 1 ms."""


class _Pieces:
    """The bytes of a stream in pieces, without copies of larger items.

    A piece is valid until the next one is asked for: a producer may use its buffer again.
    """

    def __init__(self, name: str, stream: Any) -> None:
        self._name = name
        self._stream = stream
        self._items = 0
        self._item = _NOTHING
        self._next: Callable[[], Awaitable[object]] | None = None
        self._close: Callable[[], Awaitable[object]] | None = None

    async def next(self, limit: int = PIECE_BYTES) -> memoryview:
        """Return the next piece of at most ``limit`` bytes; an empty one only at the end."""
        while not self._item:
            self._items += 1
            if self._items % _CHECKPOINT_ITEMS == 0:
                await anyio.lowlevel.checkpoint()
            item = await self._next_item()
            if item is None:
                return _NOTHING
            self._item = item
        piece, self._item = self._item[:limit], self._item[limit:]
        return piece

    async def aclose(self) -> None:
        """Close a generator, even one that was never started; a file of the caller stays open."""
        self._item = _NOTHING
        close, self._close = self._close or _closing(self._stream), None
        if close is None:
            return
        with cleanup_scope():
            try:
                await close()
            except Exception as error:  # noqa: BLE001 - somebody's cleanup affects no upload
                extra = {"action": "StreamNotClosed", "document": self._name}
                logger.warning("closing the stream %r raised %r", self._name, error, extra=extra)

    async def _next_item(self) -> memoryview | None:
        try:
            if self._next is None:
                self._next = self._begin()
            return as_view(await self._next())
        except StopAsyncIteration:
            return None
        except DocumentError:
            raise
        except Exception as error:  # whatever somebody's stream raises
            raise unreadable(self._name, error) from error

    def _begin(self) -> Callable[[], Awaitable[object]]:
        if callable(getattr(self._stream, "read", None)):
            return partial(_read_item, self._stream.read)
        iterator: AsyncIterator[object] = aiter(self._stream)
        self._close = _closing(iterator)
        return partial(anext, iterator)


def _closing(iterator: object) -> Callable[[], Awaitable[object]] | None:
    """Return what closes an async generator, or something that behaves as one."""
    return getattr(iterator, "aclose", None) if hasattr(iterator, "athrow") else None


async def _read_item(read: Callable[[int], Any]) -> object:
    """Make a ``read`` look like an iterator; a synchronous one runs in a thread."""
    is_async = inspect.iscoroutinefunction(read)
    data = read(PIECE_BYTES) if is_async else await in_thread(partial(read, PIECE_BYTES))
    if inspect.isawaitable(data):
        data = await data
    if isinstance(data, bytes | bytearray | memoryview) and not data:
        raise StopAsyncIteration
    return data
