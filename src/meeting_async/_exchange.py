"""One request and its reply: limits of time that follow its phases, and what an error means.

Foreign exceptions are mapped at this one place, reading the reply included.
"""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator

import anyio

from meeting_async import errors
from meeting_async._failures import Failures
from meeting_async._records import Reply, Request

MAX_REPLY_BYTES = 16 * 1024**2
"""Longest reply that is read; the largest regular one lists rooms and is far below."""


class Exchange:
    """One request and its reply, with limits of time that follow its phases.

    Connecting as a whole, then none while the body makes progress, then the reply as a whole.
    """

    def __init__(self, request: Request, failures: Failures) -> None:
        self.request = request
        self.failure: Exception | None = None
        """What the body raised: never to be taken for the network's."""
        self.tunnel = False
        """Whether connecting means making a tunnel through a proxy first."""
        self._cause: BaseException | None = None
        self._failures = failures
        self._limit = anyio.CancelScope()
        self._phase = "connecting"
        self._caller_handles = sys.exception()

    async def run(self, converse: Callable[[Exchange], Awaitable[Reply]]) -> Reply:
        """Return the reply, or raise what came instead."""
        mapped: errors.TransportError | None = None
        self._limit.deadline = anyio.current_time() + self.request.timeouts.connect
        try:
            with self._limit:
                return await converse(self)
        except self._failures.foreign as error:
            if self.failure is None:
                mapped = self._mapped(error)
        if self.failure is not None:
            self.failure.__cause__ = self._cause  # httpcore raises it "from None"
        raise self.failure or mapped or self._struck()

    # --- what a conversation calls ---------------------------------------------------------------

    def begin_body(self) -> None:
        """Note that the connection is there."""
        self._phase = "sending"
        self._limit.deadline = math.inf

    def begin_reply(self) -> None:
        """Note that the body is out, or will never be."""
        if self._phase == "sending":
            self._phase = "replying"
            self._limit.deadline = anyio.current_time() + self.request.reply_timeout

    def fail(self, error: Exception) -> None:
        """Note what the body raised."""
        self.failure, self._cause = error, error.__cause__

    async def content(self, chunks: AsyncIterable[bytes]) -> bytes:
        """Read a reply as it is, without decoding: a small one cannot become a large one."""
        content = bytearray()
        async for chunk in chunks:
            content += chunk
            if len(content) > MAX_REPLY_BYTES:
                # Not by leaving the loop: generators left half-way are finalised at random.
                self._phase = "too long"
                self._limit.cancel()
                content.clear()
        if self._phase == "too long":
            raise self._struck()
        return bytes(content)

    # --- what went wrong -------------------------------------------------------------------------

    def _struck(self) -> errors.TransportError:
        if self._phase == "connecting":
            seconds = self.request.timeouts.connect
            return errors.ConnectFailed(f"no connection in time ({seconds:g} s)")
        if self._phase == "too long":
            return errors.ConnectionLost(f"the reply is longer than {MAX_REPLY_BYTES:,} bytes")
        return errors.TransferTimeout(f"no complete reply within {self.request.reply_timeout:g} s")

    def _mapped(self, error: Exception) -> errors.TransportError:
        ours, words = self._failures.meaning(error)
        if self.tunnel and self._phase == "connecting":
            ours = errors.ConnectFailed  # what broke is the way to the server
        if self._phase != "connecting" and ours is errors.ConnectFailed:
            ours = errors.ConnectionLost  # some of the body was taken, whatever it is called
        chain = list(self._chain(error))
        for link in chain:
            link.__traceback__ = None  # their frames hold the signed headers
        if isinstance(error, self._failures.our_fault):  # their text quotes headers
            return ours(f"{words} ({type(error).__name__})")
        texts = (str(link).strip() for link in chain if isinstance(link, Exception))
        detail = next(filter(None, texts), "")
        mapped = ours(f"{words} ({detail or type(error).__name__})")
        mapped.__cause__ = error
        return mapped

    def _chain(self, error: Exception) -> Iterator[BaseException]:
        """Yield the exception and those behind it, short of what the caller is handling."""
        link: BaseException | None = error
        while link is not None and link is not self._caller_handles:
            yield link
            link = link.__cause__ or link.__context__


class BodyStream:
    """A request's body, as an exchange wants to see it pass.

    No generator: one that is abandoned half-way would be finalised by the loop, some time later.
    """

    def __init__(
        self, exchange: Exchange, pause: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._exchange = exchange
        self._pause = pause
        self._iterator: AsyncIterator[bytes] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._exchange.begin_body()
        body = self._exchange.request.body
        self._iterator = aiter(_once(body) if isinstance(body, bytes) else body)
        return self

    async def __anext__(self) -> bytes:
        if self._pause is not None:
            pause, self._pause = self._pause, None
            await pause()
        return await self.next_chunk()

    async def next_chunk(self) -> bytes:
        """Take one chunk from the body; what it raises is noted as its own."""
        if self._iterator is None:
            raise StopAsyncIteration
        try:
            return await anext(self._iterator)
        except StopAsyncIteration:
            self._exchange.begin_reply()
            raise
        except Exception as error:
            self._exchange.fail(error)
            raise


class _once:  # noqa: N801 - reads as the function it stands for
    """Iterate over one chunk."""

    def __init__(self, chunk: bytes) -> None:
        self._left = [chunk] if chunk else []

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()
