"""The journal: a record of what a batch has done, so that its next run can resume.

A job is marked *sent* on disk *before* the closing boundary of its document is sent. So a job that
is not marked *sent* has not been delivered, and a job that is marked *sent* and has no outcome is
unknown, even after a crash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import anyio
import attrs

from meeting_async._batch.jobs import UploadJob
from meeting_async._documents.document import Document, as_document, source_of
from meeting_async._documents.files import BytesSource, PathSource, file_version
from meeting_async._documents.prepared import Prepared
from meeting_async._log import logger
from meeting_async._protocol.requests import room_id_bytes
from meeting_async._text import short_repr
from meeting_async._threads import in_thread
from meeting_async.errors import DocumentChanged, InvalidInput, JournalError, UploadOutcomeUnknown

State = Literal["ready", "sent", "accepted", "refused", "failed", "unknown"]
"""``ready``: nothing arrived. ``sent``: may have arrived, and has no outcome."""


@attrs.frozen(kw_only=True)
class JournalJob:
    """A job as it is stored in a journal. It contains no secret."""

    identity: str
    """The same in every run of the batch. Jobs that share one are matched in their order."""
    room_id: str
    document: str
    """Name that the room shows, or the link without its query."""
    is_unique: bool
    """Whether a second job with this identity is an error: true for jobs with a key."""


@attrs.frozen
class JournalEntry:
    """State of a job in the journal when this run registered it."""

    id: int
    """Id of the entry; the journal chooses it."""
    state: State
    size: int | None = None
    """Bytes of the document when it was last sent; ``None`` for a link."""
    sent_ago: float = 0.0
    """Seconds since it was last sent."""
    fingerprint: str | None = None
    """Fingerprint of its file when it was last sent."""


@runtime_checkable
class Journal(Protocol):
    """A record of what a batch does. Implement it to store that elsewhere than in a file.

    One run at a time uses a journal. Every method raises
    :class:`~meeting_async.errors.JournalError` when the journal cannot be read or written; the
    batch then stops, and nothing is sent without it.
    """

    def opened(self, server: str) -> AbstractAsyncContextManager[object]:
        """Return a context manager that opens the journal for a run; ``server`` is a base URL.

        Raises:
            JournalInUse: On entering: another batch has it open.

        """
        ...

    def register(self, job: JournalJob) -> Awaitable[JournalEntry]:
        """Find the entry of a job, or make one; called in the order of the input.

        It must not block. The result is awaited when the job starts, or never. If a job that must
        be unique is not, that raises :class:`~meeting_async.errors.InvalidInput`.
        """
        ...

    async def mark_sending(
        self, entry: JournalEntry, size: int | None, fingerprint: str | None
    ) -> None:
        """Record durably that the closing boundary of a document is about to be sent.

        It may be cancelled; then the document is not sent.
        """
        ...

    async def record(self, entry: JournalEntry, state: State, reason: str | None) -> None:
        """Record the outcome of a job. It is durable only after the next :meth:`mark_sending`."""
        ...


def is_journal(value: object) -> bool:
    """Return whether a value has the methods of a :class:`Journal`.

    From Python 3.12 on, ``isinstance`` does not see what a wrapper has by ``__getattr__``.
    """
    return all(callable(getattr(value, name, None)) for name in _METHODS)


_METHODS = ("opened", "register", "mark_sending", "record")


# --- what a job is recognised by -----------------------------------------------------------------


def journal_job(room_id: str, document: Document, key: str | None) -> JournalJob:
    """Describe a job so that it is the same in the next run of its batch.

    Without a key the identity is room, name and origin of the document. A path counts as it was
    written. If it leads to another file in another working directory, that is a changed file, which
    is reported, and not a new document.
    """
    facts = [room_id, document.filename, *_origin(document)] if key is None else {"key": key}
    return JournalJob(
        identity=json.dumps(facts),
        room_id=room_id,
        document=document.filename,
        is_unique=key is not None,
    )


def check_key(key: object) -> None:
    """Raise `InvalidInput` if this cannot be the key of a job."""
    if key is not None and (not isinstance(key, str) or key == ""):
        raise InvalidInput("key", short_repr(key), "is no text", "give a str, or None")


def _origin(document: Document) -> tuple[str, str]:
    if document.link is not None:  # its query may be a credential
        return "link", hashlib.sha256(document.link.encode()).hexdigest()
    source = source_of(document)
    if isinstance(source, BytesSource):
        return "bytes", hashlib.sha256(source.data).hexdigest()
    if isinstance(source, PathSource):
        return "path", source.path
    return "stream", ""


def current_fingerprint(document: Document) -> str | None:
    """Return size and modification time of a file; ``None`` if the document is not a file.

    It blocks. A file that was only touched counts as changed.
    """
    source = source_of(document)
    if not isinstance(source, PathSource):
        return None
    try:
        status = Path(source.path).stat()
    except (OSError, ValueError):
        return None
    return file_version(status.st_size, status.st_mtime_ns)


async def check_unchanged(entry: JournalEntry, document: Document) -> None:
    """Check that a file is still the one that an earlier run sent.

    Raises:
        DocumentChanged: It has changed.

    """
    if entry.fingerprint is None:
        return
    current = await in_thread(partial(current_fingerprint, document))
    if current not in {None, entry.fingerprint}:
        change = "an earlier run of the batch sent the file as it was then"
        fix = "to send this one too, give it another name or key, or use another journal"
        raise DocumentChanged(document.filename, f"{change}; {fix}")


_CERTAIN = {"ready", "accepted", "refused", "failed"}


def doubt_of(entry: JournalEntry | None, window: float) -> UploadOutcomeUnknown | None:
    """Return the unknown outcome of an earlier run, if there is one."""
    if entry is None or entry.state in _CERTAIN:
        return None
    reason = f"{entry.sent_ago:,.0f} s ago an earlier run sent it and saw no answer"
    free_in = max(0.0, window - entry.sent_ago)
    return UploadOutcomeUnknown(reason, entry.size, entry.size, free_in)


# --- the entry of one job ------------------------------------------------------------------------

MAX_HASHED = 256 * 1024
"""Bytes that are hashed on the event loop's thread; more would block it too long."""


