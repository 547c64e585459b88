"""Evidence: asking the server whether a document is in a session.

plugNmeet-server serves each document that it has received whole, without a key
(``docs/interface.md``, Stored documents).
"""

from __future__ import annotations

import enum
import os
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable
from urllib.parse import quote

import attrs

from meeting_async._clock import CLOCK_SECONDS
from meeting_async._log import logger
from meeting_async._models import HeaderPairs, Reply, Request
from meeting_async._protocol.replies import unix_time
from meeting_async._text import short_repr
from meeting_async.errors import TransportError


class Answer(enum.Enum):
    """What evidence says."""

    FOUND = "found"
    NOT_FOUND = "not found"
    UNTOLD = "cannot be told"


@attrs.frozen
class Finding:
    """What evidence says of a document."""

    answer: Answer
    reason: str = ""
    """What was seen, in a few words."""


@attrs.frozen(kw_only=True)
class Sought:
    """A document that may be in a session."""

    base_url: str
    """URL of the server, without a slash at the end."""
    room_id: str
    session: str
    """The session's id: ``sid`` in ``getActiveRoomInfo``."""
    name: str
    """The document's name, as the room shows it."""
    size: int
    """Bytes."""
    since: int
    """Unix time by the server's clock: a file that is older is another document."""
    headers: HeaderPairs = attrs.field(default=(), repr=False)
    """``Room-Id``, and the client's ``default_headers``; no key and no signature."""
    reply_timeout: float = 15.0
    """Seconds for a reply."""


@attrs.frozen
class Accepted:
    """A document that was accepted, or may have been. For the fields see `Sought`."""

    room_id: str
    name: str
    size: int
    session: str
    since: int


Send = Callable[[Request], Awaitable[Reply]]
"""Sends a request with the client's transport, and returns its reply."""


@runtime_checkable
class Evidence(Protocol):
    """Tells whether a document is in a session. Implement it for a server with another interface.

    Return ``NOT_FOUND`` only if the server would show the document by now. An exception counts as
    ``UNTOLD``.
    """

    async def find(self, sought: Sought, send: Send, /) -> Finding:
        """Look for a document, once."""
        ...


class StoredFiles:
    """Asks plugNmeet-server for the stored file (``docs/interface.md``, Stored documents).

    ``FOUND``: 200, the exact ``Content-Length``, and a ``Last-Modified`` not before ``since`` nor
    after the ``Date`` of the answer.
    ``NOT_FOUND``: 404. Everything else is ``UNTOLD``: another document of that name, a storage
    whose clock differs, a redirect to another storage.
    """

    async def find(self, sought: Sought, send: Send, /) -> Finding:
        """Ask with ``HEAD``. A random query bypasses caches."""
        place = "/".join(quote(part, safe="") for part in (sought.session, sought.name))
        request = Request(
            method="HEAD",
            url=f"{sought.base_url}/download/uploadedFile/{place}?{os.urandom(8).hex()}",
            headers=((b"Accept", b"*/*"), *sought.headers),
            body=b"",
            reply_timeout=sought.reply_timeout,
            idempotent=True,
        )
        try:
            reply = await send(request)
        except TransportError as error:
            return Finding(Answer.UNTOLD, error.reason)
        return _read(reply, sought)


async def finding_of(evidence: Evidence, sought: Sought, send: Send) -> Finding:
    """Ask for evidence; an exception counts as ``UNTOLD``."""
    try:
        return await evidence.find(sought, send)
    except Exception as error:
        logger.warning("asking for evidence raised", exc_info=True, extra={"action": "Evidence"})
        return Finding(Answer.UNTOLD, short_repr(error))


def _not_since(since: int, saved: float | None, now: float | None) -> str:
    """Return when a file was stored, if that was not between two times; ``""``: it was."""
    if saved is None or now is None:
        return "at an unknown time"
    if saved < since:
        return "before this one was sent"
    return "at a time to come, by another clock" if saved > now + CLOCK_SECONDS else ""


def _read(reply: Reply, sought: Sought) -> Finding:
    if reply.status == 404:
        return Finding(Answer.NOT_FOUND, "HTTP 404")
    if reply.status != 200:
        return Finding(Answer.UNTOLD, f"HTTP {reply.status}")
    fields = {name.lower(): value.decode("latin-1") for name, value in reply.headers}
    length = fields.get(b"content-length", "")
    if length != str(sought.size):
        kept = short_repr(length)
        return Finding(Answer.UNTOLD, f"a file of that name has {kept} bytes, not {sought.size}")
    saved = unix_time(fields.get(b"last-modified", ""))
    if when := _not_since(sought.since, saved, unix_time(fields.get(b"date", ""))):
        return Finding(Answer.UNTOLD, f"a file of that name was stored {when}")
    return Finding(Answer.FOUND, "HTTP 200")
