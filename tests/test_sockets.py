"""Streams on raw sockets: gathering, early answers, stalls, resets, TLS."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import AsyncIterator, Iterator

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs
import httpcore
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
from meeting_async._sockets import SocketBackend, SocketStream
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


# What a refusal is


# One stream between two ends in the hands of the test


@attrs.define
class Pair:
    """A stream, and the peer's end."""

    stream: SocketStream
    peer: socket.socket
    cuts: list[str]

    def received(self) -> list[bytes]:
        """Take what has arrived at the peer, one item for each packet where the kind has any."""
        found = []
        self.peer.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while data := self.peer.recv(1 << 20):
                found.append(data)
        return found

    def reset(self) -> None:
        """Close the peer's end with RST instead of FIN."""
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.peer.close()

    async def blocked(self, stall: float | None = 5) -> None:
        """Write more than all buffers hold."""
        await self.stream.write(bytes(64 * MIB), stall)


@pytest.fixture
async def packets() -> AsyncIterator[Pair]:
    """Provide a stream on sockets that keep the bounds of each send."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with paired(ours, theirs) as pair:
        yield pair


@pytest.fixture
async def tcp() -> AsyncIterator[Pair]:
    """Provide a stream over loopback, with small buffers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * KIB)
        ours = socket.socket()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * KIB)
        ours.connect(listener.getsockname())
        theirs, _ = listener.accept()
    with paired(ours, theirs) as pair:
        yield pair


@contextlib.contextmanager
def paired(ours: socket.socket, theirs: socket.socket) -> Iterator[Pair]:
    """Make a stream of one end, and close both in the end."""
    ours.setblocking(False)
    cuts: list[str] = []
    stream = SocketStream(httpcore, ours, lambda: cuts.append("cut"))
    with theirs:
        yield Pair(stream, theirs, cuts)
        stream.close()


async def test_a_small_request_is_one_packet(packets: Pair) -> None:
    """Head and body are gathered until reading begins."""
    for part in (b"head", b"body", b""):
        await packets.stream.write(part, 1)
    assert packets.received() == []
    packets.peer.send(b"reply")
    assert await packets.stream.read(100, 1) == b"reply"
    assert packets.received() == [b"headbody"]
    assert packets.cuts == []


async def test_up_to_16_kib_are_gathered(packets: Pair) -> None:
    """The longest that waits; one byte more takes it along, in order."""
    await packets.stream.write(b"a" * 100, 1)
    await packets.stream.write(b"b" * (16 * KIB - 100), 1)
    assert packets.received() == []
    await packets.stream.write(b"c", 1)
    assert packets.received() == [b"a" * 100 + b"b" * (16 * KIB - 100) + b"c"]
    await packets.stream.write(b"d", 1)
    assert packets.received() == []
    await packets.stream.write(b"e" * 16 * KIB, 1)
    assert packets.received() == [b"d" + b"e" * 16 * KIB]


async def test_a_long_write_lets_other_tasks_run(packets: Pair) -> None:
    """Even if the socket takes everything at once."""
    ran = []

    async def other() -> None:
        ran.append(True)

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        for _ in range(2):  # the order within one round is the loop's
            await packets.stream.write(bytes(20 * KIB), 1)
        assert ran


async def test_reading_in_pieces(tcp: Pair) -> None:
    """As many bytes as asked for, in order; then the end, as often as it is asked for."""
    tcp.peer.send(b"abcdef")
    tcp.peer.shutdown(socket.SHUT_WR)
    assert [await tcp.stream.read(4, 1) for _ in range(4)] == [b"abcd", b"ef", b"", b""]


async def test_nothing_comes_in_time(tcp: Pair) -> None:
    """What comes later is read later."""
    with within(1), pytest.raises(httpcore.ReadTimeout):
        await tcp.stream.read(10, 0.05)
    tcp.peer.send(b"late")
    assert await tcp.stream.read(10, 0.05) == b"late"


async def test_a_reset_while_reading(tcp: Pair) -> None:
    """The error says what the system says."""
    tcp.reset()
    with pytest.raises(httpcore.ReadError, match="reset"):
        await tcp.stream.read(10, 1)


