"""Answers that arrive while the body still goes out: which error they are, and how soon.

Each peer is a script on a real socket. It answers before it has read the form, and then closes,
resets, lingers, reads on or stops reading.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from _peer import (
    PATIENCE,
    RECORD,
    Connection,
    Peer,
    answering,
    delivered,
    in_flight,
    reply,
)
from _wires import KIB, MIB, RECEIVE_BUFFER, WIRES, meeting, on_each_wire, tls_contexts, until
from meeting_async import (
    Document,
    HttpxTransport,
    LockPolicy,
    MeetingClient,
    RetryPolicy,
    Timeouts,
)
from meeting_async.errors import (
    AuthenticationFailed,
    DocumentRefused,
    MeetingError,
    ProcessingFailed,
    RequestRefused,
    RoomBusy,
    RoomNotActive,
    Throttled,
    UploadInterrupted,
    UploadOutcomeUnknown,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

LARGE, SMALL = 32 * MIB, 4 * KIB
CONTENT = b"%PDF-1.7\n" + bytes(range(256)) * (LARGE // 256)
PROMPTLY = 3.0
"""Seconds within which an answer must be understood, whatever the peer does; a stall takes 30."""

MOST_BEHIND = MIB
"""Bytes that may be sent after an answer has arrived."""


# --- what is answered ----------------------------------------------------------------------------


def record(status: int, code: str, *headers: bytes) -> bytes:
    """Make a refusal in the server's own words (interface section 2)."""
    content = b'{"status":false,"msg":"no","status_code":"%b"}' % code.encode()
    return reply(status, content, headers)


def page(status: int, *headers: bytes) -> bytes:
    """Make the reply of a proxy that has never heard of records."""
    content = b"<html><head><title>%d</title></head><body>nginx</body></html>\r\n" % status
    lines = [
        b"HTTP/1.1 %d Whatever" % status,
        b"Server: nginx/1.24.0",
        b"Content-Type: text/html",
        b"Content-Length: %d" % len(content),
        b"Connection: close",
    ]
    return b"\r\n".join([*lines, *headers, b"", content])


@attrs.frozen
class Answer:
    """An answer, and the error that it is."""

    data: bytes = attrs.field(repr=False)
    status: int
    errors: tuple[type[MeetingError], ...]


CUT_OFF = UploadInterrupted, UploadOutcomeUnknown
"""For what says nothing about the form: which of them depends on whether the form was out."""

ANSWERS = {
    "413 of a proxy": Answer(page(413), 413, (DocumentRefused,)),
    "401": Answer(record(401, "INVALID_API_KEY"), 401, (AuthenticationFailed,)),
    "409": Answer(record(409, "CONFLICT"), 409, (RoomBusy,)),
    "503 with a hint": Answer(page(503, b"Retry-After: 7"), 503, (Throttled,)),
    "503 without": Answer(page(503), 503, CUT_OFF),
    "400": Answer(record(400, "ROOM_NOT_ACTIVE"), 400, (RoomNotActive,)),
    "308": Answer(page(308, b"Location: /elsewhere"), 308, (RequestRefused,)),
}
RARER = {
    "408": Answer(page(408), 408, CUT_OFF),
    "429": Answer(page(429, b"Retry-After: 0"), 429, (Throttled,)),
    "500 in a record": Answer(record(500, "INTERNAL_SERVER_ERROR"), 500, (ProcessingFailed,)),
    "502": Answer(page(502), 502, CUT_OFF),
    "409 without a body": Answer(reply(409, b""), 409, (RoomBusy,)),
    "413 in chunks": Answer(
        reply(413, b"3\r\nno!\r\n0\r\n\r\n", [b"Transfer-Encoding: chunked"], length=False),
        413,
        (DocumentRefused,),
    ),
    "413 with 100 kB": Answer(reply(413, b"x" * 100_000), 413, (DocumentRefused,)),
}


# --- when, and what the peer does next -----------------------------------------------------------


