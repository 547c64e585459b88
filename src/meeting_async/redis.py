"""Room locks that several processes share, through a Redis server (extra ``redis``).

Each lock is one of redis-py's own, renewed while it is held. A room's queue within a process is
that of :class:`~meeting_async.rooms.LocalRoomLocks`; only the first in it asks Redis. Every
exchange with Redis is a task of its own: a cancelled caller leaves at once, and what Redis has
done by then is known when the exchange ends.
"""

from __future__ import annotations

import asyncio
import math
import random
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import anyio
import attrs

try:
    from redis.asyncio import Redis
    from redis.asyncio.lock import Lock
    from redis.exceptions import LockNotOwnedError
except ModuleNotFoundError as _error:
    hint = "meeting_async.redis needs redis-py: pip install 'meeting-async[redis]'"
    raise ModuleNotFoundError(hint, name=_error.name) from _error

from meeting_async._delivery.observer import logger
from meeting_async._delivery.room_locks import local_room_locks
from meeting_async._policies import number
from meeting_async.errors import ConfigurationError, RoomLocksUnavailable

__all__ = ["RedisRoomLocks"]

T = TypeVar("T")

EXCHANGE_SECONDS = 5.0
"""Limit on one exchange with Redis, redis-py's own retries included; usual is a millisecond."""

LAST_EXCHANGE_SECONDS = 0.2
"""What an exchange may take that begins when the caller's time is up."""

RELEASE_SECONDS = 0.2
"""How long leaving waits for the release, which goes on in the background."""

CONNECTIONS = 16
"""Exchanges at a time: thousands of rooms need no more connections than that."""

FIRST_POLL_SECONDS, LAST_POLL_SECONDS = 0.1, 0.5
"""Pauses between two attempts to take a lock, at first and after a while."""

POLLS_PER_SECOND = 200
"""Of one object: a poll takes up to 0.3 ms of CPU. Above 100 waiting rooms the pauses grow."""

COURTESY_SECONDS = 0.7
"""How long a room is left to another process that waits for it: longer than its longest pause."""

RENEWALS = 6
"""Renewals per lifetime: a lock outlives its killed holder by at least 5/6 of the lifetime."""

_LOST = "the lock of room %r expired or was lost during an upload: others may have been let in"
_NOT_RENEWED = "the lock of room %r is not renewed: %s"
_NOT_RELEASED = "the lock of room %r is not released yet, at the latest it expires: %s"


def _asynchronous(_instance: object, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, Redis):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"  # its repr may have secrets
        fix = "give a redis.asyncio.Redis"
        raise ConfigurationError(str(field.alias), kind, "is not an asynchronous client", fix)


