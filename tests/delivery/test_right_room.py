"""The right room: a server mixes up rooms that the same instance of it was not asked about.

Instances are told apart by their address, a proxy in front of them, or a restart. Each has its own
memory of the rooms that it was asked about; what nobody has asked it about lands in another room.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import io
import itertools
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs
import httpx
import pytest

from meeting_async import MeetingClient
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    UploadInterrupted,
    UploadOutcomeUnknown,
)
from meeting_async.signers import HmacSigner
from meeting_async.testing import MeetingServer
from meeting_async.transports import HttpTransport, HttpxTransport, Reply, Request
from support.fake_rooms import FakeRooms, accepted, client_of, failing, free
from support.fake_rooms import reply as replying
from support.peer import RECORD, Connection, Peer, answering, reply
from support.proxies import Nginx, needs_nginx
from support.raw_http import END, talk
from support.raw_http import upload as raw_upload
from support.sending import call, closing, upload

pytestmark = pytest.mark.anyio

TWO = ("127.0.0.1", "127.0.0.2")


def _has_two() -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((TWO[1], 0))
        except OSError:
            return False
    return True


needs_two = pytest.mark.skipif(not _has_two(), reason="loopback has one address here, as on macOS")
SMALL, LARGE = b"%PDF-1.7".ljust(1000), b"%PDF-1.7".ljust(100_000)
NIGHTLY, END_OF_HEAD = pytest.mark.nightly, b"\r\n\r\n"
KEYS: dict[str, Any] = {"api_key": "devkey", "api_secret": "devsecret"}


def mixing_server(rooms: int = 10) -> MeetingServer:
    """Make a server that mixes up rooms."""
    server = MeetingServer(mixes_up_rooms=True)
    for number in range(rooms):
        server.add_room(f"room{number}")
    return server


async def documents_to(server: MeetingServer, client: MeetingClient, each: int = 4) -> None:
    """Upload documents, named after their rooms, to all rooms in random order."""
    names = [(room, number) for room in server.rooms for number in range(each)]
    random.shuffle(names)
    async with anyio.create_task_group() as group:
        for room, number in names:
            data, name = random.choice([SMALL, LARGE]), f"{room}-{number}.pdf"
            send = partial(client.upload_whiteboard_file, filename=name)
            group.start_soon(send, room, data)


def misplaced(server: MeetingServer) -> list[str]:
    """Return the documents in other rooms than their own."""
    return [
        file.name
        for room in server.rooms.values()
        for file in room.received
        if file.name.partition("-")[0] != room.room_id
    ]


def delivered(server: MeetingServer) -> int:
    """Count the documents in all rooms."""
    return sum(len(room.received) for room in server.rooms.values())


# --- a name with several addresses ---------------------------------------------------------------


@pytest.fixture
def two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``meet.test`` have two addresses, in turn the one and the other first."""
    look_up, turns = socket.getaddrinfo, itertools.count()

    def found(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != "meet.test":
            return look_up(host, port, *args, **options)
        rows = [row for one in TWO for row in look_up(one, port, *args, **options)]
        return rows[:: 1 if next(turns) % 2 else -1]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@needs_two
@pytest.mark.both_loops
@pytest.mark.usefixtures("two_addresses")
async def test_an_attempt_keeps_to_one_address() -> None:
    """Check, form and document go to the same one, whatever a round-robin DNS says."""
    server = mixing_server()
    with server.run(TWO) as url:
        there = url.replace(TWO[0], "meet.test")
        async with MeetingClient(there, allow_plaintext=True, **KEYS) as client:
            await documents_to(server, client)
    assert misplaced(server) == []
    assert delivered(server) == 40


@pytest.mark.both_loops
@pytest.mark.usefixtures("two_addresses")
async def test_an_address_that_is_gone_gets_nothing_else() -> None:
    """A request for one address never goes to another: the attempt begins again with the check."""
    with Peer(answering(reply())) as other, Peer(answering(reply())) as peer:
        transport = HttpTransport()
        async with closing(transport):
            answer = await transport.send(call(peer.url, idempotent=False, is_check=True))
            there = f"http://meet.test:{other.port}"
            await transport.send(upload(there, peer=answer.peer))
            assert [len(one.requests) for one in (peer, other)] == [2, 0]
            peer.__exit__(None, None, None)
            with pytest.raises(ConnectFailed) as raised:
                await transport.send(upload(there, peer=answer.peer))
            assert not raised.value.permanent
        assert other.requests == []


@pytest.mark.both_loops
async def test_a_server_that_restarts_amid_the_questions_is_asked_again() -> None:
    """A kept connection breaks: what answers the next one was not asked about the room."""
    stale = ConnectionLost("closed")
    stale.stale = True
    rooms = FakeRooms(
        ask=lambda visit: (
            accepted()
            if visit.kind == "question"
            else failing(stale)
            if visit.number == 1
            else free()
        )
    )
    async with client_of(rooms) as client:
        receipt = await client.upload_whiteboard_file("room01", LARGE, filename="a.pdf")
    assert [visit.kind for visit in rooms.visits] == ["question", "probe"] * 2 + ["upload"]
    assert len(receipt.attempts) == 1


@pytest.mark.both_loops
@pytest.mark.parametrize("name", ["room02", "ROOM01 "])
async def test_an_answer_about_another_room_is_none(name: str) -> None:
    """Something between has answered an earlier question twice; it is asked again."""
    about = {"status": True, "msg": "ok", "room": {"room_info": {"room_id": name}}}
    again = ["question"] if name == "room02" else []

    async def visits(call: Any) -> list[str]:
        first = replying(200, about)
        rooms = FakeRooms(ask=lambda visit: first if visit.number == 1 else accepted())
        async with client_of(rooms) as client:
            await call(client)
        return [visit.kind for visit in rooms.visits]

    send = methodcaller("upload_whiteboard_file", "room01", SMALL, filename="a.pdf")
    assert await visits(send) == ["question", *again, "upload"]
    assert await visits(methodcaller("get_active_room_info", "room01")) == ["question", *again]
    path = "room/getActiveRoomInfo"  # a room that is no text is that of nobody
    assert await visits(methodcaller("call", path, {"room_id": 5})) == ["question"]


# --- behind a proxy ------------------------------------------------------------------------------

WAYS = {"by room": "hash $http_room_id consistent;", "in turn": ""}


@needs_nginx
@needs_two
@pytest.mark.parametrize("way", WAYS)
async def test_instances_behind_nginx(way: str, tmp_path: Path) -> None:
    """The check names the room in a header, so nginx can choose by room; in turn is not enough."""
    server = mixing_server()
    with server.run(TWO) as url:
        port = url.rpartition(":")[2]
        servers = " ".join(f"server {host}:{port};" for host in TWO)
        upstream = f"upstream instances {{ {WAYS[way]} {servers} }}"
        inside = "location / { proxy_pass http://instances; }"
        with Nginx(tmp_path, inside, http=upstream) as nginx:
            async with MeetingClient(nginx.url, **KEYS) as client:
                await documents_to(server, client)
    assert delivered(server) == 40
    assert bool(misplaced(server)) == (way == "in turn")


# --- a restart between the check and the document ------------------------------------------------


@attrs.define(eq=False)
class Restarting:
    """A server that restarts whenever it is told to, on the same port."""

    server: MeetingServer = attrs.field(factory=mixing_server)
    count: int = 0
    _running: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack)
    _port: int = 0

    def start(self) -> str:
        """Start it and return its URL. Its port may be in use for a moment after it was stopped."""
        end = time.monotonic() + 5 * bool(self._port)
        while True:
            try:
                url = self._running.enter_context(self.server.run(port=self._port))
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
            else:
                self._port = int(url.rpartition(":")[2])
                return url

    def restart(self) -> None:
        """Stop it and start it again; then somebody else asks it about another room."""
        self.count += 1
        self.stop()
        talk(self.start(), raw_upload(END, "room9"))

    def stop(self) -> None:
        """Stop it."""
        self._running.close()


