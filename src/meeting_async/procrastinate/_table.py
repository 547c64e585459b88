"""The table of queued uploads, in the database of the job queue.

Each run of an upload has a number (column ``run``). A row is only changed by the run that owns it,
so a worker that was taken for dead, and goes on, can neither complete a document nor overwrite what
a later run has found out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import anyio
import attrs
from procrastinate.connector import BaseConnector
from procrastinate.exceptions import ConnectorException

from meeting_async._batch.journal import JournalEntry, State
from meeting_async._models import Attempt, Verdict
from meeting_async.errors import JournalError

VERSION = 1
"""Of the table's columns."""

SCHEMA = f"""
CREATE TABLE IF NOT EXISTS meeting_async_uploads (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    server text NOT NULL,
    batch text NOT NULL,
    identity text NOT NULL,
    key text,
    room_id text NOT NULL,
    kind text NOT NULL,
    source text NOT NULL,
    filename text,
    content_type text,
    state text NOT NULL DEFAULT 'ready',
    run integer NOT NULL DEFAULT 0,
    is_running boolean NOT NULL DEFAULT false,
    suspected_at timestamptz,
    deferred_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    sent_at timestamptz,
    changed_at timestamptz NOT NULL DEFAULT now(),
    size bigint,
    fingerprint text,
    error text,
    reason text,
    attempts jsonb NOT NULL DEFAULT '[]',
    retry jsonb,
    UNIQUE (server, batch, identity)
);
CREATE INDEX IF NOT EXISTS meeting_async_uploads_doubt ON meeting_async_uploads (server, room_id)
    WHERE state IN ('sent', 'unknown');
CREATE INDEX IF NOT EXISTS meeting_async_uploads_jobs ON procrastinate_jobs (lock, id)
    WHERE status IN ('todo', 'doing');
COMMENT ON TABLE meeting_async_uploads IS 'meeting-async, version {VERSION}';
"""
"""The table, and an index without which procrastinate reads all waiting jobs for each job that it
starts. ``is_running`` is true from the claim of a run to its end; ``state`` is that of a journal;
``suspected_at`` is when the row and its job were first seen to disagree; ``retry`` keeps the
counters of an upload that waits; ``identity`` tells the uploads of a batch apart."""

EXCHANGE_SECONDS = 10.0
"""Longest time for one statement."""


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
    run: int = 0
    size: int | None = None
    fingerprint: str | None = None
    error: str | None = None
    """Class of the error."""
    reason: str | None = None
    """Text of the error."""
    attempts: tuple[Attempt, ...] = attrs.field(default=(), converter=_attempts)
    retry: Mapping[str, float] | None = attrs.field(default=None, converter=_loaded)
    started_ago: float = 0.0
    sent_ago: float | None = None
    doubt_ago: float | None = None
    """Seconds since a document was sent whose outcome is unknown, and which may hold the room."""
    deferred_at: datetime
    started_at: datetime | None
    """When it was first claimed."""
    changed_at: datetime

    @property
    def entry(self) -> JournalEntry:
        """The same as an entry of a journal."""
        return JournalEntry(self.id, self.state, self.size, self.sent_ago or 0.0, self.fingerprint)


def packed(attempts: Sequence[Attempt]) -> str:
    """Return attempts as JSON for the table."""
    return json.dumps([attrs.astuple(attempt) for attempt in attempts])


