"""The seam to the network: one protocol of two methods, and its implementation on httpx.

The only file that knows httpx. Foreign exceptions are mapped by one table at the one call that
does the I/O, reading the reply included.
"""

from __future__ import annotations

import importlib.metadata
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

import anyio
import anyio.to_thread
import h11
import httpx

from meeting_async import errors
from meeting_async._records import Body, Reply, Request

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
    the outcome of a small upload unknown. Environment proxies and ``.netrc`` are not looked at.

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
        self._borrowed = client
        self._verify = verify
        self._proxy = proxy
        self._own: dict[tuple[str, bool], httpx.AsyncClient] = {}
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._opening = anyio.Lock()

    def __repr__(self) -> str:
        kind = "a borrowed client" if self._borrowed else f"{len(self._own)} clients of its own"
        return f"<HttpxTransport with {kind}>"

    async def send(self, request: Request, /) -> Reply:
        """Send ``request``; see :class:`Transport`."""
        client = self._borrowed or await self._client_for(request)
        with anyio.CancelScope() as reply_limit:
            try:
                return await _exchange(client, request, reply_limit)
            except errors.MeetingError:  # from the body; several of ours are OSErrors, too
                raise
            except _FOREIGN as error:
                # Their frames hold the signed headers: type and text are kept, frames are not.
                raise _mapped(error) from _without_frames(error)
        raise errors.TransferTimeout(f"no complete reply within {request.reply_timeout:g} s")

    async def aclose(self) -> None:
        """Close the connections that are its own."""
        clients, self._own = list(self._own.values()), {}
        for client in clients:
            await client.aclose()

    async def _client_for(self, request: Request) -> httpx.AsyncClient:
        scheme = "https" if request.url.startswith("https:") else "http"
        key = scheme, isinstance(request.body, bytes)
        if key not in self._own:
            async with self._opening:
                if key not in self._own:
                    self._own[key] = await anyio.to_thread.run_sync(self._open, *key)
        return self._own[key]

    def _open(self, scheme: str, keep_alive: bool) -> httpx.AsyncClient:
        if scheme not in self._contexts:
            self._contexts[scheme] = self._context(scheme)
        context = self._contexts[scheme]
        idle = _IDLE_CONNECTIONS if keep_alive else 0
        transport = httpx.AsyncHTTPTransport(
            verify=context,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=idle),
            proxy=httpx.Proxy(self._proxy, ssl_context=context) if self._proxy else None,
            socket_options=_SOCKET_OPTIONS,
        )
        headers = {"User-Agent": _user_agent()}
        return httpx.AsyncClient(transport=transport, trust_env=False, headers=headers)

    def _context(self, scheme: str) -> ssl.SSLContext:
        if isinstance(self._verify, ssl.SSLContext):
            return self._verify
        if scheme == "http" and not self._proxy:
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


def _user_agent() -> str:
    try:
        return f"meeting-async/{importlib.metadata.version('meeting-async')}"
    except importlib.metadata.PackageNotFoundError:
        return "meeting-async"


class _Stream(httpx.AsyncByteStream):
    """Our body as httpx wants it; when its end was taken, the time for the reply starts.

    No generator: one that is abandoned half-way would be finalised by the loop, some time later.
    """

    def __init__(self, body: Body, request: Request, reply_limit: anyio.CancelScope) -> None:
        self._chunks = aiter(body)
        self._reply_timeout = request.reply_timeout
        self._reply_limit = reply_limit

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._chunks)
        except StopAsyncIteration:
            self._reply_limit.deadline = anyio.current_time() + self._reply_timeout
            raise


async def _exchange(
    client: httpx.AsyncClient, request: Request, reply_limit: anyio.CancelScope
) -> Reply:
    outgoing = client.build_request(
        request.method,
        request.url,
        headers=list(request.headers),
        content=request.body if isinstance(request.body, bytes) else None,
        extensions={"timeout": _timeouts(request)},
    )
    if isinstance(request.body, bytes):
        reply_limit.deadline = anyio.current_time() + _total_seconds(request)
    else:
        outgoing.stream = _Stream(request.body, request, reply_limit)
    incoming = await client.send(outgoing, stream=True, follow_redirects=False)
    try:
        content = await _content(incoming)
    finally:
        with anyio.CancelScope(shield=True):
            await incoming.aclose()
    return Reply(incoming.status_code, tuple(incoming.headers.raw), content)


def _timeouts(request: Request) -> dict[str, float]:
    limits = request.timeouts
    return {
        "connect": limits.connect,
        "pool": limits.connect,
        "write": limits.send_stall,
        "read": request.reply_timeout,
    }


def _total_seconds(request: Request) -> float:
    """Limit a whole JSON call: its body is small and goes out at once, so one limit will do."""
    limits = request.timeouts
    return limits.connect + limits.send_stall + request.reply_timeout


async def _content(incoming: httpx.Response) -> bytes:
    """Read the reply as it is: no decoding, so that a small reply cannot become a large one."""
    content = bytearray()
    async for chunk in incoming.aiter_raw():
        content += chunk
        if len(content) > MAX_REPLY_BYTES:
            raise errors.ConnectionLost(f"the reply is longer than {MAX_REPLY_BYTES:,} bytes")
    return bytes(content)


_TABLE: tuple[tuple[tuple[type[Exception], ...], type[errors.TransportError], str], ...] = (
    (
        (httpx.ConnectTimeout, httpx.PoolTimeout),
        errors.ConnectFailed,
        "no connection in time",
    ),
    (
        (httpx.ConnectError, httpx.ProxyError, httpx.UnsupportedProtocol, httpx.InvalidURL),
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


def _mapped(error: Exception) -> errors.TransportError:
    ours, words = next((row[1], row[2]) for row in _TABLE if isinstance(error, row[0]))
    detail = str(error).strip() or type(error).__name__
    return ours(f"{words} ({detail})")


def _without_frames(error: Exception) -> BaseException:
    """Drop the frames of an exception and of those behind it."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
