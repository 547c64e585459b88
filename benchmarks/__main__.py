"""Compare this library with other clients on this machine: ``python -m benchmarks``.

It takes about an hour; ``--quick`` takes a minute and only shows that all works.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from benchmarks import _report, batch, calls, many, rooms, schedule, upload
from benchmarks._compare import Options
from benchmarks._report import Section

NAME = "python -m benchmarks"
FOLDER = "docs/benchmarks"
SECTIONS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (upload, calls, rooms, many, batch, schedule)
}
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is asked for, print its report, and save it if asked to."""
    found = _parser().parse_args(arguments)
    options = Options(
        rounds=found.rounds or (1 if found.quick or found.profile else 5),
        names=tuple(filter(None, found.clients.split(","))),
        against=found.against,
        quick=found.quick,
        profile=found.profile,
        size=found.size,
    )
    machine = _report.machine()
    names = found.sections or list(SECTIONS)
    sections = [_section(SECTIONS[name], options) for name in names]
    machine["load at the end"] = _report.load()
    report = _report.text(sections, machine, _command(found, options))
    print(report)
    if found.save:
        found.save.mkdir(parents=True, exist_ok=True)
        (found.save / "README.md").write_text(report, encoding="utf-8")


def _section(module: ModuleType, options: Options) -> Section:
    return Section(module.TITLE, module.NOTES, tuple(module.comparisons(options)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=NAME, description=(__doc__ or "").partition(":")[0])
    parser.add_argument("sections", nargs="*", type=_known, metavar="SECTION", help="all of them")
    parser.add_argument("--rounds", type=int, help="turns of each client (5)")
    parser.add_argument("--size", type=_size, help="of the document of `upload` (1GiB and 30MiB)")
    parser.add_argument(
        "--clients", default="", metavar="A,B", help="only ours and those that begin so"
    )
    parser.add_argument("--against", metavar="DIR", help="another edition's src, to compare with")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: figures of no use")
    parser.add_argument("--profile", action="store_true", help="only profile ours")
    parser.add_argument(
        "--save", type=Path, nargs="?", const=Path(FOLDER), metavar="DIR", help=f"({FOLDER})"
    )
    parser.epilog = f"Sections: {', '.join(SECTIONS)}."
    return parser


def _known(name: str) -> str:
    if name not in SECTIONS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(SECTIONS)}")
    return name


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)(KiB|MiB|GiB|)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 30MiB")
    return int(match[1]) * _UNITS[match[2]]


def _command(found: argparse.Namespace, options: Options) -> str:
    """Return the command that reproduces the report."""
    words = [NAME, *found.sections, f"--rounds {options.rounds}"]
    words += [f"--clients '{found.clients}'"] if found.clients else []
    words += [f"--size {found.size}"] if found.size else []
    words += [f"--against {found.against}"] if found.against else []
    return " ".join([*words, "--quick"] if found.quick else words)


if __name__ == "__main__":
    main()
