"""Why a document is not in its room, told so that those with one reason can stand together."""

from __future__ import annotations

import re

import attrs

from meeting_async import errors

_FACTS = ("msg", "reason", "change", "problem", "kind")
"""Attributes of errors that tell why, without the names of a room and a document."""


@attrs.frozen
class Reason:
    """Why something is not in its room, told alike for all documents that share it."""

    kind: str
    """The class of the error, in words."""
    detail: str
    """What was seen, in the server's words where it said something."""

    @classmethod
    def of(cls, error: Exception | None) -> Reason:
        """Take from an error what does not depend on its document."""
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).capitalize()
        if isinstance(error, errors.ReplyError):
            code = f" {error.status_code}" if error.status_code else ""
            return cls(words, f"{error.msg} (HTTP {error.status}{code})")
        facts = (getattr(error, name, None) for name in _FACTS)
        own = isinstance(error, errors.MeetingError)
        return cls(words, next((str(f) for f in facts if f), "" if own else str(error)))

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.kind}: {self.detail}" if self.detail else self.kind
