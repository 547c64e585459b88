"""A scriptable HTTP peer made of raw sockets, for what no well-behaved server would do.

A script is a function that drives one connection in a thread of its own: it reads as much of the
request as it likes, answers with any bytes at any pace, resets, or falls silent. What arrived is
recorded. ``python tests/support/peer.py`` is a sink in a process of its own, which keeps nothing.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import re
import select
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Self

RECORD = b'{"status":true,"msg":"file uploaded successfully","status_code":"SUCCESS"}'
"""A success (``docs/interface.md``, Replies)."""

PATIENCE = 10.0
"""Seconds a script waits for the other side before it gives up, so that no test hangs."""

RESET = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""``SO_LINGER`` on, for 0 s."""

WHOLE = 1 << 60
"""More bytes than any body has."""

Script = Callable[["Connection"], None]


class Received:
    """One request, as far as it came."""

    def __init__(self, head: bytes) -> None:
        self.head = head
        self.body = bytearray()

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of a header, exactly as they stood on the wire after ``name: ``."""
        return re.findall(rb"(?im)^%b: (.*?)\r$" % re.escape(name), self.head)

    @property
    def length(self) -> int:
        """The declared Content-Length."""
        return int((self.values(b"Content-Length") or [b"0"])[0])


class Connection:
    """The peer's end of one connection."""

    def __init__(self, sock: socket.socket, peer: Peer) -> None:
        self.sock = sock
        self.peer = peer
        self.request = Received(b"")
        self._ahead = b""

    def read_head(self) -> bool:
        """Read up to the blank line; ``False`` if the other side closed instead."""
        while b"\r\n\r\n" not in self._ahead:
            data = self.sock.recv(65536)
            if not data:
                return False
            self._ahead += data
        head, _, self._ahead = self._ahead.partition(b"\r\n\r\n")
        self.request = Received(head + b"\r\n\r\n")
        self.peer.requests.append(self.request)
        return True

    def read_body(self, count: int | None = None, *, keep: bool = True) -> None:
        """Read ``count`` more bytes of the body, by default all that were declared."""
        left = self.request.length - len(self.request.body) if count is None else count
        while left > 0:
            data = self._ahead or self.sock.recv(min(left, 256 * 1024))
            if not data:
                raise ConnectionError("the other side closed")
            self._ahead, data = data[left:], data[:left]
            left -= len(data)
            if keep:
                self.request.body += data

    def send(self, data: bytes) -> None:
        """Send all of ``data``."""
        self.sock.sendall(data)

    def closed_within(self, seconds: float) -> bool:
        """Wait without reading; tell whether the other side, or the test, closed meanwhile."""
        until = time.monotonic() + seconds
        while not self.peer.stopping.is_set() and (left := until - time.monotonic()) > 0:
            if self._is_closed_within(min(left, 0.01)):
                return True
        return self.peer.stopping.is_set()

    def _is_closed_within(self, seconds: float) -> bool:
        if hasattr(select, "POLLRDHUP"):
            poll = select.poll()
            poll.register(self.sock, select.POLLRDHUP)
            return bool(poll.poll(seconds * 1000))
        # Elsewhere nothing tells of an end that is behind bytes which nobody has read.
        if not select.select([self.sock], [], [], seconds)[0]:
            return False
        try:
            is_open = bool(socket.socket.recv(self.sock, 1, socket.MSG_PEEK))
        except OSError:
            return True
        time.sleep(seconds * is_open)
        return not is_open

    def drain(self) -> None:
        """Read until the other side closes."""
        while self.sock.recv(65536):
            pass

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.sock.close()


