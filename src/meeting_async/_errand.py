"""One job of a batch, from its turn to its outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import attrs

from meeting_async import errors
from meeting_async._attempts import Attempt
from meeting_async._calls import Calls, Upload
from meeting_async._cancelling import is_stray
from meeting_async._documents import Document
from meeting_async._identity import stamp_of_file
from meeting_async._jobs import Status, UploadJob, UploadOutcome, status_of
from meeting_async._journal import Entry, Journal, State
from meeting_async._multipart import file_name
from meeting_async._presence import ABSENT, Presence
from meeting_async._records import UploadReceipt
from meeting_async._slots import Slot
from meeting_async._streams import StreamSource
from meeting_async._terms import Terms
from meeting_async._verdicts import Verdict


@attrs.define(kw_only=True, eq=False)
class Errand:
    """A job on its way. Await :meth:`run` once; :attr:`outcome` is there when it ends, however.

    It goes along with its upload: see :class:`~meeting_async._delivery.Companion`.
    """

    index: int
    job: UploadJob
    calls: Calls
    terms: Terms
    presence: Presence
    journal: Journal | None
    claim: Awaitable[Entry] | None
    """Brings what the journal knows of the job."""
    slot: Slot
    batch_began: float
    when_over: Callable[[UploadOutcome], None]
    """Called when room and slot may go to another job; the journal has the outcome only later."""

    outcome: UploadOutcome | None = attrs.field(default=None, init=False)
    journal_error: errors.JournalError | None = attrs.field(default=None, init=False)
    """Why the journal does not know the outcome."""
    _label: str = attrs.field(default="", init=False)
    _began: float = attrs.field(factory=anyio.current_time, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    """Whether room and slot were given up."""
    _entry: Entry | None = attrs.field(default=None, init=False)
    _is_intended: bool = attrs.field(default=False, init=False)
    """Whether the journal says that the document is out."""
    _is_in_doubt: bool = attrs.field(default=False, init=False)
    """Whether an earlier run may have delivered what is sent again: then no failure is certain."""
    _upload: Upload | None = attrs.field(default=None, init=False)
    _earlier: tuple[Attempt, ...] = attrs.field(default=(), init=False)
    """Attempts of uploads that found the room no longer active."""

    async def run(self) -> None:
        """Do the job. Nothing is raised but a cancellation, and what ends the program."""
        with self.slot.scope:
            await self._run()

    async def _run(self) -> None:
        try:
            await self._done()
        except Exception as error:  # noqa: BLE001 - whatever a job does, the others go on
            await self._failed(error)
        except BaseException as error:
            if not is_stray(error):
                with anyio.CancelScope(shield=True):
                    await self._cut_off()
                raise
            await self._failed(_wrapped(error))
        else:
            receipt = self._receipt
            await self._end("accepted" if receipt else "skipped", receipt=receipt)
        finally:
            self._upload = None  # it knows us as its companion: a circle would keep the document

    async def _done(self) -> None:
        """Upload the document, unless by the journal an earlier run did."""
        job = self.job
        self._label = label_of(job)
        document = Document.of(job.document, filename=job.filename, content_type=job.content_type)
        self._label = document.filename
        upload = self._new_upload(document)
        if self.journal is not None and self.claim is not None:
            entry = await self.claim
            if await self._is_in_the_room(self.journal, entry, document):
                return
            self._entry = entry
        await self._uploaded(upload, document)

    def _new_upload(self, document: Document) -> Upload:
        terms = self.terms
        self._upload = upload = self.calls.upload(
            self.job.room_id,
            document,
            max_wait=terms.max_wait,
            deadline=terms.deadline,
            companion=self,
        )
        upload.when_measured = self._when_measured
        return upload

    async def _uploaded(self, upload: Upload, document: Document) -> None:
        """Upload the document once its room is there, again if the room goes and may come back."""
        room_id, presence, absent_since = self.job.room_id, self.presence, None
        while True:
            await presence.ask_first(room_id, self._label, self.slot, absent_since)
            try:
                await upload.run()
            except ABSENT:
                presence.forget(room_id)
                if presence.wait_active is None or isinstance(document.source, StreamSource):
                    raise
                await self.before_wait(may_have_arrived=False)
                absent_since = anyio.current_time() if absent_since is None else absent_since
                if not await presence.pause(room_id, self._label, self.slot, absent_since):
                    raise
            else:
                return
            self._earlier = self._attempts
            upload = self._new_upload(document)

    async def _is_in_the_room(self, journal: Journal, entry: Entry, document: Document) -> bool:
        """Go by the journal; raise if by it the document must not be sent."""
        if entry.state not in {"accepted", "sent", "unknown"}:
            return False
        is_certain = entry.state == "accepted"
        if (is_certain or self.terms.resends_unknown) and await journal.has_changed(
            entry, document
        ):
            fix = "to send this one too, give it another name or key, or use another journal"
            change = "an earlier run of the batch sent the file as it was then"
            raise errors.DocumentChanged(document.filename, f"{change}; {fix}")
        if is_certain:
            return True
        seconds = journal.seconds_since_sent(entry)
        shut_for = max(0.0, self.calls.options.lock.window - seconds)
        if shut_for:
            await self.calls.shared.door(self.job.room_id).shut(shut_for)
        if self.terms.resends_unknown:
            self._is_in_doubt = True
            return False
        self._entry = entry
        raise errors.UploadOutcomeUnknown(
            room_id=self.job.room_id,
            document=document.filename,
            size=entry.size,
            bytes_sent=entry.size,
            reason=f"{seconds:,.0f} s ago an earlier run sent it and saw no answer",
            lock_free_in=shut_for,
        )

    # --- what goes along with the upload ---------------------------------------------------------

    async def _when_measured(self, size: int) -> None:
        await self.presence.ask_for(size, self.job.room_id, self._label, self.slot)

    async def before_attempt(self) -> None:
        """Have a slot."""
        await self.slot.claim()

    async def before_end(self) -> None:
        """Have it in the journal that the document may be in the room from now on."""
        upload = self._upload
        if self.journal and self._entry and upload and upload.measure:
            self._is_intended = True
            stamp = stamp_of_file(upload.document, upload.measure)
            await self.journal.intend(self._entry, self._size or 0, stamp)

    async def before_wait(self, *, may_have_arrived: bool) -> None:
        """Hold no slot while waiting, and let the journal know that nothing arrived."""
        self.slot.give_back()
        if self._is_intended and not may_have_arrived and not self._is_in_doubt:
            await self._note("ready", None)

    @property
    def _was_accepted(self) -> bool:
        """Whether the document is in its room, even if what came after that went wrong."""
        attempts = self._upload.attempts if self._upload else ()
        return bool(attempts) and attempts[-1].verdict == Verdict.ACCEPTED.value

    @property
    def _size(self) -> int | None:
        return self._upload.size if self._upload else None

    @property
    def _receipt(self) -> UploadReceipt | None:
        return self._upload.receipt if self._upload else None

    @property
    def _attempts(self) -> tuple[Attempt, ...]:
        """All attempts so far, timed from the beginning of the job and numbered through."""
        if self._upload is None:
            return ()
        before, later = len(self._earlier), self._upload.began - self._began
        return self._earlier + tuple(
            attrs.evolve(attempt, number=before + attempt.number, started=later + attempt.started)
            for attempt in self._upload.attempts
        )

    # --- the end ---------------------------------------------------------------------------------

    async def _failed(self, error: Exception) -> None:
        """Say what an error came to; one that comes when all is done cannot undo it."""
        if self._was_accepted:
            await self._end("accepted", receipt=self._receipt)
            return
        loss = self._upload.loss if self._upload else None
        if loss is not None and not isinstance(error, errors.UploadOutcomeUnknown):
            loss.__cause__, error = error, loss
        await self._end(status_of(error), error=error)

    async def _end(self, status: Status, **facts: Any) -> None:
        """Say the outcome, let the next job have its turn, and have it in the journal."""
        error: Exception | None = facts.get("error")
        if self._is_in_doubt and status in {"refused", "failed"}:
            status = "unknown"
        self.outcome = UploadOutcome(
            index=self.index,
            room_id=self.job.room_id,
            document=self._label,
            status=status,
            size=self._size,
            key=self.job.key,
            started=self._began - self.batch_began,
            seconds=anyio.current_time() - self._began,
            attempts=self._attempts,
            **facts,
        )
        self.is_over = True
        self.when_over(self.outcome)
        self.slot.give_back()
        reason = str(error) if isinstance(error, errors.MeetingError) else None
        if status != "skipped":
            await self._note(status, reason)
        elif not self._is_in_doubt:
            await self._note("ready", reason)

    async def _note(self, state: State, reason: str | None) -> None:
        """Write to the journal; trouble with it cannot change what became of the document."""
        if self.journal is None or self._entry is None:
            return
        try:
            await self.journal.settle(self._entry, state, reason)
            self._is_intended = False
        except errors.JournalError as error:
            self.journal_error = error

    async def _cut_off(self) -> None:
        """Say what a cancellation left behind."""
        loss = self._upload.loss if self._upload else None
        if self._was_accepted:
            await self._end("accepted", receipt=self._receipt)
        elif loss is not None:
            await self._end("unknown", error=loss)
        elif self._attempts:
            how_far = "while it was on its way; it did not reach its room"
            await self._end("failed", error=errors.BatchStopped(how_far))
        else:
            await self._end("skipped", error=errors.BatchStopped("before it was sent"))


def label_of(job: UploadJob) -> str:
    """Name the document of a job as well as can be without looking at it."""
    try:
        if isinstance(job.filename, str):
            return file_name(job.filename)
        return Document.of(job.document, content_type=job.content_type).filename
    except Exception:  # noqa: BLE001 - what was handed to us may raise anything when it is asked
        return ""


def _wrapped(error: BaseException) -> RuntimeError:
    """Make an ordinary error of a cancellation that nobody asked for."""
    ordinary = RuntimeError(f"{type(error).__name__} was raised, though nobody cancelled the job")
    ordinary.__cause__ = error
    return ordinary