async def test_a_broken_line_does_not_hide_the_answer(tcp: Pair) -> None:
    """What was gathered cannot be sent any more, but what had come is read."""
    await tcp.stream.write(b"request", 1)
    tcp.peer.send(b"HTTP/1.1 503 Busy")
    tcp.peer.close()
    assert await tcp.stream.read(100, 1) == b"HTTP/1.1 503 Busy"
    assert await tcp.stream.read(100, 1) == b""


async def test_everything_goes_out_in_order(tcp: Pair) -> None:
    """However small the pieces that the socket takes."""
    data = bytes(range(256)) * 2000
    got = bytearray()
    thread = threading.Thread(target=lambda: read_exactly(tcp.peer, len(data) + 3, got))
    thread.start()
    await tcp.stream.write(b"abc", 1)
    await tcp.stream.write(data, 1)
    await anyio.to_thread.run_sync(thread.join)
    assert got == b"abc" + data
    assert tcp.cuts == []


def read_exactly(sock: socket.socket, size: int, got: bytearray, pause: float = 0) -> None:
    """Read so many bytes, with a pause before each piece."""
    sock.settimeout(5)
    while len(got) < size:
        time.sleep(pause)
        data = sock.recv(16 * KIB)
        if not data:
            raise EOFError
        got += data


async def test_a_stall_is_the_time_without_progress(tcp: Pair) -> None:
    """A line that always takes a little may take as long as it likes for one write."""
    size = 640 * KIB
    got = bytearray()
    thread = threading.Thread(target=read_exactly, args=(tcp.peer, size, got, 0.02))
    thread.start()
    started = anyio.current_time()
    await tcp.stream.write(bytes(size), 0.3)
    assert anyio.current_time() - started > 0.4
    await anyio.to_thread.run_sync(thread.join)
    assert len(got) == size


@pytest.mark.alone
@pytest.mark.parametrize("limit", [0.02, 0.12, 0.4])
async def test_a_stall_is_given_up_in_time(tcp: Pair, limit: float) -> None:
    """Not before and not much after, however it stands to the times of the glances."""
    started = anyio.current_time()
    with pytest.raises(httpcore.WriteTimeout):
        await tcp.blocked(limit)
    assert limit <= anyio.current_time() - started + 0.005
    assert anyio.current_time() - started < limit + 0.3
    assert tcp.cuts == ["cut"]


async def test_without_a_limit_a_stall_lasts(tcp: Pair) -> None:
    """``None`` is for ever."""
    with anyio.move_on_after(0.4) as scope:
        await tcp.blocked(None)
    assert scope.cancelled_caught


async def test_the_limit_of_a_gathered_write_is_its_own(tcp: Pair) -> None:
    """What is gathered goes out with the limit that was given with it."""
    tcp.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    with contextlib.suppress(BlockingIOError):
        while True:
            tcp.stream.get_extra_info("socket").send(bytes(64 * KIB))
    await tcp.stream.write(b"x" * 100, 0.1)
    with within(1), pytest.raises(httpcore.WriteTimeout):
        await tcp.stream.read(100, 5)


REFUSAL = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"


@pytest.mark.parametrize("then", ["lingers", "closes", "resets"])
async def test_an_answer_to_a_blocked_write(tcp: Pair, then: str) -> None:
    """It is seen though the peer does not read, and whatever it does next."""

    async def answer() -> None:
        await anyio.sleep(0.1)
        tcp.peer.send(REFUSAL)
        await anyio.sleep(0.01)
        if then != "lingers":
            tcp.peer.close() if then == "closes" else tcp.reset()

    async with anyio.create_task_group() as group:
        group.start_soon(answer)
        with within(2), pytest.raises(httpcore.WriteError):
            await tcp.blocked()
    assert tcp.cuts == ["cut"]
    assert await tcp.stream.read(1000, 1) == REFUSAL


