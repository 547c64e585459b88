"""A second, unasked reply on a connection that is used again: it refuses nobody."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import attrs
import pytest

from meeting_async import MeetingClient, UploadJob
from meeting_async.errors import AuthenticationFailed, MeetingError, RequestRefused, RoomNotFound
from support.peer import Connection, Peer, reply
from support.sending import Wire, over, until

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

KEYS: dict[str, Any] = {"api_key": "key", "api_secret": "secret"}
LARGE = b"%PDF-1.7".ljust(300 * 1024)
"""A document whose room is asked for before it is sent."""


def answer(code: str, status: int = 200, room: str = "room01") -> bytes:
    """Make the bytes of a server's own record."""
    content: dict[str, Any] = {"status": code == "SUCCESS", "msg": "said", "status_code": code}
    if code == "SUCCESS":
        content["room"] = {"room_info": {"room_id": room, "is_running": 1}}
    return reply(status, json.dumps(content).encode())


RUNNING = answer("SUCCESS")
REFUSALS = {
    "not found": answer("ROOM_NOT_FOUND"),
    "not active": answer("ROOM_NOT_ACTIVE"),
    "not found, by its status": answer("NOT_FOUND", 404),
    "wrong key": answer("INVALID_API_KEY", 401),
    "wrong signature": answer("INVALID_TOKEN_OR_SIGNATURE", 401),
    "forbidden": answer("PERMISSION_DENIED", 403),
    "invalid": answer("INVALID_PARAMETERS", 400),
}


def few_of(name: str, *each: str) -> Any:
    """Make a parameter; only a few are tried each time."""
    return pytest.param(name, marks=() if name in each else pytest.mark.nightly)


@attrs.define(eq=False)
class Server:
    """A script: the first reply of each connection is right, further ones are not.

    They are what came a moment too late for anybody to notice that it belongs to nothing.
    """

    unasked: bytes
    used: list[int] = attrs.field(factory=list)
    """For each request, the number of its connection."""
    _numbers: Any = attrs.field(factory=lambda: itertools.count(1))

    def __call__(self, connection: Connection) -> None:
        """Serve one connection."""
        number, data = next(self._numbers), RUNNING
        while connection.read_head():
            self.used.append(number)
            connection.read_body()
            connection.send(data)
            data = self.unasked


async def info(client: MeetingClient) -> None:
    """Ask for a room."""
    assert (await client.get_active_room_info("room01")).room_id == "room01"


async def call(client: MeetingClient) -> None:
    """Make another call that may be repeated."""
    found = await client.call("room/isRoomActive", {"room_id": "room01"}, idempotent=True)
    assert found["status"] is True


async def wait(client: MeetingClient) -> None:
    """Wait for a room that is active."""
    with anyio.fail_after(1.9):  # else it would ask again after 2 s
        await client.wait_until_active("room01", 5)


async def upload(client: MeetingClient) -> None:
    """Upload a document whose room is asked for first."""
    await client.upload_whiteboard_file("room01", LARGE, filename="deck.pdf")


async def batch(client: MeetingClient) -> None:
    """Do the same in a batch."""
    async with client.upload_many([UploadJob("room01", LARGE, filename="deck.pdf")]) as running:
        assert [one.status for one in (await running.wait()).outcomes] == ["accepted"]


CALLS: dict[str, Callable[[MeetingClient], Awaitable[None]]] = {
    "info": info, "call": call, "wait": wait, "upload": upload, "batch": batch,
}  # fmt: skip


async def reuse(client: MeetingClient, peer: Peer, connections: int = 1) -> None:
    """Make so many idle connections."""
    async with anyio.create_task_group() as group:
        for _ in range(connections):
            group.start_soon(info, client)
    await until(lambda: peer.connected >= 1)


@pytest.mark.parametrize(
    "unasked", [few_of(name, "not found", "wrong key", "forbidden") for name in REFUSALS]
)
async def test_a_refusal_that_belongs_to_nothing(wire: Wire, unasked: str) -> None:
    """A running room is found, although its connection brought a refusal."""
    server = Server(REFUSALS[unasked])
    async with over(wire, server) as (transport, peer):
        async with MeetingClient(peer.url, transport=transport, **KEYS) as client:
            await info(client)
            await info(client)
    assert server.used == [1, 1, 2]


@pytest.mark.parametrize("what", CALLS.values(), ids=CALLS)
async def test_every_call_that_uses_a_connection_again(what: Callable[..., Any]) -> None:
    """The same for each of them; an upload's room check must not stop it."""
    server = Server(REFUSALS["not found"])
    async with over((None, True), server) as (transport, peer):
        async with MeetingClient(peer.url, transport=transport, **KEYS) as client:
            await call(client)
            await what(client)
    assert server.used[:3] == [1, 1, 2]


async def test_the_second_answer_comes_by_a_new_connection() -> None:
    """Not by another idle one, which may have such a reply, too."""
    server = Server(REFUSALS["not found"])
    async with over((None, True), server) as (transport, peer):
        async with MeetingClient(peer.url, transport=transport, **KEYS) as client:
            await reuse(client, peer, 5)
            connections, asked = peer.connected, len(server.used)
            await info(client)
    assert len(server.used) == asked + 2
    assert server.used[-1] == connections + 1


# --- refusals that are meant ---------------------------------------------------------------------


@attrs.define(eq=False)
class Refusing:
    """A script: after its first answer the server refuses everything."""

    refusal: bytes
    used: list[int] = attrs.field(factory=list)
    answers: int = 1
    """How many requests are answered well."""
    _numbers: Any = attrs.field(factory=lambda: itertools.count(1))

    def __call__(self, connection: Connection) -> None:
        """Serve one connection."""
        number = next(self._numbers)
        while connection.read_head():
            self.used.append(number)
            connection.read_body()
            connection.send(RUNNING if len(self.used) <= self.answers else self.refusal)


EXPECTED: dict[str, type[MeetingError]] = {
    "not found": RoomNotFound,
    "wrong key": AuthenticationFailed,
    "wrong signature": AuthenticationFailed,
    "forbidden": RequestRefused,
}


@pytest.mark.parametrize(
    "refusal", [few_of(name, "not found", "wrong signature") for name in EXPECTED]
)
async def test_a_real_refusal(wire: Wire, refusal: str) -> None:
    """It is asked for twice at most, the second time on a new connection, and stays a refusal."""
    server = Refusing(REFUSALS[refusal])
    async with over(wire, server) as (transport, peer):
        async with MeetingClient(peer.url, transport=transport, **KEYS) as client:
            await info(client)
            with pytest.raises(EXPECTED[refusal]):
                await client.get_active_room_info("room01")
    assert server.used == [1, 1, 2]


async def test_a_refusal_on_a_new_connection() -> None:
    """It is believed at once."""
    server = Refusing(REFUSALS["not found"], answers=0)
    async with over((None, True), server) as (transport, peer):
        async with MeetingClient(peer.url, transport=transport, **KEYS) as client:
            with pytest.raises(RoomNotFound):
                await client.get_active_room_info("room01")
    assert server.used == [1]


async def test_calls_that_must_not_be_sent_twice() -> None:
    """They use no idle connection, so a refusal is believed at once."""
    server = Refusing(REFUSALS["not found"])
    async with over((None, True), server) as (transport, peer):
        async with MeetingClient(peer.url, transport=transport, **KEYS) as client:
            await info(client)
            with pytest.raises(RoomNotFound):
                await client.call("room/endRoom", {"room_id": "room01"})
    assert server.used == [1, 2]
