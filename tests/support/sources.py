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
from pathlib import Path
from typing import Any

import aiofiles  # type: ignore[import-untyped]
import anyio
import anyio.lowlevel
import attrs
import django.conf  # type: ignore[import-untyped]
from django.core.files.uploadedfile import (  # type: ignore[import-untyped]
    InMemoryUploadedFile,
    SimpleUploadedFile,
    TemporaryUploadedFile,
)
from fastapi import UploadFile as FastAPIUpload
from litestar.datastructures import UploadFile as LitestarUpload
from quart.datastructures import FileStorage as QuartUpload
from starlette.datastructures import UploadFile as StarletteUpload
from werkzeug.datastructures import FileStorage

from meeting_async import Document
from meeting_async._documents.document import as_document
from meeting_async._documents.prepared import MultipartBody, Prepared, prepare
from support.fake_rooms import FakeRooms, client_of

if not django.conf.settings.configured:
    django.conf.settings.configure(DATA_UPLOAD_MAX_MEMORY_SIZE=None)

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
    position: Callable[[], Any] | None = None
    """Where the file stands, if it has a position."""
    is_stream: bool = False
    """Whether it is good for one upload only."""


class Peculiar:
    """A file object without hash and without weak references, and slow to seek."""

    __slots__ = ("file",)
    __hash__ = None  # type: ignore[assignment]  # on purpose

    def __init__(self, data: bytes) -> None:
        self.file = io.BytesIO(data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Peculiar)

    def read(self, size: int = -1) -> bytes:
        """Read, after others had the time to move the file."""
        time.sleep(0.0002)
        return self.file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to an offset."""
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        """Return the offset."""
        return self.file.tell()


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

    def __init__(self, items: Iterable[Any], *, pause: float = 0.0) -> None:
        self.items = items
        self.pause = pause
        self.given = 0
        self.closed = False

    async def __call__(self) -> AsyncGenerator[Any, None]:
        """Produce; an exception among the items is raised."""
        try:
            for item in self.items:
                await anyio.sleep(self.pause)
                if isinstance(item, Exception):
                    raise item
                self.given += 1
                yield item
        finally:
            self.closed = True


def pieces(data: bytes, size: int = 70_000) -> list[bytes]:
    """Cut data up."""
    return [data[start : start + size] for start in range(0, len(data), size)]


def _at(file: Any, data: bytes) -> Any:
    """Fill a file and leave it at the offset."""
    file.write(data)
    file.seek(START)
    return file


def _file(file: Any, data: bytes, wrapper: Any = None) -> Opened:
    return Opened(file if wrapper is None else wrapper, data[START:], file.tell)


Make = Callable[[AsyncExitStack, bytes, Path], Opened]


def _path(_stack: AsyncExitStack, data: bytes, path: Path) -> Opened:
    return Opened(path, data)


def _of_bytes(kind: Callable[[bytes], Any]) -> Make:
    return lambda _stack, data, _path: Opened(kind(data), data)


def _bytes_io(_stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
    return _file(_at(io.BytesIO(), data), data)


def _open_file(buffering: int, mode: str) -> Make:
    def make(stack: AsyncExitStack, data: bytes, path: Path) -> Opened:
        file = stack.enter_context(path.open(mode, buffering=buffering))
        file.read(START)
        return _file(file, data)

    return make


def _spooled(limit: int) -> Make:
    def make(stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
        file = tempfile.SpooledTemporaryFile(limit)  # noqa: SIM115 - the stack closes it
        return _file(_at(stack.enter_context(file), data), data)

    return make


def _named_temporary(stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
    return _file(_at(stack.enter_context(tempfile.NamedTemporaryFile()), data), data)


def _gzip(stack: AsyncExitStack, data: bytes, path: Path) -> Opened:
    packed = path.with_suffix(".gz")
    packed.write_bytes(gzip.compress(data))
    file = gzip.open(packed)  # noqa: SIM115 - the stack closes it
    stack.callback(file.close)
    file.seek(START)
    return _file(file, data)


def _peculiar(_stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
    file = Peculiar(data)
    file.seek(START)
    return _file(file, data)


def _upload(wrap: Callable[[Any], Any]) -> Make:
    """Make an upload object around a spooled temporary file, as the frameworks' parsers do."""

    def make(stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
        file = tempfile.SpooledTemporaryFile(100_000)  # noqa: SIM115 - the stack closes it
        return _file(_at(stack.enter_context(file), data), data, wrap(file))

    return make


def _litestar(stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
    upload = LitestarUpload("application/pdf", "deck.pdf", data, max_spool_size=100_000)
    stack.callback(upload.file.close)
    upload.file.seek(START)
    return _file(upload.file, data, upload)


def _django_simple(_stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
    upload = SimpleUploadedFile("deck.pdf", data)
    upload.seek(START)
    return _file(upload, data)


def _django_memory(_stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
    file = _at(io.BytesIO(), data)
    upload = InMemoryUploadedFile(file, "document", "deck.pdf", "application/pdf", len(data), None)
    return _file(file, data, upload)


def _django_temporary(stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
    upload = TemporaryUploadedFile("deck.pdf", "application/pdf", len(data), None)
    stack.callback(upload.close)
    return _file(_at(upload, data), data)


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


def _generator(_stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
    return Opened(Producer(pieces(data))(), data, is_stream=True)


def _once(_stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
    stream = Producer(pieces(data))()
    document = Document.from_stream(stream, "deck.pdf", size=len(data), replayable=False)
    return Opened(document, data, is_stream=True)


def _async_seekable(_stack: AsyncExitStack, data: bytes, _path: Path) -> Opened:
    file = AsyncSeekable(data)
    file.file.seek(START)
    return Opened(file, data[START:], is_stream=True)


def _link(_stack: AsyncExitStack, _data: bytes, _path: Path) -> Opened:
    url = "https://files.example.com/deck.pdf?token=hush"
    return Opened(Document.from_link(url), url.encode())


KINDS: dict[str, Make] = {
    "path": _path,
    "bytes": _of_bytes(bytes),
    "bytearray": _of_bytes(bytearray),
    "memoryview": _of_bytes(memoryview),
    "BytesIO": _bytes_io,
    "open file": _open_file(-1, "rb"),
    "unbuffered file": _open_file(0, "rb"),
    "file open for writing, too": _open_file(-1, "r+b"),
    "SpooledTemporaryFile in memory": _spooled(10_000_000),
    "SpooledTemporaryFile on disk": _spooled(1),
    "NamedTemporaryFile": _named_temporary,
    "gzip": _gzip,
    "no hash, no weak references": _peculiar,
    "Starlette": _upload(lambda file: StarletteUpload(file, filename="deck.pdf")),
    "FastAPI": _upload(lambda file: FastAPIUpload(file, filename="deck.pdf")),
    "Litestar": _litestar,
    "werkzeug": _upload(lambda file: FileStorage(file, "deck.pdf")),
    "Quart": _upload(lambda file: QuartUpload(file, "deck.pdf")),
    "Django SimpleUploadedFile": _django_simple,
    "Django InMemoryUploadedFile": _django_memory,
    "Django TemporaryUploadedFile": _django_temporary,
    "pipe": _pipe,
    "async generator": _generator,
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
    os.utime(path, (1_600_000_000, 1_600_000_000))  # so that a later write shows
    async with AsyncExitStack() as stack:
        if kind in KINDS:
            yield KINDS[kind](stack, data, path)
        elif kind == "aiofiles":
            file = await stack.enter_async_context(aiofiles.open(path, "rb"))
            await file.seek(START)
            yield Opened(file, data[START:], file._file.tell)
        else:
            async with await anyio.open_file(path, "rb") as file:
                await file.seek(START)
                yield Opened(file, data[START:], file.wrapped.tell)
