"""The section on what batches cost: CPU, a journal, idle slots and memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from benchmarks import _descriptors, _responder
from benchmarks._client import OURS, Client, Role
from benchmarks._comparison import BEST, Column, Comparison, Target, Task, compare
from benchmarks._measure import Sample
from benchmarks._options import Options
from benchmarks._section import Section
from benchmarks.batch import _clients, _memory
from benchmarks.batch._clients import BatchJob
from benchmarks.batch._memory import MemoryJob

SIZE = 64 * 1024
HOLD_SECONDS = 0.5
NO_JOURNAL = "no journal"
MOST_TASKS = 10_000
"""Of more, minutes pass until they are all cancelled."""

_NOTES = f"""\
Uploads of 64 KiB to rooms with ten documents each; ours from paths, httpx's from bytes that it
reads itself. Medians over the rounds, with the range; ratios are within one round.
CPU: user and system time of the client, for each upload. Seconds: from the first call to the end.
httpx: one AsyncClient, forms and headers made by hand, a semaphore. It neither keeps the order
within a room nor waits, retries or tells what became of what. "connections kept": as many as are
used at a time; "a connection each": none, as ours does it. The better one is the peer to beat.
No batch: a task for each document, a semaphore around upload_whiteboard_file.
Journal: a new SQLite file for each batch; the ratio is to the same batch without one.
Slots busy: part of the slots' time with an attempt in flight, seen where requests are sent, until
fewer rooms than slots have documents left. The server answers {HOLD_SECONDS:g} s after it has all.
Queued jobs: bytes of Python objects (tracemalloc) for each job that a batch has read and not begun,
the job itself with its path and room id included; "{_memory.SINGLE}": one job for each room.
{_memory.LIST}: the same jobs, and nothing else.
{_memory.TASKS}: a task for each, behind a semaphore.
A stream of jobs: growth of the resident set after the first tenth of the outcomes, which are not
kept; a transport that accepts at once.
Server: {_responder.DESCRIPTION}."""


@attrs.frozen(kw_only=True)
class Scale:
    """How much is done."""

    rooms: int = 200
    """For CPU and journal; ten documents each."""
    busy_rooms: int = 1000
    slots: int = 32
    busy_slots: int = 128
    hold: float = HOLD_SECONDS
    """Seconds that a server takes, if it is one that takes its time."""
    queued: Sequence[int] = (10_000, 100_000)
    stream: int = 1_000_000


QUICK = Scale(rooms=4, busy_rooms=10, slots=4, busy_slots=4, hold=0.02, queued=(200,), stream=200)


def section(options: Options, scale: Scale | None = None) -> Section:
    """Measure all of it."""
    scale = scale or Scale()
    found = tuple(_comparisons(options, scale))
    return Section("batch", "Batches: what they cost", _NOTES, found)


def quick(options: Options) -> Section:
    """Show that all works."""
    return section(options, QUICK)


def _comparisons(options: Options, scale: Scale) -> Iterator[Comparison]:
    _descriptors.allow_many()
    with tempfile.TemporaryDirectory() as folder:
        document = Path(folder, "document.pdf")
        document.write_bytes((b"%PDF-1.7\n" + os.urandom(SIZE))[:SIZE])
        work = _Work(folder, str(document), options)
        yield work.processor(scale.rooms, scale.slots)
        yield work.journal(scale.rooms, scale.slots, 0.0)
        yield work.journal(scale.rooms, scale.slots, scale.hold)
        yield work.slots(scale.busy_rooms, scale.busy_slots, scale.hold)
    for jobs in scale.queued:
        yield _queued(jobs, options)
    yield _stream(scale.stream, options)


# --- uploads -------------------------------------------------------------------------------------

_CPU = Column(
    "CPU ms/upload", "cpu_ms", 2, lambda s: 1000 * s.cpu_seconds / s.uploads if s.uploads else None
)
_SECONDS = Column("seconds", "seconds", 2, lambda s: s.seconds)
_BUSY = Column("slots busy", "busy_share", 3, lambda s: s.busy_share, more_is_better=True)


@attrs.frozen
class _Work:
    """Comparisons with the same document."""

    folder: str
    document: str
    options: Options

    def processor(self, rooms: int, slots: int) -> Comparison:
        """Compare the CPU time of small uploads."""
        title = f"{10 * rooms} uploads of 64KiB, {slots} at a time"
        task = Task("batch-cpu", title, (_CPU, _SECONDS), (Target("cpu_ms", 1.5, BEST),))
        names = OURS, _clients.HTTPX, _clients.CLOSING, _clients.SINGLY
        variants = f"{OURS} (trio)", f"{OURS} (uvloop)"
        return self._compared(task, _clients.clients(*names, *variants), rooms, slots, 0.0)

    def journal(self, rooms: int, slots: int, hold: float) -> Comparison:
        """Compare a batch that keeps a journal with one that keeps none."""
        server = f"a server that takes {hold:g} s" if hold else "a server that answers at once"
        title = f"{10 * rooms} uploads of 64KiB with a journal, {server}"
        columns = (_SECONDS, _CPU)
        task = Task(
            f"batch-journal-{'slow' if hold else 'fast'}",
            title,
            columns,
            (Target("seconds", 1.05, NO_JOURNAL),),
        )
        ours, plain = _clients.clients(_clients.JOURNAL, OURS)
        pair = [
            attrs.evolve(ours, name=OURS, role=Role.OURS),
            attrs.evolve(plain, name=NO_JOURNAL, role=Role.PEER),
        ]
        return self._compared(task, pair, rooms, slots, hold)

    def slots(self, rooms: int, slots: int, hold: float) -> Comparison:
        """See how busy the slots are."""
        title = f"{rooms} rooms x 10 of 64KiB, {slots} slots, a server that takes {hold:g} s"
        task = Task("batch-slots", title, (_BUSY, _SECONDS, _CPU), (Target("busy_share", 0.95),))
        clients = _clients.clients(OURS, _clients.SHUFFLED, f"{OURS} (uvloop)")
        return self._compared(task, clients, rooms, slots, hold)

    def _compared(
        self, task: Task, clients: list[Client], rooms: int, slots: int, hold: float
    ) -> Comparison:
        def sample(client: Client) -> Sample:
            with (
                tempfile.TemporaryDirectory(dir=self.folder) as folder,
                _responder.running_responder(hold) as responder,
            ):
                journal = str(Path(folder, "journal.db"))
                job = BatchJob(responder.base_url, self.document, rooms, 10, slots, journal)
                done = client.measure(job)
                responder.check_answered(uploads=10 * rooms + 1, rooms=rooms + 1)
            return done

        return compare(task, self._chosen(clients), sample, self.options.rounds)

    def _chosen(self, clients: list[Client]) -> list[Client]:
        """Keep what was asked for; a journal is always compared with none."""
        return [c for c in clients if c.name == NO_JOURNAL or c in self.options.chosen(clients)]


# --- memory --------------------------------------------------------------------------------------

_BYTES = Column(
    "bytes/job",
    "bytes_per_job",
    0,
    lambda s: s.memory_growth / s.uploads if s.uploads and s.memory_growth is not None else None,
)
_GROWTH = Column(
    "growth MiB",
    "growth_mib",
    2,
    lambda s: None if s.memory_growth is None else s.memory_growth / 2**20,
)


def _queued(jobs: int, options: Options) -> Comparison:
    """Measure what jobs take that stand in a queue; it does not vary."""
    task = Task(
        f"batch-queued-{jobs}", f"{jobs} queued jobs", (_BYTES,), (Target("bytes_per_job", 1000),)
    )
    tasks = [_memory.TASKS] if jobs <= MOST_TASKS else []
    clients = _memory.clients(OURS, _memory.SINGLE, _memory.LIST, *tasks)
    job = MemoryJob(jobs)
    return compare(task, options.chosen(clients), lambda client: client.measure(job), 1)


def _stream(jobs: int, options: Options) -> Comparison:
    """Measure whether memory grows with the number of jobs."""
    task = Task(
        "batch-stream",
        f"a stream of {jobs} jobs",
        (_GROWTH, _SECONDS, _CPU),
        (Target("growth_mib", 2.0),),
    )
    (client,) = _memory.clients("stream")
    ours = attrs.evolve(client, name=OURS)
    return compare(task, [ours], lambda client: client.measure(MemoryJob(jobs)), 1)
