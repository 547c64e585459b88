"""Golden requests: uploads, in the order in which the server examines them; kinds of files.

Each is sent on a plain socket, and handed to the application in process; no HTTP client and none
of the library's own code takes part.
"""

from __future__ import annotations

import io
import zipfile

import pytest

from meeting_async.testing import ACCEPTED_KINDS, MeetingServer
from support.raw_http import (
    BODY_LIMIT,
    END,
    FORM,
    INFO,
    LIMIT,
    PDF,
    UPLOAD,
    World,
    call,
    document,
    link,
    part,
    sign,
    talk,
    upload,
)

SUCCESS = {"status": True, "msg": "file uploaded successfully", "status_code": "SUCCESS"}
NAMED = b'{"room_id": "room01"}'
EMPTY_FORM = part('name="probe"', b"1") + END
CAPITALS = FORM.replace("multipart/form-data", "Multipart/Form-Data")

# Computed once with: printf '%s' MESSAGE | openssl dgst -sha256 -hmac devsecret
OPENSSL_VECTORS = {
    "room01": "534a9003352821d9a2341ea637e5954fefe0c38183ba670232734bd522f304a2",
    '{"room_id":"room01"}': "9a9769cf292ab2212e826d5982693b84e97e6a028cfb2ab4991bea3b9bf47e05",
    '{"room_id":"raum-ä","title":"會議"}': (
        "4631440bd95340bf680d2c047a227660b21092d48ba530f9c6fbf92f8623d373"
    ),
}


# --- uploads, in the order of examination -----------------------------------------------------


def test_an_upload_that_is_taken(world: World) -> None:
    """200, the success record, and the file is listed in the room with every byte."""
    answer = world.talk(upload())
    assert (answer.status, answer.record) == (200, SUCCESS)
    assert answer.headers["content-type"] == "application/json"
    (file,) = world.room.received
    assert (file.name, file.stored_name, file.content) == ("deck.pdf", "deck.pdf", PDF)
    assert (file.kind, file.content_type, file.via) == ("pdf", "application/pdf", "document")


REFUSED = [
    # body limit, form, key, signature, Room-Id, room, presenter, lock, file, size, kind
    ("body", upload(bytes(BODY_LIMIT + 1), API_KEY="no"), 413, "Request Entity Too Large"),
    ("form", upload(b"junk", API_KEY="no"), 400, "Bad Request"),
    ("no key", upload(API_KEY=None, HASH_SIGNATURE="no"), 401, "MISSING_REQUIRED_PARAMETER"),
    ("empty key", upload(API_KEY="", HASH_SIGNATURE="no"), 401, "MISSING_REQUIRED_PARAMETER"),
    ("key", upload(API_KEY="devkex", HASH_SIGNATURE=None), 401, "INVALID_API_KEY"),
    ("no signature", upload(HASH_SIGNATURE=None, Room_Id=None), 401, "MISSING_REQUIRED_PARAMETER"),
    ("signature", upload(HASH_SIGNATURE="0" * 64), 401, "INVALID_TOKEN_OR_SIGNATURE"),
    (
        "upper case",
        upload(HASH_SIGNATURE=OPENSSL_VECTORS["room01"].upper()),
        401,
        "INVALID_TOKEN_OR_SIGNATURE",
    ),
    ("another room's signature", upload(Room_Id="room02"), 401, "INVALID_TOKEN_OR_SIGNATURE"),
    ("form without Room-Id", upload(Room_Id=None), 401, "MISSING_REQUIRED_PARAMETER"),
    (
        "no form, no Room-Id",
        upload(NAMED, Room_Id=None, Content_Type=None, HASH_SIGNATURE=sign(NAMED)),
        400,
        "INVALID_PARAMETERS",
    ),
    ("no body", upload(b""), 400, "INVALID_PARAMETERS"),
    ("no body, no key", upload(b"", API_KEY=None), 401, "MISSING_REQUIRED_PARAMETER"),
    ("type in capitals", upload(Content_Type=CAPITALS), 401, "INVALID_TOKEN_OR_SIGNATURE"),
    (
        "capitals, signed as no form",
        upload(Content_Type=CAPITALS, HASH_SIGNATURE=sign(document())),
        400,
        "INVALID_PARAMETERS",
    ),
    ("no room", upload(room="room02"), 400, "ROOM_NOT_FOUND"),
    ("odd room id", upload(room="room 1"), 400, "INTERNAL_SERVER_ERROR"),
    ("no field", upload(EMPTY_FORM), 400, "INVALID_PARAMETERS"),
    ("empty form", upload(END), 400, "INVALID_PARAMETERS"),
    ("no file name", upload(part('name="document"', PDF) + END), 400, "INVALID_PARAMETERS"),
    (
        "link as file",
        upload(part('name="document_link"; filename="x"', b"http://127.0.0.1/") + END),
        400,
        "INVALID_PARAMETERS",
    ),
    (
        "first file too large",
        upload(document(PDF.ljust(LIMIT + 1))[: -len(END)] + document()),
        413,
        "INVALID_PARAMETERS",
    ),
    (
        "first file refused",
        upload(document(b"a,b\n1,2")[: -len(END)] + document()),
        400,
        "INVALID_PARAMETERS",
    ),
    (
        "no form",
        upload(b"{}", Content_Type="text/plain", HASH_SIGNATURE=sign(b"{}")),
        400,
        "INVALID_PARAMETERS",
    ),
    ("long field", upload(link("x" * 70_000)), 413, "Request Entity Too Large"),
    ("size", upload(document(PDF.ljust(LIMIT + 1))), 413, "INVALID_PARAMETERS"),
    ("bad link", upload(link("http://127.0.0.1:1/x.pdf")), 400, "INTERNAL_SERVER_ERROR"),
    ("no link", upload(link("deck.pdf")), 400, "INVALID_PARAMETERS"),
    ("no link, with a colon", upload(link("deck:1.pdf")), 400, "INVALID_PARAMETERS"),
    ("half a link", upload(link("http://[::")), 400, "INVALID_PARAMETERS"),
    ("a path as link", upload(link("/deck.pdf")), 400, "INTERNAL_SERVER_ERROR"),
    ("no server in the link", upload(link("http:///x.pdf")), 400, "INTERNAL_SERVER_ERROR"),
    ("file link", upload(link("file:///etc/passwd")), 400, "INTERNAL_SERVER_ERROR"),
    ("head", upload(X="x" * 4096), 431, "Request Header Fields Too Large"),
]


