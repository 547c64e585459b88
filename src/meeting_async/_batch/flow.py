"""Jobs of a batch that were read, and outcomes that were not read yet."""

from __future__ import annotations

import time
from collections import Counter, abc, deque
from typing import Self
from weakref import WeakSet

import anyio
import anyio.lowlevel
import attrs

from meeting_async._batch.results import UploadJob, UploadOutcome
from meeting_async._documents.document import Document, source_of
from meeting_async._documents.source import Held

Jobs = abc.Iterable[UploadJob] | abc.AsyncIterable[UploadJob]

LISTS = (abc.Sequence, abc.Set, abc.MappingView)
"""Jobs of these kinds are read to their end, also after a stop: each gets its outcome. A length
alone does not tell: a progress bar around a generator has one."""

MAX_BYTES_AHEAD = 64 * 1024**2
"""Largest number of bytes of documents, given as ``bytes``, that are read ahead. Without a limit a
generator that makes 10,000 documents, the default window, would have all of them in memory."""

READING_SECONDS = 0.005
"""Seconds for which jobs are read before other tasks can run."""


async def read(jobs: Jobs) -> abc.AsyncGenerator[UploadJob, None]:
    """Read jobs from any kind of iterable; generators are closed at the end."""
    found = aiter(jobs) if isinstance(jobs, abc.AsyncIterable) else _each(jobs)
    began = time.monotonic()
    try:
        async for job in found:
            yield job
            if time.monotonic() - began >= READING_SECONDS:
                await anyio.lowlevel.checkpoint()
                began = time.monotonic()
    finally:
        if isinstance(found, abc.AsyncGenerator):
            await found.aclose()


async def _each(jobs: abc.Iterable[UploadJob]) -> abc.AsyncGenerator[UploadJob, None]:
    each = iter(jobs)
    try:
        for job in each:
            yield job
    finally:
        if isinstance(each, abc.Generator):
            each.close()


def held_by(job: UploadJob) -> Held | None:
    """Return what a job keeps in memory, besides its own few hundred bytes."""
    document = job.document
    if isinstance(document, Document):
        return source_of(document).held()
    return (id(document), len(document)) if isinstance(document, bytes | bytearray) else None


@attrs.define(eq=False)
class Flow:
    """Limits the jobs that were read and whose outcome was not taken yet, and hands outcomes over.

    Each outcome goes to one of the iterators.
    """

    window: int
    jobs: int = 0
    """Jobs that were read and have no outcome yet."""
    _bytes: int = 0
    _users: Counter[Held] = attrs.field(factory=Counter)
    """How many jobs keep each document that is in memory."""
    _untaken: deque[UploadOutcome] = attrs.field(factory=deque)
    iterators: WeakSet[OutcomeIterator] = attrs.field(factory=WeakSet)
    """Iterators that are still in use. A loop that is left early only drops its own, and the
    outcomes of a long batch must not wait for it in memory."""
    _is_keeping: bool = True
    """Whether outcomes are kept for iterators that are made later."""
    _is_read: bool = False
    """Whether no further job will be read."""
    ended: anyio.Event = attrs.field(factory=anyio.Event)
    """Set when no further outcome comes."""
    _change: anyio.Event = attrs.field(factory=anyio.Event)

    async def enter(self, held: Held | None) -> None:
        """Wait until one more job may be read; a single document is never too large.

        The job counts even if the wait is cancelled, because it was read.
        """
        try:
            while self._is_full_for(held):
                await self._changed()
        finally:
            self.jobs += 1
            if held:
                self._bytes += held[1] if held not in self._users else 0
                self._users[held] += 1

    def leave(self, held: Held | None, outcome: UploadOutcome) -> None:
        """Pass an outcome to an iterator, keep it for one, or drop it."""
        self.jobs -= 1
        if held:
            self._users[held] -= 1
            if not self._users[held]:
                del self._users[held]
                self._bytes -= held[1]
        if self._is_keeping or self.iterators:
            self._untaken.append(outcome)
        self._end_if_complete()
        self._change.set()

    async def take(self) -> UploadOutcome | None:
        """Wait for an outcome; ``None`` if no further one comes."""
        await anyio.lowlevel.checkpoint()
        while not self._untaken:
            if self.ended.is_set():
                return None
            await self._changed()
        self._change.set()
        return self._untaken.popleft()

    def stop_keeping(self) -> None:
        """Keep outcomes only for existing iterators."""
        self._is_keeping = False
        if not self.iterators:
            self._untaken.clear()
        self._change.set()

    def stop_reading(self) -> None:
        """No further job comes."""
        self._is_read = True
        self._end_if_complete()

    def end(self) -> None:
        """No further outcome comes."""
        self.ended.set()
        self._change.set()

    def _end_if_complete(self) -> None:
        if self._is_read and not self.jobs:
            self.end()

    async def _changed(self) -> None:
        if self._change.is_set():
            self._change = anyio.Event()
        await self._change.wait()

    def _is_full_for(self, held: Held | None) -> bool:
        untaken = len(self._untaken) if self._is_keeping else 0
        if self.jobs + untaken >= self.window:
            return True
        more = held[1] if held and held not in self._users else 0
        return more > 0 and self._bytes > 0 and self._bytes + more > MAX_BYTES_AHEAD


class OutcomeIterator:
    """Iterates over the outcomes of a batch that go to one consumer."""

    def __init__(self, flow: Flow, at_end: abc.Callable[[], None]) -> None:
        self._flow, self._at_end = flow, at_end
        flow.iterators.add(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> UploadOutcome:
        outcome = await self._flow.take()
        if outcome is None:
            self._at_end()
            raise StopAsyncIteration
        return outcome
