"""The seam to the network: one protocol of two methods, and its implementation on httpx.

The only file that knows httpx. Foreign exceptions are mapped by one table at the one call that
does the I/O, reading the reply included.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import anyio
import anyio.to_thread
import h11
import httpx

from meeting_async import errors
from meeting_async._records import Reply, Request

MAX_REPLY_BYTES = 16 * 1024**2
"""Longest reply that is read; the largest regular one lists rooms and is far below."""


@runtime_checkable
class Transport(Protocol):
    """Sends one request and returns its reply. Implement it to go another way.

    A transport neither retries nor follows redirects. It raises a
    :class:`~meeting_async.errors.TransportError` when no complete reply arrived:
    :class:`~meeting_async.errors.ConnectFailed` only if not one byte of the body was taken.
    """

    async def send(self, request: Request, /) -> Reply:
        """Send ``request`` and return the whole reply, whatever its status."""
        ...

    async def aclose(self) -> None:
        """Release what is held; called once, by the client that owns the transport."""
        ...


class HttpxTransport:
    """The default transport.

    Without arguments it keeps connections of its own: JSON calls share a pool; every upload opens
    a connection and closes it, because an idle one that the server has just dropped would make
    the outcome of a small upload unknown. Environment proxies, ``.netrc`` and cookies are not
    looked at.

    Args:
        client: An ``httpx.AsyncClient`` of yours, used as it is and never closed. Its event hooks
            and debug logs see the signed headers.
        verify: ``True``, or an ``ssl.SSLContext`` of yours. Certificates are loaded once, in a
            thread, before the first ``https`` request.
        proxy: URL of an HTTP proxy.

    """

    def __init__(
        self,
        client: httpx.AsyncClient | None = None,
        *,
        verify: ssl.SSLContext | bool = True,
        proxy: str | None = None,
    ) -> None:
        if proxy is not None:
            httpx.Proxy(proxy)  # refuses what is no proxy's address before anything is sent
        self._borrowed = client
        self._verify = verify
        self._proxy = proxy
        self._own: dict[tuple[str, bool], httpx.AsyncHTTPTransport] = {}
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._opening: anyio.Lock | None = None

    def __repr__(self) -> str:
        kind = "a borrowed client" if self._borrowed else f"{len(self._own)} pools of its own"
        return f"<HttpxTransport with {kind}>"

    async def send(self, request: Request, /) -> Reply:
        """Send ``request``; see :class:`Transport`."""
        tunnel = self._proxy is not None and request.url.startswith("https:")
        exchange = _Exchange(request, tunnel=tunnel)
        if self._borrowed is not None:
            send = functools.partial(self._borrowed.send, stream=True, follow_redirects=False)
            return await exchange.run(self._borrowed.build_request, send)
        pool = await self._pool_for(request)
        return await exchange.run(_plain_request, pool.handle_async_request)

    async def aclose(self) -> None:
        """Close the connections that are its own."""
        pools, self._own, self._opening = list(self._own.values()), {}, None
        for pool in pools:
            await pool.aclose()

    async def _pool_for(self, request: Request) -> httpx.AsyncHTTPTransport:
        scheme = "https" if request.url.startswith("https:") else "http"
        key = scheme, isinstance(request.body, bytes)
        if key not in self._own:
            self._opening = self._opening or anyio.Lock()  # of the loop that runs now
            async with self._opening:
                if key not in self._own:
                    self._own[key] = await anyio.to_thread.run_sync(self._open, *key)
        return self._own[key]

    def _open(self, scheme: str, keep_alive: bool) -> httpx.AsyncHTTPTransport:
        _user_agent()  # reads a file, once
        if scheme not in self._contexts:
            self._contexts[scheme] = self._context(scheme)
        idle = _IDLE_CONNECTIONS if keep_alive else 0
        return httpx.AsyncHTTPTransport(
            verify=self._contexts[scheme],
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=idle),
            proxy=self._proxy_settings(),
            socket_options=_SOCKET_OPTIONS,
        )

    def _proxy_settings(self) -> httpx.Proxy | None:
        if self._proxy is None:
            return None
        behind_tls = self._proxy.startswith("https:")
        context = self._contexts.setdefault("https", self._context("https")) if behind_tls else None
        return httpx.Proxy(self._proxy, ssl_context=context)

    def _context(self, scheme: str) -> ssl.SSLContext:
        if isinstance(self._verify, ssl.SSLContext):
            return self._verify
        if scheme == "http":
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # never used, so nothing to load
        return httpx.create_ssl_context(verify=self._verify, trust_env=False)


_IDLE_CONNECTIONS = 20
"""Idle connections kept for JSON calls; httpx's own default."""

