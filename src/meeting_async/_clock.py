"""The clock of the running event loop, looked up once: to find it takes longer than to read it."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel

Clock = Callable[[], float]
"""Returns the time in seconds, as ``anyio.current_time`` does."""


def clock_of(loop: anyio.lowlevel.EventLoopToken) -> Clock:
    """Return the clock of an event loop."""
    native: Clock | None = getattr(loop.native_token, "time", None)  # trio's token has none
    return native or anyio.current_time
