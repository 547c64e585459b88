"""Running the command line: in this process, in one of its own, and with signals."""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import attrs
import pytest

from meeting_async.cli import main
from meeting_async.testing import MeetingServer
from support.systems import IS_WINDOWS

PROGRAM = (sys.executable, "-m", "meeting_async")

HANGUP = signal.Signals["SIGBREAK" if sys.platform == "win32" else "SIGHUP"]
"""A terminal was closed; in its place Windows has Ctrl-Break."""

SECONDS = 50.0
"""Longest wait for anything; only a machine that is overloaded takes near as long."""


@attrs.frozen
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """What ``--json`` printed."""
        return [json.loads(line) for line in self.out.splitlines()]


@contextmanager
def signals_kept() -> Iterator[None]:
    """Put back what the command line catches until its process ends."""
    numbers = (signal.SIGINT, signal.SIGTERM, HANGUP)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def call(
    capsys: pytest.CaptureFixture[str], *arguments: object, stdout: TextIO | str | None = ""
) -> Result:
    """Run a command in this process; ``stdout`` may be another stream, or ``None``: closed."""
    capsys.readouterr()
    with signals_kept(), pytest.MonkeyPatch.context() as patch:
        if not isinstance(stdout, str):
            patch.setattr(sys, "stdout", stdout)
        code = main([str(argument) for argument in arguments])
    return Result(int(code), *capsys.readouterr())


class _Full(io.RawIOBase):
    """What ``/dev/full`` is elsewhere."""

    def __init__(self, file: io.FileIO) -> None:
        self.fileno = file.fileno  # type: ignore[method-assign]

    def writable(self) -> bool:
        """Say that it can be written."""
        return True

    def write(self, _data: object, /) -> int:
        """Say that it could not."""
        raise OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def full_disk() -> Iterator[TextIO]:
    """A stream that cannot be written because the disk is full."""
    if IS_WINDOWS:
        with open(os.devnull, "wb", buffering=0) as raw:
            yield io.TextIOWrapper(io.BufferedWriter(_Full(raw)), write_through=True)
        return
    with open("/dev/full", "w") as file:
        yield file
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())  # what is in its buffer


def start(*arguments: object, **settings: Any) -> subprocess.Popen[str]:
    """Start a command in a process of its own, which heeds Ctrl-C however the tests were started.

    Where tests run in the background of a shell, SIGINT is ignored and stays so in their children.
    On Windows it has a console of its own, for :func:`interrupt`.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        program = [*PROGRAM, *map(str, arguments)]
        return subprocess.Popen(program, text=True, **{**pipes, **OWN_CONSOLE, **settings})
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt(process: subprocess.Popen[str], number: int = signal.SIGINT) -> None:
    """Send a process a signal; on Windows press Ctrl-C in its console, whatever the signal."""
    if sys.platform == "win32":
        press = [sys.executable, "-I", "-S", "-c", _CTRL_C, str(process.pid)]
        subprocess.run(press, check=False, timeout=SECONDS)  # it may have ended
    else:
        process.send_signal(number)


OWN_CONSOLE: dict[str, Any] = {}
if sys.platform == "win32":
    OWN_CONSOLE = {"creationflags": subprocess.CREATE_NO_WINDOW}
"""Options of a process that :func:`interrupt` interrupts."""

_CTRL_C = """
import ctypes, sys
kernel32 = ctypes.WinDLL("kernel32")
kernel32.FreeConsole()
if kernel32.AttachConsole(int(sys.argv[1])):
    kernel32.SetConsoleCtrlHandler(None, True)  # not this process
    kernel32.GenerateConsoleCtrlEvent(0, 0)
"""


def finish(process: subprocess.Popen[str]) -> Result:
    """Wait for a command."""
    out, err = process.communicate(timeout=SECONDS)
    return Result(process.returncode, out or "", err or "")


def run(*arguments: object, **settings: Any) -> Result:
    """Run a command in a process of its own."""
    return finish(start(*arguments, **settings))


def shell(script: str) -> Result:
    """Run a script of bash, in which ``meeting-async`` is the command line."""
    program = f'meeting-async() {{ {shlex.join(PROGRAM)} "$@"; }}'
    done = subprocess.run(
        ["bash", "-c", f"{program}\n{script}"],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr)


def until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait for another thread or process."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def variables(server: MeetingServer) -> dict[str, str]:
    """Return the environment that leads to a server."""
    found = {"BASE_URL": server.url, "API_KEY": server.api_key, "API_SECRET": server.api_secret}
    return {f"MEETING_{name}": value for name, value in found.items()}


def export(monkeypatch: pytest.MonkeyPatch, server: MeetingServer) -> None:
    """Let commands find a server by their environment."""
    for name, value in variables(server).items():
        monkeypatch.setenv(name, value)


def names_in(server: MeetingServer, room_id: str) -> list[str]:
    """Return the names of what a room has received, in its order."""
    return [file.name for file in server.rooms[room_id].received]


def manifest(server: MeetingServer, *, rooms: int, documents: int) -> None:
    """Write ``m.csv``, with the same document several times for each of some new rooms."""
    lines = ["room_id,document,key"]
    for room in range(rooms):
        server.add_room(f"class{room}")
        lines += [f"class{room},a.pdf,{room}-{number}" for number in range(documents)]
    Path("m.csv").write_text("\n".join(lines))


def accepted(server: MeetingServer) -> int:
    """Count the documents that a server has accepted."""
    return sum(len(room.accepted) for room in server.rooms.values())
