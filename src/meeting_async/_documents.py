"""What can be uploaded: a file to be sent, or a link for the server to download."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Self

import attrs

from meeting_async._factories import Factory, FactorySource
from meeting_async._files import PathSource
from meeting_async._limits import check_link, check_size, check_type, link_label, shown
from meeting_async._multipart import Reader, file_name, media_type
from meeting_async._recognition import (
    Buffer,
    Found,
    HasStream,
    Readable,
    file_found,
    is_file,
    path_text,
    recognised,
    stream_in,
)
from meeting_async._sources import BytesSource, Content, Measure, Source
from meeting_async._streams import OnceContent, StreamSource
from meeting_async.errors import DocumentEmpty, InvalidInput


@attrs.frozen
class Document:
    """Something to upload: a file to be sent, or a link the server downloads (never both).

    Make it with one of the ``from_…`` methods. It can be uploaded any number of times, to any
    number of rooms, unless it is a stream: that can be read once.
    """

    source: Source | None = attrs.field(default=None, repr=False)
    link: str | None = attrs.field(
        default=None, repr=lambda link: repr(link_label(link)) if link else "None"
    )
    filename: str = ""
    """The name the room sees; for a link the link itself without its query."""
    content_type: str | None = None
    """Media type of the part; guessed from the name's extension by the ``from_…`` methods."""

    def __attrs_post_init__(self) -> None:
        if (self.source is None) == (self.link is None):
            given = "neither" if self.source is None else "both"
            raise InvalidInput(
                "document", given, "must be exactly one of a file and a link", "choose one"
            )

    @classmethod
    def from_path(
        cls,
        path: str | os.PathLike[str],
        *,
        filename: str | None = None,
        content_type: str | None = None,
    ) -> Self:
        """Upload a file on disk; ``filename`` is what the room sees instead of its own name.

        The file is opened for each attempt and closed before any wait. If it changes in between,
        or while it is sent, the upload ends with :class:`~meeting_async.errors.DocumentChanged`.
        """
        text = path_text(path)
        return cls._found(Found(PathSource(text), text), filename, content_type)

    @classmethod
    def from_bytes(
        cls,
        data: bytes | bytearray | memoryview,
        filename: str,
        *,
        content_type: str | None = None,
    ) -> Self:
        """Upload bytes that are in memory already, under the name ``filename``."""
        return cls._found(Found(BytesSource(bytes(data))), file_name(filename), content_type)

    @classmethod
    def from_file(
        cls,
        file: Readable | HasStream,
        *,
        filename: str | None = None,
        content_type: str | None = None,
    ) -> Self:
        """Upload an open binary file, or what a web framework made of a form's file.

        It is sent from the position it has when the upload begins, the same at every attempt. It
        is never closed; its position afterwards is what it was before. Name and media type are
        its own, if it has usable ones. What cannot seek, such as a pipe, is a stream: see
        :meth:`from_stream`.

        Raises:
            InvalidInput: It is closed, or open for writing only; or it has no name.
            TypeError: It is a text file, or none.

        """
        if not is_file(file):
            raise TypeError(f"file must be an open binary file, not {type(file).__name__}")
        return cls._found(file_found(file), filename, content_type)

    @classmethod
    def from_stream(
        cls,
        stream: AsyncIterable[Buffer] | Readable,
        filename: str,
        *,
        content_type: str | None = None,
        size: int | None = None,
        replayable: bool = True,
    ) -> Self:
        """Upload what comes once: from an async iterable of bytes, or from a ``read``.

        Before the upload begins the stream is read to its end into a spool (1 MiB of memory, then
        a temporary file), and no further than ``max_size_whiteboard_file``. With ``size`` (bytes)
        and ``replayable=False`` it is sent as it comes instead; then an attempt that fails after
        the first byte was read is the last one, be it only that the room was busy.

        Generators are closed at the end, files are not.

        Raises:
            InvalidInput: An argument cannot be used, or ``replayable=False`` comes without a size.

        """
        if not replayable and size is None:
            fix = "declare how many bytes will come, or leave replayable=True"
            raise InvalidInput("size", "None", "is needed with replayable=False", fix)
        source = StreamSource(stream_in(stream), _checked_size(size), replayable)
        return cls._found(Found(source), file_name(filename), content_type)

    @classmethod
    def from_factory(
        cls,
        factory: Factory,
        filename: str,
        *,
        content_type: str | None = None,
        size: int | None = None,
    ) -> Self:
        """Upload what ``factory()`` opens: a path, bytes, an open file or a stream.

        It is called for every attempt, and what it opens is closed after the attempt. A plain
        function runs in a worker thread; it may be a coroutine function, too. Without ``size``
        (bytes) it is called once more, to measure; a stream is then spooled, once for all
        attempts.
        """
        if not callable(factory):
            raise TypeError(f"factory must be callable, not {type(factory).__name__}")
        source = FactorySource(factory, _checked_size(size))
        return cls._found(Found(source), file_name(filename), content_type)

    @classmethod
    def from_link(cls, url: str) -> Self:
        """Let the server download a document itself.

        The link must be final, direct and public: the server sends no credentials and may first
        ask with HEAD, so links that are signed for GET only do not work (interface section 4.2).
        """
        if not isinstance(url, str):
            raise TypeError(f"url must be a str, not {type(url).__name__}")
        check_link(url)
        return cls(None, url, link_label(url))

    @classmethod
    def of(
        cls, value: object, *, filename: str | None = None, content_type: str | None = None
    ) -> Document:
        """Turn whatever ``upload_whiteboard_file`` takes into a document."""
        if isinstance(value, Document):
            return value.renamed(filename, content_type)
        found = recognised(value)
        if found is None:
            raise TypeError(
                "document must be a path, bytes, an open binary file, an async iterable of bytes "
                f"or a Document (from_link, from_factory ...), not {type(value).__name__}"
            )
        return cls._found(found, filename, content_type)

    @classmethod
    def _found(cls, found: Found, filename: str | None, content_type: str | None) -> Self:
        """Put a name on what was found; the caller's word wins."""
        name = found.name if filename is None else filename
        if name is None:
            fix = "give one such as 'deck.pdf'"
            raise InvalidInput("filename", "None", "is needed: the document has no name", fix)
        name = file_name(name)
        kind = found.content_type if content_type is None else content_type
        return cls(found.source, None, name, _media_type(name, kind))

    def renamed(self, filename: str | None, content_type: str | None) -> Self:
        """Return the same document under another name or media type; ``None`` keeps it."""
        if filename is None and content_type is None:
            return self
        if self.link is not None:
            field, value = "filename", filename
            if filename is None:
                field, value = "content_type", content_type
            fix = "leave it out: the server finds it out"
            raise InvalidInput(field, shown(value), "cannot be given for a link", fix)
        name = self.filename if filename is None else file_name(filename)
        kind = self.content_type if content_type is None else media_type(content_type)
        return attrs.evolve(self, filename=name, content_type=kind)

    @asynccontextmanager
    async def held(
        self, *, max_size: int | None, allow_images: bool
    ) -> AsyncGenerator[HeldDocument, None]:
        """Get ready for one upload: measure, check against the limits, spool if need be.

        What was made for the upload is gone when the block ends.
        """
        if self.source is None:
            link = BytesSource((self.link or "").encode("ascii"))
            yield HeldDocument(self, link, await link.measure())
            return
        async with self.source.held(self.filename, max_size) as content:
            measure = await content.measure()
            if measure.size == 0 and measure.start:
                raise _nothing_left(self.filename, measure.start)
            check_size(self.filename, measure.size, max_size)
            if not allow_images:
                check_type(self.filename, measure.head)
            yield HeldDocument(self, content, measure)


