"""Streams: bytes that come once, from an async iterable or from a ``read`` that cannot seek.

A stream is spooled before its upload begins, so that its size is known and a retry is possible;
or, if its size was declared and nobody needs a retry, it is sent as it comes.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from meeting_async._limits import check_size
from meeting_async._multipart import Reader
from meeting_async._observer import logger
from meeting_async._pace import CHUNK_BYTES
from meeting_async._sources import Content, Measure, not_bytes, unreadable
from meeting_async._spool import Spool
from meeting_async._threads import in_thread
from meeting_async.errors import DocumentChanged, DocumentError, DocumentUnreadable

CLOSE_SECONDS = 5.0
"""For a generator to clean up after itself when it is closed, even on cancellation."""


@attrs.define(eq=False)
class StreamSource:
    """A stream, good for one upload."""

    stream: Any
    """An async iterable of bytes, or an object with ``read``, synchronous or not."""
    size: int | None = None
    """Bytes, as declared; ``None``: nobody knows."""
    replayable: bool = True
    """Whether it is spooled, so that an attempt can be repeated."""
    _begun: bool = attrs.field(default=False, init=False)

    @asynccontextmanager
    async def held(self, name: str, max_size: int | None) -> AsyncGenerator[Content, None]:
        """Spool the stream, or keep it as it is; close it and delete the spool at the end."""
        if self._begun:
            raise DocumentUnreadable(
                name, "a stream can be uploaded once; use Document.from_factory to upload again"
            )
        self._begun = True
        pieces, spool = _Pieces(name, self.stream), Spool(name, max_size)
        try:
            if self.size is not None:
                check_size(name, self.size, max_size)
            if self.size is not None and not self.replayable:
                yield OnceContent(name, pieces, self.size)
            else:
                await self._fill(name, pieces, spool)
                yield await spool.finished()
        finally:
            try:
                await pieces.aclose()
            finally:
                await spool.aclose()

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


@attrs.define(eq=False)
class OnceContent:
    """A stream of declared size that is sent as it comes."""

    name: str
    _pieces: _Pieces
    _size: int

    @property
    def spent(self) -> bool:
        """Whether a byte was asked for, so that no other attempt can be made."""
        return self._pieces.begun

    async def measure(self) -> Measure:
        """Believe what was declared; it is checked on the way."""
        return Measure(self._size)

    @asynccontextmanager
    async def open(self, measure: Measure) -> AsyncGenerator[Reader, None]:
        """Read the stream, the first time."""
        if self.spent:
            raise DocumentUnreadable(self.name, "the stream was read already")
        yield _OnceReader(self.name, self._pieces, measure.size)


@attrs.define
class _OnceReader:
    _name: str
    _pieces: _Pieces
    _size: int
    _read: int = 0
    _rest: memoryview = attrs.field(factory=lambda: memoryview(b""))

    async def read(self, limit: int, /) -> bytes:
        piece = self._rest or await self._pieces.next()
        if not piece:
            raise _shorter(self._name, self._read, self._size)
        data, self._rest = bytes(piece[:limit]), piece[limit:]
        self._read += len(data)
        return data

    async def finish(self) -> None:
        if self._rest or await self._pieces.next():
            raise _longer(self._name, self._size)


# --- what comes out of a stream ------------------------------------------------------------------

_NOTHING = memoryview(b"")

_CHECKPOINT_ITEMS = 64
"""Items of a stream that is always ready, until others get their turn: well below 1 ms."""


class _Pieces:
    """The bytes of a stream in pieces of a chunk at most, without copies of larger items.

    A piece is good until the next one is asked for: a producer may use its buffer again.
    """

    def __init__(self, name: str, stream: Any) -> None:
        self.begun = False
        """Whether anything was asked of the stream."""
        self._name = name
        self._items = 0
        self._stream = stream
        self._item = _NOTHING
        self._next: Callable[[], Awaitable[object]] | None = None
        self._close: Callable[[], Awaitable[object]] | None = None

    async def next(self) -> memoryview:
        """Return the next piece; an empty one at the end, and no earlier."""
        self.begun = True
        while not self._item:
            self._items += 1
            if self._items % _CHECKPOINT_ITEMS == 0:  # the stream itself may never wait
                await anyio.lowlevel.checkpoint()
            item = await self._next_item()
            if item is None:
                return _NOTHING
            self._item = item
        piece, self._item = self._item[:CHUNK_BYTES], self._item[CHUNK_BYTES:]
        return piece

    async def aclose(self) -> None:
        """Close a generator, also one that was never begun; somebody's file stays open."""
        self._item = _NOTHING
        close, self._close = self._close or _closing(self._stream), None
        if close is not None:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                try:
                    await close()
                except Exception as error:  # noqa: BLE001 - somebody's cleanup undoes no upload
                    logger.warning(
                        "closing the stream %r failed: %r",
                        self._name,
                        error,
                        extra={"action": "StreamNotClosed"},
                    )

    async def _next_item(self) -> memoryview | None:
        try:
            if self._next is None:
                self._next = self._begin()
            item = await self._next()
        except StopAsyncIteration:
            return None
        except DocumentError:
            raise
        except Exception as error:  # whatever somebody's stream raises
            raise unreadable(self._name, error) from error
        return _viewed(self._name, item)

    def _begin(self) -> Callable[[], Awaitable[object]]:
        if callable(getattr(self._stream, "read", None)):
            return _reads(self._stream.read)
        iterator: AsyncIterator[object] = aiter(self._stream)
        self._close = _closing(iterator)
        return partial(anext, iterator)


def _closing(iterator: object) -> Callable[[], Awaitable[object]] | None:
    """Return what closes an async generator, or something that behaves as one."""
    return getattr(iterator, "aclose", None) if hasattr(iterator, "athrow") else None


def _reads(read: Callable[[int], Any]) -> Callable[[], Awaitable[object]]:
    """Make a ``read`` look like an iterator; a synchronous one runs in a thread.

    It may wait for ever, as for a pipe, and no thread can be interrupted: on cancellation it is
    left to itself, and ends with its read.
    """
    is_async = inspect.iscoroutinefunction(read)

    async def following() -> object:
        data = (
            read(CHUNK_BYTES)
            if is_async
            else await in_thread(partial(read, CHUNK_BYTES), abandon=True)
        )
        if inspect.isawaitable(data):
            data = await data
        if isinstance(data, bytes | bytearray | memoryview) and not data:
            raise StopAsyncIteration
        return data

    return following


def _viewed(name: str, item: object) -> memoryview:
    if not isinstance(item, bytes | bytearray | memoryview):
        raise not_bytes(name, item)
    view = memoryview(item)
    return view.cast("B") if view.c_contiguous else memoryview(bytes(view))
