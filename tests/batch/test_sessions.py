"""A journal and the sessions of its rooms: what is due again, what was lost between two runs."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from meeting_async import (
    AttemptStarted,
    BatchReport,
    Event,
    Finished,
    MeetingClient,
    RetryPolicy,
    UploadJob,
    WaitingForRoom,
)
from meeting_async.errors import (
    AuthenticationFailed,
    ConnectionLost,
    RoomNotActive,
    RoomNotFound,
    UnexpectedReply,
    UploadOutcomeUnknown,
)
from meeting_async.evidence import Answer, Finding, Send, Sought, StoredFiles
from meeting_async.testing import MeetingServer
from meeting_async.transports import HttpTransport, Reply, Request
from support.batches import statuses
from support.documents import PDF
from support.proxies import Nginx, needs_nginx

pytestmark = pytest.mark.anyio

JOBS = [UploadJob("room01", b"%PDF-1.7 " + name.encode(), filename=name) for name in "ab"]
CHECK = "/room/getActiveRoomInfo"
ABSENT = RoomNotActive, RoomNotFound


@pytest.fixture
def server() -> Iterator[MeetingServer]:
    """Provide a server with a room."""
    server = MeetingServer()
    server.add_room("room01")
    with server.run():
        yield server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Say where the journal is."""
    return tmp_path / "term.db"


def job(name: str, room: str = "room01", **how: Any) -> UploadJob:
    """Make a job."""
    return UploadJob(room, PDF, filename=name, **how)


async def run(
    server: MeetingServer,
    path: Path,
    jobs: list[UploadJob] = JOBS,
    once_per: Any = "session",
    outage: float = 60.0,
    url: str = "",
    **how: Any,
) -> BatchReport:
    """Run the jobs once, with a proxy in front that keeps a form for less than 2 s."""
    async with client_of(server, outage=outage, url=url, **how) as client:
        return await run_with(client, path, jobs, once_per)


def client_of(
    server: MeetingServer, *, outage: float = 60.0, url: str = "", **how: Any
) -> MeetingClient:
    """Make a client."""
    keys: dict[str, Any] = {"api_key": server.api_key, "api_secret": server.api_secret}
    delays: dict[str, Any] = {"initial_delay": 0.25, "max_delay": 0.25}
    retry = RetryPolicy(settle_after=2.0, max_outage=outage, **delays)
    return MeetingClient(url or server.url, retry=retry, **keys, **how)


async def run_with(
    client: MeetingClient, path: Path, jobs: list[UploadJob], once_per: Any = "session"
) -> BatchReport:
    """Run the jobs once with this client."""
    each: dict[str, Any] = {"journal": str(path), "concurrency": 2, "once_per": once_per}
    async with client.upload_many(jobs, **each) as batch:
        return await batch.wait()


def renew(server: MeetingServer) -> None:
    """End the session in the room, and begin the next one."""
    server.rooms["room01"].end()
    server.add_room("room01")


def listed(server: MeetingServer, room: str = "room01") -> list[str]:
    """Return what a room shows, in this session."""
    return [file.name for file in server.rooms[room].received]


