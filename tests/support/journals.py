"""Journals for tests: as crashes leave them, one in memory, and one where things happen.

A batch of the journals that crashes leave is known by its number of jobs. Names and rooms follow
from the number of a job; a room does the same with each of its documents, as its name says.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio.lowlevel
import anyio.to_thread
import attrs

from meeting_async import LockPolicy, RetryPolicy, UploadJob
from meeting_async.journals import JournalEntry, JournalJob
from support.fake_rooms import Act, FakeRooms, Visit, accepted, client_of, lost, refused

if TYPE_CHECKING:
    from meeting_async import Batch

SERVER = "https://meet.test/auth"
"""The one of ``fake_rooms``."""


# --- files ---------------------------------------------------------------------------------------

ACTS: dict[str, Callable[[], Act]] = {"good": accepted, "bad": refused, "lost": lost}
ROOMS = ("good-1", "lost-1", "good-2", "bad-1")
KEY_LENGTH = 4_000
"""An entry with such a key takes several pages, so that a few jobs make a large journal."""

ENDS = ("", "-wal", "-shm", "-journal")
"""How the names of the files of an SQLite database end."""


def name_of(number: int) -> str:
    """Name a document."""
    return f"{number:03}.pdf"


def room_of(number: int) -> str:
    """Return the room of a document."""
    return ROOMS[number % len(ROOMS)]


def jobs_of(numbers: Iterable[int]) -> list[UploadJob]:
    """Make jobs with long keys."""
    return [
        UploadJob(
            room_of(number),
            b"%PDF-1.7",
            filename=name_of(number),
            key=name_of(number).ljust(KEY_LENGTH, "k"),
        )
        for number in numbers
    ]


def acting_rooms(**how: Any) -> FakeRooms:
    """Make rooms that accept, refuse or lose every document that they get."""

    def answer(visit: Visit) -> Act:
        return ACTS[visit.room.partition("-")[0]]()

    return FakeRooms(answer, **how)


@asynccontextmanager
async def running_batch(
    journal: Any, jobs: Iterable[UploadJob], rooms: FakeRooms, settings: Any = None, **how: Any
) -> AsyncGenerator[Batch, None]:
    """Provide a batch with a journal, and a client of its own, as in a new process."""
    usual = {"lock": LockPolicy(max_wait=5), "retry": RetryPolicy(max_attempts=1)}
    async with client_of(rooms, **usual | (settings or {})) as client:
        async with client.upload_many(jobs, journal=journal, **how) as batch:
            yield batch


def traced(trace: Callable[[str], object]) -> Callable[..., sqlite3.Connection]:
    """Make what takes the place of ``sqlite3.connect``: a function is called at each statement."""
    connect = sqlite3.connect

    def connected(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(trace)
        return connection

    return connected


def files_of(journal: Path) -> dict[str, Path]:
    """Return the files of a journal that are there, by how their names end."""
    found = {end: Path(f"{journal}{end}") for end in ENDS}
    return {end: path for end, path in found.items() if path.exists()}


def copied(journal: Path, folder: Path) -> Path:
    """Copy a journal's files, as they are, into a new folder; return where the copy is."""
    folder.mkdir(parents=True)
    for path in files_of(journal).values():
        shutil.copy(path, folder)
    return folder / journal.name


def states_in(journal: Path) -> dict[str, str]:
    """Return what SQLite itself reads of each document, in a copy; it must be whole."""
    with TemporaryDirectory() as folder:
        copy = copied(journal, Path(folder, "copy"))
        with closing(sqlite3.connect(copy)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            rows = (
                connection.execute("SELECT document, state FROM jobs") if "jobs" in tables else ()
            )
            return dict(rows)


# --- without files -------------------------------------------------------------------------------


@attrs.define(eq=False)
class MemoryJournal:
    """A journal in memory, for one run."""

    states: list[Any] = attrs.field(factory=list)
    found: Any = "ready"
    """What an earlier run has left of each job."""

    @asynccontextmanager
    async def opened(self, _server: str) -> AsyncGenerator[None]:
        """Hold nothing."""
        yield

    def register(self, _job: JournalJob) -> Awaitable[JournalEntry]:
        """Make an entry."""
        self.states.append(self.found)
        return _Later(JournalEntry(len(self.states) - 1, self.found))

    async def mark_sending(self, entry: JournalEntry, *_facts: object) -> None:
        """Keep it."""
        self.states[entry.id] = "sent"

    async def record(self, entry: JournalEntry, state: str, _reason: str | None) -> None:
        """Keep it."""
        self.states[entry.id] = state


Hook = Callable[[], Awaitable[object]]


@attrs.define(eq=False)
class HookedJournal:
    """A journal where something happens before and after what a batch asks of it."""

    journal: Any = attrs.field(factory=MemoryJournal)
    before: dict[str, Hook] = attrs.field(factory=dict)
    """By method, or ``close``; what a hook raises, the method raises."""
    after: dict[str, Hook] = attrs.field(factory=dict)
    calls: list[str] = attrs.field(factory=list)
    """The methods that were called."""

    @asynccontextmanager
    async def opened(self, server: str) -> AsyncGenerator[None]:
        """Open and close it."""
        await self._at("opened")
        async with self.journal.opened(server):
            yield
            await self._at("close")

    def register(self, job: JournalJob) -> Awaitable[JournalEntry]:
        """Register a job at once; the hook delays the answer."""
        self.calls.append("register")
        return _Later(self.journal.register(job), self.before.get("register"))

    async def mark_sending(self, *facts: Any) -> None:
        """Mark a job."""
        await self._at("mark_sending")
        await self.journal.mark_sending(*facts)

    async def record(self, *facts: Any) -> None:
        """Record an outcome."""
        await self._at("record")
        await self.journal.record(*facts)
        if "record" in self.after:
            await self.after["record"]()

    async def _at(self, verb: str) -> None:
        self.calls.append(verb)
        await anyio.lowlevel.checkpoint()
        if verb in self.before:
            await self.before[verb]()


@attrs.frozen
class _Later:
    """An answer that nobody has to wait for."""

    answer: Any
    hook: Hook | None = None

    def __await__(self) -> Generator[Any, Any, JournalEntry]:
        return self._answered().__await__()

    async def _answered(self) -> JournalEntry:
        await anyio.lowlevel.checkpoint()
        if self.hook is not None:
            await self.hook()
        is_entry = isinstance(self.answer, JournalEntry)
        found: JournalEntry = self.answer if is_entry else await self.answer
        return found
