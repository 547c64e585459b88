"""The report of a command: it replaces nothing that is needed, is whole, and is its owner's."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import call, names_in, shell
from support.killed_processes import run_command
from support.reports import text_of
from support.systems import IS_WINDOWS, OWNER_ONLY, is_wine


@contextmanager
def held(path: str, *, readable: bool) -> Iterator[None]:
    """Have a file open as another program on Windows, which lets nobody replace or change it."""
    import ctypes

    load: Any = getattr(ctypes, "WinDLL", None)
    kernel32 = load("kernel32")
    handle = kernel32.CreateFileW(path, 0x80000000, int(readable), None, 3, 0, None)
    assert handle != -1
    try:
        yield
    finally:
        kernel32.CloseHandle(handle)


@pytest.mark.parametrize("journal", [(), ("--journal", "my term.db")])
def test_how_to_send_the_rest(
    server: MeetingServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    journal: tuple[str, ...],
) -> None:
    """Once, as on stderr: without a journal the same command sends accepted documents again.

    With a journal it sends only what is missing; the hint is that command.
    """
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nnope,b.pdf\n")
    order = ["batch", "m.csv", "--report", "r.html", *journal]
    monkeypatch.setattr("sys.argv", ["meeting-async", *order])
    done = call(capsys, *order)
    told = done.err.splitlines()[-1].removeprefix("meeting-async: hint: ")
    quote = '"' if IS_WINDOWS else "'"
    name = f"{quote}my term.db{quote}"
    command = f"run `meeting-async batch m.csv --report r.html --journal {name}` again to "
    assert (done.code, told.startswith(command)) == (1, bool(journal))
    text = text_of(Path("r.html").read_text())
    assert text.count(f"Hint: {told}") == 1
    assert text.count("again") == told.count("again")
    server.add_room("nope")
    done = call(capsys, *order)
    earlier = "2 of 2 documents delivered (1 by an earlier run)."
    assert (done.code, earlier in done.out) == (0, bool(journal))
    assert names_in(server, "room01") == ["a.pdf"] * (1 if journal else 2)
    assert "Hint:" not in text_of(Path("r.html").read_text())


def test_a_room_may_have_an_earlier_version(
    server: MeetingServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page tells the reason, and not that it is safe to send the document again."""
    order = ("batch", "m.jsonl", "--journal", "j.db", "--report", "r.html")
    assert call(capsys, *order).code == 0
    os.utime("a.pdf", (1, 1))
    assert call(capsys, *order).code == 1
    text = text_of(Path("r.html").read_text())
    assert "Each reason says what happened. Document changed: an earlier run" in text
    assert "safe" not in text
    assert names_in(server, "room01") == ["a.pdf"]


# --- where it is written -------------------------------------------------------------------------

Capture = pytest.CaptureFixture[str]

OLD = '<!DOCTYPE html><meta name="generator" content="meeting-async"><p>last week'
"""An earlier report."""


