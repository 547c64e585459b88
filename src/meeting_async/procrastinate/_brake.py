"""When not the document but something around it is wrong: put uploads back, and pause a worker.

Only the server's word about a document ends its upload. Whatever else fails would fail for all of
them: a wrong key, a server that is away, a file share that this worker does not have.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from typing import Literal

import anyio
import attrs

from meeting_async import errors
from meeting_async._log import logger
from meeting_async._models import Attempt, Verdict

KEY_SECONDS = 5.0
"""Pause of an upload after a wrong key: another worker may have the right one."""

UNREADABLE_SECONDS = (2.0, 5.0, 10.0)
"""Pauses of an upload whose document cannot be read: another worker may read it."""

SHORTEST_SECONDS, LONGEST_SECONDS = 2.0, 60.0
"""Limits of a pause while the server is away; between them it is a quarter of the time so far."""

IN_A_ROW = 3
"""Uploads in a row without a valid answer after which a worker pauses."""

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 30.0
"""Seconds until a paused worker asks the server; they double with each pause that did not help."""

HOLD_SECONDS = 5.0
"""So long a job waits in a paused worker; then another worker may have it."""

_AWAY = (
    errors.TransportError,
    errors.Throttled,
    errors.UnexpectedReply,
    errors.RoomLocksUnavailable,
)
_OF_THE_DOCUMENT = (errors.UploadInterrupted, errors.ReplyTooLarge)


class DocumentNotFound(Exception):
    """The function for references has raised, or took too long; the cause says more."""


@attrs.frozen
class Later:
    """Why an upload that has failed is put back, and for how long."""

    seconds: float
    reason: str
    is_away: bool = False
    """Whether the server was not reached."""
    is_unreadable: bool = False


def decide(
    error: Exception, *, away_for: float, unreadable: int, max_outage: float
) -> Later | None:
    """Decide whether an upload that has failed is put back; ``None``: the failure is its outcome.

    ``away_for`` is for how many seconds the server was not reached, ``unreadable`` how often its
    document was put back because it could not be read.
    """
    if isinstance(error, errors.AuthenticationFailed):
        return Later(KEY_SECONDS, str(error))
    is_unreadable = isinstance(error, errors.DocumentUnreadable | DocumentNotFound)
    if is_unreadable and unreadable < len(UNREADABLE_SECONDS):
        return Later(UNREADABLE_SECONDS[unreadable], str(error), is_unreadable=True)
    is_away = isinstance(error, _AWAY) and not isinstance(error, _OF_THE_DOCUMENT)
    if is_away and away_for < max_outage:
        seconds = min(max(away_for / 4, SHORTEST_SECONDS), LONGEST_SECONDS)
        seconds *= random.uniform(0.5, 1)  # noqa: S311 - jitter is no secret
        return Later(seconds, str(error), is_away=True)
    return None


_TROUBLES = {Verdict.NEVER_SENT, Verdict.PARTIAL, Verdict.THROTTLED, Verdict.UNKNOWN}

Seen = Literal["answer", "trouble", "nothing"]


def seen_in(attempts: list[Attempt], error: Exception | None) -> Seen:
    """Return what the attempts of a run say about the server; ``error`` is what ended the run."""
    if attempts:
        return "trouble" if attempts[-1].verdict in _TROUBLES else "answer"
    return "answer" if isinstance(error, errors.RequestRefused) else "nothing"


# --- the pause -----------------------------------------------------------------------------------


@attrs.define(eq=False)
class Brake:
    """Pauses the uploads of a worker to a server, and lets one through to try."""

    max_outage: float
    """Seconds after which uploads are not held any more, so that they can fail."""
    stopped_by: errors.AuthenticationFailed | None = attrs.field(default=None, init=False)
    """Why this worker must not go on at all."""
    _since: float = attrs.field(default=math.inf, init=False)
    """When the first of these uploads had no answer."""
    _in_a_row: int = attrs.field(default=0, init=False)
    _pause: float = attrs.field(factory=lambda: FIRST_PAUSE, init=False)
    """Length of the next pause."""
    _asks_at: float | None = attrs.field(default=None, init=False)
    """When to ask the server; ``None``: not paused."""
    _is_asking: bool = attrs.field(default=False, init=False)
    _is_trial: bool = attrs.field(default=False, init=False)
    """Whether one upload at a time goes on, until one has an answer."""
    _has_trial: bool = attrs.field(default=False, init=False)
    """Whether that one is on its way."""

    def stop(self, error: errors.AuthenticationFailed) -> None:
        """Stop this worker."""
        if self.stopped_by is None:
            self.stopped_by = error
            logger.error("the worker stops: %s", error, extra={"action": "queue"})

    def report(self, seen: Seen) -> None:
        """Count what an upload has seen of the server; call it once after each."""
        self._has_trial = False
        if seen == "answer":
            if self._is_trial:
                logger.warning("the worker goes on", extra={"action": "queue"})
            self._in_a_row, self._is_trial, self._pause = 0, False, FIRST_PAUSE
            self._asks_at, self._since = None, math.inf
        elif seen == "trouble":
            self._in_a_row += 1
            self._since = min(self._since, anyio.current_time())
            if self._asks_at is None and (self._is_trial or self._in_a_row >= IN_A_ROW):
                self._asks_at = anyio.current_time() + self._pause
                logger.warning(
                    "the worker pauses for at least %.0f s: %d uploads in a row had no answer",
                    self._pause,
                    self._in_a_row,
                    extra={"action": "queue"},
                )
                self._pause, self._is_trial = min(self._pause * 2, LONGEST_PAUSE), True

    async def wait(self, ask: Callable[[], Awaitable[bool]]) -> None:
        """Wait until an upload may begin; ``ask`` returns whether the server answers.

        Raises:
            UploadPutBack: This took too long, or the worker is stopped.

        """
        ends_at = anyio.current_time() + HOLD_SECONDS
        while self.stopped_by is None:
            is_over = anyio.current_time() > self._since + self.max_outage
            if is_over or (self._asks_at is None and not (self._is_trial and self._has_trial)):
                self._has_trial = self._is_trial
                return
            if anyio.current_time() >= ends_at:
                raise errors.UploadPutBack(HOLD_SECONDS, "the worker is paused")
            if self._asks_at is not None and anyio.current_time() >= self._asks_at:
                await self._ask(ask)
            await anyio.sleep(0.1)
        raise errors.UploadPutBack(KEY_SECONDS, "the worker stops")

    async def _ask(self, ask: Callable[[], Awaitable[bool]]) -> None:
        if self._is_asking:
            return
        self._is_asking = True
        try:
            if await ask():
                self._asks_at = None
            else:
                self._asks_at = anyio.current_time() + self._pause
                self._pause = min(self._pause * 2, LONGEST_PAUSE)
        finally:
            self._is_asking = False
