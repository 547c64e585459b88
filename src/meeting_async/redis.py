"""Room locks that several processes share, through a Redis server (extra ``redis``).

Each lock is a ``Lock`` of redis-py, renewed while it is held. Within a process uploads queue in
:class:`~meeting_async.rooms.LocalRoomLocks`; only the first in the queue asks Redis. A lock is
acquired and released in tasks of their own. So a cancelled caller returns at once; if Redis grants
the lock after that, the lock is released.
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
    hint = 'meeting_async.redis needs redis-py: pip install ".[redis]" in a clone'
    raise ModuleNotFoundError(hint, name=_error.name) from _error

from meeting_async._delivery.room_locks import local_room_locks
from meeting_async._log import logger
from meeting_async._policies import number
from meeting_async.errors import ConfigurationError, RoomLocksUnavailable

__all__ = ["RedisRoomLocks"]

T = TypeVar("T")

EXCHANGE_SECONDS = 5.0
"""Limit on one exchange with Redis, retries of redis-py included; usually it takes 1 ms."""

LAST_EXCHANGE_SECONDS = 0.2
"""Limit on an exchange that begins when the caller's time is already over."""

RELEASE_SECONDS = 0.2
"""Seconds for which the caller waits for the release; after that it goes on in the background."""

CONNECTIONS = 16
"""Exchanges at the same time; thousands of rooms need no more connections."""

FIRST_POLL_SECONDS, LAST_POLL_SECONDS = 0.1, 1.0
"""Pauses between two attempts to acquire a lock: the first, and the longest."""

RENEWALS = 6
"""Renewals per lifetime: after its holder is killed, a lock lasts at least 5/6 of the lifetime."""

_LOST = "the lock of room %r expired or was lost during an upload: other uploads may have begun"
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

    Uploads of one event loop queue first come, first served. Among processes there is no order:
    each waiting process asks Redis every 0.1 s at first, later every second.

    If Redis does not answer within 5 s when a lock is acquired,
    :class:`~meeting_async.errors.RoomLocksUnavailable` is raised and nothing was sent. If Redis
    fails later, or loses the lock, the upload goes on and a warning is logged.

    Args:
        client: Your ``redis.asyncio.Redis``; you close it. Both objects belong to one asyncio
            event loop.
        prefix: Prefix of all key names.
        lifetime: Seconds for which a room stays locked after its process was killed. The server
            may still have locked the room, so 5/6 of the lifetime should be at least
            ``LockPolicy.window``.

    Raises:
        ConfigurationError: An argument cannot be used. On ``acquire``: not on asyncio.

    """

    _client: Redis = attrs.field(validator=_asynchronous, repr=False)
    prefix: str = attrs.field(default="meeting-async:", kw_only=True)
    lifetime: float = attrs.field(
        default=360.0, kw_only=True, validator=number(float, 0.1, 86_400.0)
    )
    _slots: asyncio.Semaphore = attrs.field(
        factory=lambda: asyncio.Semaphore(CONNECTIONS), init=False, repr=False
    )
    _tasks: set[asyncio.Task[object]] = attrs.field(factory=set, init=False, repr=False)
    """Background tasks; the event loop itself keeps only weak references to them."""

    @asynccontextmanager
    async def acquire(self, room: str, *, timeout: float | None) -> AsyncGenerator[None, None]:
        """Hold the lock of a room among all processes; see :class:`~meeting_async.rooms.RoomLocks`.

        With ``timeout=0`` there is one attempt, of up to 5 s.
        """
        _check_loop()
        ends_at = anyio.current_time() + (math.inf if timeout is None else timeout)
        async with local_room_locks().acquire(room, timeout=timeout):
            name = f"{self.prefix}lock:{room}"
            lock = self._client.lock(name, timeout=self.lifetime, thread_local=False)
            pause = FIRST_POLL_SECONDS
            while not await self._take(lock, ends_at if timeout else math.inf):
                left = ends_at - anyio.current_time()
                if left <= 0:
                    raise TimeoutError(f"another process uploads to {room}")
                jittered = pause * random.uniform(0.75, 1.25)  # noqa: S311 - no secret
                await asyncio.sleep(min(left, jittered))
                pause = min(pause * 1.5, LAST_POLL_SECONDS)
            renewals = self._start(self._renew(room, lock))
            try:
                yield
            finally:
                renewals.cancel()
                await _for_a_moment(self._start(self._free(lock, room)))

    async def _take(self, lock: Lock, ends_at: float) -> bool:
        """Try once to acquire a lock. If it is granted after the caller has left, release it."""
        taking = self._start(self._exchange(partial(_set, lock)))
        left = max(ends_at - anyio.current_time(), LAST_EXCHANGE_SECONDS)
        try:
            async with asyncio.timeout(left):
                return await asyncio.shield(taking)
        except RoomLocksUnavailable:
            self._start(self._undo(lock, taking))
            raise
        except TimeoutError:
            self._start(self._undo(lock, taking))
            raise RoomLocksUnavailable(f"Redis: no answer within {left:.2g} s") from None
        except asyncio.CancelledError:
            await _for_a_moment(self._start(self._undo(lock, taking)))
            raise

    async def _undo(self, lock: Lock, taking: asyncio.Task[bool]) -> None:
        await asyncio.wait([taking])
        await self._free(lock)

    async def _renew(self, room: str, lock: Lock) -> None:
        while True:
            await asyncio.sleep(self.lifetime / RENEWALS)
            try:
                await self._exchange(lock.reacquire)
            except LockNotOwnedError:
                return _warn(room, _LOST)
            except RoomLocksUnavailable as error:
                _warn(room, _NOT_RENEWED, error.reason)

    async def _free(self, lock: Lock, room: str = "") -> None:
        """Release a lock, or let it expire. With a room, log a warning on failure."""
        pause = self.lifetime / 500
        while pause < self.lifetime:
            try:
                await self._exchange(partial(lock.do_release, lock.local.token))
            except RoomLocksUnavailable as error:
                _warn(room, _NOT_RELEASED, error.reason)
            except LockNotOwnedError:
                _warn(room, _LOST)
                return
            else:
                return
            room = ""
            await asyncio.sleep(pause)
            pause *= 2

    async def _exchange(self, command: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(EXCHANGE_SECONDS), self._slots:
                return await command()
        except LockNotOwnedError:
            raise
        except Exception as error:  # noqa: BLE001 - the client may be anything
            # Frames and contexts go: redis-py's local variables have the password of its URL.
            error.__cause__ = error.__context__ = None
            raise RoomLocksUnavailable(_reason(error)) from error.with_traceback(None)

    def _start(self, coroutine: Coroutine[object, object, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio logs it if the caller was cancelled


async def _set(lock: Lock) -> bool:
    """Acquire a lock if it is free, also if its reply was lost and redis-py retried."""
    lock.local.token = token = uuid.uuid4().hex.encode()
    return await lock.acquire(blocking=False, token=token) or await lock.owned()


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"Redis: no answer within {EXCHANGE_SECONDS:g} s"
    return f"Redis: {type(error).__name__}: {error}"


async def _for_a_moment(release: asyncio.Task[None]) -> None:
    with anyio.CancelScope(shield=True):
        await asyncio.wait([release], timeout=RELEASE_SECONDS)


def _warn(room: str, message: str, *reason: str) -> None:
    if room:
        logger.warning(message, room, *reason, extra={"action": "room_locks", "room": room})


def _check_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        problem, fix = "works on asyncio only, as redis-py does", "run on asyncio"
        raise ConfigurationError("room_locks", "RedisRoomLocks", problem, fix) from None
