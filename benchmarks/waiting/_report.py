"""The report in Markdown: targets first, then the tables that they come from."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from benchmarks.waiting._room import Tally, percentile
from benchmarks.waiting._strategies import FIRST, OURS, STRATEGIES
from benchmarks.waiting._study import CROWD, CROWD_HOLDS, DOCUMENT_BYTES, Study, targets

Row = Sequence[str]


def text(study: Study) -> str:
    """Return all tables."""
    return "\n".join(_sections(study)) + "\n"


def _sections(study: Study) -> Iterator[str]:
    size = f"{DOCUMENT_BYTES / 2**20:g} MiB"
    yield "## Targets\n"
    yield from _table(_targets(study))
    yield f"\n## One waiter, a document of {size}\n"
    yield "Seconds from the release of the room to the start of the document / documents re-sent"
    yield "after a 409. Means; of three kinds of locks the worst.\n"
    yield from _table(_single(study))
    yield "\n## One waiter, a server that answers an empty form without looking at its lock\n"
    yield "Documents re-sent after a 409, as above.\n"
    yield from _table(_lied_to(study))
    yield f"\n## {CROWD} contenders, {size} each\n"
    yield "Each has its own line and process. Bytes re-sent for each delivered one / seconds that a"
    yield "free room is not used, mean / seconds that 99 % of the uploads wait at most."
    for hold in CROWD_HOLDS:
        yield f"\n### Locks of {hold:g} s on average\n"
        yield from _table(_crowds(study, hold))


def _targets(study: Study) -> Iterator[Row]:
    yield ("target", "at most", "reached", "met")
    for target in targets(study):
        bound = f"{'below ' if target.is_strict else ''}{target.bound:g} {target.unit}".strip()
        reached = f"{target.reached:.3g} {target.unit}".strip()
        yield (target.text, bound, reached, "yes" if target.is_met else "**no**")


def _shown(study: Study) -> Sequence[int]:
    """Return the lines of the tables: every second one. The charts have all."""
    return study.effort.lines[::2]


def _lines(study: Study) -> Row:
    return ("", *(f"{line} Mbit/s" for line in _shown(study)))


def _single(study: Study) -> Iterator[Row]:
    yield _lines(study)
    for name in STRATEGIES:
        yield (name, *(_start(study, line, name) for line in _shown(study)))


def _start(study: Study, line: int, name: str) -> str:
    start = study.worst(line, name, lambda tally: statistics.fmean(tally.starts))
    return f"{start:.2f} / {study.worst(line, name, lambda tally: tally.resent):.2f}"


def _lied_to(study: Study) -> Iterator[Row]:
    yield _lines(study)
    for name in (OURS, FIRST):
        by_line = [
            max(t[name].resent for (key, _), t in study.lied_to.items() if key == line)
            for line in _shown(study)
        ]
        yield (name, *(f"{resent:.2f}" for resent in by_line))


def _crowds(study: Study, hold: float) -> Iterator[Row]:
    yield _lines(study)
    for name in STRATEGIES:
        found = [study.crowds[line, hold][name] for line in _shown(study)]
        yield (name, *(_crowd(tally) for tally in found))
    yield _counted(study, hold, "questions for each document", lambda t: t.questions)
    yield _counted(study, hold, "processes that stopped asking", lambda t: t.disbelieving)


def _counted(study: Study, hold: float, title: str, figure: Callable[[Tally], int]) -> Row:
    tallies = [study.crowds[line, hold][OURS] for line in _shown(study)]
    return (title, *(f"{figure(tally) / len(tally.refused):.2f}" for tally in tallies))


def _crowd(tally: Tally) -> str:
    idle = statistics.fmean(tally.idles)
    return f"{tally.resent:.2f} / {idle:.2f} / {percentile(tally.waits, 0.99):.0f}"


def _table(rows: Iterator[Row]) -> Iterator[str]:
    heading = next(rows)
    yield _line(heading)
    yield _line(["---", *(["--:"] * (len(heading) - 1))])
    yield from (_line(row) for row in rows)


def _line(cells: Row) -> str:
    return f"| {' | '.join(cells)} |"
