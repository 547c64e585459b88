"""Connections of our own: one for each upload, and a stack of idle ones for JSON calls.

httpcore's pool is not used: it costs O(n²) for n requests at once, stays unusable after many
cancelled ones (its issues 1093, 1094, 1099), and would take bytes behind a reply for the next one.
Its single connection is public and enough; behind a proxy, a pool of one.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import anyio
import attrs

from meeting_async._records import HeaderPairs
from meeting_async._sockets import SocketBackend
from meeting_async._stack import Core

IDLE_CONNECTIONS = 20
"""Idle connections that are kept, to all origins together; httpx's own default."""

IDLE_SECONDS = 4.0
"""How long they are kept: common servers close theirs after 5 s at the earliest (uvicorn)."""


@attrs.frozen(eq=False)
class Route:
    """How to get to an origin."""

    core: Core
    origin: Any
    """Scheme, host and port, as ``core.Origin``."""
    headers: HeaderPairs
    """What every request to it begins with."""
    context: ssl.SSLContext | None = None
    """For ``https``."""
    proxy: Any = None
    """A ``core.Proxy``, if there is one."""

    @property
    def has_tunnel(self) -> bool:
        """Whether the proxy must make a way to the server before a request can be sent."""
        if self.proxy is None:
            return False
        return bool(self.origin.scheme == b"https" or self.proxy.url.scheme.startswith(b"socks"))


class Connection:
    """One connection to an origin, for one request at a time."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.idle_until = 0.0
        """On the clock of the event loop."""
        self._backend = SocketBackend(route.core)
        self._http = _handler(route, self._backend)

    async def handle(self, request: Any, on_cut: Callable[[], None]) -> Any:
        """Send a request, and return the head of its reply; ``on_cut`` if it is not sent whole."""
        self._backend.on_cut = on_cut
        return await self._http.handle_async_request(request)

    async def hear(self, seconds: float) -> None:
        """Wait until the peer says something, at most so many seconds."""
        if self._backend.stream is not None:
            await self._backend.stream.hear(seconds)

    def is_quiet(self) -> bool:
        """Tell whether it is open, and nothing has come that was not read."""
        stream = self._backend.stream
        return stream is not None and stream.is_quiet()

    def brought_only(self, response: Any, size: int) -> bool:
        """Tell whether it is open, and a reply with ``size`` bytes of content is all that came.

        What stands behind it would be taken for the reply to the next request. A reply without
        ``Content-Length`` has no end that could be told from what follows.
        """
        stream = self._backend.stream
        lengths = [value for name, value in response.headers if name.lower() == b"content-length"]
        if stream is None or stream.closed or lengths != [b"%d" % size]:
            return False
        return stream.arrived == stream.opening.find(b"\r\n\r\n") + 4 + size

    def close(self) -> None:
        """Close it, whatever state it is in."""
        if self._backend.stream is not None:
            self._backend.stream.close()


def _handler(route: Route, backend: SocketBackend) -> Any:
    if route.proxy is None:
        return route.core.AsyncHTTPConnection(
            route.origin, ssl_context=route.context, network_backend=backend
        )
    return route.core.AsyncConnectionPool(
        ssl_context=route.context, proxy=route.proxy, max_connections=1, network_backend=backend
    )


class Connections:
    """All connections of a transport: those in use, and idle ones, used again newest first."""

    def __init__(self) -> None:
        self._busy: set[Connection] = set()
        self._idle: list[Connection] = []

    def __len__(self) -> int:
        return len(self._busy) + len(self._idle)

    def take(self, route: Route, *, fresh: bool) -> Connection:
        """Return an idle connection, or a new one."""
        connection = None if fresh else self._pop_idle(route)
        connection = connection or Connection(route)
        self._busy.add(connection)
        return connection

    def keep(self, connection: Connection) -> None:
        """Take a connection back that can be used again."""
        self._busy.discard(connection)
        connection.idle_until = anyio.current_time() + IDLE_SECONDS
        self._idle.append(connection)
        if len(self._idle) > IDLE_CONNECTIONS:
            self._idle.pop(0).close()

    def drop(self, connection: Connection) -> None:
        """Close a connection that is of no more use."""
        self._busy.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close them all; what is on its way gets an error."""
        for connection in (*self._busy, *self._idle):
            connection.close()
        self._busy.clear()
        self._idle.clear()

    def _pop_idle(self, route: Route) -> Connection | None:
        self._close_expired()
        for index in reversed(range(len(self._idle))):
            if self._idle[index].route is route:
                connection = self._idle.pop(index)
                if connection.is_quiet():
                    return connection
                connection.close()
        return None

    def _close_expired(self) -> None:
        """Close what has been idle for long; the oldest come first."""
        while self._idle and self._idle[0].idle_until <= anyio.current_time():
            self._idle.pop(0).close()
