"""What can be uploaded: what a caller passed, how a document is named, measured, refused."""

from __future__ import annotations

import array
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest
from litestar.datastructures import UploadFile as LitestarUpload
from starlette.datastructures import Headers
from starlette.datastructures import UploadFile as StarletteUpload
from werkzeug.datastructures import FileStorage

from meeting_async._documents.detect import detect, detect_stream
from meeting_async._documents.document import Document, as_document, source_of
from meeting_async._documents.files import OpenFileSource, PathSource
from meeting_async._documents.prepared import prepare
from meeting_async._documents.source import BytesSource
from meeting_async.errors import (
    DocumentEmpty,
    DocumentTooLarge,
    DocumentTypeRefused,
    InvalidInput,
)
from support.sources import LARGE, START, attempt, opened, prepared_document, uploaded

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


async def checked_size(document: Document, max_size: int | None = None) -> int | None:
    """Prepare a document as an upload does, and return its size."""
    async with prepare(document, max_size=max_size, allow_images=False) as prepared:
        return prepared.size


# --- making one ----------------------------------------------------------------------------------


async def test_a_path_becomes_a_document(path: Path) -> None:
    """A path of either type: the room shows its last component."""
    for given in (path, str(path), os.fspath(path), anyio.Path(path)):
        document = as_document(given)
        assert isinstance(source_of(document), PathSource)
        assert (document.filename, document.link) == ("deck.pdf", None)
        assert document.content_type == "application/pdf"
        assert await uploaded(document) == PDF


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_bytes_become_a_document(kind: Any) -> None:
    """Bytes of any kind, under the name that is given, which they need."""
    document = as_document(kind(PDF), filename="deck.pdf")
    assert isinstance(source_of(document), BytesSource)
    assert (document.filename, document.content_type) == ("deck.pdf", "application/pdf")
    assert await uploaded(document) == PDF
    with pytest.raises(InvalidInput, match="filename is needed"):
        as_document(kind(PDF))


async def test_bytes_that_change_later_do_not_change_the_document() -> None:
    """A buffer is copied, so that what was checked is what is sent; its items count in bytes."""
    buffer = bytearray(PDF)
    document = Document.from_bytes(buffer, "deck.pdf")
    buffer[:] = PNG
    assert await uploaded(document) == PDF
    words = array.array("I", [1, 2, 3])
    assert await checked_size(Document.from_bytes(memoryview(words), "a.pdf")) == 3 * words.itemsize


async def test_a_link_becomes_a_document() -> None:
    """It has no size and no type, and neither limits nor its name are looked at."""
    document = Document.from_link(URL)
    assert (source_of(document), document.link, document.content_type) == (None, URL, None)
    assert document.filename == "https://files.example.com/deck.pdf?…"
    async with prepared_document(document, max_size=5, allow_images=False) as prepared:
        assert prepared.size is None
        assert await attempt(prepared) == URL.encode()
        assert not prepared.is_consumed
        assert "hush" not in f"{document!r} {prepared!r}"
    await checked_size(Document.from_link("https://files.example.com/photo.png"))


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
    for make in (as_document, Document.from_path):
        with pytest.raises(TypeError, match=r"Document\.from_link") as caught:
            make(url)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize("value", [None, 1, 1.5, ["deck.pdf"], object(), {"a": 1}])
def test_other_values_are_not_documents(value: Any) -> None:
    """The error says what can be passed, and what was."""
    for make in (as_document, Document.from_file, Document.from_path):
        with pytest.raises(TypeError):
            make(value)
    with pytest.raises(TypeError, match=f"not {type(value).__name__}"):
        as_document(value)
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
    assert as_document("somewhere/else.doc", filename=given).filename == shown
    assert Document.from_path(given).filename == shown


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
    assert as_document(name, content_type=given).content_type == given


@pytest.mark.parametrize("kind", ["pdf", "a/b\r\nX: y", "", "a/b/c", "a/b;\x7f", "ä/b"])
def test_a_type_that_cannot_stand_in_a_header_is_refused(kind: str) -> None:
    """No line break gets through a part's header."""
    with pytest.raises(InvalidInput, match="content_type"):
        Document.from_bytes(PDF, "a.pdf", content_type=kind)
    with pytest.raises(InvalidInput, match="content_type"):
        as_document(Document.from_bytes(PDF, "a.pdf"), content_type=kind)


async def test_a_document_can_be_renamed() -> None:
    """The same document under another name or type, the original unchanged."""
    document = Document.from_bytes(PDF, "a.pdf")
    assert as_document(document) is document
    other = as_document(document, filename="x/b.pdf", content_type="text/plain")
    assert (other.filename, other.content_type) == ("b.pdf", "text/plain")
    assert as_document(document, filename="c.pdf").content_type == "application/pdf"
    assert as_document(document, content_type="a/b").filename == "a.pdf"
    assert (document.filename, document.content_type) == ("a.pdf", "application/pdf")
    assert await uploaded(other) == PDF


@pytest.mark.parametrize("change", [{"filename": "b.pdf"}, {"content_type": "a/b"}])
def test_a_link_cannot_be_renamed(change: dict[str, Any]) -> None:
    """The server names what it downloads; the error names what was given."""
    with pytest.raises(InvalidInput, match="link") as caught:
        as_document(Document.from_link(URL), **change)
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
            assert await checked_size(document, 1000) == size
    for document in both(path, b"x" * 1001):
        assert await checked_size(document) == 1001
        with pytest.raises(DocumentTooLarge) as caught:
            await checked_size(document, 1000)
        error = caught.value
        assert (error.document, error.size, error.limit) == ("deck.pdf", 1001, 1000)
    for document in both(path, b""):
        for limit in (None, 1000):
            with pytest.raises(DocumentEmpty, match="is empty"):
                await checked_size(document, limit)


