"""How long to wait, how often to try: frozen settings and the arithmetic that follows from them.

Pure: time spans and random numbers are passed in. All times are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import attrs
from attrs.validators import is_callable, optional

from meeting_async._events import OnEvent
from meeting_async.errors import ConfigurationError

Delivery = Literal["at_most_once", "at_least_once"]
"""What to do when it is unknown whether a document arrived: stop, or send it again."""


def _number(
    kind: type[int | float], low: float, high: float = math.inf, *, above: bool = False
) -> Callable[[object, attrs.Attribute[Any], Any], None]:
    """Make a validator for a number from ``low`` (or ``above`` it) to ``high``."""
    word = "an integer" if kind is int else "a number"
    limits = f"{word} {'above' if above else 'of at least'} {low:g}"
    limits += f" and at most {high:g}" if high < math.inf else ""

    def validate(_instance: object, field: attrs.Attribute[Any], value: Any) -> None:
        types = int if kind is int else (int, float)
        number = isinstance(value, types) and not isinstance(value, bool)
        if not number or not low <= value <= high or (above and value == low):
            raise ConfigurationError(field.name, repr(value), f"is not {limits}", "mend the value")

    return validate


def _instance(kind: type) -> Callable[[object, attrs.Attribute[Any], Any], None]:
    def validate(_instance: object, field: attrs.Attribute[Any], value: Any) -> None:
        if not isinstance(value, kind):
            problem, fix = "is of a wrong type", f"give a {kind.__name__}"
            raise ConfigurationError(field.name, repr(value)[:80], problem, fix)

    return validate


def _delivery(_instance: object, field: attrs.Attribute[Any], value: object) -> None:
    modes = get_args(Delivery)
    if value not in modes:
        fix = f"choose {' or '.join(map(repr, modes))}"
        raise ConfigurationError(field.name, repr(value), "is not a way of delivery", fix)


_seconds = _number(float, 0)
_positive = _number(float, 0, above=True)


def jittered(seconds: float, random: float, *, spread: float) -> float:
    """Move ``seconds`` by up to ±``spread`` (a share), for a ``random`` in [0, 1)."""
    return seconds * (1 + spread * (2 * random - 1))


@attrs.frozen(kw_only=True)
class LockPolicy:
    """How to wait for a room in which somebody else's upload is in progress (HTTP 409).

    The delays grow with the time already waited, from half a second to a few seconds. On a slow
    line the time that a body takes sets them instead, so that most of the line stays free. Nobody
    waits longer than the lock can live, and who has waited long tries more often than newcomers.
    ``docs/waiting.md`` says why; ``python -m benchmarks.waiting`` compares it with what others do.
    """

    max_wait: float = attrs.field(default=330.0, validator=_seconds)
    """Budget in seconds from the first 409 of an upload; 0 raises ``RoomBusy`` at once."""
    window: float = attrs.field(default=300.0, validator=_seconds)
    """Longest time a server holds a room's lock (interface section 8: 5 minutes)."""
    growth: float = attrs.field(default=4.0, validator=_positive)
    """Delay as a multiple of the time already waited, until it reaches its longest."""
    min_delay: float = attrs.field(default=0.5, validator=_positive)
    """Shortest delay, before jitter; a lock may be released a moment after the holder's 200."""
    max_delay: float = attrs.field(default=7.5, validator=_positive)
    """Longest delay on a fast line, before jitter; a Retry-After may ask for more."""
    line_share: float = attrs.field(default=0.4, validator=_number(float, 0, 1, above=True))
    """Share of the time for which attempts may keep a slow line busy, once the delays have grown.

    A body of 10 s is then followed by a delay of 15 s; the first delay is half as long.
    """
    patience: float = attrs.field(default=120.0, validator=_positive)
    """Seconds of waiting after which ``max_delay`` shrinks in proportion, to a quarter at last."""
    probe: bool = attrs.field(default=False, validator=_instance(bool))
    """Ask with an empty form whether the room is locked before the document is sent."""
    probe_interval: float = attrs.field(default=2.0, validator=_positive)
    """Longest delay between two probes, before jitter."""
    max_retry_after: float = attrs.field(default=60.0, validator=_seconds)
    """Longest Retry-After that is obeyed; a longer one is cut to this."""
    jitter: float = attrs.field(default=0.25, validator=_number(float, 0, 1))
    """Share by which a delay is moved at random, so that waiters do not march in step."""

    def delay(
        self,
        *,
        waited: float,
        send_seconds: float,
        hint: float | None,
        random: float,
        probing: bool = False,
    ) -> float | None:
        """Seconds until the next attempt, or ``None`` when the budget is spent.

        The last attempt falls on the end of the budget. ``send_seconds`` is how long the refused
        body took. ``hint`` is the server's Retry-After, which wins. ``probing`` says that a probe
        comes next, which costs the same on every line.
        """
        remaining = self.max_wait - waited
        if remaining < _ROUNDING:
            return None
        if hint is not None:
            return min(max(min(hint, self.max_retry_after), self.min_delay), remaining)
        if probing:
            seconds = min(max(waited * self.growth, self.min_delay), self.probe_interval)
            return min(jittered(seconds, random, spread=self.jitter), remaining)
        seconds = jittered(self._grown(waited, send_seconds), random, spread=self.jitter)
        return min(seconds, self._until_expiry(waited, send_seconds), remaining)

    def _grown(self, waited: float, send_seconds: float) -> float:
        """Delay before jitter."""
        slow = send_seconds * (1 - self.line_share) / self.line_share
        longest = max(self.max_delay * self._fading(waited), slow)
        return max(min(waited * self.growth, longest), slow / 2, self.min_delay)

    def _fading(self, waited: float) -> float:
        return 1.0 if waited <= self.patience else max(self.patience / waited, _OLDEST)

    def _until_expiry(self, waited: float, send_seconds: float) -> float:
        """Delay after which the body ends just when the lock of the first 409 must have ended."""
        if waited >= self.window:
            return math.inf
        return max(self.window - waited - send_seconds, self.min_delay)


