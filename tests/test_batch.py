"""A batch: every job gets one outcome, in order within its room, and the others go on."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import anyio
import pytest

from _batches import PDF, Town, Visit, client_of, job, jobs_for
from _courses import cut_off, lost
from _fakes import Act, EventRecorder, accepted, busy, failing, hanging, record, reply
from meeting_async import BatchReport, Document, UploadJob, UploadOutcome
from meeting_async._queues import PATIENCE
from meeting_async.errors import (
    BatchFailed,
    BatchStopped,
    InvalidInput,
    ProcessingFailed,
    RoomBusy,
    RoomNotActive,
    UploadOutcomeUnknown,
)

pytestmark = pytest.mark.anyio

InVirtualTime = Callable[..., Any]


async def ran(jobs: Any, town: Town, settings: dict[str, Any] | None = None, **how: Any) -> Any:
    """Run a batch to its end and return its report."""
    client = client_of(town, **(settings or {}))
    async with client, client.upload_many(jobs, **how) as batch:
        report = await batch.wait()
    assert town.collisions == []
    return report


def statuses(report: BatchReport) -> list[str]:
    """Return what became of the jobs in the order of the input."""
    outcomes = report.outcomes
    assert [outcome.index for outcome in outcomes] == list(range(len(outcomes)))
    return [outcome.status for outcome in outcomes]


async def asynchronously(jobs: Iterable[UploadJob]) -> AsyncIterator[UploadJob]:
    """Yield jobs from an async generator."""
    for one in jobs:
        await anyio.lowlevel.checkpoint()
        yield one


def generated(jobs: Iterable[UploadJob]) -> Iterator[UploadJob]:
    """Yield jobs from a plain generator."""
    yield from jobs


# --- scheduling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 3, 32])
@pytest.mark.parametrize("given", [list, generated, asynchronously])
def test_in_order_within_a_room_side_by_side_among_rooms(
    in_virtual_time: InVirtualTime, concurrency: int, given: Callable[..., Any]
) -> None:
    """200 jobs on 20 rooms: never two in a room at once, never more in flight than allowed."""
    town, jobs = Town(seconds=1.0), jobs_for(20, 10)
    report = in_virtual_time(ran_with, given(jobs), town, concurrency)
    assert statuses(report) == ["accepted"] * 200
    for room in range(20):
        expected = [f"room{room:02}-{number}.pdf" for number in range(10)]
        assert town.names(f"room{room:02}") == expected
    assert town.peak == min(concurrency, 20)
    assert report.seconds == pytest.approx(200 / min(concurrency, 20), rel=0.05)


async def ran_with(jobs: Any, town: Town, concurrency: int) -> BatchReport:
    """Run a batch of so many attempts at a time."""
    report: BatchReport = await ran(jobs, town, concurrency=concurrency)
    return report


def test_the_longest_queue_goes_first(in_virtual_time: InVirtualTime) -> None:
    """A chain of ten beside forty single ones, two at a time: it takes no longer than it must."""
    town = Town(seconds=1.0)
    jobs = [*jobs_for(40, 1)[:30], *(job("chain", number) for number in range(20))]
    report = in_virtual_time(ran_with, jobs, town, 2)
    assert report.seconds <= 1.05 * 25


def test_outcomes_come_as_jobs_end(in_virtual_time: InVirtualTime) -> None:
    """The report has them in the order of the input."""
    seconds = {"slow": 5.0, "quick": 1.0}
    town = Town(lambda visit: accepted(replying=seconds[visit.room]))

    async def main() -> tuple[list[int], list[int]]:
        jobs = [job("slow"), job("quick", 1)]
        async with client_of(town) as client, client.upload_many(jobs) as batch:
            came = [outcome.index async for outcome in batch]
        return came, [outcome.index for outcome in batch.report.outcomes]

    assert in_virtual_time(main) == ([1, 0], [0, 1])


def test_a_locked_room_delays_no_other(in_virtual_time: InVirtualTime) -> None:
    """Three rooms are locked for four minutes, with one slot: the others need no more than ever."""
    locked = {"locked0", "locked1", "locked2"}

    def answer(visit: Visit) -> Act:
        if visit.room in locked and anyio.current_time() < 240:
            return busy()
        return accepted(replying=1.0)

    town = Town(answer)
    jobs = [job(room, n) for n in range(2) for room in sorted(locked)] + jobs_for(10, 3)
    report = in_virtual_time(ran_with, jobs, town, 1)
    assert statuses(report) == ["accepted"] * 36
    ended = [o.started + o.seconds for o in report.outcomes if o.room_id not in locked]
    assert max(ended) == pytest.approx(30, abs=0.01)
    assert town.peak == 1
    assert report.conflicts > 20
    assert 240 < report.seconds < 260


def test_what_waits_holds_nothing(in_virtual_time: InVirtualTime) -> None:
    """While all rooms are locked every slot is free, and no request is in flight."""

    async def main() -> None:
        town = Town(lambda _: busy())
        jobs = jobs_for(5, 2)
        async with client_of(town) as client, client.upload_many(jobs, concurrency=2) as batch:
            await anyio.sleep(101.3)
            assert (batch._slots.free, town.running) == (2, 0)
            assert len(town.uploads) > 5
        assert batch.report.failed == 5
        assert batch.report.skipped == 5

    in_virtual_time(main)


def test_a_short_queue_has_its_turn(in_virtual_time: InVirtualTime) -> None:
    """One slot, a room that is fed without end, and one document for another room."""

    async def endless() -> AsyncIterator[UploadJob]:
        yield job("short")
        for number in itertools.count():
            yield job("long", number)

    async def main() -> int:
        town = Town(seconds=1.0)
        async with client_of(town) as client:
            many = client.upload_many(endless(), concurrency=1, window=100)
            async with many as batch:
                async for outcome in batch:
                    if outcome.room_id == "short":
                        break
        return len(town.uploads)

    assert in_virtual_time(main) <= PATIENCE + 3


def test_a_turn_behind_a_single_upload(in_virtual_time: InVirtualTime) -> None:
    """The turnstile is common; who stands there holds no slot, and a deadline counts on."""

    async def main() -> None:
        town = Town(seconds=100.0)
        async with client_of(town) as client, anyio.create_task_group() as group:
            group.start_soon(client.upload_whiteboard_file, "room00", document("single.pdf"))
            await anyio.sleep(1)
            jobs = [job("room00", 0), job("room01", 0)]
            async with client.upload_many(jobs, concurrency=1) as batch:
                report = await batch.wait()
        assert statuses(report) == ["accepted", "accepted"]
        assert town.names("room00") == ["single.pdf", "room00-0.pdf"]
        assert town.collisions == []
        assert report.outcomes[1].seconds == 100
        assert report.outcomes[0].waited == pytest.approx(100, abs=0.1)

    in_virtual_time(main)


def document(name: str) -> Document:
    """Make a document."""
    return Document.from_bytes(PDF, name)


def test_two_batches_at_once(in_virtual_time: InVirtualTime) -> None:
    """On one client, and on one made of it, to the same rooms, with one slot each."""
    town = Town(seconds=1.0)

    async def main() -> list[BatchReport]:
        reports = []

        async def run(client: Any) -> None:
            async with client.upload_many(jobs_for(4, 5), concurrency=1) as batch:
                reports.append(await batch.wait())

        async with client_of(town) as client, anyio.create_task_group() as group:
            group.start_soon(run, client)
            group.start_soon(run, client.with_options(on_event=EventRecorder()))
        return reports

    for report in in_virtual_time(main):
        assert statuses(report) == ["accepted"] * 20
    assert town.collisions == []
    assert town.peak == 2


# --- what becomes of a job -----------------------------------------------------------------------


def raising(error: BaseException) -> Any:
    """Make a source that fails half-way."""

    async def pieces() -> AsyncIterator[bytes]:
        yield PDF
        raise error

    return pieces()


class Strange:
    """A path that cannot be asked for."""

    def __fspath__(self) -> str:
        raise KeyError("strange")


def released() -> memoryview:
    """Make a view that can no longer be looked at."""
    view = memoryview(bytearray(PDF))
    view.release()
    return view


BAD: dict[str, tuple[Callable[[], UploadJob], str]] = {
    "no room": (lambda: job(""), "refused"),
    "blanks": (lambda: job(" room "), "refused"),
    "control": (lambda: job("a\nb"), "refused"),
    "None": (lambda: UploadJob(None, PDF, filename="x.pdf"), "refused"),  # type: ignore[arg-type]
    "number": (lambda: UploadJob(7, PDF, filename="x.pdf"), "refused"),  # type: ignore[arg-type]
    "list": (lambda: UploadJob([], PDF, filename="x.pdf"), "refused"),  # type: ignore[arg-type]
    "no document": (lambda: job("bad", 0, None), "refused"),
    "text": (lambda: UploadJob("bad", PDF, filename=5), "refused"),  # type: ignore[arg-type]
    "URL": (lambda: UploadJob("bad", "https://u:p@host/deck.pdf?token=geheim"), "refused"),
    "no name": (lambda: UploadJob("bad", PDF), "refused"),
    "empty": (lambda: job("bad", 0, b""), "refused"),
    "image": (lambda: job("bad", 0, b"\x89PNG\r\n\x1a\n" + bytes(100)), "refused"),
    "gone": (lambda: UploadJob("bad", "/nowhere/deck.pdf"), "failed"),
    "KeyError": (lambda: job("bad", 0, raising(KeyError("x"))), "failed"),
    "strange path": (lambda: UploadJob("bad", Strange()), "failed"),
    "released": (lambda: job("bad", 0, released()), "failed"),
    "media type": (lambda: job("bad", 0, PDF, content_type="\n"), "refused"),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_job_that_cannot_be_done_disturbs_no_other(kind: str) -> None:
    """It is told by its outcome, and its neighbours before and behind it are accepted."""
    make, status = BAD[kind]
    town = Town()
    report = await ran([job("good", 0), make(), job("good", 1), job("bad", 1)], town)
    assert statuses(report) == ["accepted", status, "accepted", "accepted"]
    bad = report.outcomes[1]
    assert isinstance(bad.error, Exception)
    assert "geheim" not in repr(bad)
    assert len(town.uploads) == 3
    with pytest.raises(BatchFailed) as caught:
        report.raise_for_failures()
    assert caught.value.__cause__ is bad.error


@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_job_is_skipped_like_any_other(kind: str) -> None:
    """Stopping comes to it before anybody has looked at it."""
    make, _ = BAD[kind]
    town = Town(lambda _: hanging())
    jobs = [job("good", 0), make()]
    async with client_of(town) as client, client.upload_many(jobs, concurrency=1) as batch:
        while not (town.uploads and town.uploads[0].exchange.complete):  # noqa: ASYNC110
            await anyio.sleep(0.001)
        batch.stop()
    assert statuses(batch.report) == ["unknown", "skipped"]
    assert isinstance(batch.report.outcomes[1].error, BatchStopped)
    assert "geheim" not in repr(batch.report.outcomes[1])


ENDS: dict[str, tuple[Callable[[], Act], str, type[Exception] | None]] = {
    "accepted": (accepted, "accepted", None),
    "refused": (lambda: reply(400, record("INVALID_PARAMETERS")), "refused", None),
    "failed": (lambda: reply(500, record("INTERNAL_SERVER_ERROR")), "failed", ProcessingFailed),
    "lost": (lost, "unknown", UploadOutcomeUnknown),
    "cut off": (cut_off, "failed", None),
    "busy": (busy, "failed", RoomBusy),
    "foreign before the end": (lambda: failing(KeyError("x"), take=5), "failed", KeyError),
    "foreign behind the end": (lambda: failing(KeyError("x")), "unknown", UploadOutcomeUnknown),
    "inactive": (lambda: reply(200, record("ROOM_NOT_ACTIVE")), "refused", RoomNotActive),
}


@pytest.mark.parametrize("end", ENDS)
def test_how_jobs_end(in_virtual_time: InVirtualTime, end: str) -> None:
    """Each in its way; other rooms do not notice."""
    act, status, kind = ENDS[end]
    town = Town(lambda visit: act() if visit.room == "bad" else accepted())
    jobs = [job("good", 0), job("bad", 0), job("good", 1)]
    report = in_virtual_time(ran, jobs, town)
    assert statuses(report) == ["accepted", status, "accepted"]
    outcome = report.outcomes[1]
    assert outcome.document == "bad-0.pdf"
    assert outcome.size == len(PDF)
    assert (outcome.receipt is None) == (status != "accepted")
    assert (outcome.error is None) == (status == "accepted")
    if kind is not None:
        assert isinstance(outcome.error, kind)
    assert len(outcome.attempts) == sum(visit.room == "bad" for visit in town.uploads)


def test_totals(in_virtual_time: InVirtualTime) -> None:
    """Counts, bytes, waits: they add up to what the jobs came to."""
    acts = {
        "good": [accepted()],
        "torn": [cut_off(take=5, replying=1), accepted()],
        "held": [busy(), busy(), accepted()],
        "lost": [lost()],
        "wrong": [reply(400, record("INVALID_PARAMETERS"))],
    }
    town = Town(lambda visit: acts[visit.room].pop(0))
    report = in_virtual_time(ran, [job(room) for room in acts], town)
    counts = (report.accepted, report.refused, report.failed, report.unknown, report.skipped)
    assert counts == (3, 1, 0, 1, 0)
    assert report.total == 5
    size = len(PDF)
    assert report.bytes_delivered == 3 * size
    assert report.bytes_sent == 7 * size  # the torn one was cut off before its document
    assert report.bytes_resent == 2 * size
    assert report.conflicts == 2
    assert report.waited == pytest.approx(sum(o.waited for o in report.outcomes))
    assert report.seconds >= max(o.started + o.seconds for o in report.outcomes)


# --- unknown outcomes ----------------------------------------------------------------------------


def test_after_an_unknown_outcome_the_room_is_shut(in_virtual_time: InVirtualTime) -> None:
    """The next documents of the room wait for the end of the lock window; other rooms do not."""
    town = Town(lambda visit: lost() if (visit.room, visit.number) == ("a", 1) else accepted())
    jobs = [job("a", 0), job("a", 1), job("b", 0)]
    report = in_virtual_time(ran, jobs, town)
    assert statuses(report) == ["unknown", "accepted", "accepted"]
    assert report.outcomes[1].attempts[0].started == pytest.approx(300, abs=0.1)
    assert report.outcomes[2].seconds < 1


@pytest.mark.parametrize("mode", ["on_unknown", "delivery"])
def test_what_is_unknown_is_sent_again(in_virtual_time: InVirtualTime, mode: str) -> None:
    """With ``on_unknown="resend"``, or a client that delivers at least once."""
    town = Town(lambda visit: lost() if visit.number == 1 else accepted())
    how: dict[str, Any] = {"on_unknown": "resend"} if mode == "on_unknown" else {}
    options = {} if how else {"delivery": "at_least_once"}

    async def main() -> BatchReport:
        report: BatchReport = await ran([job("a", 0)], town, options, **how)
        return report

    report = in_virtual_time(main)
    assert statuses(report) == ["accepted"]
    assert [a.verdict for a in report.outcomes[0].attempts] == ["unknown", "accepted"]
    assert 300 <= report.seconds < 310


# --- arguments of a job and of a batch -----------------------------------------------------------


def test_max_wait_and_deadline_are_per_job(in_virtual_time: InVirtualTime) -> None:
    """Each job has its own, from when its turn has come."""
    town = Town(lambda visit: busy() if visit.room == "locked" else accepted(replying=8.0))

    async def main(**how: Any) -> BatchReport:
        jobs = [job("free", n) for n in range(3)] + [job("locked")]
        report: BatchReport = await ran(jobs, town, **how)
        return report

    assert statuses(in_virtual_time(lambda: main(max_wait=0))) == ["accepted"] * 3 + ["failed"]
    report = in_virtual_time(lambda: main(deadline=10))
    assert statuses(report) == ["accepted"] * 3 + ["failed"]
    assert report.outcomes[3].seconds == pytest.approx(10)
    assert report.seconds == pytest.approx(24)


WRONG: dict[str, list[Any]] = {
    "concurrency": [0, -1, 1.5, "3", True, None],
    "window": [0, -1, 2.5, math.inf],
    "on_unknown": ["retry", None, []],
    "wait_active": [0, -1, math.nan, "60", True],
    "deadline": [0, -1, math.nan, "60"],
    "max_wait": [-1, math.nan, "60"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
async def test_wrong_arguments_are_named(name: str, value: Any) -> None:
    """At once, and not when the batch is entered."""
    async with client_of(Town()) as client:
        with pytest.raises(InvalidInput, match=name) as caught:
            client.upload_many([], **{name: value})
    assert caught.value.field == name


@pytest.mark.parametrize("jobs", [None, 5, job("a"), object()])
async def test_jobs_must_be_something_to_read(jobs: Any) -> None:
    """Said at once, by the name of the argument."""
    async with client_of(Town()) as client:
        with pytest.raises(TypeError, match="jobs must be"):
            client.upload_many(jobs)


async def test_a_document_may_be_in_many_jobs() -> None:
    """The same object, at the same time, in each room."""
    deck = Document.from_bytes(PDF, "deck.pdf")
    town = Town()
    report = await ran([UploadJob(f"room{n}", deck) for n in range(20)], town)
    assert statuses(report) == ["accepted"] * 20
    assert all(town.names(f"room{n}") == ["deck.pdf"] for n in range(20))


async def test_no_jobs() -> None:
    """Nothing is sent, and nothing is wrong."""
    town = Town()
    report = await ran([], town)
    report.raise_for_failures()
    assert (report.total, report.outcomes, town.visits) == (0, [], [])


async def test_totals_only() -> None:
    """Without outcomes in the report they still come by."""
    client = client_of(Town())
    async with client, client.upload_many(jobs_for(3, 2), keep_outcomes=False) as batch:
        came: list[UploadOutcome] = [outcome async for outcome in batch]
    assert len(came) == batch.report.accepted == 6
    assert batch.report.outcomes == []


async def test_what_nobody_foresaw_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """With the place where it happened, which the outcome does not keep; other errors are not."""

    class Broken:
        def sign(self, message: bytes) -> Any:
            raise KeyError("no key today")

    caplog.set_level(logging.WARNING, "meeting_async")
    client = client_of(Town(), signer=Broken())
    async with client, client.upload_many([job("room01"), job("a b ")]) as batch:
        await batch.wait()
    first, second = batch.report.outcomes
    assert (type(first.error), type(second.error)) == (KeyError, InvalidInput)
    assert first.error is not None
    assert first.error.__traceback__ is None
    (line,) = [record for record in caplog.records if record.getMessage().startswith("a job of")]
    assert line.exc_info is not None
    assert "no key today" in caplog.text
    assert "in sign" in caplog.text
