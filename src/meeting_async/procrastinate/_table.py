"""The table of queued uploads, and what its statements are for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import attrs
import procrastinate
from procrastinate.exceptions import UniqueViolation

from meeting_async._batch.journal import JournalEntry, State
from meeting_async._delivery.evidence import Accepted
from meeting_async._models import UNREACHED, Attempt, Verdict
from meeting_async.errors import (
    JournalError,
    JournalInUse,
    MeetingError,
    UploadFailed,
    UploadOutcomeUnknown,
)
from meeting_async.procrastinate._database import (
    PATIENCE_SECONDS,
    SESSION_MODE,
    SQL,
    Database,
    Rows,
    failures_told,
    unusable,
)
from meeting_async.procrastinate._stored import rebuilt, stored

TICK = "meeting_async:tick"
"""Name of the task: a room has work."""

CANCELLED = "it was cancelled"

VERSION = 5
"""Of the table, as its comment has it."""

CHUNK = 1000
"""Uploads, or rooms, of one statement."""

MAX_TICKS = 10_000
"""Rooms that one recovery ticks; the next one goes on."""


SCHEMA: str = SQL["schema"]
"""SQL that makes the table of uploads and its indexes, if they are not there."""


def _json(value: Any) -> Any:
    """Return the value of a JSON column. Django's connections return its text."""
    return json.loads(value) if isinstance(value, str) else value


def _error(raw: Any) -> MeetingError | None:
    return rebuilt(_json(raw))


