"""Every Python example of the README runs and prints what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", README, re.DOTALL | re.MULTILINE
)


def test_each_example_has_its_output() -> None:
    """No Python block stands without the output it is checked against."""
    assert len(EXAMPLES) == README.count("```python") >= 2


@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_example(code: str, output: str, tmp_path: Path) -> None:
    """The example prints its output, as a program of its own, with warnings as errors."""
    (tmp_path / "deck.pdf").write_bytes(b"%PDF-1.7\n".ljust(1180, b"%"))
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (output, "")


def test_two_commands_come_first() -> None:
    """The first two shell blocks are the demo and the tests; the continuous check relies on it."""
    demo, tests, *_ = re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert demo.strip().endswith("meeting-async demo")
    assert "pytest" in tests
