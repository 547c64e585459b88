"""What can be uploaded: how a document is made, named, measured and refused."""

from __future__ import annotations

import array
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from meeting_async import Document
from meeting_async._files import PathSource
from meeting_async._sources import BytesSource, Measure
from meeting_async.errors import (
    DocumentEmpty,
    DocumentTooLarge,
    DocumentTypeRefused,
    DocumentUnreadable,
    InvalidInput,
)

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7\nslides\n%%EOF\n"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
LIMIT = 1000

IMAGES = {
    "PNG": PNG,
    "JPEG": b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(64),
    "GIF": b"GIF89a" + bytes(64),
    "old GIF": b"GIF87a" + bytes(64),
    "WebP": b"RIFF\x24\0\0\0WEBPVP8 " + bytes(64),
    "BMP": b"BM\x46\0\0\0\0\0\0\0\x36" + bytes(64),
    "TIFF": b"II*\0" + bytes(64),
    "big-endian TIFF": b"MM\0*" + bytes(64),
    "HEIF": b"\0\0\0\x18ftypheic" + bytes(64),
    "AVIF": b"\0\0\0\x18ftypavif" + bytes(64),
}
OFFICE = {
    "PDF": PDF,
    "ZIP (DOCX, PPTX)": b"PK\x03\x04" + bytes(64),
    "OLE (DOC, PPT)": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(64),
    "RTF": b"{\\rtf1 text}",
    "text": b"Plain text about BMP, GIF and RIFF",
}


async def content(document: Document) -> bytes:
    """Read a document as an upload does."""
    parts = bytearray()
    async with document.held(max_size=None, allow_images=True) as held, held.open() as reader:
        while part := await reader.read(7):
            parts += part
        await reader.finish()
    return bytes(parts)


async def measured(document: Document, max_size: int | None, *, allow_images: bool) -> Measure:
    """Measure and check a document as an upload does."""
    async with document.held(max_size=max_size, allow_images=allow_images) as held:
        return held.measure


def saved(path: Path, data: bytes) -> Path:
    """Write a document to disk."""
    path.write_bytes(data)
    return path


def documents(tmp_path: Path, data: bytes, name: str = "deck.pdf") -> list[Document]:
    """Make a document of each kind that is a file."""
    return [Document.from_bytes(data, name), Document.from_path(saved(tmp_path / name, data))]


# Making one


async def test_a_path_becomes_a_document(tmp_path: Path) -> None:
    """A path of either type: the room sees its last component."""
    path = saved(tmp_path / "deck.pdf", PDF)
    for given in (path, str(path), os.fspath(path), anyio.Path(path)):
        document = Document.of(given)
        assert isinstance(document.source, PathSource)
        assert (document.filename, document.link) == ("deck.pdf", None)
        assert document.content_type == "application/pdf"
        assert await content(document) == PDF


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_bytes_become_a_document(kind: Any) -> None:
    """Bytes of any kind, under the name that is given."""
    document = Document.of(kind(PDF), filename="deck.pdf")
    assert isinstance(document.source, BytesSource)
    assert (document.filename, document.content_type) == ("deck.pdf", "application/pdf")
    assert await content(document) == PDF


async def test_bytes_that_change_later_do_not_change_the_document() -> None:
    """A buffer is copied, so that what was checked is what is sent."""
    buffer = bytearray(PDF)
    document = Document.from_bytes(buffer, "deck.pdf")
    buffer[:] = PNG
    assert await content(document) == PDF


async def test_a_view_of_larger_items_counts_in_bytes() -> None:
    """The size of a document is in bytes, whatever the items of the buffer are."""
    document = Document.from_bytes(memoryview(array.array("I", [1, 2, 3])), "deck.pdf")
    measure = await measured(document, None, allow_images=False)
    assert measure.size == 3 * array.array("I").itemsize
    assert len(await content(document)) == measure.size


def test_bytes_need_a_name() -> None:
    """A document without a name cannot be shown in a list."""
    with pytest.raises(InvalidInput, match="filename") as caught:
        Document.of(PDF)
    assert caught.value.field == "filename"


async def test_a_link_becomes_a_document() -> None:
    """A link is sent as text; the server downloads it."""
    url = "https://files.example.com/deck.pdf?token=abc"
    document = Document.from_link(url)
    assert (document.source, document.link) == (None, url)
    assert await content(document) == url.encode()
    measure = await measured(document, 1, allow_images=False)
    assert measure.size == len(url)


