"""Compare our upload with those of others: ``python -m benchmarks.upload``.

In each round every client uploads the same file once to a discarding sink of its own, one after
the other. What is measured is the upload, not the start of a process.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs

from benchmarks import _certificate, _machine, _options, _sink, _upload_clients
from benchmarks._client import Client
from benchmarks._comparison import BEST, Column, Comparison, Target, Task, compare
from benchmarks._job import UploadJob
from benchmarks._measure import MEMORY_NOISE_BYTES, Sample
from benchmarks._options import Options
from benchmarks._section import Section
from benchmarks._upload_clients import CEILING, CURL, HTTPX

_WARM_UP_BYTES = 4096
_BLOCK_BYTES = 1024**2

_NOTES = f"""\
Medians over the rounds, with the range; ratios are ours divided by theirs within one round.
More is better for MB/s, less for the rest.
MB/s: 10^6 bytes of the document per second, from the call to the accepted reply (curl: time_total).
CPU: user and system time of the client meanwhile, without start-up (curl's exit is included).
Memory: peak of the resident set minus the one before the upload; below 0.25 MiB is noise and
        counts as 0.25 MiB in ratios.
Gap: longest delay of a task that sleeps 1 ms, beyond its sleep; an idle loop shows about 1 ms.
{CEILING}: no client, but what the sink takes from a loop that only reads and sends. Over TLS
        it sends record by record, so that a client that encrypts some ahead can be faster.
Document: a file in the page cache. Over TLS everybody checks the sink's certificate.
Sink: {_sink.DESCRIPTION}."""

_TCP_TARGETS = (
    Target("megabytes_per_second", 1.0, CURL),
    Target("megabytes_per_second", 2.0, HTTPX),
    Target("cpu_seconds_per_gib", 1.1, CURL),
    Target("memory_growth_mib", 4.0),
    Target("largest_gap_ms", 5.0),
)
_TLS_TARGETS = (
    Target("megabytes_per_second", 1.0, HTTPX),
    Target("megabytes_per_second", 0.9, BEST),
)


def task(size: int, *, tls: bool) -> Task:
    """Return what is compared for a document of ``size`` bytes."""
    protocol = "TLS" if tls else "TCP"
    text = _options.shown(size)
    return Task(
        f"upload-{text}-{protocol}".lower(),
        f"{text} over {protocol}",
        _columns(size),
        _TLS_TARGETS if tls else _TCP_TARGETS,
    )


def _columns(size: int) -> tuple[Column, ...]:
    return (
        Column("MB/s", "megabytes_per_second", 0, lambda s: size / s.seconds / 1e6, True),
        Column("CPU s/GiB", "cpu_seconds_per_gib", 3, lambda s: s.cpu_seconds / size * 2**30),
        Column("memory MiB", "memory_growth_mib", 2, memory_mib, noise=MEMORY_NOISE_BYTES / 2**20),
        Column("gap ms", "largest_gap_ms", 2, gap_ms),
    )


def memory_mib(sample: Sample) -> float | None:
    """Return how far memory grew, in MiB."""
    return None if sample.memory_growth is None else sample.memory_growth / 2**20


def gap_ms(sample: Sample) -> float | None:
    """Return the loop's largest gap, in milliseconds."""
    return None if sample.gap_seconds is None else sample.gap_seconds * 1e3


# --- running it ----------------------------------------------------------------------------------


def section(sizes: Sequence[int], options: Options, protocols: Sequence[bool]) -> Section:
    """Compare uploads of all sizes; each over TCP (``False``), over TLS (``True``), or both."""
    comparisons = [
        compared(size, tls=tls, options=options)
        for size in sizes
        for tls in protocols
        if not (tls and _certificate.MISSING)
    ]
    unsaid = f"\nTLS: left out: {_certificate.MISSING}." if _certificate.MISSING else ""
    return Section("upload", "One upload", _NOTES + unsaid, tuple(comparisons))


def compared(size: int, *, tls: bool, options: Options) -> Comparison:
    """Compare uploads of one size over one protocol."""
    clients = options.chosen(_upload_clients.clients())
    with tempfile.TemporaryDirectory() as directory:
        bench = _Bench(
            _made(Path(directory, "warm-up.pdf"), _WARM_UP_BYTES),
            _made(Path(directory, "document.pdf"), size),
            _certificate.made(Path(directory)) if tls else None,
        )
        return compare(task(size, tls=tls), clients, bench.sample, options.rounds)


@attrs.frozen
class _Bench:
    """What the clients find."""

    warm_up: Path
    document: Path
    certificate: _certificate.Certificate | None

    def sample(self, client: Client) -> Sample:
        """Let a client upload to a sink of its own, and check what arrived."""
        paths = [self.warm_up, self.document]
        for path in paths:
            _read(path)
        with _sink.running_sink(self.certificate) as sink:
            ca_file = self.certificate.certificate if self.certificate else None
            job = UploadJob(sink.base_url, str(self.warm_up), str(self.document), ca_file)
            sample = client.measure(job)
            sink.check_received(*[path.stat().st_size for path in paths])
        return sample


def _made(path: Path, size: int) -> Path:
    """Write a file that begins like a PDF, and wait until it is on the disk."""
    block = (b"%PDF-1.7\n" + os.urandom(_BLOCK_BYTES))[:_BLOCK_BYTES]
    with path.open("wb") as file:
        for start in range(0, size, _BLOCK_BYTES):
            file.write(block[: size - start])
        file.flush()
        os.fsync(file.fileno())
    return path


def _read(path: Path) -> None:
    """Read a file through, so that it is in the page cache."""
    with path.open("rb") as file:
        while file.read(_BLOCK_BYTES):
            pass


# --- the command line ----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its report."""
    name = "python -m benchmarks.upload"
    parser = argparse.ArgumentParser(prog=name, description=(__doc__ or "").partition(":")[0])
    parser.add_argument(
        "--size", type=_options.size, default="256MiB", help="of the document (%(default)s)"
    )
    parser.add_argument("--tls", action="store_true", help="over TLS instead of TCP")
    _options.add(parser)
    _options.add_json(parser)
    found, options = _options.parsed(parser, arguments)
    if found.tls and _certificate.MISSING:
        parser.error(_certificate.MISSING)
    machine = _machine.facts()
    result = section([found.size], options, [found.tls])
    tls = " --tls" if found.tls else ""
    command = f"{name} --size {_options.shown(found.size)}{tls}{options.command}"
    _options.report(result, machine, command, as_json=found.json)


if __name__ == "__main__":
    main()
