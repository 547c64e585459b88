"""Golden uploads that are taken: forms, kinds by content, names, and links with their downloads."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import anyio.to_thread
import pytest

from meeting_async.testing import ACCEPTED_KINDS, MeetingServer, Room
from support.command_line import until
from support.documents import PDF
from support.raw_http import (
    END,
    LIMIT,
    Answer,
    World,
    connect,
    document,
    link,
    part,
    request,
    talk,
    talk_in_process,
    upload,
)


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
LONG_PDF = WHOLE_PDF.replace(b"2 0 obj", b"%" + b"x" * 2000 + b"\n2 0 obj")
OPEN_DOCUMENT = b"application/vnd.oasis.opendocument."
FILES: dict[str, list[bytes]] = {
    "pdf": [
        *(PDF, WHOLE_PDF, WHOLE_PDF + bytes(500)),
        WHOLE_PDF[:9] + b"% " + b"x" * 17_000 + b"\n" + WHOLE_PDF[9:],
        *(WHOLE_PDF[: -len(b"%%EOF\n")], WHOLE_PDF.replace(b"\n", b"\r\n")),
    ],
    "broken pdf": [
        *(b"%PDF-broken", b"\xef\xbb\xbf" + WHOLE_PDF, b"\n\r\n" + WHOLE_PDF),
        *(LONG_PDF[:-cut] for cut in (10, 20, 50, 100, 200, 400, 800)),
        LONG_PDF + b"\n%" * 1000,  # nothing looks so far from the end
        *(b"junk" + WHOLE_PDF, b"\xff\x00" + PDF, b"<html>" + PDF, b"x" * 1019 + PDF),
    ],
    "encrypted pdf": [WHOLE_PDF.replace(b"/Size", b"/Encrypt 9 0 R /Size")],
    "docx": [office("word")],
    "xlsx": [office("xl")],
    "pptx": [office("ppt")],
    "zip": [zipped("a.txt", "words/b.txt")],
    "empty": [b""],
    "txt": [
        *("Grüße\n".encode(code) for code in ("utf-8", "latin-1", "utf-16")),
        *(b"Dear all, hello\nfrom me, to you, again\n", "é".encode() * 9000),
        *(b"a\tb\n", b"a\tb\n1\t2\t3\n", b"[1] Ada: Notes\n", b"{" * 9000, b"1843"),
        *(b"\xfe\xff" + "Grüße\n".encode("utf-16-be"), b"\x1b[1mbold\x1b[0m\n"),
        b"x" * 1100 + PDF,
        *(b"# Notes\n\nAda, Bob\n\n# More, and more\n", b"# Notes\n\n- one, two\n- three\n"),
    ],
    "html": [b"<!DOCTYPE html><title>x</title>", b" \n<HTML><body>"],
    "csv": [b"a,b\n1,2\n3,4\n", b"Stra\xdfe,Ort\n1,2\n", b"a,b\r\n\r\n1,2\r\n"],
    "tsv": [b"a\tb\n1\t2\n"],
    "json": [
        *(b'{"a": 1}', b'\n[\n  {"a": "\xc3\xa9"},\n  2]\n', b"\xef\xbb\xbf[]"),
        b'{"notes": "' + b"x" * 17_000 + b'"}',
    ],
    "script": [b"#!/bin/sh\necho hello\n", b"#!/usr/bin/env python3\nprint()\n", b"<?php echo 1;"],
    "unknown": ["Gruss\n".encode("utf-16-le"), b"\x7fELF\x00", b"\xfe\xfd\x00"],
    "rtf": [b"{\\rtf1 text}"],
    "xml": [b"<?xml version='1.0'?><a/>"],
    "odt": [zipped("mimetype", "content.xml", stored=OPEN_DOCUMENT + b"text")],
    "odp": [zipped("mimetype", "content.xml", stored=OPEN_DOCUMENT + b"presentation")],
    "ole": [b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500)],
    "gif": [b"GIF89a" + bytes(20), b"GIF87a and text"],
    "ps": [b"%!PS-Adobe-3.0\n%%Pages: 1\n"],
    "epub": [zipped("mimetype", "a.opf", stored=b"application/epub+zip")],
    "webp": [b"RIFF\x00\x00\x00\x00WEBPVP8"],
    "tiff": [b"II*\x00"],
    "png": [b"\x89PNG\r\n\x1a\n" + bytes(32)],
    "jpeg": [b"\xff\xd8\xff\xe0"],
    "svg": [b"<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>", b"<svg/>"],
    "mp4": [b"\x00\x00\x00\x18ftypmp42" + bytes(16)],
    "mp3": [b"ID3\x04\x00" + bytes(16), b"\xff\xfb\x90\x64" + bytes(16)],
}
"""Files by their kind; a kind without a name here has the kind "unknown"."""
UNNAMED = {"webp", "tiff"}
TAKEN = {"docx", "empty", "pdf", "pptx", "txt", "xlsx"}
FAILING = {"broken pdf", "encrypted pdf", "jpeg", "mp3", "mp4", "png", "svg", "zip"}


def test_the_content_decides_and_not_the_name(world: World) -> None:
    """Whatever name and type say; every refusal is the server's own record and frees the room."""
    for kind, files in FILES.items():
        code = (400, "INVALID_PARAMETERS")
        if kind in TAKEN | FAILING:
            code = (200, "SUCCESS") if kind in TAKEN else (500, "INTERNAL_SERVER_ERROR")
        for data in files:
            assert world.talk(upload(document(data))).code == code, (kind, data[:80])
            assert not world.room.locked
    taken = [kind for kind, files in FILES.items() for _ in files if kind in TAKEN]
    assert [file.kind for file in world.room.received] == taken


