"""The table of queued uploads, in the database of the job queue."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import anyio
import attrs
from procrastinate.connector import BaseConnector
from procrastinate.exceptions import ConnectorException

from meeting_async._batch.journal import JournalEntry, State
from meeting_async._models import Attempt, Verdict
from meeting_async.errors import JournalError
from meeting_async.procrastinate import _statements as sql

UPLOAD, RECOVER = "meeting_async:upload", "meeting_async:recover"
"""Names of the tasks: the same everywhere, so that a worker knows the jobs of other servers, too,
and puts them back."""

EXCHANGE_SECONDS = 10.0
"""Longest time for one statement."""

SETTLED_SECONDS = 10.0
"""For so long a job and its row may disagree: one is written after the other."""

LOST_SECONDS = 3600.0
"""The same for a row whose upload runs although its job was deleted: as long as an upload takes."""


def _loaded(value: Any) -> Any:
    """Return the value of a JSON column. Django's connections return its text."""
    return json.loads(value) if isinstance(value, str) else value


def _attempts(raw: str | Sequence[Sequence[Any]]) -> tuple[Attempt, ...]:
    found = tuple(Attempt(*facts) for facts in _loaded(raw))
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
    key: str | None = None
    filename: str | None = None
    content_type: str | None = None
    job_id: int = 0
    run: int = 0
    """Attempts of the job when the run began."""
    size: int | None = None
    fingerprint: str | None = None
    error: str | None = None
    """Class of the error."""
    reason: str | None = None
    """Text of the error."""
    attempts: tuple[Attempt, ...] = attrs.field(default=(), converter=_attempts)
    retry: Mapping[str, Any] | None = attrs.field(default=None, converter=_loaded)
    started_ago: float = 0.0
    sent_ago: float | None = None
    troubled_ago: float | None = None
    """Seconds since the server was first not reached; ``None``: it was reached the last time."""
    deferred_at: datetime
    started_at: datetime | None
    """When it was first claimed."""
    changed_at: datetime

    @property
    def entry(self) -> JournalEntry:
        """The same as an entry of a journal."""
        return JournalEntry(self.id, self.state, self.size, self.sent_ago or 0.0, self.fingerprint)


def packed(attempts: Sequence[Attempt]) -> str:
    """Return attempts as JSON for the table; of a long outage only the first and the last ones."""
    unsent = [at for at, one in enumerate(attempts) if one.verdict is Verdict.NEVER_SENT]
    left_out = set(unsent[10:-40])
    kept = [attempt for at, attempt in enumerate(attempts) if at not in left_out]
    return json.dumps([attrs.astuple(attempt) for attempt in kept])


@attrs.frozen(kw_only=True)
class RoomStatus:
    """What is queued for a room."""

    room_id: str
    waiting: int
    scheduled: int
    """Documents whose time has not come."""
    running: int
    oldest: float
    """Seconds for which the oldest one is queued; negative: until its time."""
    cause: str | None
    """Why the last run was put back; ``None``: there was none."""


@attrs.frozen
class QueueStatus:
    """What is queued for a server."""

    workers: int
    """Workers that have sent a heartbeat lately, of all queues of the database."""
    rooms: Sequence[RoomStatus]
    """The one with the oldest document first."""

    @property
    def waiting(self) -> int:
        """Documents that wait."""
        return sum(room.waiting for room in self.rooms)

    @property
    def scheduled(self) -> int:
        """Documents whose time has not come."""
        return sum(room.scheduled for room in self.rooms)

    @property
    def running(self) -> int:
        """Documents that are being sent."""
        return sum(room.running for room in self.rooms)

    @property
    def oldest(self) -> float | None:
        """Seconds for which the oldest document is queued; ``None``: nothing is due."""
        ages = [room.oldest for room in self.rooms if room.waiting or room.running]
        return max(ages, default=None)

    @property
    def causes(self) -> Mapping[str, int]:
        """Why documents wait, and how many, those behind them included."""
        causes = Counter[str]()
        for room in self.rooms:
            if room.waiting:
                causes[room.cause or "their turn, or a worker"] += room.waiting
        return dict(causes.most_common())


