"""The report of a batch for people: one page of HTML that needs nothing but itself.

``page.html.j2`` and ``style.css`` are the page. It has no script, and a policy in its head lets
nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

import jinja2

from meeting_async import BatchReport, UploadOutcome
from meeting_async.cli.console import printable
from meeting_async.cli.results import CATEGORIES, by_category, category_of, groups_of
from meeting_async.cli.words import counted, duration, hints, message_of, reason_of, size

MOST_LISTED = 100
"""Documents or rooms that a group names; all documents are in the tables."""

MOST_OPEN = 200
"""Rows of a table that is not folded."""

MOST_ROWS = 20_000
"""Rows of a table; a browser takes seconds for more."""


def page(
    report: BatchReport, title: str, headline: str, documents: int, server: str, began: datetime
) -> str:
    """Make the page.

    ``title`` names the batch, such as the file that it was read from, and ``headline`` says how it
    went; ``server`` is where it was sent. ``began`` is in the local time that the page is to show.
    ``documents`` is how many there were to send: a batch that was stopped may account for fewer.
    """
    outcomes = report.outcomes
    style = _ENVIRONMENT.get_template("style.css").render()
    return _ENVIRONMENT.get_template("page.html.j2").render(
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        report=report,
        title=title,
        headline=headline,
        server=server,
        began=began,
        tiles=[*_tiles(report, documents)],
        groups=groups_of(outcomes),
        rooms=_rooms(outcomes),
        span=max([report.seconds, *(o.started + o.seconds for o in outcomes), 0.001]),
        tables=[*_tables(outcomes)],
        most_rows=MOST_ROWS,
    )


def _tiles(report: BatchReport, documents: int) -> Iterator[tuple[str, str, object]]:
    """Yield the category that a number is about, its name and its value."""
    yield "", "accepted", report.accepted
    yield "", "by an earlier run", report.already_delivered
    for category, count in by_category(report, documents).items():
        yield category, CATEGORIES[category], count
    rate = f", {size(report.bytes_sent / report.seconds)}/s" if report.seconds else ""
    yield "", "took", duration(report.seconds)
    yield "", f"sent{rate}", size(report.bytes_sent)
    yield "", "sent more than once", report.bytes_resent and size(report.bytes_resent)
    yield "", "a room was locked", report.conflicts and counted(report.conflicts, "time")


def _rooms(outcomes: Iterable[UploadOutcome]) -> list[tuple[str, list[UploadOutcome]]]:
    """Return what was tried in each room: rooms with trouble first, then those that ended last."""
    rooms: dict[str, list[UploadOutcome]] = {}
    for outcome in outcomes:
        if outcome.status != "skipped":
            rooms.setdefault(outcome.room_id, []).append(outcome)
    return sorted(rooms.items(), key=lambda item: (all(o.delivered for o in item[1]), -_end(item)))


def _tables(outcomes: Iterable[UploadOutcome]) -> Iterator[tuple[str, list[UploadOutcome], bool]]:
    """Yield titles, documents, and whether a table is open: only what needs attention is."""
    parts: dict[str, list[UploadOutcome]] = {"bad": [], "stopped": [], "delivered": []}
    for outcome in outcomes:
        category = category_of(outcome)
        parts[category if category in parts else "bad"].append(outcome)
    yield "not known to be in their rooms", parts["bad"], len(parts["bad"]) <= MOST_OPEN
    yield "not begun", parts["stopped"], False
    yield "in their rooms", parts["delivered"], False


def _end(room: tuple[str, list[UploadOutcome]]) -> float:
    return max(outcome.started + outcome.seconds for outcome in room[1])


def _moment(seconds: float, began: datetime) -> str:
    """Write when something happened, so many seconds after the beginning."""
    at = began + timedelta(seconds=seconds)
    return at.strftime("%H:%M:%S" if at.date() == began.date() else "%d %b %H:%M:%S")


def _message(outcome: UploadOutcome) -> str:
    """Return what the server or the error said; what skipped it is about another document."""
    if outcome.error is None:
        return outcome.receipt.msg if outcome.receipt else ""
    return reason_of(outcome.error) if outcome.status == "skipped" else message_of(outcome.error)


_ADVICE = {
    "unknown": "Sent completely, but no valid answer came back. Look into the room before you "
    "send it again: if it is there already, the room shows it twice.",
    "rooms": "Nothing was sent to these rooms. Open them, then run the same command again.",
    "refused": "Refused by the server or by a local check. Fix the cause before retrying.",
    "failed": "These did not reach their rooms. It is safe to send them again.",
    "skipped": "Not sent, because something before them failed. Fix that, then send them.",
    "stopped": "Nothing is wrong with these. Run the same command again to send them.",
}

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
_ENVIRONMENT.filters |= {
    "category": category_of, "counted": counted, "duration": duration, "hints": hints,
    "message": message_of, "moment": _moment, "said": _message, "size": size,
}  # fmt: skip
_ENVIRONMENT.globals |= {
    "ADVICE": _ADVICE, "CATEGORIES": CATEGORIES, "MOST_LISTED": MOST_LISTED
}  # fmt: skip
