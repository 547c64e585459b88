"""The clock that jumps; locks and conversions on it, on asyncio and on trio."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import anyio
import anyio.to_thread
import pytest

from meeting_async import testing
from meeting_async.testing import MeetingServer, VirtualTimeLoop, _virtual_time, run_in_virtual_time
from support.raw_http import call, talk_in_process, upload

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@BACKENDS
def test_a_day_takes_no_time(backend: str) -> None:
    """Sleeps, limits and several tasks keep their order; the result is returned."""
    woken: list[int] = []

    async def sleeper(hours: int) -> None:
        await anyio.sleep(hours * 3600)
        woken.append(hours)

    async def main(hours: int) -> float:
        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for number in range(hours, 0, -1):
                tasks.start_soon(sleeper, number)
            with anyio.move_on_after(1800) as limit:
                await anyio.sleep_forever()
            assert limit.cancelled_caught
        return anyio.current_time() - began

    began = time.monotonic()
    assert run_in_virtual_time(main, 72, backend=backend) == 72 * 3600
    assert woken == list(range(1, 73))
    assert time.monotonic() - began < 20  # three days in some milliseconds


@BACKENDS
def test_infinity_is_never_reached(backend: str) -> None:
    """A task that sleeps for ever does not stop the clock for the others."""

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            await anyio.sleep(10**6)
            tasks.cancel_scope.cancel()

    run_in_virtual_time(main, backend=backend)


@BACKENDS
def test_a_thread_is_waited_for_when_no_timer_is_left(backend: str) -> None:
    """It takes real time, and none on the clock."""

    async def main() -> float:
        began = anyio.current_time()
        await anyio.to_thread.run_sync(time.sleep, 0.1)
        return anyio.current_time() - began

    assert run_in_virtual_time(main, backend=backend) == 0


def test_a_standstill_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing can happen any more, asyncio's loop says so instead of hanging."""
    monkeypatch.setattr(_virtual_time, "STUCK_SECONDS", 0.05)
    with pytest.raises(RuntimeError, match="nothing can happen any more"):
        run_in_virtual_time(anyio.sleep_forever)


def test_the_loop_is_anyio_s_option() -> None:
    """A whole run on that loop, as the fixture `anyio_backend` of a module says it."""

    async def main() -> object:
        await anyio.sleep(300)
        return asyncio.get_running_loop()

    options = {"loop_factory": VirtualTimeLoop}
    assert isinstance(anyio.run(main, backend_options=options), VirtualTimeLoop)


Run = Callable[[Callable[[], Awaitable[Any]]], Any]


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine function in virtual time."""
    return lambda main: run_in_virtual_time(main, backend=request.param)


class Clock:
    """Tells and waits for seconds since it was made."""

    def __init__(self) -> None:
        self._began = anyio.current_time()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return round(anyio.current_time() - self._began, 6)

    async def until(self, moment: float) -> None:
        """Wait for a moment."""
        await anyio.sleep(moment - self.now)


async def send(server: MeetingServer) -> int:
    """Upload a document to room01 and return the HTTP status."""
    return (await talk_in_process(server, upload())).status


def test_one_upload_at_a_time(run: Run) -> None:
    """409 while a conversion runs, 200 at the very moment it ends; rooms do not disturb others."""
    server = MeetingServer(processing_seconds=10)
    room, other = server.add_room("room01"), server.add_room("room02")
    seen: list[tuple[float, int]] = []

    async def main() -> None:
        clock = Clock()

        async def at(moment: float) -> None:
            await clock.until(moment)
            status = await send(server)
            seen.append((clock.now, status))

        async with anyio.create_task_group() as tasks:
            for moment in (0.0, 5.0, 9.999, 10.0, 15.0):
                tasks.start_soon(at, moment)
            tasks.start_soon(talk_in_process, server, upload(room="room02"))

    run(main)
    assert seen == [(5.0, 409), (9.999, 409), (10.0, 200), (15.0, 409), (20.0, 200)]
    assert (len(room.received), len(other.received)) == (2, 1)


@pytest.mark.parametrize(("processing", "status", "received"), [(300.0, 200, 1), (300.5, 500, 0)])
def test_a_conversion_times_out_with_the_lock(
    run: Run, processing: float, status: int, received: int
) -> None:
    """What takes longer than the lock's 300 s fails then, and the room is free again."""
    server = MeetingServer()
    room = server.add_room("room01")
    room.processing_seconds = processing

    async def main() -> None:
        clock = Clock()
        assert (await send(server), clock.now, room.locked) == (status, 300.0, False)
        await anyio.sleep(1000)
        assert (len(room.received), len(room.accepted)) == (received, 1)

    run(main)


