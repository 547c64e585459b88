"""Batches without a loop: the scheduler alone, before rooms that take their time.

What a load takes at least is known, so that an order can be compared with the best there is.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections.abc import Callable

import attrs

from meeting_async._batch.scheduler import Scheduler

SIGMA = 0.5
"""Of the logarithm of what a conversion takes: one in ten takes twice the median or more."""

JOBS_PER_ROOM = 10


@attrs.frozen
class Pace:
    """How fast things go, in seconds."""

    send: float
    """What a body takes on its line; an attempt that is refused takes as long."""
    convert: float
    """What a conversion takes on average."""
    releases: tuple[float, float] = (10.0, 150.0)
    """Earliest and latest moment at which others give back the rooms that they hold."""


FAST = Pace(send=0.1, convert=1.9)
SLOW = Pace(send=5.0, convert=1.0)


@attrs.frozen
class Load:
    """Rooms in the order in which their documents stand in the input. Times are seconds."""

    chains: tuple[tuple[float, ...], ...]
    """For each room, what its documents take, one after another."""
    locked: tuple[float, ...]
    """For each room, when somebody else's upload gives it back; 0: it is free."""
    pace: Pace

    def bound(self, permits: int) -> float:
        """Return the least that all can take with so many attempts at a time.

        No room can be done before its release and its chain, one after another. What cannot begin
        before a moment keeps all permits busy from then on at best; with 0 for the moment that is
        total work / permits. A body may be on its way when its room is given back.
        """
        begins = [max(0.0, release - self.pace.send) for release in self.locked]
        works = [sum(chain) for chain in self.chains]
        least, later = 0.0, 0.0
        for begin, work in sorted(zip(begins, works, strict=True), reverse=True):
            later += work
            least = max(least, begin + work, begin + later / permits)
        return least


def _zipf(rooms: int, exponent: float) -> list[int]:
    shares = [rank**-exponent for rank in range(1, rooms + 1)]
    return [max(1, round(JOBS_PER_ROOM * rooms * share / sum(shares))) for share in shares]


SHAPES: dict[str, Callable[[int], list[int]]] = {
    "uniform": lambda rooms: [JOBS_PER_ROOM] * rooms,
    "skewed (Zipf 0.5)": functools.partial(_zipf, exponent=0.5),
    "skewed (Zipf 1)": functools.partial(_zipf, exponent=1.0),
    "one hot room": lambda rooms: [JOBS_PER_ROOM * 10, *[JOBS_PER_ROOM] * (rooms - 1)],
}
"""For a number of rooms, how many documents each has."""


def load(shape: str, rooms: int, *, locked: float, seed: int, pace: Pace = FAST) -> Load:
    """Make up a load: ``locked`` is the share of the rooms that others hold, the longest first.

    Documents take log-normal times. The rooms come in random order.
    """
    dice = random.Random(seed)
    counts = sorted(SHAPES[shape](rooms), reverse=True)
    held = dice.sample(range(1, rooms), round(locked * rooms) - 1) if locked else []
    releases = [0.0] * rooms
    for number in [0, *held] if locked else ():
        releases[number] = dice.uniform(*pace.releases)
    order = dice.sample(range(rooms), rooms)

    def seconds() -> float:
        return pace.send + pace.convert * dice.lognormvariate(-(SIGMA**2) / 2, SIGMA)

    chains = tuple(tuple(seconds() for _ in range(counts[number])) for number in order)
    return Load(chains, tuple(releases[number] for number in order), pace)


@attrs.frozen
class Result:
    """What a simulated batch took."""

    seconds: float
    attempts: int


@attrs.define
class _Simulation:
    """A clock, the scheduler, and rooms that refuse while others hold them."""

    load: Load
    permits: int
    dice: random.Random
    now: float = 0.0
    attempts: int = 0
    scheduler: Scheduler[int] = attrs.field(init=False)
    chains: list[list[float]] = attrs.field(init=False)
    since: dict[int, float] = attrs.field(factory=dict, init=False)
    events: list[tuple[float, int, Callable[[], None]]] = attrs.field(factory=list, init=False)
    numbers: itertools.count[int] = attrs.field(factory=itertools.count, init=False)

    def run(self) -> Result:
        self.scheduler = Scheduler(lambda room, _job: self._attempt(int(room)), limit=0)
        self.chains = [list(chain) for chain in self.load.chains]
        for room, chain in enumerate(self.chains):
            for number in range(len(chain)):
                self.scheduler.add(str(room), number)
        self.scheduler.set_limit(self.permits)
        while self.events:
            self.now, _, happen = heapq.heappop(self.events)
            happen()
        assert not any(self.chains)
        return Result(self.now, self.attempts)

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), happen))

    def _attempt(self, room: int) -> None:
        self.attempts += 1
        self._after(self.load.pace.send, lambda: self._sent(room))

    def _sent(self, room: int) -> None:
        if self.now >= self.load.locked[room]:
            seconds = self.chains[room].pop(0) - self.load.pace.send
            self._after(seconds, lambda: self._done(room))
            return
        waited = self.now - self.since.setdefault(room, self.now)
        seconds = min(max(4 * waited, 0.5), 7.5) * self.dice.uniform(0.75, 1.25)
        self._after(seconds, lambda: self._return(room))
        self.scheduler.release()

    def _return(self, room: int) -> None:
        self.scheduler.rejoin(str(room), lambda: self._attempt(room))

    def _done(self, room: int) -> None:
        self.scheduler.finish(str(room))
        self.scheduler.release()


def simulate(load: Load, permits: int, seed: int) -> Result:
    """Do a load; rooms that are locked are tried again as a small document would be."""
    return _Simulation(load, permits, random.Random(seed)).run()
