"""The total time of a batch against the least that any order could take. ``python -m benchmarks``.

Virtual time: the client, its scheduling and its waiting are real; only the server is made up. It
takes what each document is said to take on trio's mock clock, which jumps to the next moment at
which anything happens. What the client computes takes no time.
"""

from __future__ import annotations

import functools
import json
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import anyio
import attrs

from benchmarks import _wire
from benchmarks._compare import BUSY, SECONDS, Column, Comparison, Options, Target, Task, compare
from benchmarks._loads import SEND_SECONDS, SHAPES, Load, make_load
from benchmarks._measure import Sample
from benchmarks._process import OURS, Client, Role
from benchmarks.batch import Occupancy

if TYPE_CHECKING:
    from meeting_async import MeetingClient, UploadJob
    from meeting_async.transports import Reply, Request

TITLE = "Batches: total time"
NOTES = """\
* The total time, divided by the least that any order could take: the longest of all rooms' release
  plus chain of documents, and, for each release, what cannot begin before it shared out over all
  places. What conversions take is log-normal, and not known before.
* locked: others hold three rooms in ten, the one with most documents among them, and release them
  between the 10th and the 150th second. The least knows when; a client has to ask.
* gather: a task for each document, a semaphore around each upload; shuffled: in random order. All
  use the same client, which waits for locked rooms and lets uploads to a room take turns.
* attempts: documents sent, for each delivered."""

CALL_SECONDS = 0.05
"""What a small call, or an empty form, takes."""

DOCUMENT = b"%PDF-1.7\n".ljust(100 * 1024)
"""Large enough that its room is asked before it is sent again."""


@attrs.frozen
class Job:
    """A load, by what it is made from, and how many attempts at a time."""

    shape: str
    rooms: int
    places: int
    is_locked: bool
    seed: int

    def load(self) -> Load:
        """Make the load up."""
        return make_load(SHAPES[self.shape](self.rooms), is_locked=self.is_locked, seed=self.seed)


# --- the server ----------------------------------------------------------------------------------


class _SlowServer:
    """A transport that takes as long as a server would; a room has a lock, as in the interface."""

    def __init__(self, load: Load) -> None:
        began = anyio.current_time()
        rooms = [room.encode() for room in _rooms(load)]
        self._left = {r: deque(c) for r, c in zip(rooms, load.chains, strict=True)}
        self._free_at = {r: began + s for r, s in zip(rooms, load.releases, strict=True)}

    async def send(self, request: Request, /) -> Reply:
        """Take the body, then the time that the document takes."""
        headers = dict(request.headers)
        room = headers[b"Room-Id"]
        if isinstance(request.body, bytes):
            await anyio.sleep(CALL_SECONDS)
            is_check = headers[b"Content-Type"] == b"application/json"
            return _reply(200, _wire.ACTIVE) if is_check else self._answer(room)
        async for _ in request.body:
            pass
        await anyio.sleep(SEND_SECONDS)
        if self._is_locked(room):
            return self._answer(room)
        seconds = self._left[room].popleft() - SEND_SECONDS
        self._free_at[room] = anyio.current_time() + seconds
        await anyio.sleep(seconds)
        return _reply(200, _wire.ACCEPTED)

    def _is_locked(self, room: bytes) -> bool:
        return anyio.current_time() < self._free_at[room]

    def _answer(self, room: bytes) -> Reply:
        """Answer an empty form."""
        return _reply(409 if self._is_locked(room) else 400, _REFUSED)

    async def aclose(self) -> None:
        """Nothing is held."""


_REFUSED = {"status": False, "msg": "refused", "status_code": "CONFLICT"}


def _reply(status: int, payload: object) -> Reply:
    from meeting_async.transports import Reply  # noqa: PLC0415 - only the fresh process needs it

    return Reply(status, (), json.dumps(payload).encode())


def _rooms(load: Load) -> list[str]:
    return [f"room{number:04}" for number in range(len(load.chains))]


# --- the ways to do it ---------------------------------------------------------------------------

