"""What a manifest or a folder says: jobs, or each mistake with its place."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meeting_async import Document, MeetingClient, UploadJob
from meeting_async.errors import InvalidInput
from meeting_async.manifests import _entries as entries
from meeting_async.manifests import _source, read_manifest
from meeting_async.manifests._rows import rows_in
from meeting_async.manifests._source import manifest_of
from meeting_async.testing import MeetingServer
from support.command_line import call, export
from support.documents import PDF, PNG
from support.systems import NO_SUCH_FILE, is_wine


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.pdf", "b.pdf", "term/room02/week 10.pdf", "term/room02/week 9.pdf"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(PDF)
    Path("image.pdf").write_bytes(PNG)


# --- jobs ----------------------------------------------------------------------------------------

LINK = "https://example.com/a.pdf?token=1"
TABLE = f"room_id,document,filename,key\nroom01,a.pdf,Week 1.pdf,k1\nroom02,{LINK},,\n"
OBJECT_LINES = """{"room_id": "room01", "document": "a.pdf", "filename": "Week 1.pdf", "key": "k1"}
{"room_id": "room02", "document": "https://example.com/a.pdf?token=1"}"""


def _facts(job: UploadJob) -> tuple[str, str, str | None]:
    assert isinstance(job.document, Document)
    return job.room_id, job.document.filename, job.key


@pytest.mark.parametrize("text", [TABLE, OBJECT_LINES])
@pytest.mark.parametrize("form", [str, Path])
def test_a_table_has_a_job_for_each_line(text: str, form: Callable[[str], str | Path]) -> None:
    """A path or a link, with the name and the key that its line gives it."""
    Path("m.txt").write_text(text)
    jobs = read_manifest(form("m.txt"))
    link = LINK.replace("token=1", "…")
    assert [*map(_facts, jobs)] == [("room01", "Week 1.pdf", "k1"), ("room02", link, None)]


def test_a_folder_has_a_job_for_each_file() -> None:
    """In natural order; the relative path starts at the folder."""
    Path("term/room02/.DS_Store").touch()
    names = [("room02", "week 9.pdf", None), ("room02", "week 10.pdf", None)]
    assert [*map(_facts, read_manifest("term"))] == names


MISTAKEN: dict[str, list[str]] = {
    "room_id,document\n,a.pdf\nroom01,nope.pdf\n": [
        "m.csv:2: room_id is empty", f"m.csv:3: 'nope.pdf' cannot be read: {NO_SUCH_FILE}",
    ],
    "room_id,document\nroom01,a.pdf\nroom01,./a.pdf\n": [
        "m.csv:3: the same document for the same room as m.csv:2"
    ],
    "room,file\nroom01,a.pdf\n": ["m.csv:1: the first line must name the columns"],
    "room_id,document\nroom01,image.pdf\n": ["m.csv:2: 'image.pdf' is a PNG image"],
    "room_id,document\nroom01,https://u:secret@example.com/\n": ["m.csv:2: document_link contains"],
}  # fmt: skip


@pytest.mark.parametrize("text", MISTAKEN)
def test_one_error_has_all_mistakes(text: str) -> None:
    """File, line, field and fix: the first one in its message, and each in its notes."""
    Path("m.csv").write_text(text)
    with pytest.raises(InvalidInput) as raised:
        read_manifest("m.csv")
    notes = raised.value.__notes__
    for expected, note in zip(MISTAKEN[text], notes, strict=True):
        assert note.startswith(expected)
    assert (raised.value.field, raised.value.value) == ("path", "'m.csv'")
    told = str(raised.value)
    assert f"mistake{'s' * (len(notes) > 1)}; the first: {notes[0]}" in told
    assert told.isprintable()
    assert "secret" not in told


def test_many_mistakes_are_counted() -> None:
    """After 50 notes; none shows what would reverse the direction of writing."""
    Path("m\u202e.csv").write_text("room_id,document\n" + "r,\n" * 70)
    with pytest.raises(InvalidInput, match="has 70 mistakes") as raised:
        read_manifest("m\u202e.csv")
    *_, last, more = raised.value.__notes__
    assert (last, more) == ("m\ufffd.csv:51: document is empty", "… and 20 more mistakes")


@pytest.mark.parametrize(
    ("path", "told"),
    [("nope.csv", f"cannot be read: {NO_SUCH_FILE}"), ("empty", "names no documents"),
     ("loop", "cannot be read: ")],
)  # fmt: skip
def test_a_path_that_names_no_documents(path: str, told: str) -> None:
    """It is an error, whatever is there; the error has the path."""
    Path("empty").mkdir()
    Path("loop").symlink_to("loop")
    with pytest.raises(InvalidInput, match=told) as raised:
        read_manifest(path)
    assert raised.value.value == repr(path)


def test_what_the_client_allows() -> None:
    """A limit and images are those that the client is given."""
    Path("m.csv").write_text("room_id,document\nroom01,image.pdf\n")
    assert len(read_manifest("m.csv", allow_images=True)) == 1
    assert len(read_manifest("m.csv", allow_images=True, max_size_whiteboard_file="1KiB")) == 1
    with pytest.raises(InvalidInput, match="more than max_size_whiteboard_file"):
        read_manifest("m.csv", allow_images=True, max_size_whiteboard_file=5)
    with pytest.raises(InvalidInput, match="max_size_whiteboard_file is not a size"):
        read_manifest("m.csv", max_size_whiteboard_file="5 MB")


@pytest.mark.parametrize("source", ["m.csv", "term"])
def test_a_program_resumes_what_the_command_began(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    """And the other way round: jobs are the same for a journal."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nroom02,b.pdf\n")
    server = MeetingServer()
    for room_id in ("room01", "room02"):
        server.add_room(room_id)

    async def deliver(journal: str) -> int:
        async with MeetingClient.from_env() as client:
            async with client.upload_many(jobs, journal=journal) as batch:
                return (await batch.wait()).already_delivered

    jobs = read_manifest(source)
    with server.run():
        export(monkeypatch, server)
        assert call(capsys, "batch", source, "--journal", "command.db").code == 0
        assert anyio.run(deliver, "command.db") == 2
        assert anyio.run(deliver, "program.db") == 0
        told = call(capsys, "batch", source, "--journal", "program.db").out
    assert "2 of 2 documents delivered (2 by an earlier run)" in told


