"""What workers do: the task that uploads a document, and the task that deals with lost workers.

procrastinate starts the tasks. The row of an upload says how far it has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import attrs
import procrastinate
from procrastinate import BaseRetryStrategy, JobContext, RetryDecision, exceptions
from procrastinate.job_context import AbortReason
from procrastinate.jobs import Job
from procrastinate.worker import Worker

from meeting_async._batch.job import Common, RunningJob
from meeting_async._batch.results import UploadJob
from meeting_async._delivery.call import new_call
from meeting_async._delivery.json_call import active_room
from meeting_async._delivery.session import Options, Session
from meeting_async._documents.document import Document, as_document
from meeting_async._log import logger
from meeting_async._protocol.requests import ACTIVE_ROOM_INFO
from meeting_async.errors import (
    AuthenticationFailed,
    JournalError,
    MeetingError,
    RequestRefused,
    ServerFailed,
    UploadPutBack,
)
from meeting_async.procrastinate._brake import Brake, Seen, seen_in
from meeting_async.procrastinate._run import (
    CLAIM_SECONDS,
    JOURNAL_SECONDS,
    QueuedRun,
    leave,
    persistently,
)
from meeting_async.procrastinate._table import RECOVER, UPLOAD, Row, Table

Documents = Callable[[str], Document | Awaitable[Document]]
"""Turns a reference, such as the id of a row or an object of a store, into a document."""

NOT_OURS_SECONDS = 10.0
"""Pause of a job that this worker cannot run: another server's, or a reference without
``documents``."""

ASK_SECONDS = 15.0
"""Longest time for the question of a paused worker."""

RECOVERY_SECONDS = 30.0
"""Longest time of one recovery: what it waits for may be locked."""


@attrs.define(kw_only=True, eq=False)
class UploadWorker:
    """What the workers of an App do for one server."""

    session: Session
    options: Options
    documents: Documents | None
    queue: str
    stalled_after: float
    """Seconds without a heartbeat after which a worker counts as dead."""
    max_outage: float
    """Seconds for which an upload is put back while the server is away."""
    documents_timeout: float
    """Longest time in seconds for ``documents``."""
    brake: Brake = attrs.field(init=False)
    running: int = attrs.field(default=0, init=False)
    """Uploads that run now."""
    _tables: dict[int, Table] = attrs.field(factory=dict, init=False)
    _recovers: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.brake = Brake(self.max_outage)

    def table_of(self, app: procrastinate.App) -> Table:
        """Return the table; a worker of Django has an App, and a connector, of its own."""
        table = self._tables.get(id(app.connector))
        if table is None or table.connector is not app.connector:
            table = self._tables[id(app.connector)] = Table(
                app.connector, self.session.base, self.queue
            )
        return table

    # --- an upload -------------------------------------------------------------------------------

    async def claim(self, context: JobContext, upload_id: int) -> Row | None:
        """Begin a run, also if the database answers only later."""
        server, _, room_id = (context.job.lock or "").partition(" ")
        if server == self.session.base:
            await self.brake.wait(partial(self._ask, room_id))
        job = context.job
        claim = partial(self.table_of(context.app).claim, upload_id, job.id or 0, job.attempts)
        row = None
        try:
            row = await persistently(claim, CLAIM_SECONDS)
        except asyncio.CancelledError:
            if context.abort_reason() is AbortReason.USER_REQUEST:
                raise
            raise UploadPutBack(0.0, "its worker was stopped") from None
        finally:
            if row is None:
                self.brake.report("nothing")
        return row

    async def upload(self, context: JobContext, row: Row) -> str:
        """Run a claimed upload; what is not over is raised as `UploadPutBack`."""
        table, now = self.table_of(context.app), anyio.current_time()
        upload = RunningJob(
            common=Common(session=self.session, options=self.options),
            given=UploadJob(row.room_id, row.source, key=row.key),
            began=now - row.started_ago,
            entry=row.entry,
        )
        run = QueuedRun(
            upload,
            row,
            table,
            self._document,
            lambda: context.abort_reason() is AbortReason.USER_REQUEST,
            self.max_outage,
        )
        seen: Seen = "nothing"
        self.running += 1
        try:
            outcome = await run.run()
            seen = seen_in(run.attempts, run.error)
        except UploadPutBack:
            seen = seen_in(run.attempts, run.error)
            raise
        finally:
            self.running -= 1
            self._report(seen, run.error)
        if outcome is None:
            return await leave(table, row.id)
        with contextlib.suppress(JournalError):  # a recovery makes up for it
            await table.advance([row.room_id])
        if outcome.error is not None:
            raise outcome.error.with_traceback(None) from None
        return "accepted"

    def _report(self, seen: Seen, error: Exception | None) -> None:
        if isinstance(error, AuthenticationFailed):
            self.brake.stop(error)
        self.brake.report(seen)

    async def _ask(self, room_id: str) -> bool:
        """Ask about a room once, and return whether the server has answered."""
        once = attrs.evolve(self.options.retry, max_attempts=1)
        options = attrs.evolve(self.options, retry=once)
        try:
            call = new_call(self.session, options, ACTIVE_ROOM_INFO, room_id)
            await active_room(call, room_id, timeout=ASK_SECONDS)
        except AuthenticationFailed as error:
            self.brake.stop(error)
        except (RequestRefused, ServerFailed):
            return True
        except MeetingError:
            return False
        return True

    async def _document(self, row: Row) -> Document:
        if row.kind == "link":
            return Document.from_link(row.source)
        if row.kind == "path":
            return Document.from_path(
                row.source, filename=row.filename, content_type=row.content_type
            )
        if self.documents is None:
            why = "it is a reference: make WhiteboardUploads with `documents` in every worker"
            logger.warning("upload %d is put back, %s", row.id, why)
            raise UploadPutBack(NOT_OURS_SECONDS, why)
        made: Any = None
        with anyio.move_on_after(self.documents_timeout) as scope:
            made = self.documents(row.source)
            made = await made if inspect.isawaitable(made) else made
        if scope.cancelled_caught:
            seconds = f"{self.documents_timeout:g} s"
            raise TimeoutError(f"`documents` had no document for {row.source!r} within {seconds}")
        return as_document(made, filename=row.filename, content_type=row.content_type)

    # --- recovery --------------------------------------------------------------------------------

    async def recover(self, app: procrastinate.App) -> None:
        """Run again what a lost worker has not completed, and report what may have arrived.

        Uploads whose job was cancelled get an outcome, and rooms without a job get one.
        """
        if self._recovers:  # the database is slow
            return
        self._recovers = True
        table, resends = self.table_of(app), self.options.delivery == "at_least_once"
        try:
            with anyio.move_on_after(RECOVERY_SECONDS):
                lost = await table.recover(stalled_after=self.stalled_after, resends=resends)
                for upload_id, state in lost.items():
                    logger.warning("upload %d of a lost worker: %s", upload_id, state)
                await table.end_cancelled()
                await table.advance_all()
        finally:
            self._recovers = False


# --- the tasks of an App -------------------------------------------------------------------------


@attrs.define(eq=False)
class _Tasks:
    """The two tasks of an App, for all servers."""

    workers: dict[str, UploadWorker] = attrs.field(factory=dict)
    """By server."""
    _runs: Counter[int] = attrs.field(factory=Counter, init=False)
    """Uploads that run, by worker of procrastinate."""
    _heartbeats: dict[int, asyncio.Task[None]] = attrs.field(factory=dict, init=False)

    async def upload(self, context: JobContext, *, upload_id: int) -> str:
        """Run an upload once; what is not over is raised as `UploadPutBack`."""
        try:
            with self._sending_heartbeats(context):
                return await self._upload(context, upload_id)
        except UploadPutBack as back:
            raise await self._until(context, back) from back.__cause__
        except JournalError as error:
            later = UploadPutBack(JOURNAL_SECONDS, str(error))
            raise await self._until(context, later) from error

    async def stop_if_needed(
        self, run: Callable[[], Awaitable[Any]], _context: JobContext, worker: Worker
    ) -> Any:
        """Stop procrastinate's worker after an upload that has shown that it must not go on."""
        try:
            return await run()
        finally:
            if any(one.brake.stopped_by for one in self.workers.values()):
                worker.stop()  # type: ignore[no-untyped-call] # procrastinate's

    async def _upload(self, context: JobContext, upload_id: int) -> str:
        for worker in self.workers.values():
            row = await worker.claim(context, upload_id)
            if row is not None:
                return await worker.upload(context, row)
        return await self._nothing_to_send(context, upload_id)

    async def _nothing_to_send(self, context: JobContext, upload_id: int) -> str:
        table = next(iter(self.workers.values())).table_of(context.app)
        found = await table.find(upload_id)
        if found is None:
            return "dropped"
        if found["server"] in self.workers:
            if found["state"] == "accepted" or found["job_id"] != context.job.id:
                return "accepted in an earlier run, or another job has it"
            return await leave(table, upload_id)
        why = f"it is for {found['server']}: run workers with queues=[uploads.queue]"
        logger.warning("upload %d is put back, %s", upload_id, why)
        raise UploadPutBack(NOT_OURS_SECONDS, why)

    async def _until(self, context: JobContext, back: UploadPutBack) -> _PutBackUntil:
        """Return when a job is to run again, by the clock of the database."""
        at = _AT_ONCE
        with contextlib.suppress(JournalError):
            table = next(iter(self.workers.values())).table_of(context.app)
            at = await table.later(back.seconds)
        return _PutBackUntil(back.seconds, back.reason, at)

    # --- heartbeats ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _sending_heartbeats(self, context: JobContext) -> Iterator[None]:
        """Send heartbeats of a worker as long as one of its uploads runs.

        procrastinate ends its own when the worker is told to stop, before the uploads end.
        """
        worker_id = context.job.worker_id or 0
        self._runs[worker_id] += 1
        if worker_id not in self._heartbeats:
            self._heartbeats[worker_id] = asyncio.create_task(self._beat(context, worker_id))
        try:
            yield
        finally:
            self._runs[worker_id] -= 1
            if not self._runs[worker_id]:
                del self._runs[worker_id]
                self._heartbeats.pop(worker_id).cancel()

    async def _beat(self, context: JobContext, worker_id: int) -> None:
        stalled_after = min(worker.stalled_after for worker in self.workers.values())
        while True:
            await asyncio.sleep(stalled_after / 3)
            with contextlib.suppress(exceptions.ConnectorException):
                await context.app.job_manager.update_heartbeat(worker_id)

    # --- recovery --------------------------------------------------------------------------------

    async def recover(self, context: JobContext, *, timestamp: int) -> None:
        """Deal with uploads whose worker is gone, and delete the ended jobs of this task."""
        del timestamp
        for worker in self.workers.values():
            await worker.recover(context.app)
            await worker.table_of(context.app).clean(context.job.id or 0)


