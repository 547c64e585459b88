"""A test that hangs explains itself: shortly before its time limit, all suspended tasks are shown.

pytest's own ``faulthandler_timeout`` shows the threads; what an event loop waits for is in no
thread's stack.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
import types
from typing import Any, TextIO

SECONDS = 160.0
"""Below the ``timeout`` and ``faulthandler_timeout`` of pyproject.toml."""


class Watchdog:
    """One daemon thread that looks whether the current test is late."""

    def __init__(self) -> None:
        self._test: tuple[str, float] | None = None
        self._thread: threading.Thread | None = None

    def begin(self, name: str) -> None:
        """Watch a test."""
        self._test = (name, time.monotonic() + SECONDS)
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")
            self._thread.start()

    def end(self) -> None:
        """The test is over."""
        self._test = None

    def _watch(self) -> None:
        while True:
            time.sleep(1)
            test = self._test
            if test is not None and time.monotonic() > test[1]:
                self._test = None
                dump_tasks(test[0], sys.__stderr__ or sys.stderr)


def dump_tasks(name: str, file: TextIO) -> None:
    """Show the stack of every suspended coroutine that nothing else awaits.

    Only old objects: another thread may be building a young tuple, and CPython fails then.
    """
    suspended = [
        found
        for found in gc.get_objects(generation=2)
        if isinstance(found, types.CoroutineType) and found.cr_frame and not found.cr_running
    ]
    awaited = {id(found.cr_await) for found in suspended}
    file.write(f"\n{name} is late; suspended coroutines:\n")
    for coroutine in suspended:
        if id(coroutine) not in awaited:
            file.write("".join(traceback.format_list(_stack(coroutine))) + "\n")
    file.flush()


def _stack(coroutine: Any) -> list[traceback.FrameSummary]:
    stack = []
    link: Any = coroutine
    while link is not None:
        frame = getattr(link, "cr_frame", None) or getattr(link, "gi_frame", None)
        frame = frame or getattr(link, "ag_frame", None)
        if frame is not None:
            line = frame.f_lineno
            code = frame.f_code
            stack.append(traceback.FrameSummary(code.co_filename, line, code.co_name))
        link = getattr(link, "cr_await", None) or getattr(link, "gi_yieldfrom", None)
    return stack
