"""The file under a journal: it confirms nothing that it loses, and touches no other file.

When somebody else changes it, its batch stops before the next document.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import itertools
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from meeting_async import UploadJob
from meeting_async.errors import JournalError, JournalInUse
from meeting_async.journals import JournalEntry, JournalJob, SqliteJournal
from support.fake_rooms import FakeRooms, Visit
from support.interruptions import cancelled_by_scope
from support.journals import SERVER, HookedJournal, running_batch, states_in, traced
from support.killed_processes import run_batch
from support.leaks import descriptors
from support.permissions import public_folder, unprivileged

pytestmark = pytest.mark.anyio


async def elsewhere(path: Path) -> list[str]:
    """Run a batch without jobs in another process; return what prevented it."""
    told = await anyio.to_thread.run_sync(run_batch, path, [])
    return told.errors


async def registered(journal: SqliteJournal, name: str = "one") -> JournalEntry:
    """Register a job."""
    job = JournalJob(identity=name, room_id="room01", document=name, is_unique=False)
    return await journal.register(job)


def prints_of(path: Path) -> dict[str, str]:
    """Return a digest of each file that belongs to a database."""
    return {
        one.name: hashlib.sha256(one.read_bytes()).hexdigest()
        for one in path.parent.iterdir()
        if one.is_file()
    }


class Disk:
    """What SQLite executes, and a way to let it wait."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.free = threading.Event()
        self.free.set()

    def trace(self, statement: str) -> None:
        """Note a statement, when it may be executed."""
        self.free.wait(20)
        self.statements.append(" ".join(statement.split()))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Look at what journals execute."""
    found = Disk()
    monkeypatch.setattr(sqlite3, "connect", traced(found.trace))
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Say where the journal is."""
    return tmp_path / "term.db"


# --- writing -------------------------------------------------------------------------------------


async def test_every_commit_waits_for_the_disk(path: Path, disk: Disk) -> None:
    """Before a closing boundary leaves, the disk has the mark, and all that was written before."""
    async with SqliteJournal(path).opened(SERVER) as journal:
        for _ in range(2):
            entry = await registered(journal)
            await journal.mark_sending(entry, 7, None)
            await journal.record(entry, "ready", None)
    pragmas = [statement for statement in disk.statements if statement.startswith("PRAGMA")]
    assert {"PRAGMA journal_mode = WAL", "PRAGMA fullfsync = ON"} <= set(pragmas)
    assert [one for one in pragmas if "synchronous" in one] == ["PRAGMA synchronous = FULL"]


async def test_writes_that_gather_are_committed_together(path: Path, disk: Disk) -> None:
    """What is written while the thread waits for company, or the disk is busy."""
    async with SqliteJournal(path).opened(SERVER) as journal, anyio.create_task_group() as tasks:
        entries = [await registered(journal, str(number)) for number in range(100)]
        disk.statements.clear()
        disk.free.clear()
        tasks.start_soon(registered, journal, "held up")
        await anyio.wait_all_tasks_blocked()
        for number in range(100):
            tasks.start_soon(registered, journal, f"new {number}")
            tasks.start_soon(journal.mark_sending, entries[number], number, None)
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        disk.free.set()
    kinds = Counter(statement.split()[0] for statement in disk.statements)
    assert kinds.pop("UPDATE") == 100
    assert kinds.total() < 15
    expected = {str(number): "sent" for number in range(100)} | {"held up": "ready"}
    assert states_in(path) == expected | {f"new {number}": "ready" for number in range(100)}


async def test_a_relative_path_survives_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path means the folder in which the batch began."""
    monkeypatch.chdir(tmp_path)
    async with SqliteJournal("term.db").opened(SERVER) as journal:
        monkeypatch.chdir("/")
        await journal.mark_sending(await registered(journal), 7, None)
    assert states_in(tmp_path / "term.db") == {"one": "sent"}


# --- cancellation --------------------------------------------------------------------------------


async def _open_and_close(path: Path) -> None:
    async with SqliteJournal(path).opened(SERVER) as journal:
        await journal.mark_sending(await registered(journal), 7, None)


@pytest.mark.parametrize("times", [60, pytest.param(2000, marks=pytest.mark.nightly)])
async def test_a_journal_cancelled_while_it_opens_is_not_left_locked(
    path: Path, times: int
) -> None:
    """By asyncio's own cancellation, which breaks through shields; the collector is not needed."""
    dice = random.Random(5)
    gc.disable()
    try:
        for number in range(times):
            task = asyncio.create_task(_open_and_close(path))
            if number % 3:
                await asyncio.sleep(dice.uniform(0, 0.006))
            else:
                for _ in range(number % 60):
                    await asyncio.sleep(0)
            for _ in range(1 + number % 2):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            async with SqliteJournal(path).opened(SERVER):
                pass
    finally:
        gc.enable()


