"""For how long the event loop stands still while something goes on."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel

GAP_SECONDS = 0.020
"""The promise, on a quiet machine."""


async def loop_stays_free(
    function: Callable[[], Awaitable[object]], tries: int = 10, *, seconds: float = GAP_SECONDS
) -> bool:
    """Tell whether a function never holds the loop for longer than 20 ms, or so many seconds.

    Other processes may take the processor away. So the best of several tries counts, and a gap that
    the machine also makes while nothing is done is no fault: code that blocks does so every time.
    """
    for _ in range(tries):
        gap, machines_own = await _largest_gap(function), await _largest_gap(_busy)
        if gap < max(seconds, 2 * machines_own):
            return True
    return False


async def _busy() -> None:
    end = time.perf_counter() + 0.1
    while time.perf_counter() < end:
        await anyio.lowlevel.checkpoint()


async def _largest_gap(function: Callable[[], Awaitable[object]]) -> float:
    largest, last = 0.0, time.perf_counter()

    async def tick() -> None:
        nonlocal largest, last
        while True:
            now = time.perf_counter()
            largest, last = max(largest, now - last), now
            await anyio.sleep(0.001)

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await function()
        await anyio.sleep(0.002)  # a gap at the very end is noticed, too
        group.cancel_scope.cancel()
    return largest
