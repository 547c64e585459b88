"""The file under a journal: it confirms nothing that it loses, and touches nobody else's."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import attrs
import pytest

from _notes import SCHEMA, note
from meeting_async._database import Action, Database, opened
from meeting_async.errors import JournalError, JournalInUse

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent


async def elsewhere(what: str, path: os.PathLike[str]) -> str:
    """Do something with a file in another process; return what it says."""
    command = [sys.executable, "-m", "_notes", what, os.fspath(path)]
    result = await anyio.run_process(command, cwd=HERE, check=False)
    assert not result.stderr
    return result.stdout.decode()


def notes_in(path: Path) -> list[str]:
    """Read what is written in a file that nobody has open."""
    with closing(sqlite3.connect(path)) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM notes ORDER BY rowid")]


def traced(database: Database) -> list[str]:
    """Return a list that the statements which a database executes are added to."""
    statements: list[str] = []
    database._connection.set_trace_callback(statements.append)
    return statements


@contextmanager
def busy_disk(database: Database) -> Iterator[None]:
    """Keep whatever is to be written waiting while the block runs."""
    with database._alone:
        yield


def names_in(folder: Path) -> list[str]:
    """List what is in a folder."""
    return sorted(one.name for one in folder.iterdir())


def prints_of(path: Path) -> dict[str, str]:
    """Return a digest of each file that belongs to a database."""
    return {
        one.name: hashlib.sha256(one.read_bytes()).hexdigest()
        for one in path.parent.iterdir()
        if one.name.startswith(path.name)
    }


# --- writing -------------------------------------------------------------------------------------


async def test_what_is_confirmed_is_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    """And what an action returns is returned."""
    path = tmp_path / "notes.db"
    async with opened(path, SCHEMA) as database:
        assert database.path == str(path)
        assert await database.write(note("one")) == "one"
    async with opened(str(path), SCHEMA) as database:
        assert await database.write(note("two")) == "two"
    assert notes_in(path) == ["one", "two"]


async def test_what_is_confirmed_is_there_though_the_file_was_never_closed(tmp_path: Path) -> None:
    """It is in the file and its log at that moment: their copies have it."""
    path = tmp_path / "notes.db"
    async with opened(path, SCHEMA) as database:
        await database.write(note("one"))
        # Another process copies: to close the file in this one would free its locks on it.
        for end in ("", "-wal"):
            await anyio.run_process(["cp", f"{path}{end}", f"{tmp_path / 'copy.db'}{end}"])
        assert notes_in(tmp_path / "copy.db") == ["one"]


async def test_it_is_as_durable_as_sqlite_can_make_it(tmp_path: Path) -> None:
    """WAL, with the disk's word for each commit, on macOS too."""
    async with opened(tmp_path / "notes.db", SCHEMA) as database:
        ask = database._connection.execute
        settings = ("journal_mode", "synchronous", "fullfsync", "locking_mode")
        answers = [ask(f"PRAGMA {name}").fetchone()[0] for name in settings]
        assert answers == ["wal", 2, 1, "exclusive"]


async def test_what_need_not_be_durable_is_not_waited_for(tmp_path: Path) -> None:
    """The disk is asked only if one of a transaction wants it; a killed process loses nothing."""
    path = tmp_path / "notes.db"
    async with opened(path, SCHEMA) as database:
        statements = traced(database)
        for durable in (False, False, True, True, False):
            await database.write(note("one"), durable=durable)
        async with anyio.create_task_group() as tasks:
            with busy_disk(database):
                for durable in (False, True, False):
                    tasks.start_soon(partial(database.write, note("one"), durable=durable))
                await anyio.sleep(0.05)
    settings = ["BEGIN IMMEDIATE" if one[0] == "B" else one for one in statements if one[0] in "PB"]
    off, on, begin = "PRAGMA synchronous = NORMAL", "PRAGMA synchronous = FULL", "BEGIN IMMEDIATE"
    assert settings == [off, begin, begin, on, begin, begin, off, begin, *settings[8:]]
    assert settings[8:] in ([on, begin], [begin, on, begin])
    assert await elsewhere("die", path) == ""
    assert len(notes_in(path)) == 9


