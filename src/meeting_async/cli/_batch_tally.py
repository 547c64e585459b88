"""How far a batch is, how fast, and how long it may still take. The clock is passed in."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

import attrs

from meeting_async import UploadOutcome
from meeting_async._jobs import Status

ENOUGH_DOCUMENTS = 5
ENOUGH_SECONDS = 2.0
"""What must be over before the rest is estimated: less says nothing."""

SAMPLE_SECONDS = 1.0
SAMPLES = 30
"""The speed is that of the last half minute."""


@attrs.define
class Queues:
    """How many documents each room still gets. The longest queue is known at any time."""

    _left: Counter[str] = attrs.field(factory=Counter)
    _rooms: Counter[int] = attrs.field(init=False)
    """How many rooms have so many documents left."""
    longest: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._rooms = Counter(self._left.values())
        self.longest = max(self._rooms, default=0)

    def shorten(self, room_id: str) -> None:
        """Take a document off a room's queue; at constant cost, as ``longest`` only shrinks."""
        left = self._left[room_id]
        if left:
            self._left[room_id] = left - 1
            self._rooms[left] -= 1
            self._rooms[left - 1] += 1
        while self.longest and not self._rooms[self.longest]:
            self.longest -= 1


@attrs.define
class Tally:
    """The sums of a batch. Sizes are bytes, times seconds."""

    documents: int
    size: int
    """Bytes of all files, links not counted."""
    queues: Queues
    began: float
    counts: Counter[Status] = attrs.field(factory=Counter, init=False)
    resumed: int = attrs.field(default=0, init=False)
    """Documents that an earlier run had brought to their rooms."""
    size_done: int = attrs.field(default=0, init=False)
    """Bytes of the documents that are over, whatever became of them."""
    _tried: int = attrs.field(default=0, init=False)
    _seconds: float = attrs.field(default=0.0, init=False)
    _samples: deque[tuple[float, int, int]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._samples = deque([(self.began, 0, 0)], maxlen=SAMPLES)

    @classmethod
    def of(cls, rooms: Iterable[str], *, size: int, now: float) -> Tally:
        """Begin, with the room of each document."""
        left = Counter(rooms)
        return cls(left.total(), size, Queues(left), now)

    @property
    def done(self) -> int:
        """Documents that are over."""
        return self.counts.total()

    def add(self, outcome: UploadOutcome, size: int) -> None:
        """Account for a document that is over; ``size`` is that of its file."""
        self.counts[outcome.status] += 1
        self.resumed += outcome.status == "skipped" and outcome.is_good
        self.size_done += size
        self.queues.shorten(outcome.room_id)
        if outcome.attempts:  # others say nothing about how long a document takes
            self._tried += 1
            self._seconds += outcome.seconds

    def sample(self, now: float, bytes_sent: int) -> None:
        """Remember how far it is now; as often as liked."""
        if now - self._samples[-1][0] >= SAMPLE_SECONDS:
            self._samples.append((now, bytes_sent, self._tried))

    def speed(self, now: float, bytes_sent: int) -> float | None:
        """Return bytes per second, re-sent ones included; ``None`` until it is known."""
        then, sent, _ = self._samples[0]
        return (bytes_sent - sent) / (now - then) if now - then >= SAMPLE_SECONDS else None

    def time_left(self, now: float) -> float | None:
        """Estimate the seconds to the end; ``None`` while that would be a guess.

        As long as the rest takes at the speed so far; and no less than the longest queue of a
        room takes, one document after another, at the mean time that a document took.
        """
        if self._tried < ENOUGH_DOCUMENTS or now - self.began < ENOUGH_SECONDS:
            return None
        left = self.documents - self.done
        in_a_row = self.queues.longest * self._seconds / self._tried
        return max(left / self._per_second(now), in_a_row) if left else 0.0

    def _per_second(self, now: float) -> float:
        """Documents per second: lately, if that were enough to tell."""
        then, _, tried = self._samples[0]
        if self._tried - tried >= ENOUGH_DOCUMENTS and now - then >= ENOUGH_SECONDS:
            return (self._tried - tried) / (now - then)
        return self._tried / (now - self.began)


def readable_time(seconds: float) -> str:
    """Write a duration for people, as exact as an estimate can be."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
