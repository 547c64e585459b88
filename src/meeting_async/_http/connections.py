"""Connections of our own: a new one for most requests, and a few idle ones for idempotent calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import anyio.lowlevel
import h11

from meeting_async import errors
from meeting_async._clock import clock_of, is_gone
from meeting_async._http.exchange import MAX_HEAD_BYTES, Exchange
from meeting_async._http.failures import translated
from meeting_async._http.origins import Origin, Origins
from meeting_async._http.stream import Stream
from meeting_async._http.tcp import PASSWORD_WANTED, open_socket, proxy_refused, speaks_tls
from meeting_async._models import HeaderPairs, Reply, Request

IDLE_CONNECTIONS = 20
"""Idle connections that are kept, to all origins together; httpx's own default."""

IDLE_SECONDS = 4.0
"""Seconds for which they are kept: common servers close theirs after 5 s or later (uvicorn)."""


class Connection:
    """One connection to an origin, for one request at a time."""

    def __init__(self, origin: Origin, stream: Stream) -> None:
        self.origin = origin
        self.stream = stream
        self.idle_until = 0.0
        """On the clock of the event loop."""
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=2 * MAX_HEAD_BYTES)
        self._is_used = False

    async def send(self, request: Request, target: bytes, at_once: int) -> Reply:
        """Send a request and return its reply."""
        if reused := self._is_used:
            self._http.start_next_cycle()
        self._is_used = True
        exchange = Exchange(self._http, self.stream, request, at_once)
        return await exchange.run(*_addressed(self.origin, request, target), reused=reused)

    def may_go_on(self) -> bool:
        """Return whether another request may follow: what came was one whole reply, no more."""
        is_whole = self._http.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}
        return is_whole and not self._http.trailing_data[0]


def _addressed(origin: Origin, request: Request, target: bytes) -> tuple[bytes, HeaderPairs]:
    """Return target and headers of a request (RFC 9112 section 3.2)."""
    headers = (*origin.headers, *request.headers)
    if origin.proxy is not None and origin.context is None:
        target = b"http://" + dict(origin.headers)[b"Host"] + target
        if origin.proxy.authorization is not None:
            headers = (*headers, (b"Proxy-Authorization", origin.proxy.authorization))
    return target, headers


def _check_proxy(origin: Origin, request: Request, reply: Reply) -> None:
    """Raise if a proxy wants a password. After an upload, its answer counts as any other."""
    if origin.proxy is None or origin.context or not isinstance(request.body, bytes):
        return
    is_page = not reply.content.lstrip().startswith(b"{")  # else the server may have written it
    if reply.status in PASSWORD_WANTED and is_page:
        raise proxy_refused(origin, origin.proxy, reply.status)


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
        self._known: set[Origin] = set()
        """Those that do not expect TLS although they are ``http``."""

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
        connection: Connection | None = None
        try:
            seconds = request.connect_timeout
            located = self._origins.located(request.url)
            origin, target = located or await self._locate(request.url, seconds)
            host = self._sending[scope].host = origin.name
            async with self._places:
                connection = self._pop_idle(origin) if _may_reuse(request) else None
                if connection is None:
                    connection = await self._connect(origin, seconds)
                connecting = False
                self._sending[scope] = errors.ConnectionLost("the transport was closed", host)
                reply = await self._use(connection, request, target, scope)
                _check_proxy(origin, request, reply)
                return reply
        except Exception as error:  # noqa: BLE001 - translated, or raised as it is
            failure = translated(error, host, connecting=connecting)
        if type(failure) is errors.ConnectionLost and isinstance(request.body, bytes):
            await self._look_for_tls(connection, failure)
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

    async def _look_for_tls(
        self, connection: Connection | None, failure: errors.ConnectionLost
    ) -> None:
        """Find out why a server that was asked in plain HTTP has not answered.

        Many servers just close a connection on which they expected TLS.
        """
        if connection is None or connection.stream.has_received:
            return
        origin = connection.origin
        if origin.context or origin.proxy or origin in self._known:
            return
        if await speaks_tls(origin.address):
            failure.reason = "the port speaks TLS: use https:// in the base URL"
            failure.permanent = True
        else:
            self._known.add(origin)

    async def _locate(self, url: str, seconds: float) -> tuple[Origin, bytes]:
        with anyio.move_on_after(seconds):
            return await self._origins.locate(url, self._locating)
        raise errors.ConnectFailed(f"no connection in time ({seconds:g} s)")

    async def _connect(self, origin: Origin, seconds: float) -> Connection:
        while len(self._idle) > self._places.value:  # those that are idle are connections, too
            self._idle.pop(0).stream.close()
        with anyio.move_on_after(seconds):
            return Connection(origin, Stream(*await open_socket(origin), self.loop))
        through = f" through the proxy {origin.proxy.label}" if origin.proxy else ""
        raise errors.ConnectFailed(f"no connection in time{through} ({seconds:g} s)")

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
            if connection.stream.has_received:
                self._known.add(connection.origin)
            if _may_reuse(request) and connection.may_go_on():
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
