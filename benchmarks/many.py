"""A thousand small uploads at once, compared with others. Run by ``python -m benchmarks``.

Ours gets the path. The others get the bytes, read at once on the loop's thread: that costs them a
few microseconds and no descriptor, which is the best that can be done by hand for 64 KiB.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Coroutine, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import attrs

from benchmarks import _responder, _wire
from benchmarks._compare import (
    CPU_EACH,
    GAP,
    MEMORY,
    SECONDS,
    Column,
    Comparison,
    Options,
    Target,
    Task,
    compare,
)
from benchmarks._measure import Sample, allow_many_descriptors, measured
from benchmarks._process import OURS, Client, Failed, Role, ours_on_other_loops

TITLE = "Many uploads at once"
HOLD_SECONDS = 0.5
SIZE = 64 * 1024
NOTES = f"""\
* One document to each room, each on its own connection. Less is better.
* Ours gets a path and makes a check first, except with `preflight=False`. With `exactly_once` it
  also asks for each document afterwards. The others get bytes.
* The server of *small calls* answers {HOLD_SECONDS:g} s after it has a document.
* descriptors: most open at once."""

AIOHTTP = "aiohttp FormData"
WARM_UP_ROOM = "warm-up"
PATIENCE_SECONDS = 300
"""Of the others: waiting for a connection counts as well."""


@attrs.frozen
class Job:
    """Uploads of one document to so many rooms, all begun at once."""

    base_url: str
    document: str
    """Its path."""
    uploads: int

    @property
    def url(self) -> str:
        """Where the documents go."""
        return self.base_url + _wire.UPLOAD_PATH


async def _all_rooms(upload: Callable[[str], Coroutine[Any, Any, object]], job: Job) -> Sample:
    """Get started with one upload, then do all at once."""
    await upload(WARM_UP_ROOM)

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(job.uploads):
                tasks.start_soon(upload, f"room{number:04}")

    return await measured(work, job.uploads)


# --- the clients; each fresh process imports its own ---------------------------------------------


async def _ours(job: Job) -> Sample:
    return await _own_client(job)


async def _unchecked(job: Job) -> Sample:
    return await _own_client(job, preflight=False)


async def _confirmed(job: Job) -> Sample:
    return await _own_client(job, delivery="exactly_once")


async def _own_client(job: Job, **options: Any) -> Sample:
    from meeting_async import MeetingClient  # noqa: PLC0415 - as above
    from meeting_async.transports import HttpTransport  # noqa: PLC0415 - as above

    transport = HttpTransport()
    async with MeetingClient(
        job.base_url,
        api_key=_wire.API_KEY,
        api_secret=_wire.API_SECRET,
        transport=transport,
        max_connections=job.uploads,
        **options,
    ) as client:

        async def upload(room: str) -> None:
            receipt = await client.upload_whiteboard_file(room, job.document)
            if receipt.found is False:
                raise Failed("the responder has not shown a document")

        return await _all_rooms(upload, job)


async def _httpx(job: Job) -> Sample:
    return await _files(import_module("httpx"), job)


async def _httpx2(job: Job) -> Sample:
    return await _files(import_module("httpx2"), job)


async def _files(httpx: Any, job: Job) -> Sample:
    """Upload with httpx or its fork."""
    limits = httpx.Limits(max_connections=job.uploads, max_keepalive_connections=job.uploads)
    async with httpx.AsyncClient(
        timeout=PATIENCE_SECONDS, trust_env=False, limits=limits
    ) as client:

        async def upload(room: str) -> None:
            part = "a.pdf", Path(job.document).read_bytes(), _wire.DOCUMENT_TYPE  # noqa: ASYNC240
            headers = _wire.upload_headers(room)
            reply = await client.post(job.url, files={"document": part}, headers=headers)
            reply.raise_for_status()

        return await _all_rooms(upload, job)


async def _aiohttp(job: Job) -> Sample:
    aiohttp = import_module("aiohttp")
    connector = aiohttp.TCPConnector(limit=job.uploads)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, raise_for_status=True
    ) as session:

        async def upload(room: str) -> None:
            form = aiohttp.FormData()
            content = Path(job.document).read_bytes()  # noqa: ASYNC240
            kind = _wire.DOCUMENT_TYPE
            form.add_field("document", content, filename="a.pdf", content_type=kind)
            headers = _wire.upload_headers(room)
            async with session.post(job.url, data=form, headers=headers) as reply:
                await reply.read()

        return await _all_rooms(upload, job)


_OURS = Client(OURS, _ours, Role.OURS)
CLIENTS = (
    _OURS,
    Client(f"{OURS}, preflight=False", _unchecked, Role.VARIANT),
    Client(f"{OURS}, exactly_once", _confirmed, Role.VARIANT),
    Client(AIOHTTP, _aiohttp, needs="aiohttp"),
    Client("httpx files=", _httpx),
    Client("httpx2 files=", _httpx2, needs="httpx2"),
    *ours_on_other_loops(_OURS),
)


# --- the comparison ------------------------------------------------------------------------------


def comparisons(options: Options) -> Iterator[Comparison]:
    """Compare many uploads at once."""
    uploads, hold = (20, 0.1) if options.quick else (1000, HOLD_SECONDS)
    columns = (SECONDS, GAP, Column("descriptors", lambda s: s.descriptors, 0), MEMORY, CPU_EACH)
    targets = (Target(SECONDS, 1.5, AIOHTTP), Target(GAP, 100.0))
    task = Task(f"{uploads} uploads of 64 KiB at once", columns, targets)
    allow_many_descriptors()
    with tempfile.TemporaryDirectory() as folder:
        document = _wire.make_document(Path(folder, "document.pdf"), SIZE)

        def sample(client: Client) -> Sample:
            with _responder.running_responder(hold) as responder:
                job = Job(responder.base_url, str(document), uploads)
                done = client.measure(__name__, job)
                responder.check_answered(uploads=uploads + 1, rooms=uploads + 1)
            return done

        yield compare(task, options.chosen(CLIENTS), sample, options.rounds)
