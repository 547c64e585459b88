"""Workers of a queue that are told to stop: they end, and what they have not sent stays queued."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import procrastinate
import pytest
from psycopg.conninfo import conninfo_to_dict

from meeting_async import Document, MeetingClient
from meeting_async.errors import AuthenticationFailed, ConfigurationError, JournalError
from meeting_async.procrastinate import WhiteboardUploads, _runner, _table, connector
from meeting_async.testing import MeetingServer
from support.postgres import Network, PostgresServer, needs_postgres
from support.queue_worker import read_log
from support.queues import (
    KEYS,
    Application,
    application,
    names_in,
    pdf,
    queue_may_complain,
    until,
    working,
)

pytestmark = needs_postgres

TESTS = Path(__file__).parent.parent
ENDED = 30.0
"""Longest time in seconds for a worker that is told to stop while little is on its way."""


def start_worker(dsn: str, url: str, log: Path) -> subprocess.Popen[bytes]:
    """Start a worker in a process of its own, with the defaults of a worker."""
    order = json.dumps({"dsn": dsn, "url": url, "log": str(log)})
    command = [sys.executable, "-m", "support.queue_worker", order]
    return subprocess.Popen(command, cwd=TESTS, stderr=subprocess.DEVNULL)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("rounds", "workers"), [(1, 3), pytest.param(4, 8, marks=pytest.mark.nightly)]
)
def test_a_worker_ends_while_documents_are_deferred(
    tmp_path: Path, postgres: PostgresServer, rounds: int, workers: int
) -> None:
    """SIGTERM ends each worker with exit code 0, while its listener hears of new documents."""
    server, dice = MeetingServer(), random.Random()
    for number in range(50):
        server.add_room(f"room{number}")
    dsn, path = postgres.new_database(), tmp_path / "a.pdf"
    path.write_bytes(b"%PDF-1.7\n")

    async def run() -> None:
        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn))
        client = MeetingClient(server.url, api_key="devkey", api_secret="devsecret")
        async with app.open_async(), client:
            uploads = WhiteboardUploads(app, client=client)
            await app.schema_manager.apply_schema_async()
            await uploads.apply_schema()
            stop = asyncio.Event()

            async def defer() -> None:
                while not stop.is_set():
                    await uploads.defer(f"room{dice.randrange(50)}", path)

            deferring = [asyncio.create_task(defer()) for _ in range(3)]
            try:
                for number in range(rounds):
                    await asyncio.to_thread(one_round, number)
            finally:
                stop.set()
                await asyncio.gather(*deferring)

    def one_round(number: int) -> None:
        logs = [tmp_path / f"{number}-{at}.log" for at in range(workers)]
        started = [start_worker(dsn, server.url, log) for log in logs]
        try:
            until = time.monotonic() + 60
            while not all(read_log(log).begun for log in logs):
                assert time.monotonic() < until, "a worker does not begin"
                time.sleep(0.05)
            for process in started:
                time.sleep(dice.uniform(0, 0.1))
                process.send_signal(signal.SIGTERM)
            assert [process.wait(ENDED) for process in started] == [0] * workers
        finally:
            for process in started:
                process.kill()
                process.wait()

    with server.run():
        asyncio.run(run())


# --- run_worker ----------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time after which a database counts as gone."""
    monkeypatch.setattr(_runner, "WATCH_SECONDS", 0.2)
    monkeypatch.setattr(_runner, "ENDING_SECONDS", 1.0)
    monkeypatch.setattr(_table, "EXCHANGE_SECONDS", 0.5)


@asynccontextmanager
async def running(made: Application, **options: object) -> AsyncIterator[asyncio.Task[None]]:
    """Run a worker as a program does."""
    how: dict[str, object] = {"grace": 5.0, "signals": False, "fetch_job_polling_interval": 0.05}
    worker = asyncio.create_task(made.uploads.run_worker(**{**how, **options}))  # type: ignore[arg-type]
    try:
        yield worker
    finally:
        worker.cancel()
        await asyncio.wait([worker], timeout=ENDED)
        assert worker.done(), "the worker does not end"


