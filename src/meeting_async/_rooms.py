"""The turnstile: within one process, one upload per room at a time, in order of arrival.

A server takes one upload per room (interface section 3). Siblings that respect that here never
burn a body on a lock that is their own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import attrs


@attrs.define(eq=False)
class _Gate:
    lock: anyio.Lock = attrs.field(factory=anyio.Lock)
    users: int = 0


@attrs.define(eq=False)
class Turnstile:
    """Admits one upload per room, first come, first served. A room that idles costs nothing."""

    _gates: dict[str, _Gate] = attrs.field(factory=dict)
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
        gate = self._gates.get(room_id)
        return (gate is not None and gate.lock.locked()) or self.shut_for(room_id) > 0

    @asynccontextmanager
    async def turn(self, room_id: str) -> AsyncGenerator[None, None]:
        """Wait for the room's turn, and until the room is no longer shut."""
        self._forget_opened()
        gate = self._gates.setdefault(room_id, _Gate())
        gate.users += 1
        try:
            async with gate.lock:
                await anyio.sleep(self.shut_for(room_id))
                yield
        finally:
            gate.users -= 1
            if not gate.users:
                del self._gates[room_id]

    def _forget_opened(self) -> None:
        """Drop rooms that have opened again; the longest shut stand first."""
        for room_id in list(self._shut_until):
            if self.shut_for(room_id) > 0:
                return
            del self._shut_until[room_id]
