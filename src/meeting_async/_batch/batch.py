"""Many documents to many rooms: in order within a room, several rooms at the same time."""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Generator,
    Iterable,
    Sequence,
)
from types import TracebackType
from typing import NoReturn, Self

import anyio
import anyio.abc
import anyio.lowlevel
import attrs

from meeting_async import errors
from meeting_async._batch.batch_job import BatchJob, BatchState, QueuedJob
from meeting_async._batch.flow import LISTS, Flow, Jobs, OutcomeIterator, held_by, read
from meeting_async._batch.job import is_stray
from meeting_async._batch.journal import BatchJournal, register
from meeting_async._batch.options import BatchOptions
from meeting_async._batch.results import (
    FIX_JOB,
    BatchReport,
    UploadJob,
    UploadOutcome,
    drop_tracebacks,
    ends_batch,
    ends_room,
    reason_of,
)
from meeting_async._batch.scheduler import Scheduler
from meeting_async._batch.sqlite_journal import SqliteJournal
from meeting_async._clock import clock_of
from meeting_async._delivery.session import Options, Session
from meeting_async._log import logger
from meeting_async._text import needs_async_with, path_repr

SKIPPED_AT_ONCE = 200
"""Jobs that are skipped before other tasks get their turn: each takes some 20 microseconds."""

_ALL_DONE = "nothing was sent: earlier runs with the journal %s have delivered all jobs (%d)"


