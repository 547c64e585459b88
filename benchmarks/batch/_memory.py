"""What jobs cost in memory: those that stand in a queue, and those that are over."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import anyio
import attrs

from benchmarks._client import OURS, Client, PythonClient, Role, main
from benchmarks._job import API_KEY, API_SECRET
from benchmarks._measure import Meter, Sample
from benchmarks.batch._virtual import ACCEPTED, ACTIVE
from meeting_async import MeetingClient, Reply, Request, UploadJob

LIST = "a list of jobs"
TASKS = "gather"
SINGLE = "alone in its room"
"""Ours, but every job is for another room."""


@attrs.frozen
class MemoryJob:
    """So many jobs, so many of them for each room."""

    jobs: int
    per_room: int = 10

    def made(self, per_room: int | None = None) -> Iterator[UploadJob]:
        """Yield jobs as an application would, each with a path and a room id of its own."""
        for number in range(self.jobs):
            room = f"room{number // (per_room or self.per_room):06}"
            yield UploadJob(room, f"/srv/documents/{room}/handout-{number:07}.pdf")


def clients(*names: str) -> list[Client]:
    """Return clients by name."""
    found = {client.name: client.client(__name__) for client in _CLIENTS}
    return [found[name] for name in names]


class _Silent:
    """A transport that says that rooms are active, and nothing more."""

    async def send(self, request: Request, /) -> Reply:
        """Never answer an upload."""
        if isinstance(request.body, bytes):
            return ACTIVE
        await anyio.sleep_forever()
        raise AssertionError

    async def aclose(self) -> None:
        """Nothing is held."""


class _Prompt:
    """A transport that reads a form and accepts it at once."""

    async def send(self, request: Request, /) -> Reply:
        """Accept it."""
        if isinstance(request.body, bytes):
            return ACTIVE
        async for _ in request.body:
            pass
        return ACCEPTED

    async def aclose(self) -> None:
        """Nothing is held."""


def _client(transport: Any) -> MeetingClient:
    return MeetingClient(
        "http://localhost", api_key=API_KEY, api_secret=API_SECRET, transport=transport
    )


# --- jobs in a queue: every allocation is counted ------------------------------------------------


class _Counted:
    """Counts the bytes that Python objects take, from its beginning to :meth:`sample`."""

    def __init__(self) -> None:
        gc.collect()
        tracemalloc.start()
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def sample(self, jobs: int) -> Sample:
        gc.collect()
        taken, _peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu
        return Sample(seconds, cpu, memory_growth=taken, uploads=jobs)


async def _queued(job: MemoryJob) -> Sample:
    return await _all_read(job, job.made())


async def _queued_alone(job: MemoryJob) -> Sample:
    return await _all_read(job, job.made(per_room=1))


async def _all_read(job: MemoryJob, jobs: Iterator[UploadJob]) -> Sample:
    """Let a batch read all, and one upload stand for ever."""
    async with _client(_Silent()) as client:
        counted = _Counted()
        async with client.upload_many(jobs, concurrency=1, window=job.jobs) as batch:
            with anyio.fail_after(600):
                while not batch._is_read:  # noqa: ASYNC110, SLF001 - nothing public tells
                    await anyio.sleep(0.01)
            sample = counted.sample(job.jobs)
    return sample


async def _listed(job: MemoryJob) -> Sample:
    counted = _Counted()
    jobs = list(job.made())
    sample = counted.sample(job.jobs)
    del jobs
    return sample


async def _tasks(job: MemoryJob) -> Sample:
    """Start a task for each, behind a semaphore of one."""
    semaphore = anyio.Semaphore(1)
    async with _client(_Silent()) as client, anyio.create_task_group() as tasks:

        async def upload(found: UploadJob) -> None:
            async with semaphore:
                await client.upload_whiteboard_file(found.room_id, b"%PDF-", filename="a.pdf")

        counted = _Counted()
        for found in job.made():
            tasks.start_soon(upload, found)
        await anyio.sleep(1)
        sample = counted.sample(job.jobs)
        tasks.cancel_scope.cancel()
    return sample


# --- jobs that are over: the resident set --------------------------------------------------------


async def _stream(job: MemoryJob) -> Sample:
    """Take all outcomes; measure how memory grows after the first tenth of them."""
    names = (found.room_id for found in job.made())
    jobs = (UploadJob(room, b"%PDF-", filename="a.pdf") for room in names)
    meter = Meter()
    async with (
        _client(_Prompt()) as client,
        client.upload_many(jobs, keep_outcomes=False) as batch,
    ):
        for number in range(job.jobs):
            outcome = await anext(batch)
            if number == job.jobs // 10:
                gc.collect()
                meter.__enter__()
            if not outcome.is_good:
                raise RuntimeError(f"{outcome}")
        meter.__exit__()
    return attrs.evolve(meter.sample(), uploads=job.jobs - job.jobs // 10)


_CLIENTS = (
    PythonClient(OURS, Role.OURS, _queued),
    PythonClient(SINGLE, Role.VARIANT, _queued_alone),
    PythonClient(LIST, Role.PEER, _listed),
    PythonClient(TASKS, Role.PEER, _tasks),
    PythonClient("stream", Role.OURS, _stream),
)

if __name__ == "__main__":
    main(_CLIENTS, MemoryJob, sys.argv[1:])
