"""What somebody handed us: its kind, its name, its type, and what is refused before any reading."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiofiles  # type: ignore[import-untyped]
import anyio
import pytest
from litestar.datastructures import UploadFile as LitestarUpload
from starlette.datastructures import Headers
from starlette.datastructures import UploadFile as StarletteUpload
from werkzeug.datastructures import FileStorage

from meeting_async import Document
from meeting_async._files import OpenFileSource, PathSource
from meeting_async._handles import AsyncHandleSource, HandleSource
from meeting_async._recognition import recognised, stream_in
from meeting_async._sources import BytesSource
from meeting_async._streams import StreamSource
from meeting_async.errors import InvalidInput

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7\nslides\n%%EOF\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a document."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(PDF)
    return path


async def produce() -> AsyncIterator[bytes]:
    """Yield a document."""
    yield PDF


class Reads:
    """Only reads."""

    def read(self, size: int = -1) -> bytes:
        """Bring nothing."""
        return b""


class AsyncReads:
    """Reads, goes and tells, asynchronously."""

    async def read(self, size: int = -1) -> bytes:
        """Bring nothing."""
        return b""

    async def seek(self, offset: int, whence: int = 0) -> None:
        """Go nowhere."""

    async def tell(self) -> int:
        """Be nowhere."""
        return 0


def source_of(value: object) -> object:
    """Tell which kind of source a value is."""
    found = recognised(value)
    return found.source if found else None


# Kinds


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"x", BytesSource),
        (bytearray(b"x"), BytesSource),
        (memoryview(b"x"), BytesSource),
        ("deck.pdf", PathSource),
        (Path("deck.pdf"), PathSource),
        (io.BytesIO(b"x"), HandleSource),
        (tempfile.SpooledTemporaryFile(), HandleSource),  # noqa: SIM115 - in memory
        (Reads(), StreamSource),
        (AsyncReads(), AsyncHandleSource),
    ],
)
def test_each_kind_is_recognised(value: object, kind: type) -> None:
    """By what it can do."""
    assert type(source_of(value)) is kind


async def test_a_generator_is_a_stream() -> None:
    """So is whatever makes an asynchronous iterator."""
    generator = produce()
    assert type(source_of(generator)) is StreamSource
    await generator.aclose()  # type: ignore[attr-defined]
    assert source_of(SimpleNamespace()) is None


@pytest.mark.parametrize("mode", ["rb", "r+b"])
@pytest.mark.parametrize("buffering", [0, -1])
def test_regular_files_are_read_by_their_descriptor(path: Path, mode: str, buffering: int) -> None:
    """Buffered or not, writable or not."""
    with path.open(mode, buffering=buffering) as file:
        source = source_of(file)
    assert isinstance(source, OpenFileSource)
    assert source.file is file


def test_a_named_temporary_file_is_a_file_and_stays() -> None:
    """It is deleted when its owner is gone, so its owner is kept."""
    with tempfile.NamedTemporaryFile() as file:
        source = source_of(file)
        assert isinstance(source, OpenFileSource)
        assert source.owner is file


@pytest.mark.parametrize("open_packed", [gzip.open, bz2.open])
def test_a_packed_file_is_not_its_descriptor(path: Path, open_packed: Any) -> None:
    """Its descriptor has other bytes."""
    with open_packed(path, "rb") as file:
        assert hasattr(file, "fileno")
        assert type(source_of(file)) is HandleSource


def test_a_wrapper_of_somebodys_own_is_read_through() -> None:
    """What has a ``file`` inside may be decrypting it: its own ``read`` is used."""

    class Decrypting(io.BytesIO):
        file = io.BytesIO(b"secret")

    value = Decrypting(b"x")
    source = source_of(value)
    assert isinstance(source, HandleSource)
    assert source.file is value


def test_a_pipe_is_a_stream() -> None:
    """It cannot seek."""
    read_end, write_end = os.pipe()
    os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        assert type(source_of(file)) is StreamSource


async def test_anyio_files_are_read_by_what_they_wrap(path: Path) -> None:
    """On our own threads."""
    async with await anyio.open_file(path, "rb") as file:
        source = source_of(file)
        assert isinstance(source, OpenFileSource)
        assert source.file is file.wrapped


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_aiofiles_are_asynchronous_files(path: Path) -> None:
    """Their threads are their own."""
    async with aiofiles.open(path, "rb") as file:
        assert type(source_of(file)) is AsyncHandleSource
        assert Document.of(file).filename == "deck.pdf"


@pytest.mark.parametrize("kind", [StarletteUpload, FileStorage])
def test_uploads_are_read_by_what_they_hold(kind: Any) -> None:
    """Not by methods that hop through the framework's threads."""
    inside = io.BytesIO(PDF)
    source = source_of(kind(inside, filename="deck.pdf"))
    assert isinstance(source, HandleSource)
    assert source.file is inside


@pytest.mark.parametrize(
    "value", [None, 1, object(), [b"x"], {"a": 1}, produce, Reads, (b for b in [b"x"]), print]
)
def test_other_things_are_nothing(value: object) -> None:
    """Classes and functions that were not called, iterators that are not asynchronous."""
    assert recognised(value) is None


@pytest.mark.parametrize("value", [None, b"x", "deck.pdf", [b"x"]])
def test_what_is_no_stream_is_told(value: Any) -> None:
    """With its type."""
    with pytest.raises(TypeError, match=f"stream must be .* not {type(value).__name__}"):
        stream_in(value)


# Names and types


