"""A peer, or a kernel, that takes all of a form but its very last bytes."""

from __future__ import annotations

from typing import Any

import anyio
import attrs
import pytest

from meeting_async import MeetingClient, RetryPolicy
from meeting_async.errors import UploadInterrupted, UploadOutcomeUnknown
from meeting_async.transports import Reply, Request, Transport
from support.peer import WHOLE, Connection, in_flight, resetting
from support.sending import KIB, MIB, TAIL, Wire, over

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

KEYS: dict[str, Any] = {"api_key": "key", "api_secret": "secret", "preflight": False}


def counts(*nightly: int, each: int) -> list[Any]:
    """Make parameters of which only one is tried each time."""
    return [each, *[pytest.param(count, marks=pytest.mark.nightly) for count in nightly]]


@pytest.mark.parametrize("size", [1000, 70_000, 8 * MIB])
@pytest.mark.parametrize("missing", counts(*range(1, len(TAIL) - 1), each=len(TAIL) - 1))
async def test_a_peer_that_resets_amid_the_closing_boundary(
    wire: Wire, missing: int, size: int
) -> None:
    """Whoever got a byte of the closing boundary may have the document, so it is sent once."""
    async with over(wire, resetting(-missing), receive_buffer=64 * KIB) as (transport, peer):
        async with MeetingClient(peer.url, transport=transport, **KEYS) as client:
            with anyio.fail_after(20), pytest.raises(UploadOutcomeUnknown):
                await client.upload_whiteboard_file(
                    "room01", b"%PDF-1.7".ljust(size), filename="deck.pdf"
                )
        assert len(peer.requests) == 1


# --- what the operating system takes -------------------------------------------------------------


def resetting_when_full(connection: Connection) -> None:
    """Read nothing; reset when the client's kernel takes no more."""
    in_flight(connection, WHOLE, seconds=5)
    connection.reset()


@attrs.define(eq=False)
class Watching:
    """A transport around another one that remembers how much of each form was sent."""

    inner: Transport
    forms: list[tuple[int, int]] = attrs.field(factory=list)
    """Bytes sent, and bytes in all."""

    async def send(self, request: Request, /) -> Reply:
        try:
            return await self.inner.send(request)
        finally:
            if not isinstance(request.body, bytes):
                self.forms.append((request.body.sent, request.body.length))

    async def aclose(self) -> None:
        await self.inner.aclose()


async def sent_of(size: int) -> tuple[type[Exception], int, int]:
    """Upload once to a full peer; return the error, the bytes sent, and the bytes in all."""
    once: dict[str, Any] = {"retry": RetryPolicy(max_interruptions=0), **KEYS}
    async with over((None, True), resetting_when_full, receive_buffer=64 * KIB) as (inner, peer):
        watching = Watching(inner)
        async with MeetingClient(peer.url, transport=watching, **once) as client:
            with pytest.raises((UploadInterrupted, UploadOutcomeUnknown)) as caught:
                await client.upload_whiteboard_file("room01", bytes(size), filename="deck.pdf")
        return type(caught.value), *watching.forms[0]


@pytest.mark.parametrize("missing", counts(1, 20, 38, 39, each=2))
async def test_a_kernel_that_takes_a_part_of_the_closing_boundary(missing: int) -> None:
    """The peer reads nothing, and the form is a few bytes too long for the buffers between."""
    size = 16 * MIB
    for _ in range(10):
        error, sent, length = await sent_of(size)
        if length - sent == missing:
            break
        size += sent + missing - length  # what fits does not depend on a few bytes more
    else:
        pytest.skip("the buffers of this machine take another number of bytes each time")
    assert error is UploadOutcomeUnknown
