"""Files as they arrive: the upload form, what a file is by its content, and its safe name.

A form (RFC 7578) is received in constant memory. One that does not parse is no request at all; one
that parses but has no usable file is judged later: key, signature, room and lock come first.

The kinds of files and what becomes of each are those of a running plugNmeet-server 2.4 (August
2026). No file is converted here: a PDF is called broken only if its header has no version.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import re
from typing import TYPE_CHECKING

import attrs
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

if TYPE_CHECKING:
    from hashlib import _Hash

HEAD_BYTES = 16 * 1024
"""So many leading bytes decide what a file is: the first entries of an office document fit in."""

MAX_NAME_BYTES = 255
"""Longer names lose their end, the extension included."""

MAX_OFFICE_NAME_BYTES = 248
"""The conversion of an office document with a longer name fails."""

OFFICE_KINDS = frozenset({"docx", "pptx", "xlsx"})

ACCEPTED_KINDS = frozenset({"docx", "empty", "pdf", "pptx", "txt", "xlsx"})
"""Kinds of files that the server converts by default."""

FAILING_KINDS = frozenset({"broken pdf", "jpeg", "png", "svg", "zip"})
"""Kinds whose conversion fails (500) unless they are accepted; all others are refused (400)."""

_SIGNATURES = (
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "ole"),  # doc, xls and ppt
    (b"{\\rtf", "rtf"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\x00", "tiff"),
    (b"MM\x00*", "tiff"),
)
_OFFICE_FOLDERS = {b"word/": "docx", b"xl/": "xlsx", b"ppt/": "pptx"}
_OPEN_DOCUMENTS = {b"text": "odt", b"spreadsheet": "ods", b"presentation": "odp"}
_MEDIA_TYPES = {
    "application/msword": "ole",
    "application/pdf": "pdf",
    "application/rtf": "rtf",
    "application/vnd.ms-excel": "ole",
    "application/vnd.ms-powerpoint": "ole",
    "application/vnd.oasis.opendocument.presentation": "odp",
    "application/vnd.oasis.opendocument.spreadsheet": "ods",
    "application/vnd.oasis.opendocument.text": "odt",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/zip": "zip",
    "image/gif": "gif",
    "image/jpeg": "jpeg",
    "image/png": "png",
    "image/svg+xml": "svg",
    "image/tiff": "tiff",
    "image/webp": "webp",
    "text/csv": "csv",
    "text/html": "html",
    "text/plain": "txt",
    "text/rtf": "rtf",
    "text/xml": "xml",
}

KINDS = frozenset(_MEDIA_TYPES.values()) | {"broken pdf", "empty", "unknown"}
"""Every kind that :func:`kind_of` tells."""

_SUFFIXES = {kind: media_type for media_type, kind in _MEDIA_TYPES.items()} | {
    "doc": "application/msword",
    "htm": "text/html",
    "jpg": "image/jpeg",
    "ppt": "application/vnd.ms-powerpoint",
    "xls": "application/vnd.ms-excel",
}


def kind_of(head: bytes) -> str:
    """Tell the kind of a file by its first `HEAD_BYTES`, never by its name."""
    if not head:
        return "empty"
    if head.startswith(b"%PDF-"):
        return "pdf" if re.match(rb"%PDF-\d\.\d", head) else "broken pdf"
    if head.startswith(b"PK\x03\x04"):
        return _zip_kind(head)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    for signature, kind in _SIGNATURES:
        if head.startswith(signature):
            return kind
    return _text_kind(head)


def kind_of_media_type(content_type: str) -> str:
    """Tell the kind that a ``Content-Type`` declares."""
    return _MEDIA_TYPES.get(content_type.partition(";")[0].strip().lower(), "unknown")


def media_type_of(name: str) -> str:
    """Return the ``Content-Type`` that belongs to a file name's extension."""
    return _SUFFIXES.get(name.rpartition(".")[2].lower(), "application/octet-stream")


def safe_name(name: str) -> str:
    """Return the name under which the server stores a file."""
    basename = name.replace("\\", "/").rpartition("/")[2]
    clean = "".join(c if c.isprintable() else "_" for c in re.sub(r'[<>:"|?*]', "_", basename))
    kept = clean.strip(" .").encode(errors="replace")[:MAX_NAME_BYTES]
    return kept.decode(errors="ignore") or "document"


def _zip_kind(head: bytes) -> str:
    opened = re.search(rb"mimetypeapplication/vnd\.oasis\.opendocument\.([a-z]+)", head)
    if opened:
        return _OPEN_DOCUMENTS.get(opened[1], "unknown")
    # Each entry begins with a local header: 26 bytes, then the lengths of name and extra field.
    for entry in re.finditer(rb"PK\x03\x04.{26}([a-z]+/)", head, re.DOTALL):
        if entry[1] in _OFFICE_FOLDERS:
            return _OFFICE_FOLDERS[entry[1]]
    return "zip"


