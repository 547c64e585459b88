"""Answers that come while the body still goes out: understood, whatever the peer does next."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable

import attrs
import pytest

from support.peer import PATIENCE, Connection, delivered, in_flight, reply
from support.sending import KIB, MIB, TAIL, Form, Wire, over, until, upload, within

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

RECEIVE_BUFFER = 64 * KIB
"""Of the peer, so that little is in flight."""

MOST_BEHIND = MIB
"""Bytes that may be sent after an answer has arrived."""


def close(_: Early, _connection: Connection) -> None:
    """Close at once; with unread data that is a reset."""


def reset(_: Early, connection: Connection) -> None:
    """Reset right behind the answer."""
    connection.reset()


def linger(seen: Early, connection: Connection) -> None:
    """Close one's own direction and read what still comes, as a careful server does."""
    if isinstance(connection.sock, ssl.SSLSocket):
        seen.after += connection.sock.pending()
        with contextlib.suppress(OSError):  # as shutdown() of an SSLSocket drops its TLS
            socket.socket.shutdown(connection.sock, socket.SHUT_WR)
    else:
        connection.sock.shutdown(socket.SHUT_WR)
    keep_alive(seen, connection)


def keep_alive(seen: Early, connection: Connection) -> None:
    """Read on as if nothing had been said."""
    seen.after += len(connection._ahead)
    connection._ahead = b""
    while data := connection.sock.recv(64 * KIB):
        seen.after += len(data)


def stop(_: Early, connection: Connection) -> None:
    """Read no more and hold the connection open."""
    connection.closed_within(PATIENCE)


READING = {linger, keep_alive}


@attrs.define
class Early:
    """A script that answers amid the body, and what it saw of the client."""

    pieces: list[bytes] = attrs.field(repr=False)
    before: int
    """Bytes of the body that it reads first."""
    then: Callable[[Early, Connection], None] = attrs.field(repr=lambda then: then.__name__)
    in_flight: int = 0
    """Bytes that were sent before the answer and not read."""
    after: int = 0
    """Bytes that arrived after the answer had left, those in flight included."""

    def __call__(self, connection: Connection) -> None:
        """Serve one connection."""
        connection.read_head()
        self.before = min(self.before, connection.request.length - len(TAIL) - 1)
        connection.read_body(self.before, keep=False)
        if self.then in READING:  # so that what is sent behind the answer can be told
            self.in_flight = in_flight(connection, connection.request.length - self.before)
        for piece in self.pieces:
            connection.send(piece)
        if len(self.pieces) > 1:  # a reset would discard what the kernel still holds back
            delivered(connection)
        self.then(self, connection)


@pytest.mark.parametrize("then", [close, reset, linger, keep_alive, stop])
@pytest.mark.parametrize(
    ("status", "before"),
    [(413, 0), (503, 1 << 60), (409, MIB)],
)
async def test_an_early_answer(
    wire: Wire, status: int, then: Callable[[Early, Connection], None], before: int
) -> None:
    """It is the reply, promptly, with little more sent; nothing stays open."""
    seen = Early([reply(status)], before, then)
    form = Form(8 * MIB)
    async with over(wire, seen, receive_buffer=RECEIVE_BUFFER) as (transport, peer):
        with within(5):
            answer = await transport.send(upload(peer.url, form))
        assert answer.status == status
        if then is not stop:  # one who does not read does not notice
            await until(lambda: not peer.open)
    assert peer.connected == 1
    assert seen.before <= form.sent
    if then in READING:
        assert seen.after - seen.in_flight <= MOST_BEHIND * 1.01, seen  # TLS adds some


@pytest.mark.parametrize("then", [close, reset, linger, keep_alive, stop])
async def test_an_early_answer_to_a_small_document(
    wire: Wire, then: Callable[[Early, Connection], None]
) -> None:
    """It is the reply, whether the document was out or not."""
    seen = Early([reply(409)], 0, then)
    async with over(wire, seen) as (transport, peer):
        with within(5):
            assert (await transport.send(upload(peer.url, Form(4 * KIB)))).status == 409


@pytest.mark.parametrize("then", [close, linger, keep_alive, stop])
async def test_an_early_answer_in_pieces(
    wire: Wire, then: Callable[[Early, Connection], None]
) -> None:
    """After an interim reply, and cut amid its first line."""
    data = b"HTTP/1.1 100 Continue\r\n\r\n" + reply(413, b"no" * 50_000)
    seen = Early([data[:30], data[30:36], data[36:]], MIB, then)
    async with over(wire, seen, receive_buffer=RECEIVE_BUFFER) as (transport, peer):
        with within(5):
            answer = await transport.send(upload(peer.url, Form(8 * MIB)))
    assert (answer.status, len(answer.content)) == (413, 100_000)


@pytest.mark.parametrize("then", [close, reset, stop])
async def test_an_answer_while_the_client_is_blocked(
    wire: Wire, then: Callable[[Early, Connection], None]
) -> None:
    """The peer stops reading, and says later why; that is found long before the stall ends."""

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.closed_within(0.3)
        connection.send(reply(413))
        then(Early([], 0, then), connection)

    form = Form(64 * MIB, chunk=512 * KIB)
    async with over(wire, script, receive_buffer=RECEIVE_BUFFER) as (transport, peer):
        with within(5):
            assert (await transport.send(upload(peer.url, form))).status == 413
    assert 0 < form.sent < 32 * MIB


@pytest.mark.parametrize("data", [reply(200), b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 4", b""])
async def test_what_is_no_reason_to_stop(wire: Wire, data: bytes) -> None:
    """An early success or half a line: the request is completed."""

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.send(data)
        connection.read_body(keep=False)
        if not data.startswith(b"HTTP/1.1 2"):
            connection.send(reply() if not data.endswith(b"4") else b"00 Bad\r\n\r\n")

    form = Form(8 * MIB)
    async with over(wire, script, receive_buffer=RECEIVE_BUFFER) as (transport, peer):
        answer = await transport.send(upload(peer.url, form))
    assert answer.status == (400 if data.endswith(b"4") else 200)
    assert form.is_complete
