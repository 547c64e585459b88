"""A meeting server, and worlds for golden requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meeting_async.testing import MeetingServer
from support.raw_http import BODY_LIMIT, LIMIT, World, opened_world


@pytest.fixture
def server() -> MeetingServer:
    """Provide a server with one room, not running yet."""
    server = MeetingServer(max_size_whiteboard_file=LIMIT, max_body_size=BODY_LIMIT)
    server.add_room("room01")
    return server


@pytest.fixture(params=["socket", "in process"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Provide a world, on a real socket and in process."""
    with opened_world(in_process=request.param == "in process") as world:
        yield world
