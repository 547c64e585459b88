"""The sink: a server process that accepts uploads, counts them and throws them away.

It reads by Content-Length and answers with the record of interface section 2. On Linux the kernel
drops the document without copying it out (``MSG_TRUNC``, tcp(7)), so that the sink takes as little
as possible from the machine the clients run on. It serves one connection at a time and closes it
after the reply, so that every upload opens its own.

Run as a module it is the server; :func:`running_sink` starts one.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import attrs

ROOT = Path(__file__).parent.parent
"""Where ``python -m benchmarks.…`` finds the package."""

DESCRIPTION = "a separate Python process on loopback, blocking recv_into, " + (
    "MSG_TRUNC (the kernel drops the document)" if sys.platform == "linux" else "1 MiB buffer"
)

# Elsewhere MSG_TRUNC means something else.
_DISCARD_FLAGS = socket.MSG_TRUNC | socket.MSG_WAITALL if sys.platform == "linux" else 0
_BUFFER_BYTES = 1024**2
_END_BYTES = 1024
"""Bytes at the end of each form that are looked at; longer than any closing boundary."""

_REQUIRED_HEADERS = (b"API-KEY", b"HASH-SIGNATURE", b"Room-Id")
"""All clients send them (interface section 4.2); what they say is not looked at."""

_RECORD = b'{"status":true,"msg":"discarded","status_code":"SUCCESS"}'
_REPLY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%b"
) % (len(_RECORD), _RECORD)


# --- started by others ---------------------------------------------------------------------------


@attrs.frozen
class Sink:
    """A running sink, seen from the process that started it."""

    base_url: str
    _receipts: IO[str] = attrs.field(repr=False)

    def check_received(self, *sizes: int) -> None:
        """Raise ``RuntimeError`` unless the next uploads brought documents of exactly these bytes.

        Call it when the client is done.
        """
        for size in sizes:
            receipt = json.loads(self._receipts.readline() or '{"error": "the sink is gone"}')
            if receipt != {"document_bytes": size}:
                raise RuntimeError(f"the sink should have got {size:,} bytes, but: {receipt}")


@contextmanager
def running_sink() -> Iterator[Sink]:
    """Run a sink in a process of its own; it also ends when this process does."""
    command = [sys.executable, "-m", "benchmarks._sink"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the sink has no pipes")
        with process.stdin:
            yield Sink(process.stdout.readline().strip(), process.stdout)


# --- the server ----------------------------------------------------------------------------------


def _serve(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            receipt: dict[str, int | str]
            try:
                receipt = {"document_bytes": _receive(connection)}
            except (OSError, ValueError) as error:
                receipt = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(receipt), flush=True)


def _receive(connection: socket.socket) -> int:
    """Receive one upload and answer it; return the bytes of its document.

    Raises:
        ValueError: A header is missing, the form is not framed as declared, or something follows.

    """
    data = _read_heads(connection)
    headers, part, _ = data.split(b"\r\n\r\n", 2)
    for name in _REQUIRED_HEADERS:
        _searched(rb"\r\n%b: *(\S+)" % name, headers)
    length = int(_searched(rb"\r\ncontent-length: *(\d+)", headers))
    closing = b"\r\n--" + _searched(rb'boundary="?([^";\r\n]+)', headers) + b"--\r\n"
    body_starts = len(headers) + 4
    missing = body_starts + length - len(data)
    _discard(connection, missing - _END_BYTES)
    data += _read(connection, min(missing, _END_BYTES))
    connection.sendall(_REPLY)
    if not data.endswith(closing):
        raise ValueError(f"the form ends in {data[-80:]!r}")
    if connection.recv(1):
        raise ValueError("something follows the form")
    return length - (len(part) + 4) - len(closing)


def _searched(pattern: bytes, headers: bytes) -> bytes:
    match = re.search(pattern, headers, re.IGNORECASE)
    if match is None:
        raise ValueError(f"no {pattern!r} in the request's headers")
    return match[1]


def _read_heads(connection: socket.socket) -> bytes:
    """Read at least the headers of the request and those of its first part."""
    data = b""
    while data.count(b"\r\n\r\n") < 2:
        chunk = connection.recv(16 * 1024)
        if not chunk:
            raise ValueError("the connection ended within the headers")
        data += chunk
    return data


def _discard(connection: socket.socket, count: int) -> None:
    buffer = bytearray(_BUFFER_BYTES)
    while count > 0:
        received = connection.recv_into(buffer, min(count, _BUFFER_BYTES), _DISCARD_FLAGS)
        if not received:
            raise ValueError(f"the connection ended {count + _END_BYTES:,} bytes too early")
        count -= received


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise ValueError(f"the connection ended {count - len(data):,} bytes too early")
        data += chunk
    return data


def main() -> None:
    """Print the base URL, then a line of JSON for each upload, until standard input ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        print(f"http://{host}:{port}", flush=True)
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main()
