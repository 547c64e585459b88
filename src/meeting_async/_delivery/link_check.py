"""``check_link=True``: check a link with HEAD, as the server does, before the upload."""

from __future__ import annotations

import ipaddress
import re
import socket
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio

from meeting_async._delivery.session import Options, Session
from meeting_async._models import Request
from meeting_async._protocol.replies import ParsedReply
from meeting_async._protocol.requests import is_loopback
from meeting_async._text import link_label
from meeting_async._threads import in_thread
from meeting_async.errors import DocumentTooLarge, LinkRefused, TransportError

HEAD_SECONDS = 5.0
"""plugNmeet-server waits this long for its own HEAD."""

_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)

_NO_DOCUMENT = re.compile(r"text/html|video/|audio/", re.IGNORECASE)


async def check_target(session: Session, link: str, options: Options) -> None:
    """Check a link with HEAD: it must be direct, public, a document and not too large.

    Public means that none of the host's addresses is of this machine or of a private network. That
    is not asked if the meeting server is on this machine itself. A name that is not known here is
    left to HEAD, which may go through a proxy.

    Raises:
        LinkRefused: A server could not download a document from it.
        DocumentTooLarge: Its Content-Length is above ``max_size_whiteboard_file``.

    """
    await _check_public(session, link)
    request = Request(
        method="HEAD",
        url=link,
        headers=((b"Accept", b"*/*"), (b"Content-Length", b"0")),
        body=b"",
        connect_timeout=HEAD_SECONDS,
        reply_timeout=HEAD_SECONDS,
    )
    try:
        answer = await session.send(request)
    except TransportError as error:
        raise LinkRefused(link_label(link), f"it does not answer HEAD: {error}") from error
    _check(answer, link_label(link), options)


async def _check_public(session: Session, link: str) -> None:
    host = urlsplit(link).hostname or ""
    if is_loopback(urlsplit(session.base).hostname or ""):
        return
    addresses = ["127.0.0.1"] if is_loopback(host) else await _addresses(host)
    for address in addresses:
        if not _is_public(address):
            raise LinkRefused(link_label(link), f"its host is not public: {address}")


async def _addresses(host: str) -> list[str]:
    """Return the addresses of a host; none if it is unknown."""
    look_up = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    try:
        rows: list[Any] = look_up(flags=socket.AI_NUMERICHOST)  # which does not block
    except (OSError, UnicodeError):
        rows = []
        with anyio.move_on_after(HEAD_SECONDS), suppress(OSError, UnicodeError):
            rows = await in_thread(look_up)
    return [address[0] for *_, address in rows]


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address.sixtofour or address
    return address.is_global and not address.is_multicast


def _check(answer: ParsedReply, label: str, options: Options) -> None:
    headers = dict(reversed(answer.headers))
    kind, length = headers.get("content-type", ""), headers.get("content-length", "")
    if 300 <= answer.status < 400:
        raise LinkRefused(label, "it redirects; give the link that it redirects to")
    if answer.status != 200:
        raise LinkRefused(label, f"it answers HEAD with HTTP {answer.status}; is it public?")
    found = _MEDIA_TYPE.match(kind)
    kind = found[0] if found else ""  # without parameters, which may repeat the link
    is_image = kind.lower().startswith("image/") and not options.allow_images
    if not kind or is_image or _NO_DOCUMENT.match(kind):
        raise LinkRefused(label, f"its Content-Type is {kind or 'missing'}, not a document's")
    limit = options.max_size_whiteboard_file
    if limit is not None and re.fullmatch(r"[0-9]{1,18}", length) and int(length) > limit:
        raise DocumentTooLarge(label, int(length), limit)
