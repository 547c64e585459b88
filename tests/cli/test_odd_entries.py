"""Entries of folders and manifests that no batch can send: each is a mistake before it begins."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import PDF, Result, call, names_in

Capture = pytest.CaptureFixture[str]

LATIN = os.fsdecode(b"w\xf6che.pdf")
"""A name as an old archive brings it: not UTF-8."""


def _file(path: str) -> Callable[[], None]:
    def make() -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(PDF)

    return make


def _link(path: str, target: str) -> Callable[[], None]:
    return lambda: Path(path).symlink_to(target)


def _circle(path: str, other: str) -> Callable[[], None]:
    def make() -> None:
        Path(path).symlink_to(Path(other).name)
        Path(other).symlink_to(Path(path).name)

    return make


FOLDERS: dict[str, tuple[Callable[[], None], str]] = {
    "a name that is not UTF-8": (_file(f"term/room01/{LATIN}"), "term/room01/w"),
    "a room that is not UTF-8": (_file(os.fsdecode(b"term/r\xf6om/a.pdf")), "term/r"),
    "a document that leads to itself": (_link("term/room01/o.pdf", "o.pdf"), "term/room01/o.pdf"),
    "a room that leads to itself": (_link("term/loop", "loop"), "term/loop"),
    "rooms that lead to each other": (_circle("term/here", "term/there"), "term/here"),
    "a document that is not there": (_link("term/room01/x.pdf", "nowhere"), "term/room01/x.pdf"),
    "a room that is not there": (_link("term/gone", "nowhere"), "term/gone"),
    "a pipe": (lambda: os.mkfifo("term/room01/pipe.pdf"), "term/room01/pipe.pdf"),
}
"""What makes an odd entry, and how its place begins."""


def check_mistake(done: Result, place: str) -> None:
    """See that a mistake is told as such, with its place."""
    assert done.code == 2
    assert "Traceback" not in done.err
    assert "[Errno" not in done.err
    *mistakes, last = done.err.splitlines()
    assert any(place in line for line in mistakes), done.err
    assert last == "meeting-async: nothing was sent"


@pytest.fixture(autouse=True)
def _term() -> None:
    """Make a folder with two documents for one room."""
    for name in ("week 1.pdf", "week 2.pdf"):
        _file(f"term/room01/{name}")()


@pytest.mark.parametrize(
    "command", ["batch term --check", "batch term --check --json", "queue defer term --check"]
)
def test_every_odd_entry_is_told(capsys: Capture, command: str) -> None:
    """Each mistake with its place, as a line or an object; a queue reads the same folders."""
    for make, _ in FOLDERS.values():
        make()
    done = call(capsys, *command.split())
    if "--json" in command:
        told = "\n".join(found["place"] for found in done.objects if found["type"] == "mistake")
        assert all(place in told for _, place in FOLDERS.values()), told
        assert (done.code, "Traceback" in done.err) == (2, False)
        return
    for _, place in FOLDERS.values():
        check_mistake(done, place)


@pytest.mark.parametrize(
    "kind",
    ["a name that is not UTF-8", "a document that leads to itself", "a room that leads to itself"],
)
def test_nothing_is_sent(server: MeetingServer, capsys: Capture, kind: str) -> None:
    """The run finds what the check finds, before anything else, and with the same exit code."""
    make, place = FOLDERS[kind]
    make()
    check_mistake(call(capsys, "batch", "term", "--journal", "j.db"), place)
    assert server.requests == []


LINES = {
    "a name that is not UTF-8": {"document": LATIN},
    "a name for the room that is not UTF-8": {"document": "a.pdf", "filename": "w\udcf6che.pdf"},
    "half a character": {"document": "a.pdf", "filename": "\ud83d.pdf"},
    "a room that is not UTF-8": {"room_id": "r\udcf6om"},
    "a key that is not UTF-8": {"key": "k\udcf6y"},
    "a document that leads to itself": {"document": "loop.pdf"},
    "a folder that leads to itself": {"document": "loop.pdf/a.pdf"},
    "a document that is not there": {"document": "nowhere.pdf"},
    "a name that is too long": {"document": "x" * 300 + ".pdf"},
    "a file as a folder": {"document": "a.pdf/a.pdf"},
    "a pipe": {"document": "pipe.pdf"},
}  # fmt: skip
"""What the third line says of its document."""


@pytest.fixture
def _odd_files() -> None:
    """Make what the lines name."""
    Path(LATIN).write_bytes(PDF)
    Path("loop.pdf").symlink_to("loop.pdf")
    os.mkfifo("pipe.pdf")


def write_manifest(third: dict[str, str]) -> None:
    """Write a manifest whose third line is odd."""
    lines = [{"document": "a.pdf"}, {"document": "b.pdf"}, {"document": "c.pdf"} | third]
    Path("m.jsonl").write_text("\n".join(json.dumps({"room_id": "room01"} | one) for one in lines))


@pytest.mark.usefixtures("_odd_files")
@pytest.mark.parametrize("kind", LINES)
def test_odd_lines_of_a_manifest(server: MeetingServer, capsys: Capture, kind: str) -> None:
    """The mistake has its line, and nothing is sent, not even what stands before it."""
    lines = [{"document": "a.pdf"}, {"document": "b.pdf"}, {"document": "c.pdf"} | LINES[kind]]
    Path("m.jsonl").write_text("\n".join(json.dumps({"room_id": "room01"} | one) for one in lines))
    check_mistake(call(capsys, "batch", "m.jsonl", "--journal", "j.db"), "m.jsonl:3: ")
    assert server.requests == []


@contextmanager
def nobody() -> Iterator[None]:
    """Be somebody whom permissions bind, for a moment."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize("kind", ["room", "line", "document", "folder", "manifest"])
