"""The byte stream by itself: gathering, reading in pieces, stalls, closing."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs
import httpcore
import pytest

from meeting_async._http.socket import SocketStream
from meeting_async._http.tls import Tls
from meeting_async.errors import TransferTimeout
from support.peer import reply
from support.sending import KIB, MIB, call, within

pytestmark = [pytest.mark.anyio]

both_loops = pytest.mark.both_loops


@attrs.define
class Pair:
    """A stream in the middle of a request, and the peer's end."""

    stream: SocketStream
    peer: socket.socket

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

    async def write(self, data: bytes) -> None:
        """Write without regard to what is gathered."""
        await self.stream.write(data)
        await self.stream._flush()


@contextmanager
def paired(ours: socket.socket, theirs: socket.socket, stall: float) -> Generator[Pair]:
    """Make a stream of one end, and close both in the end."""
    ours.setblocking(False)
    stream = SocketStream(ours, None, anyio.lowlevel.current_token())
    stream.begin(call("http://x", stall_timeout=stall))
    with theirs:
        yield Pair(stream, theirs)
        stream.close()


@pytest.fixture
async def packets() -> AsyncGenerator[Pair]:
    """Provide a stream on sockets that keep the bounds of each send."""
    with paired(*socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET), stall=10) as pair:
        yield pair


@pytest.fixture(params=[10.0])
async def tcp(request: pytest.FixtureRequest) -> AsyncGenerator[Pair]:
    """Provide a stream over loopback, with small buffers; the parameter is its stall timeout."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * KIB)
        ours = socket.socket()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * KIB)
        ours.connect(listener.getsockname())
        theirs, _ = listener.accept()
    with paired(ours, theirs, request.param) as pair:
        yield pair


def stalls_after(seconds: float) -> pytest.MarkDecorator:
    """Set the stall timeout of a test's stream."""
    return pytest.mark.parametrize("tcp", [seconds], indirect=True)


# --- gathering -----------------------------------------------------------------------------------


async def test_a_small_request_is_one_packet(packets: Pair) -> None:
    """Head and body are gathered until reading begins."""
    for part in (b"head", b"body", b""):
        await packets.stream.write(part)
    assert packets.received() == []
    assert packets.stream.body_sent == 0
    packets.peer.send(b"reply")
    assert await packets.stream.read(100) == b"reply"
    assert packets.received() == [b"headbody"]
    assert packets.stream.body_sent == 4


async def test_up_to_16_kib_are_gathered(packets: Pair) -> None:
    """One byte more takes them along, in order; of the head, as much as there is."""
    await packets.stream.write(b"h" * 20 * KIB)
    await packets.stream.write(b"b" * 100)
    assert packets.received() == [b"h" * 20 * KIB + b"b" * 100]
    await packets.stream.write(b"c" * 16 * KIB)
    assert packets.received() == []
    await packets.stream.write(b"d")
    assert packets.received() == [b"c" * 16 * KIB + b"d"]
    await packets.stream.write(b"e" * 17 * KIB)
    assert packets.received() == [b"e" * 17 * KIB]
    assert packets.stream.body_sent == 100 + 16 * KIB + 1 + 17 * KIB


@both_loops
async def test_a_long_write_lets_other_tasks_run(packets: Pair) -> None:
    """After a few milliseconds, even if the socket takes everything at once."""
    ran = []

    async def other() -> None:
        ran.append(True)

    await packets.stream.write(bytes(20 * KIB))  # the first one always does
    async with anyio.create_task_group() as group:
        group.start_soon(other)
        began = time.monotonic()
        while not ran and time.monotonic() - began < 0.1:  # others may have the core
            await packets.stream.write(bytes(20 * KIB))
            packets.received()
        assert ran


# --- reading -------------------------------------------------------------------------------------


async def test_the_end_is_read_as_often_as_it_is_asked_for(tcp: Pair) -> None:
    """After everything that came before it."""
    tcp.peer.send(b"abcdef")
    tcp.peer.shutdown(socket.SHUT_WR)
    assert [await tcp.stream.read(4) for _ in range(3)] == [b"abcdef", b"", b""]


