"""A job whose document the server has accepted: outcome, journal and next run agree."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from meeting_async import Event, Finished, UploadJob, UploadOutcome, Verdict
from meeting_async.errors import JournalError, RoomLocksUnavailable
from meeting_async.journals import JournalEntry, JournalJob, SqliteJournal
from meeting_async.testing import run_in_virtual_time
from meeting_async.transports import Reply, Request
from support.fake_rooms import FakeRooms, client_of, job
from support.fakes import EventRecorder
from support.leaving_locks import LeavingLocks

LATEST = 3.0
"""Seconds after the server's answer in which an upload has ended."""
AGES = 10_000.0
"""Seconds after which something has hung, and goes on, so that a test that fails ends."""

each_backend = pytest.mark.parametrize("backend", ["asyncio", "trio"])


async def nothing() -> None:
    """Do nothing."""


def sleeping(seconds: float, error: Exception | None = None) -> Callable[[], Awaitable[None]]:
    """Make a function that takes so long and then raises, if there is an error."""

    async def sleep() -> None:
        await anyio.sleep(seconds)
        if error is not None:
            raise error

    return sleep


@attrs.frozen
class Registered:
    """An entry that may be awaited, or not."""

    entry: JournalEntry

    def __await__(self) -> Generator[Any, Any, JournalEntry]:
        yield from anyio.lowlevel.checkpoint().__await__()
        return self.entry


@attrs.define(eq=False)
class MemoryJournal:
    """A journal in memory; a function is awaited before each outcome is kept."""

    before: Callable[[], Awaitable[object]] = nothing
    states: dict[str, tuple[int, Any]] = attrs.field(factory=dict)

    @contextlib.asynccontextmanager
    async def opened(self, server: str) -> AsyncIterator[None]:
        yield

    def register(self, job: JournalJob) -> Registered:
        id_, state = self.states.setdefault(job.identity, (len(self.states), "ready"))
        return Registered(JournalEntry(id_, state))

    async def mark_sending(
        self, entry: JournalEntry, size: int | None, fingerprint: str | None
    ) -> None:
        self._set(entry, "sent")

    async def record(self, entry: JournalEntry, state: Any, reason: str | None) -> None:
        await self.before()
        self._set(entry, state)

    def _set(self, entry: JournalEntry, state: Any) -> None:
        (identity,) = [name for name, (id_, _) in self.states.items() if id_ == entry.id]
        self.states[identity] = entry.id, state

    @property
    def found(self) -> list[str]:
        """Return the states of all jobs."""
        return [state for _, state in self.states.values()]


async def run_batch(
    rooms: FakeRooms, jobs: list[UploadJob], journal: Any = None, **how: Any
) -> Any:
    """Run a batch to its end; give up after ages."""
    settings = {name: how.pop(name) for name in ("room_locks", "on_event") if name in how}
    async with client_of(rooms, preflight=False, **settings) as client:
        with anyio.move_on_after(AGES / 2):
            async with client.upload_many(jobs, journal=journal, **how) as batch:
                await batch.wait()
        return batch.report


# --- what comes after the answer -----------------------------------------------------------------


@each_backend
@pytest.mark.parametrize("timeout", [None, 1.0])
@pytest.mark.parametrize(
    "leave",
    [
        sleeping(2),
        sleeping(AGES),
        sleeping(0, RuntimeError("gone")),
        sleeping(1.5, RoomLocksUnavailable("gone")),
    ],
    ids=["slow", "never", "raises", "raises later"],
)
def test_releasing_the_lock_cannot_undo_an_outcome(
    leave: Callable[[], Awaitable[None]], timeout: float | None, backend: str
) -> None:
    """Each job of a room is accepted, and the next one follows at the latest 3 s later."""

    async def main() -> None:
        rooms, locks, recorder = FakeRooms(), LeavingLocks(leave), EventRecorder()
        jobs = [job("room01", 0), job("room01", 1)]
        report = await run_batch(rooms, jobs, timeout=timeout, room_locks=locks, on_event=recorder)
        assert [outcome.status for outcome in report.outcomes] == ["accepted", "accepted"]
        assert [outcome.error for outcome in report.outcomes] == [None, None]
        finished = [(event.verdict, event.error) for event in recorder.of(Finished)]
        assert finished == [(Verdict.ACCEPTED, None)] * 2
        assert anyio.current_time() <= 2 * LATEST + 0.01

    run_in_virtual_time(main, backend=backend)