def before_the_boundary(head: bytes, length: int) -> int:
    """Count the bytes up to one byte before the closing boundary."""
    match = re.search(rb"boundary=(\S+)", head)
    assert match, head
    return length - len(b"\r\n--%b--\r\n" % match[1]) - 1


WHEN: dict[str, Callable[[bytes, int], int]] = {
    "after the head": lambda _head, _length: 0,
    "after 4 kB": lambda head, length: min(4 * KIB, before_the_boundary(head, length)),
    "after 1 MiB": lambda head, length: min(MIB, before_the_boundary(head, length)),
    "at the boundary": before_the_boundary,
}


@attrs.define
class Early:
    """A script that answers amid the body, and what it saw of the client."""

    pieces: Sequence[bytes] = attrs.field(repr=False)
    when: Callable[[bytes, int], int] = attrs.field(repr=False)
    then: Callable[[Early, Connection], None] = attrs.field(repr=lambda then: then.__name__)
    every: float = 0.0
    """Seconds between two pieces."""
    settled: bool = False
    """Whether to answer only when the client's kernel is full: what is sent behind can be told."""
    before: int = 0
    """Bytes of the body read when the answer left."""
    in_flight: int = 0
    """Bytes that were sent by then and not read."""
    after: int = 0
    """Bytes that arrived after the answer had left, those in flight included."""
    length: int = 0

    def __call__(self, connection: Connection) -> None:
        """Serve one connection."""
        if not connection.read_head():
            return
        self.length = connection.request.length
        self.before = self.when(connection.request.head, self.length)
        connection.read_body(self.before, keep=False)
        left = self.length - self.before
        self.in_flight = in_flight(connection, left if self.settled else 0)
        for number, piece in enumerate(self.pieces):
            if number and self.every:
                time.sleep(self.every)
            connection.send(piece)
        if len(self.pieces) > 1:  # a reset would discard what the kernel still holds back
            delivered(connection)
        self.then(self, connection)

    @property
    def whole(self) -> bool:
        """Whether all of the form arrived."""
        return self.before + self.after >= self.length > 0


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
    read_on(seen, connection)


def read_on(seen: Early, connection: Connection) -> None:
    """Read until the client closes, as if nothing had been said."""
    seen.after += len(connection._ahead)
    connection._ahead = b""
    while data := connection.sock.recv(64 * KIB):
        seen.after += len(data)


def stop(_: Early, connection: Connection) -> None:
    """Read no more and hold the connection open."""
    connection.closed_within(PATIENCE)


THEN = {
    "closes": close,
    "resets": reset,
    "lingers": linger,
    "reads on": read_on,
    "stops reading": stop,
}
READING = {"lingers", "reads on"}


@attrs.frozen
class Case:
    """One combination."""

    answer: str
    when: str
    then: str
    wire: str
    size: int = LARGE

    def __str__(self) -> str:
        return f"{self.answer} {self.when}, {self.then}, {self.wire}, {self.size // KIB} KiB"


