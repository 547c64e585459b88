"""What a batch has done, on record, so that its next run can go on from there.

That a document may arrive is on record *before* its closing boundary leaves. So a job that is not
marked *sent* in the journal has not been delivered, and one that is marked *sent* without an
outcome is unknown, whenever and however the process ended.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import anyio
import attrs

from meeting_async._batch.jobs import UploadJob
from meeting_async._documents.document import Document
from meeting_async._documents.files import PathSource
from meeting_async._documents.source import BytesSource, Content
from meeting_async._documents.threads import in_thread
from meeting_async._protocol.requests import room_id_bytes
from meeting_async._text import short_repr
from meeting_async.errors import DocumentChanged, InvalidInput, JournalError, UploadOutcomeUnknown

State = Literal["ready", "sent", "accepted", "refused", "failed", "unknown"]
"""``ready``: not sent, or sent in vain. ``sent``: may have arrived, and has no outcome."""


@attrs.frozen(kw_only=True)
class JournalJob:
    """A job as a journal knows it. It holds no secret."""

    identity: str
    """The same in every run of the batch. Jobs that share one are matched in their order."""
    room_id: str
    document: str
    """Name that the room shows, or the link without its query."""
    is_unique: bool
    """Whether a second job with this identity is an error, as it is for jobs with a key."""


@attrs.frozen
class JournalEntry:
    """What a journal knew of a job when this run registered it."""

    id: int
    """Of the journal's own choice."""
    state: State
    size: int | None = None
    """Bytes of the document when it was last sent; ``None`` for a link."""
    sent_ago: float = 0.0
    """Seconds since it was last sent."""
    fingerprint: str | None = None
    """That of its file when it was last sent."""


@runtime_checkable
class Journal(Protocol):
    """A record of what a batch does. Implement it to keep that elsewhere than in a file.

    One run at a time uses a journal. Every method raises
    :class:`~meeting_async.errors.JournalError` when the journal cannot be read or written; the
    batch then stops, and nothing is sent without it.
    """

    def opened(self, server: str) -> AbstractAsyncContextManager[object]:
        """Return what holds the journal open for one run of a batch for ``server`` (a base URL).

        Raises:
            JournalInUse: On entering: another batch has it open.

        """
        ...

    async def load(self, seconds: float) -> Mapping[str, float]:
        """Return the rooms to which a document of unknown outcome was sent in the last ``seconds``.

        The values are seconds since then.
        """
        ...

    def register(self, job: JournalJob) -> Awaitable[JournalEntry]:
        """Find the entry of a job, or make one; called in the order of the input.

        It must not block. The result is awaited when the job's turn has come, or never; for a job
        that must be unique and is not, that raises :class:`~meeting_async.errors.InvalidInput`.
        """
        ...

    async def mark_sending(
        self, entry: JournalEntry, size: int | None, fingerprint: str | None
    ) -> None:
        """Put on record, durably, that a document is about to be complete at the server.

        It may be cancelled; then the document is not sent.
        """
        ...

    async def record(self, entry: JournalEntry, state: State, reason: str | None) -> None:
        """Put on record what became of a job. Not durable before the next :meth:`mark_sending`."""
        ...


# --- what a job is recognised by -----------------------------------------------------------------


def journal_job(room_id: str, document: Document, key: str | None) -> JournalJob:
    """Describe a job so that it is the same in the next run of its batch.

    Without a key it is room, name and origin of the document. A path counts as it was written: one
    that means another file in another working directory is then a file that changed, and reported,
    rather than a new one that a room gets twice.
    """
    facts = [room_id, document.filename, *_origin(document)] if key is None else {"key": key}
    return JournalJob(
        identity=json.dumps(facts),
        room_id=room_id,
        document=document.filename,
        is_unique=key is not None,
    )


def _check_key(key: object) -> None:
    if key is not None and (not isinstance(key, str) or key == ""):
        raise InvalidInput("key", short_repr(key), "is no text", "give a str, or None")


def _origin(document: Document) -> tuple[str, str]:
    if document.link is not None:  # its query may be a credential
        return "link", hashlib.sha256(document.link.encode()).hexdigest()
    if isinstance(document.source, BytesSource):
        return "bytes", hashlib.sha256(document.source.data).hexdigest()
    if isinstance(document.source, PathSource):
        return "path", document.source.path
    return "stream", ""


def current_fingerprint(document: Document) -> str | None:
    """Return size and modification time of a file; ``None`` where there is no file to ask.

    It blocks. A file that was only touched counts as changed: nobody can tell without reading it.
    """
    if not isinstance(document.source, PathSource):
        return None
    try:
        status = Path(document.source.path).stat()
    except (OSError, ValueError):
        return None
    return f"{status.st_size} bytes, {status.st_mtime_ns}"


# --- the entry of one job ------------------------------------------------------------------------

MAX_HASHED = 256 * 1024
"""Bytes that are hashed on the event loop's thread; more would hold it up."""

_CERTAIN = {"ready", "accepted", "refused", "failed"}


@attrs.frozen
class Registration:
    """A job that is on its way into the journal."""

    document: Document
    entry: Awaitable[JournalEntry] | None
    """``None`` without a journal."""


async def register(journal: Journal | None, job: UploadJob) -> Registration:
    """Check what was asked for, and register it.

    Raises:
        InvalidInput: Something about it cannot be used.

    """
    room_id_bytes(job.room_id)
    document = Document.of(job.document, filename=job.filename, content_type=job.content_type)
    _check_key(job.key)
    if journal is None:
        return Registration(document, None)
    describe = partial(journal_job, job.room_id, document, job.key)
    data = document.source.data if isinstance(document.source, BytesSource) else b""
    described = await in_thread(describe) if len(data) > MAX_HASHED else describe()
    return Registration(document, journal.register(described))


@attrs.define(eq=False)
class JobJournal:
    """What the journal says of one job, and what the job says to it.

    Without a journal nothing is known, and nothing happens.
    """

    journal: Journal | None
    entry: JournalEntry | None = attrs.field(default=None, init=False)
    error: JournalError | None = attrs.field(default=None, init=False)
    """Why the journal does not have the outcome."""
    _is_marked: bool = attrs.field(default=False, init=False)
    """Whether the journal says that the document may have arrived."""

    def doubt(self, window: float) -> UploadOutcomeUnknown | None:
        """Return what is unknown since an earlier run, if anything is."""
        entry = self.entry
        if entry is None or entry.state in _CERTAIN:
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

    async def mark_sending(self, document: Document, content: Content) -> None:
        """Put on record that the document may be in the room from now on."""
        if self.journal is not None and self.entry is not None:
            self._is_marked = True
            fingerprint = None
            if isinstance(document.source, PathSource):
                size, _, _, modified, *_ = content.snapshot.fingerprint
                fingerprint = f"{size} bytes, {modified}"
            await self.journal.mark_sending(self.entry, document.size(content), fingerprint)

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
