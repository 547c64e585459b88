"""Texts of a command line: messages of errors, and hints what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

from meeting_async import errors
from meeting_async.cli.console import PROGRAM

_SHELL_NAMES = {
    "base_url": "MEETING_BASE_URL",
    "api_key": "MEETING_API_KEY",
    "api_secret": "MEETING_API_SECRET",
    "allow_plaintext=True": "MEETING_ALLOW_PLAINTEXT=1",
}
_SETTING = re.compile("|".join(_SHELL_NAMES))
_FOR_PROGRAMS = (
    ", or pass filename= with a clean name",
    ", or pass allow_images=True if your server takes it",
    "; for others use HttpxTransport(httpx.AsyncClient(proxy=...))",
    "; or pass HttpTransport(verify=...) an ssl.SSLContext without ssl.VERIFY_X509_STRICT",
)
"""Advice of errors that a command line cannot follow."""


def message_of(error: BaseException) -> str:
    """Return the text of an error, with environment variables in place of keyword arguments."""
    if isinstance(error, errors.ConfigurationError):
        fix = _SETTING.sub(lambda found: _SHELL_NAMES[found[0]], error.fix)
        error = attrs.evolve(error, field=_SHELL_NAMES.get(error.field, error.field), fix=fix)
    return without_advice(str(error)) or type(error).__name__


def without_advice(text: str) -> str:
    """Return the text of an error without what only a program can do."""
    for advice in _FOR_PROGRAMS:
        text = text.replace(advice, "")
    return text


def labelled(label: str, text: str) -> str:
    """Put a label in front of a message, unless the message contains it."""
    return text if label in text else f"{label}: {text}"


def hints(error: BaseException | None, server: str) -> Iterator[str]:
    """Yield at most one line: the command or setting that helps with an error of ``server``."""
    match error:
        case errors.ConfigurationError(problem="is not set" | "are not set"):
            yield f"`{PROGRAM} serve` runs a server on this machine and prints what to export"
        case errors.AuthenticationFailed():
            yield f"check that MEETING_API_KEY and MEETING_API_SECRET belong to {server}"
        case errors.RoomNotFound() | errors.RoomNotActive():
            yield (
                f"there is no session in room {error.room_id}: open it first; "
                f"`{PROGRAM} batch --wait-active SECONDS` waits for rooms"
            )
        case errors.ResourceExhausted():
            pass
        case errors.ConnectFailed() | errors.UnexpectedReply(status=502 | 503 | 504):
            yield f"`{PROGRAM} check` says what is wrong on the way to {server}"
        case errors.UnexpectedReply():
            yield f"check MEETING_BASE_URL or --url: is {server} the meeting server?"
        case errors.RoomBusy():
            option = "--timeout" if error.limit == "timeout" else "--max-wait"
            yield f"try again later; {option} SECONDS sets how long to wait for a room"
        case errors.DocumentTooLarge():
            yield "MEETING_MAX_SIZE_WHITEBOARD_FILE must be the limit of the server"
