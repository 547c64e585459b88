"""What can be uploaded: how a document is made, named, measured and refused."""

from __future__ import annotations

import array
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from meeting_async._documents.document import Document
from meeting_async._documents.files import PathSource
from meeting_async._documents.source import BytesSource
from meeting_async.errors import (
    DocumentEmpty,
    DocumentTooLarge,
    DocumentTypeRefused,
    DocumentUnreadable,
    InvalidInput,
)
from support.sources import attempt, uploaded

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7\nslides\n%%EOF\n"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
URL = "https://files.example.com/deck.pdf?token=hush#page"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a document."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(PDF)
    return path


async def size_of(document: Document, max_size: int | None = None) -> int | None:
    """Prepare a document as an upload does, and return its size."""
    async with document.prepare(max_size=max_size, allow_images=False) as prepared:
        return prepared.size


# --- making one ----------------------------------------------------------------------------------


async def test_a_path_becomes_a_document(path: Path) -> None:
    """A path of either type: the room shows its last component."""
    for given in (path, str(path), os.fspath(path), anyio.Path(path)):
        document = Document.of(given)
        assert isinstance(document.source, PathSource)
        assert (document.filename, document.link) == ("deck.pdf", None)
        assert document.content_type == "application/pdf"
        assert await uploaded(document) == PDF


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_bytes_become_a_document(kind: Any) -> None:
    """Bytes of any kind, under the name that is given, which they need."""
    document = Document.of(kind(PDF), filename="deck.pdf")
    assert isinstance(document.source, BytesSource)
    assert (document.filename, document.content_type) == ("deck.pdf", "application/pdf")
    assert await uploaded(document) == PDF
    with pytest.raises(InvalidInput, match="filename is needed"):
        Document.of(kind(PDF))


async def test_bytes_that_change_later_do_not_change_the_document() -> None:
    """A buffer is copied, so that what was checked is what is sent; its items count in bytes."""
    buffer = bytearray(PDF)
    document = Document.from_bytes(buffer, "deck.pdf")
    buffer[:] = PNG
    assert await uploaded(document) == PDF
    words = array.array("I", [1, 2, 3])
    assert await size_of(Document.from_bytes(memoryview(words), "a.pdf")) == 3 * words.itemsize


async def test_a_link_becomes_a_document() -> None:
    """It has no size and no type, and neither limits nor its name are looked at."""
    document = Document.from_link(URL)
    assert (document.source, document.link, document.content_type) == (None, URL, None)
    async with document.prepare(max_size=5, allow_images=False) as prepared:
        assert (prepared.size, prepared.snapshot, prepared.content_type) == (None, None, None)
        assert prepared.name == document.filename == "https://files.example.com/deck.pdf?…"
        assert await attempt(prepared) == URL.encode()
        assert not prepared.is_spent
        assert "hush" not in f"{document!r} {prepared!r}"
    await size_of(Document.from_link("https://files.example.com/photo.png"))


def test_a_link_that_no_server_can_use_is_refused() -> None:
    """Found before anything is sent, and without the password in the message."""
    with pytest.raises(InvalidInput, match="user name or password") as caught:
        Document.from_link("https://anna:hush@files.example.com/deck.pdf")
    assert caught.value.field == "document_link"
    assert "hush" not in str(caught.value)
    with pytest.raises(TypeError, match="str"):
        Document.from_link(b"https://files.example.com/deck.pdf")  # type: ignore[arg-type]


@pytest.mark.parametrize("url", [URL, "s3://bucket/deck.pdf?hush", "https://anna:hush@a/deck.pdf"])
def test_a_path_that_looks_like_a_url_names_the_right_method(url: str) -> None:
    """A URL in the place of a path is a TypeError that says what to call, and hides secrets."""
    for make in (Document.of, Document.from_path):
        with pytest.raises(TypeError, match=r"Document\.from_link") as caught:
            make(url)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize("name", ["a:b.pdf", "http:deck.pdf", "https:/deck.pdf", "C:\\deck.pdf"])
async def test_a_colon_makes_no_url(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names with a colon are files."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DocumentUnreadable):
        await uploaded(Document.of(name))


@pytest.mark.parametrize("value", [None, 1, 1.5, ["deck.pdf"], object(), {"a": 1}])
def test_other_values_are_not_documents(value: Any) -> None:
    """The error says what can be passed, and what was."""
    for make in (Document.of, Document.from_file, Document.from_path):
        with pytest.raises(TypeError):
            make(value)
    with pytest.raises(TypeError, match=f"not {type(value).__name__}"):
        Document.of(value)
    with pytest.raises(TypeError, match="path"):
        Document.from_path(os.fsencode("deck.pdf"))  # type: ignore[arg-type]


def test_exactly_one_of_file_and_link() -> None:
    """Both and neither are refused (``docs/interface.md``, Upload, rules 1 and 2)."""
    with pytest.raises(InvalidInput, match="neither"):
        Document()
    with pytest.raises(InvalidInput, match="both"):
        Document(BytesSource(PDF), URL, "deck.pdf")


# --- names and types -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\deck.pdf", "deck.pdf"),
        ("cafe\u0301.pdf", "caf\u00e9.pdf"),
        ("\U0001f4ca slides.pdf", "\U0001f4ca slides.pdf"),
        ('a"b;c?.pdf', "a_b;c_.pdf"),
        ("a\r\nX: y.pdf", "a__X_ y.pdf"),
        ("ä" * 300 + ".pdf", "ä" * 98 + ".pdf"),
    ],
)
def test_the_name_is_the_one_that_the_room_shows(given: str, shown: str) -> None:
    """Clean from the start, so that receipts, events and errors name what is in the room."""
    assert Document.from_bytes(PDF, given).filename == shown
    assert Document.of("somewhere/else.doc", filename=given).filename == shown
    assert Document.from_path(given).filename == shown


