"""``queue``: the way of a batch through PostgreSQL, and everything that can be wrong with it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import (
    PROGRAM,
    Result,
    accepted,
    call,
    finish,
    full_disk,
    manifest,
    names_in,
    start,
    until,
)
from support.documents import PDF
from support.postgres import PostgresServer, needs_postgres
from support.programs import drawn_by

Capture = pytest.CaptureFixture[str]

pytestmark = needs_postgres

GOOD = {"room_id": "room01", "document": "b.pdf"}
DSN, PASSWORD = "MEETING_QUEUE_DSN", "s3cr3t"


def _export(monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
    monkeypatch.setenv(DSN, dsn.replace("tester@", f"tester:{PASSWORD}@"))


@pytest.fixture
def no_tables(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an empty database; its address, with a password, is in the environment."""
    _export(monkeypatch, postgres.new_database())


@pytest.fixture
def tables(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide a database with the tables, likewise."""
    _export(monkeypatch, dsn)


@contextmanager
def _working(*arguments: object) -> Iterator[list[Result]]:
    """Run a worker, in a process of its own, while the block runs; then have its result."""
    process = start("queue", "worker", *arguments)
    done: list[Result] = []
    assert process.stderr is not None
    ready = process.stderr.readline()
    assert "ready for uploads of queue 'whiteboard 127.0.0.1:" in ready, ready + finish(process).err
    try:
        yield done
    finally:
        process.send_signal(signal.SIGTERM)
        done.append(finish(process))


def _work_until_done(capsys: Capture, batch: str) -> tuple[Result, Result]:
    """Let a worker complete a batch; return what the worker and what the report say."""
    with _working() as worker:
        report = call(capsys, "queue", "report", batch, "--wait")
    return worker[0], report


@pytest.mark.usefixtures("no_tables")
def test_from_tables_to_results(server: MeetingServer, capsys: Capture) -> None:
    """Tables, uploads, a worker that a signal ends, results; a second time nothing is new.

    Exit code 75 until a worker has been there; with ``--json`` as elsewhere.
    """
    Path("m.csv").write_text(
        "room_id,document,filename,key\n"
        "room01,b.pdf,Week 2.pdf,\nroom02,a.pdf,,k1\nroom01,c.pdf,,\nnope,b.pdf,,k2\n"
    )
    made, again = (call(capsys, "queue", "apply-schema") for _ in range(2))
    assert (made.code, made.out) == (0, "the tables are ready\n")
    assert (again.code, again.out) == (0, "nothing to do: the tables were there already\n")
    done = call(capsys, "queue", "defer", "m.csv")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "m.csv: 4 documents for 3 rooms, 88 bytes",
        "batch 'm.csv': 4 new, 0 deferred before",
    ]
    done = call(capsys, "queue", "report", "m.csv", "--report", "r.html")
    told = "m.csv: 0 of 4 documents delivered; 4 queued."
    assert (done.code, done.out.splitlines()[0]) == (75, told)
    page = Path("r.html").read_text()
    assert ("4 queued" in page, "queue retry" in page) == (True, False)
    (summary,) = call(capsys, "queue", "report", "m.csv", "--json").objects
    assert (summary["queued"], summary["documents"], summary["exit_code"]) == (4, 4, 75)
    worker, report = _work_until_done(capsys, "m.csv")
    assert names_in(server, "room01") == ["Week 2.pdf", "c.pdf"]
    assert (worker.code, worker.err.splitlines()[-1]) == (0, "meeting-async: stopped")
    assert sorted(line.partition(" (")[0] for line in worker.out.splitlines()) == [
        "Week 2.pdf: accepted by room01",
        "a.pdf: accepted by room02",
        "c.pdf: accepted by room01",
    ]
    told = "m.csv: 3 of 4 documents delivered; 1 without an active room."
    assert (report.code, report.out.splitlines()[0]) == (1, told)
    *documents, summary = call(capsys, "queue", "report", "m.csv", "--json").objects
    found = {document["key"]: document for document in documents}
    facts = ("type", "room_id", "document", "outcome", "delivered", "size")
    assert [found["k1"][fact] for fact in facts] == [
        "document", "room02", "a.pdf", "accepted", True, 22
    ]  # fmt: skip
    assert (found["k2"]["outcome"], found["k2"]["error"]["type"]) == ("refused", "RoomNotFound")
    assert (summary["type"], summary["queued"], summary["exit_code"]) == ("summary", 0, 1)
    (deferred,) = call(capsys, "queue", "defer", "m.csv", "--json").objects
    expected = {"type": "deferred", "batch": "m.csv", "new": 0, "known": 4, "rooms": 3}
    assert expected.items() <= deferred.items()


@pytest.mark.usefixtures("tables")
def test_what_needs_attention(server: MeetingServer, capsys: Capture) -> None:
    """By its reason, in the report as in the page; exit code 3 hides none of it."""
    server.lose_next_reply(path="/room/uploadWhiteboardFile")
    assert call(capsys, "queue", "defer", "m.csv", "--batch", "term").code == 0
    with _working("--quiet", "--concurrency", "1") as worker:
        assert call(capsys, "queue", "report", "term", "--wait", "-q").code == 3
        done = call(capsys, "queue", "report", "term", "--report", "/dev/full")
        assert (done.code, "0 of 1 document delivered; 1 may or may not" in done.out) == (3, True)
        assert "/dev/full cannot be written: No space left" in done.err
        Path("n.csv").write_text(
            "room_id,document\nnope,a.pdf\nnope,b.pdf\nroom02,b.pdf\nroom03,c.pdf\n"
        )
        Path("c.pdf").write_bytes(b"\x7fELF" + bytes(1000))
        assert call(capsys, "queue", "defer", "n.csv", "--batch", "term").code == 0
        # Whoever tries again at 75 would not look at a document that may have arrived.
        assert call(capsys, "queue", "report", "term").code == 3
        done = call(capsys, "queue", "report", "term", "--wait", "--report", "r.html")
    sums, traffic, *attention = done.out.splitlines()
    assert done.code == 3
    found = re.findall(r"(accepted|refused|unknown): .*'(\w\.pdf)'", done.err)
    assert sorted(found) == [
        ("refused", "a.pdf"), ("refused", "b.pdf"), ("refused", "c.pdf"), ("unknown", "a.pdf")
    ]  # fmt: skip
    assert sums == (
        "term: 1 of 5 documents delivered; 1 may or may not have arrived, "
        "2 without an active room, 1 refused."
    )
    assert "sent in" in traffic
    kinds = [line.partition(" (")[0] for line in attention]
    assert kinds[0].startswith("may or may not have arrived: 1 document for room room01: Upload")
    assert kinds[1] == (
        "without an active room: 2 documents for room nope: Room not found: the room does not exist"
    )
    assert kinds[2].startswith("refused: 1 document for room room03: ")
    page = Path("r.html").read_text()
    assert "2 without an active room" in page
    assert page.count("`meeting-async queue retry term` queues again") == 1
    assert server.url in page
    assert worker[0].out == ""
    assert worker[0].err.count("refused: ") == 3
    assert worker[0].err.count("unknown: 'a") == 1
    for extra, count in ([], 3), (["--resend"], 1):
        told = call(capsys, "queue", "retry", "term", *extra).out
        assert told == f"batch 'term': {count} queued again\n"


@pytest.mark.usefixtures("tables")
def test_an_operator_looks_and_cancels_and_retries(server: MeetingServer, capsys: Capture) -> None:
    """Three commands, for people and for programs; a room limits them."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nroom01,b.pdf\nroom02,c.pdf\n")
    assert call(capsys, "queue", "defer", "m.csv", "--batch", "term").code == 0
    first, *more = call(capsys, "queue", "status").out.splitlines()
    assert first.startswith("3 waiting, 0 running, 0 scheduled; the oldest for ")
    assert first.endswith("; 0 workers")
    assert [line.rpartition(",")[0] or line for line in more] == [
        "3 wait for: their turn", "room01: 2 waiting, 0 running", "room02: 1 waiting, 0 running",
    ]  # fmt: skip
    assert not re.search(r" 0 m?s\b", f"{first.partition('for')[2]} {more}")
    (status,) = call(capsys, "queue", "status", "term", "--json").objects
    assert (status["type"], status["waiting"], len(status["rooms"])) == ("status", 3, 2)
    assert (status["oldest_seconds"] > 0, sum(status["causes"].values())) == (True, 3)
    done = call(capsys, "queue", "cancel", "term", "--room", "room01")
    assert (done.code, done.out) == (0, "batch 'term': 2 cancelled\n")
    assert call(capsys, "queue", "report", "term", "--report", "r.html").code == 75
    assert "`meeting-async queue retry term` queues again" in Path("r.html").read_text()
    told = call(capsys, "queue", "retry", "term", "--room", "room02").out
    assert told == "batch 'term': 0 queued again\n"
    (again,) = call(capsys, "queue", "retry", "term", "--json").objects
    assert again == {"type": "queued_again", "batch": "term", "documents": 2}
    server.rooms["room01"].processing_seconds = 1.0
    with _working():
        code, drawn = drawn_by([*PROGRAM, "queue", "report", "term", "--wait"])
    assert re.search("3 of 3 documents [^\r\n]*━", drawn)
    assert (code, "/s" in drawn) == (0, False)
    assert names_in(server, "room01") == ["a.pdf", "b.pdf"]
    with full_disk() as stdout:
        assert call(capsys, "queue", "report", "term", stdout=stdout).code == 1
    (status,) = call(capsys, "queue", "status", "--json").objects
    assert (status["oldest_seconds"], status["rooms"]) == (None, [])
    assert call(capsys, "queue", "status").out.splitlines()[0].endswith("0 scheduled; 0 workers")
    manifest(server, rooms=50, documents=1)
    call(capsys, "queue", "defer", "m.csv")
    told = call(capsys, "queue", "status", "m.csv").out
    left_out = re.findall(r"and ([0-9]+) more rooms \(--json has all\)", told)
    assert told.count("\nclass") + int(left_out[0]) == 50
    assert len(call(capsys, "queue", "status", "--json").objects[0]["rooms"]) == 50