# --- the text of a manifest ----------------------------------------------------------------------

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
        "sep=;\r\nroom_id;document\r\nroom01;a.pdf\r\n",
        "\ufeffsep=,\nroom_id,document\nroom01,a.pdf\n",
        "SEP=|\rroom_id|document\rroom01|a.pdf\r",
        "sep=\t\nroom_id\tdocument\nroom01\ta.pdf\n",
        '"sep=;"\nroom_id;document\nroom01;a.pdf\n',
        "sep=;;\r\nroom_id;document\r\nroom01;a.pdf\r\n",
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
        (b"sep=;\r\nroom_id;document\r\n;a.pdf\r\n", 3, "room_id is empty"),
        (b"sep=;\r\nroom_id,document\r\n", 2, "not 'room_id,document'"),
        (b"sep=;\r\n", 1, "the manifest is empty"),
        (b"sep=x;\nroom_id;document\n", 1, "the first line must name the columns"),
        (b"room_id,document\nroom01,\n", 2, "document is empty"),
        (b"room_id,document\nroom01\n", 2, "document is empty"),
        (b"room_id,document\nroom01,a,b.pdf\n", 2, "3 values for 2 columns"),
        (b"room_id,document,\nroom01,a.pdf,b.pdf\n", 2, "unknown name ''"),
        (b"room_id,document\nroom01,\xe4.pdf\n", 2, "not UTF-8 (byte 0xe4)"),
        (b'room_id,document\nroom01,"a.pdf\n', 2, "a quote is not closed"),
        (b'room_id,document\n"a\nb",a.pdf\n,b\n', 4, "room_id is empty"),
        (b'{"room_id": "room01"}', 1, "document is empty"),
        (OBJECT + b'\n{"room_id": 1, "document": "a"}', 2, "room_id is not a string"),
        (OBJECT + b"\n[]", 2, "each line must be a JSON object"),
        (OBJECT + b"\n{]", 2, "not JSON: Expecting property name enclosed in double quotes (each"),
        (OBJECT + b'\n{"key": "1", "key": "2"}', 2, "a name appears twice"),
        (OBJECT + b'\n{"file": "x"}', 2, "unknown name 'file'"),
        (OBJECT + b"\n" + b"[" * 100_000, 2, "not JSON"),
        (OBJECT.replace(b"a.pdf", b"a\\u0000"), 1, "NUL"),
    ],
)
def test_mistakes_of_the_text(data: bytes, line: int, told: str) -> None:
    """Each is told with the line where its record begins; no other line is blamed."""
    found = [(at, text) for at, text in rows_in(data) if isinstance(text, str)]
    assert {at for at, _ in found} == {line}
    assert any(told in text for _, text in found), found


