"""An SQLite file that one process has to itself, and that loses nothing it has confirmed.

Everything runs in a worker thread. What several tasks want written at the same time becomes
durable together: the first of them commits for all that wait behind it. What need not survive a
failure of the power is in the file, too, and not waited for until it is on the disk.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio
import anyio.to_thread
import attrs

from meeting_async._threads import in_thread
from meeting_async.errors import JournalError, JournalInUse

T = TypeVar("T")

Row = tuple[str | int | float | None, ...]

Action = Callable[[sqlite3.Connection], T]
"""Something to do within a transaction. It raises, if at all, before it writes anything."""


@attrs.frozen
class Schema:
    """What a file must be."""

    application_id: int
    """Marks the files of one application (the ``application_id`` of SQLite's file format)."""
    version: int
    tables: Sequence[str]
    """The statements that make them."""
    update: str
    """The statement that takes any number of rows, as a JSON array of arrays."""


@attrs.define(eq=False)
class Write(Generic[T]):
    """Something to be done in the next transaction; await it for the result."""

    database: Database
    action: Action[T] | None
    """``None`` for a row, and when it is done, for the sake of what it keeps in memory."""
    durable: bool
    woken: anyio.Event | None = None
    """For who awaits it: set when it is done, or when it is its turn to see that it gets done."""
    is_done: bool = False
    result: Any = None
    error: Exception | None = None
    row: Row | None = None
    """A row of the update that all rows of a transaction go into."""

    def __await__(self) -> Generator[Any, None, T]:
        return self.database.result(self).__await__()


@attrs.define(eq=False)
class Database:
    """An open file."""

    path: str
    _connection: sqlite3.Connection
    _schema: Schema
    _quick: deque[Write[Any]] = attrs.field(factory=deque, init=False)
    """What no transaction has taken up yet, and need not be durable."""
    _durable: deque[Write[Any]] = attrs.field(factory=deque, init=False)
    """What no transaction has taken up yet, and must be durable."""
    _waiting: list[Write[Any]] = attrs.field(factory=list, init=False)
    """Whose callers wait, in order of arrival."""
    _leader: Write[Any] | None = attrs.field(default=None, init=False)
    """The one of them whose caller commits."""
    _threads: anyio.CapacityLimiter = attrs.field(
        factory=lambda: anyio.CapacityLimiter(1), init=False
    )
    _is_syncing: bool = attrs.field(default=True, init=False)
    """Whether a commit waits for the disk, as it is set."""
    _alone: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    """As asyncio's own cancellation breaks through shields, and leaves a thread behind."""
    _process: int = attrs.field(factory=os.getpid, init=False)

    def submit(self, action: Action[T], *, durable: bool = True) -> Write[T]:
        """Have something done in the next transaction, whoever commits it.

        With ``durable=False`` only the end of the process cannot undo it. The next durable write
        makes it durable, too.
        """
        write = Write(self, action, durable)
        (self._durable if durable else self._quick).append(write)
        return write

    async def update(self, *row: str | float | None) -> None:
        """Have a row updated, durably.

        All rows that are there together are one statement: each statement takes the interpreter's
        lock again, and on a busy loop waits for it.

        Raises:
            JournalError: It could not be written.

        """
        write: Write[None] = Write(self, None, durable=True, row=row)
        self._durable.append(write)
        await write

    async def write(self, action: Action[T], *, durable: bool = True) -> T:
        """Do something and return its result when it is durable; see :meth:`submit`.

        It is not cut short by a cancellation: a disk takes milliseconds, and a caller must know
        what is written.

        Raises:
            JournalError: It could not be written.

        """
        return await self.submit(action, durable=durable)

    async def result(self, write: Write[T]) -> T:
        """Wait until something is done; see to it, if nobody else does."""
        if os.getpid() != self._process:
            raise JournalError(self.path, "belongs to the process that this one was forked from")
        if not write.is_done:
            write.woken = anyio.Event()
            self._waiting.append(write)
            with anyio.CancelScope(shield=True):
                try:
                    if self._leader is None:
                        self._leader = write
                    else:
                        await write.woken.wait()
                    if not write.is_done:
                        await self._in_thread(lambda: self._commit(sync=write.durable))
                finally:
                    self._leave(write)
        if write.error is not None:
            raise write.error
        result: T = write.result
        return result

    def _leave(self, write: Write[Any]) -> None:
        """Wake, all at once, those who have what they wait for, and the one who is to go on."""
        if write is not self._leader:
            if not write.is_done:
                self._waiting.remove(write)
            return
        done = [one for one in self._waiting if one.is_done]
        self._waiting = [one for one in self._waiting if one is not write and one not in done]
        self._leader = min(self._waiting, key=lambda one: one.durable, default=None)
        for one in (*done, *filter(None, [self._leader])):
            if one.woken is not None:
                one.woken.set()

    def _commit(self, *, sync: bool) -> None:
        """Do what is pending in one transaction, after the one that a thread is still busy with.

        What need not be durable does not wait for the disk on account of what must be.
        """
        with self._alone:
            queues = (self._quick, self._durable) if sync else (self._quick,)
            writes = [queue.popleft() for queue in queues for _ in range(len(queue))]
            try:
                self._sync(sync)
                self._execute(writes)
            except BaseException as error:  # noqa: BLE001 - each caller gets it, or one like it
                self._fail(writes, error)
            for write in writes:
                write.action, write.is_done = None, True

    def _execute(self, writes: Sequence[Write[Any]]) -> None:
        actions = [write for write in writes if write.row is None]
        rows = [write.row for write in writes if write.row is not None]
        if actions:
            self._connection.execute("BEGIN IMMEDIATE")
            for write in actions:
                self._do(write)
        if rows:
            self._connection.execute(self._schema.update, (json.dumps(rows),))
        if actions:
            self._connection.execute("COMMIT")

    def _sync(self, on: bool) -> None:
        """Let the next commit wait for the disk or not; in WAL mode one waits for all before it."""
        if on != self._is_syncing:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if on else 'NORMAL'}")
            self._is_syncing = on

    def _do(self, write: Write[Any]) -> None:
        try:
            write.result = write.action(self._connection) if write.action else None
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - it is that of one caller only, who gets it
            write.error = error

    def _fail(self, writes: Sequence[Write[Any]], error: BaseException) -> None:
        """Have nothing of it in the file; each caller gets an error of his own to raise."""
        for write in writes:
            write.error = JournalError(self.path, f"cannot be written: {error}")
            write.error.__cause__ = error
        with suppress(sqlite3.Error):  # then the next transaction cannot begin
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(function, limiter=self._threads)

    async def aclose(self) -> None:
        """Close the file.

        Not in a process that was forked meanwhile: SQLite would tidy up, and what its parent writes
        from then on would be lost.
        """
        if os.getpid() != self._process:
            return
        with anyio.CancelScope(shield=True):
            await self._in_thread(self._close)

    def _close(self) -> None:
        with self._alone:
            self._connection.close()


