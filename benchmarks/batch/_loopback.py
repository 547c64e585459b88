"""A load in real time, before the meeting server of the package, on loopback."""

from __future__ import annotations

import sys
import time
from collections import Counter
from statistics import fmean
from typing import TYPE_CHECKING

import anyio
import attrs

from benchmarks._client import OURS, Client, PythonClient, Role, main
from benchmarks._comparison import Comparison, Task, compare
from benchmarks._job import API_KEY, API_SECRET
from benchmarks._measure import Sample
from benchmarks._options import Options
from benchmarks.batch import _loads, _ways
from benchmarks.batch._columns import TARGET, columns
from benchmarks.batch._loads import Load, Pace
from benchmarks.batch._occupancy import Occupancy
from benchmarks.batch._virtual import jobs, rooms
from benchmarks.batch._ways import Way
from meeting_async import HttpxTransport, MeetingClient

if TYPE_CHECKING:
    from meeting_async.testing import MeetingServer

SHAPE = "skewed (Zipf 0.5)"
SECONDS = 1.0
"""Of a conversion, on average."""


@attrs.frozen
class LoopbackJob:
    """A load, and how to do it."""

    rooms: int
    slots: int
    seconds: float = SECONDS
    """Of a conversion, on average."""
    base_url: str = ""
    """Where the server is."""

    def load(self) -> Load:
        """Return the load. The server takes the same for each document of a room."""
        pace = Pace("loopback", send=0.0, convert=self.seconds)
        load = _loads.load(_loads.SHAPES[SHAPE], self.rooms, locked=0.0, seed=1, pace=pace)
        chains = tuple((fmean(chain),) * len(chain) for chain in load.chains)
        return attrs.evolve(load, chains=chains)


def compared(options: Options, job: LoopbackJob) -> Comparison:
    """Compare the ways; the server is a thread of this process, which has nothing else to do."""
    title = f"{SHAPE}, free: {job.rooms} rooms, {job.slots} slots, loopback"
    clients = options.chosen(client.client(__name__) for client in _CLIENTS)

    def sample(client: Client) -> Sample:
        with _server(job.load()).run() as url:
            return client.measure(attrs.evolve(job, base_url=url))

    task = Task("schedule-loopback", title, columns(), (TARGET,))
    return compare(task, clients, sample, min(options.rounds, 2))


def _server(load: Load) -> MeetingServer:
    from meeting_async.testing import MeetingServer  # noqa: PLC0415 - the client needs none

    server = MeetingServer(api_key=API_KEY, api_secret=API_SECRET)
    for name, chain in zip(rooms(load), load.chains, strict=True):
        server.add_room(name).processing_seconds = chain[0]
    return server


async def _played(way: Way, job: LoopbackJob) -> Sample:
    """Do the load one way."""
    load = job.load()
    documents = jobs(load)
    left = Counter(document.room_id for document in documents)
    slots = Occupancy(HttpxTransport(), job.slots, left)
    async with MeetingClient(
        job.base_url, api_key=API_KEY, api_secret=API_SECRET, transport=slots
    ) as client:
        slots.begin(left)
        began, cpu = anyio.current_time(), time.process_time()
        await way(client, documents, job.slots)
    return Sample(
        anyio.current_time() - began,
        time.process_time() - cpu,
        calls=slots.attempts,
        uploads=load.uploads,
        busy_share=slots.share,
        bound_seconds=load.bound(job.slots),
    )


def _client(name: str, role: Role, way: Way) -> PythonClient:
    async def work(job: LoopbackJob) -> Sample:
        return await _played(way, job)

    return PythonClient(name, role, work)


_CLIENTS = (
    _client(OURS, Role.OURS, _ways.batch),
    _client("in input order", Role.PEER, _ways.in_input_order),
    _client("room by room", Role.PEER, _ways.room_by_room),
    _client("gather, shuffled", Role.PEER, _ways.shuffled_gather),
)

if __name__ == "__main__":
    main(_CLIENTS, LoopbackJob, sys.argv[1:])
