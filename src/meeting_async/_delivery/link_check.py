"""``check_link=True``: check a link with HEAD, as the server does, before the upload."""

from __future__ import annotations

import re

from meeting_async._delivery.session import Options, Session
from meeting_async._models import Request
from meeting_async._protocol.replies import ParsedReply
from meeting_async._text import link_label
from meeting_async.errors import DocumentTooLarge, LinkRefused, TransportError

HEAD_SECONDS = 5.0
"""plugNmeet-server waits this long for its own HEAD."""

_NO_DOCUMENT = re.compile(r"text/html|video/|audio/", re.IGNORECASE)


async def check_target(session: Session, link: str, options: Options) -> None:
    """Check a link with HEAD: it must be direct, public, a document and not too large.

    Raises:
        LinkRefused: A server could not download a document from it.
        DocumentTooLarge: Its Content-Length is above ``max_size_whiteboard_file``.

    """
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


def _check(answer: ParsedReply, label: str, options: Options) -> None:
    headers = dict(reversed(answer.headers))
    kind, length = headers.get("content-type", ""), headers.get("content-length", "")
    if 300 <= answer.status < 400:
        raise LinkRefused(label, "it redirects; give the link that it redirects to")
    if answer.status != 200:
        raise LinkRefused(label, f"it answers HEAD with HTTP {answer.status}; is it public?")
    is_image = kind.lower().startswith("image/") and not options.allow_images
    if not kind or is_image or _NO_DOCUMENT.match(kind):
        raise LinkRefused(label, f"its Content-Type is {kind or 'missing'}, not a document's")
    limit = options.max_size_whiteboard_file
    if limit is not None and re.fullmatch(r"[0-9]{1,18}", length) and int(length) > limit:
        raise DocumentTooLarge(label, int(length), limit)
