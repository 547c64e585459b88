"""What every implementation of ``RoomLocks`` promises, in one process."""

from __future__ import annotations

import asyncio
import collections
import random
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from redis.asyncio import Redis

from meeting_async.redis import RedisRoomLocks
from meeting_async.rooms import LocalRoomLocks, RoomLocks
from support.redis_server import RedisServer, needs_redis, redis_running

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize(
        ("anyio_backend", "kind"),
        [
            ("asyncio", "local"),
            ("trio", "local"),
            pytest.param("asyncio", "redis", marks=needs_redis),
        ],
        indirect=True,
    ),
]

ROOM = "https://meet.test/auth room01"
OTHER = "https://meet.test/auth room02"


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    """Run one Redis server for all tests."""
    with redis_running() as server:
        yield server


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """Name the implementation."""
    return str(request.param)


@pytest.fixture
async def locks(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[RoomLocks]:
    """Make the locks; afterwards nothing of them is left."""
    if kind == "local":
        yield LocalRoomLocks()
        return
    async with Redis(port=request.getfixturevalue("redis_server").port) as client:
        await client.flushall()
        yield RedisRoomLocks(client)
        assert await client.keys("*:lock:*") == []


async def taken(locks: RoomLocks, room: str = ROOM) -> bool:
    """Tell whether a room is taken."""
    try:
        async with locks.acquire(room, timeout=0):
            return False
    except TimeoutError:
        return True


async def test_a_room_has_one_holder(locks: RoomLocks) -> None:
    """Never two in one room, and all get in who do not give up."""
    inside: collections.Counter[str] = collections.Counter()
    most: collections.Counter[str] = collections.Counter()
    entered: list[int] = []
    chance = random.Random(7)

    async def visit(number: int, room: str, gives_up: bool, timeout: float | None) -> None:
        with anyio.move_on_after(chance.uniform(0, 0.05) if gives_up else 60):
            async with locks.acquire(room, timeout=timeout):
                entered.append(number)
                inside[room] += 1
                most[room] = max(most[room], inside[room])
                try:
                    await anyio.sleep(chance.uniform(0, 0.004))
                finally:
                    inside[room] -= 1

    async with anyio.create_task_group() as group:
        for number in range(60):
            gives_up, timeout = number % 3 == 0, 60 if number % 2 else None
            group.start_soon(visit, number, (ROOM, OTHER)[number % 2], gives_up, timeout)
    assert most == {ROOM: 1, OTHER: 1}
    assert {number for number in range(60) if number % 3} <= set(entered)


async def test_first_come_first_served(locks: RoomLocks) -> None:
    """Uploads enter in the order in which they asked; who gives up does not hold up the rest."""
    order: list[int] = []

    async def visit(number: int) -> None:
        with anyio.CancelScope() as scope:
            scopes[number] = scope
            async with locks.acquire(ROOM, timeout=None):
                order.append(number)

    scopes: dict[int, anyio.CancelScope] = {}
    async with anyio.create_task_group() as group, locks.acquire(ROOM, timeout=None):
        for number in range(12):
            group.start_soon(visit, number)
            await anyio.wait_all_tasks_blocked()
        for number in (0, 5, 11):
            scopes[number].cancel()
    assert order == [1, 2, 3, 4, 6, 7, 8, 9, 10]


async def test_rooms_that_were_left_hold_no_memory(locks: RoomLocks) -> None:
    """A program may upload to another room each hour, for years."""
    async with locks.acquire(ROOM, timeout=0):
        tracemalloc.start()
        for number in range(50):
            async with locks.acquire(f"{number:04}" * 1000, timeout=0):
                pass
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert held < 50 * 4000 / 2


async def test_other_rooms_are_free(locks: RoomLocks) -> None:
    """A lock is that of one room."""
    async with locks.acquire(ROOM, timeout=0), locks.acquire(OTHER, timeout=0):
        assert await taken(locks, ROOM)
        assert await taken(locks, OTHER)
        assert not await taken(locks, "https://meet.test/auth room0")
        assert not await taken(locks, f"{ROOM}:waiting")


@pytest.mark.parametrize("timeout", [0, 0.3])
async def test_a_timeout_is_kept(locks: RoomLocks, timeout: float) -> None:
    """``TimeoutError`` when the lock was not free in time: not before."""
    async with locks.acquire(ROOM, timeout=None):
        began = anyio.current_time()
        with anyio.fail_after(timeout + 10), pytest.raises(TimeoutError):
            async with locks.acquire(ROOM, timeout=timeout):
                pytest.fail("the room is taken")
        assert anyio.current_time() - began >= timeout * 0.99
    assert not await taken(locks)


async def test_an_error_inside_comes_out_as_it_is(locks: RoomLocks) -> None:
    """The lock is released and adds nothing to the error."""
    error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError) as caught:
        async with locks.acquire(ROOM, timeout=None):
            raise error
    assert caught.value is error
    assert error.__context__ is None
    assert not await taken(locks)


async def _hold(locks: RoomLocks, entered: list[bool]) -> None:
    async with locks.acquire(ROOM, timeout=None):
        entered.append(True)
        await anyio.sleep_forever()


async def _cancel_scope(run: Callable[[], Coroutine[Any, Any, None]], steps: int) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()


async def _cancel_task(run: Callable[[], Coroutine[Any, Any, None]], steps: int) -> None:
    task = asyncio.create_task(run())
    for _ in range(steps):
        await anyio.lowlevel.checkpoint()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize("room_is_taken", [False, True])
async def test_a_cancellation_leaves_nothing(
    locks: RoomLocks, room_is_taken: bool, anyio_backend_name: str
) -> None:
    """Wherever it strikes, before, in or behind the lock, the room is free at once.

    asyncio's own cancellation breaks through anyio's shields; trio has only that of scopes.
    """
    entered: list[bool] = []
    for cancel in [_cancel_scope, _cancel_task][: 1 + (anyio_backend_name == "asyncio")]:
        for steps in range(0, 90, 2):
            if room_is_taken:
                async with locks.acquire(ROOM, timeout=0):
                    await cancel(lambda: _hold(locks, entered), steps)
            else:
                await cancel(lambda: _hold(locks, entered), steps)
            assert not await taken(locks), steps
    assert bool(entered) != room_is_taken
    assert isinstance(locks, LocalRoomLocks) or len(entered) < 90  # some struck before