_OLDEST = 0.25
"""Part of ``max_delay`` that is left to who has waited longest: it must not end in hammering."""

_ROUNDING = 0.001
"""Seconds: sleeping until the end of the budget may end a float's rounding short of it."""


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """How often to repeat what may be repeated without harm (see the verdict table)."""

    max_attempts: int = attrs.field(default=5, validator=_number(int, 1))
    """Attempts of one call; waiting for a room's lock does not count."""
    max_interruptions: int = attrs.field(default=2, validator=_number(int, 0))
    """Repetitions in a row of an upload that was cut off before its end with bytes sent."""
    initial_delay: float = attrs.field(default=0.5, validator=_positive)
    """Seconds before the first repetition; doubles with each further one."""
    max_delay: float = attrs.field(default=20.0, validator=_positive)
    """Longest delay in seconds that doubling may reach."""
    max_retry_after: float = attrs.field(default=60.0, validator=_seconds)
    """Longest Retry-After that is obeyed; a longer one is cut to this."""

    max_outage: float = attrs.field(default=60.0, validator=_seconds)
    """Seconds for which an upload goes on trying, whatever ``max_attempts``, while no call of the
    client gets a connection; 0: it does not."""

    def backoff(self, *, failures: int, hint: float | None, random: float) -> float:
        """Seconds before the next attempt after ``failures`` (≥ 1) of them; a hint wins.

        Between half and all of the doubled delay, at random ("equal jitter").
        """
        if hint is not None:
            return min(hint, self.max_retry_after)
        ceiling = min(self.initial_delay * 2.0 ** min(failures - 1, 32), self.max_delay)
        return ceiling * (0.5 + 0.5 * random)


@attrs.frozen(kw_only=True)
class Timeouts:
    """Limits on one attempt, in seconds. ``deadline=`` of a call limits all of them together."""

    connect: float = attrs.field(default=10.0, validator=_positive)
    """Name lookup, TCP and TLS together."""
    send_stall: float = attrs.field(default=30.0, validator=_positive)
    """Longest time without progress while a body goes out: a stall, not a total."""
    reply: float = attrs.field(default=15.0, validator=_positive)
    """From the end of a JSON request to the end of its reply."""
    upload_reply: float = attrs.field(default=330.0, validator=_positive)
    """From the end of an upload to the end of its reply; the server answers after converting."""


@attrs.frozen(kw_only=True)
class Options:
    """All that ``MeetingClient.with_options`` can change."""

    max_size_whiteboard_file: int | None = None
    allow_images: bool = attrs.field(default=False, validator=_instance(bool))
    delivery: Delivery = attrs.field(default="at_most_once", validator=_delivery)
    lock: LockPolicy = attrs.field(factory=LockPolicy, validator=_instance(LockPolicy))
    retry: RetryPolicy = attrs.field(factory=RetryPolicy, validator=_instance(RetryPolicy))
    timeouts: Timeouts = attrs.field(factory=Timeouts, validator=_instance(Timeouts))
    on_event: OnEvent | None = attrs.field(default=None, validator=optional(is_callable()))
