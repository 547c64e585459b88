"""Counts, sizes and times as people read them; errors, their reasons, and what to do about them."""

from __future__ import annotations

import re
from collections.abc import Iterator

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


def hints(error: BaseException | None) -> Iterator[str]:
    """Say what to do about an error, where a command or a setting helps; at most one line."""
    match error:
        case errors.ConfigurationError():
            yield f"`{PROGRAM} serve` runs a server on this machine and prints what to export"
        case errors.AuthenticationFailed():
            yield "are MEETING_API_KEY and MEETING_API_SECRET those of this server?"
        case errors.RoomNotFound() | errors.RoomNotActive():
            yield (
                f"there is no session in room {error.room_id}: open it first; "
                f"`{PROGRAM} batch --wait-active SECONDS` waits for rooms"
            )
        case errors.ConnectFailed() if not isinstance(error, errors.ResourceExhausted):
            yield "is this the right server? MEETING_BASE_URL or --url names it"
        case errors.UnexpectedReply():
            yield "is this the address of the meeting server? MEETING_BASE_URL or --url names it"
        case errors.RoomBusy():
            yield f"try again later; --max-wait SECONDS says how long `{PROGRAM}` waits"
        case errors.DocumentTooLarge():
            yield "MEETING_MAX_SIZE_WHITEBOARD_FILE must be the limit of the server"


_FACTS = ("msg", "reason", "change", "problem", "kind", "held_by")
"""Attributes of errors that tell why, without the names of a room and a document."""


def reason_of(error: BaseException | None) -> str:
    """Say why a document is not in its room, in the same words for all that share the reason."""
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).capitalize()
    if isinstance(error, errors.ReplyError):
        code = f" {error.status_code}" if error.status_code else ""
        return f"{kind}: {error.msg} (HTTP {error.status}{code})"
    facts = [getattr(error, name, None) for name in _FACTS]
    if not isinstance(error, errors.MeetingError):
        facts.append(error)
    detail = next((str(fact) for fact in facts if fact), "")
    return f"{kind}: {detail}" if detail else kind
