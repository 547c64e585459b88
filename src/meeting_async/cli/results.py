"""What became of documents: exit codes, the objects of ``--json``, and groups that share a reason.

Every command that uploads uses the same words, codes and objects.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from meeting_async import BatchReport, UploadOutcome, errors
from meeting_async.cli.words import Reason, counted, message_of

if TYPE_CHECKING:
    from meeting_async.cli.entries import Entry


class ExitCode(enum.IntEnum):
    """What the process returns."""

    ACCEPTED = 0
    """Every document is in its room."""
    FAILED = 1
    """A document was refused, or did not reach its room."""
    USAGE = 2
    """Bad arguments, configuration or documents; nothing was sent."""
    UNKNOWN = 3
    """A document was sent and may or may not have arrived."""
    BUSY = 75
    """Nothing worse than rooms that stayed busy: try later (EX_TEMPFAIL of ``sysexits.h``)."""
    INTERRUPTED = 130
    """A signal ended the command before everything was delivered (128 + SIGINT)."""
    UNREAD = 141
    """The output could not be written, so documents were not begun (128 + SIGPIPE)."""


def code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an error that ended a command before anything was sent."""
    usage = (errors.InvalidInput, errors.JournalError, errors.DocumentError)
    if isinstance(error, errors.RoomBusy):
        return ExitCode.BUSY
    return ExitCode.USAGE if isinstance(error, usage) else ExitCode.FAILED


def exit_code(report: BatchReport, documents: int, *, interrupted: bool, unread: bool) -> ExitCode:
    """Return the one exit code for all documents; the most urgent news first."""
    if report.unknown:
        return ExitCode.UNKNOWN
    if report.accepted + report.already_delivered >= documents:
        return ExitCode.ACCEPTED
    if interrupted:
        return ExitCode.INTERRUPTED
    errors_ = [outcome.error for outcome in report.outcomes if not outcome.delivered]
    ended = [error for error in errors_ if not isinstance(error, errors.BatchStopped)]
    if ended and all(isinstance(error, errors.RoomBusy) for error in ended):
        return ExitCode.BUSY
    return ExitCode.UNREAD if unread and not ended else ExitCode.FAILED


# --- for programs --------------------------------------------------------------------------------


def error_object(error: BaseException | None) -> dict[str, Any] | None:
    """Return the object that stands for an error."""
    if error is None:
        return None
    facts = {name: getattr(error, name, None) for name in ("status", "status_code")}
    return {"type": type(error).__name__, "message": message_of(error), **facts}


def document_object(outcome: UploadOutcome, entry: Entry) -> dict[str, Any]:
    """Return the fields of a document; times are seconds, sizes are bytes."""
    return {
        "room_id": outcome.room_id,
        "document": outcome.document,
        "outcome": outcome.status,
        "delivered": outcome.delivered,
        "size": outcome.size if entry.size is None else entry.size,
        "seconds": round(outcome.seconds, 3),
        "attempts": len(outcome.attempts),
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
    report: BatchReport, documents: int, *, interrupted: bool, code: ExitCode
) -> dict[str, Any]:
    """Return the fields of the last object, with the sums."""
    return {
        "documents": documents,
        **{name: getattr(report, name) for name in _COUNTS},
        "waited": round(report.waited, 3),
        "seconds": round(report.seconds, 3),
        "stopped_by": error_object(report.stopped_by),
        "interrupted": interrupted,
        "exit_code": int(code),
    }


# --- for people ----------------------------------------------------------------------------------


@attrs.frozen
class Group:
    """Documents that share an outcome and its reason."""

    status: str
    """``unknown``, ``refused``, ``failed``, ``skipped``, ``rooms`` (there is no such room, or no
    session in it) or ``stopped`` (the batch ended before them)."""
    reason: Reason
    outcomes: list[UploadOutcome]

    @property
    def rooms(self) -> dict[str, int]:
        """How many documents each room was to get."""
        found: dict[str, int] = {}
        for outcome in self.outcomes:
            found[outcome.room_id] = found.get(outcome.room_id, 0) + 1
        return found

    def __str__(self) -> str:
        """Return one line."""
        rooms = [*self.rooms]
        where = f"room {rooms[0]}" if len(rooms) == 1 else counted(len(rooms), "room")
        documents = counted(len(self.outcomes), "document")
        reason = "" if self.status == "stopped" else f": {self.reason}"
        return f"{_WORDS[self.status]}: {documents} for {where}{reason}"


_WORDS = {
    "unknown": "unknown",
    "rooms": "no active room",
    "refused": "refused",
    "failed": "failed",
    "skipped": "not tried",
    "stopped": "not begun",
}
"""The most urgent first."""


def groups_of(outcomes: Iterable[UploadOutcome]) -> list[Group]:
    """Put together what has the same reason: the most urgent, then the largest group first."""
    found: dict[tuple[str, Reason], Group] = {}
    for outcome in outcomes:
        if not outcome.delivered:
            status, reason = _status(outcome), Reason.of(outcome.error)
            found.setdefault((status, reason), Group(status, reason, [])).outcomes.append(outcome)
    order = [*_WORDS]
    return sorted(found.values(), key=lambda g: (order.index(g.status), -len(g.outcomes)))


def _status(outcome: UploadOutcome) -> str:
    if isinstance(outcome.error, errors.RoomNotFound | errors.RoomNotActive):
        return "rooms"
    return "stopped" if isinstance(outcome.error, errors.BatchStopped) else outcome.status


def headline(report: BatchReport, documents: int, *, interrupted: bool = False) -> str:
    """Say in one sentence how it went."""
    there = report.accepted + report.already_delivered
    prefix = "Interrupted: " if interrupted and there < documents else ""
    if not documents:
        return "There was nothing to send."
    rest = "; " + ", ".join(_shortfall(report, documents)) if there < documents else ""
    earlier = f" ({report.already_delivered:,} from an earlier run)" * bool(
        report.already_delivered
    )
    return f"{prefix}{_success(there, documents)}{earlier}{rest}."


def _success(there: int, documents: int) -> str:
    if documents == 1:
        return "the document is in its room" if there else "the document is not known to be there"
    if there == documents:
        return f"all {documents:,} documents are in their rooms"
    if not there:
        return f"none of the {documents:,} documents is known to be in its room"
    verb, rooms = ("is", "its room") if there == 1 else ("are", "their rooms")
    return f"{there:,} of {documents:,} documents {verb} in {rooms}"


def _shortfall(report: BatchReport, documents: int) -> Iterator[str]:
    stopped = sum(isinstance(o.error, errors.BatchStopped) for o in report.outcomes)
    ended = report.failed + report.skipped - report.already_delivered
    failed = sum(o.status == "failed" and _status(o) != "stopped" for o in report.outcomes)
    counts = {
        "may or may not have arrived": report.unknown,
        "refused": report.refused,
        "failed": failed,
        "not tried": ended - failed - stopped,
        "not begun": stopped + documents - report.total,
    }
    yield from (f"{count:,} {words}" for words, count in counts.items() if count)