def contents() -> dict[str, bytes | str]:
    """Return what every file below the working directory holds, and where each link leads."""
    return {
        str(path): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in Path().rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    """Make manifests, a folder, and other names for them and for the documents."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nroom02,b.pdf\nroom03,other.pdf\n")
    Path("m.jsonl").write_text('{"room_id": "room01", "document": "a.pdf"}\n')
    Path("pages.csv").write_text("room_id,document\nroom01,r.html\n")
    Path("term", "room01").mkdir(parents=True)
    Path("term", "room01", "week.pdf").write_bytes(b"%PDF-1.7")
    Path("other.pdf").symlink_to("c.pdf")
    if is_wine():  # which makes no links
        Path("other.pdf").write_bytes(b"%PDF-1.7")
    Path("here").symlink_to(tmp_path)
    Path("manifest.html").symlink_to("m.csv")
    Path("journal.html").symlink_to("j.db")
    Path("linked.db").symlink_to("j.db")
    Path("hard.html").hardlink_to("b.pdf")
    Path("index.html").write_text("<!DOCTYPE html>\n<title>Algebra</title>")
    Path("empty.html").touch()
    Path("r.html").write_text(OLD)
    Path("r.html").chmod(0o644)


# --- what it would replace -----------------------------------------------------------------------

NEEDED = [
    *(f"m.csv --report {place}" for place in ("m.csv", "here/m.csv", "manifest.html")),
    *(f"m.csv --report {place}" for place in ("a.pdf", "hard.html", "other.pdf")),
    *(f"m.csv --report {place}" for place in ("index.html", "nowhere/r.html", ".")),
    "m.csv --check --report a.pdf",
    "pages.csv --report here/r.html",  # an earlier report, and now a document
    "term --report here/term/room01/week.pdf",
    # A journal to be, and what will be beside it, though none of that is there yet.
    *(f"m.csv --journal j.db --report {place}" for place in ("j.db", "journal.html")),
    *(f"m.csv --journal linked.db --report {place}" for place in ("./j.db-wal", "here/j.db-shm")),
    "m.csv --journal linked.db --report j.db-journal",
]


def test_only_a_report_is_replaced(server: MeetingServer, capsys: Capture) -> None:
    """No source, document, journal or page of one's own, however it is written.

    Exit code 2 before anything is sent, and no file has changed.
    """
    before = contents()
    for order in NEEDED:
        done = call(capsys, "batch", *order.split())
        assert (done.code, server.requests) == (2, []), order
        assert "--report" in done.err, order
        assert "Traceback" not in done.err
        assert contents() == before, order


@pytest.mark.skipif(sys.platform != "win32", reason="only there a file can be kept from others")
def test_a_program_has_a_file_open(server: MeetingServer, capsys: Capture) -> None:
    """Nothing is lost, and one line names the file and the fix."""
    fix = "(if it is open, in a program or in this one, close it there)"
    command = "batch m.csv --journal j.db --report r.html"
    for name in ("m.csv", "a.pdf", "r.html"):
        with held(name, readable=False):
            done = call(capsys, *command.split())
        assert (done.code, server.requests) == (2, [])
        assert all(word in done.err for word in ("error: ", name, fix))
    with held("r.html", readable=True):
        done = call(capsys, *command.split())
    assert (done.code, Path("r.html").read_text()) == (0, OLD)
    assert re.search(rf"r.html cannot be written: .*{re.escape(fix)}: the new report is ", done.err)
    [new] = Path().glob(".report-*.html")
    assert "3 of 3 documents delivered" in new.read_text()
    with held("j.db", readable=True):
        done = call(capsys, *command.split())
    assert (done.code, done.err.count(f"{fix}\n")) == (2, 1)
    assert "'j.db' cannot be used: " in done.err
    assert "(3 by an earlier run)" in call(capsys, *command.split()).out


@pytest.mark.skipif(sys.platform != "win32", reason="elsewhere these are names of files")
def test_names_that_windows_does_not_allow(server: MeetingServer, capsys: Capture) -> None:
    """Refused before anything is sent; none becomes a hidden stream, or goes to a device."""
    for option in ("--journal", "--report"):
        for name in ("nul", "con.html", "what?.html", "a.html:b"):
            done = call(capsys, "batch", "m.csv", option, name)
            assert (done.code, server.requests) == (2, [])
            assert f"error: {option} has " in done.err, name
    for name in ("con.pdf", "nul", "what?.pdf", "a.pdf:b", "a.pdf:Zone.Identifier"):
        Path("names.csv").write_bytes(f"room_id,document\r\nroom01,{name}\r\n".encode())
        done = call(capsys, "batch", "names.csv")
        assert (done.code, done.err.count(name), server.requests) == (2, 1, [])


# --- how it is written ---------------------------------------------------------------------------


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Take no permission away from new files."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize("report", ["r.html", "new.html", "empty.html"])
def test_only_its_owner_may_read_it(server: MeetingServer, capsys: Capture, report: str) -> None:
    """A new one, and one that replaces an empty file or a report that all could read."""
    before = set(contents())
    assert call(capsys, "batch", "m.csv", "--report", report).code == 0
    assert stat.S_IMODE(os.stat(report).st_mode) == OWNER_ONLY
    assert Path(report).read_text().endswith("</html>\n")
    assert set(contents()) == before | {report}
    assert names_in(server, "room01") == ["a.pdf"]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("rest", ["/dev/stdout >out", ">(cat >out); sleep 0.2"])
def test_what_cannot_be_replaced_is_written(rest: str) -> None:
    """A pipe, and the command's own output, where the result follows."""
    done = shell(f"meeting-async batch m.csv --report {rest}")
    assert (done.code, "--report" in done.err) == (0, False)
    page = Path("out").read_text()
    assert page.count("3 of 3 documents delivered") >= 1
    assert page.strip().startswith("<!DOCTYPE html>")
    assert page.endswith("</html>\n") is (">(" in rest)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("limit", [4096, pytest.param(0, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("report", ["r.html", pytest.param("new.html", marks=pytest.mark.nightly)])
def test_a_full_disk_leaves_the_old_report(report: str, limit: int) -> None:
    """Whole, and nothing beside it; it is told, and everything was delivered."""
    before = contents()
    told = run_command("batch", "m.csv", "--report", report, limit=limit)
    assert told.code == 0
    assert f"{report} cannot be written: " in told.stderr
    assert "Traceback" not in told.stderr
    assert contents() == before


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("limit", [0, pytest.param(4096, marks=pytest.mark.nightly)])
def test_a_kill_leaves_the_old_report(limit: int) -> None:
    """Whole; what was written beside it until then only its owner can read."""
    before = contents()
    order = ("batch", "m.csv", "--report", "r.html")
    told = run_command(*order, limit=limit, is_deadly=True, umask=0)
    assert told.status < 0
    after = contents()
    assert {name: after[name] for name in before} == before
    for name in set(after) - set(before):
        assert stat.S_IMODE(os.stat(name).st_mode) == 0o600
