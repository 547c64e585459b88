"""Every kind of document, opened at an offset, and what an attempt makes of it."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiofiles  # type: ignore[import-untyped]
import anyio
import anyio.lowlevel
import attrs
import django.conf  # type: ignore[import-untyped]
import pytest
from django.core.files.uploadedfile import (  # type: ignore[import-untyped]
    InMemoryUploadedFile,
    TemporaryUploadedFile,
)
from litestar.datastructures import UploadFile as LitestarUpload
from starlette.datastructures import UploadFile as StarletteUpload
from werkzeug.datastructures import FileStorage

from meeting_async import Document
from meeting_async._documents.document import as_document
from meeting_async._documents.prepared import MultipartBody, Prepared, prepare
from support.fake_rooms import FakeRooms, client_of

if not django.conf.settings.configured:
    django.conf.settings.configure(DATA_UPLOAD_MAX_MEMORY_SIZE=None)


def make_fifo(path: Path) -> None:
    """Make a FIFO, where there can be one."""
    os.mkfifo(path)


START = 100
"""Where an open file stands."""

LARGE = bytes(range(256)) * 2735 + b"the end of it"
"""Several chunks of an upload, more than is read in one call of a thread."""

SMALL = LARGE[:5000]


def content_in(body: MultipartBody, form: bytes) -> bytes:
    """Cut the content out of a complete form."""
    boundary = body.content_type.partition(b"boundary=")[2]
    _, blank, rest = form.partition(b"\r\n\r\n")
    content, end, nothing = rest.rpartition(b"\r\n--" + boundary + b"--\r\n")
    assert blank
    assert end
    assert not nothing
    return content


@asynccontextmanager
async def prepared_document(value: Any, **checks: Any) -> AsyncGenerator[Prepared]:
    """Prepare a value as an upload does."""
    checks = {"max_size": None, "allow_images": True, **checks}
    async with prepare(named(value), **checks) as prepared:
        yield prepared


@asynccontextmanager
async def form_of(prepared: Prepared) -> AsyncGenerator[MultipartBody]:
    """Make the form of an attempt."""
    with contextlib.closing(prepared.form()) as body:
        yield body


async def attempt(prepared: Prepared) -> bytes:
    """Make one attempt and return the content that a server would see."""
    form = bytearray()
    async with form_of(prepared) as body:
        async for chunk in body:
            form += chunk
            await anyio.lowlevel.checkpoint()  # as sending does
    assert body.taken == body.length == len(form)
    return content_in(body, bytes(form))


async def uploaded(value: Any, attempts: int = 1, **checks: Any) -> bytes:
    """Prepare a value as an upload does and return what every attempt sends."""
    async with prepared_document(value, **checks) as prepared:
        contents = {await attempt(prepared) for _ in range(attempts)}
    assert len(contents) == 1
    return contents.pop()


@attrs.frozen
class Sent:
    """What a room got of an upload."""

    name: str
    """That of the receipt."""
    kind: str
    content: bytes


async def sent(value: Any, *, settings: dict[str, Any] | None = None, **how: Any) -> Sent:
    """Upload with a client of its own, to a room that accepts it."""
    rooms = FakeRooms()
    async with client_of(rooms, preflight=False, **settings or {}) as client:
        receipt = await client.upload_whiteboard_file("room01", value, **how)
    head, _, rest = bytes(rooms.uploads[0].sent).partition(b"\r\n\r\n")
    kind = head.partition(b"\r\nContent-Type: ")[2].decode()
    content = rest.rpartition(b"\r\n--")[0]
    assert receipt.size == (len(content) if kind else None)
    return Sent(receipt.document, kind, content)


def named(value: Any) -> Document:
    """Make a document of a value; links and documents have names."""
    is_document = isinstance(value, Document)
    return value if is_document else as_document(value, filename="deck.pdf")


# --- kinds ---------------------------------------------------------------------------------------


@attrs.frozen
class Opened:
    """A value to upload, and what is expected of it."""

    value: Any
    content: bytes
    """What an upload sends."""
    inside: Any = None
    """The file or stream that it is, or that it wraps."""
    is_stream: bool = False
    """Whether it is good for one upload only."""

    def position(self) -> Any:
        """Tell where the file stands, if it has a position."""
        return self.inside.tell() if hasattr(self.inside, "tell") else None


class OnlyReads:
    """A stream without hash and without weak references, which cannot seek."""

    __slots__ = ("file",)
    __hash__ = None  # type: ignore[assignment]  # on purpose

    def __init__(self, data: bytes) -> None:
        self.file = io.BytesIO(data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OnlyReads)

    def read(self, size: int) -> bytes:
        """Read."""
        return self.file.read(size)


class Peculiar(OnlyReads):
    """A file object without hash and without weak references, and slow to read."""

    __slots__ = ()

    def read(self, size: int = -1) -> bytes:
        """Read, after others had the time to move the file."""
        time.sleep(0.0002)
        return super().read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to an offset."""
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        """Return the offset."""
        return self.file.tell()


