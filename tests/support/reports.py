"""Reports of batches that never ran, what a page is made from; and what is read on a page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import unescape
from html.parser import HTMLParser
from typing import Any

from meeting_async import Attempt, BatchReport, UploadOutcome, UploadReceipt, Verdict, errors

LOST = errors.ConnectFailed("connection refused", "meet.example.com:443")
STOPPED = errors.BatchStopped("before it was sent")


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
