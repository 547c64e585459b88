"""Streams on raw sockets: gathering, early answers, stalls, resets, TLS."""

from __future__ import annotations

import contextlib
import socket

import anyio
import anyio.lowlevel
import attrs
import pytest

from _peer import (
    WHOLE,
    Connection,
    Peer,
    Script,
    deaf,
    descriptors,
    early,
    reply,
    resetting,
    resetting_at_once,
    silent,
)
from _transports import (
    BOUNDARY,
    KIB,
    MIB,
    PATIENT,
    Supply,
    Wire,
    call,
    cancelled,
    closed_port,
    never_connects,
    over,
    until,
    upload,
    within,
)
from meeting_async import (
    HttpxTransport,
    _dialing,
)
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    TransferTimeout,
    TransportError,
)

pytestmark = pytest.mark.anyio


async def test_a_peer_that_does_not_shake_hands(transport: HttpxTransport) -> None:
    """The TLS handshake counts as connecting."""
    with Peer(deaf) as peer:
        error = await never_connects(transport, f"https://127.0.0.1:{peer.port}")
    assert "in time" in error.reason


@pytest.mark.parametrize("answer", [b"", reply(400), b"\0" * 100], ids=["reset", "HTTP", "garbage"])
async def test_a_peer_that_speaks_no_tls(transport: HttpxTransport, answer: bytes) -> None:
    """A reset or something else in the handshake: no connection."""

    def rude(connection: Connection) -> None:
        connection.sock.recv(1)
        connection.send(answer)
        connection.reset()

    with Peer(rude) as peer:
        await never_connects(transport, f"https://127.0.0.1:{peer.port}", connect=5)


SIZE = 2 * MIB
TAIL = len(b"\r\n--" + BOUNDARY.encode() + b"--\r\n")
POINTS: dict[str, tuple[Script, int]] = {
    "at once": (resetting_at_once, 64 * KIB),
    "before the body": (resetting(0), 64 * KIB),
    "after 1 byte": (resetting(1), 64 * KIB),
    "after 1 MiB": (resetting(MIB), MIB + 64 * KIB),
    "one byte before the closing boundary": (resetting(-TAIL - 1), SIZE - 1),
}
"""Where the peer resets, and up to which byte the document is held back until it has."""


@pytest.mark.parametrize(("script", "hold"), POINTS.values(), ids=POINTS.keys())
async def test_a_reset_before_the_closing_boundary(wire: Wire, script: Script, hold: int) -> None:
    """Wherever it strikes, the connection is lost; the body knows how much it handed over."""
    async with over(wire, script) as (transport, peer):
        supply = Supply(SIZE, hold, lambda: until(lambda: peer.connected and peer.idle()))
        request, body = upload(peer.url, supply)
        with within(4), pytest.raises((ConnectionLost, ConnectFailed)) as caught:
            await transport.send(request)
    at_once = script is resetting_at_once
    assert type(caught.value) is ConnectionLost or (at_once and body.handed_over == 0)
    assert peer.connected == 1
    assert all(len(received.body) < received.length - TAIL for received in peer.requests)
    if hold < SIZE - 1:  # asyncio may swallow the error of just one write
        assert not body.complete
        assert body.handed_over < body.length - TAIL


async def test_a_reset_behind_the_closing_boundary(wire: Wire) -> None:
    """The body says that it is complete, from which the outcome is concluded to be unknown."""
    async with over(wire, resetting(WHOLE)) as (transport, peer):
        request, body = upload(peer.url, Supply(SIZE))
        with within(4), pytest.raises(ConnectionLost) as caught:
            await transport.send(request)
    assert type(caught.value) is ConnectionLost
    assert (body.complete, body.handed_over) == (True, body.length)


