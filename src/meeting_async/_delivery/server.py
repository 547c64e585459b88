"""All that the calls of a client know of their server; each event loop has its own."""

from __future__ import annotations

import copy
import math

import attrs

from meeting_async._delivery.history import Step
from meeting_async._models import UNREACHED, Verdict
from meeting_async.errors import MeetingError, ResourceExhausted

CAPACITY = 100.0
"""Retries in a row, without a success, of a full budget."""
SUCCESS_REFUND = 0.2
"""Retries for a call that succeeds at once; one that succeeds after a retry gets its own back."""

FRESH_SECONDS = 1.1
"""Seconds after a document in which another one of its name may have the same ``Last-Modified``,
which counts whole seconds."""


@attrs.define
class Server:
    """What the calls of a client have seen of their server, on one event loop.

    Nothing is remembered of a room. The retries of all calls come from one budget: while most calls
    succeed, it stays full. If most calls fail, it becomes empty, and calls end with their own error
    instead of adding load to the server.
    """

    tokens: float = CAPACITY
    """Retries that are left in the budget."""
    away_since: float | None = None
    """Since when the server cannot be reached; ``None``: it can."""
    has_replied: bool = False
    """Whether anything has ever replied at the base URL."""
    fails_documents: bool = False
    """The last document failed on the server, and no form got 409 since. Then small documents are
    asked about, too: so one document finds out that the server cannot take its lock."""
    shows_files: bool | None = None
    """Whether it has shown a stored document; ``False``: not even one that it had accepted."""
    recent: dict[tuple[str, str], float] = attrs.field(factory=dict)
    """Until when a file may have the time of a document sent lately, by room and name."""
    unsettled: dict[tuple[str, str], float] = attrs.field(factory=dict)
    """Until when something may still deliver a document of unknown outcome, by room and name."""
    closes_until: float = -math.inf
    """Until when it counts as one that closes each connection after its answer."""
    _reached_at: float = -math.inf
    """When it answered last."""
    _error: MeetingError | None = None
    """The error of the last attempt that did not reach it, as it would end a call."""
    _failed_at: float = -math.inf
    """When that attempt began."""

    # --- whether it can be reached ---------------------------------------------------------------

    def mark_reached(self, now: float) -> None:
        """Count an answer, also one of those to questions that no history keeps."""
        self.away_since, self._error, self._reached_at = None, None, now

    def mark_away(self, since: float, error: MeetingError) -> None:
        """Count an attempt that did not reach the server. Uploads in line have waited for it, too.

        That this machine has no descriptor left says nothing of the server.
        """
        if not isinstance(error, ResourceExhausted):
            if self.away_since is None:
                self.away_since = max(since, self._reached_at)
            # Without its cause, whose traceback would keep the document of its call.
            self._error, self._failed_at = copy.copy(error), since

    def is_gone(self, *, since: float, max_outage: float, now: float) -> bool:
        """Return whether nobody could reach it for ``max_outage`` seconds after ``since``."""
        away_since = self.away_since
        return away_since is not None and max(away_since, since) + max_outage <= now

    def error_for_another(self, now: float, max_outage: float) -> MeetingError | None:
        """Return an error like the last one, for another call; ``None``: the server is there.

        Nobody may have tried to reach it for hours: an error older than ``max_outage`` is past.
        """
        return copy.copy(self._error) if now - self._failed_at <= max_outage else None

    # --- what its answers show -------------------------------------------------------------------

    def learn(self, last: Step, *, was_retried: bool) -> None:
        """Learn from the last step of a call."""
        is_untold = last.kind == "evidence" and last.verdict is Verdict.UNKNOWN  # perhaps no answer
        if last.verdict not in {None, *UNREACHED} and not is_untold:
            self.mark_reached(last.ended)
        if last.kind == "probe" and last.verdict is Verdict.BUSY:
            self.fails_documents = False
        if last.kind == "document" and last.verdict is Verdict.FAILED:
            self.fails_documents = True
        if last.verdict is Verdict.ACCEPTED:
            earned = 1.0 if was_retried else SUCCESS_REFUND
            self.tokens = min(self.tokens + earned, CAPACITY)

    def mark_sent(self, room_id: str, name: str, now: float) -> None:
        """Remember a document whose file may have the time of one that follows at once."""
        _remember(self.recent, (room_id, name), now + FRESH_SECONDS, now)

    def seconds_to_tell_apart(self, room_id: str, name: str, now: float) -> float:
        """Return how long to wait so that the time of a file tells which upload of a name it is."""
        return max(0.0, self.recent.get((room_id, name), -math.inf) - now)

    def mark_unsettled(self, room_id: str, name: str, until: float, now: float) -> None:
        """Remember a document of unknown outcome."""
        _remember(self.unsettled, (room_id, name), until, now)

    # --- the retry budget ------------------------------------------------------------------------

    @property
    def can_retry(self) -> bool:
        """Whether the budget has one more retry."""
        return self.tokens >= 1

    def spend_retry(self) -> None:
        """Take a retry from the budget."""
        if self.can_retry:
            self.tokens -= 1


def _remember(
    times: dict[tuple[str, str], float], key: tuple[str, str], until: float, now: float
) -> None:
    times.pop(key, None)
    while times and times[oldest := next(iter(times))] <= now:
        del times[oldest]
    times[key] = until
