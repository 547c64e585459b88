"""The comparisons run; the simulation of waiting shows what the client promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks._loads import Load
from benchmarks.waiting import BLIND, LINES, OURS, POLICIES, Scenario


@pytest.mark.nightly
def test_the_simulation_of_waiting() -> None:
    """A crowd sends fewer documents than with a client that does not ask; nobody is forgotten.

    What knows the future sends each document once, and waits least.
    """
    crowd = Scenario(mean=5, uploads=50, rounds=1, seed=1)
    line = LINES["30 MiB, 1000 Mbit/s"]
    ours, blind = (crowd.played(line, POLICIES[name]) for name in (OURS, BLIND))
    ideal = crowd.ideal(line)
    assert [len(tally.waits) for tally in (ours, blind, ideal)] == [50, 50, 50]
    assert 0 == ideal.resent < ours.resent < blind.resent / 2
    assert ideal.longest <= ours.longest <= 1.1 * blind.longest
    assert (ours.questions > 50, blind.questions) == (True, 0)


pytest.importorskip("resource", reason="the benchmarks measure children with getrusage")

ROOT = Path(__file__).parents[2]


def _quick(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("section", ["upload", "calls", "many", "batch", "schedule"])
def test_each_section_runs(section: str, tmp_path: Path) -> None:
    """Each section prints targets, ratios and figures of ours and of others, with the command."""
    printed = _quick(section, "--save", str(tmp_path))
    assert (tmp_path / "README.md").read_text() in printed
    assert f"python -m benchmarks {section} --rounds 1 --quick" in printed
    assert re.search(r", ours / theirs \|$", printed, re.MULTILINE)
    assert re.search(r"^\| meeting_async \| \d", printed, re.MULTILINE)
    assert "it failed" not in printed


def test_the_least_that_a_load_can_take() -> None:
    """No order is faster than the longest room, nor than all places busy after a release."""
    table = [
        (Load(((2.0, 3.0), (1.0,)), (0.0, 0.0)), 2, 5.0),  # the longest chain
        (Load(((2.0,), (2.0,), (2.0,)), (0.0, 0.0, 0.0)), 2, 3.0),  # shared out
        (Load(((1.0,), (1.0,)), (0.0, 10.1)), 2, 11.0),  # a document is on its way at the release
    ]
    for load, places, least in table:
        assert load.least(places) == pytest.approx(least)
