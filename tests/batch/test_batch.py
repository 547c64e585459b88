"""A batch: every job gets one outcome, in order within its room, and the others go on."""

from __future__ import annotations

import io
import itertools
import pickle
import random
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from meeting_async import (
    Attempt,
    BatchReport,
    Document,
    Event,
    MeetingClient,
    Queued,
    RetryPolicy,
    UploadJob,
    UploadOutcome,
    Verdict,
    errors,
)
from meeting_async.testing import MeetingServer, run_in_virtual_time
from meeting_async.transports import HttpxTransport
from support.batches import job, jobs_for, ran, run, statuses
from support.documents import DOCX, PDF
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
    hanging,
    lost,
    refused,
)
from support.tables import BACKENDS, crossed, in_turn

pytestmark = pytest.mark.anyio


# --- order ---------------------------------------------------------------------------------------


async def asynchronously(jobs: list[UploadJob]) -> AsyncIterator[UploadJob]:
    """Yield jobs from an async generator."""
    for one in jobs:
        await anyio.lowlevel.checkpoint()
        yield one


@crossed(
    backend=BACKENDS,
    concurrency=(1, 3, 32),
    given={
        "list": list,
        "generator": lambda jobs: (one for one in jobs),
        "asynchronous": asynchronously,
    },
)
def test_in_order_within_a_room_side_by_side_among_rooms(
    backend: str, concurrency: int, given: Callable[..., Any]
) -> None:
    """200 jobs on 20 rooms: never two in a room at once, never more in flight than allowed."""
    rooms, jobs = FakeRooms(seconds=1.0), jobs_for(20, 10)
    report = ran(given(jobs), rooms, backend=backend, concurrency=concurrency)
    assert statuses(report) == ["accepted"] * 200
    for room in range(20):
        expected = [f"room{room:02}-{number}.pdf" for number in range(10)]
        assert rooms.names(f"room{room:02}") == expected
    assert rooms.peak == min(concurrency, 20)
    assert report.seconds == pytest.approx(200 / min(concurrency, 20), rel=0.05)


SHAPES: dict[str, list[int]] = {
    "uniform": [10] * 30,
    "skewed (Zipf 0.5)": [max(1, round(31 * rank**-0.5)) for rank in range(1, 31)],
    "skewed (Zipf 1)": [max(1, round(64 / rank)) for rank in range(1, 31)],
    "one hot room": [100, *[10] * 29],
}
"""How many documents each room gets."""


@crossed(locked=(0.0, 0.3), shape=SHAPES.keys())
def test_the_total_time_is_near_the_least_possible(shape: str, locked: float) -> None:
    """30 rooms, 5 permits: at most 1.05 times what no order can beat, locked rooms or not.

    No room can be done before its lock ends and its documents are converted one after another.
    What cannot begin before a moment keeps all permits busy from then on at best.
    """
    dice = random.Random(shape)
    chains = {f"r{n}": [dice.lognormvariate(0.5, 0.5) for _ in range(count)]
              for n, count in enumerate(SHAPES[shape])}  # fmt: skip
    held = dice.sample(list(chains), round(locked * len(chains)))
    ends = dict.fromkeys(chains, 0.0) | {room: dice.uniform(10, 60) for room in held}
    least = later = 0.0
    for room in sorted(chains, key=ends.__getitem__, reverse=True):
        later += sum(chains[room])
        least = max(least, ends[room] + sum(chains[room]), ends[room] + later / 5)
    jobs = [job(room, number) for room, chain in chains.items() for number in range(len(chain))]
    dice.shuffle(jobs)

    def answer(visit: Visit) -> Act:
        is_locked = anyio.current_time() < ends[visit.room]
        return busy() if is_locked else accepted(replying=chains[visit.room].pop())

    report = ran(jobs, FakeRooms(answer), concurrency=5)
    assert report.accepted == len(jobs)
    assert report.seconds <= 1.05 * least


def test_outcomes_come_as_jobs_end() -> None:
    """The report has them in the order of the input; its watch stops with the last one."""
    seconds = {"slow": 5.0, "quick": 1.0}

    async def main() -> tuple[list[int], BatchReport]:
        rooms = FakeRooms(lambda visit: accepted(replying=seconds[visit.room]))
        async with client_of(rooms) as client:
            async with client.upload_many([job("slow"), job("quick", 1)]) as batch:
                came = [outcome.index async for outcome in batch]
                await anyio.sleep(100)
        return came, batch.report

    came, report = run_in_virtual_time(main)
    assert (came, statuses(report)) == ([1, 0], ["accepted"] * 2)
    assert report.seconds == pytest.approx(5)


