"""A real Redis server for tests: loopback only, nothing on disk, gone afterwards.

As a program this file is a process that holds the lock of one room, several times at once.
Arguments: port, lifetime, seconds, count. It prints ``ready``, waits for a line on its input, and
then prints ``in`` and ``out`` with the time for each of ``count`` tasks, which begin together.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import attrs
import pytest
from redis.asyncio import Redis

from meeting_async.redis import RedisRoomLocks
from support.ports import free_port
from support.programs import started

BINARY = shutil.which("redis-server")

needs_redis = pytest.mark.skipif(
    BINARY is None, reason="redis-server is not installed (Debian: apt install redis-server)"
)


@attrs.define
class RedisServer:
    """One that can be killed, started again on the same port, and suspended."""

    folder: str
    options: tuple[str, ...] = ()
    port: int = attrs.field(factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers."""
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", self.folder]
        command = [BINARY, *where, "--save", "", "--appendonly", "no", *self.options]
        self.process = started(command, self.port, Path(self.folder, "log"))

    def kill(self) -> None:
        """End it at once; what it has in memory is lost."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def suspend(self) -> None:
        """Let it answer nothing; its system still accepts connections and bytes."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def restore(self) -> None:
        """Let it answer again, whatever was done to it."""
        if self.process is None:
            self.start()
        else:
            self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def redis_running(*options: str) -> Iterator[RedisServer]:
    """Run a server while the block runs."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(folder, options)
        try:
            server.start()
            yield server
        finally:
            server.kill()


# --- another process -----------------------------------------------------------------------------

ROOM = "https://meet.test/auth room01"
say = partial(print, flush=True)


async def hold(port: str, lifetime: str, seconds: str, count: str) -> None:
    """Do what is said above."""
    client = Redis(port=int(port))
    locks = RedisRoomLocks(client, lifetime=float(lifetime))
    await client.ping()
    say("ready")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

    async def hold_once() -> None:
        async with locks.acquire(ROOM, timeout=None):
            say("in", time.monotonic())
            await asyncio.sleep(float(seconds))
            say("out", time.monotonic())

    await asyncio.gather(*(hold_once() for _ in range(int(count))))
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(hold(*sys.argv[1:]))
