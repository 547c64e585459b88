"""Requests through an HTTP client of the caller's: httpx, or whatever has the same shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from meeting_async._exchange import BodyStream, Exchange, Table
from meeting_async._records import Reply, Request


async def send_borrowed(
    client: Any, request: Request, table: Table, stream: Callable[[Exchange], PacedStream]
) -> Reply:
    """Send through an ``AsyncClient``, which is used as it is and never closed."""

    async def converse(exchange: Exchange) -> Reply:
        outgoing = _outgoing(client, request)
        outgoing.stream = stream(exchange)
        incoming = await client.send(outgoing, stream=True, follow_redirects=False)
        try:
            content = await exchange.content(incoming.aiter_raw())
        finally:
            with anyio.CancelScope(shield=True):
                await incoming.aclose()
        return Reply(incoming.status_code, tuple(incoming.headers.raw), content)

    return await Exchange(request, table).run(converse)


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


class PacedStream(BodyStream):
    """A body in pieces that suit the line.

    A client's limit for a write holds for a whole piece. So that a slow line is not taken for a
    stalled one, pieces start small, grow while they pass quickly, and shrink when they do not.
    """

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._rest = memoryview(b"")
        self._piece = _SMALLEST_PIECE
        self._handed_at = 0.0
        self._quickly = exchange.request.timeouts.send_stall / 20

    async def __anext__(self) -> bytes:
        self._adapt()
        if not self._rest:
            chunk = await self.next_chunk()
            if len(chunk) <= self._piece:
                self._handed_at = anyio.current_time()
                return chunk
            self._rest = memoryview(chunk)
        piece, self._rest = self._rest[: self._piece], self._rest[self._piece :]
        self._handed_at = anyio.current_time()
        return bytes(piece)

    def _adapt(self) -> None:
        if not self._handed_at:
            return
        quick = anyio.current_time() - self._handed_at < self._quickly
        larger = self._piece * 2 if quick else self._piece // 2
        self._piece = min(max(larger, _SMALLEST_PIECE), _LARGEST_PIECE)


_SMALLEST_PIECE = 8 * 1024
_LARGEST_PIECE = 1024 * 1024
"""Bytes per write; above the size of a chunk, so that on a fast line chunks go out as they are."""
