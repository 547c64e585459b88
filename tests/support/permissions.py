"""Somebody whom permissions bind, and a folder in which everybody may read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

NOBODY = 65534


@contextmanager
def unprivileged() -> Iterator[None]:
    """Be nobody for a moment if we are root, whom permissions do not bind.

    Load everything before: nobody may not enter the home folder in which this clone may be.
    """
    is_root = os.geteuid() == 0
    if is_root:
        os.setresuid(NOBODY, NOBODY, 0)  # access(2) asks for the real user, open(2) for the other
    try:
        yield
    finally:
        if is_root:
            os.setresuid(0, 0, 0)


@contextmanager
def public_folder() -> Iterator[Path]:
    """Make a folder in which everybody may read: those of pytest are their owner's alone."""
    before = os.umask(0o022)
    try:
        with TemporaryDirectory(dir="/tmp") as folder:
            path = Path(folder)
            path.chmod(0o755)
            yield path
    finally:
        os.umask(before)
