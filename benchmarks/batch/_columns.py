"""What is reported of each way to do a load, and what a batch shall reach."""

from __future__ import annotations

from benchmarks._comparison import Column, Target
from benchmarks._measure import Sample


def columns() -> tuple[Column, ...]:
    """Return the figures; the least that a load could take is part of the sample."""
    return (
        Column("time / least", "time_ratio", 3, _time_ratio),
        Column("seconds", "seconds", 1, lambda s: s.seconds),
        Column("slots busy", "busy_share", 3, lambda s: s.busy_share, more_is_better=True),
        Column("attempts", "attempts", 2, lambda s: s.calls / s.uploads if s.uploads else None),
    )


TARGET = Target("time_ratio", 1.05)


def _time_ratio(sample: Sample) -> float | None:
    return sample.seconds / sample.bound_seconds if sample.bound_seconds else None
