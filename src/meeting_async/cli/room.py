"""``meeting-async room``: what the server says about an active room."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from meeting_async._text import printable
from meeting_async.cli.options import Asking, Printed

if TYPE_CHECKING:
    from meeting_async import ActiveRoom, MeetingClient
    from meeting_async.cli.display import Display


_DEFAULTS = Asking()


def room(room_id: str, /, *, common: Asking = _DEFAULTS, output: Printed) -> None:
    """Show what the server says about an active room.

    Args:
        room_id: The room.
        common: Options of all commands.
        output: Where to print.

    """
    import anyio

    from meeting_async.cli.display import Display, Lines

    retries = Display() if common.quiet else Lines(output, 1, detailed=True)
    found = anyio.run(_ask, common.client(), room_id, retries)
    if output.as_json:
        output.say_object("room", {"room_id": found.room_id, "reply": dict(found.raw)})
    else:
        for name, value in _facts(found):
            output.say(f"{name:<13} {printable(value)}")


async def _ask(client: MeetingClient, room_id: str, retries: Display) -> ActiveRoom:
    async with client:
        return await client.get_active_room_info(room_id, on_event=retries)


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
    return "unknown" if flag is None else "yes" if flag else "no"


def _moment(unix_time: int) -> str:
    """Return a Unix time in seconds as local time; an impossible one is returned as it is."""
    try:
        return f"{datetime.fromtimestamp(unix_time).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    except (OverflowError, ValueError, OSError):
        return str(unix_time)
