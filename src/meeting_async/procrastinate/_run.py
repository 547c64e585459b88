"""One run of a queued upload: from its claim to its outcome, or until it is put back.

It decides like a job of a batch, with its row in the place of the journal's entry. It never waits:
before every wait it ends, and the queue starts the next run when the time has come.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import anyio
import attrs

from meeting_async._batch.job_runner import BatchState, JobRunner
from meeting_async._batch.jobs import Status, UploadJob, UploadOutcome
from meeting_async._batch.journal import JobJournal, JournalEntry, Patience, State
from meeting_async._batch.options import BatchOptions
from meeting_async._batch.scheduler import Scheduler
from meeting_async._delivery.retry import RetryState, Wait
from meeting_async._delivery.session import Options, Session
from meeting_async._documents.document import Document
from meeting_async._log import logger
from meeting_async.errors import JournalError, UploadOutcomeUnknown, UploadPutBack
from meeting_async.procrastinate._table import Row, Table, packed

T = TypeVar("T")


NEIGHBOUR_SECONDS = 1.0
"""Pause if another upload of this process has the room."""

JOURNAL_SECONDS = 5.0
"""Pause if the table could not be written before the document was complete."""

RECORD_SECONDS = 300.0
"""For so long an outcome is kept and tried again while the database does not answer."""

CLAIM_SECONDS = 30.0
"""The same for the beginning of a run, and for its end without an outcome."""


class TakenOver(JournalError):
    """Another worker runs this upload, because this one was taken for dead."""


async def persistently(ask: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Ask the database again and again while it does not answer, for so many seconds at most."""
    ends_at = anyio.current_time() + seconds
    while True:
        try:
            return await ask()
        except JournalError:
            if anyio.current_time() > ends_at:
                raise
            await anyio.sleep(1)


@attrs.define(eq=False)
class QueuedRun(JobRunner):
    """Await :meth:`run` once. Then it is put back, or has an outcome, or neither: taken over."""

    row: Row = attrs.field(kw_only=True)
    table: Table = attrs.field(kw_only=True)
    find_document: Callable[[Row], Awaitable[Document]] = attrs.field(kw_only=True)
    must_end: Callable[[], bool] = attrs.field(kw_only=True)
    """Whether a cancellation means that the job is to be given up."""
    put_back: UploadPutBack | None = attrs.field(default=None, init=False)
    taken_over: bool = attrs.field(default=False, init=False)
    _state: RetryState | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.journal = JobJournal(self, Patience(math.inf))  # the database has limits of its own
        self.journal.entry = self.row.entry
        self._began = anyio.current_time() - self.row.started_ago
        self._ends_at = math.inf
        self._log.attempts.extend(self.row.attempts)

    async def _registered(self) -> Document:
        document = await self.find_document(self.row)
        self._document = document.filename
        return document

    # --- hooks of the upload ---------------------------------------------------------------------

    def begin(self, state: RetryState) -> None:
        """Go on with the counters of the run before."""
        self._state = state
        if self.row.retry is not None:
            state.restore(self.row.retry, anyio.current_time())

    async def before_wait(self, wait: Wait, *, may_have_arrived: bool) -> None:
        """End the run instead of waiting."""
        phase = self._upload_call.phase if self._upload_call else ""
        self.put_back = UploadPutBack(wait.seconds, phase)
        raise self.put_back

    async def before_queue(self) -> None:
        """End the run instead of waiting."""
        self.put_back = UploadPutBack(
            NEIGHBOUR_SECONDS, "waiting behind another upload of this application"
        )
        raise self.put_back

    # --- the record of the job -------------------------------------------------------------------

    async def mark_sending(
        self, entry: JournalEntry, size: int | None, fingerprint: str | None
    ) -> None:
        """Record durably that the closing boundary is about to be sent."""
        if not await self.table.mark_sending(self.row, size, fingerprint):
            raise _taken_over()

    async def record(self, entry: JournalEntry, state: State, reason: str | None) -> None:
        """Record the outcome."""
        error = self.outcome.error if self.outcome else None
        if isinstance(error, UploadOutcomeUnknown):
            reason = error.reason  # the report makes the same error of it
        await self._until_recorded(
            partial(
                self.table.finish,
                self.row,
                state=state,
                error=type(error).__name__ if error else None,
                reason=reason or (str(error) if error else None),
                size=self._size,
                attempts=packed(self._log.attempts),
            ),
            RECORD_SECONDS,
        )

    async def _release(self) -> None:
        """Record that the run has no outcome."""
        if self._log.unknown_since is not None:
            state: State = "sent"
        else:
            state = self.row.state if self.row.state in {"sent", "unknown"} else "ready"
        pause = self.put_back.seconds if self.put_back else 0.0
        retry = self._state.saved(anyio.current_time() + pause) if self._state else self.row.retry
        await self._until_recorded(
            partial(
                self.table.release,
                self.row,
                state=state,
                attempts=packed(self._log.attempts),
                retry=json.dumps(retry),
            ),
            CLAIM_SECONDS,
        )

    async def _until_recorded(self, write: Callable[[], Awaitable[bool]], seconds: float) -> None:
        """Write to its end also if procrastinate cancels the job meanwhile."""
        writing = asyncio.ensure_future(persistently(write, seconds))
        try:
            await asyncio.shield(writing)
        finally:
            await asyncio.wait([writing])
            self.taken_over = not writing.result()

    # --- the end ---------------------------------------------------------------------------------

    async def _fail(self, error: Exception) -> None:
        if isinstance(error, TakenOver):
            self.taken_over = True
            return
        if isinstance(error, UploadPutBack):
            self.put_back = error
        elif isinstance(error, JournalError) and self._log.unknown_since is None:
            self.put_back = UploadPutBack(JOURNAL_SECONDS, str(error))
        if self.put_back is not None:
            await self._release()
        else:
            await super()._fail(error)

    async def _cut_off(self) -> None:
        """Put the upload back after a cancellation, unless it may have arrived or is given up."""
        if self._log.unknown_since is None and not self.must_end():
            self.put_back = UploadPutBack(0.0, "its worker was stopped")
        await super()._cut_off()

    async def _end(self, status: Status, **facts: Any) -> None:
        # Nobody runs a job again that was given up before its first attempt.
        await super()._end("failed" if status == "skipped" else status, **facts)


