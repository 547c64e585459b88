"""The benchmarks run, print what they promise, and reckon right."""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from benchmarks._comparison import Comparison

pytest.importorskip("resource", reason="the benchmarks measure children with getrusage")

ROOT = Path(__file__).parent.parent
OURS, CURL, HTTPX = "meeting_async", "curl", "httpx files="
SIZE = 2 * 1024**2


@pytest.fixture(autouse=True, scope="module")
def _importable() -> Iterator[None]:
    """Find the benchmarks, which are not installed."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(ROOT)
        yield


def run(module: str, *arguments: str, **environ: str) -> str:
    """Run a benchmark and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- as a user runs them -------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_everything_at_once(tmp_path: Path) -> None:
    """One command prints targets, ratios and figures of all, and saves a page with charts."""
    asked = "--quick", "--clients", "httpx post,node", "--save", str(tmp_path)
    printed = run("benchmarks", *asked, XDG_CACHE_HOME=str(tmp_path))
    targets, *blocks = printed.split("\n\n")
    assert "1MiB over TCP" in targets
    titles = ["1MiB over TCP", "calls, 10 at a time", "20 uploads of 64KiB at once"]
    if shutil.which("openssl"):
        titles.insert(1, "1MiB over TLS")
    found = [block.splitlines()[0] for block in blocks]
    number = found.index(titles[0], 1)
    assert found[: len(titles)] == titles
    assert found[:number] == found[number : 2 * number]
    assert {"uniform, locked: 10 rooms, 4 slots, virtual time", "200 queued jobs"} < set(found)
    assert re.search(r"^left out: +node plugnmeet-sdk-js: \S+ .*not ", printed, re.MULTILINE)
    page = (tmp_path / "README.md").read_text()
    assert "python -m benchmarks --quick --rounds 1 --clients " in page
    assert re.search(
        r"^\* load: [\d. ]+ \(.*\) at the start, [\d. ]+ at the end$", page, re.MULTILINE
    )
    assert len(json.loads((tmp_path / "samples.json").read_text())["comparisons"]) == number
    for key in ("upload", "calls", "many", "schedule", "batch"):
        assert f"({key}.svg)" in page
        assert ET.parse(tmp_path / f"{key}.svg").getroot().tag.endswith("svg")


def test_prints_ratios_first_then_the_figures_of_each_client() -> None:
    """Each client has its row in both tables, with speeds, and the command is printed."""
    asked = "--size", "2MiB", "--rounds", "1", "--clients", "curl,httpx files="
    _, ratios, figures, *rest = run("benchmarks.upload", *asked).split("\n\n")
    peers = [CURL, HTTPX] if shutil.which("curl") else [HTTPX]
    positive = r" +0*[1-9.][\d.]*"
    for name in peers:
        assert re.search(rf"^{name}{positive} x \(", ratios, re.MULTILINE), ratios
    for name in [OURS, *peers]:
        assert re.search(rf"^{name}{positive} \(", figures, re.MULTILINE), figures
    for title in ("MB/s", "CPU s/GiB", "memory MiB", "gap ms"):
        assert title in ratios
        assert title in figures
    command = "python -m benchmarks.upload --size 2MiB --rounds 1 --clients 'curl,httpx files='"
    assert command in rest[-1]


def test_json_without_curl(tmp_path: Path) -> None:
    """A curl that is missing is left out with the reason; the samples make up the figures."""
    asked = "--size", "2MiB", "--rounds", "1", "--clients", f"curl,{HTTPX},{OURS} (trio)"
    report = json.loads(run("benchmarks.upload", *asked, "--json", PATH=str(tmp_path)))
    found = report["comparisons"]["upload-2mib-tcp"]
    assert found["left_out"] == {CURL: "curl is not on PATH"}
    assert list(found["ratios"]) == [HTTPX]
    (samples,) = found["samples"]
    assert list(samples) == [OURS, HTTPX, f"{OURS} (trio)"]
    ours, theirs = (samples[name]["seconds"] for name in (OURS, HTTPX))
    assert found["clients"][OURS]["megabytes_per_second"]["median"] == SIZE / ours / 1e6
    ratio = found["ratios"][HTTPX]["megabytes_per_second"]["median"]
    assert ratio == pytest.approx(theirs / ours)
    assert samples[OURS]["gap_seconds"] >= 0


