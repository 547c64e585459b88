"""An event loop that cannot watch a socket, such as Windows' usual one: threads wait for it."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from meeting_async import errors
from meeting_async.transports import HttpTransport
from support.leaks import descriptors, threads_idle
from support.peer import Peer, answering, deaf, reply, silent
from support.sending import MIB, Form, Wire, closing, over, until, upload, within

pytestmark = [pytest.mark.anyio]


class Blind(asyncio.SelectorEventLoop):
    """An event loop without ``add_reader`` and its kind."""


for _name in ("add_reader", "add_writer", "remove_reader", "remove_writer"):
    setattr(Blind, _name, getattr(asyncio.AbstractEventLoop, _name))


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Run all of this on such an event loop."""
    return "asyncio", {"loop_factory": Blind}


async def test_uploads_are_answered(wire: Wire) -> None:
    """One after another and at once, plain and with TLS."""
    async with over(wire, answering(reply())) as (transport, peer):
        await transport.send(upload(peer.url, Form(3 * MIB, MIB)))
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(transport.send, upload(peer.url, Form(3 * MIB, MIB)))
        lengths = [len(request.body) for request in peer.requests]
        assert lengths == [Form(3 * MIB, MIB).length] * 6


@pytest.mark.parametrize("peer_is", [silent, deaf])
async def test_a_time_limit_holds(peer_is: Any) -> None:
    """A peer that does nothing costs the time that a request has, and leaves no thread waiting."""
    before = descriptors()
    async with over((None, True), peer_is) as (transport, peer):
        form = Form(30 * MIB, MIB) if peer_is is deaf else Form()
        with within(2), pytest.raises(errors.TransferTimeout):
            await transport.send(upload(peer.url, form, stall_timeout=0.3, reply_timeout=0.3))
    await threads_idle()
    assert descriptors() == before


@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_a_wait_that_is_given_up_ends_at_once(how: str) -> None:
    """Whoever ends it: the task, or the transport that is closed."""
    with Peer(silent) as peer:
        transport = HttpTransport()
        async with closing(transport), anyio.create_task_group() as group:

            async def send() -> None:
                with pytest.raises(errors.ConnectionLost):
                    await transport.send(upload(peer.url))

            group.start_soon(send)
            await until(lambda: peer.requests)
            await anyio.sleep(0.1)
            with within(1):
                if how == "cancelled":
                    group.cancel_scope.cancel()
                else:
                    await transport.aclose()
