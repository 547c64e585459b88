"""Simulate how uploads wait for a room, and print tables: ``python -m benchmarks.waiting``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.waiting import _chart, _report
from benchmarks.waiting._study import Effort, Study, study

NAME = "python -m benchmarks.waiting"
FOLDER = "docs/waiting"
INTRODUCTION = """\
The client's own decisions in virtual time, compared with [three other ways to
wait](../waiting.md#measurements). The tables have every second of the seven lines in the pictures.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, print, and save if asked to."""
    found = _parser().parse_args(arguments)
    began = time.perf_counter()
    result = study(Effort(rounds=found.rounds, crowds=found.crowds, seed=found.seed))
    report = _report.text(result)
    print(report)
    print(f"It took {time.perf_counter() - began:.0f} s.")
    if found.save:
        _save(result, report, found.save)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=NAME, description=(__doc__ or "").partition(":")[0])
    usual = Effort()
    parser.add_argument("--rounds", type=_positive, default=usual.rounds, help="of one waiter")
    parser.add_argument("--crowds", type=_positive, default=usual.crowds, help="rounds of a crowd")
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument(
        "--save",
        type=Path,
        nargs="?",
        const=Path(FOLDER),
        metavar="DIR",
        help=f"write tables and charts as well ({FOLDER})",
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _save(result: Study, report: str, folder: Path) -> None:
    effort = result.effort
    asked = f"--rounds {effort.rounds} --crowds {effort.crowds} --seed {effort.seed} --save"
    head = f"# Waiting, simulated\n\n{INTRODUCTION}\n```sh\n{NAME} {asked}\n```\n\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(head + report, encoding="utf-8")
    for name, chart in _chart.charts(result).items():
        (folder / f"{name}.svg").write_text(chart, encoding="utf-8")


if __name__ == "__main__":
    main()
