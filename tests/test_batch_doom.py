"""What dooms all stops before anything large is sent; what dooms a room stops that room only."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from _batches import ABSENT, PDF, Town, Visit, client_of, job, jobs_for
from _courses import refused
from _fakes import Act, EventRecorder, accepted, failing, hanging, record, reply
from _peer import Peer, answering
from _peer import reply as raw_reply
from _transports import closed_port
from meeting_async import (
    Batch,
    BatchReport,
    HmacSigner,
    MeetingClient,
    RetryPolicy,
    SignedHeaders,
    Turnstile,
    UploadJob,
    WaitingUntilActive,
    errors,
)
from meeting_async._presence import SHORTEST_PAUSE
from meeting_async.testing import MeetingServer

pytestmark = pytest.mark.anyio

InVirtualTime = Callable[..., Any]
LARGE = 30 * 1024**2
JOBS = 100
MOST_SENT = 2000
"""Bytes that may leave before a batch is stopped, and a document has 30 MB."""


@pytest.fixture
def deck(tmp_path: Path) -> Path:
    """Make a document of 30 MB."""
    path = tmp_path / "deck.pdf"
    with path.open("wb") as file:
        file.write(b"%PDF-1.7\n")
        file.truncate(LARGE)
    return path


def many(deck: Path, most: int = JOBS) -> list[UploadJob]:
    """Make jobs for ten rooms."""
    return [UploadJob(f"room{number % 10}", deck) for number in range(most)]


def client_at(url: str, **settings: Any) -> MeetingClient:
    """Make a client that does not try for long."""
    usual = {"api_key": "devkey", "api_secret": "devsecret", "room_gate": Turnstile()}
    retry = RetryPolicy(max_attempts=2, initial_delay=0.01)
    return MeetingClient(url, **{**usual, "retry": retry, **settings})


def check_doomed(report: BatchReport, kind: type[Exception]) -> None:
    """Assert that one job found it out, and that all others were skipped for it."""
    assert isinstance(report.stopped_by, kind)
    assert report.total == JOBS
    assert report.skipped == JOBS - 1
    assert report.bytes_sent == 0
    first, *others = report.outcomes
    assert first.status in {"refused", "failed"}
    assert first.error is report.stopped_by
    assert all(outcome.error is report.stopped_by for outcome in others)
    assert {outcome.document for outcome in others} == {"deck.pdf"}
    with pytest.raises(errors.BatchFailed, match="99 skipped"):
        report.raise_for_failures()


async def ran(client: MeetingClient, jobs: Any, **how: Any) -> BatchReport:
    """Run a batch to its end and return its report."""
    async with client, client.upload_many(jobs, **how) as batch:
        with anyio.fail_after(3600):  # seconds of virtual time, mostly
            return await batch.wait()


@pytest.fixture
def server() -> Iterator[MeetingServer]:
    """Run the server for development, with ten rooms."""
    server = MeetingServer()
    for number in range(10):
        server.add_room(f"room{number}")
    with server.run():
        yield server


@pytest.mark.parametrize("wrong", ["key", "secret", "path"])
async def test_a_wrong_setting(deck: Path, server: MeetingServer, wrong: str) -> None:
    """The real server refuses one small call, and nothing else is sent."""
    settings = {"key": {"api_key": "other"}, "secret": {"api_secret": "other"}, "path": {}}
    url = server.url + "/wrong" if wrong == "path" else server.url
    report = await ran(client_at(url, **settings[wrong]), many(deck))
    kind = errors.ReplyError if wrong == "path" else errors.AuthenticationFailed
    check_doomed(report, kind)
    assert len(server.requests) <= 2
    assert sum(request.body_bytes for request in server.requests) < 200


HTML = b"<!doctype html><html><title>Welcome</title><body>Not what you look for</body></html>"


@pytest.mark.parametrize(
    "answer", [raw_reply(404, HTML), raw_reply(200, HTML), raw_reply(301, b""), raw_reply(200, b"")]
)
async def test_somebody_else_at_the_address(deck: Path, answer: bytes) -> None:
    """A web page is no meeting server, whatever its status."""
    with Peer(answering(answer)) as peer:
        report = await ran(client_at(peer.url), many(deck))
        check_doomed(report, errors.ReplyError)
        assert sum(len(r.head) + len(r.body) for r in peer.requests) < MOST_SENT


async def test_nobody_there(deck: Path) -> None:
    """No connection, after the usual attempts of one call."""
    report = await ran(client_at(f"http://127.0.0.1:{closed_port()}"), many(deck))
    check_doomed(report, errors.ConnectFailed)


def test_somebody_silent(in_virtual_time: InVirtualTime) -> None:
    """Nobody answers: one call has its attempts, and the rest does not repeat them."""
    town = Town(ask=lambda _: failing(errors.TransferTimeout("nothing for 15 s"), connecting=15))
    report = in_virtual_time(ran, client_of(town), [job(f"r{n % 10}", n) for n in range(JOBS)])
    assert isinstance(report.stopped_by, errors.TransferTimeout)
    assert (report.total, report.skipped, town.uploads) == (JOBS, JOBS - 1, [])
    assert report.seconds < 150


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_generator_is_not_read_on(kind: str) -> None:
    """What was read is accounted for; it is closed, though it has no end."""
    read: list[int] = []

    def plain() -> Iterator[UploadJob]:
        for number in itertools.count():
            read.append(number)
            yield job(f"room{number}", number)

    async def asynchronous() -> AsyncIterator[UploadJob]:
        for one in plain():
            yield one
            if len(read) == 5:
                await anyio.sleep_forever()

    town = Town(ask=lambda _: reply(401, record("INVALID_API_KEY")))
    jobs: Any = plain() if kind == "sync" else asynchronous()
    report = await ran(client_of(town), jobs, window=50)
    assert isinstance(report.stopped_by, errors.AuthenticationFailed)
    assert report.total == len(read) < 60
    assert len(town.visits) == 1


async def test_a_list_is_accounted_for_to_its_end() -> None:
    """Beyond the window, too."""
    town = Town(ask=lambda _: reply(401, record("INVALID_API_KEY")))
    report = await ran(client_of(town), jobs_for(10, 30), window=7)
    assert (report.total, report.refused, report.skipped) == (300, 1, 299)


def test_a_key_that_is_withdrawn(in_virtual_time: InVirtualTime) -> None:
    """In the middle: what is on its way ends, nothing new begins."""

    def answer(visit: Visit) -> Act:
        if anyio.current_time() < 10:
            return accepted(replying=1.0 if visit.room != "room00" else 15.0)
        return reply(401, record("INVALID_API_KEY"))

    town = Town(answer)
    report = in_virtual_time(ran, client_of(town), jobs_for(4, 20))
    assert isinstance(report.stopped_by, errors.AuthenticationFailed)
    assert report.total == 80
    assert report.outcomes[0].status == "accepted"
    assert report.accepted > 20
    assert report.refused <= 3
    assert report.skipped == 80 - report.accepted - report.refused


def test_a_server_that_goes_away(in_virtual_time: InVirtualTime) -> None:
    """For good: when nobody gets through for a minute, the rest is skipped."""
    town = Town(lambda _: accepted(replying=1) if anyio.current_time() < 3 else refused())
    report = in_virtual_time(ran, client_of(town), jobs_for(20, 10))
    assert isinstance(report.stopped_by, errors.ConnectFailed)
    assert report.accepted == 60
    assert report.skipped > 100
    assert report.accepted + report.failed + report.skipped == 200
    assert 60 < report.seconds < 150


async def test_what_dooms_one_job_only() -> None:
    """A transport or a signer that raises now and then: the others are tried."""

    class Flaky(HmacSigner):
        calls = 0

        def sign(self, message: bytes, /) -> SignedHeaders:
            type(self).calls += 1
            if self.calls % 4 == 0:
                raise KeyError("signer")
            return super().sign(message)

    report = await ran(client_of(Town(), signer=Flaky("key", "secret")), jobs_for(3, 4))
    assert (report.accepted, report.failed, report.stopped_by) == (9, 3, None)
    assert {type(o.error) for o in report.outcomes} == {type(None), KeyError}


# --- rooms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["ROOM_NOT_FOUND", "ROOM_NOT_ACTIVE"])
def test_a_room_that_is_not_there(in_virtual_time: InVirtualTime, code: str) -> None:
    """Its other documents are skipped with the same error; other rooms do not notice."""

    def answer(visit: Visit) -> Act:
        absent = visit.room == "room01"
        return reply(200, record(code)) if absent else accepted(replying=1.0)

    town = Town(answer, ask=answer)
    report = in_virtual_time(ran, client_of(town), jobs_for(3, 5))
    assert report.stopped_by is None
    assert (report.accepted, report.refused, report.skipped) == (10, 1, 4)
    absent = [outcome for outcome in report.outcomes if outcome.room_id == "room01"]
    assert [outcome.status for outcome in absent] == ["refused"] + ["skipped"] * 4
    assert len({id(outcome.error) for outcome in absent}) == 1
    assert sum(visit.room == "room01" for visit in town.visits) == 1


def test_a_large_document_is_not_sent_in_vain(
    in_virtual_time: InVirtualTime,
) -> None:
    """Its room is asked about first, once per room."""
    large = PDF + bytes(300 * 1024)

    def ask(visit: Visit) -> Act:
        return ABSENT if visit.room == "absent" else accepted()

    town = Town(ask=ask)
    jobs = [job("first"), *(job(room, n, large) for n in range(3) for room in ("absent", "there"))]
    report = in_virtual_time(ran, client_of(town), jobs)
    assert (report.accepted, report.refused, report.skipped) == (4, 1, 2)
    assert sorted(visit.room for visit in town.questions) == ["absent", "first", "there"]
    assert {visit.room for visit in town.uploads} == {"first", "there"}


def test_waiting_until_a_room_is_active(in_virtual_time: InVirtualTime) -> None:
    """It takes no slot, asks politely, and then the room gets all its documents in order."""

    def ask(visit: Visit) -> Act:
        late = visit.room == "late" and anyio.current_time() < 600
        return ABSENT if late else accepted()

    town, recorder = Town(ask=ask, seconds=1.0), EventRecorder()
    jobs = [job("late", 0), job("late", 1), *(job("other", n) for n in range(10))]
    client = client_of(town, on_event=recorder)
    report = in_virtual_time(lambda: ran(client, jobs, wait_active=900, concurrency=1))
    assert report.accepted == 12
    assert town.names("late") == ["late-0.pdf", "late-1.pdf"]
    others = [o.started + o.seconds for o in report.outcomes if o.room_id == "other"]
    assert max(others) == pytest.approx(10, abs=0.1)
    assert 600 <= report.seconds < 640
    assert len(town.questions) < 60
    told = recorder.of(WaitingUntilActive)
    assert {event.room_id for event in told} == {"late"}
    first = report.outcomes[0]
    assert first.attempts[0].started == pytest.approx(first.seconds - 1.0)
    assert first.waited == pytest.approx(first.seconds - 1.0)


def test_waiting_for_a_room_ends_in_time(in_virtual_time: InVirtualTime) -> None:
    """Then the other documents of the room are skipped: they would wait for as long."""
    town = Town(ask=lambda visit: ABSENT if visit.room == "room01" else accepted())
    report = in_virtual_time(lambda: ran(client_of(town), jobs_for(2, 3), wait_active=100))
    assert (report.accepted, report.refused, report.skipped) == (3, 1, 2)
    assert report.seconds == pytest.approx(100)
    assert all(visit.room == "room00" for visit in town.uploads)


def test_a_room_that_goes_inactive(in_virtual_time: InVirtualTime) -> None:
    """Between two documents: it is waited for again, and no document is lost."""

    def answer(_visit: Visit) -> Act:
        return ABSENT if 10 <= anyio.current_time() < 200 else accepted(replying=4.0)

    town = Town(answer, ask=answer)
    report = in_virtual_time(
        lambda: ran(client_of(town), [job("a", n) for n in range(5)], wait_active=300)
    )
    assert report.accepted == 5
    assert town.names("a") == [f"a-{number}.pdf" for number in range(5)]
    (again,) = [outcome for outcome in report.outcomes if len(outcome.attempts) > 1]
    assert [attempt.number for attempt in again.attempts] == [1, 2]
    assert [attempt.verdict for attempt in again.attempts] == ["refused", "accepted"]
    assert again.attempts[1].started > 185
    assert len(town.visits) < 60


@pytest.mark.parametrize("wait_active", [0.5, 60.0, 600.0])
def test_a_room_that_calls_itself_active_and_refuses(
    in_virtual_time: InVirtualTime, wait_active: float
) -> None:
    """It is asked and tried politely, and given up in time."""
    town = Town(lambda visit: ABSENT if visit.room == "odd" else accepted())
    jobs = [job("odd", 0), job("odd", 1), job("other", 0)]
    report = in_virtual_time(lambda: ran(client_of(town), jobs, wait_active=wait_active))
    assert [outcome.status for outcome in report.outcomes] == ["refused", "skipped", "accepted"]
    assert report.seconds == pytest.approx(wait_active, abs=1)
    assert len(town.uploads) <= 3 + wait_active / SHORTEST_PAUSE


def test_a_stream_is_not_uploaded_twice(in_virtual_time: InVirtualTime) -> None:
    """It can be read once: if the room refuses it as not active, that is final."""

    async def pieces() -> AsyncIterator[bytes]:
        yield PDF

    town = Town(lambda _: ABSENT)
    report = in_virtual_time(lambda: ran(client_of(town), [job("a", 0, pieces())], wait_active=100))
    assert isinstance(report.outcomes[0].error, errors.RoomNotActive)
    assert (len(town.uploads), report.seconds < 1) == (1, True)


async def test_leaving_while_rooms_are_waited_for() -> None:
    """Nothing was sent, and that is what is said."""
    town = Town(ask=lambda _: ABSENT)
    client = client_of(town)
    async with client, client.upload_many(jobs_for(3, 2), wait_active=3600) as batch:
        await anyio.wait_all_tasks_blocked()
        assert batch._slots.free == 32
    assert (batch.report.skipped, batch.report.total) == (6, 6)
    assert isinstance(batch, Batch)


async def test_the_first_goes_ahead_alone() -> None:
    """Until the server has answered, no second call is made; then all go."""
    town = Town(lambda _: hanging(), ask=lambda _: accepted(replying=0.1))
    async with client_of(town) as client, client.upload_many(jobs_for(5, 1)) as batch:
        await anyio.sleep(0.02)
        assert len(town.visits) <= 1
        with anyio.move_on_after(1):
            while len(town.uploads) < 5:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert len(town.uploads) == 5
        batch.stop()
