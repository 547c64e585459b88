"""One job that is delivered by a batch or by a queue: upload its document, and say how it ended."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, TypeVar

import anyio
import anyio.lowlevel
import attrs

from meeting_async import errors
from meeting_async._batch.journal import (
    CERTAIN,
    BatchJournal,
    JournalEntry,
    State,
    check_unchanged,
    register,
)
from meeting_async._batch.options import BatchOptions
from meeting_async._batch.results import (
    ABSENT,
    Status,
    UploadJob,
    UploadOutcome,
    label_of,
    status_of,
)
from meeting_async._batch.scheduler import Scheduler
from meeting_async._clock import Clock
from meeting_async._delivery.call import Call, new_call
from meeting_async._delivery.decide import WaitKind, untellable
from meeting_async._delivery.evidence import Accepted
from meeting_async._delivery.history import History, Step, left_behind
from meeting_async._delivery.json_call import active_room, wait_until_active
from meeting_async._delivery.sending import UploadHooks
from meeting_async._delivery.session import Options, Session
from meeting_async._delivery.upload import receipt_of, upload_document
from meeting_async._documents.document import Document, source_of
from meeting_async._documents.prepared import Prepared
from meeting_async._documents.source import Held
from meeting_async._events import Queued
from meeting_async._models import UploadReceipt
from meeting_async._protocol.requests import ACTIVE_ROOM_INFO, UPLOAD_WHITEBOARD_FILE

E = TypeVar("E", bound=errors.MeetingError)
T = TypeVar("T")


@attrs.define(kw_only=True, eq=False)
class Common:
    """What jobs have in common."""

    session: Session
    options: Options
    limits: BatchOptions = attrs.field(factory=BatchOptions)
    now: Clock = anyio.current_time
    began: float = 0.0
    """Start of the batch."""
    sessions: dict[str, str] = attrs.field(factory=dict)
    """The sessions of rooms that were asked for because of a journal; ``""``: none runs."""


@attrs.define(kw_only=True, eq=False)
class RunningJob:
    """A job that is being delivered, and what is known of it."""

    common: Common
    given: UploadJob
    index: int = 0
    began: float
    entry: JournalEntry | None = None
    """What an earlier run has left of it."""
    document: str | None = None
    """Name of the document, once known."""
    history: History = attrs.field(factory=History)
    call: Call | None = None
    """The last call that uploads."""

    # --- its document ----------------------------------------------------------------------------

    async def deliver(self, document: Document, hooks: UploadHooks) -> UploadReceipt | None:
        """Upload the document; ``None``: an earlier run has delivered it.

        Its errors are what went wrong last; :meth:`failed` makes the outcome of one.
        """
        self.document = document.filename
        if self.entry is not None:
            self.entry = entry = await self._as_of_now(self.entry, document)
            if entry.state == "accepted":
                return None
            if entry.state not in CERTAIN:
                self._resume(entry)
        if source_of(document).is_single_use:
            await self._check_before_reading(hooks)
            return await self._upload(document, hooks)
        absent_since: float | None = None
        while True:
            try:
                return await self._upload(document, hooks)
            except ABSENT as error:
                absent_since = self.common.now() if absent_since is None else absent_since
                await self._wait_until_active(hooks, error, absent_since)

    async def _as_of_now(self, entry: JournalEntry, document: Document) -> JournalEntry:
        """Return what an earlier run has left, *ready* if that was in another session."""
        if entry.state in CERTAIN - {"accepted"}:
            return entry
        if await self._is_of_another_session(entry):
            return attrs.evolve(entry, state="ready")
        with self.limited("reading the journal"):
            await check_unchanged(entry, document)
        return entry

    def _resume(self, entry: JournalEntry) -> None:
        """Go on after a document of unknown outcome; raise if it must be reported."""
        delivery, retry = self.common.options.delivery, self.common.options.retry
        lost = left_behind(
            "an earlier run saw no answer",
            self.common.now(),
            entry.sent_ago,
            retry.settle_after,
            sent=entry.size or 0,
            session=entry.session,
            since=entry.since,
        )
        problem = untellable(lost, self.common.session.server) if delivery == "exactly_once" else ""
        if (delivery == "at_most_once" or problem) and (doubt := self.doubt):
            doubt.reason += f"; what became of it cannot be told: {problem}" if problem else ""
            raise doubt
        if delivery == "exactly_once":
            self.history.steps.append(lost)
        else:
            self.history.was_sent = True

    async def _is_of_another_session(self, entry: JournalEntry) -> bool:
        """Return whether another session runs in the room than the one that it was sent to."""
        common, room_id = self.common, self.given.room_id
        if common.limits.once_per == "room" or not entry.session:
            return False
        if entry.state != "accepted" and entry.sent_ago < common.options.retry.settle_after:
            return False  # its form may still come, into the session that runs now
        if room_id not in common.sessions:
            with self.limited("checking the room"):
                common.sessions[room_id] = await self._session_now()
        return common.sessions[room_id] not in {"", entry.session}

    async def _session_now(self) -> str:
        """Return the session that runs in the room, or ``""``; ask as long as an upload would."""
        ends_at = self.common.now() + self.common.options.retry.max_outage
        while True:
            try:
                room = await active_room(self._new_call(ACTIVE_ROOM_INFO), self.given.room_id)
            except ABSENT:
                return ""
            except (errors.TransportError, errors.ServerFailed, errors.Throttled) as error:
                if getattr(error, "permanent", False) or self.common.now() >= ends_at:
                    raise
            else:
                return room.sid or ""
            await anyio.sleep(ASK_AGAIN_SECONDS)

    async def _upload(self, document: Document, hooks: UploadHooks) -> UploadReceipt:
        self.call = self._new_call(
            UPLOAD_WHITEBOARD_FILE,
            history=self.history,
            began=self.began,
            timeout=self.common.limits.timeout,
        )
        return await upload_document(
            self.call,
            self.given.room_id,
            document,
            max_wait=self.common.limits.max_wait,
            hooks=hooks,
        )

    def _new_call(self, operation: str, options: Options | None = None, **facts: Any) -> Call:
        given = self.given
        facts = {"key": given.key, "index": self.index, **facts}
        return new_call(
            self.common.session, options or self.common.options, operation, given.room_id, **facts
        )

    @contextmanager
    def limited(self, phase: str) -> Generator[None, None, None]:
        """Apply the time limit of the job; ``phase`` is what it does meanwhile."""
        seconds = self.common.limits.timeout
        if seconds is None:
            yield
            return
        with anyio.CancelScope(deadline=self.began + seconds) as scope:
            yield
        if scope.cancelled_caught:
            raise self._named(errors.DeadlineExceeded(seconds, phase))

    # --- its room --------------------------------------------------------------------------------

    async def _check_before_reading(self, hooks: UploadHooks) -> None:
        """Wait until the room is active before a stream is read, which can be read only once.

        Whatever else is wrong, the upload tells.
        """
        if self.common.limits.wait_active is None:
            return
        # The job has a permit, so it does not wait to ask again.
        retry = attrs.evolve(self.common.options.retry, max_attempts=1)
        call = self._new_call(ACTIVE_ROOM_INFO, attrs.evolve(self.common.options, retry=retry))
        with suppress(errors.TransportError, errors.ReplyError):
            try:
                with self.limited("checking the room"):
                    await active_room(call, self.given.room_id)
            except ABSENT as error:
                await self._wait_until_active(hooks, error, self.began)

    async def _wait_until_active(
        self, hooks: UploadHooks, error: errors.RoomNotFound | errors.RoomNotActive, since: float
    ) -> None:
        """Wait until the room is active; otherwise raise ``error``, with a permit again."""
        timeout, room_id = self.common.limits.wait_active, self.given.room_id
        if timeout is None:
            raise error
        call = self._new_call(ACTIVE_ROOM_INFO, began=since, timeout=timeout)
        waited = self.common.now()
        failure: BaseException | None = None
        with self.limited(f"waiting for room {room_id!r} to become active"):
            async with hooks.waiting("inactive", None):
                try:
                    await wait_until_active(call, room_id, absent=error)
                except errors.DeadlineExceeded as exceeded:
                    failure = exceeded.__cause__ or error
                except errors.RequestRefused as refused:
                    failure = refused
                except (errors.TransportError, errors.ReplyError):
                    pass  # the upload tells
        if failure is not None:
            raise failure from None
        pause = Step(kind="session", began=waited, ended=self.common.now())
        self.history.add(pause, call_began=self.began)

    # --- how it ended ----------------------------------------------------------------------------

    def delivered(self, receipt: UploadReceipt | None) -> UploadOutcome:
        """Return the outcome for what :meth:`deliver` has returned."""
        return self.ended("accepted" if receipt else "skipped", receipt=receipt)

    def failed(self, error: Exception) -> UploadOutcome:
        """Return the outcome for an error. What the server has accepted stays accepted."""
        history = self.history
        if history.answer is not None and self.call is not None:
            return self.delivered(receipt_of(self.call))
        if not isinstance(error, errors.UploadOutcomeUnknown):
            error = self._doubt_after(error) or error
        is_untried = isinstance(error, errors.BatchStopped) and not history.attempts
        return self.ended("skipped" if is_untried else status_of(error), error=error)

    def cut_off(self) -> UploadOutcome:
        """Return the outcome after a cancellation."""
        if self.history.unknown_since is not None:
            how_far = "before an answer came"
        elif self.history.attempts:
            how_far = "while it was on its way; it did not reach its room"
        else:
            how_far = "before it was sent"
        return self.failed(self._named(errors.BatchStopped(how_far)))

    def ended(self, status: Status, **result: Any) -> UploadOutcome:
        """Return an outcome with the facts of the job."""
        return UploadOutcome(
            index=self.index,
            room_id=self.given.room_id,
            document=self.document or label_of(self.given),
            status=status,
            size=self.call.size if self.call else None,
            session=self._session,
            key=self.given.key,
            started=self.began - self.common.began,
            seconds=self.common.now() - self.began,
            attempts=tuple(self.history.attempts),
            **result,
        )

    @property
    def _session(self) -> str:
        return self.history.session or (self.entry.session if self.entry else "")

    @property
    def doubt(self) -> errors.UploadOutcomeUnknown | None:
        """The unknown outcome of an earlier run, if there is one."""
        entry = self.entry
        if entry is None or entry.state in CERTAIN:
            return None
        reason = f"{entry.sent_ago:,.0f} s ago an earlier run sent it and saw no answer"
        free_in = max(0.0, self.common.options.lock.window - entry.sent_ago)
        return self._named(errors.UploadOutcomeUnknown(reason, entry.size, entry.size, free_in))

    def _doubt_after(self, error: Exception) -> errors.UploadOutcomeUnknown | None:
        """Return what remains true of a document that may have arrived: no failure is certain."""
        if self.history.unknown_since is not None:
            size = self.call.size if self.call else None
            now, window = self.common.now(), self.common.options.lock.window
            doubt = self._named(self.history.unknown(str(error), now, size=size, window=window))
        elif (found := self.doubt) is not None:
            doubt = found
            doubt.reason += f", and now: {error}"
        else:
            return None
        doubt.__cause__ = error
        return doubt

    def _named(self, error: E) -> E:
        """Add the facts of the job to an error."""
        error.operation = UPLOAD_WHITEBOARD_FILE
        error.room_id, error.document = self.given.room_id, self.document
        error.attempts = tuple(self.history.attempts)
        return error


def is_stray(error: BaseException) -> bool:
    """Return whether an error is a cancellation although the current task was not cancelled.

    Any code can raise asyncio's, for example by awaiting a cancelled task; on trio it never means a
    cancellation. It is treated like any other failure, and must not end other jobs.
    """
    if not isinstance(error, asyncio.CancelledError):
        return False
    if not isinstance(error, anyio.get_cancelled_exc_class()):
        return True
    task = asyncio.current_task()
    is_cancelled = anyio.current_effective_deadline() == -math.inf
    return task is not None and not task.cancelling() and not is_cancelled


# --- in a batch ----------------------------------------------------------------------------------


@attrs.define(eq=False)
class QueuedJob:
    """A job that was read."""

    index: int
    given: UploadJob
    held: Held | None
    registered: tuple[Document, Awaitable[JournalEntry] | None] | None = None
    """``None`` without a journal, or if it could not be registered when it was read."""


ASK_AGAIN_SECONDS = 1.0
"""Before a room is asked for again that the journal knows."""

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
        if self.entry is not None and self.entry.state == "accepted":
            return self.delivered(None)
        doubt = self._doubt_after(error)
        return self.ended("unknown" if doubt else "skipped", error=doubt or error)

    async def _registered(self) -> Document:
        """Check the job, and wait for its entry in the journal."""
        registered = self.queued.registered
        document, entry = registered or await register(self.common.journal, self.given)
        self.document = document.filename
        if entry is not None and self.entry is None:
            with self.limited("reading the journal"):
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
        if outcome.status == "skipped":
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
