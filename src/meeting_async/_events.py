"""What a call tells while it runs: small frozen values for progress displays and logs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from meeting_async.errors import MeetingError


@attrs.frozen(kw_only=True)
class Event:
    """Fields common to all events."""

    call: int
    """Number of the call within this process: the same for all events of one upload."""
    operation: str
    """The method path, for example ``room/uploadWhiteboardFile``."""
    room_id: str | None
    """The room, where the request names one."""
    document: str | None
    """Name of the document or the link; ``None`` for JSON calls."""


@attrs.frozen(kw_only=True)
class Queued(Event):
    """The upload waits for its turn at the gate of its room, behind another one from here."""

    shut_for: float
    """Seconds the room stays shut after an unknown outcome; 0 when a sibling is uploading."""


@attrs.frozen(kw_only=True)
class AttemptStarted(Event):
    """A request is about to be sent."""

    attempt: int
    """1 for the first."""


@attrs.frozen(kw_only=True)
class BytesSent(Event):
    """Progress; a few times a second, and at the end of the document."""

    attempt: int
    sent: int
    """Bytes of the document handed to the network in this attempt."""
    total: int
    """Bytes of the document."""


@attrs.frozen(kw_only=True)
class WaitingForRoom(Event):
    """Somebody else's upload holds the room; nothing is held or sent while waiting."""

    attempt: int
    """The attempt that was refused."""
    retry_in: float
    """Seconds until the next attempt."""
    waited: float
    """Seconds since the first refusal."""
    max_wait: float
    """The budget that ``waited`` may grow to."""


@attrs.frozen(kw_only=True)
class WaitingUntilActive(Event):
    """A batch waits until the room is there and active; its upload holds nothing meanwhile."""

    retry_in: float
    """Seconds until the room is asked for again."""
    waited: float
    """Seconds since it was first asked for."""
    max_wait: float
    """What ``waited`` may grow to."""


@attrs.frozen(kw_only=True)
class RetryScheduled(Event):
    """An attempt failed in a way that allows another one."""

    attempt: int
    """The attempt that failed."""
    retry_in: float
    """Seconds until the next attempt."""
    verdict: str
    """A row of the verdict table, for example ``"partial"``."""
    reason: str
    """What was seen."""


@attrs.frozen(kw_only=True)
class Finished(Event):
    """The call is over; always the last event of a call."""

    verdict: str
    """``"accepted"``, another row of the verdict table, or ``"cancelled"``.

    A call that is cancelled after the closing boundary went out finishes as ``"unknown"``.
    """
    attempts: int
    """How many were made."""
    seconds: float
    """How long the call took."""
    error: MeetingError | None = attrs.field(default=None, eq=False)
    """What the caller gets to see."""


OnEvent = Callable[[Event], Awaitable[None] | None]
"""A callback for events: a function or a coroutine function."""
