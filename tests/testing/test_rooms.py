"""Rooms in time: the clock that jumps, locks and conversions on it, rooms that are mixed up."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest

from meeting_async import testing
from meeting_async.testing import MeetingServer, Room, run_in_virtual_time
from support.raw_http import (
    INFO,
    call,
    document,
    link,
    part,
    talk,
    talk_in_process,
    upload,
)

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


# --- the clock -----------------------------------------------------------------------------------


@BACKENDS
def test_a_day_takes_no_time(backend: str) -> None:
    """Sleeps, limits and tasks keep their order; the result is returned.

    A task that sleeps for ever does not stop the clock. A thread takes real time, and none on the
    clock, once no timer is left.
    """
    woken: list[int] = []

    async def sleeper(hours: int) -> None:
        await anyio.sleep(hours * 3600)
        woken.append(hours)

    async def main(hours: int) -> tuple[float, float]:
        began = anyio.current_time()
        async with anyio.create_task_group() as forever:
            forever.start_soon(anyio.sleep_forever)
            async with anyio.create_task_group() as tasks:
                for number in range(hours, 0, -1):
                    tasks.start_soon(sleeper, number)
                with anyio.move_on_after(1800) as limit:
                    await anyio.sleep_forever()
                assert limit.cancelled_caught
            forever.cancel_scope.cancel()
        slept = anyio.current_time()
        await anyio.to_thread.run_sync(time.sleep, 0.1)
        return slept - began, anyio.current_time() - slept

    began = time.monotonic()
    assert run_in_virtual_time(main, 72, backend=backend) == (72 * 3600, 0)
    assert woken == list(range(1, 73))
    assert time.monotonic() - began < 20  # three days in some milliseconds


@pytest.mark.nightly  # it waits for 5 s
def test_a_standstill_is_an_error() -> None:
    """If nothing can happen any more, asyncio's loop says so instead of hanging."""
    with pytest.raises(RuntimeError, match="nothing can happen any more"):
        run_in_virtual_time(anyio.sleep_forever)


# --- locks and conversions -----------------------------------------------------------------------


@attrs.frozen
class Timeline:
    """What happens to a room, and what must be seen of it; all times in seconds."""

    uploads: Mapping[float, tuple[float, int | None]]
    """When each begins, to when it is answered and how; ``None``: its client leaves then."""
    room: Mapping[float, tuple[int, bool]]
    """At some moments: how many files are in the list, and whether it is locked."""
    doings: Mapping[float, Callable[[Room], object]] = attrs.field(factory=dict)
    settings: Mapping[str, Any] = attrs.field(factory=dict)


def failing(is_failing: bool) -> Callable[[Room], None]:
    """Let conversions fail from now on, or no longer."""
    return lambda room: setattr(room, "fail_conversion", is_failing)


def somebody_later(room: Room) -> None:
    """Schedule locks of others, who come only if the room is free then."""
    for after, seconds in ((9, 1000), (29, 50), (78, 1000), (99, 5)):
        room.lock(seconds, after=after)


