"""The responder: a server process that takes any number of connections and answers at once.

One thread, one selector, no framework: it must cost less than any client. It checks each distinct
request once, its signature included; answers to small ones that it has seen are looked up by all
of their bytes. Uploads may be held for a while before they are answered, as a server would that
converts them.

Run as a module it is the server; :func:`running_responder` starts one.
"""

from __future__ import annotations

import collections
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import attrs

from benchmarks import _wire
from benchmarks._measure import allow_many_descriptors
from benchmarks._process import ROOT, Failed

DESCRIPTION = "a Python process on loopback, one thread, selectors and sockets only"

_BACKLOG = 4096
_RECEIVE_BYTES = 128 * 1024
_SMALL_BYTES = 4096
"""Requests up to this size are looked up once they were checked."""

_REFUSED = _wire.reply("401 Unauthorized", _wire.REFUSED)
_ACTIVE = _wire.reply("200 OK", _wire.ACTIVE)
_ACCEPTED = _wire.reply("200 OK", _wire.ACCEPTED)


# --- started by others ---------------------------------------------------------------------------


@attrs.frozen
class Responder:
    """A running responder, seen from the process that started it."""

    base_url: str
    _questions: IO[str] = attrs.field(repr=False)
    _answers: IO[str] = attrs.field(repr=False)

    def check_answered(self, *, uploads: int, rooms: int, calls: int | None = None) -> None:
        """Raise ``Failed`` unless it accepted exactly these; uploads went to so many rooms.

        ``calls`` of ``None``: however many.
        """
        self._questions.write("?\n")
        self._questions.flush()
        counts = json.loads(self._answers.readline() or '{"error": "the responder is gone"}')
        calls = counts.get("calls", 0) if calls is None else calls
        if counts != {"refused": 0, "calls": calls, "uploads": uploads, "rooms": rooms}:
            wanted = f"{calls} calls and {uploads} uploads to {rooms} rooms"
            raise Failed(f"the responder should have answered {wanted}, but: {counts}")


