"""What a batch has to do: documents for rooms, how long each takes, and the least all can take."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import attrs

SIGMA = 0.5
"""Of the logarithm of what a conversion takes: one in ten takes twice the median or more."""


@attrs.frozen
class Pace:
    """How fast things go, in seconds."""

    name: str
    send: float
    """What a body takes on its line; an attempt that is refused takes as long."""
    convert: float
    """What a conversion takes on average."""
    releases: tuple[float, float] = (10.0, 150.0)
    """Earliest and latest moment at which others give back the rooms that they hold."""


FAST = Pace("fast line", send=0.1, convert=1.9)
SLOW = Pace("slow line", send=5.0, convert=1.0)


@attrs.frozen
class Load:
    """Rooms in the order in which their documents stand in the input. Times are seconds."""

    chains: tuple[tuple[float, ...], ...]
    """For each room, what its documents take, one after another."""
    locked: tuple[float, ...]
    """For each room, when somebody else's upload gives it back; 0: it is free."""
    pace: Pace = FAST

    @property
    def uploads(self) -> int:
        """Number of documents."""
        return sum(map(len, self.chains))

    def bound(self, concurrency: int) -> float:
        """Return the least that all can take with so many attempts at a time.

        No room can be done before its release and its chain, one after another. What cannot begin
        before a moment keeps all slots busy from then on at best; with 0 for the moment that is
        total work / concurrency. A body may be on its way when its room is given back.
        """
        begins = [max(0.0, release - self.pace.send) for release in self.locked]
        works = [sum(chain) for chain in self.chains]
        least, later = 0.0, 0.0
        for begin, work in sorted(zip(begins, works, strict=True), reverse=True):
            later += work
            least = max(least, begin + work, begin + later / concurrency)
        return least


Shape = Callable[[int], list[int]]
"""For a number of rooms, how many documents each has."""

PER_ROOM = 10
"""Documents of a room, on average."""


def uniform(rooms: int) -> list[int]:
    """Give all rooms the same."""
    return [PER_ROOM] * rooms


def zipf(rooms: int, exponent: float) -> list[int]:
    """Give the n-th room a share of n to the power of minus ``exponent``."""
    shares = [rank**-exponent for rank in range(1, rooms + 1)]
    return [max(1, round(PER_ROOM * rooms * share / sum(shares))) for share in shares]


def one_hot(rooms: int, times: int = 10) -> list[int]:
    """Give one room so many times as much as each of the others."""
    return [PER_ROOM * times, *uniform(rooms - 1)]


SHAPES: dict[str, Shape] = {
    "uniform": uniform,
    "skewed (Zipf 0.5)": functools.partial(zipf, exponent=0.5),
    "skewed (Zipf 1)": functools.partial(zipf, exponent=1.0),
    "one hot room": one_hot,
}


def load(shape: Shape, rooms: int, *, locked: float, seed: int, pace: Pace = FAST) -> Load:
    """Make up a load: ``locked`` is the share of the rooms that others hold, the longest first.

    Documents take log-normal times. The rooms come in random order.
    """
    dice = random.Random(seed)
    counts = sorted(shape(rooms), reverse=True)
    held = dice.sample(range(1, rooms), round(locked * rooms) - 1) if locked else []
    releases = [0.0] * rooms
    for number in [0, *held] if locked else ():
        releases[number] = dice.uniform(*pace.releases)
    order = dice.sample(range(rooms), rooms)
    chains = tuple(tuple(_seconds(dice, pace) for _ in range(counts[number])) for number in order)
    return Load(chains, tuple(releases[number] for number in order), pace)


def _seconds(dice: random.Random, pace: Pace) -> float:
    return pace.send + pace.convert * dice.lognormvariate(-(SIGMA**2) / 2, SIGMA)
