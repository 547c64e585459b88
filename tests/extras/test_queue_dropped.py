"""Workers of a queue whose packets to the database are dropped: nobody resets, nobody answers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import psycopg
import pytest

from meeting_async.testing import MeetingServer
from support.command_line import PROGRAM
from support.namespaces import DATABASE, SERVER, Namespace, namespace
from support.postgres import needs_postgres, postgres_running
from support.queues import (
    WINDOW,
    Application,
    application,
    names_in,
    pdf,
    until,
    uploads_to,
    working,
)

pytestmark = [needs_postgres, pytest.mark.nightly, pytest.mark.timeout(300)]

ENDED = 60.0
"""Longest time in seconds for a worker that sends nothing; measured: 37, or 18 after SIGTERM."""
ENDED_SENDING = 120.0
"""The same for one whose upload goes no further (``Timeouts.send_stall``: 30); measured: 71."""


@pytest.fixture
def link() -> Iterator[Namespace]:
    """Provide a network namespace for a worker."""
    with namespace() as made:
        yield made


@pytest.fixture
def server(link: Namespace) -> Iterator[MeetingServer]:
    """Run a meeting server that a worker always reaches."""
    server = MeetingServer(lock_seconds=WINDOW)
    for number in range(2):
        server.add_room(f"room{number}")
    with server.run(link.address(SERVER)):
        yield server


@pytest.fixture
def dsn(link: Namespace) -> Iterator[str]:
    """Make a database; the address is that for this side."""
    with postgres_running(link.address(DATABASE)) as postgres:
        yield postgres.new_database()


@contextmanager
def worker(
    link: Namespace, dsn: str, server: MeetingServer, errors: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker in the namespace, as an operator does; its errors go to a file."""
    environment = {
        **os.environ,
        "MEETING_BASE_URL": server.url,
        "MEETING_API_KEY": "devkey",
        "MEETING_API_SECRET": "devsecret",
        "MEETING_ALLOW_PLAINTEXT": "1",
        "MEETING_QUEUE_DSN": dsn.replace("127.0.0.1", link.address(DATABASE)),
    }
    command = link.command(*PROGRAM, "queue", "worker")
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=stderr
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def has_sessions(dsn: str) -> bool:
    """Return whether the database keeps a session of the worker."""
    query = "SELECT FROM pg_stat_activity WHERE client_addr <> '127.0.0.1'"
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchone() is not None


@asynccontextmanager
async def after_a_document(
    link: Namespace, dsn: str, server: MeetingServer, folder: Path
) -> AsyncIterator[tuple[Application, subprocess.Popen[bytes]]]:
    """Open an application, and run a worker that has delivered a document."""
    async with application(dsn, server.url, allow_plaintext=True) as made:
        await made.app.schema_manager.apply_schema_async()
        await made.uploads.apply_schema()
        await made.uploads.defer("room0", pdf(folder))
        with worker(link, dsn, server, folder / "errors") as process:
            await until(lambda: bool(server.rooms["room0"].accepted))
            await made.finished()
            yield made, process


async def ended(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait for the end of a worker, and return its exit code."""
    await until(lambda: process.poll() is not None, seconds)
    return process.returncode


@pytest.mark.anyio
async def test_an_idle_worker_ends_with_its_sessions(
    link: Namespace, dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """It says why. The database frees its connections, or restarts would use up all of them."""
    async with after_a_document(link, dsn, server, tmp_path) as (_, process):
        assert has_sessions(dsn)
        link.drop()
        assert await ended(process, ENDED) == 1
        assert "the queue's database" in (tmp_path / "errors").read_text()
        with anyio.fail_after(ENDED):
            while has_sessions(dsn):  # noqa: ASYNC110 - the database changes it
                await anyio.sleep(1)


@pytest.mark.anyio
async def test_another_worker_sends_what_was_on_its_way(
    link: Namespace, dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """The first one ends when its upload has; the document arrives once."""
    async with after_a_document(link, dsn, server, tmp_path) as (made, process):
        server.stall_next_upload(after=1_000_000)
        await made.uploads.defer("room1", pdf(tmp_path, 1, 16 * 1024**2))
        await until(lambda: uploads_to(server, "room1", 1_000_000) == 1)
        link.drop()
        async with working(made):
            assert (await made.finished()).accepted == 2
            assert await ended(process, ENDED_SENDING) == 1
        assert names_in(server.rooms["room1"]) == ["001.pdf"]


@pytest.mark.anyio
async def test_a_worker_that_is_told_to_stop(
    link: Namespace, dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """It ends although it cannot say so to its database, and with exit code 0."""
    async with after_a_document(link, dsn, server, tmp_path) as (_, process):
        link.drop()
        process.send_signal(signal.SIGTERM)
        assert await ended(process, ENDED) == 0


@pytest.mark.anyio
async def test_a_short_interruption(
    link: Namespace, dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """After ten seconds without packets the same worker goes on."""
    async with after_a_document(link, dsn, server, tmp_path) as (made, process):
        link.drop()
        await anyio.sleep(10)
        link.restore()
        await made.uploads.defer("room1", pdf(tmp_path, 1))
        assert (await made.finished()).accepted == 2
        await anyio.sleep(15)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert await ended(process, ENDED) == 0
