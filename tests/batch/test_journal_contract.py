"""What every journal promises: what a run notes is what the next run finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from meeting_async.errors import InvalidInput, JournalError, JournalInUse
from meeting_async.journals import Journal, JournalEntry, JournalJob
from support.journals import KINDS, SERVER, Clock, MakeJournal

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


@pytest.fixture
def clock() -> Clock:
    """Provide the time."""
    return Clock()


@pytest.fixture(params=list(KINDS))
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> MakeJournal:
    """Provide journals that share one place of storage, of every kind."""
    return KINDS[request.param](tmp_path, clock)


def described(
    identity: str = "deck.pdf", room: str = "room01", *, unique: bool = False
) -> JournalJob:
    """Describe a job."""
    name = f'{{"key": "{identity}"}}' if unique else f'["{room}", "{identity}"]'
    return JournalJob(identity=name, room_id=room, document="deck.pdf", is_unique=unique)


async def registered(journal: Journal, *jobs: JournalJob) -> list[JournalEntry]:
    """Register jobs together, as a batch does."""
    return [await entry for entry in [journal.register(job) for job in jobs]]


async def test_a_new_job_was_not_sent(make: MakeJournal) -> None:
    """It has an entry of its own, and the next run finds it."""
    journal = make()
    assert isinstance(journal, Journal)
    async with journal.opened(SERVER):
        first, second = await registered(journal, described("a"), described("b"))
        assert (first.state, first.size, first.fingerprint) == ("ready", None, None)
        assert first.id != second.id
    async with (journal := make()).opened(SERVER):
        second_again, first_again = await registered(journal, described("b"), described("a"))
        assert (first_again.id, second_again.id) == (first.id, second.id)


async def test_what_is_sent_is_found_by_the_next_run(make: MakeJournal, clock: Clock) -> None:
    """State, size, fingerprint, and how long ago; an outcome keeps them."""
    async with (journal := make()).opened(SERVER):
        (entry,) = await registered(journal, described())
        clock.now += 5
        await journal.mark_sending(entry, 65_536, "65536 bytes, 1")
    clock.now += 20
    async with (journal := make()).opened(SERVER):
        (entry,) = await registered(journal, described())
        found = (entry.state, entry.size, entry.fingerprint, entry.sent_ago)
        assert found == ("sent", 65_536, "65536 bytes, 1", 20)
        clock.now += 10  # type: ignore[unreachable]  # the clock is changed behind its back
        await journal.record(entry, "unknown", "no answer")
    async with (journal := make()).opened(SERVER):
        (entry,) = await registered(journal, described())
        found = (entry.state, entry.size, entry.fingerprint, entry.sent_ago)
        assert found == ("unknown", 65_536, "65536 bytes, 1", 30)
        await journal.mark_sending(entry, None, None)
    async with (journal := make()).opened(SERVER):
        (entry,) = await registered(journal, described())
        assert (entry.state, entry.size, entry.fingerprint) == ("sent", None, None)


@pytest.mark.parametrize("state", ["ready", "accepted", "refused", "failed", "unknown"])
async def test_each_outcome_is_kept(make: MakeJournal, state: Any) -> None:
    """The last one counts."""
    for earlier in ("failed", state):
        async with (journal := make()).opened(SERVER):
            (entry,) = await registered(journal, described())
            await journal.mark_sending(entry, 7, None)
            await journal.record(entry, earlier, "because")
    async with (journal := make()).opened(SERVER):
        assert [e.state for e in await registered(journal, described())] == [state]


async def test_a_wall_clock_that_was_put_back_makes_no_time_negative(
    make: MakeJournal, clock: Clock
) -> None:
    """Then the lock of a lost document is said to last longer, which harms nobody."""
    async with (journal := make()).opened(SERVER):
        (entry,) = await registered(journal, described())
        await journal.mark_sending(entry, 7, None)
    clock.now -= 3600
    async with (journal := make()).opened(SERVER):
        assert [e.sent_ago for e in await registered(journal, described())] == [0]


@pytest.mark.parametrize("together", [True, False])
async def test_jobs_that_are_alike_have_an_entry_each_in_turn(
    make: MakeJournal, together: bool
) -> None:
    """The first of three was accepted; the next run sees that for the first, and for no other."""

    async def alike(journal: Journal, count: int) -> list[JournalEntry]:
        if together:
            return await registered(journal, *[described()] * count)
        return [entry for _ in range(count) for entry in await registered(journal, described())]

    async with (journal := make()).opened(SERVER):
        entries = await alike(journal, 3)
        assert len({entry.id for entry in entries}) == 3
        await journal.record(entries[0], "accepted", None)
        await journal.record(entries[2], "refused", None)
    async with (journal := make()).opened(SERVER):
        again = await alike(journal, 4)
    assert [entry.id for entry in again[:3]] == [entry.id for entry in entries]
    assert [entry.state for entry in again] == ["accepted", "ready", "refused", "ready"]


async def test_a_run_that_ended_early_leaves_the_rest_as_it_was(make: MakeJournal) -> None:
    """Jobs that a run did not come to are found by the run after that."""
    async with (journal := make()).opened(SERVER):
        for entry in await registered(journal, described("a"), described("b")):
            await journal.record(entry, "accepted", None)
    async with (journal := make()).opened(SERVER):
        await registered(journal, described("a"))
    async with (journal := make()).opened(SERVER):
        found = await registered(journal, described("b"), described("a"))
    assert [entry.state for entry in found] == ["accepted"] * 2


async def test_a_key_is_used_once_in_a_batch(make: MakeJournal) -> None:
    """A second job of the same key is a mistake, and harms nobody; the next run is none."""
    for _ in range(2):
        async with (journal := make()).opened(SERVER):
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


async def test_one_batch_at_a_time(make: MakeJournal) -> None:
    """The second is refused at once, also with the same object, and the first goes on."""
    async with (journal := make()).opened(SERVER):
        with anyio.fail_after(10), pytest.raises(JournalInUse):
            async with make().opened(SERVER):
                raise AssertionError
        with pytest.raises(JournalError):
            async with journal.opened(SERVER):
                raise AssertionError
        await registered(journal, described())
    async with journal.opened(SERVER):
        await registered(journal, described())


async def test_a_journal_belongs_to_one_server(make: MakeJournal) -> None:
    """Rooms of the same name are other rooms there; its own batch goes on."""
    async with (journal := make()).opened(SERVER):
        (entry,) = await registered(journal, described())
        await journal.record(entry, "accepted", None)
    match = f"belongs to the server at {SERVER}: take one for http://other/auth"
    with pytest.raises(JournalError, match=match):
        async with make().opened("http://other/auth"):
            raise AssertionError
    async with (journal := make()).opened(SERVER):
        assert [e.state for e in await registered(journal, described())] == ["accepted"]


@pytest.mark.parametrize("text", ["a\0b", "' OR 1=1 --", "x" * 100_000, "für '\"[{\\ \u2028"])
async def test_any_text(make: MakeJournal, text: str) -> None:
    """Whatever is in an identity or a reason."""
    job = JournalJob(identity=text, room_id="r", document="d", is_unique=False)
    async with (journal := make()).opened(SERVER):
        (entry,) = await registered(journal, job)
        await journal.record(entry, "accepted", text)
    async with (journal := make()).opened(SERVER):
        assert [e.state for e in await registered(journal, job, described())] == [
            "accepted",
            "ready",
        ]


async def test_a_mark_that_is_cancelled_does_not_outlive_the_outcome(make: MakeJournal) -> None:
    """The document is not sent then; what is recorded next counts."""
    async with (journal := make()).opened(SERVER):
        (entry,) = await registered(journal, described())
        for _ in range(20):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await journal.mark_sending(entry, 7, None)
            await journal.record(entry, "failed", None)
    async with (journal := make()).opened(SERVER):
        assert [e.state for e in await registered(journal, described())] == ["failed"]


async def test_a_journal_that_is_closed_says_so(make: MakeJournal) -> None:
    """Nothing waits for ever for it."""
    journal = make()
    async with journal.opened(SERVER):
        (entry,) = await registered(journal, described())
    with anyio.fail_after(10):
        for step in (
            lambda: journal.mark_sending(entry, 7, None),
            lambda: journal.record(entry, "accepted", None),
            lambda: registered(journal, described()),
        ):
            with pytest.raises(JournalError, match="is not open"):
                await step()