async def test_many_writers_share_few_transactions(tmp_path: Path) -> None:
    """All that wait while the disk is busy are done together, in the order in which they came."""
    path = tmp_path / "notes.db"
    results = []

    async def write(number: int) -> None:
        results.append(await database.write(note(str(number))))

    async with opened(path, SCHEMA) as database:
        statements = traced(database)
        async with anyio.create_task_group() as tasks:
            with busy_disk(database):
                for number in range(200):
                    tasks.start_soon(write, number)
                await anyio.sleep(0.05)
                assert statements == []
        assert statements.count("COMMIT") == 1
    assert sorted(results) == sorted(notes_in(path)) == sorted(map(str, range(200)))


async def test_an_action_that_fails_fails_its_caller_only(tmp_path: Path) -> None:
    """The others of the same transaction are written."""
    path = tmp_path / "notes.db"
    ends: list[object] = []

    def refuse(_: sqlite3.Connection) -> None:
        raise LookupError("there is no such thing")

    async def write(action: Action[object]) -> None:
        try:
            ends.append(await database.write(action))
        except LookupError as error:
            ends.append(str(error))

    async with opened(path, SCHEMA) as database:
        statements = traced(database)
        async with anyio.create_task_group() as tasks:
            with busy_disk(database):
                for action in (note("one"), refuse, note("two")):
                    tasks.start_soon(write, action)
                await anyio.sleep(0.05)
    assert set(ends) == {"one", "there is no such thing", "two"}
    assert statements.count("COMMIT") == 1
    assert sorted(notes_in(path)) == ["one", "two"]


