"""When each room was sent to: a row for each room, drawn as SVG.

Positions are percentages of the time axis and heights are pixels, so that a row is as wide as the
page allows and nothing in it is distorted. Kinds differ in height and outline, not by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from meeting_async._jobs import UploadOutcome
from meeting_async.cli._amounts import duration, moment
from meeting_async.cli._bars import NAME_LENGTH, Bar, End, Kind, Row, rows_of
from meeting_async.cli._markup import isolated, plain, shortened

MOST_ROWS = 200
"""Rooms that are drawn; more rows than anybody looks through make a page slow."""

MOST_BARS = 50_000
"""Bars after which no further room is drawn: about 8 MB."""

ROW_HEIGHT = 22
"""Pixels."""

LEAST_SPAN = 0.001
"""Seconds of the shortest axis: with a stopped clock nothing would have a place on it."""

LEAST_WIDTH = 0.1
"""Per cent of the axis: about a pixel, as what is narrower could not be seen."""

MOST_TICKS = 8

WORDS: dict[Kind | End, str] = {
    "send": "sending",
    "work": "processing, until the answer",
    "wait": "waiting for the room or for another try",
    "busy": "attempt refused: the room was taken (409)",
    "lost": "attempt cut off or put off",
    "bad": "refused or failed",
    "unknown": "may or may not have arrived",
}
"""The legend."""

_BOXES: dict[Kind | End, tuple[int, int]] = {
    "wait": (10, 2),
    "send": (3, 16),
    "work": (6, 10),
    "busy": (4, 14),
    "lost": (4, 14),
}
"""Top and height in pixels."""

_STEPS = (
    *(step * 10.0**power for power in range(-4, 1) for step in (1, 2, 5)),
    *(10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 10800.0),
    *(21600.0, 43200.0),
)
_DAY = 86400.0


def step_of(span: float) -> float:
    """Return the seconds between two ticks of an axis so long: a number that people count in."""
    for step in _STEPS:
        if span <= step * MOST_TICKS:
            return step
    return _DAY * -(-span // (_DAY * MOST_TICKS))


def timeline(outcomes: Iterable[UploadOutcome], seconds: float) -> str:
    """Draw the rooms on an axis of at least ``seconds``; nothing if there is nothing to draw."""
    rows = rows_of(outcomes)
    if not rows:
        return ""
    span = max(seconds, rows[0].end, LEAST_SPAN)
    drawn, kinds = _drawn(rows, span)
    parts = [_legend(kinds), _order(len(rows), len(drawn)), '<div class="rooms">', _axis(span)]
    return "\n".join([*parts, "<ol>", *drawn, "</ol>", "</div>"])


def _drawn(rows: Iterable[Row], span: float) -> tuple[list[str], set[Kind | End]]:
    drawn: list[str] = []
    kinds: set[Kind | End] = set()
    count = 0
    for row in rows:
        if len(drawn) == MOST_ROWS or count >= MOST_BARS:
            break
        bars, ends = [*row.bars()], [*row.ends()]
        drawn.append(_row(row, bars, ends, span))
        kinds.update(bar.kind for bar in bars)
        kinds.update(kind for kind, _ in ends)
        count += len(bars)
    return drawn, kinds


def _row(
    row: Row, bars: Iterable[Bar], ends: Iterable[tuple[End, UploadOutcome]], span: float
) -> str:
    shapes = [*(_rect(bar, span) for bar in bars), *(_mark(*end, span) for end in ends)]
    share = f"{row.good:,} of {len(row.outcomes):,}"
    trouble = ' class="trouble"' if row.has_trouble else ""
    return (
        f'<li><span class="room" title="{plain(row.room_id)}">{isolated(row.room_id)}</span>'
        f"<small{trouble}>{share}</small>"
        f'<svg class="row" xmlns="http://www.w3.org/2000/svg" width="100%" height="{ROW_HEIGHT}" '
        f'role="img" aria-label="{plain(row.summary())}"><use href="#grid"/>'
        f"{''.join(shapes)}</svg></li>"
    )


def _percent(seconds: float, span: float) -> str:
    return f"{round(100 * seconds / span, 3):g}"


def _rect(bar: Bar, span: float) -> str:
    top, height = _BOXES[bar.kind]
    width = max(100 * (bar.end - bar.start) / span, LEAST_WIDTH)
    start = min(bar.start, span * (1 - LEAST_WIDTH / 100))
    return (
        f'<rect class="{bar.kind}" x="{_percent(start, span)}%" y="{top}" '
        f'width="{round(width, 3):g}%" height="{height}"><title>{plain(bar.title)}</title></rect>'
    )


def _mark(kind: End, outcome: UploadOutcome, span: float) -> str:
    at = _percent(outcome.started + outcome.seconds, span)
    title = f"{shortened(outcome.document, NAME_LENGTH)}: {WORDS[kind]}"
    return (
        f'<circle class="{kind}" cx="{at}%" cy="{ROW_HEIGHT // 2}" r="4">'
        f"<title>{plain(title)}</title></circle>"
    )


def _axis(span: float) -> str:
    step = step_of(span)
    ticks = [step * number for number in range(int(span / step + 1e-9) + 1)]
    lines = "".join(f'<line x1="{_percent(t, span)}%" x2="{_percent(t, span)}%" y2="100%"/>'
                    for t in ticks)  # fmt: skip
    labels = "".join(_label(number, tick, span) for number, tick in enumerate(ticks))
    return (
        '<svg class="axis" xmlns="http://www.w3.org/2000/svg" width="100%" height="24" role="img" '
        f'aria-label="Time axis from 0 to {duration(span)}"><g id="grid">{lines}</g>{labels}</svg>'
    )


def _label(number: int, tick: float, span: float) -> str:
    share = tick / span
    anchor = "start" if share < 0.03 else "end" if share > 0.95 else "middle"
    odd = ' class="odd"' if number % 2 else ""
    text = moment(round(tick, 6), span)
    return f'<text{odd} x="{_percent(tick, span)}%" y="12" text-anchor="{anchor}">{text}</text>'


def _legend(kinds: set[Kind | End]) -> str:
    items = [f"<li>{_sample(kind)}{words}</li>" for kind, words in WORDS.items() if kind in kinds]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _sample(kind: Kind | End) -> str:
    if box := _BOXES.get(kind):
        shape = f'<rect class="{kind}" x="1" y="{box[0]}" width="22" height="{box[1]}"/>'
    else:
        shape = f'<circle class="{kind}" cx="50%" cy="{ROW_HEIGHT // 2}" r="4"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="24" height="{ROW_HEIGHT}" '
        f'aria-hidden="true">{shape}</svg>'
    )


def _order(rooms: int, drawn: int) -> str:
    order = (
        "The room that ended last comes first, then those with documents that did not get in, "
        "then the others, the later they ended the sooner."
    )
    if drawn == rooms:
        return f'<p class="note">{order}</p>' if rooms > 1 else ""
    left = f"Drawn are the first {drawn:,} of {rooms:,} rooms; the other {rooms - drawn:,} are in "
    return f'<p class="note">{order} {left}the <a href="#outcomes">table</a> only.</p>'
