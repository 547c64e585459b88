"""What differs between Linux, macOS and Windows, as far as one system can show it."""

from __future__ import annotations

import pytest

from meeting_async import _system

NAMES = {
    "jobs.db": "",
    r"C:\term\jobs.db": "",
    "C:jobs.db": "",
    r"\\server\share\jobs.db": "",
    "console.db": "",
    "notes:jobs.db": "has : in its name",
    "C:/term/what?.html": "has ? in its name",
    "nul": "the name of a device",
    r"term\CON.db": "the name of a device",
    "term/com1 .html": "the name of a device",
    "LPT².db": "the name of a device",
    "term/a\0b": "null character",
}
"""Names of journals and reports, and what Windows says."""


@pytest.mark.parametrize("name", NAMES)
def test_names_that_windows_does_not_allow(name: str) -> None:
    """A colon would name a hidden stream of a file, and a device would take everything."""
    problem = _system.name_problem(name, on_windows=True)
    assert NAMES[name] in problem
    assert bool(problem) == bool(NAMES[name])
    assert _system.name_problem(name, on_windows=False) == ""
