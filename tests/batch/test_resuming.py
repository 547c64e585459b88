"""Batches that were interrupted and go on: what is skipped, sent again, reported, and on record."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest

from meeting_async import Document, errors
from meeting_async._batch.journal import State
from meeting_async._batch.results import BatchReport, UploadJob
from meeting_async._batch.sqlite_journal import SqliteJournal
from meeting_async.rooms import LocalRoomLocks
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
    record,
    refused,
    reply,
)
from support.journal_files import running_batch
from support.journals import HookedJournal

pytestmark = pytest.mark.anyio

LINK = "https://files.example.com/deck.pdf?token=c0ffee-is-a-secret"


def job(name: str = "a.pdf", room: str = "room01", **how: Any) -> UploadJob:
    """Make a job."""
    document = how.pop("document", b"%PDF-1.7 " + name.encode())
    return UploadJob(room, document, filename=name, **how)


def scripted(script: dict[str, list[Act]], **how: Any) -> FakeRooms:
    """Make rooms whose uploads meet these acts, one after another; then all is well."""
    left = {room: list(acts) for room, acts in script.items()}

    def answer(visit: Visit) -> Act:
        acts = left.get(visit.room)
        return acts.pop(0) if acts else accepted()

    return FakeRooms(answer, **how)


def sent(rooms: FakeRooms) -> list[str]:
    """Return what was sent to its end, in order."""
    return [visit.name or "link" for visit in rooms.uploads if visit.is_complete]


async def batch(
    journal: Any, jobs: Iterable[UploadJob], rooms: FakeRooms | None = None, **how: Any
) -> BatchReport:
    """Run a batch with a journal to its end."""
    async with running_batch(journal, jobs, rooms or FakeRooms(), **how) as running:
        return await running.wait()


def statuses(report: BatchReport) -> list[str]:
    """Return what became of each job."""
    return [outcome.status for outcome in report.outcomes]


def states_in(path: Path) -> dict[str, str]:
    """Return what a journal says of each document."""
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT document, state FROM jobs"))


async def snapshot(path: Path) -> dict[str, str]:
    """Copy a journal as it is on disk at the moment, and return what the copy says.

    To close the file frees the locks of this process on it, but nobody else wants it here.
    """

    def copied() -> dict[str, str]:
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", path.with_name(f"copy.db{end}"))
        return states_in(path.with_name("copy.db"))

    return await anyio.to_thread.run_sync(copied)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Say where the journal is."""
    return tmp_path / "term.db"


# --- what the next run does ----------------------------------------------------------------------


@pytest.mark.both_loops
@pytest.mark.parametrize("kind", ["path", "text", "journal"])
async def test_what_was_accepted_is_skipped(path: Path, kind: str) -> None:
    """No request is made for it; it counts as delivered already."""
    journal = {"path": path, "text": str(path), "journal": SqliteJournal(path)}[kind]
    jobs = [job("a.pdf"), job("b.pdf"), job("c.pdf", "room02")]
    assert statuses(await batch(journal, jobs)) == ["accepted"] * 3
    rooms = FakeRooms()
    report = await batch(journal, jobs, rooms)
    assert statuses(report) == ["skipped"] * 3
    assert (report.already_delivered, rooms.visits) == (3, [])
    assert all(outcome.delivered and outcome.error is None for outcome in report.outcomes)
    report.raise_for_failures()


async def test_only_what_is_new_is_sent(path: Path) -> None:
    """A longer list of jobs goes on where the shorter one ended, whatever their order."""
    await batch(path, [job("b.pdf")])
    rooms = FakeRooms()
    report = await batch(path, [job("a.pdf"), job("b.pdf"), job("c.pdf")], rooms)
    assert statuses(report) == ["accepted", "skipped", "accepted"]
    assert sent(rooms) == ["a.pdf", "c.pdf"]


