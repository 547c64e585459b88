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
from typing import Any, Literal

import attrs

from meeting_async._database import Database, Schema, opened
from meeting_async._documents import Document
from meeting_async._identity import identity_of, stamp_of
from meeting_async._limits import shown
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
            stamp TEXT,                -- of a file, when it was last looked at to be sent
            state TEXT NOT NULL,
            sent_at REAL,              -- Unix time when its end was last about to leave
            changed_at REAL NOT NULL,
            reason TEXT,
            UNIQUE (identity, ordinal)
        )""",
    ),
)

_IN_THE_ROOM = frozenset({"sent", "accepted", "unknown"})
"""States in which the room may have the document as it was then."""


@attrs.frozen(kw_only=True)
class Entry:
    """What the journal knows of a job when its turn comes."""

    id: int
    state: State
    size: int = 0
    """Bytes of the document when it was last about to be complete."""
    sent_ago: float = 0.0
    """Seconds since the document's end was last about to leave."""
    has_changed: bool = False
    """Whether the file is another one than it was then."""


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

    async def claim(self, room_id: str, document: Document, key: str | None) -> Entry:
        """Find the entry of a job, or make one. Jobs that are alike have one each, in turn.

        Raises:
            InvalidInput: The batch has come to another job of this key already.
            JournalError: The journal cannot be written.

        """
        if key is not None and (type(key) is not str or key == ""):
            raise InvalidInput("key", shown(key), "is no text", "give a str, or None")

        def claimed(connection: sqlite3.Connection) -> Entry:
            identity, stamp = identity_of(room_id, document, key), stamp_of(document)
            found = connection.execute(_FIND, (identity, self._run)).fetchone()
            if found is not None:
                return self._known(connection, found, stamp)
            (count,) = connection.execute(_COUNT, (identity,)).fetchone()
            if count and key is not None:
                fix = "give every job of a batch its own"
                raise InvalidInput("key", shown(key), "was used in this batch before", fix)
            values = (identity, count, self._run, room_id, document.filename, stamp, self._now())
            return Entry(id=connection.execute(_ADD, values).lastrowid or 0, state="ready")

        return await self._database.write(claimed, durable=False)

    def _known(
        self, connection: sqlite3.Connection, found: tuple[Any, ...], stamp: str | None
    ) -> Entry:
        number, state, size, sent_at, before = found
        kept = before if state in _IN_THE_ROOM else stamp
        connection.execute(_CLAIM, (self._run, kept, number))
        return Entry(
            id=number,
            state=state,
            size=size or 0,
            sent_ago=max(0.0, self._now() - (sent_at or 0.0)),
            has_changed=stamp is not None and stamp != kept,
        )

    async def intend(self, entry: Entry, size: int) -> None:
        """Note that the document is about to be complete at the server.

        Raises:
            JournalError: The journal cannot be written; then it must not be sent.

        """
        now = self._now()
        await self._database.write(lambda c: c.execute(_INTEND, (size, now, now, entry.id)))

    async def settle(self, entry: Entry, state: State, reason: str | None = None) -> None:
        """Note what became of a job.

        Raises:
            JournalError: The journal cannot be written.

        """
        values = (state, reason, self._now(), entry.id)
        is_end = state != "ready"  # whether a document is called sent for too long harms nobody
        await self._database.write(lambda c: c.execute(_SETTLE, values), durable=is_end)


_FIND = (
    "SELECT id, state, size, sent_at, stamp FROM jobs"
    " WHERE identity = ? AND run <> ? ORDER BY ordinal LIMIT 1"
)
_COUNT = "SELECT count(*) FROM jobs WHERE identity = ?"
_ADD = (
    "INSERT INTO jobs (identity, ordinal, run, room_id, document, stamp, state, changed_at)"
    " VALUES (?, ?, ?, ?, ?, ?, 'ready', ?)"
)
_CLAIM = "UPDATE jobs SET run = ?, stamp = ? WHERE id = ?"
_INTEND = (
    "UPDATE jobs SET state = 'sent', reason = NULL, size = ?, sent_at = ?, changed_at = ?"
    " WHERE id = ?"
)
_SETTLE = "UPDATE jobs SET state = ?, reason = ?, changed_at = ? WHERE id = ?"


@asynccontextmanager
async def journal_at(
    path: str | os.PathLike[str], server: str, now: Callable[[], float] = time.time
) -> AsyncGenerator[Journal, None]:
    """Open the journal of a batch for a server, or make it.

    Raises:
        JournalInUse: Another batch, of whatever process, has it open.
        JournalError: It cannot be opened, is something else, or is another server's.

    """
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
