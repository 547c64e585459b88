"""The report: as text for people, as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from benchmarks import _tables
from benchmarks._comparison import Comparison, Spread
from benchmarks._section import Findings


def text(findings: Findings) -> str:
    """Write everything: targets, ratios, figures, notes, and on what it was measured."""
    blocks = [*_blocks(findings), *(section.notes for section in findings.sections)]
    return "\n\n".join([*blocks, "\n".join(_facts(findings))])


def _blocks(findings: Findings) -> Iterator[str]:
    targets = _tables.targets(findings)
    if targets.rows:
        yield _laid_out(targets)
    comparisons = [found for section in findings.sections for found in section.comparisons]
    for table in (_tables.ratios, _tables.figures):
        for comparison in comparisons:
            yield f"{comparison.task.title}\n{_laid_out(table(comparison))}"


def _laid_out(table: _tables.Table) -> str:
    """Pad the cells: names to the left, figures to the right."""
    lines = [table.heading, *table.rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.heading))]
    return "\n".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return first[0].ljust(first[1]) + "".join(f"  {cell:>{width}}" for cell, width in others)


def _facts(findings: Findings) -> Iterator[str]:
    for section in findings.sections:
        for name, reason in section.left_out.items():
            yield f"left out:  {name}: {reason}"
    for name, value in findings.machine.items():
        yield f"{name + ':':<11}{value}"
    yield f"reproduce: {findings.command}"


# --- for programs --------------------------------------------------------------------------------


def as_json(findings: Findings) -> dict[str, object]:
    """Return what the tables say, and every sample."""
    return {
        "command": findings.command,
        "machine": findings.machine,
        "comparisons": {
            comparison.task.key: _comparison(comparison)
            for section in findings.sections
            for comparison in section.comparisons
        },
    }


def _comparison(comparison: Comparison) -> dict[str, object]:
    columns = comparison.task.columns
    return {
        "title": comparison.task.title,
        "targets": [
            {
                **attrs.asdict(verdict.target),
                "compared_with": verdict.peer,
                "reached": _plain(verdict.reached),
                "is_met": verdict.is_met,
            }
            for verdict in comparison.verdicts()
        ],
        "ratios": {
            name: {column.key: _plain(comparison.ratio(column, name)) for column in columns}
            for name in comparison.peers
        },
        "clients": {
            name: {column.key: _plain(comparison.figure(column, name)) for column in columns}
            for name in comparison.roles
        },
        "left_out": dict(comparison.left_out),
        "samples": [
            {name: attrs.asdict(sample) for name, sample in samples.items()}
            for samples in comparison.rounds
        ],
    }


def _plain(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else attrs.asdict(spread)