async def test_a_piece_has_at_most_250_lines(tcp: Pair) -> None:
    """What frames them is handed over with them; nothing is lost."""
    data = b"HTTP/1.1 200 OK\r\n\r\n" + b"x\n" * 1000 + b"y" * 100
    tcp.peer.send(data)
    pieces: list[bytes] = []
    while sum(len(piece) for piece in pieces) < len(data):
        pieces.append(await tcp.stream.read(1 << 20))
    assert b"".join(pieces) == data
    assert [piece.count(b"\n") for piece in pieces] == [250, 250, 250, 250, 2][: len(pieces)]


async def test_a_reset_while_reading(tcp: Pair) -> None:
    """The error is the system's."""
    tcp.reset()
    with pytest.raises(ConnectionResetError):
        await tcp.stream.read(10)


async def test_a_broken_connection_does_not_hide_the_answer(tcp: Pair) -> None:
    """What was gathered cannot be sent any more, but what had come is read."""
    await tcp.stream.write(b"request")
    tcp.peer.send(reply(503))
    tcp.peer.close()
    assert await tcp.stream.read(100) == reply(503)
    assert await tcp.stream.read(100) == b""
    assert tcp.stream.body_sent == 0


# --- stalls --------------------------------------------------------------------------------------


@both_loops
@pytest.mark.parametrize("tcp", [0.02, 0.12, 0.4], indirect=True)
async def test_a_stall_is_given_up_in_time(tcp: Pair) -> None:
    """Not before, and not much after on a machine that is not busy."""
    limit = tcp.stream._request.stall_timeout
    started = anyio.current_time()
    with pytest.raises(TransferTimeout, match=f"stopped reading for {limit:g} s"):
        await tcp.write(bytes(64 * MIB))
    assert limit <= anyio.current_time() - started + 0.005
    assert anyio.current_time() - started < limit + 2


@both_loops
@stalls_after(0.5)
async def test_progress_is_no_stall(tcp: Pair) -> None:
    """A peer that always takes a little may take as long as it likes for one write."""
    size, got = 640 * KIB, bytearray()
    thread = threading.Thread(target=_read_slowly, args=(tcp.peer, size, got))
    thread.start()
    started = anyio.current_time()
    await tcp.write(bytes(size))
    assert anyio.current_time() - started > 0.6
    await anyio.to_thread.run_sync(thread.join)
    assert len(got) == size


def _read_slowly(sock: socket.socket, size: int, got: bytearray) -> None:
    pause = threading.Event()
    sock.settimeout(10)
    while len(got) < size:
        pause.wait(0.03)
        got += sock.recv(16 * KIB)


@stalls_after(0.3)
async def test_a_peer_that_answered_well_and_stopped_reading(tcp: Pair) -> None:
    """An early success ends the stall: httpcore goes on to read it."""
    tcp.peer.send(reply(200))
    with pytest.raises(httpcore.WriteError, match="stopped reading"):
        await tcp.write(bytes(64 * MIB))
    assert await tcp.stream.read(1000) == reply(200)


# --- breaking and closing ------------------------------------------------------------------------


async def test_a_peer_that_left_gets_nothing(tcp: Pair) -> None:
    """Whether its end was read before or not: it will never see a request."""
    tcp.peer.shutdown(socket.SHUT_WR)
    for _ in range(2):
        with pytest.raises(httpcore.WriteError, match="left"):
            await tcp.write(bytes(20 * KIB))
        assert await tcp.stream.read(10) == b""
    assert tcp.received() == []


async def test_a_write_that_breaks(tcp: Pair) -> None:
    """Httpcore goes on to read."""
    tcp.reset()
    with pytest.raises(httpcore.WriteError, match="reset"):
        await tcp.write(bytes(64 * MIB))


@stalls_after(0.05)
@pytest.mark.parametrize("how", ["stall", "refusal", "cancellation"])
async def test_a_fragment_is_reset(tcp: Pair, how: str) -> None:
    """Closing drops what the socket still holds, and the peer learns that it is no request."""
    if how == "refusal":
        tcp.peer.send(reply(413))
    with (
        anyio.move_on_after(0.02 if how == "cancellation" else 5),
        contextlib.suppress(TransferTimeout, httpcore.WriteError),
    ):
        await tcp.write(bytes(64 * MIB))
    tcp.stream.close()
    tcp.peer.settimeout(5)
    with pytest.raises(ConnectionResetError):
        _drain(tcp.peer)


