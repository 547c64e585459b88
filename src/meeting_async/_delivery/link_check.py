"""``check_link=True``: check a link with HEAD, as the server does, before the upload.

HEAD is sent with a transport of its own, with default settings: the link's host gets none of the
client's headers and no client certificate.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

import attrs

from meeting_async._delivery.session import Options, Session
from meeting_async._http.failures import certificate_problem
from meeting_async._http.transport import transport_with
from meeting_async._models import Request
from meeting_async._protocol.replies import ParsedReply, parse_reply
from meeting_async._protocol.requests import is_loopback
from meeting_async._text import link_label
from meeting_async.errors import (
    ConfigurationError,
    DocumentTooLarge,
    DocumentUnreadable,
    LinkRefused,
    ResourceExhausted,
    TransportError,
)

HEAD_SECONDS = 5.0
"""Time limit for HEAD in seconds; plugNmeet-server's own."""

_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)

_PRESIGNED = (
    "; if it is presigned, for GET only, upload the object as a stream instead: the meeting server "
    "may first send HEAD, too"
)

_EMBEDDING = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
"""IPv6 addresses that end with an IPv4 address: NAT64 (RFC 6052 section 2.1), IPv4-compatible
(RFC 4291 section 2.5.5.1), IPv4-translated (RFC 2765 section 2.1)."""

_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
"""NAT64 of a private network (RFC 8215); only newer versions of Python know it."""

_NO_DOCUMENT = re.compile(r"text/html|video/|audio/", re.IGNORECASE)


async def check_target(session: Session, link: str, options: Options) -> None:
    """Check a link with HEAD: it must be direct, public, a document and not too large.

    Public means that no address of the host is of this machine or of a private network. This is not
    checked if the meeting server is on this machine. Without a proxy HEAD goes to an address that
    was checked; with one, a name that is unknown here is left to the proxy.

    Raises:
        LinkRefused: A server could not download a document from it.
        DocumentUnreadable: Its host does not answer now, but may do so later.
        DocumentTooLarge: Its Content-Length is above ``max_size_whiteboard_file``.
        ConfigurationError: The environment names a proxy, or certificates, that cannot be used.
        ResourceExhausted: This machine has no file descriptor or thread left.

    """
    if session.links is None:
        is_local = is_loopback(urlsplit(session.base).hostname or "")
        session.links = transport_with(None if is_local else _check_address)
    request = Request(
        method="HEAD",
        url=link,
        headers=((b"Accept", b"*/*"),),
        body=b"",
        connect_timeout=HEAD_SECONDS,
        reply_timeout=HEAD_SECONDS,
    )
    try:
        answer = parse_reply(await session.links.send(request))
    except ResourceExhausted:
        raise
    except TransportError as error:
        may_heal = isinstance(error.__cause__, ConnectionError | TimeoutError)  # also of a proxy
        kind = LinkRefused if error.permanent and not may_heal else DocumentUnreadable
        raise kind(link_label(link), _reason(error)) from error
    except _NotPublic as error:
        raise LinkRefused(link_label(link), f"its host is not public: {error}") from None
    except ConfigurationError as error:
        fix = "fix it, or do without check_link=True, which needs it whatever your transport is"
        raise attrs.evolve(error, fix=fix) from error
    _check(answer, link_label(link), options)


def _reason(error: TransportError) -> str:
    """Return why there is no answer, without advice about settings for the meeting server."""
    certificate = certificate_problem(error.__cause__) if error.__cause__ else None
    if certificate:
        return certificate[0]
    return f"HEAD from here has no answer: {error}".replace("the base URL", "the link")


class _NotPublic(Exception):
    """An address of this machine or of a private network."""


def _check_address(text: str) -> None:
    if not _is_public(text):
        raise _NotPublic(text)


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address in _LOCAL_NAT64:
            return False
        is_embedded = any(address in network for network in _EMBEDDING)
        embedded = ipaddress.IPv4Address(address.packed[-4:]) if is_embedded else None
        address = address.ipv4_mapped or address.sixtofour or embedded or address
    is_site_local = getattr(address, "is_site_local", False)  # fec0::/10, of IPv6 only
    return address.is_global and not address.is_multicast and not is_site_local


def _check(answer: ParsedReply, label: str, options: Options) -> None:
    media, length = _content(answer)
    if 300 <= answer.status < 400:
        raise LinkRefused(label, "it redirects; give the link that it redirects to")
    if answer.status != 200:
        told = f"it answers HEAD with HTTP {answer.status}"
        if answer.status >= 500 or answer.status in {408, 429}:  # it may pass
            raise DocumentUnreadable(label, told)
        raise LinkRefused(label, told + (_PRESIGNED if answer.status == 403 else "; is it public?"))
    is_image = media.lower().startswith("image/") and not options.allow_images
    if not media or is_image or _NO_DOCUMENT.match(media):
        raise LinkRefused(label, f"its Content-Type is {media or 'missing'}, not a document's")
    limit = options.max_size_whiteboard_file
    if limit is not None and length > limit:
        raise DocumentTooLarge(label, length, limit)


def _content(answer: ParsedReply) -> tuple[str, int]:
    """Return media type and length; ``""`` and 0: unknown. Other text might repeat the link."""
    headers = dict(reversed(answer.headers))
    media = _MEDIA_TYPE.match(headers.get("content-type", ""))
    length = re.fullmatch(r"[0-9]{1,18}", headers.get("content-length", ""))
    return media[0] if media else "", int(length[0]) if length else 0
