"""Waiting for a locked room: pure decisions (sans-I/O). The caller passes time and randomness.

Ask, then send: after the first 409 an empty form asks whether the room is still locked, and the
document is sent when the answer is no. Times are seconds of the caller's clock; ``random`` is a
number in [0, 1).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from meeting_async._policies import LockPolicy
from meeting_async._protocol.replies import ParsedReply
from meeting_async.errors import RoomBusy

MIN_WAIT = 0.25
"""Shortest wait in seconds before anything is asked or sent again, even if the server asks for
less."""

JITTER = 0.25
"""Random share of a delay, so that waiting uploads do not continue together."""

PROBE_ABOVE = 64 * 1024
"""Bytes of a document above which an empty form asks whether the room is free, before the document
is sent again. A smaller document costs hardly more than the question."""

PROBE_INTERVAL = 2.0
"""Longest time in seconds between two questions, before jitter; users hardly notice it."""

LOST_RACE_FACTOR = 3.5
"""Time between two questions after a lost race, as a multiple of the time that the document takes
to send. A race is lost if a document gets 409 right after the answer *free*: then other uploads
wait, too. While one of them sends, the room still answers *free*, and all that ask would send."""

MAX_LOST_RACE_FACTOR = 8.0
"""The same after more lost races. Both values come from the simulation in ``benchmarks/``."""

LOST_RACE_SECONDS = 0.35
"""Shortest such time, for each lost race. So a document is sent some 140 times in an hour and 350
times in six, however small it is, and whatever the server answers."""

LOST_RACE_JITTER = 0.8
"""Random share of that time, so that uploads that lost together do not ask together."""

MAX_FALSE_FREE_ANSWERS = 2
"""After this many documents in a row that got 409 right after the answer *free*, stop asking this
server, if no question ever got 409: its answers mean something else."""

LOCK_GRACE = 30.0
"""Seconds that an upload waits by default after a lock must have ended: clocks differ."""

MAX_ROOM_HINT = 60.0
"""Longest Retry-After in seconds that is obeyed for a locked room."""

GROWTH = 4.0
"""Delay as a multiple of the time already waited, up to the longest delay."""

LATE_SHARE = 0.025
"""Delay before a document is sent again without asking, as a share of the time already waited, if
that is longer. No honest lock lasts so long that it counts (300 s), but if somebody waits for
hours, a document is not sent more than a few hundred times."""

RESEND_FACTOR = 1.5
"""Shortest delay before a document is sent again without asking, as a multiple of the time that it
takes to send: a slow line stays free for others for 60 % of the time."""


@attrs.define
class ProbeReliability:
    """Whether answers to an empty form are reliable on this server; shared by a client's calls."""

    are_answered: bool = True
    """False: this server does not understand the question, so documents are sent without it."""
    false_free_answers: int = 0
    """Documents in a row that got 409 right after the answer *free*."""
    is_proven: bool = False
    """Whether any question got 409. Then the server checks its lock, and a document that gets 409
    after *free* has lost a race."""

    def answered_busy(self) -> None:
        """Count a question that got 409."""
        self.is_proven = True

    def confirmed(self) -> None:
        """Count a document that was accepted right after the answer *free*."""
        self.false_free_answers = 0

    def refused_after_free(self) -> None:
        """Count a document that got 409 right after the answer *free*."""
        self.false_free_answers += 1
        if self.false_free_answers >= MAX_FALSE_FREE_ANSWERS and not self.is_proven:
            self.are_answered = False


