"""Results: exit codes, and the objects of ``--json``.

Every command that uploads uses the same words, codes and objects.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from meeting_async import BatchReport, UploadOutcome, errors
from meeting_async._models import count_of
from meeting_async.cli.words import message_of

if TYPE_CHECKING:
    from meeting_async.manifests._entries import Entry


class ExitCode(enum.IntEnum):
    """Exit code of the process."""

    ACCEPTED = 0
    """Every document is in its room."""
    FAILED = 1
    """A document was refused, or did not reach its room."""
    USAGE = 2
    """Bad arguments, configuration or documents; nothing was sent."""
    UNKNOWN = 3
    """A document was sent and may or may not have arrived."""
    BUSY = 75
    """Nothing worse than rooms that stayed busy: try again later (``EX_TEMPFAIL``, sysexits.h)."""
    INTERRUPTED = 130
    """A signal ended the command before everything was delivered (128 + SIGINT)."""
    UNREAD = 141
    """The output could not be written, so the rest was not sent (128 + SIGPIPE)."""


def code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an error that ended a command before anything was sent."""
    usage = (errors.InvalidInput, errors.JournalError, errors.DocumentError)
    return ExitCode.USAGE if isinstance(error, usage) else ExitCode.FAILED


def exit_code(report: BatchReport, documents: int, *, interrupted: bool, unread: bool) -> ExitCode:
    """Return one exit code for all documents: that of the most urgent result."""
    if report.unknown:
        return ExitCode.UNKNOWN
    if report.accepted + report.already_delivered >= documents:
        return ExitCode.ACCEPTED
    if interrupted:
        return ExitCode.INTERRUPTED
    if isinstance(report.stopped_by, errors.ConfigurationError):
        return ExitCode.USAGE
    errors_ = [outcome.error for outcome in report.outcomes if not outcome.delivered]
    ended = [error for error in errors_ if not isinstance(error, errors.BatchStopped)]
    if ended and all(isinstance(error, errors.RoomBusy) for error in ended):
        return ExitCode.BUSY
    return ExitCode.UNREAD if unread and not ended else ExitCode.FAILED


# --- for programs --------------------------------------------------------------------------------


def error_object(error: BaseException | None) -> dict[str, Any] | None:
    """Return the JSON object of an error."""
    if error is None:
        return None
    facts = {name: getattr(error, name, None) for name in ("status", "status_code")}
    kind = error.kind if isinstance(error, errors.UploadFailed) else type(error).__name__
    return {"type": kind, "message": message_of(error), **facts}


def document_object(outcome: UploadOutcome, entry: Entry) -> dict[str, Any]:
    """Return the fields of a ``document`` object; times in seconds, sizes in bytes."""
    return {
        "room_id": outcome.room_id,
        "document": outcome.document,
        "outcome": outcome.status,
        "delivered": outcome.delivered,
        "size": outcome.size if entry.size is None else entry.size,
        "seconds": round(outcome.seconds, 3),
        "attempts": count_of(outcome.attempts),
        "msg": outcome.receipt.msg if outcome.receipt else None,
        "error": error_object(outcome.error),
        "place": entry.place,
        "key": entry.key,
        "session": outcome.session or None,
        "found": outcome.receipt.found if outcome.receipt else None,
        "started": round(outcome.started, 3),
        "waited": round(outcome.waited, 3),
        "bytes_sent": outcome.bytes_sent,
        "bytes_resent": outcome.bytes_resent,
    }


_COUNTS = (
    "accepted", "already_delivered", "refused", "failed", "unknown", "skipped", "conflicts",
    "bytes_delivered", "bytes_sent", "bytes_resent",
)  # fmt: skip


def summary_object(
    report: BatchReport,
    documents: int,
    *,
    interrupted: bool,
    code: ExitCode,
    left: str = "skipped",
) -> dict[str, Any]:
    """Return the fields of the last object, with the totals.

    ``left`` is the field that also counts the documents that the report does not have.
    """
    fields: dict[str, Any] = {
        "documents": documents,
        **{name: getattr(report, name) for name in _COUNTS},
        "waited": round(report.waited, 3),
        "seconds": round(report.seconds, 3),
        "stopped_by": error_object(report.stopped_by),
        "interrupted": interrupted,
        "exit_code": int(code),
    }
    fields[left] = fields.get(left, 0) + documents - report.total
    return fields
