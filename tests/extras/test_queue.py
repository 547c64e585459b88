"""The queue as its page says: defer, work, look, retry and cancel, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

import anyio
import attrs
import psycopg
import pytest

import meeting_async
from extras.queues import LARGE, SMALL, UPLOAD, WINDOW, Open, Queue, queue_at
from meeting_async import Document, LockPolicy, MeetingClient, RetryPolicy, UploadJob, errors
from meeting_async.errors import BatchFailed, ConfigurationError, InvalidInput, JournalError
from meeting_async.procrastinate import SCHEMA, WhiteboardUploads, connector
from meeting_async.testing import MeetingServer
from meeting_async.transports import HttpTransport, Reply, Request
from support.leaving_locks import LeavingLocks
from support.ports import free_port
from support.postgres import PostgresServer, needs_postgres
from support.queue_worker import KEYS, Order

pytestmark = [pytest.mark.anyio, needs_postgres]
nightly = pytest.mark.nightly

CHECK = "/room/getActiveRoomInfo"
NOWHERE = "http://127.0.0.1:1"


# --- work ----------------------------------------------------------------------------------------


async def test_a_worker_asks_and_sends(queue: Queue) -> None:
    """It asks about the room before each document, and sends each once, in the order of its room.

    The server would use a wrong room for whoever does not ask; nothing is remembered of a room.
    """
    await queue.defer_many(9, rooms=3)
    await queue.delivered()
    for room_id in ("room0", "room1", "room2"):
        paths = [one.path for one in queue.server.requests if one.room_id == room_id]
        assert [path.rpartition("/auth")[2] for path in paths] == [CHECK, UPLOAD] * 3


async def test_a_locked_room_holds_no_place(queue: Queue) -> None:
    """A worker with one place delivers to other rooms; no document goes to the locked one."""
    queue.server.rooms["room0"].lock(300)
    await queue.defer("room0", "room1", "room2", "room3", size=LARGE)
    async with queue.working(concurrency=1):
        await queue.reported(queued=1)
        await queue.until(lambda: queue.sent("room0") > 2)
        assert queue.sent("room0", LARGE) == 0
        queue.server.rooms["room0"].unlock()
        report = await queue.reported()
    await queue.check(report)
    assert queue.sent("room0", LARGE) == 1


@nightly
async def test_the_report_counts_what_locks_have_cost(queue: Queue) -> None:
    """Conflicts, bytes and waiting are those of a batch, over all runs of an upload."""
    queue.server.rooms["room0"].lock(1.0)
    await queue.defer("room0")  # small: sent without asking
    report = await queue.delivered()
    (outcome,), times = report.outcomes, queue.sent("room0", SMALL) - 1
    assert [attempt.status for attempt in outcome.attempts] == [409] * times + [200]
    assert (report.bytes_delivered, report.bytes_sent) == (SMALL, (times + 1) * SMALL)
    assert (report.bytes_resent, report.conflicts) == (times * SMALL, times)
    assert report.waited >= 0.5
    assert times >= 1


async def test_a_lock_that_is_never_released(open_queue: Open) -> None:
    """What was accepted stays accepted, although the shared lock of its room hangs."""
    locks = LeavingLocks(partial(anyio.sleep, 12))
    async with open_queue(room_locks=locks) as queue:
        await queue.defer("room0")
        async with queue.working(grace=0.1):
            await queue.until(queue.accepted)
        await queue.delivered()


# --- what ends an upload -------------------------------------------------------------------------


def room_is(queue: Queue, **settings: Any) -> None:
    """Change all rooms."""
    for room in queue.server.rooms.values():
        for name, value in settings.items():
            setattr(room, name, value)


def lock(queue: Queue) -> None:
    """Lock all rooms for somebody else."""
    for room in queue.server.rooms.values():
        room.lock(300)


def file_is(queue: Queue, content: bytes) -> None:
    """Replace the documents."""
    for name in queue.documents:
        (queue.folder / name).write_bytes(content)


def cut_off(queue: Queue) -> None:
    """Cut off all large documents, and make them large."""
    queue.server.cut_next_upload(after=100_000, times=99)
    file_is(queue, b"%PDF-1.7".ljust(8 * 1024**2))


Script = Callable[[Queue], object]
ENDS: dict[str, tuple[Script, type[Exception], str]] = {
    "no such room": (lambda q: q.server.refuse_next("ROOM_NOT_FOUND", path=UPLOAD, times=2),
                     errors.RoomNotFound, "refused"),
    "empty": (lambda q: file_is(q, b""), errors.DocumentEmpty, "refused"),
    "conversion fails": (lambda q: room_is(q, fail_conversion=True),
                         errors.ProcessingFailed, "failed"),
    "locked for too long": (lock, errors.RoomBusy, "failed"),
    "cut off three times": (cut_off,
                            errors.UploadInterrupted, "failed"),
    "lost": (lambda q: q.server.lose_next_reply(path=UPLOAD, times=2),
             errors.UploadOutcomeUnknown, "unknown"),
}  # fmt: skip
"""How an upload ends without being accepted: what happens, the error, and the status."""


@pytest.mark.parametrize("how", ENDS)
async def test_the_error_of_an_outcome(
    open_queue: Open, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the error that the client itself raises, with its facts; nothing is sent again."""
    strike, kind, status = ENDS[how]
    lock = LockPolicy(window=WINDOW, max_wait=0.5)
    async with open_queue(lock=lock) as queue:
        await queue.defer("room0")
        path = queue.document("room1")
        strike(queue)
        async with MeetingClient(queue.server.url, lock=lock, **KEYS) as client:
            with pytest.raises(kind) as raised:
                await client.upload_whiteboard_file("room1", path)
        async with queue.working():
            outcome = await queue.outcome()
            times = queue.sent("room0", SMALL)
            await anyio.sleep(0.5)
        error, own = outcome.error, raised.value
        assert (type(error), outcome.status) == (type(own), status)
        assert isinstance(error, errors.MeetingError)
        assert (error.room_id, error.document) == ("room0", "0000.pdf")
        assert error.attempts == outcome.attempts
        if isinstance(own, errors.UploadOutcomeUnknown) and isinstance(error, type(own)):
            assert (error.size, error.bytes_sent) == (own.size, own.bytes_sent)
            assert 0 <= error.lock_free_in <= WINDOW
        if status == "refused":
            told = str(own).replace(path.name, "0000.pdf").replace("room1", "room0")
            assert str(error) == told
            assert f"{status}: {told}" in caplog.text
            for fact in ("status", "status_code", "msg", "body"):
                assert getattr(error, fact, None) == getattr(own, fact, None)
            there, here = (dict(getattr(one, "headers", ())) for one in (error, own))
            assert there == here | {name: there[name] for name in ("date",) if name in here}
        assert queue.sent("room0", SMALL) == times <= (3 if status == "failed" else 1)
        assert len(queue.accepted("room0")) == (how in {"lost", "conversion fails"})


