"""What can be uploaded: a file to be sent, or a link for the server to download."""

from __future__ import annotations

import inspect
import os
from functools import partial
from pathlib import PurePath
from typing import Self

import attrs
from attrs.converters import optional

from meeting_async._documents.detect import (
    Detected,
    HasStream,
    Readable,
    Stream,
    detect,
    detect_path,
)
from meeting_async._documents.files import PathSource
from meeting_async._documents.link import LinkSource, check_link
from meeting_async._documents.source import Buffer, BytesSource, Source
from meeting_async._documents.streams import StreamSource
from meeting_async._protocol.multipart import file_name, media_type
from meeting_async._text import Url, link_label, short_repr
from meeting_async._threads import at_disk
from meeting_async.errors import InvalidInput


@attrs.frozen
class Document:
    """Something to upload: a file to be sent, or a link that the server downloads.

    Make it with one of the ``from_…`` methods. It can be uploaded any number of times, to any
    number of rooms. A stream can be uploaded only once.
    """

    _source: Source | None = attrs.field(default=None, repr=False)
    link: str | None = attrs.field(default=None, converter=optional(Url))
    """The link as it was given; ``None`` for a file."""
    filename: str = ""
    """The name that the room shows; for a link the link without its query."""
    content_type: str | None = None
    """Media type of the file; guessed from the name's extension by the ``from_…`` methods."""

    def __attrs_post_init__(self) -> None:
        if (self._source is None) == (self.link is None):
            given = "neither" if self._source is None else "both"
            problem = "must be exactly one of a file and a link"
            raise InvalidInput("document", given, problem, "choose one")

    @classmethod
    def from_path(
        cls,
        path: str | os.PathLike[str],
        *,
        filename: str | None = None,
        content_type: str | None = None,
    ) -> Self:
        """Upload a file on disk; ``filename`` replaces its own name.

        A path of a cloud storage package downloads its file here, which blocks; pass the path
        itself to the upload, and a thread downloads it. The file is opened for each attempt and
        closed before any wait. If it changes during the upload,
        :class:`~meeting_async.errors.DocumentChanged` is raised.
        """
        return cls._detected(detect_path(path), filename, content_type)

    @classmethod
    def from_bytes(
        cls,
        data: bytes | bytearray | memoryview,
        filename: str | None = None,
        *,
        content_type: str | None = None,
    ) -> Self:
        """Upload bytes that are in memory; ``filename`` is required.

        Raises:
            InvalidInput: ``data`` is not bytes, or the name is missing or cannot be used.

        """
        _check_bytes(data)
        return cls._detected(Detected(BytesSource(bytes(data)), filename), None, content_type)

    @classmethod
    def from_file(
        cls,
        file: Readable | HasStream,
        *,
        filename: str | None = None,
        content_type: str | None = None,
    ) -> Self:
        """Upload an open binary file, or the upload object of a web framework.

        Every attempt starts at the position that the file has when the upload begins. It may be
        uploaded to several rooms at once. It is never closed, and its position is the same at the
        end. Its own name and media type are used if possible. A file that cannot seek, such as a
        pipe, or that has only async methods is a stream: see :meth:`from_stream`.

        Raises:
            InvalidInput: It is closed, or open for writing only; or it has no name.
            TypeError: It is a text file, or not a file.

        """
        needed, others = "file must be an open binary file", {"bytes", "path", "stream"}
        detected = detect(file, without=others, needed=needed)
        return cls._detected(detected, filename, content_type)

    @classmethod
    def from_stream(
        cls,
        stream: Stream | Readable,
        filename: str,
        *,
        content_type: str | None = None,
        size: int | None = None,
        replayable: bool = True,
    ) -> Self:
        """Upload a stream: an iterator or async iterable of bytes, or a ``read`` that cannot seek.

        Before the upload begins the stream is spooled: it is read to its end, or to
        ``max_size_whiteboard_file``, into up to 1 MiB of memory, then into a temporary file. With
        ``size`` (bytes) and ``replayable=False`` it is not spooled; then there is no retry after
        its first byte was read, even if the room was only locked.

        Generators are closed at the end, files are not.

        Raises:
            InvalidInput: An argument cannot be used, or ``replayable=False`` comes without a size.

        """
        if not replayable and size is None:
            fix = "declare how many bytes will come, or leave replayable=True"
            raise InvalidInput("size", "None", "is needed with replayable=False", fix)
        needed = "stream must be an async iterable of bytes or have a read()"
        source = detect(stream, without={"bytes", "path"}, needed=needed).source
        if size is not None:
            source = _declared(source, size, replayable)
        return cls._detected(Detected(source), filename, content_type)

    @classmethod
    def from_link(cls, url: str) -> Self:
        """Let the server download a document itself.

        The link must be direct and public (``docs/interface.md``, Upload). The server sends no
        credentials, and may first send HEAD, so a link that is signed for GET only does not work.

        Raises:
            InvalidInput: No server can download the link. No request is made for this.

        """
        if not isinstance(url, str):
            raise TypeError(f"url must be a str, not {type(url).__name__}")
        url = Url(url)  # also among the locals of a traceback
        check_link(url)
        return cls(None, url, link_label(url))

    @classmethod
    def _detected(cls, detected: Detected, filename: str | None, content_type: str | None) -> Self:
        """Make a document of what was detected; the caller's name and media type win."""
        given = detected.name if filename is None else filename
        if given is None:
            fix = "give one such as 'deck.pdf'"
            raise InvalidInput("filename", "None", f"is needed: {detected.nameless}", fix)
        name = file_name(given)
        kind = detected.content_type if content_type is None else content_type
        return cls(detected.source, None, name, _media_type(name, kind))

    def renamed(self, filename: str | None, content_type: str | None) -> Self:
        """Return the same document under another name or media type; ``None`` keeps it.

        Raises:
            InvalidInput: One of them cannot be used, or the document is a link.

        """
        if filename is None and content_type is None:
            return self
        if self.link is not None:
            field = "content_type" if filename is None else "filename"
            value = short_repr(content_type if filename is None else filename)
            fix = "leave it out: the server finds it out"
            raise InvalidInput(field, value, "cannot be given for a link", fix)
        name = self.filename if filename is None else file_name(filename)
        kind = self.content_type if content_type is None else media_type(content_type)
        return attrs.evolve(self, filename=name, content_type=kind)


