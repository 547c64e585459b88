"""Facts about the machine without which a figure says nothing."""

from __future__ import annotations

import os
import platform
import shutil
import ssl
import subprocess
from importlib import metadata
from pathlib import Path

_OURS = ("meeting-async", "httpx", "httpcore", "h11", "anyio", "trio", "uvloop")
_PEERS = ("httpx2", "httpcore2", "aiohttp", "plugnmeet-sdk")


def facts() -> dict[str, str]:
    """Return name and value of each fact, to be asked for before anything is measured."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {
        "cores": f"{_cores()}, {_processor()}",
        "load": f"{_load()} (1, 5, 15 minutes) at the start",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{python}, {ssl.OPENSSL_VERSION}",
        "packages": ", ".join(f"{name} {_version(name)}" for name in _OURS),
        "peers": ", ".join(f"{name} {_version(name)}" for name in _PEERS),
        "curl": _output("curl", "--disable", "--version").split(" (")[0],
        "node": _output("node", "--version"),
    }


def at_the_end(facts: dict[str, str]) -> dict[str, str]:
    """Add the load after all was measured: that of the benchmark itself, and of whoever else."""
    return {**facts, "load": f"{facts['load']}, {_load()} at the end"}


def _cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = [line.split(": ", 1)[1] for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def _load() -> str:
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(missing)"


def _output(*command: str) -> str:
    if not shutil.which(command[0]):
        return "not found on PATH, so it is left out"
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
