"""What can be uploaded: a file to be sent, or a link for the server to download."""

from __future__ import annotations

import os
import re
from contextlib import AbstractAsyncContextManager
from typing import Self

import attrs

from meeting_async._limits import check_link, check_size, check_type, link_label, shown
from meeting_async._multipart import Reader, file_name, media_type
from meeting_async._sources import BytesSource, Measure, PathSource, Source
from meeting_async.errors import InvalidInput


@attrs.frozen
class Document:
    """Something to upload: a file to be sent, or a link the server downloads (never both).

    Make it with one of the ``from_…`` methods. A document holds no open file and can be uploaded
    any number of times, to any number of rooms.
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
        text = os.fspath(path)
        if not isinstance(text, str):
            raise TypeError("path must be a str or a PathLike of str")
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
            raise TypeError(
                f"{link_label(text)!r} is a URL, not a path: pass Document.from_link(url)"
            )
        name = file_name(text if filename is None else filename)
        return cls(PathSource(text), None, name, _media_type(name, content_type))

    @classmethod
    def from_bytes(
        cls,
        data: bytes | bytearray | memoryview,
        filename: str,
        *,
        content_type: str | None = None,
    ) -> Self:
        """Upload bytes that are in memory already, under the name ``filename``."""
        name = file_name(filename)
        return cls(BytesSource(bytes(data)), None, name, _media_type(name, content_type))

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
        if isinstance(value, bytes | bytearray | memoryview):
            if filename is None:
                raise InvalidInput(
                    "filename", "None", "is needed for bytes", "give one such as 'deck.pdf'"
                )
            return cls.from_bytes(value, filename, content_type=content_type)
        if isinstance(value, str | os.PathLike):
            return cls.from_path(value, filename=filename, content_type=content_type)
        raise TypeError(
            "document must be a path, bytes or a Document "
            f"(from_path, from_bytes, from_link), not {type(value).__name__}"
        )

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

    async def measure(self, *, max_size: int | None, allow_images: bool) -> Measure:
        """Measure the document and check it against the limits, before anything is sent."""
        if self.source is None:
            return Measure(len(self.link or ""))
        measure = await self.source.measure()
        check_size(self.filename, measure.size, max_size)
        if not allow_images:
            check_type(self.filename, measure.head)
        return measure

    def open(self, measure: Measure) -> AbstractAsyncContextManager[Reader]:
        """Open the content of the form's one part for one attempt."""
        source = self.source or BytesSource((self.link or "").encode("ascii"))
        return source.open(measure)


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
