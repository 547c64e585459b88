"""What can be uploaded: what a caller passed, how a document is named, measured, refused."""

from __future__ import annotations

import array
import bz2
import gzip
import io
import lzma
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from django.core.files.uploadedfile import InMemoryUploadedFile  # type: ignore[import-untyped]
from litestar.datastructures import UploadFile as LitestarUpload
from starlette.datastructures import UploadFile as StarletteUpload
from werkzeug.datastructures import FileStorage

from documents.sources import LARGE, START, of_fastapi, opened, prepared_document, sent, uploaded
from meeting_async import Document, MeetingClient, UploadJob
from meeting_async.errors import (
    ConfigurationError,
    DocumentEmpty,
    DocumentTooLarge,
    DocumentTypeRefused,
    InvalidInput,
)
from meeting_async.testing import MeetingServer
from support.fake_rooms import FakeRooms, client_of, refused

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7\nslides\n%%EOF\n".ljust(24)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
URL = "https://files.example.com/deck.pdf?token=hush#page"
PDF_TYPE, SLIDES, BINARY = "application/pdf", "application/x-slides", "application/octet-stream"
OFFICE = "application/vnd.openxmlformats-officedocument."

Make = Callable[[Path], Any]
How = dict[str, Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a document."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(PDF)
    return path


async def refusal(error: type[Exception], value: Any, match: str = ".", **how: Any) -> Any:
    """Return the error with which an upload is refused before anything is sent."""
    rooms = FakeRooms()
    async with client_of(rooms, **how.pop("settings", {})) as client:
        with pytest.raises(error, match=match) as caught:
            await client.upload_whiteboard_file("room01", value, **how)
    assert not rooms.uploads
    return caught.value


def of_bytes(name: str = "deck.pdf", kind: str | None = None) -> Make:
    """Make a document in memory."""
    return lambda _: Document.from_bytes(PDF, name, content_type=kind)


def in_memory(**facts: Any) -> Make:
    """Make a file object that has a name, or other facts about itself."""

    def make(_path: Path) -> Any:
        file = io.BytesIO(PDF)
        vars(file).update(facts)
        return file

    return make


def starlette(filename: str | None, kind: Any = PDF_TYPE) -> Make:
    """Make an upload as Starlette's parser does."""

    def make(_path: Path) -> Any:
        upload = StarletteUpload(io.BytesIO(PDF), filename=filename)
        vars(upload)["headers"] = {"content-type": kind}
        return upload

    return make


UPLOADS: dict[str, Make] = {
    "Starlette": starlette("C:\\Users\\me\\deck.pdf", SLIDES),
    "Litestar": lambda _: LitestarUpload(SLIDES, "deck.pdf", PDF),
    "werkzeug": lambda _: FileStorage(io.BytesIO(PDF), "deck.pdf", content_type=SLIDES),
}


def close(value: Any) -> Any:
    """Close a file, or what an upload of a framework has inside."""
    inside = value.stream if isinstance(value, FileStorage) else getattr(value, "file", value)
    if isinstance(inside, io.IOBase | tempfile.SpooledTemporaryFile):
        inside.close()
    return value


# --- what is a document --------------------------------------------------------------------------


class Decrypting(io.BytesIO):
    """A file that has another one inside, and is what is to be read."""

    file = io.BytesIO(b"secret")


class DecryptingUpload(StarletteUpload):
    """An upload whose own ``read`` is what is to be used."""

    async def read(self, size: int = -1) -> bytes:
        """Read."""
        return PDF if self.file.read(size) else b""


class DecryptingStream:
    """The same around a stream."""

    filename = "deck.pdf"

    def __init__(self, data: bytes) -> None:
        self.stream = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        """Read."""
        return PDF if self.stream.read(size) else b""


NAME: How = {"filename": "deck.pdf"}
OTHER: How = {"filename": "x/other.doc", "content_type": "text/plain"}
SHOWN: dict[str, tuple[Make, How]] = {
    "Path": (Path, {}),
    "str": (str, {}),
    "anyio.Path": (anyio.Path, {}),
    "from_path": (Document.from_path, {}),
    "open file": (lambda path: path.open("rb"), {}),
    "bytes": (lambda _: PDF, NAME),
    "bytearray": (lambda _: bytearray(PDF), NAME),
    "memoryview of words": (lambda _: memoryview(array.array("I", PDF)), NAME),
    "to be read itself": (lambda _: Decrypting(PDF), NAME),
    "upload to be read itself": (lambda _: DecryptingUpload(io.BytesIO(b"x")), NAME),
    "stream to be read itself": (lambda _: DecryptingStream(b"x"), NAME),
    **{
        f"unusable type {kind!r}": (starlette("deck.pdf", kind), {})
        for kind in (None, "", "pdf", BINARY, "a/b\r\nX: y", "é/b", 7)
    },
}
"""What is shown as ``deck.pdf`` and a PDF."""

CALLED: dict[str, tuple[Make, How, str, str]] = {
    "another name": (of_bytes(), {"filename": "c.doc"}, "c.doc", PDF_TYPE),
    "another type": (of_bytes(), {"content_type": "a/b"}, "deck.pdf", "a/b"),
    "both": (of_bytes(), OTHER, "other.doc", "text/plain"),
    "given": (of_bytes("a.doc", f"{SLIDES}; version=2"), {}, "a.doc", f"{SLIDES}; version=2"),
    "capitals": (of_bytes("a.PDF"), {}, "a.PDF", PDF_TYPE),
    "doc": (of_bytes("a.doc"), {}, "a.doc", "application/msword"),
    "pptx": (of_bytes("a.pptx"), {}, "a.pptx", f"{OFFICE}presentationml.presentation"),
    "docx": (of_bytes("a.docx"), {}, "a.docx", f"{OFFICE}wordprocessingml.document"),
    **{name: (of_bytes(name), {}, name, BINARY) for name in ("a.unknown", "a", "pdf")},
    **{name: (make, {}, "deck.pdf", SLIDES) for name, make in UPLOADS.items()},
    **{
        f"{name}, renamed": (make, OTHER, "other.doc", "text/plain")
        for name, make in UPLOADS.items()
    },
    **{what: (make, how, "deck.pdf", PDF_TYPE) for what, (make, how) in SHOWN.items()},
}
"""The name and type that the room sees: of the caller, of the document, guessed from its name."""


@pytest.mark.parametrize("what", CALLED)
async def test_what_is_a_document(path: Path, what: str) -> None:
    """All its bytes, under a name and a type; what the caller says wins, and changes nothing."""
    make, how, name, kind = CALLED[what]
    value = make(path)
    before = repr(value)
    found = await sent(value, **how)
    assert (found.name, found.kind, found.content) == (name, kind, PDF)
    assert repr(value) == before
    close(value)


async def test_bytes_that_change_later_do_not_change_the_document() -> None:
    """A buffer is copied, so that what was checked is what is sent."""
    buffer = bytearray(PDF)
    document = Document.from_bytes(buffer, "deck.pdf")
    buffer[:] = PNG
    assert (await sent(document)).content == PDF


async def test_a_link_becomes_a_document() -> None:
    """It has no size and no type, and neither limits nor its name are looked at."""
    document = Document.from_link(URL)
    assert (document.link, document.content_type) == (URL, None)
    found = await sent(document, settings={"max_size_whiteboard_file": 5})
    assert (found.kind, found.content) == ("", URL.encode())
    assert found.name == "https://files.example.com/deck.pdf?…"
    async with prepared_document(document) as prepared:
        assert prepared.version == (None, None)
        assert "hush" not in f"{document!r} {prepared!r}"
    await sent(Document.from_link("https://files.example.com/photo.png"))


async def test_aiofiles_are_read_by_what_they_wrap(tmp_path: Path) -> None:
    """So they can be sent again, and their position stays (anyio's: all sources)."""
    async with opened("aiofiles", LARGE, tmp_path) as document:
        for _ in range(2):
            assert (await sent(document.value)).content == LARGE[START:]
        assert document.position() == START


# --- what is none --------------------------------------------------------------------------------


async def stream(data: bytes = b"") -> AsyncIterator[bytes]:
    """Produce bytes, or none."""
    yield data


def just(value: object) -> Make:
    """Give a value as it is."""
    return lambda _: value


def closed(make: Make) -> Make:
    """Close a file after it was made."""
    return lambda path: close(make(path))


def of_size(size: Any) -> Make:
    """Make a stream whose size is declared."""
    return lambda _: Document.from_stream(stream(), "a", size=size)


TEXT = r"document is a text file \(got .*'rb'"
STREAM = "stream must be an async iterable"
Row = tuple[Make, How, type[Exception], str]
NO_DOCUMENTS: dict[str, Row] = {
    **{
        f"{value}": (just(value), {}, TypeError, f"not {type(value).__name__}")
        for value in (["deck.pdf"], Document)
    },
    "file of no file": (lambda _: Document.from_file(object()), {}, TypeError, "not object"),  # type: ignore[arg-type]
    "path of bytes": (lambda _: Document.from_path(b"a.pdf"), {}, TypeError, "path must be"),  # type: ignore[arg-type]
    "link of bytes": (lambda _: Document.from_link(b"https://a"), {}, TypeError, "must be a str"),  # type: ignore[arg-type]
    "stream of bytes": (lambda _: Document.from_stream(b"x", "a"), {}, TypeError, STREAM),  # type: ignore[arg-type]
    "file and link": (lambda _: Document(object(), URL, "a"), {}, InvalidInput, "both"),  # type: ignore[arg-type]
    "URL with a password": (
        just("https://anna:hush@a/deck.pdf"), {}, TypeError, r"Document\.from_link",
    ),
    "URL of a bucket": (just("s3://a/deck.pdf?hush"), {}, TypeError, r"Document\.from_link"),
    "type for a link": (
        lambda _: Document.from_link(URL), {"content_type": "a/b"}, InvalidInput,
        "content_type .* link .*'a/b'.*leave it out",
    ),
    "type of two lines": (
        of_bytes(), {"content_type": "a/b\r\nX: y"}, InvalidInput, "content_type"
    ),
    **{
        f"size {size!r}": (of_size(size), {}, InvalidInput, "size .*positive number")
        for size in (-1, 1.5, True, "7")
    },
    "size of a file": (
        lambda _: Document.from_stream(io.BytesIO(), "a", size=7), {}, InvalidInput, "can seek",
    ),
    "empty stream": (lambda _: stream(), NAME, DocumentEmpty, "is empty"),
    "stream of an image": (lambda _: stream(PNG), NAME, DocumentTypeRefused, "PNG image"),
    "upload without a name": (starlette(None), {}, InvalidInput, "filename is needed"),
    **{
        f"name {name!r}": (in_memory(name=name), {}, InvalidInput, "is needed.*'deck.pdf'")
        for name in (7, "<fdopen>", "<stdin>", "", None, b"deck.pdf")
    },
    "response": (
        lambda _: httpx.Response(200), NAME, TypeError, r"aiter_bytes\(\).*not Response"
    ),
    "StringIO": (lambda _: io.StringIO("text"), NAME, TypeError, TEXT),
    "text file": (lambda path: path.open(encoding="utf-8"), NAME, TypeError, TEXT),
    "anyio's text file": (
        lambda path: anyio.wrap_file(path.open(encoding="utf-8")), NAME, TypeError, TEXT,
    ),
    "temporary text file": (
        lambda _: tempfile.SpooledTemporaryFile(mode="w+"), NAME, TypeError, TEXT,  # noqa: SIM115 - closed below
    ),
    "text as stream": (lambda _: Document.from_stream(io.StringIO(), "a"), {}, TypeError, TEXT),  # type: ignore[arg-type]
    "closed file": (
        closed(lambda path: path.open("rb")), NAME, InvalidInput, "is a closed file.*keep it open",
    ),
    **{
        f"closed upload of {name}": (closed(make), {}, InvalidInput, "request is over.*handler")
        for name, make in UPLOADS.items()
    },
    "file for writing": (lambda path: path.open("ab"), {}, InvalidInput, "writing only"),
}  # fmt: skip
"""What cannot be uploaded: the error and its text (more in ``tests/test_mistakes.py``)."""


@pytest.mark.parametrize("what", NO_DOCUMENTS)
async def test_what_is_no_document(path: Path, what: str) -> None:
    """It is refused before anything of it is asked or sent; the error says what it is, and why."""
    make, how, error, said = NO_DOCUMENTS[what]
    try:
        value = make(path)
    except error as refused_at_once:
        told = str(refused_at_once)
    else:
        told = str(await refusal(error, value, **how))
        close(getattr(value, "wrapped", value))
    assert re.search(said, told)
    assert "hush" not in told
    assert path.read_bytes() == PDF


FILES = ["StringIO", "text file", "closed file", "file for writing", "upload without a name"]


@pytest.mark.parametrize("what", FILES)
def test_what_is_no_file(path: Path, what: str) -> None:
    """``from_file`` says the same at once."""
    make, how, error, said = NO_DOCUMENTS[what]
    value = make(path)
    with pytest.raises(error, match=said):
        Document.from_file(value, **how)
    close(value)


@pytest.mark.parametrize("value", [b"%PDF-1.7", "deck.pdf", Path("deck.pdf"), iter([b"%PDF-1.7"])])
def test_what_has_no_read(value: Any) -> None:
    """It is not opened: there are other functions for paths, bytes and streams."""
    with pytest.raises(TypeError, match="file must be an open binary file"):
        Document.from_file(value, filename="deck.pdf")


# --- names ---------------------------------------------------------------------------------------

KEPT = [
    *("deck v1. .pdf", "\u00a0deck.pdf\u00a0", "\u200bdeck.pdf\u200b", "\u202edeck\u202e.pdf"),
    *("\ufeffdeck.pdf\ufeff", "\u2060deck.pdf", "\u3000deck.pdf\u2003", "deck\u00ad.pdf"),
]
CUT = {
    " deck.pdf": "deck.pdf",
    "deck.pdf ": "deck.pdf",
    "...deck.pdf...": "deck.pdf",
    " . deck . v2.pdf . ": "deck . v2.pdf",
    "/srv/files/ .deck.pdf": "deck.pdf",
    "C:\\files\\ deck.pdf ": "deck.pdf",
    " ?.": "_",
    "." * 300 + "deck.pdf": "deck.pdf",
    "deck.pdf" + " ." * 150: "deck.pdf",
    "x" * 199 + " " + "y" * 50: "x" * 199,
    "x" * 199 + ". " + "y" * 50: "x" * 199,
    **dict(zip(KEPT, KEPT, strict=True)),
}
"""Names and what is shown: only blanks and dots around them are cut, as by other servers."""


async def test_the_name_is_the_one_that_the_room_shows() -> None:
    """Of a document, a receipt, a batch's outcome and an error; a server shows the same."""
    server = MeetingServer()
    room = server.add_room("room01")
    with server.run() as url:
        async with MeetingClient(url, api_key="devkey", api_secret="devsecret") as client:
            for name, shown in CUT.items():
                assert Document.from_bytes(PDF, name).filename == shown
                assert Document.from_path(name).filename == shown
                found = await client.upload_whiteboard_file("room01", PDF, filename=name)
                assert found.document == room.received[-1].stored_name == shown
    async with client_of(FakeRooms(lambda _: refused())) as client:
        jobs = [UploadJob("room01", PDF, filename=name) for name in CUT]
        async with client.upload_many(jobs) as batch:
            outcomes = (await batch.wait()).outcomes
    assert [outcome.document for outcome in outcomes] == list(CUT.values())
    assert [getattr(outcome.error, "document", None) for outcome in outcomes] == list(CUT.values())


async def test_a_file_whose_name_is_not_text_can_be_sent_under_another(tmp_path: Path) -> None:
    """Old archives hold names in other encodings; ``filename=`` helps."""
    path = tmp_path / "caf\udce9.pdf"
    path.write_bytes(PDF)
    with pytest.raises(InvalidInput, match="filename"):
        Document.from_path(path)
    assert (await sent(path, filename="café.pdf")).name == "café.pdf"


@contextmanager
def member(kind: str, archive: Path) -> Iterator[Any]:
    """Write an archive with a document, and open the document."""
    name = "week 1/deck.pdf"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr(name, PDF)
        with zipfile.ZipFile(archive) as packed, packed.open(name) as file:
            yield file
        return
    with tarfile.open(archive, "w:gz" if kind == "tar.gz" else "w") as tar:
        about = tarfile.TarInfo(name)
        about.size = len(PDF)
        tar.addfile(about, io.BytesIO(PDF))
    with tarfile.open(archive) as tar:
        found: Any = tar.extractfile(name)
        with io.BufferedReader(found) if kind == "wrapped" else found as file:
            yield anyio.wrap_file(file) if kind == "anyio" else file


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "wrapped", "anyio"])
async def test_a_member_of_an_archive_has_its_own_name(tmp_path: Path, kind: str) -> None:
    """Where Python knows it; otherwise ``filename=`` is demanded. The archive's is never shown."""
    with member(kind, tmp_path / "term.tar") as file:
        if kind == "zip" or sys.version_info >= (3, 12):
            assert (await sent(file)).name == "deck.pdf"
        else:
            told = await refusal(InvalidInput, file)
            assert "filename is needed: the name of this file is that of its archive" in str(told)
        found = await sent(file, filename="deck.pdf")
    assert (found.name, found.content) == ("deck.pdf", PDF)


