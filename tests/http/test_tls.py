"""TLS over real sockets: what OpenSSL does on its own account while a body goes out."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import attrs
import pytest

from meeting_async import errors
from meeting_async._http.stream import Stream
from meeting_async._http.tls import Resumption, Tls
from meeting_async.transports import HttpTransport
from support.peer import Connection, Peer, answering, reply
from support.ports import free_port
from support.sending import (
    KIB,
    MIB,
    TAIL,
    Form,
    call,
    closing,
    over,
    until,
    upload,
    within,
)
from support.tables import in_turn

pytestmark = [pytest.mark.anyio]

nightly = pytest.mark.nightly


@pytest.fixture
def client(files: tuple[Path, Path]) -> ssl.SSLContext:
    """Provide a context that trusts the certificate, and shows it if it is asked to."""
    context = ssl.create_default_context(cafile=files[1])
    context.load_cert_chain(files[1], files[0])
    context.post_handshake_auth = True
    return context


# --- how much was sent ---------------------------------------------------------------------------

SUITES = {
    "CBC": ("TLSv1_2", "ECDHE-ECDSA-AES256-SHA"),
    "CBC, SHA-384": ("TLSv1_2", "ECDHE-ECDSA-AES256-SHA384"),
    "GCM": ("TLSv1_2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
    "1.3": ("TLSv1_3", ""),
}


@attrs.define(eq=False)
class Narrow:
    """A socket that takes so many bytes and no more."""

    sock: socket.socket
    room: int | None = None

    def send(self, data: memoryview) -> int:
        """Send the beginning."""
        if self.room == 0:
            raise BlockingIOError
        sent = self.sock.send(data if self.room is None else data[: self.room])
        self.room = None if self.room is None else self.room - sent
        return sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
async def test_sessions_are_resumed(
    server: ssl.SSLContext, version: str, files: tuple[Path, Path]
) -> None:
    """For ten minutes after the certificate was looked at; each transport has its own."""
    server.maximum_version = server.minimum_version = ssl.TLSVersion[version]
    resumed = list[bool]()

    def script(connection: Connection) -> None:
        answering(reply())(connection)
        resumed.append(cast(ssl.SSLSocket, connection.sock).session_reused or False)

    with Peer(script, tls=server) as peer:
        for _ in range(2):
            transport = HttpTransport(verify=str(files[1]))
            async with closing(transport):
                for _ in range(3):
                    assert (await transport.send(call(peer.url, idempotent=False))).status == 200
    assert resumed[0] is resumed[3] is False
    assert any(resumed[1:3])  # TLS 1.3 promises none, as a ticket may come late
    assert any(resumed[4:])


def test_a_session_is_not_resumed_for_ever() -> None:
    """Ten minutes after the certificate was looked at it is looked at again."""
    now = 100.0
    resumption: Any = Resumption(lambda: now)
    assert resumption.session() is None
    resumption.keep(SimpleNamespace(session="one", session_reused=False))
    now += 599
    assert resumption.session() == "one"
    resumption.keep(SimpleNamespace(session="two", session_reused=True))
    assert resumption.session() == "two"
    now += 1
    assert resumption.session() is None


@contextlib.asynccontextmanager
async def shaken(
    server: ssl.SSLContext, client: ssl.SSLContext
) -> AsyncGenerator[tuple[Stream, Narrow, ssl.SSLSocket]]:
    """Open both ends of a connection."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)
    narrow, found = Narrow(ours), list[ssl.SSLSocket]()
    sock = cast(socket.socket, narrow)
    tls = Tls(sock, client, "127.0.0.1")
    thread = threading.Thread(
        target=lambda: found.append(server.wrap_socket(theirs, server_side=True))
    )
    thread.start()
    with anyio.fail_after(10):
        await tls.handshake()
    thread.join()
    stream = Stream(sock, tls, anyio.lowlevel.current_token())
    with found[0], contextlib.closing(stream):
        yield stream, narrow, found[0]