@attrs.define(slots=False)
class _PutBackUntil(UploadPutBack):
    """An upload that was put back, with the moment from which it may run."""

    at: datetime


_AT_ONCE = datetime(2000, 1, 1, tzinfo=UTC)
"""In the past for every clock."""


class _Retry(BaseRetryStrategy):
    """Puts back what is not over."""

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        del job
        return (
            RetryDecision(retry_at=exception.at) if isinstance(exception, _PutBackUntil) else None
        )


def register(app: procrastinate.App, worker: UploadWorker) -> bool:
    """Register the tasks of an App for a server; False if they are already."""
    if UPLOAD in app.tasks:
        tasks: _Tasks = getattr(app.tasks[UPLOAD].func, "__self__")  # noqa: B009 - a method
    else:
        tasks = _Tasks()
        app.task(
            name=UPLOAD, pass_context=True, retry=_Retry(), task_middleware=[tasks.stop_if_needed]
        )(tasks.upload)
        app.task(name=RECOVER, pass_context=True)(tasks.recover)
    if worker.session.base in tasks.workers:
        return False
    tasks.workers[worker.session.base] = worker
    every = max(1, min(30, int(worker.stalled_after / 3)))
    app.periodic(
        cron=f"* * * * * */{every}",
        periodic_id=worker.queue,
        queue=worker.queue,
        queueing_lock=f"{RECOVER} {worker.queue}",
        priority=1000,  # or it would wait behind all uploads
    )(app.tasks[RECOVER])
    return True
