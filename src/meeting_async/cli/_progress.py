"""Live progress, as a consumer of events: bars on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, Self

import attrs
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from meeting_async import AttemptStarted, BytesSent, Event, Finished
from meeting_async.cli._console import has_bars, printable
from meeting_async.cli._status import GOOD, Status, status_after

FRAMES_PER_SECOND = 8
"""Enough for a countdown in tenths of seconds to look alive without flicker."""

BAR_WIDTH = 16
"""Columns; with names of usual length a row fits a terminal of 80."""

LINE_INTERVAL = 10.0
"""Seconds between two plain lines that tell how much of a document is out."""


class Display(Protocol):
    """Shows uploads while its block runs; it is itself the ``on_event`` of a client."""

    def expect(self, room_id: str, document: str, label: str) -> None:
        """Announce an upload, so that it is shown from the start, as ``label``."""
        ...

    def __call__(self, event: Event, /) -> None:
        """Take an event."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def display_on(console: Console, *, stays: bool) -> Display:
    """Choose the display for a console.

    What ``stays`` ends with the outcome of each upload; otherwise the outcome is left to be told
    elsewhere, and bars vanish when their block ends.
    """
    return Bars(console, stays=stays) if has_bars(console) else Lines(console, stays=stays)


@attrs.define
class _Row:
    """One upload: announced, bound to a call by its first event, then kept up to date."""

    room_id: str
    document: str
    label: str
    call: int | None = None
    status: Status = attrs.field(factory=Status)


@attrs.define
class _Rows:
    """The uploads in the order in which they were announced or first heard of."""

    rows: list[_Row] = attrs.field(factory=list)

    @property
    def label_width(self) -> int:
        """Columns that the labels so far need."""
        return max((len(row.label) for row in self.rows), default=0)

    def add(self, room_id: str, document: str, label: str) -> _Row:
        row = _Row(printable(room_id), document, printable(label))
        self.rows.append(row)
        return row

    def of(self, event: Event) -> _Row:
        """Return the row of the event's call; the same document may go to a room twice."""
        room_id, document = printable(event.room_id or ""), event.document or ""
        for row in self.rows:
            if row.call == event.call:
                return row
        for row in self.rows:
            if row.call is None and (row.room_id, row.document) == (room_id, document):
                break
        else:
            row = self.add(room_id, document, document)
        row.call = event.call
        return row


@attrs.define
class Bars:
    """One bar for each upload, redrawn in place."""

    _console: Console
    _stays: bool = attrs.field(kw_only=True, alias="stays")
    _rows: _Rows = attrs.field(factory=_Rows, init=False)
    _live: Live = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._live = Live(
            console=self._console,
            get_renderable=self._table,
            refresh_per_second=FRAMES_PER_SECOND,
            transient=not self._stays,
            redirect_stdout=False,  # results may go elsewhere
            redirect_stderr=sys.stderr.isatty(),  # warnings are written above the bars
        )

    def expect(self, room_id: str, document: str, label: str) -> None:
        """Announce an upload."""
        self._rows.add(room_id, document, label)

    def __call__(self, event: Event, /) -> None:
        """Take an event; the next frame shows it."""
        self._rows.of(event).status = status_after(event, time.monotonic())

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

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column()  # where columns are short, names are shortened first,
        table.add_column()
        table.add_column(width=BAR_WIDTH)
        table.add_column(no_wrap=True, overflow="ellipsis")  # and what goes on last
        now = time.monotonic()
        for row in tuple(self._rows.rows):
            table.add_row(*self._cells(row, row.status, now))
        return table

    def _cells(self, row: _Row, status: Status, now: float) -> Iterator[Text | ProgressBar]:
        yield Text(row.room_id, "bold", no_wrap=True, overflow="ellipsis")
        yield Text(row.label, no_wrap=True, overflow="ellipsis")
        end = status.style if status.style == GOOD else "cyan"
        yield ProgressBar(1.0, status.share, BAR_WIDTH, complete_style="cyan", finished_style=end)
        yield Text(printable(status.text(now)), status.style)


@attrs.define
class Lines:
    """A line for each thing worth telling; a lock that is waited for is told at each attempt."""

    _console: Console
    _stays: bool = attrs.field(kw_only=True, alias="stays")
    _rows: _Rows = attrs.field(factory=_Rows, init=False)
    _told: dict[int, float] = attrs.field(factory=dict, init=False)

    def expect(self, room_id: str, document: str, label: str) -> None:
        """Announce an upload."""
        self._rows.add(room_id, document, label)

    def __call__(self, event: Event, /) -> None:
        """Take an event and print a line if it is news."""
        now = time.monotonic()
        if not self._is_news(event, now):
            return
        self._told[event.call] = now
        row = self._rows.of(event)
        label = row.label.ljust(self._rows.label_width)
        words = printable(status_after(event, now).text(now))
        line = "  ".join(part for part in (row.room_id, label, words) if part)
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

    def _is_news(self, event: Event, now: float) -> bool:
        match event:
            case AttemptStarted():  # further ones were announced by what they waited for
                return event.attempt == 1 and event.document is not None
            case BytesSent():
                is_first_end = event.sent == event.total and event.attempt == 1
                return is_first_end or now - self._told.get(event.call, now) >= LINE_INTERVAL
            case Finished():
                return self._stays
        return True
