"""What disturbs a command: signals, and output that cannot be written.

The first signal finishes, the second cuts. Nothing delivered is called failed, and the sums are
told.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TextIO

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import (
    HANGUP,
    Result,
    accepted,
    call,
    finish,
    full_disk,
    interrupt,
    manifest,
    names_in,
    run,
    shell,
    start,
    until,
)
from support.documents import PDF, PNG
from support.ports import free_port
from support.systems import IS_WINDOWS, is_wine

Capture = pytest.CaptureFixture[str]

PIPE_BUF = 4096
"""Linux's: the smallest pipe."""


def interrupt_when(condition: Callable[[], object], *numbers: int) -> threading.Thread:
    """Send this process signals once something has come true, with time to notice each."""

    def watch() -> None:
        until(condition)
        for number in numbers:
            if IS_WINDOWS:  # there `kill` ends the process, whatever the signal
                signal.raise_signal(number)
            else:
                os.kill(os.getpid(), number)
            time.sleep(0.3)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def closed_pipe() -> Iterator[TextIO]:
    """A stream that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as file:
        yield file
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)


def unread(pipe: IO[str] | int | None) -> int:
    """Count the bytes in a pipe that nobody has read yet; on Windows, ask the end that reads."""
    assert pipe is not None
    if sys.platform == "win32":
        import _winapi
        import msvcrt

        number = pipe if isinstance(pipe, int) else pipe.fileno()
        return _winapi.PeekNamedPipe(msvcrt.get_osfhandle(number), 0)[0]
    import fcntl
    import termios

    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_documents_that_wait_at_a_signal_are_left_to_send(
    server: MeetingServer, capsys: Capture
) -> None:
    """It is left to send: one number in the result, and no line for each."""
    manifest(server, rooms=4, documents=1)
    for room in server.rooms.values():
        room.lock(300)
    interrupt_when(lambda: len(server.requests) >= 8, signal.SIGTERM)
    done = call(capsys, "batch", "m.csv")
    assert (done.code, "4 left to send" in done.out) == (130, True)
    assert "failed" not in done.out + done.err


def test_a_second_signal_cuts_uploads_off(server: MeetingServer, capsys: Capture) -> None:
    """What may have arrived is told as unknown, and the exit code is 3, not 130."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(HANGUP, signal.SIG_DFL)  # `nohup` ignores it, and so does the command
    manifest(server, rooms=3, documents=2)
    for room in server.rooms.values():
        room.processing_seconds = 60
    interrupt_when(lambda: accepted(server), HANGUP, signal.SIGINT)
    done = call(capsys, "batch", "m.csv", "--report", "r.html")
    assert done.code == 3
    assert "is unknown" in done.err
    assert "may or may not have arrived" in done.out
    assert "Interrupted: " in Path("r.html").read_text()


def without_noise(text: str) -> str:
    """Return what a program wrote to stderr, without what only Wine says of such a byte."""
    noise = r"Exception ignored when trying to send to the signal wakeup fd:\n(.*\n)*?.*Error: .*\n"
    return re.sub(noise, "", text) if sys.platform == "win32" and is_wine() else text


def _check_account(server: MeetingServer, done: Result) -> None:
    """Outcomes, summary and page are all out, and agree with what the server accepted."""
    summary = done.objects[-1]
    assert (summary["type"], summary["exit_code"]) == ("summary", done.code)
    assert summary["interrupted"] is True
    assert len(done.objects) == 1 + summary["documents"]
    told = [found["outcome"] for found in done.objects[:-1]]
    assert told.count("accepted") <= accepted(server)
    assert told.count("accepted") + told.count("unknown") >= accepted(server)
    assert done.code == (3 if "unknown" in told else 130)
    assert Path("r.html").read_text().endswith("</html>\n")
    assert "Traceback" not in without_noise(done.err)


