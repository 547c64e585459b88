"""Reports of batches that never ran, what a page is made from; and what is read on a page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from html import unescape
from html.parser import HTMLParser
from typing import Any

from meeting_async import Attempt, BatchReport, UploadOutcome, UploadReceipt, Verdict, errors

LOST = errors.ConnectFailed("connection refused", "meet.example.com:443")
STOPPED = errors.BatchStopped("before it was sent")
BEGAN = datetime(2026, 9, 1, 23, 59, 50, tzinfo=timezone(timedelta(hours=2), "CEST"))


def report_of(outcomes: Iterable[UploadOutcome], **totals: Any) -> BatchReport:
    """Add outcomes up; unless told otherwise the batch ended with the last of them."""
    report = BatchReport(**totals)
    for one in outcomes:
        report._add(one)
    ends = [one.started + one.seconds for one in report.outcomes]
    report.seconds = report.seconds or max(ends, default=0.0)
    return report


def attempt(number: int = 1, started: float = 0.0, seconds: float = 1.0, **facts: Any) -> Attempt:
    """Return an attempt; unless told otherwise it was accepted."""
    defaults = {"verdict": Verdict.ACCEPTED, "status": 200, "reason": "", "bytes_sent": 1000}
    return Attempt(number, started, seconds, **{**defaults, **facts})


def outcome(
    index: int = 0,
    room_id: str = "room01",
    document: str = "deck.pdf",
    status: str = "accepted",
    **facts: Any,
) -> UploadOutcome:
    """Return an outcome; what was accepted has a receipt and one attempt of a second."""
    found: dict[str, Any] = {"size": 1000}
    if status == "accepted":
        tried = facts.get("attempts", (attempt(body_seconds=0.4),))
        receipt = UploadReceipt(
            room_id=room_id, document=document, size=1000, msg="file uploaded",
            status_code="SUCCESS", seconds=1.0, attempts=tried, raw={},
        )  # fmt: skip
        found |= {"receipt": receipt, "attempts": tried, "seconds": 1.0}
    names = {"index": index, "room_id": room_id, "document": document, "status": status}
    return UploadOutcome(**{**found, **names, **facts})


def absent(index: int, room_id: str, status: str = "skipped") -> UploadOutcome:
    """Return what becomes of a document whose room is not there."""
    error = errors.RoomNotFound(404, "ROOM_NOT_FOUND", "no such room")
    error.operation, error.room_id = "room/uploadWhiteboardFile", room_id
    return outcome(index, room_id, status=status, error=error)


def unknown(index: int, room_id: str, document: str) -> UploadOutcome:
    """Return what becomes of silence after the last byte."""
    error = errors.UploadOutcomeUnknown("no reply within 330 s", 9, 9, 300.0)
    error.room_id, error.document = room_id, document
    silent = attempt(seconds=2.0, verdict=Verdict.UNKNOWN, status=None, body_seconds=1.5)
    facts = {"error": error, "attempts": (silent,), "seconds": 2.0}
    return outcome(index, room_id, document, "unknown", **facts)


def one_of_each() -> BatchReport:
    """Return a report in which everything that can happen has happened."""
    busy = attempt(verdict=Verdict.BUSY, status=409)
    refusal = errors.RequestRefused(400, "BAD", "no presenter")
    return report_of(
        [
            outcome(0, attempts=(busy, attempt(2, 3.0)), seconds=4.0),
            unknown(1, "room01", "b.pdf"),
            outcome(2, "room02", status="refused", error=refusal),
            outcome(3, "room03", status="failed", error=LOST),
            outcome(4, "room03", status="skipped", error=LOST),
            outcome(5, "room04", status="skipped"),
            absent(6, "room05", "refused"),
            absent(7, "room05"),
            outcome(8, "room06", status="skipped", error=STOPPED),
        ],
        seconds=20.0,
    )


def term(rooms: int, documents: int) -> list[UploadOutcome]:
    """Make up the start of a term: all is accepted, and of three documents one waited before."""
    found: list[UploadOutcome] = []
    for index in range(rooms * documents):
        room, number = divmod(index, documents)
        busy = [attempt(verdict=Verdict.BUSY, status=409, seconds=0.3)] * (index % 3 == 0)
        last = attempt(len(busy) + 1, 4.0 * len(busy), 0.5 + index % 4, body_seconds=0.4)
        facts: dict[str, Any] = {"attempts": (*busy, last), "started": 5.0 * number + room / 20}
        facts["seconds"], facts["size"] = last.started + last.seconds, 9 ** (index % 8)
        name = f"Übungsblatt {number + 1} {'(final) ' * (index % 3)}.pdf"
        found.append(outcome(index, f"course-{room + 101}", name, **facts))
    return found


VOID = {"link", "meta"}


class _Strict(HTMLParser):
    """Reads a page; each element must end, and in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        assert len({name for name, _ in attrs}) == len(attrs)
        assert not any(name.startswith("on") or name == "style" for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"rect", "line"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def text_of(html: str) -> str:
    """Return the text of a page, whose elements all end in their turn."""
    reader = _Strict()
    reader.feed(html)
    reader.close()
    assert not reader.open
    body = html.partition("</head>")[2]
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body)))
