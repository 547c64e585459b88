"""Manifests and folders of ``batch``: what is understood, and every mistake with its line."""

from __future__ import annotations

import csv
import io
import json
import os
import string
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _cli import PDF
from _properties import fuzz
from meeting_async.cli import main
from meeting_async.cli._batch import FLAWS_SHOWN
from meeting_async.cli._folder import documents_in, natural
from meeting_async.cli._inspection import FILES_AT_ONCE, inspect
from meeting_async.cli._manifest import MAX_MANIFEST_BYTES, Manifest, flaws_shown, manifest_of
from meeting_async.cli._rows import COLUMNS, Mistake, Row, rows_in
from meeting_async.errors import InvalidInput

PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Be in a folder with documents, and export nothing: a check needs no server."""
    for name in [*os.environ]:
        if name.startswith("MEETING_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    for name in ("a.pdf", "b.pdf"):
        Path(name).write_bytes(PDF)


def read(text: str | bytes) -> list[Row | Mistake]:
    """Read a manifest."""
    return list(rows_in(text.encode() if isinstance(text, str) else text))


def values(text: str | bytes) -> list[Mapping[str, str]]:
    """Return what the rows of a manifest say, if nothing is wrong with it."""
    found = read(text)
    assert not [item for item in found if isinstance(item, Mistake)]
    return [item.values for item in found if isinstance(item, Row)]


def mistakes(text: str | bytes) -> list[tuple[int, str]]:
    """Return the mistakes of a manifest."""
    return [(item.line, item.text) for item in read(text) if isinstance(item, Mistake)]


# --- CSV -----------------------------------------------------------------------------------------

ROW = {"room_id": "room01", "document": "a.pdf"}


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
    ],
)
def test_csv_as_it_is_written(text: str) -> None:
    """By hand, by programs and by Excel in any country."""
    assert values(text) == [ROW]


def test_delimiters_and_line_ends_inside_of_quotes() -> None:
    """Are part of the value; the next line has its own number all the same."""
    found = read('room_id,document,filename\nr,"a,b.pdf","x ""y""\r\nz"\nr,c.pdf,\n')
    assert found == [
        Row(2, {"room_id": "r", "document": "a,b.pdf", "filename": 'x "y"\r\nz'}),
        Row(4, {"room_id": "r", "document": "c.pdf"}),
    ]


THERE_ARE = "there are room_id, document, filename, key"
NAMES_FIRST = "the first line must name the columns"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", [(1, "the manifest is empty")]),
        (b"\xef\xbb\xbf \r\n", [(1, "the manifest is empty")]),
        (
            "room_id,document\nr,a".encode("utf-16"),
            [(1, "the manifest is UTF-16: save it as UTF-8 (in Excel: 'CSV UTF-8')")],
        ),
        (
            b"room_id,document\nr,\xfcb.pdf\nr,b.pdf\n,\xfc",
            [
                (2, "not UTF-8 (byte 0xfc): save it as UTF-8 (in Excel: 'CSV UTF-8')"),
                (4, "not UTF-8 (byte 0xfc): save it as UTF-8 (in Excel: 'CSV UTF-8')"),
            ],
        ),
        (
            "room,document,notes\nr,a",
            [
                (1, f"unknown column 'room': {THERE_ARE}"),
                (1, f"unknown column 'notes': {THERE_ARE}"),
                (1, f"no column 'room_id': {NAMES_FIRST}"),
            ],
        ),
        (
            "room01,a.pdf\n",
            [
                (1, f"unknown column 'room01': {THERE_ARE}"),
                (1, f"unknown column 'a.pdf': {THERE_ARE}"),
                (1, f"no column 'room_id' and no column 'document': {NAMES_FIRST}"),
            ],
        ),
        ("room_id,document,key,key\nr,a", [(1, "column 'key' is there 2 times")]),
        (
            "room_id,document,why\nr,\n,a,x\n\nr,a,,x\n",
            [
                (1, f"unknown column 'why': {THERE_ARE}"),
                (2, "document is empty"),
                (3, "room_id is empty"),
                (5, "4 values for 3 columns: quote delimiters"),
            ],
        ),
        (
            'room_id,document\n"r"x,a\nr,"a\n',
            [(2, "not CSV: ',' expected after '\"'"), (3, "not CSV: a quote is not closed")],
        ),
        ('"room_id,document\n', [(1, "not CSV: a quote is not closed")]),
        (
            "room_id,document\nr,a\0b\nr\0,a",
            [(2, "document contains NUL"), (3, "room_id contains NUL")],
        ),
        (
            f"room_id,document\nr,{'x' * 131_073}\n",
            [(2, "not CSV: field larger than field limit (131072)")],
        ),
    ],
)  # fmt: skip
def test_mistakes_of_csv(text: str | bytes, found: list[tuple[int, str]]) -> None:
    """Every one, with the line on which its row begins."""
    assert mistakes(text) == found


# --- JSON lines ----------------------------------------------------------------------------------


def test_json_lines() -> None:
    """Blank lines, null and an empty string say nothing; U+2028 ends no line."""
    text = (
        '{"room_id": "room01", "document": "a.pdf"}\r\n\n'
        '  {"room_id": "r", "document": "b\u2028.pdf", "filename": null, "key": ""}'
    )
    assert read("\ufeff" + text) == [
        Row(1, ROW), Row(3, {"room_id": "r", "document": "b\u2028.pdf"})
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("[1]", ["an array instead of an object"]),
        ("null", ["null instead of an object"]),
        ('"x"', ["a string instead of an object"]),
        ("{", ["not JSON: Expecting property name enclosed in double quotes"]),
        ("{} {}", ["not JSON: Extra data"]),
        ("[" * 100_000, ["not JSON: beyond all limits"]),
        ("9" * 5000, ["not JSON: beyond all limits"]),
        ('{"document": 7, "room_id": null}',
         ["document is a number instead of a string", "room_id is null instead of a string"]),
        ('{"document": true}', ["document is true or false instead of a string"]),
        ('{"document": {}}', ["document is an object instead of a string"]),
        ('{"room_id": "a", "room_id": "b"}', ["'room_id' is there twice"]),
        ('{"room_id": "a", "document": "b", "doc": ""}', [f"unknown field 'doc': {THERE_ARE}"]),
        ('{"room_id": "", "key": []}', ["key is an array instead of a string"]),
        ("{}", ["room_id is empty", "document is empty"]),
        ('{"room_id": "a", "document": "\\u0000"}', ["document contains NUL"]),
    ],
)  # fmt: skip
def test_mistakes_of_json_lines(line: str, found: list[str]) -> None:
    """Types are not guessed; the other lines are read all the same."""
    text = f'{{"room_id": "r", "document": "a"}}\n{line}\n{{"room_id": "r", "document": "b"}}'
    told = [(number, text.partition(" (one object")[0]) for number, text in mistakes(text)]
    assert told == [(2, text) for text in found]
    assert {item.line for item in read(text) if isinstance(item, Row)} >= {1, 3}


def test_json_that_is_no_text() -> None:
    """Told from a surrogate that was written as an escape, which is no matter of encoding."""
    data = b'{"room_id": "r", "document": "\\udcff"}\n{"room_id": "\xff"}'
    row, mistake = read(data)
    assert isinstance(row, Row)
    assert isinstance(mistake, Mistake)
    assert (mistake.line, mistake.text[:23]) == (2, "not UTF-8 (byte 0xff): ")


def test_a_json_array_is_explained() -> None:
    """What programs write by default is no JSON lines."""
    ((line, text),) = mistakes(json.dumps([ROW]))
    assert (line, text[:31]) == (1, "the manifest is a JSON array: p")


# --- whatever it is ------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"room_id": TEXTS, "document": TEXTS}, optional={"filename": TEXTS, "key": TEXTS}
    ),
    min_size=1,
)


def as_json(rows: Sequence[Mapping[str, str]]) -> str:
    """Write JSON lines."""
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)


def as_csv(rows: Sequence[Mapping[str, str]], delimiter: str, line_end: str) -> str:
    """Write CSV with everything in quotes, as any text may need them."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(
        file, COLUMNS, restval="", delimiter=delimiter, lineterminator=line_end,
        quoting=csv.QUOTE_ALL,
    )  # fmt: skip
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


