"""What is written where: results to stdout; progress, warnings and errors to stderr.

A stream that cannot be written any more, such as a closed pipe or a file on a full disk, never
raises. It falls silent and remembers why, so that uploads that are under way can end.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

import attrs

if TYPE_CHECKING:
    from rich.console import Console

PROGRAM = "meeting-async"

_TOLD_BY_DISPLAYS = {
    "Queued", "AttemptStarted", "WaitingForRoom", "WaitingUntilActive", "RetryScheduled", "Finished"
}  # fmt: skip
"""Log records of these events would repeat what the command line says itself."""


def printable(text: str) -> str:
    """Make one line of text that cannot steer a terminal.

    File names and servers' messages may contain escape sequences, or marks that turn the
    direction of writing around.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


@attrs.define(eq=False)
class Stream:
    """A text stream that never raises; a terminal's display may write to it from a thread."""

    file: TextIO | None
    """``None`` if it was closed before the program started, as with ``>&-``."""
    error: Exception | None = None
    """Why it cannot be written any more."""

    @property
    def encoding(self) -> str:
        """The encoding, for :mod:`rich`."""
        return getattr(self.file, "encoding", None) or "utf-8"

    def fileno(self) -> int:
        """Return the descriptor."""
        if self.file is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self.file.fileno()

    def isatty(self) -> bool:
        """Tell whether it is a terminal."""
        return self.file is not None and self.error is None and self.file.isatty()

    def write(self, text: str) -> int:
        """Write text."""
        if self.file is not None and self.error is None:
            try:
                self.file.write(text)
            except (OSError, ValueError) as error:  # ValueError: it is closed
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Write what is in the buffer."""
        if self.file is not None and self.error is None:
            try:
                self.file.flush()
            except (OSError, ValueError) as error:
                self._lose(error)

    def line(self, text: str) -> bool:
        """Write a line at once, and tell whether that was possible."""
        self.write(f"{text}\n")
        self.flush()
        return self.file is not None and self.error is None

    def _lose(self, error: Exception) -> None:
        """Fall silent; what is still in the buffer must not fail when the process ends."""
        self.error = error
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)


class Output:
    """The two streams of a command."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.results: Stream = Stream(sys.stdout)
        self.notes: Stream = Stream(sys.stderr)
        self.as_json = as_json
        self.live: Console | None = None
        """The console of a display that is redrawn in place; lines are written above it."""

    @property
    def is_lost(self) -> bool:
        """Whether nobody can read results any more."""
        return self.results.error is not None

    def say(self, text: str) -> bool:
        """Print a result, and tell whether that was possible."""
        if self.live is not None and self.results.isatty():
            self.live.print(text, soft_wrap=True)
            return self.notes.error is None
        return self.results.line(text)

    def tell(self, text: str) -> None:
        """Print one line of a result; what stdout does not take goes to stderr."""
        if not self.say(printable(text)):
            self.note(text)

    def say_object(self, kind: str, fields: Mapping[str, Any]) -> bool:
        """Print a line of ``--json``: an object that says in ``type`` what it is."""
        return self.say(json.dumps({"type": kind, **fields}))

    def note(self, text: str) -> None:
        """Print one line to stderr, with the program's name."""
        line = f"{PROGRAM}: {printable(text)}"
        if self.live is not None:
            self.live.print(line, soft_wrap=True)
        else:
            self.notes.line(line)

    def code(self) -> int:
        """Return the exit code of a command that only prints.

        A reader that went away, as with ``| head``, has what it wanted.
        """
        error = self.results.error
        if error is None or getattr(error, "errno", None) == errno.EPIPE:
            return 0
        reason = getattr(error, "strerror", None) or str(error)
        self.note(f"error: stdout cannot be written: {reason}")
        return 1


def console_on(stream: Stream) -> Console:
    """Make a rich console that takes every text literally."""
    from rich.console import Console

    return Console(file=stream, markup=False, highlight=False, emoji=False)  # type: ignore[arg-type]  # Stream has what rich uses


@contextmanager
def prepared_streams(output: Output, *, debug: bool) -> Iterator[None]:
    """Let nothing that is printed fail because of its characters; show logs and warnings."""
    for stream in (sys.stdout, sys.stderr):
        # Only a real stream has this method; a test's stand-in takes any character.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    handler, root, logger = _LogLines(output), logging.getLogger(), logging.getLogger(_LIBRARY)
    handler.is_debug = debug
    before = logger.level
    root.addHandler(handler)
    logger.setLevel(logging.DEBUG if debug else logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_args, **_kwargs: output.note(
                f"warning: {message}"
            )
            with redirect_stdout(output.results), redirect_stderr(output.notes):
                yield
    finally:
        logger.setLevel(before)
        root.removeHandler(handler)


_LIBRARY = "meeting_async"


class _LogLines(logging.Handler):
    """Shows the library's log on stderr, and the errors of the packages below it."""

    is_debug = False

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record's message if it is of interest."""
        if record.name.partition(".")[0] != _LIBRARY:
            is_news = record.levelno >= logging.ERROR
        else:
            is_news = self.is_debug or getattr(record, "action", "") not in _TOLD_BY_DISPLAYS
        if is_news:
            self._output.note(f"{record.levelname.lower()}: {record.getMessage()}")
