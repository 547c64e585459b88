"""The meeting server on a real socket: connections, early answers, starting and stopping."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import pytest

from meeting_async.testing import MeetingServer
from support.command_line import OWN_CONSOLE, interrupt, until
from support.raw_http import (
    BODY_LIMIT,
    UPLOAD,
    call,
    connect,
    document,
    read_answer,
    request,
    talk,
    upload,
)

ASK = call("/auth/room/isRoomActive", {"room_id": "room01"})
NOTHING = request("/", b"", {}, "GET")


@pytest.fixture(autouse=True)
def _stops() -> Iterator[None]:
    """Fail if a test leaves a thread or an open socket, or takes as long as its requests wait."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < 40
    assert "meeting-server" not in [thread.name for thread in threading.enumerate()]
    gc.collect()  # an unclosed socket warns now, and warnings are errors


# --- connections ---------------------------------------------------------------------------------


def without_body(**changes: Any) -> bytes:
    """Write the head of an upload."""
    return upload(**changes).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def chunked(size: int) -> bytes:
    """Write an upload of so many bytes in one chunk."""
    head = without_body(Content_Length=None, Transfer_Encoding="chunked")
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (size, document().ljust(size, b"x"))


CLOSE: dict[str, Any] = {"Connection": "close"}
EXPECT = {"Expect": "100-continue"}
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n"
WIRE: dict[str, list[tuple[bytes, list[int]]]] = {
    "one after another, also after refusals": [
        *((upload(), [200]), (upload(API_KEY="no"), [401]), (upload(room="no"), [400])),
        *((NOTHING, [404]), (ASK, [200])),
    ],
    "behind one another": [(ASK + ASK, [200, 200])],
    "100 before anything is looked at": [
        (without_body(API_KEY="no", **EXPECT), [100]),
        (document(), [401]),
    ],
    "no 100 for a body that is too large": [
        (without_body(Content_Length=str(BODY_LIMIT + 1), **EXPECT), [-413])
    ],
    "an answer before the end of the body": [(upload(bytes(4 * 1024**2)), [-413])],
    "a chunked body": [(chunked(len(document())), [200]), (chunked(BODY_LIMIT + 1), [-413])],
    # nginx, which speaks HTTP/1.0 with servers, would send its next request into a closed socket
    "a close that was asked for": [(upload(**CLOSE), [-200])],
    "the same with a scripted answer": [(call("/auth/teapot", b"", **CLOSE), [-418])],
    "a long head": [(b"POST / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 5000, [-431])],
    "a long query": [(upload(path=f"{UPLOAD}?{'%20' * 1400}"), [-431])],
    "no HTTP": [(b"no http at all\r\n\r\n", [-400])],
    "TLS": [(HELLO, [-400])],
    "a length below 0": [(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", [-400])],
    "no host": [(b"POST / HTTP/1.1\r\n\r\n", [-400])],
}
"""Bytes that are sent, and the statuses of the answers; a negative one announces a close."""


@pytest.mark.parametrize("what", WIRE)
def test_connections_are_kept_or_closed(server: MeetingServer, what: str) -> None:
    """A connection is kept unless the answer says otherwise; then it is closed, not reset.

    The rest of a body is read and dropped for a while, so that no reset destroys the answer.
    """
    server.reply_next(418, path="/teapot")
    with server.run() as url:
        with connect(url) as peer:
            for raw, statuses in WIRE[what]:
                size = 50 if len(raw) < 1000 else len(raw)
                for start in range(0, len(raw), size):
                    peer.sendall(raw[start : start + size])
                for status in statuses:
                    answer = read_answer(peer)
                    said = answer.headers.get("connection")
                    assert (answer.status, said) == (abs(status), "close" if status < 0 else None)
            assert status > 0 or peer.recv(1) == b""
        assert talk(url, ASK).status == 200


@pytest.mark.parametrize("cut", [1, 2, 3, 20])
@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
def test_a_form_that_is_cut_at_its_end(server: MeetingServer, cut: int, resets: bool) -> None:
    """It is stored if only its last two bytes are missing, as on the real server."""
    with server.run() as url:
        with connect(url) as peer:
            peer.sendall(upload()[:-cut])
            until(lambda: server.requests and server.requests[0].body_bytes)
            if resets:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                peer.shutdown(socket.SHUT_WR)
                assert read_answer(peer).status == (200 if cut == 2 else 400)
        until(lambda: server.requests[0].seconds is not None)
    assert len(server.rooms["room01"].received) == (cut == 2 and not resets)


def test_a_client_that_leaves_leaves_nothing(
    server: MeetingServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """No answer, no lock, no file; nothing that goes wrong here makes noise."""
    room = server.rooms["room01"]
    with server.run() as url:
        with connect(url) as peer:
            peer.sendall(upload()[:-50])
            until(lambda: server.requests and server.requests[0].body_bytes)
        with connect(url) as peer:
            peer.sendall(b"\x00\r\n\r\n")
        server.lose_next_reply()
        server.flood_next_reply()
        for _ in range(2):
            with connect(url) as peer, contextlib.suppress(ConnectionResetError):
                peer.sendall(ASK)
                peer.recv(100_000)
        assert talk(url, upload()).status == 200
        until(lambda: server.requests[0].seconds is not None)
    for _ in range(30):
        with server.run() as url:
            for _ in range(3):
                connect(url).close()  # it comes while the server stops
    assert (server.requests[0].status, len(room.accepted)) == (None, 1)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert capfd.readouterr().err == ""


def test_a_large_document_costs_no_memory() -> None:
    """8 MiB pass through in pieces: what is allocated meanwhile stays below a quarter of them."""
    server, piece = MeetingServer(), bytes(65536)
    room = server.add_room("room01")
    size = len(piece) * 16 * 8
    before, mark, end = upload(
        document(b"%PDF-1.7"), Content_Length=str(len(document(b"%PDF-1.7")) + size)
    ).partition(b"%PDF-1.7")
    with server.run() as url, connect(url) as peer:
        tracemalloc.start()
        try:
            peer.sendall(before + mark)
            for _ in range(16 * 8):
                peer.sendall(piece)
            peer.sendall(end)
            assert read_answer(peer).status == 200
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert [file.size for file in room.received] == [size + len(mark)]
    assert peak < size / 4


# --- starting and stopping -----------------------------------------------------------------------


def test_stopping_with_open_connections() -> None:
    """Whatever they wait for, the server stops; waiting requests get 503 without its own record.

    A peer that does not read megabytes of answer is cut.
    """
    server = MeetingServer(processing_seconds=100)
    room = server.add_room("room01")
    raws = {"idle": b"", "half a head": b"POST / HT", "half a body": ASK[:-4], "upload": upload()}
    with contextlib.ExitStack() as opened:
        with server.run() as url:
            path = server.host_file("big.bin", bytes(32 * 1024**2)).removeprefix(url)
            raws["unread"] = request(path, b"", {}, "GET")
            peers = {name: opened.enter_context(connect(url)) for name in raws}
            for name, raw in raws.items():
                peers[name].sendall(raw)
            until(lambda: room.accepted and len(server.requests) == 3)
            assert peers["unread"].recv(1)
            assert talk(url, NOTHING).status == 404  # the older connections were accepted too
        for name in ("upload", "half a body"):
            assert read_answer(peers[name]).code == (503, "Service Unavailable")
        for name in ("idle", "half a head"):
            with contextlib.suppress(ConnectionResetError):
                assert peers[name].recv(100) == b""
    assert (len(room.accepted), room.received) == (1, ())


def test_a_server_can_run_again_but_not_twice_at_once(server: MeetingServer) -> None:
    """The second run keeps the rooms; a port in use and a server in use are refused."""
    with server.run() as url:
        assert repr(server) == f"<MeetingServer {url}, 1 rooms>"
        assert talk(url, upload()).status == 200
        with pytest.raises(RuntimeError, match="already running"), server.run():
            pass
        other = MeetingServer()
        with pytest.raises(OSError) as caught, other.run(port=urlsplit(url).port or 0):  # noqa: PT011 - by its number
            pass
        assert caught.value.errno == errno.EADDRINUSE
    with pytest.raises(ConnectionRefusedError):
        connect(url)
    with server.run() as url, other.run():
        assert talk(url, upload()).status == 200
    assert len(server.rooms["room01"].received) == 2


def test_an_on_request_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    """The answer has arrived, the error is logged, and the server goes on."""

    def fail(_request: object) -> None:
        raise ValueError("my mistake")

    server = MeetingServer(on_request=fail)
    server.add_room("room01")
    with server.run() as url:
        for raw in (ASK, upload(), ASK):
            assert talk(url, raw).status == 200
        until(lambda: len(caplog.records) == 3)
    assert not server.rooms["room01"].locked


@pytest.mark.both_loops
@pytest.mark.anyio
async def test_a_server_in_an_async_with_block(server: MeetingServer) -> None:
    """The server's thread ends with the block, also if that is cancelled; it holds up no loop."""
    with anyio.CancelScope() as scope:
        async with server.run() as url:
            answer = await anyio.to_thread.run_sync(talk, url, upload())
            assert (answer.status, server.rooms["room01"].locked) == (200, False)
            scope.cancel()
            await anyio.sleep_forever()
    with pytest.raises(KeyError):
        async with server.run():
            raise KeyError


@pytest.mark.parametrize(
    ("host", "shown"), [("::1", "[::1]"), ("::", "[::1]"), ("0.0.0.0", "127.0.0.1")]
)
def test_urls_name_an_address_to_connect_to(host: str, shown: str) -> None:
    """IPv6 is bracketed; a wildcard address is replaced by the loopback's."""
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with MeetingServer().run(host) as url:
        assert urlsplit(url).netloc.startswith(f"{shown}:")
        assert talk(url, NOTHING).status == 404


SERVE = """
import signal
from meeting_async.testing import MeetingServer

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)  # a shell starts jobs in the background without it
server = MeetingServer(processing_seconds=100)
server.add_room("room01")
server.serve_forever("127.0.0.1", 0, lambda url: print(url, flush=True))
try:
    server.url
except RuntimeError as error:
    print(error)
"""


def test_serve_forever_ends_with_an_interrupt() -> None:
    """Ctrl-C stops the server at once and without noise."""
    command = [sys.executable, "-c", SERVE]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **OWN_CONSOLE
    ) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        with connect(url) as peer, connect(url) as waiting:
            waiting.sendall(upload())
            for _ in range(200):
                peer.sendall(ASK)
                assert read_answer(peer).status == 200
            peer.sendall(ASK * 20)
            interrupt(process)
            assert read_answer(waiting).status == 503
        out, err = process.communicate(timeout=50)
    assert (process.returncode, err) == (0, "")
    assert out == "the server has no URL: it is not running on a socket\n"
