"""Open descriptors of this process: how many there are, and how many there may be."""

from __future__ import annotations

import os
import resource
import threading
from typing import Self

_LOOK_SECONDS = 0.005
_WANTED = 8192
"""Enough for a thousand uploads that take a socket, a file and two spare ones each."""


def allow_many() -> None:
    """Raise the limit of this process, and of those it starts, as far as is needed and allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def count() -> int | None:
    """Count the open descriptors; ``None`` where there is no ``/proc``."""
    try:
        # Since Linux 6.2 the directory's size is the count, without listing a thousand names.
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))  # noqa: PTH116, PTH208 - one system call
    except OSError:
        return None


class DescriptorWatch:
    """Counts from a thread, every 5 ms, so that a loop that is blocked is seen, too."""

    def __enter__(self) -> Self:
        self._before = self._peak = count()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def growth(self) -> int | None:
        """Most descriptors that were open at once, minus those that were before."""
        if self._before is None or self._peak is None:
            return None
        return self._peak - self._before

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self._peak = max(self._peak or 0, count() or 0)
