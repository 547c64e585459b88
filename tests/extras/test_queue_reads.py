"""What each statement of the queue reads, whatever the database believes about its tables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import attrs
import psycopg
import pytest
from psycopg.rows import dict_row

from extras.queues import Queue
from meeting_async.procrastinate._database import SQL
from meeting_async.procrastinate._table import CHUNK, MAX_TICKS, TICK, Table
from support.postgres import needs_postgres

pytestmark = [pytest.mark.anyio, needs_postgres]
nightly = pytest.mark.nightly

OTHER = "http://other.example/auth"
MANY, ROOMS, RUNS = 2_000, 200, 50
"""Uploads of each kind, the rooms of some kinds, and what runs or was lost."""
OPEN, OPEN_ROOMS = 4 * MANY + ROOMS + 3 * RUNS, 2 * (ROOMS + RUNS)
"""Uploads of the server without an outcome, and their rooms; some more do not matter."""


# --- what is in the database ---------------------------------------------------------------------


def add(
    connection: psycopg.Connection[Any], server: str, batch: str, count: int, **facts: object
) -> None:
    """Insert uploads for a room, or several: ``batch0``, ``batch1`` and so on, or as ``room`` says.

    If ``silent`` says how long ago a worker has given a sign of them, they run.
    """
    found = {"room": batch, "rooms": 1, "state": "ready", "due": None, "silent": None, **facts}
    connection.execute(
        """INSERT INTO meeting_async_uploads (
            server, batch, identity, room_id, kind, source, state, due_at, started_at, beat_at
        )
        SELECT %(server)s, %(batch)s, n, %(room)s || n %% %(rooms)s, 'path', '/a.pdf', %(state)s,
            now() + %(due)s::interval, now() - %(silent)s::interval, now() - %(silent)s::interval
        FROM generate_series(1, %(count)s) AS n""",
        {"server": server, "batch": batch, "count": count, **found},
    )


def add_ticks(
    connection: psycopg.Connection[Any], server: str, room: str, count: int, **facts: object
) -> None:
    """Insert ticks, or other jobs, for ``room0``, ``room1`` and so on."""
    found = {"task": TICK, "status": "todo", "is_freed": False, **facts}
    connection.execute(
        """INSERT INTO procrastinate_jobs (
            queue_name, task_name, args, status, lock, queueing_lock, scheduled_at
        )
        SELECT 'any', %(task)s,
            jsonb_build_object('server', %(server)s::text, 'room_id', %(room)s::text || n),
            %(status)s, CASE WHEN NOT %(is_freed)s THEN concat(%(server)s, ' ', %(room)s, n) END,
            concat(%(server)s, ' ', %(room)s, n),
            CASE WHEN %(is_freed)s THEN now() - interval '2 hours' END
        FROM generate_series(0, %(count)s - 1) AS n""",
        {"server": server, "room": room, "count": count, **found},
    )


def fill(connection: psycopg.Connection[Any], server: str) -> None:
    """Insert long queues of all kinds, and a little of what statements are about."""
    add(connection, server, "long", MANY, rooms=2)
    add(connection, server, "long run", 1, room="long", silent="0 s")
    add(connection, server, "later", MANY, due="1 day")
    add(connection, server, "now", 1, room="later")
    add(connection, server, "scheduled", MANY, due="1 day", rooms=ROOMS)
    add(connection, server, "scheduled run", 1, room="scheduled", silent="0 s")
    add(connection, server, "due", MANY, due="-1 day", rooms=2)
    add(connection, server, "ended", MANY, rooms=ROOMS, state="accepted")
    add(connection, OTHER, "other", MANY, rooms=ROOMS)
    add(connection, server, "many", ROOMS, rooms=ROOMS)
    add(connection, server, "small", 10)
    add(connection, server, "failed", 10, state="failed")
    add(connection, server, "runs", RUNS, rooms=RUNS, silent="0 s")
    add(connection, server, "silent", RUNS, rooms=RUNS, silent="1 hour")
    add(connection, server, "lost", RUNS, rooms=RUNS, silent="1 hour", due="-30 minutes")
    add_ticks(connection, server, "many", ROOMS)
    add_ticks(connection, server, "runs", RUNS, status="doing")
    add_ticks(connection, server, "gone", RUNS, status="doing")
    add_ticks(connection, server, "freed", RUNS, status="doing", is_freed=True)
    add_ticks(connection, OTHER, "other", ROOMS)
    add_ticks(connection, server, "any", MANY, status="succeeded", task="of somebody else")
    connection.execute(
        "INSERT INTO procrastinate_events (job_id, type, at)"
        " SELECT id, 'started', now() - interval '1 hour' FROM procrastinate_jobs"
    )


STATISTICS: dict[str, Callable[[psycopg.Connection[Any], str], None] | None] = {
    "nothing": lambda *_: None,
    "few rows": lambda connection, server: add(connection, server, "few", 20, rooms=5),
    "another server": lambda connection, _: add(connection, OTHER, "few", MANY, rooms=20),
    "one room": lambda connection, server: add(connection, server, "one", MANY),
    "outcomes": lambda connection, server: add(connection, server, "end", MANY, state="accepted"),
    "what is there": None,
}
"""What was in the tables when the database has last looked."""


# --- what a statement is about -------------------------------------------------------------------


Ids = Mapping[str, list[int]]
"""Uploads that run, by batch."""


def running(connection: psycopg.Connection[Any]) -> Ids:
    """Find them, but for those whose worker was lost."""
    query = """SELECT batch, array_agg(id ORDER BY id) FROM meeting_async_uploads
        WHERE beat_at > now() - interval '10 minutes' GROUP BY batch"""
    return dict(connection.execute(query).fetchall())


ENDED: dict[str, Any] = {
    "run": 0,
    "ticks": True,
    "state": "accepted",
    "pause": None,
    "is_away": None,
    "error": None,
    "reason": None,
    "size": 1,
    "attempts": "[]",
    "history": None,
}
JOB = {"key": None, "kind": "path", "source": "/a", "filename": None, "content_type": None}
JOBS = [
    {**JOB, "identity": str(n), "room_id": f"new{n}", "due_at": None if n % 2 else "2100-01-01"}
    for n in range(RUNS)
]
MARK: dict[str, Any] = {
    "run": 0,
    "room_id": "runs1",
    "size": 1,
    "fingerprint": None,
    "history": None,
}
BEAT: dict[str, Any] = {"cancelled": "", "worker_id": 1, "runs": [0] * RUNS}

Call = Callable[[Table, Ids], Awaitable[object]]
STATEMENTS: dict[str, tuple[int, Call]] = {
    "defer": (RUNS, lambda table, _: table.defer("new", JOBS)),
    "tick": (RUNS, lambda table, _: table.tick(f"runs{n}" for n in range(RUNS))),
    "tick of waiting rooms": (RUNS, lambda table, _: table.tick(f"many{n}" for n in range(RUNS))),
    "claim": (1, lambda table, _: table.claim("many1")),
    "claim from a long queue": (1, lambda table, _: table.claim("long1")),
    "claim from a room that runs": (1, lambda table, _: table.claim("long0")),
    "claim of what has become due": (1, lambda table, _: table.claim("due0")),
    "claim before its time": (1, lambda table, _: table.claim("scheduled1")),
    "claim beside a schedule": (1, lambda table, _: table.claim("later0")),
    "claim of nothing": (1, lambda table, _: table.claim("absent")),
    "mark": (1, lambda table, ids: table._query("mark", id=ids["runs"][0], **MARK)),
    "accepted": (
        CHUNK,
        lambda table, _: table._query("accepted", id=MANY, session="", limit=CHUNK // 2),
    ),
    "end": (1, lambda table, ids: table._query("end", id=ids["runs"][0], **ENDED)),
    "end before a long queue": (
        1,
        lambda table, ids: table._query("end", id=ids["long run"][0], **ENDED),
    ),
    "end before a schedule": (
        1,
        lambda table, ids: table._query("end", id=ids["scheduled run"][0], **ENDED),
    ),
    "beat": (2 * RUNS, lambda table, ids: table._query("beat", ids=ids["runs"], **BEAT)),
    "recover_runs": (
        3 * RUNS,
        lambda table, _: table._query("recover_runs", stalled_after=30, resends=False, error="{}"),
    ),
    "suspect_runs": (3 * RUNS, lambda table, _: table._query("suspect_runs", stalled_after=30)),
    "recover_ticks": (2 * RUNS, lambda table, _: table._query("recover_ticks", stalled_after=30)),
    "delete_ticks": (3 * RUNS, lambda table, _: table._query("delete_ticks")),
    "finish_ticks": (RUNS, lambda table, ids: table._query("finish_ticks", ids=ids["runs"])),
    "recover_rooms": (OPEN_ROOMS, lambda table, _: table._query("recover_rooms", limit=MAX_TICKS)),
    "page": (CHUNK, lambda table, _: table.page("ended", 0)),
    "page of a small batch": (10, lambda table, _: table.page("small", 0)),
    "drop": (10, lambda table, _: table.drop("failed")),
    "retry": (10, lambda table, _: table.retry("failed", None, resend=True)),
    "retry of a room": (10, lambda table, _: table.retry("failed", "failed0", resend=False)),
    "cancel": (10, lambda table, _: table.cancel("small", None)),
    "cancel of a room": (10, lambda table, _: table.cancel("small", "small0")),
    "status": (OPEN, lambda table, _: table.status(None)),
    "workers": (1, lambda table, _: table.workers(30)),
}
"""How many rows a call of a statement is about: uploads, rooms that wait, runs of all workers."""
FINDS_NOTHING = {
    "tick of waiting rooms",
    "claim from a room that runs",
    "claim before its time",
    "claim of nothing",
    "beat",  # it returns what was lost
    "accepted",  # none was sent
    "finish_ticks",  # and this what is locked
}

READ = """SELECT sum(pg_stat_get_xact_tuples_returned(oid))::integer AS rows,
    sum(pg_stat_get_xact_blocks_fetched(oid))::integer AS pages