@pytest.mark.parametrize("module", [gzip, bz2, lzma])
async def test_what_is_decompressed_is_called_so(tmp_path: Path, module: Any) -> None:
    """A document that is unpacked as it is read has not the name of what is packed."""
    for name in ("notes.txt.gz", "notes.txt.bz2", "notes.txt.xz", "notes.txt.lzma"):
        with module.open(tmp_path / name, "wb") as packed:
            packed.write(PDF)
        with module.open(tmp_path / name) as file:
            if module is gzip or sys.version_info >= (3, 13):
                assert (await sent(file)).name == "notes.txt"
            else:
                await refusal(InvalidInput, file, "filename is needed")


BROWSERS = {
    "a%22b%22.pdf": "a_b_.pdf",
    "a%0D%0Ab.pdf": "a__b.pdf",
    "x%2Fdeck.pdf": "x%2Fdeck.pdf",  # a browser does not escape this
    "100%25 %41%0a%22.pdf": "100%25 %41%0a_.pdf",
    'C:\\%22x%22\\deck".pdf': "deck_.pdf",
    "%22": "_",
}
"""Names in a form of a browser, and what the room shows."""


PARSED: dict[str, Callable[[str], Any]] = {
    "Starlette": lambda name: StarletteUpload(io.BytesIO(PDF), filename=name),
    "FastAPI": lambda name: of_fastapi(io.BytesIO(PDF), name),
    "Litestar": lambda name: LitestarUpload(SLIDES, name, PDF),
    "werkzeug": lambda name: FileStorage(io.BytesIO(PDF), name),
    "Django": lambda name: InMemoryUploadedFile(io.BytesIO(PDF), None, name, "a/b", 24, None),
}


