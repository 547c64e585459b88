"""A batch that is killed, frozen, or has a full disk, at any moment; and what the next run does.

The journal opens with every entry, nothing is lost, and nothing is twice in a room. A disk is full
for a process that may not let its files grow; at night it really is. What SQLite itself reads in
the files that are left is what the next run of the batch must go by.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest

from meeting_async.testing import MeetingServer
from support.fake_rooms import FakeRooms, Visit
from support.journals import (
    acting_rooms,
    copied,
    files_of,
    jobs_of,
    name_of,
    room_of,
    running_batch,
    states_in,
)
from support.killed_processes import KILL, WINDOW, Told, carry_out, run_batch

nightly = pytest.mark.nightly

PAGE = 4096
"""Bytes of a page of the database."""

OLD, ALL = 12, 16
"""Jobs of a batch that has run, and those of the same batch when its list has become longer."""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a journal that a batch has left in good order."""
    path = tmp_path_factory.mktemp("old") / "term.db"

    async def main() -> None:
        async with running_batch(path, jobs_of(range(OLD)), acting_rooms()) as batch:
            await batch.wait()

    anyio.run(main)
    assert set(files_of(path)) == {""}
    return path


async def check_resumed(journal: Path, count: int, complete: Iterable[str] = ()) -> Counter[str]:
    """Run the batch again: it must do what SQLite reads in the journal, and send nothing twice.

    Accepted jobs are skipped, jobs that may have arrived are unknown, all others are sent.
    ``complete`` are documents that were sent to their end before; if their room did not refuse
    them, they may have arrived. Returns how often the journal had each state.
    """
    states = dict.fromkeys(map(name_of, range(count)), "none")
    states |= await anyio.to_thread.run_sync(states_in, journal)
    becomes = {"accepted": "skipped", "sent": "unknown", "unknown": "unknown"}
    expected = {name: becomes.get(state, "accepted") for name, state in states.items()}
    rooms = FakeRooms()
    async with running_batch(journal, jobs_of(range(count)), rooms) as batch:
        report = await batch.wait()
    assert {outcome.document: outcome.status for outcome in report.outcomes} == expected
    sent = {visit.name for visit in rooms.uploads}
    assert sent == {name for name, status in expected.items() if status == "accepted"}
    refusing = {name_of(at) for at in range(count) if room_of(at).startswith("bad")}
    assert not (sent & set(complete)) - refusing
    return Counter(states.values())


# --- killed amid a checkpoint --------------------------------------------------------------------


