"""Manifests and folders: what is understood, and every mistake with its line."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meeting_async.cli import entries
from meeting_async.cli.batch.manifest import manifest_of, natural
from meeting_async.cli.batch.rows import rows_in
from meeting_async.testing import MeetingServer
from support.command_line import PNG, Result, call, start

Capture = pytest.CaptureFixture[str]

ROW = {"room_id": "room01", "document": "a.pdf"}
OBJECT = b'{"room_id": "room01", "document": "a.pdf"}'


@pytest.mark.parametrize(
    "text",
    [
        "room_id,document\nroom01,a.pdf",
        "room_id;document\r\nroom01;a.pdf\r\n",
        "room_id\tdocument\nroom01\ta.pdf\n",
        "document , Room_ID\n\na.pdf,room01\n,\n",
        "\ufeffroom_id;document;;\r\nroom01;a.pdf;;\r\n;;;\r\n",
        'room_id,document,filename,key\nroom01,"a.pdf",,',
        "room_id, document\nroom01, a.pdf",
        "\n\nroom_id,document\rroom01,a.pdf\r",
        '"room_id";"document"\n"room01";"a.pdf"',
        '{"room_id": "room01", "document": "a.pdf"}',
        '\n {"document": "a.pdf", "filename": null, "key": "", "room_id": "room01"}\r\n\n',
    ],
)
def test_manifests_as_they_are_written(text: str) -> None:
    """By hand, by programs and by Excel in any country; CSV or an object on each line."""
    ((_, row),) = rows_in(text.encode())
    assert row == ROW


@pytest.mark.parametrize(
    ("data", "line", "told"),
    [
        (b"", 1, "the manifest is empty"),
        (b"\n \n", 1, "the manifest is empty"),
        ("room_id,document\n".encode("utf-16"), 1, "not UTF-8 (byte 0xff)"),
        (b'[{"room_id": 1}]', 1, "each line must be a JSON object"),
        (b"room,file\nroom01,a.pdf\n", 1, "not 'room, file'"),
        (b"room01,a.pdf\n", 1, "the first line must name the columns"),
        (b"room_id,document,key,key\n", 1, "the first line must name the columns"),
        (b"room_id,document\n\n,a.pdf\n", 3, "room_id is empty"),
        (b"room_id,document\nroom01,\n", 2, "document is empty"),
        (b"room_id,document\nroom01,a,b.pdf\n", 2, "3 values for 2 columns"),
        (b"room_id,document\nroom01,\xe4.pdf\n", 2, "not UTF-8 (byte 0xe4)"),
        (b'room_id,document\nroom01,"a.pdf\n', 2, "a quote is not closed"),
        (b'room_id,document\n"a\nb",a.pdf\n,b\n', 4, "room_id is empty"),
        (b'{"room_id": "room01"}', 1, "document is empty"),
        (OBJECT + b'\n{"room_id": 1, "document": "a"}', 2, "room_id is not a string"),
        (OBJECT + b"\n[]", 2, "each line must be a JSON object"),
        (OBJECT + b"\n{", 2, "not JSON"),
        (OBJECT + b'\n{"key": "1", "key": "2"}', 2, "a name appears twice"),
        (OBJECT + b'\n{"file": "x"}', 2, "unknown name 'file'"),
        (OBJECT + b"\n" + b"[" * 100_000, 2, "not JSON"),
        (OBJECT.replace(b"a.pdf", b"a\\u0000"), 1, "NUL"),
    ],
)
def test_mistakes_of_the_text(data: bytes, line: int, told: str) -> None:
    """Each is told with the line where its record begins."""
    found = [(at, text) for at, text in rows_in(data) if isinstance(text, str)]
    assert any(line == at and told in text for at, text in found), found


@given(
    st.one_of(st.binary(), st.text('room_id,document"\n\r;{}[]:\\', max_size=80).map(str.encode))
)
def test_any_bytes_are_read(data: bytes) -> None:
    """Whatever comes, it is rows or mistakes, and never nothing."""
    found = list(rows_in(data))
    assert all(line and isinstance(row, dict | str) for line, row in found)
    assert found or data.strip()


def _check(capsys: Capture, text: str) -> Result:
    Path("m.csv").write_text(text)
    return call(capsys, "batch", "m.csv", "--check")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            "room01,a.pdf\nroom01,a.pdf,a.pdf",
            "m.csv:3: the same document for the same room as m.csv:2",
        ),
        ("room01,a.pdf,,k\nroom02,a.pdf,,k", "m.csv:3: key 'k' is already used by m.csv:2"),
        ("room01,nope.pdf", "m.csv:2: 'nope.pdf' cannot be read: No such file"),
        ("room01,.", "m.csv:2: '.' cannot be read: it is not a regular file"),
        ("room01,image.pdf", "m.csv:2: 'image.pdf' is a PNG image"),
        ("room01,empty.pdf", "m.csv:2: 'empty.pdf' is empty"),
        ("room01,https://example.com/a.pdf,x.pdf", "m.csv:2: filename cannot be given for a link"),
        ("room01,https://u:secret@example.com/", "m.csv:2: document_link contains a user name"),
        ("a\tb,a.pdf", "m.csv:2: room_id contains control characters"),
    ],
)
def test_mistakes_come_first(capsys: Capture, lines: str, told: str) -> None:
    """Nothing is sent, not even what stands before; no server is needed to find them."""
    Path("image.pdf").write_bytes(PNG)
    Path("empty.pdf").touch()
    done = _check(capsys, f"room_id,document,filename,key\n{lines}\n")
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert "secret" not in done.err
    assert done.err.splitlines()[-1] == "meeting-async: nothing was sent"


FILES = {"a.pdf": 0, "./a.pdf": 0, "here/a.pdf": 0, "b/a.pdf": 1, "b/../b/a.pdf": 1}
"""Which file a path leads to; all have the same name."""
NAMES = {"": "a.pdf", "a.pdf": "a.pdf", "x/a.pdf": "a.pdf", "a?.pdf": "a_.pdf", "a*.pdf": "a_.pdf"}
"""What a room shows if ``filename`` is this."""
LINES = st.tuples(*map(st.sampled_from, (["r1", "r2"], [*FILES], [*NAMES], ["", "k1", "k2"])))


@given(st.lists(LINES, min_size=1, max_size=6))
def test_a_document_that_a_room_would_show_twice(lines: list[tuple[str, str, str, str]]) -> None:
    """One mistake with both lines, however path and name are written, unless both have a key."""
    with suppress(FileExistsError):
        Path("here").symlink_to(".")
        Path("b").mkdir()
        Path("b/a.pdf").write_bytes(PNG)
    rows = "\n".join(map(",".join, lines))
    Path("m.csv").write_text(f"room_id,document,filename,key\n{rows}\n")
    expected = set()
    for number, (room, path, name, key) in enumerate(lines):
        alike = [
            at
            for at, (other, its_path, its_name, its_key) in enumerate(lines[:number])
            if (room, FILES[path], NAMES[name]) == (other, FILES[its_path], NAMES[its_name])
        ]
        if alike and not (key and lines[alike[0]][3]):
            expected.add((number + 2, f"m.csv:{alike[0] + 2}"))
        again = [at for at, line in enumerate(lines[:number]) if key and line[3] == key]
        expected |= {(number + 2, f"m.csv:{at + 2}") for at in again[:1]}
    found = [(line, text) for line, _, text in manifest_of("m.csv").flaws.found]
    assert {(line, re.findall("m.csv:[0-9]+", text)[0]) for line, text in found} == expected


@pytest.mark.parametrize("options", ["", "--journal j.db"])
def test_a_run_finds_what_a_check_finds(
    server: MeetingServer, capsys: Capture, options: str
) -> None:
    """With and without a journal: nothing is sent."""
    text = "room_id,document,filename\nroom01,a.pdf,\nroom01,./a.pdf,\n"
    checked = _check(capsys, text)
    done = call(capsys, "batch", "m.csv", *options.split())
    assert (done.code, done.err) == (checked.code, checked.err)
    assert (server.requests, Path("j.db").exists()) == ([], False)


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


def test_check(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of what would be sent; it goes by the configured limit."""
    text = "room_id,document\nroom01,a.pdf\nroom02,b.pdf\n"
    assert "m.csv: 2 documents for 2 rooms, 44 bytes, checked in" in _check(capsys, text).out
    monkeypatch.setenv("MEETING_MAX_SIZE_WHITEBOARD_FILE", "20")
    done = _check(capsys, text)
    assert (done.code, done.err.count("2 more than max_size_whiteboard_file")) == (2, 2)