@pytest.mark.parametrize("framework", PARSED)
async def test_a_quote_in_a_name_that_a_browser_escaped(framework: str) -> None:
    """``%22``, ``%0D`` and ``%0A`` become what they were, then ``_``; nothing else is unescaped.

    A name that is not from a form stays as it is.
    """
    for name, shown in BROWSERS.items():
        upload = PARSED[framework](name)
        assert (await sent(upload)).name == shown
        assert (await sent(upload, filename="a%22b.pdf")).name == "a%22b.pdf"
        close(upload)
    assert Document.from_path("a%22b.pdf").filename == "a%22b.pdf"
    assert Document.from_file(in_memory(name="a%22b.pdf")(Path())).filename == "a%22b.pdf"


# --- sizes ---------------------------------------------------------------------------------------


def both(path: Path, data: bytes, name: str = "deck.pdf") -> list[Document]:
    """Make a document in memory and one on disk."""
    path.write_bytes(data)
    return [Document.from_bytes(data, name), Document.from_path(path, filename=name)]


@pytest.mark.parametrize("size", [0, 1000, 1001])
async def test_sizes_against_the_limit(path: Path, size: int) -> None:
    """Equality is allowed, as on the server; without a limit every size is, but none at all."""
    for document in both(path, b"x" * size):
        for limit in (None, 1000):
            settings = {"max_size_whiteboard_file": limit}
            if size == 0:
                await refusal(DocumentEmpty, document, "is empty", settings=settings)
            elif limit and size > limit:
                error = await refusal(DocumentTooLarge, document, settings=settings)
                assert (error.document, error.size, error.limit) == ("deck.pdf", size, limit)
            else:
                await sent(document, settings=settings)


