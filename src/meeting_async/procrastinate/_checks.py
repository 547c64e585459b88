"""What callers of a queue give, checked before anything is stored or asked."""

from __future__ import annotations

from datetime import datetime

from meeting_async._protocol.requests import room_of
from meeting_async._text import short_repr
from meeting_async.errors import ConfigurationError, InvalidInput

MAX_BATCH = 1000
"""Bytes of a batch's name, in UTF-8: it is in an index, whose entries have 2,700 at most."""


def check_seconds(field: str, value: float, low: float, high: float) -> None:
    """Raise `ConfigurationError` for seconds that are out of range."""
    if not low <= value <= high:
        fix = f"give seconds from {low:g} to {high:,.0f}"
        raise ConfigurationError(field, short_repr(value), "is out of range", fix)


def no_place(document: object) -> InvalidInput:
    """Return the error for a document that is not in a place which workers can read."""
    problem = "cannot be stored in a queue"
    fix = "give a path, a link, or a reference that `documents` turns into a document"
    return InvalidInput("document", type(document).__name__, problem, fix)


def checked_batch(batch: str) -> str:
    """Return the name of a batch.

    Raises:
        InvalidInput: It is empty, too long, or cannot be stored.

    """
    if not batch:
        raise InvalidInput("batch", short_repr(batch), "is empty", "give a name")
    check_storable("batch", batch)
    if len(batch.encode()) > MAX_BATCH:
        fix = f"give a name of at most {MAX_BATCH:,} bytes"
        raise InvalidInput("batch", short_repr(batch), "is too long", fix)
    return batch


def checked_room(room_id: str | None) -> str | None:
    """Return the room of uploads to change; ``None``: all rooms.

    Raises:
        InvalidInput: No upload can have it.

    """
    if room_id is not None:
        room_of(room_id)
    return room_id


def checked_time(schedule_at: datetime | None) -> str | None:
    """Return a time as text; raise `InvalidInput` if it has no time zone."""
    if schedule_at is not None and schedule_at.tzinfo is None:
        problem, fix = "has no time zone", "give datetime(..., tzinfo=...)"
        raise InvalidInput("schedule_at", schedule_at.isoformat(), problem, fix)
    return schedule_at.isoformat() if schedule_at else None


def check_storable(field: str, value: str | None) -> None:
    """Raise `InvalidInput` for text that PostgreSQL cannot store."""
    try:
        is_storable = value is None or (b"\0" not in value.encode())
    except UnicodeEncodeError:
        is_storable = False
    if not is_storable:
        problem, fix = "has characters that PostgreSQL cannot store", "rename it"
        raise InvalidInput(field, short_repr(value), problem, fix)
