"""The benchmark runs, prints what it promises, and its sink does not let itself be fooled."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from benchmarks._sink import Sink

pytest.importorskip("resource", reason="the benchmarks measure children with getrusage")

ROOT = Path(__file__).parent.parent
OURS, CURL, HTTPX = "meeting_async", "curl", "httpx files="
SIZE = 2 * 1024**2


def run(*arguments: str, **environ: str) -> str:
    """Run the benchmark with a small file and return what it prints."""
    command = [sys.executable, "-m", "benchmarks.upload", "--size", "2MiB", "--rounds", "1"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_prints_ratios_first_then_the_figures_of_each_client() -> None:
    """Each client has its row in both tables, with speeds, and the command is printed."""
    ratios, figures, *rest = run().split("\n\n")
    peers = [CURL, HTTPX] if shutil.which("curl") else [HTTPX]
    positive = r" +0*[1-9.][\d.]*"
    for name in peers:
        assert re.search(rf"^{name}{positive} x \(", ratios, re.MULTILINE), ratios
    for name in [OURS, *peers]:
        assert re.search(rf"^{name}{positive} \(", figures, re.MULTILINE), figures
    for title in ("MB/s", "CPU s/GiB", "memory MiB", "gap ms"):
        assert title in ratios
        assert title in figures
    command = "python -m benchmarks.upload --size 2MiB --rounds 1 --backend asyncio"
    assert command in rest[-1]


def test_json_on_trio_without_curl(tmp_path: Path) -> None:
    """A curl that is missing is left out with the reason; the samples make up the figures."""
    report = json.loads(run("--backend", "trio", "--json", PATH=str(tmp_path)))
    assert "left out" in report["machine"]["curl"]
    assert list(report["ratios"]) == [HTTPX]
    (samples,) = report["samples"]
    assert CURL not in samples
    ours, theirs = (samples[name]["seconds"] for name in (OURS, HTTPX))
    assert report["clients"][OURS]["megabytes_per_second"]["median"] == SIZE / ours / 1e6
    ratio = report["ratios"][HTTPX]["megabytes_per_second"]["median"]
    assert ratio == pytest.approx(theirs / ours)
    assert samples[OURS]["gap_seconds"] >= 0


# --- the meter -----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_measures_what_a_careless_upload_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop blocked to the end, memory that is taken and given back, and time are all seen."""
    monkeypatch.syspath_prepend(ROOT)  # it is not installed
    from benchmarks._measure import measured

    async def careless() -> None:
        content = bytearray(b"x") * (32 * 1024**2)
        time.sleep(0.1)  # noqa: ASYNC251 - that is what makes it careless
        del content

    sample = await measured(careless)
    assert sample.seconds >= 0.1
    assert sample.gap_seconds is not None
    assert 0.09 < sample.gap_seconds <= sample.seconds + 0.05
    assert 0 < sample.cpu_seconds < sample.seconds
    if sys.platform == "linux":
        assert sample.memory_growth == pytest.approx(32 * 1024**2, abs=1024**2)


# --- the sink ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    """Run the sink on its own."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(ROOT)
        from benchmarks._sink import running_sink

    with running_sink() as sink:
        yield sink


def upload(
    sink: Sink,
    document: bytes,
    *,
    room: str = "Room-Id: a",
    boundary: str = "b",
    cut: int = 0,
    extra: int = 0,
) -> None:
    """Send a form with whatever is wrong with it."""
    body = b'--b\r\nContent-Disposition: form-data; name="document"\r\n\r\n%b\r\n--b--\r\n'
    body %= document
    head = (
        f"POST / HTTP/1.1\r\nAPI-KEY: a\r\nHASH-SIGNATURE: a\r\n{room}\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: x/y; boundary={boundary}\r\n\r\n"
    )
    port = int(sink.base_url.rsplit(":")[-1])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
        contextlib.suppress(ConnectionError),  # it may hang up on a bad one
    ):
        connection.sendall(head.encode() + body[: len(body) - cut] + bytes(extra))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1024)


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 5_000_000])
def test_sink_counts_the_bytes_of_the_document(sink: Sink, size: int) -> None:
    """Neither the form around it nor what the document is like changes the count."""
    document = (b"\r\n\r\n--b--\r\n" * size)[:size]
    upload(sink, document)
    upload(sink, document)
    sink.check_received(size)
    with pytest.raises(RuntimeError, match=f"{size + 1:,} bytes"):
        sink.check_received(size + 1)


@pytest.mark.parametrize(
    "fault",
    [
        {"cut": 1},
        {"cut": 2000},
        {"cut": 4_999_000},
        {"extra": 1},
        {"boundary": "c"},
        {"room": "Room: a"},
    ],
    ids=str,
)
def test_sink_takes_no_other_upload_for_a_result(sink: Sink, fault: dict[str, Any]) -> None:
    """Too short, too long, not closed by its boundary, or without a header that all must send."""
    upload(sink, bytes(5_000_000), **fault)
    with pytest.raises(RuntimeError, match="error"):
        sink.check_received(5_000_000)