def _history(raw: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _json(raw) or {}
    return found


def _attempts(raw: str | Sequence[Sequence[Any]]) -> tuple[Attempt, ...]:
    found = tuple(Attempt(*facts) for facts in _json(raw))
    return tuple(attrs.evolve(attempt, verdict=Verdict(attempt.verdict)) for attempt in found)


@attrs.frozen(kw_only=True)
class Row:
    """An upload, as it is in the table. Ages are seconds."""

    id: int
    room_id: str
    kind: str
    """``path``, ``link`` or ``reference``."""
    source: str
    """The path, the link, or the text that your function turns into a document."""
    state: State
    key: str | None
    filename: str | None
    content_type: str | None
    run: int = 0
    size: int | None
    fingerprint: str | None = None
    error: MeetingError | None = attrs.field(default=None, converter=_error)
    attempts: tuple[Attempt, ...] = attrs.field(converter=_attempts)
    history: Mapping[str, Any] = attrs.field(default=None, converter=_history)
    started_ago: float = 0.0
    sent_ago: float | None
    away_for: float | None = None
    """Seconds since the server was first not reached; ``None``: it was reached the last time."""
    due_for: float | None = None
    """Seconds since the time of one that has not begun; negative: until then; ``None``: no time."""
    deferred_at: datetime
    started_at: datetime | None
    """When it was first claimed."""
    changed_at: datetime

    @property
    def session(self) -> str:
        """The session that has its document, or to which it was sent last; ``""``: not known."""
        sent = self.history.get("sent") or {}
        last = self.attempts[-1].session if self.attempts else ""
        return str(sent.get("session") or last)

    @property
    def entry(self) -> JournalEntry:
        """The same as an entry of a journal."""
        return JournalEntry(self.id, self.state, self.size, self.sent_ago or 0.0, self.fingerprint)


def packed(attempts: Sequence[Attempt]) -> str:
    """Return attempts as JSON for the table; of a long outage only the first and the last ones."""
    unsent = [at for at, one in enumerate(attempts) if one.verdict in UNREACHED]
    left_out = set(unsent[10:-40])
    kept = [attempt for at, attempt in enumerate(attempts) if at not in left_out]
    return json.dumps([attrs.astuple(attempt) for attempt in kept])


@attrs.define(eq=False)
class Table:
    """The rows of one server. Every method raises `JournalError` if the database fails."""

    app: procrastinate.App
    server: str
    queue: str
    unfinished: set[int] = attrs.field(factory=set, init=False)
    """Ticks that have run here, and could not be deleted because they were locked."""
    _is_checked: bool = False
    """Whether the table was seen to be there, and of this version."""
    _database: Database = attrs.field(
        default=attrs.Factory(lambda self: Database(self.app), takes_self=True), init=False
    )

    async def apply_schema(self) -> bool:
        """Make the table; False if it was there."""
        found = await self._found()
        if found["is_there"]:
            _check_version(found["comment"])
            return False
        # One at a time, also beside another program.
        schema = f"{SQL['lock_schema']}\n{SCHEMA}"
        await self._database.execute(schema, rows=False, patience=PATIENCE_SECONDS)
        return True

    async def check(self) -> None:
        """Check that the tables are there, and ours of the right version."""
        if not self._is_checked:
            found = await self._found()
            if not found["is_there"]:
                raise unusable(f"does not exist; {_HOW_TO_APPLY}")
            if not found["has_jobs"]:
                raise unusable(f"has no tables of procrastinate beside it; {_HOW_TO_APPLY}")
            _check_version(found["comment"])
            self._is_checked = True

    async def check_sessions(self) -> None:
        """Check that no pooler gives each transaction another session: statements are prepared."""
        pool: Any = getattr(self.app.connector, "pool", None)
        if getattr(pool, "max_size", 0) < 2:
            return
        name, value = "meeting_async.session", os.urandom(8).hex()
        async with failures_told(), pool.connection() as one, pool.connection() as two:
            await one.execute("SELECT set_config(%s, %s, false)", [name, value])
            await one.commit()
            async with two.transaction():
                await two.execute("SELECT 1")
                found = await one.execute("SELECT current_setting(%s, true)", [name])
                is_same = (await found.fetchone())[0] == value
        if not is_same:
            raise unusable(f"is behind a pooler in transaction mode; {SESSION_MODE}")

    async def _found(self) -> Mapping[str, Any]:
        (found,) = await self._database.execute(SQL["find_version"])
        return found

    # --- deferring -------------------------------------------------------------------------------

    async def defer(
        self, batch: str, jobs: Sequence[Mapping[str, object]], connection: Any = None
    ) -> list[int]:
        """Add uploads; those that are there already are not. Return the ids of the new ones.

        They are stored when this returns, or with the caller's transaction; recovery then ticks
        their rooms.
        """
        rows = json.dumps([{**job, "position": at} for at, job in enumerate(jobs)])
        found = await self._call("defer", connection, batch=batch, jobs=rows)
        if not all(job["due_at"] for job in jobs):
            await self.tick((row["room_id"] for row in found), connection)
        return [row["id"] for row in found]

    async def tick(self, rooms: Iterable[str], connection: Any = None) -> None:
        """Say that at most ``CHUNK`` rooms have work. If that fails, recovery says it."""
        with suppress(JournalError):
            await self._ticked(await self._query("tick", connection, rooms=[*set(rooms)]))

    async def _ticked(self, ticks: Sequence[object]) -> None:
        if len(ticks) >= CHUNK // 10:
            await self.analyse("procrastinate_jobs")

    async def analyse(self, table: str = "meeting_async_uploads") -> None:
        """Tell PostgreSQL how long a table has become, so that it finds the best plans."""
        with suppress(JournalError):
            await self._database.execute(f"ANALYZE (SKIP_LOCKED) {table}", rows=False)

    # --- a run -----------------------------------------------------------------------------------

    async def claim(self, room_id: str) -> Row | None:
        """Begin a run of the room's next upload.

        ``None``: there is nothing to send now, or somebody has locked it. Then recovery ticks the
        room again.
        """
        try:
            found = await self._query("claim", room_id=room_id)
        except JournalInUse:
            return None
        except JournalError as error:
            if isinstance(error.__cause__, UniqueViolation):  # another worker was faster
                return None
            raise
        return Row(**found[0]) if found else None

    async def mark_sending(
        self, row: Row, size: int | None, fingerprint: str | None, history: str
    ) -> bool:
        """Record durably that the closing boundary is about to be sent; False: not any more."""
        facts: dict[str, Any] = {"room_id": row.room_id, "size": size, "fingerprint": fingerprint}
        return bool(await self._query("mark", id=row.id, run=row.run, history=history, **facts))

    async def accepted_before(self, row: Row, session: str) -> list[Accepted]:
        """Return some documents that were accepted, of the session first; the newest first."""
        found = await self._query("accepted", id=row.id, session=session, limit=CHUNK // 2)
        return [Accepted(**facts) for facts in found]

    async def end(self, row: Row, **outcome: Any) -> bool:
        """Record the end of a run, and tick its room; False if the run has lost the row."""
        facts = {"id": row.id, "run": row.run, **outcome}
        try:
            return bool(await self._query("end", ticks=True, **facts))
        except JournalInUse:  # perhaps only the tick is locked; recovery makes it, too
            found = await self._query("end", ticks=False, **facts)
            await self.tick([row.room_id])
            return bool(found)

    async def beat(self, rows: Iterable[Row], worker_id: int | None) -> Mapping[int, bool]:
        """Say that a worker and its runs go on; return the ids of those that have lost their row.

        True: it was cancelled; False: another worker has it, or may have it. A row that somebody
        has locked is not lost, and has its next beat.
        """
        runs = {row.id: row.run for row in rows}
        ids: dict[str, Any] = {"ids": list(runs), "runs": list(runs.values())}
        found = await self._query("beat", cancelled=CANCELLED, worker_id=worker_id, **ids)
        return {row["id"]: row["is_cancelled"] for row in found}

    # --- recovery --------------------------------------------------------------------------------

    async def recover(self, *, stalled_after: float, resends: bool) -> Mapping[int, State]:
        """End the runs of lost workers, return what they had come to, and tick all due rooms.

        ``resends``: what may have arrived runs again, to be settled or sent; else it is unknown.

        A worker is lost if its run had no beat for so long, and after that was seen none for a
        third of that time: a row that was locked, or a clock that jumps, is no loss.
        """
        reason = "its worker was lost after the document may have been complete"
        unknown = stored(UploadOutcomeUnknown(reason, None, None, 0.0))
        found = await self._query(
            "recover_runs", stalled_after=stalled_after, resends=resends, error=unknown
        )
        await self._query("suspect_runs", rows=False, stalled_after=stalled_after)
        with suppress(JournalInUse):  # other rooms go on
            await self._query("recover_ticks", rows=False, stalled_after=stalled_after)
            await self._query("delete_ticks", rows=False)
            if ids := [*self.unfinished]:
                left = await self._query("finish_ticks", ids=ids)
                self.unfinished -= {*ids} - {row["id"] for row in left}
        await self._ticked(await self._query("recover_rooms", limit=MAX_TICKS))
        return {row["id"]: row["state"] for row in found}

    # --- results ---------------------------------------------------------------------------------

    async def page(self, batch: str, after: int) -> list[Row]:
        """Return rows of a batch in the order in which they were deferred."""
        found = await self._call("page", batch=batch, after=after, limit=CHUNK)
        return [Row(**row) for row in found]

    async def status(self, batch: str | None) -> Rows:
        """Return what has no outcome yet, by room."""
        return await self._call("status", batch=batch)

    async def workers(self, stalled_after: float) -> int:
        """Return how many workers there are, of all queues."""
        (found,) = await self._call("workers", stalled_after=stalled_after)
        return int(found["workers"])

    # --- by hand ---------------------------------------------------------------------------------

    async def drop(self, batch: str) -> int:
        """Delete the rows of a batch that have an outcome, and return how many."""
        return await self._change_all("drop", batch=batch)

    async def retry(self, batch: str, room_id: str | None, *, resend: bool) -> int:
        """Queue again what has failed, and return how many."""
        return await self._change_all("retry", batch=batch, room_id=room_id, resend=resend)

    async def cancel(self, batch: str, room_id: str | None) -> int:
        """Give up what has no outcome, and return how many."""
        errors = {
            "unknown": stored(UploadOutcomeUnknown(CANCELLED, None, None, 0.0)),
            "failed": stored(UploadFailed("UploadCancelled", CANCELLED)),
        }
        facts = {"batch": batch, "room_id": room_id, "cancelled": CANCELLED}
        return await self._change_all("cancel", **facts, **errors)

    async def _change_all(self, name: str, **facts: Any) -> int:
        """Go once through the rows of a batch, change them in chunks, and tick their rooms."""
        count = after = 0
        while found := await self._call(name, limit=CHUNK, after=after, **facts):
            count, after = count + len(found), max(row["id"] for row in found)
            if name != "drop":
                await self.tick(row["room_id"] for row in found)
        return count

    # --- the database ----------------------------------------------------------------------------

    async def _call(self, name: str, connection: Any = None, **arguments: Any) -> Rows:
        """Run a statement for a caller, who waits a while for others and learns who they are."""
        return await self._query(name, connection, patience=PATIENCE_SECONDS, **arguments)

    async def _query(
        self,
        name: str,
        connection: Any = None,
        *,
        rows: bool = True,
        patience: float = 0.0,
        **arguments: Any,
    ) -> Rows:
        await self.check()
        common = {"server": self.server, "queue": self.queue, "task": TICK}
        facts: dict[str, Any] = {"patience": patience, **common, **arguments}
        return await self._database.execute(SQL[name], connection, rows=rows, **facts)


def _check_version(comment: str | None) -> None:
    version = (comment or "").removeprefix("meeting-async, version ") or "unknown"
    if version != str(VERSION):
        raise unusable(
            f"has version {version}, and this package needs {VERSION}: use the package that made "
            f"it, or drop the table when its uploads have ended and {_HOW_TO_APPLY}"
        )


_HOW_TO_APPLY = "run `meeting-async queue apply-schema`"
