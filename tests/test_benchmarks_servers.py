"""The benchmarks' servers take nothing for a result that is none."""

from __future__ import annotations

import contextlib
import hmac
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from benchmarks._responder import Responder
    from benchmarks._sink import Sink

pytest.importorskip("resource", reason="the benchmarks need Unix")

ROOT = Path(__file__).parent.parent
HOLD_SECONDS = 0.2


@pytest.fixture(autouse=True, scope="module")
def _importable() -> Iterator[None]:
    """Find the benchmarks, which are not installed."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(ROOT)
        yield


def connected(base_url: str, context: ssl.SSLContext | None = None) -> socket.socket:
    """Connect to a server on loopback."""
    connection = socket.create_connection(
        ("127.0.0.1", int(base_url.rsplit(":", maxsplit=1)[-1])), timeout=10
    )
    if context is None:
        return connection
    return context.wrap_socket(connection, server_hostname="127.0.0.1")


# --- the sink ------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["TCP", "TLS"])
def sink(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _importable: None
) -> Iterator[tuple[Sink, ssl.SSLContext | None]]:
    """Run the sink on its own; return also what to check its certificate with."""
    from benchmarks import _certificate, _sink

    certificate = context = None
    if request.param == "TLS":
        if not shutil.which("openssl"):
            pytest.skip("needs openssl")
        certificate = _certificate.made(tmp_path_factory.mktemp("certificate"))
        context = ssl.create_default_context(cafile=certificate.certificate)
    with _sink.running_sink(certificate) as sink:
        yield sink, context


def whole_form(document: bytes, room: str = "Room-Id: a", boundary: str = "b") -> bytes:
    """Return a request with a document."""
    body = b'--b\r\nContent-Disposition: form-data; name="document"\r\n\r\n%b\r\n--b--\r\n'
    body %= document
    head = (
        f"POST / HTTP/1.1\r\nAPI-KEY: a\r\nHASH-SIGNATURE: a\r\n{room}\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: x/y; boundary={boundary}\r\n\r\n"
    )
    return head.encode() + body


def upload(
    sink: tuple[Sink, ssl.SSLContext | None],
    document: bytes,
    *,
    room: str = "Room-Id: a",
    boundary: str = "b",
    cut: int = 0,
    extra: int = 0,
) -> None:
    """Send a form with whatever is wrong with it."""
    data = whole_form(document, room, boundary)
    with (
        connected(sink[0].base_url, sink[1]) as connection,
        contextlib.suppress(OSError),  # it may hang up on a bad one
    ):
        connection.sendall(data[: len(data) - cut] + bytes(extra))
        if cut:
            connection.shutdown(socket.SHUT_WR)
        connection.recv(1024)


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 16 * 1024, 5_000_000])
def test_sink_counts_the_bytes_of_the_document(
    sink: tuple[Sink, ssl.SSLContext | None], size: int
) -> None:
    """Neither the form around it nor what the document is like changes the count."""
    from benchmarks._client import Failed

    document = (b"\r\n\r\n--b--\r\n" * size)[:size]
    upload(sink, document)
    upload(sink, document)
    sink[0].check_received(size)
    with pytest.raises(Failed, match=f"{size + 1:,} bytes"):
        sink[0].check_received(size + 1)


@pytest.mark.parametrize(
    "fault",
    [
        {"cut": 1},
        {"cut": 2000},
        {"cut": 4_999_000},
        {"extra": 1},
        {"boundary": "c"},
        {"room": "Room: a"},
    ],
    ids=str,
)
def test_sink_takes_no_other_upload_for_a_result(
    sink: tuple[Sink, ssl.SSLContext | None], fault: dict[str, Any]
) -> None:
    """Too short, too long, not closed by its boundary, or without a header that all must send."""
    from benchmarks._client import Failed

    if sink[1] and "boundary" in fault:
        pytest.skip("over TLS the end is counted, not read")
    upload(sink, bytes(5_000_000), **fault)
    with pytest.raises(Failed, match="error"):
        sink[0].check_received(5_000_000)


def test_sink_is_known_by_its_certificate(sink: tuple[Sink, ssl.SSLContext | None]) -> None:
    """A client that checks it against others does not take the sink's certificate."""
    if not sink[1]:
        pytest.skip("there is none")
    with pytest.raises(ssl.SSLCertVerificationError):
        connected(sink[0].base_url, ssl.create_default_context())
    sink[0]._receipts.readline()


