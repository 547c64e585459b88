"""``batch`` from its first upload to its exit code: real processes, a real server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from _cli import PDF, PROGRAM, SECONDS, heeding_ctrl_c, interrupt_when, run, until
from _terminal import Terminal, lines_of
from meeting_async import BatchReport, Document, UploadOutcome, errors
from meeting_async._jobs import Status
from meeting_async.cli import main
from meeting_async.cli._batch_words import Ending
from meeting_async.cli._manifest import Entry
from meeting_async.testing import MeetingServer

UPLOAD = "/room/uploadWhiteboardFile"

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module", autouse=True)
def _ctrl_c_works() -> Iterator[None]:
    """Heed Ctrl-C wherever the tests run."""
    with heeding_ctrl_c():
        yield


@pytest.fixture
def server() -> Iterator[MeetingServer]:
    """Serve in this process."""
    served = MeetingServer()
    with served.run():
        yield served


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, server: MeetingServer, tmp_path: Path) -> None:
    """Export what `serve` would tell to export, and nothing else of ours."""
    for name in [*os.environ]:
        if name.startswith("MEETING_") or name in {"FORCE_COLOR", "NO_COLOR"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("MEETING_BASE_URL", server.url)
    monkeypatch.setenv("MEETING_API_KEY", server.api_key)
    monkeypatch.setenv("MEETING_API_SECRET", server.api_secret)
    monkeypatch.chdir(tmp_path)


def make(server: MeetingServer | None, rooms: int, documents: int) -> int:
    """Make a folder with so many documents for each room, and the rooms; return their number."""
    for number in range(1, rooms + 1):
        room_id = f"room{number}"
        if server is not None:
            server.add_room(room_id)
        folder = Path("term", room_id)
        folder.mkdir(parents=True)
        for count in range(1, documents + 1):
            (folder / f"chapter {count}.pdf").write_bytes(PDF + str(number).encode())
    return rooms * documents


def uploads(server: MeetingServer) -> int:
    """Count the uploads that arrived, accepted or not."""
    return sum(request.path.endswith(UPLOAD) for request in server.requests)


def received(server: MeetingServer) -> Counter[tuple[str, str]]:
    """Count what each room accepted."""
    return Counter(
        (room_id, file.name) for room_id, room in server.rooms.items() for file in room.accepted
    )


def objects(shown: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return what ``--json`` printed: the outcomes and the summary."""
    *outcomes, last = map(json.loads, shown.splitlines())
    assert last.keys() == {"summary"}
    return outcomes, last["summary"]