async def test_a_transaction_that_fails_fails_all_its_callers(tmp_path: Path) -> None:
    """Each gets an error of his own; nothing of it is in the file; the next one can succeed."""
    path = tmp_path / "notes.db"
    found: list[JournalError] = []

    async def write(action: Action[object]) -> None:
        with pytest.raises(JournalError, match=r"cannot be written: .*nothing") as caught:
            await database.write(action)
        found.append(caught.value)

    def wrong(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO nothing VALUES (1)")

    async with opened(path, SCHEMA) as database:
        async with anyio.create_task_group() as tasks:
            with busy_disk(database):
                for action in (note("one"), wrong, note("two")):
                    tasks.start_soon(write, action)
                await anyio.sleep(0.05)
        assert len({id(error) for error in found}) == 3
        assert isinstance(found[0].__cause__, sqlite3.Error)
        await database.write(note("three"))
    assert notes_in(path) == ["three"]


async def test_a_full_disk_is_told_and_leaves_what_is_there(tmp_path: Path) -> None:
    """Room for no more pages: an error for whoever writes, again and again."""
    path = tmp_path / "notes.db"
    async with opened(path, SCHEMA) as database:
        await database.write(note("one"))
        database._connection.execute("PRAGMA max_page_count = 2")
        for _ in range(2):
            with pytest.raises(JournalError, match="cannot be written: database or disk is full"):
                await database.write(note("x" * 100_000))
    assert notes_in(path) == ["one"]


async def test_a_file_that_may_not_grow_is_told(tmp_path: Path) -> None:
    """The operating system refuses, as with a quota."""
    path = tmp_path / "notes.db"
    lines = (await elsewhere("overflow", path)).splitlines()
    assert len(lines) == 2
    assert all(line.startswith("cannot be written: ") for line in lines)
    assert notes_in(path) == ["one"]


# --- cancellation --------------------------------------------------------------------------------


async def test_a_cancelled_writer_is_not_cut_short(tmp_path: Path) -> None:
    """It waits for the disk, gets its result, and is cancelled at its next step."""
    path = tmp_path / "notes.db"
    results = []

    async def write() -> None:
        results.append(await database.write(note("one")))
        await anyio.sleep_forever()

    async with opened(path, SCHEMA) as database, anyio.create_task_group() as tasks:
        with busy_disk(database):
            tasks.start_soon(write)
            await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
    assert results == ["one"]
    assert notes_in(path) == ["one"]


async def test_a_writer_that_waits_for_another_is_not_cut_short(tmp_path: Path) -> None:
    """Neither is one whose transaction is not begun."""
    path = tmp_path / "notes.db"
    results = []

    async def write(text: str) -> None:
        results.append(await database.write(note(text)))

    async with opened(path, SCHEMA) as database, anyio.create_task_group() as tasks:
        with busy_disk(database):
            for text in ("one", "two"):
                tasks.start_soon(write, text)
                await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
    assert sorted(results) == ["one", "two"]
    assert sorted(notes_in(path)) == ["one", "two"]


def test_asyncios_own_cancellation_makes_nothing_done_that_is_not(tmp_path: Path) -> None:
    """It breaks through shields. Those who waited with the one that it hit get what is true."""
    path = tmp_path / "notes.db"

    async def main() -> list[object]:
        async with opened(path, SCHEMA) as database:
            with busy_disk(database):
                writers = [asyncio.create_task(database.write(note(text))) for text in "abc"]
                await asyncio.sleep(0.05)
                writers[0].cancel()
                await asyncio.sleep(0.05)
                late = asyncio.create_task(database.write(note("d")))
                await asyncio.sleep(0.05)
            return await asyncio.gather(*writers[1:], late)

    assert asyncio.run(main()) == ["b", "c", "d"]
    assert set(notes_in(path)) >= {"b", "c", "d"}


def test_asyncios_own_cancellation_of_one_who_waits_leaves_nobody_behind(tmp_path: Path) -> None:
    """Those behind it do not wait for it to go on."""
    path = tmp_path / "notes.db"
    go_on = threading.Event()

    def long(connection: sqlite3.Connection) -> str:
        go_on.wait()
        return note("a")(connection)

    async def main() -> list[object]:
        async with opened(path, SCHEMA) as database:
            first = asyncio.create_task(database.write(long))
            await asyncio.sleep(0.1)
            waiting = [asyncio.create_task(database.write(note(text))) for text in "bc"]
            await asyncio.sleep(0.1)
            waiting[0].cancel()
            await asyncio.sleep(0.1)
            go_on.set()
            async with asyncio.timeout(20):
                return [await first, await waiting[1]]

    assert asyncio.run(main()) == ["a", "c"]
    assert set(notes_in(path)) >= {"a", "c"}


# --- one owner -----------------------------------------------------------------------------------


async def test_a_second_one_in_the_same_loop_is_refused_at_once(tmp_path: Path) -> None:
    """With the reason, however its path is written; and it takes no lock away from the first."""
    path = tmp_path / "notes.db"
    (tmp_path / "link.db").symlink_to(path)
    async with opened(path, SCHEMA) as database:
        for other in (path, tmp_path / "x" / ".." / "notes.db", tmp_path / "link.db"):
            (tmp_path / "x").mkdir(exist_ok=True)
            with anyio.fail_after(2), pytest.raises(JournalInUse, match="wait for its end"):
                async with opened(other, SCHEMA):
                    pass
        assert "JournalInUse" in await elsewhere("use", path)
        await database.write(note("one"))
    async with opened(path, SCHEMA):
        pass
    assert notes_in(path) == ["one"]


async def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    """Also after so much was written that the log was folded into the file."""
    path = tmp_path / "notes.db"
    async with opened(path, SCHEMA) as database:
        for _ in range(20):
            await database.write(note("x" * 500_000))
        assert "JournalInUse" in await elsewhere("use", path)
    assert await elsewhere("use", path) == "opened\n"


async def test_a_second_loop_is_refused(tmp_path: Path) -> None:
    """In another thread of the same process."""
    path = tmp_path / "notes.db"

    async def open_it() -> None:
        async with opened(path, SCHEMA):
            pass

    async with opened(path, SCHEMA):
        for backend in ("asyncio", "trio"):
            run = partial(anyio.run, open_it, backend=backend)
            with pytest.raises(JournalInUse):
                await anyio.to_thread.run_sync(run)


async def test_a_process_that_is_killed_leaves_a_file_that_can_be_opened(tmp_path: Path) -> None:
    """Its lock ends with it, and what it had confirmed is there."""
    path = tmp_path / "notes.db"
    assert await elsewhere("die", path) == ""
    async with opened(path, SCHEMA) as database:
        await database.write(note("two"))
    assert notes_in(path) == ["one", "two"]


def _forked(function: Callable[[], object]) -> None:
    """Run a function in a fork of this process, which ends without any tidying up."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
async def test_a_forked_child_harms_nothing(tmp_path: Path) -> None:
    """It can neither write nor tidy up; what its parent writes from then on is there."""
    path = tmp_path / "notes.db"
    said = tmp_path / "said"
    async with opened(path, SCHEMA) as database:
        await database.write(note("one"))

        def in_child() -> None:
            errors = []
            for step in (database.write(note("no")), database.aclose()):
                try:
                    step.send(None)
                except (StopIteration, JournalError) as error:
                    errors.append(str(error))
            said.write_text("; ".join(errors))

        _forked(in_child)
        await database.write(note("two"))
        assert "belongs to the process that this one was forked from" in said.read_text()
        assert f"{path.name}-wal" in names_in(tmp_path)
    assert notes_in(path) == ["one", "two"]


# --- what is no such file ------------------------------------------------------------------------


def _somebody_elses(path: Path, script: str) -> None:
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
    "numbered": f'{MADE}; c.execute("PRAGMA user_version = 3")',
    "empty, but marked": 'c.execute("PRAGMA application_id = 77"); c.commit()',
    "empty": 'c.execute("PRAGMA journal_mode = WAL"); c.commit()',
}


@pytest.mark.parametrize("kind", FOREIGN)
async def test_somebody_elses_database_is_not_touched(tmp_path: Path, kind: str) -> None:
    """Not a byte of it, nor of what a crash has left beside it."""
    path = tmp_path / "other.db"
    _somebody_elses(path, FOREIGN[kind])
    before = prints_of(path)
    with pytest.raises(JournalError, match="is a database of something else: name another file"):
        async with opened(path, SCHEMA):
            pass
    assert prints_of(path) == before


@pytest.mark.parametrize("content", [b"%PDF-1.7 ", b"x" * 10_000, bytes(100), b"SQLite format 3\0"])
async def test_a_file_that_is_no_database_is_not_touched(tmp_path: Path, content: bytes) -> None:
    """Whatever it is."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(content)
    with pytest.raises(
        JournalError, match=r"deck.pdf' (cannot be used: file is not|is) a database"
    ):
        async with opened(path, SCHEMA):
            pass
    assert path.read_bytes() == content
    assert names_in(tmp_path) == ["deck.pdf"]


async def test_a_newer_format_is_told_and_not_touched(tmp_path: Path) -> None:
    """By its number; so is an older one."""
    path = tmp_path / "notes.db"
    for version in (2, 4):
        path.unlink(missing_ok=True)
        async with opened(path, attrs.evolve(SCHEMA, version=version)):
            pass
        before = prints_of(path)
        with pytest.raises(JournalError, match=f"has format {version}, which this version cannot"):
            async with opened(path, SCHEMA):
                pass
        assert prints_of(path) == before


async def test_an_empty_file_becomes_one(tmp_path: Path) -> None:
    """As `mktemp` makes it."""
    path = tmp_path / "notes.db"
    path.touch()
    async with opened(path, SCHEMA) as database:
        await database.write(note("one"))
    assert notes_in(path) == ["one"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other such places")
async def test_where_nothing_can_be_written_nothing_is_opened(tmp_path: Path) -> None:
    """A directory, a device, a pipe, a place without permission or that is not there."""
    os.mkfifo(tmp_path / "pipe")
    nowhere: list[str | Path] = [tmp_path, "", "/dev/null", tmp_path / "pipe"]
    for place in nowhere:
        with pytest.raises(JournalError, match="is no file: name one"):
            async with opened(place, SCHEMA):
                pass
    nowhere = ["/proc/notes.db", tmp_path / "not there" / "notes.db", tmp_path / "pipe" / "x"]
    for place in nowhere:
        with pytest.raises(JournalError, match="cannot be used: "):
            async with opened(place, SCHEMA):
                pass
    assert names_in(tmp_path) == ["pipe"]


async def test_a_file_that_may_only_be_read_is_refused() -> None:
    """When it is opened, not when it is too late. Root, who may do all, becomes nobody first."""
    with TemporaryDirectory(dir="/tmp") as folder:
        path = anyio.Path(folder, "notes.db")
        async with opened(path, SCHEMA):
            pass
        await path.chmod(0o444)
        await path.parent.chmod(0o755)
        result = await elsewhere("use_as_nobody", path)
    assert "may not be read and written by this process" in result


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 300])
async def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    """One line, printable, and no file."""
    with pytest.raises(JournalError, match="cannot be used: ") as caught:
        async with opened(f"{tmp_path}/{name}", SCHEMA):
            pass
    assert str(caught.value).isprintable()
    assert names_in(tmp_path) == []


