"""Whose cancellation is it? On asyncio anybody's code can raise one; trio makes them itself."""

from __future__ import annotations

import asyncio
import math

import anyio


def is_stray(error: BaseException) -> bool:
    """Tell whether an error is a cancellation though nobody cancels the current task.

    To await what somebody else has cancelled raises such a one: for us it is a failure like any
    other, and must not end what stands around it.
    """
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    is_cancelled = anyio.current_effective_deadline() == -math.inf
    return task is not None and not task.cancelling() and not is_cancelled
