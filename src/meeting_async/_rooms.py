"""The turnstile: within one process, one upload per room at a time, in order of arrival.

A server takes one upload per room (interface section 3). Siblings that respect that here never
burn a body on a lock that is their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import attrs


@attrs.define(eq=False)
class Turnstile:
    """Admits one upload per room, first come, first served. A room that idles costs nothing."""

    _lines: dict[str, deque[anyio.Event]] = attrs.field(factory=dict)
    """Per room the uploads in order of arrival; the first of them has its turn."""
    _shut_until: dict[str, float] = attrs.field(factory=dict)

    def shut(self, room_id: str, seconds: float) -> None:
        """Admit nobody for so long: our own upload of unknown outcome may hold the room's lock."""
        self._shut_until.pop(room_id, None)
        self._shut_until[room_id] = anyio.current_time() + seconds

    def shut_for(self, room_id: str) -> float:
        """Seconds for which the room stays shut; 0 when it is open."""
        return max(0.0, self._shut_until.get(room_id, 0.0) - anyio.current_time())

    def must_wait(self, room_id: str) -> bool:
        """Tell whether an upload to this room would have to wait here."""
        return room_id in self._lines or self.shut_for(room_id) > 0

    @asynccontextmanager
    async def turn(
        self, room_id: str, on_wait: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncGenerator[None, None]:
        """Wait for the room's turn, and until the room is no longer shut.

        The place in the line is taken at once; ``on_wait`` is awaited only if there is a wait.
        """
        self._forget_opened()
        must_wait = self.must_wait(room_id)
        line = self._lines.setdefault(room_id, deque())
        place = anyio.Event()
        line.append(place)
        try:
            if must_wait and on_wait is not None:
                await on_wait()
            if line[0] is not place:
                await place.wait()
            await anyio.sleep(self.shut_for(room_id))
            yield
        finally:
            self._leave(room_id, line, place)

    def _leave(self, room_id: str, line: deque[anyio.Event], place: anyio.Event) -> None:
        line.remove(place)
        if line:
            line[0].set()
        else:
            del self._lines[room_id]

    def _forget_opened(self) -> None:
        """Drop rooms that have opened again; the longest shut stand first."""
        for room_id in list(self._shut_until):
            if self.shut_for(room_id) > 0:
                return
            del self._shut_until[room_id]