@pytest.mark.parametrize(
    ("act", "status"),
    [(refused(), "refused"), (conversion_failed(), "failed"), (cut_off(), "failed")],
)
async def test_what_did_not_arrive_is_sent_again(path: Path, act: Act, status: str) -> None:
    """Refused or failed, once or twice."""
    for _ in range(2):
        assert statuses(await batch(path, [job()], scripted({"room01": [act]}))) == [status]
        assert states_in(path) == {"a.pdf": status}
    rooms = FakeRooms()
    assert statuses(await batch(path, [job()], rooms)) == ["accepted"]
    assert sent(rooms) == ["a.pdf"]


async def test_what_was_skipped_is_sent(path: Path) -> None:
    """A batch that was stopped by a wrong key, a room that was not there."""
    wrong = FakeRooms(ask=lambda _: reply(401, record("INVALID_API_KEY")))
    jobs = [job("a.pdf"), job("b.pdf"), job("c.pdf", "room02")]
    assert statuses(await batch(path, jobs, wrong)) == ["refused", "skipped", "skipped"]
    rooms = scripted({"room01": [absent()]})
    assert statuses(await batch(path, jobs, rooms)) == ["refused", "skipped", "accepted"]
    assert statuses(await batch(path, jobs)) == ["accepted", "accepted", "skipped"]


@pytest.mark.both_loops
async def test_what_is_unknown_is_reported_in_every_run(path: Path) -> None:
    """The room's next document is sent as always: it waits if the lost one holds the room."""
    jobs = [job("a.pdf"), job("b.pdf")]
    assert statuses(await batch(path, jobs[:1], scripted({"room01": [lost()]}))) == ["unknown"]
    rooms = scripted({"room01": [busy(), accepted()]})
    report = await batch(path, jobs, rooms)
    assert statuses(report) == ["unknown", "accepted"]
    assert sent(rooms) == ["b.pdf"] * 2
    assert [visit.kind for visit in rooms.visits] == ["question", "upload"] * 2
    assert report.seconds < 10
    error = report.outcomes[0].error
    assert isinstance(error, errors.UploadOutcomeUnknown)
    assert (error.size, error.bytes_sent) == (14, 14)
    assert (error.room_id, error.document) == ("room01", "a.pdf")
    assert "an earlier run sent it and saw no answer" in error.reason
    assert 290 < error.lock_free_in <= 300
    rooms = FakeRooms()
    assert statuses(await batch(path, jobs, rooms)) == ["unknown", "skipped"]
    assert rooms.visits == []


async def test_what_is_unknown_is_sent_again_on_request(path: Path) -> None:
    """In its place in the room's order, once the room has said that it is free."""
    jobs = [job("a.pdf"), job("b.pdf")]
    await batch(path, jobs[:1], scripted({"room01": [lost()]}))
    rooms = FakeRooms()
    report = await batch(path, jobs, rooms, on_unknown="resend")
    assert statuses(report) == ["accepted", "accepted"]
    assert (sent(rooms), len(rooms.of("probe"))) == (["a.pdf", "b.pdf"], 1)
    assert states_in(path) == {"a.pdf": "accepted", "b.pdf": "accepted"}


async def test_a_file_that_changed_is_not_sent_again(tmp_path: Path, path: Path) -> None:
    """Neither the one that a room has nor, on request, the one it may have."""
    names = ["accepted.pdf", "unknown.pdf", "failed.pdf"]
    files = [anyio.Path(tmp_path, name) for name in names]
    jobs = [UploadJob(f"room0{n}", file) for n, file in enumerate(files)]
    for file in files:
        await file.write_bytes(b"%PDF-1.7")
    await batch(path, jobs, scripted({"room01": [lost()], "room02": [cut_off()]}))
    for file in files:
        await file.write_bytes(b"%PDF-1.7 another one")
    rooms = FakeRooms()
    report = await batch(path, jobs, rooms, on_unknown="resend")
    assert statuses(report) == ["failed", "unknown", "accepted"]
    assert sent(rooms) == ["failed.pdf"]
    for error in (report.outcomes[0].error, getattr(report.outcomes[1].error, "__cause__", None)):
        assert isinstance(error, errors.DocumentChanged)
        assert "an earlier run of the batch sent the file as it was then" in str(error)
    assert states_in(path)["accepted.pdf"] == "accepted"
    assert states_in(path)["unknown.pdf"] == "unknown"
    for file in files:
        await file.unlink()  # who deletes what was delivered may run the batch again
    assert statuses(await batch(path, jobs)) == ["skipped", "unknown", "skipped"]


