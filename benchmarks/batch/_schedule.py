"""The section on how long batches take, compared with the least that they could take."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import re
from collections import Counter
from collections.abc import Iterator

import attrs

from benchmarks._client import INSTALL, OURS, Client, Role
from benchmarks._comparison import Comparison, Task, compare
from benchmarks._measure import Sample
from benchmarks._options import Options
from benchmarks._section import Section
from benchmarks.batch import _loads, _loopback, _ways
from benchmarks.batch._columns import TARGET, columns
from benchmarks.batch._loads import Load, Pace
from benchmarks.batch._loopback import LoopbackJob
from benchmarks.batch._virtual import in_virtual_time
from benchmarks.batch._ways import Way

TITLE = "Batches: total time"
ROOMS = 200
SLOTS = 32
LOCKED = 0.3
"""Share of the rooms that others hold at the beginning, if any are; the longest is one of them."""
TOLD = f"{OURS}, told"
WAYS: tuple[tuple[str, Role, Way, bool], ...] = (
    (OURS, Role.OURS, _ways.batch, False),
    (TOLD, Role.VARIANT, _ways.batch, True),
    ("in input order", Role.PEER, _ways.in_input_order, False),
    ("room by room", Role.PEER, _ways.room_by_room, False),
    ("gather, shuffled", Role.PEER, _ways.shuffled_gather, False),
    ("gather", Role.PEER, _ways.gather, False),
)
"""Name, role, what is done, and whether the server tells when a room will be free."""

_NOTES = """\
Total time of a batch, divided by the least that any order could take: the longest of all rooms'
release plus chain of documents, and, for each release, what cannot begin before it shared out over
all slots; a body may be on its way when its room is given back. What conversions take is
log-normal, and not known before.
"locked": others hold three rooms in ten, the one with most documents among them, and give them
back between the 10th and the 150th second. Nobody is told when: the least knows it, a client has
to try. "told" is ours before a server that says so (Retry-After), as none is known to:
what is left of the ratio is the order, the rest was the delay between two attempts.
Slots busy: part of the slots' time with an attempt in flight, refused ones included, until fewer
rooms than slots have documents left. Attempts: for each document.
The input is sorted by room, as a folder or a manifest is; "shuffled": mixed at random.
in input order: a batch without priorities, the earliest document whose room is free.
room by room: so many workers, each takes a room and sends its documents one after another.
gather: a task for each document, a semaphore around each upload.
All use the same client, which waits for locked rooms and lets uploads to a room take turns.
Virtual time: scheduling, waiting and forms are real, the server sleeps on a clock that jumps; what
the client computes takes no time. Loopback: the meeting server of the package, in real time."""


def section(options: Options) -> Section:
    """Compare the ways to do each load."""
    return _section(options, ROOMS, SLOTS, LoopbackJob(ROOMS // 5, SLOTS // 2))


def quick(options: Options) -> Section:
    """Show that all works."""
    return _section(options, 10, 4, LoopbackJob(3, 2, 0.02))


def _section(options: Options, rooms: int, slots: int, loopback: LoopbackJob) -> Section:
    missing = [name for name in ("trio", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        notes = f"Left out: {', '.join(missing)} not installed; {INSTALL}"
        return Section("schedule", TITLE, notes, ())
    found = [
        *(_in_virtual_time(play, options) for play in _plays(rooms, slots)),
        _loopback.compared(options, loopback),
    ]
    return Section("schedule", TITLE, _NOTES, tuple(found))


@attrs.frozen
class _Play:
    """A kind of load; each round has one of its own, the same for all ways."""

    rooms: int
    slots: int
    shape: str
    locked: float
    """Share of the rooms that others hold at the beginning."""
    pace: Pace
    _turns: Counter[str] = attrs.field(factory=Counter, init=False)

    @property
    def kind(self) -> str:
        """What tells it from others."""
        slow = f", {self.pace.name}" if self.pace is not _loads.FAST else ""
        return f"{self.shape}, {'locked' if self.locked else 'free'}{slow}"

    @property
    def task(self) -> Task:
        """What is compared. On a slow line that is what refusals cost: they take as long."""
        key = "schedule-" + re.sub(r"[^a-z0-9.]+", "-", self.kind.lower())
        title = f"{self.kind}: {self.rooms} rooms, {self.slots} slots, virtual time"
        return Task(key, title, columns(), (TARGET,) if self.pace is _loads.FAST else ())

    def turn(self, name: str) -> Load:
        """Return the load that is next for a client."""
        self._turns[name] += 1
        shape, seed = _loads.SHAPES[self.shape], self._turns[name]
        return _loads.load(shape, self.rooms, locked=self.locked, seed=seed, pace=self.pace)

    def clients(self) -> Iterator[Client]:
        """Yield the ways to do it; of free rooms nothing can be told."""
        for name, role, way, tells in WAYS:
            if self.locked or not tells:
                played = functools.partial(_played, way, slots=self.slots, tells=tells)
                yield Client(name, role, played)


def _plays(rooms: int, slots: int) -> Iterator[_Play]:
    for locked, shape in itertools.product((0.0, LOCKED), _loads.SHAPES):
        yield _Play(rooms, slots, shape, locked, _loads.FAST)
    yield _Play(rooms, slots, "uniform", LOCKED, _loads.SLOW)


def _in_virtual_time(play: _Play, options: Options) -> Comparison:
    clients = options.chosen(play.clients())
    few = min(options.rounds, 3)  # nothing else on the machine disturbs virtual time
    return compare(play.task, clients, lambda client: client.measure(play.turn(client.name)), few)


def _played(way: Way, load: Load, *, slots: int, tells: bool) -> Sample:
    return in_virtual_time(way, load, slots, tells=tells)
