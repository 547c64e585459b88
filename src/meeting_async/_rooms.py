"""The gate in front of each room: one upload at a time, in order of arrival.

A server takes one upload per room (interface section 3). Siblings that respect that here never
burn a body on a lock that is their own. :class:`Turnstile` does it for one process; what does it
for several is a :class:`RoomGate` as well.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import attrs

logger = logging.getLogger("meeting_async")

OnWait = Callable[[float], Awaitable[None]]
"""Called with the seconds for which the room stays shut, as far as is known; 0 when it is taken."""

SHUT_LIMIT = 10.0
"""Seconds that a gate gets to shut a room, even if the call is being cancelled."""


class RoomGate(Protocol):
    """Admits one upload per room at a time.

    A room is a text that names the server and the room, the same in every process that uses the
    same base URL. What is raised on the way in reaches the caller, and nothing was sent. What is
    raised on the way out is logged: it cannot change the outcome of an upload.
    """

    def turn(self, room: str, on_wait: OnWait | None = None) -> AbstractAsyncContextManager[object]:
        """Wait for the room's turn; the turn ends with the block, however it ends.

        ``on_wait`` is awaited once if there is a wait, and not otherwise. If it raises, the place
        in the line is given up and the error goes to the caller.
        """
        ...

    async def shut(self, room: str, seconds: float) -> None:
        """Admit nobody for so long: an upload of unknown outcome may hold the room's lock.

        Called from inside the turn, in a shielded scope.
        """
        ...


@attrs.define(eq=False)
class Turnstile:
    """The gate of one event loop: first come, first served. A room that idles costs nothing."""

    _lines: dict[str, deque[anyio.Event]] = attrs.field(factory=dict, init=False, repr=False)
    """Per room the uploads in order of arrival; the first of them has its turn."""
    _shut_until: OrderedDict[str, float] = attrs.field(factory=OrderedDict, init=False, repr=False)

    async def shut(self, room: str, seconds: float) -> None:
        """Admit nobody for so long: our own upload of unknown outcome may hold the room's lock."""
        until = anyio.current_time() + seconds
        self._shut_until[room] = max(until, self._shut_until.get(room, until))
        self._shut_until.move_to_end(room)

    def shut_for(self, room: str) -> float:
        """Seconds for which the room stays shut; 0 when it is open."""
        return max(0.0, self._shut_until.get(room, 0.0) - anyio.current_time())

    def must_wait(self, room: str) -> bool:
        """Tell whether an upload to this room would have to wait here."""
        return room in self._lines or self.shut_for(room) > 0

    @asynccontextmanager
    async def turn(self, room: str, on_wait: OnWait | None = None) -> AsyncGenerator[None, None]:
        """Wait for the room's turn, and until the room is no longer shut.

        The place in the line is taken at once; ``on_wait`` is awaited only if there is a wait.
        """
        self._forget_opened()
        must_wait = self.must_wait(room)
        line = self._lines.setdefault(room, deque())
        place = anyio.Event()
        line.append(place)
        try:
            if must_wait and on_wait is not None:
                await on_wait(self.shut_for(room))
            if line[0] is not place:
                await place.wait()
            await anyio.sleep(self.shut_for(room))
            yield
        finally:
            self._leave(room, line, place)

    def _leave(self, room: str, line: deque[anyio.Event], place: anyio.Event) -> None:
        line.remove(place)
        if line:
            line[0].set()
        else:
            del self._lines[room]

    def _forget_opened(self) -> None:
        """Drop rooms that have opened again; the longest shut stand first."""
        while self._shut_until and self.shut_for(next(iter(self._shut_until))) == 0:
            self._shut_until.popitem(last=False)


_turnstiles = anyio.lowlevel.RunVar[Turnstile]("meeting_async.turnstile")


def common_turnstile() -> Turnstile:
    """Return the one that all clients of the running event loop share; it goes with its loop."""
    try:
        return _turnstiles.get()
    except LookupError:
        turnstile = Turnstile()
        _turnstiles.set(turnstile)
        return turnstile


def room_name(base: str, room_id: str) -> str:
    """Return one text for a room of a server, however the server's URL is written."""
    parts = urlsplit(base)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path} {room_id}"


@attrs.frozen
class Door:
    """A gate as the upload to one room sees it: once inside, no gate can change the outcome."""

    gate: RoomGate
    room: str

    @asynccontextmanager
    async def turn(self, on_wait: OnWait) -> AsyncGenerator[None, None]:
        """Wait for the turn. What the block raises comes out as it is, whatever the gate does."""
        failure: BaseException | None = None
        inside = False
        try:
            async with self.gate.turn(self.room, on_wait):
                inside = True
                try:
                    yield
                except BaseException as error:
                    failure = error
                    raise
        except Exception as error:
            if not inside or error is failure:
                raise
            logger.warning(_RAISED, "on the way out", exc_info=True, extra=_GATE)
        if failure is not None:
            raise failure

    async def shut(self, seconds: float) -> None:
        """Shut the room; trouble with that is logged."""
        with anyio.move_on_after(SHUT_LIMIT, shield=True) as scope:
            try:
                await self.gate.shut(self.room, seconds)
            except Exception:
                logger.warning(_RAISED, "when it had to shut a room", exc_info=True, extra=_GATE)
        if scope.cancelled_caught:
            logger.warning("the room gate took over %g s to shut a room", SHUT_LIMIT, extra=_GATE)


_RAISED = "the room gate raised %s; the outcome of the upload is not affected"
_GATE = {"action": "room_gate"}