@attrs.define(eq=False)
class RedisRoomLocks:
    """The :class:`~meeting_async.rooms.RoomLocks` of all processes that use the same Redis server.

    Uploads of one event loop queue first come, first served. Among processes a free room goes to
    one of those that wait for it, in no order: they ask every 0.1 to 0.5 s, and a process that
    has just had the room lets others go first.

    If Redis does not answer within 5 s on the way in,
    :class:`~meeting_async.errors.RoomLocksUnavailable` is raised and nothing was sent. If it goes
    away later, or loses the lock, the upload goes on and the log has a warning.

    Args:
        client: A ``redis.asyncio.Redis`` of yours; it stays yours to close. Like the client, this
            object belongs to one event loop, and that is asyncio's.
        prefix: What the names of all keys begin with.
        lifetime: Seconds for which a room stays locked by a process that was killed. Its upload
            may still hold the room's lock at the server, so let 5/6 of it be at least
            ``LockPolicy.window``.

    Raises:
        ConfigurationError: An argument cannot be used; on acquiring: not on asyncio.

    """

    _client: Redis = attrs.field(validator=_asynchronous, repr=False)
    prefix: str = attrs.field(default="meeting-async:", kw_only=True)
    lifetime: float = attrs.field(
        default=360.0, kw_only=True, validator=number(float, 0.1, 86_400.0)
    )
    _id: str = attrs.field(factory=lambda: uuid.uuid4().hex, init=False, repr=False)
    """What this object is called where it waits."""
    _waiting: int = attrs.field(default=0, init=False, repr=False)
    """Rooms that are waited for now."""
    _courtesy: set[str] = attrs.field(factory=set, init=False, repr=False)
    """Rooms that are left to other processes for a moment."""
    _slots: asyncio.Semaphore = attrs.field(
        factory=lambda: asyncio.Semaphore(CONNECTIONS), init=False, repr=False
    )
    _answered: float = attrs.field(default=-math.inf, init=False, repr=False)
    """When Redis answered last."""
    _tasks: set[asyncio.Task[object]] = attrs.field(factory=set, init=False, repr=False)
    """What runs in the background: an event loop keeps no reference."""

    @asynccontextmanager
    async def acquire(self, room: str, *, timeout: float | None) -> AsyncGenerator[None, None]:
        """Hold the lock of a room among all processes; see :class:`~meeting_async.rooms.RoomLocks`.

        With ``timeout=0`` the one attempt gets the 5 s of an exchange.
        """
        _check_loop()
        ends_at = anyio.current_time() + (math.inf if timeout is None else timeout)
        async with local_room_locks().acquire(room, timeout=timeout):
            name = f"{self.prefix}lock:{room}"
            lock = self._client.lock(name, timeout=self.lifetime, thread_local=False)
            if not await self._attempt(room, lock, ends_at if timeout else math.inf):
                await self._wait(room, lock, ends_at)
            renewals = self._in_background(self._renew(room, lock))
            try:
                yield
            finally:
                renewals.cancel()
                await _shielded(self._in_background(self._release(room, lock)))

    # --- taking ----------------------------------------------------------------------------------

    async def _wait(self, room: str, lock: Lock, ends_at: float) -> None:
        """Try until the lock is taken, and let its holder know that somebody waits."""
        self._waiting += 1
        try:
            pause = FIRST_POLL_SECONDS
            while (left := ends_at - anyio.current_time()) > 0:
                pause = max(pause, self._waiting / POLLS_PER_SECOND)
                wakes_in = min(left, pause * random.uniform(0.75, 1.25))  # noqa: S311 - no secret
                told = self._exchange(partial(self._tell, room, pause))
                await asyncio.sleep(wakes_in)
                await self._answer(told, ends_at)
                if await self._attempt(room, lock, ends_at):
                    return
                pause = min(pause * 1.5, LAST_POLL_SECONDS)
        finally:
            self._waiting -= 1
        raise TimeoutError(f"another process uploads to {room}")

    async def _tell(self, room: str, pause: float) -> None:
        await self._client.set(self._waiting_key(room), self._id, px=round(2500 * pause))

    def _waiting_key(self, room: str) -> str:
        return f"{self.prefix}waiting:{room}"

    async def _attempt(self, room: str, lock: Lock, ends_at: float) -> bool:
        if room in self._courtesy:
            return False
        exchange = self._exchange(partial(_take, lock))
        try:
            return await self._answer(exchange, ends_at)
        except (RoomLocksUnavailable, asyncio.CancelledError) as error:
            if lock.local.token is None:
                exchange.cancel()  # it still waits for a connection
                raise
            undoing = self._in_background(self._undo(lock, exchange))
            if isinstance(error, asyncio.CancelledError):
                await _shielded(undoing)
            raise

    # --- holding and releasing -------------------------------------------------------------------

    async def _renew(self, room: str, lock: Lock) -> None:
        while True:
            await asyncio.sleep(self.lifetime / RENEWALS)
            try:
                await self._answer(self._exchange(lock.reacquire))
            except LockNotOwnedError:
                return _warn(room, _LOST)
            except RoomLocksUnavailable as error:
                _warn(room, _NOT_RENEWED, error.reason)

    async def _release(self, room: str, lock: Lock) -> None:
        try:
            await self._answer(self._exchange(partial(self._give_back, room, lock)))
        except LockNotOwnedError:
            _warn(room, _LOST)
        except RoomLocksUnavailable as error:
            _warn(room, _NOT_RELEASED, error.reason)
            await self._free(lock)

    async def _give_back(self, room: str, lock: Lock) -> None:
        if await self._client.get(self._waiting_key(room)) not in {
            None,
            self._id,
            self._id.encode(),
        }:
            self._courtesy.add(room)
            asyncio.get_running_loop().call_later(COURTESY_SECONDS, self._courtesy.discard, room)
        await lock.do_release(lock.local.token)

    async def _undo(self, lock: Lock, taking: asyncio.Task[bool]) -> None:
        await asyncio.wait([taking], timeout=EXCHANGE_SECONDS)
        await self._free(lock)

    async def _free(self, lock: Lock) -> None:
        """Release a lock that Redis may have for nobody; give up when it has expired."""
        pause = self.lifetime / 500
        while pause < self.lifetime:
            try:
                await self._answer(self._exchange(partial(lock.do_release, lock.local.token)))
            except LockNotOwnedError:
                return
            except RoomLocksUnavailable:
                await asyncio.sleep(pause)
                pause *= 2
            else:
                return

    # --- exchanges -------------------------------------------------------------------------------

    def _exchange(self, command: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        return self._in_background(self._limited(command))

    async def _limited(self, command: Callable[[], Awaitable[T]]) -> T:
        async with self._slots, asyncio.timeout(EXCHANGE_SECONDS):
            result = await command()
        self._answered = anyio.current_time()
        return result

    async def _answer(self, exchange: asyncio.Task[T], ends_at: float = math.inf) -> T:
        """Wait for an exchange; it goes on when this is cancelled or raises.

        The wait for a connection is not limited as long as Redis answers to others.
        """
        began = anyio.current_time()
        while not exchange.done():
            limit = max(began, self._answered) + EXCHANGE_SECONDS
            limit = min(limit, max(began + LAST_EXCHANGE_SECONDS, ends_at))
            left = limit - anyio.current_time()
            if left <= 0:
                raise RoomLocksUnavailable(f"Redis: no answer within {limit - began:.2g} s")
            await asyncio.wait([exchange], timeout=left)
        return _result(exchange)

    def _in_background(self, coroutine: Coroutine[object, object, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: a cancelled caller does not


async def _take(lock: Lock) -> bool:
    """Take a lock if it is free. While it has a token, Redis may have it, too.

    It is also ours when the reply to an attempt was lost and redis-py made another one.
    """
    lock.local.token = token = uuid.uuid4().hex.encode()
    if await lock.acquire(blocking=False, token=token) or await lock.owned():
        return True
    lock.local.token = None
    return False


def _result(exchange: asyncio.Task[T]) -> T:
    error = exchange.exception()
    if not isinstance(error, Exception) or isinstance(error, LockNotOwnedError):
        return exchange.result()
    # Frames and contexts go: redis-py's local variables have the password of its URL.
    error.__cause__ = error.__context__ = None
    raise RoomLocksUnavailable(_reason(error)) from error.with_traceback(None)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"Redis: no answer within {EXCHANGE_SECONDS:g} s"
    return f"Redis: {type(error).__name__}: {error}"


async def _shielded(release: asyncio.Task[None]) -> None:
    with anyio.CancelScope(shield=True):
        await asyncio.wait([release], timeout=RELEASE_SECONDS)


def _warn(room: str, message: str, *reason: str) -> None:
    logger.warning(message, room, *reason, extra={"action": "room_locks", "room": room})


def _check_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        problem, fix = "works on asyncio only, as redis-py does", "run on asyncio"
        raise ConfigurationError("room_locks", "RedisRoomLocks", problem, fix) from None
