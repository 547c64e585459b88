"""With exactly_once a queue finds out what became of each document that may have arrived."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import psycopg
import pytest

from extras.queues import SMALL, UPLOAD, Queue, queue_at
from meeting_async import AttemptStarted, Event, MeetingClient, RetryPolicy, errors
from meeting_async.testing import MeetingServer
from support.postgres import needs_postgres
from support.queue_worker import KEYS

pytestmark = [pytest.mark.anyio, needs_postgres]

nightly = pytest.mark.nightly

CHECK = "/room/getActiveRoomInfo"
SETTLE = 1.0
EXACTLY: Any = {"delivery": "exactly_once", "retry": RetryPolicy(settle_after=SETTLE)}


@asynccontextmanager
async def site(
    dsn: str, folder: Path, client: Mapping[str, Any] = EXACTLY, **settings: Any
) -> AsyncIterator[Queue]:
    """Open a queue for a server with these settings, and three rooms."""
    server = MeetingServer(**settings)
    for number in range(3):
        server.add_room(f"room{number}")
    with server.run():
        async with queue_at(dsn, server, folder, **client) as queue:
            yield queue


# --- what lost workers left ----------------------------------------------------------------------


async def arrives(queue: Queue) -> None:
    """The document of the lost worker has arrived."""
    async with MeetingClient(queue.server.url, **KEYS) as client:
        await client.upload_whiteboard_file("room0", queue.folder / [*queue.documents][-1])


async def arrives_meanwhile(queue: Queue) -> None:
    """It arrives while another worker looks for it."""
    await anyio.sleep(SETTLE / 2)
    await arrives(queue)


async def locked(queue: Queue) -> None:
    """It does not arrive, and somebody locks the room for longer than anything can be late."""
    queue.server.rooms["room0"].lock(3 * SETTLE)


async def next_session(queue: Queue) -> None:
    """It has arrived, and then the session has ended; another one runs."""
    await arrives(queue)
    await ended(queue, "room0")
    queue.server.add_room("room0")


async def ended(queue: Queue, room_id: str) -> None:
    """A session ends."""
    async with MeetingClient(queue.server.url, **KEYS) as client:
        await client.call("room/endRoom", {"room_id": room_id})


async def changed(queue: Queue) -> None:
    """It has arrived, and then its file has changed."""
    await arrives(queue)
    (queue.folder / [*queue.documents][-1]).write_bytes(b"%PDF-1.7 longer".ljust(2 * SMALL))


async def denied(queue: Queue) -> None:
    """It has arrived, and then checks deny the room, whose forms are answered."""
    await arrives(queue)
    queue.server.refuse_next("ROOM_NOT_ACTIVE", path=CHECK, times=2)


async def nothing(_queue: Queue) -> None:
    """It does not arrive."""


@attrs.frozen(kw_only=True)
class Left:
    """What a lost worker has left, and what becomes of it."""

    happens: Callable[[Queue], Any] = nothing
    times: int = 1
    """How often it is in its room in the end."""
    status: str = "accepted"
    reason: str = ""
    ago: float = 0.0
    """Seconds since the document was marked."""
    shown: bool = True
    """Whether an earlier worker has delivered a document."""
    told: bool = True
    """Whether the server had named its session."""
    client: Mapping[str, Any] = EXACTLY
    settings: Mapping[str, Any] = attrs.field(factory=dict)
    is_slow: bool = False


LEFT = {
    "arrived": Left(happens=arrives),
    "arrived, long ago": Left(happens=arrives, ago=7200),
    "arrives late": Left(happens=arrives_meanwhile),
    "did not arrive": Left(),
    "did not arrive, long ago": Left(ago=7200),
    "did not arrive, the room is locked": Left(happens=locked, is_slow=True),
    "arrived in an earlier session": Left(happens=next_session, times=2),
    "arrived, and the check denies the room": Left(happens=denied),
    "arrived, and changed": Left(happens=changed),
    "the server shows nothing": Left(
        times=0,
        status="unknown",
        reason="cannot be told",
        settings={"stored_files": "absent"},
        is_slow=True,
    ),
    "the server has shown nothing yet": Left(
        times=0, status="unknown", reason="cannot be told", shown=False, is_slow=True
    ),
    "no session was known": Left(times=0, status="unknown", reason="saw no answer", told=False),
    "at most once": Left(happens=arrives, status="unknown", reason="its worker was", client={}),
}
ROWS = [pytest.param(name, marks=nightly if left.is_slow else ()) for name, left in LEFT.items()]


@pytest.mark.parametrize("name", ROWS)
async def test_what_a_lost_worker_left(dsn: str, tmp_path: Path, name: str) -> None:
    """It is found in its session, or sent, once nothing can deliver it any more; never in a guess.

    The worker that finds out is new: it has seen nothing of the server. Nothing else is queued.
    """
    left = LEFT[name]
    async with (
        site(dsn, tmp_path, left.client, **left.settings) as queue,
        anyio.create_task_group() as tasks,
    ):
        if left.shown:
            await queue.defer("room1")
            await queue.delivered()
        await queue.defer("room0")
        await leave(queue, left)
        if left.happens is arrives_meanwhile:
            tasks.start_soon(arrives_meanwhile, queue)
        else:
            await left.happens(queue)
        with anyio.fail_after(40):
            async with queue.working():
                report = await queue.reported()
        (outcome,) = [one for one in report.outcomes if one.room_id == "room0"]
        assert outcome.status == left.status, outcome.error
        assert left.reason in str(outcome.error or "")
        assert outcome.session == (queue.server.rooms["room0"].sid if left.told else "")
    assert len(queue.accepted("room0")) == left.times


async def leave(queue: Queue, left: Left) -> None:
    """Let a worker mark the document, and be lost."""
    table, session = queue.uploads._table, queue.server.rooms["room0"].sid
    row = await table.claim("room0")
    assert row is not None
    sent = {"name": Path(row.source).name, "session": session, "since": int(time.time())}
    assert await table.mark_sending(
        row, SMALL, None, json.dumps({"sent": sent} if left.told else {})
    )
    with psycopg.connect(queue.order.dsn) as connection:
        connection.execute(
            "UPDATE meeting_async_uploads SET beat_at = now() - interval '1 hour',"
            " due_at = now() - interval '30 minutes', sent_at = now() - %s * interval '1 second'"
            " WHERE id = %s",
            [left.ago, row.id],
        )


# --- while a worker goes on ----------------------------------------------------------------------


async def test_a_lost_answer_holds_no_place(dsn: str, tmp_path: Path) -> None:
    """Meanwhile a worker with one place serves other rooms; the room's next document waits."""
    client = {**EXACTLY, "retry": RetryPolicy(settle_after=60)}
    async with site(dsn, tmp_path, client) as queue:
        queue.server.lose_next_reply(path=UPLOAD, when="instead")
        await queue.defer("room0", "room0", "room1", "room2")
        async with queue.working(concurrency=1):
            await queue.reported(queued=2)
            status = await queue.status_when(lambda found: not found.running)
    assert status.causes == {"evidence of what became of it": 2}
    assert (queue.accepted("room0"), queue.sent("room0", SMALL)) == ([], 1)


