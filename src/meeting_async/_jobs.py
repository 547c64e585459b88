"""One document of a batch: what is asked for, and what became of it."""

from __future__ import annotations

from typing import Literal

import attrs

from meeting_async import errors
from meeting_async._attempts import Attempt
from meeting_async._documents import Document
from meeting_async._recognition import Uploadable
from meeting_async._records import UploadReceipt
from meeting_async._verdicts import Verdict

Status = Literal["accepted", "refused", "failed", "unknown", "skipped"]
"""What can become of a job."""


@attrs.frozen
class UploadJob:
    """A document for a room. Nothing is checked before the batch comes to it."""

    room_id: str
    """An active room with a presenter in it."""
    document: Document | Uploadable = attrs.field(repr=False)
    """Whatever :meth:`MeetingClient.upload_whiteboard_file` takes."""
    filename: str | None = attrs.field(default=None, kw_only=True)
    """What the room sees instead of the document's own name; needed for what has none."""
    content_type: str | None = attrs.field(default=None, kw_only=True)
    """Media type, instead of its own or the one guessed from the name."""
    key: str | None = attrs.field(default=None, kw_only=True)
    """What a journal knows the job by, such as the primary key of a row of yours; unique in it.

    Without one it is the room, the document and its name.
    """


@attrs.frozen(kw_only=True)
class UploadOutcome:
    """What became of one job. Times are seconds, sizes are bytes."""

    index: int
    """Place of the job in the input, from 0."""
    room_id: str
    document: str
    """The name the room sees; of a link, the link without its query."""
    status: Status
    """``accepted``; ``refused`` (the server or a check said no, and would again); ``failed`` (it
    did not reach the room); ``unknown`` (it may have); ``skipped`` (not tried)."""
    size: int | None = None
    """Bytes of the document; ``None`` for a link and for what was not measured."""
    receipt: UploadReceipt | None = None
    """The server's answer, if it accepted the document in this run."""
    error: Exception | None = None
    """What ended it otherwise; of what was skipped, why. ``None`` if skipped because an earlier
    run, by the journal, had it accepted."""
    key: str | None = None
    """The job's key."""
    started: float = 0.0
    """When it was begun, after the beginning of the batch; before that it stood in a queue."""
    seconds: float = 0.0
    """From then to its end."""
    attempts: tuple[Attempt, ...] = ()
    """What was tried; each ``started`` so many seconds after the job."""

    @property
    def is_good(self) -> bool:
        """Whether it is in the room, from this run or, by the journal, from an earlier one."""
        return self.status == "accepted" or (self.status == "skipped" and self.error is None)

    @property
    def bytes_sent(self) -> int:
        """Bytes of the document that went out, in all attempts together."""
        return sum(attempt.bytes_sent for attempt in self.attempts)

    @property
    def bytes_resent(self) -> int:
        """Those that went out more than once: what refusals and interruptions cost."""
        return self.bytes_sent - max((a.bytes_sent for a in self.attempts), default=0)

    @property
    def waited(self) -> float:
        """Seconds between its attempts and before the first: for locks, turns and backoff."""
        return max(0.0, self.seconds - sum(attempt.seconds for attempt in self.attempts))

    @property
    def conflicts(self) -> int:
        """How often the room was locked by somebody else's upload (409)."""
        return sum(attempt.verdict == Verdict.BUSY.value for attempt in self.attempts)


_BY_ERROR: tuple[tuple[type[Exception], Status], ...] = (
    (errors.UploadOutcomeUnknown, "unknown"),
    (errors.RequestRefused, "refused"),
    (errors.InvalidInput, "refused"),
    (errors.DocumentUnreadable, "failed"),
    (errors.DocumentChanged, "failed"),
    (errors.DocumentError, "refused"),
    (TypeError, "refused"),
)


def status_of(error: Exception) -> Status:
    """Say what an error makes of a job."""
    for kind, status in _BY_ERROR:
        if isinstance(error, kind):
            return status
    return "failed"
