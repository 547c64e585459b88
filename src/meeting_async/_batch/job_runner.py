"""One job of a batch, from its start to its outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import attrs

from meeting_async import errors
from meeting_async._batch.failures import ABSENT, is_stray, status_of
from meeting_async._batch.jobs import Status, UploadJob, UploadOutcome
from meeting_async._batch.journal import JobJournal, Journal, Patience, Registration, register
from meeting_async._batch.options import BatchOptions
from meeting_async._batch.scheduler import Scheduler
from meeting_async._delivery.call import AttemptLog, Call, new_call
from meeting_async._delivery.json_call import active_room, wait_until_active
from meeting_async._delivery.retry import Wait
from meeting_async._delivery.session import Options, Session
from meeting_async._delivery.upload import UploadHooks, receipt_of, upload_document
from meeting_async._documents.document import Document
from meeting_async._documents.source import PreparedSource
from meeting_async._documents.streams import StreamSource
from meeting_async._models import UploadReceipt
from meeting_async._protocol import requests

E = TypeVar("E", bound=errors.MeetingError)


@attrs.define(kw_only=True, eq=False)
class BatchState:
    """State that the jobs of a batch share."""

    session: Session
    options: Options
    batch_options: BatchOptions
    scheduler: Scheduler[Any]
    stop: Callable[[], None]
    """Whether the batch starts no new upload."""
    journal: Journal | None = attrs.field(default=None, init=False)
    patience: Patience = attrs.field(factory=Patience, init=False)
    began: float = attrs.field(default=0.0, init=False)
    is_verified: bool = attrs.field(default=False, init=False)
    """Whether the server is a meeting server and accepts the key. Until that is known one job runs
    alone, so that a wrong key costs one small call."""

    def verify(self) -> None:
        """Let the other jobs begin."""
        if not self.is_verified:
            self.is_verified = True
            self.scheduler.set_limit(self.batch_options.concurrency)


@attrs.define(eq=False)
class JobRunner(UploadHooks):
    """A running job. Await :meth:`run` once; :attr:`outcome` is set when it ends.

    It is the :class:`~meeting_async._delivery.upload.UploadHooks` of its own upload.
    """

    index: int
    job: UploadJob
    batch: BatchState
    registration: Registration | None
    """Made when the job was read; ``None`` without a journal, or if it could not be made then."""
    when_ended: Callable[[UploadOutcome], None]
    """Called when the room's next job may begin; the journal gets the outcome later."""

    outcome: UploadOutcome | None = attrs.field(default=None, init=False)
    journal: JobJournal = attrs.field(init=False)
    _log: AttemptLog = attrs.field(factory=AttemptLog, init=False)
    _document: str | None = attrs.field(default=None, init=False)
    """Name of the document, once known."""
    _upload_call: Call | None = attrs.field(default=None, init=False)
    """The last call that uploads."""
    _began: float = attrs.field(factory=anyio.current_time, init=False)
    _ends_at: float = attrs.field(init=False)
    _has_permit: bool = attrs.field(default=True, init=False)
    _is_interruptible: bool = attrs.field(default=True, init=False)
    """Whether the job only waits, so that a stop ends it at once."""
    _is_stopped: bool = attrs.field(default=False, init=False)
    _scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self.journal = JobJournal(self.batch.journal, self.batch.patience)
        self._ends_at = self._began + (self.batch.batch_options.timeout or math.inf)

    async def run(self) -> None:
        """Run the job. It raises only cancellations and errors that end the program."""
        with self._scope:
            try:
                receipt = await self._delivered()
            except Exception as error:  # noqa: BLE001 - whatever a job does, the others go on
                await self._fail(error)
            except BaseException as error:
                if not is_stray(error):
                    self._is_interruptible = False
                    if not self._is_stopped:  # it was not this job that was stopped
                        self.batch.stop()
                    await self._cut_off()
                    raise
                await self._fail(RuntimeError("it was cancelled, though nobody cancelled the job"))
            else:
                await self._end("accepted" if receipt else "skipped", receipt=receipt)

    def stop(self) -> None:
        """Let a running upload end, but do not start or wait for anything."""
        self._is_stopped = True
        if self._is_interruptible:
            self._scope.cancel()

    # --- from its turn to its receipt ------------------------------------------------------------

    async def _delivered(self) -> UploadReceipt | None:
        """Upload the document; ``None``: an earlier run has delivered it."""
        with self._limited("reading the journal"):
            document = await self._registered()
            if await self._is_in_room(document):
                return None
        if isinstance(document.source, StreamSource):
            await self._wait_for_room()
        absent_since: float | None = None
        while True:
            try:
                return await self._upload(document)
            except ABSENT as error:
                if isinstance(document.source, StreamSource):
                    raise
                if absent_since is None:
                    absent_since = anyio.current_time()
                await self._wait_until_active(error, absent_since)

    async def _registered(self) -> Document:
        """Check the job, and wait for its entry in the journal."""
        registration = self.registration or await register(self.batch.journal, self.job)
        self._document = registration.document.filename
        if registration.entry is not None:
            await self.journal.find(registration.entry)
        return registration.document

    async def _is_in_room(self, document: Document) -> bool:
        """Decide by the journal; raise if the document must not be sent."""
        entry = self.journal.entry
        doubt, resends = self._doubt, self.batch.options.delivery == "at_least_once"
        if doubt is not None and not resends:
            raise doubt
        is_accepted = entry is not None and entry.state == "accepted"
        if doubt is not None or is_accepted:
            await self.journal.check_unchanged(document)
        return is_accepted

    async def _upload(self, document: Document) -> UploadReceipt:
        batch_options = self.batch.batch_options
        with self._limited("waiting for a place among the concurrent uploads"):
            await self._take_permit()
        self._upload_call = self._call(
            requests.UPLOAD_WHITEBOARD_FILE, log=self._log, began=self._began
        )
        return await upload_document(
            self._upload_call,
            self.job.room_id,
            document,
            max_wait=batch_options.max_wait,
            timeout=batch_options.timeout,
            hooks=self,
        )

    @contextmanager
    def _limited(self, phase: str) -> Generator[None, None, None]:
        with anyio.CancelScope(deadline=self._ends_at) as scope:
            yield
        if scope.cancelled_caught:
            seconds = self._ends_at - self._began
            raise self._named(errors.DeadlineExceeded(seconds, phase))

    # --- its room --------------------------------------------------------------------------------

    async def _wait_for_room(self) -> None:
        """Wait until the room is active before a stream is read, which can be read only once.

        Whatever else is wrong, the upload tells.
        """
        batch, room_id = self.batch, self.job.room_id
        if batch.batch_options.wait_active is None or batch.session.is_verified(room_id):
            return
        # The job has a permit, so it does not wait to ask again.
        once = attrs.evolve(batch.options.retry, max_attempts=1)
        with suppress(errors.TransportError, errors.ReplyError):
            try:
                with self._limited("checking the room"):
                    call = self._call(
                        requests.ACTIVE_ROOM_INFO, attrs.evolve(batch.options, retry=once)
                    )
                    await active_room(call, room_id, timeout=None)
            except ABSENT as error:
                await self._wait_until_active(error, self._began)

    async def _wait_until_active(self, error: errors.RequestRefused, since: float) -> None:
        """Wait, without a permit, until the room is active; otherwise raise ``error``."""
        wait_active = self.batch.batch_options.wait_active
        if wait_active is None or not isinstance(error, ABSENT):
            raise error
        await self.before_queue()
        call, room_id = self._call(requests.ACTIVE_ROOM_INFO, began=since), self.job.room_id
        with self._limited(f"waiting for room {self.job.room_id!r} to become active"):
            try:
                await wait_until_active(call, room_id, timeout=wait_active, absent=error)
            except errors.DeadlineExceeded as exceeded:
                raise (exceeded.__cause__ or error) from None
            except (errors.TransportError, errors.ReplyError) as failure:
                if isinstance(failure, errors.RequestRefused):
                    raise

    def _call(self, operation: str, options: Options | None = None, **facts: Any) -> Call:
        job, batch = self.job, self.batch
        facts = {"key": job.key, "index": self.index, **facts}
        return new_call(batch.session, options or batch.options, operation, job.room_id, **facts)

    # --- hooks of the upload ---------------------------------------------------------------------

    async def before_queue(self) -> None:
        """Release the permit for a wait behind another upload, or for the room."""
        self._give_permit_back()
        await self._begin_waiting(may_have_arrived=False)

    def server_verified(self) -> None:
        """Let the other jobs of the batch begin."""
        self.batch.verify()

    async def before_attempt(self) -> None:
        """Acquire a permit. From now on a stop does not end the job, until it waits."""
        await self._take_permit()
        await anyio.lowlevel.checkpoint_if_cancelled()  # nothing begins after a stop
        self._is_interruptible = False

    async def before_closing_boundary(self, document: Document, content: PreparedSource) -> None:
        """Record that the document may arrive from now on."""
        await self.journal.mark_sending(document, content)

    async def before_wait(self, wait: Wait, *, may_have_arrived: bool) -> None:
        """Release the permit for a wait, and record if nothing arrived.

        Until the server has answered no other job begins: it would meet the same trouble.
        """
        if self.batch.is_verified:
            self._give_permit_back()
        await self._begin_waiting(may_have_arrived=may_have_arrived)

    async def _begin_waiting(self, *, may_have_arrived: bool) -> None:
        self._is_interruptible = True
        if self._is_stopped:
            self._scope.cancel()
        if not may_have_arrived:
            await self.journal.unmark()

    async def _take_permit(self) -> None:
        if not self._has_permit:
            await self.batch.scheduler.acquire(self.job.room_id)
            self._has_permit = True

    def _give_permit_back(self) -> None:
        if self._has_permit:
            self._has_permit = False
            self.batch.scheduler.release()

    # --- the end ---------------------------------------------------------------------------------

    @property
    def _size(self) -> int | None:
        return self._upload_call.size if self._upload_call else None

    @property
    def _doubt(self) -> errors.UploadOutcomeUnknown | None:
        """What remains true of a document that is sent again: no failure is certain."""
        doubt = self.journal.doubt(self.batch.options.lock.window)
        return None if doubt is None else self._named(doubt)

    async def _fail(self, error: Exception) -> None:
        """Set the outcome for an error."""
        log, doubt = self._log, self._doubt
        if log.answer is not None and self._upload_call is not None:
            # What came after that has failed.
            await self._end("accepted", receipt=receipt_of(self._upload_call))
            return
        if not isinstance(error, errors.UploadOutcomeUnknown):
            if log.unknown_since is not None:
                window, now = self.batch.options.lock.window, anyio.current_time()
                unknown = log.unknown(str(error), now, size=self._size, window=window)
                doubt = self._named(unknown)
            elif doubt is not None:
                doubt.reason += f", and now: {error}"
            if doubt is not None:
                doubt.__cause__ = error
                error = doubt
        is_untried = isinstance(error, errors.BatchStopped) and not log.attempts
        await self._end("skipped" if is_untried else status_of(error), error=error)

    async def _cut_off(self) -> None:
        """Set the outcome after a cancellation."""
        if self._log.unknown_since is not None:
            how_far = "before an answer came"
        elif self._log.attempts:
            how_far = "while it was on its way; it did not reach its room"
        else:
            how_far = "before it was sent"
        with anyio.CancelScope(shield=True):
            await self._fail(self._named(errors.BatchStopped(how_far)))

    async def _end(
        self,
        status: Status,
        *,
        receipt: UploadReceipt | None = None,
        error: Exception | None = None,
    ) -> None:
        """Make the outcome, let the room's next job begin, and record the outcome."""
        self._is_interruptible = False
        self.outcome = UploadOutcome(
            index=self.index,
            room_id=self.job.room_id,
            document=self._document or self.job.label,
            status=status,
            size=self._size,
            key=self.job.key,
            started=self._began - self.batch.began,
            seconds=anyio.current_time() - self._began,
            attempts=tuple(self._log.attempts),
            receipt=receipt,
            error=error,
        )
        self.when_ended(self.outcome)
        self._give_permit_back()
        if status != "skipped":
            reason = str(error) if isinstance(error, errors.MeetingError) else None
            await self.journal.record(status, reason)

    def _named(self, error: E) -> E:
        """Add the facts of the job to an error."""
        error.operation = requests.UPLOAD_WHITEBOARD_FILE
        error.room_id, error.document = self.job.room_id, self._document
        error.attempts = tuple(self._log.attempts)
        return error
