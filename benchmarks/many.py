"""Compare a thousand uploads at once: ``python -m benchmarks.many``.

In each round every client uploads a small document to as many rooms at once as it is told, to a
server that takes its time for each.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import _descriptors, _machine, _many_clients, _options, _responder
from benchmarks._client import Client
from benchmarks._comparison import Column, Comparison, Target, Task, compare
from benchmarks._job import ManyJob
from benchmarks._many_clients import AIOHTTP
from benchmarks._measure import MEMORY_NOISE_BYTES, Sample
from benchmarks._options import Options
from benchmarks._section import Section
from benchmarks.upload import gap_ms, memory_mib

HOLD_SECONDS = 0.5

_NOTES = f"""\
Many at once: a document of 64 KiB to each room; ours from its path, the others' from bytes that
they read themselves. The server answers each upload {HOLD_SECONDS:g} s after it has all of it.
Medians over the rounds, with the range; ratios are ours divided by theirs within one round.
Less is better for all.
Seconds: from the first call to the last reply. CPU: user and system time of the client meanwhile.
Gap: longest delay of a task that sleeps 1 ms, beyond its sleep.
Descriptors: most that were open at once, beyond those before; looked at every 5 ms.
Memory: peak of the resident set minus the one before.
Limits raised: as many connections, and as many kept, as there are uploads; aiohttp's, too.
Server: {_responder.DESCRIPTION}."""


def task(uploads: int, size: int) -> Task:
    """Return what is compared for so many uploads."""
    columns = (
        Column("seconds", "seconds", 2, lambda s: s.seconds),
        Column("gap ms", "largest_gap_ms", 0, gap_ms),
        Column("descriptors", "descriptors", 0, lambda s: s.descriptors),
        Column("memory MiB", "memory_growth_mib", 1, memory_mib, noise=MEMORY_NOISE_BYTES / 2**20),
        Column("CPU s", "cpu_seconds", 2, lambda s: s.cpu_seconds),
    )
    targets = (
        Target("seconds", 1.5, AIOHTTP),
        Target("largest_gap_ms", 100.0),
        Target("descriptors", uploads),
    )
    title = f"{uploads} uploads of {_options.shown(size)} at once"
    return Task(f"many-{uploads}", title, columns, targets)


def section(
    uploads: int, options: Options, *, size: int = 64 * 1024, hold: float = HOLD_SECONDS
) -> Section:
    """Compare so many uploads at once."""
    found = compared(uploads, size, hold, options)
    return Section("many", "Many uploads at once", _NOTES, (found,))


def compared(uploads: int, size: int, hold: float, options: Options) -> Comparison:
    """Compare so many uploads of so many bytes."""
    _descriptors.allow_many()
    with tempfile.TemporaryDirectory() as directory:
        document = Path(directory, "document.pdf")
        document.write_bytes((b"%PDF-1.7\n" + os.urandom(size))[:size])

        def sample(client: Client) -> Sample:
            with _responder.running_responder(hold) as responder:
                done = client.measure(ManyJob(responder.base_url, str(document), uploads))
                everything = uploads + 1  # the one to get started
                responder.check_answered(calls=0, uploads=everything, rooms=everything)
            return done

        clients = options.chosen(_many_clients.clients())
        return compare(task(uploads, size), clients, sample, options.rounds)


# --- the command line ----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its report."""
    name = "python -m benchmarks.many"
    parser = argparse.ArgumentParser(prog=name, description=(__doc__ or "").partition(":")[0])
    parser.add_argument(
        "--uploads", type=_options.count, default=1000, help="at once (%(default)s)"
    )
    _options.add(parser)
    _options.add_json(parser)
    found, options = _options.parsed(parser, arguments)
    machine = _machine.facts()
    result = section(found.uploads, options)
    command = f"{name} --uploads {found.uploads}{options.command}"
    _options.report(result, machine, command, as_json=found.json)


if __name__ == "__main__":
    main()
