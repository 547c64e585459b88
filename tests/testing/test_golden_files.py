"""Golden requests: kinds of files, names and forms.

Each is sent on a plain socket, and handed to the application in process; no HTTP client and none
of the library's own code takes part.
"""

from __future__ import annotations

import io
import zipfile

import pytest

from meeting_async.testing import ACCEPTED_KINDS, MeetingServer
from support.raw_http import (
    END,
    PDF,
    document,
    part,
    talk,
    upload,
)
from support.worlds import World

# --- kinds of files and names -----------------------------------------------------------------


def zipped(*names: str, stored: bytes = b"") -> bytes:
    """Make a ZIP file with these entries."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for index, name in enumerate(names):
            kind = zipfile.ZIP_STORED if stored and not index else zipfile.ZIP_DEFLATED
            archive.writestr(name, stored if kind == zipfile.ZIP_STORED else b"x" * 999, kind)
    return buffer.getvalue()


def office(folder: str) -> bytes:
    """Make the beginning of an office document."""
    return zipped("[Content_Types].xml", "_rels/.rels", f"{folder}/document.xml")


OPEN_DOCUMENT = b"application/vnd.oasis.opendocument."
FILES: list[tuple[str, bytes, int]] = [
    ("pdf", PDF, 200),
    ("docx", office("word"), 200),
    ("xlsx", office("xl"), 200),
    ("pptx", office("ppt"), 200),
    ("txt", "Grüße\n".encode(), 200),
    ("txt", b"Dear all, hello\nfrom me, to you, again\n", 200),
    ("txt", "é".encode() * 9000, 200),
    ("empty", b"", 200),
    ("html", b"<!DOCTYPE html><title>x</title>", 400),
    ("html", b" \n<HTML><body>", 400),
    ("csv", b"a,b\n1,2\n3,4\n", 400),
    ("rtf", b"{\\rtf1 text}", 400),
    ("xml", b"<?xml version='1.0'?><a/>", 400),
    ("odt", zipped("mimetype", "content.xml", stored=OPEN_DOCUMENT + b"text"), 400),
    ("odp", zipped("mimetype", "content.xml", stored=OPEN_DOCUMENT + b"presentation"), 400),
    ("ole", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), 400),
    ("gif", b"GIF89a" + bytes(20), 400),
    ("webp", b"RIFF\x00\x00\x00\x00WEBPVP8", 400),
    ("tiff", b"II*\x00", 400),
    ("unknown", b"\x7fELF\x00", 400),
    ("unknown", b"\xfe\xfd", 400),
    ("png", b"\x89PNG\r\n\x1a\n" + bytes(32), 500),
    ("jpeg", b"\xff\xd8\xff\xe0", 500),
    ("svg", b"<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>", 500),
    ("svg", b"<svg/>", 500),
    ("zip", zipped("a.txt", "words/b.txt"), 500),
    ("broken pdf", b"%PDF-broken", 500),
]


@pytest.mark.parametrize(("kind", "data", "status"), FILES)
def test_the_content_decides_and_not_the_name(
    world: World, kind: str, data: bytes, status: int
) -> None:
    """Whatever name and type say; every refusal is the server's own record and frees the room."""
    answer = world.talk(upload(document(data)))
    codes = {200: "SUCCESS", 400: "INVALID_PARAMETERS", 500: "INTERNAL_SERVER_ERROR"}
    assert answer.code == (status, codes[status])
    assert [file.kind for file in world.room.received] == ([kind] if status == 200 else [])
    assert not world.room.locked


@pytest.mark.parametrize("kind", ["odt", "ole", "png", "broken pdf", "csv"])
def test_the_kinds_are_a_setting(kind: str) -> None:
    """A server that takes other kinds is a setting away; the usual ones may be left out."""
    server = MeetingServer(accepted_kinds={kind})
    room = server.add_room("room01")
    data = next(row[1] for row in FILES if row[0] == kind)
    with server.run() as url:
        assert talk(url, upload(document(data))).status == 200
        assert talk(url, upload()).status == 400
    assert [file.kind for file in room.received] == [kind]


NAMES = [
    ("deck.pdf", "deck.pdf"),
    ("Präsentation · 會議 😀.pdf", "Präsentation · 會議 😀.pdf"),
    ("../../etc/passwd", "passwd"),
    ("talks\\a.pdf", "a.pdf"),
    ("a<b>c:d|e?f*g.pdf", "a_b_c_d_e_f_g.pdf"),
    ("a%22b%0Ac.pdf", "a%22b%0Ac.pdf"),
    ("a\tb.pdf", "a_b.pdf"),
    ("..", "document"),
    ("ä" * 200 + ".pdf", "ä" * 127),
    ("x" * 252 + ".pdf", "x" * 252 + ".pd"),
]


@pytest.mark.parametrize(("name", "stored"), NAMES)
def test_names_are_kept_as_sent_and_stored_as_safe_names(
    world: World, name: str, stored: str
) -> None:
    """Odd characters become "_", escapes stay, and the end is cut, extension included."""
    assert world.talk(upload(document(name=name))).status == 200
    (file,) = world.room.received
    assert (file.name, file.stored_name) == (name, stored)


@pytest.mark.parametrize(("length", "status"), [(248, 200), (249, 500)])
def test_an_office_document_with_a_very_long_name_fails(
    world: World, length: int, status: int
) -> None:
    """Its conversion ends in 500; a PDF of that name is taken."""
    name = "x" * (length - 5) + ".docx"
    assert world.talk(upload(document(office("word"), name))).status == status
    assert world.talk(upload(document(PDF, name))).status == 200


def test_a_form_may_come_in_any_pieces_and_order(world: World) -> None:
    """Unknown fields are ignored, also with half boundaries in the data."""
    data = PDF + b"\r\n--X\r\n--XY\r\n-" * 3
    disposition = 'filename="a \\"b\\"; c.pdf"; name=document'
    body = part('name="other"', b"ignored") + part(disposition, data) + END + b"epilogue"
    assert world.talk(upload(body)).status == 200
    assert [(file.name, file.content) for file in world.room.received] == [('a "b"; c.pdf', data)]


def test_the_default_kinds_are_the_real_servers() -> None:
    """The setting's default is public, to be extended."""
    assert {row[0] for row in FILES if row[2] == 200} == ACCEPTED_KINDS
