"""The table of exceptions, row by row."""

from __future__ import annotations

import ssl

import anyio
import anyio.lowlevel
import httpx
import pytest

from _transports import (
    call,
    close_bodies,
    either,
)
from meeting_async import (
    HttpxTransport,
)
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    TransferTimeout,
    TransportError,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("raised", "ours"),
    [
        (httpx.ConnectError("x"), ConnectFailed),
        (httpx.ConnectTimeout("x"), ConnectFailed),
        (httpx.PoolTimeout("x"), ConnectFailed),
        (httpx.ProxyError("x"), ConnectFailed),
        (httpx.UnsupportedProtocol("x"), ConnectFailed),
        (httpx.WriteTimeout("x"), TransferTimeout),
        (httpx.ReadTimeout("x"), TransferTimeout),
        (httpx.WriteError("x"), ConnectionLost),
        (httpx.ReadError("x"), ConnectionLost),
        (httpx.CloseError("x"), ConnectionLost),
        (httpx.RemoteProtocolError("x"), ConnectionLost),
        (httpx.LocalProtocolError("x"), ConnectionLost),
        (httpx.DecodingError("x"), ConnectionLost),
        (httpx.TooManyRedirects("x"), ConnectionLost),
        (httpx.StreamClosed(), ConnectionLost),
        (ssl.SSLError("x"), ConnectionLost),
        (ConnectionResetError("x"), ConnectionLost),
        (anyio.BrokenResourceError(), ConnectionLost),
        (anyio.ClosedResourceError(), ConnectionLost),
        (anyio.EndOfStream(), ConnectionLost),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
async def test_what_a_clients_transport_raises_is_mapped(
    raised: Exception, ours: type[TransportError]
) -> None:
    """Each row of the table, for transports that cannot be made to fail that way for real."""

    class Raising(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            raise raised

    async with httpx.AsyncClient(transport=Raising()) as client:
        with pytest.raises(TransportError) as caught:
            await HttpxTransport(client).send(call("http://meet.invalid"))
    assert type(caught.value) is ours
    assert caught.value.reason
    if not isinstance(raised, httpx.LocalProtocolError):  # it may quote what must not be shown
        assert caught.value.__cause__ is raised


@pytest.mark.parametrize(
    "raised",
    [
        httpx.ConnectError("x"),
        httpx.ConnectTimeout("x"),
        httpx.PoolTimeout("x"),
        httpx.ProxyError("x"),
        httpx.UnsupportedProtocol("x"),
        httpx.InvalidURL("x"),
        UnicodeError("x"),
    ],
    ids=lambda raised: type(raised).__name__,
)
@pytest.mark.parametrize("taken", ["call", "upload", "part of an upload"])
async def test_what_was_taken_was_not_never_sent(raised: Exception, taken: str) -> None:
    """``ConnectFailed`` means that no byte was taken; it would all be sent a second time."""

    class Retrying(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            assert isinstance(request.stream, httpx.AsyncByteStream)
            async for _ in request.stream:
                if taken == "part of an upload":
                    break
            raise raised  # as a transport does that tries a second address, or a second time

    request = either("json" if taken == "call" else "upload", "http://meet.invalid")
    async with httpx.AsyncClient(transport=Retrying()) as client:
        with pytest.raises(TransportError) as caught:
            await HttpxTransport(client).send(request)
    assert not isinstance(caught.value, ConnectFailed)
    await close_bodies()
