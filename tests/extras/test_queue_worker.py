"""A worker in virtual time, with a stand-in for its table: servers that do not answer, and logs."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, NoReturn

import anyio
import attrs
import pytest

from meeting_async import (
    Document,
    LockPolicy,
    MeetingClient,
    RetryPolicy,
    Timeouts,
    UploadJob,
    errors,
)
from meeting_async._batch.job import Common, RunningJob
from meeting_async._delivery.history import Step, stored
from meeting_async._models import Attempt, Verdict
from meeting_async.errors import JournalError
from meeting_async.procrastinate._brake import Brake, DocumentNotFound, decide, has_answered
from meeting_async.procrastinate._run import QueuedRun
from meeting_async.procrastinate._table import Row, packed
from meeting_async.procrastinate._worker import UploadWorker
from meeting_async.testing import run_in_virtual_time
from support import fake_rooms
from support.documents import PDF
from support.fake_rooms import Act, FakeRooms
from support.queue_worker import KEYS
from support.virtual_time import jump


def row_of(run: int = 1, **facts: Any) -> Row:
    """Make a row of the upload 7, which is ready if nothing else is said."""
    times = dict.fromkeys(["deferred_at", "started_at", "changed_at"], datetime.now(UTC))
    unset = dict.fromkeys(["key", "filename", "content_type", "size", "sent_ago"])
    usual = {"kind": "path", "source": "/a.pdf", "room_id": "room0", "attempts": "[]"}
    found: dict[str, Any] = {"state": "ready", **usual, **times, **unset, **facts}
    return Row(id=7, run=run, **found)


@attrs.define(eq=False)
class Table:
    """There is work at each other claim; what runs has always lost its row, and recovery fails."""

    claims: int = 0
    recovery: float = 0.0
    """Seconds that it takes."""
    is_cancelled: bool = False
    """Why rows are lost."""
    silent: frozenset[int] = frozenset()
    """Beats without an answer of the database."""
    failed: list[float] = attrs.field(factory=list)
    """When they ended."""
    beats: list[list[int]] = attrs.field(factory=list)
    """The runs of each."""
    recovered: list[float] = attrs.field(factory=list)
    """When recoveries began."""
    handed_on: list[str] = attrs.field(factory=list)
    """Rooms that were ticked again."""

    async def claim(self, room_id: str) -> str | None:
        """Begin any upload."""
        self.claims += 1
        return room_id if self.claims % 2 else None

    async def tick(self, rooms: Iterable[str]) -> None:
        """Put work back."""
        self.handed_on += rooms

    async def beat(self, rows: Iterable[Row], worker_id: int | None) -> Mapping[int, bool]:
        """Take a while."""
        runs = {row.id: row.run for row in rows}
        self.beats.append([*runs.values()])
        await anyio.sleep(1)
        if len(self.beats) in self.silent:
            self.failed.append(anyio.current_time())
            raise JournalError("uploads", "does not answer", "queue's table")
        return dict.fromkeys(runs, self.is_cancelled)

    async def recover(self, **_: Any) -> Mapping[int, str]:
        """Fail."""
        self.recovered.append(anyio.current_time())
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
        self._brake.report_answer(self.answers)


def worker_of(
    table: Any,
    kind: type[UploadWorker] = Worker,
    documents: Any = None,
    *,
    stalled_after: float = 30.0,
    **settings: Any,
) -> Any:
    """Make a worker."""
    client = MeetingClient("http://127.0.0.1:1", **KEYS, **settings)
    return kind(
        table=table,
        session=client._session,
        options=client._options,
        documents=documents,
        stalled_after=stalled_after,
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
        worker = worker_of(table)

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

    table = Table()
    lost, later = run_in_virtual_time(run)
    assert len(table.handed_on) > 100  # meanwhile another worker may have them
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


def test_which_errors_put_an_upload_back() -> None:
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


@pytest.mark.parametrize(("outage", "most", "late"), [(1.0, 4, 3), (3.0, 6, 3), (3600.0, 150, 31)])
def test_a_worker_pauses_while_nothing_answers(
    outage: float, most: int, late: float, caplog: pytest.LogCaptureFixture
) -> None:
    """One upload goes out after each pause; they grow from two seconds to half a minute.

    If there was nothing to send, another one goes out at once. The log says it once.
    """

    async def run() -> tuple[int, float]:
        await anyio.sleep(1000)  # all went well so far
        brake, tried, is_back, began = Brake(), 0, False, anyio.current_time()
        while not is_back:
            if await brake.may_begin():
                before = anyio.current_time()
                brake.report_answer(None)
                assert (await brake.may_begin(), anyio.current_time()) == (True, before)
                tried, is_back = tried + 1, anyio.current_time() >= began + outage
                brake.report_answer(is_back)
        return tried, anyio.current_time() - began

    tried, ended = run_in_virtual_time(run)
    assert (tried <= most, ended - outage <= late) == (True, True)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "the worker pauses: 3 uploads in a row had no answer",
        "the worker goes on",
    ]


def test_whether_the_server_has_answered() -> None:
    """Code of the user's own slows a worker down like a server that is away."""
    ends = (LookupError(), errors.RequestRefused(400, None, ""), errors.DocumentEmpty("a.pdf"))
    assert [has_answered([], error) for error in ends] == [False, True, None]
    last = {verdict: Attempt(1, 0.0, 1.0, verdict, None, "") for verdict in Verdict}
    answers = {verdict for verdict in Verdict if has_answered([last[verdict]], None)}
    answered = {Verdict.ACCEPTED, Verdict.BUSY, Verdict.REFUSED, Verdict.FAILED}
    assert answers == answered | {Verdict.FOUND, Verdict.NOT_FOUND}