class Peer:
    """Listens on loopback. The n-th connection runs the n-th script; the last serves the rest."""

    def __init__(
        self, *scripts: Script, tls: ssl.SSLContext | None = None, receive_buffer: int = 0
    ) -> None:
        self.requests: list[Received] = []
        self.stopping = threading.Event()
        self.connected = 0
        self._scripts = scripts
        self._tls = tls
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._errors: list[BaseException] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        if receive_buffer:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="peer")

    @property
    def url(self) -> str:
        """Base URL."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def descriptors(self) -> set[int]:
        """Return the descriptors of this process that are the peer's, not the client's."""
        return {sock.fileno() for sock in [self._listener, *self._open]}

    @property
    def open(self) -> int:
        """Connections that have not ended."""
        return len(self._open)

    def __enter__(self) -> Self:
        self._acceptor.start()
        return self

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        self.stopping.set()
        for sock in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            if sys.platform == "win32":  # where that wakes no thread
                sock.close()
        for thread in [self._acceptor, *self._threads]:
            thread.join(PATIENCE)
        self._listener.close()
        if error is None and self._errors:
            raise self._errors[0]

    def _accept(self) -> None:
        for number in itertools.count():
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if error.errno == errno.EMFILE:  # a test has taken all
                    time.sleep(0.01)
                    continue
                return
            self._open.add(sock)
            self.connected += 1
            script = self._scripts[min(number, len(self._scripts) - 1)]
            thread = threading.Thread(target=self._serve, args=(sock, script), name="peer")
            self._threads.append(thread)
            thread.start()

    def _serve(self, raw: socket.socket, script: Script) -> None:
        sock = raw
        try:
            raw.settimeout(PATIENCE)
            # As servers do; else an answer could still be held back when a reset discards it.
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls:
                sock = self._tls.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
                self._open = self._open - {raw} | {sock}
                sock.do_handshake()
            script(Connection(sock, self))
        except OSError:  # the other side went away, which is what many scripts are about
            pass
        except BaseException as error:  # noqa: BLE001 - reported by the test's thread
            self._errors.append(error)
        finally:
            sock.close()
            raw.close()
            self._open -= {sock, raw}


# --- what to answer ------------------------------------------------------------------------------


def reply(
    status: int = 200,
    content: bytes = RECORD,
    headers: Iterable[bytes] = (),
    *,
    version: bytes = b"1.1",
    length: bool = True,
) -> bytes:
    """Make the bytes of a reply; without ``length`` its end is the end of the connection."""
    lines = [b"HTTP/%b %d Whatever" % (version, status), b"Content-Type: application/json"]
    if length:
        lines.append(b"Content-Length: %d" % len(content))
    return b"\r\n".join([*lines, *headers, b"", content])


# --- scripts -------------------------------------------------------------------------------------


def answering(*replies: bytes) -> Script:
    """Read each request completely and answer it; the last reply serves all further requests."""

    def script(connection: Connection) -> None:
        for data in itertools.chain(replies, itertools.repeat(replies[-1])):
            if not connection.read_head():
                return
            connection.read_body()
            connection.send(data)

    return script


def answering_once(data: bytes) -> Script:
    """Answer one request and close."""

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        connection.send(data)

    return script


def resetting(after: int) -> Script:
    """Reset after so many bytes of the body; a negative number counts from its end."""

    def script(connection: Connection) -> None:
        connection.read_head()
        length = connection.request.length
        connection.read_body(min(after if after >= 0 else length + after, length))
        connection.reset()

    return script


def resetting_at_once(connection: Connection) -> None:
    """Reset instead of reading anything."""
    connection.reset()


def silent(connection: Connection) -> None:
    """Read everything and never answer."""
    connection.read_head()
    connection.drain()


def deaf(connection: Connection) -> None:
    """Neither read nor answer."""
    connection.closed_within(PATIENCE)


def greeting(connection: Connection) -> None:
    """Speak first, as SSH, SMTP and databases do."""
    connection.send(b"SSH-2.0-OpenSSH_9.2p1\r\n")
    connection.drain()


def early(data: bytes, then: Callable[[Connection], None]) -> Script:
    """Answer when the head has been read, and go on with ``then``."""

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.send(data)
        then(connection)

    return script


def dripping(pieces: Callable[[], Iterable[bytes]], every: float = 0.05) -> Script:
    """Read the request, then answer in pieces, one every so many seconds, until it closes."""

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        for piece in pieces():
            connection.send(piece)
            if connection.closed_within(every):
                return

    return script


def endless_content() -> Iterator[bytes]:
    """Answer byte by byte."""
    return itertools.chain([b"HTTP/1.1 200 OK\r\n\r\n"], itertools.repeat(b" "))


def discarding(connection: Connection) -> None:
    """Accept uploads for ever and keep nothing."""
    while connection.read_head():
        connection.read_body(connection.request.length, keep=False)
        connection.send(reply())


def relaying(port: int) -> Script:
    """Make a proxy's tunnel to a port."""

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as server:
            back = threading.Thread(target=_pass_on, args=(server, connection.sock))
            back.start()
            _pass_on(connection.sock, server)
            back.join()

    return script


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for sock in (source, target):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def flooding(data: bytes, head: bytes = b"HTTP/1.1 200 OK\r\n\r\n") -> Script:
    """Read the request, then send ``head`` and ``data`` without end at full speed."""

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        connection.send(head)
        block = data * (65536 // len(data))
        while True:
            connection.send(block)

    return script


# --- in a process of its own ---------------------------------------------------------------------


@contextlib.contextmanager
def in_another_process(script: str) -> Iterator[str]:
    """Run a peer with one of :data:`SCRIPTS` in another process and yield its URL."""
    command = [sys.executable, __file__, script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.stdin.close()
            assert process.wait(PATIENCE) == 0


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

SCRIPTS: dict[str, Script] = {
    "sink": discarding,
    "endless content": flooding(bytes(65536)),
    "endless 1-byte chunks": flooding(b"1\r\nx\r\n", head=CHUNKED),
    "endless interim replies": flooding(b"HTTP/1.1 100 Continue\r\n\r\n", head=b""),
    "endless headers": flooding(b"X: y\r\n", head=b"HTTP/1.1 200 OK\r\n"),
}


if __name__ == "__main__":
    with Peer(SCRIPTS[sys.argv[1]]) as _peer:
        print(_peer.url, flush=True)  # noqa: T201 - how the other process learns it
        sys.stdin.read()
