"""Turns between processes, against a real Redis server and a real meeting server."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
import trio
from redis.asyncio import Redis

import meeting_async._redis
from _fakes import Act, EventRecorder, FakeTransport, Take, accepted, failing
from _redis import BINARY, RedisServer, free_port, redis_running
from _redis_worker import ROOM
from meeting_async import Event, Finished, MeetingClient, Queued, RoomGate
from meeting_async.errors import (
    ConfigurationError,
    ConnectionLost,
    DeadlineExceeded,
    RoomBusy,
    RoomGateUnavailable,
    UploadOutcomeUnknown,
)
from meeting_async.redis import RedisRoomGate
from meeting_async.testing import MeetingServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(BINARY is None, reason="there is no redis-server (Debian: redis-server)"),
]

WORKER = Path(__file__).with_name("_redis_worker.py")
KEY = "meeting-async:{https%3A//meet.test%3A443/auth%20room01}:"
PDF = b"%PDF-1.7\nslides\n%%EOF\n"


@pytest.fixture
def anyio_backend() -> str:
    """Run on asyncio, as redis-py does."""
    return "asyncio"


@pytest.fixture(scope="module")
def redis_of_module() -> Iterator[RedisServer]:
    """Start one Redis server for all tests."""
    with redis_running() as server:
        yield server


@pytest.fixture
async def server(redis_of_module: RedisServer) -> RedisServer:
    """Empty it."""
    if redis_of_module.process is None:
        await anyio.to_thread.run_sync(redis_of_module.start)
    client = Redis(port=redis_of_module.port)
    await client.flushall()
    await client.aclose()
    return redis_of_module


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    """Connect to it."""
    client = Redis(port=server.port)
    yield client
    await client.aclose()


class Worker:
    """A process of ``_redis_worker.py``."""

    def __init__(self, *args: object) -> None:
        command = [sys.executable, "-W", "error", str(WORKER), *map(str, args)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def says(self) -> str:
        """Return the next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def start(self) -> None:
        """Give the word."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Wait for its end and return its exit code."""
        self.process.communicate(timeout=50)
        return self.process.returncode

    def kill(self) -> None:
        """Kill it as nobody can survive."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def workers(count: int, *args: object) -> Iterator[list[Worker]]:
    """Start processes that are ready when the block begins and gone when it ends."""
    with ExitStack() as stack:
        made = [Worker(*(str(arg).format(number) for arg in args)) for number in range(count)]
        for worker in made:
            stack.callback(worker.kill)
        assert [worker.says() for worker in made] == ["ready"] * count
        yield made


class Waits:
    """Keeps what ``on_wait`` is told."""

    def __init__(self) -> None:
        self.told: list[float] = []

    async def __call__(self, shut_for: float) -> None:
        """Keep it."""
        self.told.append(shut_for)


async def settled(redis: Redis) -> list[str]:
    """Return the names of the keys that are left."""
    keys = [key if isinstance(key, str) else key.decode() for key in await redis.keys("*")]
    return sorted(key.rpartition(":")[2] for key in keys)


# --- one process ---------------------------------------------------------------------------------


async def test_a_free_room_is_entered_at_once_and_left_clean(redis: Redis) -> None:
    """Inside, the lock is there with its lifetime; outside, nothing is left in Redis."""
    gate: RoomGate = RedisRoomGate(redis)
    waits = Waits()
    async with gate.turn(ROOM, waits):
        assert await redis.keys("*") == [f"{KEY}lock".encode()]
        assert 359_000 < await redis.pttl(f"{KEY}lock") <= 360_000
    assert await settled(redis) == []
    assert waits.told == []


async def test_prefix_and_server_are_in_the_keys(redis: Redis) -> None:
    """Two prefixes, two servers, two rooms do not know each other; braces make no second tag."""
    first, second = RedisRoomGate(redis), RedisRoomGate(redis, prefix="mine:", lifetime=10)
    with anyio.fail_after(5):
        other = first.turn("https://b.test:443/auth room01")
        async with first.turn(ROOM), other, second.turn("{r}"):
            assert await redis.exists("mine:{%7Br%7D}:lock")
            assert len(await redis.keys("*:lock")) == 3


async def test_uploads_of_one_loop_queue_in_order(redis: Redis) -> None:
    """First come, first served, over two gates; one place in Redis for all of them."""
    order: list[int] = []

    async def visit(number: int) -> None:
        async with RedisRoomGate(redis).turn(ROOM):
            order.append(number)
            assert len(await redis.keys("*:line")) == 0
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(visit, number)
    assert order == list(range(10))
    assert await settled(redis) == []


async def test_a_room_locked_elsewhere_is_waited_for(redis: Redis) -> None:
    """``on_wait`` is told once; the turn begins soon after the other one's lock is gone."""
    await redis.set(f"{KEY}lock", "somebody", px=700)
    began, waits = anyio.current_time(), Waits()
    async with RedisRoomGate(redis).turn(ROOM, waits):
        assert 0.65 < anyio.current_time() - began < 2
    assert waits.told == [0]


async def test_a_shut_room_is_shut_for_all(redis: Redis, server: RedisServer) -> None:
    """The key lives for the seconds given, and the turn of another loop begins after that."""
    gate, waits = RedisRoomGate(redis), Waits()
    async with gate.turn(ROOM):
        await gate.shut(ROOM, 1.0)
        began = anyio.current_time()
    assert await settled(redis) == ["shut"]
    assert 0 < await redis.pttl(f"{KEY}shut") <= 1000

    async def other_loop() -> None:
        async with Redis(port=server.port) as client, RedisRoomGate(client).turn(ROOM, waits):
            pass

    await anyio.to_thread.run_sync(anyio.run, other_loop)
    assert 0.95 < anyio.current_time() - began < 2.5
    assert len(waits.told) == 1
    assert 0 < waits.told[0] <= 1.0
    assert await settled(redis) == []


async def test_an_error_inside_comes_out_as_it_is(redis: Redis) -> None:
    """No group around it, and the room is free."""
    with pytest.raises(ZeroDivisionError) as caught:
        async with RedisRoomGate(redis).turn(ROOM):
            raise ZeroDivisionError
    assert caught.value.__context__ is None
    assert await settled(redis) == []


@pytest.mark.parametrize("native", [False, True], ids=["scope", "task"])
async def test_cancelled_at_every_step(redis: Redis, native: bool) -> None:
    """Wherever a cancellation strikes, nothing is left in Redis and no task in the loop."""
    gate, entered = RedisRoomGate(redis), 0

    async def visit() -> None:
        nonlocal entered
        async with gate.turn(ROOM):
            entered += 1
            await anyio.sleep_forever()

    tasks = asyncio.all_tasks()
    for steps in range(0, 120, 3):
        if native:
            task = asyncio.create_task(visit())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(visit)
                for _ in range(steps):
                    await asyncio.sleep(0)
                group.cancel_scope.cancel()
        assert await settled(redis) == [], steps
    assert asyncio.all_tasks() == tasks
    assert 0 < entered < 40


async def test_cancelled_in_line_leaves_no_hole(redis: Redis) -> None:
    """Who gives up waiting for another process is out of the line; the other's lock stays."""
    await redis.set(f"{KEY}lock", "somebody")
    with anyio.move_on_after(0.3) as scope:
        async with RedisRoomGate(redis).turn(ROOM):
            pytest.fail("the room is taken")
    assert scope.cancelled_caught
    assert await settled(redis) == ["lock"]


async def test_a_wait_that_is_refused_leaves_no_hole(redis: Redis) -> None:
    """What ``on_wait`` raises reaches the caller."""
    await redis.set(f"{KEY}lock", "somebody")

    async def refuse(_shut_for: float) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with RedisRoomGate(redis).turn(ROOM, refuse):
            pytest.fail("the room is taken")
    assert await settled(redis) == ["lock"]


async def test_a_lock_is_renewed_while_the_upload_runs(redis: Redis) -> None:
    """A turn of three lifetimes keeps its lock."""
    async with RedisRoomGate(redis, lifetime=0.6).turn(ROOM):
        for _ in range(18):
            await anyio.sleep(0.1)
            assert await redis.pttl(f"{KEY}lock") > 200
    assert await settled(redis) == []


