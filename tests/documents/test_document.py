"""What can be uploaded: what a caller passed, how a document is named, measured, refused."""

from __future__ import annotations

import array
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from litestar.datastructures import UploadFile as LitestarUpload
from starlette.datastructures import Headers
from starlette.datastructures import UploadFile as StarletteUpload
from werkzeug.datastructures import FileStorage

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
from support.sources import LARGE, START, attempt, opened, prepared_document, sent, uploaded

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7\nslides\n%%EOF\n"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
URL = "https://files.example.com/deck.pdf?token=hush#page"
BINARY = "application/octet-stream"
OFFICE = "application/vnd.openxmlformats-officedocument."


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


# --- making one ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [Path, str, os.fspath, anyio.Path, Document.from_path, lambda path: path.open("rb")]
)
async def test_a_path_or_file_becomes_a_document(path: Path, make: Callable[[Path], Any]) -> None:
    """The room shows its last component, and the type is guessed from it."""
    found = await sent(value := make(path))
    assert (found.name, found.kind, found.content) == ("deck.pdf", "application/pdf", PDF)
    if isinstance(value, io.IOBase):
        value.close()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_bytes_become_a_document(kind: Any) -> None:
    """Bytes of any kind, under the name that is given, which they need."""
    found = await sent(kind(PDF), filename="deck.pdf")
    assert (found.name, found.kind, found.content) == ("deck.pdf", "application/pdf", PDF)
    await refusal(InvalidInput, kind(PDF), "filename is needed")


async def test_bytes_that_change_later_do_not_change_the_document() -> None:
    """A buffer is copied, so that what was checked is what is sent; its items count in bytes."""
    buffer = bytearray(PDF)
    document = Document.from_bytes(buffer, "deck.pdf")
    buffer[:] = PNG
    assert (await sent(document)).content == PDF
    words = array.array("I", [1, 2, 3])
    assert (await sent(memoryview(words), filename="a")).content == words.tobytes()


async def test_a_link_becomes_a_document() -> None:
    """It has no size and no type, and neither limits nor its name are looked at."""
    document = Document.from_link(URL)
    assert (document.link, document.content_type) == (URL, None)
    found = await sent(document, settings={"max_size_whiteboard_file": 5})
    assert (found.name, found.kind, found.content) == (
        *("https://files.example.com/deck.pdf?…", ""),
        URL.encode(),
    )
    async with prepared_document(document, allow_images=False) as prepared:
        assert (prepared.name, prepared.link, prepared.size) == (found.name, URL, None)
        assert prepared.version == (None, None)
        assert await attempt(prepared) == URL.encode()
        assert not prepared.is_consumed
        assert "hush" not in f"{document!r} {prepared!r}"
    await sent(Document.from_link("https://files.example.com/photo.png"))
    with pytest.raises(TypeError, match="str"):
        Document.from_link(b"https://files.example.com/deck.pdf")  # type: ignore[arg-type]


@pytest.mark.parametrize("url", [URL, "s3://bucket/deck.pdf?hush", "https://anna:hush@a/deck.pdf"])
async def test_a_path_that_looks_like_a_url_names_the_right_method(url: str) -> None:
    """A URL in the place of a path is a TypeError that says what to call, and hides secrets."""
    error = await refusal(TypeError, url, r"Document\.from_link")
    assert "hush" not in str(error)
    with pytest.raises(TypeError, match=r"Document\.from_link"):
        Document.from_path(url)


@pytest.mark.parametrize("value", [None, 1, 1.5, ["deck.pdf"], object(), {"a": 1}, Document])
async def test_other_values_are_not_documents(value: Any) -> None:
    """The error says what can be passed, and what was."""
    await refusal(TypeError, value, f"not {type(value).__name__}")
    for make in (Document.from_file, Document.from_path):
        with pytest.raises(TypeError):
            make(value)
    stream: Any = Document.from_stream
    for other in (value, b"x", "deck.pdf"):
        with pytest.raises(TypeError, match=f"stream must be .* not {type(other).__name__}"):
            stream(other, "deck.pdf")
    with pytest.raises(TypeError, match="path"):
        Document.from_path(os.fsencode("deck.pdf"))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="not bytes"):
        Document.from_bytes(value, "deck.pdf")