def decrypted(sock: ssl.SSLSocket) -> int:
    """Count what the peer can read."""
    sock.setblocking(False)
    count = 0
    with contextlib.suppress(ssl.SSLWantReadError):
        while data := sock.recv(MIB):
            count += len(data)
    return count


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, size, marks=() if size == 40_000 and name == "CBC" else nightly)
        for name in SUITES
        for size in (1, 15, 16, 17, 1000, 16_384, 16_385, 40_000, 100_000)
    ],
)
async def test_never_fewer_bytes_are_counted_than_can_be_read(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str, size: int
) -> None:
    """Wherever the operating system stops taking: no record adds more than is allowed for.

    Nothing is counted of what was not begun, and everything when all is gone.
    """
    version, suite = SUITES[name]
    client.minimum_version = client.maximum_version = ssl.TLSVersion[version]
    if suite:
        client.set_ciphers(suite)
        server.set_ciphers(suite)
    rooms = sorted({n for n in (*range(0, 200, 7), *range(16_350, 16_550, 7), size - 41, size)
                    if 0 <= n <= size})  # fmt: skip
    for room in [*rooms, None]:
        async with shaken(server, client) as (stream, narrow, peer):
            stream.begin()
            assert stream.push(memoryview(b"before")) == 6
            narrow.room = room
            assert stream.push(memoryview(bytes(size))) == size
            told, seen = stream.sent, decrypted(peer)
            assert seen <= told <= size + 6, room
            assert told - seen <= 16_384 + 512 * (size // 16_384 + 2)
            assert told == 6 if room == 0 else told > 6
    assert (told, seen) == (size + 6, size + 6)


# --- client certificates after the handshake (RFC 8446 section 4.6.2) ----------------------------


def shown_certificate(connection: Connection) -> object:
    """Wait for the client's certificate if it is not there; nothing else may come."""
    assert isinstance(connection.sock, ssl.SSLSocket)
    until = time.monotonic() + 10
    connection.sock.settimeout(0.05)
    while not connection.sock.getpeercert() and time.monotonic() < until:
        with contextlib.suppress(TimeoutError):
            assert connection.sock.recv(1) == b"nothing"
    connection.sock.settimeout(10)
    return connection.sock.getpeercert()


@in_turn(
    "asked",
    {
        "at once": (0, "pauses", False),
        "soon": (100 * KIB, "reads on", False),
        "when it is full": (2 * MIB, "pauses", False),
        "while the client only reads": (8 * MIB + len(TAIL), "reads on", False),
        "of files": (0, "reads on", True),
    }.items(),
)
async def test_a_certificate_is_asked_for_amid_the_body(
    server: ssl.SSLContext,
    client: ssl.SSLContext,
    files: tuple[Path, Path],
    asked: tuple[int, str, bool],
) -> None:
    """It is shown, and the body goes on, also if the server's buffers are full meanwhile."""
    after, then, from_files = asked
    server.post_handshake_auth = True
    server.verify_mode = ssl.CERT_REQUIRED
    shown: list[object] = []

    def script(connection: Connection) -> None:
        assert isinstance(connection.sock, ssl.SSLSocket)
        connection.read_head()
        connection.read_body(after)
        if then == "pauses":
            time.sleep(0.1)
        connection.sock.verify_client_post_handshake()
        connection.sock.send(b"HTTP/1.1 100 Continue\r\n\r\n")  # which sends the question, too
        if then == "pauses":
            time.sleep(0.1)
        connection.read_body()
        shown.append(shown_certificate(connection))
        connection.send(reply())

    key, cert = map(str, files)
    wire: Any = server, cert if from_files else client
    given = {"cert": (cert, key)} if from_files else {}
    async with over(wire, script, receive_buffer=64 * KIB, **given) as (transport, peer):
        with within(10):
            assert (await transport.send(upload(peer.url, Form(8 * MIB)))).status == 200
    assert shown[0]
    assert peer.requests[0].body == Form(8 * MIB).content


FAULTS = """
import resource, sys
import anyio
from meeting_async import MeetingClient
from meeting_async.transports import HttpTransport

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

async def main(url, authorities, path):
    transport = HttpTransport(verify=authorities)
    async with MeetingClient(
        url, api_key="k", api_secret="s", transport=transport, preflight=False
    ) as client:
        await client.upload_whiteboard_file("room01", b"%PDF-1.7", filename="deck.pdf")
        before = faults()
        await client.upload_whiteboard_file("room01", path)
        print(faults() - before)

anyio.run(main, *sys.argv[1:])
"""


async def test_the_same_memory_is_used_again(
    files: tuple[Path, Path], server: ssl.SSLContext, tmp_path: Path
) -> None:
    """A document of 32 MiB, 8,192 pages, costs a fresh process few page faults."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(b"%PDF-1.7\n".ljust(32 * MIB, b"x"))

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.read_body(keep=False)
        connection.send(reply(content=b'{"status":true,"msg":"ok","status_code":"SUCCESS"}'))

    with Peer(script, tls=server) as peer:
        command = [sys.executable, "-c", FAULTS, peer.url, str(files[1]), str(path)]
        done = await anyio.run_process(command)
    assert int(done.stdout) < 2_000


# --- OpenSSL's own server ------------------------------------------------------------------------


class SServer:
    """``openssl s_server``: what is written to it, the client gets; some lines are commands."""

    def __init__(self, files: tuple[Path, Path], *options: str) -> None:
        openssl = shutil.which("openssl")
        assert openssl
        self.port = free_port()
        key, cert = map(str, files)
        command = [openssl, "s_server", "-accept", f"127.0.0.1:{self.port}", "-key", key]
        command += ["-cert", cert, "-CAfile", cert, *options]
        self.received = bytearray()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        while data := os.read(self._process.stdout.fileno(), 65536):
            self.received += data

    def type(self, line: str) -> None:
        """Type a line."""
        assert self._process.stdin
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    @contextlib.contextmanager
    def running(self) -> Iterator[SServer]:
        """End it after the block."""
        try:
            yield self
        finally:
            self._process.kill()
            self._reader.join()
            assert self._process.stdin
            assert self._process.stdout
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait()


@in_turn("command", ["K", "k", "r"])
async def test_openssl_changes_keys(
    files: tuple[Path, Path], client: ssl.SSLContext, command: str
) -> None:
    """Key updates of both kinds, and other handshakes of TLS 1.2, amid a body."""
    with SServer(files, *(["-tls1_2"] if command == "r" else [])).running() as server:
        await until(lambda: b"ACCEPT" in server.received)
        form = Form(8 * MIB, chunk=256 * KIB)

        async def disturb() -> None:
            await until(lambda: form.taken)
            for _ in range(10):
                server.type(command)
                await anyio.sleep(0.02)
            await until(lambda: b"\r\n--" + b"b" * 32 + b"--" in server.received)
            await anyio.sleep(0.5)  # what it reads together with a command it drops
            server.type("HTTP/1.1 200 OK\nContent-Length: 3\n\nok")

        transport = HttpTransport(verify=client)
        async with closing(transport), anyio.create_task_group() as group:
            group.start_soon(disturb)
            with within(20):
                answer = await transport.send(upload(f"https://127.0.0.1:{server.port}", form))
    assert (answer.status, answer.content) == (200, b"ok\n")
    assert b"SSL_do_handshake -> 1" in server.received  # commands that arrive together are one


# --- handshakes ----------------------------------------------------------------------------------


@in_turn("what", ["a reset", "garbage", "words before it"])
async def test_no_handshake(server: ssl.SSLContext, client: ssl.SSLContext, what: str) -> None:
    """No connection, nothing is sent, and no descriptor is left.

    Whoever sits on the way could otherwise put words in the server's mouth.
    """

    def script(connection: Connection) -> None:
        if what == "words before it":
            connection.send(reply())
            with contextlib.suppress(ssl.SSLError):
                server.wrap_socket(connection.sock, server_side=True).close()
            return
        connection.sock.recv(1)
        connection.send(bytes(100) if what == "garbage" else b"")
        connection.reset()

    form = Form()
    async with over((None, client), script) as (transport, peer):
        with pytest.raises(errors.ConnectFailed) as caught:
            await transport.send(upload(f"https://127.0.0.1:{peer.port}", form))
        await until(lambda: not peer.open)
    assert form.taken == caught.value.sent == 0


async def test_a_server_that_demands_a_certificate_gets_none(
    server: ssl.SSLContext, files: tuple[Path, Path]
) -> None:
    """With TLS 1.3 that shows after the handshake: the request was not read."""
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=files[1])
    async with over((server, client), answering(reply())) as (transport, peer):
        for _ in range(20):  # it may come before, while or after the request is sent
            with pytest.raises(errors.ConnectFailed, match="certificate required") as caught:
                await transport.send(call(peer.url))
            assert (caught.value.permanent, caught.value.sent) == (True, 0)
    assert peer.requests == []


async def test_a_context_that_others_use_for_http_2(
    server: ssl.SSLContext, client: ssl.SSLContext
) -> None:
    """We offer HTTP/1.1 only."""
    server.set_alpn_protocols(["h2", "http/1.1"])
    client.set_alpn_protocols(["h2", "http/1.1"])
    chosen: list[str | None] = []

    def script(connection: Connection) -> None:
        assert isinstance(connection.sock, ssl.SSLSocket)
        chosen.append(connection.sock.selected_alpn_protocol())
        answering(reply())(connection)

    async with over((server, client), script) as (transport, peer):
        assert (await transport.send(call(peer.url))).status == 200
    assert chosen == ["http/1.1"]