def _text_kind(head: bytes) -> str:
    try:
        # The head may end inside a character: final=False allows that.
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head, final=False)
    except UnicodeDecodeError:
        return "unknown"
    if re.search(r"[\x00-\x08\x0b\x0e-\x1f\x7f]", text):
        return "unknown"
    start = text.lstrip().lower()
    if start.startswith(("<svg", "<?xml")):
        return "svg" if "<svg" in start else "xml"
    if start.startswith(("<!doctype html", "<html", "<head", "<body", "<script", "<h1", "<p>")):
        return "html"
    return "csv" if _is_table(text) else "txt"


def _is_table(text: str) -> bool:
    """Tell whether there are several lines, all with the same number (above 1) of fields."""
    lines = text.splitlines()[:20]
    try:
        widths = {len(row) for row in csv.reader(lines, strict=True)}
    except csv.Error:
        return False
    return len(lines) > 1 and len(widths) == 1 and min(widths) > 1


@attrs.define(eq=False)
class Intake:
    """Takes in a file of any size in constant memory: its size, its hash and its first bytes."""

    keep_content: bool = False
    size: int = 0
    head: bytes = b""
    _hash: _Hash = attrs.field(factory=hashlib.sha256, init=False)
    _chunks: list[bytes] = attrs.field(factory=list, init=False)

    def write(self, data: memoryview) -> None:
        """Take in the next bytes."""
        self.size += len(data)
        self._hash.update(data)
        if len(self.head) < HEAD_BYTES:
            self.head += bytes(data[: HEAD_BYTES - len(self.head)])
        if self.keep_content:
            self._chunks.append(bytes(data))

    @property
    def sha256(self) -> str:
        """The SHA-256 of what came so far, in lowercase hex."""
        return self._hash.hexdigest()

    @property
    def content(self) -> bytes | None:
        """All bytes, if they were to be kept."""
        return b"".join(self._chunks) if self.keep_content else None


# --- the form ----------------------------------------------------------------------------------

MAX_FIELD_BYTES = 64 * 1024
"""A field that is not a file holds a link; no server or proxy takes longer ones than this."""


class BrokenForm(Exception):
    """The body is no form: no boundary, bad framing, or no end."""


@attrs.define(eq=False)
class Part:
    """One part of a form. It is a file if and only if it has a file name."""

    field: str = ""
    filename: str = ""
    content_type: str = ""
    intake: Intake = attrs.field(factory=Intake)


@attrs.define
class Form:
    """A received form; parts that are none of the interface's are ignored."""

    document: Part | None = None
    document_link: str = ""
    problem: str = ""
    """Why the form has no usable file, though it parses."""


class FormReceiver:
    """Reads a multipart form chunk by chunk: `write` the body, then `finish`."""

    def __init__(self, content_type: bytes, *, keep_content: bool) -> None:
        self._keep_content = keep_content
        self._form = Form()
        self._part = Part()
        self._headers: dict[str, bytes] = {}
        self._name, self._value = bytearray(), bytearray()
        self._ended = False
        self._broken = False
        self._parser = self._start(content_type)

    def write(self, chunk: bytes) -> None:
        """Take in the next bytes of the body; after a fault they are dropped."""
        if self._parser is None or self._broken:
            return
        try:
            self._parser.write(chunk)
        except FormParserError:
            self._broken = True

    def finish(self) -> Form:
        """Return the form after the last byte; `BrokenForm` if it is none."""
        if self._broken or not self._ended:
            raise BrokenForm
        return self._form

    def _start(self, content_type: bytes) -> MultipartParser | None:
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not boundary:
            return None
        try:
            return MultipartParser(
                boundary,
                {
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError:  # a boundary that is too long
            return None

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._name.decode("latin-1").lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition"))
        filename = options.get(b"filename", b"").decode(errors="replace")
        self._part = Part(
            options.get(b"name", b"").decode(errors="replace"),
            filename,
            self._headers.get("content-type", b"").decode("latin-1"),
            Intake(keep_content=self._keep_content or not filename),
        )
        self._headers.clear()

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        if part.filename or part.intake.size <= MAX_FIELD_BYTES:
            part.intake.write(memoryview(data)[start:end])

    def _on_part_end(self) -> None:
        part, form = self._part, self._form
        if part.field == "document" and part.filename:
            if form.document:
                form.problem = "one request carries one file only"
            form.document = part
        elif part.field == "document_link" and not part.filename:
            if part.intake.size > MAX_FIELD_BYTES:
                form.problem = f"a field is longer than {MAX_FIELD_BYTES} bytes"
            form.document_link = (part.intake.content or b"").decode(errors="replace")

    def _on_end(self) -> None:
        self._ended = True
