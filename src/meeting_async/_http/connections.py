"""Connections of our own: a new one for most requests, and a few idle ones for idempotent calls."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import anyio
import anyio.lowlevel
import attrs

from meeting_async import errors
from meeting_async._clock import clock_of, is_gone
from meeting_async._http.connection import Connection
from meeting_async._http.failures import translated
from meeting_async._http.origins import Origin, Origins
from meeting_async._http.stream import Stream
from meeting_async._http.tcp import address_of, open_socket
from meeting_async._models import Reply, Request

T = TypeVar("T")

IDLE_CONNECTIONS = 20
"""Idle connections that are kept, to all origins together; httpx's own default."""

IDLE_SECONDS = 4.0
"""Seconds after which they are not used again: common servers close theirs after 5 s (uvicorn) or
later. Old ones are closed when another one is needed or becomes idle."""

CLOSED = "the transport was closed"
CLOSED_SINCE = "the server closed the connection on which it was asked about the room"


class Connections:
    """All connections of a transport on one event loop."""

    def __init__(self, origins: Origins) -> None:
        self.loop = anyio.lowlevel.current_token()
        self.in_use = 0
        """Number of requests that are being sent."""
        self._now = clock_of(self.loop)
        self._origins = origins
        self._locating = anyio.Lock()
        self._connecting: set[anyio.CancelScope] = set()
        self._busy: set[Connection] = set()
        self._idle: list[Connection] = []
        """In the order in which they became idle."""
        self._is_closed = False

    async def send(self, request: Request) -> Reply:
        """Send a request on a new connection, or on an idle one if it is idempotent.

        If the server has just closed that one without an answer, a new one is used.
        """
        self.in_use += 1
        try:
            self._check_asked(request)  # already before connecting, which would be useless
            connection, target = await self._connected(request)
            self._check_asked(request, connection)
            is_kept = connection.idle_since is not None
            try:
                return await self._use(connection, target, request)
            except errors.ConnectionLost as error:
                connection.has_left = is_kept and not connection.was_answered
                error.stale = connection.has_left and request.peer is not None
                if error.stale or not connection.has_left:
                    raise
            # The server closed it at the same moment (RFC 9112 section 9.3.1).
            return await self._use(*await self._connected(request, may_keep=False), request)
        except errors.TransportError as error:
            if not self._is_closed:
                raise
            is_unsent = isinstance(error, errors.ConnectFailed)
            kind = errors.ConnectFailed if is_unsent else errors.ConnectionLost
            closed = kind(CLOSED, error.host)
            closed.sent = 0 if is_unsent else error.sent
        finally:
            self.in_use -= 1
        raise closed

    def close(self) -> None:
        """Close all connections; requests that are being sent end with an error."""
        self._is_closed = True
        for connecting in () if is_gone(self.loop) else self._connecting:
            connecting.cancel()
        for connection in [*self._busy, *self._idle]:
            connection.stream.close()
        self._idle.clear()

    async def _connected(
        self, request: Request, *, may_keep: bool = True
    ) -> tuple[Connection, bytes]:
        """Return a connection for a request, and the request target."""
        name, seconds = "", request.connect_timeout
        try:
            located = self._origins.located(request.url)
            if located is None:
                step = self._origins.locate(request.url, self._locating)
                located = await self._in_time(step, seconds)
            origin, target = located
            name = origin.name
            self._check_open()
            self._drop_idle(IDLE_CONNECTIONS)
            is_allowed = may_keep and _may_reuse(request)
            asked = request.peer and request.peer.connection
            if is_allowed and (idle := self._take_idle(origin, asked)):
                return idle, target
            through = f" through the proxy {origin.proxy.label}" if origin.proxy else ""
            there = asked and asked.address
            sock, tls = await self._in_time(open_socket(origin, there), seconds, through)
            address = None if origin.proxy else address_of(sock)
            return Connection(origin, Stream(sock, tls, self.loop), address), target
        except Exception as error:  # noqa: BLE001 - what is not in the table is raised as it is
            failure = translated(error, name, connecting=True, sent=0)
        raise failure  # outside the block: some errors quote headers and must not be its context

    async def _in_time(self, step: Awaitable[T], seconds: float, through: str = "") -> T:
        """Await a step of connecting; `ConnectFailed` after ``seconds``, or if this is closed."""
        connecting = anyio.move_on_after(seconds)
        self._connecting.add(connecting)
        try:
            with connecting:
                return await step
        finally:
            self._connecting.discard(connecting)
        raise errors.ConnectFailed(f"no connection in time{through} ({seconds:g} s)")

    async def _use(self, connection: Connection, target: bytes, request: Request) -> Reply:
        self._busy.add(connection)
        try:
            self._check_open()  # it may have been closed when this one was connected
            reply = await connection.send(request, target, self.in_use)
            # If the server closed it with its answer, the server may be stopping.
            is_closed = not (reply.is_cut or connection.may_go_on)
            connection.has_left = is_closed and _may_reuse(request)
            if request.is_check:
                reply = attrs.evolve(reply, peer=connection.new_peer())
            proxy = connection.origin.proxy
            if proxy and proxy.authorization:  # a proxy may repeat it in the tunnel
                added = ((b"Proxy-Authorization", proxy.authorization),)
                return attrs.evolve(reply, added=added)
            return reply
        finally:
            self._busy.discard(connection)
            if _may_reuse(request) and connection.may_go_on:
                connection.idle_since = self._now()
                self._idle.append(connection)
                self._drop_idle(IDLE_CONNECTIONS)
            else:
                connection.stream.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise errors.ConnectFailed(CLOSED)

    def _check_asked(self, request: Request, connection: Connection | None = None) -> None:
        """Raise ``ConnectFailed`` if the server may have restarted since the check."""
        asked: Connection | None = request.peer and request.peer.connection
        if asked is None or asked is connection or not self._has_left(asked):
            return
        if connection is not None:
            connection.stream.close()
        failure = errors.ConnectFailed(CLOSED_SINCE, asked.origin.name)
        failure.stale = True
        raise failure

    # --- idle connections ------------------------------------------------------------------------

    def _take_idle(self, origin: Origin, asked: Connection | None) -> Connection | None:
        """Take the connection of the check, if the request follows one, else any that is free."""
        found = (one for one in reversed(self._idle) if one.origin is origin and one.is_free)
        for connection in [*found] if asked is None else [asked] if asked in self._idle else []:
            if not self._has_left(connection):
                self._idle.remove(connection)
                return connection
        return None

    def _has_left(self, connection: Connection) -> bool:
        """Return ``has_left`` of a connection; an idle one is looked at now."""
        if connection in self._idle and not connection.stream.is_quiet():
            self._drop(connection)
        return connection.has_left

    def _drop_idle(self, most: int) -> None:
        """Close idle connections that are too old, and the oldest free ones above ``most``."""
        if not self._idle:
            return
        oldest = self._now() - IDLE_SECONDS
        old = [one for one in self._idle if (one.idle_since or 0) <= oldest]
        free = [one for one in self._idle if one.is_free and one not in old]
        for connection in (*old, *free[: max(0, len(free) - most)]):
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        """Close an idle connection; a restart of its server is not noticed any more."""
        self._idle.remove(connection)
        connection.stream.close()
        connection.has_left = True


def _may_reuse(request: Request) -> bool:
    """Return whether an idle connection may be used, though the server may have closed it."""
    return request.idempotent and isinstance(request.body, bytes)