@pytest.mark.nightly
@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_a_worker_says_what_it_has_cut_off(
    server: MeetingServer, capsys: Capture, quiet: list[str]
) -> None:
    """After its grace, in one line on stderr, also with --quiet: the document may have arrived."""
    server.processing_seconds = 60
    assert call(capsys, "queue", "defer", "m.csv", "--batch", "term").code == 0
    with _working("--grace", "0.2", *quiet) as worker:
        until(lambda: server.rooms["room01"].accepted)
    lines = [line for line in worker[0].err.splitlines() if "a.pdf" in line]
    assert (worker[0].code, worker[0].out, len(lines)) == (0, "", 1), worker[0].err
    assert "unknown" in lines[0]
    assert "room01" in lines[0]
    assert "batch" not in worker[0].err
    assert call(capsys, "queue", "report", "term").code == 3


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("streams", ["both", pytest.param("stdout", marks=pytest.mark.nightly)])
def test_a_worker_whose_output_nobody_reads(
    server: MeetingServer, capsys: Capture, streams: str
) -> None:
    """It uploads all the same, and a signal ends it, though the pipe is full."""
    manifest(server, rooms=8, documents=15)  # lines of some 6 KiB
    assert call(capsys, "queue", "defer", "m.csv", "--batch", "term").code == 0
    with Path("err").open("w") as err:
        stderr = subprocess.STDOUT if streams == "both" else err
        process = start("queue", "worker", stderr=stderr, pipesize=4096)
    with process:
        try:
            until(lambda: accepted(server) == 120)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
    assert call(capsys, "queue", "report", "term").code == 0


