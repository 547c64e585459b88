"""Real proxies: nginx in front of a server, and tinyproxy, on ports of loopback.

nginx inherits the socket on which it listens: there is no moment of refused connections.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from support.ports import free_port
from support.programs import PATIENCE, started

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
"""Debian installs it in a folder that is not in an ordinary user's PATH."""

needs_nginx = pytest.mark.skipif(NGINX is None, reason="there is no nginx (apt install nginx)")

STOP_SECONDS = 40.0

_CONFIGURATION = """\
daemon off;
{user}
worker_processes 1;
worker_shutdown_timeout 1s;
pid nginx.pid;
error_log error.log info;
events {{ worker_connections 512; }}
http {{
    access_log access.log;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    client_max_body_size 100m;
    {http}
    server {{
        listen 127.0.0.1:{port}{ssl};
        {server}
    }}
}}
"""


class Nginx:
    """Runs while its block does. ``server`` and ``http`` are what those blocks contain.

    With ``certificate``, a file that also holds the key, it speaks TLS.
    """

    def __init__(
        self, directory: Path, server: str, *, http: str = "", certificate: Path | None = None
    ) -> None:
        self.directory = directory
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setblocking(False)  # as nginx makes its own
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self.port}"
        files = [f'ssl_certificate{kind} "{certificate}";' for kind in ("", "_key") if certificate]
        text = _CONFIGURATION.format(
            # A worker of root would become a user who may not enter the folder.
            user="user root;" if os.geteuid() == 0 else "",
            port=self.port,
            ssl=" ssl" if certificate else "",
            http=http,
            server="\n        ".join([*files, server]),
        )
        (directory / "nginx.conf").write_text(text)

    def __enter__(self) -> Self:
        assert NGINX
        number = self._listener.fileno()
        self._process = subprocess.Popen(
            [NGINX, "-p", f"{self.directory}/", "-e", "error.log", "-c", "nginx.conf"],
            env={"NGINX": f"{number};"},  # how it inherits sockets
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
        )
        self._listener.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        # It dies of the signal if that comes before its handler is there.
        assert status in {0, -signal.SIGTERM}, f"nginx ended with {status}\n{self.log()}"

    def log(self) -> str:
        """Return its configuration, its errors and its requests."""
        names = ["nginx.conf", "error.log", "access.log"]
        files = [self.directory / name for name in names]
        return "\n".join(f"--- {file.name}\n{file.read_text()}" for file in files if file.exists())


# --- tinyproxy -----------------------------------------------------------------------------------

TINYPROXY = shutil.which("tinyproxy")

needs_tinyproxy = pytest.mark.skipif(
    TINYPROXY is None, reason="there is no tinyproxy (apt install tinyproxy)"
)


@contextmanager
def tinyproxy(directory: Path, password: str = "") -> Iterator[str]:
    """Run a proxy while the block does; return its host and port. Its user is ``me``."""
    assert TINYPROXY
    port, settings, log = free_port(), directory / "tinyproxy.conf", directory / "tinyproxy.log"
    login = f"BasicAuth me {password}" if password else ""
    settings.write_text(f"Port {port}\nListen 127.0.0.1\nTimeout 20\nMaxClients 20\n{login}\n")
    process = started([TINYPROXY, "-d", "-c", settings], port, log)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()  # told to end, it would wait for its connections
        process.wait(PATIENCE)
