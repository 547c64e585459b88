"""Ctrl-C and SIGTERM: the first finishes, the second cuts, and nothing is left untold."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from select import PIPE_BUF

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import (
    Result,
    accepted,
    call,
    finish,
    interrupt_when,
    manifest,
    names_in,
    start,
    until,
)

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_finishes(
    server: MeetingServer, capsys: Capture, number: signal.Signals
) -> None:
    """The upload that is under way is delivered and told; the next one is not begun."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if number is not signal.SIGINT:
        signal.signal(number, signal.SIG_DFL)  # `nohup` ignores SIGHUP, and so does the command
    server.rooms["room01"].processing_seconds = 1.0
    interrupt_when(lambda: accepted(server), number)
    done = call(capsys, "upload", "room01", "a.pdf", "b.pdf", "--json")
    assert done.code == 130
    outcomes = {found["document"]: found["outcome"] for found in done.objects[:-1]}
    assert outcomes == {"a.pdf": "accepted", "b.pdf": "skipped"}
    assert done.objects[-1]["interrupted"] is True
    assert names_in(server, "room01") == ["a.pdf"]


def test_a_signal_that_comes_too_late_changes_nothing(
    server: MeetingServer, capsys: Capture
) -> None:
    """Everything was delivered, so the exit code is 0."""
    server.rooms["room01"].processing_seconds = 0.5
    interrupt_when(lambda: accepted(server), signal.SIGTERM)
    done = call(capsys, "upload", "room01", "a.pdf")
    assert (done.code, done.out.startswith("a.pdf: accepted")) == (0, True)


def test_what_only_waits_is_not_called_failed(server: MeetingServer, capsys: Capture) -> None:
    """It is left to send: one number in the result, and no line for each."""
    manifest(server, rooms=4, documents=1)
    for room in server.rooms.values():
        room.lock(300)
    interrupt_when(lambda: len(server.requests) >= 8, signal.SIGTERM)
    done = call(capsys, "batch", "m.csv")
    assert (done.code, "4 left to send" in done.out) == (130, True)
    assert "failed" not in done.out + done.err


