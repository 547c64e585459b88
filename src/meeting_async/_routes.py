"""How to get to a server: certificates and proxy, settled once for each origin, off the loop."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import ssl
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import attrs

from meeting_async._connections import Route
from meeting_async._proxies import proxy_from_environment
from meeting_async._stack import Stack
from meeting_async.errors import ConfigurationError

Verify = ssl.SSLContext | str | os.PathLike[str] | bool
Certificate = str | tuple[str, str] | tuple[str, str, str]


@attrs.frozen
class RouteSettings:
    """The arguments of :class:`~meeting_async.HttpxTransport` that say how to get to a server."""

    stack: Stack
    verify: Verify = True
    cert: Certificate | None = attrs.field(default=None, repr=False)
    proxy: str | None = attrs.field(default=None, repr=False)
    trust_env: bool = False

    def __attrs_post_init__(self) -> None:
        if self.proxy is not None:
            _parsed_proxy(self.stack, self.proxy)
        if self.cert is not None and isinstance(self.verify, ssl.SSLContext):
            raise ConfigurationError(
                "cert",
                "a certificate beside an SSLContext",
                "cannot be added to a context of yours",
                "call verify.load_cert_chain(...) yourself",
            )


class Routes:
    """All routes of a transport."""

    def __init__(self, settings: RouteSettings) -> None:
        self._settings = settings
        self._context: ssl.SSLContext | None = None
        self._known: dict[tuple[str, bytes, int | None], Route] = {}
        self._making: anyio.Lock | None = None

    async def to(self, url: Any) -> Route:
        """Return the way to a URL's origin, always the same one."""
        key = url.scheme, url.raw_host, url.port
        if key not in self._known:
            self._making = self._making or anyio.Lock()  # of the loop that runs now
            async with self._making:
                if key not in self._known:
                    self._known[key] = await anyio.to_thread.run_sync(self._make, url)
        return self._known[key]

    def forget_loop(self) -> None:
        """Let another event loop use what is known."""
        self._making = None

    def _make(self, url: Any) -> Route:
        core = self._settings.stack.core
        origin = core.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=b"/"
        ).origin
        proxy = self._proxy(origin)
        context = self._ssl_context() if origin.scheme == b"https" else None
        headers = (b"Host", url.netloc), (b"User-Agent", _user_agent())
        return Route(core, origin, headers, context, proxy)

    def _proxy(self, origin: Any) -> Any:
        address = self._settings.proxy
        if address is None and self._settings.trust_env:
            host = origin.host.decode("ascii")
            address = proxy_from_environment(origin.scheme.decode("ascii"), host, origin.port)
        if address is None:
            return None
        proxy = _parsed_proxy(self._settings.stack, address)
        context = self._ssl_context() if proxy.url.scheme == "https" else None
        core = self._settings.stack.core
        url = core.URL(
            scheme=proxy.url.raw_scheme, host=proxy.url.raw_host, port=proxy.url.port, target=b"/"
        )
        return core.Proxy(url, auth=proxy.raw_auth, headers=proxy.headers.raw, ssl_context=context)

    def _ssl_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = _ssl_context(self._settings)
        return self._context


def _user_agent() -> bytes:
    try:
        return b"meeting-async/" + importlib.metadata.version("meeting-async").encode()
    except importlib.metadata.PackageNotFoundError:
        return b"meeting-async"


def _parsed_proxy(stack: Stack, address: str) -> Any:
    proxy = stack.client.Proxy(address)
    if proxy.url.scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise ConfigurationError(
            "proxy",
            f"a {proxy.url.scheme} address",
            "needs another package",
            "pip install 'meeting-async[socks]'",
        )
    return proxy


def _ssl_context(settings: RouteSettings) -> ssl.SSLContext:
    verify = settings.verify
    if isinstance(verify, ssl.SSLContext):
        return verify
    with _loading("verify"):
        if isinstance(verify, bool):
            context: ssl.SSLContext = settings.stack.client.create_ssl_context(
                verify=verify, trust_env=settings.trust_env
            )
        else:
            context = ssl.create_default_context(cafile=os.fspath(verify))
    if settings.cert is not None:
        files = (settings.cert,) if isinstance(settings.cert, str) else settings.cert
        with _loading("cert"):
            context.load_cert_chain(*files)
    return context


@contextlib.contextmanager
def _loading(field: str) -> Iterator[None]:
    """Tell a file that cannot be used from a network that breaks; both are ``OSError``."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            field, "a file of certificates", f"cannot be loaded ({error})", "give PEM files"
        ) from error