async def test_images_are_refused_unless_they_are_allowed(path: Path) -> None:
    """By their bytes, whatever they are called; by the name where the bytes say nothing."""
    for data, name in ((PNG, "deck.pdf"), (b"????", "a.JPG")):
        for document in both(path, data, name):
            with pytest.raises(DocumentTypeRefused, match="allow_images"):
                await checked_size(document)
            async with prepare(document, max_size=None, allow_images=True) as prepared:
                assert prepared.size
    for document in both(path, PDF, "a.png"):
        assert await checked_size(document) == len(PDF)


async def test_a_prepared_document_says_what_it_is(path: Path) -> None:
    """Name, type and size for receipts and events; a snapshot to tell a changed file later."""
    document = Document.from_path(path, filename="a/b.pdf")
    assert (document.filename, document.content_type) == ("b.pdf", "application/pdf")
    async with prepare(document, max_size=None, allow_images=False) as prepared:
        assert prepared.size == len(PDF)
        assert prepared._content.snapshot.head == PDF
        before = prepared._content.snapshot.fingerprint
    os.utime(path, (1, 1))
    async with prepare(document, max_size=None, allow_images=False) as prepared:
        assert prepared._content.snapshot.fingerprint != before


# --- what was passed -----------------------------------------------------------------------------


class Reads:
    """Only reads."""

    def read(self, size: int = -1) -> bytes:
        """Return nothing."""
        return b""


def detected_source(value: object) -> Any:
    """Tell which kind of source a value is."""
    found = detect(value)
    return found.source if found else None


# --- kinds ---------------------------------------------------------------------------------------


def test_a_wrapper_of_somebodys_own_is_read_through() -> None:
    """What has a ``file`` inside may be decrypting it: its own ``read`` is used."""

    class Decrypting(io.BytesIO):
        file = io.BytesIO(b"secret")

    value = Decrypting(b"x")
    assert detected_source(value).file is value

    class DecryptingUpload(StarletteUpload):
        async def read(self, size: int = -1) -> bytes:
            return b"plain"

    class DecryptingStream(Reads):
        stream = io.BytesIO(b"secret")
        filename = "deck.pdf"

    for wrapper in (DecryptingUpload(io.BytesIO(b"secret")), DecryptingStream()):
        assert detected_source(wrapper).stream is wrapper


async def test_aiofiles_and_anyio_are_read_by_what_they_wrap(tmp_path: Path) -> None:
    """So they go to many rooms at once, and their position stays."""
    for kind in ("aiofiles", "anyio"):
        async with opened(kind, LARGE, tmp_path) as document:
            assert isinstance(detected_source(document.value), OpenFileSource)
            assert as_document(document.value).filename == "deck.pdf"
            contents: list[bytes] = []

            async def upload(value: Any, contents: list[bytes]) -> None:
                contents.append(await uploaded(value, 2))

            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(upload, document.value, contents)
            assert contents == [LARGE[START:]] * 20
            assert document.position
            assert document.position() == START


@pytest.mark.parametrize("value", [None, b"x", "deck.pdf", [b"x"]])
def test_what_is_not_a_stream_is_named(value: Any) -> None:
    """With its type."""
    with pytest.raises(TypeError, match=f"stream must be .* not {type(value).__name__}"):
        detect_stream(value)


# --- what uploads say of themselves --------------------------------------------------------------


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
    document = as_document(upload)
    assert (document.filename, document.content_type) == ("deck.pdf", "application/x-slides")
    document = as_document(upload, filename="other.doc", content_type="text/plain")
    assert (document.filename, document.content_type) == ("other.doc", "text/plain")


@pytest.mark.parametrize(
    "kind", [None, "", "pdf", "application/octet-stream", "a/b\r\nX: y", "é/b", 7]
)
def test_an_unusable_type_is_guessed(kind: Any) -> None:
    """One that says nothing, or cannot stand in a header."""
    upload = starlette("deck.pdf", None)
    upload.__dict__["headers"] = {"content-type": kind}
    assert as_document(upload).content_type == "application/pdf"


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
        as_document(file)
    assert (caught.value.field, "deck.pdf" in caught.value.fix) == ("filename", True)
    assert as_document(file, filename="deck.pdf").filename == "deck.pdf"
    with pytest.raises(InvalidInput, match="filename is needed"):
        as_document(starlette(None, "application/pdf"))


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
        for use in (as_document, Document.from_file):
            with pytest.raises(TypeError, match=r"document is a text file \(got .*'rb'"):
                use(file, filename="deck.pdf")
        with pytest.raises(TypeError, match="text file"):
            Document.from_stream(file, "deck.pdf")


async def test_asynchronous_text_files_are_refused(path: Path) -> None:
    """Whatever wraps them."""
    async with await anyio.open_file(path, encoding="utf-8") as file:
        with pytest.raises(TypeError, match="text file"):
            as_document(file)


def closed(file: Any) -> Any:
    """Close a file."""
    file.close()
    return file


def test_closed_files_are_refused(path: Path) -> None:
    """Before anything is asked of them."""
    for file in (closed(path.open("rb")), closed(io.BytesIO(PDF))):
        with pytest.raises(InvalidInput, match="is a closed file") as caught:
            as_document(file, filename="deck.pdf")
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
        as_document(upload)
    assert "handler" in caught.value.fix


@pytest.mark.parametrize("buffering", [0, -1])
def test_files_for_writing_are_refused(path: Path, buffering: int) -> None:
    """With the mode that is needed."""
    with (
        path.open("ab", buffering=buffering) as file,
        pytest.raises(InvalidInput, match="writing only"),
    ):
        as_document(file)
    assert path.read_bytes() == PDF
