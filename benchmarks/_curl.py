"""curl, measured from outside while it uploads.

It is started with ``--config -`` and reads its settings only when it is up, so that its start-up
can be told from its work, as the imports of the Python clients are. Where there is no ``/proc``
the CPU time includes the start-up, and memory is unknown.
"""

from __future__ import annotations

import resource
import subprocess
import time

from benchmarks import _wire
from benchmarks._measure import Sample, cpu_seconds, growth, memory_bytes
from benchmarks._process import Failed

_POLL_SECONDS = 0.005


def curl(url: str, documents: tuple[str, str], ca_file: str | None) -> Sample:
    """Upload two documents with a fresh curl; its own clock (``time_total``) times the second."""
    children_before = _children_cpu_seconds()
    pipe = subprocess.PIPE
    command = ["curl", "--disable", "--config", "-"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        start_up = _until_idle(process.pid)
        resident = memory_bytes(process.pid, "VmRSS")
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("curl has no pipes")
        with process.stdin:
            uploads = (_settings(url, path, ca_file) for path in documents)
            process.stdin.write("next\n".join(uploads))
        peak = _watched_peak(process)
        seconds = _checked_seconds(process.stdout.read())
    cpu = _children_cpu_seconds() - children_before - start_up
    return Sample(seconds, cpu, memory_growth=growth(resident, peak))


def _settings(url: str, path: str, ca_file: str | None) -> str:
    """One upload, in curl's configuration format; without the pause of ``Expect: 100-continue``."""
    headers = [f"{name}: {value}" for name, value in _wire.upload_headers().items()]
    lines = [f'header = "{header}"' for header in [*headers, "Expect:"]]
    return "\n".join(
        [
            f'url = "{url}"',
            *([f'cacert = "{ca_file}"'] if ca_file else []),
            # A name in quotes may have a comma or a semicolon.
            f'form = "document=@\\"{path}\\";type={_wire.DOCUMENT_TYPE}"',
            *lines,
            'noproxy = "*"',
            'output = "/dev/null"',
            'write-out = "%{http_code} %{time_total}\\n"',
            "silent\nshow-error\n",
        ]
    )


def _checked_seconds(written: str) -> float:
    """Read the answers' statuses and return the seconds of the second upload."""
    answers = [line.split() for line in written.splitlines()]
    if [status for status, _ in answers] != ["200", "200"]:
        raise Failed(f"it printed {written!r}")
    return float(answers[1][1])


def _until_idle(pid: int) -> float:
    """Wait until curl waits for its settings; return the CPU seconds it has used."""
    before, used = -1.0, cpu_seconds(pid)
    while used is not None and used != before:
        time.sleep(4 * _POLL_SECONDS)
        before, used = used, cpu_seconds(pid)
    return used or 0.0


def _watched_peak(process: subprocess.Popen[str]) -> int | None:
    """Wait for the end. A peak only grows, but one of the last 5 ms is missed."""
    peak = None
    while process.poll() is None:
        peak = memory_bytes(process.pid, "VmHWM") or peak
        time.sleep(_POLL_SECONDS)
    return peak


def _children_cpu_seconds() -> float:
    """CPU time of all children that have ended so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
