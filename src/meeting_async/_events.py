"""What a call tells while it runs: small frozen values for progress displays, logs and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from meeting_async._models import Verdict
    from meeting_async.errors import MeetingError


@attrs.frozen(kw_only=True)
class Event:
    """Fields common to all events."""

    call: int
    """Number of the call within this process: the same for all events of one call."""
    operation: str
    """The method path, for example ``room/uploadWhiteboardFile``."""
    host: str
    """Host and port of the server."""
    room_id: str | None
    """The room, where the request names one."""
    document: str | None
    """Name of the document, or the link without its query; ``None`` for JSON calls."""
    key: str | None = None
    """The key of the job, in a batch."""
    index: int | None = None
    """The place of the job in the input, from 0, in a batch."""


@attrs.frozen(kw_only=True)
class Queued(Event):
    """The upload waits behind another upload from here to the same room."""


@attrs.frozen(kw_only=True)
class AttemptStarted(Event):
    """A request is about to be sent."""

    attempt: int
    """1 for the first."""


@attrs.frozen(kw_only=True)
class BytesSent(Event):
    """Progress; at most ten times a second, and at the end of the document."""

    attempt: int
    sent: int
    """Bytes of the document handed to the network in this attempt."""
    total: int | None
    """Bytes of the document; ``None`` for a link."""


@attrs.frozen(kw_only=True)
class WaitingForRoom(Event):
    """The room is taken (409); nothing is held or sent while the upload waits."""

    attempt: int
    """The attempt that was refused; 0 if a question was answered before the first attempt."""
    retry_in: float
    """Seconds until the room is asked, or the document sent, again."""
    waited: float
    """Seconds that the upload has waited for the room so far."""
    max_wait: float | None
    """What ``waited`` may grow to, if the caller set a limit."""


@attrs.frozen(kw_only=True)
class WaitingUntilActive(Event):
    """The room is not active yet; its upload holds nothing meanwhile."""

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
    verdict: Verdict
    """What the attempt came to."""
    reason: str
    """What was seen."""


@attrs.frozen(kw_only=True)
class Finished(Event):
    """The call is over: the last event of every call, exactly once."""

    verdict: Verdict
    """What the whole call came to; ``never sent`` when an argument or the document was refused.

    A call that is cancelled after the closing boundary was sent finishes as ``unknown``.
    """
    attempts: int
    """How many were made."""
    seconds: float
    """How long the call took."""
    error: MeetingError | None = attrs.field(default=None, eq=False)
    """What the caller gets to see; ``None`` if accepted, cancelled, or not an error of this
    library."""


OnEvent = Callable[[Event], None]
"""A synchronous function that is called with every event."""
