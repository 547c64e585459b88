"""A meeting server, and worlds for golden requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from meeting_async.testing import MeetingServer
from support.raw_http import BODY_LIMIT, LIMIT, World, talk, talk_in_process


@pytest.fixture
def server() -> MeetingServer:
    """Provide a server with one room, not running yet."""
    server = MeetingServer(max_size_whiteboard_file=LIMIT, max_body_size=BODY_LIMIT)
    server.add_room("room01")
    return server


@pytest.fixture(params=["socket", "in process"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Provide a world on a real socket, and one in which the server runs in asyncio's loop."""
    limits = {"max_size_whiteboard_file": LIMIT, "max_body_size": BODY_LIMIT}
    server = MeetingServer(**limits, keep_content=True)
    server.add_room("room01")
    if request.param == "in process":
        yield World(server, lambda raw: anyio.run(talk_in_process, server, raw), in_a_loop)
        return
    with server.run() as url:
        yield World(server, lambda raw: talk(url, raw), lambda function: function())


def in_a_loop(function: Callable[[], Any]) -> Any:
    """Call a function in a loop of asyncio."""

    async def main() -> Any:
        return function()

    return anyio.run(main)
