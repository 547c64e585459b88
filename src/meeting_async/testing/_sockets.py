"""Serving on real sockets: HTTP/1.1, with requests parsed by h11.

Answers are written as bytes, so that a fault can also send invalid HTTP. If the server answers
before the end of the body, it closes the connection with a delay, so that the client can read the
answer. Idle connections are kept until the server stops; then waiting requests get 503.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from urllib.parse import unquote

import anyio
import attrs
import h11
from anyio.lowlevel import checkpoint

from meeting_async._http.waiting import wait_ready
from meeting_async._system import RESET
from meeting_async.testing._application import (
    MAX_HEAD_BYTES,
    Disconnected,
    Exchange,
    RecordedRequest,
    State,
)
from meeting_async.testing._messages import Cut, Reply

LINGER_SECONDS = 2.0
"""Seconds for which the rest of a body is read and dropped after an early answer."""

GRACE_SECONDS = 0.5
"""Seconds for the last answers when the server stops."""

BACKLOG = 2048
"""Connections that may wait to be accepted, more than any test opens; the kernel may limit it."""

_logger = logging.getLogger("meeting_async.testing")


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; `OSError` if the address cannot be used."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the base URL of a listening socket; loopback for a wildcard address."""
    address, port = listener.getsockname()[:2]
    ip = ipaddress.ip_address(address)
    if ip.is_unspecified:
        ip = ipaddress.ip_address("127.0.0.1" if ip.version == 4 else "::1")
    return f"http://{ip}:{port}" if ip.version == 4 else f"http://[{ip}]:{port}"


async def serve(state: State, listener: socket.socket) -> None:
    """Serve on asyncio until this is cancelled."""
    peers: set[socket.socket] = set()

    async def serve_peer(peer: socket.socket) -> None:
        await _Connection(state, peer).serve()
        peers.discard(peer)

    try:
        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    peers.add(peer := await _accept(listener))
                except OSError:  # no file descriptor is left, or the peer has disconnected
                    await anyio.sleep(0.05)
                else:
                    tasks.start_soon(serve_peer, peer)
    finally:
        for peer in peers:  # a task that is cancelled before it begins closes nothing
            peer.close()


async def _accept(listener: socket.socket) -> socket.socket:
    """Accept a connection. asyncio's sock_accept would lose one if it is cancelled just then."""
    while True:
        try:
            peer, _ = listener.accept()
        except BlockingIOError:
            await wait_ready(listener, to_write=False)
        else:
            peer.setblocking(False)
            return peer


def _parser(received: bytes = b"") -> h11.Connection:
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    if received:
        parser.receive_data(received)
    return parser


@attrs.define(eq=False)
class _Connection:
    """One connection: its requests, one after another."""

    state: State
    peer: socket.socket
    _http: h11.Connection = attrs.field(factory=_parser, init=False)
    """Parser of one request; each request has its own."""
    _is_waiting: bool = attrs.field(default=False, init=False)
    """Whether a request is waiting for its answer."""
    _has_ended: bool = attrs.field(default=False, init=False)
    """Whether the peer has closed its side."""

    async def serve(self) -> None:
        """Answer requests until either side ends the connection."""
        with self.peer:
            try:
                # Without it each reply on a kept connection waits 40 ms for an acknowledgement.
                self.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await self._serve_requests()
            except OSError:
                pass  # the peer has disconnected
            except Exception:
                _logger.exception("the meeting server failed")

    async def _serve_requests(self) -> None:
        try:
            while await self._exchange():
                pass
        except Disconnected:
            await self._refuse(400)
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint)
        except Cut as cut:
            if cut.reset:
                self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                return
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(GRACE_SECONDS, shield=True):
                if self._is_waiting:
                    await self._refuse(503)
            raise
        self.peer.shutdown(socket.SHUT_WR)
        with anyio.move_on_after(LINGER_SECONDS):
            while await self._receive():
                pass

    async def _exchange(self) -> bool:
        """Answer the next request; False if none can follow."""
        head = await self._next_event()
        if not isinstance(head, h11.Request):
            return False
        self._is_waiting = True
        target = head.target.decode("latin-1")
        record = RecordedRequest(
            method=head.method.decode("ascii"),
            path=unquote(target.partition("?")[0]),
            at=self.state.rooms.clock.now(),
        )
        pairs = list(head.headers)
        await Exchange(self.state, record, target, pairs, self._read, self._write).run()
        can_follow = self._http.their_state not in {h11.SEND_BODY, h11.MUST_CLOSE, h11.ERROR}
        self._http = _parser(self._http.trailing_data[0])
        return can_follow

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._receive())
        return event

    async def _receive(self) -> bytes:
        await checkpoint()  # a fast peer must not keep the others waiting
        data = await asyncio.get_running_loop().sock_recv(self.peer, 64 * 1024)
        self._has_ended = not data
        return data

    async def _read(self) -> tuple[bytes, bool]:
        """Return the next bytes of a request's body, and whether there are more."""
        if self._http.they_are_waiting_for_100_continue:
            interim = h11.InformationalResponse(status_code=100, headers=[])
            await self._write(self._http.send(interim) or b"")
            self._is_waiting = True
        try:
            event = await self._next_event()
        except h11.RemoteProtocolError:
            if self._has_ended:
                raise Disconnected from None
            raise
        return (bytes(event.data), True) if isinstance(event, h11.Data) else (b"", False)

    async def _write(self, data: bytes) -> None:
        self._is_waiting = False
        await asyncio.get_running_loop().sock_sendall(self.peer, data)

    async def _refuse(self, status: int) -> None:
        """Answer in plain text, like a proxy whose server has stopped."""
        reply = Reply.plain(status).closing().dated(self.state.rooms.clock.date())
        await self._write(reply.head() + reply.body)
