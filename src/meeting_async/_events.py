"""Events of a call: small frozen values for progress displays, logs and metrics."""

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
    """The room, if the call has one."""
    document: str | None
    """Name of the document, or the link without its query; ``None`` for JSON calls, and until it is
    known."""
    key: str | None = None
    """Key of the job in a batch."""
    index: int | None = None
    """Index of the job in the input of a batch, from 0."""


@attrs.frozen(kw_only=True)
class Started(Event):
    """The call begins: the first event of every call, exactly once."""


@attrs.frozen(kw_only=True)
class Queued(Event):
    """The upload waits behind others of this application."""

    for_place: bool = False
    """Whether it waits for a place among the concurrent uploads of a batch, because it gave its own
    back while it waited. Otherwise it waits behind another upload to the same room."""


@attrs.frozen(kw_only=True)
class AttemptStarted(Event):
    """A request is about to be sent."""

    attempt: int
    """1 for the first."""


@attrs.frozen(kw_only=True)
class BytesSent(Event):
    """Progress of a document: at most ten times a second, and at its end; never of a link."""

    attempt: int
    sent: int
    """Bytes of the document that were sent in this attempt."""
    total: int
    """Bytes of the document."""


@attrs.frozen(kw_only=True)
class WaitingForRoom(Event):
    """The room is locked (409). While the upload waits, it holds no connection and no open file."""

    attempt: int
    """The last attempt; 0 before the first one, when a question got 409."""
    retry_in: float
    """Seconds until the next question or attempt."""
    waited: float
    """Seconds that the upload has waited for the room so far."""
    max_wait: float | None
    """Limit of ``waited``; ``None`` if there is none."""


@attrs.frozen(kw_only=True)
class WaitingUntilActive(Event):
    """The room is not active yet."""

    retry_in: float
    """Seconds until the next check."""
    waited: float
    """Seconds since the first check."""
    max_wait: float
    """Limit of ``waited``."""


@attrs.frozen(kw_only=True)
class RetryScheduled(Event):
    """An attempt failed, and the client will retry."""

    attempt: int
    """The attempt that failed."""
    retry_in: float
    """Seconds until the next attempt."""
    verdict: Verdict
    """Result of the attempt."""
    reason: str
    """What was seen."""
    limit: str = ""
    """When the client first cannot reach its server: for how long it tries, in words."""


@attrs.frozen(kw_only=True)
class Finished(Event):
    """The call has ended: the last event of every call, exactly once."""

    verdict: Verdict
    """Result of the call: ``never sent`` if an argument or the document was refused, ``unknown`` if
    it was cancelled after the closing boundary was sent."""
    attempts: int
    """Attempts of this call."""
    seconds: float
    """How long the call took."""
    bytes_sent: int = 0
    """Bytes of the document that were handed to the operating system, in all attempts together."""
    bytes_resent: int = 0
    """Those of them that were sent more than once, after refusals and interruptions."""
    waited: float = 0.0
    """Seconds that the upload waited for its room: behind other uploads of this application, and
    for the server's lock."""
    error: MeetingError | None = attrs.field(default=None, eq=False)
    """The error that the call raises; ``None`` if accepted, cancelled, or not an error of this
    library."""


OnEvent = Callable[[Event], None]
"""A synchronous function that is called with every event."""