@pytest.fixture(scope="module")
def before(old: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Copy a journal while a batch runs, before a checkpoint; return what was complete, too."""
    folder = tmp_path_factory.mktemp("before")
    journal, complete = copied(old, folder / "running"), list[str]()

    async def look(visit: Visit) -> None:
        complete.append(visit.name)
        if len(complete) == 3:
            await anyio.to_thread.run_sync(copied, journal, folder / "copy")

    async def main() -> None:
        rooms = acting_rooms(at_end=look)
        new = jobs_of(range(OLD, ALL))
        async with running_batch(journal, new, rooms, concurrency=1) as batch:
            await batch.wait()

    anyio.run(main)
    copy = folder / "copy" / "term.db"
    assert set(files_of(copy)) >= {"", "-wal"}
    return copy, complete[:3]


def pages_of_checkpoint(journal: Path, folder: Path) -> list[tuple[int, bytes]]:
    """Return what a checkpoint writes into the main file, in its order: offsets and pages.

    The folder keeps the index of the log as it is at the checkpoint's end.
    """
    copy = copied(journal, folder)
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("PRAGMA wal_checkpoint").fetchone()[0] == 0
        was, is_now = journal.read_bytes(), copy.read_bytes()
        index = Path(f"{copy}-shm").read_bytes()
    Path(f"{copy}-shm").write_bytes(index)
    assert len(is_now) > len(was) + 3 * PAGE
    return [
        (offset, is_now[offset : offset + PAGE])
        for offset in range(0, len(is_now), PAGE)
        if is_now[offset : offset + PAGE] != was[offset : offset + PAGE]
    ]


def written(journal: Path, pages: list[tuple[int, bytes]]) -> None:
    """Write pages into the main file."""
    with journal.open("r+b") as file:
        for offset, page in pages:
            file.seek(offset)
            file.write(page)


@pytest.mark.parametrize("steps", [5, pytest.param(1000, marks=nightly)])
def test_killed_amid_a_checkpoint(
    before: tuple[Path, list[str]], tmp_path: Path, steps: int
) -> None:
    """However many pages were written into the main file, the journal has every entry.

    The last one may be written in part: the first of all, or the first by which the file grows.
    """
    journal, complete = before
    pages = pages_of_checkpoint(journal, tmp_path / "after")
    grows = next(n for n, (offset, _) in enumerate(pages) if offset >= journal.stat().st_size)
    whole = {(len(pages) * step // steps, 0) for step in range(steps + 1)}
    torn = {(count, cut) for count in (0, grows) for cut in (1, 100, PAGE - 1)}
    for count, cut in sorted(whole | torn):
        copy = copied(journal, tmp_path / f"{count} {cut}")
        written(copy, pages[:count])
        if cut:
            offset, page = pages[count]
            written(copy, [(offset, page[:cut])])
            Path(f"{copy}-shm").write_bytes((tmp_path / "after" / "term.db-shm").read_bytes())
        states = anyio.run(check_resumed, copy, ALL, complete)
        assert (states["accepted"], states["unknown"], states["sent"]) == (7, 4, 1)


# --- files that cannot grow ----------------------------------------------------------------------

ROOM = {
    "old": [0, 3 * PAGE, -PAGE, PAGE, 2 * PAGE, 4 * PAGE, 5 * PAGE],
    "new": [2 * PAGE, 14 * PAGE, 0, 1, 512, *range(PAGE, 20 * PAGE, PAGE)],
}
"""By how much the main file of a journal may grow: less than its next checkpoint needs, or than a
new one needs. By day the first two."""


@pytest.mark.parametrize("is_deadly", [True, False], ids=["killed", "full"])
@pytest.mark.parametrize(
    ("kind", "room"),
    [
        pytest.param(kind, room, marks=() if number < 2 else nightly)
        for kind, rooms in ROOM.items()
        for number, room in enumerate(dict.fromkeys(rooms))
    ],
)
def test_a_journal_whose_files_cannot_grow(
    old: Path, tmp_path: Path, kind: str, room: int, is_deadly: bool
) -> None:
    """The process is killed, or each run says so, and never *damaged*. Then all entries are there.

    The next run goes on; nothing was sent unrecorded.
    """
    if kind == "old":
        journal, jobs, limit = copied(old, tmp_path / "copy"), range(OLD, ALL), old.stat().st_size
    else:
        journal, jobs, limit = tmp_path / "term.db", range(4), 0
    rounds = 1 if is_deadly else 2
    told = run_batch(journal, jobs, limit=limit + room, is_deadly=is_deadly, rounds=rounds)
    assert not [error for error in told.errors if "malformed" in error]
    assert all(error.startswith("JournalError: ") for error in told.errors)
    if is_deadly:
        assert told.status < 0
        assert len(told.outcomes) == len(jobs) or kind == "new"
    else:
        assert told.status == 0
        assert len(told.errors) == 2 or kind == "old" or room > 14 * PAGE
    anyio.run(check_resumed, journal, jobs.stop, told.complete)


@pytest.mark.parametrize("limit", [0, 14 * PAGE, None, pytest.param(PAGE, marks=nightly)])
@pytest.mark.parametrize("umask", [0, pytest.param(0o022, marks=nightly)])
def test_only_its_owner_may_read_it(tmp_path: Path, limit: int | None, umask: int) -> None:
    """File, log and all others, from their first byte: they name rooms and documents."""
    journal = tmp_path / "term.db"
    told = run_batch(journal, range(4), limit=limit, is_deadly=True, umask=umask)
    assert (told.status < 0) == (limit is not None)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()}
    assert modes == {0o600}


# --- a disk that is full -------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mount a file system in memory, of so many bytes; another call changes its size."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(size: int) -> Path:
        is_there = os.path.ismount(place)
        how = f"{'remount,' if is_there else ''}size={size}"
        while subprocess.run(
            ["mount", "-t", "tmpfs", "-o", how, "none", place], check=False
        ).returncode:
            if not is_there:
                pytest.skip("needs root, and a system where root may mount a disk in memory")
            time.sleep(0.1)  # the space of files that were deleted is not free yet
        return place

    yield mount
    if os.path.ismount(place):
        # Lazily, as another run of pytest may be looking through the folders of this one.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["new", "old"])
def test_a_disk_that_is_full_at_any_size(
    old: Path, small_disk: Callable[[int], Path], kind: str
) -> None:
    """While it is full each run says so; once it is larger the next run knows every entry."""
    first, used = (0, 0) if kind == "new" else (OLD, old.stat().st_size)
    fits = 0
    for pages in range(1, 400):
        place = small_disk(1 << 24)
        for path in files_of(place / "term.db").values():
            path.unlink()
        if kind == "old":
            shutil.copy(old, place)
        small_disk(used + pages * PAGE)
        told = run_batch(place / "term.db", range(first, ALL), rounds=2)
        assert told.status == 0
        assert all(error.startswith("JournalError: ") and "full" in error for error in told.errors)
        small_disk(1 << 24)
        anyio.run(check_resumed, place / "term.db", ALL, told.complete)
        fits = 0 if told.errors else fits + 1
        if fits == 40:  # pages more than the log needs: the main file could grow, too
            break
    assert fits == 40
    assert pages > 60


# --- killed again and again ----------------------------------------------------------------------

ROOMS = 30
LARGE = 300 * 1024
"""Bytes of every tenth document: it goes out in several chunks."""

AT_SQLITE = 0.3
"""Share of the kills that strike when SQLite is about to execute a statement."""

KNOWN_TO_BE_OUT = {"sent", "unknown", "accepted"}


@attrs.define
class Batch:
    """A batch that is run until it is through, whatever happens to it."""

    order: dict[str, Any]
    server: MeetingServer
    kills: int = 0
    in_flight: Counter[str] = attrs.field(factory=Counter)
    """How often each document was in flight when a process was killed."""
    last: Told | None = None

    def run(self, **how: Any) -> Told:
        """Run it once more."""
        self.last = told = carry_out(**self.order, **how)
        if self.is_killed:
            self.kills += 1
            self.in_flight.update(told.in_flight)
        else:
            assert (told.status, told.errors) == (0, [])
        return told

    @property
    def is_killed(self) -> bool:
        """Whether it is to be started again."""
        return self.last is None or self.last.status == -KILL

    def run_killed(self, dice: random.Random) -> bool:
        """Run it and kill it: after a while, or at a statement; it may be through before."""
        if dice.random() < AT_SQLITE:
            self.run(kill_at=dice.randint(1, 60))
        else:
            self.run(kill_after=dice.uniform(0.02, 0.6))
        return self.is_killed

    @property
    def in_rooms(self) -> Counter[str]:
        """How often each document is in its room."""
        rooms = self.server.rooms.values()
        return Counter(file.name for room in rooms for file in room.accepted)

    def states(self) -> dict[str, str]:
        """Return what the journal says, from a copy: the original stays as the kill left it."""
        journal = Path(self.order["journal"])
        return states_in(journal) if journal.exists() else {}


@contextmanager
def batch_in(folder: Path, jobs: int, **how: Any) -> Iterator[Batch]:
    """Provide a batch, its documents, and a server with its rooms."""
    folder.mkdir()
    for number in range(jobs):
        size = LARGE if number % 10 == 9 else 1000 + number
        (folder / name_of(number)).write_bytes(b"%PDF-1.7\n".ljust(size, b"x"))
    server = MeetingServer(lock_seconds=WINDOW, processing_seconds=0.1)
    for number in range(ROOMS):
        server.add_room(f"room{number:02}")
    with server.run() as url:
        facts = {"journal": str(folder / "term.db"), "folder": str(folder), "rooms": ROOMS}
        yield Batch({"url": url, "jobs": jobs, **facts, **how}, server)


def check_after_a_kill(batch: Batch) -> None:
    """Nothing that a room has counts as unsent, whatever was being written at that moment."""
    there = set(batch.in_rooms)
    states = batch.states()
    unsent = {name for name in there if states.get(name, "none") not in KNOWN_TO_BE_OUT}
    assert unsent == set(), f"called unsent, and there: {unsent}"


def check_at_the_end(batch: Batch, *, resend: bool) -> None:
    """Hold what the rooms have against what the last run says."""
    time.sleep(0.1)  # for what the server is still busy with
    assert batch.last is not None
    outcomes, in_rooms, in_flight = batch.last.outcomes, batch.in_rooms, batch.in_flight
    assert len(outcomes) == batch.order["jobs"]
    unknown = {name for name, status in outcomes.items() if status == "unknown"}
    good = {name for name, status in outcomes.items() if status in {"accepted", "skipped"}}
    assert good | unknown == set(outcomes)
    assert all(in_rooms[name] >= 1 for name in good)  # nothing is lost
    if resend:
        assert unknown == set()
        assert all(in_rooms[name] <= 1 + in_flight[name] for name in in_rooms)
    else:
        twice = {name for name, times in in_rooms.items() if times > 1}
        assert twice == set(), f"twice in a room: {twice}"
        assert unknown <= set(in_flight)  # nothing is called unknown that was not in flight
    again = batch.run()
    assert not again.begun
    assert Counter(again.outcomes.values()) == Counter(skipped=len(good), unknown=len(unknown))


RUNS = [
    pytest.param("at_most_once", 8, "asyncio", 3, 40, id="at_most_once"),
    pytest.param("at_least_once", 1, "trio", 2, 12, id="at_least_once"),
    *(
        pytest.param(
            delivery, concurrency, backend, 50, 150, marks=[nightly, pytest.mark.timeout(3600)]
        )
        for delivery, concurrency, backend in [
            *[("at_most_once", 1, "asyncio"), ("at_most_once", 8, "trio")],
            *[("at_least_once", 1, "trio"), ("at_least_once", 8, "asyncio")],
        ]
    ),
]


@pytest.mark.parametrize(("delivery", "concurrency", "backend", "kills", "jobs"), RUNS)
def test_killed_and_started_again(
    tmp_path: Path,
    delivery: str,
    concurrency: int,
    backend: str,
    kills: int,
    jobs: int,
) -> None:
    """As many batches as it takes for all the kills; each is run to its end at last."""
    dice = random.Random(f"{delivery} {concurrency} {backend}" if kills < 10 else None)
    how = {"delivery": delivery, "concurrency": concurrency, "backend": backend}
    for turn in itertools.count():
        with batch_in(tmp_path / str(turn), jobs, **how) as batch:
            while batch.kills < kills and batch.run_killed(dice):
                check_after_a_kill(batch)
            if batch.is_killed:
                batch.run()
            check_at_the_end(batch, resend=delivery == "at_least_once")
        kills -= batch.kills
        if kills <= 0:
            break


@nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("frozen", [0.5, 5, 14, 60])
def test_a_frozen_batch_goes_on(tmp_path: Path, backend: str, frozen: float) -> None:
    """As Ctrl-Z and a container that is paused do it, anywhere in a batch."""
    dice = random.Random(frozen)
    for number in range(3 if frozen < 60 else 1):
        with batch_in(tmp_path / str(number), 60, backend=backend) as batch:
            told = batch.run(kill_after=dice.uniform(0.05, 0.6), frozen=frozen)
            assert Counter(told.outcomes.values()) == Counter(accepted=60)
