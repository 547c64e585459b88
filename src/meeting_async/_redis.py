"""A place in a line of several processes that Redis keeps, and the lock that it leads to."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import attrs
from redis.asyncio.lock import Lock
from redis.commands.core import AsyncScript
from redis.exceptions import LockNotOwnedError, RedisError

from meeting_async._observer import logger
from meeting_async._rooms import OnWait
from meeting_async.errors import RoomGateUnavailable

T = TypeVar("T")

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

LOOK = """
local line, seen, lock, shut = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local me, grace = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local holder = redis.call('GET', lock)
for _, token in ipairs(redis.call('ZRANGEBYSCORE', seen, '-inf', now - grace * 1000)) do
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

Who was silent for longer than the grace is out of the line, by the clock of the Redis server; who
holds the lock has left it. -1: the lock is mine already; the reply that said so was lost.
"""

LEAVE = """
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
if KEYS[3] and redis.call('GET', KEYS[3]) == ARGV[1] then redis.call('DEL', KEYS[3]) end
"""
"""Leave the line; with a third key, also the lock, if it was taken without our getting to know."""


@attrs.define(eq=False)
class Commands:
    """Talks to Redis, a few commands at a time."""

    _slots: anyio.Semaphore = attrs.field(factory=lambda: anyio.Semaphore(COMMANDS_AT_ONCE))

    async def run(self, room: str, command: Callable[[], Awaitable[T]]) -> T:
        """Let a command that has begun come to its end: half of one would leave a lock taken.

        In a task of its own, as redis-py, cancelled at some points, goes on as if it had not been.
        """
        async with self._slots:
            task = asyncio.create_task(_limited(room, command))
            with anyio.CancelScope(shield=True):
                await _ended(task)
        return task.result()


async def _ended(task: asyncio.Task[object]) -> None:
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await asyncio.wait([task])
        task.exception()  # looked at: nobody else will
        raise


async def _limited(room: str, command: Callable[[], Awaitable[T]]) -> T:
    try:
        with anyio.fail_after(COMMAND_SECONDS):
            result = await command()
    except (RedisError, OSError) as error:
        raise RoomGateUnavailable(room, f"Redis: {_reason(error)}") from error
    return result


@attrs.define(eq=False)
class Place:
    """One upload's place in the line of all processes, and then its lock."""

    room: str
    keys: tuple[str, str, str, str]
    lock: Lock
    """One object for each acquisition: it keeps the token."""
    every: float
    """Seconds between two renewals."""
    commands: Commands
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
            if ahead == 0 and shut_for == 0 and await self._run(self._acquire):
                return
            if ahead == -1:
                await self._give_up()
                continue
            await on_wait(shut_for)
            await anyio.sleep(min(max(NEXT_LOOK * ahead, NEXT_LOOK, shut_for), LAST_LOOK))

    async def _ask(self) -> tuple[int, float]:
        keys, grace = list(self.keys), round(GRACE_SECONDS * 1000)
        known, self.known = self.known, True
        try:
            ahead, shut_ms = await self._run(lambda: self.look(keys=keys, args=[self.token, grace]))
        except RoomGateUnavailable:
            self.known = known
            raise
        return ahead, shut_ms / 1000

    async def _acquire(self) -> bool:
        self.held = await self.lock.acquire(blocking=False, token=self.token)
        if self.held:
            await self.leave_line(keys=list(self.keys[:2]), args=[self.token])
        return self.held

    async def _run(self, command: Callable[[], Awaitable[T]]) -> T:
        return await self.commands.run(self.room, command)

    @asynccontextmanager
    async def renewed(self) -> AsyncGenerator[None, None]:
        """Renew the lock meanwhile, in a task that can neither disturb the block nor outlive it."""
        renewals = asyncio.create_task(self._renew())
        try:
            yield
        finally:
            renewals.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([renewals])
            if renewals.done() and not renewals.cancelled() and renewals.exception():
                warn("renewing the lock of room %r raised %r", self.room, renewals.exception())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self.every)
            try:
                await self._run(self.lock.reacquire)
            except RoomGateUnavailable as error:
                if isinstance(error.__cause__, LockNotOwnedError):
                    return warn(_LOST, self.room)
                warn("the lock of room %r is not renewed: %s", self.room, error.reason)

    async def leave(self) -> None:
        """Release the lock or give the place up. Whatever that meets, the upload is over."""
        with anyio.CancelScope(shield=True):
            try:
                await (self._run(self.lock.release) if self.held else self._give_up())
            except RoomGateUnavailable as error:
                if isinstance(error.__cause__, LockNotOwnedError):
                    return warn(_LOST, self.room)
                warn("room %r is not released, its lock expires: %s", self.room, error.reason)

    async def _give_up(self) -> None:
        keys = list(self.keys[:3])
        await self._run(lambda: self.leave_line(keys=keys, args=[self.token]))


_LOST = "the lock of room %r expired or was lost during an upload: others may have been let in"


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {COMMAND_SECONDS:g} s"
    return str(error) or type(error).__name__


def warn(message: str, *args: object) -> None:
    """Log what did not go as it should, and did no harm to an upload."""
    logger.warning(message, *args, extra={"action": "room_gate"})