def cases() -> Iterator[Case]:
    """Yield all combinations for one answer, and of the rest enough to have each pair."""
    first, *others = ANSWERS
    for when, then, wire in itertools.product(WHEN, THEN, WIRES):
        yield Case(first, when, then, wire)
    for (i, answer), (j, then) in itertools.product(enumerate(others), enumerate(THEN)):
        yield Case(answer, list(WHEN)[(i + j) % 4], then, WIRES[(i + j // 2) % 2])
    for then, wire in itertools.product(THEN, WIRES):
        yield Case(first, "after the head", then, wire, SMALL)
    for (i, answer), wire in itertools.product(enumerate(others), WIRES):
        yield Case(answer, list(WHEN)[i % 4], list(THEN)[i % 5], wire, SMALL)


CASES = list(cases())


def test_each_pair_is_covered() -> None:
    """Answer, moment, behaviour, wire and size: every two values meet in some case."""
    values: dict[str, list[Any]] = {
        "answer": list(ANSWERS),
        "when": list(WHEN),
        "then": list(THEN),
        "wire": WIRES,
        "size": [LARGE, SMALL],
    }
    for one, other in itertools.combinations(values, 2):
        met = {(getattr(case, one), getattr(case, other)) for case in CASES}
        assert set(itertools.product(values[one], values[other])) - met == set()


# --- fixtures and helpers ------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def most_behind() -> Iterator[dict[str, int]]:
    """Keep, and print at the end, the most that was sent after an answer had left."""
    most: dict[str, int] = {}
    yield most
    for case, count in sorted(most.items(), key=lambda item: -item[1])[:3]:
        print(f"\nsent behind an answer: {count:,} bytes ({case})")  # noqa: T201 - a measurement


async def failure(
    client: MeetingClient, size: int, *, room: str = "room01", within: float = PROMPTLY
) -> MeetingError:
    """Upload so many bytes, and return the error that comes in time."""
    document = Document.from_bytes(memoryview(CONTENT)[:size], "deck.pdf")
    return await failure_of(client, document, room=room, within=within)


async def failure_of(
    client: MeetingClient, document: Document, *, room: str = "room01", within: float = PROMPTLY
) -> MeetingError:
    """Upload, and return the error that comes in time."""
    started = time.monotonic()
    with anyio.move_on_after(within), pytest.raises(MeetingError) as caught:
        await client.upload_whiteboard_file(room, document)
    seconds = time.monotonic() - started
    if seconds >= within:
        pytest.fail(f"there was no end within {within:g} s")
    return caught.value


def check(error: MeetingError, answer: Answer, seen: Early) -> None:
    """Assert that the error is that of the answer."""
    what = f"{error!r} caused by {error.__cause__!r}, {error.attempts}, {seen}"
    assert isinstance(error, answer.errors), what
    (attempt,) = error.attempts
    assert attempt.status == answer.status, what
    if isinstance(error, UploadInterrupted):
        assert not seen.whole, what


def check_amount(error: MeetingError, seen: Early) -> int:
    """Assert that not much was sent behind the answer; return how much."""
    (attempt,) = error.attempts
    allowed = MOST_BEHIND * 1.01  # TLS adds 22 bytes to each record of 16 KiB
    behind = max(0, seen.after - seen.in_flight)
    assert behind <= allowed, f"{behind:,} bytes were sent behind the answer ({seen})"
    taken = attempt.bytes_sent - seen.before - seen.in_flight
    assert taken <= allowed, f"{taken:,} bytes were taken behind the answer ({seen}, {attempt})"
    return behind


# --- the matrix ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_an_early_answer(case: Case, most_behind: dict[str, int]) -> None:
    """Its typed error comes, promptly, with at most 1 MiB more sent; nothing stays open."""
    answer = ANSWERS[case.answer]
    reading = case.then in READING
    seen = Early([answer.data], WHEN[case.when], THEN[case.then], settled=reading)
    async with meeting(case.wire, seen) as (client, peer):
        error = await failure(client, case.size)
        check(error, answer, seen)
        if case.then != "stops reading":  # one who does not read does not notice
            await until(peer.idle, "the connection is still open")
    assert peer.connected == 1
    if reading:
        most_behind[str(case)] = check_amount(error, seen)


@on_each_wire
@pytest.mark.parametrize("then", sorted(READING))
async def test_an_early_answer_in_full_flow(wire: str, then: str) -> None:
    """The peer reads all the time: no more comes than 1 MiB and what the kernel may hold."""
    answer = ANSWERS["413 of a proxy"]
    seen = Early([answer.data], WHEN["after 1 MiB"], THEN[then])
    async with meeting(wire, seen) as (client, peer):
        check(await failure(client, LARGE), answer, seen)
        await until(peer.idle, "the connection is still open")
    allowed = MOST_BEHIND + most_in_kernel()
    assert seen.after < allowed, f"{seen.after:,} bytes came behind the answer, {allowed:,} may"


def most_in_kernel() -> int:
    """Return the largest that the buffers of a connection grow to: the client's and the peer's."""
    largest = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])
    return largest + 2 * RECEIVE_BUFFER


@on_each_wire
@pytest.mark.parametrize("name", RARER)
async def test_a_rarer_early_answer(wire: str, name: str) -> None:
    """Other statuses, and other ways to mark the end of an answer, in front of a linger."""
    seen = Early([RARER[name].data], WHEN["after 4 kB"], linger)
    async with meeting(wire, seen) as (client, _):
        error = await failure(client, LARGE)
        check(error, RARER[name], seen)


@on_each_wire
@pytest.mark.parametrize("then", THEN)
async def test_an_early_answer_to_a_file(wire: str, then: str, tmp_path: Path) -> None:
    """A document that is read from disk stops, too, and is closed."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(CONTENT[: 8 * MIB])
    seen = Early([ANSWERS["413 of a proxy"].data], WHEN["after 1 MiB"], THEN[then])
    async with meeting(wire, seen) as (client, _):
        error = await failure_of(client, Document.from_path(path))
        check(error, ANSWERS["413 of a proxy"], seen)


@on_each_wire
@pytest.mark.parametrize("then", ["closes", "resets", "stops reading"])
@pytest.mark.parametrize("name", ["409", "503 with a hint"])
async def test_after_an_early_answer_the_upload_goes_on(wire: str, then: str, name: str) -> None:
    """A busy room is waited for and a hint is kept, as if the answer had come in time."""
    data = ANSWERS[name].data.replace(b"Retry-After: 7", b"Retry-After: 0")
    scripts = Early([data], WHEN["after 1 MiB"], THEN[then]), answering(reply())
    lock, retry = LockPolicy(min_delay=0.01, max_wait=5), RetryPolicy(max_attempts=2)
    async with meeting(wire, *scripts, lock=lock, retry=retry) as (client, peer):
        with anyio.fail_after(2 * PROMPTLY):
            receipt = await client.upload_whiteboard_file(
                "room01", CONTENT[: 3 * MIB], filename="deck.pdf"
            )
    verdict = "busy" if name == "409" else "throttled"
    assert [attempt.verdict for attempt in receipt.attempts] == [verdict, "accepted"]
    assert CONTENT[: 3 * MIB] in peer.requests[1].body


# --- answers in pieces ---------------------------------------------------------------------------


def single_bytes(data: bytes) -> list[bytes]:
    """Cut into single bytes."""
    return [data[index : index + 1] for index in range(len(data))]


@on_each_wire
@pytest.mark.parametrize("then", THEN)
async def test_an_answer_that_dribbles(wire: str, then: str) -> None:
    """Byte by byte, while nothing is read: it is the same answer."""
    answer = ANSWERS["413 of a proxy"]
    pieces = single_bytes(answer.data)
    seen = Early(pieces, WHEN["after 4 kB"], THEN[then], every=0.001)
    async with meeting(wire, seen) as (client, _):
        check(await failure(client, LARGE), answer, seen)


@on_each_wire
@pytest.mark.parametrize("cut", [1, 9, 10, 12, 60, -1], ids=lambda cut: f"cut at {cut}")
async def test_an_answer_in_two_pieces(wire: str, cut: int) -> None:
    """Cut in the version, around the status, in a header, in the body; 0.1 s apart, then reset."""
    answer = ANSWERS["409"]
    pieces = [answer.data[:cut], answer.data[cut:]]
    seen = Early(pieces, WHEN["after 4 kB"], reset, every=0.1)
    async with meeting(wire, seen) as (client, _):
        check(await failure(client, LARGE), answer, seen)


# --- what is no final answer ---------------------------------------------------------------------

INTERIM = {
    "100": b"HTTP/1.1 100 Continue\r\n\r\n",
    "102": b"HTTP/1.1 102 Processing\r\n\r\n",
    "103": b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n",
    "100 and 103": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n",
}


@on_each_wire
@pytest.mark.parametrize("interim", INTERIM)
@pytest.mark.parametrize("dribbling", [False, True], ids=["at once", "dribbling"])
async def test_an_interim_reply_changes_nothing(wire: str, interim: str, dribbling: bool) -> None:
    """Before the body, amid it and at its end: the upload goes on, and all of it arrives."""

    def script(connection: Connection) -> None:
        connection.read_head()
        for count in (0, MIB, MIB):
            connection.read_body(count)
            for piece in single_bytes(INTERIM[interim]) if dribbling else [INTERIM[interim]]:
                connection.send(piece)
        connection.read_body()
        connection.send(reply())

    async with meeting(wire, script) as (client, peer):
        with anyio.fail_after(2 * PROMPTLY):
            await client.upload_whiteboard_file("room01", CONTENT[: 4 * MIB], filename="deck.pdf")
    (request,) = peer.requests
    assert CONTENT[: 4 * MIB] in request.body
    assert len(request.body) == request.length


@pytest.mark.parametrize("then", THEN)
@pytest.mark.parametrize(("pieces", "wire"), [("one", "tcp"), ("two", "tcp"), ("cut", "tls")])
async def test_an_interim_reply_hides_nothing(wire: str, then: str, pieces: str) -> None:
    """The final answer behind it counts: in the same piece, in the next one, or cut across."""
    answer, interim = ANSWERS["413 of a proxy"], INTERIM["100"]
    both = interim + answer.data
    cut = {"one": len(both), "two": len(interim), "cut": len(interim) - 3}[pieces]
    seen = Early([both[:cut], both[cut:]], WHEN["after 4 kB"], THEN[then], every=0.02)
    async with meeting(wire, seen) as (client, _):
        error = await failure(client, LARGE)
        check(error, answer, seen)


class HeldTls:
    """A server's side of TLS 1.3 that holds its session tickets back until it is told to send.

    OpenSSL writes them at the end of the handshake; here they go out amid the request.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        while not self._shaken():
            sock.sendall(self._out.read())
            self._in.write(sock.recv(64 * KIB))
        assert self._tls.version() == "TLSv1.3"

    @property
    def held(self) -> int:
        """Bytes of the tickets."""
        return self._out.pending

    def _shaken(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def getpeername(self) -> Any:
        """Name the client's end."""
        return self._sock.getpeername()

    def recv(self, limit: int) -> bytes:
        """Receive as a socket does."""
        while True:
            try:
                return self._tls.read(limit)
            except ssl.SSLWantReadError:
                self._in.write(self._sock.recv(64 * KIB))

    def sendall(self, data: bytes) -> None:
        """Send as a socket does."""
        self._tls.write(data)
        self._sock.sendall(self._out.read())

    def send_tickets(self) -> None:
        """Send what was held back."""
        self._sock.sendall(self._out.read())


@pytest.mark.parametrize("size", [LARGE // 4, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("after", [0, 2 * KIB, MIB])
async def test_session_tickets_change_nothing(size: int, after: int) -> None:
    """They make the socket readable, and are no answer; the upload goes on and is accepted."""
    held = []

    def script(connection: Connection) -> None:
        wrapped = HeldTls(connection.sock, tls_contexts()[0])
        connection.sock = wrapped  # type: ignore[assignment]  # as much of one as is needed
        connection.read_head()
        connection.read_body(min(after, size))
        held.append(wrapped.held)
        wrapped.send_tickets()
        connection.read_body()
        connection.send(reply())

    with Peer(script, receive_buffer=RECEIVE_BUFFER) as peer:
        async with MeetingClient(
            f"https://127.0.0.1:{peer.port}",
            api_key="key",
            api_secret="hunter2",
            transport=HttpxTransport(verify=tls_contexts()[1]),
            retry=RetryPolicy(max_attempts=1),
        ) as client:
            with anyio.fail_after(2 * PROMPTLY):
                await client.upload_whiteboard_file("room01", CONTENT[:size], filename="deck.pdf")
    assert held[0] > 100, "there were no tickets to be held back"
    assert CONTENT[:size] in peer.requests[0].body


# --- what is no answer at all, and what is too good to be true ------------------------------------

RUBBISH = {
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "another version": b"HTTP/9 what\r\n\r\n",
    "binary": b"\x15\x03\x01\x00\x02\x02\x0a" * 10,
    "a megabyte": b"x" * MIB,
    "nothing": b"",
    "half a head": b"HTTP/1.1 413 Content Too La",
}


def rubbish_cases() -> Iterator[tuple[str, str, str]]:
    """Yield what is sent, what the peer does next, and the wire."""
    for name, then in itertools.product(RUBBISH, THEN):
        if then == "reads on" and name in {"nothing", "half a head"}:
            continue  # a peer that may yet say the rest is only slow
        yield name, then, "tcp"
        if then in {"closes", "reads on"}:
            yield name, then, "tls"


@pytest.mark.parametrize(("name", "then", "wire"), list(rubbish_cases()))
async def test_what_is_no_http(name: str, then: str, wire: str) -> None:
    """No answer; it was cut off, or unknown, and never "cut off" once all of it has arrived."""
    seen = Early([RUBBISH[name]], WHEN["after 4 kB"], THEN[then])
    timeouts = Timeouts(send_stall=0.3, upload_reply=0.3)
    async with meeting(wire, seen, timeouts=timeouts) as (client, _):
        error = await failure(client, 4 * MIB)
        await anyio.sleep(0.01)
    what = f"{error!r} caused by {error.__cause__!r}, {seen}"
    assert isinstance(error, CUT_OFF), what
    assert [attempt.status for attempt in error.attempts] == [None], what
    if isinstance(error, UploadInterrupted):
        assert not seen.whole, what


EARLY = pytest.mark.parametrize("when", ["after the head", "after 4 kB", "after 1 MiB"])


@on_each_wire
@pytest.mark.parametrize("then", sorted({*THEN} - {"reads on"}))
@EARLY
async def test_an_early_success_is_none(wire: str, then: str, when: str) -> None:
    """A form that was not read cannot have been accepted: what became of it is unknown."""
    seen = Early([reply(200, RECORD)], WHEN[when], THEN[then])
    timeouts = Timeouts(send_stall=0.3, upload_reply=0.3)
    async with meeting(wire, seen, timeouts=timeouts) as (client, _):
        error = await failure(client, LARGE)
    what = f"{error!r} caused by {error.__cause__!r}, {error.attempts}, {seen}"
    assert isinstance(error, UploadOutcomeUnknown), what


@on_each_wire
@EARLY
async def test_an_early_success_of_one_who_reads_on(wire: str, when: str) -> None:
    """It is no reason to stop, and counts once the whole form has been sent."""
    seen = Early([reply(200, RECORD)], WHEN[when], THEN["reads on"])
    async with meeting(wire, seen) as (client, _):
        receipt = await client.upload_whiteboard_file(
            "room01", CONTENT[:LARGE], filename="deck.pdf"
        )
        await until(lambda: seen.whole, "the form did not arrive as a whole")
    assert receipt.msg


# --- several at once -----------------------------------------------------------------------------


@on_each_wire
async def test_one_early_answer_among_many(wire: str) -> None:
    """Eight uploads at once, each second one refused early: each gets its own answer."""
    numbers = itertools.count()
    lock = threading.Lock()
    answer = ANSWERS["413 of a proxy"]
    refused: list[str] = []

    def script(connection: Connection) -> None:
        connection.read_head()
        with lock:
            early = next(numbers) % 2 == 0
        if early:
            refused.append(connection.request.values(b"Room-Id")[0].decode())
            connection.read_body(64 * KIB, keep=False)
            connection.send(answer.data)
            return
        connection.read_body()
        connection.send(reply())

    ended: dict[str, Any] = {}

    async def run(client: MeetingClient, room: str) -> None:
        try:
            ended[room] = await client.upload_whiteboard_file(
                room, CONTENT[: 4 * MIB], filename="deck.pdf"
            )
        except MeetingError as error:
            ended[room] = error

    async with meeting(wire, script) as (client, peer):
        with anyio.fail_after(15):
            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(run, client, f"room{number}")
        await until(peer.idle, "a connection is still open")
    assert len(refused) == 4
    for room, end in ended.items():
        assert isinstance(end, DocumentRefused) is (room in refused), (room, refused, end)
        assert isinstance(end, MeetingError) is (room in refused), (room, refused, end)