def _drain(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass


async def test_a_request_that_was_sent_is_closed_in_order(tcp: Pair) -> None:
    """FIN, not RST: what was sent arrives."""
    await tcp.write(b"request")
    await tcp.stream.aclose()
    assert (tcp.peer.recv(100), tcp.peer.recv(100)) == (b"request", b"")


async def test_closing_twice(tcp: Pair) -> None:
    """The second time does nothing, not even to a descriptor with the same number."""
    tcp.stream.close()
    with open(os.devnull) as file:  # noqa: ASYNC230 - takes the number
        tcp.stream.close()
        assert os.fstat(file.fileno())


async def test_nothing_works_after_closing(tcp: Pair) -> None:
    """Not one more byte is sent."""
    tcp.stream.close()
    assert not tcp.stream.is_quiet()
    with pytest.raises(OSError, match="Bad file"):
        await tcp.stream.read(10)
    with pytest.raises(httpcore.WriteError):
        await tcp.write(bytes(20 * KIB))
    assert tcp.peer.recv(100) == b""


@both_loops
@pytest.mark.parametrize("what", ["read", "write"])
async def test_closing_wakes_who_waits(tcp: Pair, what: str) -> None:
    """At once, with an error."""

    async def wait() -> None:
        with pytest.raises((OSError, httpcore.WriteError)):
            await (tcp.stream.read(10) if what == "read" else tcp.write(bytes(64 * MIB)))

    with within(5):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep(0.05)
            tcp.stream.close()


class FullOfAnswers:
    """Stands for TLS that has more to say than the socket takes."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._left = bytes(64 * MIB)

    def records(self) -> memoryview:
        """Return all of it once."""
        left, self._left = self._left, b""
        return memoryview(left)

    def receive(self) -> bytes:
        """Return what has arrived."""
        return self._socket.recv(65536)


@both_loops
async def test_a_reply_does_not_wait_for_what_tls_still_has_to_say(tcp: Pair) -> None:
    """It is read at once, and the connection is not used again."""
    ours = tcp.stream._socket
    stream = SocketStream(ours, cast(Tls, FullOfAnswers(ours)), anyio.lowlevel.current_token())
    stream.begin(call("http://x"))
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    async def reply_later() -> None:
        await anyio.sleep(0.1)
        tcp.peer.send(answer)

    with within(2):
        async with anyio.create_task_group() as group:
            group.start_soon(reply_later)
            assert await stream.read(1000) == answer
    assert not stream.carried_only([(b"content-length", b"0")], 0)


class Sparing(FullOfAnswers):
    """Stands for TLS that makes records of less than it is given."""

    def encrypt(self, data: memoryview) -> int:
        """Take 7,000 bytes at most."""
        self._left = bytes(data[:7000])
        return len(self._left)


@both_loops
async def test_tls_may_take_less_than_it_is_given(tcp: Pair) -> None:
    """The rest follows, in order."""
    ours = tcp.stream._socket
    stream = SocketStream(ours, cast(Tls, Sparing(ours)), anyio.lowlevel.current_token())
    stream.begin(call("http://x"))
    content = bytes(range(256)) * 200
    await stream.write(b"head")
    await stream.write(content)
    received = b""
    while len(received) < len(content) + 4:
        received += tcp.peer.recv(64 * KIB)
    assert received == b"head" + content
    assert stream.body_sent == len(content)


async def test_quiet_is_open_and_read_to_the_end(tcp: Pair) -> None:
    """Anything unread, an end or a reset is not quiet."""
    assert tcp.stream.is_quiet()
    tcp.peer.send(b"x")
    await anyio.sleep(0.01)
    assert not tcp.stream.is_quiet()
    assert await tcp.stream.read(1) == b"x"
    assert tcp.stream.is_quiet()
    tcp.reset()
    await anyio.sleep(0.01)
    assert not tcp.stream.is_quiet()