def test_room_locks_are_shared_with_other_batches_and_uploads() -> None:
    """Room locks: with another batch and with a single upload. A job that waits has no permit."""

    async def main() -> None:
        rooms, reports = FakeRooms(seconds=100.0), list[BatchReport]()

        async def run(client: MeetingClient) -> None:
            async with client.upload_many(jobs_for(3, 2), concurrency=1) as batch:
                reports.append(await batch.wait())

        async with client_of(rooms) as client, anyio.create_task_group() as tasks:
            single = Document.from_bytes(PDF, "single.pdf")
            tasks.start_soon(client.upload_whiteboard_file, "room00", single)
            await anyio.sleep(1)
            tasks.start_soon(run, client)
            tasks.start_soon(run, client.with_options(preflight=False))
        assert [statuses(report) for report in reports] == [["accepted"] * 6] * 2
        assert rooms.names("room00")[0] == "single.pdf"
        assert (rooms.collisions, rooms.peak) == ([], 3)
        assert min(o.seconds for o in reports[0].outcomes) == pytest.approx(100)
        assert max(o.waited for report in reports for o in report.outcomes) > 98

    run_in_virtual_time(main)


# --- what becomes of a job -----------------------------------------------------------------------


def raising(error: BaseException) -> AsyncIterator[bytes]:
    """Make a source that fails half-way."""

    async def pieces() -> AsyncIterator[bytes]:
        yield PDF
        raise error

    return pieces()


class Strange:
    """A path that cannot be asked for."""

    def __fspath__(self) -> str:
        raise KeyError("strange")


def raising_at(name: str) -> Any:
    """Make a file of your own that raises at an attribute or a method."""
    return type("Raising", (io.BytesIO,), {name: property(lambda _: 1 / 0)})(PDF)


LATIN = "w\udcf6che.pdf"
"""A name as an old archive brings it: not UTF-8."""


def latin(folder: Path) -> Path:
    """Make a document of that name."""
    (folder / LATIN).write_bytes(PDF)
    return folder / LATIN


def loop(folder: Path) -> Path:
    """Make a link to itself."""
    (folder / "loop.pdf").symlink_to("loop.pdf")
    return folder / "loop.pdf"


BAD: dict[str, tuple[Callable[[Path], UploadJob], str]] = {
    "no room": (lambda _: job(""), "refused"),
    "list": (lambda _: UploadJob([], PDF, filename="x.pdf"), "refused"),  # type: ignore[arg-type]  # wrong on purpose
    "key": (lambda _: job("bad", key=7), "refused"),
    "text": (lambda _: UploadJob("bad", PDF, filename=5), "refused"),  # type: ignore[arg-type]  # wrong on purpose
    "URL": (lambda _: UploadJob("bad", "https://u:p@host/deck.pdf?token=geheim"), "refused"),
    "no name": (lambda _: UploadJob("bad", PDF), "refused"),
    "image": (lambda _: job("bad", 0, b"\x89PNG\r\n\x1a\n" + bytes(100)), "refused"),
    "gone": (lambda _: UploadJob("bad", "/nowhere/deck.pdf"), "failed"),
    "KeyError": (lambda _: job("bad", 0, raising(KeyError("x"))), "failed"),
    "strange path": (lambda _: UploadJob("bad", Strange()), "failed"),
    "media type": (lambda _: job("bad", 0, PDF, content_type="\n"), "refused"),
    "path no UTF-8": (lambda folder: UploadJob("bad", latin(folder)), "refused"),
    "name no UTF-8": (lambda _: UploadJob("bad", PDF, filename="w\udcf6che.pdf"), "refused"),
    "half a character": (lambda _: UploadJob("bad", PDF, filename="\ud83d.pdf"), "refused"),
    "room no UTF-8": (lambda _: job("o\udcf6d"), "refused"),
    "loop": (lambda folder: UploadJob("bad", loop(folder)), "failed"),
    "raising name": (lambda _: UploadJob("bad", raising_at("name")), "failed"),
    "raising read": (lambda _: job("bad", 0, raising_at("read")), "failed"),
    "good path": (lambda folder: UploadJob("bad", latin(folder), filename="w.pdf"), "accepted"),
    "good key": (lambda _: job("bad", key="\udcf6"), "accepted"),
}


