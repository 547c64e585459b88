"""The report of a batch: one HTML page without other files.

Its templates are ``page.html.j2`` and ``style.css``. It has no script, and the content security
policy in its head forbids loading anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial

import jinja2

from meeting_async import BatchReport, UploadOutcome
from meeting_async._text import counted, duration, printable, size
from meeting_async.reports._groups import CATEGORIES, by_category, category_of, groups_of, reason_of

MOST_LISTED = 100
"""Most documents or rooms that a group lists; all documents are in the tables."""

MOST_OPEN = 200
"""Most rows of a table that is open at first."""

MOST_ROWS = 20_000
"""Most rows of a table; a browser needs seconds to show more."""


def message_of(error: BaseException) -> str:
    """Return the text of an error."""
    return str(error) or type(error).__name__


def no_hints(_error: BaseException | None) -> Iterable[str]:
    """Return no hints."""
    return ()


def page(
    report: BatchReport,
    *,
    title: str,
    headline: str,
    documents: int,
    server: str,
    began: datetime,
    rooms: Iterable[str] = (),
    hint: str = "",
    message: Callable[[BaseException], str] = message_of,
    hints: Callable[[BaseException | None], Iterable[str]] = no_hints,
) -> str:
    """Make the page.

    ``title`` names the batch, such as the file that it was read from; ``headline`` is its result
    as a sentence; ``server`` is the base URL, or ``""``. ``began`` has the time zone that the page
    shows. ``documents`` is the number to send, and ``rooms`` has the room of each, if that is
    known: if a batch was stopped, the report may have fewer. ``hint`` says how to send the rest.
    ``message`` returns the text of an error, and ``hints`` what helps with it.
    """
    outcomes = report.outcomes
    style = _ENVIRONMENT.get_template("style.css").render()
    return _ENVIRONMENT.get_template("page.html.j2").render(
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        report=report,
        title=title,
        headline=headline,
        hint=hint,
        hints=hints,
        message=message,
        said=partial(_said, message),
        server=server,
        began=began,
        tiles=[*_tiles(report, documents)],
        groups=groups_of(outcomes),
        rooms=_rooms(outcomes),
        documents_for=Counter(rooms) or Counter(outcome.room_id for outcome in outcomes),
        span=report.seconds or 1.0,
        tables=[*_tables(outcomes)],
        most_rows=MOST_ROWS,
    )


def _tiles(report: BatchReport, documents: int) -> Iterator[tuple[str, str, object]]:
    """Yield the category (or ``""``), the name and the value of each number."""
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
    """Return the documents of each room in which one was tried.

    Rooms with failures come first, then the last to end.
    """
    rooms: dict[str, list[UploadOutcome]] = {}
    for outcome in outcomes:
        rooms.setdefault(outcome.room_id, []).append(outcome)
    tried = [room for room in rooms.items() if any(o.status != "skipped" for o in room[1])]
    return sorted(tried, key=lambda room: (all(o.delivered for o in room[1]), -_end(room)))


def _tables(outcomes: Iterable[UploadOutcome]) -> Iterator[tuple[str, list[UploadOutcome], bool]]:
    """Yield title and documents of each table, and whether it is open: if it needs attention."""
    parts: dict[str, list[UploadOutcome]] = {"bad": [], "stopped": [], "delivered": []}
    for outcome in outcomes:
        category = category_of(outcome)
        parts[category if category in parts else "bad"].append(outcome)
    yield "not known to be in their rooms", parts["bad"], len(parts["bad"]) <= MOST_OPEN
    yield "left to send", parts["stopped"], False
    yield "in their rooms", parts["delivered"], False


def _end(room: tuple[str, list[UploadOutcome]]) -> float:
    return max(outcome.started + outcome.seconds for outcome in room[1])


def _moment(seconds: float, began: datetime) -> str:
    """Return the time of day that is ``seconds`` after the start, as text."""
    at = began + timedelta(seconds=seconds)
    return at.strftime("%H:%M:%S" if at.date() == began.date() else "%d %b %H:%M:%S")


def _said(message: Callable[[BaseException], str], outcome: UploadOutcome) -> str:
    """Return the message of the server or the error; for a skipped document only the reason."""
    if outcome.error is None:
        return outcome.receipt.msg if outcome.receipt else ""
    return reason_of(outcome.error) if outcome.status == "skipped" else message(outcome.error)


_ADVICE = {
    "unknown": "Sent completely, but no valid answer came back. Look into the room before you "
    "send it again: if it is there already, the room shows it twice.",
    "rooms": "No session is running in these rooms. Open them first.",
    "refused": "Refused by the server or by a local check. Fix the cause before retrying.",
    "failed": "Each reason says what happened.",
    "skipped": "Not sent, because something before them failed. Fix that, then send them.",
    "stopped": "Nothing is wrong with these.",
}

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("meeting_async.reports", ""),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
    # Replaces control characters and those that reverse the direction of writing.
    finalize=lambda value: printable(value) if isinstance(value, str) else value,
)
_ENVIRONMENT.filters |= {
    "category": category_of, "counted": counted, "duration": duration, "moment": _moment,
    "size": size,
}  # fmt: skip
_ENVIRONMENT.globals |= {
    "ADVICE": _ADVICE, "CATEGORIES": CATEGORIES, "MOST_LISTED": MOST_LISTED
}  # fmt: skip
