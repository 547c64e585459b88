"""What the policy has to reach, and what it reaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from benchmarks.waiting import _strategies, _study
from benchmarks.waiting._study import Crowd, Single, Study, Tallies
from benchmarks.waiting._tally import Tally

OURS = _strategies.OURS.name
PROBING = _strategies.PROBING.name

SMALLEST_PROBED = 10**6
"""Bytes: of smaller documents, the probes themselves are more than 1 %."""


@attrs.frozen
class Target:
    """A bound on a figure, and the figure."""

    text: str
    bound: float
    reached: float
    unit: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the figure keeps the bound."""
        return self.reached <= self.bound


def targets(study: Study) -> Iterator[Target]:
    """Compare everything; for each figure the worst of the shapes counts."""
    alone = [tallies for single in study.singles for tallies in single.shapes.values()]
    yield domination(alone, "one waiter")
    for crowds in (study.long_crowds, study.crowds):
        crowded = [tallies for crowd in crowds for tallies in crowd.sizes.values()]
        yield domination(crowded, f"crowds, holds of {crowds[0].hold:.0f} s")
    yield from waiting(study.typical, "body of 0.5 s", idle=0.08, resending=0.10)
    yield from waiting(study.slow, "body of 10 s", idle=0.25, resending=0.40)
    yield from probing(study)
    for crowd in study.crowds:
        yield sharing(crowd)


def domination(tables: Sequence[Tallies], label: str) -> Target:
    """Count the peers that are better on both idle time and re-sent bytes."""
    found = sum(len(list(_study.better(tallies))) for tallies in tables)
    text = f"{label}: better on both idle time and re-sent bytes, of"
    return Target(f"{text} {len(tables) * len(_strategies.PEERS)}", 0, found)


def waiting(single: Single, label: str, *, idle: float, resending: float) -> Iterator[Target]:
    """Compare idle time and time spent re-sending."""
    text = f"{label}: room idle, of the mean holding time"
    yield Target(text, 100 * idle, 100 * single.worst(OURS, _idle_share), "%")
    text = f"{label}: time spent re-sending"
    yield Target(text, 100 * resending, 100 * single.worst(OURS, _resending), "%")


def probing(study: Study) -> Iterator[Target]:
    """Look at the probe on every line."""
    lag = max(single.worst(PROBING, _lag) for single in study.singles)
    yield Target("probe, every line: body begins after the release", 2, lag, "s")
    resent = max(single.worst(PROBING, _resent) for single in study.singles)
    yield Target("probe, every line: bytes re-sent", 1, 100 * resent, "%")
    large = [single for single in study.singles if single.line.size >= SMALLEST_PROBED]
    probed = max(single.worst(PROBING, _probed) for single in large)
    yield Target("probe, documents from 1 MB: bytes of the probes", 1, 100 * probed, "%")


def sharing(crowd: Crowd) -> Target:
    """Compare the longest waits with the fair share."""
    number = max(crowd.sizes)
    kind = "one document each" if crowd.meeting == "crowd" else "again and again"
    text = f"{number} contenders, {kind}, body of {crowd.line.seconds:g} s: 99 % wait"
    return Target(text, 3, crowd.unfairness(number, OURS), "fair shares")


def _idle_share(tally: Tally) -> float:
    return tally.idle_share


def _resending(tally: Tally) -> float:
    return tally.resending


def _lag(tally: Tally) -> float:
    return tally.lag


def _resent(tally: Tally) -> float:
    return tally.resent


def _probed(tally: Tally) -> float:
    return tally.probed_share
