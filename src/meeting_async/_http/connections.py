"""Connections of our own: a new one for most requests, and a few idle ones for idempotent calls.

httpcore's pool is not used: it costs O(n²) for n requests at once, stays unusable after many
cancelled ones (its issues 1093, 1094, 1099), and treats bytes after a reply as the next reply. Its
single connection is public and enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable
from typing import cast

import anyio
import anyio.lowlevel
import httpcore

from meeting_async import errors
from meeting_async._clock import clock_of, is_gone
from meeting_async._http.failures import translated
from meeting_async._http.origins import Origin, Origins
from meeting_async._http.request_body import RequestBodyStream
from meeting_async._http.socket import SocketStream
from meeting_async._http.tcp import open_socket
from meeting_async._models import Reply, Request

IDLE_CONNECTIONS = 20
"""Idle connections that are kept, to all origins together; httpx's own default."""

IDLE_SECONDS = 4.0
"""Seconds for which they are kept: common servers close theirs after 5 s or later (uvicorn)."""


class Connection:
    """One connection to an origin, for one request at a time."""

    def __init__(self, origin: Origin, stream: SocketStream) -> None:
        self.origin = origin
        self.stream = stream
        self.idle_until = 0.0
        """On the clock of the event loop."""
        self.is_clean = False
        """Whether another request may follow the last one."""
        self._is_used = False
        self._http = httpcore.AsyncHTTP11Connection(origin.address, stream)

    async def send(self, request: Request, target: bytes, at_once: int) -> Reply:
        """Send a request, return its reply, and correct ``request.body.sent``."""
        self.is_clean, reused, self._is_used = False, self._is_used, True
        self.stream.begin(request, at_once)
        content = bytearray()
        try:
            outgoing = _outgoing(self.origin, request, target)
            response = await self._http.handle_async_request(outgoing)
            async for chunk in cast(AsyncIterable[bytes], response.stream):
                content += chunk
            await response.aclose()
        finally:
            if not isinstance(request.body, bytes):
                request.body.sent = self.stream.body_sent
        self.is_clean = self.stream.carried_only(response.headers, len(content))
        early = self.stream.answered_early
        headers = tuple(response.headers)
        return Reply(response.status, headers, bytes(content), early=early, reused=reused)


def _outgoing(origin: Origin, request: Request, target: bytes) -> httpcore.Request:
    headers = [*origin.headers, *request.headers]
    if origin.proxy is not None and origin.context is None:  # RFC 9112 section 3.2.2
        target = b"http://" + dict(origin.headers)[b"Host"] + target
        if origin.proxy.authorization is not None:
            headers.append((b"Proxy-Authorization", origin.proxy.authorization))
    scheme, host, port = origin.address.scheme, origin.address.host, origin.address.port
    return httpcore.Request(
        request.method,
        httpcore.URL(scheme=scheme, host=host, port=port, target=target),
        headers=headers,
        content=RequestBodyStream(request.body),
    )


