"""Evidence: asking whether a document is in a session, and what the answer proves.

A server may serve what it stores. plugNmeet-server serves each document that it has received whole
(``docs/interface.md``, Stored files), without a key.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable
from urllib.parse import quote

import attrs

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
    """What evidence says of a document, and what was seen, in a few words."""

    answer: Answer
    reason: str = ""


@attrs.frozen(kw_only=True)
class Sought:
    """A document that may be in a session."""

    base_url: str
    """Of the server, without a slash at the end."""
    room_id: str
    session: str
    """The session's id: ``sid`` in ``getActiveRoomInfo``."""
    name: str
    """Name that the room shows."""
    size: int
    """Bytes."""
    since: int
    """Unix time by the server's own clock before which it was not sent."""
    headers: HeaderPairs = attrs.field(default=(), repr=False)
    """``Room-Id``, and the client's ``default_headers``; no credentials of the server."""
    reply_timeout: float = 15.0
    """Seconds for an answer."""


@attrs.frozen
class Accepted:
    """A document that an earlier run says was accepted: if the server shows it, it shows files."""

    room_id: str
    name: str
    size: int
    session: str
    since: int


Send = Callable[[Request], Awaitable[Reply]]
"""Sends a request with the client's transport, and returns its reply."""


@runtime_checkable
class Evidence(Protocol):
    """Says whether a document is in a session. Implement it for a server that shows it otherwise.

    Say *not found* only if the server would show the document by now. An exception counts as
    *cannot be told*.
    """

    async def find(self, sought: Sought, send: Send, /) -> Finding:
        """Look for a document, once."""
        ...


class StoredFiles:
    """Asks plugNmeet-server for the stored file (``docs/interface.md``, Stored files).

    Found means: 200, the exact ``Content-Length``, and a ``Last-Modified`` that is not before
    ``since``. Not found means 404. Everything else cannot be told: another document of that name,
    a storage whose clock differs, a redirect to another storage.
    """

    async def find(self, sought: Sought, send: Send, /) -> Finding:
        """Ask with ``HEAD``. A query of its own keeps caches out."""
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
    """Ask for evidence; what a caller's own raises counts as *cannot be told*."""
    try:
        return await evidence.find(sought, send)
    except Exception as error:
        logger.warning("asking for evidence raised", exc_info=True, extra={"action": "Evidence"})
        return Finding(Answer.UNTOLD, short_repr(error))


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
    if saved is None or saved < sought.since:
        when = "at an unknown time" if saved is None else "before this one was sent"
        return Finding(Answer.UNTOLD, f"a file of that name was stored {when}")
    return Finding(Answer.FOUND, "HTTP 200")