def test_the_kinds_are_a_setting(server: MeetingServer, room: Room) -> None:
    """A server that takes other kinds is a setting away; the usual ones may be left out."""
    assert TAKEN == ACCEPTED_KINDS
    for kind in set(FILES) - TAKEN - UNNAMED:
        server.accepted_kinds = {kind}
        for data in FILES[kind]:
            assert talk(server.url, upload(document(data))).status == 200, (kind, data[:80])
            assert room.received[-1].kind == kind
        assert talk(server.url, upload()).status == 400, kind


def test_a_pdf_without_objects_is_broken_on_a_strict_server() -> None:
    """By default it stands for a document; the real server cannot convert it."""
    server = MeetingServer(strict_pdf=True)
    room = server.add_room("room01")
    with server.run() as url:
        for data in (b"%PDF-1.7", PDF, PDF.ljust(9000)):
            assert talk(url, upload(document(data))).status == 500
        assert talk(url, upload(document(WHOLE_PDF))).status == 200
    assert len(room.received) == 1


def test_office_documents_at_the_same_moment(server: MeetingServer, room: Room) -> None:
    """If they clash, the second fails in any room and is not listed; in turn both are converted."""
    server.office_documents_clash = True
    room.processing_seconds = 0.5
    other = server.add_room("other")
    for data, status in ((PDF, 200), (office("xl"), 500)):
        with ThreadPoolExecutor() as pool:
            first = pool.submit(talk, server.url, upload(document(office("word"))))
            until(lambda: room.locked)
            answer = talk(server.url, upload(document(data), other.room_id))
        assert (answer.status, first.result().status) == (status, 200)
    assert answer.record["msg"] == "failed to convert file to PDF"
    assert talk(server.url, upload(document(office("xl")), other.room_id)).status == 200
    assert [file.kind for file in other.received] == ["pdf", "xlsx"]


OTHERS = PDF + b"\r\n--X\r\n--XY\r\n-" * 3
QUOTED = part('name="x"', b"ignored") + part('filename="a \\"b\\"; c.pdf"; name=document', OTHERS)


def extended(name: str, plain: str = "") -> bytes:
    """Write a form whose file has a name with a character set (RFC 5987)."""
    return part(f'name="document"; {plain}filename*={name}', PDF) + END


