"""The database of the queue: its address, its errors and its tables."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from meeting_async._system import SELECTOR_LOOP
from meeting_async.cli.console import PROGRAM
from meeting_async.errors import InvalidInput, JournalError, MeetingError
from meeting_async.procrastinate import WhiteboardUploads, connector
from meeting_async.procrastinate._database import Database
from meeting_async.procrastinate._table import Table

if TYPE_CHECKING:
    import procrastinate
    import procrastinate.exceptions
    import psycopg
    import psycopg.conninfo as dsns

    from meeting_async import MeetingClient
else:  # installed with another extra than the command line
    procrastinate, psycopg = import_module("procrastinate"), import_module("psycopg")
    dsns = import_module("psycopg.conninfo")

T = TypeVar("T")

CONNECT_SECONDS = 10
"""Longest wait for a connection to the database."""

LOCK = "SELECT pg_advisory_lock(hashtext('procrastinate_jobs')) AS is_locked"
"""Held while a program makes the tables."""

LOCK_SECONDS = 60.0
"""So long another program may take to make them."""


def run(function: Callable[..., Awaitable[T]], *arguments: object) -> T:
    """Run an async function on an event loop that psycopg can use."""
    return anyio.run(function, *arguments, backend_options={**SELECTOR_LOOP})


def checked(dsn: str | None) -> str:
    """Return the address of the database.

    Raises:
        InvalidInput: It is missing or cannot be used. The text has no part of it.

    """
    field = "MEETING_QUEUE_DSN" if dsn is None else "--dsn"
    given = os.environ.get(field, "") if dsn is None else dsn
    fix = "give postgresql://user:password@host:5432/database"
    if not given:
        raise InvalidInput(field, "", "is not set", fix)
    try:
        facts: dict[str, Any] = dict(dsns.conninfo_to_dict(given))
    except psycopg.ProgrammingError:  # its text has parts of the address
        facts = {}
    if not facts or _is_misread(facts):
        fix += ", with %40 for @, %2F for / and %25 for % in the password"
        raise InvalidInput(field, "", "is not the address of a PostgreSQL database", fix)
    return dsns.make_conninfo(**{"connect_timeout": CONNECT_SECONDS, **facts})


def no_such_batch(batch: str, server: str) -> InvalidInput:
    """Return the error for the name of a batch that the server does not have."""
    fix = f"give the name of a batch that was deferred for {server}"
    return InvalidInput("BATCH", repr(batch), "is not in the queue", fix)


def _is_misread(facts: Mapping[str, object]) -> bool:
    """Return whether a part of the password was taken for the host or port, which are printed."""
    ports = str(facts.get("port", "0")).split(",")
    return "@" in f"{facts.get('host')}{facts.get('dbname')}" or not all(
        port.isdecimal() or not port for port in ports
    )


@asynccontextmanager
async def opened(
    dsn: str | None, *, needs_tables: bool = True
) -> AsyncGenerator[procrastinate.App, None]:
    """Connect.

    Raises:
        MeetingError: The database cannot be used; one line.

    """
    address = checked(dsn)
    app = procrastinate.App(connector=connector(address))
    with _errors_named():
        # A pool would try for half a minute, and not say what is wrong.
        await (await psycopg.AsyncConnection.connect(address)).close()
        async with app.open_async():
            if needs_tables and not await _has_tables(app):
                fix = f"run `{PROGRAM} queue apply-schema`"
                raise InvalidInput("the database", "", "does not have the queue's tables", fix)
            yield app


@contextmanager
def _errors_named() -> Iterator[None]:
    try:
        yield
    except JournalError as error:
        raise failure(error.reason) from error
    except (psycopg.Error, procrastinate.exceptions.ConnectorException) as error:
        raise failure(error) from error


def failure(error: object) -> MeetingError:
    """Make an error of one line."""
    cause = getattr(error, "__cause__", None) or error
    text = f": {type(cause).__name__}: {cause}" if isinstance(cause, Exception) else f" {cause}"
    return MeetingError(" ".join(f"the queue's database{text}".split()))


async def _has_tables(app: procrastinate.App) -> bool:
    found = await app.connector.execute_query_one_async(
        "SELECT to_regclass('procrastinate_jobs') IS NOT NULL"
        " AND to_regclass('meeting_async_uploads') IS NOT NULL AS has_all"
    )
    return bool(found["has_all"])


async def apply_schema(dsn: str | None) -> str:
    """Make the tables, one program at a time, and return what was done."""
    async with opened(dsn, needs_tables=False) as app:
        connecting = psycopg.AsyncConnection.connect(checked(dsn), autocommit=True)
        async with await connecting as lock:  # until it is closed
            await Database(app).execute(LOCK, lock, patience=LOCK_SECONDS)
            if not await app.check_connection_async():
                # `apply_schema_async` reads the file on the event loop.
                schema = await anyio.to_thread.run_sync(app.schema_manager.get_schema)
                await app.connector.execute_query_async(schema.replace("%", "%%"))
            is_changed = await Table(app, "", "").apply_schema()
    return "the tables are ready" if is_changed else "nothing to do: the tables were there already"


@asynccontextmanager
async def uploads_in(
    dsn: str | None, client: MeetingClient
) -> AsyncGenerator[tuple[procrastinate.App, WhiteboardUploads], None]:
    """Connect, and yield the queue and the uploads to the client's server."""
    async with opened(dsn) as app, client:
        yield app, WhiteboardUploads(app, client=client)
