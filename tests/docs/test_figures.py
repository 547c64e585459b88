"""The README's figures are those that the benchmark's last run printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
RUN = (ROOT / "docs/benchmarks/README.md").read_text("utf-8")

TASKS = {
    "1 GiB over TCP": "1 GiB over TCP",
    "1 GiB over TLS": "1 GiB over TLS",
    "30 MiB over TCP": "30 MiB over TCP",
    "30 MiB over TLS": "30 MiB over TLS",
    "1,000 uploads of 64 KiB at once": "1000 uploads of 64 KiB at once",
    "small calls, one at a time": "calls, one at a time",
    "small calls, 100 at a time": "calls, 100 at a time",
}
"""What the README calls a task, and what the run does."""

PEERS = {"curl": "curl", "httpx `files=`": "httpx files=", "bare aiohttp": "aiohttp "}
"""Columns of the README, and how rows of the run begin."""


def _speed_table() -> list[tuple[str, str, float]]:
    """Return task, peer and factor of each cell of the README's table that has one.

    Of two factors in a cell, the first one is of the machine of the run.
    """
    section = README.split("\n## Speed\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    head, _, *body = rows
    return [
        (row[0], peer, float(cell.split()[0]))
        for row in body
        for peer, cell in zip(head[1:], row[1:], strict=True)
        if cell
    ]


CELLS = _speed_table()


@pytest.mark.parametrize(("task", "peer", "factor"), CELLS)
def test_a_figure_of_the_readme_is_measured(task: str, peer: str, factor: float) -> None:
    """As the run has it, rounded to two digits; where less is better, turned round."""
    name = TASKS[task.split(", with", maxsplit=1)[0]]
    section = RUN.split(f"\n### {name}\n")[1].split("\n### ")[0]
    head = re.search(r" ([^|]+), ours / theirs \|$", section, re.MULTILINE)
    found = re.search(rf"^\| {PEERS[peer]}.*\| ([0-9.]+) x \(", section, re.MULTILINE)
    assert head is not None
    assert found is not None
    ratio = float(found[1])
    speed = 1 / ratio if head[1] == "seconds" else ratio
    assert factor == pytest.approx(speed, rel=0.05)


def test_the_table_has_figures() -> None:
    """Of the tasks that users ask for."""
    assert len(CELLS) >= 6


@pytest.mark.parametrize("what", ["CPython 3", "Linux 6", "2026"])
def test_the_readme_says_where_and_when(what: str) -> None:
    """As the run does."""
    assert what in README.split("\n## Speed\n")[1].split("\n## ")[0]
    assert what in RUN
