"""The sink: a server process that accepts uploads, counts them and throws them away.

It reads by Content-Length and takes as little as possible from the machine the clients run on:
neither is the document copied out of the kernel (on Linux), nor is it decrypted. It serves one
connection at a time and closes it after the reply, so that every upload opens its own. A small call
gets a record of an active room.

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
from pathlib import Path
from typing import IO

import attrs

from benchmarks import _wire
from benchmarks._process import ROOT, Failed
from benchmarks._sink_connection import Connection, Plain, Secured

DESCRIPTION = (
    "a Python process on loopback that counts the\n"
    "  document: over TCP without copying it (MSG_TRUNC), over TLS 1.3 without decrypting it"
)

_END_BYTES = 1024
"""Bytes at the end of each form that are looked at; longer than any closing boundary."""

_REQUIRED_HEADERS = (b"API-KEY", b"HASH-SIGNATURE", b"Room-Id")
"""All clients send them; what they say is not looked at."""

_ACCEPTED = _wire.reply("200 OK", _wire.ACCEPTED, close=True)
_ACTIVE = _wire.reply("200 OK", _wire.ACTIVE, close=True)


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


@attrs.frozen
class Certificate:
    """A certificate that signs itself, so that it is also what clients trust."""

    path: str
    """PEM file."""
    key: str
    """PEM file, without a password."""


def make_certificate(folder: Path) -> Certificate:
    """Make a certificate for 127.0.0.1 with ``openssl``."""
    made = Certificate(str(folder / "certificate.pem"), str(folder / "key.pem"))
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=benchmark", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-out", made.path, "-keyout", made.key]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return made


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
        with connection:
            try:
                size = _receive(Secured(connection, context) if context else Plain(connection))
            except (OSError, ValueError) as error:
                receipt = json.dumps({"error": f"{type(error).__name__}: {error}"})
            else:
                receipt = "" if size is None else json.dumps({"document_bytes": size})
        if receipt:
            print(receipt, flush=True)


def _receive(connection: Connection) -> int | None:
    """Receive and answer one request; return the bytes of its document, ``None`` for a question.

    Raises:
        ValueError: A header is missing, the form is not framed as declared, or something follows.

    """
    data = _read_until(connection, b"", heads=1)
    if _wire.CALL_PATH.encode() in data.split(b"\r\n", 1)[0]:
        connection.send(_ACTIVE)
        return None
    data = _read_until(connection, data, heads=2)
    headers, part, _ = data.split(b"\r\n\r\n", 2)
    for name in _REQUIRED_HEADERS:
        _searched(rb"\r\n%b: *(\S+)" % name, headers)
    length = int(_searched(rb"\r\ncontent-length: *(\d+)", headers))
    closing = b"\r\n--" + _searched(rb'boundary="?([^";\r\n]+)', headers) + b"--\r\n"
    end = _read_end(connection, data, len(headers) + 4 + length - len(data))
    connection.send(_ACCEPTED)
    if end is not None and not end.endswith(closing):
        raise ValueError(f"the form ends in {end[-80:]!r}")
    if not connection.is_over():
        raise ValueError("something follows the form")
    return None if b'name="document' not in part else length - (len(part) + 4) - len(closing)


def _searched(pattern: bytes, headers: bytes) -> bytes:
    match = re.search(pattern, headers, re.IGNORECASE)
    if match is None:
        raise ValueError(f"no {pattern!r} in the request's headers")
    return match[1]


def _read_until(connection: Connection, data: bytes, *, heads: int) -> bytes:
    """Read at least the headers of the request, and with two heads those of its first part."""
    while data.count(b"\r\n\r\n") < heads:
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
