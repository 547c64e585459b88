"""A database and a meeting server for tests of the queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from extras.queues import WINDOW, Open, Queue, queue_at
from meeting_async.testing import MeetingServer
from support.postgres import Network, PostgresServer

ROOMS = 20


@pytest.fixture
def network(postgres: PostgresServer) -> Iterator[Network]:
    """Provide a way to the databases that can fail."""
    with Network(postgres.port) as network:
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
