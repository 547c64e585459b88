"""What operators of the queue meet: open transactions, stops, wrong keys, poolers, full disks."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from extras.queues import ENDED, ENDS_WELL, LARGE, SECONDS, Queue, queue_at
from meeting_async import LockPolicy, UploadJob
from meeting_async.errors import AuthenticationFailed, JournalError
from meeting_async.procrastinate._table import TICK, Table
from meeting_async.testing import MeetingServer
from support.ports import free_port
from support.postgres import Network, PostgresServer, needs_postgres, postgres_running
from support.programs import started
from support.queue_worker import documents

pytestmark = [pytest.mark.anyio, needs_postgres]
nightly = pytest.mark.nightly


# --- the database --------------------------------------------------------------------------------


POOLER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
needs_pgbouncer = pytest.mark.skipif(POOLER is None, reason="there is no pgbouncer")
_POOLER = """
[databases]
* = host=127.0.0.1 port={port} user=tester
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listens}
auth_type = any
pool_mode = {mode}
unix_socket_dir =
"""


@contextmanager
def pooler_to(server: PostgresServer, mode: str) -> Iterator[int]:
    """Run PgBouncer with its defaults and a mode; provide its port."""
    assert POOLER
    listens = free_port()
    configuration, log = server.folder / "pgbouncer.ini", server.folder / "pgbouncer.log"
    text = _POOLER.format(port=server.port, listens=listens, mode=mode)
    configuration.write_text(text)
    configuration.chmod(0o644)  # it is read by the server's user
    process = started([POOLER, configuration], listens, log, cwd="/", user=server.user)
    try:
        yield listens
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("mode", ["session", "transaction"])
@needs_pgbouncer
async def test_behind_pgbouncer(
    dsn: str, postgres: PostgresServer, server: MeetingServer, tmp_path: Path, mode: str
) -> None:
    """PgBouncer works in session mode; otherwise it works, too, or a text says what to set."""
    with pooler_to(postgres, mode) as port:
        pooled = dsn.replace(f":{postgres.port}/", f":{port}/")
        async with queue_at(dsn, server, tmp_path) as queue:
            await queue.defer_many(40, rooms=20)
            workers = [queue.command("worker", MEETING_QUEUE_DSN=pooled) for _ in range(2)]

            def is_over() -> bool:
                return len(queue.accepted()) == 40 or workers[0].code is not None

            await queue.until(is_over, 30)
            assert mode == "transaction" or workers[0].code is None, workers[0].text
            if workers[0].code is not None:
                assert [await worker.ended(ENDED) for worker in workers] == [1, 1]
                assert all("session" in worker.text for worker in workers)
                async with queue_at(pooled, server, tmp_path) as other:
                    try:
                        async with anyio.create_task_group() as tasks:
                            for number in range(100):
                                tasks.start_soon(other.uploads.defer, "room0", f"/{number}.pdf")
                    except* JournalError as told:
                        assert "pool_mode = session" in str(told.exceptions[0])  # noqa: PT017
                return
            await queue.check(await queue.reported())
            for worker in workers:
                worker.signal(signal.SIGTERM)
            assert {await worker.ended(ENDED) for worker in workers} <= ENDS_WELL
        if mode == "session":
            (folder := tmp_path / "second").mkdir()
            async with queue_at(pooled, server, folder) as queue:
                await queue.uploads.defer("room0", "/a.pdf", batch="pooled")
                assert (await queue.uploads.report("pooled")).queued == 1


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=nightly)])
async def test_six_that_apply_the_schema(
    postgres: PostgresServer, server: MeetingServer, tmp_path: Path, rounds: int
) -> None:
    """Programs that start together all find the tables, and none fails."""
    for number in range(rounds):
        dsn = postgres.new_database()
        (folder := tmp_path / str(number)).mkdir()
        async with queue_at(dsn, server, folder) as queue:
            started = [queue.command("apply-schema") for _ in range(6)]
            codes = [await process.ended(SECONDS) for process in started]
            assert codes == [0] * 6, "\n".join(process.text for process in started)
            await queue.defer("room0")


@contextmanager
def small_disk() -> Iterator[Path]:
    """Mount a disk of 120 MiB; skip the test where that is not possible."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    command = ["mount", "-t", "tmpfs", "-o", "size=120m,mode=777", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs root, and a system where root may mount a disk in memory")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        folder.rmdir()