def test_a_check_needs_neither_server_nor_database(capsys: Capture) -> None:
    """No server, no database; and it says the same as for a batch."""
    done = call(capsys, "queue", "defer", "m.csv", "--check")
    assert (done.code, done.out) == (0, "m.csv: 1 document for 1 room, 22 bytes\n")
    (found,) = call(capsys, "queue", "defer", "m.csv", "--check", "--json").objects
    assert found == {"type": "check", "documents": 1, "rooms": 1, "size": 22, "left_out": 0}


@pytest.mark.usefixtures("server", "tables")
def test_a_folder_or_a_manifest_on_stdin(capsys: Capture, stdin: Callable[[bytes], None]) -> None:
    """A folder gives the batch its name; a manifest on stdin needs one."""
    Path("term", "room01").mkdir(parents=True)
    Path("a.pdf").rename("term/room01/a.pdf")
    assert "batch 'term': 1 new" in call(capsys, "queue", "defer", "term/").out
    Path("term/room01").joinpath("\udcff.pdf").write_bytes(b"%PDF-1.7")
    done = call(capsys, "queue", "defer", "term")
    assert (done.code, "not valid Unicode: rename" in done.err) == (2, True)
    Path("m.jsonl").write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"document": "no.pdf"}))
    done = call(capsys, "queue", "defer", "m.jsonl")
    assert (done.code, "m.jsonl:2: 'no.pdf' cannot be read" in done.err) == (2, True)
    (status,) = call(capsys, "queue", "status", "--json").objects
    assert status["waiting"] == 1  # a mistake lets nothing be queued
    assert "--batch is not set" in call(capsys, "queue", "defer", "-").err
    stdin(b"room_id,document\nroom02,b.pdf\n")
    done = call(capsys, "queue", "defer", "-", "--batch", "b")
    assert (done.code, "batch 'b': 1 new" in done.out) == (0, True)


