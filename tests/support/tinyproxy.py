"""tinyproxy, a real HTTP proxy, on a port of loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.programs import PATIENCE
from support.sending import closed_port

PROGRAM = shutil.which("tinyproxy")

needs_tinyproxy = pytest.mark.skipif(
    PROGRAM is None, reason="there is no tinyproxy (apt install tinyproxy)"
)


@contextmanager
def tinyproxy(directory: Path, password: str = "") -> Iterator[str]:
    """Run a proxy while the block does; return its host and port. Its user is ``me``."""
    assert PROGRAM
    port, settings = closed_port(), directory / "tinyproxy.conf"
    login = f"BasicAuth me {password}" if password else ""
    settings.write_text(f"Port {port}\nListen 127.0.0.1\nTimeout 20\nMaxClients 20\n{login}\n")
    process = subprocess.Popen(
        [PROGRAM, "-d", "-c", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(port)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()  # told to end, it would wait for its connections
        process.wait(PATIENCE)


def _wait_for(port: int) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return
