"""Clocks that jump: hours of waiting take no time, on asyncio and on trio.

Everything must happen on the one loop: real sockets and threads take no time on such a clock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio.lowlevel

from meeting_async.testing import VirtualTimeLoop, run_in_virtual_time

T = TypeVar("T")


def run(backend: str, function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run a coroutine function in virtual time on ``"asyncio"`` or ``"trio"``."""
    return run_in_virtual_time(function, *args, backend=backend)


def jump(seconds: float) -> None:
    """Let time pass without running anything, as for a process that is frozen."""
    token = anyio.lowlevel.current_token()
    loop: Any = getattr(token, "native_token", token)  # before anyio 4.11 they were the same
    if isinstance(loop, VirtualTimeLoop):
        loop._jumping.now += seconds
    else:
        import trio.lowlevel

        clock: Any = trio.lowlevel.current_clock()
        clock.jump(seconds)
