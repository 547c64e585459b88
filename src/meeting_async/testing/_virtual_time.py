"""Virtual time: five minutes of waiting take no time, on asyncio and on trio.

Everything must run on one event loop: threads and sockets do not use its clock.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

T = TypeVar("T")

STUCK_SECONDS = 5.0
"""Seconds to wait for a thread or a socket when no timer is left."""


class _JumpingSelector(selectors.DefaultSelector):
    """Advances a clock instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(STUCK_SECONDS if timeout is None else 0)
        if not ready and timeout is None:
            raise RuntimeError("nothing can happen any more: every task waits for something else")
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop whose time jumps to the next timer when no task can run.

    With anyio's pytest plugin, a fixture ``anyio_backend`` that returns
    ``("asyncio", {"loop_factory": VirtualTimeLoop})`` runs a whole module on it.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # A timer may come early by the step of the system's clock; of Windows' that is 15.6 ms.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Return the seconds since the loop began."""
        return self._jumping.now

    def call_at(  # type: ignore[override]  # the arguments are only passed on
        self, when: float, callback: Any, *args: Any, **context: Any
    ) -> asyncio.TimerHandle:
        """Schedule a callback; the clock does not jump to a timer at infinity."""
        if when == math.inf:
            return asyncio.TimerHandle(when, callback, args, self, **context)
        return super().call_at(when, callback, *args, **context)


def run_in_virtual_time(
    function: Callable[..., Awaitable[T]], *args: Any, backend: str = "asyncio"
) -> T:
    """Run a coroutine function with its arguments on a clock that jumps to the next timer.

    ``backend`` is ``"asyncio"`` or ``"trio"``.

    Raises:
        ImportError: trio is not installed.

    """
    if backend == "trio":
        import trio.testing  # noqa: PLC0415 - needed for this backend only

        # Not anyio.run: before version 4.15 it drops the clock.
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(function, *args, clock=clock)
    options = {"loop_factory": VirtualTimeLoop}
    return anyio.run(function, *args, backend=backend, backend_options=options)
