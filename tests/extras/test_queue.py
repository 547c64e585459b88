"""Uploads as jobs of a queue: on a real PostgreSQL, with real workers and a server on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import os
import random
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import procrastinate
import pytest

from meeting_async import Document, LockPolicy, MeetingClient, RetryPolicy, UploadJob, UploadOutcome
from meeting_async.errors import (
    BatchFailed,
    ConfigurationError,
    InvalidInput,
    JournalError,
    UploadFailed,
    UploadOutcomeUnknown,
)
from meeting_async.procrastinate import (
    SCHEMA,
    WhiteboardUploads,
    _run,
    _table,
    _worker,
)
from meeting_async.testing import MeetingServer
from meeting_async.testing._rooms import Room
from support.postgres import Network, PostgresServer, needs_postgres, network_to
from support.queues import (
    KEYS,
    LARGE,
    SMALL,
    STALLED_AFTER,
    STOPPED,
    WINDOW,
    Application,
    application,
    kind_of,
    names_in,
    pdf,
    queue_and_worker,
    until,
    uploads_to,
    working,
)
from support.redis_server import free_port

pytestmark = [pytest.mark.anyio, needs_postgres, pytest.mark.usefixtures("soon_unreadable")]
nightly = pytest.mark.nightly


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up on the database, and find disagreements with it, sooner."""
    monkeypatch.setattr(_table, "EXCHANGE_SECONDS", 0.5)
    monkeypatch.setattr(_run, "JOURNAL_SECONDS", 0.3)
    monkeypatch.setattr(_table, "SETTLED_SECONDS", 1.0)


# --- one job, one upload -------------------------------------------------------------------------


