"""Room locks through a real Redis server: several processes, and what Redis can do wrong."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import pytest
import redis as redis_py
import trio
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

import meeting_async.redis
from meeting_async.errors import ConfigurationError, RoomLocksUnavailable
from meeting_async.redis import RedisRoomLocks
from support.forks import CONTEXT, forked
from support.redis_server import ROOM, RedisServer, hold, needs_redis, redis_running
from support.sending import until
from support.telling import containing, pickled, texts, traceback_with_locals

pytestmark = [pytest.mark.anyio, needs_redis]

KEY = f"meeting-async:lock:{ROOM}"
LIMIT = 0.8
"""Seconds for an exchange in tests in which Redis does not answer."""
LATE = 0.25
"""Seconds by which a limit may be passed."""


@pytest.fixture(scope="module")
def server_of_module() -> Iterator[RedisServer]:
    """Run one Redis server for all tests."""
    with redis_running() as server:
        yield server


@pytest.fixture
async def server(server_of_module: RedisServer) -> AsyncIterator[RedisServer]:
    """Empty it; afterwards it answers, whatever a test did to it."""
    async with Redis(port=server_of_module.port) as client:
        await client.flushall()
        await client.config_resetstat()
    yield server_of_module
    await anyio.to_thread.run_sync(server_of_module.restore)


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    """Connect to it, past the locks, and again when it was restarted."""
    async with Redis(port=server.port, **retrying(1)) as client:
        yield client


class Make:
    """Makes locks, each with a client of its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.clients: list[Redis] = []

    def __call__(self, client: dict[str, Any] | None = None, **settings: Any) -> RedisRoomLocks:
        self.clients.append(Redis(**{"port": self.port} | (client or {})))
        return RedisRoomLocks(self.clients[-1], **settings)

    async def close(self) -> None:
        """Wait until nothing of the locks runs any more; then close all clients."""
        await until(is_idle, 20)
        while self.clients:
            await self.clients.pop().aclose()


def is_idle() -> bool:
    """Tell whether no task of any locks is left."""
    return not any("RedisRoomLocks" in repr(task.get_coro()) for task in asyncio.all_tasks())


@pytest.fixture
async def make(server: RedisServer) -> AsyncIterator[Make]:
    """Make locks; nothing of theirs runs in the end, and their clients are closed."""
    make = Make(server.port)
    yield make
    await anyio.to_thread.run_sync(server.restore)
    await make.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up on Redis sooner."""
    monkeypatch.setattr(meeting_async.redis, "EXCHANGE_SECONDS", LIMIT)


def retrying(times: int) -> dict[str, Any]:
    """Make options for a client; their types differ between redis-py's versions."""
    return {
        "retry": Retry(NoBackoff(), times),
        "retry_on_error": [redis_py.ConnectionError],
    }


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of the library; each says in ``extra`` where it comes from."""
    records = [record for record in caplog.records if record.name == "meeting_async"]
    assert all(record.levelno == logging.WARNING for record in records)
    assert all(vars(record)["action"] == "room_locks" for record in records)
    assert all(vars(record)["room"] == ROOM for record in records)
    return [record.getMessage() for record in records]


# --- one process ---------------------------------------------------------------------------------


async def test_a_lock_is_renewed_while_it_is_held(make: Make, redis: Redis) -> None:
    """Beyond its lifetime; nothing else is in Redis, and after the block nothing at all."""
    locks, key = make(prefix="mine:", lifetime=3), f"mine:lock:{ROOM}"
    began = anyio.current_time()
    async with locks.acquire(ROOM, timeout=0):
        while anyio.current_time() < began + 3.5:
            await anyio.sleep(0.1)
            assert await redis.keys("*") == [key.encode()]
            assert 0 < await redis.pttl(key) <= 3000
    assert await redis.keys("*") == []
    await until(is_idle)


async def test_a_room_locked_elsewhere(make: Make, redis: Redis) -> None:
    """It is waited for as long as the timeout says; another's lock stays untouched."""
    locks = make()
    await redis.set(KEY, "somebody")
    for timeout in (0, 0.3):
        with pytest.raises(TimeoutError):
            async with locks.acquire(ROOM, timeout=timeout):
                pytest.fail("the room is taken")
        assert await redis.get(KEY) == b"somebody"
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0.4)
        await redis.pexpire(KEY, 400)
        async with locks.acquire(ROOM, timeout=30):
            assert await redis.get(KEY) != b"somebody"


@pytest.mark.parametrize(
    ("holder", "lifetime", "seconds"),
    [(None, 1.2, 0.5), ("somebody", 60, 0)],
    ids=["seen when renewed", "seen when released"],
)
async def test_a_lost_lock_does_not_disturb(
    make: Make,
    redis: Redis,
    holder: str | None,
    lifetime: float,
    seconds: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The block goes on, the log has a warning, and another's lock stays."""
    async with make(lifetime=lifetime).acquire(ROOM, timeout=0):
        await redis.delete(KEY)
        if holder:
            await redis.set(KEY, holder)
        await anyio.sleep(seconds)
    assert await redis.get(KEY) == (holder.encode() if holder else None)
    message = f"the lock of room {ROOM!r} expired or was lost during an upload: "
    assert set(warnings_in(caplog)) == {f"{message}other uploads may have begun"}


# --- a Redis that does not answer ----------------------------------------------------------------


async def shortest(limit: float, measured: Callable[[], Any]) -> float:
    """Return the shortest of up to five durations: a busy machine makes single ones longer."""
    durations = [float("inf")]
    while len(durations) <= 5 and min(durations) > limit:
        began = anyio.current_time()
        await measured()
        durations.append(anyio.current_time() - began)
    return min(durations)


async def test_a_hundred_rooms_need_sixteen_connections(make: Make, redis: Redis) -> None:
    """A hundred rooms at once need 16."""
    locks = make()
    before = (await redis.info("stats"))["total_connections_received"]

    async def visit(number: int) -> None:
        async with locks.acquire(f"room{number}", timeout=None):
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as group:
        for number in range(100):
            group.start_soon(visit, number)
    assert (await redis.info("stats"))["total_connections_received"] - before <= 16


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("how", "timeout", "holder"),
    [
        *(("kill", 0, None), ("suspend", 0.3, None), ("suspend", None, None)),
        ("suspend", None, "somebody"),
    ],
)
async def test_acquiring_while_redis_is_silent(
    make: Make,
    redis: Redis,
    server: RedisServer,
    how: str,
    timeout: float | None,
    holder: str | None,
) -> None:
    """``RoomLocksUnavailable`` in time; what Redis took nevertheless is released.

    Redis stops answering with connections that stay, or that break and are refused; at once, or
    while another process holds the lock.
    """
    locks = make()
    async with locks.acquire("warm up", timeout=0):
        pass
    if holder:
        await redis.set(KEY, holder)

    async def stop() -> None:
        await anyio.sleep(0.3 if holder else 0)
        getattr(server, how)()

    async def enter() -> None:
        with pytest.raises(RoomLocksUnavailable, match="nothing was sent") as caught:
            async with locks.acquire(ROOM, timeout=timeout):
                pytest.fail("Redis does not answer")
        assert caught.value.reason.startswith("Redis: ")

    limit = LATE + (timeout or LIMIT)
    async with anyio.create_task_group() as group:
        if holder:
            group.start_soon(stop)
            await enter()
        else:
            await stop()
            assert await shortest(limit, enter) <= limit
    await anyio.to_thread.run_sync(server.restore)
    await until(is_idle, 20)
    assert await redis.get(KEY) == (b"somebody" if holder else None)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("how", "seconds", "error"),
    [("kill", 1.2, None), ("suspend", 0.0, None), ("kill", 0.0, ZeroDivisionError())],
    ids=["while held", "on the way out", "on the way out of an error"],
)
async def test_redis_that_falls_silent_later_changes_no_outcome(
    make: Make,
    redis: Redis,
    server: RedisServer,
    how: str,
    caplog: pytest.LogCaptureFixture,
    seconds: float,
    error: Exception | None,
) -> None:
    """Nobody waits on leaving; the log has warnings; the lock is released when Redis is back."""
    locks = make(lifetime=1.2 if seconds else 60)

    async def upload() -> None:
        async with locks.acquire(ROOM, timeout=None):
            getattr(server, how)()
            await anyio.sleep(seconds)
            if seconds:
                await until(lambda: any("not renewed" in it for it in warnings_in(caplog)))
            if error:
                raise error

    if error:
        with pytest.raises(ZeroDivisionError) as caught:
            await upload()
        assert caught.value is error
    else:
        await upload()
    assert not is_idle()  # it goes on to release the lock; nobody waits for that
    await until(lambda: any("not released" in text for text in warnings_in(caplog)))
    assert any("not renewed" in text for text in warnings_in(caplog)) == bool(seconds)
    await anyio.to_thread.run_sync(server.restore)
    with anyio.fail_after(20):
        while await redis.exists(KEY):  # noqa: ASYNC110 - Redis changes it
            await anyio.sleep(0.02)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("times", "phase", "silence"),
    [
        pytest.param(0, "taking", 2.5 * LIMIT, marks=pytest.mark.nightly),
        pytest.param(1, "holding", 2.5 * LIMIT, marks=pytest.mark.nightly),
        (0, "taking", 0),
        (3, "holding", 0),
    ],
)
async def test_a_cancellation_while_redis_is_silent(
    make: Make, redis: Redis, server: RedisServer, times: int, phase: str, silence: float
) -> None:
    """It takes 0.2 s, and the lock is released when Redis answers again.

    By anyio, or so many times by asyncio, whose second one breaks through the shield.
    """
    locks = make()
    scope, entered = anyio.CancelScope(), anyio.Event()

    async def upload() -> None:
        with scope:
            async with locks.acquire(ROOM, timeout=None):
                entered.set()
                await anyio.sleep_forever()

    async with locks.acquire("warm up", timeout=0):
        pass
    task = asyncio.create_task(upload())
    if phase == "holding":
        await entered.wait()
    server.suspend()
    await anyio.sleep(0.1)
    began = anyio.current_time()
    if not times:
        scope.cancel()
    for _ in range(times):
        task.cancel()
        await anyio.sleep(0.02)
    await asyncio.wait([task])
    assert anyio.current_time() - began < 15  # Redis is silent for longer
    assert task.cancelled() == bool(times)
    assert entered.is_set() == (phase == "holding")
    await anyio.sleep(silence)  # a first attempt to release it fails
    server.restore()
    await until(is_idle, 20)
    assert await redis.keys("*") == []
    sets = (await redis.info("commandstats"))["cmdstat_set"]
    assert sets["calls"] == 2, "Redis took the lock, also where nobody waited for it any more"


@asynccontextmanager
async def losing_a_reply(port: int) -> AsyncIterator[int]:
    """Stand before Redis, on the port that this yields; lose the first reply about a lock."""
    lost: list[bytes] = []

    async def carry(client: anyio.abc.SocketStream) -> None:
        async with client, await anyio.connect_tcp("127.0.0.1", port) as redis:
            with suppress(anyio.BrokenResourceError):
                async for request in client:
                    await redis.send(request)
                    reply = await redis.receive()
                    if b"\r\nNX\r\n" in request and not lost:
                        lost.append(reply)
                        return
                    await client.send(reply)

    async with anyio.create_task_group() as group:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        group.start_soon(listener.serve, carry)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        group.cancel_scope.cancel()
    await listener.aclose()
    assert lost


@pytest.mark.parametrize("retries", [0, 3])
async def test_a_lock_whose_reply_was_lost(
    make: Make, redis: Redis, server: RedisServer, retries: int
) -> None:
    """With redis-py's own retries it is ours, without them it is released."""
    async with losing_a_reply(server.port) as port:
        locks = make({"port": port, **retrying(retries)})
        if retries:
            async with locks.acquire(ROOM, timeout=5):
                assert await redis.keys("*") == [KEY.encode()]
        else:
            with pytest.raises(RoomLocksUnavailable):
                async with locks.acquire(ROOM, timeout=5):
                    pytest.fail("nobody knows that the lock is ours")
        await make.close()
    assert await redis.keys("*") == []


# --- clients that cannot be used -----------------------------------------------------------------


async def unavailable(locks: RedisRoomLocks) -> RoomLocksUnavailable:
    """Return the error with which nothing is locked."""
    with pytest.raises(RoomLocksUnavailable) as caught:
        async with locks.acquire(ROOM, timeout=0):
            pytest.fail("nothing can be asked")
    return caught.value


def told_of(error: BaseException) -> list[str]:
    """Tell where its texts, its pickle or the locals of its traceback have the password."""
    return containing([*texts(error), *pickled(error), *traceback_with_locals(error)], ["hunter2"])


async def test_whatever_a_client_raises(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the cause of ``RoomLocksUnavailable``, without what its frames may show."""
    locks, error = make(lifetime=0.2), RuntimeError("Event loop is closed")

    async def broken(*_args: object, **_options: object) -> None:
        raise error from ValueError("hunter2")

    monkeypatch.setattr(make.clients[-1], "execute_command", broken)
    raised = await unavailable(locks)
    assert raised.__cause__ is error
    assert "RuntimeError" in str(raised)
    assert told_of(raised) == []


async def test_secrets_stay_secret(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """The password of the URL is in no repr, error, pickle, traceback with locals or log."""
    caplog.set_level(logging.DEBUG)
    client: Redis = Redis.from_url(f"redis://bob:hunter2@127.0.0.1:{server.port}/0")
    async with client:
        locks = RedisRoomLocks(client, lifetime=0.2)
        error = await unavailable(locks)
        await until(is_idle)
    assert repr(locks) == "RedisRoomLocks(prefix='meeting-async:', lifetime=0.2)"
    assert "Error" in error.reason
    assert told_of(error) == []
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("field", "value"),
    [("client", "hunter2"), ("lifetime", 0.01), ("lifetime", float("inf")), ("lifetime", "9")],
)
def test_unusable_settings_are_refused(field: str, value: Any) -> None:
    """At once, and by name."""
    if field == "client":
        value = redis_py.Redis(password=value)  # which blocks
    with pytest.raises(ConfigurationError) as caught:
        RedisRoomLocks(**{"client": Redis(), field: value})
    assert caught.value.field == field
    assert "hunter2" not in str(caught.value)


def test_on_trio_it_says_so() -> None:
    """One clear error, on acquiring."""

    async def main() -> None:
        async with RedisRoomLocks(Redis()).acquire(ROOM, timeout=None):
            pytest.fail("this is trio")

    with pytest.raises(ConfigurationError, match="asyncio only"):
        trio.run(main)


# --- several processes ---------------------------------------------------------------------------


@contextmanager
def holders(count: int, *facts: float) -> Iterator[list[tuple[BaseProcess, Connection]]]:
    """Start processes that have begun when the block begins and are gone when it ends."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            pipe, other = map(stack.enter_context, CONTEXT.Pipe())
            made.append((forked(hold, other, *facts), pipe))
            other.close()
            stack.callback(made[-1][0].kill)
        assert [pipe.recv() for _, pipe in made] == ["ready"] * count
        for _, pipe in made:
            pipe.send("begin")
        yield made


def test_two_processes_take_turns(server_of_module: RedisServer) -> None:
    """Never two in the room, and everybody gets in."""
    held: list[tuple[float, float]] = []
    with holders(2, server_of_module.port, 360, 0.1, 3) as made:
        for process, pipe in made:
            times = [pipe.recv() for _ in range(6)]
            held += zip(times[::2], times[1::2], strict=True)
            process.join(50)
            assert process.exitcode == 0
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(sorted(held)))


async def test_the_lock_of_a_killed_holder_expires(make: Make, server: RedisServer) -> None:
    """Not before 5/6 of its lifetime, as its upload may hold the server's lock, and then soon."""

    def killed() -> float:
        with holders(1, server.port, 1.8, 60, 1) as [(holder, pipe)]:
            pipe.recv()
            holder.kill()
            return time.monotonic()

    since = await anyio.to_thread.run_sync(killed)
    async with make().acquire(ROOM, timeout=30):
        assert 1.3 < time.monotonic() - since < 6