@each_backend
@pytest.mark.parametrize("timeout", [None, 1.0])
def test_a_slow_journal_cannot_undo_an_outcome(timeout: float | None, backend: str) -> None:
    """An outcome that takes 10 s to be recorded is *accepted*, and it is recorded."""

    async def main() -> None:
        journal = MemoryJournal(sleeping(10))
        jobs = [job("room01", 0), job("room02", 1)]
        report = await run_batch(FakeRooms(), jobs, journal, timeout=timeout)
        assert [outcome.status for outcome in report.outcomes] == ["accepted", "accepted"]
        assert journal.found == ["accepted", "accepted"]

    run_in_virtual_time(main, backend=backend)


@each_backend
def test_an_outcome_that_is_told_is_in_the_journal(backend: str) -> None:
    """However slow the journal is. Meanwhile the room gets its next document."""

    async def main() -> None:
        journal, known = MemoryJournal(sleeping(10)), list[int]()
        async with client_of(FakeRooms(), preflight=False) as client:
            jobs = [job("room01", 0), job("room01", 1)]
            async with client.upload_many(jobs, journal=journal) as batch:
                known += [journal.found.count("accepted") async for _ in batch]
        assert len(known) == 2
        assert all(count >= told for told, count in enumerate(known, 1))
        assert 10 <= anyio.current_time() < 12  # not one after the other

    run_in_virtual_time(main, backend=backend)


@each_backend
@pytest.mark.parametrize(
    "error", [JournalError("term.db", "the disk is full"), OSError("no"), RuntimeError("no")]
)
def test_a_journal_that_fails_cannot_undo_an_outcome(error: Exception, backend: str) -> None:
    """The job is accepted whatever ``record`` raises, and nothing more is sent after that."""

    async def main() -> None:
        rooms, journal = FakeRooms(), MemoryJournal(sleeping(0, error))
        outcomes: list[UploadOutcome] = []
        async with client_of(rooms, preflight=False) as client:
            jobs = [job("room01", number) for number in range(3)]
            with contextlib.suppress(type(error)):  # one that is no JournalError may be raised
                async with client.upload_many(jobs, journal=journal) as batch:
                    await batch.wait()
            outcomes += batch.report.outcomes
        assert outcomes[0].status == "accepted"
        assert not [one for one in outcomes[1:] if one.delivered]
        assert rooms.names("room01") == ["room01-0.pdf"]

    run_in_virtual_time(main, backend=backend)


@each_backend
def test_an_observer_that_raises_cannot_undo_an_outcome(backend: str) -> None:
    """Whatever an observer raises at every event, the jobs are accepted."""

    def on_event(event: Event) -> None:
        raise RoomLocksUnavailable("boom")

    async def main() -> None:
        journal = MemoryJournal()
        report = await run_batch(FakeRooms(), [job("room01")], journal, on_event=on_event)
        assert [outcome.status for outcome in report.outcomes] == ["accepted"]
        assert journal.found == ["accepted"]

    run_in_virtual_time(main, backend=backend)


@each_backend
def test_a_journal_on_a_dead_disk_can_be_cancelled(backend: str) -> None:
    """A batch whose journal never returns ends within 3 s when cancelled; its job is accepted."""

    async def main() -> None:
        journal = MemoryJournal(sleeping(AGES))
        async with client_of(FakeRooms(), preflight=False) as client:
            with anyio.move_on_after(AGES / 2):
                with anyio.CancelScope(deadline=anyio.current_time() + 10) as scope:
                    async with client.upload_many([job("room01")], journal=journal) as batch:
                        await batch.wait()
            assert anyio.current_time() <= 10 + LATEST + 0.01
        assert scope.cancel_called
        assert [outcome.status for outcome in batch.report.outcomes] == ["accepted"]
        assert journal.found == ["sent"]  # so the next run says *unknown*

    run_in_virtual_time(main, backend=backend)


