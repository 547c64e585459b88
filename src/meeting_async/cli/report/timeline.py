"""When each room was sent to: where the bars of the page are, as shares of its time axis.

Positions are per cent of the width, so that a row is as wide as the page allows. Kinds differ in
height and outline, not by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from meeting_async import Attempt, UploadOutcome, Verdict
from meeting_async.cli.words import duration, shortened

MOST_ROWS = 200
"""Rooms that are drawn; more rows than anybody looks through make a page slow."""

LEAST_WAIT = 0.001
"""Seconds; what is shorter is arithmetic, not a wait."""

_KINDS = {
    "send": ("sending", 3, 16),
    "work": ("processing, until the answer", 6, 10),
    "wait": ("waiting for the room or for another try", 10, 2),
    "busy": ("attempt refused: the room was taken (409)", 4, 14),
    "lost": ("attempt cut off or postponed", 4, 14),
    "bad": ("refused or failed", 7, 8),
    "unknown": ("may or may not have arrived", 7, 8),
}
"""The legend; top and height of each kind in pixels."""

_LOST = {Verdict.BUSY: "busy"} | dict.fromkeys(
    (Verdict.NEVER_SENT, Verdict.PARTIAL, Verdict.THROTTLED), "lost"
)


@attrs.frozen
class Bar:
    """A stretch of a row; times are seconds after the beginning of the batch."""

    kind: str
    start: float
    end: float
    title: str


def timeline(outcomes: Iterable[UploadOutcome], seconds: float) -> dict[str, Any] | None:
    """Return what the page draws; ``None`` if nothing was tried."""
    rooms: dict[str, list[UploadOutcome]] = {}
    for outcome in outcomes:
        if outcome.attempts or (outcome.status != "skipped" and outcome.seconds >= LEAST_WAIT):
            rooms.setdefault(outcome.room_id, []).append(outcome)
    if not rooms:
        return None
    ordered = sorted(rooms.items(), key=_urgency)
    span = max(seconds, LEAST_WAIT, *(_end(mine) for mine in rooms.values()))
    rows = [_row(room_id, mine, span) for room_id, mine in ordered[:MOST_ROWS]]
    used = {bar["kind"] for row in rows for bar in row["bars"]}
    return {
        "span": duration(span),
        "ticks": [(f"{share}%", duration(span * share / 100)) for share in (0, 25, 50, 75, 100)],
        "legend": [(kind, *facts) for kind, facts in _KINDS.items() if kind in used],
        "rows": rows,
        "left_out": len(rooms) - len(rows),
    }


def _urgency(item: tuple[str, Sequence[UploadOutcome]]) -> tuple[bool, float]:
    """Sort rooms with trouble first, then those that ended last."""
    return all(outcome.delivered for outcome in item[1]), -_end(item[1])


def _end(outcomes: Iterable[UploadOutcome]) -> float:
    return max(outcome.started + outcome.seconds for outcome in outcomes)


def _row(room_id: str, outcomes: Sequence[UploadOutcome], span: float) -> dict[str, Any]:
    bars = [bar for outcome in outcomes for bar in bars_of(outcome)]
    bars.sort(key=lambda bar: bar.kind != "wait")  # what is drawn later is on top
    there = sum(outcome.delivered for outcome in outcomes)
    return {
        "room": room_id,
        "share": f"{there:,} of {len(outcomes):,}",
        "is_trouble": there < len(outcomes),
        "bars": [_drawn(bar, span) for bar in bars],
    }


def _drawn(bar: Bar, span: float) -> dict[str, Any]:
    _, top, height = _KINDS[bar.kind]
    width = max(100 * (bar.end - bar.start) / span, 0.2)
    left = min(100 * bar.start / span, 100 - width)
    shape = {"x": f"{left:.3f}%", "width": f"{width:.3f}%", "y": top, "height": height}
    return {"kind": bar.kind, "title": bar.title, **shape}


def bars_of(outcome: UploadOutcome) -> Iterator[Bar]:
    """Yield the bars of one document: attempts, the waits around them, and a bad end."""
    name = shortened(outcome.document, 60)
    reached, end = outcome.started, outcome.started + outcome.seconds
    for attempt in outcome.attempts:
        begin = outcome.started + attempt.started
        yield from _wait(name, reached, begin)
        yield from _tried(name, attempt, begin)
        reached = begin + attempt.seconds
    yield from _wait(name, reached, end)
    if not outcome.delivered:
        kind = "unknown" if outcome.status == "unknown" else "bad"
        yield Bar(kind, end, end, f"{name}: {_KINDS[kind][0]}")


def _wait(name: str, start: float, end: float) -> Iterator[Bar]:
    if end - start >= LEAST_WAIT:
        yield _bar("wait", f"{name}: waiting", start, end)


def _tried(name: str, attempt: Attempt, start: float) -> Iterator[Bar]:
    label, end = f"{name}, attempt {attempt.number}", start + attempt.seconds
    if kind := _LOST.get(attempt.verdict):
        yield _bar(kind, f"{label}: {attempt.reason}", start, end)
        return
    sent = end if attempt.body_seconds is None else min(start + attempt.body_seconds, end)
    yield _bar("send", f"{label}: sending", start, sent)
    if sent < end:
        yield _bar("work", f"{label}: processing", sent, end)


def _bar(kind: str, title: str, start: float, end: float) -> Bar:
    return Bar(kind, start, end, f"{title} for {duration(end - start)} after {duration(start)}")
