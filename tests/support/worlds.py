"""A meeting server on a socket and in process, asked with raw bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import attrs

from meeting_async.testing import MeetingServer, Room
from support.raw_http import Answer, talk, talk_in_process

LIMIT = 20_000
"""``max_size_whiteboard_file``."""
BODY_LIMIT = 40_000
"""``max_body_size``."""


@attrs.frozen
class World:
    """A server with an active room, and a way to talk to it."""

    server: MeetingServer
    talk: Callable[[bytes], Answer]
    do: Callable[[Callable[[], Any]], Any]
    """Call a function where the server's clock can be read."""

    @property
    def room(self) -> Room:
        """The room "room01"."""
        return self.server.rooms["room01"]


@contextlib.contextmanager
def opened_world(*, in_process: bool) -> Iterator[World]:
    """Open a world on a real socket, or one in which the server runs in asyncio's loop."""
    server = MeetingServer(
        max_size_whiteboard_file=LIMIT, max_body_size=BODY_LIMIT, keep_content=True
    )
    server.add_room("room01")
    if in_process:
        yield World(server, lambda raw: anyio.run(talk_in_process, server, raw), _in_a_loop)
        return
    with server.run() as url:
        yield World(server, lambda raw: talk(url, raw), lambda function: function())


def _in_a_loop(function: Callable[[], Any]) -> Any:
    async def main() -> Any:
        return function()

    return anyio.run(main)
