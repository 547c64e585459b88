"""The ways to upload many documents to many rooms: a batch, and what one would write without it.

All use the same client, which waits for locked rooms and lets uploads to one room take turns.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from benchmarks.batch._queues import InputOrder
from meeting_async import Batch, MeetingClient, UploadJob

Way = Callable[[MeetingClient, Sequence[UploadJob], int], Awaitable[None]]
"""Uploads all jobs, so many at a time."""


async def batch(client: MeetingClient, jobs: Sequence[UploadJob], concurrency: int) -> None:
    """Leave it to ``upload_many``."""
    await _finished(client.upload_many(jobs, concurrency=concurrency))


async def in_input_order(
    client: MeetingClient, jobs: Sequence[UploadJob], concurrency: int
) -> None:
    """Leave it to ``upload_many``, but take its priorities away."""
    found = client.upload_many(jobs, concurrency=concurrency)
    order: Any = InputOrder()
    found._queues = order  # noqa: SLF001 - that is the point
    await _finished(found)


async def _finished(found: Batch) -> None:
    async with found:
        report = await found.wait()
    report.raise_for_failures()


async def gather(client: MeetingClient, jobs: Sequence[UploadJob], concurrency: int) -> None:
    """Begin all at once, and let a semaphore hold them back, in the order of the input."""
    semaphore = anyio.Semaphore(concurrency)

    async def upload(job: UploadJob) -> None:
        async with semaphore:
            await _upload(client, job)

    async with anyio.create_task_group() as tasks:
        for job in jobs:
            tasks.start_soon(upload, job)


async def shuffled_gather(
    client: MeetingClient, jobs: Sequence[UploadJob], concurrency: int
) -> None:
    """Shuffle the input before, so that neighbours are for different rooms."""
    await gather(client, random.sample(jobs, len(jobs)), concurrency)


async def room_by_room(client: MeetingClient, jobs: Sequence[UploadJob], concurrency: int) -> None:
    """Let each of so many workers do one room after another."""
    left = iter([list(found) for _, found in itertools.groupby(jobs, lambda job: job.room_id)])

    async def work() -> None:
        for room in left:
            for job in room:
                await _upload(client, job)

    async with anyio.create_task_group() as tasks:
        for _ in range(concurrency):
            tasks.start_soon(work)


async def _upload(client: MeetingClient, job: UploadJob) -> None:
    await client.upload_whiteboard_file(job.room_id, job.document, filename=job.filename)
