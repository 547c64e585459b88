"""A journal on a disk that never answers: a batch can be left, and says why it ended."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs
import pytest

from meeting_async import Batch, BatchReport
from meeting_async.errors import JournalError
from meeting_async.journals import Journal, JournalEntry, JournalJob
from support import virtual_time
from support.fake_rooms import FakeRooms, Visit, job
from support.journal_files import running_batch

LIMIT = 15.0
"""Seconds within which a batch ends whose journal does not answer."""

NEVER = 86_400.0
"""Seconds: a day, so that a test fails instead of hanging."""

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])
VERBS = pytest.mark.parametrize("verb", ["register", "mark_sending", "record"])


@attrs.frozen
class Later:
    """An answer that nobody has to wait for."""

    answer: Callable[[], Coroutine[Any, Any, JournalEntry]]

    def __await__(self) -> Generator[Any, Any, JournalEntry]:
        return self.answer().__await__()


@attrs.define(eq=False)
class SlowJournal:
    """A journal in memory; some of what it is asked to do takes long, or never ends."""

    slow: frozenset[str] = frozenset()
    """Names of methods, or ``close``."""
    seconds: float = NEVER
    """How long those take."""
    since: float = float("inf")
    """When the first of them was called."""
    is_slow: anyio.Event = attrs.field(factory=anyio.Event)
    """Set at that moment."""
    states: dict[int, str] = attrs.field(factory=dict)

    @asynccontextmanager
    async def opened(self, _server: str) -> AsyncGenerator[None]:
        """Open it."""
        await self._wait("opened")
        yield
        await self._wait("close")

    def register(self, _job: JournalJob) -> Awaitable[JournalEntry]:
        """Make an entry."""
        entry = JournalEntry(len(self.states), "ready")
        self.states[entry.id] = "ready"

        async def answer() -> JournalEntry:
            await self._wait("register")
            return entry

        return Later(answer)

    async def mark_sending(
        self, entry: JournalEntry, _size: int | None, _fingerprint: str | None
    ) -> None:
        """Keep it in memory."""
        await self._wait("mark_sending")
        self.states[entry.id] = "sent"

    async def record(self, entry: JournalEntry, state: str, _reason: str | None) -> None:
        """Keep it in memory."""
        await self._wait("record")
        self.states[entry.id] = state

    async def _wait(self, verb: str) -> None:
        await anyio.lowlevel.checkpoint()
        if verb in self.slow:
            self.since = min(self.since, anyio.current_time())
            self.is_slow.set()
            await anyio.sleep(self.seconds)


def test_it_is_a_journal() -> None:
    """As anybody may write one."""
    assert isinstance(SlowJournal(), Journal)


@attrs.frozen
class Ended:
    """How a batch has ended."""

    report: BatchReport
    complete: list[str]
    """Documents that were sent to their end."""
    seconds: float
    """From the moment that counts to its end."""

    @property
    def statuses(self) -> list[str]:
        """What became of each job."""
        return [outcome.status for outcome in self.report.outcomes]


class Oops(Exception):
    """What a caller's code raises."""


async def stop(batch: Batch) -> None:
    """Ask it to end."""
    batch.stop()


async def wait_for_cancellation(_batch: Batch) -> None:
    """Wait until the task around the batch is cancelled."""
    await anyio.sleep_forever()


async def fail(_batch: Batch) -> None:
    """Fail in the block."""
    raise Oops


async def leave(_batch: Batch) -> None:
    """Leave the block normally."""


STUCK = {
    "register": {"register"},
    "mark_sending": {"mark_sending"},
    "record": {"record"},
    "all writes": {"mark_sending", "record", "close"},
    "all writes from the first outcome on": {"record", "close"},
}
"""What does not end of a journal that does not answer."""

WAYS: dict[str, Callable[[Batch], Awaitable[None]]] = {
    "the task is cancelled": wait_for_cancellation,
    "an exception in the block": fail,
    "stop()": stop,
}
ROOMS = 5
JOBS = [job(f"room{number % ROOMS:02}", number) for number in range(2 * ROOMS)]


async def run_until_stuck(journal: SlowJournal, way: Callable[[Batch], Awaitable[None]]) -> Ended:
    """Run a batch; when its journal has not answered for a second, end it in some way."""
    rooms = FakeRooms(seconds=0.1)
    with anyio.CancelScope() as scope:
        try:
            async with running_batch(journal, JOBS, rooms) as batch:
                await journal.is_slow.wait()
                await anyio.sleep(1)
                began = anyio.current_time()
                scope.deadline = began if way is wait_for_cancellation else float("inf")
                await way(batch)
        except Oops:
            assert way is fail
    seconds = anyio.current_time() - began
    return Ended(batch.report, [v.name for v in rooms.uploads if v.is_complete], seconds)


@BACKENDS
@pytest.mark.parametrize("stuck", STUCK)
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_whose_journal_does_not_answer_can_be_left(
    backend: str, stuck: str, way: str
) -> None:
    """However it is left, it ends within 15 s, and says what is known."""
    journal = SlowJournal(frozenset(STUCK[stuck]))
    ended = virtual_time.run(backend, run_until_stuck, journal, WAYS[way])
    assert ended.seconds <= LIMIT + 0.01
    if not {"register", "mark_sending"} & STUCK[stuck]:
        accepted = [o.document for o in ended.report.outcomes if o.status == "accepted"]
        assert sorted(accepted) == sorted(ended.complete)
    else:
        assert ended.complete == []
        assert set(ended.statuses) <= {"failed", "skipped"}
    assert len(ended.statuses) == len(JOBS)


