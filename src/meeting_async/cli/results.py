"""Results: exit codes, the objects of ``--json``, and groups of documents with the same reason.

Every command that uploads uses the same words, codes and objects.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import attrs

from meeting_async import BatchReport, UploadOutcome, errors
from meeting_async._models import count_of
from meeting_async.cli.words import counted, message_of, reason_of

if TYPE_CHECKING:
    from meeting_async.cli.entries import Entry


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
        "session": outcome.session or None,
        "attempts": count_of(outcome.attempts),
        "msg": outcome.receipt.msg if outcome.receipt else None,
        "error": error_object(outcome.error),
        "place": entry.place,
        "key": entry.key,
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


# --- for people ----------------------------------------------------------------------------------

CATEGORIES = {
    "unknown": "may or may not have arrived",
    "rooms": "without an active room",
    "refused": "refused",
    "failed": "failed",
    "skipped": "not tried",
    "stopped": "left to send",
}
"""Categories of documents that are not in their rooms, with a text; the most urgent first."""


def category_of(outcome: UploadOutcome) -> str:
    """Return a key of ``CATEGORIES``, or ``delivered``."""
    if outcome.delivered:
        return "delivered"
    if isinstance(outcome.error, errors.RoomNotFound | errors.RoomNotActive):
        return "rooms"
    return "stopped" if isinstance(outcome.error, errors.BatchStopped) else outcome.status


def by_category(report: BatchReport, documents: int) -> dict[str, int]:
    """Count the documents of each category; those that the report lacks are left to send."""
    found = Counter(map(category_of, report.outcomes))
    found["stopped"] += documents - report.total
    return {name: found[name] for name in CATEGORIES}


def headline(
    report: BatchReport,
    documents: int,
    *,
    interrupted: bool = False,
    left: str = CATEGORIES["stopped"],
) -> str:
    """Return one sentence with the result; ``left`` says what the report does not have yet."""
    there, before = report.accepted + report.already_delivered, report.already_delivered
    prefix = "Interrupted: " if interrupted and there < documents else ""
    earlier = f" ({before:,} by an earlier run)" if before else ""
    counts, words = by_category(report, documents), {**CATEGORIES, "stopped": left}
    rest = [f"{count:,} {words[name]}" for name, count in counts.items() if count]
    end = f"; {', '.join(rest)}" if rest else ""
    return f"{prefix}{there:,} of {counted(documents, 'document')} delivered{earlier}{end}."


@attrs.frozen
class Group:
    """Documents with the same category and the same reason."""

    category: str
    reason: str
    outcomes: list[UploadOutcome] = attrs.field(factory=list)

    @property
    def rooms(self) -> Counter[str]:
        """Number of documents for each room."""
        return Counter(outcome.room_id for outcome in self.outcomes)

    @property
    def where(self) -> str:
        """Number of documents, and the room or the number of rooms, as text."""
        rooms = [*self.rooms]
        where = f"room {rooms[0]}" if len(rooms) == 1 else counted(len(rooms), "room")
        return f"{counted(len(self.outcomes), 'document')} for {where}"

    def __str__(self) -> str:
        """Return category, rooms and reason as one line."""
        reason = f": {self.reason}" if self.reason else ""
        return f"{CATEGORIES[self.category]}: {self.where}{reason}"


def groups_of(outcomes: Iterable[UploadOutcome]) -> list[Group]:
    """Group documents by their reason; the most urgent category first, then the largest group."""
    found: dict[tuple[str, str], Group] = {}
    for outcome in outcomes:
        if not outcome.delivered:
            category = category_of(outcome)
            key = category, "" if category == "stopped" else reason_of(outcome.error)
            found.setdefault(key, Group(*key)).outcomes.append(outcome)
    order = [*CATEGORIES]
    return sorted(found.values(), key=lambda g: (order.index(g.category), -len(g.outcomes)))