async def test_jobs_that_are_alike_are_as_many_as_there_are(path: Path) -> None:
    """Three times the same document: a run that delivered one leaves two."""
    jobs = [job()] * 3
    rooms = scripted({"room01": [accepted(), refused(), refused()]})
    assert statuses(await batch(path, jobs, rooms)) == ["accepted", "refused", "refused"]
    rooms = FakeRooms()
    assert statuses(await batch(path, jobs, rooms)) == ["skipped", "accepted", "accepted"]
    assert len(sent(rooms)) == 2


async def test_a_key_that_is_used_twice_is_refused_and_harms_nobody(path: Path) -> None:
    """Whichever comes second, and in every run; a key is all that counts."""
    jobs = [job("a.pdf", key="1"), job("b.pdf", key="1"), job("c.pdf", key="2")]
    assert statuses(await batch(path, jobs)) == ["accepted", "refused", "accepted"]
    rooms = FakeRooms()
    assert statuses(await batch(path, jobs, rooms)) == ["skipped", "refused", "skipped"]
    assert rooms.visits == []
    assert statuses(await batch(path, [job("other.pdf", "room09", key="2")])) == ["skipped"]
    wrong: Any = 7
    jobs = [job("d.pdf", key=wrong), job("e.pdf"), job("f.pdf", key="")]
    assert statuses(await batch(path, jobs)) == ["refused", "accepted", "refused"]


# --- what is on disk when ------------------------------------------------------------------------


@pytest.mark.parametrize("document", [b"%PDF-1.7", Document.from_link(LINK)], ids=["file", "link"])
async def test_it_is_on_disk_before_the_closing_boundary_leaves(path: Path, document: Any) -> None:
    """A copy of the file at that moment says so; before that it is not called sent."""
    seen: list[list[str]] = []

    async def look(_visit: Visit) -> None:
        seen.append(list((await snapshot(path)).values()))

    class Looking(FakeRooms):
        async def send(self, request: Any, /) -> Any:
            if not isinstance(request.body, bytes):
                seen.append(list((await snapshot(path)).values()))
            return await super().send(request)

    name = None if isinstance(document, Document) else "a.pdf"
    jobs = [UploadJob("room01", document, filename=name)]
    assert statuses(await batch(path, jobs, Looking(at_end=look))) == ["accepted"]
    assert seen == [["ready"], ["sent"]]


async def test_after_a_409_it_is_no_longer_called_sent(path: Path) -> None:
    """While the upload waits for its room, a crash leaves nothing in doubt."""
    rooms = scripted({"room01": [busy(), accepted()]})
    async with running_batch(path, [job()], rooms) as running:
        seen: list[str] = []
        while not running.report.total:
            await anyio.sleep(0.01)
            with contextlib.suppress(FileNotFoundError):
                seen += (await snapshot(path)).values()
    assert statuses(running.report) == ["accepted"]
    assert "ready" in seen
    assert states_in(path) == {"a.pdf": "accepted"}


async def test_no_secret_is_in_the_file(path: Path) -> None:
    """Key, secret, signatures, a link's query: neither during the batch nor after it."""
    signatures: set[str] = set()
    content = b""

    async def look(visit: Visit) -> None:
        nonlocal content
        headers = {name.lower(): value for name, value in visit.request.headers}
        signatures.add(bytes(headers[b"hash-signature"]).decode())
        for name in (path, f"{path}-wal"):
            content += await anyio.Path(name).read_bytes()

    rooms = scripted({"room01": [refused(), lost()]}, at_end=look)
    link = UploadJob("room01", Document.from_link(LINK))
    await batch(path, [link, job("b.pdf", key="7"), job("c.pdf", "room02")], rooms)
    content += await anyio.Path(path).read_bytes()
    assert b"files.example.com" in content
    assert len(signatures) >= 2
    for secret in ("key-0f-the-app", "secret-0f-the-app", "c0ffee", *signatures):
        assert secret.encode() not in content


# --- a journal that fails ------------------------------------------------------------------------


@pytest.mark.both_loops
async def test_a_journal_that_cannot_be_used_is_told_before_anything_is_sent(path: Path) -> None:
    """On entering the block; the client can go on."""
    rooms = FakeRooms()
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
    assert sent(rooms) == ["a.pdf", "b.pdf"]


@attrs.define(eq=False)
class Breaking:
    """Lets a journal fail from some moment on, as on a disk that is full."""

    is_broken: bool = False

    async def __call__(self) -> None:
        if self.is_broken:
            raise errors.JournalError("term.db", "cannot be written: disk is full")

    def journal(self, path: Path, *verbs: str) -> HookedJournal:
        """Make a journal where these methods fail then."""
        return HookedJournal(SqliteJournal(path), before=dict.fromkeys(verbs, self))


async def test_a_journal_that_fails_stops_the_batch_before_the_next_document(path: Path) -> None:
    """What was accepted stays so; no closing boundary leaves without its line in the journal."""
    jobs = [job(f"{n}.pdf", f"room0{n}") for n in range(6)]
    rooms, breaking = FakeRooms(), Breaking()
    journal, outcomes = breaking.journal(path, "mark_sending", "record"), []
    async with running_batch(journal, jobs, rooms, concurrency=1) as running:
        async for outcome in running:
            outcomes.append(outcome)
            breaking.is_broken = len(outcomes) >= 2
    report = running.report
    assert sent(rooms) == [outcome.document for outcome in outcomes[: report.accepted]]
    assert 2 <= report.accepted <= 3  # the third may have been on its way
    assert isinstance(report.stopped_by, errors.JournalError)
    assert set(statuses(report)[report.accepted :]) <= {"failed", "skipped"}
    with pytest.raises(errors.BatchFailed):
        report.raise_for_failures()
    report = await batch(path, jobs)
    assert (report.already_delivered + report.unknown, report.total) == (sent(rooms).__len__(), 6)


async def test_a_document_that_was_accepted_when_the_journal_fails(path: Path) -> None:
    """It is reported as accepted, the batch stops, and the next run does not send it again."""
    breaking = Breaking()
    journal = breaking.journal(path, "mark_sending", "record")

    async def break_it(_visit: Visit) -> None:
        breaking.is_broken = True

    jobs = [job("a.pdf"), job("b.pdf")]
    report = await batch(journal, jobs, FakeRooms(at_end=break_it))
    assert statuses(report)[0] == "accepted"
    assert statuses(report)[1] in {"failed", "skipped"}
    assert isinstance(report.stopped_by, errors.JournalError)
    rooms = FakeRooms()
    assert statuses(await batch(path, jobs, rooms)) == ["unknown", "accepted"]
    assert sent(rooms) == ["b.pdf"]


@pytest.mark.both_loops
async def test_an_outcome_that_cannot_be_recorded_stops_the_batch(path: Path) -> None:
    """Though its document is in its room, and could have been followed by others."""
    breaking = Breaking()
    journal = breaking.journal(path, "record")
    jobs = [job(f"{n}.pdf", f"room{n % 3}") for n in range(30)]
    async with running_batch(journal, jobs, FakeRooms(seconds=0.01), concurrency=3) as running:
        async for _ in running:
            breaking.is_broken = True
    assert isinstance(running.report.stopped_by, errors.JournalError)
    assert running.report.accepted < 10
    assert running.report.accepted + running.report.skipped == 30


