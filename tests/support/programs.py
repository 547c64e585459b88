"""Running a program to its end, until it answers, or on a terminal; and a browser."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 50.0
"""Seconds, also on a busy machine."""


def run_to_its_end(
    command: Sequence[str],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    seconds: float = PATIENCE,
) -> str:
    """Run a program, which must succeed, and return what it prints."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def until_it_answers(
    connect: Callable[[], Any],
    process: subprocess.Popen[bytes],
    log: Path,
    *errors: type[Exception],
) -> None:
    """Wait until a process that was started can be connected to; these errors say: not yet."""
    ends_at = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError, *errors):
            connect().close()
            return
        assert process.poll() is None, log.read_text("utf-8", "replace")
        assert time.monotonic() < ends_at, log.read_text("utf-8", "replace")
        time.sleep(0.02)


def started(
    command: Sequence[Any], port: int, log: Path, **settings: Any
) -> subprocess.Popen[bytes]:
    """Start a program, and wait until it listens on a port of loopback."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, **settings)
    try:
        until_it_answers(partial(socket.create_connection, ("127.0.0.1", port)), process, log)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


Process = subprocess.Popen[bytes]


def drawn_by(
    command: Sequence[str],
    *,
    columns: int = 80,
    meanwhile: Callable[[Process], object] = bool,
    **settings: Any,
) -> tuple[int, str]:
    """Run a program on a terminal; return its exit code and all that it drew."""
    import termios

    leader, follower = os.openpty()
    termios.tcsetwinsize(follower, (24, columns))
    streams: dict[str, Any] = dict.fromkeys(["stdin", "stdout", "stderr"], follower)
    with subprocess.Popen(command, **streams, start_new_session=True, **settings) as process:
        os.close(follower)
        threading.Thread(target=meanwhile, args=[process], daemon=True).start()
        drawn = b""
        with contextlib.suppress(OSError):  # Linux says EIO when nobody has the other end
            while data := os.read(leader, 65536):
                drawn += data
        os.close(leader)
        return process.wait(50), drawn.decode()


_BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
needs_browser = pytest.mark.skipif(_BROWSER is None, reason="needs chromium-headless-shell")


def dom_of(url: str, folder: Path, *options: str) -> str:
    """Return what a browser makes of a page, after its scripts have run."""
    usual = ["--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    profile = [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000"]
    command = [str(_BROWSER), *usual, *profile, *options, url]
    return run_to_its_end(command, seconds=120)
