"""``demo``: it says what it did, nothing else, and notices if that was not as expected."""

from __future__ import annotations

import io
import os
import re
import subprocess
import termios
import time
import zipfile

import pytest

from meeting_async.cli.demo import stage
from meeting_async.cli.demo.documents import docx, pdf
from meeting_async.testing import MeetingServer
from support.command_line import PROGRAM, Result, call

Capture = pytest.CaptureFixture[str]
KINDS = ("handout.pdf", "timetable.docx", "syllabus.pdf", "diagram.png", "too-large.pdf")


def _check(done: Result) -> None:
    lines = done.out.splitlines()
    start = "\n".join(lines[:10])
    for name in KINDS:
        assert name in start
    assert "refused unsent" in start
    assert "waited: the room was taken" in start
    assert max(map(len, lines)) < 80
    last = done.out.rstrip().rpartition("\n\n")[2].replace("\n", " ")
    assert re.fullmatch(r"Everything was as expected: [^.]+, in \d+\.\d s\.", last)
    assert done.err == ""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let it take less time to be watched."""
    if "nightly" not in request.keywords:
        monkeypatch.setattr(stage, "PROCESSING_SECONDS", 0.1)
        monkeypatch.setattr(stage, "LOCK_SECONDS", 1.0)


def test_what_it_says(capsys: Capture) -> None:
    """Ten lines on every kind of document, and one sentence in the end."""
    done = call(capsys, "demo")
    assert done.code == 0
    _check(done)
    assert re.search(r"first run +\d+ accepted, then stopped", done.out)
    assert re.search(r"second run +\d+ accepted, \d+ accepted before, 5 without a room", done.out)


def test_it_notices_what_is_wrong(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A demonstration that cannot fail would prove nothing."""
    lock = MeetingServer.add_room

    def add_room(server: MeetingServer, room_id: str, **facts: object) -> object:
        room = lock(server, room_id, **facts)  # type: ignore[arg-type]  # as they come
        room.fail_conversion = room_id in {"room01", "class02"}
        return room

    monkeypatch.setattr(MeetingServer, "add_room", add_room)
    done = call(capsys, "demo")
    assert done.code == 1
    assert "not as expected: handout.pdf to room01: " in done.err
    assert "class02 received nothing" in done.err
    assert done.out.splitlines()[-1].startswith("Not everything was as expected: ")


@pytest.mark.nightly
def test_on_a_terminal() -> None:
    """As somebody sees it: under 15 s, no line empty of meaning, words are whole at 80 columns."""
    leader, follower = os.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    began = time.monotonic()
    process = subprocess.Popen([*PROGRAM, "demo"], stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    while process.poll() is None or shown[-1:] != b"\n":
        try:
            shown += os.read(leader, 65536)
        except OSError:
            break
    os.close(leader)
    assert process.wait() == 0
    assert time.monotonic() - began < 15 * (1 + os.getloadavg()[0])
    _check(Result(0, "\n".join(_screen(shown.decode())), ""))


def _screen(text: str) -> list[str]:
    """Return the lines that a terminal shows in the end: it knows cursor up and erase line."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", text):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part.endswith("A") and part.startswith("\x1b"):
            row -= int(part[2:-1] or 1)
        elif part in {"\x1b[2K", "\r"}:
            lines[row] = "" if part == "\x1b[2K" else lines[row]
            column = 0 if part == "\r" else column
        elif not part.startswith("\x1b"):
            lines[row] = lines[row][:column] + part + lines[row][column + len(part) :]
            column += len(part)
    return lines


def test_its_documents() -> None:
    """Exact sizes, a page that can be found, and an archive that opens."""
    made = pdf(["Hello (world)"], size=5000)
    assert len(made) == 5000
    start = int(re.search(rb"startxref\n(\d+)\n%%EOF\n$", made)[1])  # type: ignore[index]  # there
    assert made[start:].startswith(b"xref\n0 6\n")
    for number, offset in enumerate(re.findall(rb"(\d{10}) 00000 n", made), 1):
        assert made[int(offset) :].startswith(b"%d 0 obj\n" % number)
    with zipfile.ZipFile(io.BytesIO(docx(["A & B"]))) as package:
        assert b"A &amp; B" in package.read("word/document.xml")
        assert package.testzip() is None