def changed(path: Path, statement: str) -> None:
    """Change a journal by hand."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


LEFT_LONG_AGO = (
    "UPDATE jobs SET state = 'sent', sent_at = sent_at - 1000, since = since - 1000"
    " WHERE document = 'b.pdf'"
)


ACCEPTED_BEFORE = "UPDATE jobs SET changed_at = changed_at - 10 WHERE state = 'accepted'"
"""Clocks that count whole seconds can tell it from the beginning of the next session."""


@pytest.mark.parametrize("once_per", ["session", "room"])
@pytest.mark.parametrize("left", ["accepted", "sent"])
async def test_a_document_is_due_again_in_a_new_session(
    server: MeetingServer, path: Path, once_per: str, left: str
) -> None:
    """One check per room tells; where no session runs it counts as delivered before."""
    server.add_room("room02")
    jobs = [job("a.pdf"), job("b.pdf"), job("c.pdf", "room02")]
    first = await run(server, path, jobs)
    old = {outcome.room_id: outcome.session for outcome in first.outcomes}
    assert old == {name: room.sid for name, room in server.rooms.items()}
    changed(path, ACCEPTED_BEFORE)
    if left == "sent":
        changed(path, LEFT_LONG_AGO)
    server.rooms["room02"].end()
    renew(server)
    asked = len(server.requests)
    again = await run(server, path, jobs, once_per)
    new, known = server.rooms["room01"].sid, "unknown" if left == "sent" else "skipped"
    if once_per == "room":
        assert statuses(again) == ["skipped", known, "skipped"]
        assert len(server.requests) == asked
        return
    assert statuses(again) == ["accepted", "accepted", "skipped"]
    assert [one.session for one in again.outcomes] == [new, new, old["room02"]]
    assert listed(server) == ["a.pdf", "b.pdf"]
    asked = len(server.requests)
    assert statuses(await run(server, path, jobs)) == ["skipped"] * 3
    assert len(server.requests) == asked + 2  # one check for each room


class EndsMeanwhile:
    """Evidence of a storage that lags, in a session that ends right before a question."""

    def __init__(self, server: MeetingServer, at: int) -> None:
        self.server, self.left = server, at

    async def find(self, sought: Sought, send: Send, /) -> Finding:
        """Ask, perhaps after the session has ended."""
        self.left -= sought.name == "b.pdf"
        if sought.name == "b.pdf" and self.left == 0:
            renew(self.server)
        if sought.name == "b.pdf" and self.left > 0:
            return Finding(Answer.NOT_FOUND, "not yet")
        return await StoredFiles().find(sought, send)


@pytest.mark.parametrize("once_per", ["room", "session"])
@pytest.mark.parametrize("how", ["ended", "denied", "ends before a look", "ends before the next"])
async def test_a_session_that_ends_proves_nothing(
    server: MeetingServer, path: Path, how: str, once_per: str
) -> None:
    """Its files are gone: ``"room"`` does not send again what may have been there."""
    server.add_room("room02")
    jobs = [job("c.pdf", "room02"), job("b.pdf")]
    await run(server, path, jobs)
    changed(path, LEFT_LONG_AGO)
    asks: dict[str, Any] = {"delivery": "exactly_once"}
    if "ends" in how:
        asks["evidence"] = EndsMeanwhile(server, 1 if how == "ends before a look" else 2)
    else:
        renew(server)
    if how == "denied":
        server.refuse_next("ROOM_NOT_ACTIVE", path=CHECK, times=2)
    again = await run(server, path, jobs, once_per, **asks)
    if once_per == "session":
        assert statuses(again) == ["skipped", "accepted"]
        assert listed(server) == ["b.pdf"]
        return
    assert statuses(again) == ["skipped", "unknown"]
    assert "its session has ended" in str(again.outcomes[1].error)
    assert listed(server) == []


async def test_a_journal_of_the_last_version_counts_for_every_session(
    server: MeetingServer, path: Path
) -> None:
    """It is upgraded when it is opened, once; what it has sent is skipped."""
    shutil.copy(Path(__file__).parent / "fixtures" / "format-3.db", path)
    with closing(sqlite3.connect(path)) as connection:
        find = "SELECT room_id, document FROM jobs WHERE state = 'accepted'"
        room, name = connection.execute(find).fetchone()
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)
    changed(path, f"UPDATE servers SET base = '{server.url}/auth'")
    identity = json.dumps({"room": room, "key": "k"})
    changed(path, f"UPDATE jobs SET identity = '{identity}' WHERE document = '{name}'")
    for _ in range(2):
        (outcome,) = (await run(server, path, [job(name, room, key="k")])).outcomes
        assert (outcome.status, outcome.session) == ("skipped", "")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (4,)


@pytest.mark.parametrize(
    ("arrived", "once_per"), [(True, "session"), (False, "session"), (False, "room")]
)
async def test_what_an_earlier_run_has_left_is_settled(
    server: MeetingServer, path: Path, once_per: str, *, arrived: bool
) -> None:
    """Found, or sent again once nothing can deliver it; it needs a document that was shown."""
    jobs = [job("a.pdf"), job("b.pdf"), job("c.pdf")]
    await run(server, path, jobs[:1])
    server.lose_next_reply(when="afterwards" if arrived else "instead")
    assert statuses(await run(server, path, jobs[:2])) == ["skipped", "unknown"]
    settled = await run(server, path, jobs, once_per, delivery="exactly_once")
    assert statuses(settled) == ["skipped", "accepted", "accepted"]
    receipt = settled.outcomes[1].receipt
    assert receipt is not None
    assert (receipt.found, bool(receipt.status_code)) == (True, not arrived)
    assert listed(server) == ["a.pdf", "b.pdf", "c.pdf"]
    again = await run(server, path, jobs, delivery="exactly_once")
    assert statuses(again) == ["skipped"] * 3


@pytest.mark.parametrize("arrived", [True, False])
async def test_a_document_is_no_twin_of_itself(
    server: MeetingServer, path: Path, *, arrived: bool
) -> None:
    """The same client runs the batch again: the file there is of the document it had lost."""
    jobs = [job("a.pdf"), job("b.pdf")]

    def lose(event: Event) -> None:
        if isinstance(event, AttemptStarted) and event.document:
            server.lose_next_reply()

    async with client_of(server) as client:
        await run_with(client, path, jobs[:1])
        server.lose_next_reply(when="afterwards" if arrived else "instead")
        assert statuses(await run_with(client, path, jobs)) == ["skipped", "unknown"]
        settling = client.with_options(delivery="exactly_once", on_event=lose)
        assert statuses(await run_with(settling, path, jobs)) == ["skipped", "accepted"]
        assert listed(server) == ["a.pdf", "b.pdf"]
        another = await settling.upload_whiteboard_file("room01", PDF, filename="b.pdf")
    assert (another.found, another.status_code) == (True, "")


async def test_a_late_document_of_that_name_is_not_taken_for_it(
    server: MeetingServer, path: Path
) -> None:
    """Neither by the run that sent the second one, nor by the next, of another client."""
    await run(server, path, [job("a.pdf")])
    async with client_of(server) as client:
        server.lose_next_reply(arrives_after=1.5)
        with pytest.raises(UploadOutcomeUnknown):
            await client.upload_whiteboard_file("room01", PDF, filename="b.pdf")
        server.lose_next_reply(when="instead")
        assert statuses(await run_with(client, path, [job("b.pdf")])) == ["unknown"]
    await anyio.sleep(2)
    again = await run(server, path, [job("b.pdf")], delivery="exactly_once")
    assert (statuses(again), listed(server)) == (["unknown"], ["a.pdf", "b.pdf"])
    assert "an earlier upload of that name" in str(again.outcomes[0].error)


async def test_what_was_left_long_ago_waits_for_a_server_to_show_files(
    server: MeetingServer, path: Path
) -> None:
    """Nothing was ever accepted: another room's document shows meanwhile that it would be shown."""
    server.add_room("room02")
    server.lose_next_reply(when="instead")
    jobs = [job("b.pdf"), job("a.pdf", "room02")]
    assert statuses(await run(server, path, jobs[:1])) == ["unknown"]
    changed(path, LEFT_LONG_AGO)
    assert statuses(await run(server, path, jobs, delivery="exactly_once")) == ["accepted"] * 2
    assert (listed(server), listed(server, "room02")) == (["b.pdf"], ["a.pdf"])


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("a page", UnexpectedReply),
        ("away", UnexpectedReply),
        ("another room", ConnectionLost),
        ("no JSON", UnexpectedReply),
        ("the key is refused", AuthenticationFailed),
    ],
)
async def test_a_question_about_the_session_that_fails(
    server: MeetingServer, path: Path, how: str, error: type[Exception]
) -> None:
    """What was delivered stays delivered; a document that is new is told what is wrong.

    Like an upload that fails, it ends a batch to which the server has answered nothing so far.
    """
    server.add_room("room02")
    jobs = [*JOBS, job("c", "room02")]
    assert statuses(await run(server, path, jobs)) == ["accepted"] * 3
    if how == "the key is refused":
        server.refuse_next("INVALID_API_KEY", path=CHECK, times=99)
    else:
        room = {"room_info": {"room_id": "room99", "sid": "other"}}
        body = b"\x1f\x8b\x08" if how == "no JSON" else b"<h1>a page</h1>"
        said: Any = {"json": {"status": True, "room": room}} if "room" in how else {"body": body}
        status = {"a page": 404, "away": 502}.get(how, 200)
        server.reply_next(status, path=CHECK, times=99, **said)
    for _ in range(2):
        before = len(server.requests)
        report = await run(server, path, jobs, outage=0.5)
        assert (statuses(report), report.already_delivered) == (["skipped"] * 3, 3)
        assert type(report.stopped_by) is error
        asked = len(server.requests) - before
        assert asked == 1 or how in {"away", "another room"}  # which are asked again
    report = await run(server, path, [*jobs, job("new.pdf")], outage=0.5)
    assert statuses(report)[:3] == ["skipped"] * 3
    assert report.outcomes[3].error is not None
    assert listed(server) == ["a", "b"]


