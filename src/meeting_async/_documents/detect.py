"""Find out what a caller passed: where its bytes come from, its name and its media type.

All kinds of documents are in one list, ``_KINDS``, at the end of this module. A new kind is a row
there, and a module with its :class:`~meeting_async._documents.source.Source`.

Files and the upload objects of web frameworks are detected by their methods and by the names of
their modules, so no framework is imported. What can be refused without reading is refused here.
"""

from __future__ import annotations

import inspect
import io
import os
import re
from collections.abc import AsyncIterable, Awaitable, Callable, Container, Iterator
from pathlib import PurePath
from typing import Any, Protocol

import anyio
import attrs

from meeting_async._documents.file_objects import FileObjectSource
from meeting_async._documents.files import OpenFileSource, PathSource
from meeting_async._documents.packed import PackedSource
from meeting_async._documents.source import Buffer, BytesSource, Source, unreadable
from meeting_async._documents.stored import StoredSource
from meeting_async._documents.streams import StreamSource, pulled, reads
from meeting_async._system import is_false_file, without_drive
from meeting_async._text import link_label, short_repr
from meeting_async.errors import InvalidInput, MeetingError


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
        """The name that the sender gave."""
        ...


Stream = AsyncIterable[Buffer] | Iterator[Buffer]
"""Bytes in pieces. A list is not accepted: its bytes would be in memory twice."""

Uploadable = str | os.PathLike[str] | Buffer | Readable | HasStream | Stream
"""What can be uploaded: a path, bytes, an open file, a framework's upload, a stream."""


@attrs.frozen
class Detected:
    """The source, name and media type of a value."""

    source: Source
    name: str | None = None
    """File name; ``None`` if there is no usable one."""
    content_type: str | None = None
    """Media type; ``None`` if there is no usable one, or only a generic one."""
    nameless: str = "the document has no name"
    """Why there is no name."""


# --- paths ---------------------------------------------------------------------------------------


def detect_path(value: object) -> Detected:
    """Detect a path. It blocks if the path object has to download its file.

    Raises:
        TypeError: It is not a path, or it is a URL.
        DocumentUnreadable: The file cannot be downloaded.

    """
    try:
        path = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    except Exception as error:  # whatever a cloud storage package raises
        raise unreadable(short_repr(value), error) from error
    if not isinstance(path, str):
        raise TypeError("path must be a str or a PathLike of str")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path):
        raise TypeError(f"{link_label(path)!r} is a URL, not a path: pass Document.from_link(url)")
    source = PathSource(path, given=value) if is_remote(value) else PathSource(path)
    return Detected(source, without_drive(path))


def is_remote(value: object) -> bool:
    """Return whether a path object is the address of remote data, such as ``s3://...``."""
    is_foreign = isinstance(value, os.PathLike) and not isinstance(value, PurePath)
    return is_foreign and re.match(r"(?!file:|local:)[\w.+-]+://", str(value)) is not None


# --- files of Django's models --------------------------------------------------------------------


def _detect_field(field: Any) -> Detected:
    if not field:
        fix = "save a file in this field first"
        raise InvalidInput("document", short_repr(str(field)), "is a field without a file", fix)
    if not field._committed:  # noqa: SLF001 - it holds an upload that no storage has yet
        return _detect_file(field.file)
    return Detected(StoredSource(field), field.name)


# --- open files, and uploads of web frameworks ---------------------------------------------------


def _is_file(value: object) -> bool:
    """Return whether a value is an open file, or contains one.

    A response of an HTTP library is not, although it has ``read``: it has an encoding, too.
    """
    has_encoding = getattr(value, "encoding", None) is not None
    is_response = has_encoding and not (hasattr(value, "readable") or hasattr(value, "seek"))
    if isinstance(value, type) or is_response:
        return False
    return callable(getattr(value, "read", None)) or _has_stream(value)


def _has_stream(value: object) -> bool:
    """Return whether a value is an upload of werkzeug, which delegates ``read`` to its stream."""
    stream = getattr(value, "stream", None)
    has_own_read = hasattr(type(value), "read") or not hasattr(value, "filename")
    return callable(getattr(stream, "read", None)) and not has_own_read


def _detect_file(value: Any) -> Detected:
    file = _unwrapped(value)
    _check(value, file)
    source, kind = _file_source(file, value), _content_type(value)
    if _has_name_of_archive(file):
        return Detected(source, None, kind, "the name of this file is that of its archive")
    name = _name(value)
    if name and _is_from(file, _PACKERS):  # the name of its content: `notes.txt` of `notes.txt.gz`
        name = re.sub(r"(?i)(?<=.)\.(gz|bz2|xz|lzma|zst)$", "", name)
    return Detected(source, name, kind)