@in_turn("kind", BAD)
async def test_a_job_that_cannot_be_done_disturbs_no_other(tmp_path: Path, kind: str) -> None:
    """Its outcome says so, its neighbours are accepted; in the next run of a journal, too."""
    make, status = BAD[kind]
    bad_job = make(tmp_path)
    for journal in (None, tmp_path / "term.db", tmp_path / "term.db"):
        is_again = journal is not None and journal.exists()
        rooms = FakeRooms()
        jobs = [job("good", 0), bad_job, job("good", 1), job("bad", 1)]
        report = await run(jobs, rooms, journal=journal)
        good = "skipped" if is_again else "accepted"
        expected = good if status == "accepted" else status
        assert statuses(report) == [good, expected, good, good]
        assert report.stopped_by is None
        assert len(rooms.uploads) == (not is_again) * (3 + (status == "accepted"))
        bad = report.outcomes[1]
        assert "geheim" not in repr(bad)
        assert isinstance(bad.document, str)
        if status == "accepted":
            continue
        assert isinstance(bad.error, Exception)
        assert str(bad.error).isprintable()
        with pytest.raises(errors.BatchFailed) as caught:
            report.raise_for_failures()
        assert caught.value.__cause__ is bad.error


def test_times_and_totals_add_up() -> None:
    """Times of a job count from its turn, its attempts' too; the report has the sums."""
    acts = {
        "good": [accepted()],
        "torn": [cut_off(take=5, replying=1), accepted()],
        "held": [busy(replying=2), accepted(replying=3)],
        "lost": [lost()],
        "wrong": [refused()],
    }
    seconds = {"good": 5.0}
    rooms = FakeRooms(
        lambda visit: acts[visit.room].pop(0),
        ask=lambda visit: accepted(replying=seconds.get(visit.room, 0.0)),
    )
    acts["linked"] = [accepted()]
    link = UploadJob("linked", Document.from_link("https://files.example.com/deck.pdf"))
    report = ran([*(job(room) for room in list(acts)[:-1]), link], rooms)
    counts = (report.accepted, report.refused, report.failed, report.unknown, report.skipped)
    assert counts == (4, 1, 0, 1, 0)
    first, held = report.outcomes[0], report.outcomes[2]
    assert first.attempts[0].started == pytest.approx(5)  # the room was asked for
    assert (held.started, held.attempts[0].started) == (5, 0)
    assert held.waited == pytest.approx(held.attempts[1].started - 2)
    assert held.seconds == pytest.approx(held.attempts[1].started + 3)
    size = len(PDF)
    assert report.bytes_delivered == 3 * size  # and a link, whose size nobody knows
    assert report.bytes_sent == 6 * size  # the torn one was cut off before its document
    assert report.bytes_resent == size
    assert report.conflicts == 1
    assert report.seconds >= max(o.started + o.seconds for o in report.outcomes)
    assert pickle.loads(pickle.dumps(report.outcomes[:3])) == report.outcomes[:3]


@pytest.mark.parametrize("whose", ["the batch's", "the client's"])
def test_unknown_documents_are_sent_again_on_request(whose: str) -> None:
    """On request, or by a client that delivers at least once."""
    rooms = FakeRooms(lambda visit: lost() if visit.number == 1 else accepted())
    mode = {"delivery": "at_least_once"}
    is_clients = whose == "the client's"
    report = ran([job("a", 0)], rooms, mode if is_clients else {}, **({} if is_clients else mode))
    assert statuses(report) == ["accepted"]
    assert [a.verdict for a in report.outcomes[0].attempts] == ["unknown", "accepted"]
    assert (len(rooms.of("probe")), report.seconds < 10) == (1, True)


def one_that_waits(kind: str, seconds: float) -> FakeRooms:
    """Make rooms of which one is locked, or active at its third question, and others take long."""

    def answer(visit: Visit) -> Act:
        is_locked = visit.room == "bad" and kind == "locked"
        return busy() if is_locked else accepted(replying=seconds)

    def ask(visit: Visit) -> Act:
        is_late = visit.room == "bad" and kind == "late" and visit.number < 3
        return absent() if is_late else accepted()

    return FakeRooms(answer, ask=ask)


