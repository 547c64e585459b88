"""Manifests and folders: what is understood, and each mistake with its place, first of all."""

from __future__ import annotations

import json
import os
import re
import time
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from meeting_async import is_junk_file
from meeting_async.manifests._source import manifest_of
from meeting_async.testing import MeetingServer
from support.command_line import Result, call, names_in, start
from support.documents import PDF, PNG
from support.permissions import public_folder, unprivileged
from support.systems import IS_WINDOWS, NO_SUCH_FILE

Capture = pytest.CaptureFixture[str]

LINK, PRIVATE_LINK = "https://example.com/a.pdf", "https://u:secret@example.com/"
# --- entries that no batch can send --------------------------------------------------------------

LATIN = "w\udcf6che.pdf"
"""A name as an old archive brings it: not UTF-8."""

ODD: dict[str, tuple[dict[str, str], str]] = {
    "the document of line 1": (
        {"document": "a.pdf", "key": ""}, "the same document for the same room as m.jsonl:1: "
    ),
    "the key of line 1": ({"key": "k"}, "key 'k' is already used by m.jsonl:1"),
    "no document": ({"document": ""}, "document is empty"),
    "no such document": ({"document": "nope.pdf"}, f"'nope.pdf' cannot be read: {NO_SUCH_FILE}"),
    "a folder": ({"document": "."}, "'.' cannot be read: it is not a regular file"),
    "an image": ({"document": "image.pdf"}, "'image.pdf' is a PNG image"),
    "an image with a name": (
        {"document": "image.pdf", "filename": "week.pdf"}, "'week.pdf' is a PNG image"
    ),
    "an empty document": ({"document": "empty.pdf"}, "'empty.pdf' is empty"),
    "a link with a name": ({"document": LINK, "filename": "x"}, "filename cannot be given for a"),
    "a link with a password": ({"document": PRIVATE_LINK}, "document_link contains a user name"),
    "a room with a tab": ({"room_id": "a\tb"}, "room_id contains control characters"),
    "a name that is not UTF-8": ({"document": LATIN}, ""),
    "a name for the room that is not UTF-8": ({"filename": "w\udcf6che.pdf"}, ""),
    "half a character": ({"filename": "\ud83d.pdf"}, ""),
    "half a character of a path": ({"document": "\ud83d.pdf", "filename": "c.pdf", "key": ""}, ""),
    "a room that is not UTF-8": ({"room_id": "r\udcf6om"}, ""),
    "a key that is not UTF-8": ({"key": "k\udcf6y"}, ""),
    "a document that leads to itself": ({"document": "loop.pdf"}, ""),
    "a folder that leads to itself": ({"document": "loop.pdf/a.pdf"}, ""),
    "a name that is too long": ({"document": "x" * 300 + ".pdf"}, ""),
    "a file as a folder": ({"document": "a.pdf/a.pdf"}, ""),
    "a pipe": ({"document": "pipe.pdf"}, ""),
    "a file that the system makes up": ({"document": "/proc/version"}, ""),
}  # fmt: skip
"""What a line says of its document, and what is told of it."""


@pytest.fixture
def _odd_files() -> None:
    """Make what these lines name."""
    Path("image.pdf").write_bytes(PNG)
    Path("empty.pdf").touch()
    Path("loop.pdf").symlink_to("loop.pdf")
    with suppress(OSError):  # Wine makes no such name
        Path(LATIN).write_bytes(PDF)
    if not IS_WINDOWS:
        os.mkfifo("pipe.pdf")
    Path("r.html").touch()


UNTOLD = ("Traceback", "[Errno", "secret")


def check_mistakes(done: Result, *places: str) -> None:
    """See that mistakes are told as such, with their places, in the words of people."""
    assert (done.code, done.out) == (2, "")
    *mistakes, last = done.err.splitlines()
    assert [place for place in places if not any(place in line for line in mistakes)] == []
    assert [line for line in mistakes if not line.startswith("meeting-async: error: ")] == []
    assert last == "meeting-async: nothing was sent"
    for word in UNTOLD:
        assert word not in done.err


