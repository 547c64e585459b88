"""A batch while it runs: a picture that is redrawn on a terminal, plain lines anywhere else.

Events come on the event loop, frames are drawn in a thread of their own; what both need is under
one lock, which a frame holds only while it copies the rows that it shows.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, Self

import attrs
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from meeting_async import Event, UploadOutcome
from meeting_async.cli import _amounts
from meeting_async.cli._batch_rooms import BatchRooms, Phase, RoomRow
from meeting_async.cli._batch_tally import Tally, readable_time
from meeting_async.cli._console import has_bars, printable
from meeting_async.cli._status import BAD, CALM, GOOD, WAITING

FRAMES_PER_SECOND = 8
"""Enough to look alive; a frame of 34 rooms takes 3 ms of CPU time."""

LINE_INTERVAL = 10.0
"""Seconds between two plain lines."""

BAR_WIDTH = 22
WORDS_WIDTH = 48
"""Columns: of the bar, and of the longest words about a room but for a reason."""

MARGIN = 6
"""Lines of the terminal that are left to everything but rooms."""

_STYLES = {
    Phase.SENDING: "cyan", Phase.PROCESSING: CALM, Phase.RETRYING: BAD
}  # fmt: skip


class BatchDisplay(Protocol):
    """Shows a batch while its block runs; it is itself the ``on_event`` of a client."""

    def __call__(self, event: Event, /) -> None:
        """Take an event."""
        ...

    def over(self, outcome: UploadOutcome, size: int) -> None:
        """Take the outcome of a document; ``size`` is that of its file, in bytes."""
        ...

    def note(self, text: str) -> None:
        """Say something that holds from now on."""
        ...

    def tick(self) -> None:
        """Say how far it is; called every :data:`LINE_INTERVAL`."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def batch_display_on(
    console: Console, tally: Tally, rooms: BatchRooms, *, is_plain: bool
) -> BatchDisplay:
    """Choose the display for a console."""
    if is_plain or not has_bars(console):
        return BatchLines(console, tally, rooms)
    return BatchPicture(console, tally, rooms)


def progress(tally: Tally) -> str:
    """Count the documents."""
    return f"{tally.done:,} of {tally.documents:,} documents"


def counts(tally: Tally) -> Iterator[tuple[str, str]]:
    """Say what became of those that are over, each with its style."""
    yield f"{tally.counts['accepted']:,} accepted", GOOD
    if tally.resumed:
        yield f"{tally.resumed:,} accepted before", GOOD
    for status in ("refused", "failed", "unknown"):
        if tally.counts[status]:
            yield f"{tally.counts[status]:,} {status}", BAD
    skipped = tally.counts["skipped"] - tally.resumed
    if skipped:
        yield f"{skipped:,} skipped", WAITING


def amounts(tally: Tally, bytes_sent: int, now: float) -> Iterator[str]:
    """Say how much is through, and how fast."""
    if tally.size:
        yield f"{_amounts.size(tally.size_done)} of {_amounts.size(tally.size)}"
    speed = tally.speed(now, bytes_sent)
    yield "— MiB/s" if speed is None else f"{_amounts.size(speed)}/s"


def time_left(tally: Tally, now: float) -> str:
    """Say how long it may still take."""
    left = tally.time_left(now)
    return "time left —" if left is None else f"time left {readable_time(left)}"


