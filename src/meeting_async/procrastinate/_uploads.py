"""Uploads that go through a queue: deferring them, and looking up what became of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import procrastinate
import psycopg

from meeting_async._batch.flow import read
from meeting_async._batch.journal import check_key
from meeting_async._batch.results import BatchReport, UploadJob, UploadOutcome
from meeting_async._documents.detect import detect
from meeting_async._documents.document import Document, as_document, source_of
from meeting_async._documents.files import PathSource
from meeting_async._protocol.requests import host_and_port, room_id_bytes
from meeting_async._text import link_label, short_repr
from meeting_async._threads import in_thread
from meeting_async.errors import (
    BatchFailed,
    ConfigurationError,
    InvalidInput,
    MeetingError,
    UploadFailed,
    UploadOutcomeUnknown,
)
from meeting_async.procrastinate._runner import run_worker
from meeting_async.procrastinate._table import QueueStatus, Row, Table
from meeting_async.procrastinate._worker import Documents, UploadWorker, register

if TYPE_CHECKING:
    from meeting_async._client import MeetingClient

MAX_SECONDS = 366 * 86_400.0
"""Longest limit that can be set: a year."""

CHUNK = 1000
"""Uploads that are deferred, or reported, by one statement."""


@attrs.define(kw_only=True, repr=False)
class QueueReport(BatchReport):
    """The results of a batch in a queue so far."""

    queued: int = 0
    """Documents that have no outcome yet."""
    began: datetime | None = None
    """When the first upload was deferred; ``None``: the server has no such batch."""

    def raise_for_failures(self) -> None:
        """Raise unless every document is in its room; what is queued is not.

        Raises:
            BatchFailed: With the numbers, and the first upload that failed.

        """
        super().raise_for_failures()
        if self.queued:
            raise BatchFailed(
                total=self.total + self.queued,
                refused=0,
                failed=0,
                unknown=0,
                skipped=self.queued,
                first=f"{self.queued:,} documents have no outcome yet",
            )


class WhiteboardUploads:
    """Uploads as jobs of a procrastinate ``App``; make it wherever the ``App`` is made.

    Deferring processes and workers make it with the same arguments. It registers two tasks: one
    uploads a document, the other runs every few seconds and deals with uploads whose worker is
    gone. Run workers with :meth:`run_worker`, or procrastinate's own with
    ``queues=[uploads.queue]``.

    Args:
        app: Your App. Its connector is asynchronous.
        client: The client that uploads. Its ``delivery``, ``lock``, ``retry`` and ``timeouts``
            apply.
        documents: Turns a reference into a document, in the worker; may be async. With it every
            ``str`` is a reference; without it a ``str`` is a path.
        queue: Name of the queue. Each server needs its own, and by default has it.
        stalled_after: Seconds without a heartbeat after which a worker counts as dead, from 3 to
            180. Heartbeats are sent every ``update_heartbeat_interval`` seconds (an option of the
            worker, 10 by default).
        max_outage: Seconds for which an upload is put back while the server is away, throttles, or
            something else answers in its place. Then it has failed.
        documents_timeout: Longest time in seconds for ``documents``, for one document.

    """

    def __init__(
        self,
        app: procrastinate.App,
        *,
        client: MeetingClient,
        documents: Documents | None = None,
        queue: str | None = None,
        stalled_after: float = 30.0,
        max_outage: float = 86_400.0,
        documents_timeout: float = 60.0,
    ) -> None:
        self._session, self._options = client._session, client._options  # noqa: SLF001 - ours
        self._app = app
        self.queue: str = _queue_name(queue, self._session.base)
        _check_seconds("stalled_after", stalled_after, 3, 180)
        _check_seconds("max_outage", max_outage, 0, MAX_SECONDS)
        _check_seconds("documents_timeout", documents_timeout, 0, MAX_SECONDS)
        self._documents = documents
        self._worker = UploadWorker(
            session=self._session,
            options=self._options,
            documents=documents,
            queue=self.queue,
            stalled_after=stalled_after,
            max_outage=max_outage,
            documents_timeout=documents_timeout,
        )
        if not register(app, self._worker):
            fix = "use that one, or another App"
            problem = "has WhiteboardUploads in this App already"
            raise ConfigurationError("client", self._session.base, problem, fix)

    @property
    def _table(self) -> Table:
        return self._worker.table_of(self._app)

    async def apply_schema(self) -> None:
        """Make or update the table of outcomes, after procrastinate's own schema; its rows stay.

        Raises:
            JournalError: The database cannot be used, or the table is newer than this package.

        """
        await self._table.apply_schema()

    # --- deferring -------------------------------------------------------------------------------

    async def defer(
        self,
        room_id: str,
        document: str | os.PathLike[str] | Document,
        *,
        key: str | None = None,
        batch: str = "default",
        filename: str | None = None,
        content_type: str | None = None,
        schedule_at: datetime | None = None,
        connection: psycopg.AsyncConnection[Any] | None = None,
    ) -> int | None:
        """Add an upload to the queue.

        Args:
            room_id: The room.
            document: A path that workers can read, ``Document.from_link(...)``, or a reference for
                ``documents``. A relative path is made absolute.
            key: Identity in its batch. If the batch has an upload with this key, nothing is added.
            batch: Name under which :meth:`report` finds it.
            filename: Name that the room shows, instead of the document's own.
            content_type: Media type, instead of the document's own or the one guessed.
            schedule_at: Not before this time, by the clock of the database; some seconds later at
                most. Until then it does not keep the room's other documents waiting.
            connection: A connection to the same database. The upload is added in its transaction,
                or not at all.

        Returns:
            The id of the upload; ``None``: the key was deferred before.

        Raises:
            InvalidInput: An argument cannot be used. Nothing was added.
            JournalError: The database cannot be used.

        """
        job = UploadJob(room_id, document, filename=filename, content_type=content_type, key=key)
        stored = self._stored(job, await in_thread(Path.cwd), _checked_time(schedule_at))
        if key is None:
            stored["identity"] = os.urandom(16).hex()
        ids = await self._table.defer(_checked_batch(batch), [stored], connection)
        return ids[0] if ids else None

    async def defer_many(
        self,
        jobs: Iterable[UploadJob] | AsyncIterable[UploadJob],
        *,
        batch: str,
        schedule_at: datetime | None = None,
        connection: psycopg.AsyncConnection[Any] | None = None,
    ) -> int:
        """Add uploads to the queue, 1,000 at a time, and return how many were new.

        What the batch has already is not added again, so a call that was interrupted can be
        repeated. An upload is recognised by its key, otherwise by room, document and name.
        ``schedule_at`` and ``connection`` are those of :meth:`defer`.

        Raises:
            InvalidInput: A job cannot be used; earlier chunks of 1,000 are in the queue.
            JournalError: The database cannot be used.

        """
        _checked_batch(batch)
        due_at = _checked_time(schedule_at)
        folder = await in_thread(Path.cwd)
        count, chunk = 0, list[dict[str, Any]]()
        async with contextlib.aclosing(read(jobs)) as found:
            async for job in found:
                chunk.append(self._stored(job, folder, due_at))
                if len(chunk) == CHUNK:
                    count += len(await self._table.defer(batch, chunk, connection))
                    chunk.clear()
                    await anyio.lowlevel.checkpoint()
        if chunk:
            count += len(await self._table.defer(batch, chunk, connection))
        if count >= CHUNK and connection is None:
            await self._table.analyse()
        return count

    def _stored(self, job: UploadJob, folder: Path, due_at: str | None) -> dict[str, Any]:
        """Check a job, and return its row; relative paths begin at ``folder``."""
        if not isinstance(job, UploadJob):
            raise TypeError(f"a job must be an UploadJob, not {type(job).__name__}")
        room_id_bytes(job.room_id)
        check_key(job.key)
        given, filename, content_type = job.document, job.filename, job.content_type
        if isinstance(given, str | os.PathLike):
            _check_storable("document", os.fsdecode(given))
        elif not isinstance(given, Document) and detect(given) is not None:
            raise _no_place(given)
        if isinstance(given, str) and self._documents is not None:
            kind, source = "reference", given
        else:
            document = as_document(given, filename=filename, content_type=content_type)
            where = source_of(document)
            if document.link is not None:
                kind, source = "link", document.link
            elif isinstance(where, PathSource):
                kind, source = "path", str(folder / where.path)
                filename, content_type = document.filename, document.content_type
            else:
                raise _no_place(where)
        facts = [job.room_id, kind, source, filename] if job.key is None else {"key": job.key}
        row = {
            "identity": hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
            "key": job.key,
            "room_id": job.room_id,
            "kind": kind,
            "source": source,
            "filename": filename,
            "content_type": content_type,
            "due_at": due_at,
        }
        for field, value in row.items():
            _check_storable(field if field != "source" else "document", value)
        return row

    # --- working ---------------------------------------------------------------------------------

    async def run_worker(
        self,
        *,
        concurrency: int = 32,
        grace: float = 600.0,
        signals: bool = True,
        **options: Any,
    ) -> None:
        """Upload what is in the queue until SIGTERM, Ctrl-C, or a cancellation.

        The ``App`` and the client are open. Let a service manager start the program again when
        this raises.

        Args:
            concurrency: Maximum of uploads at the same time.
            grace: Seconds for the running uploads to end when the worker is told to stop. Then
                they are cancelled: what was not complete is put back.
            signals: Handle SIGTERM and Ctrl-C, which works in the main thread only.
            options: Further options of procrastinate's ``App.run_worker_async``.

        Raises:
            JournalError: The database is gone, or the table has another version.
            AuthenticationFailed: The server refuses the key or the secret. The uploads are put
                back.

        """
        _check_seconds("grace", grace, 0, MAX_SECONDS)
        await run_worker(
            self._app,
            self._worker,
            concurrency=concurrency,
            grace=grace,
            signals=signals,
            options=options,
        )

    # --- results ---------------------------------------------------------------------------------

    async def outcomes(self, batch: str) -> AsyncGenerator[UploadOutcome | None, None]:
        """Yield the outcomes of a batch so far, in the order of deferring; ``None``: none yet.

        Raises:
            JournalError: The database cannot be used.

        """
        async with contextlib.aclosing(self._results(batch)) as results:
            async for _, outcome in results:
                yield outcome

    async def _results(
        self, batch: str
    ) -> AsyncGenerator[tuple[datetime, UploadOutcome | None], None]:
        """Yield outcomes, each with the time at which the batch began."""
        after, index, began = 0, 0, None
        while rows := await self._table.page(batch, after, CHUNK):
            began = began or rows[0].deferred_at
            for row in rows:
                yield began, _outcome(row, index, began, self._options.lock.window)
                index += 1
            after = rows[-1].id

    async def report(self, batch: str, *, keep_outcomes: bool = True) -> QueueReport:
        """Return the results of a batch so far, like those of ``upload_many``.

        With ``keep_outcomes=False`` only the sums; memory then does not grow with the batch.

        Raises:
            JournalError: The database cannot be used.

        """
        report = QueueReport(keep=keep_outcomes)
        async with contextlib.aclosing(self._results(batch)) as results:
            async for report.began, outcome in results:
                if outcome is None:
                    report.queued += 1
                else:
                    report._add(outcome)  # noqa: SLF001 - ours
                    report.seconds = max(report.seconds, outcome.started + outcome.seconds)
        return report

    # --- by hand ---------------------------------------------------------------------------------

    async def status(self, batch: str | None = None) -> QueueStatus:
        """Return how many documents wait, for which rooms and why; ``None``: of all batches.

        Raises:
            JournalError: The database cannot be used.

        """
        return await self._table.status(batch, self._worker.stalled_after)

    async def retry(self, batch: str, *, room_id: str | None = None, resend: bool = False) -> int:
        """Queue again what was refused or has failed, and return how many.

        Args:
            batch: Name of the batch.
            room_id: Only documents for this room.
            resend: Also send again what may have arrived. Look into the rooms first: a class may
                see these documents twice.

        Raises:
            JournalError: The database cannot be used.

        """
        return await self._table.retry(batch, room_id, resend=resend)

    async def cancel(self, batch: str, *, room_id: str | None = None) -> int:
        """Give up what has no outcome yet, and return how many.

        A running upload is cancelled some seconds later; it may be accepted before.

        Raises:
            JournalError: The database cannot be used.

        """
        return await self._table.cancel(batch, room_id)

    async def drop(self, batch: str) -> int:
        """Delete the outcomes of a batch and return how many; what is queued stays.

        What is queued no more because its job was cancelled or deleted is deleted, too.

        Raises:
            JournalError: The database cannot be used.

        """
        return await self._table.drop(batch)


def _outcome(row: Row, index: int, began: datetime, window: float) -> UploadOutcome | None:
    if row.state == "ready" or row.state == "sent":  # noqa: PLR1714 - narrows the type
        return None
    label = link_label(row.source) if row.kind == "link" else row.filename or row.source
    error: MeetingError | None = None
    if row.state == "unknown":
        free_in = max(0.0, window - (row.sent_ago or 0.0))
        error = UploadOutcomeUnknown(row.reason or "", row.size, row.size, free_in)
    elif row.state != "accepted":
        error = UploadFailed(row.error or "", row.reason or "")
    if error is not None:
        error.room_id, error.document, error.attempts = row.room_id, label, row.attempts
    started = row.started_at or row.changed_at  # it has an outcome, so it was started
    return UploadOutcome(
        index=index,
        room_id=row.room_id,
        document=label,
        status=row.state,
        size=row.size,
        key=row.key,
        started=(started - began).total_seconds(),
        seconds=(row.changed_at - started).total_seconds(),
        attempts=row.attempts,
        error=error,
    )


def _queue_name(queue: str | None, base: str) -> str:
    if queue is None:
        return f"whiteboard {host_and_port(base)}"[:100]
    if not 0 < len(queue) <= 100:
        fix = "give 1 to 100 characters"
        raise ConfigurationError("queue", short_repr(queue), "is no name", fix)
    return queue


def _check_seconds(field: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        fix = f"give seconds from {low:g} to {high:,.0f}"
        raise ConfigurationError(field, short_repr(value), "is out of range", fix)


def _no_place(document: object) -> InvalidInput:
    problem = "cannot be stored in a queue"
    fix = "give a path, a link, or a reference that `documents` turns into a document"
    return InvalidInput("document", type(document).__name__, problem, fix)


def _checked_batch(batch: str) -> str:
    if not batch:
        raise InvalidInput("batch", short_repr(batch), "is empty", "give a name")
    _check_storable("batch", batch)
    return batch


def _checked_time(schedule_at: datetime | None) -> str | None:
    if schedule_at is not None and schedule_at.tzinfo is None:
        problem, fix = "has no time zone", "give datetime(..., tzinfo=...)"
        raise InvalidInput("schedule_at", schedule_at.isoformat(), problem, fix)
    return schedule_at.isoformat() if schedule_at else None


def _check_storable(field: str, value: str | None) -> None:
    try:
        is_storable = value is None or (b"\0" not in value.encode())
    except UnicodeEncodeError:
        is_storable = False
    if not is_storable:
        problem, fix = "has characters that PostgreSQL cannot store", "rename it"
        raise InvalidInput(field, short_repr(value), problem, fix)
