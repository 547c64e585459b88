"""Charts, as SVG written by hand: no script, no fonts, no dates, light and dark."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape, quoteattr

import attrs

from benchmarks.waiting import _strategies
from benchmarks.waiting._strategies import Role
from benchmarks.waiting._study import Crowd, Single, Study
from benchmarks.waiting._tally import Tally

WIDTH = 720
_STYLE = """\
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1f2328}
.title{font-weight:600}.foot,.tick{font-size:11px;fill:#59636e}
.label,.right{text-anchor:end}.middle{text-anchor:middle}
.ours{fill:#0969da}.variant{fill:#54aeff}.peer{fill:#afb8c1}.axis{stroke:#d1d9e0}
.curve{fill:none;stroke:#afb8c1;stroke-width:1.5}
.limit{fill:none;stroke:#cf222e;stroke-dasharray:4 3}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.foot,.tick{fill:#9198a1}.ours{fill:#4493f8}
.variant{fill:#1f6feb}.peer{fill:#656c76}.axis{stroke:#3d444d}.curve{stroke:#656c76}
.limit{stroke:#f85149}}"""


def charts(study: Study) -> dict[str, str]:
    """Return each chart by its file's name."""
    return {
        "trade": _svg("Idle time against bytes re-sent", 620, _trade(study)),
        "crowd": _svg("Waits of 50 contenders", *_crowds(study)),
    }


# --- idle time against bytes re-sent -------------------------------------------------------------


@attrs.frozen
class Scale:
    """A logarithmic axis from one value to another, between two positions."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + part * (self.end - self.start), 1)

    def ticks(self) -> Iterator[float]:
        """Yield 1, 2, 5, 10 ... as far as they are on the axis."""
        for power in range(-3, 4):
            for digit in (1, 2, 5):
                value = digit * 10.0**power
                if self.low <= value <= self.high:
                    yield value


def _trade(study: Study) -> Iterator[str]:
    panels = ((study.typical, "typical"), (study.slow, "slow"))
    for top, (single, key) in zip((0, 300), panels, strict=True):
        yield from _plane(single, study.curves[key], top)
    foot = "Mean of four shapes of holding times. Line: fixed delays. Lower left is better."
    yield _text(8, 612, "foot", foot)


def _idle(tally: Tally) -> float:
    return 100 * tally.idle_share


def _resent(tally: Tally) -> float:
    return tally.resent


def _plane(single: Single, curve: Single, top: float) -> Iterator[str]:
    points = [
        (single.mean(name, _resent), single.mean(name, _idle), name, role)
        for name, role in _drawn()
    ]
    line = [(curve.mean(name, _resent), curve.mean(name, _idle)) for name in _names(curve)]
    across = Scale(*_range([x for x, *_ in points]), 60, WIDTH - 20)
    up = Scale(*_range([y for _, y, *_ in points]), top + 262, top + 34)
    title = f"Body of {single.line.seconds:g} s: idle time, % of the mean holding time"
    yield _text(8, top + 20, "title", title)
    yield from _axes(across, up, top)
    inside = [p for p in line if across.low <= p[0] <= across.high and up.low <= p[1] <= up.high]
    path = " ".join(f"{across(x)},{up(y)}" for x, y in inside)
    yield f'<polyline class="curve" points="{path}"/>'
    dots = [(across(x), up(y)) for x, y, *_ in points]
    for (x, y), (*_, role) in zip(dots, points, strict=True):
        yield f'<circle class="{role.value}" cx="{x}" cy="{y}" r="5"/>'
    yield from _labels(dots, [name for _, _, name, _ in points])


Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""

_PLACES = tuple((dx, dy) for dy in (4, -10, 20, -24, 34, -38, 48) for dx in (9, -9))
"""Where a label may stand beside its dot, best first."""


def _labels(dots: Sequence[tuple[float, float]], names: Sequence[str]) -> Iterator[str]:
    """Write each name where it covers neither a dot nor another name."""
    taken: list[Box] = [(x - 5, y - 5, x + 5, y + 5) for x, y in dots]
    for (x, y), name in zip(dots, names, strict=True):
        boxes = [_box(x + dx, y + dy, name, left=dx < 0) for dx, dy in _PLACES]
        free = [box for box in boxes if not any(_overlap(box, other) for other in taken)]
        box = (free or boxes)[0]
        taken.append(box)
        yield _text(box[0], box[3] - 3, "point", name)


def _box(x: float, y: float, name: str, *, left: bool) -> Box:
    width = 7.4 * len(name)
    start = x - width if left else x
    return (start, y - 10, start + width, y + 3)


def _overlap(one: Box, other: Box) -> bool:
    apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    return not apart or one[0] < 60 or one[2] > WIDTH


def _axes(across: Scale, up: Scale, top: float) -> Iterator[str]:
    for x in across.ticks():
        yield f'<path class="axis" d="M{across(x)} {top + 34}V{top + 262}"/>'
        yield _text(across(x), top + 276, "tick middle", f"{x:g}")
    for y in up.ticks():
        yield f'<path class="axis" d="M60 {up(y)}H{WIDTH - 20}"/>'
        yield _text(54, up(y) + 4, "tick right", f"{y:g}")
    yield _text(WIDTH - 20, top + 291, "tick right", "bytes re-sent for each byte delivered")


def _drawn() -> Iterator[tuple[str, Role]]:
    """Yield what has a place on the plane: the probe re-sends nothing, the oracle is never late."""
    for strategy in _strategies.ALL:
        if strategy.role in {Role.OURS, Role.PEER}:
            yield strategy.name, strategy.role


def _names(single: Single) -> Sequence[str]:
    return list(next(iter(single.shapes.values())))


def _range(values: Sequence[float]) -> tuple[float, float]:
    return min(values) / 1.4, max(values) * 1.6


# --- bars of the crowds --------------------------------------------------------------------------

_LABEL = 160
_BAR = 16
_ROW = 22


def _crowds(study: Study) -> tuple[int, Iterator[str]]:
    height = 44 + len(_strategies.ALL) * _ROW
    return height * len(study.crowds) + 22, _all_crowds(study, height)


def _all_crowds(study: Study, height: int) -> Iterator[str]:
    for index, crowd in enumerate(study.crowds):
        yield from _bars(crowd, index * height)
    foot = "99 % of the waits are below. Fair share: the time in which all have the room once."
    yield _text(8, height * len(study.crowds) + 14, "foot", f"{foot} Dashed: 3.")


def _bars(crowd: Crowd, top: int) -> Iterator[str]:
    kind = "one document each" if crowd.meeting == "crowd" else "again and again"
    title = f"50 contenders, {kind}, body of {crowd.line.seconds:g} s: 99 % wait in fair shares"
    yield _text(8, top + 20, "title", title)
    values = {s: crowd.unfairness(50, s.name) for s in _strategies.ALL}
    scale = (WIDTH - _LABEL - 60) / max(3.0, *values.values())
    for index, (strategy, value) in enumerate(values.items()):
        y = top + 30 + index * _ROW
        role = Role.PEER if strategy.role is Role.ORACLE else strategy.role
        yield _text(_LABEL - 8, y + 13, "label", strategy.name)
        yield (
            f'<rect class="{role.value}" x="{_LABEL}" y="{y}" width="{value * scale:.1f}" '
            f'height="{_BAR}" rx="2"/>'
        )
        yield _text(_LABEL + value * scale + 6, y + 13, "value", f"{value:.2f}")
    x = round(_LABEL + 3 * scale, 1)
    yield f'<path class="limit" d="M{x} {top + 28}V{top + 30 + len(values) * _ROW}"/>'


# --- SVG -----------------------------------------------------------------------------------------


def _svg(title: str, height: int, parts: Iterator[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label={quoteattr(title)}>'
    )
    return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, kind: str, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'
