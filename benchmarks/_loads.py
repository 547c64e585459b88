"""What a batch has to do: documents for rooms, how long each takes, and the least all can take."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence

import attrs

SEND_SECONDS, CONVERT_SECONDS = 0.1, 1.9
SIGMA = 0.5
"""Of the logarithm of what a conversion takes: one in ten takes twice the median or more."""
RELEASES = (10.0, 150.0)
"""Earliest and latest moment in seconds at which others release the rooms that they hold."""
LOCKED = 0.3
"""Share of the rooms that others hold at the beginning, if any are."""
PER_ROOM = 10
"""Documents of a room, on average."""


def _alike(rooms: int) -> list[int]:
    return [PER_ROOM] * rooms


def _zipf(rooms: int, exponent: float) -> list[int]:
    """Give the n-th room a share of n to the power of minus ``exponent``."""
    shares = [rank**-exponent for rank in range(1, rooms + 1)]
    return [max(1, round(PER_ROOM * rooms * share / sum(shares))) for share in shares]


SHAPES: dict[str, Callable[[int], list[int]]] = {
    "uniform": _alike,
    "skewed (Zipf 0.5)": functools.partial(_zipf, exponent=0.5),
    "skewed (Zipf 1)": functools.partial(_zipf, exponent=1.0),
    "one hot room": lambda rooms: [PER_ROOM * 10, *_alike(rooms - 1)],
}
"""For a number of rooms, how many documents each has."""


@attrs.frozen
class Load:
    """Rooms in the order in which their documents stand in the input. Times are seconds."""

    chains: tuple[tuple[float, ...], ...]
    """For each room, what its documents take, one after another."""
    releases: tuple[float, ...]
    """For each room, when somebody else's upload releases it; 0: it is free."""

    @property
    def uploads(self) -> int:
        """Number of documents."""
        return sum(map(len, self.chains))

    def least(self, places: int) -> float:
        """Return the least that all can take with so many attempts at a time.

        No room can be done before its release and its chain, one after another. What cannot begin
        before a moment keeps all places busy from then on at best. A document may be on its way
        when its room is released.
        """
        begins = [max(0.0, release - SEND_SECONDS) for release in self.releases]
        works = [sum(chain) for chain in self.chains]
        least, later = 0.0, 0.0
        for begin, work in sorted(zip(begins, works, strict=True), reverse=True):
            later += work
            least = max(least, begin + work, begin + later / places)
        return least


def make_load(counts: Sequence[int], *, is_locked: bool, seed: int) -> Load:
    """Make up a load for rooms with so many documents each; the rooms come in random order."""
    dice = random.Random(seed)
    counts = sorted(counts, reverse=True)
    rooms = len(counts)
    releases = [0.0] * rooms
    if is_locked:
        for number in [0, *dice.sample(range(1, rooms), round(LOCKED * rooms) - 1)]:
            releases[number] = dice.uniform(*RELEASES)
    order = dice.sample(range(rooms), rooms)
    chains = tuple(tuple(_seconds(dice) for _ in range(counts[number])) for number in order)
    return Load(chains, tuple(releases[number] for number in order))


def _seconds(dice: random.Random) -> float:
    return SEND_SECONDS + CONVERT_SECONDS * dice.lognormvariate(-(SIGMA**2) / 2, SIGMA)
