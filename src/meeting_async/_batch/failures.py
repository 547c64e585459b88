"""What an error means for its job, for the room's other jobs, and for the whole batch."""

from __future__ import annotations

import asyncio
import math

import anyio

from meeting_async import errors
from meeting_async._batch.jobs import Status

ABSENT = (errors.RoomNotFound, errors.RoomNotActive)
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


def ends_room(error: BaseException | None) -> bool:
    """Return whether other documents for the same room would have the same error."""
    return isinstance(_reason(error), ABSENT)


def ends_batch(error: BaseException | None, *, is_verified: bool, is_gone: bool) -> bool:
    """Return whether every other document would have the same error.

    ``is_verified``: the server has proved that it is one and accepts the key. ``is_gone``: it could
    not be reached for ``max_outage`` seconds, by any upload.
    """
    error = _reason(error)
    if isinstance(error, errors.ResourceExhausted):
        return False
    if isinstance(error, errors.AuthenticationFailed | errors.JournalError):
        return True
    if not is_verified:
        return isinstance(error, errors.ReplyError | errors.TransportError)
    return isinstance(error, errors.ConnectFailed) and is_gone


def _reason(error: BaseException | None) -> BaseException | None:
    """Return the error after an attempt of unknown outcome, if there is one."""
    return error.__cause__ if isinstance(error, errors.UploadOutcomeUnknown) else error


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


# --- cancellations -------------------------------------------------------------------------------


def is_stray(error: BaseException) -> bool:
    """Return whether an error is a cancellation although the current task was not cancelled.

    On asyncio any code can raise one, for example by awaiting a cancelled task. It is treated like
    any other failure, and must not end other jobs.
    """
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    is_cancelled = anyio.current_effective_deadline() == -math.inf
    return task is not None and not task.cancelling() and not is_cancelled


def one_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to raise instead of a group: one that ends the program, if there is one."""
    first = (group.split(anyio.get_cancelled_exc_class())[1] or group).exceptions[0]
    return one_of(first) if isinstance(first, BaseExceptionGroup) else first