async def test_the_session_of_an_answer_that_names_none(server: MeetingServer, path: Path) -> None:
    """It is not that of an attempt before, which was refused in the session that ended since."""
    server.rooms["room01"].lock(0.3)

    def wait(event: Event) -> None:
        if isinstance(event, WaitingForRoom):
            renew(server)
            server.refuse_next("ROOM_NOT_FOUND", path=CHECK)

    report = await run(server, path, JOBS[:1], on_event=wait)
    assert (statuses(report), listed(server)) == (["accepted"], ["a"])
    assert [one.session != "" for one in report.outcomes[0].attempts] == [True, False]
    assert report.outcomes[0].session == ""


RECORD = b'{"status": false, "msg": "failed", "status_code": "INTERNAL_SERVER_ERROR"}'


@pytest.mark.parametrize(
    ("body", "times"), [(RECORD, 2), (b"<h1>Bad Gateway</h1>", 6)], ids=["", "at a proxy"]
)
async def test_a_question_about_the_session_is_asked_again(
    server: MeetingServer, path: Path, body: bytes, times: int
) -> None:
    """A server that fails for a while stops no batch: an upload would ask again, too."""
    assert statuses(await run(server, path)) == ["accepted"] * 2
    server.reply_next(502, body=body, path=CHECK, times=times)
    report = await run(server, path)
    assert (statuses(report), report.already_delivered) == (["skipped"] * 2, 2)
    assert report.stopped_by is None


