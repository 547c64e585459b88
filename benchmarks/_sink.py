"""The sink: a server process that accepts uploads, counts them and throws them away.

It reads by Content-Length and answers with the record of interface section 2. It takes as little as
possible from the machine the clients run on: neither is the document copied out of the kernel
(on Linux), nor is it decrypted. It serves one connection at a time and closes it after the reply,
so that every upload opens its own.

Run as a module it is the server; :func:`running_sink` starts one.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import attrs

from benchmarks._certificate import Certificate
from benchmarks._client import ROOT, Failed
from benchmarks._sink_connection import Connection, Plain, Secured

DESCRIPTION = (
    "a separate Python process on loopback, blocking recv_into, over TCP with MSG_TRUNC (on Linux\n"
    "      the kernel drops the document), over TLS 1.3 by the lengths of records, undecrypted"
)

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
        """Raise ``Failed`` unless the next uploads brought documents of exactly these bytes.

        Call it when the client is done.
        """
        for size in sizes:
            receipt = json.loads(self._receipts.readline() or '{"error": "the sink is gone"}')
            if receipt != {"document_bytes": size}:
                raise Failed(f"the sink should have got {size:,} bytes, but: {receipt}")


@contextmanager
def running_sink(certificate: Certificate | None = None) -> Iterator[Sink]:
    """Run a sink in a process of its own; it also ends when this process does."""
    command = [sys.executable, "-m", "benchmarks._sink"]
    command += attrs.astuple(certificate) if certificate else ()
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the sink has no pipes")
        with process.stdin:
            yield Sink(process.stdout.readline().strip(), process.stdout)


# --- the server ----------------------------------------------------------------------------------


def _serve(listener: socket.socket, context: ssl.SSLContext | None) -> None:
    while True:
        connection, _ = listener.accept()
        receipt: dict[str, int | str]
        with connection:
            try:
                peer = Secured(connection, context) if context else Plain(connection)
                receipt = {"document_bytes": _receive(peer)}
            except (OSError, ValueError) as error:
                receipt = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(receipt), flush=True)


def _receive(connection: Connection) -> int:
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
    missing = len(headers) + 4 + length - len(data)
    end = _read_end(connection, data, missing)
    connection.send(_REPLY)
    if end is not None and not end.endswith(closing):
        raise ValueError(f"the form ends in {end[-80:]!r}")
    if not connection.is_over():
        raise ValueError("something follows the form")
    return length - (len(part) + 4) - len(closing)


def _searched(pattern: bytes, headers: bytes) -> bytes:
    match = re.search(pattern, headers, re.IGNORECASE)
    if match is None:
        raise ValueError(f"no {pattern!r} in the request's headers")
    return match[1]


def _read_heads(connection: Connection) -> bytes:
    """Read at least the headers of the request and those of its first part."""
    data = b""
    while data.count(b"\r\n\r\n") < 2:
        chunk = connection.read()
        if not chunk:
            raise ValueError("the connection ended within the headers")
        data += chunk
    return data


def _read_end(connection: Connection, data: bytes, missing: int) -> bytes | None:
    """Drop what is missing after ``data``, but for the end, if that can be seen; return that."""
    if not connection.sees_the_end and missing > 0:
        connection.drop(missing)
        return None
    connection.drop(max(0, missing - _END_BYTES))
    missing = min(missing, _END_BYTES)
    while missing > 0:
        chunk = connection.read()
        if not chunk:
            raise ValueError(f"the connection ended {missing:,} bytes too early")
        data += chunk
        missing -= len(chunk)
    return data


def main(*certificate: str) -> None:
    """Print the base URL, then a line of JSON for each upload, until standard input ends.

    With the paths of a certificate and its key it speaks TLS.
    """
    context = _context(*certificate) if certificate else None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        print(f"{'https' if context else 'http'}://{host}:{port}", flush=True)
        threading.Thread(target=_serve, args=(listener, context), daemon=True).start()
        sys.stdin.read()


def _context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    return context


if __name__ == "__main__":
    main(*sys.argv[1:])
