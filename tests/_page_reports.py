"""Reports of batches that never ran: what a page is made from."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from meeting_async import Attempt, UploadReceipt, errors
from meeting_async._jobs import Status, UploadOutcome
from meeting_async._report import BatchReport
from meeting_async.cli._page import page

LOST = errors.ConnectFailed("connection refused")

BEGAN = datetime(2026, 9, 1, 6, 0, 0, tzinfo=UTC)


def page_of(report: BatchReport, **settings: Any) -> str:
    """Make the page of a report, as of a batch that came to its end."""
    defaults = {"title": "term.csv", "server": "https://meet.example.com", "began": BEGAN}
    return page(report, **{**defaults, "total": report.total, **settings})


def report_of(outcomes: Iterable[UploadOutcome], **totals: Any) -> BatchReport:
    """Add outcomes up; unless told otherwise the batch ended with the last of them."""
    report = BatchReport(**totals)
    for outcome in outcomes:
        report.add(outcome)
    ends = [outcome.started + outcome.seconds for outcome in report.outcomes]
    report.seconds = report.seconds or max(ends, default=0.0)
    return report


def attempt(number: int = 1, started: float = 0.0, seconds: float = 1.0, **facts: Any) -> Attempt:
    """Return an attempt; unless told otherwise it was accepted."""
    defaults = {"verdict": "accepted", "status": 200, "reason": "accepted", "bytes_sent": 1000}
    return Attempt(number=number, started=started, seconds=seconds, **{**defaults, **facts})


def refused_attempt(number: int, started: float, seconds: float, size: int) -> Attempt:
    """Return an attempt that met the lock of the room after it had sent everything."""
    facts = {"verdict": "busy", "status": 409, "reason": "the room was locked"}
    return attempt(number, started, seconds, bytes_sent=size, body_seconds=seconds * 0.9, **facts)


def outcome(
    index: int = 0,
    room_id: str = "room01",
    document: str = "deck.pdf",
    status: Status = "accepted",
    **facts: Any,
) -> UploadOutcome:
    """Return an outcome; what was accepted has a receipt and one attempt of a second."""
    defaults: dict[str, Any] = {"size": 1000}
    if status == "accepted":
        tried = facts.get("attempts", (attempt(body_seconds=0.4),))
        receipt = UploadReceipt(room_id, document, 1000, "file uploaded", "SUCCESS", 1.0, tried, {})
        defaults |= {"receipt": receipt, "attempts": tried, "seconds": 1.0}
    names = {"index": index, "room_id": room_id, "document": document, "status": status}
    return UploadOutcome(**{**defaults, **names, **facts})


def refusal(room_id: str, status: int, code: str, msg: str) -> errors.ReplyError:
    """Return what the server's refusal of an upload becomes."""
    kind = {"ROOM_NOT_FOUND": errors.RoomNotFound}.get(code, errors.RequestRefused)
    return kind("room/uploadWhiteboardFile", room_id, status, code, msg)


def unknown(room_id: str, document: str, size: int) -> errors.UploadOutcomeUnknown:
    """Return what becomes of silence after the last byte."""
    reason = "no reply within 330 s after the document was out"
    return errors.UploadOutcomeUnknown(room_id, document, size, size, reason, 300.0)


def ending(index: int, status: Status, error: Exception | None, **facts: Any) -> UploadOutcome:
    """Return an outcome that is not ``accepted``."""
    return outcome(index, status=status, error=error, **facts)


def one_of_each() -> BatchReport:
    """Return a report in which everything that can happen has happened."""
    silent = attempt(seconds=2.0, verdict="unknown", status=None, body_seconds=1.5)
    return report_of(
        [
            outcome(
                0, attempts=(attempt(verdict="busy", status=409), attempt(2, 3.0)), seconds=4.0
            ),
            ending(1, "unknown", unknown("room01", "b.pdf", 9), attempts=(silent,), seconds=2.0),
            ending(2, "refused", refusal("room02", 400, "BAD", "no presenter"), room_id="room02"),
            ending(3, "failed", LOST, room_id="room03"),
            ending(4, "skipped", LOST, room_id="room03"),
            ending(5, "skipped", None, room_id="room04"),
        ],
        seconds=8.0,
    )


def term(rooms: int, documents: int, *, seed: int = 1, scale: float = 1.0) -> list[UploadOutcome]:
    """Make up the start of a term; ``scale`` stretches its times."""
    dice = random.Random(seed)
    outcomes: list[UploadOutcome] = []
    for room in range(rooms):
        clock = dice.uniform(0, 2) * scale
        for _ in range(documents):
            name = f"course-{room + 101}"
            made = _made_up(dice, len(outcomes), name, begin=clock, scale=scale)
            outcomes.append(made)
            clock += made.seconds + dice.uniform(0, 0.3) * scale
    return outcomes


_STEMS = ("Introduction", "Week 1", "Übungsblatt", "Reading list", "Slides", "Exam rules")


def _made_up(
    dice: random.Random, index: int, room_id: str, *, begin: float, scale: float
) -> UploadOutcome:
    name = f"{dice.choice(_STEMS)} {index + 1}.{dice.choice(('pdf', 'pptx', 'docx'))}"
    size = int(dice.lognormvariate(14, 1.2))
    sending, work = dice.uniform(0.1, 1.2) * scale, dice.uniform(0.3, 2.5) * scale
    clock, tries = 0.0, []
    if dice.random() < 0.08:
        for tried in range(1, dice.randint(2, 5)):
            tries.append(refused_attempt(tried, clock, sending, size))
            clock += sending + dice.uniform(1, 6) * scale
    facts: dict[str, Any] = {"size": size, "started": begin, "seconds": clock + sending + work}
    last = attempt(len(tries) + 1, clock, sending + work, body_seconds=sending, bytes_sent=size)
    return outcome(index, room_id, name, attempts=(*tries, last), **facts)