FORMS: list[tuple[bytes, str, bytes]] = [
    (document(), "deck.pdf", PDF),
    (document()[:-2], "deck.pdf", PDF),
    (document(PDF.ljust(LIMIT)), "deck.pdf", PDF.ljust(LIMIT)),
    (document()[: -len(END)] + document(FILES["png"][0]), "deck.pdf", PDF),
    (document()[: -len(END)] + document(PDF.ljust(LIMIT + 1), "large.pdf"), "deck.pdf", PDF),
    (extended("UTF-8''u%C3%A4%20.pdf"), "u\xe4 .pdf", PDF),
    (extended("iso-8859-1'de'u%E4.pdf", 'filename="u.pdf"; '), "u\xe4.pdf", PDF),
    (QUOTED + END + b"epilogue", 'a "b"; c.pdf', OTHERS),
]
NAMES = {
    "Präsentation · 會議 😀.pdf": "Präsentation · 會議 😀.pdf",
    "../../etc/passwd": "passwd",
    "talks\\a.pdf": "a.pdf",
    "a<b>c:d|e?f*g.pdf": "a_b_c_d_e_f_g.pdf",
    "a%22b%0Ac.pdf": "a%22b%0Ac.pdf",
    "a\tb\x7f.pdf": "a\tb\x7f.pdf",
    "\xa0a\xa0b\u200b\u202e\ufeff.pdf\xa0": "\xa0a\xa0b\u200b\u202e\ufeff.pdf\xa0",
    " . .a b. c.pdf. . ": "a b. c.pdf",
    "..": "document",
    "ä" * 200 + ".pdf": "ä" * 127,
    "x" * 252 + ".pdf": "x" * 252 + ".pd",
    'a "b"; c.pdf': "a _b_; c.pdf",
    "deck.pdf": "deck.pdf",
}
"""Names as they are sent, and as they are stored."""


def test_forms_that_are_taken(world: World) -> None:
    """200, and the file is listed with every byte, under the name that was sent and a safe one.

    The first of two files counts; no line break is needed at the end; nothing deduplicates.
    """
    for form, name, data in FORMS + [(document(name=name), name, PDF) for name in NAMES]:
        answer = world.talk(upload(form))
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        success = {"status": True, "status_code": "SUCCESS", "msg": "file uploaded successfully"}
        assert answer.record == success
        file = world.room.received[-1]
        stored = NAMES.get(name, name)
        assert (file.name, file.stored_name, file.content) == (name, stored, data)
    assert (file.kind, file.content_type, file.via) == ("pdf", "application/pdf", "document")
    assert len(world.room.received) == len(FORMS) + len(NAMES)


def test_an_office_document_with_a_very_long_name_fails(world: World) -> None:
    """Its conversion ends in 500; a PDF of that name is taken."""
    for length, status in ((248, 200), (249, 500)):
        name = "x" * (length - 5) + ".docx"
        assert world.talk(upload(document(office("word"), name))).status == status
        assert world.talk(upload(document(PDF, name))).status == 200


# --- links ------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[MeetingServer]:
    """Run a server with one room."""
    server = MeetingServer(max_size_whiteboard_file=LIMIT)
    server.add_room("room01")
    with server.run():
        yield server


@pytest.fixture
def room(server: MeetingServer) -> Room:
    """Provide the room."""
    return server.rooms["room01"]


def send(server: MeetingServer, url: str) -> Answer:
    """Upload a link."""
    return talk(server.url, upload(link(url)))


def test_a_link_is_downloaded(server: MeetingServer, room: Room) -> None:
    """HEAD, then GET, then it is a file like any other; a document beside it is ignored."""
    url = server.host_file("Folien ä.pdf", PDF)
    assert talk(server.url, upload(document()[: -len(END)] + link(url))).status == 200
    (file,) = room.received
    assert (file.name, file.via, file.size) == ("Folien ä.pdf", "document_link", len(PDF))
    assert (file.content_type, file.kind) == ("application/pdf", "pdf")
    assert [request.method for request in server.requests] == ["POST", "HEAD", "GET"]
    assert send(server, server.host_file("deck.pdf", PDF.ljust(LIMIT))).status == 200
    assert room.received[1].size == LIMIT