@fuzz
@given(ROWS, st.booleans())
def test_json_lines_there_and_back(rows: list[dict[str, str]], bom: bool) -> None:
    """Whatever the texts are."""
    assert values("\ufeff" * bom + as_json(rows)) == rows


@fuzz
@given(ROWS, st.sampled_from(",;\t"), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_csv_there_and_back(
    rows: list[dict[str, str]], delimiter: str, line_end: str, bom: bool
) -> None:
    """Whatever the texts are."""
    assert values("\ufeff" * bom + as_csv(rows, delimiter, line_end)) == rows


@fuzz
@given(
    st.binary()
    | st.builds(lambda head, rest: head + rest, st.just(b"room_id;document\n"), st.binary())
    | st.builds(lambda head, rest: head + rest, st.just(b'{"room_id":'), st.binary())
    | st.text(string.printable + "\0\udcff").map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_nothing_is_raised_whatever_the_bytes(data: bytes) -> None:
    """Each line is a usable row or a mistake with a line that is there."""
    lines = len(data.splitlines()) + 1
    found = read(data)
    for item in found:
        assert 1 <= item.line <= lines
        if isinstance(item, Row):
            assert item.values["room_id"]
            assert item.values["document"]
            assert "\0" not in "".join(item.values.values())
    assert found or data.strip()


# --- entries and documents -----------------------------------------------------------------------


def checked(source: str | os.PathLike[str], max_size: int | None = None) -> Manifest:
    """Read a source and look at its documents."""
    manifest = manifest_of(str(source))
    anyio.run(inspect, manifest, max_size)
    return manifest


def flaws(text: str, max_size: int | None = None) -> list[str]:
    """Return what is wrong with a manifest that is called m."""
    Path("m").write_text(text)
    return list(flaws_shown(checked("m", max_size), 100))


def test_every_mistake_of_every_line() -> None:
    """Of rooms, of documents and of what is there twice, in the order of the lines."""
    Path("scan.png").write_bytes(PNG)
    Path("empty.pdf").touch()
    Path("large.pdf").write_bytes(PDF * 2)
    Path("folder").mkdir()
    Path("secret.pdf").symlink_to("nowhere")
    rows = [
        "room_id,document,filename,key",
        " room01 ,gone.pdf",
        "room01,scan.png",
        "room01,a.pdf",
        "room01,./folder/../a.pdf,a.pdf",
        "room02,empty.pdf,,1",
        "room02,large.pdf,,1",
        "room02,folder",
        "room02,ftp://x.test/a.pdf",
        "room02,https://x.test/a.pdf?key=hush,b.pdf",
        "room02,secret.pdf",
        "room02,a.pdf,..",
        "ro\x01om,a.pdf",
    ]
    told = flaws("\n".join(rows), max_size=len(PNG))
    assert [line.partition(": ")[0] for line in told] == [
        *("m:2", "m:2", "m:3", "m:5", "m:6", "m:7", "m:7", "m:8", "m:9", "m:10", "m:11", "m:12"),
        "m:13",
    ]
    beginnings = [
        "m:2: '/.*/gone.pdf' cannot be read: No such file",
        "m:2: room_id starts or ends with a blank",
        "m:3: 'scan.png' is a PNG image",
        "m:5: the same document for the same room as m:4",
        "m:6: 'empty.pdf' is empty",
        "m:7: 'large.pdf' has 44 bytes, 4 more than",
        "m:7: key '1' is taken by m:6",
        "m:8: '/.*/folder' cannot be read: it is not a regular file",
        "m:9: document_link is not an http(s) URL",
        "m:10: filename cannot be given for a link",
        "m:11: '/.*/secret.pdf' cannot be read: No such file",
        "m:12: filename has no name in it",
        "m:13: room_id contains control characters",
    ]
    for line, beginning in zip(told, beginnings, strict=True):
        place, _, rest = beginning.partition("/.*")
        assert line.startswith(place)
        assert rest in line
    assert "hush" not in "".join(told)
    assert "allow_images" not in "".join(told)


def test_the_same_document_twice_on_purpose() -> None:
    """Each with a key of its own; a document for two rooms and two names need none."""
    rows = ["r,a.pdf,,1", "r,a.pdf,,2", "r,a.pdf", "r,a.pdf,z.pdf", "r2,a.pdf"]
    assert flaws("\n".join(["room_id,document,filename,key", *rows])) == []
    link = "r,http://x.test/a.pdf"
    assert len(flaws(f"room_id,document\n{link}\n{link}\n{link}?b\nr2,http://x.test/a.pdf")) == 1


def test_keys_are_text() -> None:
    """SQLite stores no half of a character."""
    (told,) = flaws('{"room_id": "r", "document": "a.pdf", "key": "\\ud800"}')
    assert told == "m:1: key contains characters that are no Unicode text"


def test_relative_paths_start_at_the_manifests_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And jobs are the same wherever the command is run, as a journal compares them."""
    (tmp_path / "term").mkdir()
    manifest = tmp_path / "term" / "m.csv"
    manifest.write_text("room_id,document,filename,key\nr,../a.pdf,Unit.pdf,7\n")
    here = checked("term/m.csv").entries[0]
    monkeypatch.chdir(tmp_path / "term")
    there = checked("m.csv").entries[0]
    assert here.job == there.job
    assert (here.document.filename, here.key, here.size) == ("Unit.pdf", "7", len(PDF))
    assert here.document.source == there.document.source


def test_a_journal_knows_a_batch_that_has_moved(tmp_path: Path) -> None:
    """Manifest and documents together, or the folder; but never by what a link may hold secret."""
    keys = []
    for place in ("before", "after"):
        room = tmp_path / place / "room01"
        room.mkdir(parents=True)
        (room / "a.pdf").write_bytes(PDF)
        manifest = tmp_path / place / "m.csv"
        manifest.write_text(
            "room_id,document,filename\nr,room01/a.pdf,Unit.pdf\nr,https://x.test/b?secret=1,\n"
        )
        entries = checked(str(manifest)).entries
        manifest.unlink()
        keys.append([entry.job.key for entry in (*entries, *checked(str(room.parent)).entries)])
    assert keys[0] == keys[1]
    assert keys[0] == [
        '["r", "room01/a.pdf", "Unit.pdf"]',
        None,
        '["room01", "room01/a.pdf", "a.pdf"]',
    ]


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths start at the working directory; the format is recognised all the same."""

    class Stdin:
        buffer = io.BytesIO(b'{"room_id": "r", "document": "a.pdf"}\n{"room_id": "r"}')

    monkeypatch.setattr(sys, "stdin", Stdin)
    manifest = checked("-")
    assert [str(flaw) for flaw in manifest.flaws] == ["stdin:2: document is empty"]
    assert (manifest.size, manifest.rooms) == (len(PDF), 1)


def test_what_cannot_be_read_at_all() -> None:
    """Is no mistake of a line."""
    for source, problem in (("gone.csv", "No such file"), ("a\0b", "null byte")):
        with pytest.raises(InvalidInput, match=problem):
            manifest_of(source)


def test_a_manifest_without_end() -> None:
    """Is given up before it fills the memory."""
    with Path("endless").open("wb") as file:
        file.truncate(MAX_MANIFEST_BYTES + 1)
    with pytest.raises(InvalidInput, match="is larger than 256 MiB"):
        manifest_of("endless")


def test_only_so_many_mistakes_are_shown() -> None:
    """And the rest is counted."""
    Path("m").write_text("room_id,document\n" + "r,\n" * 60)
    told = list(flaws_shown(manifest_of("m"), 50))
    assert (len(told), told[49], told[50]) == (51, "m:51: document is empty", "… and 10 more")


def test_every_file_is_looked_at() -> None:
    """However they are shared out among threads."""
    count = 3 * FILES_AT_ONCE + 1
    rows = [f"r,{'gone' if number % 50 == 0 else 'a'}.pdf,{number}.pdf" for number in range(count)]
    Path("m").write_text("\n".join(["room_id,document,filename", *rows]))
    manifest = checked("m")
    assert sorted(flaw.number for flaw in manifest.flaws) == [2, 52, 102, 152]
    assert manifest.size == (count - 4) * len(PDF)


# --- folders -------------------------------------------------------------------------------------


def tree(*paths: str) -> Path:
    """Make a folder with documents."""
    for path in paths:
        file = Path("term", path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(PDF)
    return Path("term")


def test_a_folder_for_each_room() -> None:
    """In natural order; hidden files are left out and counted."""
    term = tree(
        "room10/a.pdf", "room9/Unit 10.pdf", "room9/unit 9.pdf", "room9/.DS_Store",
        "room9/~$unit 9.docx", "room9/Thumbs.db", ".git/config",
    )  # fmt: skip
    Path("term/empty").mkdir()
    manifest = checked(term)
    assert [(entry.room_id, entry.document.filename) for entry in manifest.entries] == [
        ("room9", "unit 9.pdf"), ("room9", "Unit 10.pdf"), ("room10", "a.pdf")
    ]  # fmt: skip
    assert (manifest.flaws, manifest.left_out) == ([], 4)
    assert manifest.entries[0].place == "term/room9/unit 9.pdf"


def test_mistakes_of_folders() -> None:
    """Nothing is left out silently that somebody may have meant to upload."""
    term = tree("loose.pdf", "room1/sub/a.pdf", "room1/scan.png", " room2/a.pdf")
    Path("term/room1/scan.png").write_bytes(PNG)
    told = list(flaws_shown(checked(f"{term}/"), 9))
    assert [line.partition(": ")[::2] for line in told] == [
        ("term/loose.pdf", "lies beside the rooms' folders: ROOM_ID/file is wanted"),
        ("term/room1/sub", "a folder inside of a room's folder: ROOM_ID/file is wanted"),
        ("term/ room2/a.pdf", told[2].partition(": ")[2]),
        ("term/room1/scan.png", told[3].partition(": ")[2]),
    ]
    assert "starts or ends with a blank" in told[2]
    assert "PNG image" in told[3]


def test_a_folder_without_documents() -> None:
    """Is more likely the wrong folder than nothing to do."""
    Path("term").mkdir()
    (flaw,) = checked("term").flaws
    assert str(flaw) == "term: no documents in it: ROOM_ID/file is wanted"


def test_a_folder_that_cannot_be_read() -> None:
    """Is a mistake, not a folder without rooms."""
    found = documents_in("gone", set())
    assert found.mistakes[0] == ("gone", "cannot be read: No such file or directory")


def test_our_own_files_beside_the_rooms() -> None:
    """A journal and a report may lie in the folder; a file of that name in a room may not hide."""
    term = tree("room1/a.pdf", "term.db", "term.db-wal", "room1/term.db")
    found = documents_in(str(term), {str(Path("term/term.db").absolute())})
    assert [path for path, _ in found.mistakes] == ["term/term.db-wal"]
    assert [path for _, path in found.documents] == ["term/room1/a.pdf", "term/room1/term.db"]


@pytest.mark.parametrize("names", [["2", "10", "b"], ["", "1a", "1b", "a1", "a02", "A10", "ä"]])
def test_natural_order(names: list[str]) -> None:
    """Numbers by value, letters whatever their case."""
    assert sorted({*names}, key=natural) == names


@fuzz
@given(st.text(), st.text())
def test_natural_order_is_an_order(one: str, other: str) -> None:
    """For any two names; only equal ones are alike."""
    assert (natural(one) < natural(other)) + (natural(other) < natural(one)) == (one != other)


# --- the command ---------------------------------------------------------------------------------

Captured = pytest.CaptureFixture[str]


def test_check_needs_no_server(capsys: Captured) -> None:
    """It says what there is and how long the look took."""
    Path("m.csv").write_text("room_id,document\nr,a.pdf\nr2,b.pdf\nr2,http://x.test/c.pdf\n")
    assert main(["batch", "m.csv", "--check"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("m.csv: 3 documents for 2 rooms, 44 bytes, checked in 0.")
    assert shown.err == ""


def test_check_of_a_folder(capsys: Captured) -> None:
    """Says what is left out; a report is no document, and a place for it is looked for."""
    tree("room1/a.pdf", "room1/.hidden", "page.html")
    assert main(["batch", "term", "--check", "--report", "term/page.html"]) == 0
    said = "term: 1 document for 1 room, 22 bytes, 1 hidden file left out, checked in "
    assert capsys.readouterr().out.startswith(said)


def test_mistakes_exit_2(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """One a line, as compilers tell them; sizes are those of the environment."""
    monkeypatch.setenv("MEETING_MAX_SIZE_WHITEBOARD_FILE", "21")
    Path("m.csv").write_text("room_id,document\nr,a.pdf\nr\x1b[31m\n" + "r,\n" * FLAWS_SHOWN)
    assert main(["batch", "m.csv", "--check"]) == 2
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert lines[0].startswith("meeting-async: m.csv:2: 'a.pdf' has 22 bytes, 1 more than")
    assert lines[1] == "meeting-async: m.csv:3: document is empty"
    assert lines[-2:] == [
        "meeting-async: … and 2 more",
        f"meeting-async: error: {FLAWS_SHOWN + 2} mistakes in m.csv: nothing was sent",
    ]
    assert shown.out == ""


def test_nothing_to_do_is_no_mistake(capsys: Captured) -> None:
    """A program may well find no documents; but it says so with a header."""
    Path("m.csv").write_text("room_id,document\n")
    assert main(["batch", "m.csv", "--check"]) == 0
    assert capsys.readouterr().out.startswith("m.csv: 0 documents for 0 rooms, checked in ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "SOURCE"),
        (["gone.csv"], "gone.csv"),
        (["--jsn"], "looks like an option"),
        (["m.csv", "--concurrency=0"], "--concurrency"),
        (["m.csv", "--on-unknown=guess"], "--on-unknown"),
        (["m.csv", "--wait-active=-1"], "--wait-active"),
        (["m.csv", "--report=gone/page.html"], "is in a folder that is not there"),
        (["m.csv", "--report=."], "is a folder"),
    ],
    ids=str,
)
def test_batch_refuses_bad_arguments(
    capsys: Captured, arguments: list[str], complaint: str
) -> None:
    """With exit code 2."""
    Path("m.csv").write_text("room_id,document\n")
    assert main(["batch", *arguments, "--check"]) == 2
    assert complaint in capsys.readouterr().err


def test_settings_come_before_the_manifest(capsys: Captured) -> None:
    """Whoever forgot to export the server learns that first."""
    assert main(["batch", "gone.csv"]) == 2
    assert "MEETING_BASE_URL is not set" in capsys.readouterr().err


def test_ctrl_c_during_the_check(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was sent, and that is said."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("meeting_async.cli._batch.manifest_of", interrupted)
    assert main(["batch", "m.csv", "--check"]) == 130
    assert capsys.readouterr().err == "meeting-async: interrupted: nothing was sent\n"
