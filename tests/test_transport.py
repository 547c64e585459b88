"""The network: what goes out, what comes back, and what each way to fail is called."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import gzip
import hashlib
import hmac
import itertools
import json
import logging
import os
import socket
import ssl
import stat
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import httpcore
import httpx
import pytest
import respx
import trio

from _peer import (
    RECORD,
    WHOLE,
    Connection,
    Peer,
    Script,
    answering,
    answering_once,
    deaf,
    descriptors,
    dripping,
    early,
    reply,
    resetting,
    resetting_at_once,
    server_context,
    shown_elsewhere,
    silent,
)
from meeting_async import (
    Document,
    HttpxTransport,
    LockPolicy,
    MeetingClient,
    Reply,
    Request,
    RetryPolicy,
    Timeouts,
    Transport,
    _dialing,
    _exchange,
)
from meeting_async._multipart import MultipartBody, plan_document
from meeting_async._records import Body
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    DocumentChanged,
    DocumentUnreadable,
    MeetingError,
    RequestRefused,
    TransferTimeout,
    TransportError,
    UploadOutcomeUnknown,
)

pytestmark = pytest.mark.anyio

KIB, MIB = 1024, 1024**2
ROOM = "salle-été".encode()
JSON_BODY = b'{"room_id":"room01"}'
API_KEY, SIGNATURE = b"a-key-that-is-known", b"5ec2e7" * 10 + b"abcd"
SECRET = "hunter2-secret"
BOUNDARY = "b" * 32
PATIENT = Timeouts(connect=5, send_stall=5, reply=5, upload_reply=5)


# --- requests ------------------------------------------------------------------------------------


async def nothing() -> None:
    """Do nothing."""


@attrs.define
class Supply:
    """An open document of ``size`` bytes, with something happening before byte ``at`` is read."""

    size: int = 1000
    at: int = -1
    happening: Callable[[], Awaitable[object]] = nothing
    offset: int = 0

    async def read(self, limit: int, /) -> bytes:
        """Read on; what happens, happens between two reads."""
        if self.offset == self.at:
            await self.happening()
        elif self.offset < self.at:
            limit = min(limit, self.at - self.offset)
        chunk = b"x" * min(limit, self.size - self.offset)
        self.offset += len(chunk)
        return chunk

    async def finish(self) -> None:
        """End as declared; what happens at the end, happens before the closing boundary."""
        if self.at == self.size:
            await self.happening()


def headers(length: int, **more: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Make the header pairs of a request."""
    named = {name.replace("_", "-").encode(): value for name, value in more.items()}
    pairs = {b"API-KEY": API_KEY, b"HASH-SIGNATURE": SIGNATURE, **named}
    return (*pairs.items(), (b"Content-Length", b"%d" % length))


def call(url: str, timeouts: Timeouts = PATIENT, body: bytes = JSON_BODY) -> Request:
    """Make a JSON call."""
    pairs = headers(len(body), Content_Type=b"application/json", Accept_Encoding=b"identity")
    return Request("POST", f"{url}/auth/room/call", pairs, body, timeouts, timeouts.reply)


def upload(
    url: str, supply: Supply | None = None, timeouts: Timeouts = PATIENT
) -> tuple[Request, MultipartBody]:
    """Make an upload and return its body, too."""
    supply = supply or Supply()
    plan = plan_document("deck.pdf", "application/pdf", supply.size, boundary=BOUNDARY)
    body = MultipartBody(plan, supply)
    bodies.append(body)
    pairs = headers(plan.length, Room_Id=ROOM, Content_Type=plan.content_type)
    address = f"{url}/auth/room/upload"
    return Request("POST", address, pairs, body, timeouts, timeouts.upload_reply), body


bodies: list[MultipartBody] = []
"""Bodies that are to be closed at the end of a test, as every attempt closes its own."""


async def finish(transport: HttpxTransport) -> None:
    """Close everything; what is unclosed then shows while the loop still runs."""
    await transport.aclose()
    await close_bodies()
    gc.collect()
    await anyio.lowlevel.checkpoint()


async def close_bodies() -> None:
    """Close the bodies of the test."""
    while bodies:
        await bodies.pop().aclose()


def either(kind: str, url: str, timeouts: Timeouts = PATIENT) -> Request:
    """Make a request of either kind."""
    return call(url, timeouts) if kind == "json" else upload(url, timeouts=timeouts)[0]


both_kinds = pytest.mark.parametrize("kind", ["json", "upload"])


async def until(condition: Callable[[], object], seconds: float = 3) -> None:
    """Wait until another thread has come so far."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - it happens in another thread
            await anyio.sleep(0.002)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer."""
    started = time.monotonic()
    with anyio.fail_after(seconds * 3):
        yield
    assert time.monotonic() - started < seconds


# --- fixtures ------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _quick_collections() -> Iterator[None]:
    """Keep what the imports made out of the many garbage collections here."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
async def transport() -> AsyncIterator[HttpxTransport]:
    """Provide a transport."""
    transport = HttpxTransport()
    yield transport
    await finish(transport)


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Make the server's and the client's side of one certificate."""
    server, path = server_context(tmp_path_factory.mktemp("tls"))
    return server, ssl.create_default_context(cafile=path)


@pytest.fixture(params=["tcp", "tls"])
def wire(request: pytest.FixtureRequest) -> tuple[ssl.SSLContext | None, ssl.SSLContext | bool]:
    """Run a test in clear and encrypted: what ``Peer`` and ``HttpxTransport`` need for it."""
    if request.param == "tcp":
        return None, True
    server, client = request.getfixturevalue("tls")
    return server, client


Wire = tuple[ssl.SSLContext | None, ssl.SSLContext | bool]


@contextlib.asynccontextmanager
async def over(wire: Wire, *scripts: Script, **options: Any) -> AsyncIterator[Any]:
    """Open a transport and a peer."""
    transport = HttpxTransport(verify=wire[1])
    with Peer(*scripts, tls=wire[0], **options) as peer:
        try:
            yield transport, peer
        finally:
            await finish(transport)


# What goes out


@both_kinds
async def test_headers_go_out_as_given(transport: HttpxTransport, kind: str) -> None:
    """Names and values byte for byte, UTF-8 included: the signature depends on them."""
    with Peer(answering(reply())) as peer:
        request = either(kind, peer.url)
        await transport.send(request)
    (received,) = peer.requests
    for name, value in request.headers:
        assert received.head.count(b"\r\n%b: %b\r\n" % (name, value)) == 1
        assert len(received.values(name)) == 1
    assert received.head.startswith(f"POST {httpx.URL(request.url).path} HTTP/1.1\r\n".encode())
    assert received.values(b"Host") == [b"127.0.0.1:%d" % peer.port]
    assert received.values(b"User-Agent")[0].startswith(b"meeting-async/")