@attrs.define(kw_only=True)
class RoomWait:
    """How long one upload has waited for its room, and when it asks or sends next."""

    policy: LockPolicy = attrs.field(factory=LockPolicy)
    reliability: ProbeReliability = attrs.field(factory=ProbeReliability)
    size: int | None = None
    """Bytes of the document; ``None`` for a link."""
    must_probe: bool = attrs.field(default=False, init=False)
    """Whether to ask with an empty form before the next attempt."""
    doubt_since: float | None = attrs.field(default=None, init=False)
    """When the room got in doubt: an upload of unknown outcome may still hold its lock."""
    queued: float = attrs.field(default=0.0, init=False)
    """Seconds spent behind other uploads of this application."""
    _said_free: bool = attrs.field(default=False, init=False)
    """Whether a question just before the attempt was answered *free*."""
    _busy_since: float | None = attrs.field(default=None, init=False)
    """When the room was first found locked."""
    _lock_since: float | None = attrs.field(default=None, init=False)
    """The same, since an upload of this call got in."""
    _lost_races: int = attrs.field(default=0, init=False)
    """Documents that got 409 right after the answer *free*."""
    _body_seconds: float = attrs.field(default=0.0, init=False)
    """How long the last refused document took to send."""

    # --- a call that goes on in another process --------------------------------------------------

    def saved(self, now: float) -> dict[str, float | None]:
        """Return counters, and ages in seconds instead of times, for :meth:`restore`."""
        return {
            "must_probe": float(self.must_probe),
            "doubt_age": _age(self.doubt_since, now),
            "queued": self.queued,
            "busy_age": _age(self._busy_since, now),
            "lock_age": _age(self._lock_since, now),
            "lost_races": float(self._lost_races),
            "body_seconds": self._body_seconds,
        }

    def restore(self, saved: Mapping[str, float | None], now: float) -> None:
        """Go on at the moment that :meth:`saved` was given; the time since then does not count."""
        self.must_probe = bool(saved.get("must_probe"))
        self.doubt_since = _moment(saved.get("doubt_age"), now)
        self.queued = saved.get("queued") or 0.0
        self._busy_since = _moment(saved.get("busy_age"), now)
        self._lock_since = _moment(saved.get("lock_age"), now)
        self._lost_races = int(saved.get("lost_races") or 0)
        self._body_seconds = saved.get("body_seconds") or 0.0

    # --- before an attempt -----------------------------------------------------------------------

    @property
    def can_probe(self) -> bool:
        """Whether the policy and the server allow questions."""
        return self.policy.probe and self.reliability.are_answered

    def set_doubt(self, since: float | None) -> None:
        """Start with a room in doubt since that time: ask first. ``None``: no doubt."""
        self.doubt_since = since
        self.must_probe = since is not None and self.can_probe

    def ask_first(self) -> None:
        """An earlier upload of this client found the room locked: do not send in vain."""
        self.must_probe = self.can_probe and self._is_worth_probing

    def queue_limit(self) -> float | None:
        """Longest wait in seconds behind other uploads of this application; ``None``: no limit."""
        limit = self.policy.max_wait
        return None if limit is None else max(0.0, limit - self.queued)

    def paused(self, seconds: float) -> None:
        """Do not count a wait for a permit as waiting for the room."""
        self.sent_for(seconds)
        if self._lock_since is not None:
            self._lock_since += seconds

    def sent_for(self, seconds: float) -> None:
        """Do not count an attempt that ended otherwise than with 409 as waiting for the room."""
        if self._busy_since is not None:
            self._busy_since += seconds

    def probe_said_free(self) -> None:
        """A question was answered *free*: send."""
        self.must_probe, self._said_free, self.doubt_since = False, True, None

    def probe_got_409(self) -> None:
        """A question got 409."""
        self.reliability.answered_busy()

    # --- after an attempt ------------------------------------------------------------------------

    def document_got_in(self) -> None:
        """The document was accepted."""
        if self._said_free:
            self.reliability.confirmed()

    def document_got_409(self, body_seconds: float) -> None:
        """The document got 409; sending it took so long."""
        self._body_seconds = body_seconds
        if self._said_free:
            self._lost_races += 1
            self.reliability.refused_after_free()

    def answered(self) -> None:
        """The attempt has ended; the next one needs an answer of its own."""
        self._said_free = False

    def begin_doubt(self, since: float) -> None:
        """The document may have arrived, and is sent again: it may hold the lock itself."""
        self.doubt_since, self._lock_since = since, None
        if self._busy_since is None:
            self._busy_since = since
        self.must_probe = self.can_probe

    def next_wait(self, answer: ParsedReply | None, now: float, random: float) -> float | None:
        """Return the seconds until the next question or attempt; ``None``: it does not fit."""
        if self._busy_since is None:
            self._busy_since = now
        if self._lock_since is None:
            self._lock_since = now
        if self.doubt_since is not None and now >= self.doubt_since + self.policy.window:
            self.doubt_since = None  # that lock must have ended: another client holds this one
        self.must_probe = self.can_probe and self._is_worth_probing
        left = self.time_left(now)
        hint = answer.retry_after if answer else None
        if hint is not None:
            seconds = max(min(hint, MAX_ROOM_HINT), MIN_WAIT) * (1 + JITTER * random)
        else:
            seconds = min(self._delay(now, random), left)
        return seconds if MIN_WAIT <= seconds <= left else None

    def waited(self, now: float) -> float:
        """Seconds that the upload has waited for its room so far."""
        return self.queued + (0.0 if self._busy_since is None else now - self._busy_since)

    @property
    def is_waiting(self) -> bool:
        """Whether the room was found locked."""
        return self._busy_since is not None

    @property
    def locked_until(self) -> float | None:
        """When the lock that was seen must have ended; ``None`` if none was seen."""
        return None if self._lock_since is None else self._lock_since + self.policy.window

    def time_left(self, now: float) -> float:
        """Seconds that the upload may go on waiting for its room."""
        if self.policy.max_wait is not None:
            return self.policy.max_wait - self.waited(now)
        return self.policy.window + LOCK_GRACE - self._lock_age(now)

    def busy_error(self, answer: ParsedReply | None, now: float) -> RoomBusy:
        """Return the error for a room that is locked for too long."""
        doubt = self.doubt_since
        holder = "another client" if doubt is None else "an upload of unknown outcome"
        age = self._lock_age(now) if doubt is None else now - doubt
        free_in = max(0.0, self.policy.window - age)
        return RoomBusy(self.waited(now), holder, free_in, answer.msg if answer else "")

    @property
    def _is_worth_probing(self) -> bool:
        return self.doubt_since is not None or (self.size or 0) > PROBE_ABOVE

    def _lock_age(self, now: float) -> float:
        return 0.0 if self._lock_since is None else now - self._lock_since

    def _delay(self, now: float, random: float) -> float:
        waited = self._lock_age(now)
        is_small = not (self.must_probe or self._is_worth_probing)  # it is sent without asking
        longest = PROBE_INTERVAL if self.must_probe or is_small else self.policy.max_delay
        if not self.must_probe:
            longest = max(longest, waited * LATE_SHARE)
        seconds = max(min(waited * GROWTH, longest), self.policy.min_delay)
        if not self.must_probe:
            seconds = max(seconds, self._body_seconds * RESEND_FACTOR)
        rivals = self._lost_race_interval(random) if self.must_probe else 0.0
        return max(seconds * (1 + JITTER * (2 * random - 1)), rivals, MIN_WAIT)

    def _lost_race_interval(self, random: float) -> float:
        """Seconds between questions after lost races."""
        share = min(LOST_RACE_FACTOR * self._lost_races, MAX_LOST_RACE_FACTOR)
        seconds = max(self._body_seconds * share, LOST_RACE_SECONDS * self._lost_races)
        return seconds * (1 + LOST_RACE_JITTER * (2 * random - 1))


def _age(since: float | None, now: float) -> float | None:
    return None if since is None else now - since


def _moment(age: float | None, now: float) -> float | None:
    return None if age is None else now - age
