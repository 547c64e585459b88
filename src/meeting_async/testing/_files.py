"""Uploaded files: the form, the kind of a file by its content, and its safe name.

A form (RFC 7578) is received in constant memory. A form that does not parse is an invalid request.
A form without a usable file is refused later: key, signature, room and lock are checked first.

The kinds of files, and whether each is converted, are those of plugNmeet-server 2.4 (August 2026).
Files are not really converted: a PDF counts as broken if it does not begin with a header that has a
version, or if it has objects but no whole ``startxref`` at its end, so that a converter must repair
it. A PDF without objects, such as ``b"%PDF-1.7"``, is a stand-in for a document, unless the setting
``strict_pdf`` is on.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import hashlib
import json
import re
from collections.abc import Collection
from typing import TYPE_CHECKING
from urllib.parse import unquote

import attrs
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

if TYPE_CHECKING:
    from hashlib import _Hash

HEAD_BYTES = 16 * 1024
"""First bytes, which decide the kind of a file: enough for the start of an office document."""

TAIL_BYTES = 4 * 1024
"""Last bytes: enough for the trailer of a PDF."""

STARTXREF_BYTES = 1024
"""Last bytes in which readers look for ``startxref``."""

MAX_NAME_BYTES = 255
"""Longest name; longer ones are cut at the end, the extension included."""

MAX_OFFICE_NAME_BYTES = 248
"""The conversion of an office document with a longer name fails."""

OFFICE_KINDS = frozenset({"docx", "pptx", "xlsx"})

ACCEPTED_KINDS = frozenset({"docx", "empty", "pdf", "pptx", "txt", "xlsx"})
"""Kinds of files that the server converts by default."""

FAILING_KINDS = frozenset(
    {"broken pdf", "encrypted pdf", "jpeg", "mp3", "mp4", "png", "svg", "zip"}
)
"""Kinds whose conversion fails (500) unless they are accepted; all others are refused (400)."""


_OFFICE = "application/vnd.openxmlformats-officedocument."
_OPEN = "application/vnd.oasis.opendocument."
_OLE = rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OPEN_START = rb"PK\x03\x04.{26}mimetype" + _OPEN.encode()
_OFFICE_START = rb"(?=PK\x03\x04).*PK\x03\x04.{26}"
_HTML = rb"(?i)\s*<(!doctype html|html|head|body|script|h1|p>)"
_STARTXREF = re.compile(rb"startxref\s+\d+\s")
_NEVER = rb"(?!)"  # not detected by its first bytes alone
# Kind, extension, Content-Type, and a pattern for the first bytes. The first match counts.
_KINDS = (
    ("empty", "", "", rb"\Z"),
    ("pdf", "pdf", "application/pdf", rb"%PDF-\d\.\d"),
    ("encrypted pdf", "", "", _NEVER),
    ("png", "png", "image/png", rb"\x89PNG\r\n\x1a\n"),
    ("jpeg", "jpg", "image/jpeg", rb"\xff\xd8\xff"),
    ("gif", "gif", "image/gif", rb"GIF8[79]a"),
    ("mp3", "mp3", "audio/mpeg", rb"ID3|\xff[\xf2\xf3\xfa\xfb]"),
    ("mp4", "mp4", "video/mp4", rb".{4}ftyp"),
    ("ps", "ps", "application/postscript", rb"%!PS-Adobe-"),
    ("ole", "doc", "application/msword", _OLE),
    ("ole", "ppt", "application/vnd.ms-powerpoint", _OLE),
    ("ole", "xls", "application/vnd.ms-excel", _OLE),
    ("rtf", "rtf", "application/rtf", rb"\{\\rtf"),
    ("odp", "odp", _OPEN + "presentation", _OPEN_START + b"presentation"),
    ("ods", "ods", _OPEN + "spreadsheet", _OPEN_START + b"spreadsheet"),
    ("odt", "odt", _OPEN + "text", _OPEN_START + b"text"),
    ("epub", "epub", "application/epub+zip", rb"PK\x03\x04.{26}mimetypeapplication/epub\+zip"),
    ("docx", "docx", _OFFICE + "wordprocessingml.document", _OFFICE_START + b"word/"),
    ("pptx", "pptx", _OFFICE + "presentationml.presentation", _OFFICE_START + b"ppt/"),
    ("xlsx", "xlsx", _OFFICE + "spreadsheetml.sheet", _OFFICE_START + b"xl/"),
    ("zip", "zip", "application/zip", rb"PK\x03\x04"),
    ("broken pdf", "", "", rb".{0,1019}%PDF-"),
    ("svg", "svg", "image/svg+xml", rb"(?i)\s*(<\?xml.*)?<svg"),
    ("xml", "xml", "text/xml", rb"(?i)\s*<\?xml"),
    ("html", "html", "text/html", _HTML),
    ("script", "sh", "text/x-shellscript", rb"#!|(?i:<\?php)"),
    ("json", "json", "application/json", _NEVER),
    ("csv", "csv", "text/csv", _NEVER),
    ("tsv", "tsv", "text/tab-separated-values", _NEVER),
    ("txt", "txt", "text/plain", _NEVER),
)

KIND_NAMES = frozenset(kind[0] for kind in _KINDS) | {"unknown"}
"""Every kind that :func:`kind_of` can return."""


_EXTENDED = re.compile(r"(?i);\s*filename\*=(utf-8|iso-8859-1)'[^']*'([^;\s]+)")
"""A name with its character set (RFC 5987 section 3.2)."""

_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
"""Bytes that no text has (https://mimesniff.spec.whatwg.org/#binary-data-byte)."""


def kind_of(part: Part, *, strict_pdf: bool = False) -> str:
    """Return the kind of a file by its content, never by its name."""
    start = re.sub(b"^" + codecs.BOM_UTF8, b" ", part.head)
    for name, _, _, pattern in _KINDS:
        if re.match(pattern, start, re.DOTALL):
            return _pdf_kind(part, strict=strict_pdf) if name == "pdf" else name
    return _text_kind(start, is_whole=part.size <= HEAD_BYTES)


def declared_kind(content_type: str) -> str:
    """Return the kind that a ``Content-Type`` declares."""
    kinds = {media_type: name for name, _, media_type, _ in _KINDS if media_type}
    return kinds.get(content_type.partition(";")[0].strip().lower(), "unknown")


def media_type_of(name: str) -> str:
    """Return the ``Content-Type`` that belongs to a file name's extension."""
    media_types = {extension: media_type for _, extension, media_type, _ in _KINDS if extension}
    return media_types.get(name.lower().rpartition(".")[2], "application/octet-stream")


def fate_of(kind: str, stored_name: str, accepted: Collection[str]) -> str:
    """Return whether a file is "converted", "failed" or "refused"."""
    if kind not in accepted:
        return "failed" if kind in FAILING_KINDS else "refused"
    is_long = len(stored_name.encode()) > MAX_OFFICE_NAME_BYTES
    return "failed" if is_long and kind in OFFICE_KINDS else "converted"


def safe_name(name: str) -> str:
    """Return the name under which the server stores a file."""
    basename = name.replace("\\", "/").rpartition("/")[2]
    clean = re.sub(r'[<>:"|?*\x00]', "_", basename)
    kept = clean.strip(" .").encode(errors="replace")[:MAX_NAME_BYTES]
    return kept.decode(errors="ignore") or "document"


def _pdf_kind(part: Part, *, strict: bool) -> str:
    """Return "pdf", "encrypted pdf" or "broken pdf"; without objects the last only if strict."""
    seen = part.head + part.tail
    if re.search(rb"/Encrypt\s*(<<|\d)", seen):
        return "encrypted pdf"
    has_objects = re.search(rb"\d\s+\d+\s+obj\b", seen)
    is_broken = not _STARTXREF.search(part.tail[-STARTXREF_BYTES:]) if has_objects else strict
    return "broken pdf" if is_broken else "pdf"


def _text_kind(head: bytes, *, is_whole: bool) -> str:
    """Return "json", "csv", "tsv", "txt" (UTF-8, Latin-1, or UTF-16 with its mark) or "unknown"."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "txt"
    if _BINARY.search(head):
        return "unknown"
    text = head.decode("latin-1")  # all that matters below is ASCII, in UTF-8 too
    if _is_json(text, is_whole=is_whole):
        return "json"
    lines = re.split(r"\r\n?|\n", text)[:20]
    tables = {"csv": ",", "tsv": "\t"}
    return next((kind for kind, mark in tables.items() if _is_table(lines, mark)), "txt")


def _is_json(text: str, *, is_whole: bool) -> bool:
    """Return whether a text is a JSON object or array; a longer one is judged by its beginning."""
    if not is_whole:
        return re.match(r'\s*(\{\s*"|\[\s*["{\[])', text) is not None
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


def _is_table(lines: list[str], mark: str) -> bool:
    """Return whether several lines, except comments, have the same number of fields, above 1."""
    lines = [line for line in lines if not line.startswith("#")]
    sizes = [len(row) for row in csv.reader(lines, delimiter=mark) if row]
    return len(sizes) > 1 and min(sizes) == max(sizes) > 1


@attrs.define(eq=False)
class Part:
    """One part of a form, received in constant memory. It is a file if it has a file name."""

    field: str = ""
    filename: str = ""
    content_type: str = ""
    keep_content: bool = False
    size: int = 0
    head: bytes = b""
    tail: bytes = b""
    _hash: _Hash = attrs.field(factory=hashlib.sha256, init=False)
    _chunks: list[bytes] = attrs.field(factory=list, init=False)

    def write(self, data: bytes) -> None:
        """Add the next bytes."""
        self.size += len(data)
        self._hash.update(data)
        self.head += data[: HEAD_BYTES - len(self.head)]
        self.tail = (self.tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        if self.keep_content:
            self._chunks.append(data)

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes so far, in lowercase hex."""
        return self._hash.hexdigest()

    @property
    def content(self) -> bytes | None:
        """All bytes; ``None`` unless ``keep_content`` is set."""
        return b"".join(self._chunks) if self.keep_content else None


class FormReceiver:
    """Reads a multipart form chunk by chunk: `write` the body, then `finish`."""

    def __init__(self, content_type: bytes, *, keep_content: bool) -> None:
        self._keep_content = keep_content
        self._parts: list[Part] = []
        self._headers: dict[str, bytes] = {}
        self._name, self._value = bytearray(), bytearray()
        self._has_ended = False
        self._last = b""
        self._parser: MultipartParser | None = None
        with contextlib.suppress(FormParserError):  # a boundary that is too long
            self._parser = MultipartParser(
                parse_options_header(content_type)[1].get(b"boundary", b""),
                {
                    "on_header_field": lambda data, start, end: self._name.extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": lambda data, start, end: self._parts[-1].write(data[start:end]),
                    "on_end": self._on_end,
                },
            )

    def write(self, chunk: bytes) -> None:
        """Parse the next bytes of the body; after an error they are dropped."""
        self._last = (self._last + chunk[-2:])[-2:]
        try:
            if self._parser:
                self._parser.write(chunk)
        except FormParserError:
            self._parser = None

    @property
    def is_complete(self) -> bool:
        """Whether it would do if nothing followed: its last bytes (CRLF) may be missing."""
        return self.finish() is not None and self._last == b"--"

    def finish(self) -> list[Part] | None:
        """Return the parts after the last byte; None if the body is not a form."""
        return self._parts if self._parser and self._has_ended else None

    def _on_header_end(self) -> None:
        self._headers[self._name.decode("latin-1").lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _on_headers_finished(self) -> None:
        disposition = self._headers.get("content-disposition", b"")
        _, options = parse_options_header(disposition)
        field, name = (options.get(k, b"").decode(errors="replace") for k in (b"name", b"filename"))
        if found := _EXTENDED.search(disposition.decode("latin-1")):
            name = unquote(found[2], found[1])
        content_type = self._headers.get("content-type", b"").decode("latin-1")
        self._parts.append(Part(field, name, content_type, self._keep_content or not name))
        self._headers.clear()

    def _on_end(self) -> None:
        self._has_ended = True
