"""One connection on a socket pair: gathering, stalls, breaking, closing, TLS that is odd."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs
import pytest

from meeting_async._http.connection import Connection
from meeting_async._http.origins import Origin
from meeting_async._http.stream import RECORD_OVERHEAD, Stream
from meeting_async._http.tls import Tls
from meeting_async._models import Reply, Request
from support.peer import reply
from support.sending import KIB, MIB, Form, call, upload, within

pytestmark = [pytest.mark.anyio]

both_loops = pytest.mark.both_loops

ANSWER = reply(200)
ORIGIN = Origin(("x", 80), "x:80", ((b"Host", b"x"),), None, None)


@attrs.define
class Pair:
    """A stream, and the peer's end of the connection."""

    ours: socket.socket
    peer: socket.socket
    stream: Stream
    stall: float

    def received(self) -> list[bytes]:
        """Take what has arrived at the peer, one item for each packet where the kind has any."""
        found = []
        self.peer.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while data := self.peer.recv(1 << 20):
                found.append(data)
        return found

    def encrypt(self, tls: object) -> None:
        """Put what stands for TLS between."""
        self.stream = Stream(self.ours, cast(Tls, tls), anyio.lowlevel.current_token())

    async def exchange(self, request: Request) -> Reply:
        """Send a request and receive its reply."""
        return await Connection(ORIGIN, self.stream).send(request, b"/auth", sharing=1)

    async def send(self, form: Form) -> Reply:
        """Upload a form."""
        return await self.exchange(upload("http://x", form, stall_timeout=self.stall))


def big() -> Form:
    """Make a form that no buffer holds."""
    return Form(64 * MIB, chunk=MIB)


@contextmanager
def paired(ours: socket.socket, theirs: socket.socket, stall: float = 10) -> Generator[Pair]:
    """Make a stream of one end, and close both in the end."""
    ours.setblocking(False)
    stream = Stream(ours, None, anyio.lowlevel.current_token())
    with theirs:
        yield Pair(ours, theirs, stream, stall)
        stream.close()


@pytest.fixture
async def packets() -> AsyncGenerator[Pair]:
    """Provide a stream on sockets that keep the bounds of each send."""
    with paired(*socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as pair:
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


@contextmanager
def answered_when(
    pair: Pair, whole: int, *, slowly: list[float] | None = None
) -> Iterator[bytearray]:
    """Read so many bytes of body in a thread, then answer; provide all that was read.

    ``slowly``: the time of the stream, which goes on by 0.1 s with each read of a little.
    """
    got = bytearray()

    def serve() -> None:
        pause = threading.Event()
        pair.peer.settimeout(20)
        while b"\r\n\r\n" not in got or len(got) - got.index(b"\r\n\r\n") - 4 < whole:
            if slowly:
                pause.wait(0.03)
                slowly[0] += 0.1
            got.extend(pair.peer.recv(16 * KIB if slowly else MIB))
        pair.peer.sendall(ANSWER)

    thread = threading.Thread(target=serve)
    thread.start()
    yield got
    thread.join()


# --- sending -------------------------------------------------------------------------------------


async def test_up_to_16_kib_are_gathered(packets: Pair) -> None:
    """So a form of small chunks takes few packets."""
    form = Form(100 * KIB, chunk=KIB)
    packets.peer.settimeout(10)
    found: list[bytes] = []

    def serve() -> None:
        while sum(map(len, found)) < form.length:
            found.append(packets.peer.recv(MIB))
        packets.peer.send(ANSWER)

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, serve)
        await packets.send(form)
    assert b"".join(found).endswith(form.content)
    assert len(found) <= 8
    assert form.is_complete


@attrs.define
class Meanwhile(Form):
    """A form before whose every chunk the peer does something at once."""

    does: Callable[[], object] = list

    async def __anext__(self) -> bytes:
        self.does()
        return await super().__anext__()


async def test_a_long_upload_lets_other_tasks_run(packets: Pair) -> None:
    """After a few milliseconds, even if the socket takes everything at once."""
    turns = found = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async def end() -> None:
        nonlocal found
        found = turns
        packets.peer.send(ANSWER)

    form = Meanwhile(20 * MIB, 20 * MIB, end, chunk=20 * KIB, does=packets.received)
    async with anyio.create_task_group() as group:
        group.start_soon(other)
        await packets.send(form)
        group.cancel_scope.cancel()
    assert found > 3


async def test_an_answer_without_end_is_not_read_during_the_upload(packets: Pair) -> None:
    """The peer gets rid of no more than a few buffers, however fast it is."""
    packets.peer.setblocking(False)
    written = packets.peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")

    def flood() -> None:
        nonlocal written
        packets.received()
        with contextlib.suppress(BlockingIOError):
            while True:
                written += packets.peer.send(bytes(8 * KIB))

    async def end() -> None:
        scope.cancel()

    with anyio.CancelScope() as scope:
        await packets.send(Meanwhile(20 * MIB, 20 * MIB, end, chunk=20 * KIB, does=flood))
    assert written < MIB


