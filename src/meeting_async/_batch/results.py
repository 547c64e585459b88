"""The jobs of a batch, their outcomes, what an error means for them, and the report."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import Literal

import attrs

from meeting_async import _models, errors
from meeting_async._documents.detect import Uploadable
from meeting_async._documents.document import Document, as_document, may_block
from meeting_async._models import Attempt, UploadReceipt, Verdict
from meeting_async._protocol.multipart import file_name

Status = Literal["accepted", "refused", "failed", "unknown", "skipped"]
"""Status of a job that has ended; see :attr:`UploadOutcome.status`."""


FIX_JOB = ": give UploadJob(room_id, document)"
"""Of an error about something else that was given as a job."""


@attrs.frozen
class UploadJob:
    """A document for a room. It is checked when the job starts."""

    room_id: str
    """An active room with a presenter in it."""
    document: Document | Uploadable = attrs.field(repr=False)
    """Anything that :meth:`MeetingClient.upload_whiteboard_file` accepts."""
    filename: str | None = attrs.field(default=None, kw_only=True)
    """Name that the room shows, instead of the document's own; required if it has none."""
    content_type: str | None = attrs.field(default=None, kw_only=True)
    """Media type, instead of the document's own or the one guessed from the name."""
    key: str | None = attrs.field(default=None, kw_only=True)
    """With the room, identity of the job in a journal; such as the primary key of a database row.
    Unique among the room's jobs. Without a key the identity is room, document and name. Events have
    it, too."""


def label_of(job: UploadJob) -> str:
    """Return the name of a job's document, if it is known without looking at it; else ``""``."""
    try:
        if isinstance(job.filename, str):
            return file_name(job.filename)
        if may_block(job.document):
            return ""
        return as_document(job.document, content_type=job.content_type).filename
    except Exception:  # noqa: BLE001 - foreign objects may raise anything when they are asked
        return ""


@attrs.frozen(kw_only=True)
class UploadOutcome:
    """The outcome of one job. Times are seconds, sizes are bytes."""

    index: int
    """Index of the job in the input, from 0."""
    room_id: str
    document: str
    """Name that the room shows, or the link without its query."""
    status: Status
    """``accepted``; ``refused`` (by the server or a local check: fix the cause before retrying);
    ``failed`` (this version did not reach the room); ``unknown`` (it may have reached the room);
    ``skipped`` (not tried)."""
    size: int | None = None
    """Bytes of the document; ``None`` for a link and if not known."""
    receipt: UploadReceipt | None = None
    """The server's answer, if it accepted the document in this run."""
    error: Exception | None = None
    """Why it is not accepted. ``None`` also for a job that is skipped because it was accepted in an
    earlier run. Exceptions of your own code keep their tracebacks."""
    key: str | None = None
    """The job's key."""
    session: str = attrs.field(default="", repr=False)
    """Id of the session to which the document was sent, in this run or an earlier one
    (``ActiveRoom.sid``); ``""`` if it is not known."""
    started: float = 0.0
    """Its start, in seconds after the start of the batch."""
    seconds: float = 0.0
    """Seconds from its start to its end."""
    attempts: tuple[Attempt, ...] = attrs.field(
        default=(), repr=lambda attempts: f"({len(attempts)} attempts)"
    )
    """All attempts; ``started`` is in seconds after the start of the job."""

    @property
    def delivered(self) -> bool:
        """Whether the room has this version of the document, from this run or an earlier one."""
        return self.status == "accepted" or (self.status == "skipped" and self.error is None)

    @property
    def bytes_sent(self) -> int:
        """Bytes of the document that were sent, in all attempts together."""
        return _models.bytes_sent(self.attempts)

    @property
    def bytes_resent(self) -> int:
        """Bytes that were sent more than once, after refusals and interruptions."""
        return _models.bytes_resent(self.attempts)

    @property
    def waited(self) -> float:
        """Seconds of waiting before and between its attempts: locks, other uploads, backoff."""
        return max(0.0, self.seconds - sum(attempt.seconds for attempt in self.attempts))

    @property
    def conflicts(self) -> int:
        """How often the document was refused because the room was locked (409)."""
        return sum(attempt.verdict is Verdict.BUSY for attempt in self.attempts)


