"""For how long others hold a room's lock: four shapes with the same mean.

Nobody holds it beyond the lock window (interface section 8: 5 minutes), so longer draws are cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import attrs

WINDOW = 300.0
"""Seconds."""

MEAN = (WINDOW - 1) / math.log(WINDOW)
"""Seconds: the mean of the log-uniform shape from 1 s to the window; the others are fitted."""

_SIGMA = 1.0
"""Of the log-normal shape: two thirds of the draws are within a factor of e of the median."""


@attrs.frozen
class Holds:
    """A distribution of holding times."""

    name: str
    draw: Callable[[Random], float] = attrs.field(eq=False)
    """Draws one, in seconds."""


def fixed(mean: float = MEAN) -> Holds:
    """Always the same."""
    return Holds("fixed", lambda _: min(mean, WINDOW))


def exponential(mean: float = MEAN) -> Holds:
    """Without memory: the time already waited tells nothing about the rest."""
    return Holds("exponential", lambda random: min(random.expovariate(1 / mean), WINDOW))


def log_normal(mean: float = MEAN) -> Holds:
    """Many short ones, few long ones."""
    median = math.log(mean) - _SIGMA**2 / 2
    return Holds("log-normal", lambda random: min(math.exp(random.gauss(median, _SIGMA)), WINDOW))


def log_uniform(low: float = 1.0, high: float = WINDOW) -> Holds:
    """Any order of magnitude is as likely as any other."""
    return Holds("log-uniform", lambda random: low * (high / low) ** random.random())


SHAPES = (fixed(), exponential(), log_normal(), log_uniform())
