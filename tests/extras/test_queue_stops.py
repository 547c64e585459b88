"""Workers of a queue that are told to stop: they end, and what they have not sent stays queued."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import procrastinate
import pytest

from meeting_async import MeetingClient
from meeting_async.procrastinate import WhiteboardUploads
from meeting_async.testing import MeetingServer
from support.postgres import PostgresServer, needs_postgres, postgres_running
from support.queue_worker import read_log

pytestmark = needs_postgres

TESTS = Path(__file__).parent.parent
ENDED = 30.0
"""Longest time in seconds for a worker that is told to stop while little is on its way."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """Run one PostgreSQL for all tests."""
    with postgres_running() as server:
        yield server


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
