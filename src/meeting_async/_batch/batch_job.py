"""A job of a batch: it has a permit while it is sent, and the journal knows it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import ClassVar, TypeVar

import anyio
import anyio.lowlevel
import attrs

from meeting_async import errors
from meeting_async._batch.job import Common, RunningJob, is_stray
from meeting_async._batch.journal import BatchJournal, JournalEntry, State, register
from meeting_async._batch.results import UploadJob, UploadOutcome
from meeting_async._batch.scheduler import Scheduler
from meeting_async._delivery.decide import WaitKind
from meeting_async._delivery.evidence import Accepted
from meeting_async._delivery.sending import UploadHooks
from meeting_async._documents.document import Document
from meeting_async._documents.prepared import Prepared
from meeting_async._documents.source import Held
from meeting_async._events import Queued

T = TypeVar("T")


@attrs.define(eq=False)
class QueuedJob:
    """A job that was read."""

    index: int
    given: UploadJob
    held: Held | None
    registered: tuple[Document, Awaitable[JournalEntry] | None] | None = None
    """``None`` without a journal, or if it could not be registered when it was read."""


MAX_SHOWN = 5
"""Accepted documents of earlier runs that the server is asked for, at most."""


@attrs.define(kw_only=True, eq=False)
class BatchState(Common):
    """State that the jobs of a batch share."""

    scheduler: Scheduler[QueuedJob]
    journal: BatchJournal | None = None
    stop_error: Exception | None = None
    """The error of jobs that are skipped, once no further one begins or waits."""
    accepted_before: deque[Accepted] = attrs.field(factory=partial(deque, maxlen=MAX_SHOWN))
    is_verified: bool = False
    """Whether the server is a meeting server and accepts the key. Until that is known one job runs
    alone, so that a wrong key costs one small call."""

    @property
    def is_gone(self) -> bool:
        """Whether no call of the batch could reach the server for as long as an upload tries."""
        max_outage = self.options.retry.max_outage
        return self.session.server.is_gone(since=self.began, max_outage=max_outage, now=self.now())

    def remember(self, entry: JournalEntry, room_id: str, name: str) -> None:
        """Keep some of what the journal says was accepted: the server may show it."""
        if entry.state == "accepted" and entry.session and entry.size:
            sought = Accepted(room_id, name, entry.size, entry.session, entry.since or 0)
            self.accepted_before.append(sought)

    def verify(self) -> None:
        """Let the other jobs begin."""
        if not self.is_verified:
            self.is_verified = True
            self.scheduler.set_limit(self.limits.concurrency)

    def job(self, queued: QueuedJob) -> BatchJob:
        """Return a job that begins, or is skipped."""
        return BatchJob(
            common=self, given=queued.given, index=queued.index, began=self.now(), queued=queued
        )


@attrs.define(kw_only=True, eq=False)
class BatchJob(RunningJob, UploadHooks):
    """A job of a batch. It begins with a permit. Await :meth:`run`, then :meth:`record`."""

    common: BatchState  # pyright: ignore[reportIncompatibleVariableOverride]  # narrower, never set
    queued: QueuedJob
    can_be_alone: ClassVar[bool] = True
    _has_permit: bool = True
    _only_waits: bool = True
    """Whether a stop ends it at once."""
    _is_marked: bool = False
    """Whether the journal says that the document may have arrived."""
    _scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)

    async def run(self) -> tuple[UploadOutcome, BaseException | None]:
        """Run the job; return its outcome, and the cancellation or exit that ended it, if any.

        The caller raises that again.
        """
        try:
            with self._scope:
                document = await self._answered(self._registered())
                await anyio.lowlevel.checkpoint_if_cancelled()
                return self.delivered(await self.deliver(document, self)), None
        except Exception as error:  # noqa: BLE001 - whatever a job does, the others go on
            return self.failed(error), None
        except BaseException as error:  # noqa: BLE001 - returned
            if is_stray(error):
                stray = RuntimeError("it was cancelled, though nobody cancelled the job")
                return self.failed(stray), None
            return await self._stopped(), error
        return await self._stopped(), None

    async def skip(self, error: Exception) -> UploadOutcome:
        """Return the outcome of a job that is not tried; what an earlier run has left of it counts.

        Its file is not looked at. If the journal does not answer, nothing is known of it.
        """
        try:
            await self._answered(self._registered())
        except BaseException as failure:
            if not isinstance(failure, Exception) and not is_stray(failure):
                raise
        if self.was_accepted:
            return self.delivered(None)
        doubt = self._doubt_after(error)
        return self.ended("unknown" if doubt else "skipped", error=doubt or error)

    async def _registered(self) -> Document:
        """Check the job, and wait for its entry in the journal.

        The job's time limit does not end that wait: what earlier runs did stays true.
        """
        registered = self.queued.registered
        document, entry = registered or await register(self.common.journal, self.given)
        self.document = document.filename
        if entry is not None and self.entry is None:
            self.entry = await entry
            self.common.remember(self.entry, self.given.room_id, document.filename)
        return document

    async def _answered(self, answer: Awaitable[T]) -> T:
        """Wait for what the journal knows, also if the job is stopped meanwhile."""
        journal = self.common.journal
        if journal is None:
            return await answer
        return await journal.answered(answer, hurried=0, shield=True)

    async def _stopped(self) -> UploadOutcome:
        """Return the outcome after a cancellation."""
        outcome = self.cut_off()
        if outcome.status == "skipped" and outcome.error is not None:
            return await self.skip(outcome.error)
        return outcome

    def stop(self) -> None:
        """End it if it only waits; an upload that runs may end."""
        if self._only_waits:
            self._scope.cancel()

    async def record(self, outcome: UploadOutcome) -> errors.JournalError | None:
        """Record the outcome in the journal, also if cancelled; return the error if that fails."""
        recorded = self.recorded
        was_accepted = recorded is not None and recorded.state == "accepted"
        if outcome.status == "skipped" or (was_accepted and not self._is_marked):
            return None
        reason = str(outcome.error) if isinstance(outcome.error, errors.MeetingError) else None
        try:
            await self._record(outcome.status, reason)
        except errors.JournalError as error:
            return error
        return None

    async def _record(self, state: State, reason: str | None = None) -> None:
        """Record a state; a document that an earlier run delivered remains so."""
        journal, entry = self.common.journal, self.entry
        if journal is not None and entry is not None and entry.state != "accepted":
            await journal.record(entry, state, reason)

    def release_permit(self, *, waits_alone: bool = False) -> None:
        """Release the permit, if there is one; the next one may be for an upload alone."""
        self.common.scheduler.set_alone(self, is_alone=waits_alone)
        if self._has_permit:
            self._has_permit = False
            self.common.scheduler.release()

    # --- around an attempt -----------------------------------------------------------------------

    @property
    def follows_sessions(self) -> bool:
        """Not with ``once_per="room"``."""
        return self.common.limits.once_per == "session"

    def sending(self) -> None:
        """Let the other jobs of the batch begin. From now on a stop does not end this one."""
        self.common.verify()
        self._only_waits = False

    @asynccontextmanager
    async def waiting(self, kind: WaitKind, seconds: float | None) -> AsyncGenerator[None, None]:
        """Release the permit for a wait, record if nothing arrived, and acquire a permit again.

        Until the server has answered no other job begins: it would meet the same trouble.
        """
        if kind in {"room", "inactive", "evidence"}:
            self.common.verify()
        if kind != "retry" or self.common.is_verified:
            self.release_permit(waits_alone=kind == "alone")
        self._only_waits = True
        if self.common.stop_error is not None:
            self.stop()
        if self._is_marked and not self.history.may_have_arrived:
            await self._record("ready")
            self._is_marked = False
        yield
        if not self._has_permit:
            has_failed = self.history.failed_conversions and self.history.answer is None
            self.common.scheduler.set_alone(self, is_alone=bool(has_failed))
            if kind != "inactive" and self.call is not None and self.common.scheduler.is_full:
                self.call.phase = "waiting for a place in the batch"
                self.call.emit(Queued, for_place=True)
            await self.common.scheduler.acquire()
            self._has_permit = True

    def accepted_before(self) -> Iterable[Accepted]:
        """Return what the journal says was accepted, of the jobs so far."""
        return self.common.accepted_before

    async def may_arrive(self, document: Prepared, session: str, since: int | None) -> None:
        """Record that the document may arrive from now on."""
        if self.common.journal is not None and self.entry is not None:
            self._is_marked = True
            await self.common.journal.mark_sending(self.entry, document, session, since)