def test_folders(capsys: Capture) -> None:
    """``ROOM_ID/file`` in natural order; what nobody means to send is left out and counted."""
    for name in ("week 10.pdf", "week 9.pdf", "Week 1.pdf", ".hidden", "~$x.docx", "Thumbs.db"):
        path = Path("term", "room01", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%PDF-1.7")
    manifest = manifest_of("term", besides=["term/term.db"])
    assert [entry.target for entry in manifest.entries] == [
        "room01/Week 1.pdf", "room01/week 9.pdf", "room01/week 10.pdf"
    ]  # fmt: skip
    assert manifest.left_out == 3
    Path("term", "room01", "sub").mkdir()
    Path("term", "beside.pdf").touch()
    done = call(capsys, "batch", "term", "--check")
    assert "term/room01/sub: is a folder inside a room's folder" in done.err
    assert "term/beside.pdf: is not in the folder of a room" in done.err


def test_natural_order() -> None:
    """Numbers count as numbers, wherever they are."""
    names = ["b", "a10b2", "a9", "a10b10", "²", "A1"]
    assert sorted(names, key=natural) == ["A1", "a9", "a10b2", "a10b10", "b", "²"]


def test_keys_survive_a_move(tmp_path: Path) -> None:
    """A journal recognises documents when the manifest and its documents were moved together."""
    keys = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "m.csv").write_text("room_id,document\nroom01,a.pdf\n")
        (entry,) = manifest_of(str(tmp_path / folder / "m.csv")).entries
        keys.append(entry.job().key)
    assert keys[0] == keys[1] == json.dumps(["room01", "a.pdf", "a.pdf"])


