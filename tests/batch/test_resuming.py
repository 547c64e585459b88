"""Batches that were interrupted and go on: what is skipped, sent again, reported, and on record."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from meeting_async import (
    BatchReport,
    Document,
    MeetingClient,
    UploadJob,
    errors,
)
from meeting_async.journals import JournalJob, SqliteJournal
from support.batches import statuses
from support.documents import PDF
from support.fake_rooms import (
    Act,
    FakeRooms,
    Visit,
    absent,
    accepted,
    busy,
    conversion_failed,
    cut_off,
    hanging,
    lost,
    record,
    refused,
    reply,
)
from support.journals import HookedJournal, running_batch, states_in
from support.sending import until
from support.tables import in_turn

pytestmark = pytest.mark.anyio

LINK = "https://files.example.com/deck.pdf?token=c0ffee-is-a-secret"


def job(name: str = "a.pdf", room: str = "room01", **how: Any) -> UploadJob:
    """Make a job."""
    document = how.pop("document", b"%PDF-1.7 " + name.encode())
    return UploadJob(room, document, filename=name, **how)


def scripted(script: dict[str, list[Act]]) -> FakeRooms:
    """Make rooms whose uploads meet these acts, one after another; then all is well."""
    left = {room: list(acts) for room, acts in script.items()}

    def answer(visit: Visit) -> Act:
        acts = left.get(visit.room)
        return acts.pop(0) if acts else accepted()

    return FakeRooms(answer)


def sent(rooms: FakeRooms) -> list[str]:
    """Return what was sent to its end, in order."""
    return [visit.name or "link" for visit in rooms.uploads if visit.is_complete]


async def batch(
    journal: Any, jobs: Iterable[UploadJob], rooms: FakeRooms | None = None, **how: Any
) -> BatchReport:
    """Run a batch with a journal to its end."""
    async with running_batch(journal, jobs, rooms or FakeRooms(), **how) as running:
        return await running.wait()


async def snapshot(path: Path) -> dict[str, str]:
    """Return what a copy of the journal says, as it is on disk at the moment.

    To close the file frees the locks of this process on it, but nobody else wants it here.
    """
    return await anyio.to_thread.run_sync(states_in, path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Say where the journal is."""
    return tmp_path / "term.db"


# --- what the next run does ----------------------------------------------------------------------


@pytest.mark.both_loops
async def test_what_was_accepted_is_skipped(path: Path) -> None:
    """No request is made for it; it counts as delivered already."""
    jobs = [job("a.pdf"), job("b.pdf"), job("c.pdf", "room02")]
    assert statuses(await batch(str(path), jobs)) == ["accepted"] * 3
    rooms = FakeRooms()
    report = await batch(SqliteJournal(path), jobs, rooms)
    assert statuses(report) == ["skipped"] * 3
    assert (report.already_delivered, rooms.visits) == (3, [])
    assert all(outcome.delivered and outcome.error is None for outcome in report.outcomes)
    report.raise_for_failures()


@pytest.mark.both_loops
async def test_what_is_unknown_is_reported_in_every_run(path: Path) -> None:
    """The room's next document is sent as always: it waits if the lost one holds the room."""
    jobs = [job("a.pdf"), job("b.pdf")]
    assert statuses(await batch(path, jobs[:1], scripted({"room01": [lost()]}))) == ["unknown"]
    rooms = scripted({"room01": [busy(), accepted()]})
    report = await batch(path, jobs, rooms)
    assert statuses(report) == ["unknown", "accepted"]
    assert sent(rooms) == ["b.pdf"] * 2
    assert [v.kind for v in rooms.visits] == ["question", "upload", "question", "probe", "upload"]
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


async def test_a_file_that_changed_is_not_sent_again(tmp_path: Path, path: Path) -> None:
    """Neither the one that a room has nor, on request, the one it may have.

    It counts as it was when it was last sent, and not as it was when it was sent in vain.
    """
    names = ["accepted.pdf", "unknown.pdf", "failed.pdf"]
    files = [anyio.Path(tmp_path, name) for name in names]
    jobs = [UploadJob(f"room0{n}", file) for n, file in enumerate(files)]
    for file in files:
        await file.write_bytes(b"%PDF-1.7")
    await batch(path, jobs, scripted({"room01": [lost()], "room02": [conversion_failed()]}))
    for file in files:
        await file.write_bytes(b"%PDF-1.7 another one")
    rooms = FakeRooms()
    report = await batch(path, jobs, rooms, delivery="at_least_once")
    assert statuses(report) == ["failed", "unknown", "accepted"]
    assert sent(rooms) == ["failed.pdf"]
    for error in (report.outcomes[0].error, getattr(report.outcomes[1].error, "__cause__", None)):
        assert isinstance(error, errors.DocumentChanged)
        assert "an earlier run of the batch sent the file as it was then" in str(error)
    assert states_in(path)["accepted.pdf"] == "accepted"
    assert states_in(path)["unknown.pdf"] == "unknown"
    assert statuses(await batch(path, jobs)) == ["failed", "unknown", "skipped"]
    await files[2].write_bytes(b"%PDF-1.7 a third one")
    assert statuses(await batch(path, jobs)) == ["failed", "unknown", "failed"]
    for file in files:
        await file.unlink()  # who deletes what was delivered may run the batch again
    assert statuses(await batch(path, jobs)) == ["skipped", "unknown", "skipped"]