def test_profile_shares_out_the_time_of_a_call() -> None:
    """The libraries' shares add up, and ours is among them."""
    printed = run("benchmarks.calls", "--profile", "--seconds", "0.5")
    libraries = re.search(r"^By library.*\n((?:  .*\n)+)", printed, re.MULTILINE)
    assert libraries
    shares = re.findall(r"^ +([\d.]+)% +[\d.]+ us  (.+)$", libraries[1], re.MULTILINE)
    assert sum(float(share) for share, _ in shares) == pytest.approx(100, abs=len(shares) * 0.1)
    assert OURS in [name for _, name in shares]


@pytest.mark.parametrize("text", ["--size=2MB", "--rounds=0", "--rounds=x"])
def test_refuses_what_it_cannot_read(text: str) -> None:
    """A unit or number that is none ends it before anything is measured."""
    from benchmarks import upload

    with pytest.raises(SystemExit):
        upload.main([text])


# --- what follows from samples -------------------------------------------------------------------


def compared(*rounds: Mapping[str, int], noise: float = 0.0) -> Comparison:
    """Compare clients whose speeds are known: so many calls in one second."""
    from benchmarks._client import Client, Role
    from benchmarks._comparison import BEST, Column, Target, Task, compare
    from benchmarks._measure import Sample

    columns = (
        Column("calls/s", "speed", 1, lambda s: s.calls / s.seconds, True),
        Column("gap ms", "gap", 1, lambda s: s.gap_seconds, noise=noise),
    )
    targets = Target("speed", 1.5, "a<b"), Target("speed", 1.0, BEST), Target("gap", 1.0)
    turns = {name: iter([speeds[name] for speeds in rounds]) for name in rounds[0]}
    roles = {OURS: Role.OURS, "ceiling": Role.CEILING}
    clients = [Client(name, roles.get(name, Role.PEER), lambda _: Sample(1, 1)) for name in turns]

    def sample(client: Client) -> Sample:
        return Sample(1.0, 1.0, calls=next(turns[client.name]))

    return compare(Task("task", "A task", columns, targets), clients, sample, len(rounds))


def test_ratios_are_taken_within_rounds() -> None:
    """The median of ratios, not the ratio of medians; unknown figures have none."""
    found = compared({OURS: 20, "a<b": 10}, {OURS: 60, "a<b": 20}, {OURS: 10, "a<b": 40})
    speed, gap = found.task.columns
    ratio = found.ratio(speed, "a<b")
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 0.25, 3.0)
    figure = found.figure(speed, OURS)
    assert figure is not None
    assert figure.text(1) == "20.0 (10.0..60.0)"
    assert found.ratio(gap, "a<b") is None


def test_targets_and_what_was_reached() -> None:
    """Each target is met, missed or unknown; the ceiling is not the best peer."""
    from benchmarks import _tables
    from benchmarks._section import Findings, Section

    found = compared({OURS: 20, "a<b": 10, "c": 40, "ceiling": 90})
    findings = Findings((Section("s", "S", "notes", (found,)),), {}, "command")
    assert [row[1:] for row in _tables.targets(findings).rows] == [
        ("calls/s >= 1.5 x a<b", "2.00 x (2.00..2.00)", "yes"),
        ("calls/s >= 1 x the best peer (c)", "0.50 x (0.50..0.50)", "no"),
        ("gap ms <= 1", "-", "-"),
    ]
    assert [row[0] for row in _tables.ratios(found).rows] == ["a<b", "c"]


def test_noise_is_no_ratio() -> None:
    """What is below the noise counts as the noise on both sides."""
    import attrs

    found = compared({OURS: 1, "a<b": 1}, noise=0.5)
    gap = found.task.columns[1]
    ((_, ours), (_, theirs)) = found.rounds[0].items()
    samples = {
        OURS: attrs.evolve(ours, gap_seconds=0.1),
        "a<b": attrs.evolve(theirs, gap_seconds=0.0),
    }
    ratio = attrs.evolve(found, rounds=[samples]).ratio(gap, "a<b")
    assert ratio is not None
    assert ratio.median == 1.0


