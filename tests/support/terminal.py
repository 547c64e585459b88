"""Terminals: one that only remembers, and tmux, which wraps long lines when it gets narrower."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from support.command_line import PROGRAM, until
from support.programs import run_to_its_end

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


needs_tmux = pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux (Debian: tmux)")


class Terminal:
    """A window of tmux in which one command runs, and then its exit code stands."""

    def __init__(self, socket: Path) -> None:
        self._tmux = ["tmux", "-u", "-S", str(socket), "-f", os.devnull]

    def ask(self, *arguments: object) -> str:
        """Give tmux a command."""
        environ = {name: os.environ[name] for name in os.environ if name not in _HIDDEN}
        command = [*self._tmux, *map(str, arguments)]
        return run_to_its_end(command, environment={**environ, "LC_ALL": "C.UTF-8"})

    def start(self, columns: int, lines: int, *arguments: object) -> None:
        """Run the command line at the bottom of a window of that size.

        Where there is room below, tmux moves what wrapping adds into the history, out of reach.
        """
        command = shlex.join([*PROGRAM, *map(str, arguments)])
        script = f"seq {lines}; {command}; echo ended with $?; sleep 60"
        self.ask("new-session", "-d", "-x", columns, "-y", lines, "bash", "-c", script)

    def lines(self, *, with_history: bool = False) -> list[str]:
        """Return what it shows, and what has scrolled out of it."""
        history = ["-S", "-"] if with_history else []
        return self.ask("capture-pane", "-p", *history).rstrip("\n").split("\n")

    def until_shown(self, *texts: str) -> list[str]:
        """Wait until the screen shows all texts, and return its lines."""
        until(lambda: all(text in "\n".join(self.lines()) for text in texts))
        return self.lines()


_HIDDEN = {"COLUMNS", "LINES", "TMUX", "TMUX_PANE"}


@contextlib.contextmanager
def terminal() -> Iterator[Terminal]:
    """Open a terminal; what runs in it ends with it."""
    with TemporaryDirectory(dir="/tmp") as folder:  # a socket's path has 107 bytes at most
        opened = Terminal(Path(folder, "tmux"))
        try:
            yield opened
        finally:
            with contextlib.suppress(AssertionError):
                opened.ask("kill-server")
