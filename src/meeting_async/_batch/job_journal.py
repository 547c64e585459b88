"""What the journal says of one job, and what one job says to the journal."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

import anyio
import attrs

from meeting_async._batch.jobs import UploadJob
from meeting_async._batch.journal import (
    Journal,
    JournalEntry,
    State,
    check_key,
    current_fingerprint,
    journal_job,
    sent_fingerprint,
)
from meeting_async._documents.document import Document, PreparedDocument
from meeting_async._documents.source import BytesSource
from meeting_async._documents.threads import in_thread
from meeting_async._protocol.requests import room_id_bytes
from meeting_async.errors import DocumentChanged, JournalError, UploadOutcomeUnknown

Registration = Awaitable[JournalEntry]


@attrs.define(eq=False)
class JobJournal:
    """The entry of a job. Without a journal nothing is known, and nothing happens."""

    journal: Journal | None
    registration: Registration | None
    """Made when the job was read; ``None`` if it could not be registered then."""
    entry: JournalEntry | None = attrs.field(default=None, init=False)
    error: JournalError | None = attrs.field(default=None, init=False)
    """Why the journal does not have the outcome."""
    _is_marked: bool = attrs.field(default=False, init=False)
    """Whether the journal says that the document may have arrived."""

    async def open_entry(self, job: UploadJob, document: Document) -> JournalEntry | None:
        """Wait for the entry of the job."""
        if self.journal is not None:
            registration = self.registration
            if registration is None:
                registration = self.journal.register(journal_job(job.room_id, document, job.key))
            self.entry = await registration
        return self.entry

    def doubt(self, window: float) -> UploadOutcomeUnknown | None:
        """Return what is unknown since an earlier run, if anything is."""
        entry = self.entry
        if entry is None or entry.state not in {"sent", "unknown"}:
            return None
        reason = f"{entry.sent_ago:,.0f} s ago an earlier run sent it and saw no answer"
        free_in = max(0.0, window - entry.sent_ago)
        return UploadOutcomeUnknown(reason, entry.size, entry.size, free_in)

    async def check_unchanged(self, document: Document) -> None:
        """See that a file is the one that an earlier run sent, if anybody can tell.

        Raises:
            DocumentChanged: It is another one.

        """
        if self.entry is None or self.entry.fingerprint is None:
            return
        current = await in_thread(partial(current_fingerprint, document))
        if current not in {None, self.entry.fingerprint}:
            change = "an earlier run of the batch sent the file as it was then"
            fix = "to send this one too, give it another name or key, or use another journal"
            if self.entry.state == "accepted":
                self.entry = None  # what is on record remains true
            raise DocumentChanged(document.filename, f"{change}; {fix}")

    async def mark_sending(self, document: PreparedDocument) -> None:
        """Put on record that the document may be in the room from now on."""
        if self.journal is not None and self.entry is not None:
            self._is_marked = True
            fingerprint = sent_fingerprint(document.document, document.snapshot)
            await self.journal.mark_sending(self.entry, document.size, fingerprint)

    async def unmark(self) -> None:
        """Put on record that nothing arrived after all; an earlier run's doubt remains."""
        if self._is_marked and self.entry is not None and self.entry.state in _CERTAIN:
            await self.record("ready", None)

    async def record(self, state: State, reason: str | None) -> None:
        """Write what became of the job. Trouble with that does not change the outcome."""
        if self.journal is None or self.entry is None:
            return
        try:
            with anyio.CancelScope(shield=True):
                await self.journal.record(self.entry, state, reason)
            self._is_marked = False
        except JournalError as error:
            self.error = error


_CERTAIN = {"ready", "accepted", "refused", "failed"}


async def registered(journal: Journal | None, job: UploadJob) -> Registration | None:
    """Register a job that was read; what is no proper job is not, and refused at its turn."""
    if journal is None:
        return None
    try:
        room_id_bytes(job.room_id)
        check_key(job.key)
        document = Document.of(job.document, filename=job.filename, content_type=job.content_type)
        describe = partial(journal_job, job.room_id, document, job.key)
        data = document.source.data if isinstance(document.source, BytesSource) else b""
        described = await in_thread(describe) if len(data) > MAX_HASHED else describe()
    except Exception:  # noqa: BLE001 - foreign objects may raise anything when they are asked
        return None
    return journal.register(described)


MAX_HASHED = 256 * 1024
"""Bytes that are hashed on the event loop's thread; more would hold it up."""
