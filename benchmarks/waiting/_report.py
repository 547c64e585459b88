"""The report in Markdown: targets first, then the tables that they come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.waiting import _holds, _strategies
from benchmarks.waiting._simulation import Meeting
from benchmarks.waiting._study import Crowd, Single, Study, better
from benchmarks.waiting._tally import percentile
from benchmarks.waiting._targets import OURS, PROBING, targets

Row = Sequence[str]


def text(study: Study) -> str:
    """Return all tables."""
    return "\n".join(_sections(study)) + "\n"


def _sections(study: Study) -> Iterator[str]:
    yield "## Targets\n"
    yield from _table(_targets(study))
    for single in (study.typical, study.slow):
        yield f"\n## One waiter, body of {single.line.seconds:g} s, holds log-uniform 1 to 300 s\n"
        yield from _table(_waiter(single))
        yield "\n### Idle time and bytes re-sent, by shape of the holding times\n"
        yield from _table(_by_shape(single))
    yield "\n## One waiter on every line, mean of the four shapes\n"
    yield from _table(_grid(study))
    meetings: dict[Meeting, str] = {"crowd": "one document each", "steady": "again and again"}
    for meeting, title in meetings.items():
        yield f"\n## 50 contenders, {title}, each holding the room for 5 s on average\n"
        yield from _table(_crowded(study, meeting))
    for crowd in (*study.crowds, *study.long_crowds):
        if len(crowd.sizes) > 1:
            title = f"1 to 50 contenders, one document each, body of {crowd.line.seconds:g} s"
            title += f", holds of {crowd.hold:.0f} s"
            yield f"\n## {title}\n"
            yield "99 % wait in fair shares / idle s / bytes re-sent for each delivered.\n"
            yield from _table(_sizes(crowd))


def _targets(study: Study) -> Iterator[Row]:
    yield ("target", "at most", "reached", "met")
    for target in targets(study):
        figures = [f"{value:.3g} {target.unit}".strip() for value in (target.bound, target.reached)]
        yield (target.text, *figures, "yes" if target.is_met else "**no**")


def _waiter(single: Single) -> Iterator[Row]:
    yield (
        *("", "idle s, mean", "idle s, 99 %", "idle / holding time", "bytes re-sent / delivered"),
        *("time re-sending", "wait s, 50 %", "wait s, 99 %"),
    )
    for name, tally in single.shapes["log-uniform"].items():
        yield (
            *(name, f"{tally.idle:.2f}", f"{percentile(tally.idles, 0.99):.1f}"),
            *(f"{tally.idle_share:.1%}", f"{tally.resent + tally.probed_share:.3g}"),
            *(f"{tally.resending:.1%}", f"{tally.wait(0.5):.1f}", f"{tally.wait(0.99):.0f}"),
        )


def _by_shape(single: Single) -> Iterator[Row]:
    yield ("", *single.shapes)
    for strategy in _strategies.ALL:
        cells = [tallies[strategy.name] for tallies in single.shapes.values()]
        yield (strategy.name, *(f"{tally.idle_share:.1%} / {tally.resent:.3g}" for tally in cells))


def _grid(study: Study) -> Iterator[Row]:
    yield (
        *("document", "Mbit/s", "body s", "idle s", "bytes re-sent / delivered"),
        *("better on both", "probe: begins after s", "probe: bytes / delivered"),
    )
    for single in study.grid:
        found = {f"{peer} ({shape})" for shape, peer in single.better()}
        yield (
            *(f"{single.line.size / 1e6:g} MB", f"{single.line.megabits_per_second:g}"),
            *(f"{single.line.seconds:.3g}", f"{single.mean(OURS, lambda t: t.idle):.1f}"),
            *(f"{single.mean(OURS, lambda t: t.resent):.2f}", ", ".join(sorted(found)) or "none"),
            f"{single.mean(PROBING, lambda t: t.lag):.2f}",
            f"{single.mean(PROBING, lambda t: t.resent + t.probed_share):.2%}",
        )


def _crowded(study: Study, meeting: Meeting) -> Iterator[Row]:
    crowds = [crowd for crowd in study.crowds if crowd.meeting == meeting]
    heads = ("99 % wait / fair share", "bytes re-sent / delivered", "idle s")
    yield ("", *(f"{crowd.line.seconds:g} s body: {head}" for crowd in crowds for head in heads))
    for strategy in _strategies.ALL:
        yield (strategy.name, *(cell for crowd in crowds for cell in _shared(crowd, strategy.name)))


def _shared(crowd: Crowd, name: str) -> Iterator[str]:
    tally = crowd.sizes[50][name]
    yield f"{crowd.unfairness(50, name):.2f}"
    yield f"{tally.resent + tally.probed_share:.3g}"
    yield f"{tally.idle:.2f}"


def _sizes(crowd: Crowd) -> Iterator[Row]:
    yield ("", *(str(number) for number in crowd.sizes))
    for strategy in _strategies.ALL:
        yield (strategy.name, *(_size(crowd, number, strategy.name) for number in crowd.sizes))
    found = [", ".join(better(tallies)) or "none" for tallies in crowd.sizes.values()]
    yield ("better on both", *found)


def _size(crowd: Crowd, number: int, name: str) -> str:
    tally = crowd.sizes[number][name]
    return f"{crowd.unfairness(number, name):.2f} / {tally.idle:.1f} / {tally.resent:.3g}"


def _table(rows: Iterator[Row]) -> Iterator[str]:
    heading = next(rows)
    yield _line(heading)
    yield _line(["---", *(["--:"] * (len(heading) - 1))])
    yield from (_line(row) for row in rows)


def _line(cells: Row) -> str:
    return f"| {' | '.join(cells)} |"


def notes(study: Study) -> Iterator[str]:
    """Say how the figures came about."""
    effort = study.effort
    yield f"{study.hours:,.0f} hours simulated; seed {effort.seed}."
    yield f"Mean holding time {_holds.MEAN:.1f} s in every shape; never above {_holds.WINDOW:g} s."
