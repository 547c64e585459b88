"""A comparison: what every client made of the same task, and what follows from it."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

import attrs

from benchmarks._client import OURS, Client, Failed, Role
from benchmarks._measure import Sample

BEST = "the best peer"


@attrs.frozen
class Column:
    """A figure of a sample, in the unit of its title."""

    title: str
    key: str
    """Name in JSON."""
    decimals: int
    of: Callable[[Sample], float | None]
    """Computes it from a sample; ``None`` where it is not known."""
    more_is_better: bool = False
    noise: float = 0.0
    """What is below counts as this much in ratios: nothing can be said about it."""


@attrs.frozen
class Target:
    """What a figure of ours is meant to reach."""

    key: str
    """The column's."""
    bound: float
    peer: str | None = None
    """The bound is on the ratio to this client; ``None``: on the figure itself."""


@attrs.frozen
class Task:
    """What is compared."""

    key: str
    title: str
    columns: tuple[Column, ...]
    """The first is the one that charts show."""
    targets: tuple[Target, ...] = ()

    def column(self, key: str) -> Column:
        """Return a column by its key."""
        return next(column for column in self.columns if column.key == key)


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
class Verdict:
    """A target, and what was reached."""

    column: Column
    target: Target
    peer: str | None
    """The client compared with, by name."""
    reached: Spread | None
    """``None``: it could not be measured here."""

    @property
    def is_met(self) -> bool | None:
        """Tell whether the median reaches the bound."""
        if self.reached is None:
            return None
        if self.column.more_is_better:
            return self.reached.median >= self.target.bound
        return self.reached.median <= self.target.bound


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
        """Those that ratios are taken to; the ceiling is none."""
        return [name for name, role in self.roles.items() if role is Role.PEER]

    def figure(self, column: Column, name: str) -> Spread | None:
        """Return a figure of a client over the rounds."""
        return _spread([column.of(samples[name]) for samples in self.rounds])

    def ratio(self, column: Column, name: str) -> Spread | None:
        """Return ours divided by a client's, taken within each round.

        Neighbours in time share the machine's mood, so this is steadier than a ratio of medians.
        """
        return _spread([_divided(column, samples[OURS], samples[name]) for samples in self.rounds])

    def verdicts(self) -> list[Verdict]:
        """Compare what was reached with the targets."""
        return [self._verdict(target) for target in self.task.targets]

    def _verdict(self, target: Target) -> Verdict:
        column = self.task.column(target.key)
        peer = self._best(column) if target.peer == BEST else target.peer
        if peer is None:
            reached = self.figure(column, OURS) if target.peer is None else None
        else:
            reached = self.ratio(column, peer) if peer in self.roles else None
        return Verdict(column, target, peer, reached)

    def _best(self, column: Column) -> str | None:
        medians = {
            name: figure.median for name in self.peers if (figure := self.figure(column, name))
        }
        if not medians:
            return None
        choose = max if column.more_is_better else min
        return choose(medians, key=medians.__getitem__)


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
    task: Task,
    clients: Sequence[Client],
    sample: Callable[[Client], Sample],
    rounds: int,
) -> Comparison:
    """Let the clients take turns, so that whatever else the machine does meets them all.

    Each round begins with another, so that nobody always comes after the same one.
    A client that fails is left out from then on, and its samples are dropped; ours must not fail.
    """
    left_out = {client.name: client.missing for client in clients if client.missing}
    done: list[dict[str, Sample]] = []
    for number in range(1, rounds + 1):
        print(f"{task.title}: round {number} of {rounds}", file=sys.stderr)
        done.append({})
        first = (number - 1) % len(clients)
        for client in [*clients[first:], *clients[:first]]:
            if client.name in left_out:
                continue
            try:
                done[-1][client.name] = sample(client)
            except Failed as error:
                if client.role is Role.OURS:
                    raise
                left_out[client.name] = f"it failed: {error}"
    roles = {client.name: client.role for client in clients if client.name not in left_out}
    kept = [{name: samples[name] for name in roles} for samples in done]
    return Comparison(task, roles, kept, left_out)