# --- for the library itself ----------------------------------------------------------------------


def as_document(
    value: object, *, filename: str | None = None, content_type: str | None = None
) -> Document:
    """Make a document from any argument of ``upload_whiteboard_file``.

    Raises:
        TypeError: It cannot be uploaded.
        InvalidInput: It cannot be used as it is, or it has no name.

    """
    if isinstance(value, Document):
        return value.renamed(filename, content_type)
    return Document._detected(detect(value), filename, content_type)  # noqa: SLF001 - of this module


def known_as(document: Document, path: str) -> Document:
    """Return a document of a path with another path by which journals recognise it."""
    source = document._source  # noqa: SLF001 - of this module
    assert isinstance(source, PathSource)  # noqa: S101 - the caller made it
    return attrs.evolve(document, source=attrs.evolve(source, known_as=path))


def may_block(value: object) -> bool:
    """Return whether :func:`detect` may block: for files and paths that are not Python's own."""
    read = getattr(type(value), "read", None)
    is_pythons = type(value).__module__ in {"_io", "tempfile"}
    is_file = callable(read) and not inspect.iscoroutinefunction(read) and not is_pythons
    return is_file or (isinstance(value, os.PathLike) and not isinstance(value, PurePath))


async def found_document(
    value: object, *, filename: str | None = None, content_type: str | None = None
) -> Document:
    """Call :func:`as_document`, in a thread if it may block."""
    make = partial(as_document, value, filename=filename, content_type=content_type)
    return await at_disk(make) if may_block(value) else make()


def source_of(document: Document) -> Source:
    """Return the source of a document."""
    return document._source or LinkSource(document.link or "")  # noqa: SLF001 - of this module


_MEDIA_TYPES = {
    "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "odp": "application/vnd.oasis.opendocument.presentation",
    "ods": "application/vnd.oasis.opendocument.spreadsheet",
    "odt": "application/vnd.oasis.opendocument.text",
    "pdf": "application/pdf",
    "ppt": "application/vnd.ms-powerpoint",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "rtf": "application/rtf",
    "txt": "text/plain",
    "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}

OFFICE_SUFFIXES = frozenset(_MEDIA_TYPES) - {"pdf"}
"""Suffixes of documents that a server converts with an office program."""


def _media_type(name: str, given: str | None) -> str:
    """Return the media type, guessed if not given. ``mimetypes`` differs between machines."""
    if given is not None:
        return media_type(given)
    _, dot, suffix = name.rpartition(".")
    return _MEDIA_TYPES.get(suffix.lower() if dot else "", "application/octet-stream")


def _declared(source: Source, size: int, replayable: bool) -> Source:
    if type(size) is not int or size <= 0:
        problem = "is not a positive number of bytes"
        raise InvalidInput("size", short_repr(size), problem, "give an int")
    if not isinstance(source, StreamSource):
        problem = "is for streams, and this is a file that can seek"
        raise InvalidInput("size", short_repr(size), problem, "use Document.from_file")
    return attrs.evolve(source, size=size, replayable=replayable)


def _check_bytes(data: object) -> None:
    if not isinstance(data, Buffer):
        problem, fix = "is not bytes", "encode a text; for others use from_path or from_file"
        raise InvalidInput("data", short_repr(data), problem, fix)