@pytest.mark.parametrize(
    ("limit", "size"),
    [
        *((1, 1), (10**20, 10**20), ("1", 1), ("0031", 31), ("512 b", 512), ("4KiB", 4_096)),
        *((" 30 mib\n", 31_457_280), ("2GiB", 2_147_483_648)),
    ],
)
async def test_limits(limit: str | int, size: int) -> None:
    """Bytes, or a number with a unit of powers of 1024; what is too large is not read."""
    document = Document.from_stream(stream(), "a", size=size + 1, replayable=False)
    settings = {"max_size_whiteboard_file": limit}
    error = await refusal(DocumentTooLarge, document, settings=settings)
    assert (error.size, error.limit) == (size + 1, size)


@pytest.mark.parametrize(
    "text",
    [
        *(0, -1, True, 1.5, b"30", "", " ", "0", "0MiB", "-1", "+1", "1.5MiB", "1e6"),
        *("30MB", "30M", "30kB", "30 TiB", "MiB", "30MiB30", "30 Mi B", "\u0663\u0660MiB"),
        *("\uff11MiB", "9" * 16, "0x10", "1_000", "30MiB\0"),
    ],
)
def test_unusable_limits_are_named(text: Any) -> None:
    """Decimal units are refused instead of guessed: servers of this kind count in 1024²."""
    with pytest.raises(ConfigurationError) as caught:
        client_of(FakeRooms(), max_size_whiteboard_file=text)
    assert caught.value.field == "max_size_whiteboard_file"
    assert caught.value.value == repr(text)
    assert "30MiB" in caught.value.fix


