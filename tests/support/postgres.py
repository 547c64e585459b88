"""A real PostgreSQL server for tests: loopback only, in a temporary folder, gone afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import attrs
import psycopg
import pytest

from support.peer import RESET, Connection, Peer
from support.ports import free_port
from support.programs import until_it_answers
from support.systems import IS_WINDOWS


def _folder() -> Path | None:
    """Return where the programs are; Debian has them outside of the PATH."""
    program = shutil.which("postgres")
    found = [Path(program).resolve()] if program else []
    if not IS_WINDOWS:  # Wine sees the files of Linux
        found += Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return max(found, key=lambda path: path.parts[-3].zfill(9)).parent if found else None


PROGRAMS = _folder()

needs_postgres = pytest.mark.skipif(
    PROGRAMS is None, reason="PostgreSQL is not installed (Debian: apt install postgresql)"
)


@attrs.define
class PostgresServer:
    """One that can be killed, stopped and started again on the same port."""

    folder: Path
    user: str | None
    """Whose processes they are: root's are refused. ``None``: ours."""
    host: str = "127.0.0.1"
    """Where it can be reached besides loopback."""
    port: int = attrs.field(factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def dsn(self, database: str = "postgres") -> str:
        """Return the address of a database."""
        return f"postgresql://tester@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Make a database and return its address."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.dsn(name)

    def empty(self, dsn: str) -> None:
        """Remove all rows of a database, after everybody else was sent away.

        A copy of a database would take ten times as long.
        """
        send_away = (
            b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            b" WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        tables = b"SELECT string_agg(tablename, ',') FROM pg_tables WHERE schemaname = 'public'"
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(send_away)
            for (names,) in connection.execute(tables):
                connection.execute(f"TRUNCATE {names} RESTART IDENTITY".encode())

    def initialise(self) -> None:
        """Make the folder of a new server."""
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        assert PROGRAMS
        how = ["-U", "tester", "-A", "trust", "-N", "--no-locale", "-E", "UTF8"]
        command: list[Any] = [PROGRAMS / "initdb", "-D", "data", *how]
        subprocess.run(
            command, cwd=self.folder, user=self.user, stdout=subprocess.DEVNULL, check=True
        )
        with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {self.host}/24 trust\n")

    def start(self) -> None:
        """Start and wait until it answers."""
        assert PROGRAMS
        # Durable like in production, except that nothing survives a loss of power.
        settings = {
            "listen_addresses": ",".join({"127.0.0.1", self.host}),
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "full_page_writes": "off",
            "fsync": "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [PROGRAMS / "postgres", "-D", "data", *options],
                cwd=self.folder,
                user=self.user,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        connect = partial(psycopg.connect, self.dsn(), connect_timeout=2)
        until_it_answers(connect, self.process, self._log, psycopg.OperationalError)

    def stop(self) -> float:
        """End it like ``pg_ctl stop -m fast``, and return how many seconds that took."""
        began = time.monotonic()
        self._end(signal.SIGINT)
        return time.monotonic() - began

    def kill(self) -> None:
        """End it at once."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def postgres_running(
    host: str = "127.0.0.1", *, parent: Path = Path("/tmp")
) -> Iterator[PostgresServer]:
    """Run a server while the block runs; at another address besides loopback if you give one."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        server = PostgresServer(Path(folder), _other_user(), host)
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
    import pwd

    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


# --- a pooler ------------------------------------------------------------------------------------


# --- a bad network -------------------------------------------------------------------------------


@attrs.define(eq=False)
class Network:
    """The way from applications to a database: it can freeze, thaw, and lose its connections.

    While it is frozen nothing arrives on either side, and nothing is lost: it arrives after the
    thaw, even if its sender has given up since.
    """

    port_of_server: int
    struck: threading.Event = attrs.field(factory=threading.Event, init=False)
    """Set when the fault of :meth:`strike` has happened."""
    _peer: Peer = attrs.field(init=False)
    _sockets: list[socket.socket] = attrs.field(factory=list, init=False)
    _flows: threading.Event = attrs.field(factory=threading.Event, init=False)
    _fault: tuple[str, bool] | None = attrs.field(default=None, init=False)
    _left: int = attrs.field(default=0, init=False)
    """Statements until the fault."""
    _due: tuple[socket.socket, str] | None = attrs.field(default=None, init=False)
    """Whose reply is not to arrive, and what happens instead."""
    _guard: threading.RLock = attrs.field(factory=threading.RLock, init=False)

    def __attrs_post_init__(self) -> None:
        self._peer = Peer(self._carry)
        self._flows.set()

    def __enter__(self) -> Self:
        self._peer.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self, dsn: str) -> str:
        """Return the address of a database through this network."""
        return dsn.replace(f":{self.port_of_server}/", f":{self._peer.port}/")

    def freeze(self) -> None:
        """Let nothing arrive."""
        self._flows.clear()

    def thaw(self) -> None:
        """Let everything arrive."""
        self._flows.set()

    def reset(self) -> None:
        """Reset all connections; what is on its way is lost. New ones can be made."""
        with self._guard:
            sockets, self._sockets = self._sockets, []
        for end in sockets:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RDWR)

    def strike(self, statement: int, how: str, *, executed: bool = False) -> None:
        """Reset all connections, or freeze, at the statement that comes next, or so many later.

        If it is executed, then nobody hears of it.
        """
        with self._guard:
            self.struck.clear()
            self._fault, self._left = (how, executed), statement

    # --- threads ---------------------------------------------------------------------------------

    def close(self) -> None:
        """End all."""
        self.thaw()
        self.reset()
        self._peer.__exit__(None, None, None)

    def _carry(self, connection: Connection) -> None:
        client = connection.sock
        client.settimeout(None)
        self._flows.wait()
        with socket.create_connection(("127.0.0.1", self.port_of_server)) as server:
            with self._guard:
                self._sockets += [client, server]
            back = threading.Thread(target=self._carry_replies, args=[server, client], daemon=True)
            back.start()
            self._carry_requests(client, server)
            back.join()

    def _carry_requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                fault = self._begins_fault(server)
                if fault != "executed":
                    self._flows.wait()
                if fault != "lost":
                    server.sendall(data)
        self._flows.wait()
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _carry_replies(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                self._end_fault(server)
                self._flows.wait()
                client.sendall(data)
        self._end_fault(server)  # what it was asked last has no reply: to end, or to cancel
        self._flows.wait()
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_WR)

    def _begins_fault(self, server: socket.socket) -> str:
        """Begin the fault if it is its turn; tell what happens to the statement."""
        with self._guard:
            self._left -= 1
            if self._fault is None or self._left >= 0:
                return ""
            (how, executed), self._fault = self._fault, None
            if executed:
                self._due = server, how
                self._flows.clear()
                return "executed"
        self._happens(how)
        return "lost" if how == "reset" else ""

    def _end_fault(self, server: socket.socket) -> None:
        """Let the reply to that statement not arrive."""
        with self._guard:
            if self._due is None or self._due[0] is not server:
                return
            (_, how), self._due = self._due, None
        self._happens(how)

    def _happens(self, how: str) -> None:
        if how == "freeze":
            self.freeze()
        else:
            self.reset()
            self.thaw()
        self.struck.set()
