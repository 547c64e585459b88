"""Numbers as people read them."""

from __future__ import annotations

import pytest

from meeting_async.cli._amounts import duration, size
from meeting_async.cli._markup import shortened


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0, "0 s"), (0.0004, "0 ms"), (0.2, "200 ms"), (0.9996, "1.0 s"), (59.9, "59.9 s")),
        *((59.96, "1 min 0 s"), (3599.6, "1 h 0 min"), (18_000, "5 h 0 min")),
        (360_000 * 20, "2,000 h 0 min"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    """From an instant to a week, without 60 seconds or 1000 ms."""
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        *((0, "0 bytes"), (1, "1 byte"), (1023, "1,023 bytes"), (1024, "1.0 KiB")),
        *((1024**2 - 1, "1.0 MiB"), (5 * 1024**3, "5.0 GiB"), (2048 * 1024**4, "2,048.0 TiB")),
    ],
)
def test_sizes(number: int, words: str) -> None:
    """In the units of the limits; never 1024.0 of one."""
    assert size(number) == words


def test_a_long_name_keeps_both_ends() -> None:
    """What tells documents apart may be at either."""
    assert shortened("a" * 10, 10) == "a" * 10
    assert shortened("abcdefghijkl", 7) == "abc…jkl"
