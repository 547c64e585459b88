"""Run all benchmarks and print one report: ``python -m benchmarks``.

It takes about 40 minutes; ``--quick`` takes less than one and only shows that all works.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from benchmarks import _machine, _options, _page, _report, calls, many, upload
from benchmarks._options import Options
from benchmarks._section import Findings, Section
from benchmarks.batch import _costs, _schedule

NAME = "python -m benchmarks"
FOLDER = "docs/benchmarks"

BOTH_PROTOCOLS = (False, True)
SECTIONS: Mapping[str, Callable[[Options], Section]] = {
    "upload": lambda options: upload.section([2**30, 30 * 2**20], options, BOTH_PROTOCOLS),
    "calls": lambda options: calls.section(calls.CONCURRENCIES, calls.SECONDS, options),
    "many": lambda options: many.section(1000, options),
    "schedule": _schedule.section,
    "batch": _costs.section,
}
QUICK: Mapping[str, Callable[[Options], Section]] = {
    "upload": lambda options: upload.section([2**20], options, BOTH_PROTOCOLS),
    "calls": lambda options: calls.section([10], 0.1, options),
    "many": lambda options: many.section(20, options, hold=0.1),
    "schedule": _schedule.quick,
    "batch": _costs.quick,
}


@attrs.frozen
class Settings:
    """What the command line asks for."""

    options: Options
    quick: bool
    only: tuple[str, ...]
    save: Path | None

    @property
    def command(self) -> str:
        """The command that reproduces the report."""
        quick = " --quick" if self.quick else ""
        only = f" --only {','.join(self.only)}" if self.only != tuple(SECTIONS) else ""
        return f"{NAME}{quick}{only}{self.options.command}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is asked for, print its report, and save it."""
    settings = _settings(arguments)
    machine = _machine.facts()
    makers = QUICK if settings.quick else SECTIONS
    sections = tuple(makers[name](settings.options) for name in settings.only)
    findings = Findings(sections, _machine.at_the_end(machine), settings.command)
    print(_report.text(findings))
    if settings.save:
        _page.save(findings, settings.save)


def _settings(arguments: Sequence[str] | None) -> Settings:
    parser = argparse.ArgumentParser(prog=NAME, description=(__doc__ or "").partition(":")[0])
    _options.add(parser)
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, one round: figures of no use"
    )
    parser.add_argument("--only", type=_sections, default=tuple(SECTIONS), help=",".join(SECTIONS))
    parser.add_argument(
        "--save",
        type=Path,
        nargs="?",
        const=Path(FOLDER),
        metavar="DIR",
        help=f"write a page, charts and samples as well ({FOLDER})",
    )
    found, options = _options.parsed(parser, arguments)
    if found.quick:
        options = attrs.evolve(options, rounds=1, install=False)
    return Settings(options, found.quick, found.only, found.save)


def _sections(text: str) -> tuple[str, ...]:
    chosen = _options.names(text)
    if not chosen or not set(chosen) <= set(SECTIONS):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(SECTIONS)}")
    return chosen


if __name__ == "__main__":
    main()
