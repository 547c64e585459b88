"""The way to a server: certificates, proxies, and what the environment says of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from _peer import (
    Connection,
    Peer,
    Script,
    answering,
    deaf,
    descriptors,
    reply,
    shown_elsewhere,
    silent,
)
from _transports import (
    SECRET,
    SIGNATURE,
    both_kinds,
    call,
    cancelled,
    closed_port,
    either,
    finish,
    never_connects,
    until,
)
from meeting_async import (
    HttpxTransport,
    _routes,
)
from meeting_async._connections import Route
from meeting_async._routes import Routes, RouteSettings
from meeting_async._stack import HTTPX
from meeting_async.errors import (
    ConfigurationError,
    ConnectFailed,
    TransportError,
)

pytestmark = pytest.mark.anyio


@both_kinds
async def test_the_environment_is_not_looked_at(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither proxies nor .netrc of the environment change a request."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password it\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with Peer(answering(reply())) as peer, Peer(answering(reply(502))) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        transport = HttpxTransport()
        assert (await transport.send(either(kind, peer.url))).status == 200
        await transport.aclose()
    assert (proxy.connected, peer.connected) == (0, 1)
    assert peer.requests[0].values(b"Authorization") == []


async def test_a_certificate_that_nobody_signed(
    transport: HttpxTransport, tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    """Refused before a byte of the request; the reason names the certificate."""
    with Peer(answering(reply()), tls=tls[0]) as peer:
        error = await never_connects(transport, peer.url, connect=5)
    assert "certificate" in error.reason.lower()
    assert peer.requests == []


async def test_a_certificate_of_another_host(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """The name must match."""
    transport = HttpxTransport(verify=tls[1])
    with Peer(answering(reply()), tls=tls[0]) as peer:
        error = await never_connects(transport, f"https://localhost:{peer.port}", connect=5)
        assert (await transport.send(call(peer.url))).status == 200
        await transport.aclose()
    assert "certificate" in error.reason.lower()


async def test_no_certificate_is_checked_when_told_so(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """``verify=False`` is for laboratories."""
    transport = HttpxTransport(verify=False)
    with Peer(answering(reply()), tls=tls[0]) as peer:
        assert (await transport.send(call(peer.url))).status == 200
        await transport.aclose()


async def test_a_proxy_is_used(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """The one that is given; in clear it gets the whole address."""
    with Peer(answering(reply())) as proxy:
        transport = HttpxTransport(proxy=proxy.url, verify=tls[1])
        for kind in ("json", "upload"):
            answer = await transport.send(either(kind, "http://meet.invalid"))
            assert answer.status == 200
        await transport.aclose()
    assert proxy.requests[0].head.startswith(b"POST http://meet.invalid/auth/room/call HTTP/1.1")
    assert proxy.requests[1].head.startswith(b"POST http://meet.invalid/auth/room/upload HTTP/1.1")


@both_kinds
async def test_a_proxy_that_refuses_in_clear(
    kind: str, tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    """In clear its 407 is a reply like any other."""
    with Peer(answering(reply(407, b""))) as proxy:
        transport = HttpxTransport(proxy=proxy.url, verify=tls[1])
        assert (await transport.send(either(kind, "http://meet.invalid"))).status == 407
        await transport.aclose()


def refusing_tunnel(connection: Connection) -> None:
    """Refuse to connect."""
    answering(reply(407, b"", [b'Proxy-Authenticate: Basic realm="x"']))(connection)


def breaking_tunnel(connection: Connection) -> None:
    """Break while asked to connect."""
    connection.read_head()
    connection.reset()


def broken_tunnel(connection: Connection) -> None:
    """Connect and break in the handshake."""
    connection.read_head()
    connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
    connection.sock.recv(1)
    connection.reset()


def babbling_tunnel(connection: Connection) -> None:
    """Answer what is no HTTP."""
    connection.read_head()
    connection.send(b"SOCKS?\r\n\r\n")


TUNNELS = [refusing_tunnel, breaking_tunnel, broken_tunnel, babbling_tunnel]


@pytest.mark.parametrize("script", TUNNELS)
async def test_a_tunnel_that_is_not_made(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], script: Script
) -> None:
    """Whatever goes wrong before there is a connection to the server: nothing was sent."""
    with Peer(script) as proxy:
        transport = HttpxTransport(proxy=proxy.url, verify=tls[1])
        await never_connects(transport, "https://meet.invalid", connect=5)
        await transport.aclose()
    for received in proxy.requests:
        assert received.head.startswith(b"CONNECT meet.invalid:443 HTTP/1.1\r\n")
        assert SIGNATURE not in received.head


@pytest.mark.parametrize("script", [deaf, silent])
async def test_a_proxy_that_is_silent(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], script: Script
) -> None:
    """Making a tunnel is connecting: limited by the connect timeout, not by that for the reply."""
    with Peer(script) as proxy:
        transport = HttpxTransport(proxy=proxy.url, verify=tls[1])
        await never_connects(transport, "https://meet.invalid", connect=0.15)
        await transport.aclose()


def mute_tunnel(connection: Connection) -> None:
    """Connect, and pass nothing on."""
    connection.read_head()
    connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
    connection.drain()


@pytest.mark.parametrize("how", ["timeout", "cancellation"])
async def test_a_tunnel_that_leads_nowhere(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], how: str
) -> None:
    """Given up in the handshake behind the proxy, by us or by the caller: nothing stays open."""
    with Peer(mute_tunnel) as proxy:
        transport = HttpxTransport(proxy=proxy.url, verify=tls[1])
        await never_connects(transport, "https://meet.invalid", connect=0.1)
        before = descriptors(proxy)
        for _ in range(5):
            if how == "timeout":
                await never_connects(transport, "https://meet.invalid", connect=0.05)
            else:
                await cancelled(transport, call("https://meet.invalid"), 0.05)
        try:
            await until(lambda: descriptors(proxy) == before and proxy.idle(), 1)
        finally:
            await finish(transport)


async def test_a_proxy_behind_tls(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """The way to the proxy is checked with the caller's certificates, too."""
    with Peer(answering(reply()), tls=tls[0]) as proxy:
        transport = HttpxTransport(proxy=proxy.url, verify=tls[1])
        try:
            assert (await transport.send(call("http://meet.invalid"))).status == 200
        finally:
            await finish(transport)