@pytest.mark.parametrize(
    "exchange",
    [early(reply(409), lambda connection: connection.drain())]
    + [early(reply(status), Connection.reset) for status in (401, 409, 413)]
    + [early(reply(413), lambda connection: None)],
    ids=["409 lingering", "401 reset", "409 reset", "413 reset", "413 close"],
)
async def test_an_early_answer(wire: Wire, exchange: Script) -> None:
    """An answer amid the upload is the answer, or the connection is lost; never anything else."""
    size = 8 * MIB
    async with over(wire, exchange) as (transport, peer):
        request, body = upload(peer.url, Supply(size))
        outcome: object = None
        with within(4):
            try:
                outcome = (await transport.send(request)).status
            except TransportError as error:
                outcome = type(error)
    assert outcome in {401, 409, 413, ConnectionLost}
    assert body.complete is (body.handed_over == body.length)


async def test_an_early_answer_of_one_who_reads_on(wire: Wire) -> None:
    """A server that reads the rest after its answer is understood."""
    async with over(wire, early(reply(409), Connection.drain)) as (transport, peer):
        assert (await transport.send(upload(peer.url, Supply(4 * MIB))[0])).status == 409


async def test_an_early_answer_of_one_who_stops_reading(wire: Wire) -> None:
    """Not longer than a stall may last."""
    timeouts = attrs.evolve(PATIENT, send_stall=0.3)
    async with over(wire, early(reply(409), deaf)) as (transport, peer):
        request, body = upload(peer.url, Supply(64 * MIB), timeouts)
        with within(3), contextlib.suppress(TransferTimeout):
            assert (await transport.send(request)).status == 409
    assert not body.complete


async def test_a_transport_that_is_closed_amid_an_upload(transport: HttpxTransport) -> None:
    """Closing breaks what is going on, in our words."""
    with Peer(silent) as peer:
        async with anyio.create_task_group() as group:

            async def send() -> None:
                with pytest.raises(TransportError):
                    await transport.send(upload(peer.url)[0])

            group.start_soon(send)
            await until(lambda: peer.requests)
            await anyio.sleep(0.05)
            with within(2):
                await transport.aclose()
                await until(peer.idle)


async def test_a_peer_that_stops_reading(wire: Wire) -> None:
    """A stall is noticed amid the body, and leaves nothing hanging."""
    timeouts = attrs.evolve(PATIENT, send_stall=0.3)
    async with over(wire, deaf, receive_buffer=64 * KIB) as (transport, peer):
        request, body = upload(peer.url, Supply(64 * MIB), timeouts)
        with within(3), pytest.raises(TransferTimeout, match="reading"):
            await transport.send(request)
    assert 0 < body.handed_over < body.length
    assert not body.complete


async def test_a_slow_line_is_no_stall(
    transport: HttpxTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``send_stall`` limits the time without progress, not the time of a chunk."""
    small = (socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * KIB)
    monkeypatch.setattr(_dialing, "SOCKET_OPTIONS", [small])

    def slow(connection: Connection) -> None:
        connection.read_head()
        while len(connection.request.body) < connection.request.length:
            left = connection.request.length - len(connection.request.body)
            connection.read_body(min(left, 32 * KIB))
            connection.closed_within(0.05)
        connection.send(reply())

    timeouts = attrs.evolve(PATIENT, send_stall=0.25)
    with Peer(slow, receive_buffer=16 * KIB) as peer:
        answer = await transport.send(upload(peer.url, Supply(600 * KIB), timeouts)[0])
    assert answer.status == 200


async def test_cancelled_amid_the_handshake(transport: HttpxTransport) -> None:
    """Ten connections whose TLS handshake is not answered: none stays open."""
    with Peer(deaf) as peer:
        with contextlib.suppress(ConnectFailed):  # loads the certificates
            await transport.send(call(f"https://127.0.0.1:{closed_port()}"))
        before = descriptors(peer)
        for number in range(10):
            request = call(f"https://127.0.0.1:{peer.port}")
            await cancelled(transport, request, 0.005 + 0.002 * number)
        await until(lambda: peer.connected >= 5)
        await anyio.sleep(0.05)
        assert descriptors(peer) == before
        await transport.aclose()