def test_exactly_one_of_file_and_link() -> None:
    """Both and neither are refused (``docs/interface.md``, Upload, rules 1 and 2)."""
    with pytest.raises(InvalidInput, match="neither"):
        Document()
    source: Any = object()
    with pytest.raises(InvalidInput, match="both"):
        Document(source, URL, "deck.pdf")


# --- names and types -----------------------------------------------------------------------------

CUT = {
    " deck.pdf": "deck.pdf",
    "deck.pdf ": "deck.pdf",
    ".hidden.pdf": "hidden.pdf",
    "...deck.pdf...": "deck.pdf",
    "deck.pdf.": "deck.pdf",
    " . deck . v2.pdf . ": "deck . v2.pdf",
    "/srv/files/ .deck.pdf": "deck.pdf",
    "C:\\files\\ deck.pdf ": "deck.pdf",
    " ?.": "_",
    "." * 300 + "deck.pdf": "deck.pdf",
    " " * 300 + "deck.pdf": "deck.pdf",
    "deck.pdf" + " ." * 150: "deck.pdf",
    "x" * 199 + " " + "y" * 50: "x" * 199,
    "x" * 199 + ". " + "y" * 50: "x" * 199,
}
"""Names and what is shown: without the blanks and dots around them."""

KEPT = [
    *("deck v1. .pdf", "\u00a0deck.pdf\u00a0", "\u200bdeck.pdf\u200b", "\u202edeck\u202e.pdf"),
    *("\ufeffdeck.pdf\ufeff", "\u2060deck.pdf", "\u3000deck.pdf\u2003", "deck\u00ad.pdf"),
]
"""Names that are shown as they are: only blanks and dots are cut."""

SHOWN = {
    **CUT,
    **dict(zip(KEPT, KEPT, strict=True)),
    "../../etc/passwd": "passwd",
    "cafe\u0301.pdf": "caf\u00e9.pdf",
    "\U0001f4ca slides.pdf": "\U0001f4ca slides.pdf",
    'a"b;c?.pdf': "a_b;c_.pdf",
    "a\r\nX: y.pdf": "a__X_ y.pdf",
    "ä" * 300 + ".pdf": "ä" * 98 + ".pdf",
}


@pytest.mark.parametrize(("name", "shown"), SHOWN.items(), ids=lambda name: ascii(name)[:24])
async def test_the_name_is_the_one_that_the_room_shows(name: str, shown: str) -> None:
    """Of a document, a receipt, a batch's outcome and an error; a server shows the same."""
    assert Document.from_bytes(PDF, name).filename == shown
    assert Document.from_path(name).filename == shown
    assert (await sent(PDF, filename=name)).name == shown
    async with client_of(FakeRooms(lambda _: refused())) as client:
        async with client.upload_many([UploadJob("room01", PDF, filename=name)]) as batch:
            (outcome,) = (await batch.wait()).outcomes
    assert outcome.document == getattr(outcome.error, "document", None) == shown


async def test_a_server_shows_the_same() -> None:
    """The one of this package cuts names as others do."""
    server = MeetingServer()
    room = server.add_room("room01")
    with server.run() as url:
        async with MeetingClient(url, api_key="devkey", api_secret="devsecret") as client:
            for name in CUT:
                await client.upload_whiteboard_file("room01", PDF, filename=name)
    assert [one.stored_name for one in room.received] == list(CUT.values())


@pytest.mark.parametrize("name", [" ", ".", "..", ". . .", " ...", "x/ . "])
async def test_a_name_of_blanks_and_dots(name: str) -> None:
    """Nothing would be left of it, so it is refused before anything is sent."""
    assert (await refusal(InvalidInput, PDF, filename=name)).field == "filename"


