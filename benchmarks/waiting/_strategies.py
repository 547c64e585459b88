"""The ways to wait that are compared: ours, those of others, and one that knows the future."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import attrs

from meeting_async._delivery.decide import (
    Done,
    Policies,
    RetrySafety,
    Stop,
    Wait,
    asks_first,
    decide,
)
from meeting_async._delivery.history import History, Step
from meeting_async._delivery.server import Server
from meeting_async._policies import LockPolicy
from meeting_async._protocol.replies import ParsedReply

BUSY = ParsedReply(409)


class Waiter(Protocol):
    """What decides for one upload."""

    @property
    def must_probe(self) -> bool:
        """Whether the room is asked with an empty form before the next document."""
        ...

    def decide(self, step: Step, now: float, random: float) -> Done | Stop | Wait:
        """Say what follows a document, or a question that was answered *locked*."""
        ...


class NeverAsks:
    """A waiter that sends its document each time, after a delay of its own."""

    must_probe = False

    def decide(self, step: Step, now: float, random: float) -> Wait:
        """Wait."""
        return Wait(self.delay(step, now, random))

    def delay(self, step: Step, now: float, random: float) -> float:
        """Seconds until the document is sent again."""
        raise NotImplementedError


@attrs.define
class Fixed(NeverAsks):
    """The loop that everybody writes first."""

    seconds: float

    def delay(self, step: Step, now: float, random: float) -> float:
        """Wait the same each time."""
        return self.seconds


@attrs.define
class FirstEdition(NeverAsks):
    """The default of version 0.1: its rule and its constants, without the end of its budget.

    Today it is what follows with ``LockPolicy(probe=False)``, and when questions are of no use.
    """

    since: float | None = None
    """When the first 409 came."""

    def delay(self, step: Step, now: float, random: float) -> float:
        """Wait four times as long as so far, at most 7.5 s; on a slow line 1.5 bodies."""
        self.since = now if self.since is None else self.since
        waited, body = now - self.since, step.body_seconds or 0.0
        slow = 1.5 * body
        longest = max(7.5 * max(min(1.0, 120 / max(waited, 1.0)), 0.25), slow)
        grown = max(min(4 * waited, longest), slow / 2, 0.5)
        until_expiry = max(300 - waited - body, 0.5) if waited < 300 else math.inf
        return min(grown * (0.75 + 0.5 * random), until_expiry)


@attrs.define
class Ours:
    """The client's own decisions, as in a process that does nothing else."""

    policies: Policies
    history: History = attrs.field(factory=History)
    server: Server = attrs.field(factory=Server)

    @property
    def must_probe(self) -> bool:
        """Whether the room is asked first."""
        return asks_first(self.history, self.policies, self.server)

    @property
    def believes(self) -> bool:
        """Whether the server's answers to questions are believed."""
        return self.must_probe or self.policies.is_small

    def decide(self, step: Step, now: float, random: float) -> Done | Stop | Wait:
        """Say what follows a document, or a question that was answered *locked*."""
        self.history.add(step, call_began=0.0)
        self.server.learn(step, was_retried=False)
        return decide(self.history, self.policies, self.server, now, random)


def ours(size: int, *, probe: bool = True) -> Ours:
    """Return a waiter without a limit of its own."""
    lock = LockPolicy(max_wait=math.inf, probe=probe)
    return Ours(Policies(safety=RetrySafety.AT_MOST_ONCE, lock=lock, size=size))


OURS = "meeting_async"
FIRST = "version 0.1.0"
ORACLE = "ideal client"
"""It knows the future: the document ends in the moment of the release, first come, first served."""

STRATEGIES: dict[str, Callable[[int], Waiter] | None] = {
    OURS: ours,
    FIRST: lambda _size: FirstEdition(),
    "every second": lambda _size: Fixed(1.0),
    ORACLE: None,
}
"""Each makes a waiter for a document of so many bytes."""
