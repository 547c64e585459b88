"""How to reach a server: certificates, loaded once per transport, and the proxy of each origin."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import anyio
import attrs

from meeting_async._config import check_key_log
from meeting_async._models import HeaderPairs, Secret
from meeting_async._protocol.requests import is_loopback
from meeting_async._text import Url, link_label, short_repr
from meeting_async._threads import in_thread
from meeting_async.errors import ConfigurationError, ConnectFailed

if TYPE_CHECKING:
    import ssl

    from meeting_async._http.tls import (
        Resumption,
    )  # imported in a thread, when it is needed: it takes time

Verify: TypeAlias = "ssl.SSLContext | str | os.PathLike[str] | bool"
Certificate = str | tuple[str, str] | tuple[str, str, str]
CheckAddress = Callable[[str], None]
"""Takes an IP address; raises if no request must be sent to it."""


MAX_ADDRESSES = 100
"""URLs that are remembered with their origins, then all are forgotten: a client has few methods,
but may check many links."""

_PORTS = {"http": 80, "https": 443}

_AUTHORITIES = "SSL_CERT_FILE"


@attrs.frozen
class Proxy:
    """A proxy that is reached over plain HTTP."""

    address: tuple[str, int]
    """Host and port."""
    authorization: Secret | None
    """Value of ``Proxy-Authorization``."""
    label: str
    """Host, port, and the environment variable that names it, for errors."""


@attrs.frozen(eq=False)
class Origin:
    """A server, and how to reach it."""

    address: tuple[str, int]
    """Host and port."""
    name: str
    """``host:port``, for errors."""
    headers: HeaderPairs
    """First headers of every request: ``Host`` and ``User-Agent``."""
    context: ssl.SSLContext | None
    """``None`` for plain ``http``."""
    proxy: Proxy | None
    check_address: CheckAddress | None = None
    resumption: Resumption | None = None
    """The last TLS session with it."""


class Origins:
    """All origins of a transport.

    Raises:
        ConfigurationError: A setting has the wrong type, or two exclude each other.

    """

    def __init__(
        self, verify: Verify, cert: Certificate | None, proxy: str | None, *, trust_env: bool
    ) -> None:
        _check_certificates(verify, cert)
        self._verify, self._cert, self._trust_env = verify, cert, trust_env
        self._proxy = None if proxy is None else _parsed_proxy(proxy)
        self.check_address: CheckAddress | None = None
        self._context: ssl.SSLContext | None = None
        self._known: dict[tuple[str, str, int | None], Origin] = {}
        self._located: dict[str, tuple[Origin, bytes]] = {}

    def located(self, address: str) -> tuple[Origin, bytes] | None:
        """Return the result of :meth:`locate` for a URL, if it is remembered."""
        return self._located.get(address)

    async def locate(self, address: str, lock: anyio.Lock) -> tuple[Origin, bytes]:
        """Return the origin of a URL (the same object while remembered), and the request target.

        Raises:
            ConfigurationError: Certificates cannot be loaded, or the proxy of the environment is
                not a plain HTTP one.
            ConnectFailed, ValueError: It is not a URL of http or https.

        """
        ascii_ = address if address.isascii() else await in_thread(partial(_in_ascii, address))
        key, target = _parsed(ascii_)
        if len(self._located) >= MAX_ADDRESSES:
            self._located.clear()
            self._known.clear()
        if key not in self._known:
            async with lock:
                if key not in self._known:
                    self._known[key] = await in_thread(partial(self._make, *key))
        self._located[address] = found = self._known[key], target
        return found

    def _make(self, scheme: str, host: str, port: int | None) -> Origin:
        if scheme not in _PORTS or not host:
            raise ConnectFailed("the address is not one of http or https with a host")
        shown = f"[{host}]" if ":" in host else host
        address = (host, _PORTS[scheme] if port is None else port)
        name = f"{shown}:{address[1]}"
        headers = (
            (b"Host", (shown if port is None else name).encode("ascii")),
            (b"User-Agent", _user_agent()),
        )
        if scheme == "https" and self._context is None:
            self._context = self._make_context()
        proxy = self._proxy_to(scheme, host, name)
        if scheme == "http":
            return Origin(address, name, headers, None, proxy, self.check_address)
        from meeting_async._http.tls import Resumption  # noqa: PLC0415 - as above

        context, check = self._context, self.check_address
        return Origin(address, name, headers, context, proxy, check, Resumption())

    def _proxy_to(self, scheme: str, host: str, name: str) -> Proxy | None:
        if self._proxy is not None or not self._trust_env or is_loopback(host):
            return self._proxy
        found = _proxy_of_environment(scheme, name.replace(".:", ":"))
        return found and _parsed_proxy(*found)

    def _make_context(self) -> ssl.SSLContext:
        import ssl  # noqa: PLC0415 - as above

        if isinstance(self._verify, ssl.SSLContext):
            return self._verify
        if isinstance(self._verify, bool):
            with _loading(_AUTHORITIES, os.environ.get(_AUTHORITIES)):
                import httpx  # noqa: PLC0415 - takes 0.2 s, and only its authorities are needed

                context = httpx.create_ssl_context(self._verify, trust_env=self._trust_env)
        else:
            with _loading("verify", self._verify):
                context = ssl.create_default_context(cafile=os.fspath(self._verify))
        if self._cert is not None:
            with _loading("cert", *_chain(self._cert)[:2]):
                context.load_cert_chain(*_chain(self._cert))
            context.post_handshake_auth = True
        return context


def _proxy_of_environment(scheme: str, name: str) -> tuple[str, str] | None:
    """Return the URL of the proxy to a server, and the variable that names it."""
    import urllib.request  # noqa: PLC0415 - takes time, and few need it

    proxies = urllib.request.getproxies()
    kind = scheme if proxies.get(scheme) else "all"
    address = proxies.get(kind)
    bypasses = urllib.request.proxy_bypass(name) or _is_exempt(name, proxies.get("no", ""))
    if not address or bypasses:
        return None
    return Url(address if "://" in address else f"http://{address}"), f"{kind.upper()}_PROXY"


def _parsed(address: str) -> tuple[tuple[str, str, int | None], Secret]:
    """Return scheme, host and port of a URL, and the request target."""
    url = urlsplit(address)
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    return (url.scheme, url.hostname or "", url.port), Secret(target.encode("ascii"))


def _is_exempt(name: str, addresses: str) -> bool:
    """Return whether ``NO_PROXY`` names an IP address, with or without its port, or its network.

    ``urllib.request`` compares only strings.
    """
    import ipaddress  # noqa: PLC0415 - as above

    host, _, port = name.rpartition(":")
    for entry in addresses.replace(" ", "").split(","):
        has_port = "]:" in entry or entry.count(":") == 1
        text, _, its_port = entry.rpartition(":") if has_port else (entry, "", port)
        with suppress(ValueError):  # one of them is a host name
            network = ipaddress.ip_network(text.strip("[]"), strict=False)
            if ipaddress.ip_address(host.strip("[]")) in network and its_port == port:
                return True
    return False


def _in_ascii(address: str) -> str:
    import httpx  # noqa: PLC0415 - as above

    return str(httpx.URL(address))


def _chain(cert: Certificate) -> tuple[str, str | None, str]:
    """Return certificate, key and password; with an empty password OpenSSL does not prompt."""
    if isinstance(cert, str):
        return cert, None, ""
    return cert[0], cert[1], cert[2] if len(cert) == 3 else ""


@contextmanager
def _loading(field: str, *paths: str | os.PathLike[str] | None) -> Iterator[None]:
    """Raise ``ConfigurationError`` instead of ``OSError`` for a file that cannot be used."""
    try:
        yield
    except OSError as error:
        from meeting_async._http.failures import is_exhaustion  # noqa: PLC0415 - it loads ssl

        if is_exhaustion(error):
            raise
        check_key_log(error)
        value = " and ".join(short_repr(os.fspath(path)) for path in paths if path)
        problem, fix = f"cannot be loaded ({error})", "give the paths of PEM files"
        raise ConfigurationError(field, value, problem, fix) from error


def _check_certificates(verify: object, cert: object) -> None:
    is_context = not isinstance(verify, bool | str | os.PathLike)
    if is_context and not hasattr(verify, "wrap_bio"):
        problem = "is neither a bool, nor the path of a file, nor an ssl.SSLContext"
        raise ConfigurationError("verify", short_repr(verify), problem, "give one of these")
    if cert is None:
        return
    if not isinstance(cert, str) and not (
        isinstance(cert, tuple)
        and len(cert) in {2, 3}
        and all(isinstance(part, str) for part in cert)
    ):
        problem = "is neither the path of a PEM file nor a tuple of two or three texts"
        fix = "give (certificate, key) or (certificate, key, password)"
        raise ConfigurationError("cert", f"a {type(cert).__name__}", problem, fix)
    if is_context:
        problem = "cannot be added to your own SSLContext"
        fix = "call verify.load_cert_chain(...) yourself"
        raise ConfigurationError("cert", "a certificate beside an SSLContext", problem, fix)


def _parsed_proxy(address: object, field: str = "proxy") -> Proxy:
    parts = _split(address)
    if parts is None:
        value = short_repr(link_label(address) if isinstance(address, str) else type(address))
        fix = "give http://host:port; for others use HttpxTransport(httpx.AsyncClient(proxy=...))"
        raise ConfigurationError(field, value, "is not the URL of a plain HTTP proxy", fix)
    authorization = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        authorization = Secret(b"Basic " + base64.b64encode(pair))
    host, port = parts.hostname or "", parts.port or 80
    variable = "" if field == "proxy" else f" of {field}"
    label = f"{f'[{host}]' if ':' in host else host}:{port}{variable}"
    return Proxy((host, port), authorization, label)


def _split(address: object) -> SplitResult | None:
    if not isinstance(address, str):
        return None
    try:
        parts = urlsplit(address)
        is_plain = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_plain and parts.path in {"", "/"} and not parts.query else None


def _user_agent() -> bytes:
    import importlib.metadata  # noqa: PLC0415 - takes time, and is needed once

    try:
        return b"meeting-async/" + importlib.metadata.version("meeting-async").encode()
    except importlib.metadata.PackageNotFoundError:
        return b"meeting-async"