async def find_unstorable(reference: str) -> Document:
    """Fail as a function for references may."""
    raise LookupError(f"no row {reference}\0\ud800")


class BrokenLocks:
    """Room locks of a user's own whose store fails."""

    def acquire(self, room: str, *, timeout: float | None) -> NoReturn:
        """Fail, or raise as from a task that was cancelled."""
        if room.endswith("room2"):
            raise asyncio.CancelledError
        raise LookupError(f"no row {room}\0\ud800")


async def test_the_cause_of_other_code(open_queue: Open) -> None:
    """It is no outcome, and can be stored and read, whatever characters it has."""
    async with open_queue(documents=find_unstorable, room_locks=BrokenLocks()) as queue:
        await queue.uploads.defer("room0", "a")
        await queue.uploads.defer("room1", queue.document())
        await queue.uploads.defer("room2", queue.document())
        async with queue.working():
            found = await queue.status_when(lambda found: all(room.cause for room in found.rooms))
    causes = {room.room_id: f"{room.cause}" for room in found.rooms}
    assert causes["room0"] == r"LookupError: no row a\x00\ud800"
    assert causes["room1"].startswith("LookupError: no row ")
    assert causes["room1"].endswith(r"room1\x00\ud800")
    assert causes["room2"].startswith("RuntimeError: it was cancelled")


class BrokenTransport(HttpTransport):
    """A transport of a user's own that fails amid a document, with an error of its own."""

    async def send(self, request: Request, /) -> Reply:
        """Take a part of a document."""
        if not isinstance(request.body, bytes):
            async for _ in request.body:
                raise LookupError("no buffer")
        return await super().send(request)


async def test_an_error_of_other_code_amid_a_document(open_queue: Open) -> None:
    """It ends the upload: a part of the document would be sent again and again."""
    async with open_queue(transport=BrokenTransport()) as queue:
        await queue.uploads.defer("room0", queue.document(), batch="default")
        async with queue.working():
            outcome = await queue.outcome(15)
    assert (outcome.status, str(outcome.error)) == ("failed", "LookupError: no buffer")
    assert [attempt.verdict for attempt in outcome.attempts] == ["partial"]


async def test_a_server_that_is_down_for_too_long(open_queue: Open) -> None:
    """An upload is tried for ``max_outage``, with pauses; then it has failed. So it is again."""
    url, retry = f"http://127.0.0.1:{free_port()}", RetryPolicy(max_outage=0.5)
    settings = {"max_outage": 2.0}
    async with open_queue(url=url, retry=retry, settings=settings) as queue:
        await queue.defer("room0")
        async with queue.working():
            first = await queue.outcome()
            assert await queue.uploads.retry("default") == 1
            again = await queue.outcome()
    for outcome in (first, again):
        assert (outcome.status, type(outcome.error)) == ("failed", errors.ConnectFailed)
        began = [attempt.started for attempt in outcome.attempts]
        assert began == sorted(began)  # since the first run
    assert 2.0 <= first.seconds <= 15
    assert len(again.attempts) > len(first.attempts) + 1  # not given up at the first one


# --- defer ---------------------------------------------------------------------------------------


async def test_a_key_is_deferred_once(queue: Queue) -> None:
    """Twice for a room it adds nothing, also after its delivery; other rooms and batches do."""
    defer = partial(queue.uploads.defer, "room0", queue.document())
    async with queue.working():
        assert await defer(key="a") is not None
        assert await defer(key="a") is None
        await queue.reported()
        assert await defer(key="a") is None
        assert await queue.uploads.defer("room1", queue.document("room1"), key="a") is not None
        assert await defer(key="b") is not None
        assert await defer(key="a", batch="other") is not None
        assert (await queue.reported("other")).accepted == 1
        report = await queue.reported()
    assert [outcome.key for outcome in report.outcomes] == ["a", "a", "b"]
    assert queue.accepted("room0", "room1") == ["0000.pdf"] * 3 + ["0001.pdf"]


