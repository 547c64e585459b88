"""The policies compared: ours, and what others do or advise.

Attempts and total time of all of them are unlimited here: who gives up after two retries within a
second (openai) or after 45 s (stamina) delivers nothing, and cannot be compared.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from random import Random

import attrs

from meeting_async import LockPolicy


class Role(enum.Enum):
    """How a strategy is drawn."""

    OURS = "ours"
    PROBE = "variant"
    PEER = "peer"
    ORACLE = "ceiling"


@attrs.frozen
class Refusal:
    """What a waiter knows when it has to choose a delay."""

    waited: float
    """Seconds since its first 409."""
    send_seconds: float
    """Seconds that the body took."""
    number: int
    """Refusals before this one."""
    previous: float | None
    """The delay chosen last, in seconds."""
    probing: bool = False
    """It was a probe that was refused."""


@attrs.frozen
class Strategy:
    """A way to wait."""

    name: str
    role: Role
    delay: Callable[[Refusal, Random], float] = attrs.field(eq=False)
    """Chooses the seconds until the next attempt."""

    @property
    def probes(self) -> bool:
        """Whether it asks before it sends."""
        return self.role is Role.PROBE

    @property
    def is_clairvoyant(self) -> bool:
        """Whether it knows when the lock is released."""
        return self.role is Role.ORACLE


def fixed(seconds: float) -> Strategy:
    """Return a policy that always waits the same time."""
    return Strategy(f"fixed {seconds:g} s", Role.PEER, lambda _refusal, _random: seconds)


def ours(policy: LockPolicy, name: str = "meeting_async") -> Strategy:
    """Return what a lock policy of this library does, without the end of its budget."""
    endless = attrs.evolve(policy, max_wait=math.inf)
    role = Role.PROBE if policy.probe else Role.OURS

    def delay(refusal: Refusal, random: Random) -> float:
        seconds = endless.delay(
            waited=refusal.waited,
            send_seconds=refusal.send_seconds,
            hint=None,
            random=random.random(),
            probing=refusal.probing,
        )
        assert seconds is not None
        return seconds

    return Strategy(name, role, delay)


_DOUBLINGS = 32
"""More of them would overflow, and change nothing below any cap."""


def _doubled(base: float, cap: float, number: int) -> float:
    return min(cap, base * 2.0 ** min(number, _DOUBLINGS))


def _full_jitter(refusal: Refusal, random: Random) -> float:
    """https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/ ."""
    return random.uniform(0, _doubled(1, 20, refusal.number))


def _decorrelated_jitter(refusal: Refusal, random: Random) -> float:
    """From the same page."""
    return min(20.0, random.uniform(1, 3 * (refusal.previous or 1)))


def _stamina(refusal: Refusal, random: Random) -> float:
    """Wait as the defaults of ``stamina.retry``: wait_initial 0.1, wait_max 5, wait_jitter 1."""
    return min(5.0, _doubled(0.1, 5, refusal.number) + random.uniform(0, 1))


def _openai(refusal: Refusal, random: Random) -> float:
    """Wait as openai's Python SDK, which does retry a 409: 0.5 s doubled to 8 s, less up to ¼."""
    return _doubled(0.5, 8, refusal.number) * (1 - 0.25 * random.random())


def _never(_refusal: Refusal, _random: Random) -> float:
    raise AssertionError("a clairvoyant is never refused")


OURS = ours(LockPolicy())
PROBING = ours(LockPolicy(probe=True), "meeting_async, probe")
ORACLE = Strategy("oracle", Role.ORACLE, _never)
PEERS = (
    fixed(1),
    fixed(5),
    fixed(30),
    Strategy("AWS full jitter", Role.PEER, _full_jitter),
    Strategy("decorrelated jitter", Role.PEER, _decorrelated_jitter),
    Strategy("stamina", Role.PEER, _stamina),
    Strategy("openai", Role.PEER, _openai),
)
ALL = (OURS, PROBING, *PEERS, ORACLE)