@pytest.mark.parametrize(
    ("raw", "status", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_an_upload_that_is_refused(world: World, raw: bytes, status: int, code: str) -> None:
    """The first thing that is wrong is named; the room has no file and no lock afterwards."""
    assert world.talk(raw).code == (status, code)
    assert (world.room.accepted, world.room.locked) == ((), False)
    assert world.talk(upload()).status == 200


BROKEN_FORMS = {
    "no end": document()[: -len(END)],
    "half an end": document()[: -len(b"--\r\n")],
    "no header end": b"--XX\r\nContent-Disposition: form-data",
    "no boundary in the type": document(),
    "a long boundary": document(),
}
TYPES = {
    "no boundary in the type": "multipart/form-data",
    "a long boundary": f"multipart/form-data; boundary={'X' * 300}",
}


@pytest.mark.parametrize("fault", BROKEN_FORMS)
def test_a_form_that_does_not_parse(world: World, fault: str) -> None:
    """Plain 400 and a close, before the key is looked at, on every path."""
    content_type = TYPES.get(fault, FORM)
    for path in (UPLOAD, INFO):
        raw = upload(BROKEN_FORMS[fault], path=path, Content_Type=content_type, API_KEY=None)
        answer = world.talk(raw)
        assert answer.code == (400, "Bad Request")
        assert answer.headers["connection"] == "close"
    assert not world.room.locked


def test_the_room_is_examined_before_its_lock_and_the_lock_before_the_form(world: World) -> None:
    """ROOM_NOT_ACTIVE, then the presenter, then 409, then what is in the form."""
    form = upload(EMPTY_FORM)
    world.do(lambda: world.room.lock(60))
    world.room.active = world.room.presenter = False
    assert world.talk(form).code == (400, "ROOM_NOT_ACTIVE")
    world.room.active = True
    assert world.talk(form).code == (400, "USER_NOT_ACTIVE")
    world.room.presenter = True
    assert world.talk(form).code == (409, "CONFLICT")
    assert world.talk(upload()).code == (409, "CONFLICT")
    world.room.unlock()
    assert world.talk(form).code == (400, "INVALID_PARAMETERS")
    assert world.talk(upload()).status == 200


def test_a_presenter_and_odd_room_ids_are_settings() -> None:
    """The real server looks for no presenter; another one may take any id."""
    server = MeetingServer(presenter_required=False, strict_room_ids=False)
    server.add_room("raum 1/ä", presenter=False)
    with server.run() as url:
        assert talk(url, upload(room="raum 1/ä")).status == 200


def test_a_field_that_is_too_long() -> None:
    """No link has more than 64 KiB, so that a longer one cannot be downloaded."""
    server = MeetingServer()
    server.add_room("room01")
    with server.run() as url:
        answer = talk(url, upload(link("http://127.0.0.1/" + "x" * 10**6)))
    assert answer.code == (400, "INTERNAL_SERVER_ERROR")


def test_a_body_of_exactly_the_limit_is_read(world: World) -> None:
    """Equality is allowed, for the body and for the document."""
    assert world.talk(upload(b"x" * BODY_LIMIT)).code == (400, "Bad Request")
    assert world.talk(upload(document(PDF.ljust(LIMIT)))).status == 200


def test_the_first_of_several_documents_or_links_is_taken(world: World) -> None:
    """A form with two documents is no mistake; the other one is ignored, whatever it is."""
    for second in (document(b"\x89PNG\r\n\x1a\n"), document(PDF.ljust(LIMIT + 1), "large.pdf")):
        assert world.talk(upload(document()[: -len(END)] + second)).status == 200
    links = link("deck.pdf")[: -len(END)] + link("http://127.0.0.1:1/x.pdf")
    assert world.talk(upload(links)).code == (400, "INVALID_PARAMETERS")
    assert [file.name for file in world.room.received] == ["deck.pdf", "deck.pdf"]


def test_a_form_is_whole_without_its_last_line_break(world: World) -> None:
    """Two bytes less, and it is stored all the same."""
    assert world.talk(upload(document()[:-2])).status == 200
    assert [file.content for file in world.room.received] == [PDF]


def test_a_form_without_a_body_asks_like_an_empty_one(world: World) -> None:
    """409 if the room is locked, else 400; nothing is listed."""
    world.do(lambda: world.room.lock(60))
    assert world.talk(upload(b"")).code == (409, "CONFLICT")
    world.room.unlock()
    assert world.talk(upload(b"")).code == (400, "INVALID_PARAMETERS")
    assert world.room.accepted == ()


def test_the_same_file_twice_is_two_entries(world: World) -> None:
    """Nothing deduplicates."""
    for _ in range(2):
        assert world.talk(upload()).status == 200
    assert [file.name for file in world.room.received] == ["deck.pdf", "deck.pdf"]


# --- signatures -------------------------------------------------------------------------------


@pytest.mark.parametrize(("message", "signature"), OPENSSL_VECTORS.items())
def test_signatures_of_openssl_are_right(world: World, message: str, signature: str) -> None:
    """Over Room-Id for a form, over the raw body for anything else, byte for byte."""
    if message.startswith("{"):
        raw = call(INFO, message.encode(), HASH_SIGNATURE=signature)
    else:
        raw = upload(room=message, HASH_SIGNATURE=signature)
    assert world.talk(raw).status == 200


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (call(INFO, b'{"room_id": "room01"}', API_KEY=None), "MISSING_REQUIRED_PARAMETER"),
        (call(INFO, b'{"room_id": "room01"}', API_KEY="x"), "INVALID_API_KEY"),
        (call(INFO, b"{}", HASH_SIGNATURE=None), "MISSING_REQUIRED_PARAMETER"),
        (call(INFO, b"{}", HASH_SIGNATURE=sign(b"{ }")), "INVALID_TOKEN_OR_SIGNATURE"),
        (
            call(INFO, b"{}", HASH_SIGNATURE=sign(b"room01"), Room_Id="room01"),
            "INVALID_TOKEN_OR_SIGNATURE",
        ),
        (upload(path=INFO, HASH_SIGNATURE=sign(document())), "INVALID_TOKEN_OR_SIGNATURE"),
    ],
)
def test_a_call_that_is_not_signed_right(world: World, raw: bytes, code: str) -> None:
    """401 with the name of what is wrong; the content type decides what is signed."""
    assert world.talk(raw).code == (401, code)


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