async def test_an_interrupted_defer_many_is_repeated(queue: Queue) -> None:
    """Only what is missing is added, in order; async iterables are read, too."""
    jobs = [UploadJob(f"room{at % 10}", queue.folder / f"{at}.pdf") for at in range(1500)]

    def interrupted() -> Iterator[UploadJob]:
        yield from jobs[:1200]
        raise RuntimeError("the list has ended early")

    async def slowly() -> AsyncIterator[UploadJob]:
        for job in jobs:
            yield job

    add = partial(queue.uploads.defer_many, batch="term")
    with pytest.raises(RuntimeError, match="ended early"):
        await add(interrupted())
    before = (await queue.uploads.report("term")).queued
    assert before in {1000, 1200}
    assert await add(slowly()) == 1500 - before
    assert [await add(jobs), await add([])] == [0, 0]
    assert await add([attrs.evolve(jobs[0], filename="other.pdf")]) == 1
    assert (await queue.uploads.report("term")).queued == 1501
    assert await queue.uploads.defer_many(jobs[:3], batch="other") == 3


async def test_what_can_wait_after_a_defer(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """Statistics and ticks are no errors of what was stored: workers look for it anyway."""
    impatient = f"{dsn}?options=-clock_timeout%3D100"
    async with queue_at(impatient, server, tmp_path) as queue:
        with psycopg.connect(dsn) as other:
            other.execute("LOCK TABLE meeting_async_uploads IN SHARE UPDATE EXCLUSIVE MODE")
            other.execute("LOCK TABLE procrastinate_jobs IN SHARE MODE")
            jobs = [UploadJob("room0", f"/{number}.pdf") for number in range(1000)]
            assert await queue.uploads.defer_many(jobs, batch="term") == 1000


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=nightly)])
async def test_two_programs_that_defer_the_same(
    dsn: str, queue: Queue, tmp_path: Path, rounds: int
) -> None:
    """Each of 3,000 documents is added by one of them, in whatever order they come."""
    async with queue_at(dsn, queue.server, tmp_path) as other:
        for number in range(rounds):
            jobs = [UploadJob(f"room{at % 20}", tmp_path / f"{at}.pdf") for at in range(3000)]
            counts = []

            async def add(uploads: WhiteboardUploads, jobs: list[UploadJob], batch: str) -> None:
                counts.append(await uploads.defer_many(jobs, batch=batch))  # noqa: B023 - at once

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(add, queue.uploads, jobs, f"{number}")
                tasks.start_soon(add, other.uploads, jobs[::-1], f"{number}")
            assert sum(counts) == 3000
            report = await queue.uploads.report(f"{number}", keep_outcomes=False)
            assert report.queued == 3000