async def test_a_proxy_that_is_not_there(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """Refused, in clear and encrypted."""
    transport = HttpxTransport(proxy=f"http://127.0.0.1:{closed_port()}", verify=tls[1])
    await never_connects(transport, "http://meet.invalid", connect=5)
    await never_connects(transport, "https://meet.invalid")
    await transport.aclose()


async def test_a_password_for_a_proxy_is_hidden(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], caplog: pytest.LogCaptureFixture
) -> None:
    """It goes to the proxy and nowhere else."""
    caplog.set_level(logging.DEBUG)
    with Peer(refusing_tunnel) as proxy:
        transport = HttpxTransport(
            proxy=f"http://me:{SECRET}@127.0.0.1:{proxy.port}", verify=tls[1]
        )
        error = await never_connects(transport, "https://meet.invalid", connect=5)
        seen = repr(transport) + caplog.text + repr(error) + str(error) + shown_elsewhere(error)
        await transport.aclose()
    assert proxy.requests[0].values(b"Proxy-Authorization")
    assert SECRET not in seen


async def test_certificates_are_loaded_once_in_a_thread(
    transport: HttpxTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many requests start at once; and not at all for plain HTTP."""
    threads = []
    load = ssl.create_default_context

    def noting(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        threads.append(threading.get_ident())
        return load(*args, **kwargs)

    monkeypatch.setattr(ssl, "create_default_context", noting)

    async def fail(kind: str) -> None:
        with pytest.raises(ConnectFailed):
            await transport.send(either(kind, f"https://127.0.0.1:{closed_port()}"))

    with Peer(answering(reply())) as peer:
        async with anyio.create_task_group() as group:
            for kind in ("json", "upload") * 5:
                group.start_soon(transport.send, either(kind, peer.url))
        assert threads == []
        async with anyio.create_task_group() as group:
            for kind in ("json", "upload") * 5:
                group.start_soon(fail, kind)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


# Settings

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


@pytest.fixture
def files(tls: Contexts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the file that holds the server's certificate, and its key before it."""
    path = tmp_path_factory.getbasetemp() / "tls0" / "peer.pem"
    assert path.exists()
    return path


@pytest.fixture
def demanding(files: Path) -> ssl.SSLContext:
    """Provide a server's side that demands a certificate of its clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files)
    context.load_verify_locations(files)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def split(files: Path, directory: Path) -> tuple[str, str]:
    """Split a PEM file in certificate and key."""
    text = files.read_text()
    at = text.index("-----BEGIN CERTIFICATE")
    (directory / "cert.pem").write_text(text[at:])
    (directory / "key.pem").write_text(text[:at])
    return str(directory / "cert.pem"), str(directory / "key.pem")


@pytest.mark.parametrize("kind", [str, Path])
async def test_authorities_of_ones_own(tls: Contexts, files: Path, kind: type[Any]) -> None:
    """The path of a file, as text or as a path."""
    transport = HttpxTransport(verify=kind(files))
    with Peer(answering(reply()), tls=tls[0]) as peer:
        for _ in range(2):
            assert (await transport.send(call(peer.url))).status == 200
    await finish(transport)


@pytest.mark.parametrize("form", ["one file", "two files", "with a password"])
async def test_a_client_certificate(
    demanding: ssl.SSLContext, files: Path, tmp_path: Path, form: str
) -> None:
    """A server that demands one gets it."""
    two = split(files, tmp_path)
    cert: Any = {"one file": str(files), "two files": two}.get(form)
    if form == "with a password":
        locked = str(tmp_path / "locked.pem")
        openssl = ["openssl", "ec", "-in", two[1], "-out", locked, "-aes256", "-passout"]
        subprocess.run([*openssl, f"pass:{SECRET}"], check=True, capture_output=True)  # noqa: ASYNC221
        cert = (two[0], locked, SECRET)
    transport = HttpxTransport(verify=str(files), cert=cert)
    with Peer(answering(reply()), tls=demanding) as peer:
        assert (await transport.send(call(peer.url))).status == 200
    assert SECRET not in repr(transport) + repr(transport._routes._settings)
    await finish(transport)


async def test_a_server_that_demands_a_certificate_gets_none(
    demanding: ssl.SSLContext, files: Path
) -> None:
    """It breaks off, and there is no reply."""
    transport = HttpxTransport(verify=str(files))
    with Peer(answering(reply()), tls=demanding) as peer, pytest.raises(TransportError):
        await transport.send(call(peer.url))
    assert peer.requests == []
    await finish(transport)


def test_a_certificate_beside_a_context() -> None:
    """A context of the caller's is not changed behind their back."""
    with pytest.raises(ConfigurationError, match="load_cert_chain") as caught:
        HttpxTransport(verify=ssl.create_default_context(), cert="cert.pem")
    assert caught.value.field == "cert"


@pytest.mark.parametrize("field", ["verify", "cert", "SSL_CERT_FILE"])
@pytest.mark.parametrize("content", [None, b"no certificate"])
async def test_a_file_that_cannot_be_used(
    field: str, content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting is wrong, and no second attempt makes it right: no trouble of the network."""
    path = tmp_path / "wrong.pem"
    if content is not None:
        path.write_bytes(content)
    if field == "SSL_CERT_FILE":
        monkeypatch.setenv(field, str(path))
        transport = HttpxTransport(trust_env=True)
    else:
        transport = HttpxTransport(**{field: str(path)})  # type: ignore[arg-type]
    monkeypatch.setenv("NO_PROXY", "*")
    for kind in ("json", "upload"):
        with pytest.raises(ConfigurationError) as caught:
            await transport.send(either(kind, f"https://127.0.0.1:{closed_port()}"))
        assert caught.value.field == ("cert" if field == "cert" else "verify")
    await finish(transport)


@pytest.mark.parametrize("proxy", ["ftp://127.0.0.1", "127.0.0.1:3128", "http://[::1"])
def test_a_proxy_that_is_none(proxy: str) -> None:
    """Refused when it is set, not when it is used."""
    with pytest.raises((ValueError, httpx.InvalidURL)):
        HttpxTransport(proxy=proxy)


def test_socks_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install is said when it is set."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "socksio" else find(name)
    )
    with pytest.raises(ConfigurationError, match=r"meeting-async\[socks\]") as caught:
        HttpxTransport(proxy=f"socks5://me:{SECRET}@127.0.0.1")
    assert SECRET not in str(caught.value)
    HttpxTransport(proxy="http://127.0.0.1:3128")


async def test_a_route_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each scheme, host and port one, however many ask at the same time."""
    made: list[httpx.URL] = []
    make = Routes._make

    def noting(self: Routes, url: httpx.URL) -> Route:
        made.append(url)
        return make(self, url)

    monkeypatch.setattr(Routes, "_make", noting)
    routes = Routes(RouteSettings(HTTPX))
    found: list[Route] = []

    async def ask(url: str) -> None:
        found.append(await routes.to(httpx.URL(url)))

    async with anyio.create_task_group() as group:
        for path in "abc":
            group.start_soon(ask, f"http://meet.invalid/{path}")
    assert len(made) == 1
    assert found[0] is found[1] is found[2]
    for other in ("http://meet.invalid:81", "http://meet2.invalid", "http://meet.invalid:80/d"):
        await ask(other)
    assert len(made) == 3
    assert found[-1] is found[0]
    assert found[0].headers[0] == (b"Host", b"meet.invalid")
    assert found[0].context is None
    assert found[0].origin.port in {80, None}


def test_a_name_without_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the source that was never installed works, too."""

    def unknown(_name: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", unknown)
    assert _routes._user_agent() == b"meeting-async"


# SOCKS


class Socks:
    """A SOCKS5 server (RFC 1928, 1929) that answers in the place of any server."""

    def __init__(self, script: Script, *, user: bytes = b"", tls: ssl.SSLContext | None = None):
        self.targets: list[tuple[bytes, int]] = []
        self.users: list[tuple[bytes, bytes]] = []
        self.code = 0
        self.bound = b""
        self._script, self._user, self._tls = script, user, tls

    def __call__(self, connection: Connection) -> None:
        """Serve one connection."""
        sock = connection.sock
        _, count = sock.recv(2)
        method = 2 if self._user else 0
        offered = sock.recv(count)
        sock.sendall(bytes([5, method if method in offered else 255]))
        if method not in offered or (self._user and not self._check_user(sock)):
            return
        _, _, _, kind = sock.recv(4)
        host = sock.recv(sock.recv(1)[0] if kind == 3 else 4)
        self.targets.append((host, int.from_bytes(sock.recv(2), "big")))
        sock.sendall(bytes([5, self.code, 0]) + (self.bound or bytes([1] + [0] * 6)))
        if self._tls and not self.code:
            with self._tls.wrap_socket(sock, server_side=True) as sock:
                self._script(Connection(sock, connection.peer))
        elif not self.code:
            self._script(connection)

    def _check_user(self, sock: socket.socket) -> bool:
        _, length = sock.recv(2)
        user = sock.recv(length)
        self.users.append((user, sock.recv(sock.recv(1)[0])))
        sock.sendall(bytes([1, user != self._user]))
        return user == self._user


@both_kinds
@pytest.mark.parametrize("encrypted", [False, True], ids=["clear", "tls"])
@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
async def test_a_socks_proxy(tls: Contexts, kind: str, encrypted: bool, scheme: str) -> None:
    """It looks up the name; the request is as without it."""
    socks = Socks(answering(reply()), tls=tls[0] if encrypted else None)
    url = "https://127.0.0.1" if encrypted else "http://meet.invalid"
    with Peer(socks) as proxy:
        transport = HttpxTransport(proxy=f"{scheme}://127.0.0.1:{proxy.port}", verify=tls[1])
        for _ in range(2):
            assert (await transport.send(either(kind, url))).status == 200
        await finish(transport)
    target = (socket.inet_aton("127.0.0.1"), 443) if encrypted else (b"meet.invalid", 80)
    assert set(socks.targets) == {target}
    assert proxy.requests[0].head.startswith(b"POST /auth/room/")


@pytest.mark.parametrize("user", ["me", "somebody"])
async def test_a_socks_proxy_with_a_password(tls: Contexts, user: str) -> None:
    """The right one is let in, another one is not; neither sees it in the error."""
    socks = Socks(answering(reply()), user=b"me")
    with Peer(socks) as proxy:
        address = f"socks5://{user}:{SECRET}@127.0.0.1:{proxy.port}"
        transport = HttpxTransport(proxy=address, verify=tls[1])
        if user == "me":
            assert (await transport.send(call("http://meet.invalid"))).status == 200
        else:
            error = await never_connects(transport, "http://meet.invalid", connect=5)
            assert SECRET not in str(error) + shown_elsewhere(error)
        await finish(transport)
    assert set(socks.users) == {(user.encode(), SECRET.encode())}


async def test_a_socks_proxy_that_wants_a_password(tls: Contexts) -> None:
    """None was given: no connection."""
    with Peer(Socks(answering(reply()), user=b"me")) as proxy:
        transport = HttpxTransport(proxy=f"socks5://127.0.0.1:{proxy.port}", verify=tls[1])
        await never_connects(transport, "http://meet.invalid", connect=5)
        await finish(transport)


@pytest.mark.parametrize("code", [1, 5])
async def test_a_socks_proxy_that_cannot_connect(tls: Contexts, code: int) -> None:
    """What it says is in the reason."""
    socks = Socks(answering(reply()))
    socks.code = code
    with Peer(socks) as proxy:
        transport = HttpxTransport(proxy=f"socks5://127.0.0.1:{proxy.port}", verify=tls[1])
        error = await never_connects(transport, "http://meet.invalid", connect=5)
        await finish(transport)
    assert ("refused" in error.reason) is (code == 5)


@pytest.mark.parametrize("script", [silent, deaf])
@pytest.mark.parametrize("url", ["http://meet.invalid", "https://meet.invalid"])
async def test_a_socks_proxy_that_says_nothing(tls: Contexts, script: Script, url: str) -> None:
    """Negotiating with it is connecting."""
    with Peer(script) as proxy:
        transport = HttpxTransport(proxy=f"socks5://127.0.0.1:{proxy.port}", verify=tls[1])
        await never_connects(transport, url)
        await finish(transport)


async def test_a_socks_proxy_puts_no_words_in_the_servers_mouth(tls: Contexts) -> None:
    """What it sends in clear behind its own reply is not read as the server's."""
    socks = Socks(answering(reply()), tls=tls[0])
    forged = reply(content=b'{"status":true,"room":"forged"}')
    address = b"\3".ljust(4096 - 3, b"x")  # a name that fills the 4 KiB that are read at once
    socks.bound = address + forged
    with Peer(socks) as proxy:
        transport = HttpxTransport(proxy=f"socks5://127.0.0.1:{proxy.port}", verify=tls[1])
        error = await never_connects(transport, "https://127.0.0.1", connect=5)
        await finish(transport)
    assert "before the handshake" in error.reason
    assert proxy.requests == []


# The environment


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Begin with an environment that names nothing."""
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_proxy".upper(), raising=False)
    return monkeypatch


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY"])
async def test_a_proxy_of_the_environment(variable: str, environment: pytest.MonkeyPatch) -> None:
    """Used where it is trusted, but not for what ``NO_PROXY`` excludes."""
    with Peer(answering(reply())) as peer, Peer(answering(reply(502))) as proxy:
        environment.setenv(variable, proxy.url)
        transport = HttpxTransport(trust_env=True)
        assert (await transport.send(call(peer.url))).status == 502
        environment.setenv("NO_PROXY", "127.0.0.0/8")
        assert (await transport.send(call(peer.url))).status == 502  # settled at the first time
        await finish(transport)
        transport = HttpxTransport(trust_env=True)
        assert (await transport.send(call(peer.url))).status == 200
        await finish(transport)


async def test_a_tunnel_of_the_environment(environment: pytest.MonkeyPatch, tls: Contexts) -> None:
    """``HTTPS_PROXY`` is for encrypted servers alone; the port counts in ``NO_PROXY``."""
    with Peer(refusing_tunnel) as proxy, Peer(answering(reply())) as peer:
        environment.setenv("HTTPS_PROXY", f"127.0.0.1:{proxy.port}")
        environment.setenv("NO_PROXY", "meet.invalid:80")
        transport = HttpxTransport(trust_env=True, verify=tls[1])
        await never_connects(transport, "https://meet.invalid", connect=5)
        assert (await transport.send(call(peer.url))).status == 200
        await finish(transport)
    assert proxy.requests[0].head.startswith(b"CONNECT meet.invalid:443 ")


async def test_a_proxy_that_is_given_comes_first(environment: pytest.MonkeyPatch) -> None:
    """And nothing is excluded from it."""
    with Peer(answering(reply())) as given, Peer(answering(reply(502))) as other:
        environment.setenv("HTTP_PROXY", other.url)
        environment.setenv("NO_PROXY", "*")
        transport = HttpxTransport(trust_env=True, proxy=given.url)
        assert (await transport.send(call("http://meet.invalid"))).status == 200
        await finish(transport)
    assert other.connected == 0


@pytest.mark.parametrize("trusted", [True, False])
async def test_authorities_of_the_environment(
    tls: Contexts, files: Path, environment: pytest.MonkeyPatch, trusted: bool
) -> None:
    """``SSL_CERT_FILE`` counts where the environment is trusted, and only there."""
    environment.setenv("SSL_CERT_FILE", str(files))
    transport = HttpxTransport(trust_env=trusted)
    with Peer(answering(reply()), tls=tls[0]) as peer:
        if trusted:
            assert (await transport.send(call(peer.url))).status == 200
        else:
            error = await never_connects(transport, peer.url, connect=5)
            assert "certificate" in error.reason.lower()
    await finish(transport)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("answer", [b"", b"\x05", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x04\x00"])
async def test_a_socks_proxy_that_speaks_nonsense(
    tls: Contexts, scheme: str, answer: bytes
) -> None:
    """Nothing was sent, whatever comes in place of an answer."""

    def nonsense(connection: Connection) -> None:
        connection.sock.recv(100)
        connection.send(answer)

    with Peer(nonsense) as proxy:
        transport = HttpxTransport(proxy=f"socks5://127.0.0.1:{proxy.port}", verify=tls[1])
        await never_connects(transport, f"{scheme}://meet.invalid", connect=2)
        await finish(transport)