def started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a batch in a process of its own."""
    return subprocess.Popen(
        [*PROGRAM, "batch", "term", *arguments],
        stderr=subprocess.PIPE,
        stdout=options.pop("stdout", subprocess.PIPE),
        text=True,
        **options,
    )


def test_help_imports_nothing_of_a_batch() -> None:
    """Who asks for help does not wait for the work."""
    code = (
        "import sys; from meeting_async.cli import main\n"
        "main(['--help']); main(['batch', '--help'])\n"
        "print('LOADED', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown, _, loaded = done.stdout.partition("LOADED ")
    assert "Put many documents into many rooms" in shown
    assert "--on-unknown" in shown
    ours = {name for name in loaded.split() if name.startswith("meeting_async.cli._")}
    assert ours == {
        f"meeting_async.cli._{name}" for name in ("app", "console", "extras", "outcomes")
    }


def later(path: str) -> None:
    """Let five minutes pass in a journal, so that no room is still held by what was sent."""
    with contextlib.closing(sqlite3.connect(path)) as journal, journal:
        journal.execute("UPDATE jobs SET sent_at = sent_at - 301")


# --- how batches end -----------------------------------------------------------------------------


def test_everything_accepted_exits_0(server: MeetingServer) -> None:
    """A table on stdout; each room in natural order; nothing more to say."""
    make(server, rooms=3, documents=11)
    done = run("batch", "term", "--concurrency", 2)
    assert done.returncode == 0
    title, _, accepted, sums = [line for line in done.stdout.splitlines() if line]
    assert title.split() == ["outcome", "documents", "size"]
    assert accepted.split() == ["accepted", "33", "759", "bytes"]
    assert re.fullmatch(r"759 bytes sent in [\d.]+ m?s(, \d+ bytes/s)?", sums)
    assert re.fullmatch(
        r"meeting-async: term: 33 documents for 3 rooms, 759 bytes, checked in [\d.]+ s\n",
        done.stderr,
    )
    names = [f"chapter {number}.pdf" for number in range(1, 12)]
    assert [file.name for file in server.rooms["room2"].received] == names


def test_json_has_an_object_for_each_document(server: MeetingServer, capsys: Captured) -> None:
    """In the order in which they end, and the sums in the end."""
    server.add_room("r")
    Path("a.pdf").write_bytes(PDF)
    link = server.host_file("b.pdf", PDF)
    rows = [f"r;a.pdf;Ünit.pdf;k1\nr;{link}?secret=1;;\ngone;a.pdf;;"]
    Path("m.csv").write_text("\n".join(["room_id;document;filename;key", *rows]), "utf-8-sig")
    assert main(["batch", "m.csv", "--json"]) == 1
    shown = capsys.readouterr()
    outcomes, summary = objects(shown.out)
    by_place = {outcome.pop("place"): outcome for outcome in outcomes}
    first = by_place["m.csv:2"]
    assert first.pop("seconds") > 0
    assert first.pop("started") >= 0
    assert first.pop("waited") >= 0
    assert first == {
        "room_id": "r", "document": "Ünit.pdf", "outcome": "accepted", "size": len(PDF),
        "attempts": 1, "msg": "file uploaded successfully", "error": None, "key": "k1",
        "bytes_sent": len(PDF), "bytes_resent": 0,
    }  # fmt: skip
    assert by_place["m.csv:3"]["document"] == f"{link}?…"
    assert by_place["m.csv:3"]["size"] is None
    assert by_place["m.csv:4"]["error"]["type"] == "RoomNotFound"
    assert (summary["documents"], summary["accepted"], summary["refused"]) == (3, 2, 1)
    assert summary["exit_code"] == 1
    assert "m.csv:4: error: room/" in shown.err
    assert "secret" not in shown.out + shown.err


def test_a_room_that_is_not_there_disturbs_no_other(
    server: MeetingServer, capsys: Captured
) -> None:
    """One line for it, however many documents it was to get."""
    make(server, rooms=3, documents=5)
    server.rooms["room2"].active = False
    assert main(["batch", "term"]) == 1
    shown = capsys.readouterr()
    table, _, rest = shown.out.partition("\n\n")
    rows = {line.split()[0]: line.split()[1] for line in table.splitlines()[2:]}
    assert (rows["accepted"], rows["refused"], rows["skipped"]) == ("10", "1", "4")
    assert rest.splitlines()[1].startswith("room2: 5 documents not sent: the room is not active")
    assert len(rest.splitlines()) == 2
    assert shown.err.count("error: ") == 1
    assert "hint: run again, this would send everything again" in shown.err
    assert "hint: --wait-active SECONDS waits for rooms" in shown.err
    assert {room_id for room_id, _ in received(server)} == {"room1", "room3"}


def test_a_room_that_becomes_active_is_waited_for(server: MeetingServer) -> None:
    """With ``--wait-active``."""
    make(server, rooms=2, documents=2)
    room = server.rooms["room2"]
    room.active = False

    def open_room() -> None:
        until(lambda: any(request.room_id == "room2" for request in server.requests))
        room.active = True

    threading.Thread(target=open_room, daemon=True).start()
    assert main(["batch", "term", "--wait-active", "30"]) == 0
    assert len(room.received) == 2


def test_unknown_outcomes_exit_3(server: MeetingServer, capsys: Captured) -> None:
    """They come before refusals, and tell where to look."""
    make(server, rooms=2, documents=1)
    server.rooms["room1"].active = False
    server.reply_next(504, body=b"<html>", path=UPLOAD)
    assert main(["batch", "term", "--concurrency=1"]) == 3
    shown = capsys.readouterr()
    assert "unknown: term/room2/chapter 1.pdf: 'chapter 1.pdf' was sent to room" in shown.out
    assert "hint: 1 document may or may not be in the room: look there" in shown.err


def test_busy_rooms_exit_75(server: MeetingServer, capsys: Captured) -> None:
    """If nothing else is wrong; ``--max-wait`` is for each document."""
    make(server, rooms=2, documents=1)
    server.rooms["room1"].lock()
    assert main(["batch", "term", "--max-wait=0"]) == 75
    assert "failed: term/room1/chapter 1.pdf: room 'room1' is busy" in capsys.readouterr().out


def test_a_wrong_secret_is_found_out_once(
    server: MeetingServer, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a small call: no document leaves."""
    make(server, rooms=20, documents=2)
    monkeypatch.setenv("MEETING_API_SECRET", "wrong")
    assert main(["batch", "term"]) == 1
    assert (uploads(server), len(server.requests)) == (0, 1)
    shown = capsys.readouterr()
    assert "hint: The API secret differs" in shown.err
    assert re.search(r"skipped +39 ", shown.out)


