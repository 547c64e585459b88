"""Connections of our own: a new one for most requests, and a few idle ones for idempotent calls."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import attrs

from meeting_async import errors
from meeting_async._clock import clock_of, is_gone
from meeting_async._http.connection import Connection
from meeting_async._http.failures import translated
from meeting_async._http.origins import Origin, Origins
from meeting_async._http.stream import Stream
from meeting_async._http.tcp import open_socket
from meeting_async._models import Reply, Request

IDLE_CONNECTIONS = 20
"""Idle connections that are kept, to all origins together; httpx's own default."""

IDLE_SECONDS = 4.0
"""Seconds after which they are not used again: common servers close theirs after 5 s or later
(uvicorn). Their age is looked at when one is taken or kept."""


@attrs.define(eq=False)
class _Sending:
    """A request that is being sent, or waits for a connection."""

    request: Request
    host: str = ""
    connecting: anyio.CancelScope | None = None
    connection: Connection | None = None
    is_closed: bool = False
    """Whether the transport was closed meanwhile."""

    def close(self, *, is_loop_gone: bool) -> None:
        """End it: what it waits for is cancelled, or breaks."""
        self.is_closed = True
        if self.connecting is not None and not is_loop_gone:
            self.connecting.cancel()
        if self.connection is not None:
            self.connection.stream.close()

    def closed(self) -> errors.TransportError:
        """Return how it ends if the transport is closed."""
        kind = errors.ConnectionLost if self.connection else errors.ConnectFailed
        error = kind("the transport was closed", self.host)
        error.sent = self.connection.sent if self.connection else 0
        return error


class Connections:
    """All connections of a transport on one event loop."""

    def __init__(self, origins: Origins, max_connections: int) -> None:
        self.loop = anyio.lowlevel.current_token()
        self._now = clock_of(self.loop)
        self._origins = origins
        self._places = anyio.Semaphore(max_connections, fast_acquire=True)
        self._locating = anyio.Lock()
        self._sending: set[_Sending] = set()
        self._idle: list[Connection] = []
        """In the order in which they became idle."""

    @property
    def in_use(self) -> int:
        """Requests that are being sent or wait for a connection."""
        return len(self._sending)

    async def send(self, request: Request) -> Reply:
        """Send a request on a new connection, or on an idle one if it is idempotent."""
        sending = _Sending(request)
        self._sending.add(sending)
        try:
            return await self._send(sending)
        except errors.TransportError:
            if not sending.is_closed:  # else it broke because it was closed
                raise
        finally:
            self._sending.discard(sending)
        raise sending.closed()

    def close(self) -> None:
        """Close all connections; requests that are being sent end with an error."""
        is_loop_gone = is_gone(self.loop)
        for sending in [*self._sending]:
            sending.close(is_loop_gone=is_loop_gone)
        self._drop_idle(len(self._idle))

    async def _send(self, sending: _Sending) -> Reply:
        request = sending.request
        try:
            located = self._origins.located(request.url)
            origin, target = located or await self._locate(request.url, request.connect_timeout)
            sending.host = origin.name
            async with self._places:
                sending.connection = await self._connection(origin, sending)
                return await self._use(sending.connection, sending, target)
        except Exception as error:
            if sending.connection is not None:
                raise
            failure = translated(error, sending.host, connecting=True, sent=0)
        raise failure  # outside, as some errors quote headers and must not be its context

    async def _locate(self, url: str, seconds: float) -> tuple[Origin, bytes]:
        with anyio.move_on_after(seconds):
            return await self._origins.locate(url, self._locating)
        raise errors.ConnectFailed(f"no connection in time ({seconds:g} s)")

    async def _connection(self, origin: Origin, sending: _Sending) -> Connection:
        if sending.is_closed:
            raise sending.closed()
        self._drop_old()
        if _may_reuse(sending.request) and (connection := self._take_idle(origin)):
            return connection
        self._drop_idle(len(self._idle) - self._places.value)  # those are connections, too
        seconds = sending.request.connect_timeout
        with anyio.move_on_after(seconds) as sending.connecting:
            return Connection(origin, Stream(*await open_socket(origin), self.loop))
        through = f" through the proxy {origin.proxy.label}" if origin.proxy else ""
        raise errors.ConnectFailed(f"no connection in time{through} ({seconds:g} s)")

    async def _use(self, connection: Connection, sending: _Sending, target: bytes) -> Reply:
        try:
            if sending.is_closed:  # when it was connected
                raise sending.closed()
            return await connection.send(sending.request, target, len(self._sending))
        finally:
            if _may_reuse(sending.request) and connection.may_go_on():
                connection.idle_since = self._now()
                self._idle.append(connection)
                self._drop_old()
            else:
                connection.stream.close()

    # --- idle connections ------------------------------------------------------------------------

    def _take_idle(self, origin: Origin) -> Connection | None:
        for connection in reversed([one for one in self._idle if one.origin is origin]):
            self._idle.remove(connection)
            if connection.stream.is_quiet():
                return connection
            connection.stream.close()
        return None

    def _drop_old(self) -> None:
        oldest = self._now() - IDLE_SECONDS
        while self._idle and self._idle[0].idle_since <= oldest:
            self._drop_idle(1)
        self._drop_idle(len(self._idle) - IDLE_CONNECTIONS)

    def _drop_idle(self, count: int) -> None:
        """Close so many, the oldest first."""
        for _ in range(count):
            self._idle.pop(0).stream.close()


def _may_reuse(request: Request) -> bool:
    """Return whether an idle connection may be used; the server may have closed it."""
    return request.idempotent and isinstance(request.body, bytes)