WHOLE_PDF = (
    b"%PDF-1.4\n"
    b"1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n"
    b"2 0 obj\n<< /Type /Pages /Kids [] /Count 0 >>\nendobj\n"
    b"xref\n0 3\n0000000000 65535 f \n0000000009 00000 n \n0000000058 00000 n \n"
    b"trailer\n<< /Size 3 /Root 1 0 R >>\nstartxref\n109\n%%EOF\n"
)
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
    ("csv", b"Stra\xdfe,Ort\n1,2\n", 400),
    ("csv", b"a,b\r\n\r\n1,2\r\n", 400),
    ("tsv", b"a\tb\n1\t2\n", 400),
    ("txt", b"a\tb\n", 200),
    ("txt", b"a\tb\n1\t2\t3\n", 200),
    ("json", b'{"a": 1}', 400),
    ("json", b'\n[\n  {"a": "\xc3\xa9"},\n  2]\n', 400),
    ("json", b'{"notes": "' + b"x" * 17_000 + b'"}', 400),
    ("json", b"\xef\xbb\xbf[]", 400),
    ("txt", b"[1] Ada: Notes\n", 200),
    ("txt", b"{" * 9000, 200),
    ("txt", b"1843", 200),
    ("script", b"#!/bin/sh\necho hello\n", 400),
    ("script", b"#!/usr/bin/env python3\nprint()\n", 400),
    ("script", b"<?php echo 1;", 400),
    ("txt", "Grüße\n".encode("latin-1"), 200),
    ("txt", "Grüße\n".encode("utf-16"), 200),
    ("txt", b"\xfe\xff" + "Grüße\n".encode("utf-16-be"), 200),
    ("txt", b"\x1b[1mbold\x1b[0m\n", 200),
    ("unknown", "Gruss\n".encode("utf-16-le"), 400),
    ("rtf", b"{\\rtf1 text}", 400),
    ("xml", b"<?xml version='1.0'?><a/>", 400),
    ("odt", zipped("mimetype", "content.xml", stored=OPEN_DOCUMENT + b"text"), 400),
    ("odp", zipped("mimetype", "content.xml", stored=OPEN_DOCUMENT + b"presentation"), 400),
    ("ole", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), 400),
    ("gif", b"GIF89a" + bytes(20), 400),
    ("gif", b"GIF87a and text", 400),
    ("webp", b"RIFF\x00\x00\x00\x00WEBPVP8", 400),
    ("tiff", b"II*\x00", 400),
    ("unknown", b"\x7fELF\x00", 400),
    ("unknown", b"\xfe\xfd\x00", 400),
    ("png", b"\x89PNG\r\n\x1a\n" + bytes(32), 500),
    ("jpeg", b"\xff\xd8\xff\xe0", 500),
    ("svg", b"<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>", 500),
    ("svg", b"<svg/>", 500),
    ("zip", zipped("a.txt", "words/b.txt"), 500),
    ("broken pdf", b"%PDF-broken", 500),
    ("pdf", WHOLE_PDF, 200),
    ("pdf", WHOLE_PDF + bytes(500), 200),
    ("pdf", WHOLE_PDF[:9] + b"% " + b"x" * 17_000 + b"\n" + WHOLE_PDF[9:], 200),
    ("broken pdf", WHOLE_PDF[: -len(b"%%EOF\n")], 500),
    ("broken pdf", WHOLE_PDF[: len(WHOLE_PDF) // 2], 500),
    ("encrypted pdf", WHOLE_PDF.replace(b"/Size", b"/Encrypt 9 0 R /Size"), 500),
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


@pytest.mark.parametrize(
    "kind", ["odt", "ole", "png", "broken pdf", "encrypted pdf", "csv", "json", "tsv", "script"]
)
def test_the_kinds_are_a_setting(kind: str) -> None:
    """A server that takes other kinds is a setting away; the usual ones may be left out."""
    server = MeetingServer(accepted_kinds={kind})
    room = server.add_room("room01")
    data = next(row[1] for row in FILES if row[0] == kind)
    with server.run() as url:
        assert talk(url, upload(document(data))).status == 200
        assert talk(url, upload()).status == 400
    assert [file.kind for file in room.received] == [kind]


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"%PDF-1.7", 500), (PDF, 500), (PDF.ljust(9000), 500), (WHOLE_PDF, 200)],
)
def test_a_pdf_without_objects_is_broken_on_a_strict_server(data: bytes, status: int) -> None:
    """By default it stands for a document; the real server cannot convert it."""
    server = MeetingServer(strict_pdf=True)
    room = server.add_room("room01")
    with server.run() as url:
        assert talk(url, upload(document(data))).status == status
    assert len(room.received) == (status == 200)


NAMES = [
    ("deck.pdf", "deck.pdf"),
    ("Präsentation · 會議 😀.pdf", "Präsentation · 會議 😀.pdf"),
    ("../../etc/passwd", "passwd"),
    ("talks\\a.pdf", "a.pdf"),
    ("a<b>c:d|e?f*g.pdf", "a_b_c_d_e_f_g.pdf"),
    ("a%22b%0Ac.pdf", "a%22b%0Ac.pdf"),
    ("a\tb\x7f.pdf", "a\tb\x7f.pdf"),
    ("\xa0a\xa0b\u200b\u202e\ufeff.pdf\xa0", "\xa0a\xa0b\u200b\u202e\ufeff.pdf\xa0"),
    (" . .a b. c.pdf. . ", "a b. c.pdf"),
    ("..", "document"),
    ("ä" * 200 + ".pdf", "ä" * 127),
    ("x" * 252 + ".pdf", "x" * 252 + ".pd"),
]


@pytest.mark.parametrize(("name", "stored"), NAMES)
def test_names_are_kept_as_sent_and_stored_as_safe_names(
    world: World, name: str, stored: str
) -> None:
    """Odd characters become "_", unprintable ones and escapes stay; ends and length are cut."""
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