def _unwrapped(value: Any) -> Any:
    """Return the plain file inside known wrappers.

    It can be read for many rooms at once, and does not need the framework's threads.
    """
    inner = getattr(value, _inner_attribute(value), None)
    return _unwrapped(inner) if callable(getattr(inner, "read", None)) else value


def _inner_attribute(value: Any) -> str:
    """Return the attribute in which a known class has its file; ``""``: unknown class.

    A subclass that overrides ``read`` is not unwrapped: it may return other bytes than the file.
    """
    if isinstance(value, anyio.AsyncFile):
        return "wrapped"
    if _has_stream(value):
        return "stream"
    module = type(value).__module__
    if module.partition(".")[0] == "aiofiles":
        return "_file"
    if module in {"tempfile", "django.core.files.uploadedfile"}:
        return "file"
    read = getattr(type(value), "read", None)
    framework = getattr(read, "__module__", "").partition(".")[0]
    return "file" if framework in {"starlette", "fastapi", "litestar"} else ""


_CLOSED = ("is a closed file", "keep it open until the upload has ended")
_REQUEST_IS_OVER = (
    "is an upload that was closed, as frameworks do when its request is over",
    "await the upload within the request's handler, or keep the bytes and pass those",
)
_WRITE_ONLY = ("is open for writing only", "open it with mode 'rb'")


def _check(value: Any, file: Any) -> None:
    """Raise if a file cannot be read: it is a text file, closed, or write-only."""
    if isinstance(file, io.TextIOBase) or getattr(file, "encoding", None) is not None:
        fix = "open it in binary mode, as with open(path, 'rb')"
        raise TypeError(f"document is a text file (got {short_repr(value)}): {fix}")
    # A response counts as closed when all of it has arrived, but can be read.
    if getattr(file, "closed", False) is True and not hasattr(file, "headers"):
        is_upload = file is not value and hasattr(value, "filename")
        flaw = _REQUEST_IS_OVER if is_upload else _CLOSED
    elif _supports(file, "readable"):
        return
    else:
        flaw = _WRITE_ONLY
    raise InvalidInput("document", short_repr(value), *flaw)


def _supports(file: Any, question: str) -> bool:
    """Return ``readable()`` or ``seekable()`` of a file; true without such a method.

    If the method itself fails, as in members of a streaming tar, the file is only readable.
    """
    ask = getattr(file, question, None)
    try:
        return bool(ask()) if callable(ask) and not inspect.iscoroutinefunction(ask) else True
    except AttributeError:
        return question == "readable"


def _file_source(file: Any, owner: object) -> Source:
    can_seek = callable(getattr(file, "seek", None)) and callable(getattr(file, "tell", None))
    is_async = inspect.iscoroutinefunction(file.read)
    if is_async or not can_seek or not _supports(file, "seekable"):
        return StreamSource(file, reads)
    if not _is_of_the_system(file):
        found = FileObjectSource(file, owner)
        is_packed = any(_is_from(it, rf"{_PACKERS}|zipfile(\..*)?") for it in _member(file))
        return PackedSource(found) if is_packed else found
    if is_false_file(file.fileno()):
        return StreamSource(file, reads)
    return OpenFileSource(file, owner)


def _is_of_the_system(file: Any) -> bool:
    """Return whether reading the file returns the bytes of its descriptor.

    Only exact classes count: a ``GzipFile`` has the descriptor of the compressed file.
    """
    raw = file.raw if type(file) in {io.BufferedReader, io.BufferedRandom} else file
    return type(raw) is io.FileIO


_PACKERS = r"gzip|bz2|lzma|compression\..*"
"""Modules of files that are decompressed while they are read."""


def _member(file: Any) -> tuple[Any, Any]:
    """Return a file without its buffers, and its archive's file if it is a member of a tar."""
    while isinstance(file, io.BufferedReader):
        file = file.raw
    return file, getattr(file, "fileobj", None) if _is_from(file, "tarfile") else None


def _has_name_of_archive(file: Any) -> bool:
    """Return whether a file is a member of a tar archive, but has the archive's name.

    Only newer versions of Python give it its own.
    """
    member, archive = _member(file)
    return archive is not None and member.name == getattr(archive, "name", None) is not None


