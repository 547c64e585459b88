"""Turns for the uploads of several processes, through a Redis server (extra ``redis``)."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import quote

import anyio
import attrs
from redis.asyncio import Redis
from redis.asyncio.lock import Lock
from redis.commands.core import AsyncScript
from redis.exceptions import LockNotOwnedError, RedisError

from meeting_async._observer import logger
from meeting_async._rooms import OnWait, common_turnstile
from meeting_async.errors import ConfigurationError, RoomGateUnavailable

__all__ = ["RedisRoomGate"]

COMMAND_SECONDS = 5.0
"""Limit on one exchange with Redis, redis-py's own repetitions included; usually a millisecond."""

COMMANDS_AT_ONCE = 16
"""Of one gate: thousands of waiting rooms need no more connections than that."""

GRACE_SECONDS = 5.0
"""A place in the line that nobody asked for during that time belongs to a dead process."""

NEXT_LOOK, LAST_LOOK = 0.1, 1.0
"""Seconds between two looks of whoever is next, and the most for those far behind."""

RENEWALS = 6
"""Renewals per lifetime: a lock outlives its killed holder by at least 5/6 of the lifetime."""

_LOOK = """
local line, seen, lock, shut = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local me, grace = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local holder = redis.call('GET', lock)
local gone = redis.call('ZRANGEBYSCORE', seen, '-inf', now - grace * 1000)
if holder then table.insert(gone, holder) end
for _, token in ipairs(gone) do
    redis.call('ZREM', line, token)
    redis.call('ZREM', seen, token)
end
redis.call('ZADD', line, 'NX', now, me)
redis.call('ZADD', seen, now, me)
redis.call('PEXPIRE', line, grace)
redis.call('PEXPIRE', seen, grace)
local ahead = redis.call('ZRANK', line, me)
if holder == me then ahead = -1 elseif holder then ahead = ahead + 1 end
return {ahead, math.max(redis.call('PTTL', shut), 0)}
"""
"""Take a place in the line of the room, or confirm it; say how many are ahead, and the shut time.

Who holds the lock is out of the line, and so is who was silent for longer than the grace. All by
the clock of the Redis server. -1: the lock is mine already; the reply that said so was lost.
"""

_LEAVE = """
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
if KEYS[3] and redis.call('GET', KEYS[3]) == ARGV[1] then redis.call('DEL', KEYS[3]) end
"""
"""Leave the line; with a third key, also the lock, if it was taken without our getting to know."""


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
        self._look = client.register_script(_LOOK)
        self._leave = client.register_script(_LEAVE)
        self._slots = anyio.Semaphore(COMMANDS_AT_ONCE)

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
        milliseconds = max(1, round(seconds * 1000))
        try:
            async with self._slots:
                with anyio.fail_after(COMMAND_SECONDS, shield=True):
                    await self._client.set(self._keys(room)[3], "unknown", px=milliseconds)
        except (RedisError, OSError) as error:
            _warn("room %r is shut for this process only: %s", room, _reason(error))

    def _keys(self, room: str) -> tuple[str, str, str, str]:
        # Braces keep the keys of a room on one node of a cluster; none can be left in the name.
        names = ("line", "seen", "lock", "shut")
        line, seen, lock, shut = (f"{self._prefix}{{{quote(room)}}}:{name}" for name in names)
        return line, seen, lock, shut

    def _place(self, room: str) -> _Place:
        keys = self._keys(room)
        return _Place(
            room=room,
            keys=keys,
            lock=self._client.lock(keys[2], timeout=self._lifetime, thread_local=False),
            every=self._lifetime / RENEWALS,
            slots=self._slots,
            look=self._look,
            leave_line=self._leave,
        )


@attrs.define(eq=False)
class _Place:
    """One upload's place in the line of all processes, and then its lock."""

    room: str
    keys: tuple[str, str, str, str]
    lock: Lock
    """One object for each acquisition: it keeps the token."""
    every: float
    """Seconds between two renewals."""
    slots: anyio.Semaphore
    look: AsyncScript
    leave_line: AsyncScript
    token: str = attrs.field(factory=lambda: uuid.uuid4().hex)
    known: bool = False
    """Whether Redis may know of this place."""
    held: bool = False

    async def wait(self, on_wait: OnWait) -> None:
        """Wait until nobody is ahead, the room is open and its lock is ours."""
        while True:
            ahead, shut_for = await self._ask()
            if ahead == 0 and shut_for == 0 and await self._take():
                return
            if ahead == -1:
                await self._give_up()
                continue
            await on_wait(shut_for)
            await anyio.sleep(min(max(NEXT_LOOK * ahead, NEXT_LOOK, shut_for), LAST_LOOK))

    async def _ask(self) -> tuple[int, float]:
        async with self._answering():
            grace = round(GRACE_SECONDS * 1000)
            ahead, shut_ms = await self.look(keys=list(self.keys), args=[self.token, grace])
        self.known = True
        return ahead, shut_ms / 1000

    async def _take(self) -> bool:
        async with self._answering():
            self.held = bool(await self.lock.acquire(blocking=False, token=self.token))
            if self.held:
                await self.leave_line(keys=list(self.keys[:2]), args=[self.token])
        return self.held

    async def _give_up(self) -> None:
        async with self._answering():
            await self.leave_line(keys=list(self.keys[:3]), args=[self.token])

    @asynccontextmanager
    async def _answering(self) -> AsyncGenerator[None, None]:
        """Let a command that has begun come to its end: half of one would leave the lock taken."""
        async with self.slots:
            try:
                with anyio.fail_after(COMMAND_SECONDS, shield=True):
                    yield
            except (RedisError, OSError) as error:
                raise RoomGateUnavailable(self.room, f"Redis: {_reason(error)}") from error

    @asynccontextmanager
    async def renewed(self) -> AsyncGenerator[None, None]:
        """Renew the lock meanwhile, in a task that can neither disturb the block nor outlive it."""
        renewals = asyncio.create_task(self._renew())
        try:
            yield
        finally:
            renewals.cancel()
            with anyio.CancelScope(shield=True):
                result, *_ = await asyncio.gather(renewals, return_exceptions=True)
            if isinstance(result, Exception):
                _warn("renewing the lock of room %r raised %r", self.room, result)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self.every)
            try:
                async with self._answering():
                    await self.lock.reacquire()
            except RoomGateUnavailable as error:
                if isinstance(error.__cause__, LockNotOwnedError):
                    return _warn(_LOST, self.room)
                _warn("the lock of room %r is not renewed: %s", self.room, error.reason)

    async def leave(self) -> None:
        """Release the lock or give the place up. Whatever that meets, the upload is over."""
        with anyio.CancelScope(shield=True):
            try:
                await (self._release() if self.held else self._give_up())
            except RoomGateUnavailable as error:
                if isinstance(error.__cause__, LockNotOwnedError):
                    return _warn(_LOST, self.room)
                _warn("room %r is not released, its lock expires: %s", self.room, error.reason)

    async def _release(self) -> None:
        async with self._answering():
            await self.lock.release()


_LOST = "the lock of room %r expired or was lost during an upload: others may have been let in"


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


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {COMMAND_SECONDS:g} s"
    return str(error) or type(error).__name__


def _warn(message: str, *args: object) -> None:
    logger.warning(message, *args, extra={"action": "room_gate"})