@pytest.mark.usefixtures("_odd_files")
@pytest.mark.parametrize("options", ["--check", "", "--journal j.db --report r.html"])
def test_mistakes_come_first(server: MeetingServer, capsys: Capture, options: str) -> None:
    """Each has its line; a run finds what a check finds, and sends nothing, not even line 1."""
    lines = [{"room_id": "room01", "document": "a.pdf", "key": "k"}]
    for number, (odd, _) in enumerate(ODD.values()):
        lines.append({"room_id": "room01", "document": "c.pdf", "key": f"{number}", **odd})
    Path("m.jsonl").write_text("\n".join(map(json.dumps, lines)))
    done = call(capsys, "batch", "m.jsonl", *options.split())
    check_mistakes(done)
    found = re.findall(r"error: m\.jsonl:(\d+): (.*)", done.err)
    assert [int(line) for line, _ in found] == [*range(2, 2 + len(ODD))]
    for (name, (_, told)), (_, text) in zip(ODD.items(), found, strict=True):
        assert text.startswith(told), name
        assert ("is empty" in text) == ("empty" in told), name
    assert (server.requests, Path("j.db").exists()) == ([], False)


def test_a_document_that_is_named_twice(server: MeetingServer, capsys: Capture) -> None:
    """The same on a command line: one mistake, and nothing is sent."""
    done = call(capsys, "upload", "room01", "a.pdf", "b.pdf", "./a.pdf")
    assert (done.code, server.requests) == (2, [])
    assert "./a.pdf: the same document for the same room as a.pdf: remove one\n" in done.err


Form = Literal["NFC", "NFD"]
FORMS: tuple[Form, Form] = ("NFC", "NFD")
"""How a name with an umlaut can be written in Unicode; a Mac writes the second."""


@pytest.mark.parametrize(("written", "on_disk"), [FORMS, FORMS[::-1]])
@pytest.mark.parametrize("command", ["batch m.csv", "upload room01"])
def test_names_in_another_form_of_unicode(
    server: MeetingServer, capsys: Capture, written: Form, on_disk: Form, command: str
) -> None:
    """The file is found, in each part of its path; one that is there as written comes first."""
    file, both, gone = "\xdcbung/B\xfccher/W\xf6che \xc5.pdf", "\xdc.pdf", "M\xfcll.pdf"
    _file(*(unicodedata.normalize(on_disk, name) for name in (file, both)))
    _file(unicodedata.normalize(written, both))
    Path(unicodedata.normalize(on_disk, both)).write_bytes(b"%PDF-1.7 another")
    names = [unicodedata.normalize(written, name) for name in (file, both, gone)]
    lines = ["room_id,document", *(f"room01,{it}" for it in names)]
    Path("m.csv").write_text("\n".join(lines), "utf-8")
    done = call(capsys, *command.split(), *(names if command.startswith("upload") else []))
    assert (done.code, done.err.count("error: ")) == (2, 1)
    assert f"{names[-1]!r} cannot be read: {NO_SUCH_FILE}" in done.err
    Path("m.csv").write_text("\n".join(lines[:3]), "utf-8")
    done = call(capsys, *command.split(), *(names[:2] if command.startswith("upload") else []))
    assert done.code == 0
    received = server.rooms["room01"].received
    assert [one.name for one in received] == ["W\xf6che \xc5.pdf", both]
    assert [one.size for one in received] == [len(PDF), len(PDF)]


def test_the_same_file_in_two_forms_of_unicode(capsys: Capture) -> None:
    """It is named twice."""
    _file("\xdc.pdf")
    lines = [f"room01,{unicodedata.normalize(form, chr(0xDC))}.pdf" for form in FORMS]
    Path("m.csv").write_text("\n".join(["room_id,document", *lines]), "utf-8")
    done = call(capsys, "batch", "m.csv", "--check")
    assert "m.csv:3: the same document for the same room as m.csv:2" in done.err


# --- folders -------------------------------------------------------------------------------------