@attrs.frozen
class Table:
    """The rows of one server. Every method raises `JournalError` if the database fails."""

    connector: BaseConnector
    server: str

    async def apply_schema(self) -> None:
        """Make the table if it is not there."""
        (found,) = await self._query(_VERSION)
        if found["comment"] not in {None, f"meeting-async, version {VERSION}"}:
            raise JournalError(_NAME, f"has another format: {found['comment']}, not {VERSION}")
        await self._query(f"{_ONE_AT_A_TIME}; {SCHEMA}", rows=False)

    async def defer(
        self, queue: str, task: str, batch: str, jobs: Sequence[Mapping[str, object]]
    ) -> list[int]:
        """Add uploads and their jobs, in one transaction; those that are there already are not.

        Return the ids of the new ones, in order.
        """
        rows = json.dumps([{**job, "position": at} for at, job in enumerate(jobs)])
        found = await self._query(_DEFER, queue=queue, task=task, batch=batch, jobs=rows)
        return [row["id"] for row in found]

    async def analyse(self) -> None:
        """Tell PostgreSQL how long the queue has become, or it takes 80 ms to find the next job."""
        await self._query("ANALYZE procrastinate_jobs, meeting_async_uploads", rows=False)

    async def claim(self, upload_id: int, window: float) -> Row | None:
        """Begin a run; ``None`` if there is nothing to send."""
        found = await self._query(_CLAIM, id=upload_id, window=window)
        return Row(**found[0]) if found else None

    async def find(self, upload_id: int) -> Mapping[str, Any] | None:
        """Return state, server and progress of an upload; ``None`` if it was dropped."""
        found = await self._query(_FIND, id=upload_id)
        return found[0] if found else None

    async def mark_sending(self, row: Row, size: int | None, fingerprint: str | None) -> bool:
        """Record durably that the closing boundary is about to be sent; False: not any more."""
        facts: dict[str, Any] = {"size": size, "fingerprint": fingerprint}
        return bool(await self._query(_MARK, id=row.id, run=row.run, **facts))

    async def finish(self, row: Row, **outcome: Any) -> bool:
        """Record the outcome of a run; False if another run owns the row."""
        return bool(await self._query(_FINISH, id=row.id, run=row.run, **outcome))

    async def release(self, row: Row, **progress: Any) -> bool:
        """End a run without an outcome; False if another run owns the row."""
        return bool(await self._query(_RELEASE, id=row.id, run=row.run, **progress))

    async def runs(self, upload_ids: Sequence[int]) -> dict[int, Mapping[str, Any]]:
        """Return the state of uploads by id."""
        found = await self._query(_RUNS, ids=list(upload_ids)) if upload_ids else ()
        return {row["id"]: row for row in found}

    async def suspect(self, upload_ids: Sequence[int]) -> None:
        """Note that rows and their jobs disagree."""
        if upload_ids:
            await self._query(_SUSPECT, ids=list(upload_ids))

    async def take_over(self, upload_id: int, run: int, reason: str) -> State | None:
        """End the run of a worker that is gone; ``None`` if that was done already.

        What may have arrived is unknown from now on, everything else is ready.
        """
        found = await self._query(_TAKE_OVER, id=upload_id, run=run, reason=reason)
        return found[0]["state"] if found else None

    async def page(self, batch: str, after: int, limit: int) -> list[Row]:
        """Return rows of a batch in the order in which they were deferred."""
        found = await self._query(_PAGE, batch=batch, after=after, limit=limit)
        return [Row(**row) for row in found]

    async def drop(self, batch: str) -> int:
        """Delete the rows of a batch that no job will change, and return how many."""
        return len(await self._query(_DROP, batch=batch))

    async def _query(
        self, query: str, *, rows: bool = True, **arguments: Any
    ) -> Sequence[Mapping[str, Any]]:
        connector = self.connector
        run = connector.execute_query_all_async if rows else connector.execute_query_async
        try:
            with anyio.fail_after(EXCHANGE_SECONDS):
                result = await run(cast(Any, query), server=self.server, **arguments)
        except TimeoutError:
            raise JournalError(_NAME, f"no answer within {EXCHANGE_SECONDS:g} s") from None
        except ConnectorException as error:
            cause = error.__cause__ or error
            if type(cause).__name__ in {"UndefinedTable", "UndefinedFunction"}:
                raise JournalError(_NAME, f"cannot be used: {cause}; {_HOW_TO_APPLY}") from error
            raise JournalError(_NAME, f"{type(cause).__name__}: {cause}") from error
        return result or ()


_NAME = "meeting_async_uploads (PostgreSQL)"
_HOW_TO_APPLY = "run `meeting-async queue apply-schema`"

# --- statements ----------------------------------------------------------------------------------

_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtext('meeting_async_uploads'))"

_VERSION = "SELECT obj_description(to_regclass('meeting_async_uploads')) AS comment"

_DEFER = """
    WITH made AS (
        INSERT INTO meeting_async_uploads
            (server, batch, identity, key, room_id, kind, source, filename, content_type)
        SELECT %(server)s, %(batch)s, identity, key, room_id, kind, source, filename, content_type
        FROM jsonb_to_recordset(%(jobs)s::jsonb) AS job (
            position integer, identity text, key text, room_id text, kind text, source text,
            filename text, content_type text
        ) ORDER BY position
        ON CONFLICT (server, batch, identity) DO NOTHING
        RETURNING id, room_id
    ), deferred AS (
        SELECT procrastinate_defer_jobs_v1(array_agg(ROW(
            %(queue)s::text, %(task)s::text, 0, %(server)s::text || ' ' || room_id, NULL,
            jsonb_build_object('upload_id', id), NULL
        )::procrastinate_job_to_defer_v1 ORDER BY id)) AS ids
        FROM made HAVING count(*) > 0
    )
    SELECT id FROM made WHERE (SELECT ids FROM deferred) IS NOT NULL ORDER BY id"""

