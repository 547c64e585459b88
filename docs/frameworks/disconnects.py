"""What becomes of an upload if the browser disconnects or stops sending.

Frameworks differ: Starlette, FastAPI and Litestar let a handler go on, Quart and Django cancel it.
Choose yourself: :meth:`Background.finish` goes on under all of them, :func:`unless_gone` stops.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup

from meeting_async.errors import MeetingError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]
"""ASGI's ``receive``, however a framework types it."""

SILENCE_SECONDS = 30.0
"""Longest time without a byte in the middle of a browser's upload."""

STOP_SECONDS = 20.0
"""Uploads in the background get this long when the application stops."""


async def limit_silence(
    stream: AsyncIterable[bytes], seconds: float = SILENCE_SECONDS
) -> AsyncGenerator[bytes, None]:
    """Pass a request's body on; raise ``TimeoutError`` when nothing comes for so many seconds.

    A browser that lost its network sends nothing, and neither uvicorn nor the frameworks limit
    that. Without a limit its upload would hold the room's lock here until TCP gives up, if ever.
    """
    iterator = aiter(stream)
    while True:
        try:
            with anyio.fail_after(seconds):
                chunk = await anext(iterator)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise TimeoutError(f"the browser sent nothing for {seconds:g} s") from error
        yield chunk


async def unless_gone(receive: Receive, work: Callable[[], Awaitable[T]]) -> T | None:
    """Do the work, but cancel it when the browser disconnects; then return ``None``.

    For handlers that the framework does not cancel, after the request's body was read.
    """
    results: list[T] = []
    failures: list[MeetingError] = []

    async def working() -> None:
        try:
            results.append(await work())
        except MeetingError as error:  # the task group would wrap it
            failures.append(error)
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(working)
        while (await receive())["type"] != "http.disconnect":
            pass
        logger.info("the browser disconnected: its upload is cancelled")
        group.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return results[0] if results else None


class Background:
    """Work that goes on when its request is cancelled."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncGenerator[Background, None]:
        """Run work while the block runs; at its end, wait for it, ``STOP_SECONDS`` at most."""
        async with anyio.create_task_group() as group:
            yield cls(group)
            group.cancel_scope.deadline = anyio.current_time() + STOP_SECONDS

    async def finish(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work to its end, even if the caller is cancelled meanwhile."""
        results: list[T] = []
        failures: list[Exception] = []
        done = anyio.Event()

        async def working() -> None:
            try:
                results.append(await work())
            except Exception as error:  # noqa: BLE001 - it must not end other work
                logger.info("an upload failed: %s", error)
                failures.append(error)
            finally:
                done.set()

        self._group.start_soon(working)
        await done.wait()
        if failures:
            raise failures[0]
        return results[0]
