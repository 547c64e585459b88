"""The body of one attempt: the form around a document that is read while it is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from meeting_async._clock import Clock
from meeting_async._documents.source import Reader
from meeting_async._protocol.multipart import MultipartFraming
from meeting_async.errors import DocumentChanged

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


class MultipartBody:
    """The bytes of a form; implements :class:`meeting_async._models.Body`.

    The document is opened when the first chunk is read, so an upload that waits for a connection
    has no open file. It is checked *before* the closing boundary is yielded: a document that has
    become shorter or longer, or was replaced, raises :class:`DocumentChanged` and is never
    delivered.
    """

    def __init__(
        self,
        framing: MultipartFraming,
        name: str,
        open_document: Callable[[], Awaitable[Reader]],
        progress: Callable[[int], None] | None = None,
        before_end: Callable[[], Awaitable[None]] | None = None,
        now: Clock = anyio.current_time,
    ) -> None:
        self.length: int = framing.length
        self.content_type: bytes = framing.content_type
        """Value of the request's ``Content-Type``."""
        self.sent: int = 0
        self._framing = framing
        self._name = name
        self._open_document = open_document
        self._progress = progress
        self._before_end = before_end
        self._now = now
        self._reader: Reader | None = None
        self._read = 0
        self._has_ended = False
        self._chunk_size = SMALLEST_CHUNK
        self._yielded_at: float | None = None
        """When the last chunk was yielded, if the transport is still sending it."""

    def __repr__(self) -> str:
        return f"<MultipartBody, {self.sent} of {self.length} bytes sent>"

    @property
    def document_sent(self) -> int:
        """Bytes of the document among those sent; for a link, bytes of the URL."""
        return max(0, min(self.sent - len(self._framing.part_headers), self._framing.size))

    @property
    def may_be_complete(self) -> bool:
        """Whether a byte of the closing boundary was sent: then a server may have the document.

        A known server stores a form without its last two bytes.
        """
        return self.sent > self.length - len(self._framing.closing_boundary)

    def __aiter__(self) -> MultipartBody:
        return self

    async def __anext__(self) -> bytes:
        """Yield the head, the document in chunks, and the closing boundary as a separate chunk."""
        chunk = await self._next()
        self.sent += len(chunk)
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
        self._chunk_taken()
        if self._read < self._framing.size:
            chunk = await self._next_chunk(self._reader)
            self._read += len(chunk)
            self._yielded_at = self._now()
            return chunk
        if self._has_ended:
            raise StopAsyncIteration
        self._has_ended = True
        await self._reader.finish()
        if self._before_end is not None:
            await self._before_end()
        return self._framing.closing_boundary

    def _chunk_taken(self) -> None:
        """Called when the transport asks for the next chunk."""
        if self._yielded_at is None:
            return
        seconds = self._now() - self._yielded_at
        self._chunk_size = next_chunk_size(self._chunk_size, seconds)
        self._yielded_at = None
        if self._progress is not None:
            self._progress(self._read)

    async def _next_chunk(self, reader: Reader) -> bytes:
        left = self._framing.size - self._read
        chunk = await reader.read(min(self._chunk_size, left))
        if not 0 < len(chunk) <= left:
            found = "has more than" if chunk else f"ended after {self._read:,} of"
            raise DocumentChanged(self._name, f"it {found} {self._framing.size:,} bytes")
        return chunk
