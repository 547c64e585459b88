"""An error of all jobs stops the batch before a document is sent; one of a room stops that room."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest

from meeting_async import BatchReport, LockPolicy, RetryPolicy, errors
from meeting_async.testing import run_in_virtual_time
from support.batches import job, jobs_for, ran, statuses
from support.documents import PDF
from support.fake_rooms import (
    Act,
    FakeRooms,
    Visit,
    absent,
    accepted,
    busy,
    client_of,
    conversion_failed,
    cut_off,
    failing,
    hanging,
    lost,
    record,
    refused,
    reply,
    unreachable,
)
from support.tables import BACKENDS, crossed, in_turn

pytestmark = pytest.mark.anyio

JOBS = 100
WRONG_KEY, NO_ROOM = reply(401, record("INVALID_API_KEY")), reply(404, record("ROOM_NOT_FOUND"))
HTML = b"<!doctype html><title>Welcome</title>"
SILENCE = failing(errors.TransferTimeout("nothing for 15 s"), take=0, replying=15)
SETTING = errors.ConfigurationError("proxy", "socks5://a.test", "is no HTTP proxy", "fix it")


# --- the whole batch -----------------------------------------------------------------------------

DOOMS: dict[str, tuple[Act, type[Exception]]] = {
    "key": (WRONG_KEY, errors.AuthenticationFailed),
    "setting": (failing(SETTING), errors.ConfigurationError),
    "a web page": (reply(200, HTML), errors.UnexpectedReply),
    "failing": (conversion_failed(), errors.ServerFailed),
    "throttling": (reply(429, b"", retry_after="1"), errors.Throttled),
    "nobody": (unreachable(), errors.ConnectFailed),
    "silence": (SILENCE, errors.TransferTimeout),
}


@in_turn("kind", DOOMS, loop="backend")
def test_a_wrong_setting_costs_one_small_call(backend: str, kind: str) -> None:
    """The first job finds it out, no document is sent, and the rest is skipped for it."""
    act, error = DOOMS[kind]
    rooms = FakeRooms(ask=lambda _: act)
    large = PDF + bytes(300 * 1024)
    jobs = [job(f"room{number % 10}", number, large) for number in range(JOBS)]
    report = ran(jobs, rooms, backend=backend)
    assert isinstance(report.stopped_by, error)
    assert (report.total, report.skipped, rooms.uploads) == (JOBS, JOBS - 1, [])
    assert {visit.room for visit in rooms.visits} == {"room0"}
    names = [f"room{number % 10}-{number}.pdf" for number in range(JOBS)]
    first, *others = sorted(report.outcomes, key=lambda outcome: outcome.index)
    assert [outcome.document for outcome in (first, *others)] == names
    assert first.status in {"refused", "failed"}
    assert first.error is report.stopped_by
    assert all(outcome.error is report.stopped_by for outcome in others)
    assert report.seconds < 150
    with pytest.raises(errors.BatchFailed, match="99 skipped"):
        report.raise_for_failures()


def test_documents_that_are_too_slow_are_no_outage() -> None:
    """While its questions are answered, the server is there."""
    report = ran(jobs_for(5, 2), FakeRooms(lambda _: hanging(take=1)), timeout=25, concurrency=1)
    assert (report.failed, report.stopped_by, report.seconds) == (10, None, 250)


class FailingLocks:
    """Room locks whose server is away."""

    @asynccontextmanager
    async def acquire(self, room: str, *, timeout: float | None) -> AsyncGenerator[None, None]:
        """Fail."""
        if room:
            raise errors.RoomLocksUnavailable(f"no answer within {timeout} s")
        yield


@crossed(outage=(False, True), backend=BACKENDS)
def test_room_locks_that_fail_cost_one_job(backend: str, outage: bool) -> None:
    """If that is so from the beginning; later other rooms' locks may work.

    Also if the client could not reach the server some time ago.
    """

    async def main() -> BatchReport:
        rooms = FakeRooms(ask=lambda _: unreachable())
        async with client_of(rooms, room_locks=FailingLocks()) as client:
            if outage:
                with pytest.raises(errors.ConnectFailed):
                    await client.get_active_room_info("room00")
            async with client.upload_many(jobs_for(5, 2)) as batch:
                pass
        return batch.report

    report = run_in_virtual_time(main, backend=backend)
    assert isinstance(report.stopped_by, errors.RoomLocksUnavailable)
    assert (report.failed, report.skipped) == (1, 9)


@crossed(backend=BACKENDS, how=("stopped", "wrong key", "wrong room"))
def test_many_jobs_are_skipped_step_by_step(backend: str, how: str) -> None:
    """Other tasks go on meanwhile: between two turns of one at most a quarter of them is skipped.

    Usually it is 200 at a time; while jobs are still being read, several times that.
    """
    totals = [0]

    async def main() -> BatchReport:
        ask = {"wrong key": WRONG_KEY, "wrong room": NO_ROOM}.get(how, hanging())
        jobs = [job("room", number) for number in range(4_000)]
        async with client_of(FakeRooms(ask=lambda _: ask)) as client:
            async with client.upload_many(jobs) as batch, anyio.create_task_group() as tasks:

                async def watch() -> None:
                    while batch.report.total < len(jobs):
                        totals.append(batch.report.total)
                        await anyio.lowlevel.checkpoint()

                if how == "stopped":
                    await anyio.sleep(1)
                tasks.start_soon(watch)
                if how == "stopped":
                    batch.stop()
        return batch.report

    report = run_in_virtual_time(main, backend=backend)
    assert (report.total, report.skipped + report.refused) == (4_000, 4_000)
    totals.append(report.total)
    assert max(b - a for a, b in itertools.pairwise(totals)) <= len(report.outcomes) / 4


def test_without_preflight_no_question_is_asked() -> None:
    """For servers that do not answer it; a wrong key still stops the batch."""
    rooms = FakeRooms(ask=lambda _: reply(404, HTML))
    assert ran(jobs_for(3, 3), rooms, {"preflight": False}).accepted == 9
    rooms = FakeRooms(lambda _: WRONG_KEY)
    report = ran(jobs_for(50, 2), rooms, {"preflight": False}, concurrency=4)
    assert isinstance(report.stopped_by, errors.AuthenticationFailed)
    assert (rooms.questions, len(rooms.uploads)) == ([], 4)


# --- what an error of one job means for the others ------------------------------------------------

GONE = RetryPolicy(max_attempts=2, max_outage=5)


@attrs.frozen
class Meaning:
    """What documents for one room meet, and what becomes of them and of the others."""

    acts: list[Callable[[], Act]]
    status: str
    """Of the first one."""
    error: type[Exception] | None = attrs.field(default=None, kw_only=True)
    """Of the first one."""
    in_room: str = attrs.field(default="accepted", kw_only=True)
    """What its room's next document becomes."""
    elsewhere: str = attrs.field(default="accepted", kw_only=True)
    """What those for other rooms become."""