@attrs.define(kw_only=True, repr=False)
class BatchReport:
    """The results of a batch so far. Sizes are bytes, times are seconds."""

    seconds: float = 0.0
    """Duration of the batch."""
    stopped_by: Exception | None = None
    """The error that ended the batch early: one that every job would have, such as a wrong key, or
    an exception of your iterable of jobs. Otherwise ``None``."""
    bytes_delivered: int = 0
    """Bytes of the documents that were accepted."""
    bytes_sent: int = 0
    """Bytes of documents that were sent, delivered or not."""
    bytes_resent: int = 0
    """Bytes of documents that were sent more than once."""
    waited: float = 0.0
    """Time between attempts, and before the first one, summed over all jobs."""
    conflicts: int = 0
    """How often a document was refused because its room was locked (409)."""
    already_delivered: int = 0
    """Jobs that were not tried because an earlier run has delivered them."""
    _keep: bool = attrs.field(default=True, alias="keep")
    _counts: Counter[Status] = attrs.field(factory=Counter, init=False)
    _outcomes: list[UploadOutcome] = attrs.field(factory=list, init=False)
    _first_bad: UploadOutcome | None = attrs.field(default=None, init=False)

    def _add(self, outcome: UploadOutcome) -> None:
        """Add a job that has ended."""
        self._counts[outcome.status] += 1
        self.bytes_sent += outcome.bytes_sent
        self.bytes_resent += outcome.bytes_resent
        self.waited += outcome.waited
        self.conflicts += outcome.conflicts
        self.already_delivered += outcome.status == "skipped" and outcome.delivered
        if outcome.status == "accepted":
            self.bytes_delivered += outcome.size or 0
        if not outcome.delivered and self._first_bad is None:
            self._first_bad = outcome
        if self._keep:
            self._outcomes.append(outcome)

    def __repr__(self) -> str:
        names = (
            "accepted", "already_delivered", "refused", "failed", "unknown", "skipped", "queued"
        )  # fmt: skip
        counts = ", ".join(
            f"{count:,} {name}" for name in names if (count := getattr(self, name, 0))
        )
        stopped = f", stopped by {type(self.stopped_by).__name__}" if self.stopped_by else ""
        found = f": {counts}" if counts else ""
        name = type(self).__name__
        return f"<{name} of {self.total:,} jobs in {self.seconds:.1f} s{found}{stopped}>"

    @property
    def outcomes(self) -> list[UploadOutcome]:
        """All outcomes so far in the order of the input; empty with ``keep_outcomes=False``."""
        return sorted(self._outcomes, key=attrgetter("index"))

    @property
    def total(self) -> int:
        """Jobs that have an outcome."""
        return self._counts.total()

    @property
    def accepted(self) -> int:
        """Jobs whose document the server accepted in this run."""
        return self._counts["accepted"]

    @property
    def refused(self) -> int:
        """Jobs refused by the server or by a local check; fix the cause before retrying."""
        return self._counts["refused"]

    @property
    def failed(self) -> int:
        """Jobs whose document did not reach its room."""
        return self._counts["failed"]

    @property
    def unknown(self) -> int:
        """Jobs whose document may or may not have reached its room."""
        return self._counts["unknown"]

    @property
    def skipped(self) -> int:
        """Jobs that were not tried, and not delivered by an earlier run either."""
        return self._counts["skipped"] - self.already_delivered

    def raise_for_failures(self) -> None:
        """Raise unless every document is in its room.

        Raises:
            BatchFailed: With the numbers, and the first job that failed.

        """
        if self._first_bad is None and self.stopped_by is None:
            return
        first = self._first_bad
        error = errors.BatchFailed(
            total=self.total,
            refused=self.refused,
            failed=self.failed,
            unknown=self.unknown,
            skipped=self.skipped,
            first=f"{first.document!r} for room {first.room_id!r}: {first.error}"
            if first
            else repr(self.stopped_by),
        )
        raise error from (first.error if first else self.stopped_by)


# --- what an error means for its job, its room and the whole batch -------------------------------

ABSENT = errors.RoomNotFound, errors.RoomNotActive
"""Errors for a room that may become active later."""

_STATUSES: tuple[tuple[type[Exception], Status], ...] = (
    (errors.UploadOutcomeUnknown, "unknown"),
    (errors.RequestRefused, "refused"),
    (errors.InvalidInput, "refused"),
    (errors.DocumentUnreadable, "failed"),
    (errors.DocumentChanged, "failed"),
    (errors.DocumentError, "refused"),
    (TypeError, "refused"),
)


def status_of(error: Exception) -> Status:
    """Return the status of a job that ended with an error."""
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status
    return "failed"


def ends_room(error: Exception | None) -> bool:
    """Return whether other documents for the same room would have the same error."""
    return isinstance(reason_of(error), ABSENT)


_OF_ALL = errors.AuthenticationFailed | errors.ConfigurationError | errors.JournalError
"""Errors that every document has."""

_OF_THE_SERVER = errors.ReplyError | errors.TransportError
"""Errors that every document has if the server is away."""


def ends_batch(error: Exception | None, *, is_verified: bool, is_away: bool, is_gone: bool) -> bool:
    """Return whether every other document would have the same error.

    ``is_verified``: the server has proved that it is one and accepts the key. ``is_away``: it was
    not reached the last time. ``is_gone``: nor by any upload for ``max_outage`` seconds.
    """
    error = reason_of(error)
    if isinstance(error, errors.ResourceExhausted):
        return False
    if isinstance(error, _OF_ALL):
        return True
    if is_gone and isinstance(error, errors.DeadlineExceeded):
        return True
    if isinstance(error, errors.RoomLocksUnavailable):
        return is_gone or not is_verified
    may_heal = is_away and not getattr(error, "permanent", False)  # the job's timeout ended it
    return isinstance(error, _OF_THE_SERVER) and (is_gone or not (is_verified or may_heal))


def reason_of(error: Exception | None) -> Exception | None:
    """Return the error after an attempt of unknown outcome, if there is one."""
    cause = error.__cause__ if isinstance(error, errors.UploadOutcomeUnknown) else error
    return cause if isinstance(cause, Exception) else None


def drop_tracebacks(error: BaseException | None) -> None:
    """Drop the frames of our error and of its causes, because they keep the document in memory.

    Errors of the caller's own code keep their tracebacks.
    """
    seen = set[int]()
    if isinstance(error, errors.MeetingError):
        while error is not None and id(error) not in seen:  # a cause may lead back to the error
            seen.add(id(error))
            error.__traceback__ = None
            error = error.__cause__ or error.__context__
