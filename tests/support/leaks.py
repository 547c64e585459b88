"""What must not be left behind: descriptors and temporary files."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import anyio

from meeting_async import _threads as threads
from support.peer import descriptors

__all__ = ["descriptors", "temporary_files", "threads_idle", "until"]


def temporary_files() -> list[Path]:
    """List the spools on disk."""
    return sorted(Path(tempfile.gettempdir()).glob("meeting-async-*"))


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait until a condition holds, for what an abandoned thread does later; tell whether it does.

    The limit is for a machine that is busy with other things.
    """
    with anyio.move_on_after(seconds):
        while not condition():  # noqa: ASYNC110 - a thread changes it
            await anyio.sleep(0.002)
    return condition()


async def threads_idle() -> None:
    """Wait until no thread of the library does anything, as abandoned ones may."""

    def is_idle() -> bool:
        alive = sum(thread.name == "meeting-async" for thread in threading.enumerate())
        return threads._threads._idle._value == alive

    assert await until(is_idle)
