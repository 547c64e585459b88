"""The running event loop: its clock, and whether it is gone.

The clock is looked up once, as to find it takes longer than to read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel

Clock = Callable[[], float]
"""Returns the time in seconds, as ``anyio.current_time`` does."""


def clock_of(loop: anyio.lowlevel.EventLoopToken) -> Clock:
    """Return the clock of an event loop."""
    native: Clock | None = getattr(loop.native_token, "time", None)  # trio's token has none
    return native or anyio.current_time


def is_gone(loop: anyio.lowlevel.EventLoopToken) -> bool:
    """Return whether an event loop was closed, so that nothing runs in it any more."""
    native: Any = loop.native_token
    if hasattr(native, "is_closed"):
        return bool(native.is_closed())
    try:
        native.run_sync_soon(lambda: None)
    except RuntimeError:  # trio.RunFinishedError
        return True
    return False