async def test_a_key_that_is_used_twice_is_refused_and_harms_nobody(path: Path) -> None:
    """Whichever comes second in its room, and in every run; key and room are all that counts."""
    jobs = [job("a.pdf", key="1"), job("b.pdf", key="1"), job("c.pdf", key="2")]
    assert statuses(await batch(path, jobs)) == ["accepted", "refused", "accepted"]
    rooms = FakeRooms()
    assert statuses(await batch(path, jobs, rooms)) == ["skipped", "refused", "skipped"]
    assert rooms.visits == []
    assert statuses(await batch(path, [job("other.pdf", key="2")])) == ["skipped"]
    assert statuses(await batch(path, [job("c.pdf", "room09", key="2")])) == ["accepted"]
    wrong: Any = 7
    jobs = [job("d.pdf", key=wrong), job("e.pdf"), job("f.pdf", key="")]
    assert statuses(await batch(path, jobs)) == ["refused", "accepted", "refused"]


async def test_the_journal_of_an_earlier_edition_is_read(path: Path) -> None:
    """What it knows counts: nothing that was accepted, or may have been, is sent again.

    It was made by the first edition of this format: two documents accepted, one unknown.
    """
    shutil.copy(Path(__file__).parent / "fixtures/format-3.db", path)
    jobs = [
        UploadJob(room, b"%PDF-1.7 " + name.encode(), filename=f"{name}.pdf", key=key)
        for room, name, key in (
            ("room01", "one", "first"),
            ("room02", "two", "second"),
            ("room03", "three", "third"),
            ("room03", "four", "fourth"),
        )
    ]
    rooms, keys = FakeRooms(), dict[str, Any](api_key="devkey", api_secret="devsecret")
    async with MeetingClient("http://localhost", **keys, transport=rooms) as client:
        async with client.upload_many(jobs, journal=path) as running:
            report = await running.wait()
    assert statuses(report) == ["skipped", "skipped", "unknown", "accepted"]
    assert (report.already_delivered, sent(rooms)) == (2, ["four.pdf"])


NFC, NFD = "docs/\u00fcben.pdf", "docs/u\u0308ben.pdf"
SPELLINGS = {
    "a dot": ("./docs/a.pdf", "docs/a.pdf"),
    "dots": ("docs/a.pdf", "./docs/./a.pdf"),
    "slashes": ("docs//a.pdf", "docs/a.pdf"),
    "taken apart": (NFD, NFC),
    "put together": (NFC, NFD),
}


