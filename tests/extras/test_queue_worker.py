"""A worker in virtual time, with a stand-in for its table: servers that do not answer, and logs."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, NoReturn

import anyio
import attrs
import pytest

from meeting_async import MeetingClient, UploadJob, errors
from meeting_async._batch.job import Common, RunningJob
from meeting_async.errors import JournalError
from meeting_async.procrastinate._brake import Brake, DocumentNotFound, decide, has_answered
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


def worker_of(table: Any, kind: type[UploadWorker] = Worker, documents: Any = None) -> Any:
    """Make a worker."""
    client = MeetingClient("http://127.0.0.1:1", **KEYS)
    return kind(
        table=table,
        session=client._session,
        options=client._options,
        documents=documents,
        stalled_after=30.0,
        max_outage=86_400.0,
        documents_timeout=60.0,
    )


@asynccontextmanager
async def beating(worker: UploadWorker) -> AsyncIterator[None]:
    """Let a worker beat while the block runs; then nothing of it is left."""
    runner: Any = SimpleNamespace(worker_id=1)
    task = asyncio.create_task(worker.beat(runner))
    yield
    task.cancel()
    await anyio.sleep(0.1)
    assert len(asyncio.all_tasks()) == 1


def test_answers_that_are_lost_after_a_minute() -> None:
    """A worker tries one upload now and then; when one is answered, it goes on with all places."""

    async def run() -> tuple[list[float], int]:
        worker = worker_of(Table())

        async def place() -> None:
            while True:
                await worker.tick("room0")

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


PUT_BACK = {
    "always": {"AuthenticationFailed", "JournalError", "JournalInUse"},
    "three times": {"DocumentNotFound", "DocumentUnreadable"},
    "for an outage": {
        "ConnectFailed", "ConnectionLost", "LookupError", "ResourceExhausted",
        "RoomLocksUnavailable", "ServerFailed", "Throttled", "TimeoutError", "TransferTimeout",
        "TransportError", "UnexpectedReply",
    },
}  # fmt: skip
"""What does not end an upload, and for how long: only the server's word about it does."""


def test_what_costs_no_document() -> None:
    """A new class of error needs a decision here; code of the user's own is like the network."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind)]
    found = defaultdict(set)
    for kind in [*kinds, DocumentNotFound, LookupError, TimeoutError]:
        if issubclass(kind, Exception):
            error = kind.__new__(kind)  # its facts do not matter
            first = decide(error, away_for=0.0, unreadable=0, max_outage=60.0)
            last = decide(error, away_for=60.0, unreadable=3, max_outage=60.0)
            if first is not None:
                limit = "for an outage" if first.is_away else "three times"
                found["always" if last else limit].add(kind.__name__)
    assert found == PUT_BACK


@pytest.mark.parametrize(("away_for", "longest"), [(0.0, 2.0), (40.0, 10.0), (9000.0, 60.0)])
def test_pauses_while_the_server_is_away(away_for: float, longest: float) -> None:
    """They get longer, up to a minute; no two uploads have the same."""
    error = errors.ConnectFailed("")
    found = [decide(error, away_for=away_for, unreadable=0, max_outage=1e5) for _ in range(20)]
    pauses = {later.seconds for later in found if later}
    assert longest / 2 <= min(pauses) < max(pauses) <= longest


@pytest.mark.parametrize(("outage", "most", "late"), [(1.0, 4, 3), (3600.0, 150, 31)])
def test_a_worker_pauses_while_nothing_answers(outage: float, most: int, late: float) -> None:
    """One upload goes out after each pause; they grow from two seconds to half a minute."""

    async def run() -> tuple[int, float]:
        brake, tried, is_back = Brake(), 0, False
        while not is_back:
            if await brake.may_begin():
                tried, is_back = tried + 1, anyio.current_time() >= outage
                brake.saw(is_back)
        return tried, anyio.current_time()

    tried, ended = virtual_time.run("asyncio", run)
    assert (tried <= most, ended - outage <= late) == (True, True)


def test_whether_the_server_has_answered() -> None:
    """Code of the user's own slows a worker down like a server that is away."""
    ends = (LookupError(), errors.RequestRefused(400, None, ""), errors.DocumentEmpty("a.pdf"))
    assert [has_answered([], error) for error in ends] == [False, True, None]


