"""Layers of TLS: by themselves, and one within another behind an ``https`` proxy."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest

from _peer import (
    PATIENCE,
    RECORD,
    WHOLE,
    Connection,
    Peer,
    Script,
    answering,
    deaf,
    early,
    reply,
    server_context,
    silent,
)
from _transports import (
    KIB,
    MIB,
    PATIENT,
    SIGNATURE,
    Supply,
    both_kinds,
    call,
    either,
    finish,
    never_connects,
    upload,
    within,
)
from meeting_async import HttpxTransport
from meeting_async._tls import PIECE_BYTES, TLSLayer
from meeting_async.errors import ConnectionLost, TransferTimeout

pytestmark = pytest.mark.anyio

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


def relay_of(port: int, keep: int = WHOLE) -> Script:
    """Make a tunnel to a port; break it when so many bytes have come back."""

    def script(connection: Connection) -> None:
        connection.read_head()
        assert connection.request.head.startswith(b"CONNECT ")
        connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as server:
            relay(connection.sock, server, keep)
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    return script


def relay(client: socket.socket, server: socket.socket, keep: int) -> None:
    """Pass on what comes, in one thread: two at a time must not use a connection of OpenSSL's."""
    for sock in (client, server):
        sock.setblocking(False)
    there, back = Way(client, server), Way(server, client, keep)
    with contextlib.suppress(OSError):
        while not back.is_over:
            if not any([there.step(), back.step()]) and not wait_for(there, back):
                return
            if there.is_over:
                server.shutdown(socket.SHUT_WR)


@attrs.define
class Way:
    """One direction of a tunnel."""

    source: socket.socket
    target: socket.socket
    left: int = WHOLE
    """Bytes until it breaks."""
    held: bytes = b""

    @property
    def is_over(self) -> bool:
        """Tell whether nothing more will come."""
        return not (self.left or self.held)

    def step(self) -> bool:
        """Give what is held, or take more, without waiting; tell whether it could."""
        try:
            if self.held:
                self.held = self.held[self.target.send(self.held) :]
            elif self.left:
                self.held = self.source.recv(min(65536, self.left))
                self.left = self.left - len(self.held) if self.held else 0
            else:
                return False
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        return True


def wait_for(*ways: Way) -> bool:
    """Wait until one of them may go on; tell whether any ever will."""
    poll = select.poll()
    for one, other in (ways, ways[::-1]):
        wants_to_read = select.POLLIN if one.left and not one.held else 0
        poll.register(one.source, wants_to_read | (select.POLLOUT if other.held else 0))
    events = [event for _, event in poll.poll(PATIENCE * 1000)]
    return bool(events) and not any(event & (select.POLLERR | select.POLLHUP) for event in events)


@contextlib.asynccontextmanager
async def through(
    tls: Contexts, script: Script, *, keep: int = WHOLE, inner: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[HttpxTransport, Peer, Peer]]:
    """Open a transport, a proxy and a server, all encrypted."""
    with (
        Peer(script, tls=inner or tls[0]) as server,
        Peer(relay_of(server.port, keep), tls=tls[0]) as proxy,
    ):
        transport = HttpxTransport(proxy=proxy.url, verify=tls[1])
        try:
            yield transport, server, proxy
        finally:
            await finish(transport)


@both_kinds
async def test_there_and_back(tls: Contexts, kind: str) -> None:
    """A request and its reply, twice; the proxy sees nothing of them."""
    async with through(tls, answering(reply())) as (transport, server, proxy):
        for _ in range(2):
            assert (await transport.send(either(kind, server.url))).content == RECORD
    assert [SIGNATURE in received.head for received in server.requests] == [True, True]
    assert all(SIGNATURE not in received.head for received in proxy.requests)


async def test_a_large_body_and_a_large_reply(tls: Contexts) -> None:
    """Byte for byte, in both directions."""
    content = bytes(range(256)) * 8 * KIB
    async with through(tls, answering(reply(content=content))) as (transport, server, _):
        request, body = upload(server.url, Supply(3 * MIB + 1))
        answer = await transport.send(request)
    assert answer.content == content
    (received,) = server.requests
    assert len(received.body) == body.length
    assert received.body.count(b"x") >= 3 * MIB + 1


async def test_a_certificate_that_nobody_signed(tls: Contexts, tmp_path: Path) -> None:
    """That of the server counts, too, not only that of the proxy; nothing was sent."""
    stranger, _ = server_context(tmp_path)
    async with through(tls, answering(reply()), inner=stranger) as (transport, server, _):
        error = await never_connects(transport, server.url, connect=5)
        assert server.requests == []
    assert "certificate" in error.reason.lower()


@both_kinds
async def test_a_server_that_says_nothing(tls: Contexts, kind: str) -> None:
    """The limits are as everywhere."""
    timeouts = attrs.evolve(PATIENT, reply=0.2, upload_reply=0.2)
    async with through(tls, silent) as (transport, server, _):
        with within(1.5), pytest.raises(TransferTimeout):
            await transport.send(either(kind, server.url, timeouts))


