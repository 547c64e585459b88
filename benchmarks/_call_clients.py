"""The clients that make small calls: ``getActiveRoomInfo``, so many at a time.

Each call is signed anew and its reply is decoded, whichever client makes it. Before the clock
starts each worker has made two calls: connections are open, caches are warm.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from importlib import import_module
from typing import Any

import anyio

from benchmarks import _node
from benchmarks._client import OURS, Client, PythonClient, Role, main
from benchmarks._job import API_KEY, API_SECRET, ROOM_ID, CallsJob, signed_call
from benchmarks._measure import Meter, Sample, with_latencies
from benchmarks._raw_calls import raw_calls

WARM_UP_CALLS = 2
"""Of each worker."""

HTTPX = "httpx post"
HTTPX_WIDE = "httpx post keeps 100"
COMMUNITY = "plugnmeet-sdk"
CEILING = "raw sockets"

HTTPX_KEEPS = 20
"""Idle connections that httpx keeps by default; up to so many workers a higher limit is idle."""

Call = Callable[[], Awaitable[object]]


def clients(concurrency: int, *, install: bool = True) -> list[Client]:
    """Return the clients in the order in which they take turns.

    Args:
        concurrency: How many calls at a time.
        install: Get the package for node, if it is not there.

    """
    found = [
        client.client(__name__)
        for client in CLIENTS
        if client.name != HTTPX_WIDE or concurrency > HTTPX_KEEPS
    ]
    *clients, ceiling = found
    return [*clients, _node.client(install=install), ceiling]


async def hammer(call: Call, job: CallsJob) -> Sample:
    """Let the workers call until the time is up; measure until the last has its reply."""
    latencies: list[float] = []
    await _all(job.concurrency, functools.partial(_repeat, call, WARM_UP_CALLS))
    with Meter() as meter:
        until = time.perf_counter() + job.seconds
        await _all(job.concurrency, functools.partial(_work, call, until, latencies))
    return with_latencies(meter.sample(), latencies)


async def _all(count: int, worker: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(worker)


async def _repeat(call: Call, times: int) -> None:
    for _ in range(times):
        await call()


async def _work(call: Call, until: float, latencies: list[float]) -> None:
    began = time.perf_counter()
    while began < until:
        await call()
        ended = time.perf_counter()
        latencies.append(ended - began)
        began = ended


# --- the clients; each fresh process imports its own ---------------------------------------------


async def ours(job: CallsJob) -> Sample:
    """Call with the client of this package."""
    from meeting_async import MeetingClient  # noqa: PLC0415 - as above

    async with MeetingClient(job.base_url, api_key=API_KEY, api_secret=API_SECRET) as client:
        return await hammer(lambda: client.get_active_room_info(ROOM_ID), job)


async def _httpx(job: CallsJob) -> Sample:
    return await _post(import_module("httpx"), job)


async def _httpx_wide(job: CallsJob) -> Sample:
    httpx = import_module("httpx")
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=100)
    return await _post(httpx, job, limits=limits)


async def _httpx2(job: CallsJob) -> Sample:
    return await _post(import_module("httpx2"), job)


async def _post(httpx: Any, job: CallsJob, **settings: Any) -> Sample:
    """Call with httpx or its fork."""
    async with httpx.AsyncClient(timeout=60, trust_env=False, **settings) as client:

        async def call() -> None:
            body, headers = signed_call()
            reply = await client.post(job.url, content=body, headers=headers)
            _check(reply.status_code, reply.json())

        return await hammer(call, job)


async def _aiohttp(job: CallsJob) -> Sample:
    async with import_module("aiohttp").ClientSession() as session:

        async def call() -> None:
            body, headers = signed_call()
            async with session.post(job.url, data=body, headers=headers) as reply:
                _check(reply.status, await reply.json())

        return await hammer(call, job)


async def _community(job: CallsJob) -> Sample:
    """Call with the community's SDK; it prints a line for each call."""
    requests = import_module("plugnmeet_sdk.schemas.requests")
    sdk = import_module("plugnmeet_sdk").PlugNMeet(job.base_url, API_KEY, API_SECRET)
    request = requests.GetActiveRoomInfoRequest(room_id=ROOM_ID)

    async def call() -> None:
        _check(*await sdk.getActiveRoomInfo(request))

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: ASYNC230, PTH123
        return await hammer(call, job)


def _check(status: int, reply: Any) -> None:
    if status != 200 or reply["status"] is not True:
        raise RuntimeError(f"the responder refused: {status} {reply}")


CLIENTS = (
    PythonClient(OURS, Role.OURS, ours),
    PythonClient(HTTPX, Role.PEER, _httpx),
    PythonClient(HTTPX_WIDE, Role.PEER, _httpx_wide),
    PythonClient("httpx2 post", Role.PEER, _httpx2, needs="httpx2"),
    PythonClient("aiohttp post", Role.PEER, _aiohttp, needs="aiohttp"),
    PythonClient(COMMUNITY, Role.PEER, _community, needs="plugnmeet_sdk"),
    PythonClient(f"{OURS} (trio)", Role.VARIANT, ours, loop="trio"),
    PythonClient(f"{OURS} (uvloop)", Role.VARIANT, ours, loop="uvloop"),
    PythonClient(CEILING, Role.CEILING, raw_calls, loop=None),
)

if __name__ == "__main__":
    main(CLIENTS, CallsJob, sys.argv[1:])
