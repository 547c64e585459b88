"""What a browser is told about its upload: one JSON object, one HTTP status."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from meeting_async import UploadReceipt, errors

logger = logging.getLogger(__name__)

BUSY_SECONDS = 10
"""Retry-After of a busy room: a conversion takes seconds to minutes, and nobody knows whose."""

STATUSES: tuple[tuple[type[errors.MeetingError], int], ...] = (
    # 202 is "intentionally noncommittal" (RFC 9110, section 15.3.3), and so is this error. A 502
    # would be truer to HTTP and worse: generic code repeats those, and a room shows the file twice.
    (errors.UploadOutcomeUnknown, 202),
    (errors.RoomNotFound, 404),
    (errors.RoomNotActive, 409),
    (errors.DocumentTooLarge, 413),
    (errors.DocumentRefused, 413),
    (errors.DocumentTypeRefused, 415),
    (errors.DocumentUnreadable, 400),  # the browser's request broke off, or came too slowly
    (errors.DocumentChanged, 400),  # more or less came than its Content-Length said
    (errors.DocumentError, 422),
    (errors.ConfigurationError, 500),
    (errors.InvalidInput, 422),
    (errors.AuthenticationFailed, 500),  # our key, not the browser's
    (errors.ProcessingFailed, 422),
    (errors.RequestRefused, 422),
    (errors.RoomBusy, 503),
    (errors.Throttled, 503),
    (errors.RoomGateUnavailable, 503),
    (errors.DeadlineExceeded, 504),
    (errors.TransportError, 502),
    (errors.ServerFailed, 502),
    (errors.UnexpectedReply, 502),
)
"""The first that fits. Errors that are not here are ours: 500."""


class Answer(NamedTuple):
    """What any framework can make a response of."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]


def delivered(receipt: UploadReceipt) -> Answer:
    """Say that the room has it."""
    return Answer(200, {"delivered": True, "document": receipt.document, "size": receipt.size}, {})


def failed(error: Exception) -> Answer:
    """Say what went wrong, but not where: addresses of our own network are for the log."""
    status = next((code for kind, code in STATUSES if isinstance(error, kind)), 500)
    public = status < 500 or status == 503
    if not public:
        logger.error("upload failed: %s", error, exc_info=error)
    body: dict[str, Any] = {
        "delivered": None if isinstance(error, errors.UploadOutcomeUnknown) else False,
        "error": type(error).__name__,
        "detail": str(error) if public else HTTPStatus(status).phrase,
    }
    if isinstance(error, errors.UploadOutcomeUnknown):
        body["settled_in"] = math.ceil(error.lock_free_in)  # seconds; then look, then upload again
    return Answer(status, body, _retry_after(error) if status == 503 else {})


def _retry_after(error: Exception) -> dict[str, str]:
    hint = getattr(error, "retry_after", None)
    return {"Retry-After": str(BUSY_SECONDS if hint is None else math.ceil(hint))}
