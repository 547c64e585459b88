"""What is simulated for the report, and what the client has to reach."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from random import Random

import attrs

from benchmarks.waiting import _strategies
from benchmarks.waiting._room import Scenario, Tally, simulate
from benchmarks.waiting._strategies import FIRST, OURS, STRATEGIES

WINDOW = 300.0
"""Seconds: nobody holds a lock longer (``docs/interface.md``, Limits)."""

DOCUMENT_BYTES = 30 * 2**20
LINES = (1, 3, 10, 30, 100, 300, 1000)
"""Mbit/s."""

Hold = Callable[[Random], float]


def _exponential(mean: float) -> Hold:
    return lambda dice: min(dice.expovariate(1 / mean), WINDOW)


REMAINDERS: Mapping[str, Hold] = {
    "0 to 300 s, all alike": lambda dice: dice.uniform(0, WINDOW),
    "1 to 300 s, any magnitude": lambda dice: math.exp(dice.uniform(0, math.log(WINDOW))),
    "5 s on average, exponential": _exponential(5),
}
"""How long the lock lives on when a single waiter meets it: it is released at a random moment."""

CROWD = 50
CROWD_HOLDS = (5.0, 30.0)
"""Mean seconds for which each of many contenders holds the room, exponential."""


@attrs.frozen
class Effort:
    """How much to simulate."""

    rounds: int = 300
    """Of one waiter, for each line, remainder and strategy."""
    crowds: int = 8
    """Of a crowd, for each line, hold and strategy."""
    seed: int = 1
    lines: tuple[int, ...] = LINES
    names: tuple[str, ...] = tuple(STRATEGIES)


Tallies = Mapping[str, Tally]
"""By strategy."""


@attrs.frozen
class Study:
    """All results."""

    effort: Effort
    single: Mapping[tuple[int, str], Tallies]
    """One waiter, by line and remainder."""
    lied_to: Mapping[tuple[int, str], Tallies]
    """One waiter before a server that answers an empty form without looking at its lock."""
    crowds: Mapping[tuple[int, float], Tallies]
    """By line and mean hold."""

    def worst(self, line: int, name: str, figure: Callable[[Tally], float]) -> float:
        """Return the largest figure of a single waiter, of all remainders."""
        found = [tallies for (key, _), tallies in self.single.items() if key == line]
        return max(figure(tallies[name]) for tallies in found)

    def resent_ratio(self, line: int, hold: float) -> float:
        """Bytes that a crowd re-sends, divided by those of version 0.1.0."""
        tallies = self.crowds[line, hold]
        return tallies[OURS].resent / tallies[FIRST].resent


def study(effort: Effort) -> Study:
    """Simulate everything."""
    single: dict[tuple[int, str], Tallies] = {}
    lied_to: dict[tuple[int, str], Tallies] = {}
    crowds: dict[tuple[int, float], Tallies] = {}
    for line in effort.lines:
        for name, hold in REMAINDERS.items():
            scenario = _scenario(line, hold)
            single[line, name] = _each(scenario, effort.rounds, effort)
            lying = attrs.evolve(scenario, says_always_free=True)
            lied_to[line, name] = _each(lying, effort.rounds, effort)
        for mean in CROWD_HOLDS:
            scenario = _scenario(line, _exponential(mean))
            crowd = attrs.evolve(scenario, contenders=CROWD)
            crowds[line, mean] = _each(crowd, effort.crowds, effort)
    return Study(effort, single, lied_to, crowds)


def _scenario(line: int, hold: Hold) -> Scenario:
    return Scenario(hold=hold, bits_per_second=line * 1e6, size=DOCUMENT_BYTES)


def _each(scenario: Scenario, rounds: int, effort: Effort) -> Tallies:
    return {
        name: simulate(scenario, STRATEGIES[name], rounds=rounds, seed=effort.seed)
        for name in effort.names
    }


# --- targets -------------------------------------------------------------------------------------


@attrs.frozen
class Target:
    """A bound on a figure, and the figure."""

    text: str
    bound: float
    reached: float
    unit: str = ""
    is_strict: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the figure keeps the bound."""
        return self.reached < self.bound if self.is_strict else self.reached <= self.bound


def targets(study: Study) -> Iterator[Target]:
    """Compare what the client reaches with what it has to."""
    lines = study.effort.lines
    start = max(study.worst(line, OURS, lambda t: statistics.fmean(t.starts)) for line in lines)
    yield Target("one waiter, every line: the document starts after the release", 2.0, start, "s")
    most = max(study.worst(line, OURS, lambda t: max(t.refused)) for line in lines)
    yield Target("one waiter, every line: documents re-sent, at most", 0, most)
    vain = max(max(tallies[OURS].vain) for tallies in study.lied_to.values())
    yield Target("empty form always answered *free*: documents sent for such an answer", 2, vain)
    extra = max(t[OURS].resent - t[FIRST].resent for t in study.lied_to.values())
    yield Target("the same: documents re-sent beyond version 0.1.0's, mean", 2, extra)
    for hold in CROWD_HOLDS:
        ratio = max(study.resent_ratio(line, hold) for line in lines)
        text = f"{CROWD} contenders, every line, locks of {hold:g} s: bytes re-sent"
        yield Target(text, 0.5, ratio, f"x {_strategies.FIRST}", is_strict=True)
