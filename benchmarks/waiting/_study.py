"""What is simulated for the report: one waiter on every line, and crowds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from benchmarks.waiting import _holds, _strategies
from benchmarks.waiting._holds import Holds
from benchmarks.waiting._simulation import Meeting, Scenario, simulate
from benchmarks.waiting._strategies import Strategy
from benchmarks.waiting._tally import Tally

MEGABYTE = 1_000_000


@attrs.frozen
class Line:
    """A document, and the line it goes over."""

    size: int
    """Bytes."""
    megabits_per_second: float

    @property
    def seconds(self) -> float:
        """Seconds that the body takes."""
        return self.size * 8 / (self.megabits_per_second * 1e6)


TYPICAL = Line(MEGABYTE, 16)
"""0.5 s for a body."""
SLOW = Line(20 * MEGABYTE, 16)
"""10 s for a body."""
GRID = tuple(
    Line(size, speed) for size in (10**5, 10**6, 10**7, 10**8) for speed in (1, 10, 100, 1000)
)

CONTENDERS = (1, 2, 5, 10, 20, 50)
CROWD_HOLD = 5.0
"""Mean seconds for which a contender holds the room: 50 of them fit into the budget of 330 s."""

INTERVALS = (0.5, 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 45, 60)
"""Fixed delays in seconds that draw the curve of what a fixed delay can reach."""

Tallies = Mapping[str, Tally]
"""By the name of the strategy."""


def better(tallies: Tallies) -> Iterator[str]:
    """Yield the peers that beat us on both idle time and re-sent bytes."""
    ours = tallies[_strategies.OURS.name]
    for peer in _strategies.PEERS:
        theirs = tallies[peer.name]
        if theirs.idle < ours.idle and theirs.resent < ours.resent:
            yield peer.name


@attrs.frozen
class Single:
    """One waiter on one line, by shape of the holding times and strategy."""

    line: Line
    shapes: Mapping[str, Tallies]

    def mean(self, name: str, figure: Callable[[Tally], float]) -> float:
        """Average a figure of a strategy over the shapes."""
        return statistics.fmean(figure(tallies[name]) for tallies in self.shapes.values())

    def worst(self, name: str, figure: Callable[[Tally], float]) -> float:
        """Return the largest figure of a strategy over the shapes."""
        return max(figure(tallies[name]) for tallies in self.shapes.values())

    def better(self) -> Iterator[tuple[str, str]]:
        """Yield shapes, each with a peer that beats us on both idle time and re-sent bytes."""
        for shape, tallies in self.shapes.items():
            yield from ((shape, peer) for peer in better(tallies))


@attrs.frozen
class Crowd:
    """Many contenders for one room, by number and strategy."""

    line: Line
    meeting: Meeting
    hold: float
    """Mean holding time in seconds."""
    sizes: Mapping[int, Tallies]

    def unfairness(self, contenders: int, name: str, share: float = 0.99) -> float:
        """Return a percentile of the waits as a multiple of the fair share.

        The fair share is the time in which everybody has the room once.
        """
        tally = self.sizes[contenders][name]
        return tally.wait(share) / (contenders * tally.mean_hold)


@attrs.frozen
class Effort:
    """How much to simulate."""

    rounds: int = 1000
    """Of one waiter, for each line, shape and strategy."""
    crowds: int = 20
    """Of a crowd; a steady one has :data:`STEADY_UPLOADS` uploads for each contender."""
    seed: int = 1


@attrs.frozen
class Study:
    """All results."""

    effort: Effort
    typical: Single
    slow: Single
    curves: Mapping[str, Single]
    """Fixed delays on the typical and on the slow line."""
    grid: Sequence[Single]
    crowds: Sequence[Crowd]
    """With short holds."""
    long_crowds: Sequence[Crowd]
    """With holds as long as those that one waiter meets."""

    @property
    def singles(self) -> Sequence[Single]:
        """Every line."""
        return (self.typical, self.slow, *self.grid)

    @property
    def hours(self) -> float:
        """Simulated hours, all together."""
        singles = [*self.singles, *self.curves.values()]
        tables = [tallies for single in singles for tallies in single.shapes.values()]
        tables += [
            tallies
            for crowd in (*self.crowds, *self.long_crowds)
            for tallies in crowd.sizes.values()
        ]
        return sum(tally.simulated for table in tables for tally in table.values()) / 3600


def single(
    line: Line,
    effort: Effort,
    strategies: Sequence[Strategy] = _strategies.ALL,
    shapes: Sequence[Holds] = _holds.SHAPES,
    meeting: Meeting | None = None,
) -> Single:
    """Simulate one waiter.

    It has just lost the race for the lock, unless told otherwise. Holds of one fixed length would
    then always end at the same moment, to which one delay fits by chance and another does not:
    they are met at any moment.
    """
    results: dict[str, Tallies] = {}
    for holds in shapes:
        scenario = Scenario(
            holds,
            size=line.size,
            bits_per_second=line.megabits_per_second * 1e6,
            meeting=meeting or ("any" if holds.name == "fixed" else "race"),
        )
        results[holds.name] = _each(scenario, strategies, effort.rounds, effort.seed)
    return Single(line, results)


def crowd(
    line: Line,
    meeting: Meeting,
    effort: Effort,
    contenders: Sequence[int] = CONTENDERS,
    strategies: Sequence[Strategy] = _strategies.ALL,
    *,
    hold: float = CROWD_HOLD,
) -> Crowd:
    """Simulate crowds of several sizes; the same number of uploads for each size."""
    results: dict[int, Tallies] = {}
    for number in contenders:
        scenario = Scenario(
            _holds.exponential(hold),
            size=line.size,
            bits_per_second=line.megabits_per_second * 1e6,
            contenders=number,
            meeting=meeting,
        )
        rounds = max(1, effort.crowds * max(contenders) // number)
        results[number] = _each(scenario, strategies, rounds, effort.seed)
    return Crowd(line, meeting, hold, results)


def _each(scenario: Scenario, strategies: Sequence[Strategy], rounds: int, seed: int) -> Tallies:
    return {s.name: simulate(scenario, s, rounds=rounds, seed=seed) for s in strategies}


def study(effort: Effort) -> Study:
    """Simulate everything."""
    intervals = [_strategies.fixed(seconds) for seconds in INTERVALS]
    steady = attrs.evolve(effort, crowds=max(1, effort.crowds // 2))
    few = attrs.evolve(effort, crowds=max(1, effort.crowds // 5))
    return Study(
        effort,
        typical=single(TYPICAL, effort),
        slow=single(SLOW, effort),
        curves={
            "typical": single(TYPICAL, effort, intervals),
            "slow": single(SLOW, effort, intervals),
        },
        grid=[single(line, effort) for line in GRID],
        crowds=[
            crowd(TYPICAL, "crowd", effort),
            crowd(SLOW, "crowd", effort),
            crowd(TYPICAL, "steady", steady, contenders=(50,)),
            crowd(SLOW, "steady", steady, contenders=(50,)),
        ],
        long_crowds=[crowd(line, "crowd", few, hold=_holds.MEAN) for line in (TYPICAL, SLOW)],
    )