NAMES = [":memory:", "file:notes.db?mode=memory", "a?b#c%41.db", "días.db", os.fsdecode(b"\xff.db")]


@pytest.mark.parametrize("name", NAMES)
async def test_names_that_mean_something_else_to_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """They are files, and can be opened again, as bytes too."""
    monkeypatch.chdir(tmp_path)
    async with opened(name, SCHEMA) as database:
        await database.write(note("one"))
    async with opened(os.fsencode(name), SCHEMA) as database:  # type: ignore[arg-type]
        await database.write(note("two"))
    assert names_in(tmp_path) == [name]
    assert notes_in(tmp_path / name) == ["one", "two"]


async def test_what_is_no_path_at_all() -> None:
    """It is a mistake in the program."""
    wrong: Any = 7
    with pytest.raises(TypeError):
        async with opened(wrong, SCHEMA):
            pass


async def test_the_loop_goes_on_while_the_disk_is_busy(tmp_path: Path) -> None:
    """A commit that takes long delays nobody who does not write."""
    steps = 0

    async def step() -> None:
        nonlocal steps
        while True:
            await anyio.sleep(0.001)
            steps += 1

    path = tmp_path / "notes.db"
    async with opened(path, SCHEMA) as database, anyio.create_task_group() as tasks:
        database._alone.acquire()
        threading.Timer(0.3, database._alone.release).start()
        tasks.start_soon(step)
        await database.write(note("one"))
        assert steps > 20
        tasks.cancel_scope.cancel()


