"""Clients that upload documents of 64 KiB to many rooms, a few at a time.

Ours gets paths. httpx gets what can be done by hand: bytes that are read at once on the loop's
thread, headers and form made without ``files=``, and as many connections kept as are used.
"""

from __future__ import annotations

import gc
import secrets
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import attrs

from benchmarks import _descriptors
from benchmarks._client import OURS, Client, PythonClient, Role, main
from benchmarks._job import API_KEY, API_SECRET, DOCUMENT_TYPE, signed_headers, upload_url
from benchmarks._measure import Meter, Sample
from benchmarks.batch import _ways
from benchmarks.batch._occupancy import Occupancy
from benchmarks.batch._ways import Way

HTTPX = "httpx, connections kept"
CLOSING = "httpx, a connection each"
SINGLY = f"{OURS}, no batch"
JOURNAL = f"{OURS}, journal"
SHUFFLED = "gather, shuffled"
WARM_UP_ROOM = "warm-up"
PATIENCE_SECONDS = 300
"""Of httpx: waiting for a connection counts as well."""


@attrs.frozen
class BatchJob:
    """One document, to so many rooms so many times."""

    base_url: str
    document: str
    """Its path."""
    rooms: int
    per_room: int
    concurrency: int
    journal: str = ""
    """Path of the journal for clients that keep one; it must be new."""

    @property
    def room_ids(self) -> Iterator[str]:
        """The room of each upload, room by room."""
        for number in range(self.rooms):
            yield from [f"room{number:04}"] * self.per_room


async def _metered(work: Callable[[], Awaitable[None]]) -> Sample:
    """Measure without a ticker beside it, whose CPU time would count."""
    gc.collect()
    with Meter() as meter:
        await work()
    return meter.sample()


def clients(*names: str) -> list[Client]:
    """Return clients by name, in this order."""
    found = {client.name: client.client(__name__) for client in _CLIENTS}
    return [found[name] for name in names]


# --- ours; each fresh process imports what it needs ----------------------------------------------


async def _ours(job: BatchJob) -> Sample:
    return await _batch(job)


async def _journal(job: BatchJob) -> Sample:
    return await _batch(job, journal=job.journal)


async def _singly(job: BatchJob) -> Sample:
    return await _watched(_ways.gather, job)


async def _shuffled(job: BatchJob) -> Sample:
    return await _watched(_ways.shuffled_gather, job)


async def _batch(job: BatchJob, **settings: Any) -> Sample:
    async def way(client: Any, jobs: Any, concurrency: int) -> None:
        async with client.upload_many(jobs, concurrency=concurrency, **settings) as batch:
            report = await batch.wait()
        report.raise_for_failures()

    return await _watched(way, job)


async def _watched(way: Way, job: BatchJob) -> Sample:
    """Get started with one upload, then do the work, and see how busy the slots are."""
    from meeting_async import HttpxTransport, MeetingClient, UploadJob  # noqa: PLC0415 - as above

    slots = Occupancy(HttpxTransport(), job.concurrency, Counter())
    async with MeetingClient(
        job.base_url, api_key=API_KEY, api_secret=API_SECRET, transport=slots
    ) as client:
        await client.upload_whiteboard_file(WARM_UP_ROOM, job.document)

        async def work() -> None:
            slots.begin(Counter(job.room_ids))
            names = enumerate(job.room_ids)
            jobs = [UploadJob(room, job.document, filename=f"{n}.pdf") for n, room in names]
            await way(client, jobs, job.concurrency)

        sample = await _metered(work)
    return attrs.evolve(sample, uploads=job.rooms * job.per_room, busy_share=slots.share)


# --- httpx ---------------------------------------------------------------------------------------


async def _httpx(job: BatchJob) -> Sample:
    return await _by_hand(job, {})


async def _closing(job: BatchJob) -> Sample:
    return await _by_hand(job, {"Connection": "close"})


async def _by_hand(job: BatchJob, more: dict[str, str]) -> Sample:
    import httpx  # noqa: PLC0415 - each fresh process imports its own

    many = job.concurrency
    limits = httpx.Limits(max_connections=many, max_keepalive_connections=many)
    url = upload_url(job.base_url)
    async with httpx.AsyncClient(
        timeout=PATIENCE_SECONDS, trust_env=False, limits=limits
    ) as client:
        semaphore = anyio.Semaphore(many)

        async def upload(room: str) -> None:
            async with semaphore:
                content, kind = _form(job.document)
                headers = {**signed_headers(room), **more, "Content-Type": kind}
                reply = await client.post(url, content=content, headers=headers)
                reply.raise_for_status()

        async def work() -> None:
            async with anyio.create_task_group() as tasks:
                for room in job.room_ids:
                    tasks.start_soon(upload, room)

        await upload(WARM_UP_ROOM)
        sample = await _metered(work)
    return attrs.evolve(sample, uploads=job.rooms * job.per_room)


def _form(document: str) -> tuple[bytes, str]:
    """Return the form and its content type."""
    boundary = secrets.token_hex(16)
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="document"; filename="a.pdf"\r\n'
        f"Content-Type: {DOCUMENT_TYPE}\r\n\r\n"
    )
    content = Path(document).read_bytes()
    form = b"".join((head.encode(), content, f"\r\n--{boundary}--\r\n".encode()))
    return form, f"multipart/form-data; boundary={boundary}"


_CLIENTS = (
    PythonClient(OURS, Role.OURS, _ours),
    PythonClient(HTTPX, Role.PEER, _httpx),
    PythonClient(CLOSING, Role.PEER, _closing),
    PythonClient(SINGLY, Role.VARIANT, _singly),
    PythonClient(SHUFFLED, Role.PEER, _shuffled),
    PythonClient(JOURNAL, Role.VARIANT, _journal),
    PythonClient(f"{OURS} (trio)", Role.VARIANT, _ours, loop="trio"),
    PythonClient(f"{OURS} (uvloop)", Role.VARIANT, _ours, loop="uvloop"),
)

if __name__ == "__main__":
    _descriptors.allow_many()
    main(_CLIENTS, BatchJob, sys.argv[1:])