OFTEN = [(40, seconds) for seconds in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)] * 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("rooms", "seconds"),
    [(8, 0.3), *(pytest.param(*values, marks=pytest.mark.nightly) for values in OFTEN)],
)
def test_repeated_signals_lose_nothing(server: MeetingServer, rooms: int, seconds: float) -> None:
    """Whenever they come, from the first document to the end of the process.

    The same command again sends the rest, and nothing twice.
    """
    command = ("batch", "m.csv", "--journal", "j.db", "--report", "r.html", "--json")
    manifest(server, rooms=rooms, documents=6)
    for room in server.rooms.values():
        room.processing_seconds = seconds
    with Path("out").open("w") as out:  # not a pipe, which would be full while nobody reads it
        process = start(*command, stdout=out)
    until(lambda: accepted(server) or process.poll() is not None)
    while process.poll() is None:
        interrupt(process, signal.SIGTERM if rooms > 8 and seconds > 0.2 else signal.SIGINT)
        time.sleep(0.02)
    done = finish(process)
    _check_account(server, Result(done.code, Path("out").read_text(), done.err))
    sums = run(*command).objects[-1]
    assert sums["accepted"] + sums["already_delivered"] + sums["unknown"] == rooms * 6
    assert rooms * 6 - sums["unknown"] <= accepted(server) <= rooms * 6


def test_a_signal_before_anything_is_sent(server: MeetingServer) -> None:
    """A command that waits for its manifest ends at once; one line says that nothing was sent."""
    reading, writing = os.pipe()
    process = start("batch", "-", stdin=reading)
    os.write(writing, b"room_id,")
    until(lambda: unread(reading) == 0)  # it is reading
    interrupt(process, HANGUP)
    done = finish(process)
    os.close(reading)
    os.close(writing)
    assert (done.code, done.err) == (130, "meeting-async: interrupted: nothing was sent\n")
    assert not server.requests


