"""A real Redis server for the tests: loopback only, nothing on disk, gone afterwards."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

import attrs

BINARY = shutil.which("redis-server")
"""Debian's package is ``redis-server``; the tests are skipped only where it is not installed."""


@attrs.define
class RedisServer:
    """One that can be stopped, and started again on the same port."""

    folder: str
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers; without a port of its own yet, on a free one."""
        for _ in range(5):  # somebody else may take the free port first
            port = self.port or free_port()
            self.process = subprocess.Popen(self._command(port), stdout=subprocess.DEVNULL)
            if self._answers(port):
                self.port = port
                return
            self.stop()
        raise RuntimeError("redis-server does not start")

    def stop(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _command(self, port: int) -> list[str]:
        where = ["--bind", "127.0.0.1", "--port", str(port), "--dir", self.folder]
        return [BINARY or "", *where, "--save", "", "--appendonly", "no"]

    def _answers(self, port: int) -> bool:
        until = time.monotonic() + 10
        while self.process and self.process.poll() is None and time.monotonic() < until:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=1) as connection,
            ):
                connection.sendall(b"PING\r\n")
                if connection.recv(7) == b"+PONG\r\n":
                    return True
            time.sleep(0.02)
        return False


def free_port() -> int:
    """Return a loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def redis_running() -> Iterator[RedisServer]:
    """Run a server while the block runs."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
