"""What is checked before anything is sent: size, emptiness, images, links."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from _properties import fuzz
from meeting_async._limits import (
    HEAD_BYTES,
    MAX_LINK_BYTES,
    check_link,
    check_size,
    check_type,
    link_label,
    parse_size,
    shown,
)
from meeting_async.errors import (
    DocumentEmpty,
    DocumentTooLarge,
    DocumentTypeRefused,
    InvalidInput,
)

# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        (31_457_280, 31_457_280),
        (10**20, 10**20),
        ("1", 1),
        ("0031", 31),
        ("512B", 512),
        ("512 b", 512),
        ("4KiB", 4_096),
        ("30MiB", 31_457_280),
        ("30 mib", 31_457_280),
        ("30 MIB", 31_457_280),
        (" 30MiB\n", 31_457_280),
        ("2GiB", 2_147_483_648),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    """Bytes, or a number with a unit of powers of 1024."""
    assert parse_size(text, field="max") == size


@pytest.mark.parametrize(
    "text",
    [
        0,
        -1,
        True,
        1.5,
        None,
        b"30",
        "",
        " ",
        "0",
        "0MiB",
        "-1",
        "+1",
        "1.5MiB",
        "1e6",
        "30MB",
        "30M",
        "30kB",
        "30 TiB",
        "MiB",
        "30MiB30",
        "30 Mi B",
        "\u0663\u0660MiB",
        "\uff11MiB",
        "9" * 16,
        "0x10",
        "1_000",
        "30MiB\0",
    ],
)
def test_unusable_sizes_are_named(text: Any) -> None:
    """Decimal units are refused rather than guessed: servers of this kind count in 1024²."""
    with pytest.raises(InvalidInput) as caught:
        parse_size(text, field="max_size_whiteboard_file")
    assert caught.value.field == "max_size_whiteboard_file"
    assert caught.value.value == shown(text)
    assert "30MiB" in caught.value.fix


@pytest.mark.parametrize(
    ("size", "limit"), [(1, None), (10**15, None), (1, 1), (999, 1000), (1000, 1000)]
)
def test_sizes_that_fit(size: int, limit: int | None) -> None:
    """A document of just the limit fits; without a limit every one does."""
    check_size("deck.pdf", size, limit)


def test_a_document_above_the_limit() -> None:
    """One byte is enough; the error tells by how much."""
    with pytest.raises(DocumentTooLarge) as caught:
        check_size("deck.pdf", 1001, 1000)
    assert (caught.value.document, caught.value.size, caught.value.limit) == (
        "deck.pdf",
        1001,
        1000,
    )


@pytest.mark.parametrize("limit", [None, 1, 1000])
def test_an_empty_document(limit: int | None) -> None:
    """There is nothing to show, whatever the limit."""
    with pytest.raises(DocumentEmpty) as caught:
        check_size("deck.pdf", 0, limit)
    assert caught.value.document == "deck.pdf"


# --- images --------------------------------------------------------------------------------------

FILLER = bytes(range(1, 1 + HEAD_BYTES))
IMAGES = [
    (b"\x89PNG\r\n\x1a\n", "PNG image"),
    (b"\xff\xd8\xff\xe0\0\x10JFIF\0", "JPEG image"),
    (b"\xff\xd8\xff\xe1", "JPEG image"),
    (b"\xff\xd8\xff\xdb", "JPEG image"),
    (b"GIF87a", "GIF image"),
    (b"GIF89a", "GIF image"),
    (b"RIFF\x24\x00\x00\x00WEBPVP8 ", "WebP image"),
    (b"RIFF\n\n\n\nWEBPVP8L", "WebP image"),
    (b"BM\x36\x10\x0e\x00\0\0\0\0\x36\0\0\0", "BMP image"),
    (b"II*\0\x08\0\0\0", "TIFF image"),
    (b"MM\0*\0\0\0\x08", "TIFF image"),
    (b"\0\0\0\x1cftypavif\0\0\0\0", "HEIF image"),
    (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIF image"),
    (b"\0\0\0\x18ftypmif1\0\0\0\0", "HEIF image"),
    (b"\0\0\1\0\x01\0\x10\x10\0\0\1\0\x20\0", "icon"),
]


@pytest.mark.parametrize(("magic", "kind"), IMAGES)
@pytest.mark.parametrize("name", ["scan.pdf", "scan", "scan.png", "https://example.com/scan"])
def test_images_by_their_first_bytes(magic: bytes, kind: str, name: str) -> None:
    """Whatever they are called; the error names the kind."""
    with pytest.raises(DocumentTypeRefused) as caught:
        check_type(name, (magic + FILLER)[:HEAD_BYTES])
    assert caught.value.kind == kind
    assert caught.value.document == name
    assert "allow_images" in str(caught.value)


DOCUMENTS = [
    b"%PDF-1.7\n",
    b"PK\x03\x04\x14\0\x06\0",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
    b"{\\rtf1\\ansi",
]


@pytest.mark.parametrize("magic", DOCUMENTS)
@pytest.mark.parametrize("name", ["scan.png", "scan.JPG", "scan.pdf", "scan"])
def test_documents_by_their_first_bytes(magic: bytes, name: str) -> None:
    """The server looks at the content, so a PDF that is called ``scan.png`` passes."""
    check_type(name, magic + FILLER)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"G",
        b"GIF88a",
        b"GIF8",
        b"\x89PNG\n\x1a\n",
        b"BM is how this text begins, and more",
        b"BMW",
        b"RIFF\x24\x00\x00\x00WAVEfmt ",
        b"II, the second part of the story",
        b"MM and so on, for the rest of it",
        b"\0\0\0\x18ftypisom\0\0\0\0",
        b"\xff\xd8",
        b"\xff\xfe\xff",
        b"\0\1\0\0\0\x0f\0\x80",
        b"x\x89PNG\r\n\x1a\n",
        b"\n\xff\xd8\xff",
    ],
)
def test_texts_and_near_misses_are_no_images(head: bytes) -> None:
    """The magic must stand at the very beginning, and be complete."""
    check_type("notes.txt", head)


@pytest.mark.parametrize(
    "name",
    [
        *("a.png", "a.PNG", "a.jpg", "a.jpeg", "a.JPeG", "a.gif", "a.bmp", "a.webp", "a.tif"),
        *("a.tiff", "a.svg", "a.ico", "a.heic", "a.avif", "archive.tar.png", ".png"),
    ],
)
def test_images_by_their_names(name: str) -> None:
    """Where the bytes are not those of a known kind, the name counts."""
    with pytest.raises(DocumentTypeRefused) as caught:
        check_type(name, b"<svg xmlns='http://www.w3.org/2000/svg'/>")
    assert "by its name" in caught.value.kind
    assert name.rpartition(".")[2].upper() in caught.value.kind


@pytest.mark.parametrize(
    "name", ["a.pdf", "a.docx", "png", "a.png.pdf", "a.pngx", "apng", "a.", "", "a.key", "a.mp4"]
)
def test_other_names_are_no_images(name: str) -> None:
    """The list of documents is open-ended (interface section 4.2 rule 5)."""
    check_type(name, b"anything at all")


@fuzz
@given(st.binary(max_size=HEAD_BYTES))
@example(b"\0" * HEAD_BYTES)
def test_any_bytes_are_a_document_or_an_image(head: bytes) -> None:
    """No content is an error of another kind, and a refusal names what it saw."""
    try:
        check_type("deck.pdf", head)
        kind = None
    except DocumentTypeRefused as error:
        kind = error.kind
    assert kind in {None, *(kind for _, kind in IMAGES)}


# --- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "link",
    [
        "https://files.example.com/deck.pdf",
        "http://files.example.com/deck.pdf",
        "HTTPS://FILES.EXAMPLE.COM/DECK.PDF",
        "https://files.example.com",
        "https://files.example.com:8443/a?b=c&d=%20#e",
        "https://[2001:db8::1]:8443/deck.pdf",
        "https://192.0.2.7/deck.pdf",
        "https://xn--bcher-kva.example/%C3%BC.pdf",
        "https://files.example.com/@anna/deck.pdf",
        "https://files.example.com/?mail=anna@example.com",
        "https://files.example.com/" + "a" * (MAX_LINK_BYTES - 26),
    ],
)
def test_links_that_a_server_can_download_from(link: str) -> None:
    """Public http(s) URLs, already encoded, of up to 8 KiB."""
    assert len(link) <= MAX_LINK_BYTES
    check_link(link)


BAD_LINKS = [
    ("", "not an http(s) URL"),
    ("deck.pdf", "not an http(s) URL"),
    ("/srv/deck.pdf", "not an http(s) URL"),
    ("file:///etc/passwd", "not an http(s) URL"),
    ("file://localhost/etc/passwd", "not an http(s) URL"),
    ("ftp://files.example.com/deck.pdf", "not an http(s) URL"),
    ("data:application/pdf;base64,JVBERi0=", "not an http(s) URL"),
    ("javascript:alert(1)", "not an http(s) URL"),
    ("//files.example.com/deck.pdf", "not an http(s) URL"),
    ("https:files.example.com/deck.pdf", "not an http(s) URL"),
    ("https:/files.example.com/deck.pdf", "not an http(s) URL"),
    ("https:///deck.pdf", "not an http(s) URL"),
    ("https://", "not an http(s) URL"),
    ("https://:443/deck.pdf", "not an http(s) URL"),
    ("https://?a", "not an http(s) URL"),
    ("https://files.example.com:port/deck.pdf", "not a URL"),
    ("https://files.example.com:65536/deck.pdf", "not a URL"),
    ("https://[2001:db8::1/deck.pdf", "not a URL"),
    ("https://[files.example.com]/deck.pdf", "not a URL"),
    ("https://anna:hush@files.example.com/deck.pdf", "user name or password"),
    ("https://anna@files.example.com/deck.pdf", "user name or password"),
    ("https://@files.example.com/deck.pdf", "user name or password"),
    ("https://files.example.com/a\r\nX-Evil: 1", "control"),
    ("https://files.example.com/a\rb", "control"),
    ("https://files.example.com/a\nb", "control"),
    ("https://files.example.com/a\tb", "control"),
    ("https://files.example.com/a\0b", "control"),
    ("https://files.example.com/a\x7fb", "control"),
    ("https://files.example.com/my deck.pdf", "blanks"),
    (" https://files.example.com/deck.pdf", "blanks"),
    ("https://files.example.com/deck.pdf ", "blanks"),
    ("https://files.example.com/deck.pdf\n", "control"),
    ("https://files.example.com/ü.pdf", "non-ASCII"),
    ("https://bücher.example/deck.pdf", "non-ASCII"),
    ("https://files.example.com/\ud800", "non-ASCII"),
    ("https://files.example.com/" + "a" * (MAX_LINK_BYTES - 25), "longer than 8,192 bytes"),
    ("https://files.example.com/" + "a" * 10_000, "longer than 8,192 bytes"),
]


@pytest.mark.parametrize(("link", "problem"), BAD_LINKS, ids=lambda value: ascii(value)[:60])
def test_links_that_no_server_can_download_from(link: str, problem: str) -> None:
    """Refused without asking anybody; the error is short and says why."""
    with pytest.raises(InvalidInput) as caught:
        check_link(link)
    assert caught.value.field == "document_link"
    assert problem in caught.value.problem
    assert len(str(caught.value)) < 400


CREDENTIALS = [
    "https://hush@files.example.com/deck.pdf",
    "https://anna:hush@files.example.com/deck.pdf",
    "https://anna:hush@files.example.com:port/deck.pdf",
    "https://anna:hu@hush@files.example.com/deck.pdf",
    "https://anna:hu@sh:hush@files.example.com/deck.pdf",
    "https://anna:hush\r\n@files.example.com/deck.pdf",
    "https://anna:hush @files.example.com/deck.pdf",
    "https://anna:h/hush@files.example.com/deck.pdf",
    "https://anna:hush/x@files.example.com/deck.pdf",
    "https://anna:hush?x@files.example.com/deck.pdf",
    "https://anna:hush#x@files.example.com/deck.pdf",
    "https:\\\\anna:hush@files.example.com/deck.pdf",
    "https:/anna:hush@files.example.com/deck.pdf",
    "https:anna:hush@files.example.com/deck.pdf",
    "anna:hush@files.example.com/deck.pdf",
    "//anna:hush@files.example.com/deck.pdf",
    "ftp://anna:hush@files.example.com/deck.pdf",
    "https://files.example.com/my deck.pdf?X-Amz-Signature=hush",
    "https://files.example.com/ü.pdf#access_token=hush",
    "https://files.example.com/ü.pdf#access_token=hush?x",
    "https://files.example.com/ü.pdf?a#access_token=hush",
    "https://files.example.com:port?token=hush",
    "file://localhost/a?token=hush",
    "https://files.example.com/ü.pdf?mail=anna@example.com&token=hush",
    "https://anna:hush@files.example.com/ü.pdf?mail=anna@example.com&token=hush",
    "https://files.example.com/" + "a" * 10_000 + "?token=hush",
]


@pytest.mark.parametrize("link", CREDENTIALS, ids=lambda link: ascii(link)[:70])
def test_no_credential_of_a_bad_link_in_the_message(link: str) -> None:
    """A link with a typing error is still a secret: password, query, fragment."""
    with pytest.raises(InvalidInput) as caught:
        check_link(link)
    assert "hush" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    ("link", "label"),
    [
        ("https://files.example.com/deck.pdf", "https://files.example.com/deck.pdf"),
        (
            "https://files.example.com/deck.pdf?X-Amz-Signature=hush",
            "https://files.example.com/deck.pdf?…",
        ),
        ("https://files.example.com/deck.pdf#page=2", "https://files.example.com/deck.pdf"),
        ("https://files.example.com/a?b?c#d?e", "https://files.example.com/a?…"),
        ("https://files.example.com/@anna/deck.pdf", "https://files.example.com/@anna/deck.pdf"),
        ("https://anna:hush@files.example.com/a", "https://(hidden)@files.example.com/a"),
        ("https://files.example.com?mail=anna@example.com", "https://files.example.com?…"),
    ],
)
def test_labels_of_links(link: str, label: str) -> None:
    """A link is named by what is public in it."""
    assert link_label(link) == label


def test_label_of_a_fragment_with_a_question_mark() -> None:
    """What follows ``#`` is the fragment, even if it has a ``?`` in it (RFC 3986 section 3.5)."""
    assert "hush" not in link_label("https://files.example.com/a#access_token=hush?x")


# --- messages ------------------------------------------------------------------------------------


def test_values_are_shown_shortened() -> None:
    """A message stays readable whatever was given."""
    assert shown("a") == "'a'"
    assert shown("a" * 98) == repr("a" * 98)
    assert shown("a" * 99) == f"'{'a' * 99}… (101 characters)"
    assert shown("a" * 5_000) == f"'{'a' * 99}… (5,002 characters)"
    assert shown("a\r\nb\ud800") == r"'a\r\nb\ud800'"
    assert shown([1, 2], limit=3) == "[1,… (6 characters)"