def test_what_a_beat_tells(caplog: pytest.LogCaptureFixture) -> None:
    """It tells that recovery fails, and nothing of a run that has ended while it was asking."""
    row = row_of()

    async def run() -> None:
        worker = worker_of(Table())
        common = Common(session=worker.session, options=worker.options)
        job = RunningJob(common=common, given=UploadJob("room0", "/a.pdf"), began=0.0)
        unused: Any = None
        worker.runs[row.id] = QueuedRun(job, row, worker.table, unused, unused, 60.0, 30.0)
        async with beating(worker):
            await anyio.sleep(0.5)
            worker.runs.clear()
            await anyio.sleep(2)

    virtual_time.run("asyncio", run)
    told = [record.getMessage() for record in caplog.records]
    assert told == ["recovery has failed: the queue's table 'uploads' does not answer"]


@attrs.define(eq=False)
class Taken(Table):
    """Each claim gets the same upload, as if the run before had been lost."""

    kind: str = "reference"
    claims: int = 0
    ends: list[Mapping[str, Any]] = attrs.field(factory=list)
    """What each run says in the end."""

    async def claim(self, _room_id: str) -> Any:
        """Begin the next run, which knows what the one before has said."""
        self.claims += 1
        history = self.ends[-1]["history"] if self.ends else None
        return row_of(self.claims, kind=self.kind, source=f"{10 * self.claims}", history=history)

    async def beat(self, rows: Iterable[Row], worker_id: int | None) -> Mapping[int, bool]:
        """Find no run lost."""
        await super().beat(rows, worker_id)
        return {}

    async def end(self, _row: Row, **facts: Any) -> bool:
        """Refuse the end of a run that is lost."""
        self.ends.append(facts)
        return False


def test_two_runs_of_an_upload() -> None:
    """The end of the one that has lost its row does not stop the beats of the other."""

    async def slow(seconds: str) -> NoReturn:
        await anyio.sleep(int(seconds))
        raise LookupError

    async def run() -> None:
        worker = worker_of(Taken(), UploadWorker, slow)
        async with beating(worker), anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(worker.tick, "room0")
        assert worker.table.beats == [[], [2], [2], [2]]

    virtual_time.run("asyncio", run)


UNREADABLE = {
    "raises": ("UploadFailed", "LookupError", "no row '40'"),
    "hangs": ("UploadFailed", "TimeoutError", "`documents` had no document for '40' within 60 s"),
    "is cancelled": ("UploadFailed", "DocumentNotFound", "CancelledError: "),
    "no such file": ("DocumentUnreadable", "40", "No such file or directory"),
}
"""What nobody can read: class of the error in the end, and its first arguments."""


@pytest.mark.parametrize("how", UNREADABLE)
def test_what_nobody_can_read(how: str) -> None:
    """It is put back three times, as another worker may read it; then it has failed."""

    async def find(reference: str) -> NoReturn:
        if how == "hangs":
            with anyio.fail_after(61):  # longer than `documents_timeout`
                await anyio.sleep_forever()
        if how == "is cancelled":
            raise asyncio.CancelledError  # as from a task that the function awaits
        raise LookupError(f"no row {reference!r}")

    async def run() -> list[Mapping[str, Any]]:
        table = Taken(kind="path" if how == "no such file" else "reference")
        worker = worker_of(table, UploadWorker, find)
        for _ in range(4):
            await worker.tick("room0")
        await worker.session.aclose()
        return table.ends

    *back, last = virtual_time.run("asyncio", run)
    assert [(end["state"], end["pause"]) for end in back] == [
        ("ready", pause) for pause in (2.0, 5.0, 10.0)
    ]
    assert last["state"] == "failed"
    error = json.loads(last["error"])
    assert (error["class"], *error["args"][:2]) == UNREADABLE[how]


def test_a_worker_without_documents() -> None:
    """It puts a reference back, each time, for one that has them."""

    async def run() -> list[Mapping[str, Any]]:
        worker = worker_of(Taken(), UploadWorker)
        for _ in range(4):
            await worker.tick("room0")
        ends: list[Mapping[str, Any]] = worker.table.ends
        return ends

    ends = virtual_time.run("asyncio", run)
    assert [(end["state"], end["pause"]) for end in ends] == [("ready", 10.0)] * 4
    assert "it is a reference" in ends[0]["reason"]


def test_a_recovery_that_takes_long() -> None:
    """A worker beats meanwhile, and begins no second one."""

    async def run() -> None:
        worker = worker_of(Table(recovery=1000.0))
        async with beating(worker):
            await anyio.sleep(100)
            assert len(worker.table.beats) == 17
            assert len(asyncio.all_tasks()) == 3

    virtual_time.run("asyncio", run)