@asynccontextmanager
async def opened(path: str | os.PathLike[str], schema: Schema) -> AsyncGenerator[Database, None]:
    """Open a file for the length of the block, or make it.

    Raises:
        JournalInUse: Another batch, of whatever process, has it open.
        JournalError: It cannot be opened, or is something else.

    """
    text = os.fsdecode(path)
    connection = await in_thread(lambda: _connected(text, schema))
    database = Database(text, connection, schema)
    try:
        yield database
    finally:
        await database.aclose()


def _connected(path: str, schema: Schema) -> sqlite3.Connection:
    """Look before anything is touched, then take the file."""
    # In full, it means a file whatever it is called: SQLite has meanings for "" and ":memory:".
    full = Path(path).absolute()
    try:
        _look(full, path, schema)
        return _taken(full, schema)
    except (sqlite3.Error, OSError, ValueError) as error:  # ValueError: what no path can hold
        if isinstance(error, JournalError):
            raise
        if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
            raise JournalInUse(path, "is in use by another batch: wait for its end") from error
        raise JournalError(path, f"cannot be used: {error}") from error


def _look(full: Path, path: str, schema: Schema) -> None:
    """See that the file is new, or one of these, without a change to what may be somebody else's.

    To open a file as usual is to tidy up what a process that crashed has left beside it. And to
    read it without SQLite would free the locks that this process has on it (fcntl).
    """
    try:
        status = full.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise JournalError(path, "is no file: name one, or one to be made")
    if not os.access(full, os.R_OK | os.W_OK):
        raise JournalError(path, "may not be read and written by this process")
    if status.st_size == 0:
        return
    uri = f"{full.as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        application, version = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version")
        )
    if application != schema.application_id:
        raise JournalError(path, "is a database of something else: name another file")
    if version != schema.version:
        raise JournalError(path, f"has format {version}, which this version cannot read")


def _taken(full: Path, schema: Schema) -> sqlite3.Connection:
    # In exclusive mode a second connection is refused at once, wherever it is.
    connection = sqlite3.connect(full, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = FULL")  # durable, also when the power fails
        connection.execute("PRAGMA fullfsync = ON")  # what FULL takes on macOS
        connection.execute("BEGIN EXCLUSIVE")
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            _make(connection, schema)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _make(connection: sqlite3.Connection, schema: Schema) -> None:
    """Have it all in the file at once, and in the file itself: see `_look`."""
    for table in schema.tables:
        connection.execute(table)
    connection.execute(f"PRAGMA application_id = {schema.application_id}")
    connection.execute(f"PRAGMA user_version = {schema.version}")
