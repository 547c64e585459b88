"""A worker: it uploads what the ticks of rooms announce, and looks after the runs of lost workers.

It ends by itself, and says why, if its database does not answer or the server refuses its key.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import anyio
import attrs
import procrastinate
from procrastinate.exceptions import ConnectorException
from procrastinate.signals import on_stop
from procrastinate.worker import Worker

from meeting_async._batch.job import Common, RunningJob
from meeting_async._batch.results import UploadJob
from meeting_async._delivery.call import new_call
from meeting_async._delivery.questions import UNUSED_ROOM, Questions
from meeting_async._delivery.session import Options, Session
from meeting_async._documents.document import Document, found_document
from meeting_async._log import logger
from meeting_async._models import Verdict
from meeting_async._protocol.replies import reply_error
from meeting_async._protocol.requests import ACTIVE_ROOM_INFO
from meeting_async.errors import (
    AuthenticationFailed,
    JournalError,
    JournalInUse,
    MeetingError,
    UploadPutBack,
)
from meeting_async.procrastinate._brake import Brake
from meeting_async.procrastinate._database import failure
from meeting_async.procrastinate._run import CLAIM_SECONDS, QueuedRun, persistently
from meeting_async.procrastinate._table import Row, Table
from meeting_async.procrastinate._ticks import TickWorker

Documents = Callable[[str], Document | Awaitable[Document]]
"""Turns a reference, such as the id of a row or an object of a store, into a document."""

NO_DOCUMENTS_SECONDS = 10.0
"""Pause of a reference that a worker without ``documents`` has met."""

ASK_SECONDS = 15.0
"""Longest time for the question with which a worker begins."""

POLL_SECONDS = 0.25
"""Interval at which an idle worker looks for ticks. It does not listen for them: PostgreSQL could
not stop while a connection that listened is being closed."""

BEAT_SECONDS = 5.0
"""Longest interval of beats, and of recovery."""

ENDING_SECONDS = 10.0
"""So long a worker that runs no upload any more may take to end."""

HURRIED_SECONDS = 2.0
"""So long uploads that are cancelled by a second signal have to say so in the table."""

NEVER = 86_400.0
"""Interval of what procrastinate does by itself and a worker of uploads does not need."""


@attrs.define(kw_only=True, eq=False)
class UploadWorker:
    """Uploads to one server."""

    table: Table
    session: Session
    options: Options
    documents: Documents | None
    stalled_after: float
    """Seconds without a beat after which the worker of an upload counts as lost."""
    max_outage: float
    """Seconds for which an upload is put back while the server is away."""
    documents_timeout: float
    """Longest time in seconds for ``documents``."""
    must_stop: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    error: MeetingError | None = None
    """Why the worker must not go on."""
    runs: dict[int, QueuedRun] = attrs.field(factory=dict, init=False)
    """Uploads that run now, by id."""
    _ticks: set[asyncio.Task[Any]] = attrs.field(factory=set, init=False)
    _brake: Brake = attrs.field(factory=Brake, init=False)
    _turn: anyio.Lock = attrs.field(factory=anyio.Lock, init=False)

    def stop(self, error: MeetingError) -> None:
        """End the worker after its uploads."""
        if self.error is None:
            self.error = error
            running = f"after its uploads ({len(self.runs)} now)" if self.runs else "now"
            text = "the worker ends %s: %s"
            logger.error(text, running, error, extra={"action": "queue"})
        self.must_stop.set()

    async def hurry(self) -> None:
        """Cancel the uploads: nothing of them may be left when the loop ends."""
        for task in self._ticks:
            task.cancel()
        if self._ticks:
            await asyncio.wait(self._ticks, timeout=HURRIED_SECONDS)

    async def check_key(self) -> None:
        """Ask the server once, before the first tick.

        Raises:
            AuthenticationFailed: It refuses the key or the secret.
            ConfigurationError: A proxy or certificates cannot be used.

        """
        call = new_call(self.session, self.options, ACTIVE_ROOM_INFO, UNUSED_ROOM.id)
        with anyio.move_on_after(ASK_SECONDS), self.session.in_use(call.loop):
            questions = Questions(self.session, UNUSED_ROOM, self.session.send)
            found = await questions.check(self.options.timeouts)
            if found.verdict is not Verdict.REFUSED or found.answer is None:
                return
            error = reply_error(found.verdict, found.answer, upload=False)
            if isinstance(error, AuthenticationFailed):
                call.add_facts_to(error)
                raise error

    # --- an upload -------------------------------------------------------------------------------

    async def tick(self, room_id: str) -> None:
        """Run the next upload of a room, if there is one and it is due."""
        if task := asyncio.current_task():
            self._ticks.add(task)
            task.add_done_callback(self._ticks.discard)
        row, is_tried = None, False
        try:
            is_tried = await self._brake.may_begin() and not self.must_stop.is_set()
            if is_tried:
                row = await persistently(
                    partial(self.table.claim, room_id), CLAIM_SECONDS, self._turn
                )
        finally:
            if not is_tried:
                await self.table.tick([room_id])  # another worker may have it
            elif row is None:
                self._brake.report_answer(None)
        if row is not None:
            await self._upload(row)

    async def _upload(self, row: Row) -> None:
        now = anyio.current_time()
        upload = RunningJob(
            common=Common(session=self.session, options=self.options),
            given=UploadJob(row.room_id, row.source, key=row.key),
            began=now - row.started_ago,
            entry=row.entry,
        )
        run = QueuedRun(
            upload,
            row,
            self.table,
            self._document,
            self._brake.report_answer,
            self.max_outage,
            self.stalled_after,
            self._turn,
        )
        self.runs[row.id] = run
        try:
            await run.run()
        finally:
            if self.runs.get(row.id) is run:  # else a later run of it has begun here
                del self.runs[row.id]
            if isinstance(run.error, AuthenticationFailed):
                self.stop(run.error)

    async def _document(self, row: Row) -> Document:
        if row.kind == "link":
            return Document.from_link(row.source)
        names = {"filename": row.filename, "content_type": row.content_type}
        if row.kind == "path":
            return Document.from_path(row.source, **names)
        if self.documents is None:
            why = "it is a reference: make WhiteboardUploads with `documents` in every worker"
            logger.warning("upload %d is put back, %s", row.id, why)
            raise UploadPutBack(NO_DOCUMENTS_SECONDS, why)
        made: Any = None
        with anyio.move_on_after(self.documents_timeout) as scope:
            made = self.documents(row.source)
            made = await made if inspect.isawaitable(made) else made
        if scope.cancelled_caught:
            seconds = f"{self.documents_timeout:g} s"
            raise TimeoutError(f"`documents` had no document for {row.source!r} within {seconds}")
        return await found_document(made, **names)

    # --- beside the uploads ----------------------------------------------------------------------

    async def beat(self, runner: Worker) -> None:
        """Say every few seconds which uploads run here, and recover what other workers have lost.

        After an outage of the database other workers get the time to say that they are there.
        """
        failures, recovers_at = 0, 0.0
        recovery: asyncio.Task[None] | None = None
        try:
            while True:
                try:
                    await self._beat(runner)
                    failures = 0
                except JournalError as error:
                    # A database that names the lock is there, however long that is held.
                    failures = 0 if isinstance(error, JournalInUse) else failures + 1
                    recovers_at = anyio.current_time() + self.stalled_after
                    if failures == 2:
                        self.stop(error)
                if recovery is not None and recovery.done():
                    recovery = recovery.result()
                if recovery is None and anyio.current_time() >= recovers_at:
                    recovery = asyncio.create_task(self._recover(), name="recovery")
                await asyncio.sleep(min(BEAT_SECONDS, self.stalled_after / 3))
        finally:
            if recovery is not None:
                recovery.cancel()

    async def _beat(self, runner: Worker) -> None:
        runs = dict(self.runs)
        lost = await self.table.beat((run.row for run in runs.values()), runner.worker_id)
        for id_, is_cancelled in lost.items():
            runs[id_].lose(is_cancelled=is_cancelled)

    async def _recover(self) -> None:
        resends = self.options.delivery != "at_most_once"
        try:
            found = await self.table.recover(stalled_after=self.stalled_after, resends=resends)
        except JournalError as error:
            logger.warning("recovery has failed: %s", error, extra={"action": "queue"})
            return
        for id_, state in found.items():
            text = "upload %d of a lost worker: %s"
            logger.warning(text, id_, state, extra={"action": "queue"})


# --- beginning and end ---------------------------------------------------------------------------


async def run_worker(
    app: procrastinate.App,
    worker: UploadWorker,
    *,
    concurrency: int,
    grace: float,
    signals: bool,
    options: dict[str, Any],
) -> None:
    """Run a worker; see :meth:`WhiteboardUploads.run_worker`."""
    await worker.table.check()
    await worker.table.check_sessions()
    await worker.check_key()
    defaults: dict[str, Any] = {
        "fetch_job_polling_interval": POLL_SECONDS,
        "stalled_worker_timeout": worker.stalled_after,
        "delete_jobs": "always",
    }
    fixed: dict[str, Any] = {
        "queues": [worker.table.queue],
        "concurrency": concurrency,
        "install_signal_handlers": False,
        "shutdown_graceful_timeout": grace,
        "listen_notify": False,
        "update_heartbeat_interval": NEVER,  # `beat` does it
        "abort_job_polling_interval": NEVER,  # a tick has no state that could be aborted
    }
    settings: dict[str, Any] = {**defaults, **app.worker_defaults, **options, **fixed}
    runner = TickWorker(app, worker.table.unfinished, **settings)
    with on_stop(worker.must_stop.set) if signals else nullcontext():
        running = asyncio.create_task(runner.run(), name="worker")  # type: ignore[no-untyped-call] # procrastinate's
        beating = asyncio.create_task(worker.beat(runner), name="beats")
        asked = asyncio.create_task(worker.must_stop.wait(), name="end")
        try:
            await asyncio.wait([running, beating, asked], return_when="FIRST_COMPLETED")
        finally:
            try:
                with anyio.CancelScope(shield=True):  # for `grace` and some seconds at most
                    await _end(runner, running, worker, grace)
            except asyncio.CancelledError:  # by a second signal
                await worker.hurry()
                raise
            finally:
                for task in (running, beating, asked):
                    task.cancel()
    if worker.error is not None:
        raise worker.error
    _raise_errors_of(running, beating)


def _raise_errors_of(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        error = task.exception() if task.done() and not task.cancelled() else None
        if isinstance(error, ConnectorException):
            raise failure(error) from error
        if error is not None:
            raise error


async def _end(
    runner: Worker, running: asyncio.Task[None], worker: UploadWorker, grace: float
) -> None:
    """Stop a worker: its uploads have ``grace`` seconds, and it has some more to end."""
    runner.stop()  # type: ignore[no-untyped-call] # procrastinate's
    idle_since = began = anyio.current_time()
    while not running.done() and anyio.current_time() < began + grace + ENDING_SECONDS:
        await asyncio.wait([running], timeout=0.2)
        if worker.runs:
            idle_since = anyio.current_time()
        elif anyio.current_time() > idle_since + ENDING_SECONDS:
            break
    if not running.done():
        logger.error("the worker does not end by itself", extra={"action": "queue"})
