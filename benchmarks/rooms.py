"""Rooms with many people: what their replies cost. Run by ``python -m benchmarks``.

``getActiveRoomInfo`` lists everybody in the room. A call that returns the room parses all of it; an
upload reads the beginning. No network: the reply is there at once.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import attrs

from benchmarks import _wire
from benchmarks._compare import Column, Comparison, Options, Target, Task, compare
from benchmarks._measure import Sample, measured
from benchmarks._process import OURS, Client, Role

TITLE = "Rooms with many people"
NOTES = """\
* A reply with some 780 bytes for each participant, as plugNmeet-server sends it.
* ms/MiB: time for each MiB of the reply. Nothing else runs on the event loop meanwhile: the gap.
* json.loads: the same bytes, and nothing else."""

REPEATED = 5
PERSON = {
    "sid": "PA_" + "x" * 12,
    "identity": "u" * 36,
    "name": "n" * 20,
    "state": "ACTIVE",
    "metadata": json.dumps({"lock_settings": "y" * 540}),
    "joined_at": "1790000000",
}


@attrs.frozen
class Job:
    """So many people in the room."""

    people: int

    @property
    def content(self) -> bytes:
        """The reply."""
        room = {
            "room_info": {"room_id": _wire.ROOM_ID},
            "participants_info": [PERSON] * self.people,
        }
        return json.dumps({"status": True, "msg": "success", "room": room}).encode()


@attrs.frozen
class _Replies:
    """A transport that has the reply."""

    content: bytes

    async def send(self, request: Any, /) -> Any:
        from meeting_async.transports import Reply  # noqa: PLC0415 - each process imports its own

        if b"multipart" in dict(request.headers)[b"Content-Type"]:
            async for _ in request.body:
                pass
            return Reply(200, (), json.dumps(_wire.ACCEPTED).encode())
        content = self.content[: request.max_reply_bytes]
        return Reply(200, (), content, is_cut=len(content) < len(self.content))

    async def aclose(self) -> None:
        """Nothing is open."""


async def _repeated(work: Callable[[], Awaitable[object]], content: bytes) -> Sample:
    async def repeat() -> None:
        for _ in range(REPEATED):
            await work()

    await work()
    sample = await measured(repeat)
    return attrs.evolve(sample, count=REPEATED * len(content))


async def _ours(job: Job) -> Sample:
    return await _with_client(job, lambda client: client.get_active_room_info(_wire.ROOM_ID))


async def _upload(job: Job) -> Sample:
    return await _with_client(
        job, lambda client: client.upload_whiteboard_file(_wire.ROOM_ID, b"%PDF", filename="a.pdf")
    )


async def _with_client(job: Job, work: Callable[[Any], Awaitable[object]]) -> Sample:
    from meeting_async import MeetingClient  # noqa: PLC0415 - as above

    content = job.content
    async with MeetingClient(
        "https://meet.example.com", api_key="key", api_secret="secret", transport=_Replies(content)
    ) as client:
        return await _repeated(lambda: work(client), content)


async def _plain(job: Job) -> Sample:
    content = job.content

    async def loads() -> None:
        json.loads(content)

    return await _repeated(loads, content)


PLAIN, UPLOAD = "json.loads", f"{OURS}, an upload"
CLIENTS = (
    Client(OURS, _ours, Role.OURS),
    Client(UPLOAD, _upload),
    Client(PLAIN, _plain),
)

_EACH = Column("ms/MiB", lambda s: s.seconds * 1000 / (s.count / 2**20), 1)
_GAP = Column("gap ms", lambda s: None if s.gap_seconds is None else s.gap_seconds * 1000, 1)


def comparisons(options: Options) -> Iterator[Comparison]:
    """Compare rooms of several sizes."""
    for people in (10,) if options.quick else (10, 1000, 10_000):
        job = Job(people)
        title = f"{people:,} people, {len(job.content) / 2**20:.2f} MiB"
        task = Task(title, (_EACH, _GAP), (Target(_EACH, 3.0, PLAIN),))
        yield compare(task, options.chosen(CLIENTS), partial(_sample, job), options.rounds)


def _sample(job: Job, client: Client) -> Sample:
    return client.measure(__name__, job)