def test_a_command_that_sends_nothing_is_interrupted(
    server: MeetingServer, capsys: Capture
) -> None:
    """Where nothing is to be sent, only that is said."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    server.reply_next(503, headers={"Retry-After": "60"}, path="/room/getActiveRoomInfo")
    interrupt_when(lambda: server.requests, signal.SIGINT)
    done = call(capsys, "room", "room01", "-q")
    assert (done.code, done.err) == (130, "meeting-async: interrupted\n")


def test_a_disk_that_does_not_answer(server: MeetingServer) -> None:
    """A signal ends the check of the documents; the exit does not wait for the disk."""
    import fcntl

    with Path("a.pdf").open("r+b") as file:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # SIGIO would end this process
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # opening it takes up to 45 s
        process = start("upload", "room01", "a.pdf")
        with killed_in_the_end(process):
            until(lambda: fcntl.fcntl(file, fcntl.F_GETLEASE) != fcntl.F_WRLCK)
            interrupt(process)
            assert process.wait(timeout=10) == 130
            assert finish(process).err == "meeting-async: interrupted: nothing was sent\n"
    assert not server.requests


@contextlib.contextmanager
def killed_in_the_end(process: subprocess.Popen[str]) -> Iterator[None]:
    """See that a process ends with the block, and that its pipes are closed."""
    with process:
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("streams", "seconds", "number"),
    [
        ("both", 0, signal.SIGTERM),
        pytest.param("stdout", 60, signal.SIGINT, marks=pytest.mark.nightly),
        pytest.param("stdout", 0, signal.SIGTERM, marks=pytest.mark.nightly),
        pytest.param("both", 60, signal.SIGINT, marks=pytest.mark.nightly),
    ],
)
def test_a_second_signal_ends_the_command_while_nobody_reads(
    server: MeetingServer, streams: str, seconds: float, number: signal.Signals
) -> None:
    """Within 2 s, though the pipe is full, amid the batch and behind it."""
    manifest(server, rooms=8, documents=8)  # some 29 KiB of objects
    server.rooms["class0"].processing_seconds = seconds
    command = ("batch", "m.csv", "--json", "--report", "r.html")
    with Path("err").open("w") as err:
        stderr = subprocess.STDOUT if streams == "both" else err
        process = start(*command, stderr=stderr, pipesize=4 * PIPE_BUF)
    with killed_in_the_end(process):
        until(lambda: accepted(server) == (57 if seconds else 64))
        until(lambda: unread(process.stdout) > (0 if IS_WINDOWS else 2 * PIPE_BUF))
        ends_at = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < ends_at:
            interrupt(process, number)
            time.sleep(0.5)  # else they may count as one
        assert process.poll() == (3 if seconds else 0)
    told = f"{56 if seconds else 64} of 64 documents delivered"
    assert told in Path("r.html").read_text()
    assert streams == "both" or told in Path("err").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_ends_while_nobody_reads(number: signal.Signals) -> None:
    """At a signal, though the pipe of its log is full."""
    port = free_port()
    process = start("serve", "--port", port, stderr=subprocess.STDOUT, pipesize=4096)
    with killed_in_the_end(process):
        until(lambda: b"Ctrl-C" in os.read(process.stdout.fileno(), 4096))  # type: ignore[union-attr]
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(0.5)
            with contextlib.suppress(TimeoutError):  # then a line of its log does not fit
                while True:
                    client.sendall(b"GET /healthCheck HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    client.recv(4096)
            interrupt(process, number)
            process.wait(timeout=30)


@pytest.mark.usefixtures("server")
def test_waiting_for_stdin_ends() -> None:
    """Nobody types the document: a signal ends the command, and the exit is clean."""
    reading, writing = os.pipe()
    process = start("upload", "room01", "-", "--filename", "x.pdf", stdin=reading)
    os.write(writing, b"%PDF")
    until(lambda: not unread(reading))
    interrupt(process)
    done = finish(process)
    os.close(reading)
    os.close(writing)
    assert (done.code, "1 left to send" in done.out) == (130, True)
    assert "Traceback" not in done.err
    assert "Fatal" not in done.err


def test_ignored_signals_stay_ignored(server: MeetingServer, capsys: Capture) -> None:
    """Ctrl-C is not for what a script started in the background, nor hang-up for `nohup`."""
    numbers = (signal.SIGINT, HANGUP)
    server.rooms["room01"].processing_seconds = 0.3
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        sending = interrupt_when(lambda: accepted(server), *numbers)
        assert call(capsys, "upload", "room01", "a.pdf", "b.pdf").code == 0
        sending.join()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert names_in(server, "room01") == ["a.pdf", "b.pdf"]


# --- output that cannot be written ---------------------------------------------------------------

STREAMS: dict[str, Any] = {
    "full": full_disk, "pipe": closed_pipe, "closed": lambda: contextlib.nullcontext(None)
}  # fmt: skip
"""What stdout may be: ``>/dev/full``, ``| true`` and ``>&-``."""


@pytest.mark.parametrize("stream", STREAMS)
def test_an_upload_that_was_delivered_is_not_called_failed(
    server: MeetingServer, capsys: Capture, stream: str
) -> None:
    """A script that repeats what failed would show it to the class twice."""
    for options in ([], ["--json"]):
        with STREAMS[stream]() as stdout:
            done = call(capsys, "upload", "room01", "a.pdf", *options, stdout=stdout)
        assert done.code == 0
        assert "a.pdf: accepted by room01" in done.err
        assert stream == "closed" or "1 of 1 document delivered" in done.err
        assert "Traceback" not in done.err
    assert names_in(server, "room01") == ["a.pdf", "a.pdf"]


@pytest.mark.parametrize("stream", ["full", "closed"])
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
    warned = done.err.count("the output cannot be written: finishing the running uploads")
    assert warned == bool(ends_early)
    assert "Traceback" not in done.err
    with STREAMS[stream]() as stdout:  # what was refused is told all the same
        done = call(capsys, "upload", "nope", "a.pdf", *json, stdout=stdout)
    assert (done.code, "there is no session in room nope" in done.err) == (1, True)


def test_stderr_cannot_be_written(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results can be read, so everything is delivered; with both lost, the report tells it.

    Without a stderr (``2>&-``) everything is delivered, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        assert call(capsys, "upload", "room02", "a.pdf").code == 0
    with full_disk() as stdout, full_disk() as stderr, full_disk() as another:
        monkeypatch.setattr(sys, "stderr", stderr)
        done = call(capsys, "batch", "m.csv")
        assert (done.code, "1 of 1 document delivered" in done.out) == (0, True)
        done = call(capsys, "upload", "nope", "a.pdf")  # an error goes to the other stream
        assert (done.code, "there is no session in room nope" in done.out) == (1, True)
        manifest(server, rooms=4, documents=10)
        monkeypatch.setattr(sys, "stderr", another)
        done = call(capsys, "batch", "m.csv", "--json", "--report", "r.html", stdout=stdout)
    count = accepted(server) - 2
    assert done.code == (0 if count == 40 else 141)
    assert f"{count} of 40 documents" in Path("r.html").read_text()


@pytest.mark.parametrize("stream", STREAMS)
def test_commands_that_only_print(server: MeetingServer, capsys: Capture, stream: str) -> None:
    """A reader that goes away is no error; a full disk is, told in one line."""
    manifest(server, rooms=1, documents=1)
    server.rooms["room01"].participants = ["Ada"] * 100  # more than a stream gathers
    for command in ("room room01", "room room01 --json", "check", "--help", "batch m.csv --check"):
        with STREAMS[stream]() as stdout:
            done = call(capsys, *command.split(), stdout=stdout)
        assert done.code == (1 if stream == "full" else 0), command
        assert ("No space left" in done.err) == (stream == "full")
        assert "Traceback" not in done.err


def test_pipes_of_a_shell(server: MeetingServer) -> None:
    """The same with real processes, until they have ended: no traceback at their exit."""
    manifest(server, rooms=4, documents=20)
    for number in range(4):
        server.rooms[f"class{number}"].processing_seconds = 0.1  # so that the reader is gone first
    batch = "meeting-async batch m.csv --json --concurrency 2"
    done = shell(f"{batch} | head -1; exit ${{PIPESTATUS[0]}}")
    count = accepted(server)
    assert (done.code, f"{count} of 80 documents" in done.err) == (141, True)
    told = done.err
    upload = "meeting-async upload room01"
    done = shell(f"{upload} a.pdf >/dev/full && {upload} b.pdf >&-")
    assert (done.code, names_in(server, "room01")) == (0, ["a.pdf", "b.pdf"])
    for word in ("Traceback", "Exception", "BrokenPipe"):
        assert word not in told + done.err


def test_a_slow_reader_does_not_hold_up_uploads(server: MeetingServer) -> None:
    """Pipes that nobody reads for a while are full; documents are delivered all the same."""
    files = [f"{n:0150}.pdf" for n in range(40)]  # some 7 KiB of progress
    for name in files:
        Path(name).write_bytes(PDF)
    process = start("upload", "room01", *files, pipesize=PIPE_BUF)
    until(lambda: accepted(server) == 40)
    assert process.poll() is None
    done = finish(process)
    assert (done.code, len(done.out.splitlines())) == (0, 41)
    assert done.err.count(" to room room01: sending") == 40


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("upload room01 NAME.pdf", 0), ("upload room01 NAME.png", 2), ("batch NAME.csv --json", 0),
        ("batch NAME", 0), ("batch NAME.csv --check", 0),
    ],
)  # fmt: skip
def test_hostile_file_names_are_escaped(
    server: MeetingServer, capsys: Capture, command: str, code: int
) -> None:
    """They may turn the direction of writing, or break lines, like those of an archive."""
    name = "we\u202eek\u2028" + "\x1b[31m1" * (not IS_WINDOWS)
    Path(name, "room01").mkdir(parents=True)
    for path, data in ((f"{name}.pdf", PDF), (f"{name}.png", PNG), (f"{name}/room01/a.pdf", PDF)):
        Path(path).write_bytes(data)
    Path(f"{name}.csv").write_text(f"room_id,document\nroom01,{name}.pdf\n", "utf-8")
    done = call(capsys, *(word.replace("NAME", name) for word in command.split()))
    is_sent = not (code or "--check" in command)
    assert (done.code, len(server.rooms["room01"].accepted)) == (code, is_sent)
    assert all(line.isprintable() for line in f"{done.out}\n{done.err}".split("\n"))
