"""Where the jobs of a batch come from: read no further ahead than is useful."""

from __future__ import annotations

import contextlib
from collections import Counter
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


@attrs.frozen
class Held:
    """Bytes in memory. Jobs that have them in common keep them once."""

    what: int
    """Tells them apart for as long as the job is there."""
    size: int


NOTHING = Held(0, 0)


def held_by(job: UploadJob) -> Held:
    """Tell what a job keeps in memory, besides its own few hundred bytes."""
    document = job.document
    if isinstance(document, Document) and isinstance(document.source, BytesSource):
        document = document.source.data
    if isinstance(document, bytes | bytearray):
        return Held(id(document), len(document))
    if isinstance(document, memoryview):
        with contextlib.suppress(ValueError):  # released: refused when its turn comes
            return Held(id(document.obj), document.nbytes)
    return NOTHING


@attrs.define(eq=False)
class Window:
    """Limits the jobs that were read and whose outcome nobody has taken yet."""

    limit: int
    _jobs: int = attrs.field(default=0, init=False)
    _bytes: int = attrs.field(default=0, init=False)
    _users: Counter[Held] = attrs.field(factory=Counter, init=False)
    """How many jobs keep each thing that is in memory."""
    _change: anyio.Event = attrs.field(factory=anyio.Event, init=False)

    async def enter(self, held: Held) -> None:
        """Wait until there is room for one more job; a document has room where there is no other.

        The job counts however the wait ends: it was read.
        """
        try:
            while self._is_full_for(held):
                self._change = anyio.Event()
                await self._change.wait()
        finally:
            self._jobs += 1
            self._load(held)

    def _is_full_for(self, held: Held) -> bool:
        if self._jobs >= self.limit:
            return True
        more = held.size if held not in self._users else 0
        return more > 0 and self._bytes > 0 and self._bytes + more > MOST_BYTES

    def _load(self, held: Held) -> None:
        if held.size:
            self._bytes += held.size if held not in self._users else 0
            self._users[held] += 1

    def unload(self, held: Held) -> None:
        """Note that the document of a job is no longer needed."""
        if not held.size:
            return
        self._users[held] -= 1
        if not self._users[held]:
            del self._users[held]
            self._bytes -= held.size
            self._change.set()

    def leave(self) -> None:
        """Note that the outcome of a job was taken."""
        self._jobs -= 1
        self._change.set()


def checked_jobs(jobs: object) -> None:
    """Refuse what has no jobs in it before anything begins."""
    if not isinstance(jobs, Iterable | AsyncIterable):
        kind = type(jobs).__name__
        raise TypeError(f"jobs must be an iterable or async iterable of UploadJob, not {kind}")


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
