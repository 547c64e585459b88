"""What must not be left behind: descriptors and temporary files."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from meeting_async import _threads as threads
from support.peer import Peer
from support.sending import until


def descriptors(*peers: Peer) -> Counter[str]:
    """Count what this process has open, by what it leads to, without what peers have."""
    theirs = set().union(*(peer.descriptors() for peer in peers))
    found: Counter[str] = Counter()
    for number in possible_descriptors():
        with contextlib.suppress(OSError):  # not open, as that of the listing itself
            if number not in theirs:
                found[_target(number)] += 1
    return found


def possible_descriptors() -> Iterable[int]:
    """Return the descriptors that may be open; on Windows sockets have none."""
    return range(512) if sys.platform == "win32" else map(int, os.listdir("/dev/fd"))


def _target(number: int) -> str:
    """Return what an open descriptor leads to, as Linux names it; else its kind and number."""
    status = os.fstat(number)
    with contextlib.suppress(OSError):
        return os.readlink(f"/dev/fd/{number}")
    return f"{stat.filemode(status.st_mode)} {status.st_dev}:{status.st_ino}"


def temporary_files() -> list[Path]:
    """List the spools on disk."""
    return sorted(Path(tempfile.gettempdir()).glob("meeting-async-*"))


async def threads_idle() -> None:
    """Wait until no thread of the library does anything, as abandoned ones may."""

    def is_idle() -> bool:
        alive = sum(thread.name == "meeting-async" for thread in threading.enumerate())
        return threads._threads._idle._value == alive

    await until(is_idle)
