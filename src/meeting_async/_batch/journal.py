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
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import attrs

from meeting_async._documents.document import Document
from meeting_async._documents.files import PathSource
from meeting_async._documents.source import BytesSource, Snapshot
from meeting_async._text import short_repr
from meeting_async.errors import InvalidInput

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


def check_key(key: object) -> None:
    """Refuse what is no key.

    Raises:
        InvalidInput: It is neither a text nor ``None``.

    """
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


def sent_fingerprint(document: Document, snapshot: Snapshot | None) -> str | None:
    """Return the fingerprint of a file that is being sent; ``None`` for other documents."""
    if snapshot is None or not isinstance(document.source, PathSource):
        return None
    size, _, _, modified, *_ = snapshot.fingerprint
    return f"{size} bytes, {modified}"


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