@pytest.mark.parametrize(
    ("kind", "seconds", "how", "error"),
    [
        ("locked", 70.0, {"max_wait": 3}, errors.RoomBusy),
        ("locked", 70.0, {"timeout": 50}, errors.DeadlineExceeded),
        ("late", 70.0, {"timeout": 50, "wait_active": 600}, errors.DeadlineExceeded),
    ],
)
def test_waiting_for_a_free_place_counts_for_timeout_only(
    kind: str, seconds: float, how: dict[str, Any], error: type[Exception]
) -> None:
    """``max_wait`` does not count it, ``timeout`` does; error and event say what was waited for."""
    told: dict[int, list[Event]] = {1: [], 8: []}
    jobs = [job("bad"), *(job("good", number) for number in range(9))]
    for concurrency, events in told.items():
        rooms, listening = one_that_waits(kind, seconds), {"on_event": events.append}
        report = ran(jobs, rooms, listening, concurrency=concurrency, **how)
        if concurrency == 1:
            found = report.outcomes[0]
    queued = {n: [e for e in events if isinstance(e, Queued)] for n, events in told.items()}
    assert queued[8] == []  # there are places for all
    if kind == "locked":
        assert {(event.for_place, event.room_id) for event in queued[1]} == {(True, "bad")}
    assert type(found.error) is error
    if isinstance(found.error, errors.RoomBusy):
        assert found.error.waited <= 3
        assert found.error.place_waited > 60
        assert found.error.limit == "max_wait"
        assert f"waited {found.error.waited:.1f} s for it, and" in str(found.error)
    else:
        assert kind == "late" or str(found.error).endswith("while waiting for a place in the batch")
        assert found.seconds == pytest.approx(50)


def test_a_job_that_has_waited_is_next() -> None:
    """It keeps its room's line, so that an upload of others to the room would wait for it."""

    def answer(visit: Visit) -> Act:
        is_locked = visit.room == "bad" and visit.number == 1
        return busy() if is_locked else accepted(replying=10.0)

    jobs = [job("bad"), *(job("good", number) for number in range(9))]
    report = ran(jobs, FakeRooms(answer), concurrency=1)
    assert report.outcomes[0].seconds < 40
    assert report.seconds < 101


# --- office documents that are converted at the same moment --------------------------------------


def office(room: str, number: int = 0) -> UploadJob:
    """Make a job for an office document."""
    return job(room, number, DOCX, name=f"{room}-{number}.docx")


@crossed(backend=BACKENDS, retries=(0, 1))
def test_office_documents_that_clash_are_sent_again(backend: str, retries: int) -> None:
    """All that have failed at the same moment are in their rooms then: once, and in order."""
    server = MeetingServer(office_documents_clash=True, processing_seconds=20)
    jobs = [office(f"room{room}", number) for number in (0, 1) for room in range(10)][:12]
    for room in {one.room_id for one in jobs}:
        server.add_room(room)

    async def main() -> BatchReport:
        library = httpx.AsyncClient(transport=httpx.ASGITransport(app=server))
        async with MeetingClient(
            "http://localhost",
            api_key=server.api_key,
            api_secret=server.api_secret,
            retry=RetryPolicy(max_failed_conversions=retries),
            transport=HttpxTransport(library),
        ) as client:
            async with client.upload_many(jobs, concurrency=8) as batch:
                return await batch.wait()

    report = run_in_virtual_time(main, backend=backend)
    for room in {one.room_id for one in jobs}:
        delivered = [
            one.document for one in report.outcomes if one.room_id == room and one.delivered
        ]
        assert [file.name for file in server.rooms[room].received] == delivered
    if retries:
        assert statuses(report) == ["accepted"] * 12
    else:
        assert report.failed > 3
        assert {len(outcome.attempts) for outcome in report.outcomes} == {1}
        for error in (outcome.error for outcome in report.outcomes if outcome.error):
            assert isinstance(error, errors.ProcessingFailed)
            assert str(error).endswith("the same document may succeed when it is sent again.")


