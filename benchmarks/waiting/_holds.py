"""For how long others hold a room's lock: four shapes with the same mean.

Nobody holds it beyond the lock window (interface section 8: 5 minutes), so longer draws are cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from statistics import NormalDist

import attrs

WINDOW = 300.0
"""Seconds."""

MEAN = (WINDOW - 1) / math.log(WINDOW)
"""Seconds: the mean of the log-uniform shape from 1 s to the window; the others are fitted."""

_NORMAL = NormalDist()
"""Logarithms of the log-normal shape, around that of its median: two thirds within ±1."""

_EDGE = 1e-12
"""A normal distribution has no smallest value."""


@attrs.frozen
class Holds:
    """A distribution of holding times."""

    name: str
    mean: float
    """Seconds."""
    quantile: Callable[[float], float] = attrs.field(eq=False)
    """Seconds that a part of the holds, from 0 to below 1, falls short of."""

    def draw(self, random: Random) -> float:
        """Draw a holding time, in seconds."""
        return self.quantile(random.random())


def fixed(mean: float = MEAN) -> Holds:
    """Return the shape that is always the same."""
    return Holds("fixed", mean, lambda _: mean)


def exponential(mean: float = MEAN) -> Holds:
    """Return the shape without memory: the time already waited tells nothing about the rest."""
    scale = _fitted(lambda scale: scale * -math.expm1(-WINDOW / scale), mean)
    return Holds("exponential", mean, lambda part: min(-scale * math.log1p(-part), WINDOW))


def log_normal(mean: float = MEAN) -> Holds:
    """Return a shape with many short ones and few long ones."""
    median = _fitted(_mean_of_cut_log_normal, mean)

    def quantile(part: float) -> float:
        return min(median * math.exp(_NORMAL.inv_cdf(max(part, _EDGE))), WINDOW)

    return Holds("log-normal", mean, quantile)


def log_uniform(low: float = 1.0, high: float = WINDOW) -> Holds:
    """Return the shape in which any order of magnitude is as likely as any other."""
    mean = (high - low) / math.log(high / low)
    return Holds("log-uniform", mean, lambda part: low * (high / low) ** part)


def _mean_of_cut_log_normal(median: float) -> float:
    edge = math.log(WINDOW / median)
    below = median * math.exp(0.5) * _NORMAL.cdf(edge - 1)
    return below + WINDOW * (1 - _NORMAL.cdf(edge))


def _fitted(mean_of: Callable[[float], float], mean: float) -> float:
    """Find the parameter whose mean, after the cut, is the one wanted."""
    low, high = 0.0, WINDOW
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_of(middle) < mean else (low, middle)
    return high


SHAPES = (fixed(), exponential(), log_normal(), log_uniform())