@contextmanager
def running_responder(hold_seconds: float = 0.0) -> Iterator[Responder]:
    """Run a responder in a process of its own; it also ends when this process does."""
    command = [sys.executable, "-m", "benchmarks._responder", str(hold_seconds)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the responder has no pipes")
        with process.stdin:
            url = process.stdout.readline().strip()
            yield Responder(url, process.stdin, process.stdout)


# --- requests ------------------------------------------------------------------------------------


def _length(data: bytearray | bytes) -> int | None:
    """Bytes of the whole request; ``None`` as long as that cannot be known."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    match = re.search(rb"\r\ncontent-length: *(\d+)", data[:end], re.IGNORECASE)
    if match or data.startswith(b"HEAD "):
        return end + 4 + (int(match[1]) if match else 0)
    return len(data) if data.endswith(b"\r\n0\r\n\r\n") else None  # chunked


def _header(name: bytes, head: bytes) -> bytes:
    match = re.search(rb"\r\n%b: *([^\r]*)" % name, head, re.IGNORECASE)
    return match[1] if match else b""


def _is_signed(head: bytes, message: bytes) -> bool:
    return (
        _header(b"api-key", head) == _wire.API_KEY.encode()
        and _header(b"hash-signature", head) == _wire.signature(message).encode()
    )


def _content(head: bytes, body: bytes) -> bytes:
    if not _header(b"transfer-encoding", head):
        return body
    chunks = []
    while body:
        size, body = body.split(b"\r\n", 1)
        chunks.append(body[: int(size, 16)])
        body = body[int(size, 16) + 2 :]
    return b"".join(chunks)


@attrs.define
class _Counts:
    refused: int = 0
    calls: int = 0
    uploads: int = 0
    rooms: set[bytes] = attrs.field(factory=set)
    size: int = 0
    """Bytes of each document; all have as many."""
    known: dict[bytes, bytes] = attrs.field(factory=dict)

    def reply_to(self, request: bytes) -> bytes:
        """Check, count and answer one request."""
        if request in self.known:
            self.calls += 1
            return self.known[request]
        head, body = request.split(b"\r\n\r\n", 1)
        path = head.split(b" ", 2)[1]
        if head.startswith(b"HEAD ") and _header(b"room-id", head) in self.rooms:
            return _wire.stored(self.size)
        if path == _wire.CALL_PATH.encode() and _is_signed(head, _content(head, body)):
            self.calls += 1
            if len(request) <= _SMALL_BYTES:
                self.known[request] = _ACTIVE
            return _ACTIVE
        return self._reply_to_upload(path, head, body)

    def _reply_to_upload(self, path: bytes, head: bytes, body: bytes) -> bytes:
        room = _header(b"room-id", head)
        boundary = re.search(rb'boundary="?([^";\r\n]+)', head)
        closing = b"--" + boundary[1] + b"--" if boundary else b"?"
        is_whole = body[-256:].rstrip().endswith(closing)
        if path == _wire.UPLOAD_PATH.encode() and is_whole and _is_signed(head, room):
            self.uploads += 1
            self.rooms.add(room)
            self.size = self.size or len(body.partition(b"\r\n\r\n")[2].rpartition(b"\r\n--")[0])
            return _ACCEPTED
        self.refused += 1
        return _REFUSED

    def taken(self) -> str:
        """Return the counts as JSON."""
        counts = {"refused": self.refused, "calls": self.calls, "uploads": self.uploads}
        return json.dumps({**counts, "rooms": len(self.rooms)})


# --- the server ----------------------------------------------------------------------------------


class _Server:
    """All connections, in one thread."""

    def __init__(self, hold_seconds: float) -> None:
        self._hold_seconds = hold_seconds
        self._counts = _Counts()
        self._partial: dict[socket.socket, bytearray] = {}
        self._held: collections.deque[tuple[float, socket.socket, bytes]] = collections.deque()
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as listener:
            host, port = listener.getsockname()
            print(f"http://{host}:{port}", flush=True)
            self._selector.register(listener, selectors.EVENT_READ, self._accept)
            self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
            while self._turn():
                self._release()

    def _turn(self) -> bool:
        """Serve what is ready; tell whether to go on."""
        wait = max(0.0, self._held[0][0] - time.monotonic()) if self._held else None
        for key, _ in self._selector.select(wait):
            if isinstance(key.fileobj, socket.socket):
                key.data(key.fileobj)
            elif os.read(sys.stdin.fileno(), 16):
                print(self._counts.taken(), flush=True)
            else:
                return False
        return True

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection, selectors.EVENT_READ, self._receive)

    def _receive(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(_RECEIVE_BYTES)
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        if connection in self._partial:
            self._partial[connection] += data
            data = bytes(self._partial[connection])
        if data in self._counts.known or _length(data) == len(data):
            self._partial.pop(connection, None)
            self._answer(connection, self._counts.reply_to(data))
        elif connection not in self._partial:
            self._partial[connection] = bytearray(data)

    def _answer(self, connection: socket.socket, reply: bytes) -> None:
        if reply is _ACCEPTED and self._hold_seconds:
            due = time.monotonic() + self._hold_seconds
            self._held.append((due, connection, reply))
        else:
            self._send(connection, reply)

    def _release(self) -> None:
        """Answer the uploads that were held for long enough."""
        while self._held and self._held[0][0] <= time.monotonic():
            _, connection, reply = self._held.popleft()
            self._send(connection, reply)

    def _send(self, connection: socket.socket, reply: bytes) -> None:
        try:
            connection.send(reply)  # a few hundred bytes always fit
        except OSError:
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        if connection.fileno() >= 0:
            self._selector.unregister(connection)
            connection.close()
        self._partial.pop(connection, None)


if __name__ == "__main__":
    allow_many_descriptors()
    _Server(float(sys.argv[1])).run()
