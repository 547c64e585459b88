"""Where the time of one of our small calls goes, by library.

A timer of the process's CPU time interrupts the calls, and whatever line of Python is about to
run, or has called into C, is counted for its library. Nothing is traced, so nothing is slowed
down where many small functions are called. It is CPU time: waiting for the reply is not in it.
"""

from __future__ import annotations

import collections
import os
import re
import signal
import sysconfig
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FrameType

import attrs

from benchmarks import _call_clients, _responder
from benchmarks._client import OURS
from benchmarks._job import CallsJob
from benchmarks._measure import Sample

_INTERVAL_SECONDS = 0.001
"""The kernel may round it up to its own tick, of up to 10 ms."""

_FUNCTIONS = 12
_BENCHMARK = "this benchmark"


@attrs.define
class Profile:
    """How often each function was met."""

    counts: collections.Counter[tuple[str, str]] = attrs.field(factory=collections.Counter)
    """By library and function."""

    def note(self, _number: int, frame: FrameType | None) -> None:
        """Count what runs now; a signal handler."""
        if frame is not None:
            code = frame.f_code
            self.counts[library(code.co_filename), code.co_qualname] += 1

    def libraries(self) -> list[tuple[str, float]]:
        """Return the share of each library, the largest first."""
        found: collections.Counter[str] = collections.Counter()
        for (name, _), count in self.counts.items():
            found[name] += count
        return [(name, count / found.total()) for name, count in found.most_common()]

    def functions(self) -> list[tuple[str, float]]:
        """Return the share of the functions that take most."""
        total = self.counts.total()
        common = self.counts.most_common(_FUNCTIONS)
        return [(f"{name}: {function}", count / total) for (name, function), count in common]


def library(filename: str) -> str:
    """Name what a file belongs to."""
    path = Path(filename)
    ours = str(Path(import_module(OURS).__file__ or "").parent)
    if filename.startswith(ours):
        return OURS
    if filename.startswith(str(Path(__file__).parent)):
        return _BENCHMARK
    if "site-packages" in path.parts:
        return path.parts[path.parts.index("site-packages") + 1].removesuffix(".py")
    inside = sysconfig.get_path("stdlib")
    if filename.startswith(inside):
        return "stdlib " + Path(filename).relative_to(inside).parts[0].removesuffix(".py")
    generated = re.match(r"<attrs generated \w+ (\w+)", filename)
    return generated[1] if generated else path.name


def report(seconds: float) -> str:
    """Profile our calls, one at a time, and write what was found."""
    with _responder.running_responder() as responder:
        _ours(CallsJob(responder.base_url, 1, 0.1))  # imports and whatever else comes once
        job = CallsJob(responder.base_url, 1, seconds)
        plain, kernel = _with_kernel_share(job)
        profile = _profiled(job)
    return "\n".join(_lines(plain, kernel, profile))


def _ours(job: CallsJob) -> Sample:
    client = next(client for client in _call_clients.CLIENTS if client.name == OURS)
    return client.run(job)


def _with_kernel_share(job: CallsJob) -> tuple[Sample, float]:
    before = os.times()
    sample = _ours(job)
    after = os.times()
    kernel, user = after.system - before.system, after.user - before.user
    return sample, kernel / (kernel + user)


def _profiled(job: CallsJob) -> Profile:
    profile = Profile()
    before = signal.signal(signal.SIGPROF, profile.note)
    signal.setitimer(signal.ITIMER_PROF, _INTERVAL_SECONDS, _INTERVAL_SECONDS)
    try:
        _ours(job)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return profile


def _lines(plain: Sample, kernel: float, profile: Profile) -> Iterator[str]:
    microseconds = plain.cpu_seconds / plain.calls * 1e6
    yield (
        f"One call takes {microseconds:.0f} us of CPU, {kernel:.0%} of it in the kernel; "
        f"{plain.calls / plain.seconds:.0f} calls/s, one at a time."
    )
    yield f"By library ({profile.counts.total()} looks; C and the kernel count for who called):"
    for name, share in profile.libraries():
        yield f"  {share:6.1%} {share * microseconds:6.1f} us  {name}"
    yield "By function, the largest:"
    for name, share in profile.functions():
        yield f"  {share:6.1%} {share * microseconds:6.1f} us  {name}"
