"""Many documents for many rooms: in order within a room, side by side among rooms."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sized
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.lowlevel
import attrs

from meeting_async import errors
from meeting_async._calls import Calls
from meeting_async._cancelling import is_stray, one_of
from meeting_async._database import Write
from meeting_async._documents import Document
from meeting_async._errand import Errand, label_of
from meeting_async._intake import Held, Jobs, Window, checked_jobs, held_by, reading
from meeting_async._jobs import UploadJob, UploadOutcome
from meeting_async._journal import Entry, Journal, journal_at
from meeting_async._observer import logger
from meeting_async._outbox import Outbox
from meeting_async._presence import Presence, dooms_batch, dooms_room
from meeting_async._queues import RoomQueues
from meeting_async._report import BatchReport
from meeting_async._slots import Slot, Slots
from meeting_async._terms import Terms


@attrs.frozen
class _Queued:
    """A job that was read."""

    index: int
    job: UploadJob
    held: Held
    claim: Write[Entry] | None
    """What the journal is asked about it; the answer is there before its turn, as a rule."""


class Batch:
    """A batch of uploads: made by :meth:`MeetingClient.upload_many`, run by its ``async with``.

    It iterates over outcomes in the order in which jobs end. Leaving the block early cuts off what
    is on its way; :attr:`report` tells of everything that was read.
    """

    def __init__(self, calls: Calls, jobs: Jobs, terms: Terms) -> None:
        checked_jobs(jobs)
        if calls.options.delivery == "at_least_once":
            terms = attrs.evolve(terms, on_unknown="resend")
        elif terms.on_unknown == "resend":
            options = attrs.evolve(calls.options, delivery="at_least_once")
            calls = attrs.evolve(calls, options=options)
        self._calls, self._jobs, self._terms = calls, jobs, terms
        self._report = BatchReport(keep=terms.keep_outcomes)
        self._queues: RoomQueues[_Queued] = RoomQueues()
        self._slots = Slots(terms.concurrency, self._longest, self._begin, self._queued)
        self._presence = Presence(calls, terms.wait_active, self._slots.offer)
        self._window = Window(terms.window)
        self._journal: Journal | None = None
        self._lifetime: contextlib.AbstractAsyncContextManager[None] | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._reading: anyio.CancelScope | None = None
        self._began = 0.0
        self._running: set[Errand] = set()
        self._is_read = False
        """Whether no further job will be read."""
        self._stop_error: Exception | None = None
        """What the jobs that are not begun are skipped for."""
        self._input_error: BaseException | None = None
        self._is_ended = False
        """Whether no further outcome will come."""
        self._outbox = Outbox()

    # --- what a caller does with it --------------------------------------------------------------

    @property
    def report(self) -> BatchReport:
        """The account so far; complete once the batch is over."""
        return self._report

    def stop(self) -> None:
        """Begin nothing new. What is being sent or answered comes to its end.

        What waits, for a room or for its next attempt, ends at once, unsent; the rest is skipped.
        """
        error = errors.BatchStopped("before it was sent")
        self._skip(self._stop(error), error)
        self._end_if_over()

    async def wait(self) -> BatchReport:
        """Run to the end and return the report.

        Raises:
            Exception: What reading the jobs raised, after those that were read have ended.

        """
        async for _ in self:
            pass
        return self._report

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> UploadOutcome:
        if self._tasks is None and not self._is_ended:
            raise RuntimeError("use the batch in an `async with` block")
        outcome = await self._outbox.take()
        if outcome is None:
            error, self._input_error = self._input_error, None
            raise error or StopAsyncIteration
        self._window.leave()
        return outcome

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

    @contextlib.asynccontextmanager
    async def _alive(self) -> AsyncGenerator[None, None]:
        """Run while the block does. What the caller raises comes out as it is, not in a group."""
        self._calls.shared.check_open()
        self._began = anyio.current_time()
        failure: BaseException | None = None
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._end)
            if self._terms.journal is not None:
                at = journal_at(self._terms.journal, self._calls.shared.base)
                self._journal = await stack.enter_async_context(at)
            try:
                async with anyio.create_task_group() as self._tasks:
                    self._tasks.start_soon(self._read)
                    try:
                        yield
                    except Exception as error:  # noqa: BLE001 - raised again below
                        failure = error
                    finally:
                        self._leave()
            except BaseExceptionGroup as group:  # what ends the program: KeyboardInterrupt, ...
                failure = one_of(group)
            except anyio.get_cancelled_exc_class():
                if failure is None:
                    raise
        if failure is not None:
            raise failure

    def _leave(self) -> None:
        """Cut off what is on its way, if anything is."""
        if not self._is_over:
            self.stop()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def _end(self) -> None:
        """Let iteration end."""
        if not self._is_ended:
            self._is_ended = True
            self._report.seconds = anyio.current_time() - self._began
            self._outbox.close()

    # --- reading ---------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            async with reading(self._jobs) as jobs:
                with anyio.CancelScope() as self._reading:
                    await self._read_all(jobs)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_stray(error):
                raise
            self._input_error = error  # the caller's own, raised by the iteration
            if isinstance(error, Exception):
                self._report.stopped_by = self._report.stopped_by or error
        self._is_read = True
        self._end_if_over()

    async def _read_all(self, jobs: AsyncIterator[UploadJob]) -> None:
        index = 0
        async for job in jobs:
            await self._take_in(index, job)
            index += 1
            if self._stop_error is not None and not isinstance(self._jobs, Sized):
                break

    async def _take_in(self, index: int, job: UploadJob) -> None:
        if not isinstance(job, UploadJob):
            raise TypeError(f"job {index} must be an UploadJob, not {type(job).__name__}")
        held = held_by(job)
        try:
            await self._window.enter(held)
        except BaseException:  # it was read, and is accounted for
            queued = _Queued(index, job, held, None)
            self._skip([queued], self._stop_error or errors.BatchStopped("before it was sent"))
            raise
        queued = _Queued(index, job, held, self._claim(job))
        if self._stop_error is not None:
            self._skip([queued], self._stop_error)
            return
        self._queues.put(_room_of(job), queued)
        self._slots.offer()

    def _claim(self, job: UploadJob) -> Write[Entry] | None:
        """Ask the journal, in the order of the input; what is no proper job is not in it."""
        if self._journal is None or not isinstance(job.room_id, str):
            return None
        try:
            document = Document.of(
                job.document, filename=job.filename, content_type=job.content_type
            )
        except Exception:  # noqa: BLE001 - it is refused when its turn has come
            return None
        return self._journal.claim(job.room_id, document, job.key)

    # --- running ---------------------------------------------------------------------------------

    def _longest(self) -> int:
        """Return the length of the longest queue from which a job may be begun.

        Until the server has proved itself one goes ahead alone, so that a wrong key is found out
        with one small call.
        """
        return self._queues.longest if self._presence.is_met or not self._running else 0

    def _queued(self) -> int:
        return len(self._queues)

    def _begin(self) -> None:
        found = self._queues.take()
        if found is not None and self._tasks is not None:
            room, queued = found
            doomed: list[_Queued] = []
            errand = self._errand(room, queued, doomed)
            self._running.add(errand)
            self._tasks.start_soon(self._run, room, queued, errand, doomed)

    def _errand(self, room: str, queued: _Queued, doomed: list[_Queued]) -> Errand:
        return Errand(
            index=queued.index,
            job=queued.job,
            calls=self._calls,
            terms=self._terms,
            presence=self._presence,
            journal=self._journal,
            claim=queued.claim,
            slot=Slot(self._slots, lambda: self._queues.left(room) + 1),
            batch_began=self._began,
            when_over=lambda outcome: doomed.extend(self._vacate(room, outcome.error)),
        )

    async def _run(self, room: str, queued: _Queued, errand: Errand, doomed: list[_Queued]) -> None:
        try:
            await errand.run()
        finally:
            self._running.remove(errand)
            self._conclude(room, queued, errand, doomed)

    def _vacate(self, room: str, error: Exception | None) -> list[_Queued]:
        """Let the room's next job have its turn; return those that the error dooms."""
        doomed = self._doomed_by(error, room)
        self._queues.done(room)  # before its slot is free: it may be this room's turn again
        if room not in self._queues:
            self._presence.forget(room)
        return doomed

    def _conclude(self, room: str, queued: _Queued, errand: Errand, doomed: list[_Queued]) -> None:
        """Account for a job whose outcome the journal has, and for those that it dooms."""
        if not errand.is_over:
            self._vacate(room, None)
        if errand.outcome is not None:
            _let_go_of_frames(errand.outcome.error)
            self._account(errand.outcome, queued)
            self._skip(doomed, errand.outcome.error)
        self._skip(self._doomed_by(errand.journal_error, room), errand.journal_error)
        errand.slot.give_back()
        self._slots.offer()
        self._end_if_over()

    def _doomed_by(self, error: Exception | None, room: str) -> list[_Queued]:
        """Take out of the queues what would meet the same error."""
        is_outage = self._calls.shared.outage.is_on
        if dooms_batch(error, is_met=self._presence.is_met, is_outage=is_outage):
            self._report.stopped_by = self._report.stopped_by or error
            return self._stop(error)
        return self._queues.drain(room) if dooms_room(error) else []

    def _stop(self, error: Exception | None) -> list[_Queued]:
        """Begin nothing new, wait for nothing; return what was not begun."""
        self._stop_error = self._stop_error or error
        if self._reading is not None and not isinstance(self._jobs, Sized):
            self._reading.cancel()  # it may wait for a job that never comes
        for errand in list(self._running):
            errand.slot.stop()
        return self._queues.drain_all()

    def _skip(self, jobs: Iterable[_Queued], error: Exception | None) -> None:
        """Account for jobs that are not tried."""
        for queued in jobs:
            outcome = UploadOutcome(
                index=queued.index,
                room_id=queued.job.room_id,
                document=label_of(queued.job),
                status="skipped",
                error=error,
                key=queued.job.key,
                started=anyio.current_time() - self._began,
            )
            self._account(outcome, queued)

    def _account(self, outcome: UploadOutcome, queued: _Queued) -> None:
        self._window.unload(queued.held)
        self._report.add(outcome)
        self._report.seconds = anyio.current_time() - self._began
        self._outbox.put(outcome)

    @property
    def _is_over(self) -> bool:
        return self._is_read and not self._running and not len(self._queues)

    def _end_if_over(self) -> None:
        if self._is_over:
            self._end()


def _room_of(job: UploadJob) -> str:
    """Return the queue of a job; what is no room id at all has one, too, until it is refused."""
    room_id: object = job.room_id
    return room_id if isinstance(room_id, str) else ""


def _let_go_of_frames(error: BaseException | None) -> None:
    """Keep an error without the frames that it passed through: they know the document.

    Of what nobody foresaw, where it happened is in the log.
    """
    if error is not None and not isinstance(error, errors.MeetingError):
        logger.warning("a job of a batch raised %r", error, exc_info=error, extra=_BATCH)
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


_BATCH = {"action": "batch"}