async def test_an_answer_that_comes_in_two_parts(tcp: Pair) -> None:
    """The end of the status is what counts."""
    tcp.peer.send(REFUSAL[:10])
    thread = threading.Thread(target=read_exactly, args=(tcp.peer, 20 * KIB, bytearray()))
    thread.start()
    await tcp.stream.write(bytes(20 * KIB), 1)
    await anyio.to_thread.run_sync(thread.join)
    tcp.peer.send(REFUSAL[10:])
    with pytest.raises(httpcore.WriteError):
        await tcp.stream.write(bytes(20 * KIB), 1)
    assert tcp.received() == []
    assert await tcp.stream.read(1000, 1) == REFUSAL


@pytest.mark.parametrize("early", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 103 x\r\n\r\n", b"?"])
async def test_what_is_no_refusal_stops_nothing(packets: Pair, early: bytes) -> None:
    """An early success, an interim reply, nonsense: the request is completed, then it is read."""
    packets.peer.send(early)
    for _ in range(2):
        await packets.stream.write(bytes(20 * KIB), 1)
    assert [len(data) for data in packets.received()] == [20 * KIB] * 2
    assert await packets.stream.read(1000, 1) == early


async def test_a_peer_that_left_gets_nothing(tcp: Pair) -> None:
    """The end of its stream is an answer of a kind: it will never see one of ours."""
    tcp.peer.shutdown(socket.SHUT_WR)
    with pytest.raises(httpcore.WriteError, match="left"):
        await tcp.stream.write(bytes(20 * KIB), 1)
    assert tcp.received() == []
    assert await tcp.stream.read(10, 1) == b""


async def test_a_peer_whose_end_was_read_gets_nothing(tcp: Pair) -> None:
    """It is not forgotten that it left."""
    tcp.peer.shutdown(socket.SHUT_WR)
    assert await tcp.stream.read(10, 1) == b""
    assert not tcp.stream.is_quiet()
    with pytest.raises(httpcore.WriteError, match="left"):
        await tcp.stream.write(bytes(20 * KIB), 1)
    assert tcp.received() == []


async def test_a_write_that_the_line_breaks(tcp: Pair) -> None:
    """A reset amid a write is told as one."""
    tcp.reset()
    with pytest.raises(httpcore.WriteError, match="reset"):
        await tcp.blocked()
    assert tcp.cuts == ["cut"]


@pytest.mark.parametrize("how", ["stall", "refusal", "cancellation"])
async def test_a_request_that_was_cut_is_reset(tcp: Pair, how: str) -> None:
    """Closing drops what the socket still holds, and the peer learns that it is no request."""
    if how == "refusal":
        tcp.peer.send(REFUSAL)
    with anyio.move_on_after(0.1), contextlib.suppress(httpcore.WriteTimeout, httpcore.WriteError):
        await tcp.blocked(0.05 if how == "stall" else 5)
    assert tcp.cuts == ["cut"]
    tcp.stream.close()
    with pytest.raises(ConnectionResetError):
        read_exactly(tcp.peer, 1 << 40, bytearray())


async def test_a_request_that_was_sent_is_closed_in_order(tcp: Pair) -> None:
    """FIN, not RST: what was sent arrives."""
    tcp.peer.send(b"x")
    await tcp.stream.write(b"request", 1)
    await tcp.stream.read(1, 1)
    await tcp.stream.aclose()
    assert (tcp.peer.recv(100), tcp.peer.recv(100)) == (b"request", b"")
    assert tcp.stream.closed


async def test_closing_twice(tcp: Pair) -> None:
    """The second time does nothing, not even to a descriptor with the same number."""
    tcp.stream.close()
    with open(os.devnull) as file:  # noqa: ASYNC230, PTH123 - takes the number
        tcp.stream.close()
        assert os.fstat(file.fileno())


async def test_nothing_works_after_closing(tcp: Pair) -> None:
    """Each way to use it is an error of httpcore's kind, without one more byte on the line."""
    tcp.stream.close()
    assert not tcp.stream.is_quiet()
    with pytest.raises(httpcore.ReadError):
        await tcp.stream.read(10, 1)
    with pytest.raises(httpcore.WriteError):
        await tcp.stream.write(bytes(20 * KIB), 1)
    await tcp.stream.write(b"gathered", 1)
    with pytest.raises(httpcore.ReadError):
        await tcp.stream.read(10, 1)
    assert tcp.peer.recv(100) == b""


@pytest.mark.parametrize("what", ["read", "write"])
async def test_closing_wakes_who_waits(tcp: Pair, what: str) -> None:
    """With an error of httpcore's kind, at once."""
    expected = httpcore.ReadError if what == "read" else httpcore.WriteError

    async def wait() -> None:
        with pytest.raises(expected):
            await (tcp.stream.read(10, 5) if what == "read" else tcp.blocked())

    with within(1):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep(0.05)
            tcp.stream.close()


async def test_two_tasks_read_and_write(tcp: Pair) -> None:
    """One may wait for the answer while the other sends."""
    got: list[bytes] = []

    async def read() -> None:
        got.append(await tcp.stream.read(10, 5))

    size = 640 * KIB
    thread = threading.Thread(target=read_exactly, args=(tcp.peer, size, bytearray(), 0.001))
    thread.start()
    with within(3):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await anyio.sleep(0.01)
            await tcp.stream.write(bytes(size), 5)
            await anyio.to_thread.run_sync(thread.join)
            tcp.peer.send(b"answer")
    assert got == [b"answer"]


@pytest.mark.alone
async def test_hearing(tcp: Pair) -> None:
    """Until the peer says something or leaves, at most so long; what it said is still read."""
    await tcp.stream.write(b"head", 1)
    started = anyio.current_time()
    await tcp.stream.hear(0.1)
    assert 0.09 <= anyio.current_time() - started < 0.3
    assert tcp.received() == [b"head"]
    tcp.peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    with within(1):
        await tcp.stream.hear(5)
        await tcp.stream.hear(5)  # it is still unread
    assert await tcp.stream.read(100, 1) == b"HTTP/1.1 100 Continue\r\n\r\n"
    tcp.peer.close()
    with within(1):
        await tcp.stream.hear(5)


async def test_a_refusal_that_was_heard_stops_the_body(tcp: Pair) -> None:
    """Not one byte of it goes out, though nothing new arrives with it."""
    await tcp.stream.write(b"head", 1)
    await tcp.stream.hear(0.01)
    tcp.peer.send(REFUSAL)
    await tcp.stream.hear(5)
    assert tcp.received() == [b"head"]
    with pytest.raises(httpcore.WriteError):
        await tcp.stream.write(bytes(20 * KIB), 1)
    assert tcp.received() == []
    assert await tcp.stream.read(1000, 1) == REFUSAL


@pytest.mark.parametrize("size", [100, 20 * KIB])
async def test_what_arrived_is_counted_from_the_last_write(tcp: Pair, size: int) -> None:
    """So that surplus can be told from the reply; the beginning is kept, not all of it."""
    for number in range(2):
        await tcp.stream.write(bytes(size), 1)
        tcp.peer.sendall(b"%d" % number * 1000)
        assert len(await tcp.stream.read(600, 1)) == 600
        assert len(await tcp.stream.read(600, 1)) == 400
        assert tcp.stream.arrived == 1000
        assert tcp.stream.opening == b"%d" % number * 1000
        tcp.received()


async def test_the_opening_is_bounded(tcp: Pair) -> None:
    """A long reply is not kept twice."""
    size = MIB
    thread = threading.Thread(target=tcp.peer.sendall, args=(bytes(size),))
    thread.start()
    left = size
    while left:
        left -= len(await tcp.stream.read(MIB, 1))
    await anyio.to_thread.run_sync(thread.join)
    assert tcp.stream.arrived == size
    assert 64 * KIB <= len(tcp.stream.opening) < 128 * KIB


async def test_quiet_is_open_and_read_to_the_end(tcp: Pair) -> None:
    """Anything unread, an end or a reset is noise."""
    assert tcp.stream.is_quiet()
    assert tcp.stream.get_extra_info("is_readable") is False
    tcp.peer.send(b"x")
    assert not tcp.stream.is_quiet()
    assert tcp.stream.get_extra_info("is_readable") is True
    await tcp.stream.read(1, 1)
    assert tcp.stream.is_quiet()
    tcp.peer.shutdown(socket.SHUT_WR)
    assert not tcp.stream.is_quiet()


async def test_a_reset_is_no_quiet(tcp: Pair) -> None:
    """The error is not raised: it only matters that the connection is of no use."""
    tcp.reset()
    assert not tcp.stream.is_quiet()


# TLS


@contextlib.asynccontextmanager
async def encrypted(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], script: Script
) -> AsyncIterator[tuple[SocketStream, Peer]]:
    """Provide a stream whose handshake is done."""
    with Peer(script, tls=tls[0]) as peer:
        stream = await SocketBackend(httpcore).connect_tcp("127.0.0.1", peer.port, 1)
        try:
            assert await stream.start_tls(tls[1], "127.0.0.1", 5) is stream
            yield stream, peer
        finally:
            stream.close()


Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


