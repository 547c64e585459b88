"""Other people's clients: used as they are."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import httpx
import pytest

from _peer import (
    RECORD,
    Peer,
    answering,
    reply,
)
from _transports import (
    JSON_BODY,
    ROOM,
    both_kinds,
    call,
    either,
)
from meeting_async import (
    HttpxTransport,
    Reply,
)

pytestmark = pytest.mark.anyio


async def test_a_borrowed_client_is_used_as_it_is() -> None:
    """With its headers and hooks, and it stays open."""
    seen = []

    async def hook(request: httpx.Request) -> None:
        seen.append(request.url.path)

    hooks = {"request": [hook]}
    with Peer(answering(reply())) as peer:
        async with httpx.AsyncClient(
            headers={"X-Mine": "1"}, event_hooks=hooks, trust_env=False
        ) as client:
            transport = HttpxTransport(client)
            for kind in ("json", "upload"):
                assert (await transport.send(either(kind, peer.url))).content == RECORD
            await transport.aclose()
            assert not client.is_closed
            assert (await client.get(peer.url)).status_code == 200
            assert "borrowed" in repr(transport)
    assert seen[:2] == ["/auth/room/call", "/auth/room/upload"]
    assert [received.values(b"X-Mine") for received in peer.requests[:2]] == [[b"1"], [b"1"]]
    assert peer.requests[1].values(b"Room-Id") == [ROOM]
    assert peer.requests[1].length == len(peer.requests[1].body)


async def test_a_borrowed_client_that_is_closed_is_the_callers_mistake() -> None:
    """Not a lost connection, which would be tried again."""
    client = httpx.AsyncClient()
    await client.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await HttpxTransport(client).send(call("http://127.0.0.1:9"))


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

    transport = httpx.ASGITransport(app=application)
    async with httpx.AsyncClient(transport=transport) as client:
        request = either(kind, "http://meet.invalid")
        answer = await HttpxTransport(client).send(request)
    assert answer == Reply(200, ((b"x-a", b"b"),), RECORD)
    expected = dict(request.headers)[b"Content-Length"]
    assert len(got) == int(expected)


async def test_a_borrowed_client_may_ask_twice() -> None:
    """An authentication of two steps sends a JSON body twice, as it would without us."""

    class Stepwise(httpx.Auth):
        def auth_flow(
            self, request: httpx.Request
        ) -> Generator[httpx.Request, httpx.Response, None]:
            response = yield request
            if response.status_code == 401:
                request.headers["Authorization"] = "Digest for-the-proxy"
                yield request

    with Peer(answering(reply(401), reply())) as peer:
        async with httpx.AsyncClient(auth=Stepwise(), trust_env=False) as client:
            answer = await HttpxTransport(client).send(call(peer.url))
    assert answer.status == 200
    assert [bytes(received.body) for received in peer.requests] == [JSON_BODY, JSON_BODY]


async def test_a_mistake_in_a_clients_transport_is_not_the_network() -> None:
    """What is no failure of the network comes through as it is."""

    class Wrong(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            raise ZeroDivisionError

    async with httpx.AsyncClient(transport=Wrong()) as client:
        with pytest.raises(ZeroDivisionError):
            await HttpxTransport(client).send(call("http://meet.invalid"))
