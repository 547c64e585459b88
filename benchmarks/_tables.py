"""The tables: targets first, then ratios, then the figures they come from.

They are rows of text; :mod:`benchmarks._report` and :mod:`benchmarks._page` lay them out.
"""

from __future__ import annotations

import attrs

from benchmarks._client import OURS
from benchmarks._comparison import Comparison, Spread, Verdict
from benchmarks._section import Findings

UNKNOWN = "-"


@attrs.frozen
class Table:
    """Rows of cells below a heading."""

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def targets(findings: Findings) -> Table:
    """Set targets and what was reached side by side."""
    heading = ("task", "target", "reached", "met")
    return Table(
        heading,
        tuple(
            (comparison.task.title, _target(verdict), _reached(verdict), _met(verdict))
            for section in findings.sections
            for comparison in section.comparisons
            for verdict in comparison.verdicts()
        ),
    )


def _target(verdict: Verdict) -> str:
    sign = ">=" if verdict.column.more_is_better else "<="
    bound = f"{verdict.column.title} {sign} {verdict.target.bound:g}"
    if verdict.target.peer is None:
        return bound
    name = verdict.target.peer
    best = f" ({verdict.peer})" if verdict.peer and verdict.peer != name else ""
    return f"{bound} x {name}{best}"


def _reached(verdict: Verdict) -> str:
    if verdict.target.peer is not None:
        return _cell(verdict.reached, 2, " x")
    return _cell(verdict.reached, verdict.column.decimals)


def _met(verdict: Verdict) -> str:
    return {True: "yes", False: "no", None: UNKNOWN}[verdict.is_met]


def ratios(comparison: Comparison) -> Table:
    """Divide ours by each peer's."""
    columns = comparison.task.columns
    return Table(
        (f"{OURS} /", *(column.title for column in columns)),
        tuple(
            (name, *(_cell(comparison.ratio(column, name), 2, " x") for column in columns))
            for name in comparison.peers
        ),
    )


def figures(comparison: Comparison) -> Table:
    """Give the figures of every client."""
    columns = comparison.task.columns
    return Table(
        ("", *(column.title for column in columns)),
        tuple(
            (name, *(_cell(comparison.figure(c, name), c.decimals) for c in columns))
            for name in comparison.roles
        ),
    )


def _cell(spread: Spread | None, decimals: int, unit: str = "") -> str:
    return UNKNOWN if spread is None else spread.text(decimals, unit)