@crossed(backend=BACKENDS, delivery=("at_most_once", "at_least_once", "exactly_once"))
def test_an_office_document_is_sent_again_while_nothing_else_is(
    backend: str, delivery: str
) -> None:
    """No document and no question is sent meanwhile, also after a 409 or a lost connection."""
    meanwhile: list[int] = []

    def answer(visit: Visit) -> Act:
        if visit.room not in {"a", "b"} or visit.number > 4:
            return accepted(replying=7.0)
        if visit.number == 1:
            return conversion_failed(replying=3.0)
        meanwhile.append(rooms.running)
        return {2: busy(), 3: cut_off()}.get(visit.number, accepted(replying=9.0))

    rooms = FakeRooms(answer)
    jobs = [office("a"), office("b"), *jobs_for(20, 2), job("a", 1)]
    report = ran(jobs, rooms, {"delivery": delivery}, backend=backend, concurrency=8)
    assert statuses(report) == ["accepted"] * 43
    assert rooms.names("a") == ["a-0.docx", "a-1.pdf"]
    assert (meanwhile, rooms.peak) == ([1] * 6, 8)
    for visit in (rooms.of("upload", room)[3] for room in "ab"):
        assert not [v for v in rooms.visits if visit.began < v.began < visit.began + 9.0]
    begun = [visit.began for visit in rooms.uploads]
    assert max(b - a for a, b in itertools.pairwise(begun)) < 10  # nobody waits for longer


@pytest.mark.parametrize("end", ["stop", "timeout"])
def test_a_job_that_waits_to_be_sent_alone_can_be_stopped(end: str) -> None:
    """Then the others have all permits again. An endless batch is not read further meanwhile."""
    rooms = FakeRooms(
        lambda visit: conversion_failed() if visit.room == "bad" else accepted(replying=60.0)
    )
    some = [job("long"), office("bad")]
    jobs = itertools.chain(some, (job(f"room{number}") for number in itertools.count()))

    async def main() -> BatchReport:
        async with client_of(rooms) as client:
            timeout = 50 if end == "timeout" else None
            async with client.upload_many(jobs, concurrency=2, window=9, timeout=timeout) as batch:
                await anyio.sleep(55)
                if end == "timeout":
                    assert rooms.running == 2
                assert len(rooms.uploads) == (2 if end == "stop" else 4)
                batch.stop()
            return batch.report

    report = run_in_virtual_time(main)
    error = report.outcomes[1].error
    expected = errors.BatchStopped if end == "stop" else errors.DeadlineExceeded
    assert type(error) is expected
    assert [attempt.verdict for attempt in report.outcomes[1].attempts] == [Verdict.FAILED]


# --- the timeout of a job ------------------------------------------------------------------------


async def slow_stream() -> AsyncIterator[bytes]:
    """Yield a document that takes an hour to come."""
    yield PDF
    await anyio.sleep(3600)
    yield PDF


SLOW: dict[str, tuple[dict[str, Any], Callable[[], Any], str]] = {
    "no answer": ({"answer": lambda _: hanging()}, lambda: PDF, "unknown"),
    "half a document": ({"answer": lambda _: hanging(take=5)}, lambda: PDF, "failed"),
    "a question": ({"ask": lambda _: hanging()}, lambda: PDF, "failed"),
    "never active": ({"ask": lambda _: absent()}, lambda: PDF, "failed"),
    "sent again and again": ({"answer": lambda _: absent()}, lambda: PDF, "failed"),
    "asked at length, then no answer": (
        {"ask": lambda _: accepted(replying=20.0), "answer": lambda _: hanging()},
        lambda: PDF,
        "unknown",
    ),
    "a slow source": ({}, slow_stream, "failed"),
}
"""What requests of a room meet, its document, and what the job comes to."""


@in_turn("kind", SLOW, loop="backend")
def test_a_timeout_covers_everything(backend: str, kind: str) -> None:
    """It counts from the job's turn, holds for whatever the job does, and for no other job."""
    meets, document, status = SLOW[kind]

    def scripted(what: str) -> Callable[[Visit], Act]:
        return lambda v: meets[what](v) if v.room == "slow" and what in meets else accepted()

    rooms = FakeRooms(scripted("answer"), ask=scripted("ask"))
    jobs = [job("first"), job("slow", 0, document()), job("other")]
    report = ran(jobs, rooms, backend=backend, timeout=30.5, wait_active=600)
    assert statuses(report) == ["accepted", status, "accepted"]
    outcome = report.outcomes[1]
    assert 20 < outcome.seconds <= 30.5 + 0.25  # a wait that does not fit ends it before
    if isinstance(outcome.error, errors.DeadlineExceeded):
        assert outcome.error.seconds == 30.5


