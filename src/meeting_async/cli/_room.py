"""``meeting-async room``: what the server says about an active room."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import anyio

from meeting_async import ActiveRoom, MeetingClient
from meeting_async.cli._console import console_on, printable, say
from meeting_async.cli._outcomes import ExitCode
from meeting_async.cli._progress import Lines


def room(room_id: str, *, as_json: bool) -> ExitCode:
    """Print a summary, or the server's reply as it is."""
    found = anyio.run(_ask, room_id)
    if as_json:
        say(json.dumps(dict(found.raw), indent=2))
        return ExitCode.OK
    for name, value in _facts(found):
        say(f"{name:<13} {printable(value)}")
    return ExitCode.OK


async def _ask(room_id: str) -> ActiveRoom:
    retries = Lines(console_on(sys.stderr), stays=False)
    async with MeetingClient.from_env(on_event=retries) as client:
        return await client.get_active_room_info(room_id)


def _facts(found: ActiveRoom) -> Iterator[tuple[str, str]]:
    yield "room", found.room_id
    if found.title and found.title != found.room_id:
        yield "title", found.title
    yield "running", _yes_or_no(found.is_running)
    if found.creation_time:
        yield "since", _moment(found.creation_time)
    people = [person.name or person.identity or "somebody" for person in found.participants]
    count = len(people) if found.joined_participants is None else found.joined_participants
    yield "participants", f"{count} ({', '.join(people)})" if people else str(count)
    yield "recording", _yes_or_no(found.is_recording)
    if found.is_breakout_room:
        yield "breakout of", found.parent_room_id or "another room"
    if found.sid:
        yield "session", found.sid


def _yes_or_no(flag: bool | None) -> str:
    return "not told" if flag is None else "yes" if flag else "no"


def _moment(unix_time: int) -> str:
    """Write a Unix time in seconds; a server may send anything."""
    try:
        return f"{datetime.fromtimestamp(unix_time, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return str(unix_time)
