"""An SQLite file that one process has to itself, and that loses nothing it has confirmed.

Everything runs in a worker thread. What several tasks want written at the same time becomes
durable together: the first of them commits for all that wait behind it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import attrs

from meeting_async.errors import JournalError, JournalInUse

T = TypeVar("T")

Action = Callable[[sqlite3.Connection], T]
"""Something to do within a transaction."""


@attrs.frozen
class Schema:
    """What a file must be."""

    application_id: int
    """Marks the files of one application (the ``application_id`` of SQLite's file format)."""
    version: int
    tables: Sequence[str]
    """The statements that make them."""


@attrs.define(eq=False)
class _Write:
    """Something to be done in the next transaction."""

    action: Action[Any]
    is_done: bool = False
    result: Any = None
    error: Exception | None = None


@attrs.define(eq=False)
class Database:
    """An open file."""

    path: str
    _connection: sqlite3.Connection
    _pending: list[_Write] = attrs.field(factory=list, init=False)
    _turn: anyio.Lock = attrs.field(factory=anyio.Lock, init=False)
    _in_use: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _threads: anyio.CapacityLimiter = attrs.field(
        factory=lambda: anyio.CapacityLimiter(1), init=False
    )

    async def write(self, action: Action[T]) -> T:
        """Do something and return its result when it is durable.

        It is not cut short by a cancellation: a disk takes milliseconds, and a caller must know
        what is written.

        Raises:
            JournalError: It could not be written.

        """
        write = _Write(action)
        self._pending.append(write)
        with anyio.CancelScope(shield=True):
            async with self._turn:
                if not write.is_done:
                    # None are left if a thread is at it whose task was cancelled; it is awaited.
                    writes, self._pending = self._pending, []
                    await self._in_thread(lambda: self._commit(writes))
        if write.error is not None:
            raise write.error
        result: T = write.result
        return result

    def _commit(self, writes: Sequence[_Write]) -> None:
        """Do them all in one transaction; one at a time, whatever became of who asked for it."""
        with self._in_use:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                for write in writes:
                    self._do(write)
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._fail(writes, error)
            for write in writes:
                write.is_done = True

    def _fail(self, writes: Sequence[_Write], error: sqlite3.Error) -> None:
        failure = JournalError(self.path, f"cannot be written: {error}")
        failure.__cause__ = error
        for write in writes:
            write.error = failure
        with contextlib.suppress(sqlite3.Error):  # it may have rolled back by itself
            self._connection.execute("ROLLBACK")

    def _do(self, write: _Write) -> None:
        try:
            write.result = write.action(self._connection)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - it is that of one caller only, who gets it
            write.error = error

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(function, limiter=self._threads)

    async def aclose(self) -> None:
        """Close the file."""
        with anyio.CancelScope(shield=True):
            await self._in_thread(self._close)

    def _close(self) -> None:
        with self._in_use:
            self._connection.close()


@contextlib.asynccontextmanager
async def opened(path: str | os.PathLike[str], schema: Schema) -> AsyncGenerator[Database, None]:
    """Open a file for the length of the block, or make it.

    Raises:
        JournalInUse: Another batch, of whatever process, has it open.
        JournalError: It cannot be opened, or is something else.

    """
    text = os.fspath(path)
    connection = await anyio.to_thread.run_sync(lambda: _connected(text, schema))
    database = Database(text, connection)
    try:
        yield database
    finally:
        await database.aclose()


def _connected(path: str, schema: Schema) -> sqlite3.Connection:
    try:
        # In exclusive mode a second connection is refused at once, wherever it is.
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    except (sqlite3.Error, ValueError, TypeError) as error:  # ValueError: a NUL in the path
        raise JournalError(path, f"cannot be opened: {error}") from error
    try:
        _take(connection, path, schema)
    except sqlite3.DatabaseError as error:
        connection.close()
        if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
            raise JournalInUse(path, "is in use by another batch: wait for its end") from error
        raise JournalError(path, f"cannot be used: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _take(connection: sqlite3.Connection, path: str, schema: Schema) -> None:
    """See what the file is before anything is written to it; then exclude everybody else."""
    is_new = _is_new(connection, path, schema)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # durable, also when the power fails
    connection.execute("BEGIN EXCLUSIVE")
    if is_new:
        for table in schema.tables:
            connection.execute(table)
        connection.execute(f"PRAGMA application_id = {schema.application_id}")
        connection.execute(f"PRAGMA user_version = {schema.version}")
    connection.execute("COMMIT")


def _is_new(connection: sqlite3.Connection, path: str, schema: Schema) -> bool:
    application, version, tables = (
        connection.execute(question).fetchone()[0]
        for question in (
            "PRAGMA application_id",
            "PRAGMA user_version",
            "SELECT count(*) FROM sqlite_master",
        )
    )
    if (application, version, tables) == (0, 0, 0):
        return True
    if application != schema.application_id:
        raise JournalError(path, "is a database of something else: name another file")
    if version != schema.version:
        raise JournalError(path, f"has format {version}, which this version cannot read")
    return False
