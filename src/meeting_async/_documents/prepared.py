"""A document with its snapshot during one upload, and the form that each attempt makes of it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import attrs

from meeting_async._clock import Clock
from meeting_async._documents.checks import check_size, check_type
from meeting_async._documents.document import Document, source_of
from meeting_async._documents.files import PathSource, file_version
from meeting_async._documents.source import BytesSource, Content, Reader
from meeting_async._protocol.multipart import MultipartFraming, document_form, link_form
from meeting_async.errors import DocumentChanged, DocumentEmpty


@asynccontextmanager
async def prepare(
    document: Document, *, max_size: int | None, allow_images: bool
) -> AsyncGenerator[Prepared, None]:
    """Prepare a document for one upload: take a snapshot, check the limits, spool a stream.

    A spool is deleted when the block ends.

    Raises:
        DocumentError: It cannot be read, or must not be uploaded.
        ResourceExhausted: This machine has no file descriptor left.

    """
    source = source_of(document) or BytesSource((document.link or "").encode("ascii"))
    async with source.prepare(document.filename, max_size) as content:
        prepared = Prepared(document, content)
        if document.link is None:
            prepared.check(max_size, allow_images=allow_images)
        yield prepared


@attrs.frozen(eq=False)
class Prepared:
    """A document with its snapshot, during one upload, that makes its form."""

    _document: Document
    _content: Content = attrs.field(repr=False)

    @property
    def name(self) -> str:
        """What the room shows; for a link the link without its query."""
        return self._document.filename

    @property
    def link(self) -> str | None:
        """The link as it was given; ``None`` for a file."""
        return self._document.link

    @property
    def size(self) -> int | None:
        """Bytes of the document; ``None`` for a link."""
        return self._content.snapshot.size if self.link is None else None

    @property
    def is_consumed(self) -> bool:
        """Whether it is a stream that was read and cannot be read again."""
        return self._content.is_consumed

    @property
    def version(self) -> tuple[int | None, str | None]:
        """Size, and for a path its fingerprint for a journal."""
        if not isinstance(source_of(self._document), PathSource):
            return self.size, None
        size, _, _, modified, *_ = self._content.snapshot.fingerprint
        return size, file_version(size, modified)

    def check(self, max_size: int | None, *, allow_images: bool) -> None:
        """Check the limits of size and type."""
        snapshot = self._content.snapshot
        if snapshot.size == 0 and snapshot.start:
            error = DocumentEmpty(self.name)
            at = f"The file stands at byte {snapshot.start:,}, its end"
            error.add_note(f"{at}: seek(0) to upload all of it.")
            raise error
        check_size(self.name, snapshot.size, max_size)
        if not allow_images:
            check_type(self.name, snapshot.head)

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
"""Bytes. On two cores 256 KiB was slower, and 1 MiB no faster."""

QUICK_SECONDS = 0.025
"""A line of 21 Mbit/s takes the smallest chunk in this time, one of 168 Mbit/s the largest."""


def next_chunk_size(size: int, seconds: float) -> int:
    """Return the size of the next chunk, from the time that the last one took.

    Large chunks are faster, but each upload holds one or two of them in memory. On a slow line they
    are not faster than small ones.
    """
    if seconds < QUICK_SECONDS:
        return min(size * 2, LARGEST_CHUNK)
    return max(size // 2, SMALLEST_CHUNK) if seconds > 4 * QUICK_SECONDS else size


@attrs.define(eq=False, repr=False)
class MultipartBody:
    """The bytes of a form; implements :class:`meeting_async._models.Body`.

    The document is opened when the first chunk is read, so an upload that waits for a connection
    has no open file. It is checked *before* the closing boundary is yielded: a document that has
    become shorter or longer, or was replaced, raises :class:`DocumentChanged` and is never
    delivered.
    """

    _framing: MultipartFraming
    _name: str
    _open_document: Callable[[], Awaitable[Reader]]
    _progress: Callable[[int], None] | None = None
    _before_end: Callable[[], Awaitable[None]] | None = None
    _now: Clock = anyio.current_time
    taken: int = attrs.field(default=0, init=False)
    """Bytes yielded so far."""
    _reader: Reader | None = attrs.field(default=None, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _chunk_size: int = attrs.field(default=SMALLEST_CHUNK, init=False)
    _yielded_at: float | None = attrs.field(default=None, init=False)
    """When a chunk of the document was yielded, if the transport is still sending it."""

    def __repr__(self) -> str:
        return f"<MultipartBody, {self.taken} of {self.length} bytes taken>"

    @property
    def length(self) -> int:
        """Exact number of bytes."""
        return self._framing.length

    @property
    def content_type(self) -> bytes:
        """Value of the request's ``Content-Type``."""
        return self._framing.content_type

    def document_bytes(self, sent: int) -> int:
        """Bytes of the document among the first ``sent`` of the form; for a link, of the URL."""
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
        chunk = await self._next()
        self.taken += len(chunk)
        return chunk

    def close(self) -> None:
        """Close the document; no callback is called after that."""
        if self._reader is not None:
            self._reader.close()
        # What they call may refer to this body: without that circle the document is freed at once.
        self._progress = self._before_end = None

    async def _next(self) -> bytes:
        if self._reader is None:
            self._reader = await self._open_document()
            return self._framing.part_headers
        read = self.document_bytes(self.taken)
        self._chunk_taken(read)
        if read < self._framing.size:
            return await self._next_chunk(self._reader, read)
        if self._has_ended:
            raise StopAsyncIteration
        self._has_ended = True
        await self._reader.finish()
        if self._before_end is not None:
            await self._before_end()
        return self._framing.closing_boundary

    def _chunk_taken(self, read: int) -> None:
        """Called when the transport asks for the next chunk."""
        if self._yielded_at is None:
            return
        self._chunk_size = next_chunk_size(self._chunk_size, self._now() - self._yielded_at)
        self._yielded_at = None
        if self._progress is not None:
            self._progress(read)

    async def _next_chunk(self, reader: Reader, read: int) -> bytes:
        left = self._framing.size - read
        chunk = await reader.read(min(self._chunk_size, left))
        if not 0 < len(chunk) <= left:
            found = "has more than" if chunk else f"ended after {read:,} of"
            raise DocumentChanged(self._name, f"it {found} {self._framing.size:,} bytes")
        self._yielded_at = self._now()
        return chunk
