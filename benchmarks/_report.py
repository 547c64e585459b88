"""The report as Markdown: targets, ratios, figures, and on what it was measured."""

from __future__ import annotations

import os
import platform
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import attrs

from benchmarks._compare import Comparison, Spread, Target, is_met

UNKNOWN = "-"
_PACKAGES = ("meeting-async", "httpx", "httptools", "anyio", "trio", "uvloop")
_PEERS = ("httpx2", "aiohttp", "pyreqwest", "plugnmeet-sdk")


@attrs.frozen
class Section:
    """The comparisons of one kind, and how to read them."""

    title: str
    notes: str
    comparisons: tuple[Comparison, ...]


def text(sections: Sequence[Section], machine: dict[str, str], command: str) -> str:
    """Return the whole report."""
    return "\n".join(_report(sections, machine, command)) + "\n"


def _report(sections: Sequence[Section], machine: dict[str, str], command: str) -> Iterator[str]:
    yield "# Benchmarks\n"
    yield "In each round the clients run in turn, each in a new process. The figures are medians"
    yield "over the rounds. *Ours / theirs* is the ratio within one round, with its range over the"
    yield "rounds: it depends less on the machine.\n"
    yield f"```sh\n{command}\n```\n"
    yield from (f"* {name}: {value}" for name, value in machine.items())
    yield "\n## Targets\n"
    met, others = _targets(sections)
    yield f"{met} of {met + len(others)} are reached. The others:\n"
    yield from _table(("task", "target", "reached"), iter(others))
    for section in sections:
        yield f"\n## {section.title}\n\n{section.notes}"
        for comparison in section.comparisons:
            yield from _comparison(comparison)


def _comparison(comparison: Comparison) -> Iterator[str]:
    task = comparison.task
    columns = task.columns
    yield f"\n### {task.title}\n"
    ratios = [f"{columns[0].title}, ours / theirs"] if comparison.peers else []
    heading = ("", *(column.title for column in columns), *ratios)
    yield from _table(heading, _rows(comparison))
    if comparison.left_out:
        yield ""
    yield from (f"* left out: {name}: {reason}" for name, reason in comparison.left_out.items())


def _targets(sections: Sequence[Section]) -> tuple[int, list[Sequence[str]]]:
    """Return how many are reached, and a row for each of the others."""
    met, others = 0, list[Sequence[str]]()
    for section in sections:
        for comparison in section.comparisons:
            for target in comparison.task.targets:
                reached = comparison.reached(target)
                if reached is not None and is_met(target, reached):
                    met += 1
                else:
                    row = (comparison.task.title, _wanted(target), _got(target, reached))
                    others.append(row)
    return met, others


def _wanted(target: Target) -> str:
    sign = ">=" if target.column.more_is_better else "<="
    ratio = f" x {target.peer}" if target.peer else ""
    return f"{target.column.title} {sign} {target.bound:g}{ratio}"


def _got(target: Target, reached: Spread | None) -> str:
    if target.peer is not None:
        return _cell(reached, 2, " x")
    return _cell(reached, target.column.decimals)


def _rows(comparison: Comparison) -> Iterator[Sequence[str]]:
    """Yield the figures of each client; of a peer, also what ours are to its first one."""
    columns = comparison.task.columns
    for name in comparison.roles:
        cells = [_median(comparison.figure(column, name), column.decimals) for column in columns]
        if name in comparison.peers:
            cells.append(_cell(comparison.ratio(columns[0], name), 2, " x"))
        elif comparison.peers:
            cells.append("")
        yield (name, *cells)


def _median(spread: Spread | None, decimals: int) -> str:
    return UNKNOWN if spread is None else f"{spread.median:.{decimals}f}"


def _cell(spread: Spread | None, decimals: int, unit: str = "") -> str:
    return UNKNOWN if spread is None else spread.text(decimals, unit)


def _table(heading: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    for cells in (heading, ["---", *["--:"] * (len(heading) - 1)], *rows):
        yield f"| {' | '.join(cells)} |"


# --- the machine ---------------------------------------------------------------------------------


def machine() -> dict[str, str]:
    """Return facts without which a figure says nothing; ask before anything is measured."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {
        "cores": f"{os.cpu_count()}, {_processor()}",
        "load at the start": f"{load()} (1, 5, 15 minutes)",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{python}, {ssl.OPENSSL_VERSION}",
        "packages": ", ".join(f"{name} {_version(name)}" for name in (*_PACKAGES, *_PEERS)),
        "curl": _curl_version(),
    }


def load() -> str:
    """How busy the machine is."""
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = [line.split(": ", 1)[1] for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(missing)"


def _curl_version() -> str:
    if not shutil.which("curl"):
        return "not on PATH"
    said = subprocess.run(["curl", "-q", "--version"], capture_output=True, text=True, check=True)
    return said.stdout.split(" (")[0]
