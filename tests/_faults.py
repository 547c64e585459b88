"""What can happen to an attempt, and to a room: the values that a schedule is made of."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping

import attrs


class Seen(enum.Enum):
    """What the client gets to see of an attempt."""

    REPLY = "the server's own reply"
    ANSWER = "an answer of something in between, or an early one"
    RESET = "a reset"
    SILENCE = "nothing"
    REFUSED = "no connection"


class Content(enum.Enum):
    """What an answer contains."""

    HTML = b"<html><h1>Bad Gateway</h1></html>"
    NOTHING = b""
    NO_STATUS = b'{"room": {}}'
    TEXT_STATUS = b'{"status": "true", "msg": "", "status_code": "SUCCESS"}'
    REFUSAL = b'{"status": false, "msg": "no", "status_code": "INVALID_PARAMETERS"}'
    SUCCESS = b'{"status": true, "msg": "file uploaded", "status_code": "SUCCESS"}'


@attrs.frozen
class Point:
    """A place in a form, in bytes from its start or from its end."""

    offset: int
    from_end: bool = True

    def within(self, length: int) -> int:
        """Return how many of ``length`` bytes come before it."""
        return max(0, length - self.offset) if self.from_end else min(self.offset, length)


@attrs.frozen(kw_only=True)
class Fault:
    """What happens to one attempt; nothing bad by default."""

    seen: Seen = Seen.REPLY
    point: Point = Point(0)
    """How much of the form gets out."""
    forwarded: bool = True
    """Whether the server gets a form that is out, when something else answers."""
    status: int = 504
    content: Content = Content.HTML
    retry_after: str | None = None
    """The last three are the answer's, when it is not the server's own."""
    missing: int = 0
    """Bytes that are cut off the end of the server's own reply."""
    connecting: float = 0.0
    sending: float = 0.0
    """Seconds for the whole form."""
    after: float = 0.0
    """Seconds from the last byte to what is seen, when it is not the server's own reply."""
    processing: float = 0.0
    """Seconds the server works on the form, whoever listens."""
    lingering: float = 0.0
    """Seconds the lock outlasts the reply."""
    converts: bool = True
    """Whether the document appears in the room."""


@attrs.frozen
class Hold:
    """Somebody else's upload: takes the room's lock if it is free at that moment."""

    start: float
    seconds: float


def is_refusal(status: int, content: bytes, retry_after: str | None) -> bool:
    """Tell whether an answer says that the form was not taken, or could not be converted."""
    record = record_in(content)
    if status in {408, 409, 429}:
        return status != 408
    if status == 503 and re.fullmatch(r"[\d.]+", retry_after or ""):
        return True
    if status == 200:
        return record.get("status") is False
    return 300 <= status < 500 or (status >= 500 and isinstance(record.get("status"), bool))


def record_in(content: bytes) -> Mapping[str, object]:
    """Read the server's record; empty for what is none."""
    try:
        record = json.loads(content)
    except ValueError:
        return {}
    assert isinstance(record, dict)
    return record