_Way = Callable[["MeetingClient", Sequence["UploadJob"], int], Awaitable[None]]
"""Uploads all jobs, so many at a time."""


async def _batch(client: MeetingClient, jobs: Sequence[UploadJob], places: int) -> None:
    async with client.upload_many(jobs, concurrency=places) as batch:
        report = await batch.wait()
    report.raise_for_failures()


async def _gather(client: MeetingClient, jobs: Sequence[UploadJob], places: int) -> None:
    """Begin all at once, and let a semaphore hold them back, in the order of the input."""
    semaphore = anyio.Semaphore(places)

    async def upload(job: UploadJob) -> None:
        async with semaphore:
            await client.upload_whiteboard_file(job.room_id, job.document, filename=job.filename)

    async with anyio.create_task_group() as tasks:
        for job in jobs:
            tasks.start_soon(upload, job)


async def _shuffled(client: MeetingClient, jobs: Sequence[UploadJob], places: int) -> None:
    """Shuffle the input before, so that neighbours are for different rooms."""
    await _gather(client, random.sample(jobs, len(jobs)), places)


def _virtual(way: _Way) -> Callable[[Job], Sample]:
    """Do a load in an event loop of its own in which waiting takes no time."""

    def work(job: Job) -> Sample:
        import trio.testing  # noqa: PLC0415 - only this needs it

        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(functools.partial(_done, way, job), clock=clock)

    return work


async def _done(way: _Way, job: Job) -> Sample:
    from meeting_async import MeetingClient, UploadJob  # noqa: PLC0415 - as above

    load = job.load()
    jobs = [
        UploadJob(room, DOCUMENT, filename=f"{number}.pdf")
        for room, chain in zip(_rooms(load), load.chains, strict=True)
        for number in range(len(chain))
    ]
    places = Occupancy(_SlowServer(load), job.places)
    places.begin(Counter(upload.room_id for upload in jobs))
    async with MeetingClient(
        "http://localhost", api_key=_wire.API_KEY, api_secret=_wire.API_SECRET, transport=places
    ) as client:
        began, cpu = anyio.current_time(), time.process_time()
        await way(client, jobs, job.places)
        seconds = anyio.current_time() - began
    return Sample(
        seconds,
        time.process_time() - cpu,
        count=load.uploads,
        busy_share=places.share,
        least_seconds=load.least(job.places),
        attempts=places.attempts,
    )


CLIENTS = (
    Client(OURS, _virtual(_batch), Role.OURS, loop=None, needs="trio"),
    Client("gather, shuffled", _virtual(_shuffled), loop=None, needs="trio"),
    Client("gather", _virtual(_gather), loop=None, needs="trio"),
)


# --- the comparison ------------------------------------------------------------------------------

_TIME = Column(
    "time / least", lambda s: s.seconds / s.least_seconds if s.least_seconds else None, 3
)
_ATTEMPTS = Column("attempts", lambda s: s.attempts / s.count if s.attempts else None)


def comparisons(options: Options) -> Iterator[Comparison]:
    """Compare the ways to do each load."""
    rooms, places = (10, 4) if options.quick else (200, 32)
    for is_locked in (False, True):
        for shape in list(SHAPES)[: 1 if options.quick else None]:
            yield _compared(Job(shape, rooms, places, is_locked, seed=0), options)


def _compared(job: Job, options: Options) -> Comparison:
    """Give each round a load of its own, the same for all."""
    turns = Counter[str]()

    def sample(client: Client) -> Sample:
        turns[client.name] += 1
        return client.measure(__name__, attrs.evolve(job, seed=turns[client.name]))

    state = "locked" if job.is_locked else "free"
    title = f"{job.shape}, {state}: {job.rooms} rooms, {job.places} at a time, virtual time"
    task = Task(title, (_TIME, SECONDS, BUSY, _ATTEMPTS), (Target(_TIME, 1.05),))
    few = min(options.rounds, 3)  # nothing else on the machine disturbs virtual time
    return compare(task, options.chosen(CLIENTS), sample, few)