@attrs.frozen
class Registration:
    """A job that is being registered."""

    document: Document
    entry: Awaitable[JournalEntry] | None
    """``None`` without a journal."""


async def register(journal: Journal | None, job: UploadJob) -> Registration:
    """Check a job and register it.

    Raises:
        InvalidInput: The job cannot be used.

    """
    room_id_bytes(job.room_id)
    document = as_document(job.document, filename=job.filename, content_type=job.content_type)
    check_key(job.key)
    if journal is None:
        return Registration(document, None)
    describe = partial(journal_job, job.room_id, document, job.key)
    source = source_of(document)
    is_large = isinstance(source, BytesSource) and len(source.data) > MAX_HASHED
    described = await in_thread(describe) if is_large else describe()
    return Registration(document, journal.register(described))


ANSWER_SECONDS = 12.0
"""Seconds after which a journal that does not answer counts as failed: a busy disk answers within
some seconds, one that is gone never."""

HURRIED_SECONDS = 2.0
"""The same once it did not answer."""


@asynccontextmanager
async def opened(journal: Journal, server: str, patience: Patience) -> AsyncGenerator[None, None]:
    """Open a journal; to close it takes some seconds at most, also if the batch was cancelled."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(journal.opened(server))
        closing = stack.pop_all()
    try:
        yield
    finally:
        seconds = HURRIED_SECONDS if patience.has_failed else CLOSING_SECONDS
        with anyio.move_on_after(seconds, shield=True) as scope:
            await closing.aclose()
        if scope.cancelled_caught:
            logger.warning("the journal could not be closed", extra={"action": "Journal"})


CLOSING_SECONDS = 6.0
"""Seconds that a batch waits for its journal to be closed; a file has 5 s for that."""


@attrs.define(eq=False)
class Patience:
    """How long the jobs of a batch wait for its journal."""

    seconds: float = ANSWER_SECONDS
    has_failed: bool = attrs.field(default=False, init=False)
    """Whether it did not answer once."""

    @contextmanager
    def wait(self, journal: object, *, shield: bool = False) -> Generator[None, None, None]:
        """Limit a wait for the journal; `JournalError` when it takes too long."""
        seconds = self.seconds
        with anyio.CancelScope(shield=shield, deadline=anyio.current_time() + seconds) as scope:
            yield
        if scope.cancelled_caught:
            self.has_failed = True
            self.seconds = min(self.seconds, HURRIED_SECONDS)
            name = str(getattr(journal, "path", type(journal).__name__))
            raise JournalError(name, "does not answer: is its disk there?")


@attrs.define(eq=False)
class JobJournal:
    """What a job of a batch tells the journal. Without a journal nothing happens."""

    journal: Journal | None
    patience: Patience
    entry: JournalEntry | None = attrs.field(default=None, init=False)
    _is_marked: bool = attrs.field(default=False, init=False)
    """Whether the journal says that the document may have arrived."""

    async def find(self, entry: Awaitable[JournalEntry]) -> JournalEntry:
        """Wait for the job's entry."""
        with self.patience.wait(self.journal):
            self.entry = await entry
        return self.entry

    async def mark_sending(self, prepared: Prepared) -> None:
        """Record that the document may arrive from now on."""
        if self.journal is not None and self.entry is not None:
            self._is_marked = True
            with self.patience.wait(self.journal):
                await self.journal.mark_sending(self.entry, *prepared.version)

    async def unmark(self) -> None:
        """Record that nothing arrived; an unknown outcome of an earlier run remains."""
        if self._is_marked and self.entry is not None and self.entry.state in _CERTAIN:
            await self.record("ready", None)

    async def record(self, state: State, reason: str | None) -> None:
        """Record the outcome of the job; a document that an earlier run delivered remains so."""
        if self.journal is None or self.entry is None or self.entry.state == "accepted":
            return
        with self.patience.wait(self.journal, shield=True):
            await self.journal.record(self.entry, state, reason)
        self._is_marked = False
