"""A journal on a disk that never answers: the batch can still be left, and says why it ended."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from meeting_async import BatchReport
from meeting_async.errors import JournalError
from meeting_async.testing import run_in_virtual_time
from support.batches import job, statuses
from support.fake_rooms import FakeRooms, Visit
from support.journals import HookedJournal, MemoryJournal, running_batch, traced
from support.tables import BACKENDS, crossed, in_turn
from support.virtual_time import jump

LIMIT = 15.0
"""Seconds within which a batch ends whose journal does not answer."""

NEVER = 86_400.0
"""Seconds: a day, so that a test fails instead of hanging."""


@attrs.define(eq=False)
class Stuck:
    """Holds up what is asked of a journal."""

    since: float = float("inf")
    """When that was asked first."""
    happens: anyio.Event = attrs.field(factory=anyio.Event)
    """Set at that moment."""

    async def __call__(self) -> None:
        self.since = min(self.since, anyio.current_time())
        self.happens.set()
        await anyio.sleep(NEVER)

    def at(self, *verbs: str) -> HookedJournal:
        """Make a journal where these methods, or ``close``, are held up."""
        return HookedJournal(before=dict.fromkeys(verbs, self))


@attrs.frozen
class Ended:
    """How a batch has ended."""

    report: BatchReport
    complete: list[str]
    """Documents that were sent to their end."""
    seconds: float
    """From the moment that counts to its end."""


class Oops(Exception):
    """What a caller's code raises."""


STUCK = {
    "register": {"register"},
    "mark_sending": {"mark_sending"},
    "record": {"record"},
    "all writes": {"mark_sending", "record", "close"},
    "all writes from the first outcome on": {"record", "close"},
}
"""What does not end of a journal that does not answer."""

WAYS = ["the task is cancelled", "an exception in the block", "stop()"]
ROOMS = 5
JOBS = [job(f"room{number % ROOMS:02}", number) for number in range(2 * ROOMS)]


async def ended(is_stuck: anyio.Event, journal: Any, way: str, rooms: FakeRooms) -> Ended:
    """Run a batch; when its journal has not answered for a second, end it in some way."""
    with anyio.CancelScope() as scope, contextlib.suppress(Oops):
        async with running_batch(journal, JOBS, rooms) as batch:
            await is_stuck.wait()
            if way != "nobody":
                await anyio.sleep(1)
            began = anyio.current_time()
            match way:
                case "the task is cancelled":
                    scope.cancel()
                    await anyio.sleep_forever()
                case "an exception in the block":
                    raise Oops
                case "stop()":
                    batch.stop()
    seconds = anyio.current_time() - began
    return Ended(batch.report, [v.name for v in rooms.uploads if v.is_complete], seconds)


@in_turn("way", [*WAYS, "nobody"], loop="backend")
@pytest.mark.parametrize("verbs", STUCK)
def test_a_batch_whose_journal_does_not_answer_ends(backend: str, verbs: str, way: str) -> None:
    """Within 15 s, however it is left, or by itself; what was accepted stays accepted."""

    async def main() -> Ended:
        stuck = Stuck()
        return await ended(stuck.happens, stuck.at(*STUCK[verbs]), way, FakeRooms(seconds=0.1))

    found = run_in_virtual_time(main, backend=backend)
    # What was being sent when it was noticed may end; then the file is closed.
    limit = LIMIT + 4 if way == "nobody" else LIMIT
    assert found.seconds <= limit + 0.01
    assert len(statuses(found.report)) == len(JOBS)
    if {"register", "mark_sending"} & STUCK[verbs]:
        assert found.complete == []
        assert set(statuses(found.report)) <= {"failed", "skipped"}
    accepted = [o.document for o in found.report.outcomes if o.status == "accepted"]
    assert sorted(accepted) == sorted(found.complete)
    if way == "nobody":
        assert isinstance(found.report.stopped_by, JournalError)
        assert "does not answer" in str(found.report.stopped_by)
        assert bool(found.complete) is not bool({"register", "mark_sending"} & STUCK[verbs])


