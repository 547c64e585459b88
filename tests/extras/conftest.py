"""A database and a meeting server for tests of the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from meeting_async.procrastinate import _brake
from meeting_async.testing import MeetingServer
from support.postgres import Network, PostgresServer, network_to, postgres_running
from support.queues import WINDOW, application


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """Run one PostgreSQL for all tests."""
    with postgres_running() as server:
        yield server


@pytest.fixture(scope="module")
def template(postgres: PostgresServer) -> str:
    """Make a database with both schemas, to be copied."""
    dsn = postgres.new_database()

    async def apply() -> None:
        async with application(dsn, "http://127.0.0.1:1") as made:
            await made.app.schema_manager.apply_schema_async()
            await made.uploads.apply_schema()

    asyncio.run(apply())
    return dsn


@pytest.fixture
def dsn(postgres: PostgresServer, template: str) -> str:
    """Make a database with both schemas."""
    return postgres.new_database(like=template)


@pytest.fixture
def network(postgres: PostgresServer) -> Iterator[Network]:
    """Provide a way to the databases that can fail."""
    with network_to(postgres) as network:
        yield network


@pytest.fixture
def server() -> Iterator[MeetingServer]:
    """Run a meeting server with ten rooms."""
    server = MeetingServer(lock_seconds=WINDOW)
    for number in range(10):
        server.add_room(f"room{number}")
    with server.run():
        yield server


@pytest.fixture
def soon_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon on documents that cannot be read."""
    monkeypatch.setattr(_brake, "UNREADABLE_SECONDS", (0.1, 0.1, 0.1))
