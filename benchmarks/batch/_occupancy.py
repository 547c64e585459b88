"""How busy the slots of a batch are, seen from below: a transport that counts what is in flight."""

from __future__ import annotations

from collections import Counter

import anyio
import attrs

from meeting_async import Reply, Request, Transport


@attrs.define(eq=False)
class Occupancy:
    """Passes requests on. Its time begins when it is made, or with :meth:`begin`."""

    transport: Transport
    slots: int
    left: Counter[str]
    """Documents that each room has yet to accept."""
    attempts: int = attrs.field(default=0, init=False)
    share: float | None = attrs.field(default=None, init=False)
    """Slot time with an attempt in flight, divided by all slot time, until fewer rooms than slots
    had documents left; ``None`` until then."""
    _in_flight: int = attrs.field(default=0, init=False)
    _used: float = attrs.field(default=0.0, init=False)
    """Slot seconds."""
    _began: float = attrs.field(factory=anyio.current_time, init=False)
    _changed: float = attrs.field(factory=anyio.current_time, init=False)

    def begin(self, left: Counter[str]) -> None:
        """Forget what was before."""
        self.left, self.attempts, self.share, self._used = left, 0, None, 0.0
        self._began = self._changed = anyio.current_time()

    async def send(self, request: Request, /) -> Reply:
        """Count uploads; anything else is passed on as it is."""
        room = dict(request.headers).get(b"Room-Id")
        if room is None:
            return await self.transport.send(request)
        self.attempts += 1
        self._note(+1)
        try:
            reply = await self.transport.send(request)
        finally:
            self._note(-1)
        if reply.status == 200:
            self._accepted(room.decode())
        return reply

    async def aclose(self) -> None:
        """Close what is below."""
        await self.transport.aclose()

    def _note(self, change: int) -> None:
        now = anyio.current_time()
        self._used += self._in_flight * (now - self._changed)
        self._changed = now
        self._in_flight += change

    def _accepted(self, room: str) -> None:
        self.left[room] -= 1
        if not self.left[room]:
            del self.left[room]
        if self.share is None and len(self.left) < self.slots:
            self.share = self._used / (self.slots * (self._changed - self._began))