@attrs.define(eq=False)
class Table:
    """The rows of one server. Every method raises `JournalError` if the database fails."""

    connector: BaseConnector
    server: str
    queue: str
    _is_checked: bool = attrs.field(default=False, init=False)
    """Whether the table was seen to have the columns that are needed."""

    async def apply_schema(self) -> bool:
        """Make the table, or change one of an earlier version; False if it was as it is now."""
        found = await self._version()
        if found is not None and found > sql.VERSION:
            raise unusable(_too_new(found))
        await self._query(f"{sql.ONE_AT_A_TIME}; {sql.SCHEMA}", rows=False, check=False)
        return found != sql.VERSION

    async def _version(self) -> int | None:
        """Return the version of the table; ``None`` if it is not there."""
        (found,) = await self._query(sql.FIND_VERSION, check=False)
        digits = (found["comment"] or "").removeprefix("meeting-async, version ")
        if not found["is_there"]:
            return None
        return int(digits) if digits.isdecimal() else 0

    async def check(self) -> None:
        """Check that the table is there, and of the right version."""
        if not self._is_checked:
            found = await self._version()
            if found is None:
                raise unusable(f"does not exist; {_HOW_TO_APPLY}")
            if found < sql.VERSION:
                raise unusable(f"has version {found}: stop all workers, {_HOW_TO_APPLY}")
            if found > sql.VERSION:
                raise unusable(_too_new(found))
            self._is_checked = True

    # --- deferring -------------------------------------------------------------------------------

    async def defer(
        self, batch: str, jobs: Sequence[Mapping[str, object]], connection: Any = None
    ) -> list[int]:
        """Add uploads; those that are there already are not. Return the ids of the new ones.

        They are stored when this returns, or with the caller's transaction.
        """
        rows = json.dumps([{**job, "position": at} for at, job in enumerate(jobs)])
        found = await self._query(sql.DEFER, connection, batch=batch, jobs=rows)
        if found:
            await self.advance({row["room_id"] for row in found}, connection)
        return [row["id"] for row in found]

    async def advance(self, rooms: Iterable[str], connection: Any = None) -> None:
        """Make the job of the next upload in each room that has none."""
        await self._query(
            sql.ADVANCE, connection, rooms=sorted(rooms), queue=self.queue, task=UPLOAD
        )

    async def analyse(self) -> None:
        """Tell PostgreSQL how long the queue has become, so that it finds the best plans."""
        await self._query("ANALYZE procrastinate_jobs, meeting_async_uploads", rows=False)

    # --- a run -----------------------------------------------------------------------------------

    async def claim(self, upload_id: int, job_id: int, run: int) -> Row | None:
        """Begin a run; ``None``: there is nothing to send, or the job has another run by now."""
        found = await self._query(sql.CLAIM, id=upload_id, job_id=job_id, run=run)
        return Row(**found[0]) if found else None

    async def find(self, upload_id: int) -> Mapping[str, Any] | None:
        """Return state, server, job and progress of an upload; ``None`` if it was dropped."""
        found = await self._query(sql.FIND, id=upload_id)
        return found[0] if found else None

    async def mark_sending(self, row: Row, size: int | None, fingerprint: str | None) -> bool:
        """Record durably that the closing boundary is about to be sent; False: not any more."""
        return await self._change(sql.MARK, row, size=size, fingerprint=fingerprint)

    async def finish(self, row: Row, **outcome: Any) -> bool:
        """Record the outcome of a run; False if another run owns the row."""
        return await self._change(sql.FINISH, row, **outcome)

    async def release(self, row: Row, **progress: Any) -> bool:
        """End a run without an outcome; False if another run owns the row."""
        return await self._change(sql.RELEASE, row, **progress)

    async def _change(self, query: str, row: Row, **facts: Any) -> bool:
        return bool(await self._query(query, id=row.id, job_id=row.job_id, run=row.run, **facts))

    async def later(self, seconds: float) -> datetime:
        """Return a moment by the database's clock."""
        (found,) = await self._query(sql.LATER, seconds=seconds)
        at: datetime = found["at"]
        return at

    # --- recovery --------------------------------------------------------------------------------

    async def recover(self, *, stalled_after: float, resends: bool) -> Mapping[int, State]:
        """End or put back the runs of lost workers, and return what they had come to."""
        found = await self._query(
            sql.RECOVER,
            task=UPLOAD,
            stalled_after=stalled_after,
            settled_after=SETTLED_SECONDS,
            resends=resends,
            reason="its worker was lost after the document may have been complete",
        )
        return {row["upload"]: row["state"] for row in found}

    async def end_cancelled(self) -> int:
        """Give an outcome to uploads whose job was cancelled or deleted, and return how many."""
        return len(
            await self._query(
                sql.END_CANCELLED, settled_after=SETTLED_SECONDS, lost_after=LOST_SECONDS
            )
        )

    async def advance_all(self) -> None:
        """Make the jobs that are missing: a process has died, or an upload has become due."""
        rooms = [row["room_id"] for row in await self._query(sql.WAITING_ROOMS)]
        for at in range(0, len(rooms), _CHUNK):
            await self.advance(rooms[at : at + _CHUNK])

    async def clean(self, job_id: int) -> None:
        """Delete the ended jobs of recovery before this one."""
        await self._query(sql.CLEAN, rows=False, id=job_id)

    # --- results ---------------------------------------------------------------------------------

    async def page(self, batch: str, after: int, limit: int) -> list[Row]:
        """Return rows of a batch in the order in which they were deferred."""
        found = await self._query(sql.PAGE, batch=batch, after=after, limit=limit)
        return [Row(**row) for row in found]

    async def drop(self, batch: str) -> int:
        """Delete the rows of a batch that no job will change, and return how many."""
        return len(await self._query(sql.DROP, batch=batch))

    # --- by hand ---------------------------------------------------------------------------------

    async def status(self, batch: str | None, stalled_after: float) -> QueueStatus:
        """Return what has no outcome yet, by room."""
        rows = await self._query(sql.STATUS, batch=batch)
        (found,) = await self._query(sql.WORKERS, stalled_after=stalled_after)
        return QueueStatus(found["workers"], [RoomStatus(**row) for row in rows])

    async def retry(self, batch: str, room_id: str | None, *, resend: bool) -> int:
        """Queue again what has failed, and return how many."""
        found = await self._query(sql.RETRY, batch=batch, room_id=room_id, resend=resend)
        return await self._advanced(found)

    async def cancel(self, batch: str, room_id: str | None) -> int:
        """Give up what has no outcome, and return how many."""
        return await self._advanced(await self._query(sql.CANCEL, batch=batch, room_id=room_id))

    async def _advanced(self, changed: Sequence[Mapping[str, Any]]) -> int:
        await self.advance({row["room_id"] for row in changed})
        return len(changed)

    async def _query(
        self,
        query: str,
        connection: Any = None,
        *,
        rows: bool = True,
        check: bool = True,
        **arguments: Any,
    ) -> Sequence[Mapping[str, Any]]:
        if check:
            await self.check()
        connector: Any = self.connector
        run = connector.execute_query_all_async if rows else connector.execute_query_async
        if connection is not None:
            run = partial(connector.execute_query_all_async_with_connection, connection)
        try:
            with anyio.fail_after(EXCHANGE_SECONDS):
                result = await run(query, server=self.server, **arguments)
        except TimeoutError:
            raise unusable(f"does not answer within {EXCHANGE_SECONDS:g} s") from None
        except ConnectorException as error:
            cause = error.__cause__ or error
            if type(cause).__name__ in {"UndefinedTable", "UndefinedColumn", "UndefinedFunction"}:
                raise unusable(f"cannot be used: {cause}; {_HOW_TO_APPLY}") from error
            raise unusable(f"cannot be used: {type(cause).__name__}: {cause}") from error
        return result or ()


def unusable(reason: str, error: type[JournalError] = JournalError) -> JournalError:
    """Return the error for a table that cannot be used; ``reason`` begins with a verb."""
    return error("meeting_async_uploads", reason, "queue's table")


_HOW_TO_APPLY = "run `meeting-async queue apply-schema`"
_CHUNK = 1000


def _too_new(found: int) -> str:
    return f"has version {found}, and this package knows {sql.VERSION}: update the package"
