"""Worker threads for documents, on a limiter of our own.

Slow disks and other users of the event loop's default threads must not hold each other up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
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


class Lease:
    """Guards what a thread uses and its owner may give up meanwhile: whoever is last, ends it.

    A thread may outlive the task that waits for it.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._in_use = threading.Lock()
        self.is_over = False
        """Whether the owner has given it up."""

    @contextmanager
    def used(self) -> Generator[None, None, None]:
        """Keep it from ending while the block runs, in a thread or elsewhere."""
        try:
            with self._in_use:
                yield
        finally:
            if self.is_over:
                self._end_if_idle()

    def give_up(self) -> None:
        """End it, now or when the thread that uses it is done. More than once is no harm."""
        self.is_over = True
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._in_use.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._in_use.release()
