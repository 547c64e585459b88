"""Connections to PostgreSQL by which both sides notice soon that the other one is gone."""

from __future__ import annotations

import time
from typing import Any
from weakref import WeakKeyDictionary

import procrastinate
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool

from meeting_async.errors import ConfigurationError

CONNECTION: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""Settings of this side of a connection."""

LIMITS = {"lock_timeout": "500ms", "statement_timeout": "9s"}
"""What PostgreSQL itself ends: a session that waits would outlive a program that has given up. A
wait for a lock is short because it holds one of few connections; what may wait longer is repeated.
The second limit ends before ours (``EXCHANGE_SECONDS``)."""

SESSION = {
    **LIMITS,
    "idle_in_transaction_session_timeout": "30s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "20s",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
}
"""Settings of the server's side, which else keeps the session of a worker that has vanished, and
what it has locked, for two hours. It also plans statements while the tables are empty, and would go
on to read them from end to end when they are full. They are set by a statement, because poolers
refuse ``options`` of an address."""

CONNECTIONS = 4
"""Most connections of a process."""


def connector(dsn: str, *, max_size: int = CONNECTIONS) -> procrastinate.PsycopgConnector:
    """Return a connector for the ``App`` with settings for workers; those of the address win.

    A statement may take 9 s, and wait for 0.5 s for a lock. A pooler in front of the database has
    to be in session mode.

    Args:
        dsn: Address of the database, ``postgresql://user:password@host:5432/database``.
        max_size: Most connections.

    Raises:
        ConfigurationError: The address cannot be used. The text has no part of it.

    """
    try:
        given = conninfo_to_dict(dsn)
        address = make_conninfo(**{**CONNECTION, **given})
    except psycopg.ProgrammingError:  # its text has parts of the address
        problem, fix = "is not an address", "give postgresql://user:password@host:5432/database"
        raise ConfigurationError("dsn", "", problem, fix) from None
    options = str(given.get("options") or "")
    settings = {name: value for name, value in SESSION.items() if name not in options}

    async def configure(connection: psycopg.AsyncConnection[Any]) -> None:
        # Each statement is a transaction of its own, without two more statements around it.
        await connection.set_autocommit(True)
        calls = ", ".join(["set_config(%s, %s, false)"] * len(settings))
        values = [part for setting in settings.items() for part in setting]
        await connection.execute(f"SELECT {calls}".encode(), values)

    return procrastinate.PsycopgConnector(
        conninfo=address,
        pool_factory=_pool,
        configure=configure,
        min_size=1,
        max_size=max_size,
        timeout=CONNECTION["connect_timeout"],
    )


def _pool(**settings: Any) -> AsyncConnectionPool:
    """Make a pool that checks a connection only if it was idle for a second."""
    used: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    async def check(connection: psycopg.AsyncConnection[Any]) -> None:
        now = time.monotonic()
        if now - used.get(connection, 0.0) > 1:
            await AsyncConnectionPool.check_connection(connection)
        used[connection] = now

    return AsyncConnectionPool(**{**settings, "check": check})