def test_what_a_heartbeat_reports(caplog: pytest.LogCaptureFixture) -> None:
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

    run_in_virtual_time(run)
    told = [record.getMessage() for record in caplog.records]
    assert told == ["recovery has failed: the queue's table 'uploads' does not answer"]


@attrs.define(eq=False)
class Taken(Table):
    """Each claim gets the same upload, as if the run before had been lost."""

    kind: str = "reference"
    state: str = "ready"
    history: list[Step] | None = None
    unreadable: int = 0
    is_lost: bool = False
    """Whether beats say that the run has lost its row."""
    away: float = 0.0
    """Until then no end can be written."""
    marks: list[Any] = attrs.field(factory=list)
    """What follows, in turn, when a document is to be completed; the last one again and again."""
    marked: int = 0
    ends: list[Mapping[str, Any]] = attrs.field(factory=list)
    """What each run says in the end."""

    async def claim(self, _room_id: str) -> Any:
        """Begin the next run, which knows what the one before has said."""
        self.claims += 1
        steps = stored(self.history or (), anyio.current_time())
        first = {"unreadable": self.unreadable, "steps": steps}
        history = self.ends[-1]["history"] if self.ends else json.dumps(first)
        attempts = self.ends[-1]["attempts"] if self.ends else "[]"
        facts = {"kind": self.kind, "state": self.state, "attempts": attempts, "history": history}
        return row_of(self.claims, source=f"{10 * self.claims}", **facts)

    async def mark_sending(self, *_: object) -> bool:
        """Allow a document to be completed, if nothing else is said."""
        self.marked += 1
        follows = [True, *self.marks][min(self.marked, len(self.marks))]
        if isinstance(follows, Exception):
            raise follows
        if not isinstance(follows, bool):
            jump(follows)
        return bool(follows)

    async def beat(self, rows: Iterable[Row], worker_id: int | None) -> Mapping[int, bool]:
        """Find no run lost, if nothing else is said."""
        found = await super().beat(rows, worker_id)
        return found if self.is_lost else {}

    async def end(self, _row: Row, **facts: Any) -> bool:
        """Take what a run says, if the database is there."""
        if anyio.current_time() < self.away:
            raise JournalError("uploads", "does not answer", "queue's table")
        self.ends.append(facts)
        return not self.is_lost


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

    run_in_virtual_time(run)


UNREADABLE = {
    "raises": ("UploadFailed", "LookupError", "no row '40'"),
    "hangs": ("UploadFailed", "TimeoutError", "`documents` had no document for '40' within 60 s"),
    "is cancelled": ("UploadFailed", "DocumentNotFound", "CancelledError: "),
    "no such file": ("DocumentUnreadable", "40", "No such file or directory; fix the path"),
}
"""What nobody can read: class of the error in the end, and its first arguments."""


