"""Errors as the table keeps them: class and arguments, of which the same error is made again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from meeting_async import errors
from meeting_async._text import one_line
from meeting_async.errors import MeetingError, ReplyError, UploadFailed


def stored(error: Exception) -> str:
    """Return an error as JSON. Of an error of other code: its class and text."""
    if not (isinstance(error, MeetingError) and type(error).__module__ == errors.__name__):
        error = UploadFailed(type(error).__name__, str(error))
    facts = {"class": type(error).__name__, "args": error.args}
    return json.dumps(facts, default=lambda content: content.decode("latin-1"))


def rebuilt(raw: Mapping[str, Any] | None) -> MeetingError | None:
    """Return the error that was stored."""
    if raw is None:
        return None
    error: MeetingError = getattr(errors, raw["class"])(*raw["args"])
    if isinstance(error, ReplyError):
        error.headers = tuple((name, value) for name, value in error.headers)
        error.body = str(error.body).encode("latin-1")
    return error


def told(error: BaseException) -> str:
    """Return the text of an error as one line; that of other code begins with its type."""
    return one_line(
        str(error) if isinstance(error, MeetingError) else f"{type(error).__name__}: {error}"
    )
