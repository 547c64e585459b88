"""Answers that come before the body is out are understood, whatever the peer does next."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import select
import socket
import ssl
import stat
import struct
import threading
import time
from collections.abc import Callable
from functools import partial

import anyio
import anyio.to_thread
import attrs
import pytest

from support.leaks import possible_descriptors
from support.peer import PATIENCE, Connection, reply
from support.sending import KIB, MIB, TAIL, Form, Wire, over, until, upload, within

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

nightly = pytest.mark.nightly

RECEIVE_BUFFER = 64 * KIB
"""Of the peer, so that little is in flight."""

MOST_BEHIND = MIB
"""Bytes that may be sent after an answer has arrived."""

# --- refusals ------------------------------------------------------------------------------------

PAGE = b"<html>" + b"no " * 66_000
"""200 KB."""


def close(_: Refusing, _connection: Connection) -> None:
    """Close at once; with unread data that is a reset."""


def reset(_: Refusing, connection: Connection) -> None:
    """Reset right behind the answer."""
    connection.reset()


def end(_: Refusing, connection: Connection) -> None:
    """Close one's own direction and read no more."""
    _shut_down(connection)
    connection.closed_within(PATIENCE)


def linger(seen: Refusing, connection: Connection) -> None:
    """Close one's own direction and read what still comes, as a careful server does."""
    if isinstance(connection.sock, ssl.SSLSocket):
        seen.after += connection.sock.pending()
    _shut_down(connection)
    keep_alive(seen, connection)


def keep_alive(seen: Refusing, connection: Connection) -> None:
    """Read on as if nothing had been said."""
    seen.after += len(connection._ahead)
    connection._ahead = b""
    while data := connection.sock.recv(64 * KIB):
        seen.after += len(data)


def stop(_: Refusing, connection: Connection) -> None:
    """Read no more and hold the connection open."""
    connection.closed_within(PATIENCE)


def _shut_down(connection: Connection) -> None:
    with contextlib.suppress(OSError):  # as shutdown() of an SSLSocket drops its TLS
        socket.socket.shutdown(connection.sock, socket.SHUT_WR)


READING = {linger, keep_alive}
Then = Callable[["Refusing", Connection], None]


@attrs.define
class Refusing:
    """A script that answers amid the body, and what it saw of the client."""

    pieces: list[bytes] = attrs.field(repr=False)
    before: int
    """Bytes of the body that it reads first."""
    then: Then = attrs.field(repr=lambda then: then.__name__)
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
            if self.then is reset or len(self.pieces) > 1:
                delivered(connection)  # a reset would discard what the kernel still holds back
        self.then(self, connection)


def cut(status: int, content: bytes = b"", declared: int = 100) -> bytes:
    """Make a refusal without all of its content."""
    head = reply(status, b"", [b"Content-Length: %d" % declared], length=False)
    return head + content


CHUNKED = reply(413, b"", [b"Transfer-Encoding: chunked"], length=False)
THENS: list[Then] = [close, reset, end, linger, keep_alive, stop]
WHOLE: dict[str, tuple[list[bytes], Then]] = {
    **{then.__name__: ([reply(413)], then) for then in THENS},
    "in pieces, linger": (
        [b"HTTP/1.1 100 Continue\r\n\r\nHTTP", b"/1.1 4", reply(413, b"no" * 50_000)[10:]],
        linger,
    ),
    "a page, linger": ([reply(413, PAGE)], linger),
}
CUT: dict[str, tuple[list[bytes], Then]] = {
    "its head, reset": ([cut(413)], reset),
    "its head, end": ([cut(413)], end),
    "its head, silence": ([cut(413)], stop),
    "a part, reset": ([cut(413, b"{", 200_000)], reset),
    "a page, reset": ([cut(413, PAGE, 10**6)], reset),
    "a page, close": ([reply(413, PAGE)], close),
    "broken chunks": ([CHUNKED + b"no chunk\r\n"], stop),
    "too long": ([cut(413, bytes(MIB), 10**9)], keep_alive),
}
OTHERS = zip(itertools.cycle((409, 400, 401, 503)), (*CUT, *WHOLE), strict=False)
CASES = [(413, name, MIB) for name in (*WHOLE, *CUT)] + [(409, "reset", MIB)]
CASES += [(400, "its head, end", MIB), (401, "its head, reset", MIB), (503, "a page, reset", MIB)]
LATE = [(413, name, 0) for name in (*WHOLE, *CUT)] + [(status, name, 0) for status, name in OTHERS]


