"""How much of a document to hand over at a time: as much as suits the line. Sans-I/O.

Large chunks make an upload as fast as the machine can be, but each upload in flight holds one or
two of them. On a slow line a large chunk is no faster than a small one; there may just be a
thousand such uploads at once.
"""

from __future__ import annotations

from collections.abc import Callable

SMALLEST_CHUNK = 64 * 1024
LARGEST_CHUNK = 512 * 1024
"""Bytes. On two cores 256 KiB was slower, and 1 MiB no faster."""

CHUNK_BYTES = 256 * 1024
"""What is read where no pace is known, and how large a document may be to be read as a whole."""

QUICK_SECONDS = 0.025
"""A chunk that is taken in less could be larger; one that takes four times as long, smaller.

A line of 21 Mbit/s takes the smallest chunk in this time, one of 168 Mbit/s the largest.
"""


class Pace:
    """The size of the next chunk, by how long the last one took. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.chunk = SMALLEST_CHUNK
        """Bytes."""
        self._clock = clock
        self._handed_over = clock()

    def hand_over(self) -> None:
        """Note that a chunk goes to the transport."""
        self._handed_over = self._clock()

    def taken(self) -> None:
        """Note that the transport comes back for more, and adapt."""
        seconds = self._clock() - self._handed_over
        if seconds < QUICK_SECONDS:
            self.chunk = min(self.chunk * 2, LARGEST_CHUNK)
        elif seconds > 4 * QUICK_SECONDS:
            self.chunk = max(self.chunk // 2, SMALLEST_CHUNK)