FROM pg_class WHERE relname ~ '^(meeting_async|procrastinate)_' AND relkind IN ('r', 'i')"""


@attrs.define(eq=False)
class Counting:
    """Takes the place of procrastinate's connector: counts what is read, and changes nothing."""

    connection: psycopg.AsyncConnection[Any]
    rows: int = 0
    """Rows of tables that were read from end to end, and entries of indexes."""
    pages: int = 0
    found: int = 0
    """Rows that were returned, or changed."""
    seen: set[str] = attrs.field(factory=set)

    async def execute_query_all_async(self, query: str, **arguments: Any) -> list[Any]:
        """Run a statement, as a prepared one."""
        if query.startswith("ANALYZE"):
            return []
        self.seen.add(query)
        async with (
            self.connection.transaction(force_rollback=True),
            self.connection.cursor(row_factory=dict_row) as cursor,
        ):
            (before,) = await (await cursor.execute(READ)).fetchall()
            await cursor.execute(query.encode(), arguments, prepare=True)
            found = await cursor.fetchall() if cursor.description else []
            self.found += cursor.rowcount
            (after,) = await (await cursor.execute(READ)).fetchall()
        self.rows += after["rows"] - before["rows"]
        self.pages += after["pages"] - before["pages"]
        return found


async def reads(table: Table, counting: Counting, ids: Ids) -> dict[str, tuple[int, int, int]]:
    """Run all statements; return the rows that each has read, the pages, and what it has found."""
    counts = {}
    for name, (_, call) in STATEMENTS.items():
        counting.rows = counting.pages = counting.found = 0
        await call(table, ids)
        counts[name] = counting.rows, counting.pages, counting.found
    return counts


