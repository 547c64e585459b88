"""What a browser is told about its upload: one JSON object, one HTTP status.

The texts of errors name paths and hosts of this machine's network, so they go to the log. A browser
gets a sentence from the table below.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from meeting_async import UploadReceipt, errors

logger = logging.getLogger(__name__)

BUSY_SECONDS = 10
"""Retry-After of a busy room: a conversion takes seconds to minutes."""

OURS = "the application could not do it"

ANSWERS: tuple[tuple[type[errors.MeetingError], int, str], ...] = (
    # 202 is "intentionally noncommittal" (RFC 9110, section 15.3.3), and so is this error. Generic
    # code repeats a request that got 502 or 504, and the room would show the document twice.
    (
        errors.UploadOutcomeUnknown,
        202,
        "the document was sent, but whether it arrived is unknown: look into the room first",
    ),
    (errors.RoomNotFound, 404, "there is no such room"),
    (errors.RoomNotActive, 409, "no session is running in the room"),
    (
        errors.DocumentTooLarge,
        413,
        "the document has {0.size:,} bytes; at most {0.limit:,} are allowed",
    ),
    (errors.DocumentRefused, 413, "the document is too large for the meeting server"),
    (errors.DocumentTypeRefused, 415, "the document is a {0.kind}: put it into a PDF"),
    (errors.DocumentEmpty, 422, "the document is empty"),
    (errors.DocumentUnreadable, 400, "the document did not arrive, or stopped on its way"),
    (errors.DocumentChanged, 400, "the document is shorter or longer than announced"),
    (errors.DocumentError, 422, "the document cannot be used"),
    (errors.ConfigurationError, 500, OURS),
    (errors.InvalidInput, 422, "{0.field} {0.problem}"),
    (errors.AuthenticationFailed, 500, OURS),  # the key is wrong, not the browser
    (errors.ProcessingFailed, 422, "the meeting server could not convert the document"),
    (errors.RequestRefused, 422, "the meeting server refused the document"),
    (errors.RoomBusy, 503, "the room is busy with another upload: try again later"),
    (errors.Throttled, 503, "the meeting server asks for fewer requests: try again later"),
    (errors.RoomLocksUnavailable, 503, "uploads are not possible just now: try again later"),
    (errors.DeadlineExceeded, 504, "it took too long: the document is not in the room"),
    (errors.TransportError, 502, "the meeting server cannot be reached"),
    (errors.ServerFailed, 502, "the meeting server failed"),
    (errors.UnexpectedReply, 502, "the meeting server cannot be reached"),
    (errors.BatchStopped, 503, "the batch was stopped before this document was sent"),
    (errors.MeetingError, 500, OURS),
)
"""Error, status and sentence; the first that fits."""


class Answer(NamedTuple):
    """What any framework can make a response of."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]


def delivered(receipt: UploadReceipt) -> Answer:
    """Say that the server accepted the document."""
    return Answer(200, {"delivered": True, "document": receipt.document, "size": receipt.size}, {})


def failed(error: errors.MeetingError) -> Answer:
    """Say what went wrong; the error itself goes to the log."""
    status, detail = _found(error)
    if status >= 500 and status != 503:
        logger.error("upload failed: %s", error, exc_info=error)
    else:
        logger.info("upload failed: %s", error)
    body: dict[str, Any] = {
        "delivered": None if isinstance(error, errors.UploadOutcomeUnknown) else False,
        "error": type(error).__name__,
        "detail": detail,
    }
    if isinstance(error, errors.UploadOutcomeUnknown):
        body["settled_in"] = math.ceil(error.lock_free_in)  # seconds; then look, then upload again
    return Answer(status, body, _retry_after(error) if status == 503 else {})


def explain(error: Exception | None) -> str | None:
    """Say it in a sentence without paths or hosts."""
    if error is None:
        return None
    return _found(error)[1] if isinstance(error, errors.MeetingError) else OURS


def _found(error: errors.MeetingError) -> tuple[int, str]:
    return next(
        (status, text.format(error)) for kind, status, text in ANSWERS if isinstance(error, kind)
    )


def _retry_after(error: errors.MeetingError) -> dict[str, str]:
    hint = getattr(error, "retry_after", None)
    return {"Retry-After": str(BUSY_SECONDS if hint is None else math.ceil(hint))}
