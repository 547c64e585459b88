"""What every journal promises: what a run notes is what the next run finds.

To let another kind join, parametrise :class:`Storage`, whose journals share one place of
storage: each stands for a process of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from meeting_async.errors import InvalidInput, JournalError, JournalInUse
from meeting_async.journals import Journal, JournalEntry, JournalJob, SqliteJournal
from support.journals import SERVER

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


NO_SESSION = ("", None)
"""Of a server that names none."""


@attrs.define
class Storage:
    """A place of storage for journals, and unix time at the test's command."""

    folder: Path
    now: float = 1_700_000_000.0

    def journal(self) -> Journal:
        """Make a journal, as in a new process."""
        return SqliteJournal(self.folder / "term.db", now=lambda: self.now)

    async def run(
        self, *jobs: JournalJob, note: Callable[..., Awaitable[object]] | None = None
    ) -> list[JournalEntry]:
        """Register jobs together, as a batch does, and note something of them; return entries."""
        async with (journal := self.journal()).opened(SERVER):
            entries = await registered(journal, *jobs)
            if note is not None:
                await note(journal, *entries)
        return entries

    async def states(self, *jobs: JournalJob) -> list[str]:
        """Return what the next run finds of jobs."""
        return [entry.state for entry in await self.run(*jobs or (described(),))]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """Provide it."""
    return Storage(tmp_path)


def described(
    identity: str = "deck.pdf", room: str = "room01", *, unique: bool = False
) -> JournalJob:
    """Describe a job."""
    name = f'{{"key": "{identity}"}}' if unique else f'["{room}", "{identity}"]'
    return JournalJob(identity=name, room_id=room, document="deck.pdf", is_unique=unique)


async def registered(journal: Journal, *jobs: JournalJob) -> list[JournalEntry]:
    """Register jobs together."""
    return [await entry for entry in [journal.register(job) for job in jobs]]


def recording(*states: Any) -> Callable[..., Awaitable[None]]:
    """Make a note of each job of a run."""

    async def note(journal: Journal, *entries: JournalEntry) -> None:
        for entry, state in zip(entries, states, strict=True):
            await journal.mark_sending(entry, 7, None, *NO_SESSION)
            await journal.record(entry, state, "because")

    return note


def facts(entry: JournalEntry) -> tuple[object, ...]:
    """Return all that is known of a job."""
    return entry.state, entry.size, entry.fingerprint, entry.sent_ago, entry.session, entry.since


async def test_a_new_job_was_not_sent(storage: Storage) -> None:
    """It has an entry of its own, and the next run finds it, whatever the order."""
    assert isinstance(storage.journal(), Journal)
    first, second = await storage.run(described("a"), described("b"))
    assert facts(first)[:3] == ("ready", None, None)
    assert first.id != second.id
    again = await storage.run(described("b"), described("a"))
    assert [entry.id for entry in again] == [second.id, first.id]


async def test_what_is_sent_is_found_by_the_next_run(storage: Storage) -> None:
    """State, size, fingerprint, and how long ago; an outcome keeps them.

    If the wall clock was put back no time is negative: a lock is said to last longer.
    """

    async def sent(journal: Journal, entry: JournalEntry) -> None:
        storage.now += 5
        await journal.mark_sending(entry, 65_536, "65536 bytes, 1", "RM_1", 1_700_000_000)

    async def unknown(journal: Journal, entry: JournalEntry) -> None:
        storage.now += 10
        await journal.record(entry, "unknown", "no answer")

    async def sent_again(journal: Journal, entry: JournalEntry) -> None:
        await journal.mark_sending(entry, None, None, *NO_SESSION)
        storage.now -= 3600

    await storage.run(described(), note=sent)
    storage.now += 20
    (entry,) = await storage.run(described(), note=unknown)
    assert facts(entry) == ("sent", 65_536, "65536 bytes, 1", 20, "RM_1", 1_700_000_000)
    (entry,) = await storage.run(described(), note=sent_again)
    assert facts(entry) == ("unknown", 65_536, "65536 bytes, 1", 30, "RM_1", 1_700_000_000)
    (entry,) = await storage.run(described())
    assert facts(entry) == ("sent", None, None, 0, *NO_SESSION)


async def test_each_outcome_is_kept(storage: Storage) -> None:
    """The last one counts."""
    states = ["ready", "accepted", "refused", "failed", "unknown"]
    jobs = [described(state) for state in states]
    for said in (["failed"] * 5, states):
        await storage.run(*jobs, note=recording(*said))
    assert await storage.states(*jobs) == states


