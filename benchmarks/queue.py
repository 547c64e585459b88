"""What the queue costs: ``python -m benchmarks.queue`` (about ten minutes; ``--quick`` one minute).

It starts PostgreSQL in a temporary folder and a responder that answers each upload after a while.
All of it shares the machine: the database, the server and the workers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from pathlib import Path

import attrs
import procrastinate
import psycopg

from benchmarks import _report, _responder, _wire
from benchmarks._measure import allow_many_descriptors
from benchmarks._process import ROOT
from meeting_async import MeetingClient, UploadJob
from meeting_async.procrastinate import WhiteboardUploads, connector

sys.path.append(str(ROOT / "tests"))
from support.postgres import postgres_running

SIZE = 64 * 1024
HOLD_SECONDS = 0.5
PER_ROOM = 10


@attrs.frozen
class Place:
    """Where everything is."""

    dsn: str
    url: str
    document: Path

    def jobs(self, count: int, per_room: int = PER_ROOM) -> Iterator[UploadJob]:
        """Make jobs: the documents of a room follow one another at a distance."""
        rooms = max(1, count // per_room)
        for number in range(count):
            yield UploadJob(f"room{number % rooms:05}", self.document, key=str(number))

    def client(self) -> MeetingClient:
        """Make a client."""
        return MeetingClient(self.url, api_key=_wire.API_KEY, api_secret=_wire.API_SECRET)

    @contextlib.asynccontextmanager
    async def uploads(self) -> AsyncGenerator[tuple[procrastinate.App, WhiteboardUploads], None]:
        """Open the queue."""
        app = procrastinate.App(connector=connector(self.dsn))
        async with app.open_async(), self.client() as client:
            yield app, WhiteboardUploads(app, client=client)

    async def applied(self) -> None:
        """Make the tables."""
        async with self.uploads() as (app, uploads):
            await app.schema_manager.apply_schema_async()
            await uploads.apply_schema()


async def work(place: Place, concurrency: int) -> None:
    """Be a worker until SIGTERM."""
    async with place.uploads() as (_, uploads):
        await uploads.run_worker(concurrency=concurrency)


@contextlib.contextmanager
def workers(place: Place, count: int, concurrency: int) -> Iterator[None]:
    """Run workers in processes of their own."""
    arguments = [place.dsn, place.url, str(place.document), str(concurrency)]
    command = [sys.executable, "-m", "benchmarks.queue", "--worker", *arguments]
    started = [subprocess.Popen(command, cwd=ROOT) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def ended(dsn: str, batch: str) -> int:
    """Return how many uploads of a batch are in their rooms."""
    with psycopg.connect(dsn) as connection:
        query = "SELECT count(*) FROM meeting_async_uploads WHERE batch = %s AND state = 'accepted'"
        row = connection.execute(query, [batch]).fetchone()
    return int(row[0]) if row else 0


def transactions(dsn: str) -> int:
    """Return how many transactions the database has committed, up to a second ago."""
    time.sleep(1.5)
    with psycopg.connect(dsn) as connection:
        query = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        row = connection.execute(query).fetchone()
    return int(row[0]) if row else 0


def wait_for(dsn: str, batch: str, count: int) -> float:
    """Wait until so many uploads have ended, and return the moment."""
    while ended(dsn, batch) < count:
        time.sleep(0.2)
    return time.monotonic()


# --- the parts -----------------------------------------------------------------------------------


def deferring(place: Place, count: int) -> Iterator[str]:
    """Measure how many jobs are deferred per second."""

    async def measure() -> tuple[float, float]:
        async with place.uploads() as (_, uploads):
            began = time.monotonic()
            await uploads.defer_many(place.jobs(count), batch="deferring")
            many = time.monotonic() - began
            began = time.monotonic()
            for number in range(200):
                await uploads.defer(f"room{number}", place.document)
            return many, time.monotonic() - began

    many, single = asyncio.run(measure())
    yield f"defer_many: {count / many:,.0f} jobs/s ({count:,} jobs in {many:.1f} s)"
    yield f"defer: {200 / single:,.0f} jobs/s, one after another"


def overhead(place: Place, count: int, concurrency: int = 32) -> Iterator[str]:
    """Compare one worker with ``upload_many`` in one process, at a server that answers at once."""

    async def batch() -> None:
        client = place.client().with_options(preflight=False)
        async with client, client.upload_many(place.jobs(count, 1), concurrency=concurrency) as run:
            await run.wait()
        run.report.raise_for_failures()

    began, cpu = time.monotonic(), time.process_time()
    asyncio.run(batch())
    plain, plain_cpu = time.monotonic() - began, time.process_time() - cpu

    async def defer() -> None:
        async with place.uploads() as (_, uploads):
            await uploads.defer_many(place.jobs(count, 1), batch="overhead")

    asyncio.run(defer())
    before, statements = resource.getrusage(resource.RUSAGE_CHILDREN), transactions(place.dsn)
    with workers(place, 1, concurrency):
        wait_for(place.dsn, "overhead", 1)
        began, done = time.monotonic(), ended(place.dsn, "overhead")
        queued = (wait_for(place.dsn, "overhead", count) - began) * count / (count - done)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    queued_cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    yield f"upload_many: {plain / count * 1000:.2f} ms and {plain_cpu / count * 1000:.2f} ms of CPU"
    yield f"one worker: {queued / count * 1000:.2f} ms, {queued_cpu / count * 1000:.2f} ms of CPU"
    commits = (transactions(place.dsn) - statements) / count
    yield f"one worker: {commits:.1f} transactions of the database"
    yield f"(each of {count:,} documents of 64 KiB; the worker's CPU with its start, without the"
    yield " database's)"


def throughput(place: Place, count: int, processes: int, concurrency: int) -> Iterator[str]:
    """Measure a batch with several workers at a server that takes its time."""

    async def defer() -> None:
        async with place.uploads() as (_, uploads):
            await uploads.defer_many(place.jobs(count), batch="throughput")

    asyncio.run(defer())
    with workers(place, processes, concurrency):
        wait_for(place.dsn, "throughput", 1)
        began, done = time.monotonic(), ended(place.dsn, "throughput")
        rate = (count - done) / (wait_for(place.dsn, "throughput", count) - began)
    bound = processes * concurrency / HOLD_SECONDS
    yield f"{processes} workers of {concurrency}: {rate:.0f} documents/s of {bound:.0f}/s"
    yield f"that so many slots allow: {rate / bound:.2f}"


def growth(place: Place, sizes: Sequence[int], measured: int) -> Iterator[str]:
    """Measure the first documents of queues of several lengths, with one worker."""
    for rooms_of_ten in (True, False):
        for size in sizes:
            per_room = PER_ROOM if rooms_of_ten else max(1, size // 50)
            batch = f"growth {size} {rooms_of_ten}"

            async def defer(per_room: int = per_room, size: int = size, batch: str = batch) -> None:
                async with place.uploads() as (_, uploads):
                    await uploads.defer_many(place.jobs(size, per_room), batch=batch)

            asyncio.run(defer())
            with workers(place, 1, 32):
                wait_for(place.dsn, batch, 1)
                began, done = time.monotonic(), ended(place.dsn, batch)
                rate = (measured - done) / (wait_for(place.dsn, batch, measured) - began)
            yield f"{size:,} queued, {per_room:,} for each room: {rate:.0f} documents/s"
            with psycopg.connect(place.dsn, autocommit=True) as connection:
                connection.execute(
                    "TRUNCATE procrastinate_jobs, procrastinate_periodic_defers CASCADE"
                )
                connection.execute("TRUNCATE meeting_async_uploads")


# --- running them --------------------------------------------------------------------------------


@contextlib.contextmanager
def place(hold_seconds: float) -> Iterator[Place]:
    """Provide a database, a server and a document."""
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres_running() as server,
        _responder.running_responder(hold_seconds) as responder,
    ):
        document = _wire.make_document(Path(folder, "document.pdf"), SIZE)
        found = Place(server.new_database(), responder.base_url, document)
        asyncio.run(found.applied())
        yield found


PARTS = ("deferring", "overhead", "throughput", "growth")


def lines_of(part: str, *, is_quick: bool) -> Iterable[str]:
    """Run a part and return its lines."""
    few = 10 if is_quick else 1
    with place(HOLD_SECONDS if part == "throughput" else 0.0) as found:
        if part == "deferring":
            return list(deferring(found, 20_000 // few))
        if part == "overhead":
            return list(overhead(found, 2_000 // few))
        if part == "throughput":
            return list(throughput(found, 10_000 // few, 4, 32))
        sizes = [size // few for size in (1_000, 10_000, 100_000)]
        return list(growth(found, sizes, 500 // few))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts and print their figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue")
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="a tenth: figures of no use")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    found = parser.parse_args(arguments)
    allow_many_descriptors()
    if found.worker:
        dsn, url, document, concurrency = found.worker
        asyncio.run(work(Place(dsn, url, Path(document)), int(concurrency)))
        return
    for name, value in _report.machine().items():
        print(f"{name}: {value}")
    for part in found.parts:
        print(f"\n{part}")
        for line in lines_of(part, is_quick=found.quick):
            print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