def _file(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(PDF)


def test_a_folder_of_rooms(capsys: Capture) -> None:
    """``ROOM_ID/file`` in natural order; what nobody means to send is left out and counted.

    Mistakes are told in the order of their places.
    """
    names = ["a9", "a10b2", "a10b10", "Week 1", "week 01", "week 1", "week 9", "week 10", "²"]
    if Path("A.PDF").exists():  # where case does not matter
        names.remove("Week 1")
    _file(*(f"term/room01/{name}.pdf" for name in sorted(names)))
    _file(*(f"term/room01/{name}" for name in (".hidden", "~$x.docx", "Thumbs.db", "desktop.ini")))
    _file("term/a room.part/1.pdf")  # a room may have any name
    found = manifest_of("term", field="SOURCE", besides=["term/term.db"])
    targets = ["a room.part/1.pdf", *(f"room01/{name}.pdf" for name in names)]
    assert [entry.target.replace(os.sep, "/") for entry in found.entries] == targets
    assert found.sums["left_out"] == 4
    assert ", 1 hidden file left out, 3 files left out as not documents (" in str(found)
    Path("term", "room01", "sub").mkdir()
    Path("term", "beside.pdf").touch()
    Path("term", "here").symlink_to("here")
    _file("term/room02/empty.pdf")
    os.truncate("term/room02/empty.pdf", 0)
    done = call(capsys, "batch", "term", "--check")
    told = done.err.replace(os.sep, "/")
    assert "term/room01/sub: is a folder inside a room's folder" in told
    assert "term/beside.pdf: is not in the folder of a room" in told
    places = ["term/beside.pdf", "term/here", "term/room01/sub", "term/room02/empty.pdf"]
    assert re.findall("error: (term/[^:]+): ", told) == [it for it in places if os.path.lexists(it)]


JUNK = {
    "week 1.pdf:Zone.Identifier": "says where a file was downloaded from",  # Explorer
    "week 1.pdf\uf03aZone.Identifier": "says where a file was downloaded from",  # in WSL
    "week 1.pdf\uf022Zone.Identifier": "says where a file was downloaded from",  # by Samba
    "week 1.pdf_Zone.Identifier": "says where a file was downloaded from",  # by our name for rooms
    "Unconfirmed 817.crdownload": "unfinished download",
    "week 1.pdf.CRDOWNLOAD": "unfinished download",
    "week 1.pdf.part": "unfinished download",
    "week 1.pdf.partial": "unfinished download",
    "week 1.pdf.opdownload": "unfinished download",
    "week 1.pdf.download": "unfinished download",
    ".~lock.week 1.odp#": "lock file",
    "~$week 1.docx": "lock file",
    ".DS_Store": "of the operating system",
    "._week 1.pdf": "of the operating system",
    "Thumbs.db": "of the operating system",
    "THUMBS.DB": "of the operating system",
    "desktop.ini": "of the operating system",
    "@eaDir/week 1.pdf": "of the operating system",
    "__MACOSX/._week 1.pdf": "of the operating system",
    "__MACOSX/week 1.pdf": "of the operating system",
}
"""What programs leave beside documents, and what is told of it."""

ON_DISK = [it for it in JUNK if not (IS_WINDOWS and (":" in it or it == "THUMBS.DB"))]
"""On Windows a colon names a stream of a file, and case does not matter."""

LOOK_ALIKES = [
    *("part.pdf", "a.part.pdf", "download", "Zone.Identifier.pdf", "desktop.ini.pdf", "$~a.pdf"),
    *("lock.odp#", "~a.pdf", "DS_Store", "thumbs.db.docx", "my@eaDir", "partial"),
]


@pytest.mark.parametrize("form", [str, Path, lambda name: f"/srv/term/room01/{name}"])
def test_what_lies_beside_documents(form: Callable[[str], str | Path]) -> None:
    """A program that sends a folder leaves out the same."""
    assert [name for name in JUNK if not is_junk_file(form(name))] == []
    assert [name for name in LOOK_ALIKES if is_junk_file(form(name))] == []


@pytest.mark.parametrize(
    "command", ["batch term", "batch term --check", "queue defer term --check"]
)
def test_a_folder_as_programs_leave_it(
    server: MeetingServer, capsys: Capture, command: str
) -> None:
    """The room gets the documents and nothing else; how many files are left out is told."""
    _file(*(f"term/room01/{name}" for name in (*ON_DISK, *LOOK_ALIKES, ".hidden")))
    _file("term/room01/bundle.download/Info.plist")  # Safari's unfinished download is a folder
    _file("term/__MACOSX/room01/._a.pdf", "term/@eaDir/a.pdf/thumb", "term/desktop.ini")
    done = call(capsys, *command.split())
    assert (done.code, "error" in done.err) == (0, False), done.err
    told = done.err + done.out
    assert f"term: {len(LOOK_ALIKES)} documents for 1 room" in told
    left_out = f", 1 hidden file left out, {len(ON_DISK) + 3} files left out as not documents ("
    assert f"{left_out}@eaDir," in told
    sent = [] if "--check" in command else LOOK_ALIKES
    assert sorted(names_in(server, "room01")) == sorted(sent)


@pytest.mark.parametrize("command", ["batch m.jsonl", "queue defer m.jsonl", "upload room01"])
def test_a_line_that_names_no_document(
    server: MeetingServer, capsys: Capture, command: str
) -> None:
    """It is a mistake that says what the file is, and how to fix it; nothing is sent."""
    _file(*JUNK, *LOOK_ALIKES)
    names = [*LOOK_ALIKES, *JUNK]
    rows = [{"room_id": "room01", "document": name} for name in names]
    Path("m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = call(capsys, *command.split(), *(names if command.startswith("upload") else []))
    assert (done.code, server.requests) == (2, [])
    *mistakes, last = done.err.splitlines()
    assert last == "meeting-async: nothing was sent"
    assert len(mistakes) == len(JUNK)
    for name, kind in JUNK.items():
        (told,) = [one for one in mistakes if f"(got {name!r})" in one]
        assert kind in told, name
        assert "leave it out, or rename it if it is a document" in told


def test_a_folder_of_junk_alone(server: MeetingServer, capsys: Capture) -> None:
    """It names no documents, and the error says what was left out."""
    _file("term/room01/week 1.pdf.crdownload", "term/room01/.hidden")
    done = call(capsys, "batch", "term")
    assert (done.code, server.requests) == (2, [])
    assert (
        "names no documents, 1 hidden file left out, 1 file left out as not documents (room01"
        in done.err
    )


@pytest.mark.parametrize(
    "command", ["batch term", "batch term --json", "batch term --journal j.db", "queue defer term"]
)
def test_odd_entries_of_folders(server: MeetingServer, capsys: Capture, command: str) -> None:
    """Each with its place, as a line or an object, in a check and in a run, and for a queue."""
    _file("term/room01/week 1.pdf", f"term/room01/{LATIN}", "term/r\udcf6om/a.pdf")
    links = {"room01/o.pdf": "o.pdf", "room01/x.pdf": "nowhere"}  # itself, and nothing
    links |= {"loop": "loop", "here": "there", "there": "here", "gone": "nowhere"}
    for name, target in links.items():
        Path("term", name).symlink_to(target)
    os.mkfifo("term/room01/pipe.pdf")
    places = [f"term/{name}" for name in ("room01/w", "r", "room01/pipe.pdf", *links)]
    done = call(capsys, *command.split(), *(["--check"] if "--journal" not in command else []))
    if "--json" in command:
        found = [one["place"] for one in done.objects if one["type"] == "mistake"]
        assert [place for place in places if place not in "\n".join(found)] == []
        done = Result(done.code, "", done.err)
    else:
        check_mistakes(done, *places)
    assert (done.code, server.requests) == (2, [])


@pytest.mark.parametrize(
    ("source", "closed", "place"),
    [
        ("term", "term/room02/b.pdf", "term/room02/b.pdf"),
        ("term", "term/room02", "term/room02"),
        ("term", "term", "term"),
        ("m.csv", "deck.pdf", "m.csv:3: "),
        ("m.csv", "m.csv", "m.csv"),
    ],
    ids=["document", "room", "folder", "line", "manifest"],
)
def test_what_may_not_be_read(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, source: str, closed: str, place: str
) -> None:
    """A document, a room's folder, the folder, a manifest: the mistake has its place."""
    _file("term/room01/a.pdf")
    assert call(capsys, "batch", "term", "--check").code == 0  # all modules are loaded
    with public_folder() as folder:
        monkeypatch.chdir(folder)
        _file("term/room01/a.pdf", "term/room02/b.pdf", "deck.pdf")
        Path("m.csv").write_text("room_id,document\nroom01,term/room01/a.pdf\nroom01,deck.pdf\n")
        Path(closed).chmod(0)
        with unprivileged():
            done = call(capsys, "batch", source, "--check")
        Path(closed).chmod(0o700)
        monkeypatch.chdir("/")
    assert (done.code, place in done.err, "Permission denied" in done.err) == (2, True, True)
    for word in UNTOLD:
        assert word not in done.err


@pytest.mark.parametrize("source", ["m.csv", "term"])
def test_a_place_that_is_not_utf8_harms_nobody(
    server: MeetingServer, capsys: Capture, source: str
) -> None:
    """Manifest, folder, journal and report may lie in a folder with any name."""
    place = Path("\udcfcbung")
    _file(f"{place}/term/room01/week 1.pdf")
    Path(place, "m.csv").write_text("room_id,document\nroom01,term/room01/week 1.pdf\n")
    order = ("batch", place / source, "--journal", place / "j.db", "--report", place / "r.html")
    assert call(capsys, "batch", place / source, "--check").code == 0
    assert [call(capsys, *order).code for _ in range(2)] == [0, 0]
    assert names_in(server, "room01") == ["week 1.pdf"]


# --- checks --------------------------------------------------------------------------------------


def _check(capsys: Capture, text: str) -> Result:
    Path("m.csv").write_text(text)
    return call(capsys, "batch", "m.csv", "--check")


def test_many_mistakes_are_counted(capsys: Capture) -> None:
    """After 50; the first ones are those of the first lines."""
    done = _check(capsys, "room_id,document\n" + "r,nope.pdf\n" * 70)
    assert "m.csv:2: " in done.err
    assert "… and 89 more mistakes" in done.err  # 70 missing files and 69 twins
    assert len(done.err.splitlines()) == 52


@pytest.mark.parametrize(
    "source",
    ["empty.csv", "header.csv", "folder", "nowhere.csv", "loop", "loop/m.csv", "x" * 300],
)
def test_a_source_without_documents_is_a_mistake(capsys: Capture, source: str) -> None:
    """A slip of the hand must not look like success; one that cannot be read is named."""
    Path("loop").symlink_to("loop")
    Path("empty.csv").touch()
    Path("header.csv").write_text("room_id,document\n")
    Path("folder", "room01").mkdir(parents=True)
    done = call(capsys, "batch", source, "--check")
    assert (done.code, source in done.err, "Traceback" in done.err) == (2, True, False)


def test_a_check_sums_up_what_would_be_sent(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums of what would be sent; it goes by the configured limit."""
    text = f"room_id,document\nroom01,a.pdf\nroom02,b.pdf\nroom02,{LINK}\n"
    told = r"m\.csv: 3 documents for 2 rooms, 44 bytes, checked in \d{1,2}\.\d s\n"
    assert re.fullmatch(told, _check(capsys, text).out)
    assert call(capsys, "batch", "m.csv", "--dry-run").out.startswith(
        "m.csv: 3 documents for 2 rooms"
    )
    monkeypatch.setenv("MEETING_MAX_SIZE_WHITEBOARD_FILE", "20")
    done = _check(capsys, text)
    assert (done.code, done.err.count("2 more than max_size_whiteboard_file")) == (2, 2)


def test_a_journal_survives_a_move(
    server: MeetingServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """It knows a document by its place below the manifest, however that is written, or its key."""
    rows = "room01,{},\nroom02,a.pdf,k1\n"
    Path("one").mkdir()
    Path("a.pdf").rename("one/a.pdf")
    for folder, written in (("one", "a.pdf"), ("two", "a.pdf"), ("two", ".//a.pdf")):
        if folder == "two" and not Path("two").exists():
            Path("one").rename("two")
        Path(folder, "m.csv").write_text(f"room_id,document,key\n{rows.format(written)}")
        done = call(capsys, "batch", f"{folder}/m.csv", "--journal", "j.db")
        assert "2 of 2 documents delivered" in done.out
    assert [len(names_in(server, room)) for room in ("room01", "room02")] == [1, 1]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_three_hundred_thousand_lines() -> None:
    """A check of them, half of them mistakes, takes less than 1 kB each."""
    with Path("m.csv").open("w") as file:
        file.write("room_id,document,key\n")
        file.writelines(
            f"course-{n // 100:06},{'nope' if n % 2 else 'a'}.pdf,{n:08}\n" for n in range(300_000)
        )
    with Path("told").open("w") as told:
        process = start("batch", "m.csv", "--check", stdout=told, stderr=told)
    peak = 0
    while process.poll() is None:  # `wait4` may tell the peak of this process, which forked it
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = max(peak, *map(int, re.findall(r"VmHWM:\s+(\d+)", status)), 0)
        time.sleep(0.1)
    assert process.returncode == 2, Path("told").read_text()
    assert 0 < peak < 300_000
