"""Where the jobs of a batch come from: read no further ahead than is useful."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable

import anyio
import anyio.lowlevel
import attrs

from meeting_async._documents import Document
from meeting_async._jobs import UploadJob
from meeting_async._sources import BytesSource

MOST_BYTES = 64 * 1024**2
"""Bytes of documents in memory, as ``bytes``, that are read ahead."""

BREATH = 64
"""Jobs that are read in one go before other tasks get their turn."""

Jobs = Iterable[UploadJob] | AsyncIterable[UploadJob]


def weight_of(job: UploadJob) -> int:
    """Bytes that a job keeps in memory, besides its own few hundred."""
    document = job.document
    if isinstance(document, Document) and isinstance(document.source, BytesSource):
        document = document.source.data
    if isinstance(document, bytes | bytearray):
        return len(document)
    return document.nbytes if isinstance(document, memoryview) else 0


@attrs.define(eq=False)
class Window:
    """Limits the jobs that were read and whose outcome nobody has taken yet."""

    limit: int
    _jobs: int = attrs.field(default=0, init=False)
    _bytes: int = attrs.field(default=0, init=False)
    _change: anyio.Event = attrs.field(factory=anyio.Event, init=False)

    async def enter(self, weight: int) -> None:
        """Wait until there is room for one more job; the first one always has room."""
        while self._jobs and (self._jobs >= self.limit or self._bytes + weight > MOST_BYTES):
            self._change = anyio.Event()
            await self._change.wait()
        self._jobs += 1
        self._bytes += weight

    def unload(self, weight: int) -> None:
        """Note that the document of a job is no longer needed."""
        self._bytes -= weight
        self._change.set()

    def leave(self) -> None:
        """Note that the outcome of a job was taken."""
        self._jobs -= 1
        self._change.set()


@contextlib.asynccontextmanager
async def reading(jobs: Jobs) -> AsyncGenerator[AsyncIterator[UploadJob], None]:
    """Read jobs from whatever they are given as; generators are closed at the end."""
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(jobs, AsyncIterable):
            found = aiter(jobs)
            if isinstance(found, AsyncGenerator):
                stack.push_async_callback(found.aclose)
            yield found
        else:
            own = _breathing(jobs)
            stack.push_async_callback(own.aclose)
            yield own


async def _breathing(jobs: Iterable[UploadJob]) -> AsyncGenerator[UploadJob, None]:
    """Let other tasks run now and then while jobs are taken from what does not wait."""
    with contextlib.ExitStack() as stack:
        found = iter(jobs)
        if isinstance(found, Generator):
            stack.callback(found.close)
        for number, job in enumerate(found):
            yield job
            if number % BREATH == BREATH - 1:
                await anyio.lowlevel.checkpoint()