@pytest.mark.parametrize("how", UNREADABLE)
def test_a_document_that_cannot_be_read_fails_after_three_tries(how: str) -> None:
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

    *back, last = run_in_virtual_time(run)
    assert [(end["state"], end["pause"]) for end in back] == [
        ("ready", pause) for pause in (2.0, 5.0, 10.0)
    ]
    assert last["state"] == "failed"
    error = json.loads(last["error"])
    kind, name, reason = UNREADABLE[how]
    assert (error["class"], error["args"][0]) == (kind, name)
    assert error["args"][1].startswith(reason)


@pytest.mark.parametrize("state", ["ready", "sent"])
def test_a_worker_without_documents(state: str) -> None:
    """It puts a reference back, each time, for one that has them; what was sent stays *sent*."""

    async def run() -> list[Mapping[str, Any]]:
        worker = worker_of(Taken(state=state), UploadWorker)
        for _ in range(4):
            await worker.tick("room0")
        ends: list[Mapping[str, Any]] = worker.table.ends
        return ends

    ends = run_in_virtual_time(run)
    assert [(end["state"], end["pause"]) for end in ends] == [(state, 10.0)] * 4
    assert "it is a reference" in ends[0]["reason"]


@pytest.mark.parametrize(("stalled_after", "beats"), [(30.0, 17), (3.0, 50)])
def test_a_recovery_that_takes_long(stalled_after: float, beats: int) -> None:
    """A worker beats meanwhile, and begins no second one."""

    async def run() -> None:
        worker = worker_of(Table(recovery=1000.0), stalled_after=stalled_after)
        async with beating(worker):
            await anyio.sleep(100)
            assert len(worker.table.beats) == beats
            assert len(asyncio.all_tasks()) == 3

    run_in_virtual_time(run)


@pytest.mark.parametrize(
    ("silent", "ends"), [({1}, False), ({1, 3, 5}, False), ({2, 3}, True)], ids=str
)
def test_a_database_that_is_away(silent: set[int], ends: bool) -> None:
    """A worker goes on after one beat without an answer, and ends after two in a row.

    Then it takes over nothing until the others have had time to say that they are there.
    """

    async def run() -> None:
        table = Table(silent=frozenset(silent))
        worker = worker_of(table)
        async with beating(worker):
            await anyio.sleep(60)
        assert (worker.must_stop.is_set(), worker.error is not None) == (ends, ends)
        last = table.failed[-1]
        assert [at for at in table.recovered if last <= at < last + 29] == []
        assert table.recovered[-1] > last + 29

    run_in_virtual_time(run)


@pytest.mark.parametrize("away", [299.0, 400.0])
def test_an_outcome_that_cannot_be_written(away: float) -> None:
    """It is tried for five minutes; then the worker counts as lost for this upload."""

    async def run() -> tuple[int, float]:
        table = Taken(kind="path", unreadable=3, away=away)
        worker = worker_of(table, UploadWorker)
        with nullcontext() if away < 300 else pytest.raises(JournalError):
            await worker.tick("room0")
        await worker.session.aclose()
        return len(table.ends), anyio.current_time()

    written, ended = run_in_virtual_time(run)
    assert written == (away < 300)
    assert min(away, 300) <= ended <= 302


SILENT = JournalError("uploads", "does not answer", "queue's table")
WAITED = [
    Step(kind="queue", began=0.0, ended=1.0),
    Step(kind="document", began=1.0, ended=2.0, verdict=Verdict.BUSY),
]
"""What an earlier run has seen."""


class TakenRooms:
    """Room locks that another process has."""

    def acquire(self, room: str, *, timeout: float | None) -> NoReturn:
        """Refuse to wait."""
        raise TimeoutError


UNCERTAIN: dict[str, Any] = {"delivery": "at_least_once"}
BRIEF: dict[str, Any] = {"retry": RetryPolicy(max_outage=0)}


@attrs.frozen
class PutBack:
    """What a document meets in its runs, and what the last of them leaves."""

    acts: list[Act]
    state: str
    is_away: bool | None
    """Whether the server was away."""
    steps: int
    """How many count for the limits of the next run."""
    settings: dict[str, Any] = attrs.field(factory=dict)
    """Of the worker."""
    facts: dict[str, Any] = attrs.field(factory=dict)
    """What the table does."""
    seconds: float = 0
    """When that begins at the earliest; at most ten seconds later."""


