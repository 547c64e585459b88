"""The comparisons run; the simulation of waiting shows what the client promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks._loads import Load
from benchmarks.waiting import _study
from benchmarks.waiting._strategies import FIRST, ORACLE, OURS
from benchmarks.waiting._study import Effort


@pytest.mark.nightly
def test_the_simulation_of_waiting() -> None:
    """On a slow and on a fast line, in Mbit/s, the client keeps to its targets.

    A waiter starts on average within 2 s after the release and re-sends nothing. A wrong answer to
    the empty form costs two documents at most; then the policy waits. Fifty processes re-send less
    than half of what they did with version 0.1.0's default. What knows the future re-sends nothing,
    and no room stands idle.
    """
    names = (OURS, FIRST, ORACLE)
    study = _study.study(Effort(rounds=20, crowds=1, lines=(1, 1000), names=names))
    targets = [*_study.targets(study)]
    assert [target.text for target in targets if not target.is_met] == []
    assert [target.bound for target in targets] == [2, 0, 2, 2, 0.5, 0.5]
    most = [max(t[OURS].vain) for (line, _), t in study.lied_to.items() if line == 1000]
    assert max(most) == 2  # or the server's answers were never believed
    for tallies in (*study.single.values(), *study.crowds.values()):
        assert tallies[ORACLE].resent == 0
        assert max(tallies[ORACLE].idles) == 0
    for tallies in study.crowds.values():
        assert len(tallies[OURS].refused) == _study.CROWD


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