@in_turn("spelling", list(SPELLINGS.items()))
async def test_a_path_is_known_however_it_is_written(
    path: Path, spelling: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same document in the next run, and two of them are matched in their order."""
    _make_documents(path, monkeypatch)
    before, now = spelling
    assert statuses(await batch(path, [UploadJob("room01", before)])) == ["accepted"]
    jobs = [UploadJob("room01", now), UploadJob("room01", before)]
    assert statuses(await batch(path, jobs)) == ["skipped", "accepted"]
    assert statuses(await batch(path, jobs)) == ["skipped", "skipped"]


def _make_documents(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make documents, one under two names, as the file systems of Macs do."""
    monkeypatch.chdir(path.parent)
    Path("docs").mkdir()
    for name in ("docs/a.pdf", NFC):
        Path(name).write_bytes(PDF)
    if not Path(NFD).exists():
        Path(NFD).hardlink_to(NFC)


STORED = {
    "as written": ("./docs/a.pdf", "./docs/a.pdf"),
    "on Windows": (r"docs\a.pdf", "docs/a.pdf"),
    "as written on Windows": (r".\docs\a.pdf", "./docs/a.pdf"),
    "on a Mac": (NFD, NFC),
    "not on a Mac": (NFC, NFD),
}


@pytest.mark.parametrize("by_command", [False, True])
@in_turn("stored", list(STORED.items()))
async def test_what_the_last_version_has_stored_is_known(
    path: Path, stored: tuple[str, str], monkeypatch: pytest.MonkeyPatch, *, by_command: bool
) -> None:
    """Its journals have paths as they were written, and those of the command line have keys."""
    _make_documents(path, monkeypatch)
    before, now = stored
    name = unicodedata.normalize("NFC", now.rpartition("/")[2])
    key = {"room": "room01", "key": json.dumps(["room01", before, name])}
    identity = json.dumps(key if by_command else ["room01", name, "path", before])
    old = JournalJob(identity=identity, room_id="room01", document=name, is_unique=by_command)
    journal = SqliteJournal(path)
    async with journal.opened("https://meet.test/auth"):
        entry = await journal.register(old)
        await journal.mark_sending(entry, len(PDF), None)
        await journal.record(entry, "accepted", None)
    jobs = [UploadJob("room01", now)]
    for _ in range(2):
        assert statuses(await batch(path, jobs)) == ["skipped"]
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT identity, ordinal FROM jobs").fetchall()
    once = unicodedata.normalize("NFC", now.removeprefix("./"))
    assert found == [(json.dumps(["room01", name, "path", once]), 0)]


class Held(FakeRooms):
    """Rooms that do not answer before they are released."""

    def __init__(self, act: Act | None) -> None:
        super().__init__(ask=lambda _: act or hanging())
        self.asked, self.released = anyio.Event(), anyio.Event()

    async def send(self, request: Any, /) -> Any:
        """Wait, and answer."""
        self.asked.set()
        await self.released.wait()
        return await super().send(request)


UNBEGUN: dict[str, tuple[Act | None, int]] = {
    "no room": (reply(404, record("ROOM_NOT_FOUND")), 10),
    "wrong key": (reply(401, record("INVALID_API_KEY")), 10),
    "wrong key, a long list": (reply(401, record("INVALID_API_KEY")), 2),
    "stopped": (None, 10),
    "stopped, a long list": (None, 2),
    "cancelled": (None, 10),
}
"""Why jobs do not begin: an answer to the first one, or ``None``; and the window."""


@in_turn("how", UNBEGUN)
async def test_jobs_that_do_not_begin_keep_what_earlier_runs_recorded(
    tmp_path: Path, path: Path, how: str
) -> None:
    """What an earlier run has left of them counts: only the rest is not in the room."""
    names = ["failed.pdf", "accepted.pdf", "changed.pdf", "lost.pdf", "new.pdf"]
    files = [anyio.Path(tmp_path, name) for name in names]
    jobs, all_read = [UploadJob("room01", file) for file in files], anyio.Event()
    for file in files:
        await file.write_bytes(b"%PDF-1.7")
    acts = [conversion_failed(), accepted(), accepted(), lost()]
    await batch(path, jobs[:4], scripted({"room01": acts}))
    await files[2].write_bytes(b"%PDF-1.7 another one")

    def generated() -> Iterator[UploadJob]:
        yield from jobs
        all_read.set()

    act, window = UNBEGUN[how]
    rooms, is_list = Held(act), window < len(jobs)
    given = jobs if is_list else generated()
    with anyio.CancelScope() as scope:
        async with running_batch(path, given, rooms, window=window) as running:
            await rooms.asked.wait()
            if not is_list:
                await all_read.wait()
            if act is not None:
                rooms.released.set()
            elif how == "cancelled":
                scope.cancel()
            else:
                running.stop()
            await running.wait()
    first, *others = running.report.outcomes
    assert [outcome.status for outcome in others] == ["skipped", "skipped", "unknown", "skipped"]
    assert [outcome.delivered for outcome in others] == [True, True, False, False]
    assert "an earlier run sent it and saw no answer" in str(others[2].error)
    assert isinstance(others[3].error, errors.BatchStopped if act is None else type(first.error))
    assert (running.report.skipped, running.report.already_delivered) == (1 + (act is None), 2)
    states = ["failed" if act is None else "refused", "accepted", "accepted", "unknown", "ready"]
    assert states_in(path) == dict(zip(names, states, strict=True))


@in_turn("act", [("accepted", accepted()), ("lost", lost())])
async def test_a_job_that_is_stopped_before_the_journal_answers(path: Path, act: Act) -> None:
    """The answer is waited for, and counts."""
    (before,) = statuses(await batch(path, [job()], scripted({"room01": [act]})))
    asked, released = anyio.Event(), anyio.Event()

    async def wait() -> None:
        asked.set()
        await released.wait()

    journal = HookedJournal(SqliteJournal(path), before={"register": wait})
    rooms = FakeRooms()
    async with running_batch(journal, [job()], rooms) as running:
        await asked.wait()
        running.stop()
        released.set()
    assert statuses(running.report) == ["skipped" if before == "accepted" else "unknown"]
    assert (running.report.already_delivered, rooms.visits) == (int(before == "accepted"), [])


# --- what is on disk when ------------------------------------------------------------------------


@pytest.mark.parametrize("document", [b"%PDF-1.7", Document.from_link(LINK)], ids=["file", "link"])
async def test_the_mark_is_on_disk_before_the_closing_boundary_leaves(
    path: Path, document: Any
) -> None:
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


async def test_after_a_409_the_document_is_no_longer_marked_sent(path: Path) -> None:
    """While the upload waits for its room, a crash leaves nothing in doubt."""
    seen: list[str] = []

    async def look() -> None:
        seen.extend((await snapshot(path)).values())

    journal = HookedJournal(SqliteJournal(path), before={"mark_sending": look})
    rooms = scripted({"room01": [busy(), accepted()]})
    assert statuses(await batch(journal, [job()], rooms)) == ["accepted"]
    assert seen == ["ready", "ready"]


# --- a batch that is left ------------------------------------------------------------------------


@in_turn(
    "left",
    [
        ("complete", (hanging(), "unknown")),
        ("half", (hanging(take=100), "failed")),
        ("nothing of it", (hanging(take=0), "failed")),
    ],
)
async def test_an_upload_under_way_when_the_block_is_left_is_recorded(
    path: Path, left: tuple[Act, str]
) -> None:
    """The journal says what is known, as the report does."""
    act, state = left
    jobs = [job("a.pdf", document=b"%PDF-1.7" + bytes(100_000)), job("b.pdf")]
    rooms = scripted({"room01": [act]})
    with anyio.fail_after(20), anyio.CancelScope() as scope:
        async with running_batch(path, jobs, rooms) as running:
            await until(lambda: rooms.uploads)
            await until(lambda: rooms.uploads[0].is_complete == (state == "unknown"))
            await anyio.sleep(0.1)
            scope.cancel()
            await running.wait()
    assert statuses(running.report) == [state, "skipped"]
    assert states_in(path) == {"a.pdf": state, "b.pdf": "ready"}
    report = await batch(path, jobs)
    assert statuses(report)[0] == ("unknown" if state == "unknown" else "accepted")


# --- sent again, and still in doubt --------------------------------------------------------------


async def in_doubt(path: Path) -> None:
    """Leave a document behind that is on record as unknown."""
    assert statuses(await batch(path, [job()], scripted({"room01": [lost()]}))) == ["unknown"]


DOUBTS = [refused(), conversion_failed(), cut_off(), absent(), reply(404, record("ROOM_NOT_FOUND"))]


@pytest.mark.parametrize("act", DOUBTS)
async def test_a_resend_that_fails_leaves_the_outcome_unknown(path: Path, act: Act) -> None:
    """The first may have arrived: the outcome is unknown, and the next run must be told."""
    await in_doubt(path)
    rooms = scripted({"room01": [act]})
    report = await batch(path, [job()], rooms, delivery="at_least_once")
    assert len(rooms.uploads) == 1
    assert statuses(report) == ["unknown"]
    assert ", and now: " in str(report.outcomes[0].error)
    assert states_in(path) == {"a.pdf": "unknown"}
    rooms = FakeRooms()
    assert statuses(await batch(path, [job()], rooms)) == ["unknown"]
    assert rooms.visits == []


@pytest.mark.parametrize("script", [[busy(), busy(), busy()], [hanging(take=1)], "probe"])
async def test_a_resend_that_is_cut_off_leaves_the_outcome_unknown(path: Path, script: Any) -> None:
    """Before the room was free, after a 409, in the middle of the document; by a crash, too."""
    await in_doubt(path)
    if script == "probe":
        rooms = FakeRooms(ask=lambda v: busy() if v.kind == "probe" else accepted())
    else:
        rooms = scripted({"room01": script})
    with contextlib.suppress(KeyError):
        async with running_batch(path, [job()], rooms, delivery="at_least_once") as running:
            await anyio.sleep(0.3)
            during = await snapshot(path)
            raise KeyError
    assert during["a.pdf"] in {"unknown", "sent"}
    assert statuses(running.report) == ["unknown"]
    assert states_in(path)["a.pdf"] in {"unknown", "sent"}
    rooms = FakeRooms()
    assert statuses(await batch(path, [job()], rooms)) == ["unknown"]
    assert rooms.visits == []
