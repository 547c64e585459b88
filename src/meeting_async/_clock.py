"""The running event loop: its clock, and whether it is gone.

Find a clock once and keep it: finding one takes longer than reading it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

CLEANUP_SECONDS = 5.0
"""Longest time in seconds that a cleanup takes, however its task is cancelled: of others' streams,
responses and locks, and of a file on a disk that may no longer answer."""

CLOCK_SECONDS = 2.0
"""How far times may differ that two clocks have counted in whole seconds."""

Clock = Callable[[], float]
"""Returns the time in seconds, as ``anyio.current_time`` does."""


def native(token: object) -> Any:
    """Return the event loop of asyncio, or trio's token, for what anyio calls the current token."""
    return getattr(token, "native_token", token)  # before anyio 4.11 they were the same


def clock_of(token: object) -> Clock:
    """Return the clock of an event loop."""
    return getattr(native(token), "time", anyio.current_time)  # trio's token has none


def is_gone(token: object) -> bool:
    """Return whether an event loop was closed, so that nothing runs in it any more."""
    loop = native(token)
    if loop in _left_behind:
        return True
    if hasattr(loop, "is_closed"):
        return bool(loop.is_closed())
    try:
        loop.run_sync_soon(lambda: None)
    except RuntimeError:  # trio.RunFinishedError
        return True
    return False


def leave_behind(token: object) -> None:
    """Declare the event loop of another thread gone, in a process that was forked.

    It is kept: to close it would change what it shares with that of the parent process.
    """
    _left_behind.append(native(token))


_left_behind: list[object] = []
