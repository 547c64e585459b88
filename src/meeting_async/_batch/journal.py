"""The journal: a record of what a batch has done, so that its next run can resume.

A job is marked *sent* on disk *before* the closing boundary of its document is sent. So a job that
is not marked *sent* has not been delivered, and a job that is marked *sent* and has no outcome is
unknown, even after a crash.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import anyio
import attrs

from meeting_async._batch.results import UploadJob
from meeting_async._documents.document import Document, found_document, source_of
from meeting_async._documents.file_source import WHOLE_BYTES
from meeting_async._documents.files import PathSource
from meeting_async._documents.prepared import Prepared
from meeting_async._log import logger
from meeting_async._protocol.requests import room_of
from meeting_async._system import other_spellings
from meeting_async._text import short_repr
from meeting_async._threads import at_disk
from meeting_async.errors import DocumentChanged, InvalidInput, JournalError

T = TypeVar("T")

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
    former: tuple[str, ...] = ()
    """Identities under which an earlier version may have stored it. An entry that has one of them
    is this job's, and gets its identity."""


@attrs.frozen
class JournalEntry:
    """State of a job in the journal when this run registered it."""

    id: int
    """Id of the entry; the journal chooses it."""
    state: State
    size: int | None = None
    """Bytes of the document when it was last sent; ``None`` for a link."""
    sent_ago: float = 0.0
    """Seconds since it was last sent; of an accepted one, since its outcome was recorded."""
    fingerprint: str | None = None
    """Fingerprint of its file when it was last sent."""
    session: str = ""
    """The session to which it was last sent (``ActiveRoom.sid``); ``""`` if it was not known."""
    since: int | None = None
    """Unix time by the server's clock before which it was not sent, if that was known."""


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

        It must not block. The result is awaited when the job starts or is skipped, or never. If a
        job that must be unique is not, that raises :class:`~meeting_async.errors.InvalidInput`.
        """
        ...

    async def mark_sending(
        self,
        entry: JournalEntry,
        size: int | None,
        fingerprint: str | None,
        session: str,
        since: int | None,
    ) -> None:
        """Record durably that the closing boundary of a document is about to be sent.

        The facts are those of :class:`JournalEntry`: another run settles what this one leaves. It
        may be cancelled; then the document is not sent.
        """
        ...

    async def record(self, entry: JournalEntry, state: State, reason: str | None) -> None:
        """Record the outcome of a job. It is durable only after the next :meth:`mark_sending`."""
        ...


def is_journal(value: object) -> bool:
    """Return whether a value has the methods of a :class:`Journal`, also by ``__getattr__``."""
    methods = (name for name in vars(Journal) if not name.startswith("_"))
    return all(callable(getattr(value, name, None)) for name in methods)


# --- what a job is recognised by -----------------------------------------------------------------


def journal_job(room_id: str, document: Document, key: str | None) -> JournalJob:
    """Describe a job so that it is the same in the next run of its batch.

    The identity is its room and its key, or else name and identity of the document.
    """
    name, source = document.filename, source_of(document)
    kind, value = source.identity() or ("stream", "")
    own = [room_id, name, kind, value] if key is None else {"room": room_id, "key": key}
    former = list[Any]()
    if key is None and isinstance(source, PathSource):
        others = other_spellings(source.known_as)
        former += [[room_id, name, kind, other] for other in others]
        keys = (json.dumps([room_id, each, name]) for each in (value, *others))
        former += [{"room": room_id, "key": each} for each in keys]  # of the command line
    return JournalJob(
        identity=json.dumps(own),
        room_id=room_id,
        document=name,
        is_unique=key is not None,
        former=tuple(map(json.dumps, former)),
    )


def check_key(key: object) -> None:
    """Raise `InvalidInput` if this cannot be the key of a job."""
    if key is not None and (not isinstance(key, str) or key == ""):
        raise InvalidInput("key", short_repr(key), "is not a string", "give a str, or None")


async def check_unchanged(entry: JournalEntry, document: Document) -> None:
    """Check that a file is still the one that an earlier run sent.

    Raises:
        DocumentChanged: It has changed.

    """
    if entry.fingerprint is None:
        return
    current = await at_disk(source_of(document).version)
    if current not in {None, entry.fingerprint}:
        change = "an earlier run of the batch sent the file as it was then"
        fix = "to send this one too, give it another name or key, or use another journal"
        raise DocumentChanged(document.filename, f"{change}; {fix}")


CERTAIN = {"ready", "accepted", "refused", "failed"}
"""States that leave no doubt whether the document has arrived."""


# --- the journal of a running batch --------------------------------------------------------------

ANSWER_SECONDS = 12.0
"""Seconds after which a journal that does not answer counts as failed: a busy disk answers within
some seconds, one that is gone never."""

HURRIED_SECONDS = 2.0
"""The same once it did not answer."""

STEP_SECONDS = 0.25
"""Waits are counted in steps of this length. A step that took longer counts as one: the process was
frozen meanwhile (SIGSTOP, a paused container), and so was the thread that writes."""


@attrs.define(eq=False)
class BatchJournal:
    """The journal of a running batch. No wait for it is endless."""

    _journal: Journal
    _is_silent: bool = False
    """Whether it did not answer once."""
    _left: dict[anyio.CancelScope, float] = attrs.field(factory=dict)
    """Seconds that each wait has left."""

    @asynccontextmanager
    async def opened(self, server: str) -> AsyncGenerator[None, None]:
        """Open it, and close it in the end, also if the batch was cancelled."""
        journal, counting = self._journal.opened(server), anyio.CancelScope(shield=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._count, counting)
            try:
                await self.answered(journal.__aenter__())
                try:
                    yield
                finally:
                    await self._close(journal)
            finally:
                counting.cancel()

    async def _close(self, journal: AbstractAsyncContextManager[object]) -> None:
        try:
            await self.answered(journal.__aexit__(None, None, None), shield=True)
        except JournalError:
            if not self._is_silent:
                raise
            logger.warning("the journal could not be closed", extra={"action": "Journal"})

    async def _count(self, counting: anyio.CancelScope) -> None:
        """Cancel each wait that has nothing left."""
        with counting:
            while True:
                await anyio.sleep(STEP_SECONDS)
                for scope in self._left:
                    self._left[scope] -= STEP_SECONDS
                    if self._left[scope] <= 0:
                        scope.cancel()

    def register(self, job: JournalJob) -> Awaitable[JournalEntry]:
        """Find the entry of a job, or make one; see :meth:`Journal.register`."""
        if self._is_silent:  # a long list of jobs would pile up in its memory
            raise self._silence()
        return self._journal.register(job)

    async def answered(
        self, answer: Awaitable[T], *, hurried: float = HURRIED_SECONDS, shield: bool = False
    ) -> T:
        """Wait for the journal; `JournalError` when it takes too long.

        ``hurried``: seconds to wait if the journal has failed to answer before. With 0 the answer
        counts only if it is already there.
        """
        with anyio.CancelScope(shield=shield) as scope:
            self._left[scope] = hurried if self._is_silent else ANSWER_SECONDS
            if not self._left[scope]:
                scope.cancel()
            try:
                return await answer
            finally:
                del self._left[scope]
        self._is_silent = True
        raise self._silence()

    def _silence(self) -> JournalError:
        name = str(getattr(self._journal, "path", type(self._journal).__name__))
        return JournalError(name, "does not answer: is its disk there?")

    async def mark_sending(
        self, entry: JournalEntry, document: Prepared, session: str, since: int | None
    ) -> None:
        """Record that a document may arrive from now on."""
        mark = self._journal.mark_sending(entry, *document.version, session, since)
        await self.answered(mark)

    async def record(self, entry: JournalEntry, state: State, reason: str | None) -> None:
        """Record the outcome of a job, also if cancelled."""
        await self.answered(self._journal.record(entry, state, reason), shield=True)


async def register(
    journal: BatchJournal | None, job: UploadJob
) -> tuple[Document, Awaitable[JournalEntry] | None]:
    """Check a job and register it; return its document and, with a journal, its entry.

    Raises:
        InvalidInput: The job cannot be used.

    """
    room_of(job.room_id)
    names = {"filename": job.filename, "content_type": job.content_type}
    document = await found_document(job.document, **names)
    check_key(job.key)
    if journal is None:
        return document, None
    describe = partial(journal_job, job.room_id, document, job.key)
    held = source_of(document).held()
    described = await at_disk(describe) if held and held[1] > WHOLE_BYTES else describe()
    return document, journal.register(described)
