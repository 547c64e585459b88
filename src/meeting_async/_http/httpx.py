"""Requests through the caller's client: httpx, its fork httpx2, or a compatible one."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Never, Protocol

import anyio
import anyio.lowlevel

from meeting_async import errors
from meeting_async._http.failures import translated
from meeting_async._http.request_body import RequestBodyStream
from meeting_async._log import logger
from meeting_async._models import Reply, Request
from meeting_async._protocol.requests import host_and_port
from meeting_async._text import nearest
from meeting_async.errors import ConfigurationError

CLOSING_SECONDS = 2.0
"""Longest time in seconds for closing a response."""


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


class HttpxTransport:
    """A transport through your own client, with its hooks, mocks and proxies.

    An answer that arrives while the body is still being sent may be lost with it: then the outcome
    of an upload is unknown. The client's event hooks and debug logs get the signed headers.

    Args:
        client: Your ``httpx.AsyncClient``, or that of its fork httpx2. It is used unchanged and
            never closed.

    Raises:
        ConfigurationError: It is no such client. ``verify``, ``cert``, ``proxy``, ``trust_env`` and
            ``max_connections`` are settings of :class:`HttpTransport`.

    """

    def __init__(self, client: ExternalClient | None = None, **moved: Never) -> None:
        for name in moved:
            known = nearest(name, _SETTINGS)
            fix = f"use HttpTransport({known}=...)" if known else "give the client alone"
            problem = "is not a setting of HttpxTransport"
            raise ConfigurationError(name, "a value", problem, fix)
        if not all(callable(getattr(client, name, None)) for name in _METHODS):
            value = "nothing" if client is None else f"a {type(client).__name__}"
            fix = "give one, or use HttpTransport(), the default"
            raise ConfigurationError("client", value, "is not an httpx.AsyncClient", fix)
        self._client: Any = client
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with a client of yours>"

    async def send(self, request: Request, /) -> Reply:
        """Send ``request``; see :class:`~meeting_async.transports.Transport`."""
        if self._is_closed:
            raise RuntimeError("this transport is closed: make a new one")
        exchange = _Exchange(self._client, request)
        try:
            return await exchange.run()
        except Exception as error:  # noqa: BLE001 - what is not in the table is raised as it is
            connecting = False if exchange.body.begun else None
            failure = translated(error, _host(request.url), connecting=connecting)
        raise failure  # outside, as some errors quote headers and must not be its context

    async def aclose(self) -> None:
        """Send nothing more. The client stays open."""
        self._is_closed = True


_SETTINGS = ("verify", "cert", "proxy", "trust_env", "max_connections")
_METHODS = ("build_request", "send", "aclose")


class _Exchange:
    """One request and its reply."""

    def __init__(self, client: ExternalClient, request: Request) -> None:
        self._client, self._request = client, request
        self._limit = anyio.CancelScope()
        """Ends the reply when it takes too long, or is too long."""
        self._response: Any = None
        self.body = RequestBodyStream(request.body, on_end=self._begin_reply)

    async def run(self) -> Reply:
        """Return the reply; the response of the client is closed then."""
        reply: Reply | None = None
        try:
            with self._limit:
                reply = await self._reply()
        finally:
            if self._response is not None:
                await _close(self._response, is_read=reply is not None)
        if reply is None:
            raise self._limit_error()
        return reply

    async def _reply(self) -> Reply:
        request = self._request
        self._response = response = await self._client.send(
            self._client.build_request(
                request.method,
                request.url,
                headers=list(request.headers),
                content=self.body,
                extensions={"timeout": _timeouts(request)},
            ),
            stream=True,
            follow_redirects=False,
        )
        is_early = self._limit.deadline == math.inf  # it came before the end of the body
        if is_early:
            self._begin_reply()
        content = await self._content(response)
        headers = tuple(response.headers.raw)
        return Reply(response.status_code, headers, content, early=is_early)

    async def _content(self, response: Any) -> bytes:
        """Read a reply without decoding, so that a small one cannot become a large one."""
        if getattr(response, "is_stream_consumed", False):  # of a mock, which has its content
            return bytes(response.content)
        content = bytearray()
        async for chunk in response.stream:
            content += chunk
            if len(content) > self._request.max_reply_bytes:
                # Not by leaving the loop, which leaves generators to the event loop.
                content.clear()
                self._limit.cancel()
        await anyio.lowlevel.checkpoint_if_cancelled()
        return bytes(content)

    def _begin_reply(self) -> None:
        self._limit.deadline = anyio.current_time() + self._request.reply_timeout

    def _limit_error(self) -> errors.TransportError:
        if anyio.current_time() < self._limit.deadline:
            most = self._request.max_reply_bytes
            return errors.ReplyTooLarge(
                f"the reply is longer than {most:,} bytes (max_reply_bytes)"
            )
        seconds = self._request.reply_timeout
        return errors.TransferTimeout(f"no complete reply within {seconds:g} s")


async def _close(response: Any, *, is_read: bool) -> None:
    """Close a response. Once it is read, nothing that happens here changes what it said."""
    try:
        with anyio.move_on_after(CLOSING_SECONDS, shield=True):
            await response.aclose()
    except Exception:
        if not is_read:
            raise
        logger.warning("closing a response raised", exc_info=True, extra={"action": "Closing"})
    except asyncio.CancelledError:  # asyncio's own cancellation breaks through a shield
        task = asyncio.current_task()
        if not is_read or task is None:
            raise
        task.uncancel()
        task.cancel()  # again, at the next await, when the reply has been taken


def _timeouts(request: Request) -> dict[str, float]:
    return {
        "connect": request.connect_timeout,
        "pool": request.connect_timeout,
        "write": request.stall_timeout,
        "read": request.reply_timeout,
    }


def _host(url: str) -> str:
    try:
        return host_and_port(url)
    except (ValueError, KeyError):  # the client says what is wrong with it
        return ""
