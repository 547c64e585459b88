"""The journal of a batch in an SQLite file (the standard library's ``sqlite3``)."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self
from urllib.parse import quote

import attrs

from meeting_async._batch.journal import JournalEntry, JournalJob, State
from meeting_async._batch.writer import Commit, Write, Writer, journal_error
from meeting_async._log import logger
from meeting_async._system import in_use, name_problem
from meeting_async._text import short_repr
from meeting_async.errors import InvalidInput, JournalError, JournalInUse


class SqliteJournal:
    """A :class:`~meeting_async.journals.Journal` in a file, for one batch at a time.

    A job is marked as sent on the disk before the call returns (WAL mode, ``synchronous=FULL``).

    Args:
        path: The file; it is made if it does not exist. It must be on a local disk: SQLite's locks
            are not reliable on network drives.

    """

    def __init__(
        self, path: str | os.PathLike[str], *, now: Callable[[], float] = time.time
    ) -> None:
        self.path: str = os.fsdecode(path)
        self._now = now
        self._writer: Writer | None = None

    def __repr__(self) -> str:
        return f"SqliteJournal({self.path!r})"

    @asynccontextmanager
    async def opened(self, server: str) -> AsyncGenerator[Self, None]:
        """Hold the file open for a run.

        Raises:
            JournalInUse: Another batch, in any process, has it open.
            JournalError: It cannot be opened, is something else, or belongs to another server.

        """
        if self._writer is not None:
            raise JournalError(self.path, "is open already: one batch at a time")
        writer = self._writer = Writer(self.path, partial(_opened, self.path, server))
        try:
            await writer.open()
            yield self
        finally:
            try:
                await writer.close()
            finally:
                self._writer = None

    def register(self, job: JournalJob) -> Awaitable[JournalEntry]:
        """Find or make the entry of a job; see :meth:`Journal.register`."""
        return self._submit(_Register(job, self._now()))

    async def mark_sending(
        self,
        entry: JournalEntry,
        size: int | None,
        fingerprint: str | None,
        session: str = "",
        since: int | None = None,
    ) -> None:
        """Record durably that a document may arrive; see :meth:`Journal.mark_sending`."""
        facts = size, fingerprint, session, since
        await self._submit(_Update(entry.id, "sent", self._now(), None, *facts))

    async def record(self, entry: JournalEntry, state: State, reason: str | None) -> None:
        """Record the outcome of a job; see :meth:`Journal.record`."""
        await self._submit(_Update(entry.id, state, self._now(), reason))

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
    now: float
    reason: str | None = None
    size: int | None = None
    fingerprint: str | None = None
    session: str = ""
    since: int | None = None


@contextmanager
def _opened(path: str, server: str) -> Generator[Commit, None, None]:
    """Hold the file open; check that it belongs to the server."""
    # SQLite gives "" and ":memory:" a meaning of their own; an absolute path is always a file.
    # Beside a link, SQLite's other files are where the file itself is.
    with _explained(path):
        full = Path(os.path.realpath(path))
        _check_kind(full, path)
        connection = _taken(full)
    execute = connection.execute
    try:
        known = execute("SELECT base FROM servers").fetchone()
        if known is None:
            execute("INSERT INTO servers VALUES (?)", (server,))
        elif known[0] != server:
            raise JournalError(path, f"belongs to the server at {known[0]}: take one for {server}")
        (run,) = execute("SELECT coalesce(max(run), 0) + 1 FROM jobs").fetchone()
        yield _OpenFile(connection, path, full, int(run), _files(full)).commit
    finally:
        with suppress(sqlite3.Error):  # on a disk that is full; nothing that was committed is lost
            connection.close()


@attrs.define
class _OpenFile:
    """The file during a run of the batch."""

    _connection: sqlite3.Connection
    _name: str
    """The path as it was given, for errors."""
    _path: Path
    _number: int
    _seen: list[os.stat_result]
    """The journal's files, as they were after the last commit."""

    def commit(self, writes: Sequence[Write]) -> None:
        """Write all waiting entries durably."""
        try:
            self._check_files(are_unchanged=True)
            self._write(writes)
            self._check_files()
        except JournalError as error:
            for write in writes:
                write.error = journal_error(self._name, error)

    def _write(self, writes: Sequence[Write]) -> None:
        steps = ((_Register, self._register), (_Update, self._update))
        for kind, step in steps:
            share = [write for write in writes if type(write.request) is kind]
            try:
                if share:
                    step(share)
            except Exception as error:  # noqa: BLE001 - raised where the writes are awaited
                for write in share:
                    write.error = journal_error(self._name, error)

    def _register(self, writes: list[Write]) -> None:
        """Match the n-th job of an identity in this run with the n-th entry of the identity.

        Each statement acquires the interpreter's lock (GIL) again, and waits for it on a busy
        loop. So even thousands of jobs take four statements.
        """
        jobs: list[JournalJob] = [write.request.job for write in writes]
        now, execute = writes[-1].request.now, self._connection.execute
        spellings = [(job.identity, former) for job in jobs for former in job.former]
        for renamed in execute(_FORMER, (json.dumps(spellings),)).fetchall():
            execute(_RENAME, renamed)
        identities = json.dumps([job.identity for job in jobs])
        rows = []
        for position, ordinal in execute(_ORDINALS, (self._number, identities)):
            job = jobs[position]
            if ordinal and job.is_unique:
                writes[position].error = _used_before(job)
            else:
                rows.append([position, job.identity, ordinal, job.room_id, job.document])
        new = json.dumps(rows)
        execute(_CLAIM, (self._number, now, new))
        for position, entry_id, state, size, sent_at, *facts in execute(_FIND, (new,)):
            ago = 0.0 if sent_at is None else max(0.0, now - sent_at)
            writes[position].result = JournalEntry(entry_id, state, size, ago, *facts)

    def _update(self, writes: list[Write]) -> None:
        execute = self._connection.execute
        execute("BEGIN")
        try:
            self._connection.executemany(_UPDATE, [write.request._asdict() for write in writes])
            execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # a disk that is full may have ended it already
                execute("ROLLBACK")
            raise

    def _check_files(self, *, are_unchanged: bool = False) -> None:
        """Check that the files are those that were opened; otherwise entries would be lost.

        ``are_unchanged``: nothing was written since the last check.
        """
        try:
            found = _files(self._path)
        except OSError as error:
            raise JournalError(self._name, f"cannot be found any more: {error}") from error
        for before, now in zip(self._seen, found, strict=True):
            if (before.st_dev, before.st_ino) != (now.st_dev, now.st_ino):
                raise JournalError(self._name, "was replaced by another file while the batch ran")
            if are_unchanged and before.st_size != now.st_size:
                raise JournalError(self._name, "was changed by another program while the batch ran")
        self._seen = found


