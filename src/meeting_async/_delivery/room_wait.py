"""Waiting for a locked room: pure functions of a history (sans-I/O).

Probes ask whether the room is free; the document follows when it is. Times are seconds of the event
loop's clock; ``random`` is a number in [0, 1).
"""

from __future__ import annotations

import attrs

from meeting_async._delivery.history import PAUSES, History, Step, takes_room
from meeting_async._models import Verdict
from meeting_async._policies import LockPolicy
from meeting_async._protocol.replies import ParsedReply
from meeting_async.errors import RoomBusy

MIN_WAIT = 0.25
"""Shortest wait in seconds before anything is sent again, even if Retry-After is less."""

JITTER = 0.25
"""Random share of a delay, so that waiting uploads do not continue together."""

PROBE_ABOVE = 64 * 1024
"""Bytes of a document above which a probe is always sent first. A smaller document costs hardly
more than a probe (``decide.asks_first``)."""

PROBE_SHARE = 0.1
"""Time between two probes, as a share of the lock's age: the end of a short lock is noticed soon,
and a long one costs few probes."""

PROBE_INTERVAL = 2.0
"""Longest such time in seconds, jitter included, without lost races; users hardly notice it."""

RIVAL_INTERVAL = 2.5
"""Shortest time in seconds between two probes after a lost race, before jitter. With this value
fifty uploads send no more than with probes every 2 s (``benchmarks/waiting.py``)."""

LOST_RACE_FACTOR = 3.0
"""Time between two probes after a lost race, as a multiple of the time that the document takes to
send. A race is lost if a document gets 409 right after the answer *free*: then other uploads wait,
too. While one of them sends, probes are still answered *free*, and all that probe would send."""

MAX_LOST_RACE_FACTOR = 6.5
"""The same after several lost races. Both values come from the simulation in ``benchmarks/``."""

LOST_RACE_SECONDS = 0.35
"""Shortest such time in seconds, for each lost race. So a document is sent at most 200 times in an
hour, however small it is, and whatever the server answers."""

LOST_RACE_JITTER = 0.8
"""Random share of that time, so that uploads that lost together do not probe together."""

LOCK_GRACE = 30.0
"""Seconds that an upload waits by default after a lock must have ended: clocks differ."""

MAX_ROOM_HINT = 60.0
"""Longest Retry-After in seconds that is obeyed for a locked room."""

RESEND_SECONDS = 18.0
"""Shortest time in seconds before a document is sent again without a probe, before jitter, which
adds some: at most 200 times in an hour. It is at least the time that sending took."""


@attrs.frozen(kw_only=True)
class RoomWait:
    """How long one upload has waited for its room, and when it sends again."""

    history: History
    policy: LockPolicy
    asks: bool = True
    """Whether the next attempt begins with a probe."""

    def waited(self, now: float) -> float:
        """Seconds that the upload has waited for its room so far.

        Attempts without a 409 and waits for a place or a session do not count.
        """
        steps = self._waiting_steps
        others = sum(step.seconds for step in steps[1:] if step.verdict is not Verdict.BUSY)
        return self.queued + (now - steps[0].ended - others if steps else 0.0)

    @property
    def queued(self) -> float:
        """Seconds behind other uploads of this application."""
        return sum(step.seconds for step in self.history.steps if step.kind == "queue")

    @property
    def _waiting_steps(self) -> list[Step]:
        """The first step that found the room locked, or may have locked it, and all after it."""
        steps = self.history.steps
        first = (index for index, step in enumerate(steps) if takes_room(step))
        return steps[next(first, len(steps)) :]

    def queue_limit(self) -> float | None:
        """Longest wait in seconds behind other uploads of this application; ``None``: no limit."""
        limit = self.policy.max_wait
        return None if limit is None else max(0.0, limit - self.queued)

    @property
    def limit(self) -> str:
        """Name of the setting that :meth:`time_left` comes from."""
        return "window" if self.policy.max_wait is None else "max_wait"

    def time_left(self, now: float) -> float:
        """Seconds that the upload may go on waiting for its room."""
        if self.policy.max_wait is not None:
            return self.policy.max_wait - self.waited(now)
        return self.policy.window + LOCK_GRACE - self._lock_age(now)

    def next_wait(self, hint: float | None, now: float, random: float) -> float | None:
        """Return the seconds until the next attempt; ``None``: no time is left for it.

        ``hint`` (Retry-After) makes them more, never fewer.
        """
        left = self.time_left(now)
        seconds = min(self._delay(now, random), left)
        if hint is not None:
            seconds = max(seconds, min(hint, MAX_ROOM_HINT) * (1 + JITTER * random))
        return seconds if MIN_WAIT <= seconds <= left else None

    def busy_error(self, answer: ParsedReply | None, now: float, limit: str = "") -> RoomBusy:
        """Return the error for a room that is locked for too long; ``limit`` names the setting."""
        # After a lost race the lock is the winner's.
        lost = [now - one.ended for one in self._refused if one.after_free]
        free_in = max(0.0, self.policy.window - min([self._lock_age(now), *lost]))
        reason = answer.msg if answer else ""
        for_place = sum(step.seconds for step in self._waiting_steps if step.kind == "place")
        return RoomBusy(self.waited(now), "another client", free_in, reason, limit, for_place)

    def _lock_age(self, now: float) -> float:
        """Seconds since the first 409 of this lock, without waits for a place or a session.

        A document of unknown outcome, or whose conversion failed, had a lock of its own.
        """
        steps: list[Step] = []
        for step in self.history.steps:
            if step.verdict in {Verdict.UNKNOWN, Verdict.FAILED}:
                steps = []
            elif steps or step.verdict is Verdict.BUSY:
                steps.append(step)
        pauses = sum(step.seconds for step in steps if step.kind in PAUSES)
        return now - steps[0].ended - pauses if steps else 0.0

    def _delay(self, now: float, random: float) -> float:
        if not self.asks:
            shortest = max(RESEND_SECONDS, self.policy.min_delay, self._body_seconds)
            return shortest * (1 + JITTER * random)
        jitter = 1 + JITTER * (2 * random - 1)
        shortest = max(self.policy.min_delay * jitter, MIN_WAIT)
        longest = PROBE_INTERVAL * (1 - JITTER * (1 - random))
        usual = min(self._lock_age(now) * PROBE_SHARE * jitter, longest)
        return max(usual, shortest, self._lost_race_interval(random))

    @property
    def _refused(self) -> list[Step]:
        """The documents that got 409."""
        steps = self.history.steps
        return [one for one in steps if one.kind == "document" and one.verdict is Verdict.BUSY]

    @property
    def _body_seconds(self) -> float:
        """How long the last document that got 409 took to send."""
        if not self._refused:
            return 0.0
        last = self._refused[-1]
        return last.seconds if last.body_seconds is None else last.body_seconds

    def _lost_race_interval(self, random: float) -> float:
        """Shortest seconds between probes after lost races; 0 without one."""
        lost = sum(step.after_free for step in self._refused)
        if not lost:
            return 0.0
        share = min(LOST_RACE_FACTOR * lost, MAX_LOST_RACE_FACTOR)
        seconds = max(self._body_seconds * share, LOST_RACE_SECONDS * lost)
        spread = 2 * random - 1
        rivals = RIVAL_INTERVAL * (1 + JITTER * spread)
        return max(seconds * (1 + LOST_RACE_JITTER * spread), rivals)