async def test_a_lost_answer_is_found_out(dsn: str, tmp_path: Path) -> None:
    """What arrived is found, what did not is sent again, in the order of the room."""
    async with site(dsn, tmp_path) as queue:
        async with queue.working():
            for when in ("afterwards", "instead"):
                queue.server.lose_next_reply(path=UPLOAD, when=when)
                await queue.defer("room0", "room0")
                report = await queue.reported()
        await queue.check(report)
    assert queue.sent("room0", SMALL) == 5
    assert {one.session for one in report.outcomes} == {queue.server.rooms["room0"].sid}


@pytest.mark.parametrize("is_lost", [True, pytest.param(False, marks=nightly)])
async def test_a_session_that_ends_amid_an_upload(
    dsn: str, tmp_path: Path, *, is_lost: bool
) -> None:
    """The outcome names the session that has the document, not the one that was checked."""
    begun: list[Event] = []

    def sending(event: Event) -> None:
        if isinstance(event, AttemptStarted) and event.room_id == "room0" and not begun:
            begun.append(event)
            queue.server.rooms["room0"].end()
            queue.server.add_room("room0")
            if is_lost:
                queue.server.lose_next_reply(path=UPLOAD)

    async with site(dsn, tmp_path, {**EXACTLY, "on_event": sending}) as queue:
        await queue.defer("room1", "room0")
        async with queue.working(concurrency=1):
            report = await queue.reported()
        await queue.check(report)
    assert begun
    sessions = {one.room_id: one.session for one in report.outcomes}
    assert sessions == {room: queue.server.rooms[room].sid for room in ("room0", "room1")}


async def test_a_worker_of_the_command_line_finds_out(dsn: str, tmp_path: Path) -> None:
    """A worker of the command line finds out, too, and the report names the session."""
    async with site(dsn, tmp_path, {}) as queue:
        queue.server.lose_next_reply(path=UPLOAD)
        await queue.defer("room0")
        queue.workers.append(queue.command("worker", "--delivery", "exactly_once"))
        await queue.check(await queue.reported())
        code, told = await queue.run("report", "default", "--json")
        session = json.loads(told.splitlines()[0])["session"]
        assert (code, session) == (0, queue.server.rooms["room0"].sid)


async def test_a_worker_that_is_stopped(dsn: str, tmp_path: Path) -> None:
    """It puts back what was sent completely, and the next one finds it."""
    async with site(dsn, tmp_path, processing_seconds=3.0, reply_after=3.0) as queue:
        await queue.defer("room0")
        async with queue.working(grace=0.1):
            await queue.until(queue.accepted)
        assert (await queue.uploads.report("default")).queued == 1
        await queue.delivered()


async def test_a_storage_that_is_late(dsn: str, tmp_path: Path) -> None:
    """An accepted document is confirmed when it is there, in the same run."""
    async with site(dsn, tmp_path, stored_files_after=1.0) as queue:
        await queue.defer("room0", "room0")
        report = await queue.delivered()
    assert all(one.seconds >= 1 for one in report.outcomes)


@nightly
async def test_a_misplaced_document(dsn: str, tmp_path: Path) -> None:
    """What was accepted and is not in its room is unknown, says why, and is not sent again."""
    async with site(dsn, tmp_path, stored_files_after=1.0) as queue:
        await queue.defer("room1")
        async with queue.working():
            await queue.reported()
            queue.server.stored_files_after = 3600.0
            await queue.defer("room0")
            report = await queue.reported()
    assert [outcome.status for outcome in report.outcomes] == ["accepted", "unknown"]
    assert isinstance(report.outcomes[1].error, errors.DocumentMisplaced)
    assert len(queue.accepted("room0")) == 1


async def test_a_server_that_is_away_meanwhile(dsn: str, tmp_path: Path) -> None:
    """A document in doubt outlives an outage like any other upload."""
    async with site(
        dsn, tmp_path, {**EXACTLY, "retry": RetryPolicy(settle_after=SETTLE, max_outage=0)}
    ) as queue:
        queue.server.lose_next_reply(path=UPLOAD)
        await queue.defer("room0")
        async with queue.working():
            await queue.until(queue.accepted)
            queue.server.lose_next_reply(times=2, when="instead")
            report = await queue.reported()
        await queue.check(report)