# --- rows ----------------------------------------------------------------------------------------


async def test_rows_are_one_statement(tmp_path: Path) -> None:
    """Those that are there together, beside the actions of the same transaction."""
    async with opened(tmp_path / "notes.db", SCHEMA) as database:
        statements = traced(database)
        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(database.update, f"row {number}")
            tasks.start_soon(database.write, note("an action"))
    assert sorted(notes_in(tmp_path / "notes.db")) == sorted(
        [*(f"row {n}" for n in range(50)), "an action"]
    )
    updates = [one for one in statements if "json_each" in one]
    assert 1 <= len(updates) <= 3


async def test_a_row_that_cannot_be_written_fails_all_of_its_transaction(tmp_path: Path) -> None:
    """Nobody believes what is not in the file; the next one is as usual."""
    async with opened(tmp_path / "notes.db", SCHEMA) as database:
        with pytest.raises(JournalError, match="cannot be written: NOT NULL"):
            await database.update(None)
        await database.update("one")
    assert notes_in(tmp_path / "notes.db") == ["one"]


async def test_a_write_that_nobody_awaits_goes_along(tmp_path: Path) -> None:
    """It may be awaited when it is needed, more than once, and after the fact."""
    async with opened(tmp_path / "notes.db", SCHEMA) as database:
        early = database.submit(note("early"), durable=False)
        await database.update("late")
        assert await early == "early"
        assert await early == "early"
    assert notes_in(tmp_path / "notes.db") == ["early", "late"]
