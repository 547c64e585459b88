"""A section of the report: the comparisons of one kind, and how to read them."""

from __future__ import annotations

import attrs

from benchmarks._comparison import Comparison


@attrs.frozen
class Section:
    """What one of the benchmarks found."""

    key: str
    """Name of its chart's file."""
    title: str
    notes: str
    """How the figures came about, one fact on a line."""
    comparisons: tuple[Comparison, ...]

    @property
    def left_out(self) -> dict[str, str]:
        """Who was left out somewhere, and why."""
        found: dict[str, str] = {}
        for comparison in self.comparisons:
            found |= comparison.left_out
        return found


@attrs.frozen
class Findings:
    """All that is reported of a run."""

    sections: tuple[Section, ...]
    machine: dict[str, str]
    """Name and value of each fact."""
    command: str
    """What reproduces it."""
