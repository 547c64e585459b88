"""Uploads of a queue that the server has accepted: they stay so, whatever their locks do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import procrastinate
import pytest

from meeting_async import MeetingClient
from meeting_async.procrastinate import QueueReport, WhiteboardUploads
from meeting_async.testing import MeetingServer
from support.leaving_locks import LeavingLocks
from support.postgres import PostgresServer, needs_postgres, postgres_running

pytestmark = [pytest.mark.anyio, needs_postgres, pytest.mark.nightly]

MARGIN = 3.0
"""Seconds for a worker that looks for its work now and then, and for a database."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """Run a PostgreSQL."""
    with postgres_running() as server:
        yield server


@asynccontextmanager
async def uploads_of(
    dsn: str, url: str, leave: Callable[[], Awaitable[object]]
) -> AsyncIterator[tuple[procrastinate.App, WhiteboardUploads]]:
    """Open an application whose room locks await a function when they are released."""
    locks: Any = LeavingLocks(leave)
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn))
    client = MeetingClient(url, api_key="devkey", api_secret="devsecret", room_locks=locks)
    async with app.open_async(), client:
        yield app, WhiteboardUploads(app, client=client, stalled_after=3)


@asynccontextmanager
async def working(
    app: procrastinate.App, uploads: WhiteboardUploads, **options: Any
) -> AsyncIterator[None]:
    """Run a worker; at the end it is stopped, and stops."""
    worker = asyncio.create_task(
        app.run_worker_async(
            queues=[uploads.queue],
            fetch_job_polling_interval=0.05,
            listen_notify=False,
            install_signal_handlers=False,
            update_heartbeat_interval=0.5,
            **options,
        )
    )
    try:
        yield
    finally:
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker


async def ended(uploads: WhiteboardUploads, seconds: float) -> QueueReport:
    """Wait until every upload has an outcome."""
    with anyio.fail_after(seconds):
        while True:
            report = await uploads.report("default")
            if not report.queued:
                return report
            await anyio.sleep(0.05)


@pytest.fixture
def server() -> Iterator[MeetingServer]:
    """Run a meeting server."""
    server = MeetingServer()
    server.add_room("room01")
    with server.run():
        yield server


async def test_a_lock_that_is_never_released(
    postgres: PostgresServer, server: MeetingServer, tmp_path: Path
) -> None:
    """Its upload is accepted at the latest 3 s later, and a worker that is stopped amid it stops.

    The lock is released after ages, so that a test that fails ends.
    """
    dsn = postgres.new_database()
    (tmp_path / "deck.pdf").write_bytes(b"%PDF-1.7\n")
    is_leaving = asyncio.Event()

    async def leave() -> None:
        is_leaving.set()
        await asyncio.sleep(12)

    async with uploads_of(dsn, server.url, leave) as (app, uploads):
        await app.schema_manager.apply_schema_async()
        await uploads.apply_schema()
        await uploads.defer("room01", tmp_path / "deck.pdf")
        async with working(app, uploads):
            await asyncio.wait_for(is_leaving.wait(), 20)
            started = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - started < 3 + MARGIN
        report = await uploads.report("default")
        assert (report.accepted, report.total) == (1, 1)

        is_leaving.clear()
        await uploads.defer("room01", tmp_path / "deck.pdf")
        async with working(app, uploads):
            await asyncio.wait_for(is_leaving.wait(), 20)
            report = await ended(uploads, 3 + MARGIN)
        assert (report.accepted, report.total) == (2, 2)
    assert len(server.rooms["room01"].received) == 2


async def test_a_worker_that_cancels_its_jobs_at_once(
    postgres: PostgresServer, server: MeetingServer, tmp_path: Path
) -> None:
    """An upload that the server had accepted by then is not sent again by the next worker."""
    dsn = postgres.new_database()
    (tmp_path / "deck.pdf").write_bytes(b"%PDF-1.7\n")
    is_leaving = asyncio.Event()

    async def leave() -> None:
        is_leaving.set()
        await asyncio.sleep(12)

    async with uploads_of(dsn, server.url, leave) as (app, uploads):
        await app.schema_manager.apply_schema_async()
        await uploads.apply_schema()
        await uploads.defer("room01", tmp_path / "deck.pdf")
        async with working(app, uploads, shutdown_graceful_timeout=0):
            await asyncio.wait_for(is_leaving.wait(), 20)
        async with working(app, uploads):
            report = await ended(uploads, 3 + MARGIN)
    assert (report.accepted, report.total) == (1, 1)
    assert len(server.rooms["room01"].received) == 1
