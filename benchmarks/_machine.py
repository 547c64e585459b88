"""Facts about the machine without which a figure says nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata

_PACKAGES = ("meeting-async", "httpx", "httpcore", "h11", "anyio", "trio")


def facts() -> dict[str, str]:
    """Return name and value of each fact; the load is that of the moment."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {
        "cores": str(_cores()),
        "load": _load(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": python,
        "packages": ", ".join(f"{name} {_version(name)}" for name in _PACKAGES),
        "curl": _curl(),
    }


def _cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _load() -> str:
    return " ".join(f"{load:.2f}" for load in os.getloadavg()) + " (1, 5, 15 minutes) at the start"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(missing)"


def _curl() -> str:
    if not shutil.which("curl"):
        return "not found on PATH, so it is left out"
    command = ["curl", "--disable", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.split(" (")[0]
