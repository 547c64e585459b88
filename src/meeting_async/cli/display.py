"""Progress while documents are sent: bars on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    RenderableType,
    RenderHook,
    RenderResult,
)
from rich.constrain import Constrain
from rich.control import Control
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.segment import ControlType, Segment
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
from meeting_async._text import counted, duration, printable, size
from meeting_async.cli.console import Output, console_on

FRAMES_PER_SECOND = 8

LINE_INTERVAL = 10.0
"""Seconds between two plain lines."""

NAME_SHARE, BAR_WIDTH = 3 / 8, 10
"""Widths of the first two columns: a share of the terminal's, and characters."""

MARGIN = 4
"""Lines of the terminal that are kept free of bars."""

MIN_DONE = 5
"""Documents that must be done before a time left is shown."""


class Display:
    """Shows the progress of a batch during its ``with`` block. This base class shows nothing.

    A display is called with events: pass it as ``on_event``.
    """

    def __init__(self) -> None:
        self.report: BatchReport = BatchReport()
        """The report of the batch so far."""
        self.is_stopping = False
        """Whether no new upload starts."""

    def __call__(self, event: Event, /) -> None:
        """Receive an event."""

    def tick(self) -> None:
        """Called several times a second."""

    def __enter__(self) -> None:
        pass

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
            what = "for a place in the batch" if event.for_place else "behind another upload"
            return f"waiting {what}"
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
        case RetryScheduled(limit=limit):
            again = f"{event.reason}, again in {event.retry_in:.1f} s"
            return f"{event.host}: {again}, {limit}" if limit else again
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
        elif isinstance(event, RetryScheduled) and event.limit:  # the server cannot be reached
            self._output.note(words_for(event))

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
        self._began = time.monotonic()
        self._earlier: int | None = None
        """Documents that were done when the display began."""

    def __call__(self, event: Event, /) -> None:
        """Receive an event; the next frame shows it."""
        if event.document is None:
            return
        row = self._rows.get(event.call)
        if isinstance(event, Finished):
            if row is not None:
                self._progress.remove_task(self._rows.pop(event.call))
            return
        words = words_for(event)
        if not words:
            return
        if row is None:
            name = printable(f"{event.room_id}  {event.document}")
            row = self._rows[event.call] = self._progress.add_task(name, total=1.0, words=words)
        share = _share(event) if isinstance(event, BytesSent) else 0.0
        self._progress.update(row, completed=share, words=words)

    def tick(self) -> None:
        """Update the bar of the batch: it counts the documents tried, not those skipped."""
        done = tried(self.report)
        if self._earlier is None:
            self._earlier = done
        name = f"{done:,} of {self._documents:,} documents"
        seconds = time.monotonic() - self._began
        words = ", ".join(self._pace(done, seconds)) or duration(seconds)
        self._progress.update(self._total, completed=done, description=name, words=words)
        self._progress.sums = ", ".join(counts(self.report)) if self._documents > 1 else ""

    def _pace(self, done: int, seconds: float) -> Iterator[str]:
        """Yield the speed and the time left, from what this run itself has done."""
        if seconds and self.report.bytes_sent:
            yield f"{size(self.report.bytes_sent / seconds)}/s"
        done_here = done - self.report.already_delivered - (self._earlier or 0)
        left = self._documents - self.report.total
        if self.is_stopping:
            yield "stopping"
        elif left and done_here >= MIN_DONE:
            yield f"{duration(seconds / done_here * left)} left"

    def __enter__(self) -> None:
        self.tick()
        self._progress.start()
        self._console.push_render_hook(_Resizable(self._console))
        self._output.live = self._console

    def __exit__(self, *_: object) -> None:
        self._output.live = None
        self._progress.refresh()
        self._console.pop_render_hook()
        self._progress.stop()


class _Progress(Progress):
    """The sums, and a table with as many bars as the terminal has lines for."""

    sums = ""
    """How many documents have which outcome."""

    def __init__(self, console: Console) -> None:
        self._name = name = Column(no_wrap=True, overflow="ellipsis")
        words = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        super().__init__(
            TextColumn("{task.description}", markup=False, table_column=name),
            BarColumn(BAR_WIDTH),
            TextColumn("{task.fields[words]}", markup=False, table_column=words),
            console=console,
            expand=True,
            refresh_per_second=FRAMES_PER_SECOND,
            transient=True,  # removed at the end; results are printed as lines
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield a line with the sums, the table, and how many bars do not fit."""
        if not self.tasks:  # not set up yet
            return
        # The terminal echoes ^C after the last line, which must not wrap.
        width = self.console.width - 2
        self._name.max_width = int(NAME_SHARE * width)
        most = max(2, self.console.size.height - MARGIN)
        tasks = [task for task in self.tasks if task.visible]
        if self.sums:
            yield Constrain(Text(self.sums, no_wrap=True, overflow="ellipsis"), width)
        yield Constrain(self.make_tasks_table(tasks[:most]), width)
        if len(tasks) > most:
            yield Text(f"and {len(tasks) - most:,} more", "dim")


class _Resizable(RenderHook):
    """Erases all of the last frame when a terminal got narrower and wrapped its lines.

    A frame may be drawn after that, but before the program learns of the new size: tmux waits up to
    0.25 s. Its lines must not wrap, so that the rows to erase are the same.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._frame: ConsoleRenderable = Text()
        self._lengths: list[int] = []
        """Columns of each line of the last frame."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Move up by the rows that wrapping has added; the rest of the frame erases itself."""
        columns = self._console.width
        added = sum(max(0, n - 1) // columns for n in self._lengths)
        row = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
        *others, self._frame = renderables
        return [Control(*row * added), *others, self]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the frame without blanks at the ends of lines, which only some terminals wrap."""
        lines = [_stripped(line) for line in console.render_lines(self._frame, options, pad=False)]
        self._lengths = [Segment.get_line_length(line) for line in lines]
        yield _WRAP_OFF
        for number, line in enumerate(lines):
            if number:
                yield Segment.line()
            yield from line
        yield _WRAP_ON


_WRAP_OFF, _WRAP_ON = (
    Segment(code, None, [(ControlType.CARRIAGE_RETURN,)])  # rich has no name for these
    for code in ("\x1b[?7l", "\x1b[?7h")
)
"""DECAWM: whether a line that is too long goes on in the next row."""


def _stripped(line: list[Segment]) -> list[Segment]:
    while line and not line[-1].text.strip():
        line = line[:-1]
    return [*line[:-1], line[-1]._replace(text=line[-1].text.rstrip())] if line else []