@pytest.mark.parametrize(("pause", "took_long"), [(0.0, False), (2.2, False), (2.2, True)])
@pytest.mark.parametrize(
    ("delivery", "told"), [("exactly_once", "accepted"), ("at_most_once", "unknown")]
)
async def test_a_form_that_arrives_between_two_runs(
    server: MeetingServer, path: Path, delivery: Any, told: str, pause: float, *, took_long: bool
) -> None:
    """And between two sessions: found in the second one, as the journal says from then on.

    However late the second run begins, the document is not sent to a session that has it.
    """
    server.lose_next_reply(arrives_after=1.0)
    assert statuses(await run(server, path)) == ["unknown", "accepted"]
    arrived_at = anyio.current_time() + 1.5
    changed(path, ACCEPTED_BEFORE)
    if took_long:
        changed(path, "UPDATE jobs SET since = since - 1000")
    renew(server)
    await anyio.sleep(pause)
    again = "skipped" if told == "accepted" else told
    for expected in ([told, "accepted"], [again, "skipped"]):
        report = await run(server, path, delivery=delivery)
        assert statuses(report) == expected
        await anyio.sleep_until(arrived_at)
        assert sorted(listed(server)) == ["a", "b"]
        sessions = {one.session for one in report.outcomes if one.delivered}
        assert sessions == {server.rooms["room01"].sid}


class Held:
    """A transport whose answers are old when they come."""

    def __init__(self) -> None:
        self.transport = HttpTransport()

    async def send(self, request: Request, /) -> Reply:
        """Send it, and keep the answer for a while."""
        reply = await self.transport.send(request)
        await anyio.sleep(4)
        return reply

    async def aclose(self) -> None:
        """Close it."""
        await self.transport.aclose()