def test_the_query_of_a_link_is_not_shown() -> None:
    """A signed link's query is a credential."""
    document = Document.from_link("https://files.example.com/deck.pdf?token=abc#page")
    assert "abc" not in repr(document)
    assert document.filename == "https://files.example.com/deck.pdf?…"


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://files.example.com/deck.pdf",
        "https://user:pw@files.example.com/deck.pdf",
        "https://files.example.com/a b.pdf",
        "https://files.example.com/\r\nX: y",
        "https://files.example.com/\0",
        "https://files.example.com/é.pdf",
        "https://[::1/deck.pdf",
        "https://files.example.com:port/deck.pdf",
        "https:///deck.pdf",
        "deck.pdf",
        "",
        "https://files.example.com/" + "x" * 10_000,
    ],
)
def test_a_link_that_no_server_can_use_is_refused(url: str) -> None:
    """Found before anything is sent, and without the password in the message."""
    with pytest.raises(InvalidInput) as caught:
        Document.from_link(url)
    assert caught.value.field == "document_link"
    assert "pw" not in str(caught.value).replace("https://", "")
    assert len(str(caught.value)) < 400


def test_a_link_must_be_text() -> None:
    """A URL object of another library is a programming error."""
    with pytest.raises(TypeError, match="str"):
        Document.from_link(b"https://files.example.com/deck.pdf")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "https://files.example.com/deck.pdf?token=abc",
        "HTTP://files.example.com/deck.pdf",
        "ftp://files.example.com/deck.pdf",
        "s3://bucket/deck.pdf",
        "file:///srv/deck.pdf",
        "https://user:pw@files.example.com/deck.pdf",
    ],
)
def test_a_path_that_looks_like_a_url_names_the_right_method(url: str) -> None:
    """A URL in the place of a path is a TypeError that says what to call, and hides secrets."""
    for make in (Document.of, Document.from_path):
        with pytest.raises(TypeError, match=r"Document\.from_link") as caught:
            make(url)
        assert "abc" not in str(caught.value)
        assert "pw" not in str(caught.value)


@pytest.mark.parametrize("name", ["a:b.pdf", "http:deck.pdf", "https:/deck.pdf", "C:\\deck.pdf"])
async def test_a_colon_makes_no_url(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names with a colon are files."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DocumentUnreadable):
        await content(Document.of(name))


def test_a_path_must_be_text() -> None:
    """Paths of bytes have no name that could be sent."""
    with pytest.raises(TypeError, match="path"):
        Document.from_path(os.fsencode("deck.pdf"))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, 1, 1.5, ["deck.pdf"], object(), {"a": 1}])
def test_other_values_are_no_documents(value: object) -> None:
    """The error says what can be passed, and what was."""
    with pytest.raises(TypeError, match=f"not {type(value).__name__}"):
        Document.of(value)


def test_exactly_one_of_file_and_link() -> None:
    """Both and neither are refused (interface section 4.2 rules 1 and 2)."""
    with pytest.raises(InvalidInput, match="neither"):
        Document()
    with pytest.raises(InvalidInput, match="both"):
        Document(BytesSource(PDF), "https://files.example.com/deck.pdf", "deck.pdf")


# Names and types


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\deck.pdf", "deck.pdf"),
        ("cafe\u0301.pdf", "caf\u00e9.pdf"),
        ("\U0001f4ca slides.pdf", "\U0001f4ca slides.pdf"),
        ('a"b;c.pdf', 'a"b;c.pdf'),
    ],
)
def test_only_the_basename_is_used(given: str, seen: str) -> None:
    """Whatever stands before the last separator is the sender's business."""
    assert Document.from_bytes(PDF, given).filename == seen
    assert Document.of("somewhere/else.doc", filename=given).filename == seen


@pytest.mark.parametrize("name", ["", ".", "..", "dir/", "a\0b.pdf", "\ud800.pdf", " ", "..."])
def test_names_that_are_none_are_refused(name: str) -> None:
    """No name, NUL, and what is no Unicode text."""
    with pytest.raises(InvalidInput, match="filename"):
        Document.from_bytes(PDF, name)


@pytest.mark.parametrize("name", [None, 3, b"deck.pdf"])
def test_a_name_must_be_text(name: Any) -> None:
    """The ``.name`` of a temporary file may be an int."""
    with pytest.raises(TypeError, match="filename"):
        Document.from_bytes(PDF, name)


async def test_a_file_whose_name_is_no_text_can_be_sent_under_another(tmp_path: Path) -> None:
    """Old archives hold names in other encodings; ``filename=`` helps."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.pdf")
    with open(path, "wb") as file:  # noqa: ASYNC230, PTH123 - a test of odd names
        file.write(PDF)
    with pytest.raises(InvalidInput, match="filename"):
        Document.from_path(path)
    assert await content(Document.from_path(path, filename="café.pdf")) == PDF


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.pdf", "application/pdf"),
        ("a.PDF", "application/pdf"),
        ("a.doc", "application/msword"),
        ("a.pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
        ("a.docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        ("a.unknown", "application/octet-stream"),
        ("a", "application/octet-stream"),
        ("pdf", "application/octet-stream"),
    ],
)
def test_the_type_is_guessed_from_the_name(name: str, kind: str) -> None:
    """By the extension, in either case."""
    assert Document.from_bytes(PDF, name).content_type == kind
    assert Document.from_path(name).content_type == kind


def test_a_given_type_is_used() -> None:
    """What the caller says wins over the guess."""
    kind = "application/x-slides; version=2"
    assert Document.from_bytes(PDF, "a.pdf", content_type=kind).content_type == kind
    assert Document.of("a.pdf", content_type=kind).content_type == kind


@pytest.mark.parametrize("kind", ["pdf", "a/b\r\nX: y", "", "a/b/c", "a/b;\x7f", "ä/b"])
def test_a_type_that_cannot_stand_in_a_header_is_refused(kind: str) -> None:
    """No line break gets through a part's header."""
    with pytest.raises(InvalidInput, match="content_type"):
        Document.from_bytes(PDF, "a.pdf", content_type=kind)
    with pytest.raises(InvalidInput, match="content_type"):
        Document.of(Document.from_bytes(PDF, "a.pdf"), content_type=kind)


