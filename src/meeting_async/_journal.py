"""What a batch has done, on disk, so that its next run can go on from there.

That a document is about to be complete at the server is on disk *before* its closing boundary
leaves. So what the journal does not call sent was not delivered, and what it calls sent without an
answer is unknown, whenever and however the process ended.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Literal

import attrs

from meeting_async._database import Database, Schema, Write, opened
from meeting_async._documents import Document
from meeting_async._identity import identity_of, stamp_of
from meeting_async._limits import shown
from meeting_async._threads import in_thread
from meeting_async.errors import InvalidInput, JournalError

State = Literal["ready", "sent", "accepted", "refused", "failed", "unknown"]
"""``ready`` was not sent, or in vain; ``sent`` is out, or about to be, and has no answer."""

_SCHEMA = Schema(
    application_id=0x6D61736A,
    version=1,
    tables=(
        "CREATE TABLE servers (base TEXT NOT NULL)",
        """CREATE TABLE jobs (
            id INTEGER PRIMARY KEY,
            identity TEXT NOT NULL,    -- what tells jobs apart,
            ordinal INTEGER NOT NULL,  -- and those that nothing else tells apart
            run INTEGER NOT NULL,      -- the last run of the batch that came to it
            room_id TEXT NOT NULL,
            document TEXT NOT NULL,
            size INTEGER,              -- bytes, once it was measured
            stamp TEXT,                -- of a file, when its end was last about to leave
            state TEXT NOT NULL,
            sent_at REAL,              -- Unix time when its end was last about to leave
            changed_at REAL NOT NULL,
            reason TEXT,
            UNIQUE (identity, ordinal)
        )""",
    ),
    update="""UPDATE jobs SET
        state = new.state,
        reason = new.reason,
        size = coalesce(new.size, jobs.size),
        stamp = CASE new.state WHEN 'sent' THEN new.stamp ELSE jobs.stamp END,
        sent_at = coalesce(new.sent_at, jobs.sent_at),
        changed_at = new.changed_at
    FROM (SELECT
        json_extract(value, '$[0]') AS id,
        json_extract(value, '$[1]') AS state,
        json_extract(value, '$[2]') AS reason,
        json_extract(value, '$[3]') AS size,
        json_extract(value, '$[4]') AS stamp,
        json_extract(value, '$[5]') AS sent_at,
        json_extract(value, '$[6]') AS changed_at
        FROM json_each(?)) AS new
    WHERE jobs.id = new.id""",
)


@attrs.frozen(kw_only=True)
class Entry:
    """What the journal knew of a job when it was claimed."""

    id: int
    state: State
    size: int = 0
    """Bytes of the document when it was last about to be complete."""
    sent_at: float = 0.0
    """Unix time when its end was last about to leave."""
    stamp: str | None = None
    """The stamp of the file then."""


@attrs.define(eq=False)
class Journal:
    """The journal of a batch that is running."""

    _database: Database
    _run: int
    _now: Callable[[], float]

    @property
    def path(self) -> str:
        """Where it is."""
        return self._database.path

    def claim(self, room_id: str, document: Document, key: str | None) -> Write[Entry]:
        """Find the entry of a job, or make one; await the result when it is needed.

        Jobs that are alike have an entry each, in the order of their claims.

        Raises:
            InvalidInput: The batch has claimed another job of this key already.
            JournalError: The journal cannot be written.

        """

        def claimed(connection: sqlite3.Connection) -> Entry:
            _check_key(key)
            identity = identity_of(room_id, document, key)
            found = connection.execute(_FIND, (identity, self._run)).fetchone()
            if found is not None:
                connection.execute(_CLAIM, (self._run, found[0]))
                names = ("id", "state", "size", "sent_at", "stamp")
                return Entry(**dict(zip(names, found, strict=True)))
            (count,) = connection.execute(_COUNT, (identity,)).fetchone()
            if count and key is not None:
                fix = "give every job of a batch its own"
                raise InvalidInput("key", shown(key), "was used in this batch before", fix)
            values = (identity, count, self._run, room_id, document.filename, self._now())
            return Entry(id=connection.execute(_ADD, values).lastrowid or 0, state="ready")

        return self._database.submit(claimed, durable=False)

    def seconds_since_sent(self, entry: Entry) -> float:
        """Seconds since the document's end was last about to leave."""
        return max(0.0, self._now() - entry.sent_at)

    async def has_changed(self, entry: Entry, document: Document) -> bool:
        """Tell whether the file is another one than was sent; not, if nobody can tell."""
        stamp = await in_thread(lambda: stamp_of(document))
        return None not in (stamp, entry.stamp) and stamp != entry.stamp

    async def intend(self, entry: Entry, size: int, stamp: str | None) -> None:
        """Note that the document, of so many bytes, is about to be complete at the server.

        ``stamp`` is that of its file, see :func:`stamp_of_file`.

        Raises:
            JournalError: The journal cannot be written; then it must not be sent.

        """
        now = self._now()
        await self._database.update(entry.id, "sent", None, size, stamp, now, now)

    async def settle(self, entry: Entry, state: State, reason: str | None = None) -> None:
        """Note what became of a job.

        Raises:
            JournalError: The journal cannot be written.

        """
        await self._database.update(entry.id, state, reason, None, None, None, self._now())


def _check_key(key: object) -> None:
    if key is not None and (type(key) is not str or key == ""):
        raise InvalidInput("key", shown(key), "is no text", "give a str, or None")


_FIND = (
    "SELECT id, state, coalesce(size, 0), coalesce(sent_at, 0.0), stamp FROM jobs"
    " WHERE identity = ? AND run <> ? ORDER BY ordinal LIMIT 1"
)
_COUNT = "SELECT count(*) FROM jobs WHERE identity = ?"
_ADD = (
    "INSERT INTO jobs (identity, ordinal, run, room_id, document, state, changed_at)"
    " VALUES (?, ?, ?, ?, ?, 'ready', ?)"
)
_CLAIM = "UPDATE jobs SET run = ? WHERE id = ?"


@asynccontextmanager
async def journal_at(
    path: str | os.PathLike[str], server: str, now: Callable[[], float] = time.time
) -> AsyncGenerator[Journal, None]:
    """Open the journal of a batch for a server, or make it.

    Raises:
        JournalInUse: Another batch, of whatever process, has it open.
        JournalError: It cannot be opened, is something else, or is another server's.

    """
    if sqlite3.sqlite_version_info < (3, 33):  # for UPDATE ... FROM
        reason = f"needs SQLite 3.33 or later; this Python has {sqlite3.sqlite_version}"
        raise JournalError(os.fsdecode(path), reason)
    async with opened(path, _SCHEMA) as database:
        run = await database.write(lambda connection: _begun(connection, database.path, server))
        yield Journal(database, run, now)


def _begun(connection: sqlite3.Connection, path: str, server: str) -> int:
    """See whose journal it is and return the number of this run."""
    known = connection.execute("SELECT base FROM servers").fetchone()
    if known is None:
        connection.execute("INSERT INTO servers VALUES (?)", (server,))
    elif known[0] != server:
        raise JournalError(path, f"belongs to the server at {known[0]}: take one for {server}")
    (run,) = connection.execute("SELECT coalesce(max(run), 0) + 1 FROM jobs").fetchone()
    return int(run)
