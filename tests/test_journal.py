"""The journal of a batch: an entry for each job, and what it says after a crash."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest

from meeting_async import Document
from meeting_async._identity import stamp_of
from meeting_async._journal import Entry, Journal, State, journal_at
from meeting_async.errors import InvalidInput, JournalError, JournalInUse

pytestmark = pytest.mark.anyio

SERVER = "https://meet.example.com/auth"
SECRET = "c0ffee-is-a-secret"
LINK = f"https://files.example.com/deck.pdf?token={SECRET}"

Open = Callable[[], AbstractAsyncContextManager[Journal]]


class Clock:
    """Unix time, at the test's command."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        """Return it."""
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Say where the journal is."""
    return tmp_path / "term.db"


@pytest.fixture
def clock() -> Clock:
    """Provide the time."""
    return Clock()


@pytest.fixture
def run(path: Path, clock: Clock) -> Open:
    """Provide runs of one batch."""
    return lambda: journal_at(path, SERVER, clock)


async def claimed(
    journal: Journal, document: object = "deck.pdf", *, room: str = "room01", **how: Any
) -> Entry:
    """Claim the entry of a job."""
    key = how.pop("key", None)
    return await journal.claim(room, Document.of(document, **how), key)


async def stamp(path: Path) -> str | None:
    """Return the stamp of a file."""
    return await anyio.to_thread.run_sync(stamp_of, Document.of(path))


async def changed(journal: Journal, entry: Entry, path: Path) -> bool:
    """Tell whether the file is another one than was sent."""
    return await journal.has_changed(entry, Document.of(path))


def bytes_of(path: Path) -> bytes:
    """Return what is in a file and in the log beside it."""
    log = Path(f"{path}-wal")
    return path.read_bytes() + (log.read_bytes() if log.exists() else b"")


def rows_in(path: Path) -> list[dict[str, Any]]:
    """Read a journal that nobody has open."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM jobs ORDER BY id")]


# --- entries -------------------------------------------------------------------------------------


async def test_a_job_has_an_entry_from_the_first_run_on(run: Open) -> None:
    """It begins as not sent, and is found again by the next run."""
    async with run() as journal:
        first = await claimed(journal)
        assert first == Entry(id=first.id, state="ready")
    async with run() as journal:
        assert (await claimed(journal)).id == first.id
        assert (await claimed(journal, "other.pdf")).id != first.id


async def test_what_was_noted_is_what_the_next_run_finds(run: Open, clock: Clock) -> None:
    """State, size, and how long ago the document's end was about to leave."""
    async with run() as journal:
        entry = await claimed(journal)
        clock.now += 5
        await journal.intend(entry, 65_536, None)
    clock.now += 20
    async with run() as journal:
        found = await claimed(journal)
        assert (found.id, found.state, found.size) == (entry.id, "sent", 65_536)
        assert journal.seconds_since_sent(found) == 20
        clock.now += 10
        await journal.settle(found, "unknown", "no answer")
    async with run() as journal:  # the lock was taken when it was sent, not when it was given up
        found = await claimed(journal)
        assert (found.id, found.state, found.size) == (entry.id, "unknown", 65_536)
        assert journal.seconds_since_sent(found) == 30


STATES: list[State] = ["ready", "accepted", "refused", "failed", "unknown"]


@pytest.mark.parametrize("state", STATES)
async def test_each_end_is_kept_with_its_reason(path: Path, run: Open, state: State) -> None:
    """And a reason goes when the document is sent again."""
    async with run() as journal:
        entry = await claimed(journal)
        await journal.intend(entry, 7, None)
        await journal.settle(entry, state, "because")
    assert [(row["state"], row["reason"]) for row in rows_in(path)] == [(state, "because")]
    async with run() as journal:
        entry = await claimed(journal)
        assert entry.state == state
        await journal.intend(entry, 7, None)
    assert [(row["state"], row["reason"]) for row in rows_in(path)] == [("sent", None)]


async def test_a_wall_clock_that_was_put_back_makes_no_time_negative(
    run: Open, clock: Clock
) -> None:
    """Then a room is thought to be locked for longer, which harms nobody."""
    async with run() as journal:
        await journal.intend(await claimed(journal), 7, None)
    clock.now -= 3600
    async with run() as journal:
        assert journal.seconds_since_sent(await claimed(journal)) == 0


