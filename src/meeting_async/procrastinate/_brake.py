"""When not the document but something around it is wrong: put uploads back, and slow a worker down.

Only the server's word about a document ends its upload. Whatever else fails would fail for all of
them: a wrong key, a server that is away, a file share that this worker does not have.
"""

from __future__ import annotations

import random

import anyio
import attrs

from meeting_async import errors
from meeting_async._log import logger
from meeting_async._models import UNREACHED, Attempt, Verdict

UNREADABLE_SECONDS = (2.0, 5.0, 10.0)
"""Pauses of an upload whose document cannot be read: another worker may read it."""

SHORTEST_SECONDS, LONGEST_SECONDS = 2.0, 60.0
"""Limits of a pause while the server is away; between them it is a quarter of the time so far."""

JOURNAL_SECONDS = 5.0
"""Pause if the table could not be written before the document was complete."""

IN_A_ROW = 3
"""Uploads in a row without a valid answer after which a worker pauses."""

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 30.0
"""Limits in seconds of a pause of a worker; between them it pauses for as long as it has so far."""

HOLD_SECONDS = 5.0
"""So long a tick waits in a paused worker; then another worker may have it."""

_AWAY = (
    errors.TransportError,
    errors.Throttled,
    errors.UnexpectedReply,
    errors.ServerFailed,
    errors.RoomLocksUnavailable,
)
_OF_THE_DOCUMENT = (errors.UploadInterrupted, errors.ReplyTooLarge, errors.ProcessingFailed)


class DocumentNotFound(errors.MeetingError):
    """The function for references has raised, or took too long; the cause says more."""


UNREADABLE = (errors.DocumentUnreadable, DocumentNotFound)
"""Errors of a document that another worker may be able to read."""


@attrs.frozen
class Later:
    """Why an upload that has failed is put back, and for how long."""

    seconds: float
    is_away: bool = False
    """Whether the server, or what is needed to reach it, was away."""


def decide(
    error: Exception, *, away_for: float, unreadable: int, max_outage: float
) -> Later | None:
    """Decide whether an upload that has failed is put back; ``None``: the failure is its outcome.

    ``away_for`` is for how many seconds the server was not reached, ``unreadable`` how often its
    document was put back because it could not be read.
    """
    if isinstance(error, errors.JournalError):
        return Later(JOURNAL_SECONDS)
    if isinstance(error, errors.AuthenticationFailed):
        return Later(0.0)
    if isinstance(error, UNREADABLE) and unreadable < len(UNREADABLE_SECONDS):
        return Later(UNREADABLE_SECONDS[unreadable])
    is_away = isinstance(error, _AWAY) and not isinstance(error, _OF_THE_DOCUMENT)
    if (is_away or is_foreign(error)) and away_for < max_outage:
        seconds = min(max(away_for / 4, SHORTEST_SECONDS), LONGEST_SECONDS)
        return Later(seconds * random.uniform(0.5, 1), is_away=True)  # noqa: S311 - no secret
    return None


def is_foreign(error: Exception | None) -> bool:
    """Return whether an error is that of a signer, a transport or room locks of the user's own."""
    return not (error is None or isinstance(error, errors.MeetingError))


_TROUBLES = {*UNREACHED, Verdict.PARTIAL, Verdict.THROTTLED, Verdict.UNKNOWN}


def has_answered(attempts: list[Attempt], error: Exception | None) -> bool | None:
    """Return whether the server gave the run a valid answer; ``None``: it was not asked."""
    if attempts:
        return attempts[-1].verdict not in _TROUBLES
    if is_foreign(error):
        return False
    return True if isinstance(error, errors.RequestRefused) else None


@attrs.define(eq=False)
class Brake:
    """Lets uploads through, but only one after each pause while the server does not answer."""

    _troubles: int = 0
    """Uploads in a row without a valid answer."""
    _since: float = 0.0
    """When there were too many of them."""
    _not_before: float = 0.0

    async def may_begin(self) -> bool:
        """Wait until an upload may begin; False: this took too long."""
        ends_at = anyio.current_time() + HOLD_SECONDS
        while self._troubles >= IN_A_ROW:
            now = anyio.current_time()
            if now >= self._not_before:
                self._not_before = now + min(max(now - self._since, FIRST_PAUSE), LONGEST_PAUSE)
                return True
            if now >= ends_at:
                return False
            await anyio.sleep(0.1)
        return True

    def report_answer(self, answer: bool | None) -> None:
        """Count what an upload has seen of the server; call it once after each that began."""
        now = anyio.current_time()
        if answer is None:
            self._not_before = now  # another one may try
        elif not answer:
            self._troubles += 1
            if self._troubles == IN_A_ROW:
                self._since, self._not_before = now, now + FIRST_PAUSE
                text = "the worker pauses: %d uploads in a row had no answer"
                logger.warning(text, self._troubles, extra={"action": "queue"})
        else:
            if self._troubles >= IN_A_ROW:
                logger.warning("the worker goes on", extra={"action": "queue"})
            self._troubles = 0
