"""Worker threads for documents, on a limiter of our own.

Slow disks and other users of the event loop's default threads must not hold each other up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

T = TypeVar("T")

READ_THREADS = 16
"""Documents read from slow storage at the same time; more only queue at the disk."""

_limiters: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar(
    "meeting_async_read_threads"
)


async def in_thread(function: Callable[[], T], *, abandon: bool = False) -> T:
    """Run a function in a worker thread.

    On cancellation it is waited for, unless ``abandon`` says that it may never end.
    """
    limiter = _limiters.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(READ_THREADS)
        _limiters.set(limiter)
    # In a tuple, as trio refuses a result that is a coroutine, which is nothing wrong here.
    (result,) = await anyio.to_thread.run_sync(
        lambda: (function(),), abandon_on_cancel=abandon, limiter=limiter
    )
    return result