def test_who_fails_is_left_out_with_the_reason() -> None:
    """A peer's failure drops its samples; ours ends the comparison."""
    from benchmarks._client import Client, Failed, Role
    from benchmarks._comparison import Task, compare
    from benchmarks._measure import Sample

    turns: list[str] = []

    def sample(client: Client) -> Sample:
        turns.append(client.name)
        if turns.count(client.name) == failing[client.name]:
            raise Failed("no more")
        return Sample(1.0, 1.0)

    clients = [Client(OURS, Role.OURS, sample), Client("peer", Role.PEER, sample)]
    failing = {OURS: 9, "peer": 2}
    found = compare(Task("t", "T", ()), clients, sample, 3)
    assert found.left_out == {"peer": "it failed: no more"}
    assert [list(samples) for samples in found.rounds] == [[OURS]] * 3
    assert turns == [OURS, "peer", "peer", OURS, OURS]
    failing[OURS] = 4
    with pytest.raises(Failed):
        compare(Task("t", "T", ()), clients, sample, 3)


@pytest.mark.parametrize(
    ("needs", "loop", "missing"),
    [("no_such", "asyncio", "no_such"), (None, "no_such", "no_such"), ("json", None, None)],
)
def test_what_is_not_installed_is_said(
    needs: str | None, loop: str | None, missing: str | None
) -> None:
    """A client without its module or its loop does not take part."""
    from benchmarks._client import PythonClient, Role

    found = PythonClient("peer", Role.PEER, print, loop, needs).client("module").missing
    wanted = f"{missing} is not installed; pip install --group bench"
    assert found == (wanted if missing else None)


@pytest.mark.parametrize(("count", "p50", "p99"), [(1, 1, 1), (2, 1, 2), (100, 50, 99)])
def test_percentiles_are_of_the_nearest_rank(count: int, p50: int, p99: int) -> None:
    """So many percent of the calls took no longer."""
    from benchmarks._measure import Sample, with_latencies

    sample = with_latencies(Sample(1.0, 1.0), [float(n) for n in range(count, 0, -1)])
    assert (sample.calls, sample.p50_seconds, sample.p99_seconds) == (count, p50, p99)


def test_chart_shows_each_client_and_nothing_else_changes() -> None:
    """Well-formed, small, to scale, names escaped, and the same for the same figures."""
    from benchmarks import _chart
    from benchmarks._section import Section

    speeds = {OURS: 20, "a<b": 10, "ceiling": 40}
    one, two = (_chart.svg(Section("s", 'S "1"', "", (compared(speeds),))) for _ in range(2))
    assert one == two
    assert len(one) < 4096
    root = ET.fromstring(one)
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert texts[:3] == ["A task: calls/s, more is better", OURS, "20.0"]
    assert "a<b" in texts
    widths = [float(e.attrib["width"]) for e in root.iter() if e.tag.endswith("rect")]
    assert widths[0] / widths[1] == pytest.approx(2)
    assert widths[2] / widths[1] == pytest.approx(4)
    assert "prefers-color-scheme:dark" in one
    far = _chart.svg(Section("s", "S", "", (compared({OURS: 20, "ceiling": 41}),)))
    assert ("Dashed" in one, "ceiling<" in one) == (True, True)
    assert ("Dashed" in far, "ceiling<" in far) == (False, False)


# --- the meter -----------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.anyio
async def test_measures_what_a_careless_upload_costs(tmp_path: Path) -> None:
    """A loop blocked to the end, memory and descriptors taken and given back, and time are seen."""
    from benchmarks._measure import measured_with_descriptors

    async def careless() -> None:
        content = mmap.mmap(-1, 32 * 1024**2)  # not of the heap, where much may be free and in use
        for page in range(0, len(content), mmap.PAGESIZE):
            content[page] = 1
        files = [(tmp_path / str(n)).open("wb") for n in range(20)]
        time.sleep(0.1)  # noqa: ASYNC251 - that is what makes it careless
        for file in files:
            file.close()
        content.close()

    sample = await measured_with_descriptors(careless)
    assert sample.seconds >= 0.1
    assert sample.gap_seconds is not None
    assert 0.09 < sample.gap_seconds <= sample.seconds + 0.05
    assert 0 < sample.cpu_seconds < sample.seconds
    if sys.platform == "linux":
        assert sample.memory_growth == pytest.approx(32 * 1024**2, abs=1024**2)
        assert sample.descriptors == 20