@pytest.mark.parametrize(
    ("delivery", "how", "told"),
    [
        ("at_most_once", "", "unknown"),
        ("at_most_once", "slow", "unknown"),
        ("exactly_once", "", "accepted"),
        pytest.param("exactly_once", "not shown", "unknown", marks=pytest.mark.nightly),
    ],
)
async def test_sessions_that_change_during_an_upload(
    server: MeetingServer, path: Path, delivery: Any, how: str, told: str
) -> None:
    """The check was answered by one, the next one has the document: it is not sent there again."""

    def sending(event: Event) -> None:
        if isinstance(event, AttemptStarted) and event.document == "a":
            renew(server)

    first = await run(server, path, on_event=sending)
    assert (statuses(first), listed(server)) == (["accepted"] * 2, ["a", "b"])
    server.stored_files = "redirected" if how == "not shown" else "shared"
    held: dict[str, Any] = {"transport": Held()} if how == "slow" else {}
    again = await run(server, path, delivery=delivery, **held)
    assert statuses(again) == [told, "skipped"]
    if told == "unknown":
        assert "the room's session changed meanwhile" in str(again.outcomes[0].error)
    else:
        assert again.outcomes[0].session == server.rooms["room01"].sid
    assert statuses(await run(server, path, once_per="room")) == ["skipped"] * 2
    assert listed(server) == ["a", "b"]


async def test_the_room_is_gone_before_a_document_is_sent_again(
    server: MeetingServer, path: Path
) -> None:
    """Each outcome is that of the earlier run, also of the job that finds out."""
    jobs = [job("a.pdf"), job("b.pdf"), job("c.pdf")]
    await run(server, path, jobs)
    changed(path, ACCEPTED_BEFORE)
    changed(path, LEFT_LONG_AGO)
    renew(server)

    def answered(event: Event) -> None:
        if isinstance(event, Finished) and event.operation == CHECK.removeprefix("/"):
            server.rooms["room01"].end()

    again = await run(server, path, jobs, on_event=answered)
    assert statuses(again) == ["skipped", "unknown", "skipped"]
    assert again.already_delivered == 2


class EndsTheRoom:
    """Evidence that cannot be told, of a room that is closed meanwhile."""

    def __init__(self, server: MeetingServer) -> None:
        self.server = server

    async def find(self, sought: Sought, send: Send, /) -> Finding:
        """Find nothing out."""
        self.server.rooms["room01"].end()
        return Finding(Answer.UNTOLD, "who knows")


async def test_jobs_are_skipped_for_a_reason_of_their_own(
    server: MeetingServer, path: Path
) -> None:
    """Not for the unknown outcome of another document."""
    server.lose_next_reply()
    how: dict[str, Any] = {"delivery": "exactly_once", "evidence": EndsTheRoom(server)}
    report = await run(server, path, **how)
    assert statuses(report) == ["unknown", "skipped"]
    assert isinstance(report.outcomes[1].error, ABSENT)


@needs_nginx
async def test_a_proxy_that_closes_each_connection(
    server: MeetingServer, path: Path, tmp_path: Path
) -> None:
    """Behind it a lost document is looked for in the next session, too."""
    inside = f"keepalive_timeout 0; location / {{ proxy_pass {server.url}; }}"
    with Nginx(tmp_path, inside) as nginx:
        server.lose_next_reply(arrives_after=1.0)
        assert statuses(await run(server, path, url=nginx.url)) == ["unknown", "accepted"]
        renew(server)
        await anyio.sleep(2.2)
        report = await run(server, path, url=nginx.url, outage=5.0, delivery="exactly_once")
    assert statuses(report) == ["accepted", "accepted"]
    assert sorted(listed(server)) == ["a", "b"]


class NotYet:
    """Evidence that takes its time, and finds nothing."""

    async def find(self, sought: Sought, send: Send, /) -> Finding:
        """Find nothing."""
        await anyio.sleep(0.05)
        return Finding(Answer.NOT_FOUND, "not yet")


async def test_accepted_entries_read_later_do_not_disturb_the_check(
    server: MeetingServer, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server is asked for what the journal says was accepted, while more of that is read."""
    rooms = [f"room{number:02}" for number in range(1, 100)]
    for room in rooms[1:]:
        server.add_room(room)
    first, *others = (UploadJob(room, b"%PDF-1.7", filename="a.pdf") for room in rooms)
    await run(server, path, [first, *others])
    new = [UploadJob(room, b"%PDF-1.7", filename="new.pdf") for room in ("room03", "room01")]
    jobs = [first, *new, *others]
    how: dict[str, Any] = {"delivery": "exactly_once", "timeout": 1.0, "evidence": NotYet()}
    report = await run(server, path, jobs, **how)
    assert statuses(report)[:3] == ["skipped", "accepted", "accepted"]
    assert "RuntimeError" not in caplog.text
