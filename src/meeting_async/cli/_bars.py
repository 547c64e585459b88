"""What each room of a batch saw: stretches of sending, processing and waiting. No drawing yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

import attrs

from meeting_async import Attempt, Verdict
from meeting_async._jobs import UploadOutcome
from meeting_async.cli._amounts import counted, duration
from meeting_async.cli._markup import shortened

LEAST_WAIT = 0.001
"""Seconds; what is shorter is arithmetic, not a wait."""

NAME_LENGTH = 60
"""Characters of a document's name beside each of its bars; the table has it whole."""

Kind = Literal["wait", "send", "work", "busy", "lost"]
"""``busy`` and ``lost`` are attempts in vain: refused with 409, and cut off or put off."""

End = Literal["bad", "unknown"]
"""How a document ended that is not in its room."""

_TITLES: dict[Kind, str] = {
    "send": "sending",
    "work": "processing",
    "wait": "waiting",
    "busy": "room taken (409)",
    "lost": "in vain",
}

_VAIN: dict[str, Kind] = {
    Verdict.BUSY.value: "busy",
    Verdict.NEVER_SENT.value: "lost",
    Verdict.PARTIAL.value: "lost",
    Verdict.THROTTLED.value: "lost",
}


@attrs.frozen
class Bar:
    """What a room saw for a while; times are seconds after the beginning of the batch."""

    kind: Kind
    start: float
    end: float
    title: str


@attrs.frozen
class Row:
    """A room, and what became of its documents."""

    room_id: str
    outcomes: Sequence[UploadOutcome]

    @property
    def end(self) -> float:
        """When its last document was over, in seconds after the beginning of the batch."""
        return max(outcome.started + outcome.seconds for outcome in self.outcomes)

    @property
    def good(self) -> int:
        """How many of its documents are in it."""
        return sum(outcome.is_good for outcome in self.outcomes)

    @property
    def has_trouble(self) -> bool:
        """Whether a document is not in it, as far as is known."""
        return self.good < len(self.outcomes)

    def bars(self) -> Iterator[Bar]:
        """Yield its bars, waiting first: what is drawn later is on top."""
        bars = [*chain.from_iterable(map(bars_of, self.outcomes))]
        yield from sorted(bars, key=lambda bar: bar.kind != "wait")

    def ends(self) -> Iterator[tuple[End, UploadOutcome]]:
        """Yield the documents that were tried and did not get in, as far as is known."""
        for outcome in self.outcomes:
            if outcome.status != "skipped" and not outcome.is_good:
                yield ("unknown" if outcome.status == "unknown" else "bad"), outcome

    def summary(self) -> str:
        """Say in a sentence what its bars show, for those who do not see them."""
        seconds: dict[Kind, float] = dict.fromkeys(_TITLES, 0.0)
        for bar in self.bars():
            seconds[bar.kind] += bar.end - bar.start
        parts = [f"{_TITLES[kind]} {duration(time)}" for kind, time in seconds.items() if time]
        there = f"{self.good:,} of {counted(len(self.outcomes), 'document')} in the room"
        return f"{self.room_id}: {', '.join([there, *parts])}; over after {duration(self.end)}"


def bars_of(outcome: UploadOutcome) -> Iterator[Bar]:
    """Yield the bars of one document: its attempts, and the waits before, between and after."""
    name = shortened(outcome.document, NAME_LENGTH)
    reached = outcome.started
    for attempt in outcome.attempts:
        begin = outcome.started + attempt.started
        yield from _wait(name, reached, begin)
        yield from _tried(name, attempt, begin)
        reached = begin + attempt.seconds
    yield from _wait(name, reached, outcome.started + outcome.seconds)


def _wait(name: str, start: float, end: float) -> Iterator[Bar]:
    if end - start >= LEAST_WAIT:
        yield _bar("wait", name, start, end)


def _tried(name: str, attempt: Attempt, start: float) -> Iterator[Bar]:
    label, end = f"{name}, attempt {attempt.number}", start + attempt.seconds
    if kind := _VAIN.get(attempt.verdict):
        reason = f": {attempt.reason}" if kind == "lost" else ""
        yield _bar(kind, label + reason, start, end)
        return
    out = end if attempt.body_seconds is None else min(start + attempt.body_seconds, end)
    yield _bar("send", label, start, out)
    if out < end:
        yield _bar("work", label, out, end)


def _bar(kind: Kind, label: str, start: float, end: float) -> Bar:
    title = f"{label}: {_TITLES[kind]} for {duration(end - start)} from {duration(start)} on"
    return Bar(kind, start, end, title)


def rows_of(outcomes: Iterable[UploadOutcome]) -> list[Row]:
    """Sort rooms by interest: the one that ended last, those with trouble, the others from the end.

    A room whose documents were all skipped at once has no row: there is nothing to see.
    """
    rooms: dict[str, list[UploadOutcome]] = {}
    for outcome in outcomes:
        rooms.setdefault(outcome.room_id, []).append(outcome)
    rows = [
        Row(room_id, mine)
        for room_id, mine in rooms.items()
        if any(outcome.status != "skipped" or outcome.seconds >= LEAST_WAIT for outcome in mine)
    ]
    last = max((row.end for row in rows), default=0.0)
    return sorted(rows, key=lambda row: (row.end < last, not row.has_trouble, -row.end))
