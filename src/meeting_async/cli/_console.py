"""What is written where: results to stdout; progress, warnings and errors to stderr."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from meeting_async import RetryScheduled

if TYPE_CHECKING:
    from rich.console import Console

PROGRAM = "meeting-async"

_LOGGER = logging.getLogger("meeting_async")


def printable(text: str) -> str:
    """Make one line of text that cannot steer a terminal.

    File names and servers' messages may contain escape sequences, or marks that turn the
    direction of writing around.
    """
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def say(text: str) -> None:
    """Print a result; at once, as somebody may be reading it through a pipe."""
    print(text, flush=True)  # noqa: T201 - the product


def complain(text: str) -> None:
    """Print one line to stderr, signed with the program's name."""
    print(f"{PROGRAM}: {printable(text)}", file=sys.stderr, flush=True)  # noqa: T201 - the product


def console_on(stream: TextIO) -> Console:
    """Make a rich console that takes every text literally."""
    from rich.console import Console

    return Console(file=stream, markup=False, highlight=False, emoji=False)


def has_bars(console: Console) -> bool:
    """Tell whether a display that redraws itself can be shown.

    Rich takes ``FORCE_COLOR`` for a terminal; in a log file colours do no harm, but bars do.
    """
    return console.is_interactive and console.file.isatty()


@contextmanager
def prepared_streams(*, debug: bool) -> Iterator[None]:
    """Let nothing that is printed fail for its characters, and show warnings as lines."""
    for stream in (sys.stdout, sys.stderr):
        # Only a real stream can be told; a test's stand-in takes any character.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    handler, root = _LogLines(debug=debug), logging.getLogger()
    before = _LOGGER.level
    root.addHandler(handler)
    _LOGGER.setLevel(logging.DEBUG if debug else logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_args, **_kwargs: complain(
                f"warning: {message}"
            )
            yield
    finally:
        _LOGGER.setLevel(before)
        root.removeHandler(handler)


class _LogLines(logging.Handler):
    """Shows logs on stderr: the library's, except for what the progress display tells already.

    Of the packages below it only errors are shown, as nobody here can do much about the rest.
    """

    def __init__(self, *, debug: bool) -> None:
        super().__init__()
        self._debug = debug

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record's message if it is of interest."""
        if record.name.partition(".")[0] == _LOGGER.name:
            is_news = self._debug or getattr(record, "action", None) != RetryScheduled.__name__
        else:
            is_news = record.levelno >= logging.ERROR
        if is_news:
            complain(f"{record.levelname.lower()}: {record.getMessage()}")