@pytest.mark.anyio
async def test_a_worker_ends_while_a_function_hangs(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """After its grace it ends; the upload is put back, and another worker delivers it."""
    hangs, path = asyncio.Event(), pdf(tmp_path)

    async def never(_reference: str) -> Document:
        hangs.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with application(dsn, server.url, documents=never) as made:
        await made.uploads.defer("room0", "a")
        async with running(made, grace=0.2) as worker:
            await hangs.wait()
            worker.cancel()
            with anyio.fail_after(ENDED), suppress(asyncio.CancelledError):
                await worker
    async with (
        application(dsn, server.url, documents=lambda _: Document.from_path(path)) as other,
        working(other),
    ):
        assert (await other.finished()).accepted == 1
    assert names_in(server.rooms["room0"]) == ["000.pdf"]


@pytest.mark.nightly
@pytest.mark.anyio
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "uploading"])
@pytest.mark.parametrize("how", ["frozen", "gone"])
async def test_a_worker_without_its_database_ends(
    dsn: str,
    server: MeetingServer,
    network: Network,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    how: str,
    is_idle: bool,
) -> None:
    """It raises, so that a service manager starts it again; amid an upload it first says so."""
    server.lock_seconds, server.rooms["room0"].processing_seconds = 30, 0.0 if is_idle else 8.0
    async with application(dsn, server.url) as other:
        await other.uploads.defer("room0", pdf(tmp_path))
    app = procrastinate.App(connector=connector(network.address(dsn)))
    client = MeetingClient(server.url, **KEYS)
    asyncio.get_running_loop().set_exception_handler(queue_may_complain)
    async with client:
        uploads = WhiteboardUploads(app, client=client)
        await app.open_async()
        try:
            async with running(Application(app, uploads)) as worker:
                await until(lambda: bool(server.rooms["room0"].accepted))
                network.freeze() if how == "frozen" else network.close()
                with anyio.fail_after(ENDED), pytest.raises(JournalError):
                    await worker
        finally:
            network.thaw()
            with suppress(Exception):
                await app.close_async()
    assert len(server.rooms["room0"].accepted) == 1
    assert is_idle or "the worker ends after its uploads (1 now)" in caplog.text


@pytest.mark.anyio
async def test_a_worker_with_a_wrong_key_raises(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """It says which; its upload stays queued."""
    async with application(dsn, server.url, **{**KEYS, "api_secret": "wrong"}) as made:
        await made.uploads.defer("room0", pdf(tmp_path))
        async with running(made) as worker:
            with anyio.fail_after(ENDED), pytest.raises(AuthenticationFailed):
                await worker
        assert (await made.uploads.report("default")).queued == 1


@pytest.mark.anyio
async def test_a_table_of_another_version(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """Whatever uses it says so at once, with the command to run."""
    async with application(dsn, server.url) as made:
        await made.app.connector.execute_query_async(
            "COMMENT ON TABLE meeting_async_uploads IS 'meeting-async, version 1'"
        )
    async with application(dsn, server.url) as made:
        for call in (
            made.uploads.run_worker(signals=False),
            made.uploads.defer("room0", pdf(tmp_path)),
            made.uploads.report("default"),
            made.uploads.drop("default"),
        ):
            with pytest.raises(JournalError, match=r"version 1: stop all workers, run `.*apply-s"):
                await call


@pytest.mark.anyio
async def test_a_worker_that_does_not_wait(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """It ends when the queue is empty, and that is no error."""
    async with application(dsn, server.url) as made:
        for number in range(3):
            await made.uploads.defer(f"room{number}", pdf(tmp_path, number))
        with anyio.fail_after(ENDED):
            await made.uploads.run_worker(signals=False, wait=False)
        assert (await made.uploads.report("default")).accepted == 3


def test_an_address_that_cannot_be_used() -> None:
    """The error names the field, and shows no part of a password."""
    with pytest.raises(ConfigurationError) as caught:
        connector("postgresql://user:s3cr3t@host:5432/database?no_such_setting=s3cr3t")
    assert caught.value.field == "dsn"
    assert "s3cr3t" not in str(caught.value)


def test_options_in_an_address() -> None:
    """They are added to those by which the database notices that a worker is gone."""
    made = connector("postgresql://host/database?options=-csearch_path%3Dsecond")
    options = conninfo_to_dict(made._pool_args["conninfo"])["options"]
    assert str(options).startswith("-c idle_in_transaction_session_timeout=30s -c tcp_keepalives")
    assert str(options).endswith(" -csearch_path=second")
