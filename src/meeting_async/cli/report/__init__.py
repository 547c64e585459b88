"""The report of a batch for people: one page of HTML that needs nothing but itself.

``page.html.j2`` and ``style.css`` are the page, and ``timeline`` says where its bars are. The page
has no script, and a policy in its head lets nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import jinja2

from meeting_async import BatchReport, UploadOutcome
from meeting_async.cli.console import printable
from meeting_async.cli.report.timeline import timeline
from meeting_async.cli.results import Group, groups_of, headline
from meeting_async.cli.words import Reason, counted, duration, hints, message_of, size
from meeting_async.errors import BatchStopped

MOST_LISTED = 100
"""Documents or rooms that a group names; all documents are in the table."""

MOST_ROWS = 20_000
"""Documents that the table lists; a browser takes seconds for more."""


def write_page(path: str, report: BatchReport, **facts: Any) -> None:
    """Write the page to a file; see :func:`page`."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(page(report, **facts))


def page(
    report: BatchReport,
    *,
    title: str,
    server: str,
    began: datetime,
    documents: int,
    interrupted: bool = False,
) -> str:
    """Make the page.

    ``title`` names the batch, such as the file that it was read from; ``server`` is where it was
    sent. ``began`` is in the local time that the page is to show. ``documents`` is how many there
    were to send: a batch that was stopped may account for fewer.
    """
    outcomes, stopped_by = report.outcomes, report.stopped_by
    groups = groups_of(outcomes)
    sentence = headline(report, documents, interrupted=interrupted)
    style = _ENVIRONMENT.get_template("style.css").render()
    return _ENVIRONMENT.get_template("page.html.j2").render(
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        title=title,
        server=server,
        began=began,
        headline=sentence[:1].upper() + sentence[1:],
        tiles=[*_tiles(report, documents)],
        stopped_by=stopped_by and message_of(stopped_by),
        hints=[*hints(stopped_by, server)],
        groups=[_section(group, server) for group in groups],
        is_only_left=bool(groups) and all(group.status == "stopped" for group in groups),
        timeline=timeline(outcomes, report.seconds),
        tables=[*_tables(outcomes, began)],
    )


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("meeting_async.cli", "report"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    # What steers a terminal or turns the direction of writing around has no place in a page either.
    finalize=lambda value: printable(value) if isinstance(value, str) else value,
)


def _tiles(report: BatchReport, documents: int) -> Iterator[tuple[str, str, bool]]:
    """Yield names and numbers, and whether there is anything of them."""
    counts = {
        "accepted": report.accepted,
        "in an earlier run": report.already_delivered,
        "unknown": report.unknown,
        "refused": report.refused,
        "failed": report.failed,
        "not tried": report.skipped - report.already_delivered + documents - report.total,
    }
    for name, count in counts.items():
        yield name, f"{count:,}", count > 0
    sent, again, seconds = report.bytes_delivered, report.bytes_resent, report.seconds
    rate = f", {size(sent / seconds)}/s" if seconds and sent else ""
    yield "took", duration(seconds), True
    yield f"delivered{rate}", size(sent), sent > 0
    yield "sent more than once", size(again), again > 0
    yield "waited, all documents together", duration(report.waited), report.waited > 0
    yield "a room was taken", counted(report.conflicts, "time"), report.conflicts > 0


# --- what needs attention ------------------------------------------------------------------------

_TITLES = {
    "unknown": "May or may not have arrived",
    "rooms": "Rooms that are not there or not active",
    "refused": "Refused",
    "failed": "Failed",
    "skipped": "Not tried",
    "stopped": "Not begun, because the batch was stopped",
}

_ADVICE = {
    "unknown": "Sent completely, but no valid answer came back. Look into the room before you "
    "send it again: if it is there already, the room shows it twice.",
    "rooms": "Nothing was sent to these rooms. Open them, then run the same command again.",
    "refused": "Refused by the server or by a local check. Fix the cause before retrying.",
    "failed": "These did not reach their rooms. It is safe to send them again.",
    "skipped": "Not sent, because something before them failed. Fix that, then send them.",
    "stopped": "Nothing is wrong with these. Run the same command again to send them.",
}


def _section(group: Group, server: str) -> dict[str, Any]:
    """Return what the page says of a group; rooms that are not there stand for their documents."""
    by_room, rooms, documents = group.status == "rooms", group.rooms, group.outcomes
    named = len(rooms) if by_room else len(documents)
    has_hints = group.status in {"unknown", "refused", "failed"}
    return {
        "status": group.status,
        "title": _TITLES[group.status],
        "advice": _ADVICE[group.status],
        "reason": "" if group.status == "stopped" else str(group.reason),
        "where": f"{counted(len(documents), 'document')} for {counted(len(rooms), 'room')}",
        "hints": [*hints(documents[0].error, server)] if has_hints else [],
        "rooms": [*rooms.items()][:MOST_LISTED] if by_room else [],
        "documents": [] if by_room else documents[:MOST_LISTED],
        "more": max(0, named - MOST_LISTED),
        "is_open": named <= 10 and group.status != "stopped",
    }


# --- the tables ----------------------------------------------------------------------------------

_SIGNS = {"accepted": "✓", "in an earlier run": "✓", "unknown": "?", "skipped": "○"}


def _tables(outcomes: Sequence[UploadOutcome], began: datetime) -> Iterator[dict[str, Any]]:
    """Yield the documents that are not in their rooms, then the others, folded."""
    good = [outcome for outcome in outcomes if outcome.delivered]
    missing = [outcome for outcome in outcomes if not outcome.delivered]
    stopped = [outcome for outcome in missing if isinstance(outcome.error, BatchStopped)]
    bad = [outcome for outcome in missing if not isinstance(outcome.error, BatchStopped)]
    parts = (
        (bad, "not known to be in their rooms", len(bad) <= 200),
        (stopped, "not begun", False),
        (good, "in their rooms", False),
    )
    for found, title, is_open in parts:
        if found:
            yield {
                "title": f"{counted(len(found), 'document')} {title}",
                "is_open": is_open,
                "rows": [_row(outcome, began) for outcome in found[:MOST_ROWS]],
                "more": max(0, len(found) - MOST_ROWS),
            }


def _row(outcome: UploadOutcome, began: datetime) -> dict[str, Any]:
    earlier = outcome.status == "skipped" and outcome.delivered
    word = "in an earlier run" if earlier else outcome.status
    at = began + timedelta(seconds=outcome.started)
    moment = at.strftime("%H:%M:%S" if at.date() == began.date() else "%d %b %H:%M:%S")
    is_tried = outcome.status != "skipped"
    return {
        "number": outcome.index + 1,
        "room": outcome.room_id,
        "document": outcome.document,
        "size": "" if outcome.size is None else size(outcome.size),
        "status": outcome.status,
        "outcome": f"{_SIGNS.get(word, '✕')} {word}",
        "at": moment if is_tried else "",
        "seconds": f"{outcome.seconds:.2f} s" if is_tried else "",
        "attempts": len(outcome.attempts) if is_tried else "",
        "message": _message(outcome),
    }


def _message(outcome: UploadOutcome) -> str:
    """Return what the server or the error said; what skipped it is about another document."""
    if outcome.error is None:
        return outcome.receipt.msg if outcome.receipt else ""
    if outcome.status == "skipped":
        return str(Reason.of(outcome.error))
    return message_of(outcome.error)