async def test_a_file_whose_name_is_not_text_can_be_sent_under_another(tmp_path: Path) -> None:
    """Old archives hold names in other encodings; ``filename=`` helps."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.pdf")
    Path(path).write_bytes(PDF)
    with pytest.raises(InvalidInput, match="filename"):
        Document.from_path(path)
    assert (await sent(path, filename="café.pdf")).name == "café.pdf"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.pdf", "application/pdf"),
        ("a.PDF", "application/pdf"),
        ("a.doc", "application/msword"),
        ("a.pptx", OFFICE + "presentationml.presentation"),
        ("a.docx", OFFICE + "wordprocessingml.document"),
        *[(name, BINARY) for name in ("a.unknown", "a", "pdf")],
    ],
)
async def test_the_type_is_guessed_from_the_name(name: str, kind: str) -> None:
    """By the extension, in either case; what the caller says wins."""
    assert (await sent(PDF, filename=name)).kind == kind
    assert Document.from_path(name).content_type == kind
    given = "application/x-slides; version=2"
    assert Document.from_bytes(PDF, name, content_type=given).content_type == given
    assert (await sent(PDF, filename=name, content_type=given)).kind == given


@pytest.mark.parametrize("kind", ["pdf", "a/b\r\nX: y", "", "a/b/c", "a/b;\x7f", "ä/b"])
async def test_a_type_that_cannot_stand_in_a_header_is_refused(kind: str) -> None:
    """No line break gets through a part's header."""
    with pytest.raises(InvalidInput, match="content_type"):
        Document.from_bytes(PDF, "a.pdf", content_type=kind)
    document = Document.from_bytes(PDF, "a.pdf")
    await refusal(InvalidInput, document, "content_type", content_type=kind)


async def test_a_document_can_be_sent_under_another_name() -> None:
    """The same document under another name or type, the original unchanged; no link can."""
    document = Document.from_bytes(PDF, "a.pdf")
    changes: list[tuple[dict[str, Any], str, str]] = [
        ({}, "a.pdf", "application/pdf"),
        ({"filename": "x/b.pdf", "content_type": "text/plain"}, "b.pdf", "text/plain"),
        ({"filename": "c.doc"}, "c.doc", "application/pdf"),
        ({"content_type": "a/b"}, "a.pdf", "a/b"),
    ]
    for change, name, kind in changes:
        found = await sent(document, **change)
        assert (found.name, found.kind, found.content) == (name, kind, PDF)
        assert (document.filename, document.content_type) == ("a.pdf", "application/pdf")
        if change:
            error = await refusal(InvalidInput, Document.from_link(URL), "link", **change)
            assert error.value == repr(change[error.field])


# --- sizes ---------------------------------------------------------------------------------------


def both(path: Path, data: bytes, name: str = "deck.pdf") -> list[Document]:
    """Make a document in memory and one on disk."""
    path.write_bytes(data)
    return [Document.from_bytes(data, name), Document.from_path(path, filename=name)]


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001])
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


async def limit_fits(text: Any, size: int) -> bool:
    """Tell whether a document is within a limit; nothing of it is read."""
    document = Document.from_stream(_endless(), "a", size=size, replayable=False)
    try:
        async with client_of(FakeRooms(), max_size_whiteboard_file=text) as client:
            with anyio.move_on_after(0):
                await client.upload_whiteboard_file("room01", document)
    except DocumentTooLarge:
        return False
    return True


async def _endless() -> Any:
    while True:
        yield b""


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *((1, 1), (10**20, 10**20), ("1", 1), ("0031", 31), ("512 b", 512), ("4KiB", 4_096)),
        *((" 30 mib\n", 31_457_280), ("2GiB", 2_147_483_648)),
    ],
)
async def test_limits(text: str | int, size: int) -> None:
    """Bytes, or a number with a unit of powers of 1024."""
    assert await limit_fits(text, size)
    assert not await limit_fits(text, size + 1)


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
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'/>"

NEAR_MISSES = [
    *(b"G", b"GIF88a", b"GIF8", b"\x89PNG\n\x1a\n", b"BMW", b"\xff\xd8", b"\xff\xfe\xff"),
    *(b"BM is how this text begins, and more", b"RIFF\x24\x00\x00\x00WAVEfmt "),
    *(b"II, the second part of the story", b"MM and so on, for the rest of it"),
    *(b"\0\0\0\x18ftypisom\0\0\0\0", b"\0\1\0\0\0\x0f\0\x80", b"x\x89PNG\r\n\x1a\n"),
    b"\n\xff\xd8\xff",
]


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


DOCUMENTS = [b"%PDF-1.7\n", b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"{\\rtf1"]
FIRST_BYTES: dict[bytes, str | None] = {
    **{(magic + FILLER)[:32]: kind for magic, kind in IMAGES.items()},
    **{magic + FILLER: None for magic in DOCUMENTS},
}


@pytest.mark.parametrize(("data", "kind"), FIRST_BYTES.items())
async def test_the_first_bytes_tell_images(data: bytes, kind: str | None) -> None:
    """Whatever they are called, as for the server; the error names the kind."""
    for name in ("scan.pdf", "scan", "scan.png", "scan.JPG"):
        assert await image_kind(data, name) == kind


