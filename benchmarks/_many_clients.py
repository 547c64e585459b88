"""The clients that upload a small document to many rooms at once.

Ours gets the path. The others get the bytes, read at once on the loop's thread: that costs them a
few microseconds and no descriptor, which is the best that can be done by hand for 64 KiB.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio

from benchmarks import _descriptors
from benchmarks._client import OURS, Client, PythonClient, Role, main
from benchmarks._job import API_KEY, API_SECRET, DOCUMENT_TYPE, ManyJob, signed_headers
from benchmarks._measure import Sample, measured_with_descriptors

AIOHTTP = "aiohttp FormData"
HTTPX = "httpx files="
WARM_UP_ROOM = "warm-up"
PATIENCE_SECONDS = 300
"""Of the others: waiting for a connection counts as well."""

Upload = Callable[[str], Coroutine[Any, Any, object]]


def clients() -> list[Client]:
    """Return the clients in the order in which they take turns."""
    return [client.client(__name__) for client in _CLIENTS]


async def _all_rooms(upload: Upload, job: ManyJob) -> Sample:
    """Get started with one upload, then do all at once."""
    await upload(WARM_UP_ROOM)

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            for room in job.rooms:
                tasks.start_soon(upload, room)

    return await measured_with_descriptors(work)


# --- the clients; each fresh process imports its own ---------------------------------------------


async def _ours(job: ManyJob) -> Sample:
    from meeting_async import MeetingClient  # noqa: PLC0415 - as above

    async with MeetingClient(job.base_url, api_key=API_KEY, api_secret=API_SECRET) as client:
        return await _all_rooms(lambda room: client.upload_whiteboard_file(room, job.document), job)


async def _httpx(job: ManyJob) -> Sample:
    return await _files(import_module("httpx"), job)


async def _httpx_wide(job: ManyJob) -> Sample:
    return await _wide(import_module("httpx"), job)


async def _httpx2(job: ManyJob) -> Sample:
    return await _files(import_module("httpx2"), job)


async def _httpx2_wide(job: ManyJob) -> Sample:
    return await _wide(import_module("httpx2"), job)


async def _wide(httpx: Any, job: ManyJob) -> Sample:
    limits = httpx.Limits(max_connections=job.uploads, max_keepalive_connections=job.uploads)
    return await _files(httpx, job, limits=limits)


async def _files(httpx: Any, job: ManyJob, **settings: Any) -> Sample:
    """Upload with httpx or its fork."""
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS, trust_env=False, **settings) as client:

        async def upload(room: str) -> None:
            part = "a.pdf", Path(job.document).read_bytes(), DOCUMENT_TYPE  # noqa: ASYNC240
            headers = signed_headers(room)
            reply = await client.post(job.url, files={"document": part}, headers=headers)
            reply.raise_for_status()

        return await _all_rooms(upload, job)


async def _aiohttp(job: ManyJob) -> Sample:
    """Upload with more connections than the 100 that are aiohttp's default: its best."""
    aiohttp = import_module("aiohttp")
    connector = aiohttp.TCPConnector(limit=job.uploads)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, raise_for_status=True
    ) as session:

        async def upload(room: str) -> None:
            form = aiohttp.FormData()
            content = Path(job.document).read_bytes()  # noqa: ASYNC240
            form.add_field("document", content, filename="a.pdf", content_type=DOCUMENT_TYPE)
            async with session.post(job.url, data=form, headers=signed_headers(room)) as reply:
                await reply.read()

        return await _all_rooms(upload, job)


_CLIENTS = (
    PythonClient(OURS, Role.OURS, _ours),
    PythonClient(AIOHTTP, Role.PEER, _aiohttp, needs="aiohttp"),
    PythonClient(HTTPX, Role.PEER, _httpx),
    PythonClient("httpx limits raised", Role.PEER, _httpx_wide),
    PythonClient("httpx2 files=", Role.PEER, _httpx2, needs="httpx2"),
    PythonClient("httpx2 limits raised", Role.PEER, _httpx2_wide, needs="httpx2"),
    PythonClient(f"{OURS} (trio)", Role.VARIANT, _ours, loop="trio"),
    PythonClient(f"{OURS} (uvloop)", Role.VARIANT, _ours, loop="uvloop"),
)

if __name__ == "__main__":
    _descriptors.allow_many()
    main(_CLIENTS, ManyJob, sys.argv[1:])
