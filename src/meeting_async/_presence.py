"""Is anybody there? What a batch finds out before it sends documents: server, key, rooms."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import attrs

from meeting_async import _events, _wire, errors
from meeting_async._calls import Calls
from meeting_async._observer import Observer
from meeting_async._slots import Slot

ASK_ABOVE = 256 * 1024
"""Bytes of a document above which its room is asked about first, with some 300 bytes; a smaller
one finds out at little more cost."""

SHORTEST_PAUSE, LONGEST_PAUSE = 2.0, 30.0
"""Seconds between two questions about a room that is not active: a tenth of the time waited, as
whoever waits for hours need not know within seconds."""

ABSENT = (errors.RoomNotFound, errors.RoomNotActive)


def dooms_room(error: Exception | None) -> bool:
    """Tell whether the other documents for the same room would get the same answer."""
    return isinstance(error, ABSENT)


def dooms_batch(error: Exception | None, *, is_met: bool, is_outage: bool) -> bool:
    """Tell whether every other document would meet the same error.

    ``is_met``: the server has answered properly before. ``is_outage``: nobody gets through to it.
    """
    if isinstance(error, errors.AuthenticationFailed | errors.JournalError):
        return True
    if isinstance(error, errors.ConnectFailed) and is_outage:
        return True
    return not is_met and isinstance(error, errors.ReplyError | errors.TransportError)


@attrs.define(eq=False)
class Presence:
    """What is known of the server, and of rooms that have jobs."""

    calls: Calls
    wait_active: float | None
    """Seconds to wait for a room that is not there or not active; ``None``: not at all."""
    when_met: Callable[[], None]
    """Called when the server has proved that it is one and knows us."""
    is_met: bool = attrs.field(default=False, init=False)
    _active: set[str] = attrs.field(factory=set, init=False)

    async def ask_first(
        self, room_id: str, document: str, slot: Slot, since: float | None = None
    ) -> None:
        """Ask about a room if that must be known before its document is even measured."""
        if not self.is_met or self.wait_active is not None:
            await self.ask(room_id, document, slot, since)

    async def ask_for(self, size: int, room_id: str, document: str, slot: Slot) -> None:
        """Ask about a room if a document of that size would be much to send in vain."""
        if size > ASK_ABOVE:
            await self.ask(room_id, document, slot)

    async def ask(
        self, room_id: str, document: str, slot: Slot, since: float | None = None
    ) -> None:
        """See that a room is active, or becomes so in time, counted from ``since`` or from now.

        Raises:
            RoomNotFound, RoomNotActive: It is not.
            MeetingError: The question failed.

        """
        since = anyio.current_time() if since is None else since
        while room_id not in self._active:
            try:
                await self._look(room_id)
            except ABSENT:
                if not await self.pause(room_id, document, slot, since):
                    raise
            else:
                self._active.add(room_id)

    async def pause(self, room_id: str, document: str, slot: Slot, since: float) -> bool:
        """Wait, without the slot, before a room that was absent is asked for again.

        Returns ``False`` instead if it was absent for as long as it may be.
        """
        waited = anyio.current_time() - since
        left = (self.wait_active or 0.0) - waited
        if left <= 0:
            return False
        seconds = min(max(waited / 10, SHORTEST_PAUSE), LONGEST_PAUSE, left)
        slot.give_back()
        await self._tell(room_id, document, seconds, waited)
        await anyio.sleep(seconds)
        await slot.claim()
        return True

    async def _look(self, room_id: str) -> None:
        try:
            await self.calls.active_room(room_id)
        except errors.RequestRefused as error:
            # Its own record, and not about us: it is a meeting server, and the key is right.
            if error.status_code and not isinstance(error, errors.AuthenticationFailed):
                self._met()
            raise
        self._met()

    def _met(self) -> None:
        if not self.is_met:
            self.is_met = True
            self.when_met()

    async def _tell(self, room_id: str, document: str, pause: float, waited: float) -> None:
        event = _events.WaitingUntilActive(
            call=0,
            operation=_wire.ACTIVE_ROOM_INFO,
            room_id=room_id,
            document=document,
            retry_in=pause,
            waited=waited,
            max_wait=self.wait_active or 0.0,
        )
        await Observer(self.calls.options.on_event).tell(event)

    def forget(self, room_id: str) -> None:
        """Ask again next time."""
        self._active.discard(room_id)
