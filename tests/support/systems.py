"""Which tests do not run on Windows, and why: one table.

A row is the id of a test, of a file or of a folder; `*` stands for any text. A row that is no test's fails
the run of the whole suite.
"""

from __future__ import annotations

import ctypes
import fnmatch
import functools
import re
import sys
from collections.abc import Iterable

import pytest

IS_WINDOWS = sys.platform == "win32"

LINUX: dict[str, list[str]] = {
}
"""Tests of what Windows does not have, by the reason."""

WINE: dict[str, list[str]] = {
}
"""Tests of what Windows has, and Wine has not."""


@functools.cache
def is_wine() -> bool:
    """Return whether Windows is played by Wine."""
    return IS_WINDOWS and hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")


@functools.cache
def _trio_starts() -> bool:
    import trio

    try:
        trio.run(trio.lowlevel.checkpoint)
    except OSError:
        return False
    return True


def is_of(row: str, nodeid: str) -> bool:
    """Return whether a row of the table is about a test."""
    pattern = row.replace("[", "[[]")
    return any(fnmatch.fnmatchcase(nodeid, pattern + end) for end in ("", "[[]*", "::*", "/*"))


def skip_what_cannot_run(items: Iterable[pytest.Item]) -> None:
    """Mark tests that do not run on Windows, if this is Windows."""
    table = LINUX | (WINE if is_wine() else {})
    rows = [(row, reason) for reason, rows in table.items() for row in rows]
    for item in items:
        reasons = [reason for row, reason in rows if is_of(row, item.nodeid)]
        if re.search(r"[\[-]trio[\]-]", item.nodeid) and not _trio_starts():
            reasons.append("trio does not start here (WinError 10045)")
        if reasons:
            item.add_marker(pytest.mark.skip(reason=reasons[0]))


def check_table(items: Iterable[pytest.Item]) -> None:
    """Raise if a row is about no test of the whole suite."""
    names = [item.nodeid for item in items]
    rows = [row for table in (LINUX, WINE) for rows in table.values() for row in rows]
    if rotten := [row for row in rows if not any(is_of(row, name) for name in names)]:
        raise pytest.UsageError(f"support/systems.py: no test is called {', '.join(rotten)}")