@attrs.define(eq=False)
class BatchPicture:
    """An overall bar and a line for each active room, redrawn in place; gone at the end."""

    _console: Console
    _tally: Tally
    _rooms: BatchRooms
    _note: str = attrs.field(default="", init=False)
    _guard: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _live: Live = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._live = Live(
            console=self._console,
            get_renderable=self.frame,
            refresh_per_second=FRAMES_PER_SECOND,
            transient=True,
            redirect_stdout=False,  # results may go elsewhere
            redirect_stderr=sys.stderr.isatty(),  # what is not good is written above the picture
        )

    def __call__(self, event: Event, /) -> None:
        """Take an event; the next frame shows it."""
        with self._guard:
            self._rooms.hear(event, time.monotonic())

    def over(self, outcome: UploadOutcome, size: int) -> None:
        """Take an outcome."""
        with self._guard:
            self._rooms.over(outcome.room_id)
            self._tally.add(outcome, size)

    def note(self, text: str) -> None:
        """Show it below the rooms."""
        self._note = text

    def tick(self) -> None:
        """Nothing to do: frames come by themselves."""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def frame(self) -> RenderableType:
        """Draw what there is at the moment."""
        now, size = time.monotonic(), self._console.size
        most = max(1, size.height - MARGIN)
        with self._guard:
            self._tally.sample(now, self._rooms.bytes_sent)
            active = self._rooms.active
            shown = self._rooms.visible(most)
            rows = [(row.room_id, row.document, *_words(row, now)) for row in shown]
            head = self._head(now)
        lines = list(_lines(rows, size.width))
        if active > len(rows):
            lines.append(Text(f"and {active - len(rows):,} more rooms", "dim"))
        if self._note:
            lines.append(Text(printable(self._note), "bold yellow", no_wrap=True))
        return Group(head, *lines)

    def _head(self, now: float) -> RenderableType:
        tally = self._tally
        share = tally.done / tally.documents if tally.documents else 1.0
        bar = ProgressBar(1.0, share, BAR_WIDTH, complete_style="cyan", finished_style=GOOD)
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_row(
            Text(progress(tally), "bold"), bar, f"{int(100 * share)} %", time_left(tally, now)
        )
        told = Text("  ").join(Text(text, style) for text, style in counts(tally))
        told.append("   " + "  ".join(amounts(tally, self._rooms.bytes_sent, now)))
        return Group(table, told, "")


def _words(row: RoomRow, now: float) -> tuple[str, str]:
    return printable(row.words(now)), _STYLES.get(row.phase, WAITING)


def _lines(rows: list[tuple[str, str, str, str]], width: int) -> Iterator[Text]:
    """Lay out rooms, documents and words; names give way to what goes on."""
    names = [(printable(room), printable(document)) for room, document, _, _ in rows]
    free = max(8, width - WORDS_WIDTH - 4)
    longest = max((cell_len(room) for room, _ in names), default=0)
    room_width = min(longest, free // 2)
    longest = max((cell_len(document) for _, document in names), default=0)
    document_width = min(longest, free - room_width)
    for (room, document), (_, _, words, style) in zip(names, rows, strict=True):
        yield Text.assemble(
            (fitted(room, room_width), "bold"),
            "  ",
            fitted(document, document_width),
            "  ",
            (words, style),
            no_wrap=True,
            overflow="ellipsis",
        )


def fitted(text: str, width: int) -> str:
    """Pad a text to a number of columns, or shorten it."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + "…"


@attrs.define(eq=False)
class BatchLines:
    """A line every now and then."""

    _console: Console
    _tally: Tally
    _rooms: BatchRooms

    def __call__(self, event: Event, /) -> None:
        """Take an event."""
        self._rooms.hear(event, time.monotonic())

    def over(self, outcome: UploadOutcome, size: int) -> None:
        """Take an outcome."""
        self._rooms.over(outcome.room_id)
        self._tally.add(outcome, size)

    def note(self, text: str) -> None:
        """Nothing to keep in sight: whoever says it prints it."""

    def tick(self) -> None:
        """Print a line."""
        now, rooms = time.monotonic(), self._rooms
        self._tally.sample(now, rooms.bytes_sent)
        told = ", ".join(text for text, _ in counts(self._tally))
        facts = ", ".join(amounts(self._tally, rooms.bytes_sent, now))
        under_way = f"{rooms.moving:,} under way, {rooms.active - rooms.moving:,} waiting"
        line = (
            f"{progress(self._tally)}: {told}; {facts}, {time_left(self._tally, now)}; {under_way}"
        )
        self._console.print(line, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass
