"""Batches that were interrupted and go on: what is skipped, sent again, reported, and on record."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import attrs
import pytest

from _fakes import Act, Exchange, Take, accepted, busy, failing, hanging, record, reply
from meeting_async import (
    Batch,
    BatchReport,
    Document,
    LockPolicy,
    MeetingClient,
    Reply,
    Request,
    RetryPolicy,
    Turnstile,
    UploadJob,
    errors,
)
from meeting_async._journal import Journal

pytestmark = pytest.mark.anyio

KEY, SECRET = "key-0f-the-app", "secret-0f-the-app"
LINK = "https://files.example.com/deck.pdf?token=c0ffee-is-a-secret"
WINDOW = 0.6
"""Seconds for which the server of these tests holds a room."""

Look = Callable[[], Awaitable[None]]


async def nothing() -> None:
    """Do nothing."""


@attrs.define(eq=False)
class Rooms:
    """A transport: each upload gets the next act of its room's script, then is accepted."""

    scripts: dict[str, list[Act]] = attrs.field(factory=dict)
    ask: Act = attrs.field(factory=accepted)
    """What a question about a room is answered."""
    at_end: Look = nothing
    """Awaited when the closing boundary has arrived."""
    uploads: list[Exchange] = attrs.field(factory=list)
    requests: int = 0

    async def send(self, request: Request, /) -> Reply:
        """Play the next act."""
        self.requests += 1
        exchange = Exchange(request, anyio.current_time())
        room = exchange.headers.get("room-id")
        if room is None:
            return await self.ask.play(exchange)
        self.uploads.append(exchange)
        script = self.scripts.get(room) or [accepted()]
        act = script.pop(0)
        if act.take is Take.EVERYTHING:
            await attrs.evolve(act, result=Reply(200, (), b"")).play(exchange)
            await self.at_end()
            act = attrs.evolve(act, take=Take.NOTHING)
        return await act.play(exchange)

    async def aclose(self) -> None:
        """Hold nothing."""

    @property
    def names(self) -> list[str]:
        """What was sent to its end, in order."""
        return [name_in(exchange) for exchange in self.uploads if exchange.complete]


def name_in(exchange: Exchange) -> str:
    """Return the file name in a form."""
    found = re.search(rb'filename="([^"]*)"', bytes(exchange.sent))
    return found[1].decode() if found else "link"


def client_of(rooms: Rooms, **settings: Any) -> MeetingClient:
    """Make a client of these rooms, whose turnstile nobody shares, as in a new process."""
    lock = LockPolicy(window=WINDOW, min_delay=0.01, max_wait=5)
    usual = {"lock": lock, "room_gate": Turnstile(), "retry": RetryPolicy(max_attempts=1)}
    where = {"api_key": KEY, "api_secret": SECRET, "transport": rooms}
    return MeetingClient("https://meet.test", **cast("Any", {**where, **usual, **settings}))


def job(name: str = "a.pdf", room: str = "room01", **how: Any) -> UploadJob:
    """Make a job."""
    document = how.pop("document", b"%PDF-1.7 " + name.encode())
    return UploadJob(room, document, filename=name, **how)


@asynccontextmanager
async def running_batch(
    path: Path, jobs: Iterable[UploadJob], rooms: Rooms, settings: Any = None, **options: Any
) -> AsyncGenerator[Batch, None]:
    """Provide a batch with a journal, and a client of its own."""
    client = client_of(rooms, **(settings or {}))
    async with client, client.upload_many(jobs, journal=path, **options) as running:
        yield running


async def batch(
    path: Path, jobs: Iterable[UploadJob], rooms: Rooms | None = None, **options: Any
) -> BatchReport:
    """Run a batch with a journal to its end."""
    async with running_batch(path, jobs, rooms or Rooms(), **options) as running:
        return await running.wait()


def statuses(report: BatchReport) -> list[str]:
    """Return what became of each job."""
    return [outcome.status for outcome in report.outcomes]


def states_in(path: Path) -> dict[str, str]:
    """Return what a journal says of each document."""
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT document, state FROM jobs"))


def snapshot(path: Path, copy: Path) -> dict[str, str]:
    """Copy a journal as it is on disk at the moment, and return what the copy says.

    To close the file frees the locks of this process on it, but nobody else wants it here.
    """
    for end in ("", "-wal"):
        shutil.copy(f"{path}{end}", f"{copy}{end}")
    return states_in(copy)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Say where the journal is."""
    return tmp_path / "term.db"


LOST = failing(errors.ConnectionLost("reset"))
"""The whole form went out, and the connection was lost."""
CUT = failing(errors.ConnectionLost("reset"), take=Take.HEAD)
"""It was lost before the document was out."""
IMAGE = reply(400, record("INVALID_PARAMETERS"))
FAILED = reply(500, record("INTERNAL_SERVER_ERROR"))


# --- what the next run does ----------------------------------------------------------------------


async def test_what_was_accepted_is_skipped(path: Path) -> None:
    """No request is made for it; it counts as resumed, and as good."""
    jobs = [job("a.pdf"), job("b.pdf"), job("c.pdf", "room02")]
    assert statuses(await batch(path, jobs)) == ["accepted"] * 3
    rooms = Rooms()
    report = await batch(path, jobs, rooms)
    assert statuses(report) == ["skipped"] * 3
    assert (report.resumed, rooms.requests) == (3, 0)
    assert all(outcome.is_good and outcome.error is None for outcome in report.outcomes)
    report.raise_for_failures()


async def test_only_what_is_new_is_sent(path: Path) -> None:
    """A longer list of jobs goes on where the shorter one ended, whatever their order."""
    await batch(path, [job("b.pdf")])
    rooms = Rooms()
    report = await batch(path, [job("a.pdf"), job("b.pdf"), job("c.pdf")], rooms)
    assert statuses(report) == ["accepted", "skipped", "accepted"]
    assert rooms.names == ["a.pdf", "c.pdf"]


@pytest.mark.parametrize(
    ("act", "status"), [(IMAGE, "refused"), (FAILED, "failed"), (CUT, "failed")]
)
async def test_what_did_not_arrive_is_sent_again(path: Path, act: Act, status: str) -> None:
    """Refused or failed, once or twice."""
    for _ in range(2):
        report = await batch(path, [job()], Rooms({"room01": [attrs.evolve(act)]}))
        assert statuses(report) == [status]
        assert states_in(path) == {"a.pdf": status}
    rooms = Rooms()
    assert statuses(await batch(path, [job()], rooms)) == ["accepted"]
    assert rooms.names == ["a.pdf"]


async def test_what_was_skipped_is_sent(path: Path) -> None:
    """A batch that was stopped by a wrong key, a room that was not there."""
    wrong = Rooms(ask=reply(401, record("INVALID_API_KEY")))
    jobs = [job("a.pdf"), job("b.pdf"), job("c.pdf", "room02")]
    report = await batch(path, jobs, wrong)
    assert statuses(report) == ["refused", "skipped", "skipped"]
    absent = Rooms({"room01": [reply(400, record("ROOM_NOT_ACTIVE"))]})
    assert statuses(await batch(path, jobs, absent)) == ["refused", "skipped", "accepted"]
    assert statuses(await batch(path, jobs)) == ["accepted", "accepted", "skipped"]


async def test_what_is_unknown_is_reported_and_its_room_stays_shut(path: Path) -> None:
    """In every run; the room's next document waits for the rest of the lock's time."""
    jobs = [job("a.pdf"), job("b.pdf")]
    report = await batch(path, jobs[:1], Rooms({"room01": [LOST]}))
    lost_at = anyio.current_time()
    assert statuses(report) == ["unknown"]
    rooms = Rooms()
    report = await batch(path, jobs, rooms)
    assert statuses(report) == ["unknown", "accepted"]
    assert rooms.names == ["b.pdf"]
    assert WINDOW - 0.2 < rooms.uploads[0].began - lost_at < WINDOW + 1
    error = report.outcomes[0].error
    assert isinstance(error, errors.UploadOutcomeUnknown)
    assert (error.size, error.document) == (len(b"%PDF-1.7 a.pdf"), "a.pdf")
    assert 0 < error.lock_free_in < WINDOW
    await anyio.sleep(WINDOW)
    rooms = Rooms()
    report = await batch(path, jobs, rooms)
    assert statuses(report) == ["unknown", "skipped"]
    error = report.outcomes[0].error
    assert isinstance(error, errors.UploadOutcomeUnknown)
    assert (error.lock_free_in, rooms.requests) == (0, 0)


async def test_the_longest_of_several_locks_counts(path: Path) -> None:
    """Two documents of a room are unknown: the one that was sent last may hold it."""
    for name in ("b.pdf", "a.pdf"):
        await batch(path, [job(name)], Rooms({"room01": [LOST]}))
        lost_at = anyio.current_time()
        await anyio.sleep(WINDOW / 3)
    rooms = Rooms()
    report = await batch(path, [job("a.pdf"), job("b.pdf"), job("c.pdf")], rooms)
    assert statuses(report) == ["unknown", "unknown", "accepted"]
    assert rooms.uploads[0].began - lost_at > WINDOW - 0.1


async def test_what_is_unknown_is_sent_again_on_request(path: Path) -> None:
    """After the lock's time, in its place in the room's order."""
    jobs = [job("a.pdf"), job("b.pdf")]
    await batch(path, jobs[:1], Rooms({"room01": [LOST]}))
    lost_at = anyio.current_time()
    rooms = Rooms()
    report = await batch(path, jobs, rooms, on_unknown="resend")
    assert statuses(report) == ["accepted", "accepted"]
    assert rooms.names == ["a.pdf", "b.pdf"]
    assert rooms.uploads[0].began - lost_at > WINDOW - 0.2
    assert states_in(path) == {"a.pdf": "accepted", "b.pdf": "accepted"}


async def test_a_file_that_changed_is_not_sent_again(tmp_path: Path, path: Path) -> None:
    """Neither the one that a room has nor, on request, the one it may have."""
    names = ["accepted.pdf", "unknown.pdf", "failed.pdf"]
    files = [anyio.Path(tmp_path, name) for name in names]
    jobs = [UploadJob(f"room0{n}", file) for n, file in enumerate(files)]
    for file in files:
        await file.write_bytes(b"%PDF-1.7")
    await batch(path, jobs, Rooms({"room01": [LOST], "room02": [CUT]}))
    for file in files:
        await file.write_bytes(b"%PDF-1.7 another one")
    await anyio.sleep(WINDOW)
    rooms = Rooms()
    report = await batch(path, jobs, rooms, on_unknown="resend")
    assert statuses(report) == ["failed", "failed", "accepted"]
    assert rooms.names == ["failed.pdf"]
    for outcome in report.outcomes[:2]:
        assert isinstance(outcome.error, errors.DocumentChanged)
        assert "an earlier run of the batch sent the file as it was then" in str(outcome.error)
    assert states_in(path)["accepted.pdf"] == "accepted"
    assert states_in(path)["unknown.pdf"] == "unknown"
    assert statuses(await batch(path, jobs)) == ["failed", "unknown", "skipped"]


async def test_jobs_that_are_alike_are_as_many_as_there_are(path: Path) -> None:
    """Three times the same document: a run that delivered one leaves two."""
    jobs = [job()] * 3
    rooms = Rooms({"room01": [accepted(), IMAGE, IMAGE]})
    assert statuses(await batch(path, jobs, rooms)) == ["accepted", "refused", "refused"]
    rooms = Rooms()
    assert statuses(await batch(path, jobs, rooms)) == ["skipped", "accepted", "accepted"]
    assert len(rooms.names) == 2


async def test_a_key_that_is_used_twice_is_refused_and_harms_nobody(path: Path) -> None:
    """Whichever comes second, and in every run."""
    jobs = [job("a.pdf", key="1"), job("b.pdf", key="1"), job("c.pdf", key="2")]
    assert statuses(await batch(path, jobs)) == ["accepted", "refused", "accepted"]
    rooms = Rooms()
    assert statuses(await batch(path, jobs, rooms)) == ["skipped", "refused", "skipped"]
    assert rooms.requests == 0
    wrong: Any = 7
    assert statuses(await batch(path, [job("d.pdf", key=wrong), job("e.pdf")])) == [
        *("refused", "accepted")
    ]


# --- what is on disk when ------------------------------------------------------------------------


@pytest.mark.parametrize("document", [b"%PDF-1.7", Document.from_link(LINK)], ids=["file", "link"])
async def test_it_is_on_disk_before_the_closing_boundary_leaves(
    tmp_path: Path, path: Path, document: object
) -> None:
    """A copy of the file at that moment says so."""
    seen: list[dict[str, str]] = []

    async def look() -> None:
        copied = await anyio.to_thread.run_sync(snapshot, path, tmp_path / "copy.db")
        seen.append(copied)

    name = None if isinstance(document, Document) else "a.pdf"
    jobs = [UploadJob("room01", cast("Any", document), filename=name)]
    assert statuses(await batch(path, jobs, Rooms(at_end=look))) == ["accepted"]
    assert [list(states.values()) for states in seen] == [["sent"]]


async def test_before_the_document_is_out_it_is_not_called_sent(tmp_path: Path, path: Path) -> None:
    """Then a crash costs nobody a question."""
    seen: list[dict[str, str]] = []

    class Slow(Rooms):
        async def send(self, request: Request, /) -> Reply:
            if not isinstance(request.body, bytes):
                copied = await anyio.to_thread.run_sync(snapshot, path, tmp_path / "copy.db")
                seen.append(copied)
            return await super().send(request)

    assert statuses(await batch(path, [job()], Slow())) == ["accepted"]
    assert [states.get("a.pdf", "ready") for states in seen] == ["ready"]


async def test_after_a_409_it_is_no_longer_called_sent(tmp_path: Path, path: Path) -> None:
    """While the upload waits for its room, a crash leaves nothing in doubt."""
    seen: list[dict[str, str]] = []

    async def keep_looking() -> None:
        while True:
            await anyio.sleep(0.01)
            with contextlib.suppress(FileNotFoundError):  # the batch is over
                copied = await anyio.to_thread.run_sync(snapshot, path, tmp_path / "copy.db")
                seen.append(copied)

    rooms = Rooms({"room01": [busy(), accepted()]})
    async with anyio.create_task_group() as tasks:
        settings = {"lock": LockPolicy(min_delay=0.5)}
        async with running_batch(path, [job()], rooms, settings) as running:
            tasks.start_soon(keep_looking)
            report = await running.wait()
        tasks.cancel_scope.cancel()
    assert statuses(report) == ["accepted"]
    assert "ready" in [states.get("a.pdf") for states in seen]
    assert states_in(path) == {"a.pdf": "accepted"}


async def test_no_secret_is_in_the_file(tmp_path: Path, path: Path) -> None:
    """Key, secret, signatures, a link's query: neither during the batch nor after it."""
    signatures: set[str] = set()
    content = b""

    class Signed(Rooms):
        async def send(self, request: Request, /) -> Reply:
            signatures.add(Exchange(request, 0).headers["hash-signature"])
            return await super().send(request)

    async def look() -> None:
        nonlocal content
        for name in [path, anyio.Path(f"{path}-wal")]:
            content += await anyio.Path(name).read_bytes()

    echo = reply(400, record("INVALID_PARAMETERS", msg="no"))
    rooms = Signed({"room01": [echo, LOST]}, at_end=look)
    link = UploadJob("room01", Document.from_link(LINK))
    await batch(path, [link, job("b.pdf", key="7"), job("c.pdf", "room02")], rooms)
    content += await anyio.Path(path).read_bytes()
    assert b"files.example.com" in content
    assert len(signatures) >= 2
    for secret in (KEY, SECRET, "c0ffee", *signatures):
        assert secret.encode() not in content


# --- a journal that fails ------------------------------------------------------------------------


async def test_a_journal_that_cannot_be_used_is_told_before_anything_is_sent(path: Path) -> None:
    """On entering the block; the client can go on."""
    rooms = Rooms()
    async with client_of(rooms) as client:
        async with client.upload_many([job()], journal=path) as first:
            with pytest.raises(errors.JournalInUse):
                async with client.upload_many([job("b.pdf")], journal=path):
                    pass
            assert statuses(await first.wait()) == ["accepted"]
        with pytest.raises(errors.JournalError):
            async with client.upload_many([job("b.pdf")], journal=path.parent):
                pass
        async with client.upload_many([job("b.pdf")], journal=path) as third:
            assert statuses(await third.wait()) == ["accepted"]
    assert rooms.names == ["a.pdf", "b.pdf"]


def break_journal(running: Any) -> None:
    """Let no more be written to the journal of a running batch, as on a disk that is full."""
    cast("Journal", running._journal)._database._connection.execute("PRAGMA query_only = ON")


async def test_a_journal_that_fails_stops_the_batch_before_the_next_document(path: Path) -> None:
    """What was accepted stays so; no closing boundary leaves without its line in the journal."""
    jobs = [job(f"{n}.pdf", f"room0{n}") for n in range(6)]
    rooms = Rooms()
    outcomes = []
    async with running_batch(path, jobs, rooms, concurrency=1) as running:
        async for outcome in running:
            outcomes.append(outcome)
            if len(outcomes) == 2:
                break_journal(running)
    report = running.report
    assert rooms.names == [outcome.document for outcome in outcomes[: report.accepted]]
    assert 2 <= report.accepted <= 3  # the third may have been on its way
    assert isinstance(report.stopped_by, errors.JournalError)
    assert set(statuses(report)[report.accepted :]) <= {"failed", "skipped"}
    with pytest.raises(errors.BatchFailed):
        report.raise_for_failures()
    rooms = Rooms()
    report = await batch(path, jobs, rooms)
    assert (report.resumed, report.total) == (2, 6)


async def test_a_document_that_was_accepted_when_the_journal_fails(path: Path) -> None:
    """It is reported as accepted, the batch stops, and the next run does not send it again."""
    broken = False

    async def break_it() -> None:
        nonlocal broken
        if not broken:
            broken = True
            await anyio.to_thread.run_sync(break_journal, running)

    jobs = [job("a.pdf"), job("b.pdf")]
    async with running_batch(path, jobs, Rooms(at_end=break_it)) as running:
        report = await running.wait()
    assert statuses(report) == ["accepted", "failed"]  # the room was free, but nothing can be sent
    assert isinstance(report.stopped_by, errors.JournalError)
    rooms = Rooms()
    report = await batch(path, jobs, rooms)
    assert statuses(report) == ["unknown", "accepted"]
    assert rooms.names == ["b.pdf"]


# --- a batch that is left ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "status", "state"),
    [
        (hanging(), "unknown", "unknown"),
        (hanging(take=Take.DOCUMENT), "failed", "failed"),
        (hanging(take=Take.NOTHING), "failed", "failed"),
    ],
)
async def test_what_was_on_its_way_when_the_block_was_left(
    path: Path, act: Act, status: str, state: str
) -> None:
    """The journal says what is known, as the report does."""
    rooms = Rooms({"room01": [act]})
    async with running_batch(path, [job("a.pdf"), job("b.pdf")], rooms) as running:
        with anyio.move_on_after(0.3):
            await running.wait()
    assert statuses(running.report) == [status, "skipped"]
    assert states_in(path) == {"a.pdf": state, "b.pdf": "ready"}
    rooms = Rooms()
    report = await batch(path, [job("a.pdf"), job("b.pdf")], rooms)
    assert statuses(report)[0] == ("unknown" if state == "unknown" else "accepted")