@pytest.mark.parametrize("name", ["", ".", "..", "dir/", "a\0b.pdf", "\ud800.pdf", " ", "..."])
def test_names_that_are_none_are_refused(name: str) -> None:
    """No name, NUL, and what is not Unicode text."""
    with pytest.raises(InvalidInput, match="filename"):
        Document.from_bytes(PDF, name)


@pytest.mark.parametrize("name", [None, 3, b"deck.pdf"])
def test_a_name_must_be_text(name: Any) -> None:
    """The ``.name`` of a temporary file may be an int."""
    with pytest.raises((TypeError, InvalidInput), match="filename"):
        Document.from_bytes(PDF, name)


async def test_a_file_whose_name_is_not_text_can_be_sent_under_another(tmp_path: Path) -> None:
    """Old archives hold names in other encodings; ``filename=`` helps."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.pdf")
    with open(path, "wb") as file:  # noqa: ASYNC230 - a test of odd names
        file.write(PDF)
    with pytest.raises(InvalidInput, match="filename"):
        Document.from_path(path)
    assert await uploaded(Document.from_path(path, filename="café.pdf")) == PDF


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
    """By the extension, in either case; what the caller says wins."""
    assert Document.from_bytes(PDF, name).content_type == kind
    assert Document.from_path(name).content_type == kind
    given = "application/x-slides; version=2"
    assert Document.from_bytes(PDF, name, content_type=given).content_type == given
    assert Document.of(name, content_type=given).content_type == given


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
    assert await uploaded(other) == PDF


@pytest.mark.parametrize("change", [{"filename": "b.pdf"}, {"content_type": "a/b"}])
def test_a_link_cannot_be_renamed(change: dict[str, Any]) -> None:
    """The server names what it downloads; the error names what was given."""
    with pytest.raises(InvalidInput, match="link") as caught:
        Document.of(Document.from_link(URL), **change)
    assert caught.value.field in change


# --- sizes and images ----------------------------------------------------------------------------


def both(path: Path, data: bytes, name: str = "deck.pdf") -> list[Document]:
    """Make a document in memory and one on disk."""
    path.write_bytes(data)
    return [Document.from_bytes(data, name), Document.from_path(path, filename=name)]


async def test_sizes_against_the_limit(path: Path) -> None:
    """Equality is allowed, as on the server; without a limit every size is, but none at all."""
    for size in (1, 999, 1000):
        for document in both(path, b"x" * size):
            assert await size_of(document, 1000) == size
    for document in both(path, b"x" * 1001):
        assert await size_of(document) == 1001
        with pytest.raises(DocumentTooLarge) as caught:
            await size_of(document, 1000)
        error = caught.value
        assert (error.document, error.size, error.limit) == ("deck.pdf", 1001, 1000)
    for document in both(path, b""):
        for limit in (None, 1000):
            with pytest.raises(DocumentEmpty, match="is empty"):
                await size_of(document, limit)


async def test_images_are_refused_unless_they_are_allowed(path: Path) -> None:
    """By their bytes, whatever they are called; by the name where the bytes say nothing."""
    for data, name in ((PNG, "deck.pdf"), (b"????", "a.JPG")):
        for document in both(path, data, name):
            with pytest.raises(DocumentTypeRefused, match="allow_images"):
                await size_of(document)
            async with document.prepare(max_size=None, allow_images=True) as prepared:
                assert prepared.size
    for document in both(path, PDF, "a.png"):
        assert await size_of(document) == len(PDF)


async def test_a_prepared_document_says_what_it_is(path: Path) -> None:
    """Name, type and size for receipts and events; a snapshot to tell a changed file later."""
    document = Document.from_path(path, filename="a/b.pdf")
    async with document.prepare(max_size=None, allow_images=False) as prepared:
        assert prepared.document is document
        assert (prepared.name, prepared.size) == ("b.pdf", len(PDF))
        assert prepared.content_type == "application/pdf"
        assert prepared.snapshot
        assert prepared.snapshot.head == PDF
        before = prepared.snapshot.fingerprint
    os.utime(path, (1, 1))
    async with document.prepare(max_size=None, allow_images=False) as prepared:
        assert prepared.snapshot
        assert prepared.snapshot.fingerprint != before
