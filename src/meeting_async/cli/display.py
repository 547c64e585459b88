"""What is shown while documents are sent: bars on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Self

import attrs
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID
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
from meeting_async.cli.words import counted, duration, shortened

FRAMES_PER_SECOND = 8
"""Enough for a countdown to look alive without flicker."""

LINE_INTERVAL = 10.0
"""Seconds between two plain lines."""

BAR_WIDTH = 12
"""Columns."""

MARGIN = 3
"""Lines of a terminal that are left to everything but uploads."""


class Display:
    """Shows a batch while its block runs; it is itself an ``on_event``. This one says nothing."""

    def __init__(self) -> None:
        self.report: BatchReport = BatchReport()
        """The account of the batch so far."""

    def __call__(self, event: Event, /) -> None:
        """Take an event."""

    def tick(self) -> None:
        """Called several times a second."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def display_on(output: Output, documents: int, *, detailed: bool, quiet: bool = False) -> Display:
    """Choose the display; as lines, a ``detailed`` one tells of each upload what it waits for."""
    if quiet:
        return Display()
    console = console_on(output.notes)
    if console.is_interactive and output.notes.isatty():  # FORCE_COLOR makes no terminal of a file
        return Bars(output, console, documents)
    return Lines(output, documents, detailed=detailed)


# --- words ---------------------------------------------------------------------------------------


@attrs.frozen
class State:
    """What one upload is doing."""

    words: str = ""
    share: float = 0.0
    """Part of the document that is out, 0 to 1."""
    due: float | None = None
    """When it goes on, in seconds of the clock that :func:`state_after` was given."""
    is_waiting: bool = False

    def text(self, now: float) -> str:
        """Return the words, with the seconds that are left if something is due."""
        left = "" if self.due is None else f" in {max(0.0, self.due - now):.1f} s"
        return f"{self.words}{left}"


def state_after(event: Event, now: float) -> State:
    """Say what an upload is doing after ``event``, which came at ``now`` (seconds)."""
    match event:
        case Queued():
            return State("waiting behind another upload", is_waiting=True)
        case AttemptStarted():
            return State(f"sending{_numbered(event.attempt)}")
        case BytesSent():
            return _sending(event)
        case WaitingForRoom():
            return State("the room is taken, again", due=now + event.retry_in, is_waiting=True)
        case WaitingUntilActive():
            words = "the room is not active yet, again"
            return State(words, due=now + event.retry_in, is_waiting=True)
        case RetryScheduled():
            return State(f"{event.reason}, again", due=now + event.retry_in, is_waiting=True)
    return State()


def _sending(event: BytesSent) -> State:
    share = event.sent / event.total if event.total else 1.0
    if share < 1:
        return State(f"sending {share:.0%}{_numbered(event.attempt)}", share)
    return State("sent, waiting for the answer", 1.0)


def _numbered(attempt: int) -> str:
    return f" (attempt {attempt})" if attempt > 1 else ""


def tried(report: BatchReport) -> int:
    """Count the documents that are over; what was skipped is not done."""
    return report.total - report.skipped + report.already_delivered


def counts(report: BatchReport) -> Iterator[str]:
    """Say what became of the documents so far."""
    skipped = report.skipped - report.already_delivered
    yield f"{report.accepted:,} accepted"
    for count, words in (
        (report.already_delivered, "accepted before"),
        (report.refused, "refused"),
        (report.failed, "failed"),
        (report.unknown, "unknown"),
        (skipped, "skipped"),
    ):
        if count:
            yield f"{count:,} {words}"


# --- displays ------------------------------------------------------------------------------------


