"""Requests through the caller's own client: httpx, its fork httpx2, or a compatible one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel

from meeting_async import errors
from meeting_async._clock import CLEANUP_SECONDS
from meeting_async._http.failures import translated
from meeting_async._log import logger
from meeting_async._models import Body, Reply, Request
from meeting_async._protocol.requests import host_and_port
from meeting_async.errors import ConfigurationError

SENT_AGAIN = (
    "your httpx client sends each request a second time (auth=, for example DigestAuth?), and a "
    "document is sent only once"
)


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

    With it, an answer that arrives while the body is still being sent may be lost: then the outcome
    of the upload is unknown. The client's event hooks and debug logs see the signed headers.
    Credentials that it adds (``auth``, ``headers``, ``cookies``) are hidden where a reply repeats
    them. A hook that calls ``raise_for_status()`` should first ``await response.aread()``:
    otherwise the content of the reply is not known.

    Args:
        client: Your ``httpx.AsyncClient``, or that of its fork httpx2. It is used unchanged and
            never closed.

    Raises:
        ConfigurationError: ``client`` is not such a client.

    """

    def __init__(self, client: ExternalClient) -> None:
        if not all(callable(getattr(client, name, None)) for name in _METHODS):
            fix = "give one, or use HttpTransport(), the default"
            problem = "is not an httpx.AsyncClient"
            raise ConfigurationError("client", f"a {type(client).__name__}", problem, fix)
        self._client: Any = client
        self._is_closed = False
        self._speaks_http2 = False
        """Whether the last connection did. HTTP/2 matches replies to requests, and has no header
        ``Connection``."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with your own client>"

    async def send(self, request: Request, /) -> Reply:
        """Send ``request``; see :meth:`~meeting_async.transports.Transport.send`."""
        if self._is_closed:
            raise RuntimeError("this transport is closed: make a new one")
        exchange = _Exchange(self._client, request, may_reuse=self._speaks_http2)
        is_unsent = False
        try:
            reply = await exchange.run()
        except _BodyFailed as error:
            failure = error.reason
        except Exception as error:  # noqa: BLE001 - what is not in the table is raised as it is
            self._speaks_http2 = is_unsent = exchange.was_refused_by_http2(error)
            connecting = False if exchange.body.begun else None
            failure = translated(error, _host(request.url), connecting=connecting)
            if failure is not error:
                _drop_frames(error)
        else:
            self._speaks_http2 = exchange.speaks_http2
            return reply
        if is_unsent:
            return await self.send(request)
        raise failure  # outside the block: some errors quote headers and must not be its context

    async def aclose(self) -> None:
        """Send nothing more. The client stays open."""
        self._is_closed = True


def _name_for_tls(url: str) -> dict[str, str]:
    """Return the TLS option for a host that ends with a dot, which no certificate does."""
    host = urlsplit(url).hostname or ""
    return {"sni_hostname": host.rstrip(".")} if host.endswith(".") else {}


_METHODS = ("build_request", "send", "aclose")

_CLOSING = ((b"Connection", b"close"),)


class _Exchange:
    """One request and its reply."""

    def __init__(self, client: ExternalClient, request: Request, *, may_reuse: bool) -> None:
        self._client, self._request = client, request
        self.is_closing = not may_reuse
        """Whether to send ``Connection: close``: a second answer to this request must not be taken
        for the answer to the next one."""
        self._limit = anyio.CancelScope()
        """Ends a reply that takes too long, or is too long."""
        self._response: Any = None
        self._content = bytearray()
        self._is_early = self._is_complete = self._is_unread = False
        self.body = _RequestBody(request.body, self._begin_reply)

    async def run(self) -> Reply:
        """Return the reply, and close the client's response."""
        try:
            with self._limit:
                await self._receive_reply()
        finally:
            if self._response is not None:
                await _close(self._response, is_read=self._is_complete or self._is_cut)
        if not self._is_complete and not self._is_cut:
            raise self._limit_error()
        response: Any = self._response
        return Reply(
            response.status_code,
            tuple(response.headers.raw),
            bytes(self._content[: self._request.max_reply_bytes]),
            early=self._is_early,
            is_cut=self._is_cut,
            added=response.request.headers.raw,  # also of the client's auth=, headers=, cookies=
        )

    @property
    def speaks_http2(self) -> bool:
        """Whether the reply came by HTTP/2."""
        return getattr(self._response, "http_version", "") == "HTTP/2"

    def was_refused_by_http2(self, error: Exception) -> bool:
        """Return whether nothing was sent, because HTTP/2 has no header ``Connection``."""
        is_local = type(error).__name__ == "LocalProtocolError"
        return is_local and self.is_closing and not self.body.begun

    @property
    def _is_too_long(self) -> bool:
        return len(self._content) > self._request.max_reply_bytes

    @property
    def _is_cut(self) -> bool:
        return self._is_unread or (self._is_too_long and self._request.cut_reply)

    async def _receive_reply(self) -> None:
        request = self._request
        timeouts = dict.fromkeys(("connect", "pool"), request.connect_timeout)
        timeouts |= {"write": request.stall_timeout, "read": request.reply_timeout}
        length = ((b"Content-Length", b"0"),) if request.body == b"" else ()  # or it is chunked
        made = self._client.build_request(
            request.method,
            request.url,
            headers=[*request.headers, *(_CLOSING if self.is_closing else ()), *length],
            content=self.body,
            extensions={"timeout": timeouts, **_name_for_tls(request.url)},
        )
        try:
            self._response = await self._client.send(made, stream=True, follow_redirects=False)
        except Exception as error:
            # From a hook with raise_for_status(), unless it is about another request.
            response = getattr(error, "response", None)
            if response is None or response.request is not made:
                raise
            self._response = response
        self._is_early = self._limit.deadline == math.inf  # it came before the end of the body
        if self._is_early:
            self._begin_reply()
        await self._receive_content()

    async def _receive_content(self) -> None:
        """Read a reply without decompression: a small one cannot become a large one."""
        if getattr(self._response, "is_stream_consumed", False):  # by a mock or a hook
            self._take(self._response.content)
        elif getattr(self._response, "is_closed", False):  # by a hook that raised
            self._is_unread = True
            return
        else:
            async for chunk in self._response.stream:
                self._take(chunk)
        await anyio.lowlevel.checkpoint_if_cancelled()
        self._is_complete = not self._is_too_long

    def _take(self, chunk: bytes) -> None:
        self._content += chunk
        if self._is_too_long:  # leaving the loop instead would leave generators unfinished
            self._limit.cancel()

    def _begin_reply(self) -> None:
        self._limit.deadline = anyio.current_time() + self._request.reply_timeout

    def _limit_error(self) -> errors.TransportError:
        if self._is_too_long:
            most = f"{self._request.max_reply_bytes:,} bytes (max_reply_bytes)"
            return errors.ReplyTooLarge(f"the reply is longer than {most}")
        return errors.TransferTimeout(f"no complete reply within {self._request.reply_timeout:g} s")


