"""Where the jobs of a batch come from: read no further ahead than is useful."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
)

import anyio
import anyio.lowlevel
import attrs

from meeting_async._batch.jobs import UploadJob
from meeting_async._batch.options import Jobs
from meeting_async._documents.document import Document
from meeting_async._documents.source import BytesSource

MAX_BYTES_AHEAD = 64 * 1024**2
"""Bytes of documents in memory, as ``bytes``, that are read ahead."""

JOBS_PER_STEP = 64
"""Jobs that are read from a list or generator before other tasks get their turn."""


@attrs.frozen
class InMemory:
    """The bytes of a document in memory. Jobs that have them in common keep them once."""

    identity: int
    """Tells them from others for as long as the job exists."""
    size: int


NOTHING = InMemory(0, 0)


def in_memory(job: UploadJob) -> InMemory:
    """Return what a job keeps in memory, besides its own few hundred bytes."""
    document = job.document
    if isinstance(document, Document) and isinstance(document.source, BytesSource):
        document = document.source.data
    if isinstance(document, bytes | bytearray):
        return InMemory(id(document), len(document))
    if isinstance(document, memoryview):
        with contextlib.suppress(ValueError):  # released: refused when its turn comes
            return InMemory(id(document.obj), document.nbytes)
    return NOTHING


@attrs.define(eq=False)
class Window:
    """Limits the jobs that were read and whose outcome nobody has taken yet."""

    limit: int
    untaken: Callable[[], int]
    """Returns the number of outcomes that nobody has taken yet."""
    _jobs: int = attrs.field(default=0, init=False)
    """Jobs that were read and have no outcome."""
    _bytes: int = attrs.field(default=0, init=False)
    _users: Counter[InMemory] = attrs.field(factory=Counter, init=False)
    """How many jobs keep each document that is in memory."""
    _change: anyio.Event = attrs.field(factory=anyio.Event, init=False)

    async def enter(self, held: InMemory) -> None:
        """Wait until there is room for one more job; a document always has room by itself.

        The job counts however the wait ends: it was read.
        """
        try:
            while self._is_full_for(held):
                self._change = anyio.Event()
                await self._change.wait()
        finally:
            self._jobs += 1
            if held.size:
                self._bytes += held.size if held not in self._users else 0
                self._users[held] += 1

    def leave(self, held: InMemory) -> None:
        """A job has its outcome."""
        self._jobs -= 1
        if held.size:
            self._users[held] -= 1
            if not self._users[held]:
                del self._users[held]
                self._bytes -= held.size
        self.look_again()

    def look_again(self) -> None:
        """An outcome was taken, or nobody will take one."""
        self._change.set()

    def _is_full_for(self, held: InMemory) -> bool:
        if self._jobs + self.untaken() >= self.limit:
            return True
        more = held.size if held not in self._users else 0
        return more > 0 and self._bytes > 0 and self._bytes + more > MAX_BYTES_AHEAD


def check_jobs(jobs: object) -> None:
    """Refuse what holds no jobs before anything begins."""
    if not isinstance(jobs, Iterable | AsyncIterable):
        kind = type(jobs).__name__
        raise TypeError(f"jobs must be an iterable or async iterable of UploadJob, not {kind}")


@contextlib.asynccontextmanager
async def reading(jobs: Jobs) -> AsyncGenerator[AsyncIterator[UploadJob], None]:
    """Read jobs from whatever they come in; generators are closed at the end."""
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(jobs, AsyncIterable):
            found = aiter(jobs)
            if isinstance(found, AsyncGenerator):
                stack.push_async_callback(found.aclose)
            yield found
        else:
            own = _in_steps(jobs)
            stack.push_async_callback(own.aclose)
            yield own


async def _in_steps(jobs: Iterable[UploadJob]) -> AsyncGenerator[UploadJob, None]:
    """Let other tasks run now and then while jobs come from something that does not wait."""
    with contextlib.ExitStack() as stack:
        found = iter(jobs)
        if isinstance(found, Generator):
            stack.callback(found.close)
        for number, job in enumerate(found):
            yield job
            if number % JOBS_PER_STEP == JOBS_PER_STEP - 1:
                await anyio.lowlevel.checkpoint()
