"""A real Redis server for tests: loopback only, nothing on disk, gone afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
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


ROOM = "https://meet.test/auth room01"


def hold(pipe: Connection, port: int, lifetime: float, seconds: float, count: int) -> None:
    """Hold the lock of one room, several times at once, and tell when each begins and ends."""

    async def main() -> None:
        async with Redis(port=port) as client:
            locks = RedisRoomLocks(client, lifetime=lifetime)
            await client.ping()
            pipe.send("ready")
            pipe.recv()

            async def hold_once() -> None:
                async with locks.acquire(ROOM, timeout=None):
                    pipe.send(time.monotonic())
                    await asyncio.sleep(seconds)
                    pipe.send(time.monotonic())

            await asyncio.gather(*(hold_once() for _ in range(count)))

    asyncio.run(main())