@pytest.mark.parametrize("data", NEAR_MISSES)
async def test_texts_and_near_misses_are_not_images(data: bytes) -> None:
    """The magic must stand at the very beginning, and be complete."""
    assert await image_kind(data, "notes.txt") is None


async def test_images_by_their_names() -> None:
    """Where the bytes are not those of a known kind, the name counts."""
    images = ["png", "PNG", "jpg", "JPeG", "gif", "bmp", "webp", "tif", "tiff", "svg", "ico"]
    for suffix in [*images, "heic", "avif"]:
        for name in (f"a.{suffix}", f"archive.tar.{suffix}"):
            assert await image_kind(SVG, name) == f"{suffix.upper()} image by its name"
    for name in ("a.pdf", "png", "a.png.pdf", "a.pngx", "apng", "a."):
        assert await image_kind(SVG, name) is None


@given(st.binary(min_size=1, max_size=32))
@example(b"\0" * 32)
async def test_any_bytes_are_a_document_or_an_image(head: bytes) -> None:
    """No content is an error of another kind, and a refusal names what it saw."""
    assert await image_kind(head, "deck.pdf") in {None, *IMAGES.values()}


async def test_images_are_refused_unless_they_are_allowed(path: Path) -> None:
    """By an upload: nothing of them is sent."""
    for data, name in ((PNG, "deck.pdf"), (b"????", "a.JPG")):
        for document in both(path, data, name):
            await refusal(DocumentTypeRefused, document, "allow_images")
            assert (await sent(document, settings={"allow_images": True})).content == data


# --- links ---------------------------------------------------------------------------------------

LONG = "https://files.example.com/"


@pytest.mark.parametrize(
    "link",
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
)
def test_links_that_a_server_can_download_from(link: str) -> None:
    """Public http(s) URLs, already encoded, of up to 8 KiB."""
    assert Document.from_link(link).link == link


BAD_LINKS = [
    *[(link, "not an http(s) URL") for link in ("", "deck.pdf", "/srv/deck.pdf", "//a/deck.pdf")],
    *[(f"{scheme}:///a", "not an http(s) URL") for scheme in ("file", "ftp", "https")],
    *[
        (f"https:{rest}", "not an http(s) URL")
        for rest in ("a/b", "/a/b", "//", "//:443/a", "//?a")
    ],
    ("javascript:alert(1)", "not an http(s) URL"),
    *[(f"https://{host}/a", "not a URL") for host in ("a:port", "a:65536", "[2001:db8::1", "[a]")],
    *[(f"https://{user}@a/b", "user name or password") for user in ("anna:hush", "anna", "")],
    *[(f"https://a/b{char}c", "control") for char in "\r\n\t\0\x7f"],
    *[(f"https://a/b{end}", "blanks") for end in (" c", " ", "\n")],
    *[(f"https://{odd}", "non-ASCII") for odd in ("a/ü.pdf", "bücher.example/", "a/\ud800")],
    (LONG.ljust(8193, "a"), "longer than 8,192 bytes"),
]


@pytest.mark.parametrize(("link", "problem"), BAD_LINKS, ids=lambda value: ascii(value)[:60])
def test_links_that_no_server_can_download_from(link: str, problem: str) -> None:
    """Refused without asking anybody; the error is short, says why and hides a password."""
    with pytest.raises(InvalidInput) as caught:
        Document.from_link(link)
    assert caught.value.field == "document_link"
    assert problem in caught.value.problem
    assert len(str(caught.value)) < 400
    assert "hush" not in str(caught.value)


# --- files and uploads of frameworks -------------------------------------------------------------


async def test_a_wrapper_of_somebodys_own_is_read_through() -> None:
    """What has a ``file`` inside may be decrypting it: its own ``read`` is used."""

    class Decrypting(io.BytesIO):
        file = io.BytesIO(b"secret")

    class DecryptingUpload(StarletteUpload):
        async def read(self, size: int = -1) -> bytes:
            return b"plain" if self.file.read(size) else b""

    class DecryptingStream:
        stream = io.BytesIO(b"secret")
        filename = "deck.pdf"

        def read(self, size: int = -1) -> bytes:
            return b"plain" if self.stream.read(size) else b""

    for value in (
        *(Decrypting(b"plain"), DecryptingUpload(io.BytesIO(b"secret"))),
        DecryptingStream(),
    ):
        assert (await sent(value, filename="deck.pdf")).content == b"plain"


