"""One job that is delivered by a batch or by a queue: upload its document, and say how it ended."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import attrs

from meeting_async import errors
from meeting_async._batch.journal import CERTAIN, JournalEntry, check_unchanged
from meeting_async._batch.options import BatchOptions
from meeting_async._batch.results import (
    ABSENT,
    Status,
    UploadJob,
    UploadOutcome,
    label_of,
    status_of,
)
from meeting_async._clock import CLOCK_SECONDS, Clock
from meeting_async._delivery.call import Call, new_call
from meeting_async._delivery.decide import untellable
from meeting_async._delivery.history import History, Step, left_behind
from meeting_async._delivery.json_call import active_room, wait_until_active
from meeting_async._delivery.sending import UploadHooks
from meeting_async._delivery.session import Options, Session
from meeting_async._delivery.upload import receipt_of, upload_document
from meeting_async._documents.document import Document, source_of
from meeting_async._log import logger
from meeting_async._models import UploadReceipt
from meeting_async._protocol.requests import ACTIVE_ROOM_INFO, UPLOAD_WHITEBOARD_FILE

E = TypeVar("E", bound=errors.MeetingError)

ASK_AGAIN_SECONDS = 1.0
"""Before a room is asked for again that the journal knows."""

_NOT_ASKED = "what an earlier run has delivered to room %r counts as delivered: %s"


@attrs.define(kw_only=True, eq=False)
class Common:
    """What jobs have in common."""

    session: Session
    options: Options
    limits: BatchOptions = attrs.field(factory=BatchOptions)
    now: Clock = anyio.current_time
    began: float = 0.0
    """Start of the batch."""
    sessions: dict[str, tuple[str, float]] = attrs.field(factory=dict)
    """Which session runs in the rooms that were asked because of a journal (``""``: none), and
    since when at the earliest, on the event loop's clock (``-inf``: not known)."""


@attrs.define(kw_only=True, eq=False)
class RunningJob:
    """A job that is being delivered, and what is known of it."""

    common: Common
    given: UploadJob
    index: int = 0
    began: float
    entry: JournalEntry | None = None
    """What an earlier run has left of it, for the session that runs now."""
    recorded: JournalEntry | None = None
    """The same, whatever the session."""
    document: str | None = None
    """Name of the document, once known."""
    history: History = attrs.field(factory=History)
    call: Call | None = None
    """The last call that uploads."""
    trouble: Exception | None = None
    """What went wrong with a job that an earlier run has delivered: others may have it, too."""

    # --- its document ----------------------------------------------------------------------------

    async def deliver(self, document: Document, hooks: UploadHooks) -> UploadReceipt | None:
        """Upload the document; ``None``: an earlier run has delivered it.

        Its errors are what went wrong last; :meth:`failed` makes the outcome of one.
        """
        self.document = document.filename
        if self.entry is not None:
            self.recorded = self.entry
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
        """Return what an earlier run has left, for the session that runs in the room now."""
        if entry.state in CERTAIN - {"accepted"}:
            return entry
        if self.common.limits.once_per == "session" and entry.session:
            entry = await self._for_session_now(entry)
        if entry.state != "ready":
            with self.limited("looking whether the file has changed"):
                await check_unchanged(entry, document)
        return entry

    async def _for_session_now(self, entry: JournalEntry) -> JournalEntry:
        """Return it as *ready* if nothing of it can be in the session that runs now.

        It is *sent* if it may be there: sessions may change between the check and the document,
        and a form that was lost may come into a session that begins soon after it.
        """
        settle_after, is_lost = self.common.options.retry.settle_after, entry.state != "accepted"
        if is_lost and entry.sent_ago < settle_after:
            return entry
        sent = self.common.now() - entry.sent_ago
        session, began = await self._session_now()
        if session in {"", entry.session}:
            return entry
        is_later = began > sent + (settle_after if is_lost else CLOCK_SECONDS)
        return attrs.evolve(entry, state="ready" if is_later else "sent")

    def _resume(self, entry: JournalEntry) -> None:
        """Go on after a document of unknown outcome; raise if it must be reported."""
        delivery, retry = self.common.options.delivery, self.common.options.retry
        lost = left_behind(
            f"an earlier run sent it and {self._how_left}",
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

    async def _session_now(self) -> tuple[str, float]:
        """Return the session that runs in the room, and when it began; each room is asked once."""
        sessions, room_id = self.common.sessions, self.given.room_id
        if room_id not in sessions:
            with self.limited("checking the room"):
                sessions[room_id] = await self._asked_for_session()
        return sessions[room_id]

    async def _asked_for_session(self) -> tuple[str, float]:
        """Ask for the session as long as an upload would."""
        ends_at = self.common.now() + self.common.options.retry.max_outage
        while True:
            asked_at = self.common.now()  # an answer may come much later than it was true
            try:
                room = await active_room(self._new_call(ACTIVE_ROOM_INFO), self.given.room_id)
            except ABSENT:
                return "", -math.inf
            except (errors.TransportError, errors.ReplyError) as error:
                status = getattr(error, "status", 500)  # without one nothing has answered
                may_heal = isinstance(error, errors.Throttled) or status >= 500
                is_permanent = getattr(error, "permanent", False)
                if is_permanent or not may_heal or self.common.now() >= ends_at:
                    raise
            else:
                date, began = room.date, room.creation_time
                age = math.inf if date is None or began is None else date - began
                return room.sid or "", asked_at - age
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
        if isinstance(error, (*ABSENT, errors.BatchStopped)) and history.document is None:
            self.entry = self.recorded or self.entry
        if self.was_accepted and not isinstance(error, errors.DocumentError):
            self.trouble = error
            logger.warning(_NOT_ASKED, self.given.room_id, error, extra={"action": "Journal"})
            return self.delivered(None)
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
    def was_accepted(self) -> bool:
        """Whether an earlier run has delivered it, as far as is known."""
        return self.entry is not None and self.entry.state == "accepted"

    @property
    def _session(self) -> str:
        return self.history.session or (self.entry.session if self.entry else "")

    @property
    def _how_left(self) -> str:
        was_accepted = self.recorded is not None and self.recorded.state == "accepted"
        return "the room's session changed meanwhile" if was_accepted else "saw no answer"

    @property
    def doubt(self) -> errors.UploadOutcomeUnknown | None:
        """The unknown outcome of an earlier run, if there is one."""
        entry = self.entry
        if entry is None or entry.state in CERTAIN:
            return None
        reason = f"{entry.sent_ago:,.0f} s ago an earlier run sent it and {self._how_left}"
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