@pytest.mark.parametrize("command", ["upload", "batch"])
def test_second_signal_cuts(server: MeetingServer, capsys: Capture, command: str) -> None:
    """What may have arrived is told as unknown, and the exit code is 3, not 130."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    manifest(server, rooms=3, documents=2)
    for room in server.rooms.values():
        room.processing_seconds = 60
    arguments = {
        "upload": ("room01", "a.pdf", "b.pdf"),
        "batch": ("m.csv", "--report", "r.html"),
    }[command]
    interrupt_when(lambda: accepted(server), signal.SIGTERM, signal.SIGINT)
    done = call(capsys, command, *arguments)
    assert done.code == 3
    assert "is unknown" in done.err
    assert "may or may not have arrived" in done.out
    assert command == "upload" or "Interrupted: " in Path("r.html").read_text()


def _bombard(server: MeetingServer, number: signal.Signals) -> None:
    """Send signals from the first document to the end of the process."""
    with Path("out").open("w") as out:  # not a pipe, which would be full while nobody reads it
        process = start("batch", "m.csv", "--report", "r.html", "--json", stdout=out)
    until(lambda: accepted(server) or process.poll() is not None)
    while process.poll() is None:
        process.send_signal(number)
        time.sleep(0.02)
    done = finish(process)
    _check_account(server, Result(done.code, Path("out").read_text(), done.err))


def _check_account(server: MeetingServer, done: Result) -> None:
    """Outcomes, summary and page are all out, and agree with what the server accepted."""
    summary = done.objects[-1]
    assert (summary["type"], summary["exit_code"]) == ("summary", done.code)
    assert len(done.objects) == 1 + summary["documents"]
    told = [found["outcome"] for found in done.objects[:-1]]
    assert told.count("accepted") <= accepted(server)
    assert told.count("accepted") + told.count("unknown") >= accepted(server)
    assert done.code == (3 if "unknown" in told else 130)
    assert Path("r.html").read_text().endswith("</html>\n")
    assert "Traceback" not in done.err


def test_repeated_signals_lose_nothing(server: MeetingServer) -> None:
    """Whenever they come."""
    manifest(server, rooms=8, documents=6)
    for room in server.rooms.values():
        room.processing_seconds = 0.3
    _bombard(server, signal.SIGINT)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.2, 0.3, 0.4, 0.5] * 4)
def test_repeated_signals_lose_nothing_24_times(server: MeetingServer, seconds: float) -> None:
    """As above, at other moments."""
    manifest(server, rooms=40, documents=6)
    for room in server.rooms.values():
        room.processing_seconds = seconds
    _bombard(server, signal.SIGTERM if seconds > 0.2 else signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_before_anything_is_sent(server: MeetingServer, number: signal.Signals) -> None:
    """A command that waits for its manifest ends at once; one line says that nothing was sent."""
    process = start("batch", "-", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("room_id,")
    process.stdin.flush()
    stdin = process.stdin.fileno()
    until(lambda: unread(stdin) == 0)  # it is reading
    process.send_signal(number)
    done = finish(process)
    assert (done.code, done.err) == (130, "meeting-async: interrupted: nothing was sent\n")
    assert not server.requests


def unread(pipe: int) -> int:
    """Count the bytes in a pipe that nobody has read yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.parametrize(
    ("streams", "seconds", "number"),
    [
        ("stdout", 60, signal.SIGINT), ("stdout", 0, signal.SIGTERM),
        ("both", 60, signal.SIGTERM), ("both", 0, signal.SIGINT),
    ],
)  # fmt: skip
def test_the_second_signal_ends_it_while_nobody_reads(
    server: MeetingServer, streams: str, seconds: float, number: signal.Signals
) -> None:
    """Within 2 s, though the pipe is full, amid the batch and behind it (findings 5.4)."""
    manifest(server, rooms=8, documents=8)  # some 25 KiB of objects
    server.rooms["class0"].processing_seconds = seconds
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4 * PIPE_BUF)
    command = ("batch", "m.csv", "--json", "--report", "r.html")
    with Path("err").open("w") as err:
        process = start(*command, stdout=writing, stderr=writing if streams == "both" else err)
    os.close(writing)
    until(lambda: accepted(server) == (57 if seconds else 64))
    until(lambda: unread(reading) > 3 * PIPE_BUF)
    process.send_signal(number)
    time.sleep(0.5)  # else they may count as one
    process.send_signal(number)
    try:
        assert process.wait(timeout=10) == (3 if seconds else 0)
    finally:
        process.kill()
        process.wait()
        os.close(reading)
    told = f"{56 if seconds else 64} of 64 documents delivered"
    assert told in Path("r.html").read_text()
    assert streams == "both" or told in Path("err").read_text()


@pytest.mark.usefixtures("server")
def test_waiting_for_stdin_ends() -> None:
    """Nobody types the document: a signal ends the command, and the exit is clean."""
    reading, writing = os.pipe()
    process = start("upload", "room01", "-", "--filename", "x.pdf", stdin=reading)
    os.close(reading)
    os.write(writing, b"%PDF")
    until(lambda: not unread(writing))
    process.send_signal(signal.SIGINT)
    done = finish(process)
    os.close(writing)
    assert (done.code, "1 left to send" in done.out) == (130, True)
    assert "Traceback" not in done.err
    assert "Fatal" not in done.err


def test_ignored_signals_stay_ignored(server: MeetingServer, capsys: Capture) -> None:
    """Ctrl-C is not for what a script started in the background."""
    server.rooms["room01"].processing_seconds = 0.3
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupt_when(lambda: accepted(server), signal.SIGINT)
        assert call(capsys, "upload", "room01", "a.pdf", "b.pdf").code == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert names_in(server, "room01") == ["a.pdf", "b.pdf"]


@pytest.mark.nightly
def test_signals_during_the_demo_end_it() -> None:
    """There is nothing to finish: exit code 130 and no traceback."""
    process = start("demo")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert (done.code, done.err) == (130, "meeting-async: interrupted\n")
