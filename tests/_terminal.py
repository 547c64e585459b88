"""A terminal to write to."""

from __future__ import annotations

import os
import re
import termios
import threading


class Terminal:
    """The two ends of a pseudo-terminal: a stream to write to, and what was written."""

    def __init__(self) -> None:
        self._master, slave = os.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        self.stream = os.fdopen(slave, "w")
        self._shown = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                self._shown += os.read(self._master, 65536)
            except OSError:  # the other end is closed
                return

    def close(self) -> str:
        """Return all that was shown."""
        self.stream.close()
        self._reader.join()
        os.close(self._master)
        return self._shown.decode()


def lines_of(shown: str) -> list[str]:
    """Return what was written, line by line, without the sequences that colour and move."""
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown)
    return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]