def test_a_manifest_with_a_mistake_sends_nothing(server: MeetingServer, capsys: Captured) -> None:
    """Not even what stands before it."""
    make(server, rooms=2, documents=1)
    Path("term/room2/empty.pdf").touch()
    assert main(["batch", "term", "--journal", "term.db"]) == 2
    assert len(server.requests) == 0
    assert not Path("term.db").exists()
    assert "1 mistake in term: nothing was sent" in capsys.readouterr().err


def test_the_same_command_goes_on_with_a_journal(server: MeetingServer, capsys: Captured) -> None:
    """What was accepted is not sent again; what was refused is tried again."""
    make(server, rooms=3, documents=2)
    server.rooms["room3"].active = False
    command = ["batch", "term", "--journal", "term/term.db"]
    assert main(command) == 1
    assert "run the same command again: term/term.db knows" in capsys.readouterr().err
    server.rooms["room3"].active = True
    assert main(command) == 0
    shown = capsys.readouterr()
    assert re.search(r"accepted +2 ", shown.out)
    assert re.search(r"accepted before +4 ", shown.out)
    assert "hint" not in shown.err
    assert main([*command, "--json"]) == 0
    outcomes, summary = objects(capsys.readouterr().out)
    assert {(outcome["outcome"], outcome["error"]) for outcome in outcomes} == {("skipped", None)}
    assert summary["resumed"] == 6
    assert {*received(server).values()} == {1}


def test_a_report_is_a_page(server: MeetingServer, capsys: Captured) -> None:
    """However the batch ends; it may lie in the folder itself. A full disk is told."""
    make(server, rooms=2, documents=3)
    server.rooms["room2"].active = False
    for _ in range(2):
        assert main(["batch", "term", "--report", "term/page.html"]) == 1
    html = Path("term/page.html").read_text("utf-8")
    assert html.startswith("<!DOCTYPE html>")
    assert html.rstrip().endswith("</html>")
    assert server.url in html
    assert html.count("room2") >= 3
    capsys.readouterr()
    assert main(["batch", "term", "--report", "/dev/full"]) == 2
    assert "term/page.html: lies beside the rooms' folders" in capsys.readouterr().err
    Path("term/page.html").unlink()
    assert main(["batch", "term", "--report", "/dev/full"]) == 1
    assert "error: /dev/full cannot be written: No space left" in capsys.readouterr().err


def test_a_journal_in_use_is_refused(server: MeetingServer, capsys: Captured) -> None:
    """With exit code 2 and one line, and the first batch goes on."""
    make(server, rooms=1, documents=1)
    server.rooms["room1"].lock()
    first = started("--journal", "term.db")
    with first:
        until(lambda: uploads(server))
        # Here: while another process started, the first would come to wait for longer and longer.
        code = main(["batch", "term", "--journal", "term.db"])
        server.rooms["room1"].unlock()
        assert first.wait(SECONDS) == 0
    assert code == 2
    complaints = capsys.readouterr().err
    assert "term.db" in complaints.splitlines()[-1]
    assert "Traceback" not in complaints


def test_a_journal_that_is_none_is_refused(server: MeetingServer, capsys: Captured) -> None:
    """Such as the manifest itself, by a slip of the hand."""
    make(server, rooms=1, documents=1)
    Path("notes.txt").write_text("x" * 5000)
    assert main(["batch", "term", "--journal", "notes.txt"]) == 2
    assert "notes.txt" in capsys.readouterr().err
    assert len(server.requests) == 0


# --- how batches are interrupted -----------------------------------------------------------------


