"""How late the machine itself is while something is measured."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def machine_delay() -> Iterator[Callable[[], float]]:
    """Yield a function that says how much too late threads were woken meanwhile, in seconds.

    On a quiet machine that is a millisecond. A few wake-ups in a row may each be as late.
    """
    largest, stopped = 0.0, threading.Event()

    def watch() -> None:
        nonlocal largest
        while not stopped.is_set():
            before = time.monotonic()
            time.sleep(0.005)
            largest = max(largest, time.monotonic() - before - 0.005)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: 4 * largest
    finally:
        stopped.set()
