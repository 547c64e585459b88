"""A test that hangs explains itself: shortly before its time limit, all suspended tasks are shown.

pytest's own ``faulthandler_timeout`` shows the threads; what an event loop waits for is in no
thread's stack.
"""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

SECONDS = 160.0
"""Below the ``timeout`` and ``faulthandler_timeout`` of pyproject.toml."""


@contextmanager
def watched(name: str) -> Iterator[None]:
    """Show what the event loop waits for if a test is late."""
    timer = threading.Timer(SECONDS, lambda: dump_tasks(name, sys.__stderr__ or sys.stderr))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