# --- cancelled after the answer ------------------------------------------------------------------


@attrs.define(eq=False)
class Strikes:
    """Cancels a batch at one place behind the server's answer."""

    place: str
    cancel: Callable[[], object] = lambda: None
    places: list[str] = attrs.field(factory=list)
    """Where the upload has come by."""

    async def at(self, place: str) -> None:
        """Come by a place."""
        self.here(place)
        await anyio.lowlevel.checkpoint()

    def here(self, place: str) -> None:
        """Come by a place where nothing can wait."""
        self.places.append(place)
        if place == self.place:
            self.cancel()

    def on_event(self, event: Event) -> None:
        """Come by the end of the call."""
        if isinstance(event, Finished):
            self.here("finished")

    async def leave(self) -> None:
        """Release a lock."""
        await self.at("lock")
        await self.at("amid the lock")


@attrs.define(eq=False)
class StruckRooms(FakeRooms):
    """Rooms whose answer is such a place."""

    strikes: Strikes

    def __attrs_pre_init__(self) -> None:
        super().__init__()

    async def send(self, request: Request, /) -> Reply:
        """Answer."""
        found = await super().send(request)
        self.strikes.here("answer")
        return found


@attrs.define(eq=False)
class StruckJournal:
    """A journal on disk that comes by such places."""

    journal: SqliteJournal
    strikes: Strikes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.journal, name)

    async def record(self, *facts: Any) -> None:
        await self.strikes.at("journal")
        await self.journal.record(*facts)
        await self.strikes.at("behind the journal")


PLACES = ["answer", "lock", "amid the lock", "finished", "journal", "behind the journal"]
EACH_TIME = {"answer", "amid the lock", "journal"}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("anyio_backend", "by"),
    [
        ("asyncio", "task"),
        ("trio", "scope"),
        pytest.param("asyncio", "scope", marks=pytest.mark.nightly),
    ],
    indirect=["anyio_backend"],
)
@pytest.mark.parametrize(
    "place",
    [
        pytest.param(place, marks=() if place in EACH_TIME else pytest.mark.nightly)
        for place in PLACES
    ],
)
async def test_cancelled_after_the_answer(place: str, by: str, tmp_path: Path) -> None:
    """The job is accepted in report, events and journal, and the next run has it *delivered*."""
    scope, strikes = anyio.CancelScope(), Strikes(place)
    journal: Any = StruckJournal(SqliteJournal(tmp_path / "term.db"), strikes)
    locks: Any = LeavingLocks(strikes.leave)
    verdicts: list[Any] = []
    batches: list[Any] = []

    def on_event(event: Event) -> None:
        strikes.on_event(event)
        if isinstance(event, Finished):
            verdicts.append(event.verdict)

    async def main() -> None:
        rooms = StruckRooms(strikes)
        async with client_of(rooms, room_locks=locks, preflight=False) as client:
            async with client.upload_many([job("room01")], journal=journal, on_event=on_event) as b:
                batches.append(b)
                await b.wait()
                await anyio.sleep(20)  # a batch may end before it is cancelled

    with anyio.fail_after(10):
        if by == "task":
            task = asyncio.create_task(main())
            strikes.cancel = task.cancel
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert task.cancelled()
        else:
            strikes.cancel = scope.cancel
            with scope:
                await main()
            assert scope.cancelled_caught
    assert place in strikes.places
    (outcome,) = batches[0].report.outcomes
    assert (outcome.status, outcome.error) == ("accepted", None)
    assert verdicts == [Verdict.ACCEPTED]
    rooms = FakeRooms()
    report = await run_batch(rooms, [job("room01")], tmp_path / "term.db")
    assert (report.already_delivered, rooms.visits) == (1, [])