@pytest.mark.parametrize(("seconds", "at_once"), [(0, 1), (0.002, 16)])
def test_documents_on_a_file_server(
    monkeypatch: pytest.MonkeyPatch, seconds: float, at_once: int
) -> None:
    """They are looked at side by side; where looks are quick, threads would only get in the way."""
    lock, looking, most = threading.Lock(), 0, 0

    def looked_at(_path: str) -> tuple[int, bytes]:
        nonlocal looking, most
        with lock:
            looking += 1
            most = max(most, looking)
        if seconds:
            time.sleep(seconds)
        with lock:
            looking -= 1
        return 8, b"%PDF-1.4"

    monkeypatch.setattr(entries, "_looked_at", looked_at)
    found = entries.Flaws()
    found.find_in([entries.Entry("room01", f"{n}.pdf") for n in range(20 * 256)], None)
    assert (found.count, most) == (0, at_once)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["a.pdf", "nope.pdf"])
def test_a_million_lines(name: str) -> None:
    """A check of them takes less than a minute of CPU time and 700 MB, mistakes included."""
    with Path("m.csv").open("w") as file:
        file.write("room_id,document,key\n")
        file.writelines(f"course-{n // 100:06},{name},{n:08}\n" for n in range(1_000_000))
    with Path("told").open("w") as told:
        process = start("batch", "m.csv", "--check", stdout=told, stderr=told)
    ended, peak = 0, 0
    while not ended:  # what `wait4` has as its peak may be that of this process, which forked it
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = max(peak, *map(int, re.findall(r"VmHWM:\s+(\d+)", status)), 0)
        time.sleep(0.1)
        ended, status_, used = os.wait4(process.pid, os.WNOHANG)
    process.returncode = os.waitstatus_to_exitcode(status_)
    assert process.returncode == (0 if name == "a.pdf" else 2), Path("told").read_text()
    assert used.ru_utime + used.ru_stime < 60
    assert 0 < peak < 700_000