class SlowGate(Turnstile):
    """A gate whose way out takes long, as one over a network may."""

    @asynccontextmanager
    async def turn(self, room: str, on_wait: Any = None) -> AsyncGenerator[None, None]:
        """Let in at once, out late."""
        async with super().turn(room, on_wait):
            yield
            await anyio.sleep(30)


async def test_a_document_that_was_accepted_when_the_block_was_left(path: Path) -> None:
    """What comes after the answer may be cut off; the document is in its room all the same."""
    rooms = Rooms()
    async with running_batch(path, [job()], rooms, {"room_gate": SlowGate()}) as running:
        with anyio.move_on_after(0.3):
            await running.wait()
    assert rooms.names == ["a.pdf"]
    assert statuses(running.report) == ["accepted"]
    assert states_in(path) == {"a.pdf": "accepted"}


async def test_a_batch_that_is_cut_off_at_any_moment(tmp_path: Path) -> None:
    """Whenever it is left: no journal calls a document unsent that a room has."""
    ends: set[tuple[str, bool]] = set()
    for moment in range(0, 120, 4):
        path, rooms = tmp_path / f"{moment}.db", Rooms({"room01": [accepted(replying=0.005)]})
        async with running_batch(path, [job()], rooms) as running:
            for _ in range(moment):
                await anyio.sleep(0.0005 if moment % 3 else 0)
        state = states_in(path).get("a.pdf", "none")
        ends.add((state, bool(rooms.names)))
        assert [outcome.status for outcome in running.report.outcomes] == [
            {"none": "skipped", "ready": "skipped"}.get(state, state)
        ] or not running.report.total
    in_room = {state for state, is_there in ends if is_there}
    assert in_room <= {"accepted", "unknown"}
    assert "accepted" in in_room


