"""One job of a batch: its permit, its entry in the journal, and what a stop does to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import attrs

from meeting_async._batch.deliver import JobRun, deliver
from meeting_async._batch.failures import is_stray
from meeting_async._batch.flow import Held
from meeting_async._batch.jobs import UploadJob, UploadOutcome
from meeting_async._batch.journal import JobJournal, Journal, Patience, Registration, register
from meeting_async._batch.options import BatchOptions
from meeting_async._batch.scheduler import Scheduler
from meeting_async._delivery.decide import Reason
from meeting_async._delivery.session import Options, Session
from meeting_async._delivery.upload import UploadHooks
from meeting_async._documents.document import Document
from meeting_async._documents.prepared import Prepared
from meeting_async._models import UploadReceipt
from meeting_async.errors import JournalError, MeetingError


@attrs.frozen
class QueuedJob:
    """A job that was read."""

    index: int
    job: UploadJob
    held: Held | None
    registration: Registration | None = None
    """``None`` without a journal, or if it could not be registered when it was read."""


@attrs.define(kw_only=True, eq=False)
class BatchState:
    """State that the jobs of a batch share."""

    session: Session
    options: Options
    batch_options: BatchOptions
    scheduler: Scheduler[QueuedJob]
    journal: Journal | None = attrs.field(default=None, init=False)
    patience: Patience = attrs.field(factory=Patience, init=False)
    began: float = attrs.field(default=0.0, init=False)
    stop_error: Exception | None = attrs.field(default=None, init=False)
    """The error of jobs that are skipped, once no further one begins or waits."""
    is_verified: bool = attrs.field(default=False, init=False)
    """Whether the server is a meeting server and accepts the key. Until that is known one job runs
    alone, so that a wrong key costs one small call."""

    @property
    def is_gone(self) -> bool:
        """Whether no call could reach the server for as long as an upload tries."""
        since = self.session.server.away_since
        max_outage = self.options.retry.max_outage
        return since is not None and since + max_outage <= anyio.current_time()

    def verify(self) -> None:
        """Let the other jobs begin."""
        if not self.is_verified:
            self.is_verified = True
            self.scheduler.set_limit(self.batch_options.concurrency)

    def new_run(self, queued: QueuedJob) -> JobRun:
        """Begin a job, or skip it."""
        return JobRun(
            session=self.session,
            options=self.options,
            limits=self.batch_options,
            job=queued.job,
            index=queued.index,
            batch_began=self.began,
        )


@attrs.define(eq=False)
class JobRunner(UploadHooks):
    """A running job. It begins with a permit. Await :meth:`run`, then :meth:`record`, once each."""

    queued: QueuedJob
    batch: BatchState
    _run: JobRun = attrs.field(init=False)
    _journal: JobJournal = attrs.field(init=False)
    _has_permit: bool = attrs.field(default=True, init=False)
    _is_interruptible: bool = attrs.field(default=True, init=False)
    """Whether the job only waits, so that a stop ends it at once."""
    _scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self._run = self.batch.new_run(self.queued)
        self._journal = JobJournal(self.batch.journal, self.batch.patience)

    async def run(self) -> tuple[UploadOutcome, BaseException | None]:
        """Run the job; return its outcome, and the cancellation or exit that ended it, if any.

        The caller raises that again.
        """
        try:
            with self._scope:
                return self._run.delivered(await self._deliver()), None
        except Exception as error:  # noqa: BLE001 - whatever a job does, the others go on
            return self._run.failed(error), None
        except BaseException as error:  # noqa: BLE001 - returned
            if is_stray(error):
                stray = RuntimeError("it was cancelled, though nobody cancelled the job")
                return self._run.failed(stray), None
            return self._run.cut_off(), error
        return self._run.cut_off(), None  # it was stopped

    def stop(self) -> None:
        """End it if it only waits; an upload that runs may end."""
        if self._is_interruptible:
            self._scope.cancel()

    async def record(self, outcome: UploadOutcome) -> JournalError | None:
        """Record the outcome in the journal, also if cancelled; return the error if that fails."""
        if outcome.status == "skipped":
            return None
        reason = str(outcome.error) if isinstance(outcome.error, MeetingError) else None
        try:
            await self._journal.record(outcome.status, reason)
        except JournalError as error:
            return error
        return None

    async def _deliver(self) -> UploadReceipt | None:
        with self._run.limited("reading the journal"):
            document = await self._registered()
        return await deliver(self._run, document, self)

    async def _registered(self) -> Document:
        """Check the job, and wait for its entry in the journal."""
        found = self.queued.registration or await register(self.batch.journal, self.queued.job)
        self._run.document = found.document.filename
        if found.entry is not None:
            self._run.entry = await self._journal.find(found.entry)
        return found.document

    # --- around an attempt -----------------------------------------------------------------------

    def sending(self) -> None:
        """Let the other jobs of the batch begin. From now on a stop does not end this one."""
        self.batch.verify()
        self._is_interruptible = False

    @asynccontextmanager
    async def waiting(self, reason: Reason, seconds: float | None) -> AsyncGenerator[None, None]:
        """Release the permit for a wait, record if nothing arrived, and acquire a permit again.

        Until the server has answered no other job begins: it would meet the same trouble.
        """
        if reason in {"room", "inactive"}:
            self.batch.verify()
        if reason != "retry" or self.batch.is_verified:
            self.release_permit()
        self._is_interruptible = True
        if self.batch.stop_error is not None:
            self._scope.cancel()
        if not self._run.history.may_have_arrived:
            await self._journal.unmark()
        yield
        if not self._has_permit:
            await self.batch.scheduler.acquire(self.queued.job.room_id)
            self._has_permit = True

    async def may_arrive(self, document: Prepared) -> None:
        """Record that the document may arrive from now on."""
        await self._journal.mark_sending(document)

    def release_permit(self) -> None:
        """Release the permit, if there is one."""
        if self._has_permit:
            self._has_permit = False
            self.batch.scheduler.release()
