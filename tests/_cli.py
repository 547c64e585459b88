"""Running the command line, in a process of its own and interrupted in this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PROGRAM = (sys.executable, "-m", "meeting_async")
PDF = b"%PDF-1.7\nslides\n%%EOF\n"
SECONDS = 40.0
"""Longest wait for anything here; only a machine that is overloaded takes near as long."""


@contextmanager
def heeding_ctrl_c() -> Iterator[None]:
    """Heed SIGINT, which is ignored where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, **environ},
    )


def until(condition: Callable[[], object]) -> None:
    """Wait for another thread or process."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def interrupt_when(condition: Callable[[], object], number: int = signal.SIGINT) -> None:
    """Send this process a signal as soon as something has come true."""

    def watch() -> None:
        until(condition)
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, daemon=True).start()