async def test_a_server_that_stops_reading(tls: Contexts) -> None:
    """A stall is one, however many layers it is behind."""
    timeouts = attrs.evolve(PATIENT, send_stall=0.3)
    async with through(tls, deaf) as (transport, server, _):
        request, body = upload(server.url, Supply(64 * MIB), timeouts)
        with within(4), pytest.raises(TransferTimeout, match="reading"):
            await transport.send(request)
    assert not body.complete


async def test_a_line_that_breaks_in_the_reply(tls: Contexts) -> None:
    """Half a reply is none, wherever the proxy breaks off."""
    content = bytes(100 * KIB)
    for keep in (50 * KIB, 101 * KIB):
        async with through(tls, answering(reply(content=content)), keep=keep) as (transport, s, _):
            with within(2), pytest.raises(ConnectionLost):
                await transport.send(call(s.url))


@pytest.mark.parametrize("keep", [1, 100])
async def test_a_line_that_breaks_in_the_handshake(tls: Contexts, keep: int) -> None:
    """Nothing was sent."""
    async with through(tls, answering(reply()), keep=keep) as (transport, server, _):
        await never_connects(transport, server.url, connect=5)


async def test_an_early_answer(tls: Contexts) -> None:
    """It is seen through two layers as through none: the rest is not sent."""
    async with through(tls, early(reply(409), Connection.drain)) as (transport, server, _):
        request, body = upload(server.url, Supply(64 * MIB))
        assert (await transport.send(request)).status == 409
    assert not body.complete


# By itself


class Server:
    """The other end of a layer, in memory."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.received, self.to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.received, self.to_send, server_side=True)

    def greet(self, data: bytes) -> bytes:
        """Go on with the handshake, as far as it can."""
        self.received.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.to_send.read()

    def finish(self, data: bytes) -> None:
        """End the handshake; the session tickets wait for what is said first."""
        self.received.write(data)
        self.tls.do_handshake()

    def say(self, data: bytes) -> bytes:
        """Encrypt."""
        self.tls.write(data)
        return self.to_send.read()

    def hear(self, data: bytes) -> bytes:
        """Decrypt."""
        self.received.write(data)
        heard = bytearray()
        with contextlib.suppress(ssl.SSLWantReadError):
            while piece := self.tls.read(1 << 20):
                heard += piece
        return bytes(heard)


def connected(tls: Contexts) -> tuple[TLSLayer, Server]:
    """Make a layer whose handshake is done, session tickets not yet delivered."""
    layer, server = TLSLayer(tls[1], "127.0.0.1"), Server(tls[0])
    received = b""
    while not layer.shake_hands(received):
        received = server.greet(layer.to_send())
    server.finish(layer.to_send())
    return layer, server


def test_to_and_fro(tls: Contexts) -> None:
    """Each understands the other; nothing goes out in clear."""
    layer, server = connected(tls)
    sent = layer.encrypt(memoryview(b"request"))
    assert b"request" not in sent
    assert server.hear(sent) == b"request"
    assert layer.decrypt(server.say(b"reply")) == b"reply"
    assert not layer.has_ended


def test_a_long_piece(tls: Contexts) -> None:
    """As large as they come; what it wants to send by itself is sent along."""
    layer, server = connected(tls)
    data = bytes(range(256)) * (PIECE_BYTES // 256)
    assert server.hear(layer.encrypt(memoryview(data))) == data
    long = data * 3
    assert layer.decrypt(server.say(long)) == long


def test_session_tickets_are_no_data(tls: Contexts) -> None:
    """They come unasked behind the handshake."""
    layer, server = connected(tls)
    tickets = server.to_send.read()
    assert tickets
    assert layer.decrypt(tickets) == b""
    assert not layer.has_ended


def test_dribbles(tls: Contexts) -> None:
    """A record says nothing until its last byte is there."""
    layer, server = connected(tls)
    record = server.say(b"reply")
    assert [layer.decrypt(bytes([byte])) for byte in record] == [b""] * (len(record) - 1) + [
        b"reply"
    ]


def test_a_farewell(tls: Contexts) -> None:
    """What came before it counts; then it has ended, as often as it is asked."""
    layer, server = connected(tls)
    last = server.say(b"reply")
    with contextlib.suppress(ssl.SSLWantReadError):
        server.tls.unwrap()
    assert layer.decrypt(last + server.to_send.read()) == b"reply"
    assert layer.has_ended
    assert layer.decrypt(b"") == b""


def test_what_is_no_record(tls: Contexts) -> None:
    """An error, before the handshake and behind it; there is an alert for the other end."""
    layer, _ = connected(tls)
    with pytest.raises(ssl.SSLError):
        layer.decrypt(b"HTTP/1.1 200 OK\r\n\r\n")
    assert layer.to_send()
    with pytest.raises(ssl.SSLError):
        TLSLayer(tls[1], "127.0.0.1").shake_hands(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_another_name(tls: Contexts) -> None:
    """A certificate is for a name; the server is told why."""
    layer, server = TLSLayer(tls[1], "other.example.com"), Server(tls[0])
    layer.shake_hands(b"")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example\.com"):
        layer.shake_hands(server.greet(layer.to_send()))
    assert layer.to_send()