def starlette(filename: str | None, kind: str | None) -> StarletteUpload:
    """Make an upload as Starlette's parser does."""
    headers = Headers({} if kind is None else {"content-type": kind})
    return StarletteUpload(io.BytesIO(PDF), filename=filename, headers=headers)


@pytest.mark.parametrize(
    "upload",
    [
        starlette("C:\\Users\\me\\deck.pdf", "application/x-slides"),
        LitestarUpload("application/x-slides", "deck.pdf", PDF),
        FileStorage(io.BytesIO(PDF), "deck.pdf", content_type="application/x-slides"),
    ],
    ids=["Starlette", "Litestar", "werkzeug"],
)
def test_an_upload_says_its_name_and_type(upload: Any) -> None:
    """What the caller says wins."""
    document = Document.of(upload)
    assert (document.filename, document.content_type) == ("deck.pdf", "application/x-slides")
    document = Document.of(upload, filename="other.doc", content_type="text/plain")
    assert (document.filename, document.content_type) == ("other.doc", "text/plain")


@pytest.mark.parametrize(
    "kind", [None, "", "pdf", "application/octet-stream", "a/b\r\nX: y", "é/b", 7]
)
def test_an_unusable_type_is_guessed(kind: Any) -> None:
    """One that says nothing, or cannot stand in a header."""
    upload = starlette("deck.pdf", None)
    upload.__dict__["headers"] = {"content-type": kind}
    assert Document.of(upload).content_type == "application/pdf"


def test_a_file_says_its_name(path: Path) -> None:
    """Its last component; the type is guessed from it."""
    with path.open("rb") as file:
        document = Document.from_file(file)
    assert (document.filename, document.content_type) == ("deck.pdf", "application/pdf")


@pytest.mark.parametrize("name", [7, "<fdopen>", "<stdin>", "", None, b"deck.pdf"])
def test_an_unusable_name_must_be_given(name: Any) -> None:
    """The number of a descriptor is none."""
    file = io.BytesIO(PDF)
    file.name = name
    with pytest.raises(InvalidInput, match="filename is needed") as caught:
        Document.of(file)
    assert (caught.value.field, "deck.pdf" in caught.value.fix) == ("filename", True)
    assert Document.of(file, filename="deck.pdf").filename == "deck.pdf"


def test_an_upload_without_a_name_needs_one() -> None:
    """A form's field may come without."""
    with pytest.raises(InvalidInput, match="filename is needed"):
        Document.of(starlette(None, "application/pdf"))


# What is refused


@pytest.mark.parametrize(
    "make",
    [
        lambda path: io.StringIO("text"),
        lambda path: path.open(encoding="utf-8"),
        lambda path: tempfile.SpooledTemporaryFile(mode="w+"),  # noqa: SIM115 - closed by the test
        lambda path: io.TextIOWrapper(io.BytesIO()),
    ],
)
def test_text_files_are_refused(path: Path, make: Any) -> None:
    """Their bytes are unknown; the error says how to open them."""
    with make(path) as file:
        for use in (Document.of, Document.from_file):
            with pytest.raises(TypeError, match=r"document is a text file \(got .*'rb'"):
                use(file, filename="deck.pdf")
        with pytest.raises(TypeError, match="text file"):
            Document.from_stream(file, "deck.pdf")


async def test_asynchronous_text_files_are_refused(path: Path) -> None:
    """Whatever wraps them."""
    async with await anyio.open_file(path, encoding="utf-8") as file:
        with pytest.raises(TypeError, match="text file"):
            Document.of(file)


def closed_file(path: Path) -> Any:
    """Open a file and close it."""
    with path.open("rb") as file:
        return file


def closed_bytes(_path: Path) -> Any:
    """Close a file in memory."""
    with io.BytesIO(PDF) as file:
        return file


@pytest.mark.parametrize("make", [closed_file, closed_bytes])
def test_closed_files_are_refused(path: Path, make: Any) -> None:
    """Before anything is asked of them."""
    with pytest.raises(InvalidInput, match="is a closed file") as caught:
        Document.of(make(path), filename="deck.pdf")
    assert caught.value.field == "document"
    assert "keep it open" in caught.value.fix


@pytest.mark.parametrize(
    "make",
    [
        lambda: starlette("deck.pdf", None),
        lambda: LitestarUpload("a/b", "deck.pdf", PDF),
        lambda: FileStorage(io.BytesIO(PDF), "deck.pdf"),
    ],
)
def test_closed_uploads_are_refused(make: Any) -> None:
    """With what has probably happened (fastapi#10857)."""
    upload = make()
    (upload.stream if isinstance(upload, FileStorage) else upload.file).close()
    with pytest.raises(InvalidInput, match="request is over") as caught:
        Document.of(upload)
    assert "handler" in caught.value.fix


@pytest.mark.parametrize("buffering", [0, -1])
def test_files_for_writing_are_refused(path: Path, buffering: int) -> None:
    """With the mode that is needed."""
    with (
        path.open("ab", buffering=buffering) as file,
        pytest.raises(InvalidInput, match="writing only"),
    ):
        Document.of(file)
    assert path.read_bytes() == PDF


@pytest.mark.parametrize(
    ("mode", "is_fine"), [("wb", False), ("rb", True), ("w+b", True), (1, True)]
)
def test_a_mode_is_asked_where_nothing_else_can_be(mode: Any, is_fine: bool) -> None:
    """Files of somebody's own may have no ``readable()``."""
    file = Reads()
    file.mode = mode  # type: ignore[attr-defined]
    if is_fine:
        assert Document.of(file, filename="deck.pdf").filename == "deck.pdf"
        return
    with pytest.raises(InvalidInput, match="writing only"):
        Document.of(file, filename="deck.pdf")
