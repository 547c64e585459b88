"""A test that is marked ``alone`` has no neighbours, and the others have some."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import attrs
import pytest

from _alone import HAS_LOCKS

pytest.importorskip("xdist", reason="without it there are no neighbours")

CONFTEST = "from _alone import pytest_configure, pytest_configure_node, pytest_runtest_protocol\n"
SUITE = """
import os, time, pytest
from pathlib import Path

@pytest.mark.parametrize(
    "what", [pytest.param("alone", marks=MARK) if n % 4 == 2 else "among others" for n in range(24)]
)
def test_it(what):
    began = time.monotonic()
    time.sleep(0.05)
    Path(f"{began} {time.monotonic()} {what}").touch()
"""

ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Where the hooks are; other plugins would only take time."""


@attrs.frozen
class Span:
    """When a test ran, in seconds of the machine's clock."""

    began: float
    ended: float
    what: str

    def meets(self, other: Span) -> bool:
        """Tell whether both ran at some moment."""
        return self.began < other.ended and other.began < self.ended


def spans(folder: Path, mark: str) -> list[Span]:
    """Run the suite with three workers, and return when its tests ran."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(SUITE.replace("MARK", mark))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = alone\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "3", "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    named = [path.name.split(maxsplit=2) for path in folder.glob("* * *")]
    return [Span(float(began), float(ended), what) for began, ended, what in named]


@pytest.mark.skipif(not HAS_LOCKS, reason="nothing waits for anything")
@pytest.mark.parametrize("mark", ["pytest.mark.alone", "()"])
def test_those_alone_have_no_neighbours(mark: str, tmp_path: Path) -> None:
    """They meet nobody; without the mark they do, and the others meet each other in any case."""
    found = spans(tmp_path, mark)
    assert len(found) == 24
    met = {
        frozenset((one.what, other.what))
        for one, other in combinations(found, 2)
        if one.meets(other)
    }
    assert frozenset({"among others"}) in met
    assert any("alone" in both for both in met) is (mark == "()")
