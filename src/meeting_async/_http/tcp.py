"""From an origin to a connected non-blocking socket: lookup, TCP, tunnel, TLS.

It works on every event loop of anyio. A failure or a cancellation leaves no socket open.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio

from meeting_async._http.failures import is_exhaustion, mark_authorities
from meeting_async._http.http1 import LONG_HEAD, ReplyParser, request_head
from meeting_async._http.origins import CheckAddress, Origin, Proxy
from meeting_async._http.tls import Tls
from meeting_async._http.waiting import wait_ready
from meeting_async._models import Secret
from meeting_async._system import NO_NAME, SOCKET_OPTIONS, socket_error
from meeting_async._threads import in_thread
from meeting_async.errors import ConnectFailed

Address = tuple[int, int, int, str, Any]
"""One row of ``getaddrinfo``: family, type, protocol, canonical name, socket address."""

NEXT_ADDRESS_SECONDS = 0.25
"""Seconds before the next address is tried, too (RFC 8305 section 5)."""

LOCAL_LOOKUP_SECONDS = 2.0
"""Longest time in seconds for the lookup of a name that a proxy looks up, too."""

PASSWORD_WANTED = {401, 407}
"""Statuses with which proxies want a password; tinyproxy sends 401 for a wrong one."""


async def open_socket(
    origin: Origin, peer: Address | None = None
) -> tuple[socket.socket, Tls | None]:
    """Connect to an origin, through a tunnel if there is a proxy, with TLS if it is ``https``.

    ``peer``: connect only to this address; ignored with a proxy.

    Raises:
        OSError: The name is unknown, none of its addresses can be reached, or the handshake fails.
        ConnectFailed: The proxy cannot be reached, or refuses.
        ValueError: The host name is not valid for DNS or TLS.

    """
    if origin.proxy is None and peer is not None:
        sock = await _connect(peer)
    elif origin.proxy is None:
        sock = await connect_tcp(*origin.address, origin.check_address)
    else:
        if origin.check_address is not None:
            await _check_behind_proxy(*origin.address, origin.check_address)
        sock = await _connect_proxy(origin.proxy)
    try:
        if origin.proxy is not None:
            try:
                await _open_tunnel(sock, origin, origin.proxy)
            except ConnectFailed:
                raise
            except OSError as error:
                problem = f"breaks the connection ({error})"
                raise _failed(origin.proxy, problem, permanent=False) from error
        if origin.context is None:
            return sock, None
        origin.context.set_alpn_protocols(["http/1.1"])  # others may use it for HTTP/2
        tls = Tls(sock, origin.context, origin.address[0], origin.resumption)
        await tls.handshake()
    except ssl.SSLCertVerificationError as error:
        sock.close()
        mark_authorities(error, origin.context)
        raise
    except BaseException:
        sock.close()
        raise
    return sock, tls


async def _check_behind_proxy(host: str, port: int, check: CheckAddress) -> None:
    """Check a host's addresses; only the proxy may know its name."""
    try:
        with anyio.fail_after(LOCAL_LOOKUP_SECONDS):
            addresses = await look_up(host, port)
    except socket.gaierror as error:
        if error.errno not in NO_NAME:
            raise
        return
    for *_, where in addresses:
        check(where[0])


async def connect_tcp(host: str, port: int, check: CheckAddress | None = None) -> socket.socket:
    """Connect to the first of a host's addresses that answers (RFC 8305, "Happy Eyeballs").

    No address is connected to before all of them are checked.
    """
    # anyio.connect_tcp does this, too. But it cannot check addresses, cannot return to the address
    # that answered a check, looks up names in threads that it shares with the application, and
    # returns a stream that loses early answers (see `Stream`).
    addresses = await look_up(host, port)
    if check is not None:
        for *_, where in addresses:
            check(where[0])
    if len(addresses) == 1:
        return await _connect(addresses[0])
    addresses = _interleaved(addresses)
    connected: list[socket.socket] = []
    failures: list[Exception] = []
    try:
        await _race(addresses, connected, failures)
        if connected:
            return connected.pop()
    finally:
        for sock in connected:  # two may succeed at the same time
            sock.close()
    raise next(filter(is_exhaustion, failures), failures[0])


async def look_up(host: str, port: int) -> Sequence[Address]:
    """Return the addresses of a host.

    Raises:
        OSError: The name is unknown, or cannot be looked up.

    """
    if (family := _family_of(host)) is not None:
        return [(family, socket.SOCK_STREAM, 0, "", (host, port))]
    try:
        find = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        return await in_thread(find)
    except OSError:
        socket.socket().close()  # raises if no descriptor is left, which resolvers do not report
        raise


@functools.lru_cache
def _family_of(host: str) -> socket.AddressFamily | None:
    """Return the family of an IP address; ``None`` for a name."""
    try:
        literal = ipaddress.ip_address(host)
    except ValueError:
        return None
    return socket.AF_INET if literal.version == 4 else socket.AF_INET6