def _files(path: Path) -> list[os.stat_result]:
    """Look at the file and at its WAL; in exclusive mode SQLite has no third file."""
    return [Path(f"{path}{suffix}").stat() for suffix in ("", "-wal")]


def _used_before(job: JournalJob) -> InvalidInput:
    fix = "give every job of a room its own"
    key = json.loads(job.identity)["key"]
    return InvalidInput("key", short_repr(key), "was used in this batch before", fix)


# --- opening a file, without harm to files of another kind ---------------------------------------

APPLICATION_ID = 0x6D61736A
"""Marks a journal (``application_id`` in SQLite's file format)."""

VERSION = 4


@contextmanager
def _explained(path: str) -> Generator[None, None, None]:
    try:
        yield
    except JournalError:
        raise
    except (sqlite3.Error, OSError, ValueError) as error:  # ValueError: what no path can hold
        if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
            raise JournalInUse(path, "is in use by another batch: wait for its end") from error
        folder = Path(path).parent
        if isinstance(error, FileNotFoundError) and not folder.is_dir():
            reason = f"cannot be used: there is no folder {str(folder)!r}, make it first"
            raise JournalError(path, reason) from error
        fix = ": name another file" if str(error) == "file is not a database" else in_use(error)
        raise JournalError(path, f"cannot be used: {error}{fix}") from error