class Lines(Display):
    """A line every ten seconds; of single uploads one whenever something else goes on."""

    def __init__(self, output: Output, documents: int, *, detailed: bool) -> None:
        super().__init__()
        self._output = output
        self._documents = documents
        self._detailed = detailed
        self._told: dict[int, tuple[type[Event], float]] = {}
        self._next = time.monotonic() + LINE_INTERVAL

    def __call__(self, event: Event, /) -> None:
        """Print a line if the event is news."""
        now = time.monotonic()
        if self._detailed and self._is_news(event, now):
            self._told[event.call] = type(event), now
            room = f"room {event.room_id}"
            label = f"{event.document} to {room}" if event.document else room
            self._output.note(f"{label}: {state_after(event, now).text(now)}")

    def tick(self) -> None:
        """Print the sums now and then."""
        if time.monotonic() >= self._next and self._documents > 1:
            self._next += LINE_INTERVAL
            done = f"{tried(self.report):,} of {counted(self._documents, 'document')}"
            self._output.note(f"{done}: {', '.join(counts(self.report))}")

    def _is_news(self, event: Event, now: float) -> bool:
        if isinstance(event, Finished) or not state_after(event, now).words:
            return False
        if isinstance(event, AttemptStarted):
            return event.attempt == 1 and event.document is not None
        kind, at = self._told.get(event.call, (Event, now))
        if isinstance(event, BytesSent):
            return now - at >= LINE_INTERVAL
        return kind is not type(event) or now - at >= LINE_INTERVAL


class Bars(Display):
    """A bar for the batch and one for each upload that is under way, redrawn in place."""

    def __init__(self, output: Output, console: Console, documents: int) -> None:
        super().__init__()
        self._output, self._console = output, console
        self._progress = _Progress(console)
        self._rows: dict[int, TaskID] = {}
        self._total = self._progress.add_task("", total=documents, words=self._head)
        self._progress.has_head = documents > 1

    def __call__(self, event: Event, /) -> None:
        """Take an event; the next frame shows it."""
        if event.document is None:
            return
        if isinstance(event, Finished):
            if (row := self._rows.pop(event.call, None)) is not None:
                self._progress.remove_task(row)
            return
        state = state_after(event, time.monotonic())
        row = self._rows.get(event.call)
        if row is None:
            name = printable(f"{event.room_id}  {shortened(event.document, 30)}")
            row = self._progress.add_task(name, total=1.0, words=state.text)
            self._rows[event.call] = row
        waits = state.is_waiting
        self._progress.update(row, completed=state.share, words=state.text, is_waiting=waits)

    def tick(self) -> None:
        """Let the bar of the batch grow: by what was tried, not by what was skipped."""
        done, total = tried(self.report), f"{self._progress.tasks[0].total:,.0f}"
        words = f"{done:,} of {total} documents"
        self._progress.update(self._total, completed=done, description=words)

    def _head(self, _now: float) -> str:
        left = self._progress.tasks[0].time_remaining
        rest = f", {duration(left)} left" if left and tried(self.report) >= 5 else ""
        return f"{', '.join(counts(self.report))}{rest}"

    def __enter__(self) -> Self:
        self.tick()
        self._progress.start()
        self._output.live = self._console
        return self

    def __exit__(self, *_: object) -> None:
        self._output.live = None
        self._progress.stop()


class _Words(ProgressColumn):
    """What goes on; a task has it in ``words``, as a function of the time."""

    def render(self, task: Task) -> Text:
        """Return it as of now."""
        style = "yellow" if task.fields.get("is_waiting") else "default"
        words = printable(task.fields["words"](time.monotonic()))
        return Text(words, style, no_wrap=True, overflow="ellipsis")


class _Name(ProgressColumn):
    """A room and a document."""

    def render(self, task: Task) -> Text:
        """Return both, to be shortened first where columns are short."""
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class _Progress(Progress):
    """As many uploads as a terminal has lines for, those that wait first."""

    has_head = True

    def __init__(self, console: Console) -> None:
        column = Column(no_wrap=True, overflow="ellipsis")
        super().__init__(
            _Name(column),
            BarColumn(BAR_WIDTH, table_column=Column(min_width=BAR_WIDTH)),
            _Words(column),
            console=console,
            refresh_per_second=FRAMES_PER_SECOND,
            transient=True,  # what remains is printed as lines
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the table, and how many rows it does not have."""
        if not self.tasks:  # not set up yet
            return
        head, *rows = self.tasks
        most = max(1, self.console.size.height - MARGIN)
        rows.sort(key=lambda task: not task.fields.get("is_waiting"))
        yield self.make_tasks_table([head, *rows[:most]] if self.has_head else rows[:most])
        if len(rows) > most:
            yield Text(f"and {len(rows) - most:,} more", "dim")