_CLAIM = """
    UPDATE meeting_async_uploads AS mine
    SET run = run + 1, is_running = true, suspected_at = NULL, changed_at = now(),
        started_at = coalesce(started_at, now())
    WHERE id = %(id)s AND server = %(server)s AND state <> 'accepted'
    RETURNING id, room_id, kind, source, state, key, filename, content_type, run, size,
        fingerprint, attempts, retry, deferred_at, started_at, changed_at,
        extract(epoch FROM now() - started_at)::float8 AS started_ago,
        extract(epoch FROM now() - sent_at)::float8 AS sent_ago,
        (SELECT extract(epoch FROM now() - max(sent_at))::float8 FROM meeting_async_uploads AS other
         WHERE other.server = mine.server AND other.room_id = mine.room_id
            AND other.state IN ('sent', 'unknown')
            AND other.sent_at > now() - %(window)s * interval '1 second') AS doubt_ago"""

_FIND = "SELECT state, server, is_running FROM meeting_async_uploads WHERE id = %(id)s"

_MARK = """
    UPDATE meeting_async_uploads
    SET state = 'sent', sent_at = now(), changed_at = now(), size = %(size)s,
        fingerprint = %(fingerprint)s
    FROM (SELECT set_config('synchronous_commit', 'on', true)) AS durably
    WHERE id = %(id)s AND run = %(run)s AND is_running
    RETURNING id"""

_FINISH = """
    UPDATE meeting_async_uploads
    SET state = %(state)s, error = %(error)s, reason = %(reason)s, size = coalesce(%(size)s, size),
        attempts = %(attempts)s::jsonb, retry = NULL, is_running = false, suspected_at = NULL,
        changed_at = now()
    WHERE id = %(id)s AND run = %(run)s
    RETURNING id"""

_RELEASE = """
    UPDATE meeting_async_uploads
    SET state = %(state)s, attempts = %(attempts)s::jsonb, retry = %(retry)s::jsonb,
        run = run + 1, is_running = false, suspected_at = NULL, changed_at = now()
    WHERE id = %(id)s AND run = %(run)s
    RETURNING id"""

_RUNS = """
    SELECT id, state, run, is_running,
        extract(epoch FROM now() - suspected_at)::float8 AS suspected_ago
    FROM meeting_async_uploads WHERE id = ANY(%(ids)s) AND server = %(server)s"""

# A worker that vanishes in the middle of a statement leaves its row locked until the database
# notices. Recovery goes on with the others.

_SUSPECT = """
    UPDATE meeting_async_uploads SET suspected_at = now()
    WHERE id IN (
        SELECT id FROM meeting_async_uploads
        WHERE id = ANY(%(ids)s) AND NOT is_running AND suspected_at IS NULL
        FOR UPDATE SKIP LOCKED
    ) RETURNING id"""

_TAKE_OVER = """
    UPDATE meeting_async_uploads
    SET state = CASE WHEN state = 'sent' THEN 'unknown' ELSE state END,
        error = CASE WHEN state = 'sent' THEN 'UploadOutcomeUnknown' ELSE error END,
        reason = CASE WHEN state = 'sent' THEN %(reason)s ELSE reason END,
        run = CASE WHEN state = 'sent' THEN run ELSE run + 1 END,
        is_running = false, suspected_at = NULL, changed_at = now()
    WHERE id IN (
        SELECT id FROM meeting_async_uploads
        WHERE id = %(id)s AND run = %(run)s AND is_running FOR UPDATE SKIP LOCKED
    ) RETURNING state"""

_PAGE = """
    SELECT id, room_id, kind, source, state, key, filename, content_type, size, error, reason,
        attempts, deferred_at, started_at, changed_at,
        extract(epoch FROM now() - sent_at)::float8 AS sent_ago
    FROM meeting_async_uploads
    WHERE server = %(server)s AND batch = %(batch)s AND id > %(after)s
    ORDER BY id LIMIT %(limit)s"""

_DROP = """
    DELETE FROM meeting_async_uploads AS upload
    WHERE server = %(server)s AND batch = %(batch)s AND NOT is_running AND NOT EXISTS (
        SELECT FROM procrastinate_jobs AS job
        WHERE job.status IN ('todo', 'doing') AND job.args ->> 'upload_id' = upload.id::text
    )
    RETURNING id"""
