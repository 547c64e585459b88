"""What the benchmarks' command lines have in common."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence

import attrs

from benchmarks import _machine, _report
from benchmarks._client import Client, Role
from benchmarks._section import Findings, Section

_UNITS = {None: 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@attrs.frozen(kw_only=True)
class Options:
    """How to measure, whatever it is."""

    rounds: int = 5
    clients: tuple[str, ...] = ()
    """Only clients whose names begin like one of these, and ours; nothing: all."""
    install: bool = True
    """Get what npm can, if it is missing."""

    def chosen(self, clients: Iterable[Client]) -> list[Client]:
        """Keep the clients that were asked for."""
        return [
            client
            for client in clients
            if client.role is Role.OURS or not self.clients or client.name.startswith(self.clients)
        ]

    @property
    def command(self) -> str:
        """The command line that asks for the same."""
        clients = f" --clients '{','.join(self.clients)}'" if self.clients else ""
        install = "" if self.install else " --no-install"
        return f" --rounds {self.rounds}{clients}{install}"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options to a parser."""
    parser.add_argument("--rounds", type=count, default=5, help="turns of each (%(default)s)")
    parser.add_argument(
        "--clients", type=names, default=(), help="only ours and those that begin so: curl,httpx"
    )
    parser.add_argument(
        "--no-install", dest="install", action="store_false", help="install nothing by npm"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the choice of the output to a parser."""
    parser.add_argument("--json", action="store_true", help="print JSON, every sample included")


def names(text: str) -> tuple[str, ...]:
    """Read a list with commas."""
    return tuple(filter(None, text.split(",")))


def count(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def size(text: str) -> int:
    """Read a number of bytes such as ``30MiB``."""
    match = re.fullmatch(r"(\d+) ?(KiB|MiB|GiB)?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 30MiB")
    return int(match[1]) * _UNITS[match[2]]


def shown(size: int) -> str:
    """Write a number of bytes so that :func:`size` reads it."""
    unit = next(unit for unit in ("GiB", "MiB", "KiB", None) if size % _UNITS[unit] == 0)
    return f"{size // _UNITS[unit]}{unit or ''}"


def report(section: Section, machine: dict[str, str], command: str, *, as_json: bool) -> None:
    """Print what a benchmark found."""
    findings = Findings((section,), _machine.at_the_end(machine), command)
    print(json.dumps(_report.as_json(findings), indent=2) if as_json else _report.text(findings))


def parsed(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> tuple[argparse.Namespace, Options]:
    """Parse a command line; return all of it, and the options in common."""
    found = parser.parse_args(arguments)
    return found, Options(rounds=found.rounds, clients=found.clients, install=found.install)
