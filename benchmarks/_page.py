"""The page: the report as Markdown, with a chart for each section."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import _chart, _report, _tables
from benchmarks._section import Findings, Section

_PAGE = "README.md"
_SAMPLES = "samples.json"


def save(findings: Findings, folder: Path) -> None:
    """Write the page, its charts and every sample into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _PAGE).write_text("\n".join(_page(findings)) + "\n", encoding="utf-8")
    samples = json.dumps(_report.as_json(findings), separators=(",", ":"))
    (folder / _SAMPLES).write_text(samples + "\n", encoding="utf-8")
    for section in findings.sections:
        (folder / _chart_name(section)).write_text(_chart.svg(section), encoding="utf-8")


def _chart_name(section: Section) -> str:
    return f"{section.key}.svg"


def _page(findings: Findings) -> Iterator[str]:
    yield "# Benchmarks\n"
    yield (
        "Each client runs in a fresh process for every sample; in each round all take turns, so "
        "that whatever\nelse the machine does meets them all. Read the ratios first.\n"
    )
    yield from _facts(findings)
    yield "\n## Targets\n"
    yield from _laid_out(_tables.targets(findings))
    for section in findings.sections:
        yield from _section(section)


def _facts(findings: Findings) -> Iterator[str]:
    yield f"```sh\n{findings.command}\n```\n"
    for name, value in findings.machine.items():
        yield f"* {name}: {value}"
    yield f"* every sample: [{_SAMPLES}]({_SAMPLES})"


def _section(section: Section) -> Iterator[str]:
    yield f"\n## {section.title}\n"
    yield f"![{section.title}]({_chart_name(section)})"
    for table in (_tables.ratios, _tables.figures):
        for comparison in section.comparisons:
            yield f"\n### {comparison.task.title}{': ratios' if table is _tables.ratios else ''}\n"
            yield from _laid_out(table(comparison))
    yield f"\n```text\n{section.notes}\n```"
    if section.left_out:
        yield "\nLeft out:\n"
        yield from (f"* {name}: {reason}" for name, reason in section.left_out.items())


def _laid_out(table: _tables.Table) -> Iterator[str]:
    yield _line(table.heading)
    yield _line(["---", *(["--:"] * (len(table.heading) - 1))])
    yield from (_line(row) for row in table.rows)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
