"""What an error means for its job, for the room's other jobs, and for the whole batch."""

from __future__ import annotations

import attrs

from meeting_async import errors
from meeting_async._batch.jobs import Status, UploadOutcome
from meeting_async._delivery.observer import logger
from meeting_async._models import Verdict

ABSENT = (errors.RoomNotFound, errors.RoomNotActive)
"""What a server says of a room that may become active."""

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


def ends_room(error: BaseException | None) -> bool:
    """Tell whether the further documents for the same room would meet the same error."""
    return isinstance(_reason(error), ABSENT)


def ends_batch(error: BaseException | None, *, is_verified: bool, max_outage: float) -> bool:
    """Tell whether every further document would meet the same error.

    ``is_verified``: the server has proved that it is one and accepts the key.
    """
    error = _reason(error)
    if isinstance(error, errors.ResourceExhausted):
        return False
    if isinstance(error, errors.AuthenticationFailed | errors.JournalError):
        return True
    if not is_verified:
        return isinstance(error, errors.ReplyError | errors.TransportError)
    return isinstance(error, errors.ConnectFailed) and _outage(error) >= max_outage


def _reason(error: BaseException | None) -> BaseException | None:
    """Return what came after an attempt of unknown outcome, if anything did."""
    return error.__cause__ if isinstance(error, errors.UploadOutcomeUnknown) else error


def _outage(error: errors.MeetingError) -> float:
    """Return the seconds for which no connection could be made before a call gave up."""
    seconds, ended = 0.0, None
    for attempt in reversed(error.attempts):
        if attempt.verdict is not Verdict.NEVER_SENT:
            break
        ended = attempt.started + attempt.seconds if ended is None else ended
        seconds = ended - attempt.started
    return seconds + _ROUNDING


_ROUNDING = 0.001
"""Seconds by which sums of moments may differ."""


MAX_KEPT = 64 * 1024**2
"""Bytes that the tracebacks of a batch's errors may keep in memory."""

TRACEBACK_BYTES = 512 * 1024
"""What a traceback's frames may keep besides a document: a chunk of a file, buffers."""


@attrs.define
class Tracebacks:
    """Lets the first errors of a batch keep their tracebacks, whose frames know the documents.

    Frames are never cleared: that would end coroutines which are still waiting.
    """

    _kept: int = 0

    def limit(self, outcome: UploadOutcome, size: int) -> None:
        """Log what nobody foresaw, and drop the traceback if there are too many."""
        error = outcome.error
        if error is None or outcome.status == "skipped":
            return
        if outcome.status == "failed" and not isinstance(error, errors.MeetingError):
            facts = {"action": "batch", "room_id": outcome.room_id, "document": outcome.document}
            logger.warning("a job of a batch raised %r", error, exc_info=error, extra=facts)
        self._kept += size + TRACEBACK_BYTES
        if self._kept > MAX_KEPT:
            _drop(error, set())


def _drop(error: BaseException | None, seen: set[int]) -> None:
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    error.__traceback__ = None
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for other in (error.__cause__, error.__context__, *inner):
        _drop(other, seen)