async def _close(response: Any, *, is_read: bool) -> None:
    """Close a response. If it was read, no error here changes the result."""
    try:
        with anyio.move_on_after(CLEANUP_SECONDS, shield=True):
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
        task.cancel()  # again, at the next await, when the reply has been returned


def _drop_frames(error: BaseException | None) -> None:
    """Drop the frames of the HTTP library, whose locals show headers."""
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _host(url: str) -> str:
    try:
        return host_and_port(url)
    except (ValueError, KeyError):  # the client raises its own error for such a URL
        return ""


# --- the body ------------------------------------------------------------------------------------


class _BodyFailed(Exception):
    """Carries an error of a body through an HTTP library, which would catch some classes."""

    def __init__(self, reason: Exception) -> None:
        super().__init__()
        self.reason = reason


class _RequestBody:
    """Yields a body to an HTTP library.

    Not a generator: the event loop would finalise an abandoned one some time later.
    """

    def __init__(self, body: bytes | Body, on_end: Callable[[], None]) -> None:
        self.begun = False
        """Whether the library has asked for the first chunk, so it has a connection."""
        self._body, self._on_end = body, on_end
        self._chunks: AsyncIterator[bytes] | None = None
        self._whole: bytes | None = None
        """A body of type ``bytes`` that was not yielded yet."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        if self._chunks is not None:
            raise _BodyFailed(errors.ConnectionLost(SENT_AGAIN))
        if isinstance(self._body, bytes):
            self._whole = self._body or None
        return self

    async def __anext__(self) -> bytes:
        self.begun = True
        try:
            if isinstance(self._body, bytes):
                chunk, self._whole = self._whole, None
            else:
                self._chunks = self._chunks or aiter(self._body)
                chunk = await anext(self._chunks, None)
        except Exception as error:
            raise _BodyFailed(error) from error
        if chunk is None:
            self._on_end()
            raise StopAsyncIteration
        return chunk