async def test_a_json_body_goes_out_as_given(transport: HttpxTransport) -> None:
    """Byte for byte, with its exact length, never chunked."""
    body = '{"a":"é","b": [1 ,2]}'.encode()
    with Peer(answering(reply())) as peer:
        await transport.send(call(peer.url, body=body))
    (received,) = peer.requests
    assert received.body == body
    assert received.values(b"Content-Length") == [b"%d" % len(body)]
    assert received.values(b"Transfer-Encoding") == []


@pytest.mark.parametrize("size", [1, 256 * KIB, 3 * MIB + 1])
async def test_an_upload_goes_out_as_planned(transport: HttpxTransport, size: int) -> None:
    """Head, document and closing boundary, with the exact length, never chunked."""
    with Peer(answering(reply())) as peer:
        request, body = upload(peer.url, Supply(size))
        answer = await transport.send(request)
    (received,) = peer.requests
    assert (answer.status, answer.content) == (200, RECORD)
    assert body.complete
    assert len(received.body) == body.length == received.length
    assert received.body.count(b"x") >= size
    assert received.body.endswith(b"x\r\n--%b--\r\n" % BOUNDARY.encode())
    assert received.values(b"Transfer-Encoding") == []
    assert received.values(b"Expect") == []


async def test_json_calls_share_a_connection(transport: HttpxTransport) -> None:
    """One after the other over one connection; uploads do not take it."""
    with Peer(answering(reply())) as peer:
        for _ in range(3):
            await transport.send(call(peer.url))
        assert peer.connected == 1
        await transport.send(upload(peer.url)[0])
        assert peer.connected == 2


async def test_uploads_never_share_a_connection(transport: HttpxTransport) -> None:
    """Each has a connection of its own, one after the other and at the same time."""
    with Peer(answering(reply())) as peer:
        await transport.send(upload(peer.url)[0])
        await until(peer.idle)
        await transport.send(upload(peer.url)[0])
        await until(peer.idle)
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(transport.send, upload(peer.url)[0])
        await until(peer.idle)
        assert peer.connected == len(peer.requests) == 7


@pytest.mark.parametrize("with_reset", [True, False])
async def test_an_idle_connection_that_was_closed_is_not_used(
    transport: HttpxTransport, with_reset: bool
) -> None:
    """A proxy drops idle connections; the next call takes a new one."""

    def once(connection: Connection) -> None:
        answering_once(reply())(connection)
        if with_reset:
            connection.reset()

    with Peer(once) as peer:
        for _ in range(3):
            assert (await transport.send(call(peer.url))).status == 200
            await until(peer.idle)
            await anyio.sleep(0.01)
    assert peer.connected == 3


@both_kinds
async def test_nothing_of_a_reply_comes_back(transport: HttpxTransport, kind: str) -> None:
    """No cookie and no credential of an earlier reply stands in a later request."""
    with Peer(answering(reply(headers=[b"Set-Cookie: lb=1; Path=/"]))) as peer:
        for _ in range(2):
            await transport.send(either(kind, peer.url))
    assert [received.values(b"Cookie") for received in peer.requests] == [[], []]