_SOCKET_OPTIONS = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, option, seconds)
    for option, seconds in (
        (getattr(socket, "TCP_KEEPIDLE", None), 60),
        (getattr(socket, "TCP_KEEPINTVL", None), 30),
    )
    if option is not None
]
"""A conversion is minutes of silence, and address translators forget silent connections."""


@functools.cache
def _user_agent() -> bytes:
    try:
        return b"meeting-async/" + importlib.metadata.version("meeting-async").encode()
    except importlib.metadata.PackageNotFoundError:
        return b"meeting-async"


def _plain_request(
    method: str, url: str, *, headers: list[tuple[bytes, bytes]], extensions: dict[str, Any]
) -> httpx.Request:
    own = [(b"Host", httpx.URL(url).netloc), (b"User-Agent", _user_agent())]
    return httpx.Request(method, url, headers=own + headers, extensions=extensions)


def _outgoing(request: Request, build: _Build) -> httpx.Request:
    """Make the request in a frame of its own, which is gone when anything can fail."""
    limits = request.timeouts
    timeout = {
        "connect": limits.connect,
        "pool": limits.connect,
        "write": limits.send_stall,
        "read": request.reply_timeout,
    }
    return build(
        request.method,
        request.url,
        headers=list(request.headers),
        extensions={"timeout": timeout},
    )


class _Exchange:
    """One request and its reply, with limits of time that follow its phases.

    Connecting as a whole, then none while the body makes progress, then the reply as a whole.
    """

    def __init__(self, request: Request, *, tunnel: bool = False) -> None:
        self._request = request
        self._tunnel = tunnel
        self._limit = anyio.CancelScope()
        self._phase = "connecting"
        self._body = _Stream(request, self._begin_body, self._begin_reply)
        self._connection: Any = None
        self._caller_handles = sys.exception()

    async def run(self, build: _Build, send: _Send) -> Reply:
        """Return the reply, or raise what came instead."""
        mapped: errors.TransportError | None = None
        self._limit.deadline = anyio.current_time() + self._request.timeouts.connect
        try:
            with self._limit:
                return await self._converse(build, send)
        except _FOREIGN as error:
            if self._body.failure is None:
                mapped = self._mapped(error)
        if self._body.failure is not None:
            self._body.failure.__cause__ = self._body.cause  # httpcore raises it "from None"
        raise self._body.failure or mapped or self._struck()

    async def _converse(self, build: _Build, send: _Send) -> Reply:
        outgoing = _outgoing(self._request, build)
        outgoing.stream = self._body
        outgoing.extensions["trace"] = self._trace
        try:
            incoming = await send(outgoing)
        except BaseException:
            await self._close_orphan()
            raise
        try:
            content = bytearray()
            # As it is, without decoding: a small reply cannot become a large one.
            async for chunk in incoming.aiter_raw():
                content += chunk
                if len(content) > MAX_REPLY_BYTES:
                    # Not by leaving the loop: generators left half-way are finalised at random.
                    self._phase = "too long"
                    self._limit.cancel()
                    content.clear()
            if self._phase == "too long":
                raise self._struck()
        finally:
            with anyio.CancelScope(shield=True):
                await incoming.aclose()
        return Reply(incoming.status_code, tuple(incoming.headers.raw), bytes(content))

    async def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Keep a connection that is being made in sight."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._connection = info["return_value"]

    async def _close_orphan(self) -> None:
        """Close what httpcore 1.0 leaves open when it is cancelled around a handshake."""
        if self._phase == "connecting" and self._connection is not None:
            with anyio.CancelScope(shield=True):
                await self._connection.aclose()

    def _begin_body(self) -> None:
        self._phase = "sending"
        self._limit.deadline = math.inf

    def _begin_reply(self) -> None:
        self._phase = "replying"
        self._limit.deadline = anyio.current_time() + self._request.reply_timeout

    def _struck(self) -> errors.TransportError:
        if self._phase == "connecting":
            seconds = self._request.timeouts.connect
            return errors.ConnectFailed(f"no connection in time ({seconds:g} s)")
        if self._phase == "too long":
            return errors.ConnectionLost(f"the reply is longer than {MAX_REPLY_BYTES:,} bytes")
        return errors.TransferTimeout(f"no complete reply within {self._request.reply_timeout:g} s")

    def _mapped(self, error: Exception) -> errors.TransportError:
        ours, words = next((row[1], row[2]) for row in _TABLE if isinstance(error, row[0]))
        if self._tunnel and self._phase == "connecting":
            ours = errors.ConnectFailed  # what broke is the way to the server
        if self._phase != "connecting" and ours is errors.ConnectFailed:
            ours = errors.ConnectionLost  # some of the body was taken, whatever it is called
        chain = list(self._chain(error))
        for link in chain:
            link.__traceback__ = None  # their frames hold the signed headers
        if isinstance(error, _OUR_FAULT):  # their text quotes headers
            return ours(f"{words} ({type(error).__name__})")
        detail = next((text for link in chain if (text := str(link).strip())), "")
        mapped = ours(f"{words} ({detail or type(error).__name__})")
        mapped.__cause__ = error
        return mapped

    def _chain(self, error: Exception) -> Iterator[BaseException]:
        """Yield the exception and those behind it, short of what the caller is handling."""
        link: BaseException | None = error
        while link is not None and link is not self._caller_handles:
            yield link
            link = link.__cause__ or link.__context__


