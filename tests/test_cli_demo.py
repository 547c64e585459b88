"""The demonstration and its documents: each promise of its last line, and what breaks it."""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from _cli import heeding_ctrl_c
from _terminal import Terminal, lines_of
from meeting_async import Document, errors
from meeting_async.cli import _demo, _demo_batch, main
from meeting_async.cli._demo_report import Made, Refusal, Upload, compared, problems, table_of
from meeting_async.cli._documents import docx, pdf, png
from meeting_async.testing import MeetingServer, Room

MIB = 1024**2
SECONDS = 30.0
"""What the demonstration may take at most."""


@pytest.fixture(scope="module", autouse=True)
def _ctrl_c_works() -> Iterator[None]:
    """Heed Ctrl-C wherever the tests run."""
    with heeding_ctrl_c():
        yield


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let temporary files be made where they can be counted, and text be plain."""
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def rows(shown: str) -> dict[tuple[str, str], tuple[int, str, str, str]]:
    """Read the table that ends the demonstration."""
    pattern = r"^(room\d\d) +(\S+(?: \(link\))?) +([\d,]+) +(\w{10}) +(\w{10}) +(\w+) *$"
    return {
        (room, name): (int(size.replace(",", "")), sent, received, verdict)
        for room, name, size, sent, received, verdict in re.findall(pattern, shown, re.MULTILINE)
    }


def runs(shown: str) -> list[tuple[int, ...]]:
    """Read the table of the batch: accepted, accepted before, without a room, left."""
    pattern = r"^(?:first, stopped|second) +(\d+) +(\d+) +(\d+) +(\d+) *$"
    found = re.findall(pattern, shown, re.MULTILINE)
    return [tuple(map(int, numbers)) for numbers in found]


# --- the demonstration ---------------------------------------------------------------------------


def test_demo_delivers_everything(tmp_path: Path) -> None:
    """As a newcomer runs it: plain lines, a table, exit code 0, nothing left behind."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "meeting_async", "demo"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={name: text for name, text in os.environ.items() if not name.startswith("MEETING")},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - started < SECONDS
    table = rows(done.stdout)
    assert len({room for room, _ in table}) == 4
    assert {verdict for *_, verdict in table.values()} == {"same"}
    assert table["room03", "lecture-notes.pdf"][0] == 30 * MIB
    assert ("room02", "syllabus.pdf (link)") in table
    for room, name in table:
        delivered = rf"^{room}  {re.escape(name)} +delivered in [\d.]+ s"
        assert re.search(delivered, done.stdout, re.MULTILINE)
    waiting = r"^room04  handout.pdf +room is busy: attempt 2"
    assert re.search(waiting, done.stdout, re.MULTILINE)
    assert "'diagram.png' is a PNG image" in done.stdout
    assert "'too-large.pdf' has 31,457,281 bytes, 1 more than" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith(
        "Everything was as expected: 5 documents delivered, 2 refused unsent, "
        "55 in a batch, none of them twice, in "
    )
    first, second = runs(done.stdout)
    assert first[1:3] == (0, 5)
    assert 0 < first[0] < 55
    assert second == (first[3], first[0], 5, 0)
    assert re.search(r"^\d+ of 60 documents: .*, 1 waiting$", done.stdout, re.MULTILINE)
    assert "\x1b" not in done.stdout
    assert [*tmp_path.iterdir()] == []


def test_demo_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars that are redrawn, and the cursor is back in the end."""
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal.stream)
    assert _demo.demo(lock_seconds=1.2, processing_seconds=0.3) == 0
    shown = terminal.close()
    assert re.search(r"\u2501{16}.*room is busy: attempt \d in \d\.\d s", shown)
    assert shown.count("\x1b[2K") > 20
    assert re.search(r"of 60 documents.*\u2501{8}", shown)
    assert re.search(r"class03.*waiting for the lock \(attempt \d, next in \d s\)", shown)
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    lines = lines_of(shown)
    assert max(len(line) for line in lines if "\u2501" in line) <= 80
    assert lines[-1].startswith("Everything was as expected: 5 documents delivered")


def test_demo_cleans_up_after_ctrl_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server, its thread and the documents are gone; one line, exit code 130."""

    def press() -> None:
        while not any(tmp_path.glob("*/too-large.pdf")):
            time.sleep(0.01)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "meeting-async: interrupted\n"
    assert [*tmp_path.iterdir()] == []
    assert "meeting-server" not in {thread.name for thread in threading.enumerate()}