ALWAYS = 999


def raising(kind: type[Exception], *words: str, **how: Any) -> Callable[[], Act]:
    """Make what raises an error."""
    return lambda: failing(kind(*words), **how)


MEANINGS = {
    "accepted": Meaning([accepted], "accepted"),
    "refused": Meaning([refused], "refused", error=errors.RequestRefused),
    "no room": Meaning([absent], "refused", error=errors.RoomNotActive, in_room="skipped"),
    "no such room": Meaning(
        [lambda: NO_ROOM], "refused", error=errors.RoomNotFound, in_room="skipped"
    ),
    "key": Meaning(
        [lambda: WRONG_KEY],
        "refused",
        error=errors.AuthenticationFailed,
        in_room="skipped",
        elsewhere="skipped",
    ),
    "not converted": Meaning([conversion_failed], "failed", error=errors.ProcessingFailed),
    "lost": Meaning([lost], "unknown", error=errors.UploadOutcomeUnknown),
    "locked": Meaning([busy] * ALWAYS, "failed", error=errors.RoomBusy, in_room="failed"),
    "cut off": Meaning([cut_off] * 2, "failed", error=errors.UploadInterrupted),
    "no connection": Meaning(
        [unreachable] * ALWAYS, "failed", error=errors.ConnectFailed, in_room="failed"
    ),
    "no descriptor": Meaning(
        [raising(errors.ResourceExhausted, "none", take=0)] * ALWAYS,
        "failed",
        error=errors.ResourceExhausted,
        in_room="failed",
    ),
    "foreign": Meaning([raising(KeyError, "x", take=5)], "failed", error=KeyError),
    "journal": Meaning(
        [raising(errors.JournalError, "j.db", "is full", take=0)],
        "failed",
        error=errors.JournalError,
        in_room="skipped",
        elsewhere="skipped",
    ),
}


