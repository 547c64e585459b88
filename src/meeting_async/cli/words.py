"""Counts, sizes and times as people read them; errors, their reasons, and what to do about them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import attrs

from meeting_async import errors
from meeting_async.cli.console import PROGRAM

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def counted(number: int, noun: str) -> str:
    """Write how many there are of something."""
    return f"{number:,} {noun if number == 1 else f'{noun}s'}"


def size(number: float) -> str:
    """Write a number of bytes, in the units in which limits are configured."""
    if number < 1024:
        return counted(round(number), "byte")
    unit, *larger = _UNITS
    number /= 1024
    while larger and number >= 1023.95:  # what would be written as 1,024.0
        unit, *larger = larger
        number /= 1024
    return f"{number:,.1f} {unit}"


def duration(seconds: float) -> str:
    """Write how long something took, to about three digits."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def shortened(text: str, length: int) -> str:
    """Cut the middle out of a long name: its end tells documents apart as well as its start."""
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[-tail:]}"


# --- errors --------------------------------------------------------------------------------------

_SHELL_NAMES = {
    "base_url": "MEETING_BASE_URL",
    "api_key": "MEETING_API_KEY",
    "api_secret": "MEETING_API_SECRET",
    "max_size_whiteboard_file": "MEETING_MAX_SIZE_WHITEBOARD_FILE",
}


def message_of(error: BaseException) -> str:
    """Return the text of an error, with environment variables in place of keyword arguments."""
    if isinstance(error, errors.ConfigurationError):
        fix = error.fix.replace("allow_plaintext=True", "MEETING_ALLOW_PLAINTEXT=1")
        error = attrs.evolve(error, field=_SHELL_NAMES.get(error.field, error.field), fix=fix)
    text = str(error).replace(", or pass allow_images=True if your server takes it", "")
    return text or type(error).__name__


def labelled(label: str, text: str) -> str:
    """Put in front of a message what it is about, unless the message says so itself."""
    return text if label in text else f"{label}: {text}"


def hints(error: BaseException | None, server: str) -> Iterator[str]:
    """Say what to do about an error, where a command or a setting helps; at most one line."""
    host = urlsplit(server).netloc or server
    match error:
        case errors.ConfigurationError():
            yield f"`{PROGRAM} serve` runs a server on this machine and prints what to export"
        case errors.AuthenticationFailed():
            yield f"are MEETING_API_KEY and MEETING_API_SECRET those of {host}?"
        case errors.RoomNotFound() | errors.RoomNotActive():
            yield (
                f"{host} has no session in room {error.room_id}: open it first; "
                f"`{PROGRAM} batch --wait-active SECONDS` waits for rooms"
            )
        case errors.ConnectFailed() if not isinstance(error, errors.ResourceExhausted):
            yield f"is {host} the right server? MEETING_BASE_URL or --url names it"
        case errors.UnexpectedReply():
            yield f"is {server} the address of the meeting server? MEETING_BASE_URL or --url is"
        case errors.RoomBusy():
            yield f"try again later; --max-wait SECONDS says how long `{PROGRAM}` waits"
        case errors.DocumentTooLarge():
            yield "MEETING_MAX_SIZE_WHITEBOARD_FILE must be the limit of the server"


_FACTS = ("msg", "reason", "change", "problem", "kind", "held_by")
"""Attributes of errors that tell why, without the names of a room and a document."""


@attrs.frozen
class Reason:
    """Why a document is not in its room, in the same words for all documents that share it."""

    kind: str
    """The class of the error, in words."""
    detail: str
    """What was seen, in the server's words where it said something."""

    @classmethod
    def of(cls, error: BaseException | None) -> Reason:
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