class OwnFile(io.BytesIO):
    """A file of somebody's own, whose reads may return any kind of buffer."""

    def __init__(self, data: bytes = LARGE, kind: Callable[[bytes], Any] = bytes) -> None:
        super().__init__(data)
        self.kind = kind
        self.seek(START)

    def read(self, size: int | None = -1, /) -> Any:
        """Read."""
        return self.kind(super().read(size))


class AsyncSeekable:
    """Somebody's own file with asynchronous methods."""

    def __init__(self, data: bytes) -> None:
        self.file = io.BytesIO(data)

    async def read(self, size: int = -1) -> bytes:
        """Read."""
        await anyio.lowlevel.checkpoint()
        return self.file.read(size)

    async def seek(self, offset: int, whence: int = 0) -> int:
        """Go to an offset."""
        await anyio.lowlevel.checkpoint()
        return self.file.seek(offset, whence)

    async def tell(self) -> int:
        """Return the offset."""
        await anyio.lowlevel.checkpoint()
        return self.file.tell()


class Producer:
    """An async generator function that says how far it was read, and whether it was closed."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = items
        self.given = 0
        self.closed = False

    async def __call__(self) -> AsyncGenerator[Any, None]:
        """Produce; an exception among the items is raised."""
        try:
            for item in self.items:
                await anyio.lowlevel.checkpoint()
                if isinstance(item, Exception):
                    raise item
                self.given += 1
                yield item
        finally:
            self.closed = True


def pieces(data: bytes, size: int = 70_000) -> list[bytes]:
    """Cut data up."""
    return [data[start : start + size] for start in range(0, len(data), size)]


Make = Callable[[AsyncExitStack, bytes, Path], Opened]


def _itself(value: Any) -> Any:
    return value


def _whole(make: Callable[[bytes], Any]) -> Make:
    return lambda _stack, data, _path: Opened(make(data), data)


def _stream(make: Callable[[bytes], Any]) -> Make:
    return lambda _stack, data, _path: Opened(make(data), data, is_stream=True)


def _object(make: Callable[[bytes], Any], inside: Callable[[Any], Any] = _itself) -> Make:
    """Make a file object in memory; what is inside stands at the offset."""

    def made(stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
        value = make(data)
        file = inside(value)
        file.seek(START)
        if hasattr(file, "close"):
            stack.callback(file.close)
        return Opened(value, data[START:], file)

    return made


def _file(make: Callable[[Path], Any]) -> Make:
    """Open a file on disk; some of what comes next may be in its buffer."""

    def made(stack: AsyncExitStack, data: bytes, path: Path) -> Opened:
        file = stack.enter_context(make(path))
        file.read(START)
        return Opened(file, data[START:], file)

    return made


def _gzip(path: Path) -> Any:
    packed = path.with_suffix(".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return gzip.open(packed)


def _filled(make: Callable[[], Any], wrap: Callable[[Any], Any] = _itself) -> Make:
    """Write into a temporary file; upload that, or what a framework's parser makes of it."""

    def made(stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
        file = stack.enter_context(make())
        file.write(data)
        file.seek(START)
        return Opened(wrap(file), data[START:], file)

    return made


_upload = partial(_filled, partial(tempfile.SpooledTemporaryFile, 100_000))


def of_fastapi(file: Any, name: str = "deck.pdf") -> Any:
    """Make an upload; imported late: where its dependencies do not load, others still run."""
    from fastapi import UploadFile

    return UploadFile(file, filename=name)


def _pipe(stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
    read_end, write_end = os.pipe()

    def feed() -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(write_end, "wb") as file:
            file.write(data)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    file = os.fdopen(read_end, "rb")
    stack.callback(thread.join, 10)
    stack.callback(file.close)
    return Opened(file, data, is_stream=True)


def _once(_stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
    stream = Producer(pieces(data))()
    document = Document.from_stream(stream, "deck.pdf", size=len(data), replayable=False)
    return Opened(document, data, stream, is_stream=True)


def _async_seekable(_stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
    file = AsyncSeekable(data)
    file.file.seek(START)
    return Opened(file, data[START:], is_stream=True)


def _link(_stack: AsyncExitStack, _data: bytes, _path: Path) -> Opened:
    url = "https://files.example.com/deck.pdf?token=hush"
    return Opened(Document.from_link(url), url.encode())


KINDS: dict[str, Make] = {
    "path": lambda _stack, data, path: Opened(path, data),
    "bytes": _whole(bytes),
    "BytesIO": _object(io.BytesIO),
    "open file": _file(lambda path: path.open("rb")),
    "unbuffered file": _file(lambda path: path.open("rb", buffering=0)),
    "file open for writing, too": _file(lambda path: path.open("r+b")),
    "SpooledTemporaryFile in memory": _filled(tempfile.SpooledTemporaryFile),
    "SpooledTemporaryFile on disk": _filled(partial(tempfile.SpooledTemporaryFile, 1)),
    "NamedTemporaryFile": _filled(tempfile.NamedTemporaryFile),
    "gzip": _file(_gzip),
    "no hash, no weak references": _object(Peculiar),
    "reads of bytearray": _object(partial(OwnFile, kind=bytearray)),
    "Starlette": _upload(lambda file: StarletteUpload(file, filename="deck.pdf")),
    "FastAPI": _upload(of_fastapi),
    "Litestar": _object(
        lambda data: LitestarUpload("application/pdf", "deck.pdf", data, max_spool_size=100_000),
        inside=lambda upload: upload.file,
    ),
    "werkzeug": _upload(lambda file: FileStorage(file, "deck.pdf")),
    "Django InMemoryUploadedFile": _filled(
        io.BytesIO,
        lambda file: InMemoryUploadedFile(file, "document", "deck.pdf", "a/b", 1, None),
    ),
    "Django TemporaryUploadedFile": _filled(
        lambda: TemporaryUploadedFile("deck.pdf", "application/pdf", 1, None)
    ),
    "file given as a stream": _whole(
        lambda data: Document.from_stream(io.BytesIO(data), "deck.pdf")
    ),
    "pipe": _pipe,
    "async generator": _stream(lambda data: Producer(pieces(data))()),
    "generator": _stream(lambda data: (piece for piece in pieces(data))),
    "stream, no hash, no weak references": _stream(OnlyReads),
    "stream sent as it comes": _once,
    "asynchronous file": _async_seekable,
    "link": _link,
}
"""``anyio`` and ``aiofiles`` (on asyncio only) are opened with ``await``."""


@asynccontextmanager
async def opened(kind: str, data: bytes, folder: Path) -> AsyncIterator[Opened]:
    """Open a document of a kind."""
    path = folder / "deck.pdf"
    path.write_bytes(data)
    os.utime(path, OLD)
    async with AsyncExitStack() as stack:
        if kind in KINDS:
            yield KINDS[kind](stack, data, path)
            return
        opening = (
            aiofiles.open(path, "rb") if kind == "aiofiles" else await anyio.open_file(path, "rb")
        )
        file: Any = await stack.enter_async_context(opening)
        await file.seek(START)
        yield Opened(file, data[START:], file._file if kind == "aiofiles" else file.wrapped)


# --- storage -------------------------------------------------------------------------------------

OLD = (1_600_000_000, 1_600_000_000)
"""Times of a file that was written long ago, so that a later write shows."""


def before_calls(
    monkeypatch: pytest.MonkeyPatch,
    path: Path,
    names: Iterable[str],
    happening: Callable[..., object],
) -> None:
    """Let something happen before the system is called, by functions of ``os``, about a file.

    The function gets name and arguments, and may raise; what it returns, if anything, is returned
    instead. ``read`` is ``pread``, or on Windows a read that gets its position, too.
    """
    fstat, stat = os.fstat, os.stat

    def is_it(file: object) -> bool:
        if not isinstance(file, int):
            return isinstance(file, str | os.PathLike) and os.fspath(file) == str(path)
        with contextlib.suppress(OSError):
            return os.path.samestat(fstat(file), stat(path))
        return False

    def patched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, *args: Any, **how: Any) -> Any:
            found = None
            if is_it(file):
                place = [os.lseek(file, 0, os.SEEK_CUR)] if function is read else []
                found = happening(name, file, *args, *place)
            return function(file, *args, **how) if found is None else found

        return call

    read = os.read
    for name in names:
        called = "pread" if name == "read" and hasattr(os, "pread") else name
        monkeypatch.setattr(os, called, patched(name, getattr(os, called)))