@in_turn("kind", MEANINGS, loop="backend")
def test_which_errors_stop_a_job_a_room_or_the_batch(backend: str, kind: str) -> None:
    """For its job; for its room; and for the batch, once the server is known."""
    row = MEANINGS[kind]
    left = list(row.acts)

    def answer(visit: Visit) -> Act:
        return left.pop(0)() if visit.room == "bad" and left else accepted(replying=1.0)

    jobs = [job("good", 0), job("bad", 0, key="row 7"), job("bad", 1), job("good", 1)]
    rooms, settings = FakeRooms(answer), {"retry": GONE, "lock": LockPolicy(max_wait=20)}
    report = ran([*jobs, job("good", 2)], rooms, settings, backend=backend, concurrency=2)
    found, bad = statuses(report), report.outcomes[1]
    assert [found[1], found[2], found[4]] == [row.status, row.in_room, row.elsewhere]
    assert report.stopped_by is (bad.error if row.elsewhere == "skipped" else None)
    assert report.seconds < 60  # nobody waits for a lock that is gone
    assert (bad.room_id, bad.document, bad.key, bad.size) == ("bad", "bad-0.pdf", "row 7", len(PDF))
    assert (bad.receipt is None) == (row.status != "accepted") == (bad.error is not None)
    attempts = [len(outcome.attempts) for outcome in report.outcomes if outcome.room_id == "bad"]
    assert sum(attempts) == len(rooms.of("upload", "bad"))
    assert row.error is None or type(bad.error) is row.error
    if isinstance(bad.error, errors.MeetingError) and kind != "journal":
        facts = (bad.error.operation, bad.error.room_id, bad.error.document)
        assert facts == ("room/uploadWhiteboardFile", "bad", "bad-0.pdf")
        assert bad.error.attempts == bad.attempts


OUTAGES: dict[str, Act] = {
    "nobody": unreachable(),
    "a proxy's page": reply(502, HTML),
    "silence": SILENCE,
}


@in_turn("kind", OUTAGES, loop="backend")
def test_an_outage_ends_the_batch(backend: str, kind: str) -> None:
    """After ``max_outage``, whatever stands for an answer; the room's next jobs do not wait."""
    answers = iter([accepted()])
    rooms = FakeRooms(ask=lambda _: next(answers, OUTAGES[kind]))
    report = ran([job("room", number) for number in range(20)], rooms, backend=backend)
    assert statuses(report) == ["accepted", "failed", *["skipped"] * 18]
    assert report.stopped_by is report.outcomes[1].error
    assert 55 < report.seconds < 65


@crossed(kind=[*OUTAGES, "hanging"], back_after=(10, 1000), backend=BACKENDS)
def test_a_timeout_that_is_shorter_than_an_outage(
    backend: str, kind: str, back_after: float
) -> None:
    """It ends single jobs, from the first one on; only ``max_outage`` ends the batch."""
    act = OUTAGES.get(kind, hanging())
    rooms = FakeRooms(ask=lambda _: act if anyio.current_time() < back_after else accepted())
    report = ran(jobs_for(5, 20), rooms, backend=backend, timeout=7)
    assert (report.stopped_by is None) == (back_after == 10) == (report.accepted > 90)
    assert report.total == report.accepted + report.failed + report.skipped
    assert report.failed < (10 if back_after == 10 else 90)
    assert (back_after == 10 and not report.skipped) or 50 < report.seconds < 75


# --- rooms ---------------------------------------------------------------------------------------


