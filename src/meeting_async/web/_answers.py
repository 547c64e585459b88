"""What to tell a browser about its upload: an HTTP status and a JSON object, for any web framework.

The text of an error can contain paths of your machine, hosts of your network and messages of the
server. So a browser gets a fixed sentence for each class of error, the number of bytes of a
document that is too large, and the name of an argument. The client logs the error itself
(``docs/operations.md``).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

from meeting_async import errors
from meeting_async._models import UploadReceipt

Message = MutableMapping[str, Any]
"""A message or a scope of ASGI 3.0; each framework has types of its own for them."""
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

RETRY_AFTER = 10
"""Seconds, where the error has no hint: a conversion takes seconds to minutes."""

_INTERNAL = "the application could not do this"

_ANSWERS: tuple[tuple[type[errors.MeetingError], int, str], ...] = (
    # Generic code repeats a request that got 502 or 504, and the room would show the document
    # twice. 202 is "intentionally noncommittal" (RFC 9110, section 15.3.3).
    (errors.UploadOutcomeUnknown, 202, "the document may or may not arrive: check the room"),
    (errors.ConfigurationError, 500, _INTERNAL),
    (errors.InvalidInput, 422, "the request is not valid"),
    (errors.DocumentEmpty, 422, "the document is empty"),
    (errors.DocumentTooLarge, 413, "the document has {0.size:,} bytes, the limit is {0.limit:,}"),
    (errors.DocumentTypeRefused, 415, "the document is an image: put it into a PDF"),
    (errors.DocumentUnreadable, 400, "the document could not be read completely"),
    (
        errors.DocumentChanged,
        400,
        "the document has changed or is not whole: this version was not delivered",
    ),
    (
        errors.LinkRefused,
        422,
        "the link cannot be used: it must lead directly to a public document",
    ),
    (errors.DocumentError, 422, "the document cannot be used"),
    (errors.RoomNotFound, 404, "there is no such room"),
    (errors.RoomNotActive, 409, "no session is running in the room"),
    (errors.DocumentRefused, 413, "the document is too large for the meeting server"),
    (errors.AuthenticationFailed, 500, _INTERNAL),  # the application's key, not the browser's
    (errors.RequestRefused, 422, "the meeting server refused the document"),
    (errors.ProcessingFailed, 422, "the meeting server could not convert the document"),
    (errors.Throttled, 503, "the meeting server is overloaded: try again later"),
    (errors.ReplyError, 502, "the meeting server failed"),
    (errors.RoomBusy, 503, "the room is busy with another upload: try again later"),
    (errors.RoomLocksUnavailable, 503, "uploads are not possible now: try again later"),
    (errors.DeadlineExceeded, 504, "the upload took too long: the document was not delivered"),
    (errors.ResourceExhausted, 503, "uploads are not possible now: try again later"),
    (errors.TransportError, 502, "the meeting server cannot be reached"),
    (errors.JournalError, 500, "the batch cannot record its progress"),
    (errors.UploadPutBack, 202, "the document is in a queue and will be sent later"),
    (errors.UploadFailed, 422, "the document was not delivered"),
    (errors.BatchStopped, 503, "the batch was stopped before this document was sent"),
    (errors.BatchFailed, 500, "some documents of the batch were not delivered: look at its report"),
)
"""Class, status and sentence; the first row that fits."""

_ARGUMENTS = frozenset(
    ["content_type", "document", "document_link", "filename", "jobs", "path", "room_id", "size"]
)
"""Arguments that may come from a browser. Their names are shown, their values are not."""


class HttpAnswer(NamedTuple):
    """What to send to the browser. It is an ASGI application, too, which sends itself."""

    status: int
    """HTTP status."""
    body: dict[str, Any]
    """A JSON object: ``delivered`` (``None`` if unknown, not yet, or a batch), then ``document``
    and ``size`` in bytes, or ``error``, ``detail`` and perhaps ``settled_in`` (seconds)."""
    headers: dict[str, str]
    """``Retry-After`` in whole seconds with status 503 (RFC 9110, section 10.2.3); else empty."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Send it without a framework."""
        content = json.dumps(self.body).encode()
        headers = {"Content-Type": "application/json", "Content-Length": len(content)}
        pairs = [
            (name.lower().encode(), str(value).encode())
            for name, value in {**headers, **self.headers}.items()
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": pairs})
        await send({"type": "http.response.body", "body": content})


def http_answer(result: UploadReceipt | errors.MeetingError) -> HttpAnswer:
    """Return the answer to a browser whose document was uploaded, or was not.

    ``docs/frameworks.md`` lists the statuses. A ``MeetingError`` of your own class gets 500.
    """
    if isinstance(result, UploadReceipt):
        body = {"document": public_name(result.document), "size": result.size}
        return HttpAnswer(200, {"delivered": True, **body}, {})
    status, detail = _find(result)
    is_open = status == 202 or isinstance(result, errors.BatchFailed)  # which has some of each
    delivered = None if is_open else False
    body = {"delivered": delivered, "error": type(result).__name__, "detail": detail}
    if isinstance(result, errors.UploadOutcomeUnknown):
        body["settled_in"] = math.ceil(result.lock_free_in)
    return HttpAnswer(status, body, _retry_after(result) if status == 503 else {})


def public_detail(error: BaseException) -> str:
    """Return one sentence about any exception, without its text, paths and hosts."""
    return _find(error)[1]


def public_name(document: str) -> str:
    """Return the last part of a document's name, path or link, without folders and host."""
    scheme, separator, rest = document.partition("://")
    if separator:  # of a link without a path nothing is left
        return rest.partition("?")[0].partition("/")[2].rpartition("/")[2] or "document"
    return re.split(r"[/\\]", scheme)[-1]


def _find(error: BaseException) -> tuple[int, str]:
    for kind, status, sentence in _ANSWERS:
        if isinstance(error, kind):
            detail = sentence.format(error)
            if isinstance(error, errors.DocumentUnreadable) and "://" in error.document:
                detail = "the link does not answer: try again later"
            if status == 422 and isinstance(error, errors.InvalidInput):
                detail += f": {error.field}" if error.field in _ARGUMENTS else ""
            return status, detail
    return 500, _INTERNAL


def _retry_after(error: errors.MeetingError) -> dict[str, str]:
    hint = getattr(error, "retry_after", None)
    return {"Retry-After": str(RETRY_AFTER if hint is None else math.ceil(hint))}