def new_run(
    session: Session,
    options: Options,
    table: Table,
    row: Row,
    find_document: Callable[[Row], Awaitable[Document]],
    must_end: Callable[[], bool],
) -> QueuedRun:
    """Make a run of a claimed upload."""
    if row.doubt_ago is not None:
        session.put_in_doubt(row.room_id, anyio.current_time() - row.doubt_ago)
    scheduler = Scheduler[object](_begin_nothing)
    scheduler.in_use = 1  # by this run
    batch = BatchState(
        session=session,
        options=options,
        batch_options=BatchOptions(),
        scheduler=scheduler,
        stop=_stop_nothing,
    )
    batch.is_verified = True  # a queue does not stop at a wrong key
    return QueuedRun(
        0,
        UploadJob(row.room_id, row.source, key=row.key),
        batch,
        None,
        _forget,
        row=row,
        table=table,
        find_document=find_document,
        must_end=must_end,
    )


async def leave(table: Table, upload_id: int) -> str:
    """Leave an upload to the worker that has taken it over, and let it end first.

    Otherwise this job would set the status of the other one.
    """
    logger.warning("upload %d was taken over by another worker", upload_id)
    find = partial(table.find, upload_id)
    found = await persistently(find, RECORD_SECONDS)
    while found is not None and found["is_running"]:
        await anyio.sleep(1)
        found = await persistently(find, RECORD_SECONDS)
    if found is not None and found["state"] == "ready":
        raise UploadPutBack(0.0, "another worker has put it back")
    return "taken over"


def _begin_nothing(_room: str, _job: object) -> None:
    """The queue starts the jobs."""


def _stop_nothing() -> None:
    """The queue stops its worker."""


def _forget(_outcome: UploadOutcome) -> None:
    """The queue releases the room."""


def _taken_over() -> TakenOver:
    return TakenOver("meeting_async_uploads", "says that another worker has taken over")