# --- images --------------------------------------------------------------------------------------

FILLER = bytes(range(1, 33))
IMAGES = {
    b"\x89PNG\r\n\x1a\n": "PNG image",
    b"\xff\xd8\xff\xe0\0\x10JFIF\0": "JPEG image",
    b"\xff\xd8\xff\xe1": "JPEG image",
    b"GIF87a": "GIF image",
    b"GIF89a": "GIF image",
    b"RIFF\x24\x00\x00\x00WEBPVP8 ": "WebP image",
    b"RIFF\n\n\n\nWEBPVP8L": "WebP image",
    b"BM\x36\x10\x0e\x00\0\0\0\0\x36\0\0\0": "BMP image",
    b"II*\0\x08\0\0\0": "TIFF image",
    b"MM\0*\0\0\0\x08": "TIFF image",
    b"\0\0\0\x1cftypavif\0\0\0\0": "HEIF image",
    b"\0\0\0\x18ftypheic\0\0\0\0": "HEIF image",
    b"\0\0\1\0\x01\0\x10\x10\0\0\1\0\x20\0": "icon",
}
DOCUMENTS = [b"%PDF-1.7\n", b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"{\\rtf1"]
NEAR_MISSES = [
    *(b"G", b"GIF88a", b"GIF8", b"\x89PNG\n\x1a\n", b"BMW", b"\xff\xd8", b"\xff\xfe\xff"),
    *(b"BM is how this text begins, and more", b"RIFF\x24\x00\x00\x00WAVEfmt "),
    *(b"II, the second part of the story", b"MM and so on, for the rest of it"),
    *(b"\0\0\0\x18ftypisom\0\0\0\0", b"\0\1\0\0\0\x0f\0\x80", b"x\x89PNG\r\n\x1a\n"),
    b"\n\xff\xd8\xff",
]
FIRST_BYTES: dict[bytes, str | None] = {
    **{(magic + FILLER)[:32]: kind for magic, kind in IMAGES.items()},
    **{magic + FILLER: None for magic in DOCUMENTS},
}


