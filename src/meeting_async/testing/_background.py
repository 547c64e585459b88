"""Tasks that outlive the request that started them, on asyncio and trio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")

_tasks: set[asyncio.Task[None]] = set()
"""An event loop keeps only weak references to its tasks."""


def start(function: Callable[[], Awaitable[object]]) -> None:
    """Run a function that does not raise, at most until the event loop ends."""

    async def run() -> None:
        await function()

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        import trio  # noqa: PLC0415 - needed on this backend only

        trio.lowlevel.spawn_system_task(run)
        return
    _tasks.add(task := loop.create_task(run()))
    task.add_done_callback(_tasks.discard)


async def outlive(function: Callable[[], Awaitable[T]]) -> T:
    """Wait for the result of a function, which goes on if its caller is cancelled."""
    done, results = anyio.Event(), list[T]()

    async def run() -> None:
        try:
            results.append(await function())
        finally:
            done.set()

    start(run)
    await done.wait()
    return results[0]
