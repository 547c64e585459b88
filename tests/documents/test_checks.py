"""What is checked before anything is sent: size, emptiness, images, links."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meeting_async._documents.checks import (
    HEAD_BYTES,
    MAX_LINK_BYTES,
    check_link,
    check_type,
)
from meeting_async._policies import parse_size
from meeting_async.errors import (
    ConfigurationError,
    DocumentTypeRefused,
    InvalidInput,
)

# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        (10**20, 10**20),
        ("1", 1),
        ("0031", 31),
        ("512 b", 512),
        ("4KiB", 4_096),
        (" 30 mib\n", 31_457_280),
        ("2GiB", 2_147_483_648),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    """Bytes, or a number with a unit of powers of 1024."""
    assert parse_size(text, field="max") == size


@pytest.mark.parametrize(
    "text",
    [
        *(0, -1, True, 1.5, None, b"30", "", " ", "0", "0MiB", "-1", "+1", "1.5MiB", "1e6"),
        *("30MB", "30M", "30kB", "30 TiB", "MiB", "30MiB30", "30 Mi B", "\u0663\u0660MiB"),
        *("\uff11MiB", "9" * 16, "0x10", "1_000", "30MiB\0"),
    ],
)
def test_unusable_sizes_are_named(text: Any) -> None:
    """Decimal units are refused instead of guessed: servers of this kind count in 1024²."""
    with pytest.raises(ConfigurationError) as caught:
        parse_size(text, field="max_size_whiteboard_file")
    assert caught.value.field == "max_size_whiteboard_file"
    assert caught.value.value == repr(text)
    assert "30MiB" in caught.value.fix


# --- images --------------------------------------------------------------------------------------

FILLER = bytes(range(1, 1 + HEAD_BYTES))
IMAGES = [
    (b"\x89PNG\r\n\x1a\n", "PNG image"),
    (b"\xff\xd8\xff\xe0\0\x10JFIF\0", "JPEG image"),
    (b"\xff\xd8\xff\xe1", "JPEG image"),
    (b"GIF87a", "GIF image"),
    (b"GIF89a", "GIF image"),
    (b"RIFF\x24\x00\x00\x00WEBPVP8 ", "WebP image"),
    (b"RIFF\n\n\n\nWEBPVP8L", "WebP image"),
    (b"BM\x36\x10\x0e\x00\0\0\0\0\x36\0\0\0", "BMP image"),
    (b"II*\0\x08\0\0\0", "TIFF image"),
    (b"MM\0*\0\0\0\x08", "TIFF image"),
    (b"\0\0\0\x1cftypavif\0\0\0\0", "HEIF image"),
    (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIF image"),
    (b"\0\0\1\0\x01\0\x10\x10\0\0\1\0\x20\0", "icon"),
]


@pytest.mark.parametrize(("magic", "kind"), IMAGES)
@pytest.mark.parametrize("name", ["scan.pdf", "scan", "scan.png", "https://example.com/scan"])
def test_images_by_their_first_bytes(magic: bytes, kind: str, name: str) -> None:
    """Whatever they are called; the error names the kind."""
    with pytest.raises(DocumentTypeRefused, match="allow_images") as caught:
        check_type(name, (magic + FILLER)[:HEAD_BYTES])
    assert (caught.value.kind, caught.value.document) == (kind, name)


@pytest.mark.parametrize("magic", [b"%PDF-1.7\n", b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"{\\rtf1"])
@pytest.mark.parametrize("name", ["scan.png", "scan.JPG", "scan.pdf", "scan"])
def test_documents_by_their_first_bytes(magic: bytes, name: str) -> None:
    """The server looks at the content, so a PDF with the name ``scan.png`` passes."""
    check_type(name, magic + FILLER)


@pytest.mark.parametrize(
    "head",
    [
        *(b"", b"G", b"GIF88a", b"GIF8", b"\x89PNG\n\x1a\n", b"BMW", b"\xff\xd8", b"\xff\xfe\xff"),
        *(b"BM is how this text begins, and more", b"RIFF\x24\x00\x00\x00WAVEfmt "),
        *(b"II, the second part of the story", b"MM and so on, for the rest of it"),
        *(b"\0\0\0\x18ftypisom\0\0\0\0", b"\0\1\0\0\0\x0f\0\x80", b"x\x89PNG\r\n\x1a\n"),
        b"\n\xff\xd8\xff",
    ],
)
def test_texts_and_near_misses_are_not_images(head: bytes) -> None:
    """The magic must stand at the very beginning, and be complete."""
    check_type("notes.txt", head)


@pytest.mark.parametrize(
    ("name", "is_image"),
    [
        *[(f"a.{suffix}", True) for suffix in ("png", "PNG", "jpg", "JPeG", "gif", "bmp", "webp")],
        *[(f"a.{suffix}", True) for suffix in ("tif", "tiff", "svg", "ico", "heic", "avif")],
        *[("archive.tar.png", True), (".png", True)],
        *[(name, False) for name in ("a.pdf", "png", "a.png.pdf", "a.pngx", "apng", "a.", "")],
    ],
)
def test_images_by_their_names(name: str, is_image: bool) -> None:
    """Where the bytes are not those of a known kind, the name counts."""
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    if not is_image:
        check_type(name, svg)
        return
    with pytest.raises(DocumentTypeRefused, match="image by its name") as caught:
        check_type(name, svg)
    assert name.rpartition(".")[2].upper() in caught.value.kind


@settings(deadline=None)
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
        "HTTPS://FILES.EXAMPLE.COM/DECK.PDF",
        "http://files.example.com",
        "https://files.example.com:8443/a?b=c&d=%20#e",
        "https://[2001:db8::1]:8443/deck.pdf",
        "https://xn--bcher-kva.example/%C3%BC.pdf",
        "https://files.example.com/@anna/deck.pdf?mail=anna@example.com",
        "https://files.example.com/" + "a" * (MAX_LINK_BYTES - 26),
    ],
)
def test_links_that_a_server_can_download_from(link: str) -> None:
    """Public http(s) URLs, already encoded, of up to 8 KiB."""
    check_link(link)


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
    ("https://files.example.com/" + "a" * (MAX_LINK_BYTES - 25), "longer than 8,192 bytes"),
]


@pytest.mark.parametrize(("link", "problem"), BAD_LINKS, ids=lambda value: ascii(value)[:60])
def test_links_that_no_server_can_download_from(link: str, problem: str) -> None:
    """Refused without asking anybody; the error is short, says why and hides a password."""
    with pytest.raises(InvalidInput) as caught:
        check_link(link)
    assert caught.value.field == "document_link"
    assert problem in caught.value.problem
    assert len(str(caught.value)) < 400
    assert "hush" not in str(caught.value)
