"""What a batch keeps in memory: a job that waits, a batch of any length, documents, errors."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from meeting_async import BatchReport, Document, UploadJob
from meeting_async.errors import BatchStopped
from meeting_async.transports import Reply, Request
from support import fake_rooms
from support.tables import crossed

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

client_of: Any = fake_rooms.client_of  # of another transport
MIB = 1024**2
MAX_BYTES_AHEAD = 64 * MIB
"""Bytes of documents, given as ``bytes``, that are read from the batch ahead."""
SUCCESS = b'{"status": true, "msg": "yes", "status_code": "SUCCESS"}'


@attrs.define(eq=False)
class Quick:
    """A transport that answers at once and remembers nothing but numbers."""

    release: anyio.Event | None = None
    """If there is one, all wait for it."""
    uploads: int = 0

    async def send(self, request: Request, /) -> Reply:
        """Take all of it."""
        if self.release is not None:
            await self.release.wait()
        if not isinstance(request.body, bytes):
            async for _ in request.body:
                pass
            self.uploads += 1
        await anyio.lowlevel.checkpoint()
        return Reply(200, ((b"content-type", b"application/json"),), SUCCESS)

    async def aclose(self) -> None:
        """Hold nothing."""


@pytest.fixture
def tracing() -> Iterator[None]:
    """Count what is allocated."""
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


def traced() -> int:
    """Return the bytes that are in use.

    But for the interpreter's table of names, which `pathlib` fills and which grows in one step.
    """
    gc.collect()
    own = [tracemalloc.Filter(inclusive=False, filename_pattern="*pathlib*")]
    traces = tracemalloc.take_snapshot().filter_traces(own).traces
    return sum(trace.size for trace in traces)


def blocks() -> int:
    """Return the number of pieces of memory in use; unlike tracing it costs nothing."""
    gc.collect()
    return sys.getallocatedblocks()


# --- a batch of any length -----------------------------------------------------------------------


async def endless(count: int) -> AsyncIterator[UploadJob]:
    """Yield jobs for ever new rooms, a thousand of them at a time."""
    for number in range(count):
        yield UploadJob(f"room{number % 997}-{number // 2000}", b"%PDF-1.7", filename="deck.pdf")


async def kept_after(count: int, marks: tuple[int, ...]) -> list[int]:
    """Run a batch of so many jobs; return what is in use when so many are over."""
    transport, used = Quick(), []
    async with client_of(transport) as made:
        async with made.upload_many(endless(count), keep_outcomes=False, window=100) as batch:
            seen = 0
            async for _ in batch:
                seen += 1
                if seen in marks:
                    used.append(blocks())
    assert (transport.uploads, batch.report.accepted) == (count, count)
    return used


@pytest.mark.parametrize(
    ("count", "marks", "most"),
    [
        (1_200, (300, 1_000), 250),
        pytest.param(
            50_000,
            (10_000, 49_000),
            19_000,
            marks=[pytest.mark.nightly, pytest.mark.timeout(900)],
        ),
    ],
)
async def test_a_batch_of_any_length_needs_the_same_memory(
    count: int, marks: tuple[int, ...], most: int
) -> None:
    """From an asynchronous generator, over ever new rooms: nothing grows.

    One block of memory per job would be 700 or 39,000; the rest is caches: the
    interpreter's, and lines of sources.
    """
    early, late = await kept_after(count, marks)
    assert late - early < most


# --- a job that waits ----------------------------------------------------------------------------


@crossed(rooms=(10, 1_500), with_journal=(False, True))
async def test_a_queued_job_is_small(
    rooms: int, with_journal: bool, tracing: None, tmp_path: Any
) -> None:
    """All that a job needs while it waits, its own object and its path's text included."""
    jobs, all_read = 1_500, anyio.Event()

    def made() -> Iterator[UploadJob]:
        yield UploadJob("room00000", b"%PDF-1.7", filename="first.pdf")  # waits for the server
        for number in range(1, jobs):
            path = f"/srv/slides/term/{number % rooms:05}/{number:05}.pdf"
            yield UploadJob(f"room{number % rooms:05}", path)
        all_read.set()

    journal = tmp_path / "term.db" if with_journal else None
    held = Quick(release=anyio.Event())
    async with client_of(held) as used, client_of(Quick()) as other:
        await other.upload_whiteboard_file("room", b"%PDF-1.7", filename="first.pdf")
        before = traced()
        with pytest.raises(BatchStopped):  # noqa: PT012 - what ends the block
            async with used.upload_many(made(), journal=journal) as batch:
                assert batch.report.total == 0
                with anyio.fail_after(60):
                    await all_read.wait()
                each = (traced() - before) / jobs
                raise BatchStopped("enough")
    assert each <= (2500 if with_journal else 1000)


# --- documents in memory -------------------------------------------------------------------------


async def read_ahead(jobs: Iterator[UploadJob]) -> tuple[BatchReport, int]:
    """Run a batch that gets no answer until all is read that will be; return its report."""
    release, read = anyio.Event(), list[int]()

    def noted() -> Iterator[UploadJob]:
        for number, one in enumerate(jobs):
            read.append(number)
            yield one

    held = Quick(release=release)
    async with client_of(held) as used, used.upload_many(noted()) as batch:
        await anyio.sleep(0.3)
        await anyio.wait_all_tasks_blocked()
        count = len(read)
        release.set()
    return batch.report, count


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
    assert read == MAX_BYTES_AHEAD // size + 1  # the last one waits to be let in
    assert peak < MAX_BYTES_AHEAD + 4 * size


async def test_one_document_for_many_rooms_does_not_stop_the_reading() -> None:
    """It is in memory once, however many jobs it stands in."""
    deck = Document.from_bytes(b"%PDF-1.7" + bytes(30 * MIB), "deck.pdf")
    report, read = await read_ahead(UploadJob(f"room{n}", deck) for n in range(40))
    assert (report.accepted, read) == (40, 40)
