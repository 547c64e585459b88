"""The comparisons with other clients: that each runs, and that they calculate correctly."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks._compare import SECONDS, Options, Target, Task
from benchmarks._loads import Load
from benchmarks._measure import Sample
from benchmarks._process import OURS, Client, Failed, Role

from benchmarks import _compare, _sink, _wire, upload

pytest.importorskip("resource", reason="the benchmarks measure children with getrusage")

ROOT = Path(__file__).parents[2]


def _quick(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("section", ["upload", "calls", "many", "batch", "schedule"])
def test_each_section_runs(section: str, tmp_path: Path) -> None:
    """Each section prints targets, ratios and figures of ours and of others, with the command."""
    printed = _quick(section, "--save", str(tmp_path))
    assert (tmp_path / "README.md").read_text() in printed
    assert f"python -m benchmarks {section} --rounds 1 --quick" in printed
    assert re.search(r"^\| meeting_async / \|", printed, re.MULTILINE)
    assert re.search(r"^\| meeting_async \| \d", printed, re.MULTILINE)
    assert "it failed" not in printed


def test_ratios_are_taken_within_a_round() -> None:
    """A ratio is ours divided by theirs of the same round; a client that fails is left out."""
    seconds = {OURS: iter([2.0, 30.0, 4.0]), "peer": iter([1.0, 10.0, 4.0])}

    def sample(client: Client) -> Sample:
        if client.name == "broken":
            raise Failed("no reply")
        return Sample(next(seconds[client.name]), 0.0)

    ours = Client(OURS, sample, Role.OURS)
    target = Target(SECONDS, 1.5, "peer")
    task = Task("a task", (SECONDS,), (target,))
    clients = [ours, Client("peer", sample), Client("broken", sample)]
    found = _compare.compare(task, clients, sample, rounds=3)
    reached = found.reached(target)
    assert reached == _compare.Spread(2.0, 1.0, 3.0)
    assert not _compare.is_met(target, reached)
    assert found.left_out == {"broken": "it failed: no reply"}


def test_the_least_that_a_load_can_take() -> None:
    """No order is faster than the longest room, nor than all places busy after a release."""
    table = [
        (Load(((2.0, 3.0), (1.0,)), (0.0, 0.0)), 2, 5.0),  # the longest chain
        (Load(((2.0,), (2.0,), (2.0,)), (0.0, 0.0, 0.0)), 2, 3.0),  # shared out
        (Load(((1.0,), (1.0,)), (0.0, 10.1)), 2, 11.0),  # a document is on its way at the release
    ]
    for load, places, least in table:
        assert load.least(places) == pytest.approx(least)


def test_other_clients_are_chosen_by_name() -> None:
    """Ours always takes part, another edition right after it."""
    options = Options(names=("curl",), against="/elsewhere/src")
    chosen = options.chosen(upload.CLIENTS)
    assert [client.name for client in chosen] == [OURS, "other edition", "curl"]
    assert chosen[1].source == "/elsewhere/src"
    assert chosen[1].alias == OURS


@pytest.mark.parametrize("tls", [False, True])
def test_the_sink_counts_bytes(tls: bool, tmp_path: Path) -> None:
    """A document that did not arrive as it is makes a comparison fail."""
    certificate = _sink.make_certificate(tmp_path) if tls else None
    document = _wire.make_document(tmp_path / "document.pdf", 100_000)
    with _sink.running_sink(certificate) as sink:
        ca_file = certificate.path if certificate else None
        job = upload.Job(sink.base_url, str(document), str(document), ca_file)
        upload.CLIENTS[1].run(job)
        sink.check_received(100_000)
        with pytest.raises(Failed, match=r"should have got 99,999 bytes.*100000"):
            sink.check_received(99_999)