async def test_after_a_stop_nothing_is_written_for_the_rest(path: Path) -> None:
    """A list of two thousand jobs is accounted for without two thousand entries."""
    journal = HookedJournal(SqliteJournal(path))
    jobs = [job(f"{n}.pdf", f"room{n % 3}") for n in range(2_000)]
    async with running_batch(journal, jobs, FakeRooms(seconds=0.01), window=10) as running:
        async for _ in running:
            running.stop()
    assert running.report.total == 2_000
    assert journal.calls.count("register") < 100
    assert len(states_in(path)) < 100


# --- a batch that is left ------------------------------------------------------------------------


@pytest.mark.both_loops
@pytest.mark.parametrize(
    ("act", "status", "state"),
    [
        (hanging(), "unknown", "unknown"),
        (hanging(take=100), "failed", "failed"),
        (hanging(take=0), "failed", "failed"),
    ],
)
async def test_what_was_on_its_way_when_the_block_was_left(
    path: Path, act: Act, status: str, state: str
) -> None:
    """The journal says what is known, as the report does."""
    jobs = [job("a.pdf", document=b"%PDF-1.7" + bytes(100_000)), job("b.pdf")]
    rooms = scripted({"room01": [act]})
    with anyio.fail_after(20), anyio.CancelScope() as scope:
        async with running_batch(path, jobs, rooms) as running:
            while not rooms.uploads or rooms.uploads[0].is_complete != (state == "unknown"):  # noqa: ASYNC110 - sent by another task
                await anyio.sleep(0.01)
            await anyio.sleep(0.1)
            scope.cancel()
            await running.wait()
    assert statuses(running.report) == [status, "skipped"]
    assert states_in(path) == {"a.pdf": state, "b.pdf": "ready"}
    report = await batch(path, jobs)
    assert statuses(report)[0] == ("unknown" if state == "unknown" else "accepted")


@pytest.mark.both_loops
async def test_an_outcome_is_recorded_whatever_is_cancelled(path: Path) -> None:
    """By a journal that takes its time, too."""

    async def slow() -> None:
        await anyio.sleep(0.2)

    rooms = FakeRooms()
    journal = HookedJournal(SqliteJournal(path), before={"record": slow})
    with anyio.CancelScope() as scope:
        async with running_batch(journal, [job()], rooms):
            while not any(visit.is_accepted for visit in rooms.uploads):  # noqa: ASYNC110
                await anyio.sleep(0.001)
            await anyio.sleep(0.05)
            scope.cancel()
    assert states_in(path) == {"a.pdf": "accepted"}


class SlowLocks(LocalRoomLocks):
    """Locks that take long to release, as they may over a network."""

    @asynccontextmanager
    async def acquire(self, room: str, *, timeout: float | None) -> AsyncGenerator[None, None]:
        """Let in at once, out late."""
        async with super().acquire(room, timeout=timeout):
            yield
            await anyio.sleep(30)


async def test_a_document_that_was_accepted_when_the_block_was_left(path: Path) -> None:
    """What comes after the answer may be cut off; the document is in its room all the same."""
    rooms = FakeRooms()
    with anyio.fail_after(20), anyio.CancelScope() as scope:
        async with running_batch(path, [job()], rooms, {"room_locks": SlowLocks()}) as running:
            while not any(visit.is_accepted for visit in rooms.uploads):  # noqa: ASYNC110
                await anyio.sleep(0.01)
            await anyio.sleep(0.05)
            scope.cancel()
            await running.wait()
    assert sent(rooms) == ["a.pdf"]
    assert statuses(running.report) == ["accepted"]
    assert states_in(path) == {"a.pdf": "accepted"}


