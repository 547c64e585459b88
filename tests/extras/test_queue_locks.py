"""What other programs lock in the database: nobody waits for it who need not, and nothing is lost.

A foreign session holds something of rooms 0, 1 and 10 to 19; the other eight are free.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import attrs
import psycopg
import pytest

from meeting_async.errors import JournalError, JournalInUse
from meeting_async.procrastinate import WhiteboardUploads
from support.postgres import needs_postgres
from support.queues import SECONDS, SMALL, Queue

pytestmark = [pytest.mark.anyio, needs_postgres]
nightly = pytest.mark.nightly

HELD = ["room0", "room1", *(f"room1{number}" for number in range(10))]
FREE = [f"room{number}" for number in range(2, 10)]
UPLOADS = "FROM meeting_async_uploads WHERE room_id < 'room2'"
TICKS = "procrastinate_jobs WHERE args ->> 'room_id' < 'room2'"
SOMEBODY = "somebody else"


@asynccontextmanager
async def held(
    queue: Queue, statement: str, *, vacuum: bool = False
) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Hold what a statement locks while the block runs; provide a session that looks.

    With ``vacuum`` a ``VACUUM FULL`` waits for that transaction, and all others for it.
    """
    async with AsyncExitStack() as stack:
        other, idle, watching = [
            await stack.enter_async_context(
                await psycopg.AsyncConnection.connect(
                    queue.order.dsn, application_name=SOMEBODY, autocommit=number > 0
                )
            )
            for number in range(3)
        ]
        await other.execute(statement.encode())
        how = b"VACUUM FULL meeting_async_uploads" if vacuum else b"SELECT"
        vacuuming = asyncio.create_task(idle.execute(how))
        try:
            yield watching
        finally:
            await other.rollback()
            await vacuuming


# --- workers -------------------------------------------------------------------------------------


@attrs.frozen
class Hold:
    """A statement of somebody else in an open transaction, and what it may do to workers."""

    statement: str
    runs: bool = False
    """Whether uploads of the held rooms run by then."""
    stops: bool = False
    """Whether nobody can write meanwhile: free rooms wait, too."""
    vacuum: bool = False


HOLDS = {
    "rows that wait": Hold(f"SELECT {UPLOADS} FOR UPDATE"),
    "rows that wait, changed": Hold(
        "UPDATE meeting_async_uploads SET reason = 'x' WHERE room_id < 'room2'"
    ),
    "rows that run": Hold(f"SELECT {UPLOADS} FOR UPDATE", runs=True),
    "ticks": Hold(f"UPDATE {TICKS}".replace(" WHERE", " SET priority = 1 WHERE")),
    "ticks that run": Hold(f"SELECT FROM {TICKS} FOR UPDATE", runs=True),
    "signs of life": Hold("SELECT FROM procrastinate_workers FOR UPDATE", runs=True),
    "the table": Hold("LOCK TABLE meeting_async_uploads IN SHARE MODE", stops=True),
    "the table, amid runs": Hold(
        "LOCK TABLE meeting_async_uploads IN SHARE MODE", runs=True, stops=True
    ),
    "the table of ticks": Hold("LOCK TABLE procrastinate_jobs IN SHARE MODE", stops=True),
    "VACUUM FULL": Hold("SELECT FROM meeting_async_uploads LIMIT 1", stops=True, vacuum=True),
}
HELD_SECONDS = 25.0
"""Long enough for two beats of a worker that fail, and for its pool to give up."""
MOST_SESSIONS = 2 * 4 + 4 + 3
"""Those of two workers, of the application that defers, and of this test."""
COUNT = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'"""


@nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", HOLDS)
async def test_what_somebody_else_holds(queue: Queue, name: str) -> None:
    """Free rooms wait for two seconds at most, no worker ends, and sessions do not get more.

    When it is released everything is delivered: once, and in its order.
    """
    hold, waits, sessions = HOLDS[name], list[float](), list[int]()
    queue.server.lock_seconds = 30
    for room in HELD:
        queue.server.rooms[room].processing_seconds = 3.0 if hold.runs else 0.0
    await queue.defer(*HELD, *HELD)
    if hold.runs:
        queue.start(2, concurrency=16)
        await queue.status_when(lambda found: found.running == len(HELD))
    async with held(queue, hold.statement, vacuum=hold.vacuum) as watching:
        if not hold.runs:
            queue.start(2, concurrency=4)
        ends_at = time.monotonic() + HELD_SECONDS
        while time.monotonic() < ends_at:
            room = FREE[len(waits) % len(FREE)]
            if not hold.stops:
                began, count = time.monotonic(), len(queue.accepted(room))
                await queue.defer(room)
                await queue.until(lambda room=room, count=count: len(queue.accepted(room)) > count)
                waits.append(time.monotonic() - began)
            await anyio.sleep(0.3)
            sessions += (await (await watching.execute(COUNT)).fetchall())[0]
        codes = [worker.code for worker in queue.workers]
        assert (codes, max(sessions) <= MOST_SESSIONS) == ([None, None], True), sessions
        assert max(waits[1:], default=0) < 2, waits  # without the start of the workers
    await queue.check(await queue.reported(seconds=90))
    assert [worker.code for worker in queue.workers] == [None, None]
    await queue.stop()


async def test_a_room_whose_first_upload_is_locked(queue: Queue) -> None:
    """It waits, as nothing may be sent before it; a run is neither lost nor ended meanwhile."""
    table = queue.uploads._table
    facts: Any = {"reason": None, "size": None, "history": None, "is_away": None, "attempts": "[]"}
    ended = {**facts, "state": "accepted", "error": None, "pause": None}
    await queue.defer("room0", "room0", "room1", "room2")
    row, lost = await table.claim("room1"), await table.claim("room2")
    assert row is not None
    assert lost is not None
    await queue.uploads.cancel("default", room_id="room2")
    async with held(queue, f"SELECT {UPLOADS} AND id IN (1, 3) FOR UPDATE"):
        with anyio.fail_after(SECONDS):
            assert await table.claim("room0") is None
            assert await table.beat([row, lost], None) == {lost.id: True}
            for change in (table.mark_sending(row, SMALL, None), table.end(row, **ended)):
                with pytest.raises(JournalInUse):
                    await change
    first = await table.claim("room0")
    assert (first.id if first else None) == 1
    assert await table.beat([row], None) == {}
    assert await table.mark_sending(row, SMALL, None)
    assert await table.end(row, **ended)


async def test_a_run_that_was_locked_for_long(queue: Queue) -> None:
    """Its worker is not lost: it has time for a beat before others take over."""
    await queue.defer("room0", "room1")
    table = queue.uploads._table
    recover = partial(table.recover, stalled_after=3, resends=False)
    rows = [await table.claim(room) for room in ("room0", "room1")]
    alive, lost = [row for row in rows if row]
    with psycopg.connect(queue.order.dsn, autocommit=True) as connection:
        connection.execute("UPDATE meeting_async_uploads SET beat_at = now() - interval '1 h'")
        assert await recover() == {}
        assert await table.beat([alive], None) == {}
        assert await recover() == {}
        connection.execute("UPDATE meeting_async_uploads SET due_at = due_at - interval '1 s'")
        assert await recover() == {lost.id: "ready"}


# --- calls ---------------------------------------------------------------------------------------

ROWS = f"SELECT {UPLOADS} FOR UPDATE"
KEY = """INSERT INTO meeting_async_uploads (server, batch, identity, room_id, kind, source)
    SELECT server, batch, 'taken', room_id, kind, source FROM meeting_async_uploads LIMIT 1"""
ALL = "LOCK TABLE meeting_async_uploads"

Call = Callable[[WhiteboardUploads], Awaitable[object]]
CALLS: dict[str, tuple[str, Call]] = {
    "defer": (ALL, lambda uploads: uploads.defer("room0", "/a.pdf")),
    "defer_many": (ALL, lambda uploads: uploads.defer_many(queue_jobs(), batch="x")),
    "a key": (KEY, lambda uploads: uploads._table.defer("default", [TAKEN])),
    "cancel": (ROWS, lambda uploads: uploads.cancel("default")),
    "retry": (ROWS, lambda uploads: uploads.retry("ended")),
    "drop": (ROWS, lambda uploads: uploads.drop("ended")),
    "report": (ALL, lambda uploads: uploads.report("default")),
    "status": (ALL, lambda uploads: uploads.status()),
}