# --- stalls --------------------------------------------------------------------------------------


@both_loops
@pytest.mark.parametrize("tcp", [0.5], indirect=True)
async def test_progress_is_no_stall(tcp: Pair) -> None:
    """A peer that always takes a little may take as long as it likes for one chunk."""
    form, clock = Form(640 * KIB, chunk=MIB), [0.0]
    tcp.stream.now = lambda: clock[0]
    with answered_when(tcp, form.length, slowly=clock) as got:
        assert (await tcp.send(form)).status == 200
    assert clock[0] > 2
    assert got.endswith(form.content)


@pytest.mark.parametrize("tcp", [0.3], indirect=True)
async def test_a_peer_that_answered_well_and_stopped_reading(tcp: Pair) -> None:
    """The stall ends the upload, and the early success is told as one."""
    tcp.peer.send(ANSWER)
    answer = await tcp.send(form := big())
    assert answer.status == 200
    assert answer.early
    assert not form.is_complete


async def _after(seconds: float, pair: Pair, data: bytes) -> None:
    await anyio.sleep(seconds)
    pair.peer.setblocking(False)
    pair.peer.send(data)


# --- TLS -----------------------------------------------------------------------------------------


@attrs.define(eq=False)
class FullOfAnswers:
    """Stands for TLS that has more to say than the socket takes, once the request is sent."""

    _socket: socket.socket
    _next: list[bytes] = attrs.field(factory=lambda: [bytes(64 * MIB)])

    def encrypt(self, data: memoryview) -> int:
        """Take everything as it is."""
        self._next.append(bytes(data))
        return len(data)

    def records(self) -> memoryview:
        """Return what there is next."""
        return memoryview(self._next.pop() if self._next else b"")

    def receive(self) -> bytes:
        """Return what has arrived."""
        return self._socket.recv(65536)


@both_loops
async def test_a_reply_does_not_wait_for_what_tls_still_has_to_say(tcp: Pair) -> None:
    """It is read at once, and the connection is not used again."""
    tcp.encrypt(FullOfAnswers(tcp.ours))
    with within(8):
        async with anyio.create_task_group() as group:
            group.start_soon(_after, 0.1, tcp, ANSWER)
            assert (await tcp.exchange(call("http://x", b"{}"))).status == 200
    assert not tcp.stream.is_quiet()


@attrs.define(eq=False)
class Sparing(FullOfAnswers):
    """Stands for TLS that makes records of less than it is given."""

    _next: list[bytes] = attrs.field(factory=list)

    def encrypt(self, data: memoryview) -> int:
        """Take 7,000 bytes at most."""
        return super().encrypt(data[:7000])


async def test_a_record_that_was_begun_is_not_finished_after_a_refusal(tcp: Pair) -> None:
    """Else more of the form would arrive than is told, perhaps its end."""
    tcp.encrypt(Sparing(tcp.ours))
    tcp.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * KIB)
    refusal, form, got = reply(413), big(), bytearray()

    async def read_and_end() -> None:
        await _after(0.2, tcp, refusal[:-1])
        for _ in range(30):
            await anyio.sleep(0.02)
            got.extend(b"".join(tcp.received()))
        await _after(0, tcp, refusal[-1:])

    async with anyio.create_task_group() as group:
        group.start_soon(read_and_end)
        answer = await tcp.send(form)
    assert answer.status == 413
    tcp.ours.shutdown(socket.SHUT_WR)
    got.extend(b"".join(tcp.received()))
    assert answer.sent is not None
    assert 0 <= answer.sent - len(got.partition(b"\r\n\r\n")[2]) <= 2 * RECORD_OVERHEAD


@attrs.define(eq=False)
class Renegotiating(Sparing):
    """Stands for TLS of before 1.3 that takes nothing until the peer has said something."""

    asked: int = 0
    has_heard: bool = False

    def encrypt(self, data: memoryview) -> int:
        """Take all, or nothing."""
        self.asked += 1
        return super().encrypt(data) if self.has_heard else 0

    def receive(self) -> bytes:
        """Hear the one byte, which is not of HTTP."""
        data = super().receive()
        if self.has_heard:
            return data
        self.has_heard = True
        raise BlockingIOError


@both_loops
async def test_tls_that_must_read_before_it_writes(tcp: Pair) -> None:
    """The upload waits for the peer instead of asking all the time."""
    tcp.encrypt(stand_in := Renegotiating(tcp.ours))
    async with anyio.create_task_group() as group:
        group.start_soon(_after, 0.3, tcp, b"!")
        group.start_soon(_after, 0.6, tcp, ANSWER)
        assert (await tcp.send(Form(1000))).status == 200
    assert stand_in.asked < 20