def _interleaved(addresses: Sequence[Address]) -> list[Address]:
    """Alternate between IPv4 and IPv6, so that a broken one costs little (RFC 8305 section 4)."""
    first = [address for address in addresses if address[0] == addresses[0][0]]
    other = [address for address in addresses if address[0] != addresses[0][0]]
    pairs = itertools.zip_longest(first, other)
    return [address for pair in pairs for address in pair if address is not None]


async def _race(
    addresses: Sequence[Address], connected: list[socket.socket], failures: list[Exception]
) -> None:
    """Try each address when the one before has failed or is slow; end with the first success."""

    async def attempt(address: Address, failed: anyio.Event) -> None:
        try:
            connected.append(await _connect(address))
        except Exception as error:  # noqa: BLE001 - raised later, not as an ExceptionGroup
            failures.append(error)
            failed.set()
        else:
            attempts.cancel_scope.cancel()

    async with anyio.create_task_group() as attempts:
        for address in addresses:
            failed = anyio.Event()
            attempts.start_soon(attempt, address, failed)
            with anyio.move_on_after(NEXT_ADDRESS_SECONDS):
                await failed.wait()


def address_of(sock: socket.socket) -> Address | None:
    """Return the peer address of a socket; ``None`` if it is no longer connected."""
    with suppress(OSError):
        return sock.family, sock.type, sock.proto, "", sock.getpeername()
    return None


async def _connect(address: Address) -> socket.socket:
    family, kind, protocol, _, where = address
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        for option in SOCKET_OPTIONS:
            sock.setsockopt(*option)
        try:
            sock.connect(where)
        except BlockingIOError:
            await wait_ready(sock, to_write=True)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise socket_error(code) from None
    except BaseException:
        sock.close()
        raise
    return sock


async def _connect_proxy(proxy: Proxy) -> socket.socket:
    try:
        return await connect_tcp(*proxy.address)
    except (OSError, ValueError) as error:
        if is_exhaustion(error):
            raise
        may_heal = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
        problem = f"cannot be reached ({error})"
        raise _failed(proxy, problem, "check its address", permanent=not may_heal) from error


async def _open_tunnel(sock: socket.socket, origin: Origin, proxy: Proxy) -> None:
    """Ask a proxy for a tunnel to the server with CONNECT (RFC 9110 section 9.3.6).

    The proxy's reply may repeat its password, so no frame of a traceback has it.
    """
    # HTTP clients do not give away the socket of a tunnel, which `Stream` needs.
    sock.send(_tunnel_request(origin))  # fits into an empty buffer
    reply, received, is_http = ReplyParser("HEAD"), 0, True  # the server's bytes follow
    while reply.status is None and is_http:
        await wait_ready(sock, to_write=False)
        count = _take_in(reply, sock.recv(4096))
        is_http = count > 0 and reply.problem is None
        received += count
    if reply.status is None:
        if reply.problem == LONG_HEAD:
            raise _failed(proxy, "sent a head of more than 64 KiB")
        permanent = received > 0  # else it only closed the connection
        raise _failed(proxy, "did not answer in HTTP", permanent=permanent)
    if not 200 <= reply.status < 300:
        raise _proxy_refused(origin, proxy, reply.status)
    if reply.has_surplus:  # must not be taken for what the server says
        raise _failed(proxy, "sent bytes before the TLS handshake")


def _take_in(reply: ReplyParser, data: bytes) -> int:
    """Parse received bytes, which no other frame has; return their number."""
    reply.feed(data)
    return len(data)


def _failed(
    proxy: Proxy, problem: str, fix: str = "is it an HTTP proxy?", *, permanent: bool = True
) -> ConnectFailed:
    """Return the error for a proxy, with its name and without its password."""
    made = ConnectFailed(f"the proxy {proxy.label} {problem}: {fix}")
    made.permanent = permanent
    return made


def _proxy_refused(origin: Origin, proxy: Proxy, status: int) -> ConnectFailed:
    """Return the error for a refusal; a 5xx is about the server behind the proxy."""
    if status >= 500:
        problem = f"cannot reach {origin.name} (HTTP {status})"
        fix = "is the server running, and are its host and port right?"
    elif status in PASSWORD_WANTED and proxy.authorization:
        problem, fix = f"refuses the user or the password (HTTP {status})", "fix them in its URL"
    elif status in PASSWORD_WANTED:
        problem = f"wants a user and a password (HTTP {status})"
        fix = "give them in its URL, http://user:password@host:port"
    else:
        problem, fix = f"refuses (HTTP {status})", f"let it connect to {origin.name}"
    return _failed(proxy, problem, fix, permanent=status < 500)


def _tunnel_request(origin: Origin) -> Secret:
    name = origin.name.encode("ascii")
    headers: list[tuple[bytes, bytes]] = [(b"Host", name)]
    if origin.proxy and origin.proxy.authorization:
        headers.append((b"Proxy-Authorization", origin.proxy.authorization))
    return request_head(b"CONNECT", name, tuple(headers))
