"""How large the next chunk is."""

from __future__ import annotations

import pytest

from meeting_async._pace import LARGEST_CHUNK, QUICK_SECONDS, SMALLEST_CHUNK, Pace

KIB = 1024


def sizes(*seconds: float) -> list[int]:
    """Return the chunk sizes in KiB before and after chunks that took so many seconds."""
    now = 100.0
    pace = Pace(lambda: now)
    found = [pace.chunk // KIB]
    for taken in seconds:
        pace.hand_over()
        now += taken
        pace.taken()
        found.append(pace.chunk // KIB)
    return found


def test_it_begins_small() -> None:
    """Nothing is known about the line yet."""
    assert sizes() == [64]


def test_a_fast_line_gets_large_chunks() -> None:
    """Up to a limit, as larger ones gain nothing."""
    assert sizes(0, 0.001, 0.01, 0.024, 0) == [64, 128, 256, 512, 512, 512]


def test_a_slow_line_keeps_small_ones() -> None:
    """Each upload in flight holds one in memory."""
    assert sizes(0.2, 5, 0.101) == [64, 64, 64, 64]


def test_a_line_that_slows_down() -> None:
    """A chunk that took long makes the next one smaller."""
    assert sizes(0, 0, 0.2, 0.2, 0.2, 0) == [64, 128, 256, 128, 64, 64, 128]


@pytest.mark.parametrize("seconds", [QUICK_SECONDS, 2 * QUICK_SECONDS, 4 * QUICK_SECONDS])
def test_in_between_nothing_changes(seconds: float) -> None:
    """So that the size does not swing to and fro; both limits belong to the middle."""
    pace = Pace(iter([0.0, 0.0, seconds]).__next__)
    pace.hand_over()
    pace.taken()
    assert pace.chunk == SMALLEST_CHUNK
    assert SMALLEST_CHUNK < LARGEST_CHUNK


def test_reading_the_document_does_not_count() -> None:
    """A slow disk says nothing about the line."""
    assert sizes(0) == [64, 128]
    pace = Pace(iter([0.0, 50.0, 50.0]).__next__)
    pace.hand_over()
    pace.taken()
    assert pace.chunk == 2 * SMALLEST_CHUNK