def fill(path: Path) -> None:
    """Write a file until there is no space left on its disk."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


@nightly
@pytest.mark.timeout(240)
async def test_a_full_disk(server: MeetingServer, tmp_path: Path) -> None:
    """A worker says so when it cannot go on; with space again everything is delivered."""
    with small_disk() as disk, postgres_running(parent=disk) as postgres:
        async with queue_at(postgres.new_database(), server, tmp_path) as queue:
            await queue.app.schema_manager.apply_schema_async()
            await queue.uploads.apply_schema()
            for room in server.rooms.values():
                room.processing_seconds = 0.2
            await queue.defer_many(400, rooms=20)
            queue.start(2)
            await queue.until(lambda: len(queue.accepted()) >= 20)
            fill(disk / "full")
            workers = [*queue.workers]
            await queue.until(lambda: all("space" in worker.text for worker in workers))
            (disk / "full").unlink()
            if postgres.process is None or postgres.process.poll() is not None:
                postgres.start()
            await queue.check(await queue.reported(seconds=120), unknown=64)
            await queue.stop()
    assert not any("a connection of the worker was lost" in worker.text for worker in workers)


async def test_a_function_of_procrastinate_is_missing(queue: Queue) -> None:
    """The worker ends and names it: to apply this package's schema would not help."""
    rename = "ALTER FUNCTION {} RENAME TO {}"
    name = "procrastinate_fetch_job_v2"
    with psycopg.connect(queue.order.dsn, autocommit=True) as connection:
        connection.execute(rename.format(name, "gone"))
        try:
            await queue.defer("room0")
            code, text = await queue.run("worker")
        finally:
            connection.execute(rename.format("gone", name))
    assert code == 1
    assert name in text
    assert "apply-schema" not in text


# --- a wrong key ---------------------------------------------------------------------------------


async def test_a_wrong_key(queue: Queue) -> None:
    """The worker ends and says which setting to fix; nothing was taken, and nothing put back."""
    await queue.defer_many(20, rooms=20)
    code, text = await queue.run("worker", MEETING_API_SECRET="wrong")
    assert code == 1
    assert "HTTP 401" in text
    assert "MEETING_API_SECRET" in text.splitlines()[-1]
    status = await queue.uploads.status()
    assert (status.waiting, status.running) == (20, 0)
    assert not any("401" in cause for cause in status.causes)
    jobs = await queue.app.job_manager.list_jobs_async()
    assert [(job.status, job.attempts) for job in jobs] == [("todo", 0)] * 20
    assert not any(one.path.endswith("uploadWhiteboardFile") for one in queue.server.requests)
    queue.start()
    await queue.check(await queue.reported())


async def test_a_key_that_becomes_wrong(queue: Queue) -> None:
    """The worker ends, and raises why; what it was sending is put back."""
    queue.server.refuse_next("INVALID_TOKEN_OR_SIGNATURE", path="/room/uploadWhiteboardFile")
    await queue.defer("room0")
    app, client, uploads = queue.order.open()
    async with app.open_async(), client:
        with pytest.raises(AuthenticationFailed):
            await uploads.run_worker(signals=False)
    status = await queue.uploads.status()
    assert (status.waiting, status.running) == (1, 0)
    await queue.delivered()


async def test_a_setting_that_cannot_be_used(queue: Queue) -> None:
    """The worker ends and names it, before any upload."""
    settings = {"MEETING_BASE_URL": "https://meet.invalid", "HTTPS_PROXY": "socks5://127.0.0.1:1"}
    code, text = await queue.run("worker", **settings)
    assert code == 2
    assert "HTTPS_PROXY" in text


# --- clocks --------------------------------------------------------------------------------------