def interrupted(
    process: subprocess.Popen[str], signals: Sequence[int]
) -> tuple[int, str, list[str]]:
    """Send signals, each when the one before was answered; return code, output and complaints."""
    assert process.stderr
    complaints: list[str] = []
    for number in signals:
        process.send_signal(number)
        while not complaints or "Ctrl-C again" not in complaints[-1]:
            line = process.stderr.readline()
            assert line
            complaints.append(line)
    out, rest = process.communicate(timeout=SECONDS)
    return process.returncode, out, [*complaints, *rest.splitlines(keepends=True)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_ctrl_c_lets_uploads_end(server: MeetingServer, number: int) -> None:
    """Nothing new is begun, nothing is unknown, and the same command goes on."""
    total = make(server, rooms=4, documents=5)
    for room in server.rooms.values():
        room.processing_seconds = 0.5
    process = started("--journal", "term.db", "--concurrency=2", "--json")
    until(lambda: len(received(server)) >= 4)
    code, out, complaints = interrupted(process, [number])
    outcomes, summary = objects(out)
    counts = Counter(outcome["outcome"] for outcome in outcomes)
    assert code == 130
    assert counts.keys() == {"accepted", "skipped"}
    assert counts.total() == total
    assert counts["accepted"] == received(server).total() < total
    assert summary["exit_code"] == 130
    assert "meeting-async: finishing 2 uploads; Ctrl-C again to cut that off\n" in complaints
    left = total - counts["accepted"]
    assert complaints[-2] == (
        f"meeting-async: interrupted: of {total} documents {counts['accepted']} reached the room, "
        f"{left} did not\n"
    )
    assert "run the same command again: term.db knows" in complaints[-1]
    for room in server.rooms.values():
        room.processing_seconds = 0.0
    assert main(["batch", "term", "--journal", "term.db"]) == 0
    assert {*received(server).values()} == {1}
    assert received(server).total() == total


def test_the_second_ctrl_c_cuts_uploads_off(server: MeetingServer) -> None:
    """What may have arrived is called unknown, and told with its place."""
    make(server, rooms=3, documents=2)
    server.rooms["room1"].processing_seconds = 60.0
    server.rooms["room2"].processing_seconds = 60.0
    server.rooms["room3"].lock()
    process = started("--json")
    until(lambda: uploads(server) >= 3)
    until(lambda: any(request.status == 409 for request in server.requests))
    time.sleep(0.5)  # until the client has read it, too
    code, out, complaints = interrupted(process, [signal.SIGINT, signal.SIGINT])
    outcomes, summary = objects(out)
    assert code == 130
    found = {(outcome["room_id"], outcome["outcome"]) for outcome in outcomes}
    assert found == {
        ("room1", "unknown"), ("room2", "unknown"), ("room1", "skipped"), ("room2", "skipped"),
        ("room3", "failed"), ("room3", "skipped"),
    }  # fmt: skip
    assert (len(outcomes), summary["unknown"]) == (6, 2)
    told = "".join(complaints)
    assert "finishing 2 uploads, no longer waiting for 1 room; Ctrl-C again" in told
    assert "term/room1/chapter 1.pdf: error: 'chapter 1.pdf' was sent to room 'room1'" in told
    assert "interrupted: of 6 documents 0 reached the room, 2 may have, 4 did not" in told
    assert "2 documents may or may not be in the room" in told
    assert "with --journal FILE it would go on" in told
    assert "Traceback" not in told


def test_ignored_signals_stay_ignored(server: MeetingServer) -> None:
    """A batch in the background of a script is not ended by a Ctrl-C for the foreground."""
    make(server, rooms=1, documents=2)
    server.rooms["room1"].lock()
    process = started(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    with process:
        until(lambda: uploads(server))
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        server.rooms["room1"].unlock()
        assert process.wait(SECONDS) == 0
    assert received(server).total() == 2


def test_where_signals_cannot_be_received(
    server: MeetingServer, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows: Ctrl-C cuts uploads off at once, and what is known of them is told."""

    def unable(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("anyio.open_signal_receiver", unable)
    make(server, rooms=1, documents=2)
    server.rooms["room1"].processing_seconds = 60.0
    interrupt_when(lambda: server.rooms["room1"].accepted)
    assert main(["batch", "term", "--journal", "term.db"]) == 130
    shown = capsys.readouterr()
    assert re.search(r"unknown +1 ", shown.out)
    assert "interrupted: of 2 documents 0 reached the room, 1 may have, 1 did not" in shown.err


def test_a_bug_is_one_line(
    server: MeetingServer, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a group of exceptions."""

    def broken(*_: object) -> None:
        raise RuntimeError("this should not happen")

    monkeypatch.setattr("meeting_async.cli._batch_teller.Teller.tell", broken)
    make(server, rooms=1, documents=1)
    assert main(["batch", "term"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("meeting-async: error: RuntimeError: this should not happen")


def test_killed_and_run_again(server: MeetingServer, capsys: Captured) -> None:
    """Nothing is lost, and nothing is twice: what may have arrived is reported."""
    total = make(server, rooms=4, documents=5)
    for room in server.rooms.values():
        room.processing_seconds = 0.2
    process = started("--journal", "term.db")
    until(lambda: len(received(server)) >= 6)
    process.kill()
    process.communicate()
    later("term.db")
    main(["batch", "term", "--journal", "term.db", "--json"])
    outcomes, summary = objects(capsys.readouterr().out)
    unknown = {
        (outcome["room_id"], outcome["document"])
        for outcome in outcomes
        if outcome["outcome"] == "unknown"
    }
    there = received(server)
    assert {*there.values()} == {1}
    assert len(unknown) <= 4
    assert len({*there} | unknown) == total
    assert (summary["accepted"], summary["failed"]) == (
        total - len(unknown) - summary["resumed"],
        0,
    )
    assert summary["resumed"] >= 2


def test_a_disk_that_is_full(server: MeetingServer, capsys: Captured) -> None:
    """Nothing is sent that the journal could not know of; with space the same command goes on."""
    total = make(server, rooms=10, documents=10)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))

    process = started("--journal", "term.db", preexec_fn=limit)
    _, complaints = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "meeting-async: error: the journal 'term.db' cannot be written" in complaints
    assert received(server).total() < total
    later("term.db")
    main(["batch", "term", "--journal", "term.db", "--json"])
    outcomes, _ = objects(capsys.readouterr().out)
    unknown = {
        (outcome["room_id"], outcome["document"])
        for outcome in outcomes
        if outcome["outcome"] == "unknown"
    }
    there = received(server)
    assert {*there.values()} == {1}
    assert len({*there} | unknown) == total


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_nobody_reading_cuts_nothing_off(server: MeetingServer, stream: str) -> None:
    """As with ``| head -1``: nothing new is begun, what is in flight ends, exit code 141."""
    make(server, rooms=2, documents=4)
    server.rooms["room1"].processing_seconds = 0.3
    server.rooms["room2"].active = stream == "stdout"
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [*PROGRAM, "batch", "term", "--json", "--concurrency=1"],
        stdout=writer if stream == "stdout" else subprocess.DEVNULL,
        stderr=writer if stream == "stderr" else subprocess.DEVNULL,
    )
    os.close(writer)
    if stream == "stderr":
        line = b""
        while not line.endswith(b"\n"):  # the measures
            line += os.read(reader, 1)
    os.close(reader)
    assert process.wait(SECONDS) == 141
    assert 0 < received(server).total() < 8
    for room in server.rooms.values():
        assert len(room.received) == len(room.accepted)


# --- on a terminal -------------------------------------------------------------------------------


def test_the_picture_gives_way_to_the_table(server: MeetingServer) -> None:
    """On a real terminal: a bar and the rooms while it lasts, and then only the result."""
    make(server, rooms=2, documents=3)
    server.rooms["room1"].lock()

    def unlock() -> None:
        until(lambda: uploads(server) >= 4)
        time.sleep(0.4)  # a few frames
        server.rooms["room1"].unlock()

    threading.Thread(target=unlock, daemon=True).start()
    terminal = Terminal()
    done = subprocess.run(
        [*PROGRAM, "batch", "term"],
        stdout=terminal.stream,
        stderr=terminal.stream,
        env={**os.environ, "TERM": "xterm-256color"},
        timeout=SECONDS,
        check=False,
    )
    shown = terminal.close()
    assert done.returncode == 0
    assert re.search(r"3 of 6 documents[^\r\n]*\u2501[^\r\n]* 50 %", shown)
    assert re.search(r"room1.*chapter 1\.pdf.*waiting for the lock \(attempt \d, next in", shown)
    picture, _, result = shown.rpartition("\x1b[2K")
    assert "time left" in picture
    assert [line.split() for line in lines_of(result)][:3:2] == [
        ["outcome", "documents", "size"], ["accepted", "6", "138", "bytes"]
    ]  # fmt: skip


def test_objects_on_a_terminal_are_not_drawn_over(server: MeetingServer) -> None:
    """Then progress is told in lines."""
    make(server, rooms=1, documents=2)
    terminal = Terminal()
    done = subprocess.run(
        [*PROGRAM, "batch", "term", "--json"],
        stdout=terminal.stream,
        stderr=terminal.stream,
        env={**os.environ, "TERM": "xterm-256color"},
        timeout=SECONDS,
        check=False,
    )
    shown = terminal.close()
    assert done.returncode == 0
    assert "\x1b[2K" not in shown
    assert len([line for line in shown.splitlines() if line.startswith("{")]) == 3


# --- what is said in the end ---------------------------------------------------------------------


def ending(
    *outcomes: UploadOutcome, journal: str | None = None, is_patient: bool = False
) -> Ending:
    """Make the end of a batch of which one document was not even read."""
    report, document = BatchReport(seconds=2.0), Document.from_bytes(PDF, "a.pdf")
    for outcome in outcomes:
        report.add(outcome)
    entries = [
        Entry(line, f"m:{line}", "room", document, "a.pdf", size=10)
        for line in range(len(outcomes) + 1)
    ]
    return Ending(report, entries, journal, is_patient, report.outcomes)


def outcome(index: int, status: Status, error: Exception | None = None) -> UploadOutcome:
    """Make an outcome."""
    return UploadOutcome(
        index=index, room_id=f"room{index}", document="a.pdf", status=status, error=error
    )


FACTS = ("room/uploadWhiteboardFile", "room", 400, None, "it is not active")


def test_long_lists_are_cut_and_counted() -> None:
    """The worst come first, whatever their order in the input."""
    failed = [outcome(n, "failed", errors.DocumentChanged(f"{n}", "it is gone")) for n in range(60)]
    absent = [outcome(60 + n, "refused", errors.RoomNotActive(*FACTS)) for n in range(55)]
    lost = errors.UploadOutcomeUnknown("room", "a.pdf", 1, 1, "reset", 300.0)
    told = list(ending(*failed, *absent, outcome(115, "unknown", lost)).attention())
    assert told[0].startswith("unknown: m:115: 'a.pdf' was sent to room")
    assert told[49].startswith("failed: m:48: '48' changed")
    assert told[50] == "… and 11 more"
    assert told[51] == "room60: 1 document not sent: it is not active (HTTP 400)"
    assert told[-1] == "… and 5 more rooms"
    assert len(told) == 102


def test_what_ended_the_batch_and_what_to_do_next() -> None:
    """In the order in which it matters."""
    told = ending(outcome(0, "accepted"), outcome(1, "unknown"), journal="t.db")
    told.report.stopped_by = errors.JournalError("t.db", "disk full")
    first, second, third, fourth = told.advice(is_interrupted=True)
    assert first.startswith("error: ")
    assert "disk full" in first
    assert second == "interrupted: of 3 documents 1 reached the room, 1 may have, 1 did not"
    assert third.startswith("hint: 1 document may or may not be in the room: look there")
    assert fourth.startswith("hint: to go on, run the same command again: t.db knows")
    absent = outcome(0, "refused", errors.RoomNotFound(*FACTS))
    assert len([*ending(absent).advice(is_interrupted=False)]) == 2
    assert len([*ending(absent, is_patient=True).advice(is_interrupted=False)]) == 1


def test_the_sums_in_a_sentence() -> None:
    """Only what there is to say."""
    told = ending()
    assert told.sentence() == "0 bytes sent in 2.0 s"
    told.report.bytes_sent, told.report.bytes_resent, told.report.conflicts = 4096, 1024, 1
    assert told.sentence() == (
        "4.0 KiB sent in 2.0 s, 2.0 KiB/s, 1.0 KiB of it again, a room was locked once"
    )