@pytest.mark.parametrize("together", [True, False])
async def test_jobs_that_are_alike_have_an_entry_each_in_turn(
    storage: Storage, together: bool
) -> None:
    """The first of three was accepted; the next run sees that for the first, and for no other."""

    async def alike(journal: Journal, count: int) -> list[JournalEntry]:
        if together:
            return await registered(journal, *[described()] * count)
        return [entry for _ in range(count) for entry in await registered(journal, described())]

    async with (journal := storage.journal()).opened(SERVER):
        entries = await alike(journal, 3)
        assert len({entry.id for entry in entries}) == 3
        await journal.record(entries[0], "accepted", None)
        await journal.record(entries[2], "refused", None)
    async with (journal := storage.journal()).opened(SERVER):
        again = await alike(journal, 4)
    assert [entry.id for entry in again[:3]] == [entry.id for entry in entries]
    assert [entry.state for entry in again] == ["accepted", "ready", "refused", "ready"]


async def test_a_run_that_ended_early_leaves_the_rest_as_it_was(storage: Storage) -> None:
    """Jobs that a run did not come to are found by the run after that."""
    await storage.run(described("a"), described("b"), note=recording("accepted", "accepted"))
    await storage.run(described("a"))
    assert await storage.states(described("b"), described("a")) == ["accepted"] * 2


async def test_a_key_is_used_once_in_a_batch(storage: Storage) -> None:
    """A second job of the same key is a mistake, and harms nobody; the next run is none."""
    for _ in range(2):
        async with (journal := storage.journal()).opened(SERVER):
            first, second, other = (
                journal.register(described("7", unique=True)),
                journal.register(described("7", "room02", unique=True)),
                journal.register(described("8", unique=True)),
            )
            with pytest.raises(InvalidInput, match=r"key was used in this batch before .*'7'"):
                await second
            assert (await first).id != (await other).id
            with pytest.raises(InvalidInput, match=r"key was used in this batch before .*'7'"):
                await journal.register(described("7", unique=True))


async def test_one_batch_at_a_time(storage: Storage) -> None:
    """The second is refused at once, also with the same object, and the first goes on."""
    async with (journal := storage.journal()).opened(SERVER):
        with anyio.fail_after(10), pytest.raises(JournalInUse):
            async with storage.journal().opened(SERVER):
                raise AssertionError
        with pytest.raises(JournalError):
            async with journal.opened(SERVER):
                raise AssertionError
        await registered(journal, described())
    async with journal.opened(SERVER):
        await registered(journal, described())


async def test_a_journal_belongs_to_one_server(storage: Storage) -> None:
    """Rooms of the same name are other rooms there; its own batch goes on."""
    await storage.run(described(), note=recording("accepted"))
    match = f"belongs to the server at {SERVER}: take one for http://other/auth"
    with pytest.raises(JournalError, match=match):
        async with storage.journal().opened("http://other/auth"):
            raise AssertionError
    assert await storage.states() == ["accepted"]


async def test_any_text_is_stored(storage: Storage) -> None:
    """Whatever is in an identity or a reason."""
    texts = ["a\0b", "' OR 1=1 --", "x" * 100_000, "für '\"[{\\ \u2028"]
    jobs = [JournalJob(identity=t, room_id=t, document=t, is_unique=False) for t in texts]

    async def accepted(journal: Journal, *entries: JournalEntry) -> None:
        for entry, text in zip(entries, texts, strict=True):
            await journal.record(entry, "accepted", text)

    await storage.run(*jobs, note=accepted)
    assert await storage.states(*jobs, described()) == [*["accepted"] * 4, "ready"]


async def test_a_cancelled_mark_does_not_overwrite_the_outcome(storage: Storage) -> None:
    """The document is not sent then; what is recorded next counts."""

    async def cancelled(journal: Journal, entry: JournalEntry) -> None:
        for _ in range(20):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await journal.mark_sending(entry, 7, None, *NO_SESSION)
            await journal.record(entry, "failed", None)

    await storage.run(described(), note=cancelled)
    assert await storage.states() == ["failed"]


async def test_a_journal_that_is_closed_says_so(storage: Storage) -> None:
    """Nothing waits for ever for it."""
    async with (journal := storage.journal()).opened(SERVER):
        (entry,) = await registered(journal, described())
    for step in (
        lambda: journal.mark_sending(entry, 7, None, *NO_SESSION),
        lambda: journal.record(entry, "accepted", None),
        lambda: registered(journal, described()),
    ):
        with anyio.fail_after(10), pytest.raises(JournalError, match="is not open"):
            await step()
