"""A process of its own that uses a room through Redis: ``upload`` or ``hold``, for the tests.

It says ``ready``, waits for a line on its input, and then does it all at once.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from redis.asyncio import Redis

from meeting_async import MeetingClient
from meeting_async.redis import RedisRoomGate

say = partial(print, flush=True)

ROOM = "https://meet.test:443/auth room01"


async def upload(gate: RedisRoomGate, url: str, name: str, count: str) -> None:
    """Upload ``count`` documents at once to room01."""
    async with MeetingClient(url, api_key="devkey", api_secret="devsecret", room_gate=gate) as it:
        await start()
        names = [f"{name}-{number}.pdf" for number in range(int(count))]
        await asyncio.gather(
            *(
                it.upload_whiteboard_file("room01", b"%PDF-1.7 " + one.encode(), filename=one)
                for one in names
            )
        )


async def hold(gate: RedisRoomGate) -> None:
    """Say ``waiting`` if there is a wait, then ``inside``, and stay there."""
    await start()
    async with gate.turn(ROOM, waiting):
        say("inside")
        await asyncio.sleep(60)


async def waiting(_shut_for: float) -> None:
    """Say so."""
    say("waiting")


async def start() -> None:
    """Wait for the word."""
    say("ready")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def main(what: str, port: str, lifetime: str, *rest: str) -> None:
    """Do it."""
    client = Redis(port=int(port))
    gate = RedisRoomGate(client, lifetime=float(lifetime))
    await (upload(gate, *rest) if what == "upload" else hold(gate))
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
