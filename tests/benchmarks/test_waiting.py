"""The simulation of waiting for a room: what the client promises, and that it prints a report."""

from __future__ import annotations

import statistics
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from benchmarks.waiting import __main__ as command
from benchmarks.waiting import _study
from benchmarks.waiting._strategies import FIRST, ORACLE, OURS
from benchmarks.waiting._study import Effort, Study


@pytest.fixture(scope="module")
def study() -> Study:
    """A small one: on a slow and on a fast line."""
    return _study.study(Effort(rounds=40, crowds=1, lines=(1, 30, 100, 1000), names=(OURS, FIRST, ORACLE)))


@pytest.mark.parametrize("line", [1, 1000])
def test_a_single_waiter_starts_within_two_seconds(study: Study, line: int) -> None:
    """A waiter starts on average within 2 s after the release and re-sends one document at most."""
    assert study.worst(line, OURS, lambda tally: statistics.fmean(tally.starts)) <= 2
    assert study.worst(line, OURS, lambda tally: max(tally.refused)) == 1


def test_a_crowd_re_sends_less_than_half(study: Study) -> None:
    """Fifty processes re-send less than half of what they did with the first edition's default.

    On slower lines all of them begin again when the room is first free, as a single one must.
    """
    for line in (30, 100, 1000):
        for hold in _study.CROWD_HOLDS:
            assert study.resent_ratio(line, hold) < 0.5
            assert len(study.crowds[line, hold][OURS].refused) == _study.CROWD


def test_a_server_that_always_answers_free_costs_two_documents(study: Study) -> None:
    """A wrong answer to the empty form costs two documents at most; then the policy waits."""
    for tallies in study.lied_to.values():
        ours, first = tallies[OURS], tallies[FIRST]
        assert max(ours.vain) <= 2
        assert ours.resent <= first.resent + 2
    most = [max(t[OURS].vain) for (line, _), t in study.lied_to.items() if line == 1000]
    assert max(most) == 2  # or the server's answers were never believed


def test_the_oracle_bounds_all_others(study: Study) -> None:
    """Nothing is re-sent by what knows the future, and no room stands idle."""
    for tallies in (*study.single.values(), *study.crowds.values()):
        assert tallies[ORACLE].resent == 0
        assert max(tallies[ORACLE].idles) == 0


def test_prints_and_saves_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prints targets and tables, and saves them with its own line and charts."""
    monkeypatch.setattr(_study, "CROWD", 3)
    command.main(["--rounds", "2", "--crowds", "1", "--save", str(tmp_path)])
    printed = capsys.readouterr().out
    saved = (tmp_path / "README.md").read_text()
    assert printed.startswith("## Targets")
    assert "python -m benchmarks.waiting --rounds 2 --crowds 1 --seed 1 --save\n" in saved
    assert saved.count("\n## ") == printed.count("## ")
    for name in ("start", "again", "crowd"):
        assert ET.parse(tmp_path / f"{name}.svg").getroot().tag.endswith("svg")
