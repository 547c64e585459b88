"""How uploads ended: exit codes, lines for people, objects for programs."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, Self

import attrs

from meeting_async import UploadReceipt, errors


class ExitCode(enum.IntEnum):
    """What the process returns."""

    OK = 0
    FAILED = 1
    """Something was refused or failed."""
    USAGE = 2
    """Bad arguments or configuration, a missing file; nothing was sent."""
    UNKNOWN = 3
    """A document was sent and may or may not have arrived."""
    BUSY = 75
    """A room stayed busy: try later (EX_TEMPFAIL of ``sysexits.h``)."""
    UNREAD = 141
    """Whoever read the output went away (128 + SIGPIPE)."""


_BY_ERROR: tuple[tuple[type[errors.MeetingError], str, ExitCode], ...] = (
    (errors.UploadOutcomeUnknown, "unknown", ExitCode.UNKNOWN),
    (errors.RoomBusy, "busy", ExitCode.BUSY),
    (errors.InvalidInput, "refused", ExitCode.USAGE),
    (errors.JournalError, "failed", ExitCode.USAGE),
    (errors.DocumentUnreadable, "failed", ExitCode.USAGE),
    (errors.DocumentChanged, "failed", ExitCode.FAILED),
    (errors.DocumentError, "refused", ExitCode.FAILED),
    (errors.RequestRefused, "refused", ExitCode.FAILED),
    (errors.MeetingError, "failed", ExitCode.FAILED),
)

_WORST_FIRST = (ExitCode.UNKNOWN, ExitCode.FAILED, ExitCode.USAGE, ExitCode.BUSY, ExitCode.OK)


def classify(error: errors.MeetingError) -> tuple[str, ExitCode]:
    """Return what an error is called in an outcome, and its exit code."""
    return next((word, code) for kind, word, code in _BY_ERROR if isinstance(error, kind))


def combined(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the one exit code for several: unknown, then failed, then busy."""
    return min(codes, key=_WORST_FIRST.index, default=ExitCode.OK)


@attrs.frozen(kw_only=True)
class Outcome:
    """How the upload of one document ended."""

    room_id: str
    document: str
    outcome: str
    """``accepted``, ``refused``, ``failed``, ``busy``, ``unknown``, ``cancelled``, ``skipped``."""
    size: int | None = None
    """Bytes of the document; ``None`` for a link."""
    seconds: float = 0.0
    """From the beginning to the end, waiting included."""
    attempts: int = 0
    msg: str | None = None
    """The server's message, where it accepted."""
    error: errors.MeetingError | None = None
    exit_code: ExitCode = ExitCode.OK

    def accepted(self, receipt: UploadReceipt) -> Self:
        """Return what it is after the server accepted the document."""
        return attrs.evolve(
            self,
            outcome="accepted",
            seconds=receipt.seconds,
            attempts=len(receipt.attempts),
            msg=receipt.msg,
        )

    def failed(self, error: errors.MeetingError, *, seconds: float) -> Self:
        """Return what it is after ``error`` ended it."""
        word, code = classify(error)
        return attrs.evolve(
            self,
            outcome=word,
            seconds=seconds,
            attempts=len(error.attempts),
            error=error,
            exit_code=code,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        fields = attrs.asdict(self, recurse=False)
        del fields["exit_code"]
        fields["seconds"] = round(self.seconds, 3)
        fields["error"] = as_json(self.error) if self.error else None
        return fields

    def as_line(self) -> str:
        """Tell a person that the document was accepted."""
        size = "a link" if self.size is None else readable_size(self.size)
        tries = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        facts = f"{size}, {self.seconds:.1f} s, {tries}"
        return f"{self.document}: {self.outcome} by {self.room_id} ({facts})"


def as_json(error: Exception) -> dict[str, Any]:
    """Return the object that stands for an error."""
    notes = [*getattr(error, "__notes__", ())]
    return {"type": type(error).__name__, "message": str(error), "notes": notes}


_FOR_THE_SHELL = {
    "base_url": "MEETING_BASE_URL",
    "api_key": "MEETING_API_KEY",
    "api_secret": "MEETING_API_SECRET",
    "max_size_whiteboard_file": "MEETING_MAX_SIZE_WHITEBOARD_FILE",
}


def explained(error: errors.MeetingError) -> list[str]:
    """Return what to tell a person about an error: one line, and one for each of its notes."""
    hints = [f"hint: {note}" for note in getattr(error, "__notes__", ())]
    if isinstance(error, errors.ConfigurationError) and error.field in _FOR_THE_SHELL:
        # On the command line settings are environment variables, and so is the way out.
        fix = error.fix.replace("allow_plaintext=True", "MEETING_ALLOW_PLAINTEXT=1")
        error = attrs.evolve(error, field=_FOR_THE_SHELL[error.field], fix=fix)
    return [f"error: {error}", *hints]


def readable_size(size: int) -> str:
    """Write a number of bytes for people, in the units in which limits are configured."""
    if size < 1024:
        return f"{size} bytes"
    if size < 1024**2:
        return f"{size / 1024:.1f} KiB"
    return f"{size / 1024**2:.1f} MiB"
