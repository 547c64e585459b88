"""The state that all parts of a meeting server share."""

import attrs

from ._clock import Clock
from ._faults import Faults
from ._hosting import HostedFiles
from ._requests import RequestLog
from ._rooms import Room
from ._settings import Settings


@attrs.frozen(eq=False)
class State:
    """Settings, clock, rooms by id, scripted replies, request log and hosted files."""

    settings: Settings
    clock: Clock = attrs.field(factory=Clock)
    rooms: dict[str, Room] = attrs.field(factory=dict)
    faults: Faults = attrs.field(factory=Faults)
    log: RequestLog = attrs.field(factory=RequestLog)
    hosted: HostedFiles = attrs.field(factory=HostedFiles)

    def create_room(self, room_id: str, *, title: str | None) -> Room:
        """Open an empty room, or open again the one that is there."""
        room = self.rooms.get(room_id)
        if room is None:
            room = self.rooms[room_id] = self.new_room(room_id, title=title)
        room.active = True
        return room

    def new_room(self, room_id: str, *, title: str | None) -> Room:
        """Make an active room with nobody in it."""
        return Room(
            room_id=room_id,
            title=room_id if title is None else title,
            active=True,
            presenter=False,
            participants=(),
            settings=self.settings,
            clock=self.clock,
        )
