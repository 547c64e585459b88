"""Compare our upload with curl's and httpx's: ``python -m benchmarks.upload``.

In each round every client uploads the same file once to the same discarding sink, one after the
other, so that whatever else the machine does meets them all. Each runs in a process of its own;
what is measured is the upload, not the process's start.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from benchmarks import _machine, _report, _sink
from benchmarks._job import Job
from benchmarks._measure import Sample
from benchmarks._peers import CEILING, available
from meeting_async._limits import parse_size
from meeting_async.errors import InvalidInput

_DESCRIPTION = "Compare our upload with those of curl and httpx, against a sink that discards."

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
{CEILING}: no client, but what the sink takes from a loop that only reads and sends."""


@attrs.frozen
class Settings:
    """What the command line asks for."""

    size: int
    """Bytes of the document."""
    rounds: int
    backend: str
    json: bool

    @property
    def command(self) -> str:
        """The command that reproduces the report."""
        size = f"{self.size // 2**20}MiB" if self.size % 2**20 == 0 else str(self.size)
        return (
            f"python -m benchmarks.upload --size {size} --rounds {self.rounds}"
            f" --backend {self.backend}" + (" --json" if self.json else "")
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its report."""
    settings = _settings(arguments)
    machine = _machine.facts()
    rounds = _run(settings)
    if settings.json:
        print(json.dumps(_as_json(settings, machine, rounds), indent=2))
    else:
        print(_as_text(settings, machine, rounds))


def _settings(arguments: Sequence[str] | None) -> Settings:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upload", description=_DESCRIPTION)
    parser.add_argument(
        "--size", type=_size, default="256MiB", help="of the document (%(default)s)"
    )
    parser.add_argument("--rounds", type=_rounds, default=5, help="uploads of each (%(default)s)")
    parser.add_argument(
        "--backend",
        choices=["asyncio", "trio"],
        default="asyncio",
        help="event loop of both Python clients (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, every sample included")
    return Settings(**vars(parser.parse_args(arguments)))


def _size(text: str) -> int:
    try:
        return parse_size(text, field="--size")
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _run(settings: Settings) -> list[dict[str, Sample]]:
    peers = available()
    with tempfile.TemporaryDirectory() as directory, _sink.running_sink() as sink:
        document = _made(Path(directory, "document.pdf"), settings.size)
        warm_up = _made(Path(directory, "warm-up.pdf"), _WARM_UP_BYTES)
        job = Job(sink.base_url, str(warm_up), str(document), settings.backend)
        return [
            {name: _sample(peer, job, sink) for name, peer in peers.items()}
            for _ in range(settings.rounds)
        ]


def _sample(peer: Callable[[Job], Sample], job: Job, sink: _sink.Sink) -> Sample:
    paths = [Path(path) for path in (job.warm_up, job.document)]
    for path in paths:
        _read(path)
    sample = peer(job)
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


def _as_text(settings: Settings, machine: dict[str, str], rounds: list[dict[str, Sample]]) -> str:
    facts = {
        "upload": f"{settings.size / 2**20:g} MiB from the page cache; rounds: {settings.rounds}; "
        f"Python clients on {settings.backend}",
        "sink": _sink.DESCRIPTION,
        **machine,
        "reproduce": settings.command,
    }
    lines = [f"{name + ':':<11}{value}" for name, value in facts.items()]
    return "\n".join([_report.table(rounds, settings.size), "", _NOTES, "", *lines])


def _as_json(
    settings: Settings, machine: dict[str, str], rounds: list[dict[str, Sample]]
) -> dict[str, object]:
    return {
        "settings": attrs.asdict(settings),
        "command": settings.command,
        "sink": _sink.DESCRIPTION,
        "machine": machine,
        **_report.as_json(rounds, settings.size),
    }


if __name__ == "__main__":
    main()
