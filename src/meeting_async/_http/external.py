"""Requests through the caller's client: httpx, its fork httpx2, or a compatible one."""

from __future__ import annotations

import math
from typing import Any, Protocol

import anyio

from meeting_async import errors
from meeting_async._http.failures import translated
from meeting_async._http.request_body import RequestBodyStream
from meeting_async._models import Reply, Request
from meeting_async._protocol.requests import host_and_port


class ExternalClient(Protocol):
    """The part of ``httpx.AsyncClient`` that is used."""

    def build_request(self, *args: Any, **kwargs: Any) -> Any:
        """Make a request."""
        ...

    async def send(self, *args: Any, **kwargs: Any) -> Any:
        """Send a request and return the head of its reply."""
        ...

    async def aclose(self) -> None:
        """Close the client; never called."""
        ...


async def send_external(client: ExternalClient, request: Request) -> Reply:
    """Send a request through a client, which is used unchanged and never closed."""
    limit, host = anyio.CancelScope(), _host(request.url)
    body = RequestBodyStream(request.body, on_end=lambda: _begin_reply(limit, request))
    failure: Exception
    try:
        with limit:
            return await _exchange(client, request, body, limit)
        failure = translated(_limit_error(limit, request), host, connecting=False)
    except Exception as error:  # noqa: BLE001 - what is not in the table is raised as it is
        failure = translated(error, host, connecting=False if body.begun else None)
    raise failure  # outside, as some errors quote headers and must not be its context


async def _exchange(
    client: ExternalClient, request: Request, body: RequestBodyStream, limit: anyio.CancelScope
) -> Reply:
    response = await client.send(
        client.build_request(
            request.method,
            request.url,
            headers=list(request.headers),
            content=body,
            extensions={"timeout": _timeouts(request)},
        ),
        stream=True,
        follow_redirects=False,
    )
    if limit.deadline == math.inf:  # the reply came before the end of the body
        _begin_reply(limit, request)
    try:
        content = await _content(response, request.max_reply_bytes, limit)
    finally:
        with anyio.CancelScope(shield=True):
            await response.aclose()
    if limit.cancel_called:
        raise _limit_error(limit, request)
    return Reply(response.status_code, tuple(response.headers.raw), content)


def _timeouts(request: Request) -> dict[str, float]:
    return {
        "connect": request.connect_timeout,
        "pool": request.connect_timeout,
        "write": request.stall_timeout,
        "read": request.reply_timeout,
    }


async def _content(response: Any, most: int, limit: anyio.CancelScope) -> bytes:
    """Read a reply without decoding, so that a small one cannot become a large one."""
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if (
            len(content) > most
        ):  # not by leaving the loop, which leaves generators to the event loop
            content.clear()
            limit.cancel()
    return bytes(content)


def _begin_reply(limit: anyio.CancelScope, request: Request) -> None:
    limit.deadline = anyio.current_time() + request.reply_timeout


def _limit_error(limit: anyio.CancelScope, request: Request) -> errors.TransportError:
    if anyio.current_time() < limit.deadline:
        return errors.ConnectionLost(f"the reply is longer than {request.max_reply_bytes:,} bytes")
    return errors.TransferTimeout(f"no complete reply within {request.reply_timeout:g} s")


def _host(url: str) -> str:
    try:
        return host_and_port(url)
    except (ValueError, KeyError):  # the client says what is wrong with it
        return ""
