"""Groups of documents with the same category or reason, and a batch in one sentence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import attrs

from meeting_async import BatchReport, UploadOutcome, errors
from meeting_async._text import counted

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


_FACTS = ("reason", "change", "problem", "kind", "held_by")
"""Attributes of errors with the reason; they do not name a room or a document."""


def reason_of(error: BaseException | None) -> str:
    """Return why a document is not in its room; the same text for all with the same reason."""
    name = error.kind if isinstance(error, errors.UploadFailed) else type(error).__name__
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()
    if isinstance(error, errors.ReplyError):
        code = f" {error.status_code}" if error.status_code else ""
        return f"{kind}: {error.msg} (HTTP {error.status}{code})"
    facts = [getattr(error, name, None) for name in _FACTS]
    if not isinstance(error, errors.MeetingError):
        facts.append(error)
    detail = next((str(fact) for fact in facts if fact), "")
    return f"{kind}: {detail}" if detail else kind
