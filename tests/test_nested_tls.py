"""An ``https`` server behind a proxy that is itself reached by ``https``."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import httpcore
import pytest

from _peer import (
    RECORD,
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
from meeting_async._nested_tls import NestedTLS
from meeting_async.errors import ConnectionLost, TransferTimeout

pytestmark = pytest.mark.anyio

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


def relay_of(port: int, keep: int = 1 << 60) -> Script:
    """Make a tunnel to a port; break it when so many bytes have come back."""

    def script(connection: Connection) -> None:
        connection.read_head()
        assert connection.request.head.startswith(b"CONNECT ")
        connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
        with socket.create_connection(("127.0.0.1", port), 1) as server:
            thread = threading.Thread(target=pump, args=(connection.sock, server))
            thread.start()
            pump(server, connection.sock, keep)
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
            thread.join()

    return script


def pump(source: socket.socket, target: socket.socket, keep: int = 1 << 60) -> None:
    """Pass on what comes, up to so many bytes."""
    with contextlib.suppress(OSError):
        while keep > 0 and (data := source.recv(min(65536, keep))):
            keep -= len(data)
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextlib.asynccontextmanager
async def through(
    tls: Contexts, script: Script, *, keep: int = 1 << 60, inner: ssl.SSLContext | None = None
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
    """It is seen when the body is out."""
    async with through(tls, early(reply(409), Connection.drain)) as (transport, server, _):
        assert (await transport.send(upload(server.url, Supply(MIB))[0])).status == 409


# By itself


class Lines:
    """An outer stream in memory, whose other end is a TLS server in memory."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.to_server, self.to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = context.wrap_bio(self.to_server, self.to_client, server_side=True)
        self.timeouts: list[float | None] = []
        self.closed = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """Let the server go on as far as it can."""
        self.timeouts.append(timeout)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.server.do_handshake()
        return self.to_client.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Hand bytes to the server."""
        self.timeouts.append(timeout)
        self.to_server.write(buffer)

    async def aclose(self) -> None:
        """Note it."""
        self.closed = True

    def get_extra_info(self, info: str) -> Any:
        """Answer anything."""
        return f"the outer {info}"


async def nested(tls: Contexts) -> tuple[NestedTLS, Lines]:
    """Make a stream whose handshake is done."""
    lines = Lines(tls[0])
    stream = NestedTLS(httpcore, lines, tls[1], "127.0.0.1")
    await stream.shake_hands()
    return stream, lines


async def test_the_limits_are_handed_on(tls: Contexts) -> None:
    """Those of each call go to the outer stream; a handshake is limited from outside."""
    stream, lines = await nested(tls)
    assert set(lines.timeouts) == {None}
    lines.timeouts.clear()
    await stream.write(b"request", 2.5)
    with contextlib.suppress(ssl.SSLWantReadError):
        lines.server.do_handshake()
    assert lines.server.read(100) == b"request"
    lines.server.write(b"reply")
    assert await stream.read(100, 7) == b"reply"
    assert set(lines.timeouts) == {2.5, 7}


async def test_long_writes_go_out_in_pieces(tls: Contexts) -> None:
    """So that they need not be held twice in memory."""
    stream, lines = await nested(tls)
    lines.timeouts.clear()
    data = bytes(range(256)) * KIB
    await stream.write(data)
    assert len(lines.timeouts) == 4
    got = b""
    while len(got) < len(data):
        got += lines.server.read(1 << 20)
    assert got == data


async def test_reading_no_more_than_asked(tls: Contexts) -> None:
    """The rest is read without the outer stream."""
    stream, lines = await nested(tls)
    lines.server.do_handshake()
    lines.server.write(b"abcdef")
    assert await stream.read(4) == b"abcd"
    lines.timeouts.clear()
    assert await stream.read(4) == b"ef"
    assert lines.timeouts == []


@pytest.mark.parametrize("farewell", [True, False])
async def test_the_end(tls: Contexts, farewell: bool) -> None:
    """With or without a farewell of TLS, as often as it is asked for."""
    stream, lines = await nested(tls)
    lines.server.do_handshake()
    if farewell:
        with contextlib.suppress(ssl.SSLWantReadError):
            lines.server.unwrap()
    assert [await stream.read(10), await stream.read(10)] == [b"", b""]


async def test_what_is_no_record(tls: Contexts) -> None:
    """An error of httpcore's kind, in both directions."""
    stream, lines = await nested(tls)
    lines.server.do_handshake()
    lines.to_client.write(b"HTTP/1.1 200 OK\r\n\r\n")
    with pytest.raises(httpcore.ReadError):
        await stream.read(10)
    with pytest.raises(httpcore.WriteError):
        await stream.write(b"request")


async def test_what_it_passes_on(tls: Contexts) -> None:
    """Closing, and what is asked of the socket; the TLS object is the inner one."""
    stream, lines = await nested(tls)
    assert stream.get_extra_info("socket") == "the outer socket"
    assert isinstance(stream.get_extra_info("ssl_object"), ssl.SSLObject)
    await stream.aclose()
    assert lines.closed