@pytest.mark.both_loops
async def test_a_batch_that_is_cut_off_at_any_moment(tmp_path: Path) -> None:
    """Whenever it is left: no journal calls a document unsent that a room has."""
    ends: set[tuple[str, bool]] = set()
    for moment in range(0, 120, 8):
        path = tmp_path / f"{moment}.db"
        rooms = scripted({"room01": [accepted(replying=0.005)]})
        with contextlib.suppress(KeyError):
            async with running_batch(path, [job()], rooms) as running:
                for _ in range(moment):
                    await anyio.sleep(0.0005 if moment % 3 else 0)
                raise KeyError
        state = states_in(path).get("a.pdf", "none")
        ends.add((state, bool(sent(rooms))))
        assert [outcome.status for outcome in running.report.outcomes] == [
            {"none": "skipped", "ready": "skipped"}.get(state, state)
        ] or not running.report.total
    in_room = {state for state, is_there in ends if is_there}
    assert in_room <= {"accepted", "unknown"}
    assert "accepted" in in_room


# --- sent again, and still in doubt --------------------------------------------------------------


async def in_doubt(path: Path) -> None:
    """Leave a document behind that is on record as unknown."""
    assert statuses(await batch(path, [job()], scripted({"room01": [lost()]}))) == ["unknown"]


DOUBTS = [refused(), conversion_failed(), cut_off(), absent(), reply(404, record("ROOM_NOT_FOUND"))]


@pytest.mark.parametrize("act", DOUBTS)
async def test_no_failure_of_a_second_sending_is_certain(path: Path, act: Act) -> None:
    """The first may have arrived: the outcome is unknown, and the next run must be told."""
    await in_doubt(path)
    rooms = scripted({"room01": [act]})
    report = await batch(path, [job()], rooms, on_unknown="resend")
    assert len(rooms.uploads) == 1
    assert statuses(report) == ["unknown"]
    assert ", and now: " in str(report.outcomes[0].error)
    assert states_in(path) == {"a.pdf": "unknown"}
    rooms = FakeRooms()
    assert statuses(await batch(path, [job()], rooms)) == ["unknown"]
    assert rooms.visits == []


@pytest.mark.parametrize("script", [[busy(), busy(), busy()], [hanging(take=1)], "probe"])
async def test_a_second_sending_that_is_cut_off_leaves_the_doubt(path: Path, script: Any) -> None:
    """Before the room was free, after a 409, in the middle of the document; by a crash, too."""
    await in_doubt(path)
    if script == "probe":
        rooms = FakeRooms(ask=lambda v: busy() if v.kind == "probe" else accepted())
    else:
        rooms = scripted({"room01": script})
    with contextlib.suppress(KeyError):
        async with running_batch(path, [job()], rooms, on_unknown="resend") as running:
            await anyio.sleep(0.3)
            during = await snapshot(path)
            raise KeyError
    assert during["a.pdf"] in {"unknown", "sent"}
    assert statuses(running.report) == ["unknown"]
    assert states_in(path)["a.pdf"] in {"unknown", "sent"}
    rooms = FakeRooms()
    assert statuses(await batch(path, [job()], rooms)) == ["unknown"]
    assert rooms.visits == []


@pytest.mark.parametrize("state", ["ready", "refused", "failed"])
async def test_a_file_counts_as_it_was_when_it_was_last_sent(
    tmp_path: Path, path: Path, state: State
) -> None:
    """Not as it was when it was sent in vain, and touched only when a new one is there."""
    deck = anyio.Path(tmp_path, "deck.pdf")
    acts = {"ready": busy(), "refused": refused(), "failed": conversion_failed()}
    await deck.write_bytes(b"%PDF-1.7")
    jobs = [UploadJob("room01", deck)]
    await batch(path, jobs, scripted({"room01": [acts[state]]}), max_wait=0)
    await deck.write_bytes(b"%PDF-1.77")
    assert statuses(await batch(path, jobs)) == ["accepted"]
    assert statuses(await batch(path, jobs)) == ["skipped"]
    await deck.write_bytes(b"%PDF-1.777")
    assert statuses(await batch(path, jobs)) == ["failed"]
