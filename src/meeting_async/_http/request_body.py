"""A request's body on its way into an HTTP library, whose errors it must not swallow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from meeting_async._models import Body


class BodyFailed(Exception):
    """Carries an error of a body through an HTTP library, which swallows some of its own kind."""

    def __init__(self, reason: Exception) -> None:
        super().__init__()
        self.reason = reason


class RequestBodyStream:
    """Yields a body to an HTTP library.

    No generator: one that is abandoned half-way is finalised by the event loop some time later.
    """

    def __init__(self, body: bytes | Body, on_end: Callable[[], None] = lambda: None) -> None:
        self.begun = False
        """Whether the library asked for the first chunk: then it has a connection."""
        self._body = _Once(body) if isinstance(body, bytes) else body
        self._chunks: AsyncIterator[bytes] | None = None
        self._on_end = on_end

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        self.begun = True
        try:
            self._chunks = self._chunks or aiter(self._body)
            return await anext(self._chunks)
        except StopAsyncIteration:
            self._on_end()
            raise
        except Exception as error:
            raise BodyFailed(error) from error


class _Once:
    """Iterates over one chunk."""

    def __init__(self, chunk: bytes) -> None:
        self._left = [chunk] if chunk else []

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()