TIMELINES = {
    "409 while a conversion runs, 200 at the very moment it ends": Timeline(
        {0: (10, 200), 5: (5, 409), 9.999: (9.999, 409), 10: (20, 200), 15: (15, 409)},
        {9: (0, True), 10.5: (1, True), 30: (2, False)},
        settings={"processing_seconds": 10},
    ),
    "a conversion as long as the lock": Timeline(
        {1: (301, 200)},
        {300.9: (0, True), 301: (1, False)},
        {0: lambda room: setattr(room, "processing_seconds", 300)},
    ),
    "one that is longer fails": Timeline(
        {0: (300, 500)},
        {299.9: (0, True), 300: (0, False), 1000: (0, False)},
        settings={"processing_seconds": 300.5},
    ),
    "it goes on after the client left": Timeline(
        {0: (5, None), 59.9: (59.9, 409)},
        {6: (0, True), 60: (1, False)},
        settings={"processing_seconds": 60},
    ),
    "an early 200; it does not say that the conversion fails": Timeline(
        {0: (2, 200), 2.5: (2.5, 409), 20: (22, 200)},
        {2: (0, True), 10: (1, False), 100: (1, False)},
        {15: failing(True)},
        {"processing_seconds": 10, "reply_after": 2},
    ),
    "no earlier than the conversion ends": Timeline(
        {0: (10, 200)}, {10: (1, False)}, settings={"processing_seconds": 10, "reply_after": 20}
    ),
    "a conversion that fails frees the room": Timeline(
        {1: (4, 500), 5: (8, 200)},
        {3.9: (0, True), 4: (0, False), 8: (1, False)},
        {0: failing(True), 4.5: failing(False)},
        {"processing_seconds": 3},
    ),
    "somebody else's lock": Timeline(
        {
            300.999: (300.999, 409),
            301: (301, 200),
            411.9: (411.9, 409),
            412: (412, 200),
            79_999: (79_999, 409),
            80_001: (80_001, 200),
        },
        {300: (0, True), 301.5: (1, False), 80_000.5: (2, False), 80_002: (3, False)},
        {
            1: Room.lock,
            402: lambda room: room.lock(10),
            500: lambda room: room.lock(math.inf),
            80_000: Room.unlock,
        },
    ),
    "somebody else's lock, later; it never interrupts": Timeline(
        {
            2: (22, 200),
            30: (30, 409),
            79.9: (79.9, 409),
            80: (100, 200),
            100: (100, 409),
            104.9: (104.9, 409),
            105: (125, 200),
        },
        {25: (1, False), 81: (1, True), 101: (2, True), 125: (3, False)},
        {1: somebody_later},
        {"processing_seconds": 20},
    ),
    "an upload whose lock is taken away": Timeline(
        {0: (10, 200), 6: (16, 200)},
        {5.5: (0, False), 7: (0, True), 16: (2, False)},
        {5: Room.unlock},
        {"processing_seconds": 10},
    ),
}


@BACKENDS
@pytest.mark.parametrize("what", TIMELINES)
def test_locks_and_conversions_in_time(what: str, backend: str) -> None:
    """One upload at a time and room, whatever happens to other rooms."""
    line = TIMELINES[what]
    server = MeetingServer(**line.settings)
    room, other = server.add_room("room01"), server.add_room("room02")
    answers: dict[float, tuple[float, int | None]] = {}
    seen: dict[float, tuple[int, bool]] = {}

    async def main() -> None:
        began = anyio.current_time()

        async def wait(moment: float) -> None:
            await anyio.sleep(moment + began - anyio.current_time())

        async def send(moment: float, ends: float) -> None:
            await wait(moment)
            status = None
            with anyio.move_on_after(ends + began + 1e-6 - anyio.current_time()):
                status = (await talk_in_process(server, upload())).status
            answers[moment] = (round(anyio.current_time() - began, 3), status)

        async def do(moment: float, doing: Callable[[Room], object]) -> None:
            await wait(moment)
            doing(room)

        async def look(moment: float) -> None:
            await wait(moment)
            seen[moment] = (len(room.received), room.locked)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk_in_process, server, upload(room="room02"))
            for moment, doing in line.doings.items():
                tasks.start_soon(do, moment, doing)
            for moment, (ends, status) in line.uploads.items():
                tasks.start_soon(send, moment, ends if status is None else math.inf)
            for moment in line.room:
                tasks.start_soon(look, moment)

    run_in_virtual_time(main, backend=backend)
    assert answers == line.uploads
    assert seen == line.room
    taken = [status for _, status in line.uploads.values() if status != 409]
    assert (len(room.accepted), len(other.accepted)) == (len(taken), 1)
    assert len(room.received) == list(line.room.values())[-1][0]  # outside the loop, too
    assert [r.status for r in server.requests].count(None) == taken.count(None)


ROOM = {"room_id": "room01"}


