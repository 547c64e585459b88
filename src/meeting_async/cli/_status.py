"""What an upload is doing, in a few words: events translated for people. Pure, no clock."""

from __future__ import annotations

import attrs

from meeting_async import (
    AttemptStarted,
    BytesSent,
    Event,
    Finished,
    Queued,
    RetryScheduled,
    WaitingForRoom,
)

CALM, WAITING, GOOD, BAD = "default", "yellow", "green", "red"
"""Styles: something moves, something is awaited, the good end, any other end."""


@attrs.frozen
class Status:
    """The state of one upload."""

    words: str = ""
    style: str = CALM
    share: float = 0.0
    """Part of the document that is out, 0 to 1."""
    due: float | None = None
    """When it goes on, in seconds of the clock that :func:`status_after` was given."""

    def text(self, now: float) -> str:
        """Return the words, with the seconds that are left if something is due."""
        if self.due is None:
            return self.words
        return f"{self.words} in {max(0.0, self.due - now):.1f} s"


def status_after(event: Event, now: float) -> Status:
    """Say what an upload is doing after ``event``, which came at ``now`` (seconds)."""
    match event:
        case Queued(shut_for=0):
            return Status("waiting for its turn", WAITING)
        case Queued():
            words = "shut after an unknown outcome, goes on"
            return Status(words, WAITING, due=now + event.shut_for)
        case AttemptStarted():
            return Status(f"sending{_numbered(event.attempt)}")
        case BytesSent():
            return _sending(event)
        case WaitingForRoom():
            words = f"room is busy: attempt {event.attempt + 1}"
            return Status(words, WAITING, due=now + event.retry_in)
        case RetryScheduled():
            words = f"{event.reason}: attempt {event.attempt + 1}"
            return Status(words, WAITING, due=now + event.retry_in)
        case Finished():
            return _finished(event)
    return Status()


def _sending(event: BytesSent) -> Status:
    share = event.sent / event.total
    if share < 1:
        return Status(f"sending {share:.0%}{_numbered(event.attempt)}", share=share)
    return Status("sent, waiting for the answer", share=1.0)


def _finished(event: Finished) -> Status:
    tries = f", {event.attempts} attempts" if event.attempts > 1 else ""
    if event.verdict == "accepted":
        return Status(f"delivered in {event.seconds:.1f} s{tries}", GOOD, 1.0)
    return Status(f"{event.verdict} after {event.seconds:.1f} s{tries}", BAD)


def _numbered(attempt: int) -> str:
    return f" (attempt {attempt})" if attempt > 1 else ""
