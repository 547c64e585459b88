"""Statements in the database of a queue: their limits, their errors, and who is in their way."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Any

import anyio
import attrs
import procrastinate
import psycopg
from procrastinate.exceptions import AppNotOpen, ConnectorException
from psycopg.rows import tuple_row

from meeting_async._text import one_line
from meeting_async.errors import JournalError, JournalInUse
from meeting_async.procrastinate._connect import LIMITS

EXCHANGE_SECONDS = 10.0
"""Longest time for one statement, also if the database cannot be reached."""

PATIENCE_SECONDS = 5.0
"""So long a call waits for what another program has locked; each statement waits shortly."""

LOOK_SECONDS = 0.1
"""Interval at which a call that waits looks who it waits for."""

LOCKED = {"55P03", "40P01"}
"""PostgreSQL's codes: a lock was not available, or two programs waited for each other."""

Rows = Sequence[Mapping[str, Any]]


def _statements() -> Mapping[str, str]:
    text = files("meeting_async.procrastinate").joinpath("queue.sql").read_text("utf-8")
    _, *parts = re.split(r"^-- (\w+) --$", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


SQL = _statements()


@attrs.frozen(eq=False)
class Database:
    """Runs statements. Every method raises `JournalError` if the database fails."""

    app: procrastinate.App
    """Its connector is looked up late: Django's does not exist before all modules are loaded."""

    async def execute(
        self,
        query: str,
        connection: Any = None,
        *,
        rows: bool = True,
        patience: float = 0.0,
        **arguments: Any,
    ) -> Rows:
        """Run a statement, again for ``patience`` seconds while another program has locked rows.

        Raises:
            JournalInUse: They are locked. With ``patience`` it says by whom.

        """
        run = partial(self._once, query, connection, rows=rows, **arguments)
        ends_at = anyio.current_time() + patience
        try:
            return await run()
        except JournalInUse:
            if not patience:
                raise
        while True:
            try:
                return await self._observed(query, run)
            except JournalInUse:
                if anyio.current_time() > ends_at:
                    raise

    async def _once(
        self, query: str, connection: Any = None, *, rows: bool = True, **arguments: Any
    ) -> Rows:
        connector: Any = self.app.connector
        run = connector.execute_query_all_async if rows else connector.execute_query_async
        if connection is not None:
            run = partial(connector.execute_query_all_async_with_connection, connection)
        async with failures_told(), _limited(connection):
            return await run(query, **arguments) or ()

    async def _observed(self, query: str, run: Callable[[], Awaitable[Rows]]) -> Rows:
        """Run a statement; if it is kept waiting, the error says by whom."""
        looking = asyncio.create_task(self._holders(query.partition("%")[0][:500]))
        try:
            return await run()
        except JournalInUse as error:
            raise in_use(await looking) from error
        finally:
            looking.cancel()

    async def _holders(self, beginning: str) -> Rows:
        """Return which sessions a statement waits for. PostgreSQL knows that only meanwhile."""
        found: Rows = ()
        for _ in range(4):
            await anyio.sleep(LOOK_SECONDS)
            try:
                found = found or await self._once(SQL["holders"], beginning=beginning)
            except (JournalError, AppNotOpen):
                break
        return found


@asynccontextmanager
async def _limited(connection: psycopg.AsyncConnection[Any] | None) -> AsyncGenerator[None, None]:
    """Limit a statement in a transaction of the caller, whose settings are then as they were.

    One that fails leaves the transaction as it was before. Connections of ours have these limits.
    """
    if connection is None:
        yield
        return
    async with connection.cursor(row_factory=tuple_row) as cursor:
        change = partial(cursor.execute, _SET_LIMITS)
        # This begins the caller's transaction if need be, so that the next one is a part of it.
        await cursor.execute(_SHOW_LIMITS)
        before = await cursor.fetchone()
        async with connection.transaction():
            await change([LIMITS["lock_timeout"], LIMITS["statement_timeout"]])
            yield
            await change(before)


@asynccontextmanager
async def failures_told() -> AsyncGenerator[None, None]:
    """Make the errors of a database those of this library."""
    try:
        with anyio.fail_after(EXCHANGE_SECONDS):
            yield
    except TimeoutError:
        raise unusable(f"does not answer within {EXCHANGE_SECONDS:g} s") from None
    except (ConnectorException, psycopg.Error) as error:
        raise failure(error) from error


def unusable(reason: str) -> JournalError:
    """Return the error for a table that cannot be used; ``reason`` begins with a verb."""
    return JournalError("meeting_async_uploads", reason, "queue's table")


def in_use(holders: Rows = ()) -> JournalInUse:
    """Return the error for rows that another program has locked."""
    told = "; ".join(
        f"process {one['pid']}, {one_line(one['application'] or 'without a name')!r}, since "
        f"{one['since'] or 'some time'}: {one_line(' '.join(one['query'].split()), 80)}"
        for one in holders
    )
    reason = f"is locked by {f'PostgreSQL {told}' if told else 'another program'}"
    fix = "end that transaction, and try again" if told else "try again"
    return JournalInUse("meeting_async_uploads", f"{reason}; {fix}", "queue's table")


def failure(error: BaseException) -> JournalError:
    """Return what an error of the database means, with what to do."""
    cause = error.__cause__ or error
    name = type(cause).__name__
    fix = ""
    if is_locked(error):
        return in_use()
    if name.startswith("Undefined") and "procrastinate_" in str(cause):
        fix = _OTHERS_TABLES
    elif "prepared statement" in str(cause):
        fix = f"; a pooler in transaction mode? {SESSION_MODE}"
    return unusable(f"cannot be used: {name}: {cause}{fix}")


def is_locked(error: BaseException | None) -> bool:
    """Return whether a statement has ended because another program has locked something."""
    while error is not None and getattr(error, "sqlstate", None) is None:
        error = error.__cause__
    return getattr(error, "sqlstate", None) in LOCKED


_SET_LIMITS = (
    b"SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true)"
)
_SHOW_LIMITS = b"SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"
SESSION_MODE = "set its session mode (pgbouncer: pool_mode = session)"
_OTHERS_TABLES = (
    "; the tables of procrastinate are not those of the installed version: apply its migrations"
)
