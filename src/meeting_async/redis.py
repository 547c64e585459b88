"""Turns for the uploads of several processes, through a Redis server (extra ``redis``)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import quote

from redis.asyncio import Redis

from meeting_async._redis import LEAVE, LOOK, RENEWALS, Commands, Place, warn
from meeting_async._rooms import OnWait, common_turnstile
from meeting_async.errors import ConfigurationError, RoomGateUnavailable

__all__ = ["RedisRoomGate"]


class RedisRoomGate:
    """A :class:`~meeting_async.RoomGate` for all processes that use the same Redis server.

    Uploads of one event loop queue first come, first served; the loops take turns, in the order in
    which each asked for its next turn. The lock of a room is redis-py's; it is renewed while an
    upload runs. Nobody is told when it falls free: who is next looks every 0.1 s.

    If Redis does not answer on the way in, :class:`~meeting_async.errors.RoomGateUnavailable` is
    raised and nothing was sent. If it goes away later, or loses the lock, the upload goes on and
    the log has a warning; what it then collides with, the room's lock at the server sorts out.

    Args:
        client: A ``redis.asyncio.Redis`` of yours; it stays yours to close. Redis 5 or newer.
            Like the client, a gate belongs to one event loop, and that is asyncio's.
        prefix: What the names of all keys begin with.
        lifetime: Seconds for which a room stays locked by a process that was killed. Its upload
            may still hold the room's lock at the server, so let 5/6 of it be at least
            ``LockPolicy.window``.

    Raises:
        ConfigurationError: The lifetime cannot be used; at the first turn: not on asyncio.

    """

    def __init__(
        self, client: Redis, *, prefix: str = "meeting-async:", lifetime: float = 360.0
    ) -> None:
        if type(lifetime) not in {int, float} or not 0.1 <= lifetime < float("inf"):
            problem = "is not a number of at least 0.1"
            raise ConfigurationError("lifetime", repr(lifetime)[:80], problem, "give seconds")
        self._client = client
        self._prefix = prefix
        self._lifetime = lifetime
        self._look = client.register_script(LOOK)
        self._leave = client.register_script(LEAVE)
        self._commands = Commands()

    def __repr__(self) -> str:
        return f"<RedisRoomGate with keys {self._prefix}*>"  # the client's repr has the password

    @asynccontextmanager
    async def turn(self, room: str, on_wait: OnWait | None = None) -> AsyncGenerator[None, None]:
        """Wait for the turn of this event loop, then for that of this process."""
        _check_loop()
        on_wait = _once(on_wait)
        async with common_turnstile().turn(room, on_wait):
            place = self._place(room)
            try:
                await place.wait(on_wait)
                async with place.renewed():
                    yield
            finally:
                if place.known:
                    await place.leave()

    async def shut(self, room: str, seconds: float) -> None:
        """Shut the room for every process; without Redis, for this event loop."""
        await common_turnstile().shut(room, seconds)
        key, milliseconds = self._keys(room)[3], max(1, round(seconds * 1000))
        try:
            await self._commands.run(
                room, lambda: self._client.set(key, "unknown", px=milliseconds)
            )
        except RoomGateUnavailable as error:
            warn("room %r is shut for this process only: %s", room, error.reason)

    def _keys(self, room: str) -> tuple[str, str, str, str]:
        # Braces keep the keys of a room on one node of a cluster; none can be left in the name.
        names = ("line", "seen", "lock", "shut")
        line, seen, lock, shut = (f"{self._prefix}{{{quote(room)}}}:{name}" for name in names)
        return line, seen, lock, shut

    def _place(self, room: str) -> Place:
        keys = self._keys(room)
        return Place(
            room=room,
            keys=keys,
            lock=self._client.lock(keys[2], timeout=self._lifetime, thread_local=False),
            every=self._lifetime / RENEWALS,
            commands=self._commands,
            look=self._look,
            leave_line=self._leave,
        )


def _check_loop() -> None:
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        return
    raise ConfigurationError(
        "room_gate", "RedisRoomGate", "works on asyncio only, as redis-py does", "run on asyncio"
    )


def _once(on_wait: OnWait | None) -> OnWait:
    told = on_wait is None

    async def tell(shut_for: float) -> None:
        nonlocal told
        if not told and on_wait is not None:
            told = True
            await on_wait(shut_for)

    return tell
