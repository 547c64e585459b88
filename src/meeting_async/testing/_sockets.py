"""Serving an ASGI application on a real socket: HTTP/1.1 (h11) on asyncio streams.

Small, so that a fault can also send what is not HTTP (see `WIRE`). An answer that comes before the
end of the body is followed by a lingering close, so that clients can read it. Idle connections are
kept until the server stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
import threading
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

import anyio
import attrs
import h11

from meeting_async.testing._application import MAX_HEAD_BYTES
from meeting_async.testing._faults import WIRE
from meeting_async.testing._messages import ASGIApp, Cut, Message, Reply, Scope

GRACE_SECONDS = 0.5
"""Connections that are still open so long after the stop are reset."""

LINGER_SECONDS = 2.0
"""So long the rest of a body is read and dropped after an early answer."""

READ_BYTES = 64 * 1024

CLOSING = (b"connection", b"close")

BACKLOG = 2048
"""More than any test opens at once; the kernel may cap it."""


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; `OSError` if the address cannot be had."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def url_of(listener: socket.socket) -> str:
    """Return the base URL of a listening socket; for a wildcard address the loopback's."""
    address, port = listener.getsockname()[:2]
    ip = ipaddress.ip_address(address)
    if ip.is_unspecified:
        ip = ipaddress.ip_address("127.0.0.1" if ip.version == 4 else "::1")
    return f"http://{ip}:{port}" if ip.version == 4 else f"http://[{ip}]:{port}"


@contextlib.contextmanager
def serving_in_thread(app: ASGIApp, listener: socket.socket) -> Iterator[None]:
    """Serve in a thread of its own until the block ends."""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(_serve(app, listener, stop))

    # A daemon: a test that hangs must not keep the interpreter from ending.
    thread = threading.Thread(target=run, name="meeting-server", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


async def _serve(app: ASGIApp, listener: socket.socket, stop: asyncio.Event) -> None:
    connections = _Connections(app)
    server = await asyncio.start_server(connections.accept, sock=listener, backlog=BACKLOG)
    await stop.wait()
    server.close()
    await connections.close()


@attrs.define(eq=False)
class _Connections:
    """The open connections."""

    app: ASGIApp
    _open: dict[asyncio.Task[None], _Connection] = attrs.field(factory=dict, init=False)
    _is_closing: bool = attrs.field(default=False, init=False)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it ends."""
        connection = _Connection(self.app, reader, writer)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - narrows the type
        self._open[task] = connection
        if self._is_closing:
            connection.stop()
        try:
            await connection.serve()
        finally:
            del self._open[task]

    async def close(self) -> None:
        """Answer the requests that wait with 503, and reset what is open after `GRACE_SECONDS`."""
        self._is_closing = True
        for connection in self._open.values():
            connection.stop()
        if self._open:
            await asyncio.wait(self._open, timeout=GRACE_SECONDS)
        for connection in self._open.values():
            connection.reset()
        if self._open:
            await asyncio.wait(self._open, timeout=GRACE_SECONDS)


@attrs.define(eq=False)
class _Connection:
    """One connection: its requests, one after another."""

    app: ASGIApp
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _http: h11.Connection = attrs.field(init=False)
    _head: bytes = attrs.field(default=b"", init=False)
    _scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        # Without it each reply on a kept connection waits 40 ms for the peer's acknowledgement.
        with contextlib.suppress(OSError):  # the peer is gone already
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def _socket(self) -> socket.socket:
        found: socket.socket = self.writer.get_extra_info("socket")
        return found

    async def serve(self) -> None:
        """Answer requests until either side ends the connection."""
        try:
            await self._serve_requests()
        finally:
            self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def _serve_requests(self) -> None:
        with self._scope:
            try:
                while await self._exchange():
                    pass
            except Cut:
                self.reset()
            except (OSError, h11.ProtocolError):
                pass  # the peer is gone, or a scripted reply is not HTTP
        if self._scope.cancelled_caught and self._http.our_state is h11.SEND_RESPONSE:
            self.writer.write(_raw(Reply.plain(503, close=True)))

    def stop(self) -> None:
        """End the connection; a request that waits is answered as a proxy does meanwhile."""
        self._scope.cancel()

    def reset(self) -> None:
        """End the connection with a reset."""
        with contextlib.suppress(OSError):
            at_once = struct.pack("ii", 1, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        self.writer.transport.abort()

    async def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def _exchange(self) -> bool:
        """Answer the next request; False if none can follow."""
        try:
            head = await self._next_event()
        except h11.RemoteProtocolError as error:
            await self.write(_raw(Reply.plain(error.error_status_hint, close=True)))
            await self._linger()
            return False
        if not isinstance(head, h11.Request):
            return False
        await self.app(self._scope_of(head), self._receive, self._send)
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        await self._linger()
        return False

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self.reader.read(READ_BYTES))
        return event

    async def _linger(self) -> None:
        self.writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while await self.reader.read(READ_BYTES):
                    pass

    # --- ASGI ------------------------------------------------------------------------------------

    def _scope_of(self, head: h11.Request) -> Scope:
        path, _, query = head.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": head.http_version.decode("ascii"),
            "method": head.method.decode("ascii"),
            "scheme": "http",
            "path": _unquoted(path),
            "raw_path": path,
            "query_string": query,
            "headers": list(head.headers),
            "extensions": {WIRE: self},
        }

    async def _receive(self) -> Message:
        try:
            if self._http.they_are_waiting_for_100_continue:
                said = h11.InformationalResponse(status_code=100, headers=[])
                await self.write(self._http.send(said))
            event = await self._next_event()
        except (OSError, h11.RemoteProtocolError):
            return {"type": "http.disconnect"}
        if isinstance(event, h11.Data):
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        if isinstance(event, h11.EndOfMessage):
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            pairs = list(message["headers"])
            if self._http.their_state is not h11.DONE and CLOSING not in pairs:
                pairs.append(CLOSING)
            self._head = self._http.send(h11.Response(status_code=message["status"], headers=pairs))
            return
        data = self._head + self._http.send(h11.Data(data=message["body"]))
        self._head = b""
        if not message.get("more_body", False):
            data += self._http.send(h11.EndOfMessage())
        await self.write(data)


def _raw(reply: Reply) -> bytes:
    return reply.head() + reply.body


def _unquoted(path: bytes) -> str:
    return unquote_to_bytes(path).decode(errors="replace")
