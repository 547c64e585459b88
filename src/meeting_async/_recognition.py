"""What somebody handed us: which kind of source it is, and what it says of itself.

Files and the upload objects of web frameworks are known by what they can do, not by their class:
no framework is imported. Everything that can be refused is refused here, before any reading.
"""

from __future__ import annotations

import inspect
import io
import os
import re
from collections.abc import AsyncIterable, Awaitable
from typing import Any, Protocol

import anyio
import attrs

from meeting_async._files import OpenFileSource, PathSource
from meeting_async._handles import AsyncHandleSource, HandleSource
from meeting_async._limits import link_label, shown
from meeting_async._sources import BytesSource, Source
from meeting_async._streams import StreamSource
from meeting_async.errors import InvalidInput

Buffer = bytes | bytearray | memoryview


class Readable(Protocol):
    """Something with a ``read``: an open file, an upload of a web framework, a pipe."""

    def read(self, size: int = ..., /) -> bytes | Awaitable[bytes]:
        """Read up to ``size`` bytes."""
        ...


class HasStream(Protocol):
    """An upload of werkzeug or Quart."""

    @property
    def stream(self) -> Any:
        """The file inside."""
        ...

    @property
    def filename(self) -> str | None:
        """What the sender called it."""
        ...


Uploadable = str | os.PathLike[str] | Buffer | Readable | HasStream | AsyncIterable[Buffer]
"""What becomes a document; a path or a stream too."""


@attrs.frozen
class Found:
    """What a value is, and what it says of itself."""

    source: Source
    name: str | None = None
    """A file name, if it has a usable one."""
    content_type: str | None = None
    """A media type, if it has a usable one that says something."""


def recognised(value: object) -> Found | None:
    """Tell what a value is; ``None`` if it is nothing that has bytes."""
    if isinstance(value, Buffer):
        return Found(BytesSource(bytes(value)))
    if isinstance(value, str | os.PathLike):
        path = path_text(value)
        return Found(PathSource(path), path)
    if is_file(value):
        return file_found(value)
    if isinstance(value, AsyncIterable):
        return Found(StreamSource(value))
    return None


def path_text(path: object) -> str:
    """Return a path as text, and refuse what is a URL."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError("path must be a str or a PathLike of str")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
        raise TypeError(f"{link_label(text)!r} is a URL, not a path: pass Document.from_link(url)")
    return text


def is_file(value: object) -> bool:
    """Tell whether a value is an open file, or holds one."""
    if isinstance(value, type):
        return False
    return callable(getattr(value, "read", None)) or _is_werkzeug(value)


def _is_werkzeug(value: object) -> bool:
    stream = getattr(value, "stream", None)
    return callable(getattr(stream, "read", None)) and hasattr(value, "filename")


def stream_in(value: Any) -> Any:
    """Return what to read a stream from, if that is one."""
    if is_file(value):
        file = _inner(value)
        _check(value, file)
        return file
    if isinstance(value, AsyncIterable):
        return value
    raise TypeError(
        f"stream must be an async iterable of bytes or have a read(), not {type(value).__name__}"
    )


def file_found(value: Any) -> Found:
    """Tell which kind of file it is, and what it says of itself."""
    file = _inner(value)
    _check(value, file)
    return Found(_file_source(file, value), _name(value), _content_type(value))


def _inner(value: Any) -> Any:
    """Return the plain file inside of what is known to be only a shell around it.

    Reading that one spares the shells' own detours: UploadFile.read() takes one of the few
    threads that the framework shares among all requests.
    """
    if isinstance(value, anyio.AsyncFile):
        return _inner(value.wrapped)
    if _is_werkzeug(value):
        return _inner(value.stream)
    inner = getattr(value, "file", None) if _is_shell(value) else None
    return _inner(inner) if callable(getattr(inner, "read", None)) else value


def _is_shell(value: Any) -> bool:
    kind = type(value)
    if (kind.__module__, kind.__name__) == ("tempfile", "_TemporaryFileWrapper"):
        return True
    if kind.__module__ == "django.core.files.uploadedfile":
        return True
    return inspect.iscoroutinefunction(value.read) and hasattr(value, "filename")


def _check(value: Any, file: Any) -> None:
    if isinstance(file, io.TextIOBase) or getattr(file, "encoding", None) is not None:
        fix = "open it in binary mode, as with open(path, 'rb')"
        raise TypeError(f"document is a text file (got {shown(value)}): {fix}")
    if getattr(file, "closed", False) is True:
        if file is not value and hasattr(value, "filename"):
            raise _refused(
                value,
                "is an upload that was closed, as frameworks do when its request is over",
                "await the upload within the request's handler, or keep the bytes and pass those",
            )
        raise _refused(value, "is a closed file", "keep it open until the upload has ended")
    if not _says(file, "readable", default=_reads(file)):
        raise _refused(value, "is open for writing only", "open it with mode 'rb'")


def _refused(value: object, problem: str, fix: str) -> InvalidInput:
    return InvalidInput("document", shown(value), problem, fix)


def _reads(file: Any) -> bool:
    mode = getattr(file, "mode", None)
    return not isinstance(mode, str) or "r" in mode or "+" in mode


def _says(file: Any, question: str, *, default: bool) -> bool:
    """Ask a file ``readable()`` or ``seekable()``, where that needs no waiting."""
    ask = getattr(file, question, None)
    if not callable(ask) or inspect.iscoroutinefunction(ask):
        return default
    return bool(ask())


def _file_source(file: Any, owner: object) -> Source:
    can_seek = callable(getattr(file, "seek", None)) and callable(getattr(file, "tell", None))
    if not can_seek or not _says(file, "seekable", default=True):
        return StreamSource(file)
    if inspect.iscoroutinefunction(file.read):
        return AsyncHandleSource(file)
    if _is_plain(file):
        return OpenFileSource(file, owner)
    return HandleSource(file, owner)


def _is_plain(file: Any) -> bool:
    """Tell whether the bytes of a descriptor are what reading the file brings.

    By exact class: a GzipFile has the descriptor of the compressed file.
    """
    raw = file.raw if type(file) in {io.BufferedReader, io.BufferedRandom} else file
    return type(raw) is io.FileIO and hasattr(os, "pread")


def _name(value: Any) -> str | None:
    """Return a usable name: not the number of a descriptor, nor ``<fdopen>``.

    An upload's ``filename`` comes first, as its ``name`` may be that of the form's field.
    """
    name = None if isinstance(value, io.IOBase) else getattr(value, "filename", None)
    name = name or getattr(value, "name", None)
    if not isinstance(name, str) or not name or re.fullmatch(r"<.*>", name):
        return None
    return name


def _content_type(value: Any) -> str | None:
    kind = getattr(value, "content_type", None)
    is_usable = isinstance(kind, str) and re.fullmatch(r"[\w.+-]+/[\w.+-]+", kind, re.ASCII)
    return kind if is_usable and kind != "application/octet-stream" else None
