"""Progress while documents are sent: bars on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Self

from rich.console import Console, RenderableType
from rich.constrain import Constrain
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from meeting_async import (
    AttemptStarted,
    BatchReport,
    BytesSent,
    Event,
    Finished,
    Queued,
    RetryScheduled,
    WaitingForRoom,
    WaitingUntilActive,
)
from meeting_async.cli.console import Output, console_on, printable
from meeting_async.cli.words import counted, duration, size

FRAMES_PER_SECOND = 8

LINE_INTERVAL = 10.0
"""Seconds between two plain lines."""

NAME_SHARE, BAR_WIDTH = 3 / 8, 10
"""Widths of the first two columns: a share of the terminal's, and characters."""

MARGIN = 3
"""Lines of the terminal that are kept free of bars."""


class Display:
    """Shows the progress of a batch during its ``with`` block. This base class shows nothing.

    A display is called with events: pass it as ``on_event``.
    """

    def __init__(self) -> None:
        self.report: BatchReport = BatchReport()
        """The report of the batch so far."""

    def __call__(self, event: Event, /) -> None:
        """Receive an event."""

    def tick(self) -> None:
        """Called several times a second."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def display_on(output: Output, documents: int, *, detailed: bool, quiet: bool = False) -> Display:
    """Choose the display; plain lines show what each upload does only if ``detailed``."""
    if quiet:
        return Display()
    console = console_on(output.notes)
    if console.is_interactive and output.notes.isatty():  # FORCE_COLOR may be set for a file
        return Bars(output, console, documents)
    return Lines(output, documents, detailed=detailed)


# --- words ---------------------------------------------------------------------------------------


def words_for(event: Event) -> str:
    """Return what an upload does after ``event``; ``""`` if there is nothing to show."""
    match event:
        case Queued():
            return "waiting behind another upload"
        case AttemptStarted():
            return f"sending{_numbered(event.attempt)}"
        case BytesSent() if _share(event) < 1:
            return f"sending {_share(event):.0%}{_numbered(event.attempt)}"
        case BytesSent():
            return "sent, waiting for the answer"
        case WaitingForRoom():
            return f"the room is locked, again in {event.retry_in:.1f} s"
        case WaitingUntilActive():
            return f"the room is not active yet, again in {event.retry_in:.1f} s"
        case RetryScheduled():
            return f"{event.reason}, again in {event.retry_in:.1f} s"
    return ""


def _share(event: BytesSent) -> float:
    return event.sent / event.total


def _numbered(attempt: int) -> str:
    return f" (attempt {attempt})" if attempt > 1 else ""


def tried(report: BatchReport) -> int:
    """Count the documents that are done: skipped ones only if an earlier run delivered them."""
    return report.total - report.skipped


def counts(report: BatchReport) -> Iterator[str]:
    """Yield the number of documents of each outcome so far, as text."""
    yield f"{report.accepted:,} accepted"
    for count, words in (
        (report.already_delivered, "accepted before"),
        (report.refused, "refused"),
        (report.failed, "failed"),
        (report.unknown, "unknown"),
        (report.skipped, "skipped"),
    ):
        if count:
            yield f"{count:,} {words}"


# --- displays ------------------------------------------------------------------------------------


class Lines(Display):
    """A line with the totals every ten seconds; if detailed, lines about single uploads."""

    def __init__(self, output: Output, documents: int, *, detailed: bool) -> None:
        super().__init__()
        self._output = output
        self._documents = documents
        self._detailed = detailed
        self._told: dict[int, tuple[type[Event], float]] = {}
        self._next = time.monotonic() + LINE_INTERVAL

    def __call__(self, event: Event, /) -> None:
        """Print a line if the event is new or the last such line is ten seconds old."""
        now = time.monotonic()
        if self._detailed and self._is_news(event, now):
            self._told[event.call] = type(event), now
            room = f"room {event.room_id}"
            label = f"{event.document} to {room}" if event.document else room
            self._output.note(f"{label}: {words_for(event)}")

    def tick(self) -> None:
        """Print the totals every ten seconds."""
        if time.monotonic() >= self._next and self._documents > 1:
            self._next += LINE_INTERVAL
            done = f"{tried(self.report):,} of {counted(self._documents, 'document')}"
            self._output.note(f"{done}: {', '.join(counts(self.report))}")

    def _is_news(self, event: Event, now: float) -> bool:
        if not words_for(event):
            return False
        if isinstance(event, AttemptStarted):
            return event.attempt == 1 and event.document is not None
        kind, at = self._told.get(event.call, (Event, now))
        is_other = kind is not type(event) and not isinstance(event, BytesSent)
        return is_other or now - at >= LINE_INTERVAL


class Bars(Display):
    """A bar for the batch and one for each running upload, redrawn in place."""

    def __init__(self, output: Output, console: Console, documents: int) -> None:
        super().__init__()
        self._output, self._console = output, console
        self._progress = _Progress(console)
        self._rows: dict[int, TaskID] = {}
        self._documents = documents
        self._total = self._progress.add_task("", total=documents, words="", visible=documents > 1)

    def __call__(self, event: Event, /) -> None:
        """Receive an event; the next frame shows it."""
        if event.document is None:
            return
        row = self._rows.get(event.call)
        if isinstance(event, Finished):
            if row is not None:
                self._progress.remove_task(self._rows.pop(event.call))
            return
        words = printable(words_for(event))
        if not words:
            return
        if row is None:
            name = printable(f"{event.room_id}  {event.document}")
            row = self._rows[event.call] = self._progress.add_task(name, total=1.0, words=words)
        share = _share(event) if isinstance(event, BytesSent) else 0.0
        self._progress.update(row, completed=share, words=words)

    def tick(self) -> None:
        """Update the bar of the batch: it counts the documents tried, not those skipped."""
        done, total = tried(self.report), self._progress.tasks[0]
        words = [*counts(self.report)]
        if total.elapsed and self.report.bytes_sent:
            words.append(f"{size(self.report.bytes_sent / total.elapsed)}/s")
        if total.time_remaining and done >= 5:
            words.append(f"{duration(total.time_remaining)} left")
        name = f"{done:,} of {self._documents:,} documents"
        self._progress.update(self._total, completed=done, description=name, words=", ".join(words))

    def __enter__(self) -> Self:
        self.tick()
        self._progress.start()
        self._output.live = self._console
        return self

    def __exit__(self, *_: object) -> None:
        self._output.live = None
        self._progress.stop()


class _Progress(Progress):
    """A table with as many bars as the terminal has lines for."""

    def __init__(self, console: Console) -> None:
        most = int(NAME_SHARE * console.width)
        name = Column(no_wrap=True, overflow="ellipsis", max_width=most)
        words = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        super().__init__(
            TextColumn("{task.description}", markup=False, table_column=name),
            BarColumn(BAR_WIDTH, table_column=Column(min_width=BAR_WIDTH)),
            TextColumn("{task.fields[words]}", markup=False, table_column=words),
            console=console,
            expand=True,
            refresh_per_second=FRAMES_PER_SECOND,
            transient=True,  # removed at the end; results are printed as lines
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the table, and a line with the number of bars that do not fit."""
        if not self.tasks:  # not set up yet
            return
        most = max(2, self.console.size.height - MARGIN)
        # The terminal echoes ^C after the last line, which must not wrap.
        yield Constrain(self.make_tasks_table(self.tasks[:most]), self.console.width - 2)
        if len(self.tasks) > most:
            yield Text(f"and {len(self.tasks) - most:,} more", "dim")
