"""Connections: which are kept, for how long, and which are used again."""

from __future__ import annotations

import gc

import anyio
import anyio.lowlevel
import httpcore
import pytest

from _peer import (
    RECORD,
    Connection,
    Peer,
    answering,
    answering_once,
    reply,
)
from _transports import (
    Interrupted,
    Wire,
    call,
    close_bodies,
    either,
    over,
    until,
    upload,
)
from meeting_async import (
    HttpxTransport,
)

pytestmark = pytest.mark.anyio


async def test_json_calls_share_a_connection(transport: HttpxTransport) -> None:
    """One after the other over one connection; uploads do not take it."""
    with Peer(answering(reply())) as peer:
        for _ in range(3):
            await transport.send(call(peer.url))
        assert peer.connected == 1
        await transport.send(upload(peer.url)[0])
        assert peer.connected == 2


async def test_uploads_never_share_a_connection(transport: HttpxTransport) -> None:
    """Each has a connection of its own, one after the other and at the same time."""
    with Peer(answering(reply())) as peer:
        await transport.send(upload(peer.url)[0])
        await until(peer.idle)
        await transport.send(upload(peer.url)[0])
        await until(peer.idle)
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(transport.send, upload(peer.url)[0])
        await until(peer.idle)
        assert peer.connected == len(peer.requests) == 7


@pytest.mark.parametrize("with_reset", [True, False])
async def test_an_idle_connection_that_was_closed_is_not_used(
    transport: HttpxTransport, with_reset: bool
) -> None:
    """A proxy drops idle connections; the next call takes a new one."""

    def once(connection: Connection) -> None:
        answering_once(reply())(connection)
        if with_reset:
            connection.reset()

    with Peer(once) as peer:
        for _ in range(3):
            assert (await transport.send(call(peer.url))).status == 200
            await until(peer.idle)
            await anyio.sleep(0.01)
    assert peer.connected == 3


async def test_the_rest_of_a_reply_is_not_the_next_reply(transport: HttpxTransport) -> None:
    """What stands behind a reply must never answer the next call on that connection."""
    smuggled = reply(content=b'{"status":true,"room":"somebody else\'s"}')
    with Peer(answering(reply() + smuggled)) as peer:
        for _ in range(3):
            answer = await transport.send(call(peer.url))
            assert answer.content == RECORD


async def test_garbage_behind_a_reply_does_not_spoil_the_next_call(
    transport: HttpxTransport,
) -> None:
    """The connection is dropped; the next call takes a new one."""
    with Peer(answering(reply() + b"garbage")) as peer:
        for _ in range(3):
            assert (await transport.send(call(peer.url))).status == 200


async def test_a_reset_behind_a_complete_reply_changes_nothing(wire: Wire) -> None:
    """What has arrived has arrived."""

    def script(connection: Connection) -> None:
        answering_once(reply())(connection)
        connection.closed_within(0.05)
        connection.reset()

    async with over(wire, script) as (transport, peer):
        for kind in ("upload", "json", "upload", "json"):
            assert (await transport.send(either(kind, peer.url))).content == RECORD
            await until(peer.idle)


async def test_cancelled_connections_are_forgotten(wire: Wire) -> None:
    """Wherever uploads are cancelled, no list of connections grows."""
    async with over(wire, answering(reply())) as (transport, peer):
        for number in range(1, 30):
            run = Interrupted(transport.send(upload(peer.url)[0]), number)
            with run.scope:
                await run
        await close_bodies()
        gc.collect()
        alive = [one for one in gc.get_objects() if isinstance(one, httpcore.AsyncHTTPConnection)]
        assert alive == []
