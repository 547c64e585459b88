"""The tests of the two modules that decide are good enough: they notice any change of a decision.

Every cell of the verdict table, every judgement and every comparison of ``_verdicts`` and
``_policies`` is flipped, one at a time, in a copy of the package; some test of the module must
fail. Each test run tries a sample, spread over all mutants; the nightly profile tries every one::

    MEETING_ASYNC_PROOF=nightly python -m pytest tests/test_mutations.py
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import meeting_async
from _mutants import Mutant, comparisons, members, mutants
from meeting_async._verdicts import Step, Verdict

HERE, PACKAGE = Path(__file__).parent, Path(meeting_async.__file__).parent
IS_NIGHTLY = os.environ.get("MEETING_ASYNC_PROOF") == "nightly"
SHARE = {"_verdicts": 1, "_policies": 1} if IS_NIGHTLY else {"_verdicts": 17, "_policies": 3}
"""A sample takes one mutant in so many."""

TESTS = {"_verdicts": "test_verdicts.py", "_policies": "test_policies.py"}

EQUIVALENT = {
    "200 < status < 300 -> 200 <= status < 300": "status 200 was judged before",
    "200 < status < 300 -> 200 < status <= 300": "status 300 was judged before",
}
"""Mutants that no test can notice, and why."""

LEFT_TO_CHANCE = {
    "remaining < _ROUNDING -> remaining <= _ROUNDING": (
        "differs at one number only, and a property test may or may not come upon it"
    ),
}
"""Mutants that a test notices sometimes, and why."""

pytestmark = pytest.mark.timeout(1800 if IS_NIGHTLY else 240)


def table_cells() -> list[Mutant]:
    """Put every other step into every cell of the verdict table."""
    return mutants(_source("_verdicts"), {"_STEPS"}, members("Step", [step.name for step in Step]))


def judgements() -> list[Mutant]:
    """Put every other verdict in the place of each that is passed."""
    places = {"judge", "_judge_200", "_WITHOUT_ANSWER"}
    names = [verdict.name for verdict in Verdict]
    return mutants(_source("_verdicts"), places, members("Verdict", names))


def questions() -> list[Mutant]:
    """Flip every comparison on the way to a verdict, a step or an error."""
    places = {"judge", "_judge_200", "next_step", "reply_error", "_refusal", "hint"}
    return mutants(_source("_verdicts"), places, comparisons)


def arithmetic() -> list[Mutant]:
    """Flip every comparison in the policies and in the checks of their settings."""
    places = {"LockPolicy", "RetryPolicy", "jittered", "_number", "_instance", "_delivery"}
    return mutants(_source("_policies"), places, comparisons)


def _source(module: str) -> str:
    return (PACKAGE / f"{module}.py").read_text("utf-8")


def survivors(folder: Path, module: str, candidates: Sequence[Mutant]) -> set[str]:
    """Run the module's tests on each mutant and, at last, on the module as it is."""
    _copy(folder, module)
    program = [sys.executable, str(HERE / "_mutants.py"), str(folder), module, TESTS[module]]
    sources = [*(mutant.source for mutant in candidates), _source(module)]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        program,
        input="\n".join(map(json.dumps, sources)),
        capture_output=True,
        text=True,
        env=environ,
        cwd=folder,  # so that nothing is learnt from the mutants of another run
        check=False,
    )
    *noticed, control = map(json.loads, done.stdout.splitlines())
    assert len(noticed) == len(candidates), done.stderr
    assert control is False, "the tests fail on the module as it is"
    return {one.name for one, seen in zip(candidates, noticed, strict=True) if not seen}


def _copy(folder: Path, module: str) -> None:
    package = folder / "src" / "meeting_async"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").mkdir()
    for name in (TESTS[module], "_properties.py"):
        shutil.copy(HERE / name, folder / "tests")
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")  # or it looks for one above


def _sample(candidates: list[Mutant], share: int) -> list[Mutant]:
    """Take some, and those that are known to survive: to see that survivors are seen."""
    known = [mutant for mutant in candidates if mutant.name in EQUIVALENT]
    return list(dict.fromkeys([*candidates[::share], *known]))


def everything(module: str) -> list[Mutant]:
    """Make all mutants of a module."""
    if module == "_policies":
        return arithmetic()
    return [*table_cells(), *judgements(), *questions()]


@pytest.mark.parametrize("module", TESTS)
def test_some_test_notices_every_change(module: str, tmp_path: Path) -> None:
    """But for those that are known to change nothing that matters."""
    sample = _sample(everything(module), SHARE[module])
    found = survivors(tmp_path, module, sample)
    assert found - set(LEFT_TO_CHANCE) == {one.name for one in sample} & set(EQUIVALENT)


def test_what_is_known_to_survive_is_there() -> None:
    """No mutant is excused that is none."""
    names = {mutant.name for module in TESTS for mutant in everything(module)}
    assert names >= {*EQUIVALENT, *LEFT_TO_CHANCE}


def test_the_mutants_are_those_meant() -> None:
    """Every cell and every judgement, with every other value; the operators, one by one."""
    assert len(table_cells()) == len(Verdict) * 4 * (len(Step) - 1)
    sources = [mutant.source for mutant in table_cells()[:20]]
    assert len({*sources, ast.unparse(ast.parse(_source("_verdicts")))}) == 21
    assert {mutant.standing for mutant in judgements()} == {f"Verdict.{v.name}" for v in Verdict}
    assert {mutant.name for mutant in arithmetic()} >= {
        "remaining < _ROUNDING -> remaining >= _ROUNDING",
        "hint is not None -> hint is None",
        "low <= value <= high -> low < value <= high",
        "low <= value <= high -> low <= value > high",
    }
    assert {mutant.name for mutant in questions()} >= {
        "answer.status == 401 -> answer.status != 401",
        "300 <= status < 500 -> 300 < status < 500",
        "status != 408 -> status == 408",
    }