@attrs.frozen
class HeldDocument:
    """A document that is ready for the attempts of one upload."""

    document: Document
    content: Content = attrs.field(repr=False)
    measure: Measure = attrs.field(repr=False)

    @property
    def is_spent(self) -> bool:
        """Whether there can be no other attempt."""
        return isinstance(self.content, OnceContent) and self.content.spent

    def open(self) -> AbstractAsyncContextManager[Reader]:
        """Open the content of the form's one part for one attempt."""
        return self.content.open(self.measure)


_MEDIA_TYPES = {
    ".doc": "application/msword",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".odp": "application/vnd.oasis.opendocument.presentation",
    ".ods": "application/vnd.oasis.opendocument.spreadsheet",
    ".odt": "application/vnd.oasis.opendocument.text",
    ".pdf": "application/pdf",
    ".ppt": "application/vnd.ms-powerpoint",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".rtf": "application/rtf",
    ".txt": "text/plain",
    ".xls": "application/vnd.ms-excel",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}


def _media_type(name: str, given: str | None) -> str:
    """Guess from a table of our own: the standard library's differs from machine to machine."""
    if given is not None:
        return media_type(given)
    _, dot, suffix = name.rpartition(".")
    return _MEDIA_TYPES.get(dot + suffix.lower(), "application/octet-stream")


def _checked_size(size: int | None) -> int | None:
    if size is None or (type(size) is int and size > 0):
        return size
    raise InvalidInput("size", shown(size), "is not a positive number of bytes", "give an int")


def _nothing_left(name: str, start: int) -> DocumentEmpty:
    error = DocumentEmpty(name)
    error.add_note(f"The file stands at byte {start:,}, its end: seek(0) to upload all of it.")
    return error
