"""The boundary to the network: a protocol with two methods, and its default implementation."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import anyio
import anyio.lowlevel

from meeting_async._clock import is_gone
from meeting_async._http.origins import Certificate, CheckAddress, Origin, Origins, Verify
from meeting_async._models import Reply, Request
from meeting_async._threads import in_thread
from meeting_async.errors import ConfigurationError

if TYPE_CHECKING:
    from meeting_async._http.connections import Connections


@runtime_checkable
class Transport(Protocol):
    """Sends one request and returns its reply. Implement it to reach the server another way.

    A transport neither retries nor follows redirects.
    """

    async def send(self, request: Request, /) -> Reply:
        """Send ``request`` and return the whole reply, whatever its status.

        An exception of ``request.body`` is raised unchanged. A transport that knows how many bytes
        of the body may have been sent says so: ``sent`` of the reply or of the error.

        Raises:
            ConnectFailed: No connection; not one byte of the request was sent. The client cannot
                verify this, so raise it only if it is certain.
            TransportError: No complete reply arrived.

        """
        ...

    async def aclose(self) -> None:
        """Close the transport; called once, by the client."""
        ...


class HttpTransport:
    """The default transport: HTTP/1.1 over connections of its own.

    It does not lose an answer that arrives while the body is still being sent; a refusal ends the
    upload at once. It knows how many bytes were sent. Each upload and each call that is not
    idempotent opens a new connection: on an idle one that the server has just closed, the outcome
    would be unknown. Redirects are not followed; cookies and ``.netrc`` are not used.

    A transport serves one event loop at a time.

    Args:
        verify: ``True`` for the usual certificate authorities, the path of a file with your own,
            or your own ``ssl.SSLContext``; ``False`` checks nothing. Certificates are loaded
            once, in a thread, before the first ``https`` request.
        cert: A client certificate: the path of a PEM file that holds certificate and key, or a
            tuple of the certificate's path, the key's path and, if it has one, its password.
        proxy: URL of a plain HTTP proxy, for example ``http://proxy.example.com:3128``, for
            ``http`` and ``https`` servers. For others use
            ``HttpxTransport(httpx.AsyncClient(proxy=...))``.
        trust_env: Without ``proxy``, use the one that the environment names (``HTTPS_PROXY``,
            ``HTTP_PROXY``, ``ALL_PROXY``, ``NO_PROXY``, as ``urllib.request`` reads them), but
            never for this machine (loopback); and with ``verify=True`` the authorities of
            ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``.

    Raises:
        ConfigurationError: A setting cannot be used, or two exclude each other. :meth:`send` raises
            it, too, as files are loaded when they are needed.

    """

    _connections: Connections | None = None  # for the repr of a half-made object

    def __init__(
        self,
        *,
        verify: Verify = True,
        cert: Certificate | None = None,
        proxy: str | None = None,
        trust_env: bool = True,
    ) -> None:
        try:
            self._origins = Origins(verify, cert, proxy, trust_env=trust_env)
        except ConfigurationError as error:
            del cert, proxy  # no frame of a traceback has their passwords
            raise error.with_traceback(None) from error.__cause__
        self._is_closed = False

    def __repr__(self) -> str:
        in_use = self._connections.in_use if self._connections else 0
        return f"<{type(self).__name__} with {in_use} requests in progress>"

    async def send(self, request: Request, /) -> Reply:
        """Send ``request``; see :meth:`Transport.send`."""
        if self._connections is None:  # loads httptools, ssl and, if installed, trio
            # Do not look in sys.modules: a module is there while it is still loading.
            await in_thread(partial(importlib.import_module, _ENGINE))
        return await self._own_connections().send(request)

    async def aclose(self) -> None:
        """Close its connections; requests that are being sent end with an error."""
        self._is_closed = True
        if self._connections is not None:
            self._connections.close()

    def _own_connections(self) -> Connections:
        """Return the connections of the running event loop; close those of an earlier one."""
        if self._is_closed:
            raise RuntimeError("this transport is closed: make a new one")
        known = self._connections
        if known is not None and known.loop == anyio.lowlevel.current_token():
            return known
        if known is not None:
            if known.in_use and not is_gone(known.loop):
                raise RuntimeError(_IN_USE)
            known.close()
        from meeting_async._http.connections import Connections  # noqa: PLC0415 - loaded by now

        self._connections = Connections(self._origins)
        return self._connections


async def origin_of(transport: HttpTransport, url: str) -> Origin:
    """Return how a transport reaches the server of a URL.

    Raises:
        ConfigurationError: Certificates cannot be loaded, or a proxy cannot be used.

    """
    origin, _ = await transport._origins.locate(url, anyio.Lock())  # noqa: SLF001 - its own module
    return origin


def transport_with(check_address: CheckAddress | None) -> HttpTransport:
    """Make a transport that checks all addresses of a host before it connects to one."""
    made = HttpTransport()
    made._origins.check_address = check_address  # noqa: SLF001 - its own module
    return made


_ENGINE = "meeting_async._http.connections"

_IN_USE = (
    "this transport is in use on another event loop: make one for each loop, or use them one after "
    "the other"
)