def test_what_may_not_be_read(capsys: Capture, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A document, a room's folder, the folder, a manifest: the mistake has its place."""
    assert call(capsys, "batch", "term", "--check").code == 0  # all modules are loaded
    with TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.chdir(folder)
        for name in ("term/room01/a.pdf", "term/room02/b.pdf", "deck.pdf"):
            _file(name)()
        Path("m.csv").write_text("room_id,document\nroom01,term/room01/a.pdf\nroom01,deck.pdf\n")
        Path(folder).chmod(0o755)
        source, closed, place = {
            "document": ("term", "term/room02/b.pdf", "term/room02/b.pdf"),
            "room": ("term", "term/room02", "term/room02"),
            "folder": ("term", "term", "term"),
            "line": ("m.csv", "deck.pdf", "m.csv:3: "),
            "manifest": ("m.csv", "m.csv", "m.csv"),
        }[kind]
        Path(closed).chmod(0)
        with nobody():
            done = call(capsys, "batch", source, "--check")
        Path(closed).chmod(0o700)
        monkeypatch.chdir("/")
    assert (done.code, place in done.err) == (2, True)
    assert "Permission denied" in done.err
    assert "Traceback" not in done.err
    assert "[Errno" not in done.err


@pytest.mark.parametrize("source", ["m.csv", "term"])
def test_a_place_that_is_not_utf8_harms_nobody(
    server: MeetingServer, capsys: Capture, source: str
) -> None:
    """Manifest, folder, journal and report may lie in a folder with any name."""
    place = Path(os.fsdecode(b"\xfcbung"))
    place.mkdir()
    Path("term").rename(place / "term")
    Path(place, "m.csv").write_text("room_id,document\nroom01,term/room01/week 1.pdf\n")
    order = ("batch", place / source, "--journal", place / "j.db", "--report", place / "r.html")
    assert call(capsys, "batch", place / source, "--check").code == 0
    assert [call(capsys, *order).code for _ in range(2)] == [0, 0]
    expected = ["week 1.pdf", "week 2.pdf"] if source == "term" else ["week 1.pdf"]
    assert names_in(server, "room01") == expected


@pytest.mark.usefixtures("_odd_files")
@pytest.mark.parametrize("name", [LATIN, "loop.pdf", "pipe.pdf"])
def test_odd_files_of_an_upload(server: MeetingServer, capsys: Capture, name: str) -> None:
    """``upload`` checks all files first, too: nothing is sent, not even what stands before."""
    done = call(capsys, "upload", "room01", "a.pdf", name)
    assert (done.code, server.requests) == (2, [])
    assert "Traceback" not in done.err
    assert "[Errno" not in done.err


@pytest.mark.skipif(not os.path.exists("/proc/version"), reason="there is no /proc")
@pytest.mark.parametrize("command", ["batch", "upload"])
def test_a_file_that_the_system_makes_up(
    server: MeetingServer, capsys: Capture, command: str
) -> None:
    """One below ``/proc`` has no size; it is a mistake, but it is not empty."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nroom01,/proc/version\n")
    rest = {"batch": ("m.csv", "--check"), "upload": ("room01", "/proc/version")}[command]
    done = call(capsys, command, *rest)
    assert (done.code, server.requests) == (2, [])
    assert "version" in done.err
    assert "empty" not in done.err