PUT_BACKS = {
    "no connection": PutBack([fake_rooms.unreachable()], state="ready", is_away=True, steps=1),
    "none for as long as a run tries": PutBack(
        [fake_rooms.unreachable()], settings=BRIEF, state="ready", is_away=True, steps=0
    ),
    "none after a wait": PutBack(
        [fake_rooms.unreachable()],
        settings=BRIEF,
        facts={"history": WAITED},
        state="ready",
        is_away=True,
        steps=2,
    ),
    "cut off": PutBack([fake_rooms.cut_off()], state="ready", is_away=False, steps=1),
    "busy": PutBack([fake_rooms.busy()], state="ready", is_away=False, steps=1),
    "busy after an outage": PutBack(
        [fake_rooms.unreachable(), fake_rooms.busy()], state="ready", is_away=False, steps=2
    ),
    "taken elsewhere": PutBack(
        [], settings={"room_locks": TakenRooms()}, state="ready", is_away=None, steps=0, seconds=1
    ),
    "throttled": PutBack(
        [fake_rooms.reply(429, retry_after="5")], state="ready", is_away=True, steps=1, seconds=5
    ),
    "lost": PutBack([fake_rooms.lost()], settings=UNCERTAIN, state="sent", is_away=False, steps=1),
    "lost, and no connection": PutBack(
        [fake_rooms.lost(), fake_rooms.unreachable()],
        settings=UNCERTAIN | BRIEF,
        state="sent",
        is_away=True,
        steps=0,
    ),
    "not marked": PutBack([], facts={"marks": [SILENT]}, state="ready", is_away=None, steps=0),
    "taken over": PutBack([], facts={"marks": [False]}, state="ready", is_away=None, steps=0),
    "taken over while it was marked": PutBack(
        [], facts={"marks": [40.0, False]}, state="ready", is_away=None, steps=0
    ),
    "stopped": PutBack([fake_rooms.accepted(sending=600)], state="ready", is_away=None, steps=0),
    "stopped before an answer": PutBack(
        [fake_rooms.hanging()], settings=UNCERTAIN, state="sent", is_away=None, steps=1
    ),
    "stopped, and nobody asks": PutBack(
        [fake_rooms.hanging()],
        settings={"preflight": False, **UNCERTAIN},
        state="sent",
        is_away=None,
        steps=1,
        seconds=300,
    ),
    "stopped, and nobody asks with an empty form": PutBack(
        [fake_rooms.hanging()],
        settings={"lock": LockPolicy(probe=False), **UNCERTAIN},
        state="sent",
        is_away=None,
        steps=1,
        seconds=300,
    ),
    "stopped on its way, and nobody asks": PutBack(
        [fake_rooms.accepted(sending=600)],
        settings={"preflight": False},
        state="ready",
        is_away=None,
        steps=0,
    ),
}


async def find_small(_reference: str) -> Document:
    """Make a document."""
    return Document.from_bytes(PDF, filename="a.pdf")