def test_an_ended_room_is_forgotten_after_some_seconds() -> None:
    """By calls at once, by uploads later; one that is switched off stays not active."""
    server = MeetingServer()
    server.add_room("room01")
    server.add_room("room02").active = False

    async def code(raw: bytes) -> str:
        return (await talk_in_process(server, raw)).code[1]

    async def codes(room_id: str) -> tuple[set[str], str]:
        body = {"room_id": room_id, "user_info": {"name": "Ada", "user_id": "ada"}}
        body |= {"chat_msg": {"message": "Hello"}}
        names = ("getActiveRoomInfo", "isRoomActive", "endRoom", "getJoinToken", "broadcastToRoom")
        by_calls = {await code(call(f"/auth/room/{name}", body)) for name in names}
        return by_calls, await code(upload(room=room_id))

    async def main() -> None:
        assert await code(call("/auth/room/endRoom", ROOM)) == "SUCCESS"
        assert await codes("room01") == ({"ROOM_NOT_FOUND"}, "ROOM_NOT_ACTIVE")
        await anyio.sleep(10)
        assert await codes("room01") == ({"ROOM_NOT_FOUND"}, "ROOM_NOT_FOUND")
        assert await codes("room02") == ({"ROOM_NOT_ACTIVE"}, "ROOM_NOT_ACTIVE")

    run_in_virtual_time(main)


@BACKENDS
def test_a_client_that_is_cancelled_in_its_body_leaves_nothing(backend: str) -> None:
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
        for kind in ("lifespan", "websocket"):
            with pytest.raises(NotImplementedError, match="HTTP only"):
                await server({"type": kind, "path": "/"}, receive, receive)

    run_in_virtual_time(main, backend=backend)
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
    """What is given is what they have; what is impossible is refused, by the marker too."""
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


def test_the_public_names() -> None:
    """`__all__` is sorted and complete."""
    visible = {name for name in vars(testing) if name.isidentifier() and name[0] != "_"}
    modules = {name for name in visible if isinstance(getattr(testing, name), ModuleType)}
    assert (testing.__all__, modules) == (sorted(visible), set())


# --- rooms that are mixed up ---------------------------------------------------------------------

FORM, LINK = part('name="probe"', b"1") + b"--XX--\r\n", link("deck.pdf")
MIXED_UP = {
    "upload a b b c a": ["ab", "bc", "a"],
    "ask a b upload a b a c": ["aac", "b", ""],
    "upload a form b upload c": ["a", "c", ""],
    "upload a link b upload c": ["a", "c", ""],
    "upload a unsigned b inactive d unknown e upload b": ["ab", "", ""],
    "ask a upload a ask b upload b restart upload a b": ["aab", "b", ""],
}


@pytest.mark.parametrize("steps", MIXED_UP)
def test_rooms_that_are_mixed_up(steps: str) -> None:
    """With ``mixes_up_rooms`` a document lands in the room of the last contact, with 200 SUCCESS.

    The first contact is right, and so is a room that was asked about; a refused form is a contact
    and no help; what is refused earlier is none. A restart forgets all of it.
    """
    server = MeetingServer(mixes_up_rooms=True)
    rooms = [server.add_room(room_id) for room_id in "abc"]
    server.add_room("d", active=False)
    for run in steps.split(" restart "):
        how = ""
        with server.run() as url:
            for word in run.split():
                body = {"form": FORM, "link": LINK}.get(how, document(name=word))
                if len(word) > 1:
                    how = word
                elif how == "ask":
                    assert talk(url, call(INFO, {"roomId": word})).status == 200
                else:
                    changes = {"HASH_SIGNATURE": "no"} if how == "unsigned" else {}
                    status = talk(url, upload(body, room=word, **changes)).status
                    assert status == {"upload": 200, "unsigned": 401}.get(how, 400)
    assert ["".join(file.name for file in room.received) for room in rooms] == MIXED_UP[steps]


def test_each_mixed_up_room_keeps_its_own_lock() -> None:
    """The room that was named is locked during the conversion, not the one that lists the file."""
    server = MeetingServer(mixes_up_rooms=True, processing_seconds=10)
    first, second = (server.add_room(room_id) for room_id in "ab")

    async def main() -> None:
        for room in (first, second):
            assert (await talk_in_process(server, upload(room=room.room_id))).status == 200
            assert not room.locked
        first.lock(60)
        assert (await talk_in_process(server, upload(room="b"))).status == 200
        assert (await talk_in_process(server, upload(room="a"))).status == 409

    run_in_virtual_time(main)
    assert (len(first.received), len(second.received)) == (2, 1)
