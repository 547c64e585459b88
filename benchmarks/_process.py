"""A client that takes part in a comparison, and the fresh process it runs in for every sample.

The process is started as ``python -m benchmarks._process MODULE CLIENT JOB``.
"""

from __future__ import annotations

import cProfile
import enum
import importlib
import importlib.util
import json
import os
import pstats
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import attrs

from benchmarks._measure import Meter, Sample, allow_many_descriptors

OURS = "meeting_async"
OTHER = "other edition"

ROOT = Path(__file__).parent.parent
"""Where ``python -m benchmarks…`` finds the package."""

_INSTALL = "pip install --group bench"


class Role(enum.Enum):
    """What a client is there for."""

    OURS = "ours"
    VARIANT = "variant"
    """Ours on another event loop; no ratios are taken."""
    PEER = "peer"


class Failed(Exception):
    """A client could not do its job; the message says why."""


@attrs.frozen
class Client:
    """Takes part in a comparison."""

    name: str
    work: Callable[[Any], Any] = attrs.field(eq=False)
    """Does a job and returns its sample; a coroutine function, if there is a loop."""
    role: Role = Role.PEER
    loop: str | None = "asyncio"
    """``asyncio``, ``uvloop``, ``trio``, or ``None`` for code without a loop."""
    needs: str | None = None
    """Module that may not be installed; the loop's own counts by itself."""
    missing: str | None = None
    """Why it cannot take part, if that is known."""
    source: str | None = None
    """Folder that holds the ``meeting_async`` to be used, instead of the one beside."""
    alias: str | None = None
    """Its name in ``CLIENTS`` of its module, if it is another."""
    is_profiled: bool = False
    """Whether a profile of it is printed; its figures are then of no use."""

    def measure(self, module: str, job: Any) -> Sample:
        """Do a job of that benchmark once, in a process of its own."""
        text = json.dumps(attrs.asdict(job))
        environ = {**os.environ, "PYTHONPATH": self.source} if self.source else None
        name = self.alias or self.name
        command = [sys.executable, "-m", "benchmarks._process", module, name, text]
        command += ["--profile"] if self.is_profiled else []
        return _run(command, environ)

    @property
    def reason_to_leave_out(self) -> str | None:
        """Why it cannot take part here; ``None``: it can."""
        loop = None if self.loop == "asyncio" else self.loop
        for module in (self.needs, loop):
            if module and importlib.util.find_spec(module) is None:
                return f"{module} is not installed; {_INSTALL}"
        return self.missing

    def run(self, job: Any) -> Sample:
        """Do the job in this process."""
        if self.loop is None:
            sample = self.work(job)
        elif self.loop == "uvloop":
            sample = anyio.run(self.work, job, backend_options={"use_uvloop": True})
        else:
            sample = anyio.run(self.work, job, backend=self.loop)
        if not isinstance(sample, Sample):
            raise TypeError(f"{self.name} measured nothing")
        return sample


def ours_on_other_loops(ours: Client) -> tuple[Client, ...]:
    """Return our client on trio and uvloop."""
    return tuple(
        attrs.evolve(ours, name=f"{OURS} ({loop})", role=Role.VARIANT, loop=loop)
        for loop in ("trio", "uvloop")
    )


def _run(command: list[str], environ: dict[str, str] | None) -> Sample:
    """Run a process that prints a sample as the last line of its output.

    Raises:
        Failed: It did not; the message is the last thing it said.

    """
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Failed(said[-1])
    print(done.stderr, end="", file=sys.stderr)
    return Sample(**json.loads(done.stdout.splitlines()[-1]))


def main(module: str, name: str, text: str, *flags: str) -> None:
    """Run one client in this process and print its sample as JSON."""
    allow_many_descriptors()
    benchmark = importlib.import_module(module)
    client = next(client for client in benchmark.CLIENTS if client.name == name)
    job = benchmark.Job(**json.loads(text))
    sample = _profiled(client, job) if flags else client.run(job)
    print(json.dumps(attrs.asdict(sample)))


def _profiled(client: Client, job: Any) -> Sample:
    """Print where the CPU time of the main thread goes while it is measured."""
    Meter.profile = profile = cProfile.Profile(time.thread_time)
    sample = client.run(job)
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(40)
    return sample


if __name__ == "__main__":
    main(*sys.argv[1:])
