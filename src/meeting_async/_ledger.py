"""What is known of a call: its attempts, whether one may have arrived, and how to say so."""

from __future__ import annotations

import anyio
import attrs

from meeting_async import errors
from meeting_async._attempts import Attempt
from meeting_async._operations import Operation
from meeting_async._verdicts import Verdict, hint, reply_error
from meeting_async._wire import Answer


@attrs.frozen
class Seen:
    """What an attempt showed: an answer, or the error in its place."""

    answer: Answer | None = None
    error: BaseException | None = None

    @property
    def reason(self) -> str:
        """In a few words."""
        if self.answer is not None:
            return f"HTTP {self.answer.status} ({self.answer.msg})"
        return str(self.error) or type(self.error).__name__

    @property
    def hint(self) -> float | None:
        """Seconds that the server asks to wait."""
        return self.answer.retry_after if self.answer else None


@attrs.define
class Ledger:
    """The account of one call. Moments are those of the event loop's clock, in seconds."""

    operation: Operation
    began: float
    window: float
    """Seconds for which a server holds a room's lock at most."""
    attempts: list[Attempt] = attrs.field(factory=list, init=False)
    phase: str = attrs.field(default="starting", init=False)
    """What is going on, in words that follow "while"."""
    lost_at: float | None = attrs.field(default=None, init=False)
    """When an attempt ended that may have reached the room without our knowing."""

    def record(
        self,
        seen: Seen,
        verdict: Verdict,
        *,
        began: float,
        bytes_sent: int,
        body_seconds: float | None,
    ) -> None:
        """Note how an attempt ended, just now."""
        now = anyio.current_time()
        if verdict is Verdict.UNKNOWN and self.operation.upload:
            self.lost_at = now
        self.attempts.append(
            Attempt(
                number=len(self.attempts) + 1,
                started=began - self.began,
                seconds=now - began,
                verdict=verdict.value,
                status=seen.answer.status if seen.answer else None,
                reason=seen.reason,
                bytes_sent=bytes_sent,
                body_seconds=body_seconds,
            )
        )

    def lock_free_in(self) -> float:
        """Seconds until the lock that a lost attempt may hold must be free."""
        elapsed = anyio.current_time() - (self.lost_at or 0.0)
        return max(0.0, self.window - elapsed)

    def final_verdict(self, error: BaseException | None) -> str:
        """Return the verdict on the whole call, which ``error`` ended."""
        if error is None:
            return Verdict.ACCEPTED.value
        if self.lost_at is not None:
            return Verdict.UNKNOWN.value
        if not isinstance(error, Exception):
            return "cancelled"
        if isinstance(error, errors.RoomBusy):
            return Verdict.BUSY.value
        return self.attempts[-1].verdict if self.attempts else Verdict.NEVER_SENT.value

    # --- as errors -------------------------------------------------------------------------------

    def error(self, verdict: Verdict, seen: Seen, note: str | None = None) -> errors.MeetingError:
        """Return what to raise after the last attempt."""
        error = self._error(verdict, seen)
        if error is not seen.error:
            error.__cause__ = seen.error
        if note is not None:
            error.add_note(note)
        return error

    def _error(self, verdict: Verdict, seen: Seen) -> errors.MeetingError:
        operation = self.operation
        if operation.upload and verdict is Verdict.UNKNOWN:
            return self.unknown(seen.reason)
        if operation.upload and verdict is Verdict.PARTIAL:
            sent = self.attempts[-1].bytes_sent
            return errors.UploadInterrupted(
                seen.reason, operation.room_id or "", operation.label or "", sent
            )
        if isinstance(seen.error, errors.MeetingError):
            return seen.error
        if operation.upload and verdict is Verdict.BUSY:
            return errors.RoomBusy(operation.room_id or "", 0.0, seen.reason)
        error = reply_error(
            verdict,
            seen.answer or Answer(0),
            operation=operation.path,
            room_id=operation.room_id,
            upload=operation.upload,
        )
        advice = hint(error)
        if advice:
            error.add_note(advice)
        return error

    def unknown(self, reason: str) -> errors.UploadOutcomeUnknown:
        """Return the error of an upload that may have arrived."""
        operation = self.operation
        return errors.UploadOutcomeUnknown(
            room_id=operation.room_id or "",
            document=operation.label or "",
            size=operation.size,
            bytes_sent=max((attempt.bytes_sent for attempt in self.attempts), default=0),
            reason=reason,
            lock_free_in=self.lock_free_in(),
        )

    def after_loss(self, reason: str) -> str:
        """Say that it was an earlier attempt that may have reached the room."""
        just_now = self.attempts[-1].verdict == Verdict.UNKNOWN.value
        return reason if just_now else f"an earlier attempt was lost, then: {reason}"

    def cut_off(self) -> errors.UploadOutcomeUnknown | None:
        """Say what a cancellation left behind, if the document may have arrived."""
        if self.lost_at is None:
            return None
        error = self.unknown(self.after_loss(f"it was cut off while {self.phase}"))
        error.attempts = tuple(self.attempts)
        return error