async def test_what_the_room_shows(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is made absolute; names and types are those given; no query of a link."""
    path = queue.document()
    link = queue.server.host_file("plan.pdf", b"%PDF-1.7\n") + "?token=s3cret"
    monkeypatch.chdir(queue.folder)
    await queue.uploads.defer("room0", path.name)
    named = Document.from_path(path.name, filename="Übung 1.pdf", content_type="c/d")
    await queue.uploads.defer("room0", named)
    await queue.uploads.defer("room0", os.fspath(path), content_type="a/b")
    await queue.uploads.defer("room0", Document.from_link(link))
    await queue.uploads.defer("room1", Document.from_link(link.replace("plan", "other")))
    monkeypatch.chdir("/")
    async with queue.working():
        report = await queue.reported()
    assert queue.accepted("room0")[:3] == ["0000.pdf", "Übung 1.pdf", "0000.pdf"]
    types = [file.content_type for file in queue.server.rooms["room0"].accepted[1:3]]
    assert types == ["c/d", "a/b"]
    *_, good, bad = report.outcomes
    assert [good.status, report.accepted, bad.status == "accepted"] == ["accepted", 4, False]
    assert good.document.startswith(link.partition("?")[0])
    assert "s3cret" not in repr(report) + repr(good) + repr(bad) + str(bad.error)


BAD: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "bytes": ("room0", b"%PDF", {}, "document"),
    "file object": ("room0", io.BytesIO(b"%PDF"), {}, "document"),
    "document of bytes": ("room0", Document.from_bytes(b"%PDF", filename="a"), {}, "document"),
    "no document": ("room0", None, {}, "document: TypeError"),
    "link": ("room0", "https://example.com/a.pdf", {}, "from_link: TypeError"),
    "empty room": ("", "/a.pdf", {}, "room_id"),
    "blank room": (" room0", "/a.pdf", {}, "room_id"),
    "NUL in the room": ("room\0", "/a.pdf", {}, "room_id"),
    "number as room": (5, "/a.pdf", {}, "room_id: TypeError"),
    "NUL in the path": ("room0", "/a\0.pdf", {}, "document"),
    "bytes path": ("room0", Path(os.fsdecode(b"/a\xff.pdf")), {}, "document"),
    "NUL in the name": ("room0", "/a.pdf", {"filename": "a\0.pdf"}, "filename"),
    "empty name": ("room0", "/a.pdf", {"filename": ""}, "filename"),
    "type": ("room0", "/a.pdf", {"content_type": "a\0/b"}, "content_type"),
    "line in the type": ("room0", "/a.pdf", {"content_type": "a/b\r\nx: y"}, "content_type"),
    "empty key": ("room0", "/a.pdf", {"key": ""}, "key"),
    "NUL in the key": ("room0", "/a.pdf", {"key": "a\0"}, "key"),
    "number as key": ("room0", "/a.pdf", {"key": 5}, "key"),
    "empty batch": ("room0", "/a.pdf", {"batch": ""}, "batch"),
    "NUL in the batch": ("room0", "/a.pdf", {"batch": "a\0"}, "batch"),
    "time without zone": ("room0", "/a.pdf", {"schedule_at": datetime(2030, 1, 1)}, "schedule_at"),  # noqa: DTZ001
}  # fmt: skip
"""What cannot be deferred, and the field that the error names."""


CALLS_OF_A_BATCH = attrgetter("report", "status", "retry", "cancel", "drop")


async def test_bad_input_is_found_before_anything_is_stored(queue: Queue) -> None:
    """The error names the field, the value and the fix; the queue stays empty."""
    wrong: dict[str, object] = {}
    for name, (room_id, document, named, told) in BAD.items():
        field, _, kind = told.partition(": ")
        try:
            wrong[name] = await queue.uploads.defer(room_id, document, **named)
        except InvalidInput as error:
            if kind or field != error.field or not error.fix or error.fix not in str(error):
                wrong[name] = error
        except TypeError as error:
            if not kind or field not in str(error):
                wrong[name] = error
    assert wrong == {}
    good = queue.jobs(5)
    bad: list[Any] = [UploadJob("", "/a.pdf"), UploadJob("room0", b"%PDF"), "room0"]
    for job, kinds in zip(bad, (InvalidInput, InvalidInput, TypeError), strict=True):
        with pytest.raises(kinds):
            await queue.uploads.defer_many([*good, job], batch="term")
    for batch in ("", "a\0", "\udcff", "x" * 2**20):
        for call in (
            queue.uploads.defer("room0", "/a.pdf", batch=batch),
            queue.uploads.defer_many(good, batch=batch),
            *(call(batch) for call in CALLS_OF_A_BATCH(queue.uploads)),
        ):
            with pytest.raises(InvalidInput) as caught:
                await call
            assert caught.value.field == "batch"
            assert len(str(caught.value)) < 300
    for call in (queue.uploads.cancel, queue.uploads.retry):
        with pytest.raises(InvalidInput):
            await call("term", room_id="room\0")
    assert (await queue.uploads.status()).rooms == []
    assert await queue.uploads.defer_many(good, batch="term") == 5


def twice() -> None:
    """Make two queues of one application."""
    app, client, _ = Order(dsn="postgresql://h/d", url=NOWHERE).open()
    WhiteboardUploads(app, client=client)


def with_setting(field: str, value: Any) -> Callable[[], Any]:
    """Make an application with a setting."""
    return Order(dsn="postgresql://h/d", url=NOWHERE, settings={field: value}).open


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("stalled_after", with_setting("stalled_after", 2.9)),
        ("stalled_after", with_setting("stalled_after", 181)),
        ("max_outage", with_setting("max_outage", -1)),
        ("documents_timeout", with_setting("documents_timeout", -1)),
        ("app", twice),
        ("grace", lambda: asyncio.run(with_setting("max_outage", 0)()[2].run_worker(grace=-1))),
        ("dsn", lambda: connector("postgresql://user:s3cr3t@host:5432/db?no_such=s3cr3t")),
    ],
)
def test_bad_settings_are_named(field: str, make: Callable[[], object]) -> None:
    """What cannot be used is named when the application is made, without a part of a password."""
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert caught.value.field == field
    assert "s3cr3t" not in str(caught.value)


async def test_references_become_documents_in_the_worker(open_queue: Open) -> None:
    """A function turns references into documents, in the worker; bad names are found at once."""
    asked: list[str] = []

    async def find(reference: str) -> Document:
        asked.append(reference)
        if reference == "path":
            return Document.from_path(path)
        return Document.from_bytes(b"%PDF-1.7\n" + reference.encode(), filename="row.pdf")

    async with open_queue(documents=find) as queue:
        path = queue.document()
        for reference in ("one", "path"):
            await queue.uploads.defer("room0", reference)
        await queue.uploads.defer("room0", "three", filename="Name.pdf")
        await queue.uploads.defer("room1", path)  # a path, as it is no str
        assert asked == []
        wrong: list[dict[str, Any]] = [{"filename": ""}, {"content_type": "a/b\r\nx: y"}]
        for names in wrong:  # not in the worker
            with pytest.raises(InvalidInput) as caught:
                await queue.uploads.defer("room0", "four", **names)
            assert [caught.value.field] == [*names]
        async with queue.working():
            assert (await queue.reported()).accepted == 4
    assert asked == ["one", "path", "three"]
    assert queue.accepted("room0") == ["row.pdf", "0000.pdf", "Name.pdf"]
    assert queue.accepted("room1") == ["0000.pdf"]


# --- tables --------------------------------------------------------------------------------------


async def refusals(uploads: WhiteboardUploads, path: Path, match: str, *also: Any) -> None:
    """See that whatever uses the tables says what is wrong with them."""
    for call in (
        uploads.defer("room0", path),
        uploads.report("default"),
        uploads.drop("default"),
        uploads.run_worker(signals=False),
        *also,
    ):
        with pytest.raises(JournalError, match=match):
            await call


async def test_a_missing_or_other_schema_is_named(
    postgres: PostgresServer, server: MeetingServer, tmp_path: Path
) -> None:
    """Without it, or with another version, each call says what to run; twice has no effect."""
    async with queue_at(postgres.new_database(), server, tmp_path) as queue:
        path = queue.document()
        await refusals(queue.uploads, path, r"^the queue's table '.*' does .*apply.schema")
        with pytest.raises(JournalError, match=r"run .*schema"):  # noqa: PT012 - procrastinate's are missing, too: the first or the second call says so
            await queue.uploads.apply_schema()
            await queue.uploads.defer("room0", path)
        await queue.app.schema_manager.apply_schema_async()
        for _ in range(2):
            await queue.uploads.apply_schema()
            await queue.app.connector.execute_query_async(SCHEMA)
        await queue.uploads.defer("room0", path)
        await queue.uploads.apply_schema()
        assert (await queue.uploads.report("default")).queued == 1
        with psycopg.connect(queue.order.dsn) as connection:
            connection.execute(
                "COMMENT ON TABLE meeting_async_uploads IS 'meeting-async, version 999'"
            )
        app, client, uploads = queue.order.open()
        async with app.open_async(), client:
            await refusals(uploads, path, "version 999", uploads.apply_schema())


async def test_a_schema_of_its_own(
    postgres: PostgresServer, server: MeetingServer, tmp_path: Path
) -> None:
    """Two applications for one server use one database, each with a schema of PostgreSQL."""
    dsn = postgres.new_database()
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE SCHEMA second")
    for address in (dsn, f"{dsn}?options=-csearch_path%3Dsecond"):
        folder = tmp_path / str(len(address))
        folder.mkdir()
        async with queue_at(address, server, folder) as queue:
            await queue.app.schema_manager.apply_schema_async()
            await queue.uploads.apply_schema()
            await queue.defer("room0" if address == dsn else "room1")
            if address != dsn:
                await queue.delivered()


async def test_two_servers_in_one_database(dsn: str, queue: Queue, tmp_path: Path) -> None:
    """Each has its own queue."""
    other_server = MeetingServer()
    (folder := tmp_path / "other").mkdir()
    other_server.add_room("room0")
    async with other_server.run(), queue_at(dsn, other_server, folder) as other:
        await queue.defer("room0", "room0")
        await other.defer("room0", "room0", "room0")
        await queue.delivered()
        assert other.accepted() == []
        await other.delivered()


def test_the_package_works_from_a_zip_file(tmp_path: Path) -> None:
    """The package works from a zip file, as ``zipapp`` makes them."""
    package = Path(meeting_async.__file__).parent
    made = shutil.make_archive(str(tmp_path / "app"), "zip", package.parent, package.name)
    program = "import sys; sys.path.insert(0, sys.argv[1]); import meeting_async.procrastinate as q"
    code = f"{program}; print(q.__file__, q.SCHEMA)"
    run = subprocess.run([sys.executable, "-c", code, made], stdout=subprocess.PIPE, check=True)
    assert run.stdout.startswith(made.encode())
    assert b"CREATE TABLE" in run.stdout


def test_the_name_of_a_queue() -> None:
    """It is made of the server's address, also if that is long: no two servers have the same."""
    paths = ("a", "b", *(f"{'long' * 30}/{end}" for end in "ab"))
    orders = [Order(dsn="postgresql://h/d", url=f"{NOWHERE}/{path}") for path in paths]
    names = [order.open()[2].queue for order in orders]
    assert names[0] == f"whiteboard {NOWHERE.partition('//')[2]}/a"
    assert len({*names}) == 4
    assert max(map(len, names)) <= 100
    with pytest.raises(TypeError, match="queue"):
        attrs.evolve(orders[0], settings={"queue": "whiteboard"}).open()


# --- look, retry, cancel -------------------------------------------------------------------------


async def test_a_report_of_all_outcomes(queue: Queue) -> None:
    """Totals are those of a batch, outcomes are in the order of deferring, and can be dropped."""
    queue.server.rooms["room3"].lock(60)
    jobs = [UploadJob(f"room{at}", queue.document(f"room{at}"), key=f"k{at}") for at in range(4)]
    jobs += [UploadJob("nowhere", queue.document("nowhere"))]
    assert repr(await queue.uploads.report("nothing")) == "<QueueReport of 0 jobs in 0.0 s>"
    await queue.uploads.defer_many(jobs, batch="term")
    async with queue.working():
        report = await queue.reported("term", queued=1)
        counts = (report.accepted, report.refused, report.failed, report.unknown, report.queued)
        assert counts == (3, 1, 0, 0, 1)
        assert (report.total, report.skipped, report.stopped_by) == (4, 0, None)
        assert report.bytes_delivered == 3 * SMALL
        assert report.seconds > 0
        assert all(0 <= outcome.started <= report.seconds for outcome in report.outcomes)
        assert [outcome.index for outcome in report.outcomes] == [0, 1, 2, 4]
        assert [outcome.key for outcome in report.outcomes] == ["k0", "k1", "k2", None]
        with pytest.raises(BatchFailed, match="nowhere"):
            report.raise_for_failures()
        few = await queue.uploads.report("term", keep_outcomes=False)
        assert few.outcomes == []
        totals = ("accepted", "refused", "total", "queued", "bytes_delivered", "seconds")
        assert all(getattr(few, name) == getattr(report, name) for name in totals)
        found = [outcome async for outcome in queue.uploads.outcomes("term")]
        assert [outcome is None for outcome in found] == [False] * 3 + [True, False]
        assert [await queue.uploads.drop("term") for _ in range(2)] == [4, 0]
        left = await queue.uploads.report("term")
        assert (left.total, left.queued) == (0, 1)
        with pytest.raises(
            BatchFailed, match=r"^1 of 1 documents .*: 1 skipped; .* no outcome yet"
        ):
            left.raise_for_failures()
        queue.server.rooms["room3"].unlock()
        (await queue.reported("term")).raise_for_failures()
    assert await queue.uploads.defer_many(jobs[:3], batch="term") == 3  # forgotten: new


async def test_a_scheduled_upload(queue: Queue) -> None:
    """It is sent when its time has come, and does not keep the others of its room waiting."""
    await queue.defer("room0", schedule_at=datetime.now(UTC) + timedelta(hours=1))
    found = await queue.uploads.status()
    assert (found.oldest, found.causes, found.rooms[0].oldest < 0) == (None, {}, True)
    await queue.defer("room0")
    assert (await queue.uploads.status()).scheduled == 1
    await queue.defer("room0", schedule_at=datetime.now(UTC) - timedelta(minutes=5), batch="due")
    reports = [await queue.uploads.report(batch) for batch in ("default", "due")]
    assert [(one.queued, one.scheduled, one.due) for one in reports] == [(2, 1, 0), (1, 0, 1)]
    assert 300 <= reports[1].due_for < 400
    code, text = await queue.run("report", "due")
    assert (code, "1 due, for up to 5 min" in text) == (75, True), text
    assert await queue.uploads.cancel("due") == 1
    async with queue.working():
        assert (await queue.reported(queued=1)).accepted == 1
        assert queue.accepted("room0") == ["0001.pdf"]
        soon = datetime.now(UTC) + timedelta(seconds=1.5)
        await queue.defer("room1", schedule_at=soon)
        assert (await queue.reported(queued=1)).accepted == 2
    assert datetime.now(UTC) >= soon


async def test_the_order_of_a_room(queue: Queue) -> None:
    """What has become due goes in the order of its times, before what was deferred later."""
    now = datetime.now(UTC)
    for hours in (None, -1, -2, None, -2, 1, None):  # from now
        schedule_at = None if hours is None else now + timedelta(hours=hours)
        await queue.defer("room0", schedule_at=schedule_at)
    async with queue.working():
        await queue.reported(queued=1)
    assert queue.accepted("room0") == [f"000{number}.pdf" for number in (0, 2, 3, 4, 1, 6)]


KINDS = {
    "ready": (None, None, None),
    "scheduled": (None, "1 hour", None),
    "its time has come": (None, "-1 hour", None),
    "put back": ("-1 hour", "1 hour", None),
    "put back for a moment": ("-1 hour", "-1 minute", None),
    "runs": ("-1 hour", None, "0 s"),
}
"""When an upload was begun, when it is due, and its last beat, from now."""
MAY_BEGIN = {"ready", "its time has come", "put back for a moment"}


def first(kinds: Sequence[str]) -> int | None:
    """Return which of the uploads of a room begins next, if one does now."""
    for at, kind in enumerate(kinds):
        if kind in KINDS and kind != "scheduled":
            return at if kind in MAY_BEGIN else None
    return None


async def test_which_upload_begins(queue: Queue) -> None:
    """The room's oldest, if it is due; others wait for one that was begun, not for a schedule.

    Recovery ticks the rooms in which one may begin; none does in a room in which another runs.
    """
    insert = """INSERT INTO meeting_async_uploads (
            server, batch, identity, room_id, kind, source, started_at, due_at, beat_at
        ) VALUES (
            %s, 'all', random(), %s, 'path', '/a', now() + %s::interval, now() + %s::interval,
            now() + %s::interval
        ) RETURNING id"""
    table = queue.uploads._table
    rooms = [found for found in product(("", *KINDS), repeat=3) if found.count("runs") <= 1]
    ids = dict[tuple[int, int], int]()
    with psycopg.connect(queue.order.dsn, autocommit=True) as connection:
        for number, kinds in enumerate(rooms):
            for place, kind in enumerate(kinds):
                if kind:
                    values = [table.server, f"{number}", *KINDS[kind]]
                    (ids[number, place],) = connection.execute(insert, values).fetchall()[0]
        await table.recover(stalled_after=30, resends=False)
        ticks = connection.execute("SELECT args ->> 'room_id' FROM procrastinate_jobs").fetchall()
    assert {int(room_id) for (room_id,) in ticks} == {
        number for number, kinds in enumerate(rooms) if first(kinds) is not None
    }
    for number, kinds in enumerate(rooms):
        at, row = first(kinds), await table.claim(f"{number}")
        begins = ids[number, at] if at is not None and "runs" not in kinds else None
        assert (row.id if row else None) == begins, kinds


async def test_the_status_of_a_queue(queue: Queue) -> None:
    """It has what waits, for how long, for which rooms and why."""
    assert (await queue.uploads.status()).oldest is None
    queue.server.rooms["room0"].lock(60)
    await queue.defer("room0", "room0", "room0", size=LARGE, batch="term")
    await queue.defer("room1")
    found = await queue.uploads.status()
    assert [room.room_id for room in found.rooms] == ["room0", "room1"]  # the oldest first
    assert found.oldest == found.rooms[0].oldest > found.rooms[1].oldest
    assert (found.causes, found.workers) == ({"their turn, or a worker": 4}, 0)
    async with queue.working():
        await queue.until(lambda: queue.sent("room0") > 1)
        assert (await queue.uploads.status("term")).workers == 1
        with psycopg.connect(queue.order.dsn) as connection:
            connection.execute(
                "UPDATE procrastinate_workers SET last_heartbeat = now() - '1 h'::interval"
            )
        await queue.status_when(lambda found: found.workers == 1)  # it beats again
        found = await queue.status_when(lambda found: found.waiting == 3, "term")
    (room,) = found.rooms
    assert (room.room_id, found.running) == ("room0", 0)
    assert found.oldest == room.oldest > 0.3
    assert found.causes == {room.cause: 3}
    assert (await queue.uploads.status("other")).rooms == []


async def test_failed_uploads_are_retried(queue: Queue) -> None:
    """What was refused or has failed is sent; what is unknown only with ``resend``."""
    room_is(queue, presenter=False)
    queue.server.rooms["room1"].presenter = True
    queue.server.lose_next_reply(path=UPLOAD)
    retry = partial(queue.uploads.retry, "default")
    async with queue.working():
        await queue.defer("room1")
        await queue.reported()
        await queue.defer("room0", "room2")
        before = await queue.reported()
        assert (before.unknown, before.refused) == (1, 2)
        room_is(queue, presenter=True)
        assert await retry(room_id="room2") == 1
        await queue.reported()
        assert await retry() == 1
        after = await queue.reported()
        assert (after.accepted, after.unknown) == (2, 1)
        assert await retry(resend=True) == 1
        assert (await queue.reported()).accepted == 3
        assert await retry(resend=True) == 0
    assert len(queue.accepted("room1")) == 2


async def test_queued_uploads_are_cancelled(queue: Queue) -> None:
    """What waits has failed at once, what runs is cancelled within seconds; other batches go on.

    So does the room of what ran.
    """
    queue.server.lock_seconds = queue.server.rooms["room1"].processing_seconds = 60
    await queue.defer("room0", "room0", "room0", "room1", batch="term")
    await queue.defer("room0")
    cancel = partial(queue.uploads.cancel, "term")
    assert await cancel(room_id="room0") == 3
    async with queue.working():
        await queue.until(lambda: queue.accepted("room1"))
        found = await queue.uploads.status("term")
        assert (found.running, found.waiting, found.causes) == (1, 0, {})
        assert found.oldest is not None
        assert await cancel() == 1
        report = await queue.reported("term", seconds=20)
        assert await cancel() == 0
        queue.server.rooms["room1"].unlock()
        queue.server.rooms["room1"].processing_seconds = 0
        await queue.defer("room1")
        assert (await queue.reported(seconds=20)).accepted == 2
    *waited, ran = report.outcomes
    assert [outcome.status for outcome in waited] == ["failed"] * 3
    assert "cancelled" in str(waited[0].error)
    assert [outcome.error.document for outcome in waited] == ["0000.pdf", "0001.pdf", "0002.pdf"]  # type: ignore[union-attr]
    assert (ran.status, "cancelled" in str(ran.error)) == ("unknown", True)
    assert isinstance(ran.error, errors.UploadOutcomeUnknown)
    assert "batch was stopped" not in str(ran.error)
    assert queue.accepted("room0") == ["0004.pdf"]


UNDONE = """
CREATE FUNCTION undo() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO meeting_async_uploads
            (id, server, batch, identity, room_id, kind, source, state)
        SELECT OLD.id, OLD.server, OLD.batch, OLD.identity, OLD.room_id, OLD.kind, OLD.source,
            OLD.state;
    ELSE
        NEW.state = OLD.state;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER back BEFORE UPDATE ON meeting_async_uploads FOR EACH ROW EXECUTE FUNCTION undo();
CREATE TRIGGER again AFTER DELETE ON meeting_async_uploads FOR EACH ROW EXECUTE FUNCTION undo();
"""
"""Other programs that are very fast: at once each upload is as it was before a command."""


async def test_a_batch_that_changes_during_a_command(queue: Queue) -> None:
    """A command goes through a batch once: it ends, and counts each upload once."""
    commands = {"retry": "refused", "cancel": "ready", "drop": "refused"}
    state_is = "UPDATE meeting_async_uploads SET state = %s WHERE batch = %s"
    for command in commands:
        await queue.uploads.defer_many(queue.jobs(3), batch=command)
    with psycopg.connect(queue.order.dsn, autocommit=True) as connection:
        for command, state in commands.items():
            connection.execute(state_is, [state, command])
        connection.execute(UNDONE)
        try:
            for command in commands:
                with anyio.fail_after(10):
                    assert await getattr(queue.uploads, command)(command) == 3
        finally:
            connection.execute("DROP FUNCTION undo CASCADE")


async def test_an_end_that_is_repeated(queue: Queue) -> None:
    """If the reply of the database is lost, the run still has its row; not if it was cancelled.

    But the server's answer counts then, too. What was put back is claimed when its pause is over.
    """
    raw = '{"class": "UploadFailed", "args": ["KeyError", "x"]}'
    put_back: dict[str, Any] = {"state": "ready", "error": None, "pause": 0.0}
    later: dict[str, Any] = {**put_back, "pause": 60.0}
    failed: dict[str, Any] = {"state": "failed", "error": raw, "pause": None}
    accepted: dict[str, Any] = {**failed, "state": "accepted", "error": None}
    kinds, old = (put_back, later, failed, accepted), list[Any]()
    facts = {"reason": None, "size": None, "history": None, "is_away": None, "attempts": "[]"}
    table = queue.uploads._table
    for number, (kind, is_cancelled) in enumerate(product(kinds, (False, True))):
        await queue.defer(room_id := f"room{number}")
        row = await table.claim(room_id)
        assert row is not None
        assert await table.claim(room_id) is None
        assert not is_cancelled or await queue.uploads.cancel("default", room_id=room_id) == 1
        assert await table.mark_sending(row, SMALL, None, "{}") is not is_cancelled
        ends = [await table.end(row, **kind, **facts) for _ in range(2)]
        counts = not is_cancelled or kind["state"] == "accepted"
        assert ends == [counts] * 2, (kind, is_cancelled)
        again = await table.claim(room_id)
        assert (again is not None) == (kind is put_back and counts)
        if again is not None or (kind is failed and is_cancelled):
            old.append(row)
    assert await queue.uploads.retry("default") == 4
    for row in old:  # a later run has it, or will have it
        assert await table.beat([row], None) == {row.id: False}
        assert not await table.mark_sending(row, SMALL, None, "{}")
        assert not await table.end(row, **accepted, **facts)


@nightly
async def test_ticks_of_many_rooms(queue: Queue) -> None:
    """One recovery ticks 10,000 rooms, and the next one goes on with the others."""
    insert = """INSERT INTO meeting_async_uploads (server, batch, identity, room_id, kind, source)
        SELECT %s, 'many', n, 'many' || n, 'path', '/a.pdf' FROM generate_series(1, %s) AS n"""
    table = queue.uploads._table
    with psycopg.connect(queue.order.dsn, autocommit=True) as connection:
        connection.execute(insert, [table.server, 12_000])
        for count in (10_000, 12_000):
            await table.recover(stalled_after=30, resends=False)
            found = connection.execute("SELECT count(*) FROM procrastinate_jobs").fetchone()
            assert found == (count,)


@nightly
@pytest.mark.timeout(300)
async def test_cancelling_and_retrying_120000_uploads(queue: Queue) -> None:
    """So many are cancelled and retried with one call each; all are queued again."""
    count = 120_000
    jobs = (UploadJob(f"room{at % 20}", f"/{at}.pdf") for at in range(count))
    assert await queue.uploads.defer_many(jobs, batch="term") == count
    assert await queue.uploads.cancel("term") == count
    assert await queue.uploads.retry("term") == count
    assert (await queue.uploads.report("term", keep_outcomes=False)).queued == count


@attrs.frozen(kw_only=True)
class LeftRow:
    """An upload of a worker that is lost, and its outcomes; ``None``: it runs."""

    state: str
    silent: str
    """For how long."""
    size: int | None
    """Bytes sent."""
    at_most_once: str | None
    at_least_once: str | None


LEFT = {
    "room0": LeftRow(
        state="ready",
        silent="1 hour",
        size=SMALL,
        at_most_once="accepted",
        at_least_once="accepted",
    ),
    "room1": LeftRow(
        state="sent", silent="1 hour", size=SMALL, at_most_once="unknown", at_least_once="accepted"
    ),
    "room2": LeftRow(
        state="sent", silent="1 hour", size=7, at_most_once="unknown", at_least_once="unknown"
    ),
    "room3": LeftRow(
        state="ready", silent="-1 hour", size=None, at_most_once=None, at_least_once=None
    ),
}


@pytest.mark.parametrize("delivery", ["at_most_once", "at_least_once"])
async def test_what_a_lost_worker_leaves(open_queue: Open, delivery: str) -> None:
    """Others take over what it has not sent completely; the rest is unknown. What beats stays.

    With ``at_least_once`` the rest is sent again, if it is the same that was sent.
    """
    async with open_queue(delivery=delivery) as queue:
        await queue.defer(*LEFT)
        with psycopg.connect(queue.order.dsn) as connection:
            for room_id, row in LEFT.items():
                fingerprint = "another" if row.size == 7 else None
                connection.execute(
                    "UPDATE meeting_async_uploads SET run = 1, state = %s, started_at = now(),"
                    " sent_at = now(), size = %s, fingerprint = %s, beat_at = now() - %s::interval"
                    " WHERE room_id = %s",
                    [row.state, row.size, fingerprint, row.silent, room_id],
                )
        async with queue.working():
            report = await queue.reported(queued=1)
            assert (await queue.uploads.status()).running == 1
    found = {outcome.room_id: outcome for outcome in report.outcomes}
    statuses = {name: found[name].status if name in found else None for name in LEFT}
    assert statuses == {name: getattr(row, delivery) for name, row in LEFT.items()}
    error: Any = found["room2"].error
    assert (error.size, error.bytes_sent) == (7, 7)
    assert ("worker was lost" in error.reason) == (delivery == "at_most_once")


@pytest.mark.parametrize("commits", [True, False])
async def test_a_transaction_of_the_caller(queue: Queue, *, commits: bool) -> None:
    """The upload is part of it, and begins within ten seconds; nobody waits for it."""
    async with await psycopg.AsyncConnection.connect(queue.order.dsn) as connection:
        defer = partial(queue.uploads.defer, "room0", connection=connection)
        async with queue.working():
            assert await defer(queue.document()) is not None
            await queue.defer("room0")
            assert (await queue.reported()).accepted == 1
            await (connection.commit() if commits else connection.rollback())
            if commits:
                await queue.until(lambda: len(queue.accepted()) == 2, 10)
            assert (await queue.reported()).total == 1 + commits


async def test_a_worker_of_procrastinate(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """It cannot run uploads, and says so; a worker of the queue does."""
    await queue.defer("room0")
    await queue.app.run_worker_async(wait=False, install_signal_handlers=False)
    assert "run `meeting-async queue worker`" in caplog.text
    await queue.delivered()


async def test_an_address_in_two_spellings(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """Its queue has one name; a worker says that it does not take the uploads of the other one."""
    queue.order, there = (
        attrs.evolve(queue.order, url=queue.order.url.replace("127.0.0.1", name))
        for name in ("localhost", "LOCALHOST")
    )
    app, client, uploads = there.open()
    async with app.open_async(), client:
        await uploads.defer("room0", queue.document())
        async with queue.working():
            await queue.until(lambda: "write the address in one way" in caplog.text)


async def test_database_connections_and_their_settings(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """Settings of the address win over those for workers. There are four connections at most."""
    address = f"{dsn}?options=-cjit%3Don&keepalives_idle=7"
    count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    count += " AND backend_type = 'client backend'"
    async with queue_at(address, server, tmp_path) as queue:
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(partial(queue.defer, f"room{number % 20}", batch="many"))
        connector: Any = queue.app.connector
        async with connector.pool.connection() as connection:
            assert connection.info.get_parameters()["keepalives_idle"] == "7"
            shown = [await connection.execute(f"SHOW {one}") for one in ("jit", "enable_seqscan")]
            assert [await one.fetchone() for one in shown] == [("on",), ("off",)]
            (sessions,) = await (await connection.execute(count)).fetchone()
    assert sessions <= 4