_Build = Callable[..., httpx.Request]
_Send = Callable[[httpx.Request], Awaitable[httpx.Response]]


class _Stream(httpx.AsyncByteStream):
    """Our body as httpx wants it, in pieces that suit the line.

    The limit for a write holds for a whole piece. So that a slow line is not taken for a stalled
    one, pieces start small, grow while they pass quickly, and shrink when they do not.

    No generator: one that is abandoned half-way would be finalised by the loop, some time later.
    """

    def __init__(
        self, request: Request, on_begin: Callable[[], None], on_end: Callable[[], None]
    ) -> None:
        self.failure: Exception | None = None
        """What the body raised: never to be taken for the network's."""
        self.cause: BaseException | None = None
        self._body = request.body
        self._iterator: AsyncIterator[bytes] | None = None
        self._rest = memoryview(b"")
        self._piece = _SMALLEST_PIECE
        self._handed_at = 0.0
        self._quickly = request.timeouts.send_stall / 20
        self._on_begin, self._on_end = on_begin, on_end

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._on_begin()
        self._iterator = aiter(_once(self._body) if isinstance(self._body, bytes) else self._body)
        return self

    async def __anext__(self) -> bytes:
        self._adapt()
        if not self._rest and self._iterator is not None:
            chunk = await self._next_chunk(self._iterator)
            if len(chunk) <= self._piece:
                self._handed_at = anyio.current_time()
                return chunk
            self._rest = memoryview(chunk)
        piece, self._rest = self._rest[: self._piece], self._rest[self._piece :]
        self._handed_at = anyio.current_time()
        return bytes(piece)

    def _adapt(self) -> None:
        if not self._handed_at:
            return
        quick = anyio.current_time() - self._handed_at < self._quickly
        larger = self._piece * 2 if quick else self._piece // 2
        self._piece = min(max(larger, _SMALLEST_PIECE), _LARGEST_PIECE)

    async def _next_chunk(self, chunks: AsyncIterator[bytes]) -> bytes:
        try:
            return await anext(chunks)
        except StopAsyncIteration:
            self._on_end()
            raise
        except Exception as error:
            self.failure, self.cause = error, error.__cause__
            raise


_SMALLEST_PIECE = 8 * 1024
_LARGEST_PIECE = 1024 * 1024
"""Bytes per write; above the size of a chunk, so that on a fast line chunks go out as they are."""


class _once:  # noqa: N801 - reads as the function it stands for
    """Iterate over one chunk."""

    def __init__(self, chunk: bytes) -> None:
        self._left = [chunk] if chunk else []

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()


_OUR_FAULT = (httpx.LocalProtocolError, h11.LocalProtocolError)

_TABLE: tuple[tuple[tuple[type[Exception], ...], type[errors.TransportError], str], ...] = (
    (
        (httpx.ConnectTimeout, httpx.PoolTimeout),
        errors.ConnectFailed,
        "no connection in time",
    ),
    (
        (
            httpx.ConnectError,
            httpx.ProxyError,
            httpx.UnsupportedProtocol,
            httpx.InvalidURL,
            UnicodeError,  # a host name that no name server can be asked for
        ),
        errors.ConnectFailed,
        "no connection",
    ),
    ((httpx.WriteTimeout,), errors.TransferTimeout, "the peer stopped reading"),
    ((httpx.ReadTimeout,), errors.TransferTimeout, "no reply in time"),
    (
        (httpx.ProtocolError, h11.ProtocolError, httpx.StreamError),
        errors.ConnectionLost,
        "the HTTP exchange broke",
    ),
    (
        (
            httpx.HTTPError,
            OSError,
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
            anyio.EndOfStream,
        ),
        errors.ConnectionLost,
        "the connection broke",
    ),
)
"""What others raise, what it is here, and in which words. The first match counts."""

_FOREIGN = tuple(kind for kinds, _, _ in _TABLE for kind in kinds)
