"""What is checked of a document before anything is sent: size, emptiness, type, link."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from meeting_async.errors import (
    ConfigurationError,
    DocumentEmpty,
    DocumentTooLarge,
    DocumentTypeRefused,
    InvalidInput,
)

HEAD_BYTES = 32
"""How many leading bytes of a document tell an image from the rest."""

MAX_LINK_BYTES = 8192
"""Longest link: common HTTP servers refuse request lines above 8 KiB (RFC 9110 section 4.1)."""

_UNITS = {"": 1, "B": 1, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}

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
    {".avif", ".bmp", ".gif", ".heic", ".ico", ".jpeg", ".jpg", ".png", ".svg", ".tif", ".tiff"}
    | {".webp"}
)


def parse_size(text: str | int, *, field: str) -> int:
    """Read a size in bytes: an ``int``, digits, or a number with KiB, MiB or GiB (powers of 1024).

    ``MB`` and the like are refused rather than guessed: servers of this kind count in 1024².
    """
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    else:
        match = re.fullmatch(r"\s*(\d{1,15})\s*([A-Za-z]*)\s*", str(text), re.ASCII)
        unit = _UNITS.get(match[2].upper()) if match else None
        if match is None or unit is None:
            raise _bad_size(field, text)
        size = int(match[1]) * unit
    if size <= 0:
        raise _bad_size(field, text)
    return size


def _bad_size(field: str, value: object) -> ConfigurationError:
    return ConfigurationError(
        field, shown(value), "is not a size", "give bytes above 0, or a unit as in 30MiB"
    )


def shown(value: object, limit: int = 100) -> str:
    """Show a value inside an error message, shortened."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


def check_size(document: str, size: int, limit: int | None) -> None:
    """Refuse an empty document and one above ``limit`` bytes; a document of ``limit`` fits."""
    if size == 0:
        raise DocumentEmpty(document)
    if limit is not None and size > limit:
        raise DocumentTooLarge(document, size, limit)


def check_type(document: str, head: bytes) -> None:
    """Refuse images (interface section 4.2 rule 5), by their first bytes, else by their name.

    A name counts only where the bytes are not those of another known kind: the server looks at
    the content, so ``scan.png`` that is a PDF inside passes.
    """
    match = _IMAGE.match(head)
    if match:
        raise DocumentTypeRefused(document, _IMAGE_MAGIC[(match.lastindex or 1) - 1][1])
    suffix = _suffix(document)
    if suffix in _IMAGE_SUFFIXES and not head.startswith(_DOCUMENT_MAGIC):
        raise DocumentTypeRefused(document, f"{suffix[1:].upper()} image by its name")


_DOCUMENT_MAGIC = (b"%PDF-", b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"{\\rtf")


def _suffix(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:].lower() if dot >= 0 else ""


def check_link(link: str) -> None:
    """Refuse a link that no server could download from, without asking it.

    It must be the final, direct, public download link (interface section 4.2).
    """
    problem = _link_problem(link)
    if problem:
        raise InvalidInput(
            "document_link", shown(link_label(link)), problem, "give a public http(s) URL"
        )


def _link_problem(link: str) -> str | None:
    if not link.isascii() or re.search(r"[\x00-\x20\x7f]", link):
        return "contains blanks, control or non-ASCII characters that a URL must percent-encode"
    if len(link) > MAX_LINK_BYTES:
        return f"is longer than {MAX_LINK_BYTES:,} bytes"
    try:
        parts = urlsplit(link)
        host = parts.hostname
        _ = parts.port  # raises ValueError for a port that is no number
    except ValueError:
        return "is not a URL"
    if parts.scheme not in {"http", "https"} or not host:
        return "is not an http(s) URL with a host"
    if "@" in parts.netloc:
        return "contains a user name or password, which the server would not use"
    return None


def link_label(link: str) -> str:
    """Name a link without what may be a credential: user, password, query and fragment.

    A link with a typing error is still a secret; where it is unclear what is a password, more is
    hidden.
    """
    head, *rest = re.split(r"[?#]", link, maxsplit=1)
    if not _PLAIN_AUTHORITY.match(link) and "@" in link:
        scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://|", link)
        public = "" if "@" in "".join(rest) else "@" + head.rpartition("@")[2]
        head = f"{scheme[0] if scheme else ''}(hidden){public}"
    return f"{head}?…" if "?" in link else head


_PLAIN_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([\w.-]+|\[[\w:.]+\])(:\d*)?([/?#]|$)")
