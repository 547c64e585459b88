"""Replies above 1 MiB: an error at once, asked for once; a call may want more."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import httpx
import pytest

from meeting_async import MeetingClient
from meeting_async.errors import InvalidInput, MeetingError, UploadOutcomeUnknown
from meeting_async.transports import HttpxTransport, Reply
from support.fake_rooms import Act, FakeRooms
from support.fakes import client_of
from support.gaps import loop_stays_free
from support.peer import CHUNKED, Connection, Peer, Script, answering, flooding, in_another_process
from support.peer import reply as http_reply
from support.sending import KIB, MIB, over, within

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

nightly = pytest.mark.nightly
KEYS: dict[str, Any] = {"api_key": "key", "api_secret": "secret"}
LARGE = b"%PDF-1.7".ljust(300 * KIB)
"""A document whose room is asked for before it is sent."""

Call = Callable[[MeetingClient], Awaitable[object]]


async def call(client: MeetingClient) -> None:
    """Make a call that must not be repeated."""
    await client.call("room/fetchPastRooms", {"limit": 10_000})


async def repeated(client: MeetingClient) -> None:
    """Make a call that may be repeated."""
    await client.call("room/fetchPastRooms", {"limit": 10_000}, idempotent=True)


async def info(client: MeetingClient) -> None:
    """Ask for a room."""
    await client.get_active_room_info("room01")


async def upload(client: MeetingClient) -> None:
    """Upload without a look at the room."""
    other = client.with_options(preflight=False)
    await other.upload_whiteboard_file("room01", b"%PDF-1.7", filename="deck.pdf")


async def look(client: MeetingClient) -> None:
    """Upload a document whose room is looked at first."""
    await client.upload_whiteboard_file("room01", LARGE, filename="deck.pdf")


CALLS: dict[str, Call] = {
    "call": call, "repeated": repeated, "info": info, "upload": upload, "look": look,
}  # fmt: skip


def record(size: int) -> bytes:
    """Make a record of so many bytes that says "success"."""
    found = {"status": True, "msg": "yes", "status_code": "SUCCESS", "text": ""}
    found["text"] = "x" * (size - len(json.dumps(found)))
    return json.dumps(found).encode()


CHUNK = b"10000\r\n" + bytes(65536) + b"\r\n"


def endless_chunks(connection: Connection) -> None:
    """Read the request, then answer in chunks for ever."""
    connection.read_head()
    connection.read_body()
    connection.send(CHUNKED)
    while True:
        connection.send(CHUNK)


ANSWERS: dict[str, Script] = {
    "endless": flooding(bytes(65536)),
    "endless chunks": endless_chunks,
    "of 2 MiB": answering(http_reply(content=record(2 * MIB))),
    "one byte": answering(http_reply(content=record(MIB + 1))),
}


@contextlib.asynccontextmanager
async def connected(kind: str, script: Script) -> AsyncIterator[tuple[Any, Peer]]:
    """Open a transport, ours or one with a client of httpx, and a peer."""
    if kind == "ours":
        async with over((None, True), script) as opened:
            yield opened
        return
    with Peer(script) as peer:
        async with httpx.AsyncClient(trust_env=False) as client:
            yield HttpxTransport(client), peer


def each_time(what: str, answer: str, kind: str) -> bool:
    """Tell whether a case is tried each time."""
    if kind == "ours":
        return answer == "endless" or (what, answer) == ("call", "one byte")
    return (what, answer) == ("call", "endless")


@pytest.mark.parametrize(
    ("what", "answer", "kind"),
    [
        pytest.param(*row, marks=() if each_time(*row) else nightly)
        for row in itertools.product(CALLS, ANSWERS, ["ours", "httpx"])
    ],
)
async def test_a_reply_that_is_too_long(what: str, answer: str, kind: str) -> None:
    """Every request ends at once with an error that names the limit, and is made once."""
    async with connected(kind, ANSWERS[answer]) as (transport, peer):
        async with MeetingClient(peer.url, transport=transport, **KEYS) as client:
            with within(1), pytest.raises(MeetingError) as caught:
                await CALLS[what](client)
            assert len(peer.requests) == 1
            assert (b"uploadWhiteboardFile" in peer.requests[0].head) is (what == "upload")
    assert "1,048,576" in str(caught.value)
    if what in {"call", "repeated"}:
        assert "max_reply_bytes" in str(caught.value)
    assert isinstance(caught.value, UploadOutcomeUnknown) is (what == "upload")


async def test_a_reply_that_goes_on_for_ever_costs_no_memory() -> None:
    """Whatever is asked: the process grows by less than 16 MiB."""
    grown: dict[str, int] = {}
    with in_another_process("endless content") as url:
        for name, what in CALLS.items():
            async with MeetingClient(url, **KEYS) as client:
                tracemalloc.start()
                try:
                    with anyio.fail_after(20), pytest.raises(MeetingError):
                        await what(client)
                    grown[name] = tracemalloc.get_traced_memory()[1]
                finally:
                    tracemalloc.stop()
    assert max(grown.values()) < 16 * MIB, grown


async def test_a_reply_that_just_fits() -> None:
    """A reply of 1 MiB, its head and framing included, is read."""
    data = http_reply(content=record(MIB - KIB))
    async with over((None, True), answering(data)) as (transport, peer):
        async with MeetingClient(peer.url, transport=transport, **KEYS) as client:
            for what in CALLS.values():
                await what(client)


# --- max_reply_bytes= ----------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [pytest.param(False, marks=nightly), True])
@pytest.mark.parametrize("kind", ["ours", pytest.param("httpx", marks=nightly)])
async def test_a_call_may_allow_more(kind: str, idempotent: bool) -> None:
    """``max_reply_bytes=`` allows a larger reply; one that is larger still names that limit."""
    replies = [http_reply(content=record(size * MIB)) for size in (5, 9)]
    async with connected(kind, answering(*replies)) as (transport, peer):
        async with MeetingClient(peer.url, transport=transport, **KEYS) as client:
            how: Any = {"max_reply_bytes": 8 * MIB, "idempotent": idempotent}
            found = await client.call("room/fetchPastRooms", {}, **how)
            assert len(found["text"]) > 4 * MIB
            if idempotent:  # on the same connection
                with pytest.raises(MeetingError, match="8,388,608"):
                    await client.call("room/fetchPastRooms", {}, **how)


async def test_a_call_may_allow_less() -> None:
    """The limit may also be smaller than the usual one."""
    async with over((None, True), answering(http_reply(content=record(4000)))) as (transport, peer):
        async with MeetingClient(peer.url, transport=transport, **KEYS) as client:
            how: Any = {"max_reply_bytes": 3000}
            with pytest.raises(MeetingError, match="3,000"):
                await client.call("room/fetchPastRooms", {}, **how)
            assert len(peer.requests) == 1


async def test_an_unusable_limit() -> None:
    """Anything but an int of at least 1 is refused by name, and nothing is sent."""
    rooms = FakeRooms()
    async with client_of(rooms) as client:
        for value in (0, -1, 1.5, float("nan"), "8MiB", True, [1]):
            how: Any = {"max_reply_bytes": value}
            with pytest.raises(InvalidInput, match="max_reply_bytes") as caught:
                await client.call("room/fetchPastRooms", {}, **how)
            assert caught.value.field == "max_reply_bytes"
    assert not rooms.visits


async def test_every_transport_gets_the_limit() -> None:
    """``request.max_reply_bytes`` is 1 MiB for every kind of request, or what a call says."""
    rooms = FakeRooms()
    async with client_of(rooms) as client:
        for what in CALLS.values():
            await what(client)
        assert {visit.request.max_reply_bytes for visit in rooms.visits} == {MIB}
        how: Any = {"max_reply_bytes": 8 * MIB}
        await client.call("room/fetchPastRooms", {}, **how)
    assert rooms.visits[-1].request.max_reply_bytes == 8 * MIB


# --- the loop ------------------------------------------------------------------------------------

PEOPLE = {"sid": "PA_1", "identity": "u1", "name": "Ada", "joined_at": "1700000000", "version": 3}
PIECES: dict[str, str] = {
    "people": json.dumps(PEOPLE),
    "texts": '"ab"',
}


@pytest.mark.parametrize(
    "name", [name if name == "people" else pytest.param(name, marks=nightly) for name in PIECES]
)
async def test_a_reply_that_just_fits_keeps_no_loop(name: str) -> None:
    """While 1 MiB of JSON is taken apart, the loop stands still for less than 50 ms.

    On a slower machine: for at most three times as long as Python's own decoder takes.
    """
    piece = PIECES[name]
    start, end = '{"status":true,"msg":"yes","status_code":"SUCCESS","found":[', "]}"
    count = (MIB - KIB - len(start + end)) // (len(piece) + 1)
    content = (start + ",".join([piece] * count) + end).encode()
    rooms = FakeRooms(ask=lambda _: Act(result=Reply(200, (), content)))
    async with client_of(rooms) as client:

        async def once() -> None:
            found = await client.call("room/fetchPastRooms")
            assert len(found["found"]) == count

        began = time.perf_counter()
        json.loads(content)
        decoding = time.perf_counter() - began
        assert await loop_stays_free(once, seconds=max(0.05, 3 * decoding))