@pytest.mark.parametrize("how", PUT_BACKS)
def test_what_a_run_leaves_to_the_next(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Limits hold across runs. Nothing but a broken connection counts as an interruption."""
    row, acts = PUT_BACKS[how], PUT_BACKS[how].acts
    rooms = FakeRooms(lambda visit: [*acts, fake_rooms.accepted()][visit.number - 1])

    async def run() -> None:
        table = Taken(**row.facts)
        worker = worker_of(table, UploadWorker, find_small, **{"transport": rooms, **row.settings})
        for _ in range(max(1, len(acts))):
            task = asyncio.create_task(worker.tick("room0"))
            await asyncio.wait([task], timeout=50)
            task.cancel()
            await asyncio.wait([task])
        await worker.session.aclose()
        assert task.cancelled() == how.startswith("stopped")
        end = table.ends[-1]
        kept = json.loads(end["history"])
        found = (end["state"], end["is_away"], len(kept["steps"]))
        assert found == (row.state, row.is_away, row.steps)
        assert row.seconds <= end["pause"] <= row.seconds + 10
        assert kept["unreadable"] == 0
        if kept["steps"] and not row.facts:  # its age when the next run begins
            assert kept["steps"][-1]["ended"] == pytest.approx(-end["pause"])

    run_in_virtual_time(run)
    assert "upload 7, " not in caplog.text  # it has no outcome
    may_be_there = row.state == "sent" or row.is_away is not None
    assert may_be_there or not any(visit.is_complete for visit in rooms.uploads)


def test_answers_that_are_lost_for_good(caplog: pytest.LogCaptureFixture) -> None:
    """After all attempts of ``retry`` a document may have arrived, with ``at_least_once``, too.

    After three of them in a row the worker pauses.
    """

    async def run() -> None:
        table, transport = Taken(), FakeRooms(lambda _: fake_rooms.lost())
        settings = {**UNCERTAIN, "transport": transport, "retry": RetryPolicy(max_attempts=1)}
        worker = worker_of(table, UploadWorker, find_small, **settings)
        for _ in range(3):
            table.ends.clear()
            await worker.tick("room0")
            assert [end["state"] for end in table.ends] == ["unknown"]
        await worker.session.aclose()

    run_in_virtual_time(run)
    assert "the worker pauses" in caplog.text


def test_attempts_of_a_long_outage() -> None:
    """Of those that never sent anything only the first and the last ones are kept."""
    never, busy = Verdict.NEVER_SENT, Verdict.BUSY
    verdicts = [busy, *[never] * 500, busy, *[never] * 500]
    attempts = [Attempt(at, 0.0, 1.0, one, None, "") for at, one in enumerate(verdicts)]
    kept = [number for number, *_ in json.loads(packed(attempts))]
    assert {0, 1, 501, 1001} <= {*kept}
    assert len(kept) < 100


RAISED = {
    "a put-back": (errors.UploadPutBack(1.0, "store\0down"), "ready"),
    "a stop": (errors.BatchStopped("before it began"), "failed"),
}
"""Errors of this library, and the state that they lead to."""


@pytest.mark.parametrize("how", RAISED)
def test_documents_may_raise_anything(how: str) -> None:
    """What is stored is what an operator can read and retry."""
    error, state = RAISED[how]

    async def find(_reference: str) -> Document:
        raise error

    async def run() -> None:
        table = Taken(unreadable=3)
        worker = worker_of(table, UploadWorker, find)
        await worker.tick("room0")
        await worker.session.aclose()
        (end,) = table.ends
        assert (end["state"], str(end["reason"]).isprintable()) == (state, True)

    run_in_virtual_time(run)


def test_a_server_that_does_not_answer_the_first_question() -> None:
    """A worker begins all the same, within half a minute."""

    async def run() -> None:
        transport = FakeRooms(ask=lambda _: fake_rooms.hanging())
        worker = worker_of(Table(), timeouts=Timeouts(reply=600), transport=transport)
        await worker.check_key()
        await worker.session.aclose()
        assert anyio.current_time() <= 30

    run_in_virtual_time(run)


def test_a_worker_that_must_stop(caplog: pytest.LogCaptureFixture) -> None:
    """It starts no upload, hands on what it has not begun, and says once why."""

    async def run() -> None:
        worker = worker_of(Table())
        for error in (SILENT, errors.AuthenticationFailed(401, None, "")):
            worker.stop(error)
        await worker.tick("room0")
        assert worker.error is SILENT
        assert (worker.begun, worker.table.handed_on) == ([], ["room0"])

    run_in_virtual_time(run)
    assert [record.getMessage() for record in caplog.records] == [f"the worker ends now: {SILENT}"]


LOST_ROWS = {
    "complete": (Act(replying=60, result=fake_rooms.accepted().result), False, "accepted", 60),
    "complete, cancelled": (fake_rooms.hanging(), True, "unknown", 0),
    "on its way": (fake_rooms.accepted(sending=60), False, "failed", 0),
}
"""A document, whether its row was cancelled, and what its run says then, after how many seconds."""


@pytest.mark.parametrize("how", LOST_ROWS)
def test_a_run_that_has_lost_its_row(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """It ends within seconds; only an answer to a complete document is awaited.

    That is no reason to pause.
    """
    act, is_cancelled, state, seconds = LOST_ROWS[how]

    async def run() -> None:
        table = Taken(is_lost=True, is_cancelled=is_cancelled)
        transport = FakeRooms(lambda _: act)
        worker = worker_of(table, UploadWorker, find_small, transport=transport)
        async with beating(worker):
            for _ in range(3):
                await worker.tick("room0")
        await worker.session.aclose()
        assert [end["state"] for end in table.ends] == [state] * 3
        assert 3 * seconds <= anyio.current_time() <= 3 * (seconds + 10)

    run_in_virtual_time(run)
    assert "the worker pauses" not in caplog.text
    assert caplog.text.count("upload 7 was cancelled, or taken over by another worker") == 3
