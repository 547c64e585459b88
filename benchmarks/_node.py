"""node's ``plugnmeet-sdk-js``, installed by npm into a folder of the user's cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import attrs

from benchmarks._client import Client, Role, run
from benchmarks._job import API_KEY, API_SECRET, ROOM_ID, CallsJob
from benchmarks._measure import Sample

NAME = "node plugnmeet-sdk-js"
PACKAGE = "plugnmeet-sdk-js"
VERSION = "1.4.1"

_SCRIPT = Path(__file__).parent / "_node.cjs"
_INSTALL_SECONDS = 60


def client(*, install: bool = True) -> Client:
    """Return the client; it is missing if node, npm or the package cannot be had."""
    missing = _installed() if install else _missing()
    return Client(NAME, Role.PEER, _measure, missing)


def folder() -> Path:
    """Return where the package is, or would be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "meeting-async-benchmarks"


def _measure(job: CallsJob) -> Sample:
    settings = {
        **attrs.asdict(job),
        "package": str(folder() / "node_modules" / PACKAGE),
        "key": API_KEY,
        "secret": API_SECRET,
        "room": ROOM_ID,
    }
    return run(["node", str(_SCRIPT), json.dumps(settings)])


def _missing() -> str | None:
    if not shutil.which("node"):
        return "node is not on PATH"
    manifest = folder() / "node_modules" / PACKAGE / "package.json"
    if not manifest.is_file() or json.loads(manifest.read_text())["version"] != VERSION:
        return f"{PACKAGE} {VERSION} is not installed in {folder()}"
    return None


def _installed() -> str | None:
    """Install the package where it is missing; return why that cannot be."""
    if not _missing() or not shutil.which("node"):
        return _missing()
    if not shutil.which("npm"):
        return "npm is not on PATH"
    try:
        _install()
    except (OSError, subprocess.SubprocessError) as error:
        return f"npm could not install {PACKAGE}: {error}"
    return _missing()


def _install() -> None:
    """Install without the package's own script, which insists on another package manager."""
    folder().mkdir(parents=True, exist_ok=True)
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder())]
    subprocess.run(
        ["npm", "install", *options, f"{PACKAGE}@{VERSION}"],
        check=True,
        capture_output=True,
        timeout=_INSTALL_SECONDS,
    )
