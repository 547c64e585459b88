"""A document with its snapshot during one upload, and the form that each attempt makes of it."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from meeting_async._clock import Clock
from meeting_async._documents.document import OFFICE_SUFFIXES, Document, source_of
from meeting_async._documents.source import Content, Opened
from meeting_async._protocol.multipart import MultipartFraming, document_form, link_form
from meeting_async.errors import (
    DocumentChanged,
    DocumentEmpty,
    DocumentTooLarge,
    DocumentTypeRefused,
)


@asynccontextmanager
async def prepare(
    document: Document, *, max_size: int | None, allow_images: bool
) -> AsyncGenerator[Prepared, None]:
    """Prepare a document for one upload: take a snapshot, check the limits, spool a stream.

    ``max_size`` is in bytes. A spool is deleted when the block ends.

    Raises:
        DocumentError: It cannot be read, or must not be uploaded.
        ResourceExhausted: This machine has no file descriptor or thread left.

    """
    async with source_of(document).prepare(document.filename, max_size) as content:
        if document.link is None:
            snapshot = content.snapshot
            check_content(
                document.filename,
                snapshot.size,
                snapshot.head,
                max_size=max_size,
                allow_images=allow_images,
            )
        yield Prepared(document, content)


class Prepared:
    """A document with its snapshot, during one upload."""

    def __init__(self, document: Document, content: Content) -> None:
        self.name, self.link = document.filename, document.link
        """The name that the room shows (a link without its query); the link as given, if any."""
        self.size = content.snapshot.size if document.link is None else None
        """Bytes of the document; ``None`` for a link."""
        self.is_office = is_office(document.filename, content.snapshot.head)
        """Whether a server converts it with an office program."""
        self._document, self._content = document, content

    @property
    def is_consumed(self) -> bool:
        """Whether it is a stream that was read and cannot be read again."""
        return self._content.is_consumed()

    @property
    def version(self) -> tuple[int | None, str | None]:
        """Size in bytes (``None`` for a link), and version for a journal (``None`` if unknown)."""
        return self.size, source_of(self._document).version(self._content.snapshot)

    def form(
        self,
        progress: Callable[[int], None] | None = None,
        before_end: Callable[[], Awaitable[None]] | None = None,
        now: Clock = anyio.current_time,
    ) -> MultipartBody:
        """Make the form of one attempt, with a new boundary; close it at the attempt's end.

        ``progress`` is called after each chunk with the bytes of the document that were sent.
        ``before_end`` is awaited after the document's last byte, before the closing boundary. The
        document is opened when the form is first read.
        """
        document, boundary = self._document, os.urandom(16).hex()
        if document.link is not None:
            framing = link_form(document.link, boundary=boundary)
        else:
            kind = document.content_type or "application/octet-stream"
            size = self._content.snapshot.size
            framing = document_form(document.filename, kind, size, boundary=boundary)
        return MultipartBody(framing, self.name, self._content.open, progress, before_end, now)


# --- the form ------------------------------------------------------------------------------------

SMALLEST_CHUNK = 64 * 1024
LARGEST_CHUNK = 512 * 1024
"""In bytes. On two cores 256 KiB was slower, and 1 MiB no faster."""

QUICK_SECONDS = 0.025
"""If a chunk takes less time, the next one is larger. A line of 21 Mbit/s takes the smallest chunk
in this time, one of 168 Mbit/s the largest."""


class MultipartBody:
    """The bytes of a form; implements :class:`meeting_async._models.Body`.

    The document is opened by :meth:`open`, or when the first chunk is read. It is checked *before*
    the closing boundary is yielded: a document that has become shorter or longer, or was replaced,
    raises :class:`DocumentChanged` and is never delivered.
    """

    def __init__(
        self,
        framing: MultipartFraming,
        name: str,
        open_document: Callable[[], Awaitable[Opened]],
        progress: Callable[[int], None] | None,
        before_end: Callable[[], Awaitable[None]] | None,
        now: Clock,
    ) -> None:
        self.length = framing.length
        """Exact length of the form in bytes."""
        self.content_type = framing.content_type
        """Value of the request's ``Content-Type``."""
        self.taken = 0
        """Bytes yielded so far."""
        self._framing, self._name, self._open_document = framing, name, open_document
        self._progress, self._before_end, self._now = progress, before_end, now
        self._reader: Opened | None = None
        self._has_ended = False
        self._chunk_size = SMALLEST_CHUNK
        self._yielded_at: float | None = None
        """When a chunk was yielded; ``None`` if the transport is not sending one."""

    def __repr__(self) -> str:
        return f"<MultipartBody, {self.taken} of {self.length} bytes taken>"

    async def open(self) -> None:
        """Open the document in advance, as that may take time."""
        self._reader = await self._open_document()

    def document_bytes(self, sent: int) -> int:
        """Bytes of the document (of a link, of its URL) among the first ``sent`` of the form."""
        return max(0, min(sent - len(self._framing.part_headers), self._framing.size))

    def is_complete(self, sent: int) -> bool:
        """Whether a byte of the closing boundary is among the first ``sent`` bytes of the form.

        Then a server may have the document: one stored a form without its last two bytes.
        """
        return sent > self.length - len(self._framing.closing_boundary)

    def __aiter__(self) -> MultipartBody:
        return self

    async def __anext__(self) -> bytes:
        """Yield the head, the document in chunks, and the closing boundary as a separate chunk."""
        read = self.document_bytes(self.taken)
        self._chunk_taken(read)
        if self._reader is None:
            await self.open()
            assert self._reader is not None  # noqa: S101 - it is open
        if not self.taken:
            chunk = self._framing.part_headers
        elif read < self._framing.size:
            chunk = await self._next_chunk(self._reader, read)
        elif self._has_ended:
            raise StopAsyncIteration
        else:
            self._has_ended = True
            await self._reader.finish()
            if self._before_end is not None:
                await self._before_end()
            chunk = self._framing.closing_boundary
        self.taken += len(chunk)
        return chunk

    def close(self) -> None:
        """Close the document; no callback is called after that."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        # They may refer to this body: without that cycle the document is freed at once.
        self._progress = self._before_end = None

    def _chunk_taken(self, read: int) -> None:
        """Called when the transport asks for the next chunk.

        Large chunks are faster, except on a slow line, but each upload holds one or two of them in
        memory.
        """
        if self._yielded_at is None:
            return
        seconds, self._yielded_at = self._now() - self._yielded_at, None
        if seconds < QUICK_SECONDS:
            self._chunk_size = min(self._chunk_size * 2, LARGEST_CHUNK)
        elif seconds > 4 * QUICK_SECONDS:
            self._chunk_size = max(self._chunk_size // 2, SMALLEST_CHUNK)
        if self._progress is not None:
            self._progress(read)

    async def _next_chunk(self, reader: Opened, read: int) -> bytes:
        left = self._framing.size - read
        chunk = await reader.read(min(self._chunk_size, left))
        if not 0 < len(chunk) <= left:
            found = "has more than" if chunk else f"ended after {read:,} of"
            raise DocumentChanged(self._name, f"it {found} {self._framing.size:,} bytes")
        self._yielded_at = self._now()
        return chunk


# --- limits --------------------------------------------------------------------------------------

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

_OFFICE_MAGIC = re.compile(
    rb"\xd0\xcf\x11\xe0|PK\x03\x04.{26}(?:\[C|_r|do|wo|pp|xl|mi)|\{\\rtf", re.DOTALL
)
"""A ZIP file counts if its first member's name begins so: ``[Content_Types].xml``, ``_rels/``,
``docProps/``, ``word/``, ``ppt/``, ``xl/``, or ``mimetype`` of OpenDocument."""


def check_content(
    document: str, size: int, head: bytes, *, max_size: int | None, allow_images: bool
) -> None:
    """Raise ``DocumentError`` for a document by its size or its first bytes."""
    check_size(document, size, max_size)
    if not allow_images:
        check_type(document, head)


def check_size(document: str, size: int, limit: int | None) -> None:
    """Refuse an empty document and one above ``limit`` bytes."""
    if size == 0:
        raise DocumentEmpty(document)
    if limit is not None and size > limit:
        raise DocumentTooLarge(document, size, limit)


def check_type(document: str, head: bytes) -> None:
    """Refuse images (``docs/interface.md``, Upload), by their first bytes or by their name.

    The name counts only if the bytes are not of a known kind: the server looks at the content, so
    it accepts a PDF with the name ``scan.png``.
    """
    match = _IMAGE.match(head)
    if match:
        raise DocumentTypeRefused(document, _IMAGE_MAGIC[(match.lastindex or 1) - 1][1])
    _, dot, suffix = document.rpartition(".")
    if dot and suffix.lower() in _IMAGE_SUFFIXES and not head.startswith(_DOCUMENT_MAGIC):
        raise DocumentTypeRefused(document, f"{suffix.upper()} image by its name")


def is_office(document: str, head: bytes) -> bool:
    """Return whether a server converts a document with an office program."""
    suffix = document.removesuffix("?…").rpartition(".")[2].lower()  # the name of a link
    has_name = "." in document and suffix in OFFICE_SUFFIXES
    return not head.startswith(b"%PDF-") and (has_name or _OFFICE_MAGIC.match(head) is not None)
