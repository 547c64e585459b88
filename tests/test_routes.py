"""The way to a server: certificates, proxies, and what the environment says of them."""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
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
)
from meeting_async.errors import (
    ConnectFailed,
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
    await never_connects(transport, "http://meet.invalid")
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
