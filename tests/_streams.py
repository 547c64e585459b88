"""Sources that misbehave: streams and files that count what is done with them."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from meeting_async._pace import CHUNK_BYTES
from meeting_async._sources import Content

DATA = bytes(range(250)) * 12_000
SIZE = len(DATA)
"""More than a spool keeps in memory."""


class Producer:
    """An async generator that says how far it was read, and whether it was closed."""

    def __init__(self, items: Iterable[Any], *, pause: float = 0.0) -> None:
        self.items = items
        self.pause = pause
        self.given = 0
        self.closed = False

    async def __call__(self) -> AsyncGenerator[Any, None]:
        """Produce; an exception among the items is raised."""
        try:
            for item in self.items:
                await anyio.sleep(self.pause)
                if isinstance(item, Exception):
                    raise item
                self.given += 1
                yield item
        finally:
            self.closed = True


def pieces(data: bytes = DATA, size: int = 70_000) -> list[bytes]:
    """Cut data up."""
    return [data[start : start + size] for start in range(0, len(data), size)]


async def content_of(content: Content, limit: int = CHUNK_BYTES) -> bytes:
    """Read all of a content, as an attempt does."""
    measure = await content.measure()
    parts = bytearray()
    async with content.open(measure) as reader:
        while wanted := min(limit, measure.size - len(parts)):
            part = await reader.read(wanted)
            assert type(part) is bytes
            assert 0 < len(part) <= wanted
            parts += part
        await reader.finish()
    return bytes(parts)


def temporary_files() -> list[Path]:
    """List the spools on disk."""
    return sorted(Path(tempfile.gettempdir()).glob("meeting-async-*"))


@contextlib.asynccontextmanager
async def largest_gap() -> AsyncIterator[list[float]]:
    """Measure for how long the loop stands still while the block runs."""
    gaps = [0.0]

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await anyio.sleep(0.001)
            now = time.perf_counter()
            gaps[0] = max(gaps[0], now - last)
            last = now

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        yield gaps
        group.cancel_scope.cancel()