@pytest.mark.parametrize(
    ("status", "name", "before"), [*CASES, *(pytest.param(*case, marks=nightly) for case in LATE)]
)
async def test_a_refusal_amid_30_mib(wire: Wire, status: int, name: str, before: int) -> None:
    """It is the reply, soon, with what came of its content; little more is sent."""
    pieces, then = (WHOLE | CUT)[name]
    said = b"".join(pieces).replace(b"/1.1 413 ", b"/1.1 %d " % status)
    rest = io.BytesIO(said)
    seen = Refusing([rest.read(len(piece)) for piece in pieces], before, then)
    form = Form(30 * MIB)
    async with over(wire, seen, receive_buffer=RECEIVE_BUFFER) as (transport, peer):
        with within(9):
            answer = await transport.send(upload(peer.url, form, max_reply_bytes=256 * KIB))
        if then not in {stop, end}:  # a peer that does not read does not notice
            await until(lambda: not peer.open)
    assert (answer.status, answer.early) == (status, True)
    assert answer.is_cut is (name in CUT) or name == "a page, close"  # as far as it comes
    assert said.endswith(answer.content) or name in CUT
    assert len(answer.content) <= 256 * KIB
    assert answer.sent is not None
    assert seen.before <= answer.sent <= form.taken < 30 * MIB
    assert peer.connected == 1
    if then in READING and len(pieces) == 1:  # else more is sent until its head is complete
        assert seen.after - seen.in_flight <= MOST_BEHIND * 1.01, seen  # TLS adds some


@pytest.mark.parametrize(("status", "counts"), [(401, True), (407, True), (403, False)])
@pytest.mark.parametrize("then", [reset, end])
async def test_a_refusal_without_content(wire: Wire, status: int, counts: bool, then: Then) -> None:
    """After the whole request only 401 and 407 count without their content."""

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        connection.send(cut(status))
        delivered(connection)
        then(Refusing([], 0, then), connection)

    async with over(wire, script) as (transport, peer):
        with contextlib.ExitStack() as raised:
            if not counts:
                raised.enter_context(pytest.raises(ConnectionError))
            assert (await transport.send(upload(peer.url))).status == status


@pytest.mark.parametrize("then", [reset, stop])
async def test_a_refusal_while_the_client_is_blocked(wire: Wire, then: Then) -> None:
    """The peer stops reading, and says later why; that is found long before the stall ends."""

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.closed_within(0.3)
        connection.send(reply(413))
        then(Refusing([], 0, then), connection)

    form = Form(64 * MIB, chunk=512 * KIB)
    async with over(wire, script, receive_buffer=RECEIVE_BUFFER) as (transport, peer):
        with within(9):
            answer = await transport.send(upload(peer.url, form))
    assert answer.status == 413
    assert answer.sent
    assert answer.sent < 32 * MIB


# --- what is said before the last byte of the request --------------------------------------------


@attrs.define(eq=False)
class Saying:
    """A script: it speaks amid the form, reads the rest of it and speaks again."""

    first: list[bytes]
    last: list[bytes]
    before: int = 0
    """Bytes of the form that it reads first."""
    has_spoken: threading.Event = attrs.field(factory=threading.Event)

    def __call__(self, connection: Connection) -> None:
        """Serve one connection."""
        connection.read_head()
        connection.read_body(self.before, keep=False)
        self._say(connection, self.first)
        self.has_spoken.set()
        connection.read_body(connection.request.length - self.before, keep=False)
        self._say(connection, self.last)
        connection.drain()

    def _say(self, connection: Connection, pieces: list[bytes]) -> None:
        for piece in pieces:
            connection.send(piece)
            delivered(connection)
            connection.closed_within(0.02)

    async def spoken(self) -> None:
        """Wait until the client can know."""
        await anyio.to_thread.run_sync(partial(self.has_spoken.wait, PATIENCE))
        await anyio.sleep(0.02)