async def test_jobs_that_are_alike_have_an_entry_each_in_turn(run: Open) -> None:
    """The first of three was accepted; the next run sees that for the first, and for no other."""
    async with run() as journal:
        entries = [await claimed(journal) for _ in range(3)]
        assert len({entry.id for entry in entries}) == 3
        await journal.settle(entries[0], "accepted")
        await journal.settle(entries[2], "refused")
    async with run() as journal:
        again = [await claimed(journal) for _ in range(4)]
    assert [entry.id for entry in again[:3]] == [entry.id for entry in entries]
    assert [entry.state for entry in again] == ["accepted", "ready", "refused", "ready"]


async def test_a_run_that_ended_early_leaves_the_rest_as_it_was(run: Open) -> None:
    """Jobs that a run did not come to are found by the run after that."""
    async with run() as journal:
        entries = [await claimed(journal, name) for name in ("a.pdf", "b.pdf")]
        for entry in entries:
            await journal.settle(entry, "accepted")
    async with run() as journal:
        await claimed(journal, "a.pdf")
    async with run() as journal:
        found = [await claimed(journal, name) for name in ("b.pdf", "a.pdf")]
    assert [entry.state for entry in found] == ["accepted"] * 2


async def test_a_key_is_used_once_in_a_batch(run: Open) -> None:
    """A second job of the same key is a mistake; the next run of the batch is none."""
    for _ in range(2):
        async with run() as journal:
            await claimed(journal, key="7")
            await claimed(journal, key="8")
            with pytest.raises(InvalidInput, match=r"key was used in this batch before .*'7'"):
                await claimed(journal, "other.pdf", room="room02", key="7")


@pytest.mark.parametrize("key", ["", 7, b"7", 0, ("7",)])
async def test_a_key_is_a_text(path: Path, run: Open, key: object) -> None:
    """Anything else is refused, and nothing is written."""
    async with run() as journal:
        with pytest.raises(InvalidInput, match=r"key is no text .*: give a str, or None"):
            await claimed(journal, key=key)
    assert rows_in(path) == []


@pytest.mark.parametrize("key", ["\ud800", "a\0b", "' OR 1=1 --", "x" * 100_000])
async def test_a_key_is_any_text(run: Open, key: str) -> None:
    """However odd."""
    async with run() as journal:
        await journal.settle(await claimed(journal, key=key), "accepted")
    async with run() as journal:
        assert (await claimed(journal, key=key)).state == "accepted"


# --- files that change ---------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["accepted", "unknown"])
async def test_a_file_that_changed_since_it_was_sent(
    tmp_path: Path, run: Open, state: State
) -> None:
    """It is said in each run from then on, until it is as it was."""
    deck = tmp_path / "deck.pdf"
    deck.write_bytes(b"%PDF-1.7")
    status = deck.stat()
    async with run() as journal:
        entry = await claimed(journal, deck)
        await journal.intend(entry, 8, await stamp(deck))
        await journal.settle(entry, state)
    async with run() as journal:
        assert not await changed(journal, await claimed(journal, deck), deck)
    deck.write_bytes(b"%PDF-1.77")
    for _ in range(2):
        async with run() as journal:
            assert await changed(journal, await claimed(journal, deck), deck)
    deck.write_bytes(b"%PDF-1.7")
    os.utime(deck, ns=(status.st_atime_ns, status.st_mtime_ns))
    async with run() as journal:
        assert not await changed(journal, await claimed(journal, deck), deck)


@pytest.mark.parametrize("state", ["ready", "refused", "failed"])
async def test_a_file_counts_as_it_was_when_it_was_last_sent(
    tmp_path: Path, run: Open, state: State
) -> None:
    """Not as it was when the batch was begun, or when it was sent in vain."""
    deck = tmp_path / "deck.pdf"
    async with run() as journal:
        entry = await claimed(journal, deck)
        deck.write_bytes(b"%PDF-1.7")
        await journal.intend(entry, 8, await stamp(deck))
        await journal.settle(entry, state)
    deck.write_bytes(b"%PDF-1.77")
    async with run() as journal:
        entry = await claimed(journal, deck)
        await journal.intend(entry, 9, await stamp(deck))
        await journal.settle(entry, "accepted")
    async with run() as journal:
        assert not await changed(journal, await claimed(journal, deck), deck)
    deck.write_bytes(b"%PDF-1.777")
    async with run() as journal:
        assert await changed(journal, await claimed(journal, deck), deck)