@pytest.mark.both_loops
async def test_what_is_registered_while_a_journal_is_closed(path: Path) -> None:
    """It fails at once: nobody writes it any more."""
    journal = SqliteJournal(path)
    opened = journal.opened(SERVER)
    await opened.__aenter__()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(opened.__aexit__, None, None, None)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5), pytest.raises(JournalError, match=r"is closed|is not open"):
            await registered(journal)


async def test_a_journal_cancelled_by_a_scope_is_closed(path: Path) -> None:
    """Whatever it waits for, also while it is being closed."""
    for number in itertools.count(1):
        is_struck = await cancelled_by_scope(_open_and_close(path), number)
        async with SqliteJournal(path).opened(SERVER):
            pass
        if not is_struck:
            break
    assert number > 4


def test_a_loop_that_ends_early_leaves_no_lock(path: Path) -> None:
    """The thread closes the file when nobody is left to wait for it."""

    async def leave() -> None:
        held = SqliteJournal(path).opened(SERVER)
        await held.__aenter__()

    # The generator is closed with the loop, as asyncio does with all that are left.
    asyncio.run(leave())

    async def use() -> None:
        async with SqliteJournal(path).opened(SERVER):
            pass

    asyncio.run(use())


# --- one owner -----------------------------------------------------------------------------------


async def test_another_path_to_the_same_file_is_refused(tmp_path: Path, path: Path) -> None:
    """However it is written, from here and from another process; the first keeps its lock."""
    (tmp_path / "link.db").symlink_to(path)
    (tmp_path / "x").mkdir()
    async with SqliteJournal(path).opened(SERVER) as journal:
        for number in range(10):  # so much that the log is folded into the file
            entry = await registered(journal, str(number))
            await journal.record(entry, "failed", "x" * 500_000)
        for other in (path, tmp_path / "x" / ".." / "term.db", tmp_path / "link.db"):
            with anyio.fail_after(10), pytest.raises(JournalInUse, match="wait for its end"):
                async with SqliteJournal(other).opened(SERVER):
                    pass
        (error,) = await elsewhere(path)
        assert error.startswith("JournalInUse: ")
        await journal.mark_sending(entry, 7, None)
    assert await elsewhere(path) == []


# --- files that somebody else changes -------------------------------------------------------------

JOBS = [UploadJob("room01", b"%PDF-1.7", filename=f"{number}.pdf") for number in range(6)]


def _replace(path: Path) -> None:
    """Put a copy in its place, as programs that synchronise folders do."""
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