@in_turn("verb", ["opened", "close"], loop="backend")
def test_a_batch_can_be_left_while_its_journal_is_opened_or_closed(backend: str, verb: str) -> None:
    """A cancelled task ends within 15 s."""

    async def main() -> float:
        stuck = Stuck()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, stuck.at(verb))
                await stuck.happens.wait()
                await anyio.sleep(1)
                scope.cancel()
        return anyio.current_time() - stuck.since - 1

    async def run(journal: HookedJournal) -> None:
        async with running_batch(journal, JOBS, FakeRooms()) as batch:
            await batch.wait()

    assert run_in_virtual_time(main, backend=backend) <= LIMIT + 0.01


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cancelled_batch_closes_its_journal(backend: str) -> None:
    """To the end, also one of your own: its next run finds it free."""

    async def main() -> None:
        closed = anyio.Event()

        async def close() -> None:
            await anyio.sleep(1)
            closed.set()

        with anyio.CancelScope() as scope:
            async with running_batch(HookedJournal(before={"close": close}), JOBS, FakeRooms()):
                scope.cancel()
        assert closed.is_set()

    run_in_virtual_time(main, backend=backend)


async def failing() -> None:
    """Fail."""
    raise JournalError("mine", "lost five records")


UNUSABLE: dict[str, tuple[Callable[[], HookedJournal], str]] = {
    "opened": (lambda: HookedJournal(before={"opened": failing}), "lost five records"),
    "close": (lambda: HookedJournal(before={"close": failing}), "lost five records"),
    "opened, in vain": (lambda: Stuck().at("opened"), "does not answer"),
}
"""Journals, and what is said of them."""


@in_turn("kind", UNUSABLE, loop="backend")
def test_what_a_journal_raises_comes_out(backend: str, kind: str) -> None:
    """When it is opened, and when it is closed, within 15 s: in no group, not only in the log."""
    made, told = UNUSABLE[kind]

    async def main() -> float:
        with pytest.raises(JournalError, match=told):
            async with running_batch(made(), JOBS, FakeRooms()):
                pass
        return anyio.current_time()

    assert run_in_virtual_time(main, backend=backend) <= LIMIT


@crossed(
    verb=("opened", "register", "mark_sending", "record", "close"),
    late={"10 s": (0, 10), "frozen for 14 s": (14, 2), "frozen for 60 s": (60, 2)},
    backend=BACKENDS,
)
def test_a_journal_that_answers_late_is_waited_for(
    caplog: pytest.LogCaptureFixture, backend: str, verb: str, late: tuple[float, float]
) -> None:
    """Ten seconds are no reason to give up; while the process is frozen none count (5.2)."""
    frozen, seconds = late

    async def delay() -> None:
        jump(frozen)
        await anyio.sleep(seconds)

    async def main() -> None:
        journal = HookedJournal(before={verb: delay})
        async with running_batch(journal, JOBS[:ROOMS], FakeRooms()) as batch:
            report = await batch.wait()
        assert (report.accepted, report.stopped_by) == (ROOMS, None)
        assert journal.journal.states == ["accepted"] * ROOMS
        assert caplog.messages == []

    run_in_virtual_time(main, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("found", "told"), [("accepted", "skipped"), ("sent", "unknown")])
def test_an_answer_that_takes_longer_than_a_job_may(backend: str, found: str, told: str) -> None:
    """What earlier runs did stays true."""

    async def main() -> None:
        journal = HookedJournal(MemoryJournal(found=found))
        journal.before["register"] = partial(anyio.sleep, 2)
        async with running_batch(journal, JOBS[:ROOMS], FakeRooms(), timeout=1.0) as batch:
            report = await batch.wait()
        assert statuses(report) == [told] * ROOMS

    run_in_virtual_time(main, backend=backend)


# --- at night: a file ----------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.timeout(200)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", [*WAYS, "nobody"])
def test_a_disk_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, way: str
) -> None:
    """A journal in a file: the same, though its thread waits for the disk.

    It waits for two minutes, so that a test fails instead of hanging.
    """
    disk = threading.Event()
    disk.set()

    async def at_end(_visit: Visit) -> None:
        disk.clear()
        is_stuck.set()

    async def main() -> Ended:
        found = await ended(is_stuck, tmp_path / "term.db", way, FakeRooms(at_end=at_end))
        disk.set()
        return found

    monkeypatch.setattr(sqlite3, "connect", traced(lambda _: disk.wait(120)))
    is_stuck = anyio.Event()
    found = anyio.run(main, backend=backend)
    assert found.seconds < (60 if way == "nobody" else 30)  # 20 on a quiet machine
    assert set(statuses(found.report)) <= {"accepted", "failed", "skipped"}
    assert found.report.accepted == len(found.complete) > 0
    if way == "nobody":
        assert "does not answer" in str(found.report.stopped_by)
