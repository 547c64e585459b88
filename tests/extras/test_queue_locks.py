"""Other programs hold locks in the database: only what needs those rows waits, and nothing is lost.

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

from extras.queues import LARGE, SECONDS, SMALL, Open, Queue
from meeting_async import Document, UploadJob
from meeting_async.errors import JournalInUse
from meeting_async.procrastinate import WhiteboardUploads
from support.postgres import needs_postgres

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
    "signs of life": Hold("UPDATE procrastinate_workers SET last_heartbeat = now()", runs=True),
    "workers": Hold("SELECT FROM procrastinate_workers FOR UPDATE", runs=True, stops=True),
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

    def has_more(room: str, count: int) -> bool:
        return len(queue.accepted(room)) > count

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
                await queue.until(partial(has_more, room, count))
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
            for change in (table.mark_sending(row, SMALL, None, "{}"), table.end(row, **ended)):
                with pytest.raises(JournalInUse):
                    await change
    first = await table.claim("room0")
    assert (first.id if first else None) == 1
    assert await table.beat([row], None) == {}
    assert await table.mark_sending(row, SMALL, None, "{}")
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


async def test_a_document_on_its_way(open_queue: Open) -> None:
    """It is completed when its row is free again, and is sent once."""
    may_go_on = asyncio.Event()

    async def find(path: str) -> Document:
        await may_go_on.wait()
        return Document.from_path(path)

    async with open_queue(documents=find) as queue, queue.working():
        await queue.uploads.defer("room0", str(queue.document("room0", LARGE)))
        await queue.status_when(lambda found: found.running == 1)
        async with held(queue, f"SELECT {UPLOADS} FOR UPDATE"):
            may_go_on.set()
            await anyio.sleep(1)
            assert queue.accepted() == []
        assert (await queue.reported()).accepted == 1
        assert queue.sent("room0", LARGE) == 1


async def test_a_worker_that_was_taken_for_lost(queue: Queue) -> None:
    """After a long freeze it goes on, although one that has begun meanwhile has deleted it."""
    worker = queue.start()
    await queue.status_when(lambda found: found.workers == 1)
    with psycopg.connect(queue.order.dsn, autocommit=True) as connection:
        connection.execute("DELETE FROM procrastinate_workers")
    await queue.defer("room0")
    await queue.check(await queue.reported())
    assert (queue.workers, worker.code) == ([worker], None)
    assert "taken for lost" in worker.text
    assert (await queue.uploads.status()).workers == 1


# --- calls ---------------------------------------------------------------------------------------

Call = Callable[[WhiteboardUploads], Awaitable[object]]
JOBS = [UploadJob(f"room{number}", "/b.pdf") for number in range(2)]
WRITES: list[Call] = [
    lambda uploads: uploads.cancel("default"),
    lambda uploads: uploads.retry("ended"),
    lambda uploads: uploads.drop("ended"),
]
ANY: list[Call] = [
    *WRITES,
    lambda uploads: uploads.defer("room0", "/b.pdf"),
    lambda uploads: uploads.defer_many(JOBS, batch="default"),
    lambda uploads: uploads.report("default"),
    lambda uploads: uploads.status(),
]
CALLS: dict[str, tuple[str, list[Call]]] = {
    "rows": (f"SELECT {UPLOADS} FOR UPDATE", WRITES),
    "the table": ("LOCK TABLE meeting_async_uploads", ANY),
    "VACUUM FULL": ("SELECT FROM meeting_async_uploads LIMIT 1", ANY),
    "a key": (
        "UPDATE meeting_async_uploads SET identity = identity",
        [lambda uploads: uploads.defer("room0", "/a.pdf", key="key")],
    ),
}
"""What somebody holds, and calls that need it."""


@nightly
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_says_who_holds_what(queue: Queue, name: str) -> None:
    """It ends within some seconds, and names the process, its program, since when, and its query.

    So does a command.
    """
    statement, calls = CALLS[name]
    await queue.uploads.defer("room0", "/a.pdf", key="key")
    await queue.uploads.defer("room0", "/a.pdf", batch="ended")
    assert await queue.uploads.cancel("ended") == 1
    told = list[str]()

    async def call(one: Call) -> None:
        with pytest.raises(JournalInUse) as raised:
            await one(queue.uploads)
        told.append(str(raised.value))

    async with held(queue, statement, vacuum=name == "VACUUM FULL") as watching:
        began = time.monotonic()
        for one in calls:  # each alone: they share few connections
            await call(one)
        took = time.monotonic() - began
        code, text = await queue.run("cancel" if name != "a key" else "status", "default")
        sessions = (await (await watching.execute(COUNT)).fetchall())[0][0]
    assert took < 7 * len(calls)
    for line in [*told, text] if name != "a key" else told:
        assert f"'{SOMEBODY}', since 20" in line
        assert statement[:40] in line
        assert "end that transaction" in line
    assert code == (name != "a key")
    assert sessions <= MOST_SESSIONS


@nightly
async def test_a_key_in_an_open_transaction(queue: Queue) -> None:
    """A second ``defer`` of it ends with an error; a transaction that it was a part of goes on."""
    connect = partial(psycopg.AsyncConnection.connect, queue.order.dsn)
    defer = partial(queue.uploads.defer, "room0", "/a.pdf", key="key")
    async with await connect(application_name=SOMEBODY) as first, await connect() as second:
        assert await defer(connection=first) is not None
        await second.execute("SET LOCAL lock_timeout = '77s'")
        for connection in (None, second):
            with pytest.raises(JournalInUse, match=SOMEBODY):
                await defer(connection=connection)
        assert await queue.uploads.defer("room1", "/a.pdf", connection=second) is not None
        shown = await second.execute(
            "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"
        )
        assert await shown.fetchall() == [("77s", "0")]
        await second.commit()
        await first.rollback()
    assert [row.room_id for row in await queue.uploads._table.page("default", 0)] == ["room1"]
    assert await defer() is not None