@pytest.mark.usefixtures("server", "tables")
def test_the_same_manifest(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """From wherever it is named, its documents are deferred once; another folder has others."""
    for folder in ("one", "two"):
        Path(folder, "inside").mkdir(parents=True)
        Path(folder, "a.pdf").write_bytes(PDF)
        Path(folder, "term.csv").write_text("room_id,document\nroom01,a.pdf\n")
    Path("link").symlink_to(Path("one", "inside"))
    Path("whole").symlink_to(os.getcwd())
    told = []
    for folder, source in (
        (".", "one/term.csv"),
        ("one", "term.csv"),
        ("inside", "../term.csv"),
        ("../..", "link/../term.csv"),
        (".", "two/term.csv"),
        ("two", "./term.csv"),
        ("..", f"{os.getcwd()}/whole/one/term.csv"),
        ("whole/one", "term.csv"),
    ):
        monkeypatch.chdir(folder)
        (found,) = call(capsys, "queue", "defer", source, "--batch", "term", "--json").objects
        told.append(found["new"])
    assert told == [1, 0, 0, 0, 1, 0, 0, 0]


@pytest.mark.usefixtures("server", "no_tables")
def test_no_tables_and_no_batch(capsys: Capture) -> None:
    """One line with the command that makes them, or with its name; exit code 2, and no page."""
    for command in ("defer m.csv", "worker", "report m.csv"):
        done = call(capsys, "queue", *command.split())
        assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
        assert done.err.endswith("tables: run `meeting-async queue apply-schema`\n")
    assert call(capsys, "queue", "apply-schema").code == 0
    done = call(capsys, "queue", "report", "m.csv", "--report", "a.pdf")
    assert (done.code, "is your own file" in done.err, Path("a.pdf").read_bytes()) == (2, True, PDF)
    for command, *extra in (["report"], ["report", "--wait"], ["retry"], ["cancel"]):
        done = call(capsys, "queue", command, "no such", *extra)
        assert (done.code, done.out) == (2, "")
        assert "BATCH is not in the queue (got 'no such')" in done.err


@pytest.mark.parametrize(
    ("given", "told", "code"),
    [
        (f"postgresql://u:{PASSWORD}@127.0.0.1:1/x", "connection to server at", 1),
        (f"postgresql://u:{PASSWORD}@no-host.invalid/x", "failed to resolve host", 1),
        (f"postgres//u:{PASSWORD}@h/x", "--dsn is not the address", 2),
        (f"postgresql://u:{PASSWORD}/x@h/x", "%2F for /", 2),
        (f"postgresql://u:1/{PASSWORD}@h/x", "%2F for /", 2),
        (f"postgresql://u:x@{PASSWORD}@h/x", "%40 for @", 2),
        (f"postgresql://u:{PASSWORD}%zz@h/x", "%25 for %", 2),
        (f"postgresql://h:1,u:{PASSWORD}", "%2F for /", 2),  # only the port is wrong
        (f"postgresql://u:{PASSWORD}@127.0.0.1:1,localhost/x", "connection to server at", 1),
        (PASSWORD, "--dsn is not the address", 2),
        ("", "--dsn is not set", 2),
    ],
)
@pytest.mark.usefixtures("server")
def test_addresses_that_cannot_be_used(capsys: Capture, given: str, told: str, code: int) -> None:
    """One line, in which no part of the password is; the traceback has none, either."""
    for extra in ([], ["--debug"]):
        done = call(capsys, "queue", "worker", "--dsn", given, *extra)
        assert (done.code, done.out) == (code, "")
        assert told in done.err.splitlines()[-1]
        assert PASSWORD not in done.err
        assert extra or len(done.err.splitlines()) == 1


def test_the_address_is_missing_or_misplaced(server: MeetingServer, capsys: Capture) -> None:
    """Also an address in a wrong place may have a password."""
    assert f"{DSN} is not set: give postgresql://" in call(capsys, "queue", "worker").err
    done = call(capsys, "queue", "worker", f"postgresql://u:{PASSWORD}@h/x")
    assert (done.code, "postgresql://u:...@h/x" in done.err) == (2, True)
