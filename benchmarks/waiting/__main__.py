"""Simulate how uploads wait for a room, and print tables: ``python -m benchmarks.waiting``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.waiting import _chart, _report, _study

NAME = "python -m benchmarks.waiting"
FOLDER = "docs/waiting"


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, print, and save what is asked for."""
    found = _parser().parse_args(arguments)
    began = time.perf_counter()
    effort = _study.Effort(rounds=found.rounds, crowds=found.crowds, seed=found.seed)
    study = _study.study(effort)
    report = _report.text(study)
    print(report)
    print(*_report.notes(study), sep="\n")
    print(f"It took {time.perf_counter() - began:.0f} s.")
    if found.save:
        _save(study, report, found.save)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=NAME, description=(__doc__ or "").partition(":")[0])
    usual = _study.Effort()
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


def _save(study: _study.Study, report: str, folder: Path) -> None:
    effort = study.effort
    command = (
        f"{NAME} --rounds {effort.rounds} --crowds {effort.crowds} --seed {effort.seed} --save"
    )
    head = ["# Waiting for a room, simulated\n", f"```sh\n{command}\n```\n", *_report.notes(study)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text("\n".join([*head, "", report]), encoding="utf-8")
    for name, chart in _chart.charts(study).items():
        (folder / f"{name}.svg").write_text(chart, encoding="utf-8")


if __name__ == "__main__":
    main()
