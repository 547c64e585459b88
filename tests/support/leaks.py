"""What must not be left behind: descriptors and temporary files."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from meeting_async import _threads as threads
from support.peer import descriptors
from support.sending import until

__all__ = ["descriptors", "temporary_files", "threads_idle"]


def temporary_files() -> list[Path]:
    """List the spools on disk."""
    return sorted(Path(tempfile.gettempdir()).glob("meeting-async-*"))


async def threads_idle() -> None:
    """Wait until no thread of the library does anything, as abandoned ones may."""

    def is_idle() -> bool:
        alive = sum(thread.name == "meeting-async" for thread in threading.enumerate())
        return threads._threads._idle._value == alive

    await until(is_idle)