async def image_kind(data: bytes, name: str) -> str | None:
    """Tell as which kind of image a document is refused, in memory; ``None``: it is not."""
    document = Document.from_bytes(data, name)
    assert await uploaded(document) == data
    try:
        await uploaded(document, allow_images=False)
    except DocumentTypeRefused as error:
        is_told = error.document == document.filename and "allow_images" in str(error)
        return error.kind if is_told else str(error)
    return None


@pytest.mark.parametrize(("data", "kind"), FIRST_BYTES.items())
async def test_the_first_bytes_tell_images(data: bytes, kind: str | None) -> None:
    """Whatever they are called, as for the server; the error names the kind."""
    for name in ("scan.pdf", "scan", "scan.png", "scan.JPG"):
        assert await image_kind(data, name) == kind


async def test_images_by_their_names() -> None:
    """Where the bytes are not those of a known kind, the name counts; near misses are none."""
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    images = ["png", "PNG", "jpg", "JPeG", "gif", "bmp", "webp", "tif", "tiff", "svg", "ico"]
    for suffix in [*images, "heic", "avif"]:
        for name in (f"a.{suffix}", f"archive.tar.{suffix}"):
            assert await image_kind(svg, name) == f"{suffix.upper()} image by its name"
    for name in ("a.pdf", "png", "a.png.pdf", "a.pngx", "apng", "a."):
        assert await image_kind(svg, name) is None
    assert [data for data in NEAR_MISSES if await image_kind(data, "notes.txt")] == []


