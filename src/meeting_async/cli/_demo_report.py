"""What the demonstration sent, what the rooms received, and whether that is the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

import attrs
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from meeting_async import Document, UploadReceipt, errors

if TYPE_CHECKING:
    from meeting_async.testing import ReceivedFile, Room

SHOWN_DIGITS = 10
"""Leading digits of a checksum that are shown; all of them are compared."""


@attrs.frozen
class Made:
    """A document that was made, and what must arrive."""

    name: str
    size: int
    sha256: str
    document: Document

    @classmethod
    def of(cls, name: str, content: bytes, document: Document) -> Self:
        """Remember a document by its measures, not its content."""
        return cls(name, len(content), hashlib.sha256(content).hexdigest(), document)


@attrs.define(eq=False)
class Upload:
    """A document for a room, and in the end what became of it."""

    room_id: str
    made: Made
    label: str = attrs.field(
        default=attrs.Factory(lambda self: self.made.name, takes_self=True), kw_only=True
    )
    receipt: UploadReceipt | None = attrs.field(default=None, init=False)
    error: errors.MeetingError | None = attrs.field(default=None, init=False)

    @property
    def met_lock(self) -> bool:
        """Whether it was told to wait, and waited."""
        attempts = self.receipt.attempts if self.receipt else ()
        return any(attempt.verdict == "busy" for attempt in attempts)


@attrs.frozen
class Refusal:
    """An attempt to upload what must be refused before anything is sent."""

    name: str
    expected: type[errors.DocumentError]
    error: errors.MeetingError | None
    requests: int
    """How many requests the server got meanwhile."""

    @property
    def is_as_expected(self) -> bool:
        """Whether it was refused, for the right reason, and in time."""
        return isinstance(self.error, self.expected) and self.requests == 0


@attrs.frozen(kw_only=True)
class Comparison:
    """A document that was sent to a room beside the one that the room received."""

    room_id: str
    label: str
    sent: Made | None
    received: ReceivedFile | None

    @property
    def verdict(self) -> str:
        """``same``, ``missing``, ``unexpected`` or ``differs``."""
        if self.received is None:
            return "missing"
        if self.sent is None:
            return "unexpected"
        same = (self.sent.name, self.sent.size, self.sent.sha256) == (
            self.received.name,
            self.received.size,
            self.received.sha256,
        )
        return "same" if same else "differs"


def compared(uploads: Sequence[Upload], rooms: Mapping[str, Room]) -> list[Comparison]:
    """Pair what was sent with what was received, room by room, by name."""
    comparisons = []
    for room_id, room in rooms.items():
        left = list(room.received)
        for upload in uploads:
            if upload.room_id == room_id:
                made = upload.made
                found = next((file for file in left if file.name == made.name), None)
                if found is not None:
                    left.remove(found)
                pair = Comparison(room_id=room_id, label=upload.label, sent=made, received=found)
                comparisons.append(pair)
        comparisons += [
            Comparison(room_id=room_id, label=file.name, sent=None, received=file) for file in left
        ]
    return comparisons


def problems(
    uploads: Sequence[Upload],
    comparisons: Sequence[Comparison],
    refusals: Sequence[Refusal],
    locked: str,
) -> Iterator[str]:
    """Tell everything that is not as expected."""
    for upload in uploads:
        if upload.error is not None:
            yield f"{upload.label} to {upload.room_id}: {upload.error}"
        elif upload.room_id == locked and not upload.met_lock:
            yield f"{upload.label} to {upload.room_id}: the room was not locked"
    for pair in comparisons:
        if pair.verdict != "same":
            yield f"{pair.label} in {pair.room_id}: {pair.verdict}"
    for refusal in refusals:
        if not refusal.is_as_expected:
            seen = refusal.error or "it was accepted"
            yield f"{refusal.name}: {seen} ({refusal.requests} requests)"


def table_of(comparisons: Sequence[Comparison]) -> Table:
    """Show what each room received, and its checksum beside that of what was sent."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("room", "document"):
        table.add_column(title, no_wrap=True)
    table.add_column("bytes", no_wrap=True, justify="right")
    for title in ("SHA-256 sent", "received", ""):
        table.add_column(title, no_wrap=True)
    for pair in comparisons:
        size = f"{pair.received.size:,}" if pair.received else ""
        sums = (_digits(pair.sent), _digits(pair.received))
        style = "green" if pair.verdict == "same" else "red"
        table.add_row(pair.room_id, pair.label, size, *sums, Text(pair.verdict, style))
    return table


def _digits(file: Made | ReceivedFile | None) -> str:
    return file.sha256[:SHOWN_DIGITS] if file else ""
