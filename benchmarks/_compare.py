"""A comparison: what every client made of the same task, and what follows from it."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from benchmarks._measure import Sample
from benchmarks._process import OTHER, OURS, Client, Failed, Role

MEMORY_NOISE_MIB = 0.25
"""The kernel counts resident pages in batches of 32 for each core; this is for two cores."""


@attrs.frozen(kw_only=True)
class Options:
    """How to measure, whatever it is."""

    rounds: int = 5
    names: tuple[str, ...] = ()
    """Only clients whose names begin like one of these, and ours; nothing: all."""
    against: str | None = None
    """Folder with another edition of the package, to compare with."""
    quick: bool = False
    """Tiny sizes: only to show that all works."""
    profile: bool = False
    """Only ours, each time with a profile of its main thread."""
    size: int | None = None
    """Bytes of the document of a single upload, instead of 1 GiB and 30 MiB."""

    def chosen(self, clients: Sequence[Client]) -> list[Client]:
        """Keep the clients that were asked for; the other edition comes right after ours."""
        found = [
            client
            for client in clients
            if client.role is Role.OURS or not self.names or client.name.startswith(self.names)
        ]
        if self.profile:
            return [attrs.evolve(c, is_profiled=True) for c in found if c.role is Role.OURS]
        if self.against:
            ours = next(client for client in clients if client.role is Role.OURS)
            alias = ours.alias or ours.name
            other = attrs.evolve(ours, name=OTHER, alias=alias, role=Role.PEER, source=self.against)
            found.insert(found.index(ours) + 1, other)
        return found


@attrs.frozen
class Column:
    """A figure of a sample, in the unit of its title."""

    title: str
    of: Callable[[Sample], float | None]
    """Computes it from a sample; ``None`` where it is not known."""
    decimals: int = 2
    more_is_better: bool = False
    noise: float = 0.0
    """What is below counts as this much in ratios: nothing can be said about it."""


@attrs.frozen
class Target:
    """What a figure of ours is meant to reach."""

    column: Column
    bound: float
    peer: str | None = None
    """The bound is on the ratio to this client; ``None``: on the figure itself."""


@attrs.frozen
class Task:
    """What is compared."""

    title: str
    columns: tuple[Column, ...]
    targets: tuple[Target, ...] = ()


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


@attrs.frozen
class Comparison:
    """A task that all have done, round by round."""

    task: Task
    roles: Mapping[str, Role]
    """Of each client, in the order in which they took turns."""
    rounds: Sequence[Mapping[str, Sample]]
    """For each round, the sample of each client."""
    left_out: Mapping[str, str]
    """Who did not take part, or not to the end, and why."""

    @property
    def peers(self) -> list[str]:
        """Those that ratios are taken to."""
        return [name for name, role in self.roles.items() if role is Role.PEER]

    def figure(self, column: Column, name: str) -> Spread | None:
        """Return a figure of a client over the rounds."""
        return _spread([column.of(samples[name]) for samples in self.rounds])

    def ratio(self, column: Column, name: str) -> Spread | None:
        """Return ours divided by a client's, taken within each round.

        Neighbours in time share the machine's mood, so this is steadier than a ratio of medians.
        """
        return _spread([_divided(column, samples[OURS], samples[name]) for samples in self.rounds])

    def reached(self, target: Target) -> Spread | None:
        """Return what was reached; ``None``: it could not be measured here."""
        if target.peer is None:
            return self.figure(target.column, OURS)
        return self.ratio(target.column, target.peer) if target.peer in self.roles else None


def is_met(target: Target, reached: Spread) -> bool:
    """Tell whether the median reaches the bound."""
    if target.column.more_is_better:
        return reached.median >= target.bound
    return reached.median <= target.bound


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return Spread(statistics.median(known), min(known), max(known))


def _divided(column: Column, ours: Sample, theirs: Sample) -> float | None:
    dividend, divisor = column.of(ours), column.of(theirs)
    if dividend is None or divisor is None:
        return None
    bottom = max(divisor, column.noise)
    return max(dividend, column.noise) / bottom if bottom > 0 else None


def compare(
    task: Task, clients: Sequence[Client], sample: Callable[[Client], Sample], rounds: int
) -> Comparison:
    """Let the clients take turns, so that whatever else the machine does meets them all.

    Each round begins with another, so that nobody always comes after the same one. A client that
    fails is left out from then on, and its samples are dropped; ours must not fail.
    """
    left_out = {c.name: reason for c in clients if (reason := c.reason_to_leave_out)}
    done: list[dict[str, Sample]] = []
    for number in range(rounds):
        print(f"{task.title}: round {number + 1} of {rounds}", file=sys.stderr)
        first = number % len(clients)
        turns = [*clients[first:], *clients[:first]]
        done.append(dict(_round(turns, sample, left_out)))
    roles = {client.name: client.role for client in clients if client.name not in left_out}
    kept = [{name: samples[name] for name in roles} for samples in done]
    return Comparison(task, roles, kept, left_out)


def _round(
    turns: Sequence[Client], sample: Callable[[Client], Sample], left_out: dict[str, str]
) -> Iterator[tuple[str, Sample]]:
    for client in turns:
        if client.name in left_out:
            continue
        try:
            yield client.name, sample(client)
        except Failed as error:
            if client.role is Role.OURS:
                raise
            left_out[client.name] = f"it failed: {error}"


# --- columns that several tasks have -------------------------------------------------------------

SECONDS = Column("seconds", lambda s: s.seconds)
MEMORY = Column(
    "memory MiB",
    lambda s: None if s.memory_growth is None else s.memory_growth / 2**20,
    noise=MEMORY_NOISE_MIB,
)
GAP = Column("gap ms", lambda s: None if s.gap_seconds is None else s.gap_seconds * 1e3)
CPU_EACH = Column("CPU us each", lambda s: s.cpu_seconds / s.count * 1e6, 0)
BUSY = Column("places busy", lambda s: s.busy_share, 3, more_is_better=True)


def shown(size: int) -> str:
    """Write a number of bytes."""
    for unit, of in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size % of == 0:
            return f"{size // of} {unit}"
    return f"{size} bytes"