@both_kinds
async def test_the_environment_is_not_looked_at(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither proxies nor .netrc of the environment change a request."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password it\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with Peer(answering(reply())) as peer, Peer(answering(reply(502))) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        transport = HttpxTransport()
        assert (await transport.send(either(kind, peer.url))).status == 200
        await transport.aclose()
    assert (proxy.connected, peer.connected) == (0, 1)
    assert peer.requests[0].values(b"Authorization") == []


async def test_keep_alive_probes_are_on(transport: HttpxTransport) -> None:
    """A conversion is minutes of silence, and address translators forget silent connections."""
    found = []

    def look(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        found.append(keep_alive_of(connection.sock.getpeername()))
        connection.send(reply())

    with Peer(look) as peer:
        await transport.send(upload(peer.url)[0])
    assert found == [1]


def keep_alive_of(address: object) -> int | None:
    """Find the socket of this process that has the address, and look at its option."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(entry.stat().st_mode):
                with socket.socket(fileno=os.dup(int(entry.name))) as sock:
                    if sock.getsockname() == address:
                        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    return None


# What comes back


REPLIES = {
    "HTTP/1.0": reply(version=b"1.0", length=False),
    "no length": reply(length=False, headers=[b"Connection: close"]),
    "chunked": reply(
        length=False,
        content=b"10\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (RECORD[:16], len(RECORD) - 16, RECORD[16:]),
        headers=[b"Transfer-Encoding: chunked"],
    ),
    "after 103": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + reply(),
    "after 100": b"HTTP/1.1 100 Continue\r\n\r\n" + reply(),
    "garbage behind": reply() + b"garbage\r\n\r\n",
}


@both_kinds
@pytest.mark.parametrize("data", REPLIES.values(), ids=REPLIES.keys())
async def test_replies_of_every_form_are_read(
    transport: HttpxTransport, kind: str, data: bytes
) -> None:
    """However the end is marked, whatever stands around: status and content are right."""
    with Peer(answering_once(data)) as peer:
        answer = await transport.send(either(kind, peer.url))
    assert (answer.status, answer.content) == (200, RECORD)


async def test_the_rest_of_a_reply_is_not_the_next_reply(transport: HttpxTransport) -> None:
    """What stands behind a reply must never answer the next call on that connection."""
    smuggled = reply(content=b'{"status":true,"room":"somebody else\'s"}')
    with Peer(answering(reply() + smuggled)) as peer:
        for _ in range(3):
            answer = await transport.send(call(peer.url))
            assert answer.content == RECORD


async def test_garbage_behind_a_reply_does_not_spoil_the_next_call(
    transport: HttpxTransport,
) -> None:
    """The connection is dropped; the next call takes a new one."""
    with Peer(answering(reply() + b"garbage")) as peer:
        for _ in range(3):
            assert (await transport.send(call(peer.url))).status == 200


async def test_a_reply_is_not_decoded(transport: HttpxTransport) -> None:
    """A small compressed reply cannot become a large one."""
    bomb = gzip.compress(bytes(MIB))
    with Peer(answering(reply(content=bomb, headers=[b"Content-Encoding: gzip"]))) as peer:
        answer = await transport.send(call(peer.url))
    assert answer.content == bomb
    assert (b"Content-Encoding", b"gzip") in answer.headers


@both_kinds
async def test_every_status_is_a_reply(transport: HttpxTransport, kind: str) -> None:
    """A transport judges nothing; headers come back as bytes."""
    for status in (201, 204, 304, 400, 401, 409, 413, 429, 500, 503):
        content = b"" if status in {204, 304} else b"<html>"
        data = reply(status, content, [b"Retry-After: 7", b"X-Odd: \xe9"], length=bool(content))
        with Peer(answering(data)) as peer:
            answer = await transport.send(either(kind, peer.url))
        assert (answer.status, answer.content) == (status, content)
        assert {(b"Retry-After", b"7"), (b"X-Odd", b"\xe9")} <= set(answer.headers)


@both_kinds
@pytest.mark.parametrize("borrowed", [True, False], ids=["borrowed", "own"])
async def test_redirects_are_not_followed(kind: str, borrowed: bool) -> None:
    """The second host would get signature and document; it does not even get a connection."""
    async with httpx.AsyncClient(follow_redirects=True, trust_env=False) as client:
        transport = HttpxTransport(client if borrowed else None)
        for status in (301, 302, 303, 307, 308):
            with Peer(answering(reply())) as second:
                location = f"Location: {second.url}/auth/room/upload".encode()
                with Peer(answering(reply(status, b"", [location]))) as first:
                    answer = await transport.send(either(kind, first.url))
            assert answer.status == status
            assert (first.connected, len(first.requests)) == (1, 1)
            assert second.connected == 0
        await transport.aclose()


@pytest.mark.parametrize(
    "location",
    [b"http://[::1", b"http://host:port/", b"//", b"", b"http://\xff\xfe/", b"x" * 70_000, b"a b"],
    ids=["bracket", "port", "slashes", "empty", "bytes", "long", "blank"],
)
async def test_a_redirect_to_nowhere_is_a_reply(transport: HttpxTransport, location: bytes) -> None:
    """Any 3xx is a refusal (DESIGN section 4), wherever it points."""
    with Peer(answering(reply(302, b"", [b"Location: " + location]))) as peer:
        for kind in ("json", "upload"):
            answer = await transport.send(either(kind, peer.url))
            assert answer.status == 302


# No connection: not a byte was sent


async def never_connects(
    transport: HttpxTransport, url: str, *, seconds: float = 1.5, connect: float = 0.2
) -> ConnectFailed:
    """Fail with ``ConnectFailed`` for either kind of request, with no body touched."""
    timeouts = attrs.evolve(PATIENT, connect=connect)
    with within(seconds), pytest.raises(ConnectFailed):
        await transport.send(call(url, timeouts))
    request, body = upload(url, timeouts=timeouts)
    with within(seconds), pytest.raises(ConnectFailed) as caught:
        await transport.send(request)
    assert (body.handed_over, body.complete) == (0, False)
    assert type(caught.value) is ConnectFailed
    assert caught.value.reason
    return caught.value


def closed_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.mark.parametrize(
    "host", ["no-such-host.invalid", "a" * 64 + ".invalid", "a..invalid", "a" * 300 + ".invalid"]
)
async def test_a_name_that_does_not_resolve(transport: HttpxTransport, host: str) -> None:
    """Unknown names and names that are none."""
    await never_connects(transport, f"http://{host}", seconds=6, connect=5)


async def test_a_port_nobody_listens_on(transport: HttpxTransport) -> None:
    """Refused, also on all addresses of a name."""
    await never_connects(transport, f"http://127.0.0.1:{closed_port()}")
    await never_connects(transport, f"http://localhost:{closed_port()}")


@pytest.fixture
def unanswering() -> Iterator[str]:
    """Provide an address whose queue of connections is full, so that no attempt is answered."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_a_host_that_does_not_answer(transport: HttpxTransport, unanswering: str) -> None:
    """Given up after the connect timeout."""
    error = await never_connects(transport, f"http://{unanswering}")
    assert "in time" in error.reason


async def test_a_peer_that_does_not_shake_hands(transport: HttpxTransport) -> None:
    """The TLS handshake counts as connecting."""
    with Peer(deaf) as peer:
        error = await never_connects(transport, f"https://127.0.0.1:{peer.port}")
    assert "in time" in error.reason


async def test_connecting_is_limited_as_a_whole(
    transport: HttpxTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name lookup, TCP and TLS together may take as long as ``Timeouts.connect`` says."""
    lookup = socket.getaddrinfo

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.2)
        return lookup(*args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with Peer(deaf) as peer:
        await never_connects(transport, f"https://localhost:{peer.port}", seconds=0.65, connect=0.5)


async def test_a_certificate_that_nobody_signed(
    transport: HttpxTransport, tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    """Refused before a byte of the request; the reason names the certificate."""
    with Peer(answering(reply()), tls=tls[0]) as peer:
        error = await never_connects(transport, peer.url, connect=5)
    assert "certificate" in error.reason.lower()
    assert peer.requests == []


async def test_a_certificate_of_another_host(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """The name must match."""
    transport = HttpxTransport(verify=tls[1])
    with Peer(answering(reply()), tls=tls[0]) as peer:
        error = await never_connects(transport, f"https://localhost:{peer.port}", connect=5)
        assert (await transport.send(call(peer.url))).status == 200
        await transport.aclose()
    assert "certificate" in error.reason.lower()


async def test_no_certificate_is_checked_when_told_so(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """``verify=False`` is for laboratories."""
    transport = HttpxTransport(verify=False)
    with Peer(answering(reply()), tls=tls[0]) as peer:
        assert (await transport.send(call(peer.url))).status == 200
        await transport.aclose()


@pytest.mark.parametrize("answer", [b"", reply(400), b"\0" * 100], ids=["reset", "HTTP", "garbage"])
async def test_a_peer_that_speaks_no_tls(transport: HttpxTransport, answer: bytes) -> None:
    """A reset or something else in the handshake: no connection."""

    def rude(connection: Connection) -> None:
        connection.sock.recv(1)
        connection.send(answer)
        connection.reset()

    with Peer(rude) as peer:
        await never_connects(transport, f"https://127.0.0.1:{peer.port}", connect=5)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "http://[::1", "http://", "gopher://x"])
async def test_an_address_that_is_none(transport: HttpxTransport, url: str) -> None:
    """What cannot be connected to was not sent."""
    await never_connects(transport, url)


# The connection breaks


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


@both_kinds
async def test_a_peer_that_closes_without_a_word(wire: Wire, kind: str) -> None:
    """The end of the connection in the place of a reply."""
    async with over(wire, answering_once(b"")) as (transport, peer):
        with within(2), pytest.raises(ConnectionLost) as caught:
            await transport.send(either(kind, peer.url))
    assert type(caught.value) is ConnectionLost


async def test_a_reply_cut_off_at_every_byte(transport: HttpxTransport) -> None:
    """No part of a reply is taken for a reply."""
    whole = reply()
    cuts: Iterator[int] = iter(range(len(whole)))

    def cut(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        connection.send(whole[: next(cuts)])

    with Peer(cut) as peer:
        for _ in range(len(whole)):
            with pytest.raises(ConnectionLost) as caught:
                await transport.send(call(peer.url))
            assert type(caught.value) is ConnectionLost
    assert peer.connected == len(whole)


async def test_a_chunked_reply_cut_off_at_every_byte(transport: HttpxTransport) -> None:
    """The last chunk is what tells the end, for uploads as well."""
    whole = REPLIES["chunked"]
    cuts: Iterator[int] = iter(range(0, len(whole), 3))

    def cut(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        connection.send(whole[: next(cuts)])

    with Peer(cut) as peer:
        for _ in range(0, len(whole), 3):
            request, body = upload(peer.url)
            with pytest.raises(ConnectionLost):
                await transport.send(request)
            assert body.complete


async def test_a_reset_behind_a_complete_reply_changes_nothing(wire: Wire) -> None:
    """What has arrived has arrived."""

    def script(connection: Connection) -> None:
        answering_once(reply())(connection)
        connection.closed_within(0.05)
        connection.reset()

    async with over(wire, script) as (transport, peer):
        for kind in ("upload", "json", "upload", "json"):
            assert (await transport.send(either(kind, peer.url))).content == RECORD
            await until(peer.idle)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\0" * 200_000,
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 2OO OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"<html>",
    ],
    ids=lambda data: repr(data[:25]),
)
async def test_what_is_no_http(transport: HttpxTransport, data: bytes) -> None:
    """The peer violated HTTP: the connection is lost, whatever it said."""
    with Peer(answering_once(data)) as peer:
        for kind in ("json", "upload"):
            with within(2), pytest.raises(ConnectionLost) as caught:
                await transport.send(either(kind, peer.url))
            assert type(caught.value) is ConnectionLost
            assert len(caught.value.reason) < 1000


@both_kinds
@pytest.mark.parametrize("length", [True, False], ids=["declared", "endless"])
async def test_a_reply_over_the_limit(
    transport: HttpxTransport, kind: str, length: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply is read up to the limit and no further; a reply of just the limit is read."""
    monkeypatch.setattr(_exchange, "MAX_REPLY_BYTES", 100_000)
    with Peer(answering_once(reply(content=b"y" * 100_000, length=length))) as peer:
        assert len((await transport.send(either(kind, peer.url))).content) == 100_000
    with Peer(answering_once(reply(content=b"y" * 100_001, length=length))) as peer:
        with within(2), pytest.raises(ConnectionLost, match="100,000"):
            await transport.send(either(kind, peer.url))
        await until(peer.idle)


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


# Time


@both_kinds
async def test_silence_after_the_request(wire: Wire, kind: str) -> None:
    """Given up after the time for the reply, which differs between the kinds."""
    timeouts = attrs.evolve(PATIENT, **{"reply" if kind == "json" else "upload_reply": 0.1})
    async with over(wire, silent) as (transport, peer):
        with within(1.5), pytest.raises(TransferTimeout) as caught:
            await transport.send(either(kind, peer.url, timeouts))
    assert isinstance(caught.value, TimeoutError)


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


def endless_headers() -> Iterator[bytes]:
    """Answer one header after the other."""
    yield b"HTTP/1.1 200 OK\r\n"
    for number in itertools.count():
        yield b"X-%d: x\r\n" % number


def endless_hints() -> Iterator[bytes]:
    """Answer that the answer will come."""
    while True:
        yield b"HTTP/1.1 103 Early Hints\r\n\r\n"


def endless_content() -> Iterator[bytes]:
    """Answer byte by byte."""
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    while True:
        yield b" "


@both_kinds
@pytest.mark.parametrize("pieces", [endless_headers, endless_hints, endless_content])
async def test_a_reply_that_never_ends(
    transport: HttpxTransport, kind: str, pieces: Callable[[], Iterator[bytes]]
) -> None:
    """The time for the reply is a total, from the end of the request: a drip does not extend it."""
    timeouts = attrs.evolve(PATIENT, reply=0.2, upload_reply=0.2)
    with Peer(dripping(pieces, 0.03)) as peer:
        with within(1.5), pytest.raises(TransferTimeout):
            await transport.send(either(kind, peer.url, timeouts))
        await until(peer.idle)


async def test_a_slow_upload_leaves_all_the_time_for_the_reply(transport: HttpxTransport) -> None:
    """The time for the reply starts when the body has ended; that to connect has ended before."""
    timeouts = attrs.evolve(PATIENT, connect=0.3, upload_reply=0.4)

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        connection.closed_within(0.2)
        connection.send(reply())

    with Peer(script) as peer:
        supply = Supply(1000, 500, lambda: anyio.sleep(0.6))
        assert (await transport.send(upload(peer.url, supply, timeouts)[0])).status == 200


# Proxies


async def test_a_proxy_is_used(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """The one that is given; in clear it gets the whole address."""
    with Peer(answering(reply())) as proxy:
        transport = HttpxTransport(proxy=proxy.url, verify=tls[1])
        for kind in ("json", "upload"):
            answer = await transport.send(either(kind, "http://meet.invalid"))
            assert answer.status == 200
        await transport.aclose()
    assert proxy.requests[0].head.startswith(b"POST http://meet.invalid/auth/room/call HTTP/1.1")
    assert proxy.requests[1].head.startswith(b"POST http://meet.invalid/auth/room/upload HTTP/1.1")


@both_kinds
async def test_a_proxy_that_refuses_in_clear(
    kind: str, tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    """In clear its 407 is a reply like any other."""
    with Peer(answering(reply(407, b""))) as proxy:
        transport = HttpxTransport(proxy=proxy.url, verify=tls[1])
        assert (await transport.send(either(kind, "http://meet.invalid"))).status == 407
        await transport.aclose()


def refusing_tunnel(connection: Connection) -> None:
    """Refuse to connect."""
    answering(reply(407, b"", [b'Proxy-Authenticate: Basic realm="x"']))(connection)


def breaking_tunnel(connection: Connection) -> None:
    """Break while asked to connect."""
    connection.read_head()
    connection.reset()


def broken_tunnel(connection: Connection) -> None:
    """Connect and break in the handshake."""
    connection.read_head()
    connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
    connection.sock.recv(1)
    connection.reset()


def babbling_tunnel(connection: Connection) -> None:
    """Answer what is no HTTP."""
    connection.read_head()
    connection.send(b"SOCKS?\r\n\r\n")


TUNNELS = [refusing_tunnel, breaking_tunnel, broken_tunnel, babbling_tunnel]


@pytest.mark.parametrize("script", TUNNELS)
async def test_a_tunnel_that_is_not_made(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], script: Script
) -> None:
    """Whatever goes wrong before there is a connection to the server: nothing was sent."""
    with Peer(script) as proxy:
        transport = HttpxTransport(proxy=proxy.url, verify=tls[1])
        await never_connects(transport, "https://meet.invalid", connect=5)
        await transport.aclose()
    for received in proxy.requests:
        assert received.head.startswith(b"CONNECT meet.invalid:443 HTTP/1.1\r\n")
        assert SIGNATURE not in received.head


@pytest.mark.parametrize("script", [deaf, silent])
async def test_a_proxy_that_is_silent(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], script: Script
) -> None:
    """Making a tunnel is connecting: limited by the connect timeout, not by that for the reply."""
    with Peer(script) as proxy:
        transport = HttpxTransport(proxy=proxy.url, verify=tls[1])
        await never_connects(transport, "https://meet.invalid", connect=0.15)
        await transport.aclose()


def mute_tunnel(connection: Connection) -> None:
    """Connect, and pass nothing on."""
    connection.read_head()
    connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
    connection.drain()


@pytest.mark.parametrize("how", ["timeout", "cancellation"])
async def test_a_tunnel_that_leads_nowhere(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], how: str
) -> None:
    """Given up in the handshake behind the proxy, by us or by the caller: nothing stays open."""
    with Peer(mute_tunnel) as proxy:
        transport = HttpxTransport(proxy=proxy.url, verify=tls[1])
        await never_connects(transport, "https://meet.invalid", connect=0.1)
        before = descriptors(proxy)
        for _ in range(5):
            if how == "timeout":
                await never_connects(transport, "https://meet.invalid", connect=0.05)
            else:
                await cancelled(transport, call("https://meet.invalid"), 0.05)
        try:
            await until(lambda: descriptors(proxy) == before and proxy.idle(), 1)
        finally:
            await finish(transport)


async def test_a_proxy_behind_tls(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """The way to the proxy is checked with the caller's certificates, too."""
    with Peer(answering(reply()), tls=tls[0]) as proxy:
        transport = HttpxTransport(proxy=proxy.url, verify=tls[1])
        try:
            assert (await transport.send(call("http://meet.invalid"))).status == 200
        finally:
            await finish(transport)


async def test_a_proxy_that_is_not_there(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """Refused, in clear and encrypted."""
    transport = HttpxTransport(proxy=f"http://127.0.0.1:{closed_port()}", verify=tls[1])
    await never_connects(transport, "http://meet.invalid")
    await never_connects(transport, "https://meet.invalid")
    await transport.aclose()


async def test_a_password_for_a_proxy_is_hidden(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], caplog: pytest.LogCaptureFixture
) -> None:
    """It goes to the proxy and nowhere else."""
    caplog.set_level(logging.DEBUG)
    with Peer(refusing_tunnel) as proxy:
        transport = HttpxTransport(
            proxy=f"http://me:{SECRET}@127.0.0.1:{proxy.port}", verify=tls[1]
        )
        error = await never_connects(transport, "https://meet.invalid", connect=5)
        seen = repr(transport) + caplog.text + repr(error) + str(error) + shown_elsewhere(error)
        await transport.aclose()
    assert proxy.requests[0].values(b"Proxy-Authorization")
    assert SECRET not in seen


# Errors


async def test_our_own_error_from_a_body_passes_through(wire: Wire) -> None:
    """The same error, with its cause, and no complete form at the other end."""
    cause = OSError("torn")
    error = DocumentUnreadable("deck.pdf", "torn")
    error.__cause__ = cause

    async def fail() -> None:
        raise error

    async with over(wire, silent) as (transport, peer):
        request, body = upload(peer.url, Supply(MIB, MIB // 2, fail))
        with within(2), pytest.raises(DocumentUnreadable) as caught:
            await transport.send(request)
        await until(peer.idle)
    assert caught.value is error
    assert caught.value.__cause__ is cause
    assert not body.complete


@pytest.mark.parametrize("kind", [OSError, ConnectionResetError, TimeoutError, httpx.ReadError])
async def test_another_error_from_a_body_is_not_the_network(
    transport: HttpxTransport, kind: type[Exception]
) -> None:
    """A source of the caller that fails is not a lost connection, which would be tried again."""

    async def fail() -> None:
        raise kind("torn")

    with Peer(silent) as peer, pytest.raises(kind) as caught:
        await transport.send(upload(peer.url, Supply(MIB, MIB // 2, fail))[0])
    assert not isinstance(caught.value, MeetingError)


async def test_a_body_of_another_length_is_not_sent(transport: HttpxTransport) -> None:
    """Neither a shorter nor a longer one makes a complete request."""

    @attrs.define
    class Lying:
        length: int
        left: int = 2

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self

        async def __anext__(self) -> bytes:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return b"x" * 500

    for declared in (999, 1001):
        body: Body = Lying(1000)
        with Peer(silent) as peer:
            pairs = headers(declared)
            request = Request("POST", f"{peer.url}/auth/x", pairs, body, PATIENT, 0.3)
            with within(2), pytest.raises(ConnectionLost):
                await transport.send(request)
            await until(peer.idle)


FAILURES: dict[str, Script] = {
    "reset at once": resetting_at_once,
    "reset": resetting(100),
    "no HTTP": answering_once(b"garbage\r\n\r\n"),
    "closed": answering_once(b""),
    "silent": silent,
}


@both_kinds
@pytest.mark.parametrize("script", FAILURES.values(), ids=FAILURES.keys())
async def test_the_cause_is_kept_without_frames(
    transport: HttpxTransport, kind: str, script: Script
) -> None:
    """What was raised below is the cause; its frames, which know the headers, are gone."""
    timeouts = attrs.evolve(PATIENT, reply=0.1, upload_reply=0.1)
    with Peer(script) as peer, pytest.raises(TransportError) as caught:
        await transport.send(either(kind, peer.url, timeouts))
    error = caught.value
    link: BaseException | None = error.__cause__
    assert script is silent or link is not None
    assert not isinstance(link, MeetingError)
    while link is not None:
        assert link.__traceback__ is None
        link = link.__cause__ or link.__context__
    for secret in (API_KEY, SIGNATURE):
        assert secret.decode() not in shown_elsewhere(error)
        assert secret.decode() not in repr(error) + str(error)


@pytest.mark.parametrize("script", FAILURES.values(), ids=FAILURES.keys())
async def test_the_callers_own_error_keeps_its_traceback(
    transport: HttpxTransport, script: Script
) -> None:
    """A request made while another error is handled leaves that error as it was."""
    timeouts = attrs.evolve(PATIENT, reply=0.1)

    def fail() -> None:
        raise KeyError("the caller's")

    async def fall_back() -> None:
        try:
            fail()
        except KeyError:
            with contextlib.suppress(TransportError):
                await transport.send(call(peer.url, timeouts))
            raise

    with Peer(script) as peer, pytest.raises(KeyError) as caught:
        await fall_back()
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == "fail"


@pytest.mark.parametrize("value", [SIGNATURE + b"\n", b" " + SIGNATURE, SIGNATURE + b"\0"])
async def test_a_header_that_cannot_be_sent_is_not_shown(
    transport: HttpxTransport, value: bytes
) -> None:
    """The library below quotes illegal values in its error; ours must not."""
    request = call("http://127.0.0.1:9")
    pairs = (*request.headers[2:], (b"HASH-SIGNATURE", value))
    with Peer(silent) as peer:
        url = f"{peer.url}/auth/room/call"
        with pytest.raises(TransportError) as caught:
            await transport.send(attrs.evolve(request, url=url, headers=pairs))
    assert SIGNATURE.decode() not in str(caught.value)
    assert SIGNATURE.decode() not in shown_elsewhere(caught.value)


# Secrets, through the whole client


def signature(message: bytes) -> str:
    """Sign as interface section 5 says."""
    return hmac.new(SECRET.encode(), message, hashlib.sha256).hexdigest()


OUTCOMES: dict[str, tuple[Script, tuple[type[Exception], ...]]] = {
    "accepted": (answering(reply()), ()),
    "refused": (answering(reply(401, b"{}")), (RequestRefused,)),
    "redirected": (answering(reply(307, b"", [b"Location: /x"])), (RequestRefused,)),
    "reset": (resetting(10), (TransportError, UploadOutcomeUnknown)),
    "no HTTP": (answering_once(b"?\r\n\r\n"), (TransportError, UploadOutcomeUnknown)),
    "silent": (silent, (TransportError, UploadOutcomeUnknown)),
}


@pytest.mark.parametrize(("script", "expected"), OUTCOMES.values(), ids=OUTCOMES.keys())
async def test_no_secret_leaves_the_request(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
    script: Script,
    expected: tuple[type[Exception], ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither in a log at any level, nor in a repr, an error or a traceback with locals."""
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore", "httpcore.http11", "httpcore.connection", "asyncio"):
        caplog.set_level(logging.DEBUG, logger=name)
    events: list[object] = []
    async with over(tls, script) as (transport, peer):
        client = MeetingClient(
            peer.url,
            api_key=API_KEY.decode(),
            api_secret=SECRET,
            transport=transport,
            retry=RetryPolicy(max_attempts=1),
            timeouts=Timeouts(reply=0.1, upload_reply=0.1),
            on_event=events.append,
        )
        seen = repr(transport)
        for run in (
            lambda: client.call("room/create", {"room_id": "room01"}),
            lambda: client.upload_whiteboard_file("room01", b"%PDF-", filename="deck.pdf"),
        ):
            try:
                seen += repr(await run())
            except expected as error:
                seen += shown_elsewhere(error) + repr(error) + str(error) + repr(error.__cause__)
        await client.aclose()
    assert peer.requests == [] or len(peer.requests) >= 2
    records = "".join(repr(vars(record)) + record.getMessage() for record in caplog.records)
    assert "httpcore" in records
    for secret in (SECRET, signature(b"room01"), signature(b'{"room_id":"room01"}')):
        assert secret not in seen
        assert secret not in records
        assert secret not in repr(events)


async def test_no_secret_in_the_traceback_of_a_document_that_changes(tmp_path: Path) -> None:
    """Its error passes through every frame between the file and the caller."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(b"x" * 2 * MIB)
    grown = threading.Event()

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.read_body(MIB)
        with path.open("ab") as file:
            file.write(b"more")
        grown.set()
        connection.drain()

    async def wait(event: object) -> None:
        if getattr(event, "sent", 0) == 2 * MIB:
            await until(grown.is_set)

    with Peer(script) as peer:
        async with MeetingClient(
            peer.url, api_key=API_KEY.decode(), api_secret=SECRET, on_event=wait
        ) as client:
            with pytest.raises(DocumentChanged) as caught:
                await client.upload_whiteboard_file("room01", path)
    shown = shown_elsewhere(caught.value)
    assert SECRET not in shown
    assert signature(b"room01") not in shown
    (received,) = peer.requests
    assert len(received.body) < received.length


# Other people's clients


async def test_a_borrowed_client_is_used_as_it_is() -> None:
    """With its headers and hooks, and it stays open."""
    seen = []

    async def hook(request: httpx.Request) -> None:
        seen.append(request.url.path)

    hooks = {"request": [hook]}
    with Peer(answering(reply())) as peer:
        async with httpx.AsyncClient(
            headers={"X-Mine": "1"}, event_hooks=hooks, trust_env=False
        ) as client:
            transport = HttpxTransport(client)
            for kind in ("json", "upload"):
                assert (await transport.send(either(kind, peer.url))).content == RECORD
            await transport.aclose()
            assert not client.is_closed
            assert (await client.get(peer.url)).status_code == 200
            assert "borrowed" in repr(transport)
    assert seen[:2] == ["/auth/room/call", "/auth/room/upload"]
    assert [received.values(b"X-Mine") for received in peer.requests[:2]] == [[b"1"], [b"1"]]
    assert peer.requests[1].values(b"Room-Id") == [ROOM]
    assert peer.requests[1].length == len(peer.requests[1].body)


async def test_a_borrowed_client_that_is_closed_is_the_callers_mistake() -> None:
    """Not a lost connection, which would be tried again."""
    client = httpx.AsyncClient()
    await client.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await HttpxTransport(client).send(call("http://127.0.0.1:9"))


@both_kinds
async def test_a_borrowed_client_in_process(kind: str) -> None:
    """An application can be called without any network."""
    got = bytearray()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            got.extend(message.get("body", b""))
            more = message.get("more_body", False)
        start = {"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"b")]}
        await send(start)
        await send({"type": "http.response.body", "body": RECORD})

    transport = httpx.ASGITransport(app=application)
    async with httpx.AsyncClient(transport=transport) as client:
        request = either(kind, "http://meet.invalid")
        answer = await HttpxTransport(client).send(request)
    assert answer == Reply(200, ((b"x-a", b"b"),), RECORD)
    expected = dict(request.headers)[b"Content-Length"]
    assert len(got) == int(expected)


@both_kinds
async def test_respx_mocks_our_own_clients(transport: HttpxTransport, kind: str) -> None:
    """The usual way to fake httpx works with either kind of request."""
    url = "https://meet.invalid"
    request = either(kind, url)
    with respx.mock(base_url=url) as router:
        route = router.post(path__startswith="/auth/room/").respond(json=json.loads(RECORD))
        answer = await transport.send(request)
    assert answer.status == 200
    assert json.loads(answer.content) == json.loads(RECORD)
    sent = route.calls.last.request
    assert len(sent.content) == int(sent.headers["Content-Length"])
    if kind == "upload":
        assert sent.content.endswith(b"--\r\n")


@pytest.mark.parametrize(
    ("raised", "ours"),
    [
        (httpx.ConnectError("x"), ConnectFailed),
        (httpx.ConnectTimeout("x"), ConnectFailed),
        (httpx.PoolTimeout("x"), ConnectFailed),
        (httpx.ProxyError("x"), ConnectFailed),
        (httpx.UnsupportedProtocol("x"), ConnectFailed),
        (httpx.WriteTimeout("x"), TransferTimeout),
        (httpx.ReadTimeout("x"), TransferTimeout),
        (httpx.WriteError("x"), ConnectionLost),
        (httpx.ReadError("x"), ConnectionLost),
        (httpx.CloseError("x"), ConnectionLost),
        (httpx.RemoteProtocolError("x"), ConnectionLost),
        (httpx.LocalProtocolError("x"), ConnectionLost),
        (httpx.DecodingError("x"), ConnectionLost),
        (httpx.TooManyRedirects("x"), ConnectionLost),
        (httpx.StreamClosed(), ConnectionLost),
        (ssl.SSLError("x"), ConnectionLost),
        (ConnectionResetError("x"), ConnectionLost),
        (anyio.BrokenResourceError(), ConnectionLost),
        (anyio.ClosedResourceError(), ConnectionLost),
        (anyio.EndOfStream(), ConnectionLost),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
async def test_what_a_clients_transport_raises_is_mapped(
    raised: Exception, ours: type[TransportError]
) -> None:
    """Each row of the table, for transports that cannot be made to fail that way for real."""

    class Raising(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            raise raised

    async with httpx.AsyncClient(transport=Raising()) as client:
        with pytest.raises(TransportError) as caught:
            await HttpxTransport(client).send(call("http://meet.invalid"))
    assert type(caught.value) is ours
    assert caught.value.reason
    if not isinstance(raised, httpx.LocalProtocolError):  # it may quote what must not be shown
        assert caught.value.__cause__ is raised


@pytest.mark.parametrize(
    "raised",
    [
        httpx.ConnectError("x"),
        httpx.ConnectTimeout("x"),
        httpx.PoolTimeout("x"),
        httpx.ProxyError("x"),
        httpx.UnsupportedProtocol("x"),
        httpx.InvalidURL("x"),
        UnicodeError("x"),
    ],
    ids=lambda raised: type(raised).__name__,
)
@pytest.mark.parametrize("taken", ["call", "upload", "part of an upload"])
async def test_what_was_taken_was_not_never_sent(raised: Exception, taken: str) -> None:
    """``ConnectFailed`` means that no byte was taken; it would all be sent a second time."""

    class Retrying(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            assert isinstance(request.stream, httpx.AsyncByteStream)
            async for _ in request.stream:
                if taken == "part of an upload":
                    break
            raise raised  # as a transport does that tries a second address, or a second time

    request = either("json" if taken == "call" else "upload", "http://meet.invalid")
    async with httpx.AsyncClient(transport=Retrying()) as client:
        with pytest.raises(TransportError) as caught:
            await HttpxTransport(client).send(request)
    assert not isinstance(caught.value, ConnectFailed)
    await close_bodies()


async def test_a_borrowed_client_may_ask_twice() -> None:
    """An authentication of two steps sends a JSON body twice, as it would without us."""

    class Stepwise(httpx.Auth):
        def auth_flow(
            self, request: httpx.Request
        ) -> Generator[httpx.Request, httpx.Response, None]:
            response = yield request
            if response.status_code == 401:
                request.headers["Authorization"] = "Digest for-the-proxy"
                yield request

    with Peer(answering(reply(401), reply())) as peer:
        async with httpx.AsyncClient(auth=Stepwise(), trust_env=False) as client:
            answer = await HttpxTransport(client).send(call(peer.url))
    assert answer.status == 200
    assert [bytes(received.body) for received in peer.requests] == [JSON_BODY, JSON_BODY]


async def test_a_mistake_in_a_clients_transport_is_not_the_network() -> None:
    """What is no failure of the network comes through as it is."""

    class Wrong(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            raise ZeroDivisionError

    async with httpx.AsyncClient(transport=Wrong()) as client:
        with pytest.raises(ZeroDivisionError):
            await HttpxTransport(client).send(call("http://meet.invalid"))


def test_it_is_a_transport() -> None:
    """The protocol can be checked at run time."""
    transport = HttpxTransport()
    assert isinstance(transport, Transport)
    assert repr(transport).startswith("<HttpxTransport")


# Cancellation


def living_tasks() -> int:
    """Count the tasks of the running loop."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return trio.lowlevel.current_statistics().tasks_living


async def cancelled(transport: HttpxTransport, request: Request, after: float) -> None:
    """Send and cancel after so many seconds."""
    with anyio.move_on_after(after) as scope:
        await transport.send(request)
    assert scope.cancelled_caught


def json_or_upload(url: str, number: int) -> Request:
    """Make either kind of request in turn."""
    return call(url) if number % 2 else upload(url)[0]


def large_upload(url: str, _number: int) -> Request:
    """Make an upload that fills every buffer."""
    return upload(url, Supply(64 * MIB))[0]


@pytest.mark.parametrize(
    ("script", "make"),
    [
        (deaf, large_upload),
        (silent, json_or_upload),
        (dripping(endless_content, 0.002), json_or_upload),
    ],
    ids=["sending", "waiting", "receiving"],
)
async def test_cancelled_thirty_times(
    wire: Wire, script: Script, make: Callable[[str, int], Request]
) -> None:
    """At different moments; in between and at the end the transport works; nothing is left."""
    async with over(wire, answering(reply())) as (transport, good):
        assert (await transport.send(upload(good.url)[0])).status == 200
        await until(good.idle)
        with Peer(script, tls=wire[0], receive_buffer=64 * KIB) as bad:
            before, tasks = descriptors(good, bad), living_tasks()
            for number in range(30):
                await cancelled(transport, make(bad.url, number), 0.001 + 0.0003 * number)
                if number % 10 == 9:
                    for kind in ("upload", "json"):
                        assert (await transport.send(either(kind, good.url))).status == 200
            await until(lambda: descriptors(good, bad).total() <= before.total() + 1)
            await transport.aclose()
            await until(lambda: descriptors(good, bad) == before)
            await until(lambda: living_tasks() == tasks)


@attrs.define
class Interrupted:
    """Drives a coroutine and cancels it when it waits for the n-th time."""

    coroutine: Coroutine[Any, Any, Reply]
    number: int
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)

    def __await__(self) -> Generator[Any, Any, Reply]:
        steps = self.coroutine.__await__()
        waited = 0
        step: Callable[[], Any] = steps.__next__
        while True:
            try:
                trap = step()
            except StopIteration as end:
                reply: Reply = end.value
                return reply
            waited += 1
            if waited == self.number:
                self.scope.cancel()
            try:
                value = yield trap
            except BaseException as error:  # noqa: BLE001 - it goes to the coroutine
                step = functools.partial(steps.throw, error)
            else:
                step = functools.partial(steps.send, value)


@both_kinds
async def test_cancelled_at_every_await(wire: Wire, kind: str) -> None:
    """Wherever a request is cancelled, its connection is closed and the next one works."""
    async with over(wire, answering(reply())) as (transport, peer):
        kept = 1 if kind == "json" else 0
        leaks = []
        for number in itertools.count(1):
            await transport.aclose()  # so that connecting is interrupted, too
            await until(peer.idle)
            request = either(kind, peer.url)
            run = Interrupted(transport.send(request), number)
            with run.scope:
                await run
            assert (await transport.send(either(kind, peer.url))).status == 200
            try:
                await until(lambda: peer.open <= kept, 0.3)
            except TimeoutError:
                leaks.append(number)
            if not run.scope.cancelled_caught:
                break
        assert number > 2
        assert leaks == []


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


async def test_cancelled_connections_are_forgotten(wire: Wire) -> None:
    """Wherever uploads are cancelled, no list of connections grows."""
    async with over(wire, answering(reply())) as (transport, peer):
        for number in range(1, 30):
            run = Interrupted(transport.send(upload(peer.url)[0]), number)
            with run.scope:
                await run
        await close_bodies()
        gc.collect()
        alive = [one for one in gc.get_objects() if isinstance(one, httpcore.AsyncHTTPConnection)]
        assert alive == []


async def test_cancelled_while_connecting(transport: HttpxTransport, unanswering: str) -> None:
    """Ten connections that are not answered: none stays open."""
    await cancelled(transport, call(f"http://{unanswering}"), 0.02)
    before = descriptors()
    for number in range(10):
        await cancelled(transport, call(f"http://{unanswering}"), 0.002 * number + 0.001)
        await cancelled(transport, upload(f"http://{unanswering}")[0], 0.002 * number + 0.001)
    await anyio.sleep(0.05)
    assert descriptors() == before


async def test_an_error_amid_the_reply_leaves_no_generator(
    transport: HttpxTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left for the garbage collector to close; it would warn."""
    monkeypatch.setattr(_exchange, "MAX_REPLY_BYTES", 10)
    left: list[Any] = []
    hooks = sys.get_asyncgen_hooks()

    def finalizer(generator: Any) -> None:
        left.append(generator)
        if hooks.finalizer:
            hooks.finalizer(generator)

    sys.set_asyncgen_hooks(firstiter=hooks.firstiter, finalizer=finalizer)
    try:
        with Peer(answering(reply(content=b"y" * 100_000))) as peer:
            for kind in ("json", "upload"):
                with pytest.raises(ConnectionLost):
                    await transport.send(either(kind, peer.url))
            gc.collect()
    finally:
        sys.set_asyncgen_hooks(*hooks)
    assert [generator.ag_code for generator in left] == []


def test_asyncio_cancels_amid_a_request() -> None:
    """``asyncio.wait_for`` breaks through shields; the next request works, nothing is left."""

    async def main() -> None:
        transport = HttpxTransport()
        with Peer(answering(reply())) as good, Peer(deaf, receive_buffer=64 * KIB) as bad:
            await transport.send(upload(good.url)[0])
            await until(good.idle)
            before = descriptors(good, bad)
            for number in range(30):
                request = upload(bad.url, Supply(64 * MIB))[0] if number % 2 else call(bad.url)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(transport.send(request), 0.001 * number + 0.001)
            assert (await transport.send(upload(good.url)[0])).status == 200
            await until(good.idle)
            await until(lambda: descriptors(good, bad) == before)
            await finish(transport)

    asyncio.run(main())


def test_a_transport_that_was_closed_serves_a_second_loop() -> None:
    """It holds nothing of the first loop."""
    transport = HttpxTransport()

    async def main(peer: Peer) -> None:
        for kind in ("json", "upload", "json"):
            assert (await transport.send(either(kind, peer.url))).status == 200
        await transport.aclose()

    with Peer(answering(reply())) as peer:
        asyncio.run(main(peer))
        trio.run(main, peer)


async def test_certificates_are_loaded_once_in_a_thread(
    transport: HttpxTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many requests start at once; and not at all for plain HTTP."""
    threads = []
    load = ssl.create_default_context

    def noting(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        threads.append(threading.get_ident())
        return load(*args, **kwargs)

    monkeypatch.setattr(ssl, "create_default_context", noting)

    async def fail(kind: str) -> None:
        with pytest.raises(ConnectFailed):
            await transport.send(either(kind, f"https://127.0.0.1:{closed_port()}"))

    with Peer(answering(reply())) as peer:
        async with anyio.create_task_group() as group:
            for kind in ("json", "upload") * 5:
                group.start_soon(transport.send, either(kind, peer.url))
        assert threads == []
        async with anyio.create_task_group() as group:
            for kind in ("json", "upload") * 5:
                group.start_soon(fail, kind)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_a_path_is_uploaded_through_the_whole_client(tmp_path: Path) -> None:
    """From a file to the wire, with a lock in between that gives no second chance."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(b"%PDF-" + bytes(MIB))
    with Peer(answering(reply(409)), answering(reply())) as peer:
        async with MeetingClient(
            peer.url,
            api_key="key",
            api_secret=SECRET,
            lock=LockPolicy(min_delay=0.01),
        ) as client:
            receipt = await client.upload_whiteboard_file("room01", Document.from_path(path))
    assert [attempt.verdict for attempt in receipt.attempts] == ["busy", "accepted"]
    assert b"%PDF-" + bytes(MIB) + b"\r\n--" in peer.requests[0].body
    assert b"%PDF-" + bytes(MIB) + b"\r\n--" in peer.requests[1].body
