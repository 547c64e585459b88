"""The life of a client: closing, using it afterwards, forgetting to close it."""

import asyncio
import gc
import warnings
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from _clients import connected, upload
from _fakes import (
    EventRecorder,
    FakeTransport,
    accepted,
    busy,
    record,
    reply,
)
from meeting_async import (
    LockPolicy,
    MeetingClient,
    WaitingForRoom,
)
from meeting_async.errors import (
    ConfigurationError,
    RoomNotActive,
)

pytestmark = pytest.mark.anyio


# --- lifetime ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        upload,
        lambda c: c.get_active_room_info("room01"),
        lambda c: c.call("x"),
        lambda c: c.wait_until_active("room01", 1),
    ],
)
async def test_use_after_close(use: Callable[[MeetingClient], Any]) -> None:
    """Every method says that the client is closed; nothing is sent."""
    transport, recorder = FakeTransport(), EventRecorder()
    client = connected(transport, on_event=recorder)
    await client.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await use(client)
    assert not transport.exchanges
    assert not recorder.events
    assert repr(client) == "<MeetingClient for https://meet.test/auth, closed>"


async def test_closing_twice_closes_once() -> None:
    """``aclose`` may be called any number of times, inside ``async with`` too."""
    transport = FakeTransport()
    async with connected(transport) as client:
        await client.aclose()
        await client.aclose()
    assert transport.closed == 1


async def test_the_block_closes_whatever_happens() -> None:
    """An error inside the block passes, and the transport is closed."""
    transport = FakeTransport()
    with pytest.raises(ZeroDivisionError):
        async with connected(transport):
            raise ZeroDivisionError
    assert transport.closed == 1


async def test_it_need_not_be_entered() -> None:
    """A client works without ``async with`` if somebody closes it."""
    transport = FakeTransport(accepted())
    client = connected(transport)
    await client.call("x")
    await client.aclose()
    assert transport.closed == 1


async def test_a_wait_does_not_outlive_the_client() -> None:
    """Closed while an upload waits for the room: nothing more goes through the transport."""
    transport, recorder = FakeTransport(busy(), accepted()), EventRecorder()
    client = connected(transport, on_event=recorder, lock=LockPolicy(min_delay=0.05))
    raised: list[Exception] = []

    async def run() -> None:
        try:
            await upload(client)
        except RuntimeError as error:
            raised.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await recorder.until(WaitingForRoom)
        await client.aclose()
    assert len(transport.exchanges) == 1
    assert "closed" in str(raised[0])


def collect(make: Callable[[], Any]) -> list[str]:
    """Make something, drop it, and return the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
        gc.collect()
    return [str(warning.message) for warning in caught if warning.category is ResourceWarning]


def test_an_unclosed_client_warns() -> None:
    """Used and dropped without closing: a ``ResourceWarning`` that names the server."""

    async def use(*, close: bool) -> None:
        client = connected(FakeTransport(accepted()))
        await client.call("x")
        if close:
            await client.aclose()

    assert collect(lambda: asyncio.run(use(close=True))) == []
    (message,) = collect(lambda: asyncio.run(use(close=False)))
    assert "unclosed MeetingClient for https://meet.test/auth" in message
    assert "aclose()" in message


def test_an_unused_client_does_not_warn() -> None:
    """Nothing was opened, nothing is to be closed; nor after a failed construction."""
    assert collect(lambda: connected(FakeTransport())) == []

    def fail() -> None:
        with pytest.raises(ConfigurationError):
            connected(FakeTransport(), api_key="")

    assert collect(fail) == []


def test_a_derived_client_keeps_the_original() -> None:
    """Dropping the original while a derived client is in use warns at the end, once."""

    async def use() -> MeetingClient:
        return connected(FakeTransport(accepted())).with_options(allow_images=True)

    async def use_derived() -> None:
        derived = await use()
        assert collect(lambda: None) == []
        await derived.call("x")

    assert len(collect(lambda: asyncio.run(use_derived()))) == 1


def test_one_client_in_one_loop_after_another() -> None:
    """Nothing of the client itself is bound to the loop in which it was used first."""
    transport = FakeTransport(then=lambda _: accepted())
    client = connected(transport)

    async def use() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(upload, client)

    asyncio.run(use())
    asyncio.run(use())
    asyncio.run(client.aclose())
    assert len(transport.exchanges) == 6


async def test_room_not_active_is_told() -> None:
    """An upload to a room without a session says so."""
    transport = FakeTransport(reply(400, record("ROOM_NOT_ACTIVE")))
    async with connected(transport) as client:
        with pytest.raises(RoomNotActive):
            await upload(client)
