"""Settings: their defaults are promises, and what cannot be used is refused when it is made."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest

from meeting_async._policies import LockPolicy, RetryPolicy, Timeouts
from meeting_async.errors import ConfigurationError


def test_defaults() -> None:
    """What the documentation says."""
    assert attrs.asdict(LockPolicy()) == {
        "max_wait": None, "window": 300, "min_delay": 0.5, "max_delay": 7.5, "probe": True,
    }  # fmt: skip
    assert attrs.asdict(RetryPolicy()) == {
        "max_attempts": 5, "max_interruptions": 2, "initial_delay": 0.5, "max_delay": 20,
        "max_retry_after": 60, "max_outage": 60,
    }  # fmt: skip
    assert attrs.asdict(Timeouts()) == {
        "connect": 10, "send_stall": 30, "reply": 15, "upload_reply": 330,
    }  # fmt: skip


JUNK: list[Any] = [-1, math.nan, -math.inf, "5", True, False, [1], 1j]
NUMBERS = [
    (kind, field.name)
    for kind in (LockPolicy, RetryPolicy, Timeouts)
    for field in attrs.fields(kind)
    if field.name != "probe"
]


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=str)
def test_junk_is_refused_by_name(kind: type, name: str) -> None:
    """Negative, NaN, text and truth values are no numbers of seconds or attempts."""
    for value in JUNK:
        with pytest.raises(ConfigurationError) as caught:
            kind(**{name: value})
        assert (caught.value.field, caught.value.value) == (name, repr(value))


@pytest.mark.parametrize(
    ("kind", "name", "refused", "allowed"),
    [
        (LockPolicy, "max_wait", [], [None, 0, 0.1, math.inf]),
        (LockPolicy, "min_delay", [0, 0.24, None], [0.25, 5]),
        (LockPolicy, "max_delay", [0, None], [0.1, 60]),
        (LockPolicy, "probe", [0, 1, None, "yes"], [True, False]),
        (RetryPolicy, "max_attempts", [0, 1.0, None], [1, 100]),
        (RetryPolicy, "max_interruptions", [0.5], [0, 10]),
        (RetryPolicy, "initial_delay", [0, 0.24], [0.25]),
        (RetryPolicy, "max_delay", [0, 0.24], [0.25]),
        (RetryPolicy, "max_outage", [None], [0, 3600]),
        *((Timeouts, name, [0, None], [0.1, 1e6])
          for name in ("connect", "send_stall", "reply", "upload_reply")),
    ],
)  # fmt: skip
def test_limits_of_the_settings(
    kind: type, name: str, refused: list[Any], allowed: list[Any]
) -> None:
    """No setting can make anything repeat sooner than after a quarter of a second."""
    for value in allowed:
        assert getattr(kind(**{name: value}), name) == value
    for value in refused:
        with pytest.raises(ConfigurationError, match=name):
            kind(**{name: value})


@pytest.mark.parametrize("kind", [LockPolicy, RetryPolicy, Timeouts])
def test_settings_are_frozen_values(kind: Any) -> None:
    """Shared by calls that run at the same time; equal when they say the same."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        kind().window = 5
    with pytest.raises(TypeError):
        kind(5)
    assert kind() == kind()
