"""The seam to the network: one protocol of two methods, and its implementation on httpx."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Protocol, runtime_checkable

import anyio
import httpx

from meeting_async._borrowed import send_borrowed
from meeting_async._connections import Connection, Connections
from meeting_async._exchange import BodyStream, Exchange
from meeting_async._records import Reply, Request
from meeting_async._routes import Certificate, Routes, RouteSettings, Verify
from meeting_async._stack import HTTPX, Stack


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

    Without ``client`` it keeps connections of its own: JSON calls use idle ones again; every
    upload opens a connection and closes it, because an idle one that the server has just dropped
    would make the outcome of a small upload unknown. An answer that comes while the body is still
    going out ends the upload at once. Cookies and ``.netrc`` are never looked at.

    Args:
        client: An ``httpx.AsyncClient`` of yours, used as it is and never closed; the other
            arguments do not apply to it. Its event hooks and debug logs see the signed headers,
            and an answer that comes early may be lost.
        verify: ``True`` for the usual certificate authorities, the path of a file with your own,
            or an ``ssl.SSLContext`` of yours; ``False`` checks nothing. Certificates are loaded
            once, in a thread, before the first ``https`` request.
        cert: A client certificate: path of a PEM file that holds certificate and key, or a tuple
            of the certificate's path, the key's path and, if need be, its password.
        proxy: URL of a proxy: ``http://``, ``https://`` or ``socks5://`` (extra ``socks``).
        trust_env: Without ``proxy``, take the one the environment names (``HTTPS_PROXY``,
            ``ALL_PROXY``, ``NO_PROXY``, …); also ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``.
        expect_continue: Ask before the body of an upload is sent (``Expect: 100-continue``, RFC
            9110 section 10.1.1): a refusal that needs no body then costs none of it. One round
            trip more; 1 s more with a server that does not know it.

    Raises:
        ConfigurationError, ValueError: A setting cannot be used.

    """

    _stack: ClassVar[Stack] = HTTPX

    def __init__(
        self,
        client: httpx.AsyncClient | None = None,
        *,
        verify: Verify = True,
        cert: Certificate | None = None,
        proxy: str | None = None,
        trust_env: bool = False,
        expect_continue: bool = False,
    ) -> None:
        self._borrowed = client
        self._expect_continue = expect_continue
        self._routes = Routes(RouteSettings(self._stack, verify, cert, proxy, trust_env))
        self._connections = Connections()
        self._calls: anyio.Semaphore | None = None

    def __repr__(self) -> str:
        own = f"{len(self._connections)} connections of its own"
        return f"<{type(self).__name__} with {'a borrowed client' if self._borrowed else own}>"

    async def send(self, request: Request, /) -> Reply:
        """Send ``request``; see :class:`Transport`."""
        if self._borrowed is not None:
            return await send_borrowed(self._stack, self._borrowed, request)
        if isinstance(request.body, bytes):
            async with self._call_slots():
                return await self._send(request)
        return await self._send(request)

    async def aclose(self) -> None:
        """Close the connections that are its own."""
        self._connections.close()
        self._routes.forget_loop()
        self._calls = None

    def _call_slots(self) -> anyio.Semaphore:
        if self._calls is None:
            self._calls = anyio.Semaphore(CONCURRENT_CALLS, fast_acquire=True)
        return self._calls

    async def _send(self, request: Request) -> Reply:
        return await Exchange(request, self._stack.failures).run(self._converse)

    async def _converse(self, exchange: Exchange) -> Reply:
        url, target = _parsed(self._stack, exchange.request.url)
        route = await self._routes.to(url)
        exchange.tunnel = route.has_tunnel
        is_upload = not isinstance(exchange.request.body, bytes)
        connection = self._connections.take(route, fresh=is_upload)
        try:
            response = await connection.handle(
                self._outgoing(target, exchange, connection), exchange.begin_reply
            )
            content = await exchange.content(response.stream)
            await response.aclose()
        except BaseException:
            self._connections.drop(connection)
            raise
        if not is_upload and connection.brought_only(response, len(content)):
            self._connections.keep(connection)
        else:
            self._connections.drop(connection)
        return Reply(response.status, tuple(response.headers), content)

    def _outgoing(self, target: Any, exchange: Exchange, connection: Connection) -> Any:
        """Make the request in a frame of its own, which is gone when anything can fail."""
        request = exchange.request
        asks = self._expect_continue and not isinstance(request.body, bytes)
        expect = [(b"Expect", b"100-continue")] if asks else []
        pause = functools.partial(connection.hear, CONTINUE_SECONDS) if asks else None
        limits = {"write": request.timeouts.send_stall}  # the exchange sees to the others
        return self._stack.core.Request(
            request.method,
            target,
            headers=[*connection.route.headers, *request.headers, *expect],
            content=BodyStream(exchange, pause),
            extensions={"timeout": limits},
        )


CONCURRENT_CALLS = 100
"""JSON calls at the same time; httpx's own default. More wait, and cost no descriptors."""

CONTINUE_SECONDS = 1.0
"""How long to wait for the answer to ``Expect: 100-continue``; curl's own default."""


@functools.lru_cache(maxsize=64)
def _parsed(stack: Stack, address: str) -> tuple[Any, Any]:
    """Return the ``URL`` of the client's library and that of its core."""
    url = stack.client.URL(address)
    if url.scheme not in {"http", "https"} or not url.host:
        problem = "the address is none of http or https with a host"
        raise stack.client.UnsupportedProtocol(problem)
    return url, stack.core.URL(
        scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
    )