def test_sink_does_not_keep_those_that_wait_for_its_goodbye(
    sink: tuple[Sink, ssl.SSLContext | None],
) -> None:
    """Some clients close only when the server has; it does as soon as it has their goodbye."""
    if not sink[1]:
        pytest.skip("there is none")
    with connected(sink[0].base_url, sink[1]) as connection:
        assert isinstance(connection, ssl.SSLSocket)
        connection.settimeout(2)
        connection.sendall(whole_form(b"%PDF"))
        assert connection.recv(1024).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(ssl.SSLError, ConnectionError):  # but no TimeoutError
            connection.unwrap()
    sink[0].check_received(4)


# --- the responder -------------------------------------------------------------------------------


@pytest.fixture
def responder(_importable: None) -> Iterator[Responder]:
    """Run a responder that holds uploads for a while."""
    from benchmarks._responder import running_responder

    with running_responder(HOLD_SECONDS) as responder:
        yield responder


def signed(path: str, message: bytes, body: bytes, *headers: str) -> bytes:
    """Return a request whose signature is over ``message``."""
    signature = hmac.digest(b"benchmark-secret", message, "sha256").hex()
    lines = [
        f"POST /auth/room/{path} HTTP/1.1",
        "api-key: benchmark-key",
        f"hash-signature: {signature}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


CALL = b'{"room_id": "a"}'
WHOLE = signed("getActiveRoomInfo", CALL, CALL, f"Content-Length: {len(CALL)}")
CHUNKED = signed(
    "getActiveRoomInfo", CALL, b"10\r\n" + CALL + b"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"
)


@pytest.mark.parametrize("request_", [WHOLE, CHUNKED], ids=["length", "chunked"])
@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_responder_answers_signed_calls(responder: Responder, request_: bytes, pieces: int) -> None:
    """In one piece or several, again and again on one connection, each is counted."""
    step = -(-len(request_) // pieces)
    with connected(responder.base_url) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(3):
            for start in range(0, len(request_), step):
                connection.sendall(request_[start : start + step])
                time.sleep(0.005)  # so that pieces arrive apart
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    responder.check_answered(calls=3, uploads=0, rooms=0)


def test_responder_refuses_what_is_not_signed(responder: Responder) -> None:
    """Neither a call with another body's signature nor an upload cut short is a result."""
    from benchmarks._client import Failed

    forged = signed("getActiveRoomInfo", b"{}", CALL, f"Content-Length: {len(CALL)}")
    for request in (forged, form("a", b"")):
        with connected(responder.base_url) as connection:
            connection.sendall(request)
            assert connection.recv(4096).startswith(b"HTTP/1.1 401")
    with pytest.raises(Failed, match="'refused': 2"):
        responder.check_answered(calls=0, uploads=0, rooms=0)


def form(room: str, closing: bytes = b"\r\n--b--\r\n") -> bytes:
    """Return a signed upload."""
    body = b"--b\r\n\r\n" + bytes(100_000) + closing
    headers = "Content-Type: multipart/form-data; boundary=b", f"Content-Length: {len(body)}"
    return signed("uploadWhiteboardFile", room.encode(), body, f"Room-Id: {room}", *headers)


@pytest.mark.alone
def test_responder_holds_each_upload_by_itself(responder: Responder) -> None:
    """Three at once take as long as one; rooms are told apart."""
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        connections = [stack.enter_context(connected(responder.base_url)) for _ in range(3)]
        for connection, room in zip(connections, "aab", strict=True):
            connection.sendall(form(room))
        for connection in connections:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            assert time.monotonic() - began >= HOLD_SECONDS
        assert time.monotonic() - began < 2 * HOLD_SECONDS
    responder.check_answered(calls=0, uploads=3, rooms=2)
