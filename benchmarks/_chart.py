"""A chart: a panel for each comparison, a bar for each client.

SVG, written by hand: a few KiB, no script, no fonts, no ids, no dates, so that another run changes
nothing but figures. It follows the reader's light or dark mode, also within an ``<img>``.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

import attrs

from benchmarks._client import Role
from benchmarks._comparison import Column, Comparison, Spread
from benchmarks._section import Section

_WIDTH = 720
_LABEL_WIDTH = 176
_VALUE_WIDTH = 76
_BAR_HEIGHT = 16
_ROW_HEIGHT = 24
_PANEL_GAP = 20
_TITLE_HEIGHT = 30
_FOOT_HEIGHT = 22
_SCALE_WIDTH = _WIDTH - _LABEL_WIDTH - _VALUE_WIDTH

_STYLE = """\
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1f2328}
.title{font-weight:600}.foot{font-size:11px;fill:#59636e}
.label{text-anchor:end}.ours{fill:#0969da}.variant{fill:#54aeff}.peer{fill:#afb8c1}
.ceiling{fill:none;stroke:#afb8c1;stroke-dasharray:3 3}.range{stroke:#1f2328;stroke-width:1.5}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.foot{fill:#9198a1}.ours{fill:#4493f8}
.variant{fill:#1f6feb}.peer{fill:#656c76}.ceiling{stroke:#656c76}.range{stroke:#f0f6fc}}"""


_FAR = 2
"""A ceiling so many times as high as the best client would leave no room for the clients."""


@attrs.frozen
class _Bar:
    name: str
    role: Role
    figure: Spread


def svg(section: Section) -> str:
    """Draw the first figure of each comparison; each panel has a scale of its own."""
    parts: list[str] = []
    top = 0
    for comparison in section.comparisons:
        parts += _panel(comparison, top)
        top += _height(comparison) + _PANEL_GAP
    parts.append(_text(8, top, "foot", _foot(section)))
    height = top + _FOOT_HEIGHT
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img" aria-label={quoteattr(section.title)}>'
    )
    return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</svg>"]) + "\n"


def _bars(comparison: Comparison) -> list[_Bar]:
    """Our own first, then the others, the best on top; no ceiling that is out of sight."""
    column = comparison.task.columns[0]
    bars = [
        _Bar(name, role, figure)
        for name, role in comparison.roles.items()
        if (figure := comparison.figure(column, name))
    ]
    clients = [bar.figure.median for bar in bars if bar.role is not Role.CEILING]
    farthest = _FAR * max(clients, default=0.0)
    bars = [bar for bar in bars if bar.role is not Role.CEILING or bar.figure.median <= farthest]
    sign = -1 if column.more_is_better else 1
    order = [Role.OURS, Role.VARIANT, Role.PEER, Role.CEILING]
    return sorted(bars, key=lambda bar: (order.index(bar.role), sign * bar.figure.median))


def _foot(section: Section) -> str:
    foot = "Bars: medians. Lines: the range over the rounds."
    drawn = [bar.role for comparison in section.comparisons for bar in _bars(comparison)]
    return f"{foot} Dashed: no client, a bare loop." if Role.CEILING in drawn else foot


def _height(comparison: Comparison) -> int:
    return _TITLE_HEIGHT + _ROW_HEIGHT * len(_bars(comparison))


def _panel(comparison: Comparison, top: int) -> Iterator[str]:
    column = comparison.task.columns[0]
    better = "more" if column.more_is_better else "less"
    yield _text(
        8, top + 20, "title", f"{comparison.task.title}: {column.title}, {better} is better"
    )
    bars = _bars(comparison)
    scale = _SCALE_WIDTH / (max([bar.figure.high for bar in bars], default=0.0) or 1.0)
    for index, bar in enumerate(bars):
        yield from _row(bar, column, scale, top + _TITLE_HEIGHT + index * _ROW_HEIGHT)


def _row(bar: _Bar, column: Column, scale: float, top: int) -> Iterator[str]:
    """Draw one bar with its name, its range and its value."""
    low, median, high = (
        round(_LABEL_WIDTH + value * scale, 1)
        for value in (bar.figure.low, bar.figure.median, bar.figure.high)
    )
    middle = top + _BAR_HEIGHT / 2
    yield _text(_LABEL_WIDTH - 8, top + 13, "label", bar.name)
    yield (
        f'<rect class="{bar.role.value}" x="{_LABEL_WIDTH}" y="{top}" '
        f'width="{round(median - _LABEL_WIDTH, 1)}" height="{_BAR_HEIGHT}" rx="2"/>'
    )
    if high > low:
        yield f'<path class="range" d="M{low} {middle:g}H{high}"/>'
    yield _text(high + 6, top + 13, "value", f"{bar.figure.median:.{column.decimals}f}")


def _text(x: float, y: float, kind: str, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'
