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


PATHS = {
    r"docs\a.pdf": ("docs/a.pdf", r"docs\a.pdf", r"docs\a.pdf"),
    r".\docs\.\a.pdf": ("docs/a.pdf", r".\docs\.\a.pdf", r".\docs\.\a.pdf"),
    "./docs//a.pdf": ("docs/a.pdf", "docs/a.pdf", "./docs//a.pdf"),
    "../docs/../a.pdf": ("../docs/../a.pdf", "../docs/../a.pdf", "../docs/../a.pdf"),
    r"C:\docs\a.pdf": ("C:/docs/a.pdf", r"C:\docs\a.pdf", r"\docs\a.pdf"),
    r"\\host\share\a.pdf": ("//host/share/a.pdf", r"\\host\share\a.pdf", r"\a.pdf"),
    "C:a.pdf": ("C:a.pdf", "C:a.pdf", "a.pdf"),
    "u\u0308.pdf": ("\u00fc.pdf", "\u00fc.pdf", "u\u0308.pdf"),
}
"""How a path is known from Windows and from elsewhere, and what it is there without its drive."""


@pytest.mark.parametrize("path", PATHS)
def test_how_a_path_is_known(path: str) -> None:
    """A backslash is a separator on Windows, and part of a name elsewhere."""
    windows, elsewhere, without_drive = PATHS[path]
    assert _system.spelled_once(path, on_windows=True) == windows
    assert _system.spelled_once(path, on_windows=False) == elsewhere
    assert _system.without_drive(path, on_windows=True) == without_drive
    assert _system.without_drive(path, on_windows=False) == path
