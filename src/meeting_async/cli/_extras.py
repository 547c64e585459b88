"""Packages of extras, which may be missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meeting_async.testing import MeetingServer


class MissingExtra(Exception):
    """A command needs packages that are not installed."""


def meeting_server() -> type[MeetingServer]:
    """Import the meeting server, which belongs to the extra ``testing``."""
    try:
        from meeting_async.testing import MeetingServer
    except ImportError as error:
        hint = 'pip install "meeting-async[cli,testing]"'
        raise MissingExtra(f"this command needs a meeting server: {hint}") from error
    return MeetingServer
