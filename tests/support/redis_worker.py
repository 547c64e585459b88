"""A process that holds the lock of one room through Redis, several times at once.

Arguments: port, lifetime, seconds, count. It prints ``ready``, waits for a line on its input, and
then prints ``in`` and ``out`` with the time for each of ``count`` tasks, which begin together.
"""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial

from redis.asyncio import Redis

from meeting_async.redis import RedisRoomLocks

say = partial(print, flush=True)

ROOM = "https://meet.test/auth room01"


async def main(port: str, lifetime: str, seconds: str, count: str) -> None:
    """Do it."""
    client = Redis(port=int(port))
    locks = RedisRoomLocks(client, lifetime=float(lifetime))
    await client.ping()
    say("ready")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

    async def hold() -> None:
        async with locks.acquire(ROOM, timeout=None):
            say("in", time.monotonic())
            await asyncio.sleep(float(seconds))
            say("out", time.monotonic())

    await asyncio.gather(*(hold() for _ in range(int(count))))
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
