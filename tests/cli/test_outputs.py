"""Output that cannot be written: nothing delivered is called failed, and the sums are told."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from select import PIPE_BUF
from typing import Any

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import (
    PDF,
    accepted,
    call,
    closed_pipe,
    finish,
    full_disk,
    manifest,
    names_in,
    shell,
    start,
    until,
)

Capture = pytest.CaptureFixture[str]

STREAMS: dict[str, Any] = {
    "full": full_disk, "pipe": closed_pipe, "closed": lambda: nullcontext(None)
}  # fmt: skip
"""What stdout may be: ``>/dev/full``, ``| true`` and ``>&-``."""


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("json", [[], ["--json"]])
def test_an_upload_that_was_delivered_is_not_called_failed(
    server: MeetingServer, capsys: Capture, stream: str, json: list[str]
) -> None:
    """A script that repeats what failed would show it to the class twice."""
    with STREAMS[stream]() as stdout:
        done = call(capsys, "upload", "room01", "a.pdf", *json, stdout=stdout)
    assert done.code == 0
    assert names_in(server, "room01") == ["a.pdf"]
    assert "a.pdf: accepted by room01" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("json", [[], ["--json"]])
def test_the_sums_of_a_batch_go_to_the_other_stream(
    server: MeetingServer, capsys: Capture, stream: str, json: list[str]
) -> None:
    """What is under way ends, the report is written, and the code says what became of the rest."""
    manifest(server, rooms=4, documents=10)
    ends_early = json and stream != "closed"  # nobody reads what is to come
    if ends_early:
        for room in server.rooms.values():  # all 40 would take 10 s
            room.processing_seconds = 0.5
    arguments = ("batch", "m.csv", "--concurrency", 2, "--report", "r.html", *json)
    with STREAMS[stream]() as stdout:
        done = call(capsys, *arguments, stdout=stdout)
    count = accepted(server)
    told = f"{count} of 40 documents delivered"
    assert told in done.err
    assert told in Path("r.html").read_text()
    assert (count < 40, done.code) == ((True, 141) if ends_early else (False, 0))
    assert "Traceback" not in done.err


def test_both_streams_lost(server: MeetingServer, capsys: Capture) -> None:
    """The report is all that can be told, and it is written."""
    manifest(server, rooms=4, documents=10)
    arguments = ("batch", "m.csv", "--json", "--report", "r.html")
    with full_disk() as stdout, full_disk() as stderr, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        done = call(capsys, *arguments, stdout=stdout)
    count = accepted(server)
    assert done.code == (0 if count == 40 else 141)
    assert f"{count} of 40 documents" in Path("r.html").read_text()


def test_stderr_lost(server: MeetingServer, capsys: Capture) -> None:
    """Results can be read, so everything is delivered."""
    manifest(server, rooms=2, documents=3)
    with full_disk() as stderr, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        done = call(capsys, "batch", "m.csv")
    assert (done.code, "6 of 6 documents" in done.out) == (0, True)


@pytest.mark.parametrize(
    "command", ["room room01", "room room01 --json", "--help", "batch m.csv --check"]
)
@pytest.mark.parametrize("stream", STREAMS)
def test_commands_that_only_print(
    server: MeetingServer, capsys: Capture, command: str, stream: str
) -> None:
    """A reader that goes away is no error; a full disk is, told in one line."""
    manifest(server, rooms=1, documents=1)
    server.rooms["room01"].participants = ["Ada"] * 100  # more than a stream gathers
    with STREAMS[stream]() as stdout:
        done = call(capsys, *command.split(), stdout=stdout)
    assert done.code == (1 if stream == "full" else 0)
    assert ("No space left" in done.err) == (stream == "full")
    assert "Traceback" not in done.err


def test_pipes_of_a_shell(server: MeetingServer) -> None:
    """The same with real processes, until they have ended: no traceback at their exit."""
    manifest(server, rooms=4, documents=20)
    done = shell("$M batch m.csv --json --concurrency 2 | head -1; exit ${PIPESTATUS[0]}")
    count = accepted(server)
    assert (done.code, f"{count} of 80 documents" in done.err) == (141, True)
    told = done.err
    done = shell("$M upload room01 a.pdf >/dev/full && $M upload room01 b.pdf >&-")
    assert (done.code, names_in(server, "room01")) == (0, ["a.pdf", "b.pdf"])
    for word in ("Traceback", "Exception", "BrokenPipe"):
        assert word not in told + done.err


@pytest.mark.nightly
def test_demo_and_head() -> None:
    """As somebody tries it: exit code 0, and nothing on stderr."""
    done = shell("$M demo | head -3; exit ${PIPESTATUS[0]}")
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 3)


def test_a_slow_reader_does_not_hold_up_uploads(server: MeetingServer) -> None:
    """A pipe that nobody reads for a while is full; documents are delivered all the same."""
    manifest(server, rooms=8, documents=8)  # some 25 KiB of objects
    process = start("batch", "m.csv", "--json", "--quiet", pipesize=PIPE_BUF)
    until(lambda: accepted(server) == 64)
    assert process.poll() is None
    done = finish(process)
    assert (done.code, len(done.objects)) == (0, 65)


def test_a_report_for_a_pipe(server: MeetingServer) -> None:
    """``/dev/stdout`` has no folder of its own."""
    manifest(server, rooms=1, documents=1)
    done = finish(start("batch", "m.csv", "--quiet", "--report", "/dev/stdout"))
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("<!DOCTYPE html>")


def test_a_report_that_cannot_be_written(server: MeetingServer, capsys: Capture) -> None:
    """It is told, and does not change the exit code, as everything was delivered."""
    manifest(server, rooms=1, documents=1)
    done = call(capsys, "batch", "m.csv", "--report", "/dev/full")
    assert done.code == 0
    assert "/dev/full cannot be written: No space left" in done.err


@pytest.mark.parametrize(
    "command",
    ["upload room01 NAME.pdf", "batch NAME.csv --json", "batch NAME", "batch NAME.csv --check"],
)
def test_names_of_files(
    server: MeetingServer, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """They may turn the direction of writing, or break lines, like those of an archive."""
    name = "we\u202eek\u2028\x1b[31m1"
    Path(f"{name}.pdf").write_bytes(PDF)
    Path(f"{name}.csv").write_text(f"room_id,document\nroom01,{name}.pdf\n")
    Path(name, "room01").mkdir(parents=True)
    Path(name, "room01", f"{name}.pdf").write_bytes(PDF)
    done = call(capsys, *(word.replace("NAME", name) for word in command.split()))
    assert (done.code, len(server.rooms["room01"].accepted)) == (0, "--check" not in command)
    assert all(line.isprintable() for line in f"{done.out}\n{done.err}".split("\n"))