OK, NO = reply(), reply(400)
INTERIM, HINTS = b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"

TALKS: dict[str, tuple[list[bytes], list[bytes], bool]] = {
    "nothing": ([], [OK], False),
    "a success": ([OK], [], True),
    "all of a success but a byte": ([OK[:-1]], [OK[-1:]], True),
    "its head": ([OK[:-20]], [OK[-20:]], True),
    "its status line": ([OK[:20]], [OK[20:]], True),
    "its first byte": ([OK[:1]], [OK[1:]], True),
    "a refusal's first bytes": ([NO[:10]], [NO[10:]], True),
    "100": ([INTERIM], [OK], False),
    "100 in two pieces": ([INTERIM[:12], INTERIM[12:]], [OK], False),
    "100's first byte": ([INTERIM[:1]], [INTERIM[1:] + OK], False),
    "100's first line": ([INTERIM[:15]], [INTERIM[15:], OK], False),
    "100 byte by byte": ([INTERIM[n : n + 1] for n in range(len(INTERIM))], [OK], False),
    "103 cut in a header": ([HINTS[:-9]], [HINTS[-9:] + OK], False),
    "100, and 103's beginning": ([INTERIM + HINTS[:8]], [HINTS[8:] + OK], False),
    "100 and a success": ([INTERIM + OK], [], True),
    "100 and a success's first byte": ([INTERIM[:5], INTERIM[5:] + OK[:1]], [OK[1:]], True),
}
"""What comes before the last byte, what comes after it, and whether the reply is early."""


@pytest.mark.parametrize("before", [0, pytest.param(65 * KIB, marks=nightly)])
@pytest.mark.parametrize(("first", "last", "early"), TALKS.values(), ids=TALKS.keys())
async def test_what_is_early(
    wire: Wire, first: list[bytes], last: list[bytes], early: bool, before: int
) -> None:
    """A final head that begins before the last byte; it does not end a request if it is below 300.

    What is sent then takes several writes, so that heads in pieces are looked at in pieces.
    """
    saying = Saying(first, last, before)
    async with over(wire, saying) as (transport, peer):
        form = Form(200_000, 100_000, saying.spoken, chunk=17 * KIB)
        with within(9):
            answer = await transport.send(upload(peer.url, form))
    assert answer.early is early
    assert form.is_complete
    assert answer.sent == form.length


# --- what the kernels hold ------------------------------------------------------------------------


def in_flight(connection: Connection, whole: int) -> int:
    """Count the bytes that the client has sent and a script has not read yet.

    They are in the kernel: in the queue of the client's socket, which is one of this process, and
    in the one of the peer's; what is on its way from one to the other may count twice. Wait first
    until the client's kernel takes no more, or ``whole`` bytes are there.
    """
    until, steady, last = time.monotonic() + 8, 0, -1
    while True:
        count, takes_more = _client_queue(connection)
        full = count == last and (not takes_more or count >= whole)
        steady, last = steady + 1 if full else 0, count
        if steady == 3 or time.monotonic() > until:
            return count
        time.sleep(0.001)


def _client_queue(connection: Connection) -> tuple[int, bool]:
    """Count what is in flight, and tell whether the client could send more."""
    import termios

    waiting = _queued(connection.sock.fileno(), termios.FIONREAD) + len(connection._ahead)
    address = connection.sock.getpeername()
    for number in possible_descriptors():
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as sock:
                    if sock.family == socket.AF_INET and sock.getsockname() == address:
                        writable = select.select([], [sock], [], 0)[1]
                        return waiting + _queued(sock.fileno(), termios.TIOCOUTQ), bool(writable)
    return waiting, False


def delivered(connection: Connection) -> None:
    """Wait until the client's kernel has acknowledged everything that a script has sent."""
    import termios

    until = time.monotonic() + 1
    while _queued(connection.sock.fileno(), termios.TIOCOUTQ) and time.monotonic() < until:
        time.sleep(0.001)


def _queued(descriptor: int, queue: int) -> int:
    import fcntl

    return int(struct.unpack("i", fcntl.ioctl(descriptor, queue, bytes(4)))[0])
