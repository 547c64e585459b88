"""A database and a meeting server for tests of the queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from meeting_async.testing import MeetingServer
from support.postgres import Network, PostgresServer, network_to
from support.queue_worker import Order
from support.queues import WINDOW, Open, Queue, queue_at

ROOMS = 20


@pytest.fixture(scope="session")
def template(postgres_of_session: PostgresServer) -> str:
    """Make a database with both schemas, to be copied."""
    dsn = postgres_of_session.new_database()

    async def apply() -> None:
        app, client, uploads = Order(dsn=dsn, url="http://127.0.0.1:1").open()
        async with app.open_async(), client:
            await app.schema_manager.apply_schema_async()
            await uploads.apply_schema()

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
    """Run a meeting server with 20 rooms."""
    server = MeetingServer(lock_seconds=WINDOW, mixes_up_rooms=True)
    for number in range(ROOMS):
        server.add_room(f"room{number}")
    with server.run():
        yield server


@pytest.fixture
def open_queue(dsn: str, server: MeetingServer, tmp_path: Path) -> Open:
    """Provide what opens an application of a queue; no worker runs yet."""
    return partial(queue_at, dsn, server, tmp_path)


@pytest.fixture
async def queue(open_queue: Open) -> AsyncIterator[Queue]:
    """Open one."""
    async with open_queue() as queue:
        yield queue