def too_many(counts: Mapping[str, tuple[int, int, int]]) -> dict[str, tuple[int, int, int]]:
    """Return what has read more than it is about."""
    limits = {name: (6 * about + 10, 50 * about + 50) for name, (about, _) in STATEMENTS.items()}
    return {
        name: (rows, pages, found)
        for name, (rows, pages, found) in counts.items()
        if rows > limits[name][0] or pages > limits[name][1]
    }


NONE_RUN: Ids = {"runs": [*range(1, RUNS + 1)], "long run": [1], "scheduled run": [1]}

QUICK = ("few rows", "force_generic_plan")
CELLS = [
    pytest.param(kind, plans, marks=() if (kind, plans) == QUICK else nightly)
    for kind in STATISTICS
    for plans in ("force_generic_plan", "force_custom_plan")
]


@pytest.mark.parametrize(("kind", "plans"), CELLS)
async def test_what_each_statement_reads(queue: Queue, kind: str, plans: str) -> None:
    """A few rows and pages for each row that it is about, also among 12,000 others.

    Whatever the statistics were when PostgreSQL made its plans, and whether it makes them anew for
    each call, or keeps those of the time when the tables were small.
    """
    server = queue.uploads._table.server
    analyse = "ANALYZE meeting_async_uploads, procrastinate_jobs, procrastinate_events"
    connector: Any = queue.app.connector
    with psycopg.connect(queue.order.dsn, autocommit=True) as connection:
        connection.execute(
            "DELETE FROM pg_statistic WHERE starelid::regclass::text ~ '^(meeting|procrastinate)_'"
        )
        if prepare := STATISTICS[kind]:
            prepare(connection, server)
        connection.execute(analyse)
        async with connector.pool.connection() as session:
            await session.execute(f"SET plan_cache_mode = {plans}")
            counting = Counting(session)
            app: Any = SimpleNamespace(connector=counting)
            table = Table(app, server, "any")
            await reads(table, counting, NONE_RUN)
            fill(connection, server)
            if prepare is None:
                connection.execute(analyse)
            counts = await reads(table, counting, running(connection))
    assert counts["status"][0] >= OPEN  # what is read is counted
    assert too_many(counts) == {}
    assert {name for name, (_, _, found) in counts.items() if not found} == FINDS_NOTHING
    assert {name for name, text in SQL.items() if text not in counting.seen} == {
        "schema",
        "lock_schema",
        "holders",
    }
