"""Running a program to its end."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE = 50.0
"""Seconds, also on a busy machine."""


def run_to_its_end(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a program, which must succeed, and return what it prints."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
