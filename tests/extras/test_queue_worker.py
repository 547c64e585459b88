"""A worker in virtual time, with a stand-in for its table: servers that do not answer, and logs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, NoReturn

import anyio
import attrs
import pytest

from meeting_async import MeetingClient, UploadJob
from meeting_async._batch.job import Common, RunningJob
from meeting_async.errors import JournalError
from meeting_async.procrastinate._brake import decide, has_answered
from meeting_async.procrastinate._run import QueuedRun
from meeting_async.procrastinate._table import Row
from meeting_async.procrastinate._worker import UploadWorker
from support import virtual_time
from support.queue_worker import KEYS


def row_of(run: int = 1, **facts: Any) -> Row:
    """Make a row of the upload 7."""
    times = dict.fromkeys(["deferred_at", "started_at", "changed_at"], datetime.now(UTC))
    unset = dict.fromkeys(["key", "filename", "content_type", "size", "sent_ago"])
    usual = {"kind": "path", "source": "/a.pdf", "room_id": "room0", "attempts": "[]"}
    found: dict[str, Any] = {**usual, **times, **unset, **facts}
    return Row(id=7, state="ready", run=run, **found)


@attrs.define(eq=False)
class Table:
    """There is always work; what runs has always lost its row, and recovery fails."""

    recovery: float = 0.0
    """Seconds that it takes."""
    beats: list[list[int]] = attrs.field(factory=list)
    """The runs of each."""

    async def claim(self, room_id: str) -> str:
        """Begin any upload."""
        return room_id

    async def tick(self, rooms: Iterable[str]) -> None:
        """Put work back."""

    async def beat(self, rows: Iterable[Row], worker_id: int | None) -> Mapping[int, bool]:
        """Take a while."""
        runs = {row.id: row.run for row in rows}
        self.beats.append([*runs.values()])
        await anyio.sleep(1)
        return dict.fromkeys(runs, False)

    async def recover(self, **_: Any) -> Mapping[int, str]:
        """Fail."""
        await anyio.sleep(self.recovery)
        raise JournalError("uploads", "does not answer", "queue's table")


@attrs.define(eq=False, kw_only=True)
class Worker(UploadWorker):
    """The answers to its uploads come after a minute, or are lost."""

    answers: bool = False
    begun: list[float] = attrs.field(factory=list)
    """When its uploads began."""

    async def _upload(self, row: Any) -> None:
        self.begun.append(anyio.current_time())
        await anyio.sleep(60)
        self._brake.saw(self.answers)


def worker_of(client: MeetingClient) -> Worker:
    """Make a worker."""
    table: Any = Table()
    return Worker(
        table=table,
        session=client._session,
        options=client._options,
        documents=None,
        stalled_after=30.0,
        max_outage=86_400.0,
        documents_timeout=60.0,
    )


def test_answers_that_are_lost_after_a_minute() -> None:
    """A worker tries one upload now and then; when one is answered, it goes on with all places."""

    async def run() -> tuple[list[float], int]:
        worker = worker_of(client := MeetingClient("http://127.0.0.1:1", **KEYS))

        async def place() -> None:
            while True:
                await worker.tick(client._session.base, "room0")

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(place)
            await anyio.sleep(240)
            lost, worker.answers = [*worker.begun], True
            await anyio.sleep(100)
            tasks.cancel_scope.cancel()
        return lost, len(worker.begun) - len(lost)

    lost, later = virtual_time.run("asyncio", run)
    tried = [at - lost[0] for at in lost if at > lost[0] + 61]
    assert tried[0] < 63  # soon, however many were lost together
    assert 5 <= len(tried) <= 10
    assert later >= 8


@pytest.mark.parametrize("error", [TimeoutError("vault"), LookupError("no signer")])
def test_errors_of_other_code(error: Exception) -> None:
    """They are like a server that is away: the upload is put back, and the worker slowed down."""
    later = decide(error, away_for=0.0, unreadable=0, max_outage=60.0)
    assert later is not None
    assert later.is_away
    assert has_answered([], error) is False
    assert decide(error, away_for=60.0, unreadable=0, max_outage=60.0) is None


def test_what_a_beat_tells(caplog: pytest.LogCaptureFixture) -> None:
    """It tells that recovery fails, and nothing of a run that has ended while it was asking."""
    row = row_of()

    async def run() -> None:
        worker = worker_of(MeetingClient("http://127.0.0.1:1", **KEYS))
        common = Common(session=worker.session, options=worker.options)
        job = RunningJob(common=common, given=UploadJob("room0", "/a.pdf"), began=0.0)
        unused: Any = None
        runner: Any = SimpleNamespace(worker_id=1)
        worker.runs[row.id] = QueuedRun(job, row, worker.table, unused, unused, 60.0, 30.0)
        beating = asyncio.create_task(worker.beat(runner))
        await anyio.sleep(0.5)
        worker.runs.clear()
        await anyio.sleep(2)
        beating.cancel()

    virtual_time.run("asyncio", run)
    told = [record.getMessage() for record in caplog.records]
    assert told == ["recovery has failed: the queue's table 'uploads' does not answer"]


class Taken(Table):
    """Each claim gets the same upload, as if the run before had been lost."""

    claims: int = 0

    async def claim(self, _room_id: str) -> Any:
        """Begin the next run."""
        self.claims += 1
        return row_of(self.claims, kind="reference", source=str(10 * self.claims))

    async def beat(self, rows: Iterable[Row], worker_id: int | None) -> Mapping[int, bool]:
        """Find no run lost."""
        await super().beat(rows, worker_id)
        return {}

    async def end(self, _row: Row, **_: Any) -> bool:
        """Refuse the end of a run that is lost."""
        return False


def test_two_runs_of_an_upload() -> None:
    """The end of the one that has lost its row does not stop the beats of the other."""

    async def slow(seconds: str) -> NoReturn:
        await anyio.sleep(int(seconds))
        raise LookupError

    async def run() -> None:
        table: Any = Taken()
        client = MeetingClient("http://127.0.0.1:1", **KEYS)
        worker = UploadWorker(
            table=table, session=client._session, options=client._options, documents=slow,
            stalled_after=30.0, max_outage=60.0, documents_timeout=60.0,
        )  # fmt: skip
        runner: Any = SimpleNamespace(worker_id=1)
        beating = asyncio.create_task(worker.beat(runner))
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(worker.tick, client._session.base, "room0")
        beating.cancel()
        assert table.beats == [[], [2], [2], [2]]

    virtual_time.run("asyncio", run)


def test_a_recovery_that_takes_long() -> None:
    """A worker beats meanwhile, and begins no second one."""

    async def run() -> None:
        worker = worker_of(MeetingClient("http://127.0.0.1:1", **KEYS))
        table: Any = worker.table
        table.recovery = 1000.0
        runner: Any = SimpleNamespace(worker_id=1)
        beating = asyncio.create_task(worker.beat(runner))
        await anyio.sleep(100)
        assert len(table.beats) == 17
        assert len(asyncio.all_tasks()) == 3
        beating.cancel()
        await anyio.sleep(0.1)
        assert len(asyncio.all_tasks()) == 1

    virtual_time.run("asyncio", run)
