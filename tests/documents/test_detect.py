"""What a caller passed: its kind, its name, its type, and what is refused before any reading."""

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

import anyio
import pytest
from litestar.datastructures import UploadFile as LitestarUpload
from starlette.datastructures import Headers
from starlette.datastructures import UploadFile as StarletteUpload
from werkzeug.datastructures import FileStorage

from meeting_async._documents.detect import detect, detect_stream
from meeting_async._documents.document import Document
from meeting_async._documents.file_objects import FileObjectSource
from meeting_async._documents.files import OpenFileSource, PathSource
from meeting_async._documents.source import BytesSource
from meeting_async._documents.streams import StreamSource
from meeting_async.errors import InvalidInput
from support.sources import LARGE, START, AsyncSeekable, opened, uploaded

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
        """Return nothing."""
        return b""


def source_of(value: object) -> Any:
    """Tell which kind of source a value is."""
    found = detect(value)
    return found.source if found else None


# --- kinds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"x", BytesSource),
        (bytearray(b"x"), BytesSource),
        (memoryview(b"x"), BytesSource),
        ("deck.pdf", PathSource),
        (Path("deck.pdf"), PathSource),
        (io.BytesIO(b"x"), FileObjectSource),
        (tempfile.SpooledTemporaryFile(), FileObjectSource),  # noqa: SIM115 - in memory
        (Reads(), StreamSource),
        (AsyncSeekable(b"x"), StreamSource),
    ],
)
def test_each_kind_is_detected(value: object, kind: type) -> None:
    """By what it can do."""
    assert type(source_of(value)) is kind


async def test_an_asynchronous_iterable_is_a_stream() -> None:
    """Generators, and whatever makes an asynchronous iterator."""
    generator = produce()
    assert type(source_of(generator)) is StreamSource
    await generator.aclose()  # type: ignore[attr-defined]
    assert source_of(SimpleNamespace()) is None


@pytest.mark.parametrize(("mode", "buffering"), [("rb", 0), ("rb", -1), ("r+b", 0), ("r+b", -1)])
def test_regular_files_are_read_by_their_descriptor(path: Path, mode: str, buffering: int) -> None:
    """Buffered or not, writable or not."""
    with path.open(mode, buffering=buffering) as file:
        source = source_of(file)
    assert isinstance(source, OpenFileSource)
    assert source.file is file


def test_a_named_temporary_file_is_kept() -> None:
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
        assert type(source_of(file)) is FileObjectSource


def test_a_wrapper_of_somebodys_own_is_read_through() -> None:
    """What has a ``file`` inside may be decrypting it: its own ``read`` is used."""

    class Decrypting(io.BytesIO):
        file = io.BytesIO(b"secret")

    value = Decrypting(b"x")
    assert source_of(value).shared.file is value

    class DecryptingUpload(StarletteUpload):
        async def read(self, size: int = -1) -> bytes:
            return b"plain"

    class DecryptingStream(Reads):
        stream = io.BytesIO(b"secret")
        filename = "deck.pdf"

    for wrapper in (DecryptingUpload(io.BytesIO(b"secret")), DecryptingStream()):
        assert source_of(wrapper).stream is wrapper


def test_a_pipe_is_a_stream() -> None:
    """It cannot seek."""
    read_end, write_end = os.pipe()
    os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        assert type(source_of(file)) is StreamSource


async def test_aiofiles_and_anyio_are_read_by_what_they_wrap(tmp_path: Path) -> None:
    """So they go to many rooms at once, and their position stays."""
    for kind in ("aiofiles", "anyio"):
        async with opened(kind, LARGE, tmp_path) as document:
            assert isinstance(source_of(document.value), OpenFileSource)
            assert Document.of(document.value).filename == "deck.pdf"
            contents: list[bytes] = []

            async def upload(value: Any, contents: list[bytes]) -> None:
                contents.append(await uploaded(value, 2))

            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(upload, document.value, contents)
            assert contents == [LARGE[START:]] * 20
            assert document.position
            assert document.position() == START


@pytest.mark.parametrize("kind", [StarletteUpload, FileStorage])
def test_uploads_are_read_by_what_they_hold(kind: Any) -> None:
    """Not by methods that hop through the framework's threads."""
    inside = io.BytesIO(PDF)
    assert source_of(kind(inside, filename="deck.pdf")).shared.file is inside


@pytest.mark.parametrize(
    "value", [None, 1, object(), [b"x"], {"a": 1}, produce, Reads, (b for b in [b"x"]), print]
)
def test_other_things_are_nothing(value: object) -> None:
    """Classes and functions that were not called, iterators that are not asynchronous."""
    assert detect(value) is None


@pytest.mark.parametrize("value", [None, b"x", "deck.pdf", [b"x"]])
def test_what_is_not_a_stream_is_named(value: Any) -> None:
    """With its type."""
    with pytest.raises(TypeError, match=f"stream must be .* not {type(value).__name__}"):
        detect_stream(value)


# --- names and types -----------------------------------------------------------------------------


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
    with pytest.raises(InvalidInput, match="filename is needed"):
        Document.of(starlette(None, "application/pdf"))


# --- what is refused -----------------------------------------------------------------------------


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


def closed(file: Any) -> Any:
    """Close a file."""
    file.close()
    return file


def test_closed_files_are_refused(path: Path) -> None:
    """Before anything is asked of them."""
    for file in (closed(path.open("rb")), closed(io.BytesIO(PDF))):
        with pytest.raises(InvalidInput, match="is a closed file") as caught:
            Document.of(file, filename="deck.pdf")
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
