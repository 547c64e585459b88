"""Checks of a document before anything is sent: size, type, link."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from meeting_async._text import link_label, short_repr
from meeting_async.errors import (
    DocumentEmpty,
    DocumentTooLarge,
    DocumentTypeRefused,
    InvalidInput,
)

HEAD_BYTES = 32
"""First bytes of a document that are enough to detect an image."""

MAX_LINK_BYTES = 8192
"""Longest link: common HTTP servers refuse request lines above 8 KiB (RFC 9110 section 4.1)."""

_IMAGE_MAGIC: tuple[tuple[bytes, str], ...] = (
    (rb"\x89PNG\r\n\x1a\n", "PNG image"),
    (rb"\xff\xd8\xff", "JPEG image"),
    (rb"GIF8[79]a", "GIF image"),
    (rb"RIFF.{4}WEBP", "WebP image"),
    (rb"BM.{4}\0{4}", "BMP image"),
    (rb"II\*\0|MM\0\*", "TIFF image"),
    (rb".{4}ftyp(?:avif|avis|heic|heix|mif1|msf1)", "HEIF image"),
    (rb"\x00\x00\x01\x00", "icon"),
)
_IMAGE = re.compile(b"|".join(b"(%b)" % magic for magic, _ in _IMAGE_MAGIC), re.DOTALL)

_IMAGE_SUFFIXES = frozenset(
    ["avif", "bmp", "gif", "heic", "ico", "jpeg", "jpg", "png", "svg", "tif", "tiff", "webp"]
)

_DOCUMENT_MAGIC = (b"%PDF-", b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"{\\rtf")


def check_size(document: str, size: int, limit: int | None) -> None:
    """Refuse an empty document and one above ``limit`` bytes; a document of ``limit`` fits."""
    if size == 0:
        raise DocumentEmpty(document)
    if limit is not None and size > limit:
        raise DocumentTooLarge(document, size, limit)


def check_type(document: str, head: bytes) -> None:
    """Refuse images (``docs/interface.md``, Upload), by their first bytes or by their name.

    The name counts only if the bytes are not of a known kind: the server checks the content, so a
    PDF with the name ``scan.png`` is accepted.
    """
    match = _IMAGE.match(head)
    if match:
        raise DocumentTypeRefused(document, _IMAGE_MAGIC[(match.lastindex or 1) - 1][1])
    _, dot, suffix = document.rpartition(".")
    if dot and suffix.lower() in _IMAGE_SUFFIXES and not head.startswith(_DOCUMENT_MAGIC):
        raise DocumentTypeRefused(document, f"{suffix.upper()} image by its name")


def check_link(link: str) -> None:
    """Refuse a link that no server can download, without a request.

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
