"""One document of a batch: what is asked for, and what became of it."""

from __future__ import annotations

from typing import Literal

import attrs

from meeting_async._documents.detect import Uploadable
from meeting_async._documents.document import Document
from meeting_async._models import Attempt, UploadReceipt, Verdict
from meeting_async._protocol.multipart import file_name

Status = Literal["accepted", "refused", "failed", "unknown", "skipped"]
"""What can become of a job; see :attr:`UploadOutcome.status`."""


@attrs.frozen
class UploadJob:
    """A document for a room. Nothing is checked before the job's turn has come."""

    room_id: str
    """An active room with a presenter in it."""
    document: Document | Uploadable = attrs.field(repr=False)
    """Whatever :meth:`MeetingClient.upload_whiteboard_file` takes."""
    filename: str | None = attrs.field(default=None, kw_only=True)
    """What the room shows instead of the document's own name; needed for what has none."""
    content_type: str | None = attrs.field(default=None, kw_only=True)
    """Media type, instead of its own or the one guessed from the name."""
    key: str | None = attrs.field(default=None, kw_only=True)
    """What a journal recognises the job by, such as the primary key of a row of yours; unique in
    a batch. Without one it is the room, the document and its name. Events carry it, too."""

    @property
    def label(self) -> str:
        """Name of the document as far as it is known without looking at it; else ``""``."""
        try:
            if isinstance(self.filename, str):
                return file_name(self.filename)
            return Document.of(self.document, content_type=self.content_type).filename
        except Exception:  # noqa: BLE001 - foreign objects may raise anything when they are asked
            return ""


@attrs.frozen(kw_only=True)
class UploadOutcome:
    """What became of one job. Times are seconds, sizes are bytes."""

    index: int
    """Place of the job in the input, from 0."""
    room_id: str
    document: str
    """Name that the room shows, or the link without its query."""
    status: Status
    """``accepted``; ``refused`` (by the server or a local check: fix the cause before retrying);
    ``failed`` (it did not reach the room); ``unknown`` (it may have reached the room); ``skipped``
    (not tried)."""
    size: int | None = None
    """Bytes of the document; ``None`` for a link and for what was not measured."""
    receipt: UploadReceipt | None = None
    """The server's answer, if it accepted the document in this run."""
    error: Exception | None = None
    """Why it is not accepted. ``None`` also for a job that is skipped because, by the journal, an
    earlier run had it accepted. Its traceback keeps the places, not the variables."""
    key: str | None = None
    """The job's key."""
    started: float = 0.0
    """When its turn came, after the beginning of the batch; before that it was in a queue."""
    seconds: float = 0.0
    """From then to its end."""
    attempts: tuple[Attempt, ...] = ()
    """What was tried; each ``started`` so many seconds after the job."""

    @property
    def delivered(self) -> bool:
        """Whether the room has it, from this run or, by the journal, from an earlier one."""
        return self.status == "accepted" or (self.status == "skipped" and self.error is None)

    @property
    def bytes_sent(self) -> int:
        """Bytes of the document that were sent, in all attempts together."""
        return sum(attempt.bytes_sent for attempt in self.attempts)

    @property
    def bytes_resent(self) -> int:
        """Those that were sent more than once, because of refusals and interruptions."""
        return self.bytes_sent - max((attempt.bytes_sent for attempt in self.attempts), default=0)

    @property
    def waited(self) -> float:
        """Seconds before and between its attempts: for locks, other uploads and backoff."""
        return max(0.0, self.seconds - sum(attempt.seconds for attempt in self.attempts))

    @property
    def conflicts(self) -> int:
        """How often the document was refused because the room was locked (409)."""
        return sum(attempt.verdict is Verdict.BUSY for attempt in self.attempts)