@nightly
@pytest.mark.parametrize("jump", [signal.SIGUSR2, signal.SIGUSR1], ids=["back", "forth"])
async def test_a_clock_that_jumps(queue: Queue, jump: signal.Signals) -> None:
    """Its worker goes on with what is due, and with what a dead worker has left."""
    queue.server.lock_seconds = queue.server.rooms["room1"].processing_seconds = 60
    await queue.defer("room1")
    first = queue.start()
    await queue.until(lambda: queue.accepted("room1"))
    second = queue.start()
    queue.workers.remove(first)
    first.kill()
    await queue.defer("room3")
    await queue.until(lambda: queue.accepted("room3"))
    second.signal(jump)
    await queue.defer("room4", schedule_at=datetime.now(UTC) + timedelta(seconds=2))
    report = await queue.reported(seconds=25)
    assert [one.status for one in report.outcomes] == ["unknown", "accepted", "accepted"]
    assert await queue.stop() == [0]


# --- words ---------------------------------------------------------------------------------------


@nightly
async def test_one_reason_is_told_once(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """``queue report`` groups 100 documents whose room was busy as ``batch`` does."""
    for number in range(20, 100):
        server.add_room(f"room{number}")
    for room in server.rooms.values():
        room.lock(300)
    policy = LockPolicy(max_wait=0.1)
    async with queue_at(dsn, server, tmp_path, lock=policy) as queue:
        await queue.uploads.defer_many(queue.jobs(100, rooms=100), batch="term")
        async with queue.working():
            await queue.reported("term")
        code, text = await queue.run("report", "term")
        manifest = tmp_path / "term.csv"
        lines = [f"{room},{name}" for name, (room, _) in queue.documents.items()]
        manifest.write_text("\n".join(["room_id,document", *lines]))
        own = queue.process(
            ("batch", str(manifest), "--max-wait", "0.1"),
            MEETING_BASE_URL=server.url,
            MEETING_API_KEY="devkey",
            MEETING_API_SECRET="devsecret",
        )
        assert await own.ended(SECONDS) == code
    (mine,) = [line for line in text.splitlines() if "100 documents" in line and "busy" in line]
    assert mine.partition(" (")[0] in own.text


async def test_what_is_queued_again_is_not_dropped(queue: Queue) -> None:
    """Not by a ``drop`` that waits meanwhile for another program's ``retry``."""
    await queue.defer("room0")
    assert await queue.uploads.cancel("default") == 1
    dropped = list[int]()

    async def drop() -> None:
        dropped.append(await queue.uploads.drop("default"))

    waits = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    async with (
        await psycopg.AsyncConnection.connect(queue.order.dsn) as other,
        await psycopg.AsyncConnection.connect(queue.order.dsn, autocommit=True) as watching,
        anyio.create_task_group() as tasks,
    ):
        await other.execute("UPDATE meeting_async_uploads SET state = 'ready'")
        tasks.start_soon(drop)
        with anyio.fail_after(SECONDS):
            while not (  # noqa: ASYNC110 - the database changes it
                await (await watching.execute(waits)).fetchall()
            )[0][0]:
                await anyio.sleep(0.01)
        await other.commit()
    assert dropped == [0]
    assert (await queue.uploads.report("default")).queued == 1


# --- what lost workers leave ---------------------------------------------------------------------

LEFT_TICKS = """INSERT INTO procrastinate_jobs (
        queue_name, task_name, lock, queueing_lock, args, status, worker_id, scheduled_at
    )
    SELECT %(queue)s, %(task)s, CASE WHEN NOT %(is_freed)s THEN name END, name,
        jsonb_build_object('server', %(server)s::text, 'room_id', 'room' || n), 'doing',
        CASE WHEN NOT %(is_freed)s THEN %(workers)s - n %% %(workers)s END,
        CASE WHEN %(is_freed)s THEN now() - interval '2 hours' END
    FROM generate_series(0, %(count)s - 1) AS n, concat(%(server)s::text, ' room', n) AS name"""
SINCE_AN_HOUR = """INSERT INTO procrastinate_events (job_id, type, at)
    SELECT id, 'started', now() - interval '1 hour' FROM procrastinate_jobs"""
LEFT_UPLOADS = """INSERT INTO meeting_async_uploads (
        server, batch, identity, room_id, kind, source, state, run, started_at, beat_at, due_at
    )
    SELECT %(server)s, 'left', n, 'room' || n, 'path', '/a.pdf',
        CASE n %% 2 WHEN 0 THEN 'sent' ELSE 'ready' END, 1, now(), now() - interval '1 hour',
        now() - interval '30 minutes'
    FROM generate_series(0, %(count)s - 1) AS n"""
EMPTY = """TRUNCATE meeting_async_uploads, procrastinate_jobs, procrastinate_workers
    RESTART IDENTITY CASCADE"""
TICKS = "SELECT status, lock IS NULL, count(*) FROM procrastinate_jobs GROUP BY 1, 2"
FREE = "SELECT args ->> 'room_id' FROM procrastinate_jobs WHERE lock IS NULL ORDER BY id"


def leave_ticks(
    connection: psycopg.Connection[Any],
    queue: Queue,
    count: int,
    *,
    workers: int = 1,
    is_freed: bool = False,
) -> dict[str, object]:
    """Leave ticks of lost workers, freed or not; return what describes them."""
    found = {
        "queue": queue.uploads.queue,
        "server": queue.uploads._table.server,
        "task": TICK,
        "count": count,
        "workers": workers,
        "is_freed": is_freed,
    }
    connection.execute(
        "INSERT INTO procrastinate_workers (last_heartbeat)"
        " SELECT now() - interval '1 hour' FROM generate_series(1, %(workers)s)",
        found,
    )
    connection.execute(LEFT_TICKS, found)
    connection.execute(SINCE_AN_HOUR)
    return found


@pytest.mark.parametrize("is_freed", [False, True], ids=["freed", "deleted"])
async def test_recovery_waits_for_nobody(queue: Queue, *, is_freed: bool) -> None:
    """Ticks of a lost worker are freed, and later deleted; a locked one by the next recovery.

    A worker that begins has them locked for a moment, one after the other. It would wait for
    recovery, and recovery for it.
    """
    recover = partial(queue.uploads._table.recover, stalled_after=30, resends=False)
    begins = "UPDATE procrastinate_jobs SET worker_id = NULL WHERE args ->> 'room_id' = %s"
    with (
        psycopg.connect(queue.order.dsn, autocommit=True) as connection,
        psycopg.connect(queue.order.dsn) as beginning,
    ):
        leave_ticks(connection, queue, 3, is_freed=is_freed)
        beginning.execute(begins, ["room1"])
        await recover()
        found = connection.execute(FREE).fetchall()
        assert found == ([("room1",)] if is_freed else [("room0",), ("room2",)])
        for room_id in ("room0", "room2"):
            beginning.execute(begins, [room_id])
        beginning.commit()
        await recover()
        assert len(connection.execute(FREE).fetchall()) == (0 if is_freed else 3)


LOCKS = {
    "at once": "LOCK TABLE procrastinate_jobs IN EXCLUSIVE MODE",
    "half done": "SELECT FROM procrastinate_jobs WHERE args ->> 'room_id' = 'room509' FOR UPDATE",
}
"""What holds up all others until all have begun."""


@nightly
@pytest.mark.parametrize("lock", LOCKS)
async def test_recovery_beside_workers_that_begin(queue: Queue, lock: str) -> None:
    """1,000 ticks of 20 lost workers are freed, whoever else recovers, and whichever workers begin.

    No statement ends as the victim of a deadlock. Each upload is told once, and each room that has
    work is ticked once.
    """
    count, waits = 1000, "SELECT count(*) FROM pg_locks WHERE NOT granted"
    async with AsyncExitStack() as stack:
        opened = [queue.order.open() for _ in range(3)]
        for app, client, uploads in opened:
            await stack.enter_async_context(app.open_async())
            await stack.enter_async_context(client)
            await uploads._table.check()
        connection = stack.enter_context(psycopg.connect(queue.order.dsn, autocommit=True))
        for _ in range(4):
            connection.execute(EMPTY)
            facts = leave_ticks(connection, queue, count, workers=20)
            connection.execute(LEFT_UPLOADS, facts)
            told, ended = list[int](), list[None]()

            async def recover(
                table: Table, told: list[int] = told, ended: list[None] = ended
            ) -> None:
                told += await table.recover(stalled_after=30, resends=False)
                ended.append(None)

            async with anyio.create_task_group() as tasks:
                with psycopg.connect(queue.order.dsn) as starter:
                    starter.execute(LOCKS[lock].encode())
                    for app, _, _ in opened[:2]:
                        tasks.start_soon(app.job_manager.prune_stalled_workers, 30)
                    for _, _, uploads in opened:
                        tasks.start_soon(recover, uploads._table)
                    with anyio.fail_after(SECONDS):
                        while (  # noqa: ASYNC110 - the database changes it
                            connection.execute(waits).fetchall()[0][0] + len(ended) < 5
                        ):
                            await anyio.sleep(0.01)
            await recover(queue.uploads._table)
            assert sorted(told) == [*range(1, count + 1)]
            assert set(connection.execute(TICKS).fetchall()) == {
                ("doing", True, count),
                ("todo", False, count // 2),
            }


# --- many ----------------------------------------------------------------------------------------


async def rows_read(queue: Queue) -> int:
    """Count what the database has read from tables so far."""
    await anyio.sleep(1.5)  # until the sessions have told
    async with await psycopg.AsyncConnection.connect(queue.order.dsn) as connection:
        sums = "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_user_tables"
        return int((await (await connection.execute(sums)).fetchall())[0][0])


@nightly
@pytest.mark.timeout(300)
async def test_a_long_queue_of_one_room(queue: Queue) -> None:
    """50,000 documents of one room slow nobody down who defers, or is sent, to other rooms.

    For none of their documents does the database read through the queue. Rows and not seconds
    count, as other tests run beside this one.
    """
    path, waiting = queue.document(), 50_000
    for number in range(100):
        queue.server.add_room(f"other{number}")
    queue.server.rooms["room0"].processing_seconds = 0.5
    queue.start(2, concurrency=16)
    many = (UploadJob("room0", path, filename=f"{at:05}.pdf") for at in range(waiting))
    assert await queue.uploads.defer_many(many, batch="long") == waiting
    await queue.until(lambda: len(queue.accepted("room0")) > 2)
    for batch in range(3):
        before = await rows_read(queue)
        jobs = [UploadJob(f"other{number % 100}", path, key=str(number)) for number in range(300)]
        await queue.uploads.defer_many(jobs, batch=f"{batch}")
        assert (await queue.reported(f"{batch}")).accepted == 300
        assert await rows_read(queue) - before < 100 * waiting  # not once for each document
    names = queue.accepted("room0")
    assert names == [f"{number:05}.pdf" for number in range(len(names))]
    assert await queue.stop() == [0, 0]


@nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("chunk", [1000, 200])
async def test_a_queue_of_many_rooms(queue: Queue, chunk: int) -> None:
    """Nor for each document through all rooms, after the database has analysed quiet tables.

    It does that by itself.
    """
    path, rooms = queue.document(), 1000
    for number in range(rooms):
        queue.server.add_room(f"many{number}")
    queue.start(concurrency=16)
    await queue.defer_many(60, rooms=20)
    await queue.reported()
    async with await psycopg.AsyncConnection.connect(queue.order.dsn) as connection:
        await connection.execute("ANALYZE procrastinate_jobs, meeting_async_uploads")
    before = await rows_read(queue)
    for first in range(0, rooms, chunk):
        jobs = (UploadJob(f"many{number}", path) for number in range(first, first + chunk))
        await queue.uploads.defer_many(jobs, batch="many")
    await queue.until(lambda: len(queue.accepted()) == 60 + rooms, 250)
    assert await rows_read(queue) - before < rooms * rooms / 2


# --- the end of a worker -------------------------------------------------------------------------


async def test_a_worker_that_does_not_wait(queue: Queue) -> None:
    """It ends when the queue is empty, and that is no error."""
    await queue.defer_many(5, rooms=5)
    worker = queue.start(wait=False)
    assert await worker.ended(SECONDS) == 0
    assert "does not end" not in worker.text
    await queue.check(await queue.uploads.report("default"))
    assert [*await queue.app.job_manager.list_jobs_async()] == []  # nothing piles up


async def test_the_grace_of_a_worker(queue: Queue) -> None:
    """Then a complete document is unknown, and another one is put back and sent again."""
    server = queue.server
    server.lock_seconds = server.rooms["room0"].processing_seconds = 60
    server.stall_next_upload(after=200_000)
    await queue.defer("room0", size=LARGE)
    await queue.defer("room1", size=16 * 1024**2)
    queue.start(grace=0.5)
    await queue.until(lambda: queue.accepted() and queue.sent("room1", 200_000))
    assert await queue.stop() == [0]
    async with queue.working():
        report = await queue.reported()
    assert [outcome.status for outcome in report.outcomes] == ["unknown", "accepted"]
    assert queue.accepted() == ["0000.pdf", "0001.pdf"]


async def test_a_worker_in_a_scope_that_is_cancelled(queue: Queue) -> None:
    """Its uploads have their grace, what is not complete then is put back, and no task is left.

    There is one at a time, and another one can follow.
    """
    queue.server.rooms["room0"].processing_seconds = 0.5
    queue.server.stall_next_upload(after=200_000)
    await queue.defer("room1", size=16 * 1024**2)
    app, client, uploads = queue.order.open()
    async with app.open_async(), client:
        before = asyncio.all_tasks()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(uploads.run_worker, signals=False, grace=1))
                await queue.until(lambda: queue.sent("room1", 200_000))
                with pytest.raises(RuntimeError, match="already"):
                    await uploads.run_worker(signals=False)
                await queue.defer("room0")
                await queue.until(queue.accepted)
                scope.cancel()
        await anyio.sleep(0.1)
        left = {task.get_name() for task in asyncio.all_tasks() - before}
        assert not left & {"worker", "beats", "end"}
        status, report = await queue.uploads.status(), await queue.uploads.report("default")
        assert (status.running, status.waiting, report.accepted) == (0, 1, 1)
        await uploads.run_worker(signals=False, wait=False)
    assert (await queue.uploads.report("default")).accepted == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("grace", [0.2, 600])
async def test_a_documents_function_that_hangs(
    dsn: str, server: MeetingServer, tmp_path: Path, grace: float, number: signal.Signals
) -> None:
    """A worker ends after its grace, or at a second signal; its upload is put back."""
    async with queue_at(dsn, server, tmp_path, documents=documents) as queue:
        await queue.uploads.defer("room0", "hangs")
        await queue.uploads.defer("room1", str(queue.document("room1")))
        worker = queue.start(grace=grace)
        await queue.until(queue.accepted)
        worker.signal(number)
        if grace > 1:
            await anyio.sleep(1)
            assert worker.code is None
            worker.signal(number)
        assert await worker.ended(ENDED) == (0 if grace < 1 else worker.code)
        assert "unhandled exception" not in worker.text
        status = await queue.uploads.status()
        assert (status.waiting + status.running, status.rooms[0].room_id) == (1, "room0")


@nightly
@pytest.mark.timeout(240)
@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "uploading"])
@pytest.mark.parametrize("how", ["frozen", "gone"])
async def test_a_worker_without_its_database(
    queue: Queue, network: Network, how: str, *, is_idle: bool
) -> None:
    """It ends with 1, so that it is started again, and says why; amid an upload it warns first."""
    room = queue.server.rooms["room0"]
    queue.server.lock_seconds, room.processing_seconds = 100, 0.0 if is_idle else 50.0
    await queue.defer("room0")
    worker = queue.command("worker", MEETING_QUEUE_DSN=network.address(queue.order.dsn))
    await queue.until(queue.accepted)
    if is_idle:
        await queue.reported()
    network.freeze() if how == "frozen" else network.close()
    if is_idle:
        assert await worker.ended(90) == 1
        assert worker.text.splitlines()[-1].startswith("meeting-async: error: the queue's ")
    else:  # then it ends after five minutes
        await queue.until(lambda: "ends after its uploads" in worker.text, 90)
    worker.kill()
    assert len(queue.accepted()) == 1
