"""Charts over the speed of the line, as SVG written by hand: no script, no fonts, no dates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from xml.sax.saxutils import escape, quoteattr

import attrs

from benchmarks.waiting._room import Tally
from benchmarks.waiting._strategies import FIRST, OURS
from benchmarks.waiting._study import CROWD, CROWD_HOLDS, Study

WIDTH, HEIGHT = 380, 300
"""Units: about the pixels of a phone, on which the texts must be legible."""
SHOWN = 1.5
"""So much larger where there is room."""
LEFT, RIGHT, TOP, BOTTOM = 36, 364, 62, 250
LEGEND = (8, 132, 250)
"""Where the names begin."""
_STYLE = """\
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1f2328}
.title{font-weight:600}.tick{font-size:12px;fill:#59636e}
.right{text-anchor:end}.middle{text-anchor:middle}.axis{stroke:#d1d9e0}
polyline{fill:none;stroke-width:2}
.c0{stroke:#0969da;fill:#0969da}.c1{stroke:#9a6700;fill:#9a6700}.c2{stroke:#59636e;fill:#59636e}
polyline.c0,polyline.c1,polyline.c2{fill:none}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.tick{fill:#9198a1}.axis{stroke:#3d444d}
.c0{stroke:#4493f8;fill:#4493f8}.c1{stroke:#d29922;fill:#d29922}.c2{stroke:#9198a1;fill:#9198a1}}"""

NAMES = (OURS, FIRST, "every second")
"""What is drawn; the oracle is always at 0."""


def charts(study: Study) -> dict[str, str]:
    """Return each chart by its file's name."""
    start = _series(study, lambda line, name: study.worst(line, name, _mean_start))
    again = _series(study, lambda line, name: study.worst(line, name, lambda t: t.resent))
    crowd = _series(study, lambda line, name: study.crowds[line, CROWD_HOLDS[0]][name].resent)
    lines = study.effort.lines
    return {
        "start": _svg("One waiter: seconds from the release to the start", lines, start),
        "again": _svg("One waiter: documents re-sent for each delivered", lines, again),
        "crowd": _svg(f"{CROWD} contenders: bytes re-sent for each delivered", lines, crowd),
    }


def _mean_start(tally: Tally) -> float:
    return statistics.fmean(tally.starts)


Series = dict[str, list[float]]


def _series(study: Study, figure: Callable[[int, str], float]) -> Series:
    return {name: [figure(line, name) for line in study.effort.lines] for name in NAMES}


@attrs.frozen
class _Scale:
    """A logarithmic axis from one value to another, between two positions."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return round(self.start + part * (self.end - self.start), 1)


def _svg(title: str, lines: Sequence[int], series: Series) -> str:
    parts = [f"<style>{_STYLE}</style>", _text(8, 20, "title", title)]
    parts += _drawn(lines, series)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH * SHOWN:g}" height="{HEIGHT * SHOWN:g}" role="img" '
        f"aria-label={quoteattr(title)}>"
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _drawn(lines: Sequence[int], series: Series) -> Iterator[str]:
    across = _Scale(min(lines), max(lines), LEFT, RIGHT)
    values = [value for row in series.values() for value in row]
    up = _Scale(max(min(values) / 1.3, 0.1), max(values) * 1.3, BOTTOM, TOP)
    yield from _axes(across, up, lines)
    for index, (name, row) in enumerate(series.items()):
        points = [(across(line), up(value)) for line, value in zip(lines, row, strict=True)]
        path = " ".join(f"{x},{y}" for x, y in points)
        yield f'<polyline class="c{index}" points="{path}"/>'
        yield from (f'<circle class="c{index}" cx="{x}" cy="{y}" r="3"/>' for x, y in points)
        yield f'<circle class="c{index}" cx="{LEGEND[index] + 4}" cy="42" r="4"/>'
        yield _text(LEGEND[index] + 14, 46, "name", name)


def _axes(across: _Scale, up: _Scale, lines: Sequence[int]) -> Iterator[str]:
    for line in lines:
        yield f'<path class="axis" d="M{across(line)} {TOP}V{BOTTOM}"/>'
        yield _text(across(line), BOTTOM + 16, "tick middle", f"{line}")
    for power in range(-1, 4):
        for value in (10.0**power, 3 * 10.0**power):
            if up.low <= value <= up.high:
                yield f'<path class="axis" d="M{LEFT} {up(value)}H{RIGHT}"/>'
                yield _text(LEFT - 6, up(value) + 4, "tick right", f"{value:g}")
    yield _text(RIGHT, BOTTOM + 34, "tick right", "Mbit/s; a document of 30 MiB")


def _text(x: float, y: float, kind: str, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'