# --- arguments -----------------------------------------------------------------------------------

WRONG: dict[str, list[Any]] = {
    "concurrency": [0, 1.5, "3", True, None],
    "window": [0, 2.5],
    "delivery": ["retry", 5, []],
    "once_per": ["week", None],
    "wait_active": [0, "60"],
    "timeout": [0, "60"],
    "max_wait": [-1, "60"],
    "journal": [5, object()],
}


async def test_wrong_arguments_are_named() -> None:
    """At once, and not when the batch is entered."""
    async with client_of(FakeRooms()) as client:
        for name, values in WRONG.items():
            for value in values:
                with pytest.raises(errors.InvalidInput, match=name) as caught:
                    client.upload_many([], **{name: value})
                assert caught.value.field == name


# --- events --------------------------------------------------------------------------------------


def test_every_event_names_its_job() -> None:
    """By key and index, the questions about rooms included; each call has one number."""

    async def main() -> list[Event]:
        acts = {"locked": iter([busy(), accepted()]), "torn": iter([cut_off(), accepted()])}
        late = {"late"}

        def ask(visit: Visit) -> Act:
            if visit.room in late and visit.number == 2:
                late.discard(visit.room)
            return absent() if visit.room in late else accepted()

        events: list[Event] = []
        rooms = FakeRooms(lambda v: next(acts.get(v.room, iter([accepted()]))), ask=ask)
        jobs = [job(room, key=f"row {room}") for room in ("first", "locked", "torn", "late")]
        jobs.append(job("bad", 0, b"", key="row bad"))
        await run(jobs, rooms, wait_active=60, on_event=events.append)
        return events

    events = run_in_virtual_time(main)
    rooms = ["first", "locked", "torn", "late", "bad"]
    assert {(event.key, event.index) for event in events} == {
        (f"row {room}", index) for index, room in enumerate(rooms)
    }
    assert all(event.key == f"row {event.room_id}" for event in events)
    kinds = {type(event).__name__ for event in events}
    assert kinds >= {"Finished", "WaitingForRoom", "RetryScheduled", "WaitingUntilActive"}
    finished = [event.call for event in events if type(event).__name__ == "Finished"]
    assert len(finished) == len(set(finished)) == len({event.call for event in events})


# --- errors --------------------------------------------------------------------------------------


async def test_errors_keep_their_tracebacks() -> None:
    """The caller's own show where they were raised."""

    class Broken:
        def sign(self, message: bytes) -> Any:
            raise KeyError("no key today")

    async with client_of(FakeRooms(), signer=Broken()) as client:
        async with client.upload_many([job("room01"), job("a b ")]) as batch:
            pass
    first, second = (outcome.error for outcome in batch.report.outcomes)
    assert (type(first), type(second)) == (KeyError, errors.InvalidInput)
    assert first is not None
    assert traceback.extract_tb(first.__traceback__)[-1].name == "sign"


# --- values -------------------------------------------------------------------------------------


def test_a_job_hides_its_document_and_no_wait_is_negative() -> None:
    """The repr of a job has nothing of its document; rounding makes no wait negative."""
    given = UploadJob("room01", Document.from_bytes(b"geheim", "d.pdf"), key="k")
    assert "geheim" not in repr(given)
    attempts = (Attempt(1, 0.0, 1.0, Verdict.BUSY, None, "scripted", 100),)
    facts: dict[str, Any] = {"index": 0, "room_id": "r", "document": "d", "status": "failed"}
    assert UploadOutcome(attempts=attempts, seconds=0.9, **facts).waited == 0


async def test_an_empty_report() -> None:
    """Without jobs nothing is sent, and nothing is wrong, unless the batch ended early."""
    rooms = FakeRooms()
    report = await run([], rooms)
    assert (report.total, report.outcomes, rooms.visits) == (0, [], [])
    report.raise_for_failures()
    report.seconds = 12.34
    assert repr(report) == "<BatchReport of 0 jobs in 12.3 s>"
    report.stopped_by = errors.JournalError("j.db", "is full")
    assert repr(report) == "<BatchReport of 0 jobs in 12.3 s, stopped by JournalError>"
    with pytest.raises(errors.BatchFailed, match="ended early, after 0 documents") as caught:
        report.raise_for_failures()
    assert caught.value.__cause__ is report.stopped_by