Change = Callable[[Path], object]
CHANGES: dict[str, Change] = {
    "deleted": Path.unlink,
    "moved away": lambda path: path.rename(path.with_name("moved")),
    "replaced": _replace,
    "emptied": lambda path: os.truncate(path, 0),
    "halved": lambda path: os.truncate(path, path.stat().st_size // 2),
    "folder moved": lambda path: path.parent.rename(f"{path.parent} moved"),
}


@pytest.mark.parametrize("end", ["", "-wal"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", ["after the third document", "at the fourth document"])
async def test_a_file_that_changes_stops_the_batch(
    tmp_path: Path, end: str, change: str, when: str
) -> None:
    """File or log, around the third of six documents: no other one is sent to its end.

    It changes while the journal is at rest: a write would make a file that has just shrunk as long
    as it should be, and nobody could tell.
    """
    path, at_rest = tmp_path / "term.db", anyio.Event()

    async def strike() -> None:
        await anyio.to_thread.run_sync(CHANGES[change], Path(f"{path}{end}"))

    async def at_end(_visit: Visit) -> None:
        if when == "after the third document" and len(rooms.uploads) == 3:
            await strike()

    async def marking() -> None:
        if when == "at the fourth document" and journal.calls.count("mark_sending") == 4:
            await at_rest.wait()
            await strike()

    async def recorded() -> None:
        if journal.calls.count("record") == 3:
            at_rest.set()

    hooks: Any = {"before": {"mark_sending": marking}, "after": {"record": recorded}}
    journal, rooms = HookedJournal(SqliteJournal(path), **hooks), FakeRooms(at_end=at_end)
    async with running_batch(journal, JOBS, rooms, concurrency=1) as batch:
        report = await batch.wait()
    complete = [visit.name for visit in rooms.uploads if visit.is_complete]
    assert complete == ["0.pdf", "1.pdf", "2.pdf"]
    assert isinstance(report.stopped_by, JournalError)
    statuses = [outcome.status for outcome in report.outcomes]
    assert statuses[:3] == ["accepted"] * 3
    assert statuses[3] in {"failed", "skipped"}
    assert statuses[4:] == ["skipped"] * 2


# --- what is no journal --------------------------------------------------------------------------


def _other(path: Path, script: str) -> None:
    """Have another process make a database and crash."""
    code = f"import os, sqlite3\nc = sqlite3.connect({str(path)!r})\n{script}\nos._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)


MADE = 'c.execute("CREATE TABLE t (a)"); c.execute("INSERT INTO t VALUES (1)"); c.commit()'
FOREIGN = {
    "plain": MADE,
    "with a log": f'c.execute("PRAGMA journal_mode = WAL"); {MADE}',
    "in the middle of a transaction": f"""if True:
        {MADE}
        c.execute("PRAGMA cache_size = 1")
        c.executemany("INSERT INTO t VALUES (?)", [("x" * 3000,) for _ in range(100)])""",
    "marked": f'{MADE}; c.execute("PRAGMA application_id = 77")',
    "empty, but marked": 'c.execute("PRAGMA application_id = 77"); c.commit()',
    "empty": 'c.execute("PRAGMA journal_mode = WAL"); c.commit()',
}


def _database(script: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        _other(path, script)
        return path

    return make


def _file(content: bytes) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        path.write_bytes(content)
        return path

    return make


def _format(version: int) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        anyio.run(_open_and_close, path)
        _other(path, f'c.execute("PRAGMA user_version = {version}"); c.close()')
        return path

    return make


def _pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


OTHER = "is a database of something else: name another file"
NO_FILE, NO_PLACE = "is not a file: name one", "cannot be used: (?!there is no folder)"
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    **{f"a database, {kind}": (_database(script), OTHER) for kind, script in FOREIGN.items()},
    "a journal that was cut": (_file(b""), "is empty: was it cut?"),
    "a document": (_file(b"%PDF-1.7 "), "cannot be used: file is not a database: name another"),
    "a long text": (_file(b"x" * 10_000), "cannot be used: file is not a database: name another"),
    "zeros": (_file(bytes(100)), r"term.db' (cannot be used: file is not|is) a database"),
    "a magic number": (_file(b"SQLite format 3\0"), "(cannot be used: file is not|is) a database"),
    "an older format": (_format(2), "has format 2 instead of 4: finish its batch"),
    "a newer format": (_format(5), "has format 5 instead of 4: .*or name another file"),
    "a folder": (lambda path: path.parent, NO_FILE),
    "nothing": (lambda _: "", NO_FILE),
    "a device": (lambda _: "/dev/null", NO_FILE),
    "a pipe": (_pipe, NO_FILE),
    "a place that takes nothing": (lambda _: "/proc/notes.db", NO_PLACE),
    "a folder that is not there": (lambda path: path / "x", "there is no folder .*, make it first"),
    "in a pipe": (lambda path: _pipe(path) / "x", NO_PLACE),
    "a NUL": (lambda path: f"{path.parent}/a\0b", NO_PLACE),
    "no UTF-8": (lambda path: f"{path.parent}/\ud800", NO_PLACE),
    "a long name": (lambda path: f"{path.parent}/{'x' * 300}", NO_PLACE),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_journal_is_refused_and_not_touched(path: Path, kind: str) -> None:
    """Not a byte of it, nor of what a crash has left beside it; the error is one line."""
    make, told = REFUSED[kind]
    place: Any = make(path)
    before = prints_of(path)
    with pytest.raises(JournalError, match=told) as caught:
        anyio.run(_open_and_close, place)
    assert str(caught.value).isprintable()
    assert prints_of(path) == before


async def test_a_file_that_may_only_be_read_is_refused() -> None:
    """When it is opened, not when it is too late."""
    with public_folder() as folder:
        path = folder / "term.db"
        await _open_and_close(path)
        path.chmod(0o444)
        with (
            unprivileged(),
            pytest.raises(JournalError, match="may not be read and written by this process"),
        ):
            await _open_and_close(path)


@pytest.mark.parametrize(
    "name", [":memory:", "file:a.db?mode=memory", "a?b#c%41.db", "días\udcff.db"]
)
async def test_names_that_mean_something_else_to_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """They are files, and can be opened again."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        await _open_and_close(Path(name))
    assert [one.name for one in tmp_path.iterdir()] == [name]
    assert states_in(tmp_path / name) == {"one": "sent"}


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    """Leave no file open."""
    yield
    assert not [name for name in descriptors() if name.startswith(str(tmp_path))]
