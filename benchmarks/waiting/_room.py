"""One room and those who want it, in virtual time: events on a heap, no clock, no sleep.

The server examines the lock when a whole form has arrived, so that a document that is refused
costs all of it. Each contender is a process with a line of its own; none knows of the others. An
upload is a generator that yields for how many seconds nothing happens to it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator
from random import Random
from typing import Any

import attrs

from benchmarks.waiting._strategies import BUSY, Waiter
from meeting_async._delivery.decide import Done, Stop, Wait
from meeting_async._delivery.history import Kind, step
from meeting_async._models import Verdict

QUESTION_BYTES = 300
"""A signed form without a document."""

CROWD_SECONDS = 10.0
"""Span within which many contenders arrive."""

Process = Generator[float, None, None]


@attrs.frozen(kw_only=True)
class Scenario:
    """Who wants the room, and what a document costs."""

    hold: Callable[[Random], float]
    """Draws for how many seconds an upload holds the lock."""
    bits_per_second: float
    size: int
    """Bytes of each document."""
    contenders: int = 1
    """One begins at any moment; many within :data:`CROWD_SECONDS`."""
    says_always_free: bool = False
    """Whether the server answers an empty form without looking at its lock."""
    round_trip: float = 0.02
    """Seconds."""

    def seconds(self, size: int) -> float:
        """Seconds that so many bytes take to the server."""
        return size * 8 / self.bits_per_second


@attrs.define
class Tally:
    """What is counted, over all rounds."""

    starts: list[float] = attrs.field(factory=list)
    """Seconds from each release to the start of the document that took the lock; 0 if it was on
    its way. Counted if somebody waited."""
    idles: list[float] = attrs.field(factory=list)
    """Seconds from each such release to the next taking of the lock."""
    waits: list[float] = attrs.field(factory=list)
    """Seconds from the beginning of each upload to its taking of the lock."""
    refused: list[int] = attrs.field(factory=list)
    """Documents that each upload sent in vain."""
    vain: list[int] = attrs.field(factory=list)
    """Those of them that were sent right after an answer that said *free*."""
    questions: int = 0
    disbelieving: int = 0
    """Uploads whose process ended up asking no server any more."""

    @property
    def resent(self) -> float:
        """Bytes of documents sent in vain, for each byte delivered."""
        return sum(self.refused) / len(self.refused)


def simulate(
    scenario: Scenario, make: Callable[[int], Waiter] | None, *, rounds: int, seed: int = 1
) -> Tally:
    """Play rounds. All strategies meet the same arrivals and the same first holds.

    ``make`` makes a waiter for a document of so many bytes; ``None`` is the oracle.
    """
    tally = Tally()
    for number in range(rounds):
        room = _Room(scenario, tally, f"{seed} {number}")
        if make is None:
            _foresee(room)
        else:
            _play(room, make)
    return tally


class _Room:
    """Somebody else's upload holds the lock at first."""

    def __init__(self, scenario: Scenario, tally: Tally, seed: str) -> None:
        self.scenario = scenario
        self.tally = tally
        self.dice = Random(f"dice {seed}")
        self.now = 0.0
        self._holds = Random(f"holds {seed}")
        self.free_at = scenario.hold(self._holds)
        self.waiting = 0

    def arrivals(self) -> list[float]:
        """When the first documents are examined."""
        if self.scenario.contenders == 1:
            return [0.0]
        count = self.scenario.contenders
        return sorted(self._holds.uniform(0, CROWD_SECONDS) for _ in range(count))

    @property
    def is_locked(self) -> bool:
        return self.now < self.free_at

    def take(self, began: float, taken: float) -> None:
        """Let a document that began then have the lock."""
        if self.waiting:
            self.tally.starts.append(max(0.0, began - self.free_at))
            self.tally.idles.append(max(0.0, taken - self.free_at))
        self.free_at = taken + self.scenario.hold(self._holds)


def _play(room: _Room, make: Callable[[int], Waiter]) -> None:
    size = room.scenario.size
    order = itertools.count()
    travels = room.scenario.seconds(size) + room.scenario.round_trip / 2
    heap: list[tuple[float, int, Process]] = []
    for examined in room.arrivals():
        process = _upload(room, make(size), examined - travels)
        heapq.heappush(heap, (examined - travels, next(order), process))
    while heap:
        room.now, _, process = heapq.heappop(heap)
        for seconds in itertools.islice(process, 1):
            heapq.heappush(heap, (room.now + seconds, next(order), process))


def _upload(room: _Room, waiter: Waiter, arrived: float) -> Process:
    """Do what the waiter says until the room has the document, as ``_delivery/upload.py`` does."""
    refused = vain = 0
    is_waiting = False
    while True:
        is_asked = waiter.must_probe
        wait = None
        if is_asked:
            wait = yield from _ask(room, waiter)
        if wait is None:
            wait = yield from _send(room, waiter, after_free=is_asked)
            if wait is None:
                break
            refused, vain = refused + 1, vain + is_asked
        room.waiting += not is_waiting
        is_waiting = True
        yield wait
    room.waiting -= is_waiting
    tally = room.tally
    tally.refused.append(refused)
    tally.vain.append(vain)
    tally.waits.append(room.now - arrived)
    tally.disbelieving += not getattr(waiter, "believes", True)


def _ask(room: _Room, waiter: Waiter) -> Generator[float, None, float | None]:
    """Ask with an empty form; return the seconds to wait, or ``None``: send the document."""
    scenario, began = room.scenario, room.now
    room.tally.questions += 1
    yield scenario.seconds(QUESTION_BYTES) + scenario.round_trip / 2
    is_locked = room.is_locked and not scenario.says_always_free
    yield scenario.round_trip / 2
    return _wait(room, waiter, "probe", began) if is_locked else None


def _send(room: _Room, waiter: Waiter, *, after_free: bool) -> Generator[float, None, float | None]:
    """Send the document; return the seconds to wait, or ``None``: it is accepted."""
    began, body = room.now, room.scenario.seconds(room.scenario.size)
    yield body + room.scenario.round_trip / 2
    if not room.is_locked:
        room.take(began, room.now)
        return None
    yield room.scenario.round_trip / 2
    return _wait(room, waiter, "document", began, body_seconds=body, after_free=after_free)


def _wait(room: _Room, waiter: Waiter, kind: Kind, began: float, **facts: Any) -> float:
    """Let the waiter decide after a 409."""
    refused = step(kind, began, room.now, Verdict.BUSY, BUSY, **facts)
    return _seconds(waiter.decide(refused, room.now, room.dice.random()))


def _seconds(decision: Wait | Stop | Done) -> float:
    if not isinstance(decision, Wait):
        raise TypeError(f"nobody gives up here, but: {decision}")
    return decision.seconds


def _foresee(room: _Room) -> None:
    """Let each document end in the moment of its release; who came first is served first."""
    travels = room.scenario.seconds(room.scenario.size) + room.scenario.round_trip / 2
    for examined in room.arrivals():
        taken = max(room.free_at, examined)
        room.waiting = examined < room.free_at
        room.take(taken - travels, taken)
        room.tally.refused.append(0)
        room.tally.vain.append(0)
        room.tally.waits.append(taken - (examined - travels))


def percentile(values: list[float], share: float) -> float:
    """Smallest value that so large a share of the values does not exceed."""
    return sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]
