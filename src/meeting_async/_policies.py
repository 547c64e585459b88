"""Settings for waiting, retries and timeouts: frozen values, validated when they are made.

Sans-I/O. All times are in seconds. ``_delivery/decide.py`` makes the decisions.

The validators of attrs raise ``TypeError`` and ``ValueError`` with texts for programmers, and take
``True`` for a number. Ours raise ``ConfigurationError`` with the field, the value and the fix.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Literal, get_args

import attrs

from meeting_async._text import short_repr
from meeting_async.errors import ConfigurationError

Delivery = Literal["at_most_once", "at_least_once", "exactly_once"]
"""After an unknown outcome: stop, send the document again, or find out (``docs/delivery.md``)."""


def number(
    kind: type[int | float], low: float, high: float = math.inf, *, above: bool = False
) -> Callable[[object, attrs.Attribute[Any], Any], None]:
    """Make a validator for a number from ``low`` (excluded if ``above``) to ``high``."""
    word = "an integer" if kind is int else "a number"
    limits = f"{word} {'above' if above else 'of at least'} {low:g}"
    limits += f" and at most {high:g}" if high < math.inf else ""

    def validate(_instance: object, field: attrs.Attribute[Any], value: Any) -> None:
        types = int if kind is int else (int, float)
        is_number = isinstance(value, types) and not isinstance(value, bool)
        if not is_number or not low <= value <= high or (above and value == low):
            problem = "is out of range" if is_number else f"is not {word}"
            raise ConfigurationError(field.name, short_repr(value), problem, f"give {limits}")

    return validate


def instance(kind: type) -> Callable[[object, attrs.Attribute[Any], Any], None]:
    """Make a validator for an instance of a class."""

    def validate(_instance: object, field: attrs.Attribute[Any], value: Any) -> None:
        if not isinstance(value, kind):
            problem = "is of a wrong type"
            fix = "give True or False" if kind is bool else f"give {kind.__name__}(...)"
            raise ConfigurationError(field.name, short_repr(value), problem, fix)

    return validate


def delivery_mode(_instance: object, field: attrs.Attribute[Any], value: object) -> None:
    """Validate a :data:`Delivery`."""
    modes = get_args(Delivery)
    if value not in modes:
        fix = f"choose {' or '.join(map(repr, modes))}"
        raise ConfigurationError(field.name, short_repr(value), "is not a delivery mode", fix)


def _max_wait(instance: object, field: attrs.Attribute[Any], value: Any) -> None:
    if value is not None:
        _seconds(instance, field, value)


_seconds = number(float, 0)
_positive = number(float, 0, above=True)


@attrs.frozen(kw_only=True)
class LockPolicy:
    """How to wait for a locked room. All times are in seconds.

    An empty form of some 500 bytes asks whether the room is free: before a document above 64 KiB,
    and after a 409 before any document. After a 409 the attempt is repeated after about a tenth of
    the time that the lock has lasted, at least ``min_delay`` and at most 2 s.
    """

    max_wait: float | None = attrs.field(default=None, validator=_max_wait)
    """Longest time in all that an upload waits because its room is locked: by another client, by
    another upload of this application, or by its own document of unknown outcome. 0: never wait.
    ``None``: no limit behind uploads of this application, and ``window`` plus 30 s after the first
    409. Waits for a place in a batch do not count."""
    window: float = attrs.field(default=300.0, validator=_seconds)
    """Longest time that a server locks a room (``docs/interface.md``, Limits: 5 minutes)."""
    min_delay: float = attrs.field(default=0.4, validator=number(float, 0.25))
    """Shortest delay, and so the first one, before jitter (25 %). A server may release a lock a
    moment after its 200."""
    probe: bool = attrs.field(default=True, validator=instance(bool))
    """Ask with an empty form whether the room is free. ``False`` for a server that takes an empty
    form for an upload; then a check that denies the room is final, and after a 409 the document
    itself is sent again, every 18 to 22.5 s."""


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """How often to retry; all times are in seconds (``docs/delivery.md``, What is retried)."""

    max_attempts: int = attrs.field(default=5, validator=number(int, 1))
    """Attempts of one call, of questions only those in a row. Waits for a room do not count. For an
    upload, attempts without a connection and questions without an answer do not count either:
    ``max_outage`` limits them."""
    max_interruptions: int = attrs.field(default=2, validator=number(int, 0))
    """Retries in a row of an upload that was cut off after some bytes were sent."""
    max_failed_conversions: int = attrs.field(default=1, validator=number(int, 0))
    """In a batch: retries of an office document whose conversion failed, while no other upload of
    the batch runs. Servers may fail all but one of those that are converted at the same moment."""
    settle_after: float = attrs.field(default=65.0, validator=_seconds)
    """Seconds after which nothing between here and the server can still deliver a form that was
    lost: for ``delivery="exactly_once"`` and journals. Proxies usually give up after 60 s."""
    initial_delay: float = attrs.field(default=0.5, validator=number(float, 0.25))
    """Seconds before the first retry, before jitter; doubles with each further retry."""
    max_delay: float = attrs.field(default=20.0, validator=number(float, 0.25))
    """Longest delay in seconds between retries."""
    max_retry_after: float = attrs.field(default=60.0, validator=_seconds)
    """Longest Retry-After that is obeyed; a longer one is shortened to this. It makes a wait
    longer, never shorter."""
    max_outage: float = attrs.field(default=60.0, validator=_seconds)
    """Seconds for which an upload keeps trying to reach the server; 0: one attempt. The last wait
    is shortened."""


@attrs.frozen(kw_only=True)
class Timeouts:
    """Limits on one attempt, in seconds. ``timeout=`` limits the whole call."""

    connect: float = attrs.field(default=10.0, validator=_positive)
    """Name lookup, TCP and TLS together."""
    send_stall: float = attrs.field(default=30.0, validator=_positive)
    """Longest time without progress while a body is sent."""
    reply: float = attrs.field(default=15.0, validator=_positive)
    """From the end of a JSON request to the end of its reply."""
    upload_reply: float = attrs.field(default=330.0, validator=_positive)
    """From the end of an upload to the end of its reply; the server answers after converting."""


# --- sizes ---------------------------------------------------------------------------------------

_UNITS = {"": 1, "B": 1, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}


def parse_size(text: str | int, *, field: str) -> int:
    """Read a size in bytes: an ``int``, digits, or a number with KiB, MiB or GiB (powers of 1024).

    ``MB`` and similar units are refused, because servers mean 1024² by them.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    else:
        match = re.fullmatch(r"\s*(\d{1,15})\s*([A-Za-z]*)\s*", str(text), re.ASCII)
        unit = _UNITS.get(match[2].upper()) if match else None
        if match is None or unit is None:
            raise _bad_size(field, text)
        size = int(match[1]) * unit
    if size <= 0:
        raise _bad_size(field, text)
    return size


def _bad_size(field: str, value: object) -> ConfigurationError:
    return ConfigurationError(
        field, short_repr(value), "is not a size", "give bytes above 0, or a unit as in 30MiB"
    )