async def test_session_tickets_are_no_noise(tls: Contexts) -> None:
    """A server sends them unasked behind the handshake; they are no data."""
    async with encrypted(tls, deaf) as (stream, _):
        assert stream.get_extra_info("ssl_object").version() == "TLSv1.3"
        started = anyio.current_time()
        await stream.hear(0.1)
        assert anyio.current_time() - started >= 0.09
        assert stream.is_quiet()
        assert stream.arrived == 0


async def test_all_of_a_long_reply_is_read(tls: Contexts) -> None:
    """Nothing waits in the buffers of TLS while the socket is waited for."""

    def script(connection: Connection) -> None:
        connection.send(b"y" * MIB)
        deaf(connection)

    async with encrypted(tls, script) as (stream, _):
        left = MIB
        with within(3):
            while left:
                left -= len(await stream.read(100, 1) if left == MIB else await stream.read(MIB, 1))
        with pytest.raises(httpcore.ReadTimeout):
            await stream.read(1, 0.05)


async def test_gathering_saves_records_too(tls: Contexts) -> None:
    """A small request is one record."""
    sizes: list[int] = []

    def script(connection: Connection) -> None:
        sizes.append(len(connection.sock.recv(65536)))
        connection.send(b"reply")
        deaf(connection)

    async with encrypted(tls, script) as (stream, _):
        for part in (b"head", b"body"):
            await stream.write(part, 1)
        assert await stream.read(100, 1) == b"reply"
    assert sizes == [8]


