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
from benchmarks._process import OURS

UNKNOWN = "-"
_PACKAGES = ("meeting-async", "httpx", "h11", "anyio", "trio", "uvloop")
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
    yield "Each client runs in a fresh process for every sample; in each round all take turns, so"
    yield "that whatever else the machine does meets them all. Medians over the rounds, with the"
    yield "range; a ratio is ours divided by theirs within one round. Read the ratios first.\n"
    yield f"```sh\n{command}\n```\n"
    yield from (f"* {name}: {value}" for name, value in machine.items())
    yield "\n## Targets\n"
    yield from _table(("task", "target", "reached", "met"), _targets(sections))
    for section in sections:
        yield f"\n## {section.title}\n\n{section.notes}"
        for comparison in section.comparisons:
            yield from _comparison(comparison)


def _comparison(comparison: Comparison) -> Iterator[str]:
    task = comparison.task
    titles = [column.title for column in task.columns]
    yield f"\n### {task.title}\n"
    if comparison.peers:
        yield from _table((f"{OURS} /", *titles), _ratios(comparison))
        yield ""
    yield from _table(("", *titles), _figures(comparison))
    if comparison.left_out:
        yield ""
    yield from (f"* left out: {name}: {reason}" for name, reason in comparison.left_out.items())


def _targets(sections: Sequence[Section]) -> Iterator[Sequence[str]]:
    for section in sections:
        for comparison in section.comparisons:
            for target in comparison.task.targets:
                reached = comparison.reached(target)
                met = UNKNOWN if reached is None else "yes" if is_met(target, reached) else "no"
                yield (comparison.task.title, _wanted(target), _got(target, reached), met)


def _wanted(target: Target) -> str:
    sign = ">=" if target.column.more_is_better else "<="
    ratio = f" x {target.peer}" if target.peer else ""
    return f"{target.column.title} {sign} {target.bound:g}{ratio}"


def _got(target: Target, reached: Spread | None) -> str:
    if target.peer is not None:
        return _cell(reached, 2, " x")
    return _cell(reached, target.column.decimals)


def _ratios(comparison: Comparison) -> Iterator[Sequence[str]]:
    for name in comparison.peers:
        ratios = [comparison.ratio(column, name) for column in comparison.task.columns]
        yield (name, *(_cell(ratio, 2, " x") for ratio in ratios))


def _figures(comparison: Comparison) -> Iterator[Sequence[str]]:
    for name in comparison.roles:
        columns = comparison.task.columns
        yield (name, *(_cell(comparison.figure(c, name), c.decimals) for c in columns))


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
