"""The transport on httpx2: what differs from the one on httpx, and what must not.

``test_transport.py`` runs what goes out and what comes back on both.
"""

from __future__ import annotations

import inspect
import ssl
from typing import Any

import attrs
import httpcore
import httpx
import httpx2
import pytest

from _peer import RECORD, Connection, Peer, Script, answering, early, reply
from _transports import (
    FAILURES,
    MIB,
    PATIENT,
    Supply,
    both_kinds,
    call,
    closed_port,
    either,
    finish,
    never_connects,
    upload,
)
from meeting_async import HttpxTransport, Reply, Transport
from meeting_async import httpx2 as _module
from meeting_async.errors import ConnectFailed, ConnectionLost, TransferTimeout, TransportError
from meeting_async.httpx2 import Httpx2Transport

pytestmark = pytest.mark.anyio


@pytest.fixture
def transport_class() -> type[HttpxTransport]:
    """Let ``transport`` be one on httpx2."""
    return Httpx2Transport


def test_it_has_the_same_settings() -> None:
    """Name by name, with the same defaults."""
    theirs, ours = (inspect.signature(kind) for kind in (HttpxTransport, Httpx2Transport))
    assert list(theirs.parameters) == list(ours.parameters)
    for name, parameter in theirs.parameters.items():
        assert parameter.default == ours.parameters[name].default
        assert parameter.kind == ours.parameters[name].kind
    assert isinstance(Httpx2Transport(), Transport)
    assert repr(Httpx2Transport()).startswith("<Httpx2Transport with 0 connections")
    assert _module.__all__ == ["Httpx2Transport"]


@pytest.mark.parametrize(
    "settings",
    [{"proxy": "ftp://x"}, {"verify": ssl.create_default_context(), "cert": "cert.pem"}],
    ids=["proxy", "cert"],
)
def test_every_setting_is_handed_on(settings: dict[str, Any]) -> None:
    """What the other one refuses, this one refuses."""
    with pytest.raises(ValueError):  # noqa: PT011 - ours and theirs have only this in common
        Httpx2Transport(**settings)


async def test_it_trusts_the_environment_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """And asks before a body when told."""

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.read_body()
        connection.send(reply())

    with Peer(script) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.delenv("REQUEST_METHOD", raising=False)
        monkeypatch.setenv("NO_PROXY", "other.invalid")
        transport = Httpx2Transport(trust_env=True, expect_continue=True)
        assert (await transport.send(upload("http://meet.invalid")[0])).status == 200
        await finish(transport)
    assert proxy.requests[0].values(b"Expect") == [b"100-continue"]


async def test_nothing_of_httpx_is_used(
    transport: HttpxTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program without httpx's connections can rely on the other library's."""

    def broken(*_args: object, **_kwargs: object) -> None:
        raise AssertionError

    for name in ("AsyncHTTPConnection", "AsyncConnectionPool", "Request", "URL", "Origin"):
        monkeypatch.setattr(httpcore, name, broken)
    for name in ("URL", "AsyncClient", "Proxy"):
        monkeypatch.setattr(httpx, name, broken)
    with Peer(answering(reply())) as peer:
        for kind in ("json", "upload"):
            assert (await transport.send(either(kind, peer.url))).status == 200


async def test_over_tls(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """With the caller's certificates, and not without."""
    with Peer(answering(reply()), tls=tls[0]) as peer:
        transport = Httpx2Transport(verify=tls[1])
        for kind in ("json", "upload", "json"):
            assert (await transport.send(either(kind, peer.url))).status == 200
        assert peer.connected == 2
        await finish(transport)
        transport = Httpx2Transport()
        error = await never_connects(transport, peer.url, connect=5)
        assert "certificate" in error.reason.lower()
        await finish(transport)


CERTAIN = {name: script for name, script in FAILURES.items() if name != "reset at once"}
"""A reset at once strikes sometimes while connecting, and sometimes a moment later."""


@pytest.mark.parametrize("script", CERTAIN.values(), ids=CERTAIN.keys())
async def test_failures_are_told_in_the_same_words(
    transport: HttpxTransport, script: Script
) -> None:
    """As the other transport tells them."""
    timeouts = attrs.evolve(PATIENT, reply=0.1)
    told: list[tuple[type[TransportError], str]] = []
    other = HttpxTransport()
    with Peer(script) as peer:
        for one in (transport, other):
            with pytest.raises(TransportError) as caught:
                await one.send(call(peer.url, timeouts))
            told.append((type(caught.value), caught.value.reason.partition(" (")[0]))
    await finish(other)
    assert told[0] == told[1]


async def test_an_early_answer(transport: HttpxTransport) -> None:
    """The streams are the same."""
    with Peer(early(reply(413), Connection.reset)) as peer:
        request, body = upload(peer.url, Supply(8 * MIB))
        assert (await transport.send(request)).status == 413
        assert not body.complete


async def test_never_connected(transport: HttpxTransport) -> None:
    """Refused, and no address at all."""
    await never_connects(transport, f"http://127.0.0.1:{closed_port()}")
    await never_connects(transport, "ftp://127.0.0.1")


# Other people's clients


@both_kinds
async def test_a_borrowed_client_is_used_as_it_is(kind: str) -> None:
    """With its headers, without following, and it stays open."""
    location = [b"Location: http://127.0.0.1:9/"]
    with Peer(answering(reply(), reply(307, b"", location))) as peer:
        async with httpx2.AsyncClient(
            headers={"X-Mine": "1"}, follow_redirects=True, trust_env=False
        ) as client:
            transport = Httpx2Transport(client)
            assert (await transport.send(either(kind, peer.url))).content == RECORD
            assert (await transport.send(either(kind, peer.url))).status == 307
            await transport.aclose()
            assert not client.is_closed
            assert "borrowed" in repr(transport)
    assert [received.values(b"X-Mine") for received in peer.requests] == [[b"1"]] * 2
    assert len(peer.requests[0].body) == peer.requests[0].length


@both_kinds
async def test_a_borrowed_client_in_process(kind: str) -> None:
    """An application can be called without any network."""
    got = bytearray()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            got.extend(message.get("body", b""))
            more = message.get("more_body", False)
        start = {"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"b")]}
        await send(start)
        await send({"type": "http.response.body", "body": RECORD})

    transport = httpx2.ASGITransport(app=application)
    async with httpx2.AsyncClient(transport=transport) as client:
        request = either(kind, "http://meet.invalid")
        answer = await Httpx2Transport(client).send(request)
    assert answer == Reply(200, ((b"x-a", b"b"),), RECORD)
    assert len(got) == int(dict(request.headers)[b"Content-Length"])


@pytest.mark.parametrize(
    ("raised", "ours"),
    [
        (httpx2.ConnectError("x"), ConnectFailed),
        (httpx2.PoolTimeout("x"), ConnectFailed),
        (httpx2.WriteTimeout("x"), TransferTimeout),
        (httpx2.ReadError("x"), ConnectionLost),
        (httpx2.RemoteProtocolError("x"), ConnectionLost),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
async def test_what_a_clients_transport_raises_is_mapped(
    raised: Exception, ours: type[TransportError]
) -> None:
    """By the same table."""

    class Raising(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            raise raised

    async with httpx2.AsyncClient(transport=Raising()) as client:
        with pytest.raises(TransportError) as caught:
            await Httpx2Transport(client).send(call("http://meet.invalid"))
    assert type(caught.value) is ours
    assert caught.value.__cause__ is raised
