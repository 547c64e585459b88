"""The output streams: results go to stdout; progress, warnings and errors go to stderr.

A stream that cannot be written any more, such as a closed pipe or a file on a full disk, never
raises. It drops all further text and keeps the error, so that running uploads can end. If nobody
reads a pipe, printing waits until the user wants to end the command. Meanwhile at most 1,000 lines
of the event loop, such as progress, are kept.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import queue
import select
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import attrs

from meeting_async._system import PIPE_BYTES, is_closed_pipe
from meeting_async._text import printable
from meeting_async._threads import POLL_SECONDS, run_in_thread

if TYPE_CHECKING:
    from rich.console import Console

PROGRAM = "meeting-async"


def version() -> str:
    """Return the version of the package."""
    from meeting_async import __version__

    return __version__


_TOLD_BY_DISPLAYS = {"RetryScheduled", "Finished"}
"""Events logged as warnings that the command line shows itself; these records are not printed."""


HURRIED_SECONDS = 0.5
"""Seconds for which printing waits for a pipe, once the command is to end at once."""

MAX_UNREAD = 1000
"""Lines that wait for a thread to print them; further ones are dropped."""

_writing = threading.Lock()
"""Held while a stream is written: two of them may be the same pipe."""


@attrs.define(eq=False)
class Stream:
    """A text stream that never raises when it is written; rich writes to it from a thread."""

    file: TextIO | None
    """``None`` if it was closed before the program started (``>&-`` in a shell)."""
    is_hurried: Callable[[], bool] = lambda: False
    """Returns whether to stop waiting for a pipe that nobody reads."""
    error: Exception | None = None
    """The error after which nothing more is written; ``None`` while it works."""

    @property
    def encoding(self) -> str:
        """The encoding of the file, which :mod:`rich` asks for."""
        return getattr(self.file, "encoding", None) or "utf-8"

    def fileno(self) -> int:
        """Return the file descriptor."""
        if self.file is None:
            raise OSError("it was closed before the program started")
        return self.file.fileno()

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return self.file is not None and self.file.isatty()

    def write(self, text: str) -> int:
        """Write text, with escapes for what the encoding lacks, or drop it after an error."""
        if self.file is not None and self.error is None:
            try:
                self._write(self.file, text)
            except Exception as error:  # noqa: BLE001 - told on the other stream
                self.error = error
        return len(text)

    @property
    def is_broken(self) -> bool:
        """Whether it cannot be written, and not because its reader has gone, as ``| head`` does."""
        return self.error is not None and not is_closed_pipe(self.error)

    def flush(self) -> None:
        """Do nothing: what is written is written at once."""

    def line(self, text: str) -> bool:
        """Write a line, and return whether the stream still works."""
        self.write(f"{text}\n")
        return self.file is not None and self.error is None

    def _write(self, file: TextIO, text: str) -> None:
        try:
            number = file.fileno()
        except (AttributeError, OSError):  # a program has put something else there
            encoding = self.encoding
            file.write(text.encode(encoding, "backslashreplace").decode(encoding))
            return
        data = text.replace("\n", os.linesep).encode(file.encoding, "backslashreplace")
        if PIPE_BYTES is None:
            self._write_in_thread(file, data)
            return
        waited = 0.0
        while data:
            with _writing:  # a pipe that is ready takes so many bytes without blocking
                if select.select([], [number], [], 0)[1]:
                    data, waited = data[os.write(number, data[:PIPE_BYTES]) :], 0.0
            if data and not select.select([], [number], [], POLL_SECONDS)[1]:
                waited = self._waited_longer(waited)

    def _write_in_thread(self, file: TextIO, data: bytes) -> None:
        """Write where no pipe can be polled; a thread that nobody reads from is left behind."""
        written, waited = Future[None](), 0.0
        run_in_thread(partial(_write_all, file, data, written))
        while wait([written], POLL_SECONDS).not_done:
            waited = self._waited_longer(waited)
        written.result()

    def _waited_longer(self, waited: float) -> float:
        waited += POLL_SECONDS if self.is_hurried() else 0.0
        if waited >= HURRIED_SECONDS:
            raise BlockingIOError(errno.EAGAIN, "nobody reads it")
        return waited


def _write_all(file: TextIO, data: bytes, written: Future[None]) -> None:
    """Write past all buffers: what stayed in one would be written again at the program's end."""
    try:
        raw = getattr(file.buffer, "raw", file.buffer)
        while data:  # a console translates UTF-8, which its descriptor would not
            data = data[raw.write(data) :]
        written.set_result(None)
    except Exception as error:  # noqa: BLE001 - raised where it is awaited
        written.set_exception(error)


