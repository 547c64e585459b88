"""A clock that stands still for the process, as while it is frozen."""

from __future__ import annotations

from typing import Any

import anyio.lowlevel

from meeting_async.testing import VirtualTimeLoop


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
