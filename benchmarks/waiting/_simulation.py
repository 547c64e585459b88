"""One room and those who want it, in virtual time: events on a heap, no clock, no sleep.

The lock is examined when the whole body has arrived, so a refused attempt costs all of it. Each
contender is a process of its own that knows nothing of the others. A process here is a generator
that yields for how many seconds nothing happens to it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Generator, Iterator
from random import Random
from typing import Literal

import attrs

from benchmarks.waiting._holds import Holds
from benchmarks.waiting._strategies import Refusal, Strategy
from benchmarks.waiting._tally import Tally

PROBE_BYTES = 300
"""A signed form without a document."""

Process = Generator[float, None, None]
Meeting = Literal["race", "any", "crowd", "steady"]


@attrs.frozen
class Scenario:
    """Who wants the room, and what a body costs."""

    holds: Holds
    size: int = 1_000_000
    """Bytes of each document."""
    bits_per_second: float = 16e6
    round_trip: float = 0.02
    """Seconds."""
    contenders: int = 1
    meeting: Meeting = "race"
    """How a contender meets the lock: its first attempt is examined

    * ``race``: just after somebody else took it;
    * ``any``: at any moment of somebody else's hold;
    * ``crowd``: within the first :data:`CROWD_SECONDS`, together with all other contenders;
    * ``steady``: as in a crowd, and again and again, each after a pause of its own.
    """

    @property
    def send_seconds(self) -> float:
        """Seconds that a body takes."""
        return self.size * 8 / self.bits_per_second

    @property
    def probe_seconds(self) -> float:
        """Seconds that a probe's body takes."""
        return PROBE_BYTES * 8 / self.bits_per_second


CROWD_SECONDS = 10.0
"""Span within which a crowd arrives."""

STEADY_UPLOADS = 12
"""Documents of each contender, one after another, in a steady crowd."""

STEADY_COUNTED = range(2, 7)
"""Those of them whose waits count: the crowd has formed, and nobody leaves before they are over."""

VAIN_BODIES = 2
"""Bodies refused right after a probe said "free", with no probe refused between them, that turn
probing off: this server does not answer a probe as it answers an upload."""


@attrs.frozen
class Point:
    """How a round begins; both from 0 to below 1."""

    hold: float
    """Part of the distribution that falls short of the first hold."""
    moment: float
    """Part of the first hold that is over when it is met."""


_GOLDEN = (math.sqrt(5) - 1) / 2


@attrs.define
class Contender:
    """An upload on its way."""

    arrived: float
    probing: bool
    counts: bool = True
    busy_since: float | None = None
    refusals: int = 0
    previous: float | None = None
    vain: int = 0
    """Bodies refused although the probe before said that the room is free."""


