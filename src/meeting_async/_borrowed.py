"""Requests through an HTTP client of the caller's: httpx, or whatever has the same shape."""

from __future__ import annotations

import functools
from typing import Any

import anyio

from meeting_async._exchange import BodyStream, Exchange
from meeting_async._records import Reply, Request
from meeting_async._stack import Stack


async def send_borrowed(stack: Stack, client: Any, request: Request) -> Reply:
    """Send through an ``AsyncClient``, which is used as it is and never closed."""
    converse = functools.partial(_converse, stack, client)
    return await Exchange(request, stack.failures).run(converse)


async def _converse(stack: Stack, client: Any, exchange: Exchange) -> Reply:
    outgoing = _outgoing(client, exchange.request)
    outgoing.stream = _stream_class(stack)(exchange)
    incoming = await client.send(outgoing, stream=True, follow_redirects=False)
    try:
        content = await exchange.content(incoming.aiter_raw())
    finally:
        with anyio.CancelScope(shield=True):
            await incoming.aclose()
    return Reply(incoming.status_code, tuple(incoming.headers.raw), content)


def _outgoing(client: Any, request: Request) -> Any:
    """Make the request in a frame of its own, which is gone when anything can fail."""
    limits = request.timeouts
    timeout = {
        "connect": limits.connect,
        "pool": limits.connect,
        "write": limits.send_stall,
        "read": request.reply_timeout,
    }
    return client.build_request(
        request.method,
        request.url,
        headers=list(request.headers),
        extensions={"timeout": timeout},
    )


@functools.cache
def _stream_class(stack: Stack) -> type[BodyStream]:
    """Make a class that the client takes for a stream of its own."""
    return type("_Stream", (BodyStream, stack.client.AsyncByteStream), {})