@BACKENDS
@VERBS
def test_a_journal_that_does_not_answer_stops_the_batch(backend: str, verb: str) -> None:
    """After 15 s, with an error that says so; what was accepted stays accepted."""
    journal = SlowJournal(frozenset({verb}))

    async def main() -> Ended:
        rooms = FakeRooms(seconds=0.1)
        async with running_batch(journal, JOBS, rooms) as batch:
            report = await batch.wait()
        seconds = anyio.current_time() - journal.since
        return Ended(report, [v.name for v in rooms.uploads if v.is_complete], seconds)

    ended = virtual_time.run(backend, main)
    assert isinstance(ended.report.stopped_by, JournalError)
    assert "does not answer" in str(ended.report.stopped_by)
    assert ended.seconds <= LIMIT + 1  # what was being sent when it was noticed may end
    assert bool(ended.complete) is (verb == "record")
    assert ended.report.accepted == len(ended.complete)
    assert len(ended.statuses) == len(JOBS)
    assert set(ended.statuses) <= {"accepted", "failed", "skipped"}


@BACKENDS
@pytest.mark.parametrize("verb", ["opened", "close"])
def test_a_batch_can_be_left_while_its_journal_is_opened_or_closed(backend: str, verb: str) -> None:
    """A cancelled task ends within 15 s."""
    journal = SlowJournal(frozenset({verb}))

    async def main() -> float:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await journal.is_slow.wait()
                await anyio.sleep(1)
                scope.cancel()
        return anyio.current_time() - journal.since - 1

    async def run() -> None:
        async with running_batch(journal, JOBS, FakeRooms()) as batch:
            await batch.wait()

    assert virtual_time.run(backend, main) <= LIMIT + 0.01


@BACKENDS
@VERBS
def test_a_journal_that_answers_late_is_waited_for(backend: str, verb: str) -> None:
    """Ten seconds are no reason to give up."""
    journal = SlowJournal(frozenset({verb}), seconds=10)

    async def main() -> BatchReport:
        async with running_batch(journal, JOBS[:ROOMS], FakeRooms()) as batch:
            return await batch.wait()

    report = virtual_time.run(backend, main)
    assert (report.accepted, report.stopped_by) == (ROOMS, None)
    assert set(journal.states.values()) == {"accepted"}


# --- at night: a real disk -----------------------------------------------------------------------


@attrs.define
class Disk:
    """A file system in a file, which can be frozen: then nobody can write to it."""

    folder: Path
    thaws: threading.Timer | None = None

    def freeze(self) -> None:
        """Let every write wait; for less than a minute, so that a test fails instead of hanging."""
        subprocess.run(["fsfreeze", "-f", str(self.folder)], check=True)
        self.thaws = threading.Timer(45, self._thaw)
        self.thaws.start()

    def thaw(self) -> None:
        """Let what waits go on."""
        if self.thaws is not None:
            self.thaws.cancel()
            self.thaws.join()
            self._thaw()

    def _thaw(self) -> None:
        subprocess.run(["fsfreeze", "-u", str(self.folder)], check=False, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mount one."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(1 << 24)
    commands = [["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(folder)]]
    for command in commands:
        if shutil.which(command[0]) is None or subprocess.run(command, check=False).returncode:
            pytest.skip("no disk may be mounted here")
    disk = Disk(folder)
    try:
        yield disk
    finally:
        disk.thaw()
        until = time.monotonic() + 10  # the journal's thread closes the file now
        while subprocess.run(["umount", str(folder)], check=False, capture_output=True).returncode:
            assert time.monotonic() < until, "the journal's file is still open"
            time.sleep(0.1)


@pytest.mark.nightly
@pytest.mark.timeout(200)
@BACKENDS
@pytest.mark.parametrize("way", [*WAYS, "nobody"])
def test_a_disk_that_does_not_answer(disk: Disk, backend: str, way: str) -> None:
    """A journal in a file: the same, though its thread waits for the disk."""
    ends = {**WAYS, "nobody": leave}[way]

    async def main() -> Ended:
        rooms = FakeRooms(at_end=at_end)
        with anyio.CancelScope() as scope:
            try:
                async with running_batch(disk.folder / "term.db", JOBS, rooms) as batch:
                    await is_frozen.wait()
                    await anyio.sleep(1)
                    began = anyio.current_time()
                    scope.deadline = began if ends is wait_for_cancellation else float("inf")
                    await ends(batch)
            except Oops:
                assert ends is fail
        seconds = anyio.current_time() - began
        await anyio.to_thread.run_sync(disk.thaw)
        return Ended(batch.report, [v.name for v in rooms.uploads if v.is_complete], seconds)

    async def at_end(_visit: Visit) -> None:
        if not is_frozen.is_set():
            is_frozen.set()
            await anyio.to_thread.run_sync(disk.freeze)

    is_frozen = anyio.Event()
    ended = anyio.run(main, backend=backend)
    assert ended.seconds < (40 if way == "nobody" else LIMIT + 5)
    assert set(ended.statuses) <= {"accepted", "failed", "skipped"}
    assert ended.report.accepted == len(ended.complete) > 0
    if way == "nobody":
        assert "does not answer" in str(ended.report.stopped_by)