@pytest.fixture
def restarting() -> Iterator[Restarting]:
    """Provide such a server; it is stopped at the end."""
    made = Restarting()
    yield made
    made.stop()


class SlowFile(io.BytesIO):
    """A document in whose opening something happens."""

    happens: Callable[[], None]

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if whence == io.SEEK_END:
            self.happens()
        return super().seek(offset, whence)


@pytest.mark.both_loops
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("slow", ["signer", "file"])
async def test_nothing_slow_is_between_the_check_and_the_document(
    restarting: Restarting, slow: str, data: bytes
) -> None:
    """A server that restarts while a signer or a disk takes its time was asked after that."""
    url, hmac = restarting.start(), HmacSigner("devkey", "devsecret")

    class Signer:
        async def sign(self, message: bytes) -> Any:
            if slow == "signer":
                await anyio.to_thread.run_sync(restarting.restart)
            return hmac.sign(message)

    async with MeetingClient(url, signer=Signer()) as client:
        for number in range(4):
            document = SlowFile(data)
            document.happens = restarting.restart if slow == "file" else lambda: None
            room = f"room{number}"
            await client.upload_whiteboard_file(room, document, filename=f"{room}-1.pdf")
    assert restarting.count >= 4
    assert misplaced(restarting.server) == []
    assert delivered(restarting.server) == 4


