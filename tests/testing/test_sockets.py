"""The meeting server on a real socket: connections, early answers, starting and stopping."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import pytest

from meeting_async.testing import MeetingServer
from support.raw_http import (
    BODY_LIMIT,
    LIMIT,
    PDF,
    UPLOAD,
    Answer,
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


@pytest.fixture
def server() -> MeetingServer:
    """Provide a server with one room, not running yet."""
    server = MeetingServer(max_size_whiteboard_file=LIMIT, max_body_size=BODY_LIMIT)
    server.add_room("room01")
    return server


def test_a_connection_that_comes_while_it_stops(server: MeetingServer) -> None:
    """It is closed, and nothing is said of it: no warning, no traceback of asyncio."""
    for _ in range(30):
        with server.run() as url:
            for _ in range(3):
                connect(url).close()
    gc.collect()


def until(condition: Callable[[], object]) -> None:
    """Wait until the server's thread has come so far."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Fail if the block leaves a thread or an open socket behind, or takes as long as a request."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < 20  # the requests here wait for longer than that
    assert "meeting-server" not in [thread.name for thread in threading.enumerate()]
    gc.collect()  # an unclosed socket warns now, and warnings are errors


# --- connections ------------------------------------------------------------------------------


def test_a_connection_is_kept_also_after_refusals(server: MeetingServer) -> None:
    """Requests one after another, in pieces and behind one another."""
    with server.run() as url, connect(url) as peer:
        for raw in (ASK, upload(API_KEY="no"), upload(room="no"), upload(), NOTHING):
            for byte in range(0, len(raw), 50):
                peer.sendall(raw[byte : byte + 50])
            status = read_answer(peer).status
            assert "connection" not in read_again(peer, ASK).headers
            assert status in {200, 400, 401, 404}
        peer.sendall(ASK + ASK)
        assert [read_answer(peer).status for _ in range(2)] == [200, 200]


def read_again(peer: socket.socket, raw: bytes) -> Answer:
    """Send a request on an open connection and read the reply."""
    peer.sendall(raw)
    return read_answer(peer)


def test_continue_is_said_before_anything_is_looked_at(server: MeetingServer) -> None:
    """100 Continue for a wrong key, too; only a body that is too large is refused at once."""
    with server.run() as url:
        head, _, body = upload(API_KEY="no", Expect="100-continue").partition(b"\r\n\r\n")
        with connect(url) as peer:
            peer.sendall(head + b"\r\n\r\n")
            assert read_answer(peer).status == 100
            peer.sendall(body)
            assert read_answer(peer).status == 401
        length = str(BODY_LIMIT + 1)
        head = upload(Content_Length=length, Expect="100-continue").partition(b"\r\n\r\n")[0]
        with connect(url) as peer:
            peer.sendall(head + b"\r\n\r\n")
            answer = read_answer(peer)
    assert answer.code == (413, "Request Entity Too Large")
    assert answer.headers["connection"] == "close"


def test_an_answer_before_the_end_of_the_body_can_be_read(server: MeetingServer) -> None:
    """The rest is read and dropped for a while, so that no reset destroys the answer."""
    with server.run() as url:
        for _ in range(20):
            with connect(url) as peer:
                peer.sendall(upload(bytes(4 * 1024**2)))
                assert read_answer(peer).status == 413
                assert peer.recv(1) == b""


def test_whoever_asks_for_a_close_is_told_of_it(server: MeetingServer) -> None:
    """Or nginx, which speaks HTTP/1.0 with servers, sends the next request into a closed socket."""
    server.reply_next(409, path="/room/uploadWhiteboardFile")
    with server.run() as url:
        for status in (409, 200):
            answer = talk(url, upload(document(), Connection="close"))
            assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert "connection" not in talk(url, upload(document())).headers


def test_a_chunked_body_has_the_same_limit(server: MeetingServer) -> None:
    """413 as soon as it is exceeded; below it a chunked body is read like any other."""
    raw = upload(Content_Length=None, Transfer_Encoding="chunked").partition(b"\r\n\r\n")[0]
    with server.run() as url:
        for size, status in ((len(document()), 200), (BODY_LIMIT + 1, 413)):
            data = document().ljust(size, b"x")
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (size, data)
            assert talk(url, raw + b"\r\n\r\n" + body).status == status


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 5000, 431),
        (b"no http at all\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n\r\n", 400),
    ],
    ids=["long", "junk", "tls", "length", "no host"],
)
def test_what_is_not_http(server: MeetingServer, raw: bytes, status: int) -> None:
    """A plain answer and a close; the next connection is served."""
    with server.run() as url:
        answer = talk(url, raw)
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert talk(url, ASK).status == 200


