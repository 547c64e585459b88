"""What is said about a batch: objects for programs, a table and what to do next for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from meeting_async import BatchReport, UploadOutcome, errors
from meeting_async._jobs import Status
from meeting_async.cli import _amounts
from meeting_async.cli._manifest import Entry
from meeting_async.cli._outcomes import (
    ExitCode,
    as_json,
    classify,
    combined,
    explained,
)
from meeting_async.cli._reasons import Reason
from meeting_async.cli._status import BAD, GOOD, WAITING

WORST_FIRST: tuple[Status, ...] = ("unknown", "failed", "refused")

BAD_SHOWN = 50
"""Documents that are listed as in need of attention; further ones are counted."""


def exit_code_of(outcomes: Iterable[UploadOutcome]) -> ExitCode:
    """Return the one exit code for all that is not good."""
    return combined(map(_code, (outcome for outcome in outcomes if not outcome.is_good)))


def _code(outcome: UploadOutcome) -> ExitCode:
    """Return an outcome's exit code: never that of bad usage, as other documents were sent."""
    if isinstance(outcome.error, errors.MeetingError) and outcome.status != "skipped":
        code = classify(outcome.error)[1]
        return ExitCode.FAILED if code is ExitCode.USAGE else code
    return ExitCode.FAILED


# --- for programs --------------------------------------------------------------------------------


def outcome_object(entry: Entry, outcome: UploadOutcome) -> dict[str, Any]:
    """Return what ``--json`` prints for a document; times are seconds, sizes bytes."""
    return {
        "room_id": outcome.room_id,
        "document": outcome.document,
        "outcome": outcome.status,
        "size": entry.size,
        "seconds": round(outcome.seconds, 3),
        "attempts": len(outcome.attempts),
        "msg": outcome.receipt.msg if outcome.receipt else None,
        "error": as_json(outcome.error) if outcome.error else None,
        "place": entry.place,
        "key": entry.key,
        "started": round(outcome.started, 3),
        "waited": round(outcome.waited, 3),
        "bytes_sent": outcome.bytes_sent,
        "bytes_resent": outcome.bytes_resent,
    }


def summary_object(report: BatchReport, documents: int, code: int) -> dict[str, Any]:
    """Return the last object that ``--json`` prints."""
    names = ("accepted", "refused", "failed", "unknown", "skipped", "resumed", "conflicts")
    sizes = ("bytes_delivered", "bytes_sent", "bytes_resent")
    return {
        "summary": {
            "documents": documents,
            **{name: getattr(report, name) for name in (*names, *sizes)},
            "waited": round(report.waited, 3),
            "seconds": round(report.seconds, 3),
            "stopped_by": as_json(report.stopped_by) if report.stopped_by else None,
            "exit_code": int(code),
        }
    }


# --- for people ----------------------------------------------------------------------------------


