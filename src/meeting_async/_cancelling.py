"""What ends tasks, and whose doing it is."""

from __future__ import annotations

import asyncio
import math

import anyio


def is_stray(error: BaseException) -> bool:
    """Tell whether an error is a cancellation though nobody cancels the current task.

    On asyncio anybody's code can raise one (trio makes them itself), and to await what somebody
    else has cancelled does: for us that is a failure like any other, and must not end what stands
    around it.
    """
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    is_cancelled = anyio.current_effective_deadline() == -math.inf
    return task is not None and not task.cancelling() and not is_cancelled


def one_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to raise in place of a group: what ends the program before anything else."""
    left = group.split(anyio.get_cancelled_exc_class())[1] or group
    first = (left.split(Exception)[1] or left).exceptions[0]
    return one_of(first) if isinstance(first, BaseExceptionGroup) else first