async def test_a_document_can_be_renamed() -> None:
    """The same document under another name or type, the original unchanged."""
    document = Document.from_bytes(PDF, "a.pdf")
    assert Document.of(document) is document
    other = Document.of(document, filename="x/b.pdf", content_type="text/plain")
    assert (other.filename, other.content_type) == ("b.pdf", "text/plain")
    assert Document.of(document, filename="c.pdf").content_type == "application/pdf"
    assert Document.of(document, content_type="a/b").filename == "a.pdf"
    assert (document.filename, document.content_type) == ("a.pdf", "application/pdf")
    assert await content(other) == PDF


@pytest.mark.parametrize("change", [{"filename": "b.pdf"}, {"content_type": "a/b"}])
def test_a_link_cannot_be_renamed(change: dict[str, Any]) -> None:
    """The server names what it downloads; the error names what was given."""
    with pytest.raises(InvalidInput, match="link") as caught:
        Document.of(Document.from_link("https://files.example.com/deck.pdf"), **change)
    assert caught.value.field in change


# Sizes


@pytest.mark.parametrize("size", [1, LIMIT - 1, LIMIT])
async def test_up_to_the_limit_it_fits(tmp_path: Path, size: int) -> None:
    """Equality is allowed, as on the server."""
    for document in documents(tmp_path, b"x" * size):
        assert (await measured(document, LIMIT, allow_images=False)).size == size


async def test_one_byte_more_is_too_large(tmp_path: Path) -> None:
    """The error tells size and limit."""
    for document in documents(tmp_path, b"x" * (LIMIT + 1)):
        with pytest.raises(DocumentTooLarge) as caught:
            await measured(document, LIMIT, allow_images=False)
        error = caught.value
        assert (error.document, error.size, error.limit) == ("deck.pdf", LIMIT + 1, LIMIT)
        assert (await measured(document, None, allow_images=False)).size == LIMIT + 1


async def test_a_huge_file_is_refused_without_being_read(tmp_path: Path) -> None:
    """A terabyte is looked at, not read."""
    path = saved(tmp_path / "deck.pdf", b"")
    os.truncate(path, 1 << 40)
    with anyio.fail_after(1), pytest.raises(DocumentTooLarge):
        await measured(Document.from_path(path), 30 * 1024**2, allow_images=False)


@pytest.mark.parametrize("allow_images", [True, False])
async def test_an_empty_document_is_refused(tmp_path: Path, allow_images: bool) -> None:
    """There is nothing to show, with or without a limit."""
    for document in documents(tmp_path, b""):
        for limit in (None, LIMIT):
            with pytest.raises(DocumentEmpty):
                await measured(document, limit, allow_images=allow_images)


# Images


@pytest.mark.parametrize("data", IMAGES.values(), ids=IMAGES.keys())
async def test_images_are_refused_by_their_bytes(tmp_path: Path, data: bytes) -> None:
    """Whatever they are called (interface section 4.2 rule 5); allow_images lets them pass."""
    for document in documents(tmp_path, data):
        with pytest.raises(DocumentTypeRefused, match="allow_images"):
            await measured(document, None, allow_images=False)
        assert (await measured(document, None, allow_images=True)).size == len(data)


@pytest.mark.parametrize("data", OFFICE.values(), ids=OFFICE.keys())
async def test_documents_are_not_taken_for_images(tmp_path: Path, data: bytes) -> None:
    """Office documents and text pass."""
    for document in documents(tmp_path, data):
        assert (await measured(document, None, allow_images=False)).size == len(data)


async def test_a_name_counts_where_the_bytes_say_nothing() -> None:
    """An unknown content called .jpg is refused; a PDF called .png is a PDF."""
    with pytest.raises(DocumentTypeRefused, match="JPG"):
        await measured(Document.from_bytes(b"????", "a.JPG"), None, allow_images=False)
    await measured(Document.from_bytes(PDF, "a.png"), None, allow_images=False)


async def test_a_link_is_not_looked_into() -> None:
    """What a link leads to is the server's to judge; its length is no document's size."""
    document = Document.from_link("https://files.example.com/photo.png")
    assert (await measured(document, 5, allow_images=False)).size == len(document.link or "")