def test_demo_fails_if_a_room_receives_something_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is not as expected is named; exit code 1."""
    room_ids = (room_id for room_id in (*_demo.ROOMS, *_demo_batch.ROOMS) if room_id != "class07")
    add_room = MeetingServer.add_room

    def with_failing_room01(server: MeetingServer, room_id: str) -> Room:
        assert room_id == next(room_ids)
        room = add_room(server, room_id)
        room.fail_conversion = room_id == "room01"
        return room

    monkeypatch.setattr(MeetingServer, "add_room", with_failing_room01)
    monkeypatch.setattr("meeting_async._documents.check_type", lambda *_: None)
    assert _demo.demo(lock_seconds=0.001, processing_seconds=0.0) == 1
    shown = capsys.readouterr()
    failed, unlocked, missing, sent = shown.err.splitlines()
    prefix = "meeting-async: not as expected: handout.pdf"
    assert failed.startswith(f"{prefix} to room01: room/uploadWhiteboardFile for room 'room01'")
    assert unlocked == f"{prefix} to room04: the room was not locked"
    assert missing == f"{prefix} in room01: missing"
    assert sent.startswith("meeting-async: not as expected: diagram.png: ")
    assert sent.endswith("(1 requests)")
    assert "Everything" not in shown.out


# --- its report ----------------------------------------------------------------------------------


def made(name: str, content: bytes = b"%PDF-1.4 a") -> Made:
    """Remember a document."""
    return Made.of(name, content, Document.from_bytes(content, name))


def test_checksums_are_those_of_the_content() -> None:
    """The whole digest is compared, its beginning shown."""
    assert made("a.pdf").sha256 == hashlib.sha256(b"%PDF-1.4 a").hexdigest()


def test_comparison_finds_what_is_wrong() -> None:
    """Missing, altered, unexpected and doubled files; one of each name is paired."""
    server = MeetingServer()
    with server.run():
        room = server.add_room("room01")
        for name, content in (
            ("same.pdf", b"%PDF-1.4 a"),
            ("other.pdf", b"%PDF-1.4 b"),
            ("twice.pdf", b"%PDF-1.4 a"),
            ("twice.pdf", b"%PDF-1.4 a"),
        ):
            _deliver(server, name, content)
        uploads = [
            Upload("room01", made(f"{name}.pdf")) for name in ("same", "other", "missing", "twice")
        ]
        pairs = compared(uploads, {"room01": room})
    assert [(pair.label, pair.verdict) for pair in pairs] == [
        ("same.pdf", "same"),
        ("other.pdf", "differs"),
        ("missing.pdf", "missing"),
        ("twice.pdf", "same"),
        ("twice.pdf", "unexpected"),
    ]
    assert table_of(pairs).row_count == 5
    uploads[0].error = errors.RoomBusy("room01", 1.0, "409")
    assert [*problems(uploads, pairs, [], "room09")] == [
        "same.pdf to room01: room 'room01' is busy after 1.0 s of waiting: 409",
        "other.pdf in room01: differs",
        "missing.pdf in room01: missing",
        "twice.pdf in room01: unexpected",
    ]


def _deliver(server: MeetingServer, name: str, content: bytes) -> None:
    """Upload with curl's means, not with ours."""
    signature = hmac.digest(server.api_secret.encode(), b"room01", "sha256").hex()
    headers = {"API-KEY": server.api_key, "HASH-SIGNATURE": signature, "Room-Id": "room01"}
    url = f"{server.url}/auth/room/uploadWhiteboardFile"
    files = {"document": (name, content, "application/pdf")}
    httpx.post(url, headers=headers, files=files, trust_env=False).raise_for_status()


@pytest.mark.parametrize(
    ("error", "requests", "is_good"),
    [
        (errors.DocumentTypeRefused("a.png", "PNG image"), 0, True),
        (errors.DocumentTypeRefused("a.png", "PNG image"), 1, False),
        (errors.DocumentChanged("a.png", "it is gone"), 0, False),
        (None, 1, False),
    ],
)
def test_refusals_must_be_the_right_ones_and_in_time(
    error: errors.MeetingError | None, requests: int, is_good: bool
) -> None:
    """For the right reason, and before the server heard of it."""
    refusal = Refusal("a.png", errors.DocumentTypeRefused, error, requests)
    problem = f"a.png: {error or 'it was accepted'} ({requests} requests)"
    assert [*problems([], [], [refusal], "room04")] == ([] if is_good else [problem])


