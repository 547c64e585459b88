"""The multipart form of an upload. Its exact size is known before the first byte is sent.

RFC 7578 for the form, RFC 2046 section 5.1 for the framing. The closing boundary is a separate
chunk: before it is sent, no server can have parsed the form; after that, a server may have.
"""

from __future__ import annotations

import re
import unicodedata

import attrs

from meeting_async._text import short_repr
from meeting_async.errors import InvalidInput

MAX_NAME_BYTES = 200
"""Longest file name in UTF-8. plugNmeet-server cuts at 255 bytes, extension included, and fails
for office documents above about 248."""

_MAX_SUFFIX_BYTES = 20
"""Longest extension that is kept when a name is cut."""


@attrs.frozen
class MultipartFraming:
    """A form with one part, without the content of the part."""

    content_type: bytes
    """Value of the request's ``Content-Type``."""
    part_headers: bytes
    size: int
    """Bytes of the part's content."""
    closing_boundary: bytes
    """The closing boundary."""
    length: int
    """Value of the request's ``Content-Length``."""


def document_form(name: str, content_type: str, size: int, *, boundary: str) -> MultipartFraming:
    """Plan the form with a file as ``document``; ``name`` is from :func:`file_name`."""
    disposition = f'form-data; name="document"; filename="{name}"'
    return _framing(size, boundary, disposition, content_type)


def link_form(link: str, *, boundary: str) -> MultipartFraming:
    """Plan the form with a URL as ``document_link``."""
    return _framing(len(link), boundary, 'form-data; name="document_link"', None)


def empty_form(*, boundary: str) -> tuple[bytes, bytes]:
    """Return content type and body of a form with neither field; some parsers need one part."""
    framing = _framing(1, boundary, 'form-data; name="probe"', None)
    return framing.content_type, framing.part_headers + b"1" + framing.closing_boundary


def _framing(
    size: int, boundary: str, disposition: str, content_type: str | None
) -> MultipartFraming:
    lines = [f"--{boundary}", f"Content-Disposition: {disposition}"]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    head = "\r\n".join([*lines, "", ""]).encode("utf-8")
    end = f"\r\n--{boundary}--\r\n".encode("ascii")
    kind = f"multipart/form-data; boundary={boundary}".encode("ascii")
    return MultipartFraming(kind, head, size, end, len(head) + size + len(end))


def file_name(name: object) -> str:
    r"""Return the name that the room shows: the last component of a path, clean and short.

    The name is in NFC and has at most 200 bytes of UTF-8, cut before the extension. Control
    characters and ``< > : " | ? *`` become ``_``, and blanks and dots at both ends go, because
    known servers change them. Both ``/`` and ``\`` separate components, because browsers send
    either.

    Raises:
        InvalidInput: The name is empty or not valid Unicode.

    """
    if not isinstance(name, str):
        raise TypeError(f"filename must be a str, not {type(name).__name__}")
    base = unicodedata.normalize("NFC", re.split(r"[/\\]", name)[-1]).strip(" .")
    if "\0" in base or re.search("[\ud800-\udfff]", base):
        problem = "contains NUL or is not valid Unicode"
        raise _bad_name(name, problem, "rename it, or pass filename= with a clean name")
    if base == "":
        raise _bad_name(name, "contains no name", "give one such as 'deck.pdf'")
    return _cut(re.sub(r'[<>:"|?*\x01-\x1f\x7f-\x9f]', "_", base))


def _cut(name: str) -> str:
    """Shorten a name to :data:`MAX_NAME_BYTES`, keeping its extension."""
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    stem, dot, suffix = name.rpartition(".")
    if not dot or len(suffix.encode()) > _MAX_SUFFIX_BYTES:
        stem, dot, suffix = name, "", ""
    room = MAX_NAME_BYTES - len((dot + suffix).encode())
    return stem.encode()[:room].decode("utf-8", "ignore").rstrip(" .") + dot + suffix


def _bad_name(name: str, problem: str, fix: str) -> InvalidInput:
    return InvalidInput("filename", short_repr(name), problem, fix)


def media_type(content_type: object) -> str:
    """Check the ``Content-Type`` of a part: ``type/subtype``, optionally with parameters."""
    if not isinstance(content_type, str):
        raise TypeError(f"content_type must be a str, not {type(content_type).__name__}")
    if not re.fullmatch(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+( *;[\x20-\x7e]*)?", content_type, re.ASCII):
        problem, fix = "is not a media type", "give one such as 'application/pdf'"
        raise InvalidInput("content_type", short_repr(content_type), problem, fix)
    return content_type