@attrs.frozen
class Ending:
    """A batch that is over, beside what it was to do."""

    report: BatchReport
    entries: Sequence[Entry]
    journal: str | None
    is_patient: bool
    """Whether rooms that are not active were waited for."""
    outcomes: Sequence[UploadOutcome]
    """Those of the report, which sorts them each time."""

    def table(self) -> Table:
        """Return the sums, a row for each kind of outcome."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        table.add_column("outcome", no_wrap=True)
        for title in ("documents", "size"):
            table.add_column(title, no_wrap=True, justify="right")
        for name, style, group in self._groups():
            size = sum(self.entries[outcome.index].size or 0 for outcome in group)
            table.add_row(Text(name, style), f"{len(group):,}", _amounts.size(size) if size else "")
        return table

    def _groups(self) -> Iterator[tuple[str, str, list[UploadOutcome]]]:
        groups: dict[tuple[str, str], list[UploadOutcome]] = {("accepted", GOOD): []}
        for outcome in self.outcomes:
            groups.setdefault(_kind(outcome), []).append(outcome)
        order = {name: at for at, name in enumerate(_KINDS)}
        for (name, style), group in sorted(groups.items(), key=lambda item: order[item[0][0]]):
            yield name, style, group

    def sentence(self) -> str:
        """Sum up time and traffic."""
        report = self.report
        facts = [f"{_amounts.size(report.bytes_sent)} sent in {_amounts.duration(report.seconds)}"]
        if report.seconds >= 1 and report.bytes_sent:
            facts.append(f"{_amounts.size(report.bytes_sent / report.seconds)}/s")
        if report.bytes_resent:
            facts.append(f"{_amounts.size(report.bytes_resent)} of it again")
        if report.conflicts:
            times = "once" if report.conflicts == 1 else f"{report.conflicts:,} times"
            facts.append(f"a room was locked {times}")
        return ", ".join(facts)

    def attention(self) -> Iterator[str]:
        """Yield a line for each document that somebody must look after, the worst first.

        A room that is not there or not active is one line, however many documents it was to get.
        """
        bad = [
            outcome
            for status in WORST_FIRST
            for outcome in self.outcomes
            if outcome.status == status and not isinstance(outcome.error, _ROOM_ERRORS)
        ]
        lines = [
            f"{outcome.status}: {self.entries[outcome.index].place}: {outcome.error}"
            for outcome in bad[:BAD_SHOWN]
        ]
        yield from lines
        if len(bad) > BAD_SHOWN:
            yield f"… and {len(bad) - BAD_SHOWN:,} more"
        yield from self._rooms()

    def _rooms(self) -> Iterator[str]:
        rooms: Counter[str] = Counter()
        errors_by_room: dict[str, Exception] = {}
        for outcome in self.outcomes:
            if isinstance(outcome.error, _ROOM_ERRORS):
                rooms[outcome.room_id] += 1
                errors_by_room.setdefault(outcome.room_id, outcome.error)
        for room_id, count in rooms.most_common(BAD_SHOWN):
            why = Reason.of(errors_by_room[room_id]).detail
            yield f"{room_id}: {_amounts.counted(count, 'document')} not sent: {why}"
        if len(rooms) > BAD_SHOWN:
            yield f"… and {len(rooms) - BAD_SHOWN:,} more rooms"

    def advice(self, *, is_interrupted: bool) -> Iterator[str]:
        """Say what ended the batch early, and what to do next; each line for stderr."""
        report = self.report
        if isinstance(report.stopped_by, errors.MeetingError):
            yield from explained(report.stopped_by)
        if is_interrupted:
            there, unknown = report.accepted + report.resumed, report.unknown
            left = len(self.entries) - there - unknown
            may_be = f", {unknown:,} may have" if unknown else ""
            total = _amounts.counted(len(self.entries), "document")
            yield f"interrupted: of {total} {there:,} reached the room{may_be}, {left:,} did not"
        if report.unknown:
            yield (
                f"hint: {_amounts.counted(report.unknown, 'document')} may or may not be in the "
                "room: look there; only --on-unknown resend sends such again"
            )
        if not self.is_patient and any(isinstance(o.error, _ROOM_ERRORS) for o in self.outcomes):
            yield "hint: --wait-active SECONDS waits for rooms that are not active yet"
        if report.accepted + report.resumed < len(self.entries):
            yield f"hint: {self._resumption()}"

    def _resumption(self) -> str:
        if self.journal is not None:
            return (
                f"to go on, run the same command again: {self.journal} knows what was accepted, "
                "and that is not sent again"
            )
        return (
            "run again, this would send everything again; with --journal FILE it would go on "
            "where it ended"
        )


_ROOM_ERRORS = (errors.RoomNotFound, errors.RoomNotActive)

_KINDS = ("accepted", "accepted before", "refused", "failed", "unknown", "skipped")


def _kind(outcome: UploadOutcome) -> tuple[str, str]:
    if outcome.status == "skipped":
        return ("accepted before", GOOD) if outcome.is_good else ("skipped", WAITING)
    return outcome.status, GOOD if outcome.status == "accepted" else BAD
