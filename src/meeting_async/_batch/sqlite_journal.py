"""The journal of a batch in an SQLite file (the standard library's ``sqlite3``)."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import NamedTuple, Self

import attrs

from meeting_async._batch.journal import JournalEntry, JournalJob, State
from meeting_async._batch.sqlite_file import SqliteFile
from meeting_async._batch.writer import Commit, Write, Writer, journal_error
from meeting_async._text import short_repr
from meeting_async.errors import InvalidInput, JournalError


class SqliteJournal:
    """A :class:`~meeting_async.Journal` in a file that one batch at a time has to itself.

    What is marked as sent is on the disk before the call returns (WAL mode, ``synchronous=FULL``).

    Args:
        path: The file, or one to be made. Put it on a disk of this machine: SQLite's locks are not
            reliable on network drives.

    """

    def __init__(
        self, path: str | os.PathLike[str], *, now: Callable[[], float] = time.time
    ) -> None:
        self.path = os.fsdecode(path)
        self._now = now
        self._writer: Writer | None = None

    def __repr__(self) -> str:
        return f"SqliteJournal({self.path!r})"

    @asynccontextmanager
    async def opened(self, server: str) -> AsyncGenerator[Self, None]:
        """Hold the file open for a run.

        Raises:
            JournalInUse: Another batch, of whatever process, has it open.
            JournalError: It cannot be opened, is something else, or belongs to another server.

        """
        if sqlite3.sqlite_version_info < (3, 33):  # for UPDATE ... FROM
            reason = f"needs SQLite 3.33 or later; this Python has {sqlite3.sqlite_version}"
            raise JournalError(self.path, reason)
        if self._writer is not None:
            raise JournalError(self.path, "is open already: one batch at a time")
        self._writer = Writer(self.path, partial(_opened, self.path, server))
        try:
            await self._writer.open()
            try:
                yield self
            finally:
                await self._writer.close()
        finally:
            self._writer = None

    async def load(self, seconds: float) -> Mapping[str, float]:
        """Return the rooms in doubt; see :meth:`Journal.load`."""
        now = self._now()
        found: list[tuple[str, float]] = await self._submit(_Load(now - seconds))
        return {room: max(0.0, now - sent_at) for room, sent_at in found}

    def register(self, job: JournalJob) -> Awaitable[JournalEntry]:
        """Find or make the entry of a job; see :meth:`Journal.register`."""
        return self._submit(_Register(job, self._now()))

    async def mark_sending(
        self, entry: JournalEntry, size: int | None, fingerprint: str | None
    ) -> None:
        """Have it on the disk that a document may arrive; see :meth:`Journal.mark_sending`."""
        now = self._now()
        await self._submit(_Update(entry.id, "sent", None, size, fingerprint, now, now))

    async def record(self, entry: JournalEntry, state: State, reason: str | None) -> None:
        """Write what became of a job; see :meth:`Journal.record`."""
        await self._submit(_Update(entry.id, state, reason, None, None, None, self._now()))

    def _submit(self, request: object) -> Write:
        if self._writer is None:
            raise JournalError(self.path, "is not open")
        return self._writer.submit(request)


# --- in the writer's thread ----------------------------------------------------------------------


class _Register(NamedTuple):
    job: JournalJob
    now: float


class _Update(NamedTuple):
    id: int
    state: State
    reason: str | None
    size: int | None
    fingerprint: str | None
    sent_at: float | None
    changed_at: float


class _Load(NamedTuple):
    since: float


@contextmanager
def _opened(path: str, server: str) -> Generator[Commit, None, None]:
    """Hold the file open; see that it belongs to the server."""
    file = SqliteFile.open(path)
    execute = file.connection.execute
    try:
        known = execute("SELECT base FROM servers").fetchone()
        if known is None:
            execute("INSERT INTO servers VALUES (?)", (server,))
        elif known[0] != server:
            raise JournalError(path, f"belongs to the server at {known[0]}: take one for {server}")
        (run,) = execute("SELECT coalesce(max(run), 0) + 1 FROM jobs").fetchone()
        yield _Run(file, int(run)).commit
    finally:
        file.close()


@attrs.define
class _Run:
    """The file during a run of the batch.

    Each statement takes the interpreter's lock again, and on a busy loop waits for it. So any
    number of rows takes the same few statements.
    """

    _file: SqliteFile
    _number: int
    _is_syncing: bool = True
    """Whether a commit waits for the disk, as it is set."""

    def commit(self, writes: Sequence[Write]) -> None:
        """Write what has gathered. Register first: a job waits for that, but not for the disk."""
        steps = ((_Register, self._register), (_Update, self._update), (_Load, self._load))
        for kind, step in steps:
            share = [write for write in writes if type(write.request) is kind]
            try:
                if share:
                    step(share)
            except Exception as error:  # noqa: BLE001 - raised where the writes are awaited
                for write in share:
                    write.error = journal_error(self._file.name, error)

    def _register(self, writes: list[Write]) -> None:
        """Match the n-th job of an identity in this run with the n-th entry of the identity."""
        jobs: list[JournalJob] = [write.request.job for write in writes]
        now, execute = writes[-1].request.now, self._file.connection.execute
        identities = json.dumps([job.identity for job in jobs])
        rows = []
        for position, ordinal in execute(_ORDINALS, (self._number, identities)):
            job = jobs[position]
            if ordinal and job.is_unique:
                writes[position].error = _used_before(job)
            else:
                rows.append([position, job.identity, ordinal, job.room_id, job.document])
        self._sync(on=False)
        execute(_CLAIM, (self._number, now, json.dumps(rows)))
        for position, entry_id, state, size, sent_at, fingerprint in execute(
            _FIND, (json.dumps(rows),)
        ):
            ago = 0.0 if sent_at is None else max(0.0, now - sent_at)
            entry = JournalEntry(entry_id, state, size, ago, fingerprint)
            writes[position].result = entry

    def _update(self, writes: list[Write]) -> None:
        """Update entries, durably if one of them is about to be sent; the last update wins."""
        updates: dict[int, _Update] = {write.request.id: write.request for write in writes}
        is_durable = any(write.request.state == "sent" for write in writes)
        if is_durable:
            self._file.check_place()
        self._sync(on=is_durable)
        self._file.connection.execute(_UPDATE, (json.dumps(list(updates.values())),))

    def _load(self, writes: list[Write]) -> None:
        for write in writes:
            found = self._file.connection.execute(_IN_DOUBT, (write.request.since,))
            write.result = found.fetchall()

    def _sync(self, *, on: bool) -> None:
        """Let the next commit wait for the disk or not; in WAL mode one waits for all before it."""
        if on != self._is_syncing:
            self._file.connection.execute(f"PRAGMA synchronous = {'FULL' if on else 'NORMAL'}")
            self._is_syncing = on


def _used_before(job: JournalJob) -> InvalidInput:
    fix = "give every job of a batch its own"
    key = json.loads(job.identity)["key"]
    return InvalidInput("key", short_repr(key), "was used in this batch before", fix)


_ORDINALS = """
    SELECT key, row_number() OVER (PARTITION BY value ORDER BY key) - 1
        + (SELECT count(*) FROM jobs WHERE identity = value AND run = ?)
    FROM json_each(?) ORDER BY key"""

_CLAIM = """
    INSERT INTO jobs (identity, ordinal, room_id, document, state, run, changed_at)
    SELECT json_extract(value, '$[1]'), json_extract(value, '$[2]'),
        json_extract(value, '$[3]'), json_extract(value, '$[4]'), 'ready', ?, ?
    FROM json_each(?) WHERE true
    ON CONFLICT (identity, ordinal) DO UPDATE SET run = excluded.run"""

_FIND = """
    SELECT json_extract(value, '$[0]'), jobs.id, state, size, sent_at, fingerprint
    FROM json_each(?) AS new CROSS JOIN jobs
    ON identity = json_extract(value, '$[1]') AND ordinal = json_extract(value, '$[2]')"""

_UPDATE = """
    UPDATE jobs SET state = new.state, reason = new.reason, changed_at = new.changed_at,
        size = iif(new.state = 'sent', new.size, jobs.size),
        fingerprint = iif(new.state = 'sent', new.fingerprint, jobs.fingerprint),
        sent_at = coalesce(new.sent_at, jobs.sent_at)
    FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS state,
        json_extract(value, '$[2]') AS reason, json_extract(value, '$[3]') AS size,
        json_extract(value, '$[4]') AS fingerprint, json_extract(value, '$[5]') AS sent_at,
        json_extract(value, '$[6]') AS changed_at FROM json_each(?)) AS new
    WHERE jobs.id = new.id"""

_IN_DOUBT = """
    SELECT room_id, max(sent_at) FROM jobs
    WHERE state IN ('sent', 'unknown') AND sent_at > ? GROUP BY room_id"""