async def test_images_are_refused_unless_they_are_allowed(path: Path) -> None:
    """By an upload: nothing of them is sent."""
    for data, name in ((PNG, "deck.pdf"), (b"????", "a.JPG")):
        for document in both(path, data, name):
            await refusal(DocumentTypeRefused, document, "allow_images")
            assert (await sent(document, settings={"allow_images": True})).content == data


# --- links ---------------------------------------------------------------------------------------

LONG = "https://files.example.com/"
NO_URL = "not an http(s) URL"
OF_NO_IP = ["[a]"] if sys.version_info >= (3, 11, 4) else []
"""Hosts in brackets that are none; before that version Python took them."""
LINKS: dict[str, str] = {
    **dict.fromkeys(
        [
            "https://files.example.com/deck.pdf",
            "HTTPS://FILES.EXAMPLE.COM/DECK.PDF",
            "http://files.example.com",
            "https://files.example.com:8443/a?b=c&d=%20#e",
            "https://[2001:db8::1]:8443/deck.pdf",
            "https://xn--bcher-kva.example/%C3%BC.pdf",
            "https://files.example.com/@anna/deck.pdf?mail=anna@example.com",
            LONG.ljust(8192, "a"),
        ],
        "",
    ),
    **dict.fromkeys(["", "/srv/deck.pdf", "//a/deck.pdf", "javascript:alert(1)"], NO_URL),
    **dict.fromkeys(["ftp://a/b", "https:/a/b", "https://:443/a", "https://?a"], NO_URL),
    **{
        f"https://{host}/a": "not a URL"
        for host in ("a:port", "a:65536", "[2001:db8::1", *OF_NO_IP)
    },
    **{f"https://{user}@a/b": "user name or password" for user in ("anna:hush", "anna", "")},
    **{f"https://a/b{char}c": "control" for char in "\r\n\t\0\x7f"},
    **{f"https://a/b{end}": "blanks" for end in (" c", " ", "\n")},
    **{f"https://{odd}": "non-ASCII" for odd in ("a/ü.pdf", "bücher.example/", "a/\ud800")},
    LONG.ljust(8193, "a"): "longer than 8,192 bytes",
}
"""Links, and what is wrong with them."""


@pytest.mark.parametrize(("link", "problem"), LINKS.items(), ids=lambda text: ascii(text)[:60])
def test_links_that_a_server_can_download_from(link: str, problem: str) -> None:
    """Public http(s) URLs, already encoded, of up to 8 KiB; others are refused without a request.

    The error is short, says why and hides a password.
    """
    if not problem:
        assert Document.from_link(link).link == link
        return
    with pytest.raises(InvalidInput) as caught:
        Document.from_link(link)
    assert caught.value.field == "document_link"
    assert problem in caught.value.problem
    assert len(str(caught.value)) < 400
    assert "hush" not in str(caught.value)
