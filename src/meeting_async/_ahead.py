"""Reading a large document: directly where that cannot block, else in a thread, one chunk ahead.

While a chunk is sent, the next one is read. What is read ahead belongs to the block in which the
document is open: when it ends, nothing of it is left, neither a task nor a thread's result.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import anyio
import anyio.abc
import attrs

from meeting_async._multipart import Reader
from meeting_async._threads import in_thread


class Blocks(Protocol):
    """What is read from, at any place."""

    def at_hand(self, limit: int, offset: int) -> bytes | None:
        """Read up to ``limit`` bytes without any waiting; ``None`` if that cannot be promised."""
        ...

    def fetch(self, limit: int, offset: int) -> bytes:
        """Read up to ``limit`` bytes, in a thread; ``b""`` only at the end."""
        ...


@asynccontextmanager
async def reading_ahead(
    blocks: Blocks, start: int, size: int, finish: Callable[[], Awaitable[None]]
) -> AsyncGenerator[Reader, None]:
    """Read ``size`` bytes from ``start``; ``finish`` is the reader's."""
    failure: BaseException | None = None
    async with anyio.create_task_group() as group:
        try:
            yield _AheadReader(blocks, group, start, start + size, finish)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - raised below, ungrouped
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure


@attrs.define(eq=False)
class _Chunk:
    """A chunk that was asked for ahead of its time."""

    data: bytes | None = attrs.field(default=None, repr=False)
    error: Exception | None = None
    from_thread: bool = False
    _arrived: anyio.Event = attrs.field(factory=anyio.Event)

    async def fetch(self, read: Callable[[], bytes]) -> None:
        """Read it in a thread; what fails is told to the one who gets the chunk."""
        try:
            self.data = await in_thread(read)
        except Exception as error:  # noqa: BLE001 - raised by `get`
            self.error = error
        finally:
            self._arrived.set()

    async def get(self) -> bytes:
        """Wait for it."""
        if self.data is None:
            await self._arrived.wait()
        if self.error is not None:
            raise self.error
        return self.data or b""


@attrs.define(eq=False)
class _AheadReader:
    _blocks: Blocks
    _group: anyio.abc.TaskGroup
    _offset: int
    """Of the next byte that nobody asked for yet."""
    _end: int
    _finish: Callable[[], Awaitable[None]]
    _ahead: _Chunk | None = None

    async def read(self, limit: int, /) -> bytes:
        chunk, self._ahead = self._ahead or self._asked(limit), None
        data = await chunk.get()
        if chunk.from_thread:
            self._offset += len(data)
        if len(data) > limit:
            self._ahead = _Chunk(data[limit:])
        elif chunk.from_thread and data:
            self._ahead = self._asked(limit)
        return data[:limit]

    async def finish(self) -> None:
        await self._finish()

    def _asked(self, limit: int) -> _Chunk:
        wanted = min(limit, self._end - self._offset)
        if wanted <= 0:
            return _Chunk(b"")
        data = self._blocks.at_hand(wanted, self._offset)
        if data is not None:
            self._offset += len(data)
            return _Chunk(data)
        chunk = _Chunk(from_thread=True)
        read = partial(self._blocks.fetch, wanted, self._offset)
        self._group.start_soon(chunk.fetch, read)
        return chunk
