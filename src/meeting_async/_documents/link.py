"""Links, which the server downloads itself."""

from __future__ import annotations

import hashlib
import re
from contextlib import AbstractAsyncContextManager
from urllib.parse import urlsplit

import attrs

from meeting_async._documents.source import BytesSource, Content, Source
from meeting_async._text import link_label, short_repr
from meeting_async.errors import InvalidInput

MAX_LINK_BYTES = 8192
"""Longest link: common HTTP servers refuse request lines above 8 KiB (RFC 9110 section 4.1)."""


@attrs.frozen(repr=False)
class LinkSource(Source):
    """A link, which the form contains. Its query may be a credential."""

    link: str

    def prepare(self, name: str, max_size: int | None) -> AbstractAsyncContextManager[Content]:
        """Return the bytes of the URL."""
        return BytesSource(self.link.encode("ascii")).prepare(name, max_size)

    def identity(self) -> tuple[str, str]:
        """Return a hash of the link."""
        return "link", hashlib.sha256(self.link.encode()).hexdigest()


def check_link(link: str) -> None:
    """Raise ``InvalidInput`` for a link that no server can download, without a request.

    It must be a direct, public download link (``docs/interface.md``, Upload).
    """
    problem = _link_problem(link)
    if problem:
        label = short_repr(link_label(link))
        raise InvalidInput("document_link", label, problem, "give a public http(s) URL")


def _link_problem(link: str) -> str | None:
    if not link.isascii() or re.search(r"[\x00-\x20\x7f]", link):
        return "contains blanks, control or non-ASCII characters, which a URL must percent-encode"
    if len(link) > MAX_LINK_BYTES:
        return f"is longer than {MAX_LINK_BYTES:,} bytes"
    try:
        parts = urlsplit(link)
        host = parts.hostname
        _ = parts.port  # raises ValueError for a port that is not a number
    except ValueError:
        return "is not a URL"
    if parts.scheme not in {"http", "https"} or not host:
        return "is not an http(s) URL with a host"
    if "@" in parts.netloc:
        return "contains a user name or password, which the server would not use"
    return None