async def test_an_encrypted_end(tls: Contexts) -> None:
    """With or without a farewell of TLS."""
    async with encrypted(tls, lambda connection: None) as (stream, _):
        assert await stream.read(10, 1) == b""

    def unwrap(connection: Connection) -> None:
        assert isinstance(connection.sock, ssl.SSLSocket)
        connection.sock.unwrap()

    async with encrypted(tls, unwrap) as (stream, _):
        assert await stream.read(10, 1) == b""


def spoil(connection: Connection) -> None:
    """Send what is no record of TLS."""
    with socket.socket(fileno=os.dup(connection.sock.fileno())) as raw:
        raw.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    deaf(connection)


async def test_what_is_no_record_of_tls(tls: Contexts) -> None:
    """An error in either direction, and no quiet."""
    async with encrypted(tls, spoil) as (stream, _):
        await anyio.sleep(0.05)
        with pytest.raises(httpcore.ReadError):
            await stream.read(10, 1)
    async with encrypted(tls, spoil) as (stream, _):
        await anyio.sleep(0.05)
        with pytest.raises(httpcore.WriteError):
            await stream.write(bytes(20 * KIB), 1)
    async with encrypted(tls, spoil) as (stream, _):
        await anyio.sleep(0.05)
        assert not stream.is_quiet()