# --- its documents -------------------------------------------------------------------------------


def strictly_read(content: bytes) -> list[bytes]:
    """Read a PDF by its cross-reference table (ISO 32000-1 section 7.5) and return its streams."""
    assert content.startswith(b"%PDF-1.4\n")
    end = re.search(rb"startxref\n(\d+)\n%%EOF\n\Z", content)
    assert end
    head = re.compile(rb"xref\n0 (\d+)\n0000000000 65535 f \n").match(content, int(end[1]))
    assert head
    streams, at = [], head.end()
    for number in range(1, int(head[1])):
        entry = re.compile(rb"(\d{10}) 00000 n \n").match(content, at)
        assert entry
        at = entry.end()
        start = re.compile(rb"%d 0 obj\n" % number).match(content, int(entry[1]))
        assert start
        if stream := re.compile(rb"<< /Length (\d+) >>\nstream\n").match(content, start.end()):
            stop = stream.end() + int(stream[1])
            assert content[stop : stop + 18] == b"\nendstream\nendobj\n"
            streams.append(content[stream.end() : stop])
    trailer = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref" % int(head[1])
    assert content.startswith(trailer, at)
    return streams


def test_pdf_is_valid() -> None:
    """Its table points at its objects, and the page shows the text."""
    (page,) = strictly_read(pdf(["Hello (world)", r"back\slash", "Ä"]))
    assert rb"(Hello \(world\)) ' (back\\slash) ' (" + b"\xc4) ' ET" in page


@pytest.mark.parametrize("size", [1000, 9999, 10_000, 123_456, 30 * MIB, 30 * MIB + 1])
def test_pdf_of_exact_size(size: int) -> None:
    """To the byte, valid all the same, and no part of it like another."""
    content = pdf(["Full"], size=size)
    assert len(content) == size
    _, filler = strictly_read(content)
    assert len(filler) <= 4096 or filler[:64] not in filler[64:]
    assert pdf(["Full"], size=size) == content


def test_pdf_of_impossible_size() -> None:
    """Smaller than the page."""
    with pytest.raises(ValueError, match="just 100 bytes"):
        pdf(["Full"], size=100)


@pytest.mark.skipif(not shutil.which("pdftotext"), reason="needs poppler")
@pytest.mark.parametrize("size", [None, 100_000])
def test_pdf_opens_in_a_reader(tmp_path: Path, size: int | None) -> None:
    """One that was not written by us."""
    (tmp_path / "a.pdf").write_bytes(pdf(["Hello (world)", "second"], size=size))
    done = subprocess.run(
        ["pdftotext", "a.pdf", "-"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["Hello (world)", "second"]
    assert done.stderr == ""


def test_docx_is_valid() -> None:
    """A sound package: every part is typed, the main one is related, the text is there."""
    content = docx(["Fish & chips", "<two>"])
    assert docx(["Fish & chips", "<two>"]) == content
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        assert package.testzip() is None
        parts = {name: ET.fromstring(package.read(name)) for name in package.namelist()}
    assert [*parts] == ["[Content_Types].xml", "_rels/.rels", "word/document.xml"]
    types = {element.get("PartName") for element in parts["[Content_Types].xml"]}
    assert "/word/document.xml" in types
    assert [element.get("Target") for element in parts["_rels/.rels"]] == ["word/document.xml"]
    assert [*parts["word/document.xml"].itertext()] == ["\n", "Fish & chips", "<two>", "\n"]


def test_png_is_valid() -> None:
    """Checksums and size of its parts."""
    content, at, chunks = png(4), 8, {}
    while at < len(content):
        (length,) = struct.unpack_from(">I", content, at)
        body = content[at + 4 : at + 8 + length]
        assert struct.unpack_from(">I", content, at + 8 + length) == (zlib.crc32(body),)
        chunks[body[:4]] = body[4:]
        at += 12 + length
    assert [*chunks] == [b"IHDR", b"IDAT", b"IEND"]
    assert len(zlib.decompress(chunks[b"IDAT"])) == 4 * 5