class Output:
    """The two output streams of a command: results (stdout) and notes (stderr)."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.results: Stream = Stream(sys.stdout)
        self.notes: Stream = Stream(sys.stderr)
        self.as_json = as_json
        self.live: Console | None = None
        """The console of a live display, or ``None``. Lines are written above the display."""
        self._unread: queue.Queue[Callable[[], object] | None] | None = None

    @contextmanager
    def in_thread(self, *, is_hurried: bool) -> Iterator[None]:
        """Print lines in a thread: a pipe that nobody reads would block the event loop.

        ``is_hurried``: at the end it is waited for no longer.
        """
        unread = self._unread = queue.Queue[Callable[[], object] | None](MAX_UNREAD)

        def work() -> None:
            for write in iter(unread.get, None):
                write()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            if is_hurried:
                self.results.is_hurried = self.notes.is_hurried = lambda: True
            self._unread = None
            unread.put(None)
            thread.join()

    def _print(self, write: Callable[[str], object], text: str, *, wait: bool) -> None:
        unread = self._unread
        if unread is None or wait:
            write(text)
        else:
            with suppress(queue.Full):
                unread.put_nowait(partial(write, text))

    @property
    def is_lost(self) -> bool:
        """Whether writing a result has failed."""
        return self.results.error is not None

    def say(self, text: str) -> bool:
        """Print a result, and return whether that was possible."""
        live = self.live  # another thread may end it
        if live is not None and self.results.isatty():
            live.print(text, soft_wrap=True)
            return self.notes.error is None
        return self.results.line(text)

    def tell(self, text: str, *, wait: bool = False) -> None:
        """Print one line of a result, to stderr if stdout cannot be written.

        ``wait``: in this thread, also during :meth:`in_thread`.
        """
        self._print(self._tell, text, wait=wait)

    def _tell(self, text: str) -> None:
        if not self.say(printable(text)):
            self._note(text)

    def say_object(self, kind: str, fields: Mapping[str, Any]) -> bool:
        """Print a line of ``--json``: an object with ``type`` and the given fields."""
        return self.say(json.dumps({"type": kind, **fields}))

    def note(self, text: str, *, wait: bool = False) -> None:
        """Print one line to stderr, after the program's name; ``wait`` as for :meth:`tell`.

        If stderr cannot be written, it goes to stdout, but not amid ``--json``.
        """
        self._print(self._note, text, wait=wait)

    def _note(self, text: str) -> None:
        line = f"{PROGRAM}: {printable(text)}"
        if (live := self.live) is not None:
            live.print(line, soft_wrap=True)
        elif not self.notes.line(line) and self.notes.is_broken and not self.as_json:
            self.results.line(line)

    def code(self) -> int:
        """Return the exit code of a command that only prints.

        A reader that has closed the pipe, such as ``| head``, is not an error.
        """
        if not self.results.is_broken:
            return 0
        error = self.results.error
        reason = getattr(error, "strerror", None) or error
        self.note(f"error: stdout cannot be written: {reason}")
        return 1


def console_on(stream: Stream) -> Console:
    """Make a rich console that prints every text unchanged, without markup."""
    from rich.console import Console

    return Console(file=stream, markup=False, highlight=False, emoji=False)  # type: ignore[arg-type]  # Stream has what rich uses


@contextmanager
def prepared_streams(output: Output, *, debug: bool) -> Iterator[None]:
    """Let everything be printed by ``output``, also logs and warnings."""
    root, logger = logging.getLogger(), logging.getLogger(_LIBRARY)
    handler = _LogLines(output, is_debug=debug)
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
    """Prints the library's log to stderr, and the errors that other packages log."""

    def __init__(self, output: Output, *, is_debug: bool) -> None:
        super().__init__()
        self._output = output
        self._is_debug = is_debug

    def emit(self, record: logging.LogRecord) -> None:
        """Print what no display shows (``--debug``: everything); of other packages only errors."""
        if record.name.partition(".")[0] != _LIBRARY:
            is_news = record.levelno >= logging.ERROR
        else:
            is_news = self._is_debug or getattr(record, "action", "") not in _TOLD_BY_DISPLAYS
        if is_news:
            self._output.note(f"{record.levelname.lower()}: {record.getMessage()}")