async def test_tls_within_tls(tls: Contexts) -> None:
    """The second handshake goes through the first; its failures have the same names."""
    seen: list[bytes] = []

    def script(connection: Connection) -> None:
        seen.append(connection.sock.recv(1))
        connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        deaf(connection)

    async with encrypted(tls, script) as (stream, _):
        with pytest.raises(httpcore.ConnectError):
            await stream.start_tls(tls[1], "127.0.0.1", 5)
    assert seen == [b"\x16"]  # a handshake (RFC 8446 section 5.1)
    async with encrypted(tls, deaf) as (stream, _):
        with pytest.raises(httpcore.ConnectTimeout):
            await stream.start_tls(tls[1], "127.0.0.1", 0.05)


async def test_closing_wakes_a_handshake(tls: Contexts) -> None:
    """As it wakes who reads and who writes."""
    with Peer(deaf) as peer:
        stream = await SocketBackend(httpcore).connect_tcp("127.0.0.1", peer.port, 1)

        async def shake() -> None:
            with pytest.raises(httpcore.ConnectError):
                await stream.start_tls(tls[1], "127.0.0.1", 5)

        with within(1):
            async with anyio.create_task_group() as group:
                group.start_soon(shake)
                await anyio.sleep(0.05)
                stream.close()


async def test_a_handshake_is_limited(tls: Contexts) -> None:
    """By its own time."""
    with Peer(deaf) as peer:
        stream = await SocketBackend(httpcore).connect_tcp("127.0.0.1", peer.port, 1)
        with within(1), pytest.raises(httpcore.ConnectTimeout):
            await stream.start_tls(tls[1], "127.0.0.1", 0.05)
        stream.close()


async def test_what_came_before_the_handshake_is_not_taken_for_encrypted(
    tls: Contexts,
) -> None:
    """Whoever sits on the way, in clear, could otherwise put words in the server's mouth."""

    def script(connection: Connection) -> None:
        connection.send(b"+" + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        sock = tls[0].wrap_socket(connection.sock, server_side=True)
        sock.recv(100)
        sock.close()

    with Peer(script) as peer:
        stream = await SocketBackend(httpcore).connect_tcp("127.0.0.1", peer.port, 1)
        try:
            assert await stream.read(1, 1) == b"+"
            with pytest.raises(httpcore.ConnectError):
                await stream.start_tls(tls[1], "127.0.0.1", 1)
        finally:
            stream.close()


# The backend


async def test_the_backend_keeps_its_stream_in_sight() -> None:
    """Whatever httpcore makes of it."""
    backend = SocketBackend(httpcore)
    assert vars(backend)["stream"] is None
    with Peer(deaf) as peer:
        stream = await backend.connect_tcp("127.0.0.1", peer.port, 1)
        assert backend.stream is stream
        assert stream.get_extra_info("socket").getpeername()[1] == peer.port
        assert stream.get_extra_info("ssl_object") is None
        assert stream.get_extra_info("no such thing") is None
        stream.close()
        with pytest.raises(httpcore.WriteError):  # nobody is told, and nobody misses it
            await stream.write(bytes(20 * KIB), 1)


async def test_who_is_told_of_a_cut_may_change() -> None:
    """Each request on a connection has its own."""
    backend = SocketBackend(httpcore)
    told: list[str] = []
    backend.on_cut = lambda: told.append("first")
    with Peer(deaf) as peer:
        stream = await backend.connect_tcp("127.0.0.1", peer.port, 1)
        backend.on_cut = lambda: told.append("second")
        stream.close()
        with pytest.raises(httpcore.WriteError):
            await stream.write(bytes(20 * KIB), 1)
    assert told == ["second"]


async def test_the_backend_fails_in_httpcores_words(unanswering: str) -> None:
    """Refused, too late, unknown."""
    backend = SocketBackend(httpcore)
    with pytest.raises(httpcore.ConnectError, match="refused"):
        await backend.connect_tcp("127.0.0.1", closed_port(), 1)
    with within(1), pytest.raises(httpcore.ConnectTimeout):
        await backend.connect_tcp("127.0.0.1", int(unanswering.rpartition(":")[2]), 0.05)
    with pytest.raises(httpcore.ConnectError):
        await backend.connect_tcp("no-such-host.invalid", 1, 5)
    assert backend.stream is None