@given(
    st.one_of(st.binary(), st.text('room_id,document"\n\r;{}[]:\\', max_size=80).map(str.encode))
)
def test_any_bytes_are_read(data: bytes) -> None:
    """Whatever comes, it is rows or mistakes, and never nothing."""
    found = list(rows_in(data))
    assert all(line and isinstance(row, dict | str) for line, row in found)
    assert found or data.strip()


# --- documents ---------------------------------------------------------------------------

LINKED = [] if is_wine() else ["here/a.pdf"]  # which makes no links
FILES = {"a.pdf": 0, "./a.pdf": 0, **dict.fromkeys(LINKED, 0), "b/a.pdf": 1, "b/../b/a.pdf": 1}
"""Which file a path leads to; all have the same name."""
NAMES = {"": "a.pdf", "a.pdf": "a.pdf", "x/a.pdf": "a.pdf", "a?.pdf": "a_.pdf", "a*.pdf": "a_.pdf"}
"""What a room shows if ``filename`` is this."""
LINES = st.tuples(*map(st.sampled_from, (["r1", "r2"], [*FILES], [*NAMES], ["", "k1", "k2"])))


@given(st.lists(LINES, min_size=1, max_size=6))
def test_a_document_that_a_room_would_show_twice(lines: list[tuple[str, str, str, str]]) -> None:
    """One mistake with both lines, however path and name are written, unless both have a key.

    A room has each key once.
    """
    with suppress(FileExistsError):
        Path("b").mkdir()
        Path("b/a.pdf").write_bytes(PNG)
        Path("here").symlink_to(".")
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
        used = [(line[0], line[3]) for line in lines[:number]]
        again = [at for at, its in enumerate(used) if key and its == (room, key)]
        expected |= {(number + 2, f"m.csv:{at + 2}") for at in again[:1]}
    found = [(line, text) for line, _, text in manifest_of("m.csv", field="path").flaws.found]
    assert {(line, re.findall("m.csv:[0-9]+", text)[0]) for line, text in found} == expected


def test_what_is_too_large_for_a_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A video that was named by mistake is not read to its end."""
    monkeypatch.setattr(_source, "MAX_MANIFEST_BYTES", 1024**2)
    text = b"room_id,document\nroom01,a.pdf\n"
    Path("m.csv").write_bytes(text.ljust(1024**2, b"\n"))
    assert len(manifest_of("m.csv", field="path").entries) == 1
    Path("m.csv").write_bytes(text.ljust(1024**2 + 1, b"\n"))
    with pytest.raises(InvalidInput, match=r"is larger than 1 MiB \(got 'm.csv'\)"):
        manifest_of("m.csv", field="path")


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
    found.find_in([entries.Entry("room01", f"{n}.pdf") for n in range(20 * 256)], lambda *_: None)
    assert (found.count, most) == (0, at_once)
