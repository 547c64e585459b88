"""A job whose document the server has accepted: outcome, events, journal and next run agree."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from meeting_async import Event, Finished, Verdict
from meeting_async.errors import JournalError, RoomLocksUnavailable
from meeting_async.journals import SqliteJournal
from meeting_async.testing import run_in_virtual_time
from meeting_async.transports import Reply, Request
from support.batches import job
from support.courses import EventRecorder
from support.fake_rooms import FakeRooms, client_of
from support.journals import HookedJournal
from support.leaving_locks import AGES, LeavingLocks, sleeping
from support.tables import in_turn

LATEST = 5.01
"""Seconds after the server's answer in which an upload has ended."""

TROUBLES: dict[str, tuple[str, Any]] = {
    "a lock that is released late": ("locks", sleeping(2)),
    "a lock that is never released": ("locks", sleeping(AGES)),
    "a lock that raises": ("locks", sleeping(0, RuntimeError("gone"))),
    "a lock that raises later": ("locks", sleeping(1.5, RoomLocksUnavailable("gone"))),
    "a slow journal": ("journal", sleeping(10)),
    "a full disk": ("journal", sleeping(0, JournalError("term.db", "the disk is full"))),
    "a journal that raises": ("journal", sleeping(0, OSError("no"))),
    "an observer that raises": ("observer", RoomLocksUnavailable("boom")),
    "a dead disk, and a cancellation": ("journal", sleeping(AGES)),
}
"""What goes wrong after the server's answer."""


@in_turn("trouble", TROUBLES, loop="backend")
@pytest.mark.parametrize("timeout", [None, 1.0])
def test_an_accepted_job_stays_accepted_whatever_fails_afterwards(
    trouble: str, timeout: float | None, backend: str
) -> None:
    """The job is accepted. If that is on record, the next one follows soon; else nothing more."""
    place, act = TROUBLES[trouble]
    is_lost = place == "journal" and trouble != "a slow journal"
    journal = HookedJournal(before={"record": act} if place == "journal" else {})
    rooms, recorder, told = FakeRooms(), EventRecorder(), list[tuple[int, int]]()

    def on_event(event: Event) -> None:
        recorder(event)
        if place == "observer":
            raise act

    async def main() -> Any:
        locks = LeavingLocks(act if place == "locks" else sleeping(0))
        jobs = [job("room01", 0), job("room01", 1)]
        async with client_of(rooms, room_locks=locks, on_event=on_event) as client:
            batch = client.upload_many(jobs, journal=journal, timeout=timeout, concurrency=1)
            is_left = trouble == "a dead disk, and a cancellation"
            with anyio.move_on_after(10 if is_left else AGES / 2):
                with contextlib.suppress(OSError):  # one that is no JournalError may be raised
                    async with batch:
                        async for _ in batch:
                            told.append((len(told) + 1, journal.journal.states.count("accepted")))
        return batch.report

    async def timed() -> tuple[Any, float]:
        return await main(), anyio.current_time()

    report, seconds = run_in_virtual_time(timed, backend=backend)
    statuses = [outcome.status for outcome in report.outcomes]
    assert statuses[0] == "accepted"
    assert [one.error for one in report.outcomes if one.delivered] == [None] * report.accepted
    finished = [(event.verdict, event.error) for event in recorder.of(Finished)]
    assert finished.count((Verdict.ACCEPTED, None)) == report.accepted
    assert rooms.names("room01") == [f"room01-{n}.pdf" for n in range(report.accepted)]
    if is_lost:
        assert journal.journal.states[0] == "sent"  # so the next run says *unknown*
        assert report.accepted == 1 or "cancellation" in trouble  # and nothing more is sent
        assert seconds <= 10 + 2 * LATEST
    else:
        assert statuses == ["accepted"] * 2 == journal.journal.states
        assert all(recorded >= count for count, recorded in told)  # before it was told
        assert seconds <= (12 if place == "journal" else 2 * LATEST)


# --- cancelled after the answer ------------------------------------------------------------------


@attrs.define(eq=False)
class Strikes:
    """Cancels a batch, or ends the program, at one place behind the server's answer."""

    place: str
    cancel: Callable[[], object] = lambda: None
    places: list[str] = attrs.field(factory=list)
    """Where the upload has come by."""

    def at(self, *places: str) -> Callable[[], Awaitable[None]]:
        """Make a function that comes by places."""

        async def come_by() -> None:
            for place in places:
                self.here(place)
                await anyio.lowlevel.checkpoint()

        return come_by

    def here(self, place: str) -> None:
        """Come by a place where nothing can wait."""
        self.places.append(place)
        if place == self.place:
            self.cancel()


@attrs.define(eq=False)
class StruckRooms(FakeRooms):
    """Rooms whose answer to a document is such a place."""

    strikes: Strikes

    def __attrs_pre_init__(self) -> None:
        super().__init__()

    async def send(self, request: Request, /) -> Reply:
        """Answer."""
        found = await super().send(request)
        if self.uploads:
            self.strikes.here("answer")
        return found


PLACES = ["answer", "amid the lock", "journal", "lock", "finished", "behind the journal"]
WAYS = [
    pytest.param(backend, by, place, marks=() if place in PLACES[:3] else pytest.mark.nightly)
    for backend, by in (("asyncio", "task"), ("trio", "scope"))
    for place in PLACES
]
"""By day half of the places."""
WAYS += [pytest.param(backend, "exit", "finished") for backend in ("asyncio", "trio")]


class TheEnd(BaseException):
    """What no program goes on after."""


def leave() -> None:
    """End the program."""
    raise TheEnd


@pytest.mark.anyio
@pytest.mark.parametrize(("anyio_backend", "by", "place"), WAYS, indirect=["anyio_backend"])
async def test_a_job_that_is_cancelled_after_the_answer_is_accepted(
    place: str, by: str, tmp_path: Path
) -> None:
    """The job is accepted in report, events and journal, and the next run has it *delivered*."""
    scope, strikes, verdicts, batches = anyio.CancelScope(), Strikes(place), [], list[Any]()
    journal = HookedJournal(
        SqliteJournal(tmp_path / "term.db"),
        before={"record": strikes.at("journal")},
        after={"record": strikes.at("behind the journal")},
    )
    locks: Any = LeavingLocks(strikes.at("lock", "amid the lock"))

    def on_event(event: Event) -> None:
        if isinstance(event, Finished):
            verdicts.append(event.verdict)
            strikes.here("finished")

    async def main() -> None:
        async with client_of(StruckRooms(strikes), room_locks=locks) as client:
            async with client.upload_many([job("room01")], journal=journal, on_event=on_event) as b:
                batches.append(b)
                await b.wait()
                await anyio.sleep(20)  # a batch may end before it is cancelled

    with anyio.fail_after(50):
        if by == "task":
            task = asyncio.create_task(main())
            strikes.cancel = task.cancel
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert task.cancelled()
        elif by == "exit":
            strikes.cancel = leave
            with pytest.raises(TheEnd):
                await main()
        else:
            strikes.cancel = scope.cancel
            with scope:
                await main()
            assert scope.cancelled_caught
    assert place in strikes.places
    (outcome,) = batches[0].report.outcomes
    assert (outcome.status, outcome.error, verdicts) == ("accepted", None, [Verdict.ACCEPTED])
    rooms = FakeRooms()
    async with client_of(rooms) as client:
        async with client.upload_many([job("room01")], journal=tmp_path / "term.db") as again:
            report = await again.wait()
    assert (report.already_delivered, rooms.visits) == (1, [])
