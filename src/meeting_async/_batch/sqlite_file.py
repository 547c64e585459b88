"""Opening the file of a journal for one process alone, without harm to files of another kind."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path

import attrs

from meeting_async.errors import JournalError, JournalInUse

APPLICATION_ID = 0x6D61736A
"""Marks a journal (``application_id`` in SQLite's file format)."""

VERSION = 2

TABLES = (
    "CREATE TABLE servers (base TEXT NOT NULL)",
    """CREATE TABLE jobs (
        id INTEGER PRIMARY KEY,
        identity TEXT NOT NULL,    -- what tells jobs apart,
        ordinal INTEGER NOT NULL,  -- and those that nothing else tells apart
        run INTEGER NOT NULL,      -- the last run of the batch that came to it
        room_id TEXT NOT NULL,
        document TEXT NOT NULL,
        state TEXT NOT NULL,
        reason TEXT,
        size INTEGER,              -- bytes, and
        fingerprint TEXT,          -- that of a file, and
        sent_at REAL,              -- Unix time, when it was last about to be complete
        changed_at REAL NOT NULL,
        UNIQUE (identity, ordinal)
    )""",
)


@attrs.frozen
class SqliteFile:
    """A file that is open, and how to see that its path still leads to it."""

    connection: sqlite3.Connection
    name: str
    """The path as it was given, for messages."""
    path: Path
    identity: tuple[int, int]
    """Device and inode."""

    @classmethod
    def open(cls, path: str) -> SqliteFile:
        """Take a file, or make it.

        Raises:
            JournalInUse: Another batch, of whatever process, has it open.
            JournalError: It cannot be opened, or is something else.

        """
        # SQLite gives "" and ":memory:" a meaning of their own; an absolute path is always a file.
        full = Path(path).absolute()
        try:
            _check(full, path)
            return cls(_taken(full), path, full, _identity(full))
        except (sqlite3.Error, OSError, ValueError) as error:  # ValueError: what no path can hold
            if isinstance(error, JournalError):
                raise
            if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                raise JournalInUse(path, "is in use by another batch: wait for its end") from error
            raise JournalError(path, f"cannot be used: {error}") from error

    def check_place(self) -> None:
        """See that the path still leads to this file: else what is written would be lost.

        Raises:
            JournalError: The file was deleted or replaced.

        """
        try:
            is_same = _identity(self.path) == self.identity
        except OSError as error:
            raise JournalError(self.name, f"cannot be found any more: {error}") from error
        if not is_same:
            raise JournalError(self.name, "was replaced by another file while the batch ran")

    def close(self) -> None:
        """Close the file."""
        with suppress(sqlite3.Error):  # on a disk that is full; nothing that was committed is lost
            self.connection.close()


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _check(full: Path, path: str) -> None:
    """See that the file is new, or a journal, without changing what may be something else.

    Opening a file as usual changes what a process that crashed has left beside it. Reading it
    without SQLite would release the locks that this process has on it (fcntl).
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
    with closing(sqlite3.connect(f"{full.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise JournalError(path, "is a database of something else: name another file")
    if version != VERSION:
        fix = "finish its batch with the version that made it, or name another file"
        raise JournalError(path, f"has format {version} instead of {VERSION}: {fix}")


def _taken(full: Path) -> sqlite3.Connection:
    # In exclusive mode a second connection is refused at once, wherever it is.
    connection = sqlite3.connect(full, timeout=0, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = FULL")  # durable, also when the power fails
        connection.execute("PRAGMA fullfsync = ON")  # what FULL takes on macOS
        connection.execute("BEGIN EXCLUSIVE")
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            # Before WAL mode, so that all of it is in the file itself: see `_check`.
            for table in TABLES:
                connection.execute(table)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    except BaseException:
        connection.close()
        raise
    return connection