class Round:
    """A room from the moment at which somebody else takes its lock, until all are served."""

    def __init__(
        self, scenario: Scenario, strategy: Strategy, tally: Tally, *, seed: str, first: Point
    ) -> None:
        self._scenario = scenario
        self._strategy = strategy
        self._tally = tally
        self._holds = Random(f"holds {seed}")  # the same for every strategy
        self._dice = Random(f"dice {seed}")
        self._now = 0.0
        self._heap: list[tuple[float, int, Process]] = []
        self._order = itertools.count()
        self._waiting = 0
        self._first = first
        self._locked_until = scenario.holds.quantile(first.hold)

    def run(self) -> None:
        """Serve everybody."""
        for moment in self._moments():
            arrived = moment - self._first_cost
            self._schedule(arrived, self._contender(arrived))
        while self._heap:
            self._now, _, process = heapq.heappop(self._heap)
            seconds = next(process, None)
            if seconds is not None:
                self._schedule(self._now + seconds, process)
        self._tally.simulated += self._now

    def _schedule(self, when: float, process: Process) -> None:
        heapq.heappush(self._heap, (when, next(self._order), process))

    def _moments(self) -> list[float]:
        """When each contender's first attempt is examined."""
        scenario = self._scenario
        if scenario.meeting == "race":
            return [0.0] * scenario.contenders
        if scenario.meeting == "any":
            return [self._first.moment * self._locked_until] * scenario.contenders
        return [self._holds.uniform(0, CROWD_SECONDS) for _ in range(scenario.contenders)]

    @property
    def _first_cost(self) -> float:
        """Seconds from the beginning of a first attempt to its examination."""
        scenario = self._scenario
        body = scenario.probe_seconds if self._strategy.probes else scenario.send_seconds
        return body + scenario.round_trip / 2

    # --- a contender -----------------------------------------------------------------------------

    def _contender(self, arrived: float) -> Process:
        steady = self._scenario.meeting == "steady"
        for number in range(STEADY_UPLOADS if steady else 1):
            counts = not steady or number in STEADY_COUNTED
            me = Contender(arrived, self._strategy.probes, counts)
            upload = self._foreseen if self._strategy.is_clairvoyant else self._upload
            yield from upload(me)
            if steady:
                pause = self._dice.expovariate(1 / self._scenario.holds.mean)
                yield max(0.0, self._locked_until - self._now) + pause
                arrived = self._now

    def _upload(self, me: Contender) -> Process:
        """Attempt and wait until the room is taken."""
        while True:
            if me.probing:
                yield self._scenario.probe_seconds + self._scenario.round_trip / 2
                self._tally.probed(PROBE_BYTES)
                free = self._now >= self._locked_until
                yield self._scenario.round_trip / 2
                if not free:
                    yield self.refuse(me, probe=True)
                    continue
            began = self._now
            yield self._scenario.send_seconds + self._scenario.round_trip / 2
            if self._now >= self._locked_until:
                return self._take(me, began)
            self._tally.refused(self._scenario.size, self._scenario.send_seconds)
            yield self._scenario.round_trip / 2
            yield self.refuse(me, probe=False)

    def refuse(self, me: Contender, *, probe: bool) -> float:
        """Return the delay after a 409 to a probe, or to a body."""
        if me.busy_since is None:
            me.busy_since = self._now
            self._waiting += 1
        me.vain = 0 if probe else me.vain + 1
        if me.vain == VAIN_BODIES:
            me.probing = False
        refusal = Refusal(
            waited=self._now - me.busy_since,
            send_seconds=self._scenario.send_seconds,
            number=me.refusals,
            previous=me.previous,
            probing=me.probing,
        )
        me.refusals += 1
        me.previous = self._strategy.delay(refusal, self._dice)
        return me.previous

    def _take(self, me: Contender, began: float) -> None:
        if self._waiting:  # whoever waits was refused before the release
            self._tally.found_free(released=self._locked_until, began=began, taken=self._now)
        self._waiting -= me.busy_since is not None
        self._delivered(me, self._now)
        self._locked_until = self._now + self._scenario.holds.draw(self._holds)

    def _delivered(self, me: Contender, when: float) -> None:
        waited = when - me.arrived
        self._tally.delivered(self._scenario.size, waited=waited, counts=me.counts)

    def _foreseen(self, me: Contender) -> Process:
        """Let the body end just at the release; those who came first are served first."""
        earliest = me.arrived + self._first_cost
        ends = max(self._locked_until, earliest)
        if earliest <= self._locked_until:
            self._tally.found_free(released=self._locked_until, began=me.arrived, taken=ends)
        self._delivered(me, ends)
        self._locked_until = ends + self._scenario.holds.draw(self._holds)
        yield ends - self._now


def points(rounds: int, seed: int) -> Iterator[Point]:
    """Spread first holds and the moments at which they are met evenly, with a random start.

    The one in steps of equal parts, the other in steps of the golden ratio: a few hundred rounds
    then tell as much as many thousand that are drawn independently.
    """
    random = Random(f"points {seed}")
    start = random.random()
    for number in range(rounds):
        yield Point((number + random.random()) / rounds, (start + number * _GOLDEN) % 1)


def simulate(scenario: Scenario, strategy: Strategy, *, rounds: int, seed: int = 1) -> Tally:
    """Play so many rounds. The same seed gives the same figures, and every strategy its holds."""
    tally = Tally(mean_hold=scenario.holds.mean)
    for number, first in enumerate(points(rounds, seed)):
        Round(scenario, strategy, tally, seed=f"{seed} {number}", first=first).run()
    return tally
