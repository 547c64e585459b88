"""The report: ratios first, then the figures they come from."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from benchmarks._measure import MEMORY_NOISE_BYTES, Sample
from benchmarks._peers import CURL, HTTPX, OURS

Rounds = Sequence[Mapping[str, Sample]]
"""For each round, the sample of each client."""


def _megabytes_per_second(sample: Sample, size: int) -> float:
    return size / sample.seconds / 1e6


def _cpu_seconds_per_gib(sample: Sample, size: int) -> float:
    return sample.cpu_seconds / size * 2**30


def _memory_growth_mib(sample: Sample, _size: int) -> float | None:
    return None if sample.memory_growth is None else sample.memory_growth / 2**20


def _largest_gap_ms(sample: Sample, _size: int) -> float | None:
    return None if sample.gap_seconds is None else sample.gap_seconds * 1e3


@attrs.frozen
class Column:
    """A figure of a sample, in the unit of its title."""

    title: str
    decimals: int
    of: Callable[[Sample, int], float | None]
    """Computes it from a sample and the document's bytes; ``None`` where it is not known."""
    noise: float = 0.0
    """What is below counts as this much in ratios: nothing can be said about it."""

    @property
    def key(self) -> str:
        """Name in JSON."""
        return self.of.__name__.lstrip("_")


COLUMNS = (
    Column("MB/s", 0, _megabytes_per_second),
    Column("CPU s/GiB", 3, _cpu_seconds_per_gib),
    Column("memory MiB", 2, _memory_growth_mib, MEMORY_NOISE_BYTES / 2**20),
    Column("gap ms", 2, _largest_gap_ms),
)


@attrs.frozen
class Spread:
    """A figure over the rounds."""

    median: float
    low: float
    high: float

    def text(self, decimals: int, unit: str = "") -> str:
        """Write it as ``median (low..high)``."""
        median, low, high = (f"{value:.{decimals}f}" for value in attrs.astuple(self))
        return f"{median}{unit} ({low}..{high})"


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return Spread(statistics.median(known), min(known), max(known))


def figure(column: Column, rounds: Rounds, size: int, name: str) -> Spread | None:
    """Return a figure of a client over the rounds."""
    return _spread([column.of(samples[name], size) for samples in rounds])


def ratio(column: Column, rounds: Rounds, size: int, name: str) -> Spread | None:
    """Return ours divided by a client's, taken within each round.

    Neighbours in time share the machine's mood, so this is steadier than a ratio of medians.
    """
    return _spread([_divided(column, samples[OURS], samples[name], size) for samples in rounds])


def _divided(column: Column, ours: Sample, theirs: Sample, size: int) -> float | None:
    dividend, divisor = column.of(ours, size), column.of(theirs, size)
    if dividend is None or divisor is None:
        return None
    bottom = max(divisor, column.noise)
    return max(dividend, column.noise) / bottom if bottom > 0 else None


def table(rounds: Rounds, size: int) -> str:
    """Write both tables as text."""
    return "\n".join(_lines(rounds, size))


def _lines(rounds: Rounds, size: int) -> Iterator[str]:
    titles = [column.title for column in COLUMNS]
    yield _line(f"{OURS} /", titles)
    for name in _compared(rounds):
        yield _line(name, [_cell(ratio(c, rounds, size, name), 2, " x") for c in COLUMNS])
    yield ""
    yield _line("", titles)
    for name in rounds[0]:
        yield _line(name, [_cell(figure(c, rounds, size, name), c.decimals) for c in COLUMNS])


def _compared(rounds: Rounds) -> list[str]:
    return [name for name in rounds[0] if name in {CURL, HTTPX}]


def _cell(spread: Spread | None, decimals: int, unit: str = "") -> str:
    return "-" if spread is None else spread.text(decimals, unit)


def _line(label: str, cells: Sequence[str]) -> str:
    return f"{label:<17}" + "".join(f"{cell:>22}" for cell in cells)


def as_json(rounds: Rounds, size: int) -> dict[str, object]:
    """Return what the tables say, and every sample, for a program to read."""
    return {
        "ratios": {
            name: {c.key: _plain(ratio(c, rounds, size, name)) for c in COLUMNS}
            for name in _compared(rounds)
        },
        "clients": {
            name: {c.key: _plain(figure(c, rounds, size, name)) for c in COLUMNS}
            for name in rounds[0]
        },
        "samples": [
            {name: attrs.asdict(sample) for name, sample in samples.items()} for samples in rounds
        ],
    }


def _plain(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else attrs.asdict(spread)