def test_a_conversion_goes_on_after_the_client_left(run: Run) -> None:
    """A cancelled upload whose body had arrived is converted all the same."""
    server = MeetingServer(processing_seconds=60)
    room = server.add_room("room01")

    async def main() -> None:
        clock = Clock()
        with anyio.move_on_after(5) as patience:
            await send(server)
        assert patience.cancelled_caught
        assert (len(room.accepted), room.received, room.locked) == (1, (), True)
        assert server.requests[0].status is None
        await clock.until(59.9)
        assert (room.received, room.locked, await send(server)) == ((), True, 409)
        await clock.until(60)
        assert (len(room.received), room.locked) == (1, False)

    run(main)


def test_the_answer_may_come_before_the_conversion_ends(run: Run) -> None:
    """With reply_after the answer is an early 200 while the room stays locked."""
    server = MeetingServer(processing_seconds=10, reply_after=2)
    room = server.add_room("room01")

    async def main() -> None:
        clock = Clock()
        assert (await send(server), clock.now) == (200, 2.0)
        assert (room.received, room.locked, await send(server)) == ((), True, 409)
        await clock.until(10)
        assert (len(room.received), room.locked) == (1, False)
        room.fail_conversion = True
        assert await send(server) == 200
        await anyio.sleep(100)
        assert len(room.received) == 1

    run(main)


def test_a_failed_conversion(run: Run) -> None:
    """500 in the server's own record at the end of processing; the room is free."""
    server = MeetingServer(processing_seconds=3)
    room = server.add_room("room01")
    room.fail_conversion = True

    async def main() -> None:
        clock = Clock()
        answer = await talk_in_process(server, upload())
        assert (answer.code, clock.now) == ((500, "INTERNAL_SERVER_ERROR"), 3.0)
        assert (room.received, room.locked) == ((), False)
        room.fail_conversion = False
        assert await send(server) == 200

    run(main)
    assert len(room.received) == 1  # outside the loop: as of the last time the server saw


def test_a_room_is_locked_by_somebody_else(run: Run) -> None:
    """lock() holds for the server's window or as long as told, unlock() frees at once."""
    server = MeetingServer()
    room = server.add_room("room01")

    async def main() -> None:
        clock = Clock()
        room.lock()
        await clock.until(299.999)
        assert await send(server) == 409
        await clock.until(300)
        assert await send(server) == 200
        room.lock(10)
        assert await send(server) == 409
        await clock.until(310)
        assert await send(server) == 200
        room.lock(math.inf)
        await anyio.sleep(80_000)
        assert await send(server) == 409
        room.unlock()
        assert await send(server) == 200

    run(main)


def test_somebody_else_comes_later(run: Run) -> None:
    """lock(after=) takes the room at its moment if it is free then, and never interrupts."""
    server = MeetingServer(processing_seconds=20)
    room = server.add_room("room01")
    seen: list[tuple[float, int]] = []

    async def main() -> None:
        clock = Clock()
        room.lock(1000, after=10)  # an upload of ours runs then: they get 409
        room.lock(50, after=30)
        room.lock(1000, after=79)  # the one before holds the room
        room.lock(5, after=100)
        for moment in (0, 30, 79.9, 80, 100, 104.9, 105):
            await clock.until(moment)
            status = await send(server)
            seen.append((clock.now, status))

    run(main)
    taken = [(20, 200), (100, 200), (125, 200)]
    refused = [(30, 409), (79.9, 409), (100, 409), (104.9, 409)]
    assert seen == sorted(taken + refused)