# --- sent again, and still in doubt --------------------------------------------------------------


async def in_doubt(path: Path) -> None:
    """Leave a document behind that is on record as unknown."""
    report = await batch(path, [job()], Rooms({"room01": [LOST]}))
    assert statuses(report) == ["unknown"]


@pytest.mark.parametrize("act", [IMAGE, FAILED, CUT, reply(404, record("ROOM_NOT_FOUND"))])
async def test_no_failure_of_a_second_sending_is_certain(path: Path, act: Act) -> None:
    """The first may have arrived: the outcome is unknown, and the next run must be told."""
    await in_doubt(path)
    rooms = Rooms({"room01": [attrs.evolve(act)]})
    report = await batch(path, [job()], rooms, on_unknown="resend")
    assert len(rooms.uploads) == 1
    assert statuses(report) == ["unknown"]
    assert states_in(path) == {"a.pdf": "unknown"}
    rooms = Rooms()
    assert statuses(await batch(path, [job()], rooms)) == ["unknown"]
    assert rooms.requests == 0


@pytest.mark.parametrize("script", [[], [busy(), busy(), busy()], [hanging(take=Take.HEAD)]])
async def test_a_second_sending_that_is_cut_off_leaves_the_doubt(
    path: Path, script: list[Act]
) -> None:
    """Before the room was open, after a 409, in the middle of the document; by a crash, too."""
    await in_doubt(path)
    rooms = Rooms({"room01": list(script)})
    settings = {"lock": LockPolicy(window=WINDOW, min_delay=30)}
    options: Any = {"on_unknown": "resend"}
    async with running_batch(path, [job()], rooms, settings, **options) as running:
        with anyio.move_on_after(WINDOW * 2 if script else WINDOW / 4):
            await running.wait()
        during = await anyio.to_thread.run_sync(snapshot, path, path.with_name("copy.db"))
    assert during["a.pdf"] in {"unknown", "sent"}
    assert (rooms.requests > 1) == bool(script)
    assert states_in(path)["a.pdf"] in {"unknown", "sent"}
    rooms = Rooms()
    assert statuses(await batch(path, [job()], rooms)) == ["unknown"]
    assert rooms.requests == 0
