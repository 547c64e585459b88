"""A client that takes part in a comparison, and the fresh process it runs in for every sample."""

from __future__ import annotations

import enum
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import anyio
import attrs

from benchmarks._measure import Sample

OURS = "meeting_async"

ROOT = Path(__file__).parent.parent
"""Where ``python -m benchmarks.…`` finds the package."""

INSTALL = "pip install --group bench"


class Role(enum.Enum):
    """What a client is there for."""

    OURS = "ours"
    VARIANT = "variant"
    """Ours on another event loop; no ratios are taken."""
    PEER = "peer"
    CEILING = "ceiling"
    """No client: a bare loop on sockets, which shows what server and kernel can take."""


class Failed(Exception):
    """A client could not do its job; the message says why."""


@attrs.frozen
class Client:
    """Takes part in a comparison."""

    name: str
    role: Role
    measure: Callable[[Any], Sample]
    """Does a job once, in a process of its own."""
    missing: str | None = None
    """Why it cannot take part."""


@attrs.frozen
class PythonClient:
    """A client in Python: what the fresh process does."""

    name: str
    role: Role
    work: Callable[[Any], Any]
    """Does a job and returns its sample; a coroutine function, if there is a loop."""
    loop: str | None = "asyncio"
    """``asyncio``, ``uvloop``, ``trio``, or ``None`` for blocking code."""
    needs: str | None = None
    """Module that may not be installed; the loop's own counts by itself."""

    def client(self, module: str) -> Client:
        """Return the client whose fresh process runs :func:`main` of ``module``."""

        def measure(job: Any) -> Sample:
            text = json.dumps(attrs.asdict(job))
            return run([sys.executable, "-m", module, self.name, text])

        return Client(self.name, self.role, measure, self._missing())

    def _missing(self) -> str | None:
        loop = None if self.loop == "asyncio" else self.loop
        for module in (self.needs, loop):
            if module and importlib.util.find_spec(module) is None:
                return f"{module} is not installed; {INSTALL}"
        return None

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


def run(command: list[str]) -> Sample:
    """Run a process that prints a sample as the last line of its output.

    Raises:
        Failed: It did not; the message is the last thing it said.

    """
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Failed(said[-1])
    return Sample(**json.loads(done.stdout.splitlines()[-1]))


def main(clients: Iterable[PythonClient], job: type, arguments: list[str]) -> None:
    """Run one client in this process and print its sample as JSON."""
    name, text = arguments
    client = next(client for client in clients if client.name == name)
    print(json.dumps(attrs.asdict(client.run(job(**json.loads(text))))))