def test_a_client_that_leaves_in_its_body_leaves_nothing(
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
    assert (server.requests[0].status, len(room.accepted)) == (None, 1)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert capfd.readouterr().err == ""


def test_a_large_document_costs_no_memory() -> None:
    """29 MiB pass through in pieces: what is allocated meanwhile stays below a quarter of them."""
    server, piece = MeetingServer(), bytes(65536)
    room = server.add_room("room01")
    size = len(piece) * 16 * 29
    before, mark, end = upload(
        document(b"%PDF-1.7"), Content_Length=str(len(document(b"%PDF-1.7")) + size)
    ).partition(b"%PDF-1.7")
    with server.run() as url, connect(url) as peer:
        tracemalloc.start()
        try:
            peer.sendall(before + mark)
            for _ in range(16 * 29):
                peer.sendall(piece)
            peer.sendall(end)
            assert read_answer(peer).status == 200
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert [file.size for file in room.received] == [size + len(mark)]
    assert peak < size / 4


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("openssl")), reason="needs both")
def test_curl_with_an_openssl_signature(server: MeetingServer, tmp_path: Path) -> None:
    """Curl's own form and openssl's signature are accepted; another secret is refused with 401."""
    path = tmp_path / "Folien ä.pdf"
    path.write_bytes(PDF)
    script = (
        'signature=$(printf %s "$1" | openssl dgst -sha256 -hmac "$2" -r | cut -d" " -f1); '
        'curl -sS -o /dev/null -w "%{http_code}" -H "API-KEY: devkey" '
        '-H "HASH-SIGNATURE: $signature" -H "Room-Id: $1" -F "document=@$3" "$4"'
    )

    def curl(url: str, secret: str) -> str:
        command = ["sh", "-c", script, "sh", "room01", secret, str(path), url + UPLOAD]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    with server.run() as url:
        assert [curl(url, secret) for secret in ("devsecret", "another")] == ["200", "401"]
    (file,) = server.rooms["room01"].received
    assert (file.name, file.sha256) == (path.name, hashlib.sha256(PDF).hexdigest())


# --- starting and stopping --------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent", [b"", b"POST / HT", ASK[:-4]], ids=["idle", "half-head", "half-body"]
)
def test_stopping_with_an_open_connection(server: MeetingServer, sent: bytes) -> None:
    """A connection that says nothing more does not keep the server from stopping."""
    with stopping(), contextlib.ExitStack() as opened:
        with server.run() as url:
            peer = opened.enter_context(connect(url))
            peer.sendall(sent)
            if sent == ASK[:-4]:
                until(lambda: server.requests and server.requests[0].body_bytes)
            assert talk(url, NOTHING).status == 404  # the older connection was accepted too
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(100).startswith(b"HTTP/1.1 503 " if sent == ASK[:-4] else b"")


def test_stopping_with_an_answer_that_nobody_reads(server: MeetingServer) -> None:
    """A peer that does not read megabytes of answer is cut."""
    with stopping(), contextlib.ExitStack() as opened, server.run() as url:
        path = server.host_file("big.bin", bytes(32 * 1024**2)).removeprefix(url)
        peer = opened.enter_context(connect(url))
        peer.sendall(request(path, b"", {}, "GET"))
        assert peer.recv(1)


def test_stopping_with_a_waiting_upload() -> None:
    """An upload whose conversion goes on is answered 503 without the server's own record."""
    server = MeetingServer(processing_seconds=100)
    room = server.add_room("room01")
    with stopping(), ThreadPoolExecutor() as pool:
        with server.run() as url:
            waiting = pool.submit(talk, url, upload())
            until(lambda: room.accepted)
        assert waiting.result().code == (503, "Service Unavailable")
    assert (len(room.accepted), room.received) == (1, ())


def test_a_server_can_run_again_but_not_twice_at_once(server: MeetingServer) -> None:
    """The second run keeps the rooms; a port in use and a server in use are refused."""
    with server.run() as url:
        assert repr(server) == f"<MeetingServer {url}, 1 rooms>"
        assert talk(url, upload()).status == 200
        with pytest.raises(RuntimeError, match="already running"), server.run():
            pass
        other = MeetingServer()
        with pytest.raises(OSError, match="in use"), other.run(port=urlsplit(url).port or 0):
            pass
    with pytest.raises(ConnectionRefusedError):
        connect(url)
    with server.run() as url:
        assert talk(url, upload()).status == 200
    assert len(server.rooms["room01"].received) == 2
    with other.run():
        pass


@pytest.mark.parametrize("raw", [ASK, upload()], ids=["question", "upload"])
def test_an_on_request_that_raises(raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """The answer has arrived, the error is logged, and the server goes on."""

    def fail(_request: object) -> None:
        raise ValueError("my mistake")

    server = MeetingServer(on_request=fail)
    server.add_room("room01")
    with server.run() as url:
        for _ in range(2):
            assert talk(url, raw).status == 200
        until(lambda: len(caplog.records) == 2)
    assert not server.rooms["room01"].locked


@pytest.mark.both_loops
@pytest.mark.anyio
async def test_async_with(server: MeetingServer) -> None:
    """The server's thread ends with the block, also if that is cancelled; it holds up no loop."""
    with stopping():
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

signal.signal(signal.SIGTERM, interrupt)
signal.signal(signal.SIGINT, interrupt)  # a shell starts jobs in the background without it
server = MeetingServer(processing_seconds=100)
server.add_room("room01")
server.serve_forever("127.0.0.1", 0, lambda url: print(url, flush=True))
try:
    server.url
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_forever_ends_with_an_interrupt(number: signal.Signals) -> None:
    """Ctrl-C, or a signal that raises the same, stops the server at once and without noise."""
    command = [sys.executable, "-c", SERVE]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        with connect(url) as peer, connect(url) as waiting:
            waiting.sendall(upload())
            for _ in range(200):
                peer.sendall(ASK)
                assert read_answer(peer).status == 200
            peer.sendall(ASK * 20)
            process.send_signal(number)
            assert read_answer(waiting).status == 503
        out, err = process.communicate(timeout=50)
    assert (process.returncode, err) == (0, "")
    assert out == "the server has no URL: it is not running on a socket\n"