@in_turn("first", ["late", "other"], loop="backend")
def test_waiting_until_a_room_is_active(backend: str, first: str) -> None:
    """It takes no permit, asks politely, and then the room gets all its documents in order."""
    began: list[float] = []

    def ask(visit: Visit) -> Act:
        began.append(anyio.current_time())
        is_late = visit.room == "late" and anyio.current_time() < began[0] + 600
        return absent() if is_late else accepted()

    rooms = FakeRooms(ask=ask, seconds=1.0)
    jobs = [job("late", 0), job("late", 1), *(job("other", n) for n in range(10))]
    jobs.sort(key=lambda one: one.room_id != first)
    report = ran(jobs, rooms, backend=backend, wait_active=900, concurrency=1)
    assert report.accepted == 12
    assert rooms.names("late") == ["late-0.pdf", "late-1.pdf"]
    others = [o.started + o.seconds for o in report.outcomes if o.room_id == "other"]
    assert max(others) == pytest.approx(10, abs=0.1)
    assert 600 <= report.seconds < 640
    assert len(rooms.of("question", "late")) < 60
    late = next(outcome for outcome in report.outcomes if outcome.room_id == "late")
    assert late.waited == pytest.approx(late.seconds - 1.0)


def test_waiting_for_a_room_ends_in_time() -> None:
    """Then the other documents of the room are skipped: they would wait for as long."""
    rooms = FakeRooms(ask=lambda visit: absent() if visit.room == "room01" else accepted())
    report = ran(jobs_for(2, 3), rooms, wait_active=100)
    assert (report.accepted, report.refused, report.skipped) == (3, 1, 2)
    assert 80 < report.seconds <= 100
    assert all(visit.room == "room00" for visit in rooms.uploads)
    assert isinstance(report.outcomes[1].error, errors.RoomNotActive)


def test_a_room_that_goes_inactive() -> None:
    """Between two documents: it is waited for again, and no document is lost."""

    def answer(_visit: Visit) -> Act:
        return absent() if 10 <= anyio.current_time() < 200 else accepted(replying=4.0)

    rooms = FakeRooms(answer, ask=answer)
    report = ran([job("a", n) for n in range(5)], rooms, wait_active=300)
    assert report.accepted == 5
    assert rooms.names("a") == [f"a-{number}.pdf" for number in range(5)]
    (again,) = [outcome for outcome in report.outcomes if len(outcome.attempts) > 1]
    assert [attempt.number for attempt in again.attempts] == [1, 2]
    assert [attempt.verdict for attempt in again.attempts] == ["refused", "accepted"]
    assert again.attempts[1].started > 185
    assert len(rooms.visits) < 60


@pytest.mark.parametrize("wait_active", [0.5, 60.0, 600.0])
def test_a_room_that_calls_itself_active_and_refuses(wait_active: float) -> None:
    """It is asked and tried politely, and given up in time."""
    rooms = FakeRooms(lambda visit: absent() if visit.room == "odd" else accepted())
    jobs = [job("odd", 0), job("odd", 1), job("other", 0)]
    report = ran(jobs, rooms, wait_active=wait_active)
    assert statuses(report) == ["refused", "skipped", "accepted"]
    assert report.seconds <= wait_active + 1
    assert len(rooms.uploads) <= 3 + min(wait_active / 2, 60)


def test_a_question_that_fails_is_no_refusal() -> None:
    """Once the server is known, a job whose question meets trouble is simply tried."""
    trouble = iter([accepted(), *[unreachable()] * 3, conversion_failed(), reply(502, HTML)])
    rooms = FakeRooms(ask=lambda _: next(trouble, accepted()))
    assert ran(jobs_for(4, 2), rooms, wait_active=60).accepted == 8


def test_failures_after_a_denied_room_stop_no_batch() -> None:
    """The answer has shown that the server is there: a page in place of another fails one job."""
    pages = iter([reply(404, HTML)])

    def answer(visit: Visit) -> Act:
        return absent() if visit.room == "room00" else next(pages, accepted())

    report = ran(jobs_for(3, 1), FakeRooms(answer, ask=answer))
    assert report.outcomes[0].status == "refused"
    assert (report.accepted, report.skipped, report.stopped_by) == (1, 0, None)


def test_a_stream_is_not_uploaded_twice() -> None:
    """It can be read once: if the room refuses it as not active, that is final."""

    async def pieces() -> AsyncIterator[bytes]:
        yield PDF

    rooms = FakeRooms(lambda _: absent())
    report = ran([job("a", 0, pieces())], rooms, wait_active=100)
    assert isinstance(report.outcomes[0].error, errors.RoomNotActive)
    assert (len(rooms.uploads), report.seconds < 1) == (1, True)