LINKED: dict[str, tuple[bytes, dict[str, Any], int]] = {
    "GET only": (PDF, {"head": False}, 400),
    "HTML": (PDF, {"content_type": "text/html; charset=utf-8"}, 400),
    "an image": (PDF, {"content_type": "image/png"}, 400),
    "no type": (PDF, {"content_type": ""}, 400),
    "too large": (PDF.ljust(LIMIT + 1), {}, 400),
    "an image that is called a PDF": (FILES["png"][0], {}, 500),
}


def test_a_link_to_something_else(server: MeetingServer, room: Room) -> None:
    """HEAD and the declared type decide first, then size and content; the room is free.

    A redirect is not followed: the link must be the final one.
    """
    for what, (data, options, status) in LINKED.items():
        answer = send(server, server.host_file("deck.pdf", data, **options))
        assert answer.code == (status, "INTERNAL_SERVER_ERROR"), what
        assert (room.received, room.locked) == ((), False)
    target = server.host_file("deck.pdf", PDF)
    server.reply_next(302, headers={"Location": target}, path="/moved", times=2)
    assert send(server, f"{server.url}/auth/moved").code == (400, "INTERNAL_SERVER_ERROR")
    assert server.requests[-1].path == "/auth/moved"


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can be put forward."""

    ahead = 0.0

    def time(self) -> float:
        """Return its time."""
        return super().time() + self.ahead


@pytest.mark.parametrize(("served", "limit"), [(0, 5), (1, 180), (1, None)])
def test_a_slow_link_is_given_up(server: MeetingServer, served: int, limit: float | None) -> None:
    """HEAD and download have a time limit each; a client that leaves takes the operation along.

    That is the only place where it does. The room is locked until then, and free afterwards.
    """
    pdf = {"Content-Type": "application/pdf"}
    for delay in [0, 300][1 - served :]:
        server.reply_next(200, headers=pdf, path="/slow", delay=delay)
    inner, answers = MeetingServer(), list[Answer]()
    room = inner.add_room("room01")

    async def send_link(answered: anyio.Event) -> None:
        raw = upload(link(f"{server.url}/auth/slow"))
        answers.append(await talk_in_process(inner, raw))
        answered.set()

    async def main() -> None:
        answered, loop = anyio.Event(), asyncio.get_running_loop()
        assert isinstance(loop, SteppedLoop)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_link, answered)
            while len(server.requests) <= served:  # noqa: ASYNC110 - they come in another thread
                await anyio.sleep(0.01)
            loop.ahead = (limit or 0) / 2
            await anyio.sleep(0.05 if limit else 0)
            assert (answers, room.locked) == ([], True)
            if limit is None:
                tasks.cancel_scope.cancel()
                return
            loop.ahead = limit
            with anyio.fail_after(8):
                await answered.wait()

    anyio.run(main, backend_options={"loop_factory": SteppedLoop})
    assert [answer.code for answer in answers] == [(400, "INTERNAL_SERVER_ERROR")][: bool(limit)]
    assert (room.accepted, room.locked) == ((), False)


HOSTED = {
    "a.pdf": "application/pdf",
    "a.JPG": "image/jpeg",
    "a.ppt": "application/vnd.ms-powerpoint",
    "a.odt": "application/vnd.oasis.opendocument.text",
    "a": "application/octet-stream",
}


def test_a_hosted_file(server: MeetingServer) -> None:
    """GET and HEAD with the type that its name says; a second one of its name is another file."""
    for name, content_type in HOSTED.items():
        first, second = (server.host_file(name, data) for data in (b"one", b"two"))
        path = first.removeprefix(server.url)
        answer = talk(server.url, request(path, b"", {}, "GET"))
        assert (answer.body, answer.headers["content-type"]) == (b"one", content_type)
        assert second != first
    with connect(server.url) as peer:
        peer.sendall(request(path, b"", {"Connection": "close"}, "HEAD"))
        head = b"".join(iter(lambda: peer.recv(999), b""))
    assert b"content-length: 3\r\n" in head
    assert head.endswith(b"\r\n\r\n")
    assert talk(server.url, request(path, b"", {}, "POST")).code == (404, "Not Found")