def test_an_ended_room_is_forgotten_after_some_seconds(run: Run) -> None:
    """By calls at once, by uploads later; one that is switched off stays not active."""
    server = MeetingServer()
    server.add_room("room01")
    server.add_room("room02").active = False

    async def main() -> None:
        assert (await talk_in_process(server, call("/auth/room/endRoom", ROOM))).status == 200
        assert await by_calls("room01") == {"ROOM_NOT_FOUND"}
        assert await by_upload("room01") == "ROOM_NOT_ACTIVE"
        await anyio.sleep(10)
        assert await by_calls("room01") == {await by_upload("room01")} == {"ROOM_NOT_FOUND"}
        assert await by_calls("room02") == {await by_upload("room02")} == {"ROOM_NOT_ACTIVE"}

    async def by_calls(room_id: str) -> set[str]:
        body = {"room_id": room_id, "user_info": {"name": "Ada", "user_id": "ada"}}
        body |= {"chat_msg": {"message": "Hello"}}
        names = ("getActiveRoomInfo", "isRoomActive", "endRoom", "getJoinToken", "broadcastToRoom")
        raws = [call(f"/auth/room/{name}", body) for name in names]
        return {(await talk_in_process(server, raw)).code[1] for raw in raws}

    async def by_upload(room_id: str) -> str:
        return (await talk_in_process(server, upload(room=room_id))).code[1]

    run(main)


ROOM = {"room_id": "room01"}


def test_a_client_that_is_cancelled_in_its_body_leaves_nothing(run: Run) -> None:
    """No file, no lock, and a line in the log without an answer."""
    server = MeetingServer()
    room = server.add_room("room01")

    async def receive() -> Any:
        if server.requests[0].body_bytes:
            await anyio.sleep_forever()
        return {"type": "http.request", "body": b"--XX\r\n", "more_body": True}

    async def main() -> None:
        scope = {"type": "http", "method": "POST", "path": "/auth/x", "headers": []}
        with anyio.move_on_after(5):
            await server(scope, receive, receive)

    run(main)
    (request,) = server.requests
    assert (request.status, request.body_bytes, request.seconds) == (None, 6, 5)
    assert (room.accepted, room.locked) == ((), False)


def test_a_lock_needs_a_clock() -> None:
    """Outside the event loop an in-process server has no time to lock a room for."""
    room = MeetingServer().add_room("room01")
    assert not room.locked
    room.unlock()
    for arguments in ({}, {"after": 5.0}):
        with pytest.raises(RuntimeError, match="inside the loop"):
            room.lock(60, **arguments)


def test_settings_and_rooms_are_checked() -> None:
    """Impossible limits, unknown kinds and a second room of the same id are refused."""
    with pytest.raises(ValueError, match="lock_seconds"):
        MeetingServer(lock_seconds=0)
    with pytest.raises(ValueError, match="accepted_kinds"):
        MeetingServer(accepted_kinds={"pdf", "docs"})
    server = MeetingServer(api_key="a", api_secret="b")
    assert (server.api_key, server.api_secret) == ("a", "b")
    room = server.add_room("room01", title="Physik", participants=["Ada"], presenter=False)
    assert (room.info()["room_title"], room.info()["joined_participants"]) == ("Physik", "1")
    assert json.loads(str(room.participants_info()[0]["metadata"])) == {"is_presenter": False}
    assert repr(room) == "<Room 'room01', active, 0 uploads accepted>"
    with pytest.raises(ValueError, match="room01"):
        server.add_room("room01")
    with pytest.raises(RuntimeError, match="no URL"):
        server.host_file("deck.pdf", b"")


@pytest.mark.both_loops
@pytest.mark.anyio
async def test_other_protocols_are_refused() -> None:
    """An ASGI host that offers lifespan or websockets learns that there are none."""
    server = MeetingServer()
    for kind in ("lifespan", "websocket"):
        with pytest.raises(NotImplementedError, match="HTTP only"):
            await server({"type": kind, "path": "/"}, anyio.sleep_forever, anyio.sleep)
    assert server.requests == []


def test_the_public_names() -> None:
    """`__all__` is sorted and complete."""
    visible = {name for name in vars(testing) if name.isidentifier() and name[0] != "_"}
    modules = {name for name in visible if isinstance(getattr(testing, name), ModuleType)}
    assert (testing.__all__, modules) == (sorted(visible), set())
