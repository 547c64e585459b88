"""Uploads that go through a queue: deferring them, and looking up what became of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import procrastinate
import psycopg

from meeting_async._batch.flow import read
from meeting_async._batch.journal import check_key
from meeting_async._batch.results import FIX_JOB, UploadJob, UploadOutcome
from meeting_async._client import MeetingClient
from meeting_async._documents.detect import detect, is_remote
from meeting_async._documents.document import Document, as_document, source_of
from meeting_async._protocol.requests import host_and_port, room_of
from meeting_async._threads import in_thread
from meeting_async.errors import ConfigurationError
from meeting_async.procrastinate._checks import (
    check_seconds,
    check_storable,
    checked_batch,
    checked_room,
    checked_time,
    no_place,
)
from meeting_async.procrastinate._report import QueueReport, QueueStatus, RoomStatus, outcome_of
from meeting_async.procrastinate._table import CHUNK, TICK, Table
from meeting_async.procrastinate._worker import Documents, UploadWorker, run_worker

MAX_NAME = 100
"""Characters of a queue's name; procrastinate's table takes 128."""

MAX_SECONDS = 366 * 86_400.0
"""Longest limit that can be set: a year."""


class WhiteboardUploads:
    """Uploads that go through the database of a procrastinate ``App``.

    Make it wherever the ``App`` is made, once for each App; deferring processes and workers make it
    with the same arguments. An upload is a row of our own table; procrastinate's jobs say which
    rooms have work. So only :meth:`run_worker` uploads, not a worker of procrastinate.

    Args:
        app: Your App. Its connector is asynchronous.
        client: The client that uploads. Its ``delivery``, ``lock``, ``retry`` and ``timeouts``
            apply.
        documents: Turns a reference into a document, in the worker; may be async. With it every
            ``str`` is a reference; without it a ``str`` is a path.
        stalled_after: Seconds without a sign of life, and a third more, after which the worker of
            an upload counts as lost, from 3 to 180.
        max_outage: Seconds for which an upload is put back while the server is away, throttles, or
            something else answers in its place, or while your own signer, transport or room locks
            fail. Then it has failed.
        documents_timeout: Longest time in seconds for ``documents``, for one document.

    """

    def __init__(
        self,
        app: procrastinate.App,
        *,
        client: MeetingClient,
        documents: Documents | None = None,
        stalled_after: float = 30.0,
        max_outage: float = 86_400.0,
        documents_timeout: float = 60.0,
    ) -> None:
        session = client._session  # noqa: SLF001 - ours
        self.queue: str = _queue_name(session.base)
        """Name of procrastinate's queue, made from the address of the server."""
        check_seconds("stalled_after", stalled_after, 3, 180)
        check_seconds("max_outage", max_outage, 0, MAX_SECONDS)
        check_seconds("documents_timeout", documents_timeout, 0, MAX_SECONDS)
        self._app, self._client, self._documents = app, client, documents
        self._table = Table(app, session.base, self.queue)
        self._stalled_after, self._max_outage = stalled_after, max_outage
        self._documents_timeout = documents_timeout
        self._worker: UploadWorker | None = None
        if TICK in app.tasks:
            problem, fix = "has WhiteboardUploads already", "use these, or another App"
            raise ConfigurationError("app", "", problem, fix)
        app.task(name=TICK)(self._tick)

    async def _tick(self, *, server: str, room_id: str) -> None:
        """Upload the next document of a room. A worker runs it as a job of procrastinate."""
        if self._worker is None:
            problem = "are not run by a worker of procrastinate"
            fix = "give it the names of its own queues, and run `meeting-async queue worker`"
            raise ConfigurationError("ticks of uploads", "", problem, fix)
        if server != self._table.server:
            problem = f"has uploads for {server} and a worker for {self._table.server}"
            fix = "write the address in one way, or give each server a schema of its own"
            raise ConfigurationError("queue", self.queue, problem, fix)
        await self._worker.tick(room_id)

    async def apply_schema(self) -> None:
        """Make the table of uploads, beside procrastinate's own schema; its rows stay.

        Raises:
            JournalError: The database cannot be used, or has a table of another version.

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
            key: Identity in its batch and room. If the batch has an upload for this room with this
                key, nothing is added.
            batch: Name under which :meth:`report` finds it.
            filename: Name that the room shows, instead of the document's own.
            content_type: Media type, instead of the document's own or the one guessed.
            schedule_at: Not before this time, by the clock of the database: some seconds later, and
                after what was deferred earlier for the room. Until then it keeps nothing waiting.
            connection: A connection to the same database. The upload is added in its transaction,
                or not at all, and begins some seconds after that is committed.

        Returns:
            The id of the upload; ``None``: the key was deferred before for this room.

        Raises:
            InvalidInput: An argument cannot be used. Nothing was added.
            JournalError: The database cannot be used.
            JournalInUse: Another program has locked rows, or has this key in a transaction that is
                open; it is named. A transaction of yours can go on.

        """
        job = UploadJob(room_id, document, filename=filename, content_type=content_type, key=key)
        stored = self._stored(job, await in_thread(Path.cwd), checked_time(schedule_at))
        if key is None:
            stored["identity"] = os.urandom(16).hex()
        ids = await self._table.defer(checked_batch(batch), [stored], connection)
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
        repeated. An upload is recognised by room and key, otherwise by room, document and name.
        ``schedule_at`` and ``connection`` are those of :meth:`defer`.

        Raises:
            InvalidInput: A job cannot be used; earlier chunks of 1,000 are in the queue.
            JournalError: The database cannot be used.

        """
        checked_batch(batch)
        due_at = checked_time(schedule_at)
        folder = await in_thread(Path.cwd)
        count, chunk = 0, list[dict[str, Any]]()
        async with contextlib.aclosing(read(jobs)) as found:
            async for job in found:
                chunk.append(self._stored(job, folder, due_at))
                if len(chunk) == CHUNK:
                    count += len(await self._table.defer(batch, chunk, connection))
                    chunk.clear()
        if chunk:
            count += len(await self._table.defer(batch, chunk, connection))
        if count >= CHUNK:
            await self._table.analyse()
        return count

    def _stored(self, job: UploadJob, folder: Path, due_at: str | None) -> dict[str, Any]:
        """Check a job, and return its row; relative paths begin at ``folder``."""
        if not isinstance(job, UploadJob):
            raise TypeError(f"a job must be an UploadJob, not {type(job).__name__}{FIX_JOB}")
        room_of(job.room_id)
        check_key(job.key)
        given, filename, content_type = job.document, job.filename, job.content_type
        if is_remote(given):
            raise no_place(given)
        if isinstance(given, str | os.PathLike):
            check_storable("document", os.fsdecode(given))
        elif not isinstance(given, Document):
            detect(given)  # or it says what is wrong
            raise no_place(given)
        is_reference = isinstance(given, str) and self._documents is not None
        # The names of a reference are checked like those of a path.
        made: Any = "reference" if is_reference else given
        document = as_document(made, filename=filename, content_type=content_type)
        where = source_of(document)
        if is_reference:
            kind, source = "reference", str(given)
        elif document.link is not None:
            kind, source = "link", document.link
        elif where.path is not None:
            kind, source = "path", str(folder / where.path)
            filename, content_type = document.filename, document.content_type
        else:
            raise no_place(where)
        facts = [kind, source, filename] if job.key is None else [job.key]
        row = {
            "identity": hashlib.sha256(json.dumps([job.room_id, *facts]).encode()).hexdigest(),
            "key": job.key,
            "room_id": job.room_id,
            "kind": kind,
            "source": source,
            "filename": filename,
            "content_type": content_type,
            "due_at": due_at,
        }
        for field, value in row.items():
            check_storable(field if field != "source" else "document", value)
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
                they are cancelled and put back, but with `at_most_once` what was complete is
                unknown.
            signals: Handle SIGTERM and Ctrl-C, which works in the main thread only.
            options: Further options of procrastinate's ``App.run_worker_async``, such as
                ``fetch_job_polling_interval``.

        Raises:
            JournalError: The database is gone, or the table has another version.
            AuthenticationFailed: The server refuses the key or the secret. It is asked before the
                first upload; what runs when the key becomes wrong is put back.

        """
        check_seconds("grace", grace, 0, MAX_SECONDS)
        if self._worker is not None:
            raise RuntimeError("these uploads have a worker already")
        self._worker = UploadWorker(
            table=self._table,
            session=self._client._session,  # noqa: SLF001 - ours
            options=self._client._options,  # noqa: SLF001 - ours
            documents=self._documents,
            stalled_after=self._stalled_after,
            max_outage=self._max_outage,
            documents_timeout=self._documents_timeout,
        )
        try:
            await run_worker(
                self._app,
                self._worker,
                concurrency=concurrency,
                grace=grace,
                signals=signals,
                options=options,
            )
        finally:
            self._worker = None

    # --- results ---------------------------------------------------------------------------------

    async def outcomes(self, batch: str) -> AsyncGenerator[UploadOutcome | None, None]:
        """Yield the outcomes of a batch so far, in the order of deferring; ``None``: none yet.

        Raises:
            InvalidInput: No batch or room can have this name.
            JournalError: The database cannot be used.
            JournalInUse: Another program has locked rows; it is named.

        """
        async with contextlib.aclosing(self._results(batch)) as results:
            async for _, outcome, _ in results:
                yield outcome

    async def _results(
        self, batch: str
    ) -> AsyncGenerator[tuple[datetime, UploadOutcome | None, float | None], None]:
        """Yield outcomes, each with when the batch began, and for how long the upload is due."""
        after, index, began = 0, 0, None
        checked_batch(batch)
        window = self._client._options.lock.window  # noqa: SLF001 - ours
        while rows := await self._table.page(batch, after):
            began = began or rows[0].deferred_at
            for row in rows:
                yield began, outcome_of(row, index, began, window), row.due_for
                index += 1
            after = rows[-1].id

    async def report(self, batch: str, *, keep_outcomes: bool = True) -> QueueReport:
        """Return the results of a batch so far, like those of ``upload_many``.

        With ``keep_outcomes=False`` only the sums; memory then does not grow with the batch.

        Raises:
            InvalidInput: No batch or room can have this name.
            JournalError: The database cannot be used.
            JournalInUse: Another program has locked rows; it is named.

        """
        report = QueueReport(keep=keep_outcomes)
        async with contextlib.aclosing(self._results(batch)) as results:
            async for report.began, outcome, due_for in results:
                if outcome is None:
                    report._add_queued(due_for)  # noqa: SLF001 - ours
                else:
                    report._add(outcome)  # noqa: SLF001 - ours
                    report.seconds = max(report.seconds, outcome.started + outcome.seconds)
        return report

    # --- by hand ---------------------------------------------------------------------------------

    async def status(self, batch: str | None = None) -> QueueStatus:
        """Return how many documents wait, for which rooms and why; ``None``: of all batches.

        Raises:
            InvalidInput: No batch or room can have this name.
            JournalError: The database cannot be used.
            JournalInUse: Another program has locked rows; it is named.

        """
        name = None if batch is None else checked_batch(batch)
        rooms = [RoomStatus(**row) for row in await self._table.status(name)]
        return QueueStatus(await self._table.workers(self._stalled_after), rooms)

    async def retry(self, batch: str, *, room_id: str | None = None, resend: bool = False) -> int:
        """Queue again what was refused or has failed, and return how many.

        Args:
            batch: Name of the batch.
            room_id: Only documents for this room.
            resend: Also send again what may have arrived. Look into the rooms first: a class may
                see these documents twice.

        Raises:
            InvalidInput: No batch or room can have this name.
            JournalError: The database cannot be used.
            JournalInUse: Another program has locked rows; it is named.

        """
        return await self._table.retry(checked_batch(batch), checked_room(room_id), resend=resend)

    async def cancel(self, batch: str, *, room_id: str | None = None) -> int:
        """Give up what has no outcome yet, and return how many.

        A running upload is cancelled some seconds later; it may be accepted before.

        Raises:
            InvalidInput: No batch or room can have this name.
            JournalError: The database cannot be used.
            JournalInUse: Another program has locked rows; it is named.

        """
        return await self._table.cancel(checked_batch(batch), checked_room(room_id))

    async def drop(self, batch: str) -> int:
        """Delete the outcomes of a batch and return how many; what is queued stays.

        Raises:
            InvalidInput: No batch or room can have this name.
            JournalError: The database cannot be used.
            JournalInUse: Another program has locked rows; it is named.

        """
        return await self._table.drop(checked_batch(batch))


def _queue_name(base: str) -> str:
    path = urlsplit(base).path.removesuffix("/auth")
    name = f"whiteboard {host_and_port(base)}{path}"
    is_long = len(name) > MAX_NAME
    return f"whiteboard {hashlib.sha256(name.encode()).hexdigest()}" if is_long else name