@pytest.mark.parametrize("kind", ["aiofiles", "anyio"])
async def test_aiofiles_and_anyio_are_read_by_what_they_wrap(kind: str, tmp_path: Path) -> None:
    """So they go to many rooms at once, and their position stays."""
    async with opened(kind, LARGE, tmp_path) as document:
        contents: list[bytes] = []

        async def upload() -> None:
            contents.append((await sent(document.value)).content)

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(upload)
        assert contents == [LARGE[START:]] * 20
        assert document.position
        assert document.position() == START


def starlette(filename: str | None, kind: str | None) -> StarletteUpload:
    """Make an upload as Starlette's parser does."""
    headers = Headers({} if kind is None else {"content-type": kind})
    return StarletteUpload(io.BytesIO(PDF), filename=filename, headers=headers)


UPLOADS: dict[str, Callable[[], Any]] = {
    "Starlette": lambda: starlette("C:\\Users\\me\\deck.pdf", "application/x-slides"),
    "Litestar": lambda: LitestarUpload("application/x-slides", "deck.pdf", PDF),
    "werkzeug": lambda: FileStorage(
        io.BytesIO(PDF), "deck.pdf", content_type="application/x-slides"
    ),
}


def file_in(upload: Any) -> Any:
    """Return what an upload wraps."""
    return upload.stream if isinstance(upload, FileStorage) else upload.file


every_upload = pytest.mark.parametrize("framework", UPLOADS)


@every_upload
async def test_an_upload_says_its_name_and_type(framework: str) -> None:
    """What the caller says wins."""
    upload = UPLOADS[framework]()
    found = await sent(upload)
    assert (found.name, found.kind) == ("deck.pdf", "application/x-slides")
    found = await sent(upload, filename="other.doc", content_type="text/plain")
    assert (found.name, found.kind) == ("other.doc", "text/plain")
    file_in(upload).close()


@pytest.mark.parametrize("kind", [None, "", "pdf", BINARY, "a/b\r\nX: y", "é/b", 7])
async def test_an_unusable_type_is_guessed(kind: Any) -> None:
    """One that says nothing, or cannot stand in a header."""
    upload = starlette("deck.pdf", None)
    upload.__dict__["headers"] = {"content-type": kind}
    assert (await sent(upload)).kind == "application/pdf"


@pytest.mark.parametrize("name", [7, "<fdopen>", "<stdin>", "", None, b"deck.pdf"])
async def test_an_unusable_name_must_be_given(name: Any) -> None:
    """The number of a descriptor is none."""
    file = io.BytesIO(PDF)
    file.name = name
    error = await refusal(InvalidInput, file, "filename is needed")
    assert (error.field, "deck.pdf" in error.fix) == ("filename", True)
    assert (await sent(file, filename="deck.pdf")).name == "deck.pdf"
    await refusal(InvalidInput, starlette(None, "application/pdf"), "filename is needed")


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
async def test_text_files_are_refused(path: Path, make: Any) -> None:
    """Their bytes are unknown; the error says how to open them."""
    said = r"document is a text file \(got .*'rb'"
    with make(path) as file:
        for value in (file, anyio.wrap_file(file)):
            await refusal(TypeError, value, said, filename="deck.pdf")
        for use in (Document.from_file, Document.from_stream):
            with pytest.raises(TypeError, match=said):
                use(file, filename="deck.pdf")


async def test_closed_files_are_refused(path: Path) -> None:
    """Before anything is asked of them."""
    for file in (path.open("rb"), io.BytesIO(PDF)):
        file.close()
        error = await refusal(InvalidInput, file, "is a closed file", filename="deck.pdf")
        assert error.field == "document"
        assert "keep it open" in error.fix


@every_upload
async def test_closed_uploads_are_refused(framework: str) -> None:
    """With what has probably happened (fastapi#10857)."""
    upload = UPLOADS[framework]()
    file_in(upload).close()
    error = await refusal(InvalidInput, upload, "request is over")
    assert "handler" in error.fix


@pytest.mark.parametrize("buffering", [0, -1])
async def test_files_for_writing_are_refused(path: Path, buffering: int) -> None:
    """With the mode that is needed."""
    with path.open("ab", buffering=buffering) as file:
        await refusal(InvalidInput, file, "writing only")
    assert path.read_bytes() == PDF
