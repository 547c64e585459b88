"""The ceiling of small calls: sockets that send one ready-made request over and over.

It is no client, neither signs anew nor decodes; it shows what the responder and the kernel can
take, so that the clients are known not to be limited by them.
"""

from __future__ import annotations

import selectors
import socket
import time
from urllib.parse import urlsplit

from benchmarks._job import CallsJob, signed_call
from benchmarks._measure import Meter, Sample, with_latencies

_RECEIVE_BYTES = 64 * 1024
_WARM_UP_CALLS = 2
"""Of each socket; as many as the clients make."""


def raw_calls(job: CallsJob) -> Sample:
    """Call on as many sockets as there are calls at a time."""
    sockets = [_connected(job.url) for _ in range(job.concurrency)]
    request = _request(job.url)
    for connection in sockets * _WARM_UP_CALLS:
        connection.sendall(request)
        _check(connection.recv(_RECEIVE_BYTES))
    with Meter() as meter:
        until = time.perf_counter() + job.seconds
        if len(sockets) == 1:
            latencies = _alone(sockets[0], request, until)
        else:
            latencies = _together(sockets, request, until)
    for connection in sockets:
        connection.close()
    return with_latencies(meter.sample(), latencies)


def _connected(url: str) -> socket.socket:
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname or "", address.port or 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _request(url: str) -> bytes:
    body, headers = signed_call()
    address = urlsplit(url)
    headers |= {"Host": address.netloc, "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {address.path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def _check(reply: bytes) -> None:
    """Small replies arrive in one piece on loopback."""
    if not reply.startswith(b"HTTP/1.1 200") or not reply.endswith(b"}"):
        raise RuntimeError(f"the responder refused: {reply!r}")


def _alone(connection: socket.socket, request: bytes, until: float) -> list[float]:
    latencies = []
    began = time.perf_counter()
    while began < until:
        connection.send(request)
        _check(connection.recv(_RECEIVE_BYTES))
        ended = time.perf_counter()
        latencies.append(ended - began)
        began = ended
    return latencies


def _together(sockets: list[socket.socket], request: bytes, until: float) -> list[float]:
    latencies = []
    began = {connection.fileno(): time.perf_counter() for connection in sockets}
    by_number = {connection.fileno(): connection for connection in sockets}
    with selectors.DefaultSelector() as selector:
        for connection in sockets:
            selector.register(connection, selectors.EVENT_READ)
            connection.send(request)
        while began:
            for key, _ in selector.select():
                connection = by_number[key.fd]
                _check(connection.recv(_RECEIVE_BYTES))
                ended = time.perf_counter()
                latencies.append(ended - began.pop(key.fd))
                if ended < until:
                    began[key.fd] = ended
                    connection.send(request)
    return latencies
