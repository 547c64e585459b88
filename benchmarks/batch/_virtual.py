"""Batches in virtual time: the real client and its real scheduling, before a server that sleeps.

Only the server is made up: it takes what each document is said to take on trio's mock clock, which
jumps to the next moment at which anything happens. Documents are bytes, so no thread is waited
for; what the client computes takes no virtual time.
"""

from __future__ import annotations

import functools
import json
import time
from collections import Counter, deque

import anyio
import attrs

from benchmarks._job import API_KEY, API_SECRET
from benchmarks._measure import Sample
from benchmarks.batch._loads import Load
from benchmarks.batch._occupancy import Occupancy
from benchmarks.batch._ways import Way
from meeting_async import LockPolicy, MeetingClient, Reply, Request, UploadJob

_QUESTION_SECONDS = 0.05
"""Whether a room is active is asked once, before anything is sent."""
_DOCUMENT = b"%PDF-1.7\n"


def _reply(status: int, payload: object, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Reply:
    return Reply(status, headers, json.dumps(payload).encode())


ACTIVE = _reply(
    200, {"status": True, "msg": "success", "room": {"room_info": {}, "participants_info": []}}
)
ACCEPTED = _reply(200, {"status": True, "msg": "success", "status_code": "SUCCESS"})
_LOCKED = {"status": False, "msg": "locked", "status_code": "LOCKED"}


@attrs.define(eq=False)
class SlowServer:
    """A transport that takes as long as a server would. A room has a lock, as in the interface."""

    load: Load
    tells: bool = False
    """Whether a refusal says when the room will be free (Retry-After)."""
    began: float = attrs.field(factory=anyio.current_time)
    _left: dict[bytes, deque[float]] = attrs.field(init=False)
    _free_at: dict[bytes, float] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        names = [room.encode() for room in rooms(self.load)]
        self._left = {n: deque(c) for n, c in zip(names, self.load.chains, strict=True)}
        self._free_at = {
            n: self.began + held for n, held in zip(names, self.load.locked, strict=True)
        }

    async def send(self, request: Request, /) -> Reply:
        """Take the body, then the time that the document takes."""
        if isinstance(request.body, bytes):
            await anyio.sleep(_QUESTION_SECONDS)
            return ACTIVE
        room = dict(request.headers)[b"Room-Id"]
        async for _ in request.body:
            pass
        await anyio.sleep(self.load.pace.send)
        now = anyio.current_time()
        if now < self._free_at[room]:
            return self._refusal(self._free_at[room] - now)
        seconds = self._left[room].popleft() - self.load.pace.send
        self._free_at[room] = now + seconds
        await anyio.sleep(seconds)
        return ACCEPTED

    def _refusal(self, left: float) -> Reply:
        headers = ((b"Retry-After", str(int(left) + 1).encode()),) if self.tells else ()
        return _reply(409, _LOCKED, headers)

    async def aclose(self) -> None:
        """Nothing is held."""


def rooms(load: Load) -> list[str]:
    """Name the rooms."""
    return [f"room{number:04}" for number in range(len(load.chains))]


def jobs(load: Load) -> list[UploadJob]:
    """Return the documents room by room, as a folder or a sorted manifest has them."""
    return [
        UploadJob(room, _DOCUMENT, filename=f"{number}.pdf")
        for room, chain in zip(rooms(load), load.chains, strict=True)
        for number in range(len(chain))
    ]


async def played(way: Way, load: Load, concurrency: int, *, tells: bool = False) -> Sample:
    """Do a load one way, on the clock of the running loop."""
    documents = jobs(load)
    left = Counter(job.room_id for job in documents)
    slots = Occupancy(SlowServer(load, tells), concurrency, left)
    client = MeetingClient(
        "http://localhost",
        api_key=API_KEY,
        api_secret=API_SECRET,
        transport=slots,
        lock=LockPolicy(max_retry_after=load.pace.releases[1]),
    )
    began, cpu = anyio.current_time(), time.process_time()
    async with client:
        await way(client, documents, concurrency)
    return Sample(
        anyio.current_time() - began,
        time.process_time() - cpu,
        calls=slots.attempts,
        uploads=load.uploads,
        busy_share=slots.share,
        bound_seconds=load.bound(concurrency),
    )


def in_virtual_time(way: Way, load: Load, concurrency: int, *, tells: bool = False) -> Sample:
    """Do a load one way, in a loop of its own in which waiting takes no time."""
    import trio.testing  # noqa: PLC0415 - only this needs it

    play = functools.partial(played, way, load, concurrency, tells=tells)
    return trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))
