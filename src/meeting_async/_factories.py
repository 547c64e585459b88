"""Documents that are made anew for every attempt, by a function of the caller's."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs

from meeting_async._limits import check_size
from meeting_async._multipart import Reader
from meeting_async._observer import logger
from meeting_async._recognition import Uploadable, is_file, recognised
from meeting_async._sources import Content, Measure, Source, unreadable
from meeting_async._streams import StreamSource
from meeting_async._threads import in_thread
from meeting_async.errors import DocumentChanged, DocumentError

Factory = Callable[[], Uploadable | Awaitable[Uploadable]]
"""Returns a path, bytes, an open file or a stream, each time another one."""


@attrs.frozen
class FactorySource:
    """A function that opens the document for every attempt."""

    factory: Factory
    size: int | None = None
    """Bytes, as declared; ``None``: found out by a call before the first attempt."""

    @asynccontextmanager
    async def held(self, name: str, max_size: int | None) -> AsyncGenerator[Content, None]:
        """Measure one document that the factory makes, or spool it if it is a stream."""
        if self.size is not None:
            check_size(name, self.size, max_size)
            yield _FactoryContent(self, name, Measure(self.size))
            return
        async with self.made(name) as source:
            if isinstance(source, StreamSource):
                async with source.held(name, max_size) as content:
                    yield content
                return
            async with source.held(name, max_size) as content:
                found = await content.measure()
        yield _FactoryContent(self, name, Measure(found.size, found.head))

    @asynccontextmanager
    async def made(self, name: str) -> AsyncGenerator[Source, None]:
        """Call the factory, and close what it opened when the block ends."""
        value = await self._call(name)
        try:
            found = recognised(value)
            if found is None:
                raise TypeError(
                    "factory must return a path, bytes, an open file or a stream, "
                    f"not {type(value).__name__}"
                )
            yield found.source
        finally:
            if is_file(value):
                await _close(name, value)

    async def _call(self, name: str) -> object:
        try:
            if _is_quick(self.factory):
                value: Any = self.factory()
            else:
                value = await in_thread(self.factory)
            return await value if inspect.isawaitable(value) else value
        except DocumentError:
            raise
        except Exception as error:  # whatever somebody's function raises
            raise unreadable(name, error) from error


def _is_quick(factory: Factory) -> bool:
    """Tell whether calling it only makes something that is awaited or iterated later."""
    return inspect.iscoroutinefunction(factory) or inspect.isasyncgenfunction(factory)


async def _close(name: str, file: Any) -> None:
    close = getattr(file, "aclose", None) or getattr(file, "close", None)
    if close is None:
        return
    with anyio.CancelScope(shield=True):
        try:
            if inspect.iscoroutinefunction(close):
                await close()
            else:
                await in_thread(close)
        except Exception as error:  # noqa: BLE001 - closing undoes no upload
            logger.warning(
                "closing what the factory of %r opened failed: %r",
                name,
                error,
                extra={"action": "FactoryNotClosed"},
            )


@attrs.frozen
class _FactoryContent:
    _source: FactorySource
    _name: str
    _measure: Measure

    async def measure(self) -> Measure:
        return self._measure

    @asynccontextmanager
    async def open(self, measure: Measure) -> AsyncGenerator[Reader, None]:
        async with (
            self._source.made(self._name) as source,
            _declared(source, measure.size).held(self._name, None) as content,
        ):
            found = await content.measure()
            if found.size != measure.size:
                change = f"it has {found.size:,} bytes instead of {measure.size:,}"
                raise DocumentChanged(self._name, change)
            async with content.open(found) as reader:
                yield reader


def _declared(source: Source, size: int) -> Source:
    """Stream straight through what will be made again for another attempt."""
    if isinstance(source, StreamSource):
        return StreamSource(source.stream, size, replayable=False)
    return source