@pytest.mark.parametrize("lost", ["expired", "taken"])
async def test_a_lost_lock_does_not_break_the_upload(
    redis: Redis, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The block ends as if nothing had happened, with warnings, and another's lock stays."""
    async with RedisRoomGate(redis, lifetime=0.6).turn(ROOM):
        await redis.delete(f"{KEY}lock")
        if lost == "taken":
            await redis.set(f"{KEY}lock", "somebody")
        await anyio.sleep(0.3)
    assert await settled(redis) == (["lock"] if lost == "taken" else [])
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    words = "expired or was lost during an upload: others may have been let in"
    assert {record.getMessage() for record in warnings} == {f"the lock of room {ROOM!r} {words}"}
    assert {vars(record)["action"] for record in warnings} == {"room_gate"}


class LossyProxy:
    """Stands before Redis and cuts the connection on which a lock was just set."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cut = 0

    async def __call__(self, client: anyio.abc.SocketStream) -> None:
        """Pass each request and its reply."""
        async with client, await anyio.connect_tcp("127.0.0.1", self.port) as redis:
            async for data in client:
                await redis.send(data)
                reply = await redis.receive()
                if b"\r\nNX\r\n" in data and b":lock" in data and not self.cut:
                    self.cut += 1
                    return
                await client.send(reply)


@pytest.mark.parametrize("retries", [0, 3])
async def test_a_lock_whose_reply_was_lost_is_found_again(
    redis: Redis, server: RedisServer, retries: int
) -> None:
    """With redis-py's repetitions the turn begins, without them it fails; no lock is left."""
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import ConnectionError  # noqa: A004 - redis-py has its own

    proxy = LossyProxy(server.port)
    async with anyio.create_task_group() as group:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        group.start_soon(listener.serve, proxy)
        how: Any = {"port": listener.extra(anyio.abc.SocketAttribute.local_port)}
        how |= {"retry": Retry(NoBackoff(), retries), "retry_on_error": [ConnectionError]}
        async with Redis(**how) as client:
            gate = RedisRoomGate(client)
            with anyio.fail_after(5):
                if retries:
                    async with gate.turn(ROOM):
                        assert await settled(redis) == ["lock"]
                else:
                    with pytest.raises(RoomGateUnavailable):
                        async with gate.turn(ROOM):
                            pytest.fail("nobody knows that the lock is ours")
        group.cancel_scope.cancel()
    await listener.aclose()
    assert proxy.cut == 1
    assert await settled(redis) == []


@pytest.mark.parametrize("lifetime", [0, -1, 0.01, float("inf"), float("nan"), True, "9"])
async def test_an_unusable_lifetime_is_refused(redis: Redis, lifetime: Any) -> None:
    """At once, and by name."""
    with pytest.raises(ConfigurationError) as caught:
        RedisRoomGate(redis, lifetime=lifetime)
    assert caught.value.field == "lifetime"


async def test_the_repr_has_no_password() -> None:
    """It names the prefix."""
    client = Redis(password="hunter2")
    assert repr(RedisRoomGate(client)) == "<RedisRoomGate with keys meeting-async:*>"


def test_on_trio_it_says_so() -> None:
    """As a setting that cannot be used, before anything is sent."""
    gate = RedisRoomGate(Redis())
    transport = FakeTransport()

    async def main() -> None:
        async with connected(transport, gate) as client:
            await upload(client)

    with pytest.raises(ConfigurationError, match="asyncio") as caught:
        trio.run(main)
    assert caught.value.field == "room_gate"
    assert transport.exchanges == []


# --- through the client --------------------------------------------------------------------------


def connected(transport: FakeTransport, gate: RoomGate, **settings: Any) -> MeetingClient:
    """Make a client of the scripted transport."""
    return MeetingClient(
        "https://meet.test",
        api_key="key",
        api_secret="secret",
        transport=transport,
        room_gate=gate,
        **settings,
    )


async def upload(client: MeetingClient, name: str = "deck.pdf", **how: Any) -> None:
    """Upload to room01."""
    await client.upload_whiteboard_file("room01", PDF, filename=name, **how)


def lost() -> Act:
    """Lose the reply to a complete upload."""
    return failing(ConnectionLost("reset"), take=Take.EVERYTHING)


async def test_an_unknown_outcome_shuts_the_room_in_redis(redis: Redis) -> None:
    """For the lock window, under the name that all processes use."""
    async with connected(FakeTransport(lost()), RedisRoomGate(redis)) as client:
        with pytest.raises(UploadOutcomeUnknown):
            await upload(client)
    assert await settled(redis) == ["shut"]
    assert 299_000 < await redis.pttl(f"{KEY}shut") <= 300_000


async def test_a_cancelled_upload_whose_outcome_is_unknown_shuts_the_room(redis: Redis) -> None:
    """The word still goes to Redis, and the lock is released, though the call is cancelled."""
    transport = FakeTransport(Act(take=Take.EVERYTHING))
    async with connected(transport, RedisRoomGate(redis)) as client:
        with anyio.move_on_after(0.3):
            await upload(client)
    assert await settled(redis) == ["shut"]


async def test_who_does_not_wait_is_told(redis: Redis) -> None:
    """With ``max_wait=0`` a room that another process has is ``RoomBusy`` at once."""
    await redis.set(f"{KEY}lock", "somebody")
    transport = FakeTransport()
    async with connected(transport, RedisRoomGate(redis)) as client:
        with anyio.fail_after(5), pytest.raises(RoomBusy):
            await upload(client, max_wait=0)
    assert transport.exchanges == []
    assert await settled(redis) == ["lock"]


async def test_a_deadline_strikes_in_line(redis: Redis) -> None:
    """The place is given up; the wait was told as an event."""
    await redis.set(f"{KEY}lock", "somebody")
    recorder = EventRecorder()
    async with connected(FakeTransport(), RedisRoomGate(redis), on_event=recorder) as client:
        with pytest.raises(DeadlineExceeded, match="its turn"):
            await upload(client, deadline=0.3)
    assert recorder.kinds == [Queued.__name__, Finished.__name__]
    assert await settled(redis) == ["lock"]


@pytest.mark.parametrize("how", ["refused", "silent"])
async def test_without_redis_nothing_is_sent(
    server: RedisServer, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One clear error of its own, that carries the cause and is no word about the upload."""
    monkeypatch.setattr(meeting_async._redis, "COMMAND_SECONDS", 1.0)
    transport = FakeTransport(accepted())
    client = Redis(port=free_port() if how == "refused" else server.port)
    gate = RedisRoomGate(client)
    assert server.process is not None
    if how == "silent":
        server.process.send_signal(signal.SIGSTOP)
    try:
        async with connected(transport, gate) as meeting:
            with anyio.fail_after(10), pytest.raises(RoomGateUnavailable) as caught:
                await upload(meeting)
    finally:
        server.process.send_signal(signal.SIGCONT)
        await client.aclose()
    assert transport.exchanges == []
    assert caught.value.room == ROOM
    assert caught.value.attempts == ()
    assert caught.value.__cause__ is not None
    assert "Redis" in str(caught.value)
    if how == "silent":
        assert "no answer within 1 s" in caught.value.reason


@pytest.mark.parametrize("outcome", ["accepted", "unknown"])
async def test_redis_may_go_away_during_an_upload(
    server: RedisServer,
    outcome: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The upload ends as it would have; the log says what could not be told to Redis."""
    monkeypatch.setattr(meeting_async._redis, "COMMAND_SECONDS", 0.3)

    async def stop_redis(event: Event) -> None:
        if type(event).__name__ == "AttemptStarted":
            await anyio.to_thread.run_sync(server.stop)

    transport = FakeTransport(accepted(replying=1.0) if outcome == "accepted" else lost())
    async with Redis(port=server.port) as redis:
        gate = RedisRoomGate(redis, lifetime=0.6)
        async with connected(transport, gate, on_event=stop_redis) as client:
            if outcome == "accepted":
                await upload(client)
            else:
                with pytest.raises(UploadOutcomeUnknown):
                    await upload(client)
    words = " ".join(record.getMessage() for record in caplog.records)
    assert "is not released, its lock expires" in words
    assert ("is not renewed" if outcome == "accepted" else "for this process only") in words


# --- several processes ---------------------------------------------------------------------------


def leads(names: list[str]) -> list[int]:
    """Return after each upload how far the most served process was ahead of the least served."""
    served = dict.fromkeys({name.partition("-")[0] for name in names}, 0)
    found = []
    for name in names:
        served[name.partition("-")[0]] += 1
        found.append(max(served.values()) - min(served.values()))
    return found


@pytest.mark.timeout(120)
def test_eight_processes_share_a_room_without_one_409() -> None:
    """Each document once, in each process's order, and no process is left behind."""
    meeting = MeetingServer(processing_seconds=0.05)
    room = meeting.add_room("room01")
    with redis_running() as redis, meeting.run() as url:
        args = ("upload", redis.port, 360, url, "w{}", 5)
        with workers(8, *args) as processes:
            for worker in processes:
                worker.start()
            assert [worker.end() for worker in processes] == [0] * 8
    assert [request.status for request in meeting.requests] == [200] * 40
    names = [file.name for file in room.received]
    assert sorted(names) == [f"w{one}-{number}.pdf" for one in range(8) for number in range(5)]
    for one in range(8):
        own = [name for name in names if name.startswith(f"w{one}-")]
        assert own == [f"w{one}-{number}.pdf" for number in range(5)]
    assert max(leads(names)) <= 2


async def test_a_killed_holder_lets_the_others_in_after_its_lifetime(
    redis: Redis, server: RedisServer
) -> None:
    """Not before 5/6 of it, as its upload may hold the server's lock, and not much later."""
    with workers(1, "hold", server.port, 3) as [holder]:
        holder.start()
        assert await anyio.to_thread.run_sync(holder.says) == "inside"
        await anyio.sleep(0.3)
        killed = time.monotonic()
        await anyio.to_thread.run_sync(holder.kill)
        async with RedisRoomGate(redis, lifetime=3).turn(ROOM):
            assert 2.4 < time.monotonic() - killed < 5
    assert await settled(redis) == []


async def test_a_killed_waiter_loses_its_place(
    redis: Redis, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stood before us and is dead holds us up for the grace time and no longer."""
    monkeypatch.setattr(meeting_async._redis, "GRACE_SECONDS", 1.5)
    await redis.set(f"{KEY}lock", "somebody")
    with workers(1, "hold", server.port, 60) as [ahead]:
        ahead.start()
        assert await anyio.to_thread.run_sync(ahead.says) == "waiting"
        async with anyio.create_task_group() as group:
            entered = anyio.Event()
            group.start_soon(partial(enter, RedisRoomGate(redis), entered))
            await anyio.sleep(0.5)
            await anyio.to_thread.run_sync(ahead.kill)
            await redis.delete(f"{KEY}lock")
            killed = anyio.current_time()
            await entered.wait()
            assert 0.5 < anyio.current_time() - killed < 4
    assert await settled(redis) == []


async def test_processes_are_served_in_order(redis: Redis, server: RedisServer) -> None:
    """Who asked first goes in first, even if it does not look for a while."""
    await redis.set(f"{KEY}lock", "somebody")
    with workers(1, "hold", server.port, 60) as [ahead]:
        ahead.start()
        assert await anyio.to_thread.run_sync(ahead.says) == "waiting"
        async with anyio.create_task_group() as group:
            entered = anyio.Event()
            group.start_soon(partial(enter, RedisRoomGate(redis), entered))
            await anyio.sleep(0.3)
            ahead.process.send_signal(signal.SIGSTOP)
            await redis.delete(f"{KEY}lock")
            await anyio.sleep(1.5)
            assert not entered.is_set()
            ahead.process.send_signal(signal.SIGCONT)
            assert await anyio.to_thread.run_sync(ahead.says) == "inside"
            await anyio.sleep(0.5)
            assert not entered.is_set()
            group.cancel_scope.cancel()


async def enter(gate: RedisRoomGate, entered: anyio.Event) -> None:
    """Go in and out again."""
    async with gate.turn(ROOM):
        entered.set()