def _name(value: Any) -> str | None:
    """Return a usable name: not the number of a descriptor, and not ``<fdopen>``.

    ``filename`` comes first: ``name`` of an upload may be the name of the form's field.
    """
    sent = None if isinstance(value, io.IOBase) else getattr(value, "filename", None)
    name = sent or getattr(value, "name", None)
    if not isinstance(name, str) or not name or re.fullmatch(r"<.*>", name):
        return None
    is_from_form = sent or _is_from(value, r"django\.core\.files\.uploadedfile")
    return _unescaped(name) if is_from_form else name


def _unescaped(name: str) -> str:
    """Return a name as it was before a browser escaped it for a form.

    Frameworks do not do that. Nothing else is escaped, not even the percent sign
    (https://html.spec.whatwg.org/multipage/form-control-infrastructure.html#multipart-form-data).
    """
    return name.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


def _content_type(value: Any) -> str | None:
    kind = getattr(value, "content_type", None)
    is_usable = isinstance(kind, str) and re.fullmatch(r"[\w.+-]+/[\w.+-]+", kind, re.ASCII)
    return kind if is_usable and kind != "application/octet-stream" else None


def _is_from(value: object, modules: str) -> bool:
    """Return whether a value's class or a base class is from a module that matches a pattern."""
    return any(re.fullmatch(modules, kind.__module__) for kind in type(value).__mro__)


# --- the list ------------------------------------------------------------------------------------

_INSTEAD = {
    r"aiohttp\..*:ClientResponse": "response.content",
    r"aiohttp\..*:BodyPartReader": "an async generator that yields `await part.read_chunk()`",
    r"httpx2?(\..*)?:Response": "response.aiter_bytes(), of a streamed response",
    r"requests\..*:Response": "response.raw, with stream=True",
    r".*:GetResult": "result.stream()",
    r"fsspec\.core:OpenFile": "the file that `with open_file as file` opens",
    r"zipfile(\..*)?:Path": "path.open('rb')",
}
"""What to pass instead of objects of other libraries, by module and class."""


def _instead_of(value: object) -> str:
    """Return what to pass instead of a value that is not a document, if that is known."""
    names = [f"{kind.__module__}:{kind.__qualname__}" for kind in type(value).__mro__]
    found = (fix for row, fix in _INSTEAD.items() if any(re.fullmatch(row, it) for it in names))
    is_remote = not isinstance(value, os.PathLike) and _is_from(value, r"upath\..*")
    return "path.open('rb')" if is_remote else next(found, "")


_KINDS: tuple[tuple[str, Callable[[Any], object], Callable[[Any], Detected | None]], ...] = (
    ("bytes", lambda it: isinstance(it, Buffer), lambda it: Detected(BytesSource(bytes(it)))),
    ("response", _instead_of, lambda _: None),  # or something else that is not a document
    ("path", lambda it: isinstance(it, str | os.PathLike), detect_path),
    ("file", lambda it: _is_from(it, r"django\.db\.models\.fields\.files"), _detect_field),
    ("file", _is_file, _detect_file),
    ("stream", lambda it: isinstance(it, AsyncIterable), lambda it: Detected(StreamSource(it))),
    ("stream", lambda it: isinstance(it, Iterator), lambda it: Detected(StreamSource(it, pulled))),
)
"""All kinds: the word for ``without``, whether a value is of this kind, and how to detect it. The
first row that fits decides."""

_NEEDED = (
    "document must be a path, bytes, an open binary file, an async iterable of bytes (such as "
    "response.aiter_bytes()) or a Document (from_link, from_stream ...)"
)


def detect(value: object, *, without: Container[str] = (), needed: str = _NEEDED) -> Detected:
    """Detect a value, which may be of any kind except those ``without``. It is not read.

    Raises:
        TypeError: It is of no such kind; or it is a text file, or a URL instead of a path.
        InvalidInput: It is closed, or open for writing only.
        DocumentUnreadable: One of its methods raised, or it cannot be downloaded.

    """
    try:
        made = (make(value) for kind, fits, make in _KINDS if kind not in without and fits(value))
        found = next(made, None)
    except (MeetingError, TypeError):
        raise
    except Exception as error:  # whatever it raises when it is asked
        raise unreadable(f"a {type(value).__name__}", error) from error
    if found is None:
        fix = _instead_of(value)
        raise TypeError(f"{needed}, not {type(value).__name__}" + (f": pass {fix}" if fix else ""))
    return found