async def test_one_job_is_one_upload(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """Each document gets a job, whose lock is its room, when it is the room's turn."""
    async with application(dsn, server.url) as made:
        for number in range(5):
            id_ = await made.uploads.defer(f"room{number % 2}", pdf(tmp_path, number))
            assert id_ is not None
        jobs = await made.jobs()
        assert len(jobs) == 2
        assert all((job.lock or "").endswith(f"room{at}") for at, job in enumerate(jobs))
        assert {job.queue for job in jobs} == {made.uploads.queue}
        async with working(made):
            report = await made.finished()
        assert await made.job_states() == {"succeeded": 5}
    assert (report.accepted, report.total, report.queued) == (5, 5, 0)
    assert names_in(server.rooms["room0"]) == ["000.pdf", "002.pdf", "004.pdf"]
    assert names_in(server.rooms["room1"]) == ["001.pdf", "003.pdf"]


@nightly
async def test_first_come_first_served_over_all_workers(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """Three workers keep the order of each room, also when somebody else locks it at times."""
    for room in server.rooms.values():
        room.processing_seconds = 0.02
    dice = random.Random(5)
    async with contextlib.AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(queue_and_worker(dsn, server, concurrency=3))
            for _ in range(3)
        ]
        for number in range(24):
            server.rooms[f"room{number % 4}"].lock(0.2, after=dice.uniform(0, 1))
            await made[0].uploads.defer(f"room{number % 4}", pdf(tmp_path, number))
        report = await made[0].finished(seconds=30)
    assert report.accepted == 24
    for at in range(4):
        expected = [f"{number:03}.pdf" for number in range(24) if number % 4 == at]
        assert names_in(server.rooms[f"room{at}"]) == expected


# --- a locked room -------------------------------------------------------------------------------


@pytest.mark.nightly
async def test_a_locked_room_holds_no_worker(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """A worker with one place delivers to other rooms while one is locked; a question asks."""
    server.rooms["room0"].lock(300)
    async with queue_and_worker(dsn, server, concurrency=1) as made:
        await made.uploads.defer("room0", pdf(tmp_path, 0, LARGE))
        for number in range(1, 6):
            await made.uploads.defer(f"room{number}", pdf(tmp_path, number, LARGE))
        others = [server.rooms[f"room{number}"] for number in range(1, 6)]
        await until(lambda: all(room.accepted for room in others))
        await until(lambda: uploads_to(server, "room0") > 2)
        assert uploads_to(server, "room0", LARGE) == 0
        server.rooms["room0"].unlock()
        report = await made.finished()
    assert report.accepted == 6
    assert uploads_to(server, "room0", LARGE) == 1


@nightly
async def test_the_report_counts_what_locks_have_cost(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """Conflicts, bytes and waiting are those of a batch, over all runs of a job."""
    path = pdf(tmp_path, 0)  # small: sent without asking
    server.rooms["room0"].lock(1.0)
    async with queue_and_worker(dsn, server) as made:
        await made.uploads.defer("room0", path)
        report = await made.finished()
    (outcome,) = report.outcomes
    size, times = path.stat().st_size, len(outcome.attempts) - 1
    assert [attempt.status for attempt in outcome.attempts] == [409] * times + [200]
    assert (report.bytes_delivered, report.bytes_sent) == (size, (times + 1) * size)
    assert report.bytes_resent == times * size
    assert report.waited >= 0.5
    assert outcome.conflicts == report.conflicts == times >= 1


@nightly
async def test_the_longest_wait_for_a_room(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """A job ends as failed when its room stays locked for longer than ``max_wait``."""
    server.rooms["room0"].lock(30)
    lock = LockPolicy(window=WINDOW, max_wait=1.0)
    async with queue_and_worker(dsn, server, lock=lock) as made:
        await made.uploads.defer("room0", pdf(tmp_path))
        outcome = await made.only_outcome()
        assert await made.job_states() == {"failed": 1}
    assert (outcome.status, kind_of(outcome)) == ("failed", "RoomBusy")
    assert 0.5 <= outcome.seconds <= 5
    assert server.rooms["room0"].accepted == ()


# --- what is repeated, and what is not -----------------------------------------------------------


@nightly
async def test_a_server_that_is_down_for_too_long(dsn: str, tmp_path: Path) -> None:
    """The job tries to connect until ``max_outage`` has passed, with pauses; then it is failed."""
    retry, settings = RetryPolicy(initial_delay=0.25, max_outage=0.5), {"max_outage": 1.5}
    url = f"http://127.0.0.1:{free_port()}"
    async with application(dsn, url, retry=retry, settings=settings) as made:
        async with working(made):
            await made.uploads.defer("room0", pdf(tmp_path))
            outcome = await made.only_outcome()
    assert (outcome.status, kind_of(outcome)) == ("failed", "ConnectFailed")
    assert 2 <= len(outcome.attempts) <= 10
    assert 1.5 <= outcome.seconds <= 8


@pytest.mark.parametrize("why", ["unknown room", "too large", "wrong type", "empty", "refused"])
async def test_a_refused_upload_fails_once(
    dsn: str, server: MeetingServer, tmp_path: Path, why: str
) -> None:
    """What the server or a local check refuses is not repeated."""
    path, room_id = pdf(tmp_path), "room0"
    if why == "unknown room":
        room_id = "elsewhere"
    elif why == "too large":
        server.max_size_whiteboard_file = 1000
    elif why == "wrong type":
        path.write_bytes(b"\x7fELF" + b"\0" * 1000)
    elif why == "empty":
        path.write_bytes(b"")
    else:
        server.rooms["room0"].presenter = False
    async with queue_and_worker(dsn, server) as made:
        await made.uploads.defer(room_id, path)
        outcome = await made.only_outcome()
        await anyio.sleep(0.5)
        assert await made.job_states() == {"failed": 1}
    assert outcome.status == "refused"
    assert isinstance(outcome.error, UploadFailed)
    assert uploads_to(server, room_id, at_least=1000) == len(outcome.attempts) <= 1


@pytest.mark.parametrize("is_there", [True, False])
async def test_unknown_is_not_repeated(
    dsn: str, server: MeetingServer, tmp_path: Path, *, is_there: bool
) -> None:
    """If the connection ends after the whole body, the job ends, whether the room has it or not."""
    server.lose_next_reply(
        path="/room/uploadWhiteboardFile", when="afterwards" if is_there else "instead"
    )
    async with queue_and_worker(dsn, server) as made:
        await made.uploads.defer("room0", pdf(tmp_path, 0))
        report = await made.finished()
        await anyio.sleep(1.0)
        assert await made.job_states() == {"failed": 1}
        assert uploads_to(server, "room0", SMALL) == 1
    (outcome,) = report.outcomes
    assert outcome.status == "unknown"
    assert isinstance(outcome.error, UploadOutcomeUnknown)
    assert len(server.rooms["room0"].accepted) == is_there
    with pytest.raises(BatchFailed, match="1 of unknown outcome"):
        report.raise_for_failures()


@nightly
async def test_the_next_document_of_a_lost_one_waits(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """It is not sent into the lock that the lost one holds."""
    room = server.rooms["room0"]
    room.processing_seconds = 1.5
    server.lose_next_reply(path="/room/uploadWhiteboardFile")
    async with application(dsn, server.url) as other, queue_and_worker(dsn, server) as made:
        await made.uploads.defer("room0", pdf(tmp_path, 0))
        await until(lambda: len(room.accepted) == 1)
        await made.uploads.defer("room0", pdf(tmp_path, 1, LARGE))
        report = await other.finished()
    assert [outcome.status for outcome in report.outcomes] == ["unknown", "accepted"]
    assert len(report.outcomes[1].attempts) == 1


# --- the network between worker and database -----------------------------------------------------

CLAIM = b"is_running = true"
MARK = b"SET state = 'sent'"
RELEASE = b"SET is_running = false"
FINISH = b"retry = NULL, is_running = false"
FETCH = b"procrastinate_fetch_job_v2"
END_JOB = b"procrastinate_finish_job_v1"
RETRY_JOB = b"procrastinate_retry_job_v2"
"""Words of the statements of a run, in which the network strikes."""

CUTS = [
    pytest.param(
        words,
        fault,
        when,
        id=f"{name} {fault} {when}",
        marks=() if (name, when) == ("mark", "after") else nightly,
    )
    for (name, words), fault, when in itertools.product(
        {
            "fetch": FETCH,
            "claim": CLAIM,
            "mark": MARK,
            "release": RELEASE,
            "retry": RETRY_JOB,
            "finish": FINISH,
            "end": END_JOB,
        }.items(),
        ("freeze", "reset"),
        ("before", "after"),
    )
]


@pytest.mark.nightly
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("words", "fault", "when"), CUTS)
async def test_a_cut_to_the_database_at_any_statement(
    dsn: str,
    server: MeetingServer,
    network: Network,
    tmp_path: Path,
    words: bytes,
    fault: Any,
    when: Any,
) -> None:
    """A document has one outcome and is there at most once; nothing leaves without its mark."""
    room = server.rooms["room0"]
    if words in {RELEASE, RETRY_JOB}:
        room.lock(0.7)  # so that the job is put back
    async with application(dsn, server.url) as other:
        async with application(network.address(dsn), server.url) as made:
            async with working(made):
                with network.striking_at(words, fault, when):
                    await other.uploads.defer("room0", pdf(tmp_path, 0, LARGE))
                    await anyio.to_thread.run_sync(network.struck.wait, 10)
                    assert network.struck.is_set()
                    ends_at = time.monotonic() + 1.0
                    while fault == "freeze" and time.monotonic() < ends_at:
                        if words in {FETCH, CLAIM, MARK, RELEASE}:
                            assert room.accepted == ()
                        await anyio.sleep(0.01)
                    network.thaw()
                    outcome = await other.only_outcome()
        jobs = await other.job_states()
    check_one(outcome, room)
    assert jobs == ({"succeeded": 1} if outcome.status == "accepted" else {"failed": 1})
    if words is not MARK and words is not FINISH:
        assert outcome.status == "accepted"


def check_one(outcome: UploadOutcome, room: Room) -> None:
    """The only document is in its room at most once, as its outcome says."""
    copies = len(room.accepted)
    assert outcome.status in {"accepted", "unknown"}, outcome
    assert copies == 1 or (copies, outcome.status) == (0, "unknown")


COMEBACKS = [
    pytest.param(MARK, "before", "during", "at_most_once", id="before the mark, during"),
    pytest.param(MARK, "before", "after", "at_most_once", id="before the mark, after"),
    *(
        pytest.param(words, when, thaw, delivery, id=name)
        for words, when, thaw, delivery, name in (
            (MARK, "before", "during", "at_least_once", "before the mark, during, at least once"),
            (MARK, "committed", "after", "at_most_once", "after the mark"),
            (FINISH, "before", "after", "at_most_once", "before the outcome"),
            (CLAIM, "before", "during", "at_most_once", "before the claim, during"),
            (CLAIM, "before", "after", "at_most_once", "before the claim, after"),
            (CLAIM, "committed", "after", "at_most_once", "after the claim"),
        )
    ),
]
"""When the network of the first worker freezes, and when it thaws: during the upload of the second
worker, or after it."""


@nightly
@pytest.mark.parametrize(("words", "when", "thaw", "delivery"), COMEBACKS)
async def test_a_worker_that_was_taken_for_dead_comes_back(
    dsn: str,
    server: MeetingServer,
    network: Network,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: bytes,
    when: Any,
    thaw: str,
    delivery: Any,
) -> None:
    """Another worker has dealt with its document; what it still does leads to no second copy."""
    monkeypatch.setattr(_table, "SETTLED_SECONDS", 1.0)
    if words is CLAIM:  # the first worker gives up, and its claim arrives nevertheless
        monkeypatch.setattr(_table, "EXCHANGE_SECONDS", 1.0)
    room = server.rooms["room0"]
    async with application(dsn, server.url, delivery=delivery) as other:
        async with application(network.address(dsn), server.url, delivery=delivery) as made:
            async with working(made):
                with network.striking_at(words, "freeze", when):
                    await other.uploads.defer("room0", pdf(tmp_path, 0, LARGE))
                    await anyio.to_thread.run_sync(network.struck.wait, 10)
                    assert network.struck.is_set()
                    if words is not FINISH:
                        assert room.accepted == ()
                    before = uploads_to(server, "room0")
                    if thaw == "during":  # the second upload is complete, and the server is slow
                        server.stall_next_upload(1.5, after=1000)
                    async with working(other):
                        if thaw == "during":
                            await until(lambda: uploads_to(server, "room0") > before, 15)
                            await anyio.sleep(0.3)
                        else:
                            await other.reported("default", queued=0)
                        network.thaw()
                        await anyio.sleep(2.0)
                        outcome = await other.only_outcome()
                        copies = len(room.accepted)
    assert len(room.accepted) == copies  # and nothing follows
    if words is MARK and when == "before":
        assert outcome.status == "accepted"
    check_one(outcome, room)


@nightly
async def test_a_stopped_worker_is_not_taken_for_dead(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """It may take longer than ``stalled_after`` to end what it sends, while another one works."""
    server.lock_seconds = 30
    room = server.rooms["room0"]
    room.processing_seconds = STALLED_AFTER + 3
    async with application(dsn, server.url) as made, application(dsn, server.url) as other:
        task = asyncio.create_task(
            made.app.run_worker_async(
                queues=[made.uploads.queue],
                install_signal_handlers=False,
                update_heartbeat_interval=0.5,
            )
        )
        await made.uploads.defer("room0", pdf(tmp_path))
        await until(lambda: bool(room.accepted))
        async with working(other):
            task.cancel()
            await asyncio.wait([task], timeout=STOPPED)
            assert task.done()
            outcome = await other.only_outcome()
    assert outcome.status == "accepted"
    assert len(room.accepted) == 1


@nightly
async def test_a_lost_worker_does_not_keep_others_from_recovery(
    dsn: str,
    server: MeetingServer,
    postgres: PostgresServer,
    tmp_path: Path,
) -> None:
    """Its transaction is open for as long as PostgreSQL waits for it; other jobs are recovered."""
    async with contextlib.AsyncExitStack() as stack:
        other = await stack.enter_async_context(application(dsn, server.url))
        whens: list[Any] = ["after", "before"]
        networks: list[Network] = []
        for number, when in enumerate(whens):
            network = stack.enter_context(network_to(postgres))
            networks.append(network)
            made = await stack.enter_async_context(application(network.address(dsn), server.url))
            await stack.enter_async_context(working(made))
            stack.enter_context(network.striking_at(MARK, "freeze", when))
            await other.uploads.defer(f"room{number}", pdf(tmp_path, number, LARGE))
            await anyio.to_thread.run_sync(network.struck.wait, 10)
            assert network.struck.is_set()
        async with working(other):
            await until(lambda: bool(server.rooms["room1"].accepted), 25)
        for network in networks:  # so that the lost workers can end
            network.thaw()


# --- two applications ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "queues"),
    [
        pytest.param(None, "own", marks=nightly),
        (None, "all"),
        pytest.param("one for all", "all", marks=nightly),
    ],
)
async def test_two_servers_in_one_database(
    dsn: str,
    server: MeetingServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    queue: str | None,
    queues: str,
) -> None:
    """Workers of two servers deliver what is theirs, also if they are started for all queues."""
    monkeypatch.setattr(_worker, "NOT_OURS_SECONDS", 0.2)
    other_server = MeetingServer()
    how = {"queues": None} if queues == "all" else {}
    async with other_server.run() as other_url:
        other_server.add_room("room0")
        async with (
            application(dsn, server.url, queue=queue) as mine,
            application(dsn, other_url, queue=queue) as theirs,
        ):
            for number in range(6):
                made = (mine, theirs)[number % 2]
                await made.uploads.defer("room0", pdf(tmp_path, number), batch="b")
            async with working(mine, **how):
                await anyio.sleep(0.7)
                async with working(theirs, **how):
                    reports = [await made.finished("b") for made in (mine, theirs)]
    assert [(report.accepted, report.total) for report in reports] == [(3, 3), (3, 3)]
    assert names_in(server.rooms["room0"]) == ["000.pdf", "002.pdf", "004.pdf"]
    assert names_in(other_server.rooms["room0"]) == ["001.pdf", "003.pdf", "005.pdf"]


# --- deferring -----------------------------------------------------------------------------------


async def test_a_key_is_deferred_once(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """A key that the batch has adds nothing, also after its delivery; another batch takes it."""
    path = pdf(tmp_path)
    async with queue_and_worker(dsn, server) as made:
        defer = partial(made.uploads.defer, "room0", path)
        assert await defer(key="a") is not None
        assert await defer(key="a") is None
        await made.finished()
        assert await defer(key="a") is None
        assert await made.uploads.defer("room1", pdf(tmp_path, 1), key="a") is None
        assert await defer(key="b") is not None
        assert await defer(key="a", batch="other") is not None
        assert (await made.finished("other")).accepted == 1
        report = await made.finished()
    assert [outcome.key for outcome in report.outcomes] == ["a", "b"]
    assert len(server.rooms["room0"].accepted) == 3
    assert server.rooms["room1"].accepted == ()


@nightly
async def test_an_interrupted_defer_many_is_repeated(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """Only what is missing is added, in order; async iterables are read, too."""
    jobs = [UploadJob(f"room{number % 10}", tmp_path / f"{number}.pdf") for number in range(1500)]

    def interrupted() -> Iterator[UploadJob]:
        yield from jobs[:1200]
        raise RuntimeError("the list has ended early")

    async def slowly() -> AsyncIterator[UploadJob]:
        for job in jobs:
            yield job

    async with application(dsn, server.url) as made:
        with pytest.raises(RuntimeError, match="ended early"):
            await made.uploads.defer_many(interrupted(), batch="term")
        assert (await made.uploads.report("term")).queued in {1000, 1200}
        before = (await made.uploads.report("term")).queued
        assert await made.uploads.defer_many(slowly(), batch="term") == 1500 - before
        assert await made.uploads.defer_many(jobs, batch="term") == 0
        assert await made.uploads.defer_many([], batch="term") == 0
        assert (await made.uploads.report("term")).queued == 1500
        assert [job.lock for job in await made.jobs()] == [
            f"{made.uploads._session.base} room{number}" for number in range(10)
        ]
        assert await made.uploads.defer_many(jobs[:3], batch="other") == 3


@nightly
async def test_two_that_defer_the_same_at_the_same_time(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """Each document is added by one of them, in whatever order they come."""
    jobs = [UploadJob("room0", tmp_path / f"{number}.pdf") for number in range(300)]
    async with application(dsn, server.url) as one, application(dsn, server.url) as two:
        counts = await asyncio.gather(
            one.uploads.defer_many(jobs, batch="term"),
            two.uploads.defer_many(jobs, batch="term"),
        )
        assert sum(counts) == 300
        assert [outcome async for outcome in one.uploads.outcomes("term")] == [None] * 300


@nightly
async def test_a_relative_path_is_made_absolute(
    dsn: str, server: MeetingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker finds a document whatever its folder is, and the room shows the names given."""
    pdf(tmp_path)
    monkeypatch.chdir(tmp_path)
    async with application(dsn, server.url) as made:
        await made.uploads.defer("room0", "000.pdf")
        await made.uploads.defer("room0", Path("000.pdf"), filename="Übung 1.pdf")
        await made.uploads.defer("room0", os.fspath(tmp_path / "000.pdf"), content_type="a/b")
        monkeypatch.chdir("/")
        async with working(made):
            report = await made.finished()
    assert report.accepted == 3
    assert names_in(server.rooms["room0"]) == ["000.pdf", "Übung 1.pdf", "000.pdf"]
    assert server.rooms["room0"].accepted[2].content_type == "a/b"


async def test_a_link_is_uploaded_and_its_query_is_not_shown(
    dsn: str, server: MeetingServer
) -> None:
    """The server downloads it; reports, errors and their texts do not have the query."""
    link = server.host_file("plan.pdf", b"%PDF-1.7\n") + "?token=s3cret"
    gone = server.host_file("gone.pdf", b"%PDF-1.7\n").replace("gone", "other") + "?token=s3cret"
    async with queue_and_worker(dsn, server) as made:
        await made.uploads.defer("room0", Document.from_link(link))
        await made.uploads.defer("room1", Document.from_link(gone))
        report = await made.finished()
    assert report.outcomes[0].status == "accepted"
    assert report.outcomes[0].document.startswith(link.partition("?")[0])
    assert report.outcomes[1].status != "accepted"
    assert "s3cret" not in repr(report) + "".join(map(repr, report.outcomes))
    assert "s3cret" not in "".join(str(outcome.error) for outcome in report.outcomes)


BAD: dict[str, tuple[tuple[Any, Any], dict[str, Any], str, type[Exception]]] = {
    "bytes": (("room0", b"%PDF"), {}, "document", InvalidInput),
    "bytes with a name": (("room0", b"%PDF"), {"filename": "a.pdf"}, "document", InvalidInput),
    "file object": (("room0", io.BytesIO(b"%PDF")), {}, "document", InvalidInput),
    "no document": (("room0", None), {}, "document", TypeError),
    "empty room": (("", "/a.pdf"), {}, "room_id", InvalidInput),
    "blank room": ((" room0", "/a.pdf"), {}, "room_id", InvalidInput),
    "NUL in the room": (("room\0", "/a.pdf"), {}, "room_id", InvalidInput),
    "surrogate in the room": (("room\ud800", "/a.pdf"), {}, "room_id", InvalidInput),
    "number as room": ((5, "/a.pdf"), {}, "room_id", TypeError),
    "NUL in the path": (("room0", "/a\0.pdf"), {}, "document", InvalidInput),
    "surrogate in the path": (("room0", "/a\udcff.pdf"), {}, "document", InvalidInput),
    "bytes path": (("room0", Path(os.fsdecode(b"/a\xff.pdf"))), {}, "document", InvalidInput),
    "NUL in the name": (("room0", "/a.pdf"), {"filename": "a\0.pdf"}, "filename", InvalidInput),
    "surrogate": (("room0", "/a.pdf"), {"filename": "a\ud800.pdf"}, "filename", InvalidInput),
    "empty name": (("room0", "/a.pdf"), {"filename": ""}, "filename", InvalidInput),
    "type": (("room0", "/a.pdf"), {"content_type": "a\0/b"}, "content_type", InvalidInput),
    "line in the type": (
        ("room0", "/a.pdf"),
        {"content_type": "a/b\r\nx: y"},
        "content_type",
        InvalidInput,
    ),
    "empty key": (("room0", "/a.pdf"), {"key": ""}, "key", InvalidInput),
    "NUL in the key": (("room0", "/a.pdf"), {"key": "a\0"}, "key", InvalidInput),
    "surrogate in the key": (("room0", "/a.pdf"), {"key": "a\ud800"}, "key", InvalidInput),
    "number as key": (("room0", "/a.pdf"), {"key": 5}, "key", InvalidInput),
    "empty batch": (("room0", "/a.pdf"), {"batch": ""}, "batch", InvalidInput),
    "NUL in the batch": (("room0", "/a.pdf"), {"batch": "a\0"}, "batch", InvalidInput),
    "link": (("room0", "https://example.com/a.pdf"), {}, "from_link", TypeError),
    "NUL in the path, with a name": (
        ("room0", "/a\0.pdf"),
        {"filename": "a.pdf"},
        "document",
        InvalidInput,
    ),
}
"""What cannot be deferred, and the field that the error names."""


async def test_bad_input_is_found_before_anything_is_stored(
    dsn: str, server: MeetingServer
) -> None:
    """The error names the field, the value and the fix; the queue stays empty."""
    wrong: dict[str, object] = {}
    async with application(dsn, server.url) as made:
        for name, (arguments, named, field, kind) in BAD.items():
            try:
                await made.uploads.defer(*arguments, **named)
            except InvalidInput as error:
                is_clear = error.problem and error.fix and error.fix in str(error)
                if kind is not InvalidInput or not is_clear or field not in {"", error.field}:
                    wrong[name] = error
            except TypeError as error:
                if kind is not TypeError or field not in str(error):
                    wrong[name] = error
            except Exception as error:  # noqa: BLE001 - the test shows them all
                wrong[name] = error
            else:
                wrong[name] = "was deferred"
        assert await made.jobs() == []
    assert wrong == {}


async def test_a_bad_job_among_good_ones(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """The chunk of a job that cannot be used is not stored; the rest can be deferred then."""
    jobs = [UploadJob("room0", pdf(tmp_path, number)) for number in range(5)]
    async with application(dsn, server.url) as made:
        bad: list[Any] = [UploadJob("", "/a.pdf"), UploadJob("room0", b"%PDF"), "room0"]
        for job, error in zip(bad, (InvalidInput, InvalidInput, TypeError), strict=True):
            with pytest.raises(error):
                await made.uploads.defer_many([*jobs, job], batch="term")
            assert await made.jobs() == []
        with pytest.raises(InvalidInput) as caught:
            await made.uploads.defer_many(jobs, batch="")
        assert caught.value.field == "batch"
        assert await made.uploads.defer_many(jobs, batch="term") == 5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queue", ""),
        ("queue", "q" * 101),
        ("stalled_after", 2.9),
        ("stalled_after", 181),
        ("max_outage", -1),
        ("documents_timeout", -1),
    ],
)
def test_bad_settings(field: str, value: Any) -> None:
    """A setting that cannot be used is named when the application is made."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector())
    client = MeetingClient("http://127.0.0.1:1", **KEYS)
    with pytest.raises(ConfigurationError) as caught:
        WhiteboardUploads(app, client=client, **{field: value})
    assert caught.value.field == field


# --- the schema ----------------------------------------------------------------------------------


async def test_the_schema(postgres: PostgresServer, tmp_path: Path) -> None:
    """A missing one is named with what to run; applying it twice has no effect."""
    dsn = postgres.new_database()
    async with application(dsn, "http://127.0.0.1:1") as made:
        for call in (
            made.uploads.defer("room0", pdf(tmp_path)),
            made.uploads.report("default"),
            made.uploads.drop("default"),
        ):
            with pytest.raises(JournalError, match=r"^the queue's table '.*' does .*apply.schema"):
                await call
        await made.app.schema_manager.apply_schema_async()
        with pytest.raises(JournalError, match=r"run .*apply.schema"):
            await made.uploads.defer("room0", pdf(tmp_path))
        for _ in range(2):
            await made.uploads.apply_schema()
        await made.uploads.defer("room0", pdf(tmp_path))
        await made.uploads.apply_schema()
        assert (await made.uploads.report("default")).queued == 1


async def apply_and_defer(made: Application, path: Path) -> None:
    """Apply this package's schema alone; the first or the second call raises."""
    await made.uploads.apply_schema()
    await made.uploads.defer("room0", path)


@nightly
async def test_the_schema_of_procrastinate_is_missing(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """Without procrastinate's own tables the error says what to run, and nothing is stored."""
    async with application(postgres.new_database(), "http://127.0.0.1:1") as made:
        with pytest.raises(JournalError, match=r"run .*schema"):
            await apply_and_defer(made, pdf(tmp_path))
        await made.app.schema_manager.apply_schema_async()
        await made.uploads.apply_schema()
        assert (await made.uploads.report("default")).queued == 0


@nightly
async def test_the_schema_for_migrations(postgres: PostgresServer, tmp_path: Path) -> None:
    """``SCHEMA`` makes the same table as the method, once and again; another format is refused."""
    async with application(postgres.new_database(), "http://127.0.0.1:1") as made:
        await made.app.schema_manager.apply_schema_async()
        for _ in range(2):
            await made.app.connector.execute_query_async(SCHEMA)
        await made.uploads.apply_schema()
        assert await made.uploads.defer("room0", pdf(tmp_path)) is not None
        await made.app.connector.execute_query_async(
            "COMMENT ON TABLE meeting_async_uploads IS 'meeting-async, version 999'"
        )
        with pytest.raises(JournalError, match="999"):
            await made.uploads.apply_schema()


@nightly
async def test_two_that_apply_the_schema_at_the_same_time(postgres: PostgresServer) -> None:
    """Processes that start together all find the table."""
    dsn = postgres.new_database()
    async with contextlib.AsyncExitStack() as stack:
        url = "http://127.0.0.1:1"
        made = [await stack.enter_async_context(application(dsn, url)) for _ in range(4)]
        await made[0].app.schema_manager.apply_schema_async()
        await asyncio.gather(*(each.uploads.apply_schema() for each in made))


@nightly
async def test_a_database_that_is_down(postgres: PostgresServer, tmp_path: Path) -> None:
    """Deferring raises one error of this library within some seconds."""
    dsn = f"postgresql://tester@127.0.0.1:{free_port()}/test"
    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=dsn, timeout=1, min_size=0, max_size=2)
    )
    async with MeetingClient("http://127.0.0.1:1", **KEYS) as client:
        uploads = WhiteboardUploads(app, client=client)
        async with app.open_async():
            with pytest.raises(JournalError):
                await uploads.defer("room0", pdf(tmp_path))


# --- reports -------------------------------------------------------------------------------------


async def test_a_report_of_all_outcomes(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """Totals are those of a batch, outcomes are in the order of deferring, and none is kept."""
    async with application(dsn, server.url) as made:
        server.rooms["room3"].lock(60)
        jobs = [
            UploadJob(f"room{number}", pdf(tmp_path, number), key=f"k{number}")
            for number in range(4)
        ]
        jobs += [UploadJob("nowhere", pdf(tmp_path, 4)), UploadJob("room4", tmp_path / "gone.pdf")]
        await made.uploads.defer_many(jobs, batch="term")
        assert repr(await made.uploads.report("nothing")).count("0 jobs") == 1
        async with working(made):
            report = await made.reported("term", queued=1)
        counts = (report.accepted, report.refused, report.failed, report.unknown, report.queued)
        assert counts == (3, 1, 1, 0, 1)
        assert (report.total, report.skipped, report.stopped_by) == (5, 0, None)
        assert report.bytes_delivered == sum(
            (tmp_path / f"{number:03}.pdf").stat().st_size for number in range(3)
        )
        assert report.seconds > 0
        assert [outcome.index for outcome in report.outcomes] == [0, 1, 2, 4, 5]
        assert [outcome.key for outcome in report.outcomes] == ["k0", "k1", "k2", None, None]
        assert [outcome.room_id for outcome in report.outcomes][3] == "nowhere"
        assert kind_of(report.outcomes[3]) == "RoomNotFound"
        with pytest.raises(BatchFailed, match="nowhere"):
            report.raise_for_failures()

        few = await made.uploads.report("term", keep_outcomes=False)
        assert few.outcomes == []
        totals = ("accepted", "refused", "failed", "total", "queued", "bytes_delivered", "seconds")
        assert all(getattr(few, name) == getattr(report, name) for name in totals)
        found = [outcome async for outcome in made.uploads.outcomes("term")]
        assert [outcome is None for outcome in found] == [False] * 3 + [True] + [False] * 2

        # What is queued stays queued, and is delivered.
        assert await made.uploads.drop("term") == 5
        assert await made.uploads.drop("term") == 0
        left = await made.uploads.report("term")
        assert (left.total, left.queued) == (0, 1)
        with pytest.raises(BatchFailed, match="no outcome yet"):
            left.raise_for_failures()
        server.rooms["room3"].unlock()
        async with working(made):
            assert (await made.finished("term")).accepted == 1
        (await made.uploads.report("term")).raise_for_failures()
        assert await made.uploads.defer_many(jobs[:3], batch="term") == 3  # forgotten: new


@nightly
async def test_drop_keeps_what_an_operator_has_put_back(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """A failed upload that waits to run again is queued: dropping outcomes does not lose it."""
    server.rooms["room0"].presenter = False
    async with application(dsn, server.url) as made:
        await made.uploads.defer("room0", pdf(tmp_path))
        async with working(made):
            assert (await made.only_outcome()).status == "refused"
        server.rooms["room0"].presenter = True
        (job,) = await made.jobs()
        await made.app.job_manager.retry_job_by_id_async(job.id or 0, datetime.now(UTC))
        await made.uploads.drop("default")
        async with working(made):
            await made.finished()
    assert names_in(server.rooms["room0"]) == ["000.pdf"]


# --- references ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
async def test_references(
    dsn: str, server: MeetingServer, tmp_path: Path, *, is_async: bool
) -> None:
    """A function turns references into documents in the worker; where it raises, one job fails."""
    asked: list[str] = []
    path = pdf(tmp_path)

    def find(reference: str) -> Document:
        asked.append(reference)
        if reference == "bad":
            raise LookupError("there is no row 'bad'")
        if reference == "path":
            return Document.from_path(path)
        return Document.from_bytes(b"%PDF-1.7\n" + reference.encode(), filename="row.pdf")

    async def find_async(reference: str) -> Document:
        await anyio.lowlevel.checkpoint()
        return find(reference)

    documents: Any = find_async if is_async else find
    async with application(dsn, server.url, documents=documents) as made:
        for reference in ("one", "bad", "two", "path"):
            await made.uploads.defer("room0", reference)
        await made.uploads.defer("room0", "three", filename="Name.pdf")
        await made.uploads.defer("room1", pdf(tmp_path, 1))  # a path, as it is no str
        assert asked == []
        async with working(made):
            report = await made.finished()
    assert asked == ["one", *["bad"] * 4, "two", "path", "three"]
    assert [outcome.status for outcome in report.outcomes] == [
        "accepted",
        "failed",
        "accepted",
        "accepted",
        "accepted",
        "accepted",
    ]
    assert kind_of(report.outcomes[1]) == "LookupError"
    assert "no row" in str(report.outcomes[1].error)
    assert names_in(server.rooms["room0"]) == ["row.pdf", "row.pdf", "000.pdf", "Name.pdf"]
    assert names_in(server.rooms["room1"]) == ["001.pdf"]


@nightly
async def test_a_worker_without_the_function(
    dsn: str, server: MeetingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that cannot resolve references leaves them to another, and delivers the rest."""
    monkeypatch.setattr(_worker, "NOT_OURS_SECONDS", 0.2)

    def find(reference: str) -> Document:
        return Document.from_bytes(b"%PDF-1.7\n", filename=f"{reference}.pdf")

    async with application(dsn, server.url, documents=find) as able:
        await able.uploads.defer("room0", "row")
        await able.uploads.defer("room1", pdf(tmp_path))
        async with queue_and_worker(dsn, server) as unable:
            await until(lambda: bool(server.rooms["room1"].accepted))
            await anyio.sleep(0.5)
            assert (await unable.uploads.report("default")).queued == 1
        async with working(able):
            assert (await able.finished()).accepted == 2
    assert names_in(server.rooms["room0"]) == ["row.pdf"]


# --- by hand -------------------------------------------------------------------------------------


async def retry_by_hand(made: Application) -> None:
    """Retry the only job as an operator does, and wait until it has ended."""
    (job,) = await made.jobs()
    await made.app.job_manager.retry_job_by_id_async(job.id or 0, datetime.now(UTC))


@pytest.mark.parametrize("delivery", ["at_most_once", "at_least_once"])
async def test_an_unknown_job_is_retried_by_hand(
    dsn: str, server: MeetingServer, tmp_path: Path, delivery: Any
) -> None:
    """It is not sent again, unless it may arrive twice."""
    server.lose_next_reply(path="/room/uploadWhiteboardFile")
    async with queue_and_worker(dsn, server) as made:
        await made.uploads.defer("room0", pdf(tmp_path))
        assert (await made.only_outcome()).status == "unknown"
    async with queue_and_worker(dsn, server, delivery=delivery) as made:
        await retry_by_hand(made)
        outcome = await made.only_outcome()
        await anyio.sleep(0.3)
    is_sent_again = delivery == "at_least_once"
    assert outcome.status == ("accepted" if is_sent_again else "unknown")
    assert len(server.rooms["room0"].accepted) == 1 + is_sent_again


@nightly
async def test_an_accepted_job_is_never_sent_again(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """Even if its job is put back by force; it then ends well, and the outcome stays."""
    async with queue_and_worker(dsn, server, delivery="at_least_once") as made:
        await made.uploads.defer("room0", pdf(tmp_path))
        assert (await made.only_outcome()).status == "accepted"
        await made.app.connector.execute_query_async(
            "UPDATE procrastinate_jobs SET status = 'failed' WHERE task_name LIKE '%%:upload'"
        )
        await retry_by_hand(made)
        outcome = await made.only_outcome()
        assert await made.job_states() == {"succeeded": 1}
    assert outcome.status == "accepted"
    assert len(server.rooms["room0"].accepted) == 1


@nightly
async def test_a_changed_file_is_not_sent_after_an_unknown_outcome(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """What is sent again, with your consent, is what may have arrived and nothing else."""
    path = pdf(tmp_path)
    server.lose_next_reply(path="/room/uploadWhiteboardFile")
    async with queue_and_worker(dsn, server) as made:
        await made.uploads.defer("room0", path)
        assert (await made.only_outcome()).status == "unknown"
    path.write_bytes(b"%PDF-1.7\n another document")
    async with queue_and_worker(dsn, server, delivery="at_least_once") as made:
        await retry_by_hand(made)
        outcome = await made.only_outcome()
    assert outcome.status == "unknown"
    assert len(server.rooms["room0"].accepted) == 1