class Between:
    """A transport that lets something happen when a question is answered, before a document."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self.inner, self.happens = HttpTransport(), happens

    async def send(self, request: Request, /) -> Reply:
        """Send what follows the questions after that."""
        if not isinstance(request.body, bytes):
            await anyio.to_thread.run_sync(self.happens)
        return await self.inner.send(request)

    async def aclose(self) -> None:
        """Close."""
        await self.inner.aclose()


@pytest.mark.both_loops
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
async def test_a_restart_between_the_question_and_the_document(
    restarting: Restarting, data: bytes
) -> None:
    """A server that has closed the connection of the question is asked again, the new one."""
    url = restarting.start()
    transport = Between(lambda: None if restarting.count else restarting.restart())
    async with MeetingClient(url, **KEYS, transport=transport) as client:
        receipt = await client.upload_whiteboard_file("room1", data, filename="room1-1.pdf")
    assert restarting.count == 1
    assert misplaced(restarting.server) == []
    assert delivered(restarting.server) == 1
    assert [one.verdict for one in receipt.attempts] == ["accepted"]


@pytest.mark.both_loops
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
async def test_a_server_that_closes_each_connection_silently(data: bytes) -> None:
    """It may have restarted each time; but after some dozens of questions it gets the document."""

    def once(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        is_form = b"multipart" in connection.request.head
        is_question = is_form and b"filename=" not in connection.request.body
        connection.send(FREE if is_question else reply())

    with Peer(once) as peer:
        transport = Between(lambda: time.sleep(0.05))
        async with MeetingClient(peer.url, **KEYS, transport=transport) as client:
            receipt = await client.upload_whiteboard_file("room1", data, filename="deck.pdf")
        assert sum(b"filename=" in request.body for request in peer.requests) == 1
        assert len(peer.requests) < 50
    assert len(receipt.attempts) <= 2


def room_in(head: bytes) -> bytes:
    """Return the room of a request."""
    room: bytes = re.findall(rb"Room-Id: (\S+)", head)[0]
    return room


MOST_IN_A_ROW = 8
"""Restarts after a question about a room before a document comes; after twice as many the client
counts it as a server that closes each connection (``docs/delivery.md``). On a busy machine those
would be a matter of milliseconds."""


class Restarts(asyncio.Protocol):
    """A connection to an instance of a server that restarts some milliseconds after each start."""

    def __init__(self, log: RestartLog) -> None:
        self.log, self.instance, self.data = log, log.instance, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.log.open.add(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.log.open.discard(self.transport)

    def data_received(self, data: bytes) -> None:
        """Answer each request that is there."""
        self.data += data
        if b"filename=" in self.data:
            self.log.in_a_row.pop(room_in(self.data), None)
        while (parts := self.data.partition(END_OF_HEAD))[1]:
            head, _, rest = parts
            length = int(re.findall(rb"Content-Length: (\d+)", head)[0])
            if len(rest) < length:
                return
            self.data = rest[length:]
            self._answer(head, rest[:length])

    def _answer(self, head: bytes, body: bytes) -> None:
        log, asked = self.log, (self.instance, room_in(head))
        is_document = b"filename=" in body
        if b"getActiveRoomInfo" in head:
            log.asked.add(asked)
            log.in_a_row[asked[1]] += 1
        log.documents += is_document
        log.strays += is_document and asked not in log.asked
        is_form = b"multipart" in head and not is_document
        closes = [b"Connection: close"] if log.is_ending else []
        answer = (400, FREE.partition(END_OF_HEAD)[2]) if is_form else (200, RECORD)
        self.transport.write(reply(*answer, headers=closes))
        if log.is_ending:
            self.transport.close()


@attrs.define(eq=False)
class RestartLog:
    """What the instances have seen."""

    ends_slowly: bool
    """Whether an instance that ends goes on answering, and closes with each answer."""
    instance: int = 0
    is_ending: bool = False
    asked: set[tuple[int, bytes]] = attrs.field(factory=set)
    in_a_row: collections.Counter[bytes] = attrs.field(factory=collections.Counter)
    """How often it was asked about a room without a document after that."""
    documents: int = 0
    strays: int = 0
    """Documents of which the instance had not been asked about the room."""
    open: set[asyncio.Transport] = attrs.field(factory=set)
    url: str = ""
    started: threading.Event = attrs.field(factory=threading.Event)
    is_over: bool = False

    @property
    def _is_full(self) -> bool:
        """Whether a document is to come before it restarts again."""
        return max(self.in_a_row.values(), default=0) >= MOST_IN_A_ROW

    async def serve(self) -> None:
        """Restart until it is over; what is closed is closed before the next one starts."""
        loop, port = asyncio.get_running_loop(), 0
        while not self.is_over:
            with socket.create_server(("127.0.0.1", port), backlog=100) as listener:
                listener.setblocking(False)
                port = listener.getsockname()[1]
                self.url = f"http://127.0.0.1:{port}"
                self.started.set()
                beginning = list[asyncio.Task[Any]]()
                loop.add_reader(listener, self._accept, loop, listener, beginning)
                await asyncio.sleep(random.expovariate(50))
                while self._is_full and not self.is_over:  # noqa: ASYNC110 - requests set no event
                    await asyncio.sleep(0.005)
                self.is_ending = self.ends_slowly
                await asyncio.sleep(0.007 * self.ends_slowly)
                loop.remove_reader(listener)
            await asyncio.gather(*beginning)
            for transport in list(self.open):
                transport.abort()
            for _ in range(3):
                await asyncio.sleep(0)
            self.instance, self.is_ending = self.instance + 1, False

    def _accept(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        beginning: list[asyncio.Task[Any]],
    ) -> None:
        accepted, _ = listener.accept()
        begin = loop.connect_accepted_socket(lambda: Restarts(self), accepted)
        beginning.append(loop.create_task(begin))


@pytest.mark.both_loops
@pytest.mark.parametrize("ends_slowly", [False, True], ids=["at once", "with its last answers"])
@pytest.mark.parametrize(
    ("workers", "documents"),
    [
        (1, 8),
        (10, 40),
        *(pytest.param(*each, marks=NIGHTLY) for each in ((1, 40), (10, 170), (40, 290))),
    ],
)
async def test_no_document_to_a_server_that_was_not_asked(
    workers: int, documents: int, *, ends_slowly: bool
) -> None:
    """However often and quickly it restarts: all that it held is closed before the next starts."""
    log, rooms = RestartLog(ends_slowly), iter(range(documents))
    thread = threading.Thread(target=lambda: asyncio.run(log.serve()))
    thread.start()
    try:
        await anyio.to_thread.run_sync(log.started.wait)
        async with MeetingClient(log.url, **KEYS) as client:

            async def work() -> None:
                for room in rooms:
                    data = random.choice([SMALL, LARGE])
                    with contextlib.suppress(UploadOutcomeUnknown, UploadInterrupted):
                        await client.upload_whiteboard_file(f"room{room}", data, filename="a.pdf")

            async with anyio.create_task_group() as tasks:
                for _ in range(workers):
                    tasks.start_soon(work)
    finally:
        log.is_over = True
        thread.join()
    assert log.strays == 0
    assert log.documents >= documents * 0.7


# --- answers of another request ------------------------------------------------------------------


class Twice:
    """A server that answers each question twice, and knows what it has stored."""

    def __init__(self) -> None:
        self.stored: list[str] = []

    def __call__(self, connection: Connection) -> None:
        """Serve a connection."""
        while connection.read_head():
            connection.read_body()
            if connection.request.values(b"Content-Type")[0].startswith(b"application/json"):
                connection.send(reply() * 2)
                continue
            if b"filename=" not in connection.request.body:
                connection.send(FREE)
                continue
            self.stored.append(connection.request.values(b"Room-Id")[0].decode())
            connection.send(reply())


FREE = reply(400, b'{"status":false,"msg":"neither","status_code":"INVALID_PARAMETERS"}')
"""To an empty form."""


@pytest.mark.both_loops
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("transport", ["own", "httpx"])
async def test_no_document_gets_the_answer_of_a_question(transport: str, data: bytes) -> None:
    """What is called accepted is stored, and what is stored is called accepted."""
    server, accepted = Twice(), list[str]()
    with Peer(server) as peer:
        async with httpx.AsyncClient(trust_env=False) as external:
            chosen = HttpTransport() if transport == "own" else HttpxTransport(external)
            async with MeetingClient(peer.url, **KEYS, transport=chosen) as client:
                for number in range(20):
                    room = f"room{number}"
                    with contextlib.suppress(Exception):
                        await client.upload_whiteboard_file(room, data, filename="deck.pdf")
                        accepted.append(room)
    assert accepted == server.stored == [f"room{number}" for number in range(20)]