class Connections:
    """All connections of a transport on one event loop."""

    def __init__(self, origins: Origins, max_connections: int) -> None:
        self.loop = anyio.lowlevel.current_token()
        self._now = clock_of(self.loop)
        self._origins = origins
        self._places = anyio.Semaphore(max_connections, fast_acquire=True)
        self._locating = anyio.Lock()
        self._sending: dict[anyio.CancelScope, errors.TransportError] = {}
        """Requests that are being sent, each with how it ends if the transport is closed."""
        self._busy: set[Connection] = set()
        self._idle: list[Connection] = []
        """In the order in which they became idle."""
        self._cancel_expiry: Callable[[], object] | None = None

    @property
    def in_use(self) -> int:
        """Requests that are being sent or wait for a connection."""
        return len(self._sending)

    async def send(self, request: Request) -> Reply:
        """Send a request on a new connection, or on an idle one if it is idempotent."""
        scope = anyio.CancelScope()
        self._sending[scope] = errors.ConnectFailed("the transport was closed")
        try:
            with scope:
                return await self._send(request, scope)
        except errors.TransportError:
            if not scope.cancel_called:  # else it broke because it was closed
                raise
        finally:
            if_closed = self._sending.pop(scope)
        raise if_closed

    async def _send(self, request: Request, scope: anyio.CancelScope) -> Reply:
        host, connecting = "", True
        try:
            began, seconds = self._now(), request.connect_timeout
            origin, target = await self._locate(request.url, seconds)
            seconds -= self._now() - began
            host = self._sending[scope].host = origin.name
            async with self._places:
                connection = self._pop_idle(origin) if _may_reuse(request) else None
                if connection is None:
                    connection = await self._connect(origin, seconds)
                connecting = False
                self._sending[scope] = errors.ConnectionLost("the transport was closed", host)
                return await self._use(connection, request, target, scope)
        except Exception as error:  # noqa: BLE001 - translated, or raised as it is
            failure = translated(error, host, connecting=connecting)
        raise failure  # outside, as some errors quote headers and must not be its context

    def close(self) -> None:
        """Close all connections; requests that are being sent end with an error."""
        if is_gone(self.loop):
            self.abandon()
            return
        for scope in self._sending:
            scope.cancel()
        for connection in (*self._busy, *self._idle):
            connection.stream.close()
        self._idle.clear()
        if self._cancel_expiry is not None:
            self._cancel_expiry()
            self._cancel_expiry = None

    def abandon(self) -> None:
        """Close the connections of an event loop that no longer runs."""
        for connection in (*self._busy, *self._idle):
            connection.stream.close()
        self._idle.clear()

    async def _locate(self, url: str, seconds: float) -> tuple[Origin, bytes]:
        with anyio.move_on_after(seconds):
            return await self._origins.locate(url, self._locating)
        raise errors.ConnectFailed(f"no connection in time ({seconds:g} s)")

    async def _connect(self, origin: Origin, seconds: float) -> Connection:
        while len(self._idle) > self._places.value:  # those that are idle are connections, too
            self._idle.pop(0).stream.close()
        with anyio.move_on_after(seconds):
            return Connection(origin, SocketStream(*await open_socket(origin), self.loop))
        raise errors.ConnectFailed(f"no connection in time ({seconds:g} s)")

    async def _use(
        self, connection: Connection, request: Request, target: bytes, scope: anyio.CancelScope
    ) -> Reply:
        self._busy.add(connection)
        try:
            if scope.cancel_called:  # by close(), while it was connecting
                await anyio.lowlevel.checkpoint_if_cancelled()
            return await connection.send(request, target, len(self._sending))
        finally:
            self._busy.discard(connection)
            if _may_reuse(request) and connection.is_clean:
                self._keep(connection)
            else:
                connection.stream.close()

    # --- idle connections ------------------------------------------------------------------------

    def _pop_idle(self, origin: Origin) -> Connection | None:
        for index in reversed(range(len(self._idle))):
            if self._idle[index].origin is origin:
                connection = self._idle.pop(index)
                if connection.stream.is_quiet():
                    return connection
                connection.stream.close()
        return None

    def _keep(self, connection: Connection) -> None:
        now = self._now()
        connection.idle_until = now + IDLE_SECONDS
        self._idle.append(connection)
        if len(self._idle) > IDLE_CONNECTIONS:
            self._idle.pop(0).stream.close()
        if self._cancel_expiry is None:
            self._watch_idle(now)

    def _watch_idle(self, now: float) -> None:
        until = self._idle[0].idle_until
        self._cancel_expiry = call_later(until - now, lambda: self._expire(until))

    def _expire(self, now: float) -> None:
        while self._idle and self._idle[0].idle_until <= now:
            self._idle.pop(0).stream.close()
        self._cancel_expiry = None
        if self._idle:
            self._watch_idle(now)


def _may_reuse(request: Request) -> bool:
    """Return whether an idle connection may be used; the server may have closed it."""
    return request.idempotent and isinstance(request.body, bytes)


def call_later(seconds: float, function: Callable[[], None]) -> Callable[[], object]:
    """Call a function later, if the event loop still runs; return a function that cancels it."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _call_later_on_trio(seconds, function)
    return loop.call_later(seconds, function).cancel


def _call_later_on_trio(seconds: float, function: Callable[[], None]) -> Callable[[], object]:
    import trio  # noqa: PLC0415 - it is there if it runs

    scope = trio.CancelScope()

    async def wait_and_call() -> None:
        with scope:
            await trio.sleep(seconds)
            function()

    trio.lowlevel.spawn_system_task(wait_and_call)  # does not keep the program alive
    return scope.cancel
