"""What is measured of a client, and how.

CPU is that of the whole process, threads included. Memory comes from ``/proc`` and is ``None``
where there is none; ``ru_maxrss`` will not do, because a child starts with that of its parent.
"""

from __future__ import annotations

import contextlib
import cProfile
import gc
import re
import resource
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar, Self

import anyio
import attrs

TICK_SECONDS = 0.001
"""Sleep of the task that measures gaps. epoll rounds up, so an idle loop shows about 1 ms, too."""

_LOOK_SECONDS = 0.005
"""Between two counts of descriptors."""

_WANTED_DESCRIPTORS = 8192
"""Enough for a thousand uploads that take a socket, a file and two spare ones each."""


@attrs.frozen
class Sample:
    """One client at its work, measured. ``None``: not measured, or it cannot be known here."""

    seconds: float
    """From the first call to the last return."""
    cpu_seconds: float
    """User and system time of the client meanwhile."""
    count: int = 1
    """Calls or uploads that were made and answered."""
    memory_growth: int | None = None
    """Bytes: peak of the resident set meanwhile, minus the resident set before."""
    gap_seconds: float | None = None
    """Longest time the event loop kept a task waiting beyond the end of its sleep."""
    descriptors: int | None = None
    """Peak of open descriptors meanwhile, minus those before."""
    busy_share: float | None = None
    """Part of the time of all places of a batch in which they held an attempt."""
    attempts: int | None = None
    """Documents that were sent, delivered or not."""
    least_seconds: float | None = None
    """The least that any order could take."""


class Meter:
    """Measures this process from its beginning to its end."""

    profile: ClassVar[cProfile.Profile | None] = None
    """If it is set, it also runs from the beginning to the end."""

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):  # proc(5): forget the largest resident set
            Path("/proc/self/clear_refs").write_text("5")
        self._resident = memory_bytes("self", "VmRSS")
        self._cpu = time.process_time()
        self._began = time.perf_counter()
        if self.profile is not None:
            self.profile.enable()
        return self

    def __exit__(self, *_: object) -> None:
        if self.profile is not None:
            self.profile.disable()
        self._seconds = time.perf_counter() - self._began
        self._cpu = time.process_time() - self._cpu

    def sample(self, count: int = 1) -> Sample:
        """Return what was measured, once the block is over."""
        grown = growth(self._resident, memory_bytes("self", "VmHWM"))
        return Sample(self._seconds, self._cpu, count, grown)


async def measured(work: Callable[[], Awaitable[object]], count: int = 1) -> Sample:
    """Measure one piece of work, with a task beside it that measures gaps."""
    ticker = _Ticker()
    gc.collect()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ticker.run)
        await anyio.sleep(10 * TICK_SECONDS)
        ticker.largest = 0.0
        with _DescriptorWatch() as watch, Meter() as meter:
            await work()
        tasks.cancel_scope.cancel()
    sample = meter.sample(count)
    return attrs.evolve(sample, gap_seconds=ticker.largest, descriptors=watch.growth)


async def measured_alone(work: Callable[[], Awaitable[object]], count: int = 1) -> Sample:
    """Measure without anything beside the work, as its CPU time would count."""
    gc.collect()
    with Meter() as meter:
        await work()
    return meter.sample(count)


@attrs.define
class _Ticker:
    """Sleeps 1 ms over and over, and notes how late it wakes."""

    largest: float = 0.0
    """Seconds."""

    async def run(self) -> None:
        """Tick until cancelled. The last tick counts: a loop that is blocked never wakes it."""
        while True:
            began = time.perf_counter()
            try:
                await anyio.sleep(TICK_SECONDS)
            finally:
                late = time.perf_counter() - began - TICK_SECONDS
                self.largest = max(self.largest, late)


# --- descriptors ---------------------------------------------------------------------------------


def allow_many_descriptors() -> None:
    """Raise the limit of this process, and of those it starts, as far as is needed and allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_DESCRIPTORS
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _DescriptorWatch:
    """Counts from a thread, so that a loop that is blocked is seen, too."""

    def __enter__(self) -> Self:
        self._before = self._peak = _open_descriptors()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def growth(self) -> int | None:
        return growth(self._before, self._peak)

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self._peak = max(self._peak or 0, _open_descriptors() or 0)


def _open_descriptors() -> int | None:
    try:
        # Since Linux 6.2 the directory's size is the count, without listing a thousand names.
        folder = Path("/proc/self/fd")
        return folder.stat().st_size or len(list(folder.iterdir()))
    except OSError:
        return None


# --- memory and CPU ------------------------------------------------------------------------------


def growth(before: int | None, peak: int | None) -> int | None:
    """Return the difference, if both are known."""
    return None if before is None or peak is None else max(0, peak - before)


def memory_bytes(pid: int | str, field: str) -> int | None:
    """Return ``VmRSS`` or ``VmHWM`` of a process; ``None`` if it is over or cannot be known."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    match = re.search(rf"^{field}:\s*(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def cpu_seconds(pid: int) -> float | None:
    """CPU time of another process so far (kernel document sched-stats); ``None`` as above."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return None