async def test_a_file_that_is_gone_did_not_change(tmp_path: Path, run: Open) -> None:
    """Who deletes what was delivered may run the batch again."""
    deck = tmp_path / "deck.pdf"
    deck.write_bytes(b"%PDF-1.7")
    async with run() as journal:
        entry = await claimed(journal, deck)
        await journal.intend(entry, 8, await stamp(deck))
        await journal.settle(entry, "accepted")
    deck.unlink()
    async with run() as journal:
        entry = await claimed(journal, deck)
        assert not await changed(journal, entry, deck)
    assert entry.state == "accepted"


async def test_a_document_that_is_no_file_does_not_change(run: Open) -> None:
    """Other bytes are another job; of a stream nobody can tell."""
    document = Document.from_bytes(b"%PDF-1.7", "deck.pdf")
    async with run() as journal:
        entry = await journal.claim("room01", document, None)
        await journal.intend(entry, 8, None)
        assert not await journal.has_changed(attrs.evolve(entry, stamp="8 bytes, 1"), document)


# --- the file ------------------------------------------------------------------------------------


async def test_an_sqlite_that_is_too_old(
    path: Path, run: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said at once, and no file is made."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 32, 3))
    with pytest.raises(JournalError, match=r"needs SQLite 3\.33 or later"):
        async with run():
            raise AssertionError
    assert not await anyio.Path(path).exists()


async def test_a_journal_belongs_to_one_server(path: Path, run: Open) -> None:
    """Another one's rooms have nothing of it; nothing is written, and its own goes on."""
    async with run() as journal:
        await journal.settle(await claimed(journal), "accepted")
    before = bytes_of(path)
    with pytest.raises(JournalError, match=f"belongs to the server at {SERVER}: take one for h"):
        async with journal_at(path, "http://localhost:8080/auth"):
            pass
    assert bytes_of(path) == before
    async with run() as journal:
        assert (await claimed(journal)).state == "accepted"


async def test_it_is_one_batchs_at_a_time(run: Open) -> None:
    """The second is refused at once, and the first goes on."""
    async with run() as journal:
        with anyio.fail_after(2), pytest.raises(JournalInUse):
            async with run():
                pass
        await claimed(journal)


async def test_a_newer_journal_is_not_read(path: Path, run: Open) -> None:
    """What it means is not known here."""
    async with run():
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(JournalError, match="has format 2, which this version cannot read"):
        async with run():
            pass


async def test_a_journal_is_marked_as_one(path: Path, run: Open) -> None:
    """In its header, where ``file`` and others look, from the moment it is there."""
    async with run():
        assert bytes_of(path)[68:72] == b"masj"


async def test_a_link_leaves_no_secret_in_the_file(path: Path, run: Open) -> None:
    """Not in the log beside it either, which is there while the batch runs."""
    async with run() as journal:
        document = Document.from_link(LINK)
        entry = await journal.claim("room01", document, None)
        await journal.intend(entry, len(LINK), None)
        during = bytes_of(path)
        await journal.settle(entry, "accepted")
    for content in (during, bytes_of(path)):
        assert b"files.example.com" in content
        assert SECRET.encode() not in content


async def test_what_cannot_be_written_is_raised(run: Open) -> None:
    """By each step; whoever gets it must not send."""
    async with run() as journal:
        entry = await claimed(journal)
        journal._database._connection.execute("PRAGMA query_only = ON")
        for step in (
            claimed(journal, "other.pdf"),
            journal.intend(entry, 7, None),
            journal.settle(entry, "accepted"),
        ):
            with pytest.raises(JournalError, match="attempt to write a readonly database"):
                await step


async def test_many_jobs_at_once(path: Path, run: Open) -> None:
    """Each has an entry of its own that ends as it should."""

    async def work(number: int) -> None:
        entry = await claimed(journal, f"{number}.pdf")
        await journal.intend(entry, number, None)
        await journal.settle(entry, "accepted" if number % 2 else "refused")

    async with run() as journal, anyio.create_task_group() as tasks:
        for number in range(200):
            tasks.start_soon(work, number)
    rows = {row["document"]: (row["size"], row["state"]) for row in rows_in(path)}
    assert rows == {f"{n}.pdf": (n, "accepted" if n % 2 else "refused") for n in range(200)}
