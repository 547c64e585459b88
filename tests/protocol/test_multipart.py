"""The multipart form: planned to the byte, with names that every server takes as they are."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meeting_async._protocol.multipart import (
    document_form,
    empty_form,
    file_name,
    link_form,
    media_type,
)
from meeting_async.errors import InvalidInput
from support.parsers import PARSERS

BOUNDARY = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("parse", PARSERS)
def test_the_question_has_neither_field(parse: Any) -> None:
    """A form of some 300 bytes at most, which lists nothing in a room."""
    content_type, form = empty_form(boundary=BOUNDARY)
    (part,) = parse(content_type, form)
    assert part[0] not in {"document", "document_link"}
    assert part[1] is None
    assert len(form) < 300


def test_a_form_to_the_byte() -> None:
    """RFC 7578 and RFC 2046 section 5.1, with the closing boundary as a chunk of its own."""
    framing = document_form("a.pdf", "application/pdf", 5, boundary="xyz")
    assert framing.content_type == b"multipart/form-data; boundary=xyz"
    assert framing.part_headers + b"%PDF-" + framing.closing_boundary == (
        b'--xyz\r\nContent-Disposition: form-data; name="document"; filename="a.pdf"\r\n'
        b"Content-Type: application/pdf\r\n\r\n%PDF-\r\n--xyz--\r\n"
    )
    assert framing.closing_boundary == b"\r\n--xyz--\r\n"
    assert framing.length == len(framing.part_headers + b"%PDF-" + framing.closing_boundary)
    assert link_form("https://f.test/?hush", boundary="xyz").size == 20
    assert "hush" not in repr(link_form("https://f.test/?hush", boundary="xyz"))
    assert document_form("a", "a/b", 10**12, boundary="xyz").length > 10**12


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/srv/files/deck.pdf", "deck.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\anna\\deck.pdf", "deck.pdf"),
        ("a/b\\c/deck.pdf", "deck.pdf"),
        ("C:deck.pdf", "C_deck.pdf"),
        (" .hidden.pdf. ", "hidden.pdf"),
        ("u\u0308bung.pdf", "übung.pdf"),  # NFD to NFC
        ('a"b<c>d:e|f?g*h.pdf', "a_b_c_d_e_f_g_h.pdf"),
        ("a\r\nb\tc\x1b\x7f\x85.pdf", "a__b_c___.pdf"),
        ("ü 會 😀 ; ' =.pdf", "ü 會 😀 ; ' =.pdf"),
        ("x" * 300, "x" * 200),
        ("x" * 300 + ".pdf", "x" * 196 + ".pdf"),
        ("x" * 196 + ".pdf", "x" * 196 + ".pdf"),
        ("x" * 197 + ".pdf", "x" * 196 + ".pdf"),
        ("é" * 150 + ".pptx", "é" * 97 + ".pptx"),  # 97 * 2 + 5 = 199: no half characters
        ("x" * 300 + "." + "y" * 100, "x" * 200),  # that is no extension
        ("x" * 100 + " " * 200 + ".pdf", "x" * 100 + ".pdf"),
    ],
    ids=lambda name: ascii(name)[:30],
)
def test_file_names(name: str, expected: str) -> None:
    """The last component, in NFC, without what servers change, cut before the extension."""
    assert file_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "...", " ", " . ", "/", "\\", "dir/", "C:\\", "a/..", "a/ "),
        *("a\0b.pdf", "\0", "a\ud800.pdf", "\udcff" * 1000),
    ],
    ids=lambda name: ascii(name)[:20],
)
def test_unusable_file_names(name: str) -> None:
    """Nothing is left, or it cannot be written; the error says what to pass."""
    with pytest.raises(InvalidInput) as caught:
        file_name(name)
    assert caught.value.field == "filename"
    assert len(str(caught.value)) < 400


@settings(max_examples=50)
@given(st.text() | st.text(min_size=150, max_size=300))
def test_a_file_name_is_harmless(name: str) -> None:
    """Whatever goes in: no path, nothing that a server changes, one way to spell it."""
    try:
        clean = file_name(name)
    except InvalidInput:
        return
    assert clean not in {"", ".", ".."}
    assert not set(clean) & set('/\\<>:"|?*')
    assert not any(unicodedata.category(character) == "Cc" for character in clean)
    assert len(clean.encode()) <= 200
    assert unicodedata.is_normalized("NFC", clean)
    assert file_name(clean) == clean


@pytest.mark.parametrize(
    "kind", ["application/pdf", "image/svg+xml", "text/plain;charset=utf-8", 'a/b ; c="d"; e=f']
)
def test_media_types(kind: str) -> None:
    """A type, a subtype, and parameters as needed."""
    assert media_type(kind) == kind


@pytest.mark.parametrize(
    "kind",
    [
        *("", "pdf", "application/", "/pdf", "a/b/c", " a/b", "a/b ", "a/p df", "a/b, c/d", "*/*"),
        *("a/b\r\nX-Evil: 1", "a/b\n", "a/b; c=\r\nX: 1", "a/b; c=\0", "a/b; c=ü", "ä/b", "a/b\tc"),
    ],
)
def test_unusable_media_types(kind: str) -> None:
    """What could open another header, or is no type."""
    with pytest.raises(InvalidInput) as caught:
        media_type(kind)
    assert caught.value.field == "content_type"