def _check_kind(full: Path, path: str) -> None:
    """Check that there is no file yet or a journal, without changing another kind of file.

    Opening a database normally changes the WAL file that a crashed process has left. Reading the
    file without SQLite would release the locks that this process has on it (fcntl).
    """
    if problem := name_problem(path):
        raise JournalError(path, f"cannot be used: it {problem}: name another file")
    try:
        status = full.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise JournalError(path, "is not a file: name one; it is made if it does not exist")
    if not os.access(full, os.R_OK | os.W_OK):
        raise JournalError(path, "may not be read and written by this process")
    if status.st_size == 0:  # no crash leaves that: see `_make`
        fix = "if not, delete it; then all documents count as new"
        raise JournalError(path, f"is empty: was it cut? {fix}")
    with closing(sqlite3.connect(_uri(full, "mode=ro&immutable=1"), uri=True)) as connection:
        # Amid a checkpoint the header counts pages that only the WAL has. Without this, SQLite
        # refuses such a file; with it, it reads the header alone.
        connection.execute("PRAGMA writable_schema = ON")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise JournalError(path, "is a database of something else: name another file")
    if version not in {3, VERSION}:
        fix = "finish its batch with the version that made it, or name another file"
        raise JournalError(path, f"has format {version} instead of {VERSION}: {fix}")


def _uri(full: Path, how: str) -> str:
    """Return the URI of a file for SQLite, which knows no host: that of a share is in the path."""
    name = quote(os.fsencode(full.as_posix()), safe="/:")
    return f"file://{'' if name.startswith('/') else '/'}{name}?{how}"


def _make(full: Path) -> None:
    """Make a journal beside its place, then put it there whole, unless there is one by now."""
    with TemporaryDirectory(prefix=".journal-", dir=full.parent) as folder:
        new = Path(folder, "new")
        # SQLite gives its other files the mode of this one, which holds room ids and names.
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with closing(sqlite3.connect(new, isolation_level=None)) as connection:
            for statement in _NEW:
                connection.execute(statement)
        try:
            os.link(new, full)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            new.rename(full)


def _taken(full: Path) -> sqlite3.Connection:
    if not full.exists():
        _make(full)
    # In exclusive mode a second connection is refused at once, wherever it is.
    name = _uri(full, "mode=rw")
    connection = sqlite3.connect(name, uri=True, timeout=0, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = FULL")  # durable, also when the power fails
        connection.execute("PRAGMA fullfsync = ON")  # what FULL takes on macOS
        connection.execute("BEGIN EXCLUSIVE")
        _upgrade(connection, full)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _upgrade(connection: sqlite3.Connection, full: Path) -> None:
    """Let a journal of the last version know sessions; what it has sent counts for all of them."""
    if connection.execute("PRAGMA user_version").fetchone() == (VERSION,):
        return
    (count,) = connection.execute("SELECT count(*) FROM jobs").fetchone()
    for statement in _TO_4:
        connection.execute(statement)
    if count:
        logger.info(
            "journal %s knows no sessions for its %d jobs: they count as sent to each",
            full,
            count,
            extra={"action": "Journal"},
        )


# --- statements ----------------------------------------------------------------------------------

_NEW = (
    "BEGIN",
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
    f"PRAGMA application_id = {APPLICATION_ID}",
    "PRAGMA user_version = 3",
    "COMMIT",
)

_TO_4 = (
    "ALTER TABLE jobs ADD COLUMN session TEXT NOT NULL DEFAULT ''",  # to which it was last sent
    "ALTER TABLE jobs ADD COLUMN since INTEGER",  # the server's time before that, in Unix seconds
    "PRAGMA user_version = 4",
)

_FORMER = """
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?)
    WHERE EXISTS (SELECT 1 FROM jobs WHERE identity = json_extract(value, '$[1]'))"""

_RENAME = """
    UPDATE jobs SET identity = ?1,
        ordinal = ordinal + (SELECT count(*) FROM jobs WHERE identity = ?1)
    WHERE identity = ?2"""

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
    SELECT json_extract(value, '$[0]'), jobs.id, state, size,
        CASE state WHEN 'accepted' THEN changed_at ELSE sent_at END, fingerprint, session, since
    FROM json_each(?) AS new CROSS JOIN jobs
    ON identity = json_extract(value, '$[1]') AND ordinal = json_extract(value, '$[2]')"""

_UPDATE = """
    UPDATE jobs SET state = :state, changed_at = :now, reason = :reason,
        size = CASE :state WHEN 'sent' THEN :size ELSE size END,
        fingerprint = CASE :state WHEN 'sent' THEN :fingerprint ELSE fingerprint END,
        session = CASE :state WHEN 'sent' THEN :session ELSE session END,
        since = CASE :state WHEN 'sent' THEN :since ELSE since END,
        sent_at = CASE :state WHEN 'sent' THEN :now ELSE sent_at END
    WHERE id = :id"""
