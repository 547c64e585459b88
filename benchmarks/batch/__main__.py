"""Measure batches of uploads: ``python -m benchmarks.batch``.

How long they take, compared with the least they could, and what they cost. It takes about 20
minutes; ``--quick`` takes less than one and only shows that all works.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence

import attrs

from benchmarks import _machine, _options, _report
from benchmarks._options import Options
from benchmarks._section import Findings, Section
from benchmarks.batch import _costs, _schedule

NAME = "python -m benchmarks.batch"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is asked for and print its report."""
    parser = argparse.ArgumentParser(prog=NAME, description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--part", choices=("schedule", "costs"), help="only one of the two")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, one round: figures of no use"
    )
    _options.add(parser)
    _options.add_json(parser)
    found, options = _options.parsed(parser, arguments)
    if found.quick:
        options = attrs.evolve(options, rounds=1)
    machine = _machine.facts()
    parts = [found.part] if found.part else ["schedule", "costs"]
    makers = _QUICK if found.quick else _PARTS
    sections = tuple(makers[part](options) for part in parts)
    command = f"{NAME}{' --quick' if found.quick else ''}"
    command += f"{f' --part {found.part}' if found.part else ''}{options.command}"
    findings = Findings(sections, _machine.at_the_end(machine), command)
    as_json = json.dumps(_report.as_json(findings), indent=2) if found.json else ""
    print(as_json or _report.text(findings))


_Parts = Mapping[str, Callable[[Options], Section]]
_PARTS: _Parts = {"schedule": _schedule.section, "costs": _costs.section}
_QUICK: _Parts = {"schedule": _schedule.quick, "costs": _costs.quick}


if __name__ == "__main__":
    main()
