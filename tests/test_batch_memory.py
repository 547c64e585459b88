"""What a batch keeps in memory: a job that waits, a batch of any length, documents read ahead."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from _batches import client_of
from meeting_async import BatchReport, Document, Reply, Request, UploadJob
from meeting_async._intake import MOST_BYTES
from meeting_async._multipart import MultipartBody

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

InVirtualTime = Callable[..., Any]
MIB = 1024**2
SUCCESS = b'{"status": true, "msg": "yes", "status_code": "SUCCESS"}'


class Quick:
    """A transport that answers at once and remembers nothing but numbers."""

    def __init__(self) -> None:
        self.uploads = 0

    async def send(self, request: Request, /) -> Reply:
        """Take all of it."""
        if isinstance(request.body, MultipartBody):
            async for _ in request.body:
                pass
            self.uploads += 1
        await anyio.lowlevel.checkpoint()
        return Reply(200, ((b"Content-Type", b"application/json"),), SUCCESS)

    async def aclose(self) -> None:
        """Hold nothing."""


def traced() -> int:
    """Return the bytes that are in use."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture
def tracing() -> Iterator[None]:
    """Count what is allocated."""
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


def blocks() -> int:
    """Return the number of objects and pieces of memory in use; unlike tracing it costs nothing."""
    gc.collect()
    return sys.getallocatedblocks()


# --- a batch of any length -----------------------------------------------------------------------


async def endless(count: int) -> AsyncIterator[UploadJob]:
    """Yield jobs for as many rooms as there are jobs for each."""
    for number in range(count):
        yield UploadJob(f"room{number % 997}-{number // 2000}", b"%PDF-1.7", filename="deck.pdf")


async def kept_after(count: int, marks: tuple[int, ...]) -> list[int]:
    """Run a batch of so many jobs; return what is in use when so many are over."""
    town, used = Quick(), []
    async with client_of(town) as client:
        many = client.upload_many(endless(count), keep_outcomes=False, window=500)
        async with many as batch:
            seen = 0
            async for _ in batch:
                seen += 1
                if seen in marks:
                    used.append(blocks())
    assert (town.uploads, batch.report.accepted) == (count, count)
    return used


async def test_a_batch_of_any_length_needs_the_same_memory() -> None:
    """From an asynchronous generator, over ever new rooms: nothing grows."""
    early, late = await kept_after(6000, (1500, 5500))
    assert late - early < 400  # a tenth of an object per job would be more


# --- a job that waits ----------------------------------------------------------------------------


@pytest.mark.parametrize("rooms", [10, 1000, 10_000])
async def test_a_queued_job_is_small(rooms: int, tracing: None) -> None:
    """All that a job needs while it waits, its own object and its path's text included."""
    jobs = 10_000
    release = anyio.Event()

    class Held(Quick):
        async def send(self, request: Request, /) -> Reply:
            await release.wait()
            return await super().send(request)

    def made() -> Iterator[UploadJob]:
        for number in range(jobs):
            path = f"/srv/slides/term/{number % rooms:05}/{number:05}.pdf"
            yield UploadJob(f"room{number % rooms:05}", path)

    async with client_of(Held()) as client:
        before = traced()
        async with client.upload_many(made()) as batch:
            await anyio.wait_all_tasks_blocked()
            assert len(batch._queues) == jobs - 1
            each = (traced() - before) / jobs
    assert each <= 1000  # 326, 358 and 613 when this was written


# --- documents in memory -------------------------------------------------------------------------


async def read_ahead(jobs: Iterator[UploadJob], **how: Any) -> tuple[BatchReport, Any]:
    """Run a batch that gets no answer until all is read that will be; return its report."""
    release = anyio.Event()

    class Held(Quick):
        async def send(self, request: Request, /) -> Reply:
            if isinstance(request.body, MultipartBody):
                await release.wait()
            return await super().send(request)

    async with client_of(Held()) as client, client.upload_many(jobs, **how) as batch:
        await anyio.sleep(0.3)
        read = batch._window._jobs
        release.set()
        await batch.wait()
    return batch.report, read


async def test_documents_in_memory_are_read_ahead_to_a_limit(tracing: None) -> None:
    """Each is made when it is read; no more than the limit allows is there at once."""
    size, count = 8 * MIB, 20

    def made() -> Iterator[UploadJob]:
        for number in range(count):
            yield UploadJob(f"room{number}", b"%PDF-1.7" + bytes(size - 8), filename="deck.pdf")

    before = traced()
    report, read = await read_ahead(made())
    peak = tracemalloc.get_traced_memory()[1] - before
    assert report.accepted == count
    assert read == MOST_BYTES // size
    assert peak < MOST_BYTES + 3 * size


async def test_one_document_for_many_rooms_does_not_stop_the_reading() -> None:
    """It is in memory once, however many jobs it stands in."""
    deck = Document.from_bytes(b"%PDF-1.7" + bytes(30 * MIB), "deck.pdf")
    report, read = await read_ahead(UploadJob(f"room{n}", deck) for n in range(40))
    assert (report.accepted, read) == (40, 40)


async def test_rooms_are_forgotten() -> None:
    """Neither the batch nor the turnstile keeps anything of rooms that have nothing to do."""
    rooms: Counter[str] = Counter()
    async with client_of(Quick()) as client:
        many = client.upload_many(endless(300), keep_outcomes=False, wait_active=5.0)
        async with many as batch:
            async for outcome in batch:
                rooms[outcome.room_id] += 1
        gate: Any = client._calls.shared.gate
        assert len(rooms) == 300
        assert (gate._lines, gate._shut_until, batch._presence._active) == ({}, {}, set())
        assert (batch._queues._queues, batch._queues._busy) == ({}, set())
        assert (batch._window._jobs, batch._window._bytes) == (0, 0)


@pytest.mark.parametrize("status", [200, 400])
async def test_documents_are_gone_with_their_jobs(status: int, tracing: None) -> None:
    """At once, though outcomes are kept, with their errors; nobody has to collect garbage."""
    size, count = MIB, 30
    code = b"SUCCESS" if status == 200 else b"INVALID_PARAMETERS"

    class Deciding(Quick):
        async def send(self, request: Request, /) -> Reply:
            found = await super().send(request)
            if isinstance(request.body, bytes):
                return found
            return Reply(status, found.headers, SUCCESS.replace(b"SUCCESS", code))

    def made() -> Iterator[UploadJob]:
        for number in range(count):
            yield UploadJob(f"room{number}", b"%PDF-1.7" + bytes(size), filename="deck.pdf")

    async with client_of(Deciding()) as client:
        before = traced()
        gc.disable()
        try:
            async with client.upload_many(made()) as batch:
                await batch.wait()
                kept = tracemalloc.get_traced_memory()[0] - before
        finally:
            gc.enable()
    assert (batch.report.accepted, batch.report.refused) in {(count, 0), (0, count)}
    assert kept < 3 * size
    for outcome in batch.report.outcomes:
        assert outcome.error is None or outcome.error.__traceback__ is None
