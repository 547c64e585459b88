"""Small calls, so many at a time, compared with others. Run by ``python -m benchmarks``.

Each call is signed anew and its reply is decoded, whichever client makes it. Before the clock
starts each worker has made two calls: connections are open, caches are warm.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from importlib import import_module
from typing import Any

import anyio
import attrs

from benchmarks import _responder, _wire
from benchmarks._compare import CPU_EACH, Column, Comparison, Options, Target, Task, compare
from benchmarks._measure import Sample, measured_alone
from benchmarks._process import OURS, Client, Role, ours_on_other_loops

TITLE = "Small calls"
NOTES = f"""\
* `getActiveRoomInfo`, signed for each call. CPU is per call.
* httpx post: `httpx.AsyncClient` with its defaults. plugnmeet-sdk opens a connection for each call.
* The server is {_responder.DESCRIPTION}."""

SDK = "plugnmeet-sdk"
SECONDS = 2.0
"""Of each sample."""
WARM_UP_CALLS = 2
"""Of each worker."""


@attrs.frozen
class Job:
    """Small calls, so many at a time, for so long."""

    base_url: str
    concurrency: int
    seconds: float
    """Afterwards no new call is begun."""

    @property
    def url(self) -> str:
        """Where the calls go."""
        return self.base_url + _wire.CALL_PATH


Call = Callable[[], Awaitable[object]]


async def _hammer(call: Call, job: Job) -> Sample:
    """Let the workers call until the time is up; measure until the last has its reply."""
    made = 0
    until = 0.0

    async def warm_up() -> None:
        for _ in range(WARM_UP_CALLS):
            await call()

    async def work() -> None:
        nonlocal made
        while True:  # once at least, on the busiest machine
            await call()
            made += 1
            if time.perf_counter() >= until:
                break

    await _each(job.concurrency, warm_up)
    until = time.perf_counter() + job.seconds
    sample = await measured_alone(lambda: _each(job.concurrency, work))
    return attrs.evolve(sample, count=made)


async def _each(count: int, worker: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(worker)


# --- the clients; each fresh process imports its own ---------------------------------------------


async def _ours(job: Job) -> Sample:
    from meeting_async import MeetingClient  # noqa: PLC0415 - as above

    async with MeetingClient(
        job.base_url, api_key=_wire.API_KEY, api_secret=_wire.API_SECRET
    ) as client:
        return await _hammer(lambda: client.get_active_room_info(_wire.ROOM_ID), job)


async def _httpx(job: Job) -> Sample:
    return await _post(import_module("httpx"), job)


async def _httpx2(job: Job) -> Sample:
    return await _post(import_module("httpx2"), job)


async def _post(httpx: Any, job: Job) -> Sample:
    """Call with httpx or its fork."""
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:

        async def call() -> None:
            body, headers = _wire.signed_call()
            reply = await client.post(job.url, content=body, headers=headers)
            _check(reply.status_code, reply.json())

        return await _hammer(call, job)


async def _aiohttp(job: Job) -> Sample:
    async with import_module("aiohttp").ClientSession() as session:

        async def call() -> None:
            body, headers = _wire.signed_call()
            async with session.post(job.url, data=body, headers=headers) as reply:
                _check(reply.status, await reply.json())

        return await _hammer(call, job)


async def _pyreqwest(job: Job) -> Sample:
    """Call with a client written in Rust."""
    builder = import_module("pyreqwest.client").ClientBuilder()
    async with builder.no_proxy().build() as client:

        async def call() -> None:
            body, headers = _wire.signed_call()
            request = client.post(job.url).headers(headers).body_bytes(body).build()
            reply = await request.send()
            _check(reply.status, await reply.json())

        return await _hammer(call, job)


async def _sdk(job: Job) -> Sample:
    """Call with the community's SDK; it prints a line for each call."""
    requests = import_module("plugnmeet_sdk.schemas.requests")
    module = import_module("plugnmeet_sdk")
    sdk = module.PlugNMeet(job.base_url, _wire.API_KEY, _wire.API_SECRET)
    request = requests.GetActiveRoomInfoRequest(room_id=_wire.ROOM_ID)

    async def call() -> None:
        _check(*await sdk.getActiveRoomInfo(request))

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: ASYNC230, PTH123
        return await _hammer(call, job)


def _check(status: int, reply: Any) -> None:
    if status != 200 or reply["status"] is not True:
        raise RuntimeError(f"the responder refused: {status} {reply}")


_OURS = Client(OURS, _ours, Role.OURS)
CLIENTS = (
    _OURS,
    Client(SDK, _sdk, needs="plugnmeet_sdk"),
    Client("httpx post", _httpx),
    Client("httpx2 post", _httpx2, needs="httpx2"),
    Client("aiohttp post", _aiohttp, needs="aiohttp"),
    Client("pyreqwest post", _pyreqwest, needs="pyreqwest"),
    *ours_on_other_loops(_OURS),
)


# --- the comparison ------------------------------------------------------------------------------

_SPEED = Column("calls/s", lambda s: s.count / s.seconds, 0, more_is_better=True)


def comparisons(options: Options) -> Iterator[Comparison]:
    """Compare small calls at each concurrency."""
    for concurrency in (10,) if options.quick else (1, 10, 100):
        yield _compared(concurrency, 0.1 if options.quick else SECONDS, options)


def _compared(concurrency: int, seconds: float, options: Options) -> Comparison:
    def sample(client: Client) -> Sample:
        with _responder.running_responder() as responder:
            done = client.measure(__name__, Job(responder.base_url, concurrency, seconds))
            calls = done.count + WARM_UP_CALLS * concurrency
            responder.check_answered(calls=calls, uploads=0, rooms=0)
        return done

    title = f"calls, {'one' if concurrency == 1 else concurrency} at a time"
    task = Task(title, (_SPEED, CPU_EACH), (Target(_SPEED, 1.3, SDK),))
    return compare(task, options.chosen(CLIENTS), sample, options.rounds)
