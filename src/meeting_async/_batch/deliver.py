"""One job that is delivered by a batch or by a queue: upload its document, and say how it ended."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import anyio
import attrs

from meeting_async import errors
from meeting_async._batch.failures import ABSENT, status_of
from meeting_async._batch.jobs import Status, UploadJob, UploadOutcome, label_of
from meeting_async._batch.journal import JournalEntry, check_unchanged, doubt_of
from meeting_async._batch.options import BatchOptions
from meeting_async._delivery.call import Call, new_call
from meeting_async._delivery.history import History, Step
from meeting_async._delivery.json_call import active_room, wait_until_active
from meeting_async._delivery.session import Options, Session
from meeting_async._delivery.upload import UploadHooks, receipt_of, upload_document
from meeting_async._documents.document import Document, source_of
from meeting_async._documents.streams import StreamSource
from meeting_async._models import UploadReceipt
from meeting_async._protocol import requests

E = TypeVar("E", bound=errors.MeetingError)
Absent = errors.RoomNotFound | errors.RoomNotActive


@attrs.define(kw_only=True, eq=False)
class JobRun:
    """A job that is being delivered, and what is known of it."""

    session: Session
    options: Options
    job: UploadJob
    limits: BatchOptions = attrs.field(factory=BatchOptions)
    index: int = 0
    batch_began: float = 0.0
    began: float = attrs.field(factory=anyio.current_time)
    entry: JournalEntry | None = None
    """What an earlier run has left of it."""
    document: str | None = None
    """Name of the document, once known."""
    history: History = attrs.field(factory=History)
    call: Call | None = attrs.field(default=None, init=False)
    """The last call that uploads."""

    def new_call(self, operation: str, options: Options | None = None, **facts: Any) -> Call:
        """Make a call for the job."""
        job = self.job
        facts = {"key": job.key, "index": self.index, **facts}
        return new_call(self.session, options or self.options, operation, job.room_id, **facts)

    @contextmanager
    def limited(self, phase: str) -> Generator[None, None, None]:
        """Apply the time limit of the job; ``phase`` is what it does meanwhile."""
        seconds = self.limits.timeout
        if seconds is None:
            yield
            return
        with anyio.CancelScope(deadline=self.began + seconds) as scope:
            yield
        if scope.cancelled_caught:
            raise self._named(errors.DeadlineExceeded(seconds, phase))

    # --- how it ended ----------------------------------------------------------------------------

    def delivered(self, receipt: UploadReceipt | None) -> UploadOutcome:
        """Return the outcome for what :func:`deliver` has returned."""
        return self._outcome("accepted" if receipt else "skipped", receipt=receipt)

    def skipped(self, error: Exception | None) -> UploadOutcome:
        """Return the outcome of a job that is not delivered, because of an error of another one."""
        return self._outcome("skipped", error=error)

    def failed(self, error: Exception) -> UploadOutcome:
        """Return the outcome for an error. What the server has accepted stays accepted."""
        history, doubt = self.history, self.doubt
        if history.answer is not None and self.call is not None:
            return self.delivered(receipt_of(self.call))
        if not isinstance(error, errors.UploadOutcomeUnknown):
            if history.unknown_since is not None:
                window, now = self.options.lock.window, anyio.current_time()
                unknown = history.unknown(str(error), now, size=self.size, window=window)
                doubt = self._named(unknown)
            elif doubt is not None:
                doubt.reason += f", and now: {error}"
            if doubt is not None:
                doubt.__cause__ = error
                error = doubt
        is_untried = isinstance(error, errors.BatchStopped) and not history.attempts
        return self._outcome("skipped" if is_untried else status_of(error), error=error)

    def cut_off(self) -> UploadOutcome:
        """Return the outcome after a cancellation."""
        if self.history.unknown_since is not None:
            how_far = "before an answer came"
        elif self.history.attempts:
            how_far = "while it was on its way; it did not reach its room"
        else:
            how_far = "before it was sent"
        return self.failed(self._named(errors.BatchStopped(how_far)))

    @property
    def size(self) -> int | None:
        """Bytes of the document, once known; ``None`` for a link."""
        return self.call.size if self.call else None

    @property
    def doubt(self) -> errors.UploadOutcomeUnknown | None:
        """What remains true of a document that is sent again: no failure is certain."""
        doubt = doubt_of(self.entry, self.options.lock.window)
        return None if doubt is None else self._named(doubt)

    def _outcome(self, status: Status, **result: Any) -> UploadOutcome:
        return UploadOutcome(
            index=self.index,
            room_id=self.job.room_id,
            document=self.document or label_of(self.job),
            status=status,
            size=self.size,
            key=self.job.key,
            started=self.began - self.batch_began,
            seconds=anyio.current_time() - self.began,
            attempts=tuple(self.history.attempts),
            **result,
        )

    def _named(self, error: E) -> E:
        """Add the facts of the job to an error."""
        error.operation = requests.UPLOAD_WHITEBOARD_FILE
        error.room_id, error.document = self.job.room_id, self.document
        error.attempts = tuple(self.history.attempts)
        return error


async def deliver(run: JobRun, document: Document, hooks: UploadHooks) -> UploadReceipt | None:
    """Upload a job's document; ``None``: an earlier run has delivered it.

    Its errors are what went wrong last; :meth:`JobRun.failed` makes the outcome of one.
    """
    run.document = document.filename
    if await _is_in_room(run, document):
        return None
    is_stream = isinstance(source_of(document), StreamSource)
    if is_stream:
        await _check_before_reading(run, hooks)
    absent_since: float | None = None
    while True:
        try:
            return await _upload(run, document, hooks)
        except ABSENT as error:
            if is_stream:
                raise
            if absent_since is None:
                absent_since = anyio.current_time()
            await _wait_until_active(run, hooks, error, absent_since)


async def _is_in_room(run: JobRun, document: Document) -> bool:
    """Decide by the journal; raise if the document must not be sent."""
    entry, doubt = run.entry, run.doubt
    if doubt is not None and run.options.delivery != "at_least_once":
        raise doubt
    is_accepted = entry is not None and entry.state == "accepted"
    run.history.was_sent = run.history.was_sent or doubt is not None
    if entry is not None and (is_accepted or doubt is not None):
        with run.limited("reading the journal"):
            await check_unchanged(entry, document)
    return is_accepted


async def _upload(run: JobRun, document: Document, hooks: UploadHooks) -> UploadReceipt:
    operation = requests.UPLOAD_WHITEBOARD_FILE
    run.call = run.new_call(operation, history=run.history, began=run.began)
    return await upload_document(
        run.call,
        run.job.room_id,
        document,
        max_wait=run.limits.max_wait,
        timeout=run.limits.timeout,
        hooks=hooks,
    )


# --- its room ------------------------------------------------------------------------------------


async def _check_before_reading(run: JobRun, hooks: UploadHooks) -> None:
    """Wait until the room is active before a stream is read, which can be read only once.

    Whatever else is wrong, the upload tells.
    """
    options, room_id = run.options, run.job.room_id
    if run.limits.wait_active is None:
        return
    # The job has a permit, so it does not wait to ask again.
    once = attrs.evolve(options, retry=attrs.evolve(options.retry, max_attempts=1))
    with suppress(errors.TransportError, errors.ReplyError):
        try:
            with run.limited("checking the room"):
                call = run.new_call(requests.ACTIVE_ROOM_INFO, once)
                await active_room(call, room_id, timeout=None)
        except ABSENT as error:
            await _wait_until_active(run, hooks, error, run.began)


async def _wait_until_active(run: JobRun, hooks: UploadHooks, error: Absent, since: float) -> None:
    """Wait, without a permit, until the room is active; otherwise raise ``error``."""
    wait_active, room_id = run.limits.wait_active, run.job.room_id
    if wait_active is None:
        raise error
    call, waited = run.new_call(requests.ACTIVE_ROOM_INFO, began=since), anyio.current_time()
    with run.limited(f"waiting for room {room_id!r} to become active"):
        async with hooks.waiting("inactive", None):
            try:
                await wait_until_active(call, room_id, timeout=wait_active, absent=error)
            except errors.DeadlineExceeded as exceeded:
                raise (exceeded.__cause__ or error) from None
            except (errors.TransportError, errors.ReplyError) as failure:
                if isinstance(failure, errors.RequestRefused):
                    raise
    pause = Step(kind="pause", began=waited, ended=anyio.current_time())
    run.history.add(pause, call_began=run.began)
