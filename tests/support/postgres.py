"""A real PostgreSQL server for tests: loopback only, in a temporary folder, gone afterwards."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import attrs
import psycopg
import pytest

from support.redis_server import free_port


def _folder() -> Path | None:
    """Return where the programs are; Debian has them outside of the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=_version)
    if found:
        return found[-1].parent
    program = shutil.which("postgres")
    return Path(program).resolve().parent if program else None


def _version(program: Path) -> int:
    name = program.parts[-3]
    return int(name) if name.isdigit() else 0


PROGRAMS = _folder()

needs_postgres = pytest.mark.skipif(
    PROGRAMS is None, reason="PostgreSQL is not installed (Debian: apt install postgresql)"
)

START_SECONDS = 60.0


@attrs.define
class PostgresServer:
    """One that can be killed, stopped and started again on the same port."""

    folder: Path
    user: str | None
    """Whose processes they are: root's are refused. ``None``: ours."""
    port: int = attrs.field(factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def dsn(self, database: str = "postgres") -> str:
        """Return the address of a database."""
        return f"postgresql://tester@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Make an empty database and return its address."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.dsn(name)

    def initialise(self) -> None:
        """Make the folder of a new server."""
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        self._run(
            "initdb", "-D", "data", "-U", "tester", "-A", "trust", "-N", "--no-locale", "-E", "UTF8"
        )

    def start(self) -> None:
        """Start and wait until it answers."""
        assert PROGRAMS
        # Durable like in production, except that nothing survives a loss of power.
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "full_page_writes": "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [PROGRAMS / "postgres", "-D", "data", *options],
                cwd=self.folder,
                user=self.user,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.dsn(), connect_timeout=2).close()
            except psycopg.OperationalError:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """End it as an administrator does who does not wait: connections are closed."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it at once."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    def _run(self, program: str, *arguments: str) -> None:
        assert PROGRAMS
        done = subprocess.run(
            [PROGRAMS / program, *arguments],
            cwd=self.folder,
            user=self.user,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def postgres_running() -> Iterator[PostgresServer]:
    """Run a server while the block runs."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        server = PostgresServer(Path(folder), _other_user())
        server.initialise()
        server.start()
        try:
            yield server
        finally:
            server.kill()


def _other_user() -> str | None:
    """Return a user for the server if we are root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
