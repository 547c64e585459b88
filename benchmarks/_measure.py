"""What is measured of a client, and how.

CPU is that of the whole process, threads included. Memory comes from ``/proc`` and is ``None``
where there is none; ``ru_maxrss`` will not do, because a child starts with that of its parent.
"""

from __future__ import annotations

import contextlib
import gc
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Self

import anyio
import attrs

from benchmarks._descriptors import DescriptorWatch

MEMORY_NOISE_BYTES = 256 * 1024
"""The kernel counts resident pages in batches of 32 for each core; this is for two cores."""

TICK_SECONDS = 0.001
"""Sleep of the task that measures gaps. epoll rounds up, so an idle loop shows about 1 ms, too."""


@attrs.frozen
class Sample:
    """One client at its work, measured. ``None``: not measured, or it cannot be known here."""

    seconds: float
    """From the first call to the last return."""
    cpu_seconds: float
    """User and system time of the client meanwhile."""
    memory_growth: int | None = None
    """Bytes: peak of the resident set meanwhile, minus the resident set before."""
    gap_seconds: float | None = None
    """Longest time the event loop kept a task waiting beyond the end of its sleep."""
    descriptors: int | None = None
    """Peak of open descriptors meanwhile, minus those before."""
    calls: int = 1
    """How many were made and answered."""
    p50_seconds: float | None = None
    """Half of the calls took no longer."""
    p99_seconds: float | None = None
    """99 of 100 calls took no longer."""
    uploads: int | None = None
    """Documents that were accepted, in however many calls."""
    busy_share: float | None = None
    """Part of the time of all slots of a batch in which they held an attempt."""
    bound_seconds: float | None = None
    """The least that the work could take."""


class Meter:
    """Measures this process while its ``with`` block runs."""

    def __enter__(self) -> Self:
        _reset_peak()
        self._resident = resident_bytes("self")
        self._cpu = time.process_time()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._seconds = time.perf_counter() - self._began
        self._cpu = time.process_time() - self._cpu

    def sample(self) -> Sample:
        """Return what was measured, once the block is over."""
        return Sample(self._seconds, self._cpu, growth(self._resident, peak_bytes("self")))


async def measured(work: Callable[[], Awaitable[object]]) -> Sample:
    """Measure one piece of work of this process, with a ticker beside it."""
    ticker = Ticker()
    gc.collect()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ticker.run)
        await anyio.sleep(10 * TICK_SECONDS)
        ticker.largest = 0.0
        with Meter() as meter:
            await work()
        tasks.cancel_scope.cancel()
    return attrs.evolve(meter.sample(), gap_seconds=ticker.largest)


async def measured_with_descriptors(work: Callable[[], Awaitable[object]]) -> Sample:
    """Measure the same, and how many descriptors were open at once."""
    with DescriptorWatch() as watch:
        sample = await measured(work)
    return attrs.evolve(sample, descriptors=watch.growth)


def with_latencies(sample: Sample, latencies: Sequence[float]) -> Sample:
    """Add what each of several calls took, in seconds."""
    if not latencies:
        raise RuntimeError("not one call was made")
    ordered = sorted(latencies)
    return attrs.evolve(
        sample,
        calls=len(ordered),
        p50_seconds=_percentile(ordered, 50),
        p99_seconds=_percentile(ordered, 99),
    )


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """Nearest rank: the smallest value that so many percent of the values do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


@attrs.define
class Ticker:
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


# --- Linux's /proc -------------------------------------------------------------------------------


def growth(before: int | None, peak: int | None) -> int | None:
    """Return the bytes between the two, if both are known."""
    return None if before is None or peak is None else max(0, peak - before)


def resident_bytes(pid: int | str) -> int | None:
    """Resident set of a process, in bytes; ``None`` if it is over or cannot be known."""
    return _status(pid, "VmRSS")


def peak_bytes(pid: int | str) -> int | None:
    """Largest resident set a process has had, in bytes; ``None`` as above."""
    return _status(pid, "VmHWM")


def _status(pid: int | str, field: str) -> int | None:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    match = re.search(rf"^{field}:\s*(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _reset_peak() -> None:
    """Forget this process's largest resident set: proc(5), ``/proc/pid/clear_refs``, value 5."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def cpu_seconds(pid: int) -> float | None:
    """CPU time of another process so far (kernel document sched-stats); ``None`` as above."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return None