class Batch:
    """Many uploads: made by :meth:`MeetingClient.upload_many`, run by ``async with``.

    Iterate over it to get the outcomes as the jobs end. Several tasks may iterate; each outcome
    goes to one of them. Leaving the block waits for all jobs, but an exception in the block cancels
    the running uploads. :attr:`report` has every job that was read.
    """

    def __init__(
        self, session: Session, options: Options, jobs: Jobs, limits: BatchOptions
    ) -> None:
        given: object = jobs
        if not isinstance(given, Iterable | AsyncIterable):
            kind = type(given).__name__
            raise TypeError(f"jobs must be an iterable or async iterable of UploadJob, not {kind}")
        self._jobs = jobs
        self._report = BatchReport(keep=limits.keep_outcomes)
        self._scheduler = Scheduler[QueuedJob](self._begin)
        self._state = BatchState(
            session=session,
            options=attrs.evolve(options, delivery=limits.delivery or options.delivery),
            limits=limits,
            scheduler=self._scheduler,
        )
        self._flow = Flow(limits.window)
        self._lifetime: contextlib.AbstractAsyncContextManager[None] | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._reading: anyio.CancelScope | None = None
        self._running: set[BatchJob] = set()
        self._skipped: deque[tuple[QueuedJob, Exception]] = deque()
        """Jobs that will not begin, and why; while there are any, a task counts them."""
        self._input_error: BaseException | None = None

    # --- what a caller does with it --------------------------------------------------------------

    @property
    def report(self) -> BatchReport:
        """The results so far; complete once the batch has ended."""
        return self._report

    def stop(self) -> None:
        """Start no new upload, and let the running uploads end.

        Uploads that wait, for a room or for their next attempt, end at once, unsent. All other jobs
        are skipped.
        """
        error = errors.BatchStopped("before it was sent")
        self._skip(self._stop(error), error)

    async def wait(self) -> BatchReport:
        """Wait for all jobs and return the report; outcomes are dropped unless a task iterates.

        Raises:
            Exception: An exception of the iterable, after all jobs that were read have ended.

        """
        self._check_entered()
        self._flow.stop_keeping()
        await self._flow.ended.wait()
        self._raise_input_error()
        return self._report

    def __aiter__(self) -> OutcomeIterator:
        self._check_entered()
        return OutcomeIterator(self._flow, self._raise_input_error)

    def __await__(self) -> Generator[None, None, NoReturn]:
        """Say how a batch is used."""
        raise TypeError(
            "a batch is not awaited: `async with client.upload_many(jobs) as batch: "
            "report = await batch.wait()`"
        )

    def __enter__(self) -> NoReturn:
        needs_async_with(self)

    def __exit__(self, *_: object) -> NoReturn:
        needs_async_with(self)

    async def __aenter__(self) -> Self:
        if self._lifetime is not None:
            raise RuntimeError("a batch runs once: make a new one")
        self._lifetime = self._alive()
        await self._lifetime.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._lifetime is not None  # noqa: S101 - it was entered
        return await self._lifetime.__aexit__(exc_type, exc_value, traceback)

    def _check_entered(self) -> None:
        if self._tasks is None:
            raise RuntimeError("use the batch in an `async with` block")

    # --- its lifetime ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _alive(self) -> AsyncGenerator[None, None]:
        """Run while the block runs. The caller's exception is raised unchanged, not in a group."""
        failure: BaseException | None = None
        try:
            async with contextlib.AsyncExitStack() as stack:
                loop, state = anyio.lowlevel.current_token(), self._state
                stack.enter_context(state.session.in_use(loop))
                state.now = clock_of(loop)
                state.began = state.now()
                self._context = contextvars.copy_context()
                await self._open_journal(stack)
                stack.callback(self._flow.end)
                async with anyio.create_task_group() as self._tasks:
                    if not state.options.preflight:
                        state.verify()
                    self._tasks.start_soon(self._read)
                    try:
                        yield
                        self._flow.stop_keeping()
                    except BaseException as error:
                        failure = error
                        self.stop()
                        self._tasks.cancel_scope.cancel()
                        if not isinstance(error, Exception):
                            raise
        except BaseExceptionGroup as group:  # the journal's, or what ends the program
            failure = _one_of(group)
        except anyio.get_cancelled_exc_class() as error:
            if not isinstance(failure, Exception):
                if count := self._report.unknown:
                    error.add_note(f"{count:,} of its documents may have arrived: see batch.report")
                raise
        if failure is not None:
            raise failure
        self._raise_input_error()
        if self._report.total and self._report.already_delivered == self._report.total:
            journal = path_repr(str(self._state.limits.journal))
            logger.warning(_ALL_DONE, journal, self._report.total, extra={"action": "batch"})

    async def _open_journal(self, stack: contextlib.AsyncExitStack) -> None:
        journal, server = self._state.limits.journal, self._state.session.base
        if isinstance(journal, str | os.PathLike):
            journal = SqliteJournal(journal)
        if journal is not None:
            self._state.journal = BatchJournal(journal)
            await stack.enter_async_context(self._state.journal.opened(server))

    def _raise_input_error(self) -> None:
        """Raise the exception of the iterable of jobs, once."""
        error, self._input_error = self._input_error, None
        if error is not None:
            raise error

    # --- reading ---------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            async with contextlib.aclosing(read(self._jobs)) as jobs:
                with anyio.CancelScope() as self._reading:
                    await self._read_all(jobs)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_stray(error):
                raise
            self._input_error = error
            if isinstance(error, Exception):
                self._report.stopped_by = self._report.stopped_by or error
        self._flow.stop_reading()

    async def _read_all(self, jobs: AsyncIterator[UploadJob]) -> None:
        index = 0
        async for job in jobs:
            await self._take_in(index, job)
            index += 1
            if self._state.stop_error is not None and not isinstance(self._jobs, LISTS):
                break

    async def _take_in(self, index: int, job: UploadJob) -> None:
        if not isinstance(job, UploadJob):
            raise TypeError(f"job {index} must be an UploadJob, not {type(job).__name__}{FIX_JOB}")
        queued, state = QueuedJob(index, job, held_by(job)), self._state
        try:
            await self._flow.enter(queued.held)
            if state.journal is not None:
                # What is not a job is refused at its turn; foreign objects may raise anything.
                with contextlib.suppress(Exception):
                    queued.registered = await register(state.journal, job)
        except BaseException:  # it was read, and is accounted for
            self._skip([queued], state.stop_error or errors.BatchStopped("before it was sent"))
            raise
        if state.stop_error is not None:
            self._skip([queued], state.stop_error)
            return
        room_id: object = job.room_id
        # What is not a room id has a queue, too, until it is refused.
        self._scheduler.add(room_id if isinstance(room_id, str) else "", queued)

    # --- running ---------------------------------------------------------------------------------

    def _begin(self, room: str, queued: QueuedJob) -> None:
        """Start a job that has a permit."""
        assert self._tasks is not None  # noqa: S101 - jobs are read in a task of it
        job = self._state.job(queued)
        self._running.add(job)
        # Not with the context of the job that released its permit.
        self._context.copy().run(self._tasks.start_soon, self._run, job, room)

    async def _run(self, job: BatchJob, room: str) -> None:
        """Run a job, let the room's next one begin, wait for the journal, and count the job."""
        outcome, interruption = await job.run()
        if interruption is not None and self._state.stop_error is None:
            self.stop()
        error, failure = reason_of(outcome.error or job.trouble), None
        doomed = self._doomed_by(error, room)
        self._scheduler.finish(room)
        job.release_permit()
        try:
            failure = await job.record(outcome)
        finally:  # Not before: after a crash the next run must know what this one has told.
            self._running.remove(job)
            self._count(outcome, job.queued)
            self._skip(doomed, error)
            self._skip(self._doomed_by(failure, room), failure)
        if interruption is not None:
            raise interruption

    def _doomed_by(self, error: Exception | None, room: str) -> list[QueuedJob]:
        """Remove the jobs from the queues that would have the same error."""
        state = self._state
        if error is None:
            return []
        if ends_room(error):  # the server's own word
            state.verify()
            return self._scheduler.drop(room)
        away = {"is_away": state.session.server.away_since is not None, "is_gone": state.is_gone}
        if ends_batch(error, is_verified=state.is_verified, **away):
            self._report.stopped_by = self._report.stopped_by or error
            return self._stop(error)
        return []

    def _stop(self, error: Exception) -> list[QueuedJob]:
        """Start no new upload and stop waits; return the jobs that have not begun."""
        self._state.stop_error = self._state.stop_error or error
        if self._reading is not None and not isinstance(self._jobs, LISTS):
            self._reading.cancel()  # it may wait for a job that never comes
        for job in list(self._running):
            job.stop()
        return self._scheduler.drop_all()

    def _skip(self, jobs: Sequence[QueuedJob], error: Exception | None) -> None:
        """Count jobs that are skipped, in a task: the journal is asked, and other tasks go on."""
        if error is None or not jobs:
            return
        is_counting = bool(self._skipped)
        self._skipped.extend((queued, error) for queued in jobs)
        if not is_counting:
            assert self._tasks is not None  # noqa: S101 - jobs are read in a task of it
            self._tasks.start_soon(self._count_skipped)

    async def _count_skipped(self) -> None:
        with anyio.CancelScope(shield=True):
            while self._skipped:
                queued, error = self._skipped[0]
                self._count(await self._state.job(queued).skip(error), queued)
                if self._report.total % SKIPPED_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
                self._skipped.popleft()

    def _count(self, outcome: UploadOutcome, queued: QueuedJob) -> None:
        drop_tracebacks(outcome.error)
        self._report._add(outcome)  # noqa: SLF001 - ours
        self._report.seconds = self._state.now() - self._state.began
        self._flow.leave(queued.held, outcome)


def _one_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to raise instead of a group: one that ends the program, if there is one."""
    first = (group.split(anyio.get_cancelled_exc_class())[1] or group).exceptions[0]
    return _one_of(first) if isinstance(first, BaseExceptionGroup) else first
