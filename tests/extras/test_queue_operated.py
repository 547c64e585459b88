"""What users and operators of a queue do: defer in their own transaction, look, retry, cancel."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import psycopg
import pytest

from meeting_async import UploadJob
from meeting_async.errors import InvalidInput
from meeting_async.procrastinate import _table
from meeting_async.testing import MeetingServer
from support.postgres import needs_postgres
from support.queues import LARGE, application, kind_of, names_in, pdf, until, uploads_to, working

pytestmark = [pytest.mark.anyio, needs_postgres]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let recovery find sooner that a job and its row disagree."""
    monkeypatch.setattr(_table, "SETTLED_SECONDS", 0.5)


@pytest.mark.nightly
@pytest.mark.parametrize("commits", [True, False])
async def test_deferring_in_a_transaction(
    dsn: str, server: MeetingServer, tmp_path: Path, *, commits: bool
) -> None:
    """The upload exists if the transaction of the caller is committed, and not otherwise."""
    async with (
        application(dsn, server.url) as made,
        await psycopg.AsyncConnection.connect(dsn) as connection,
    ):
        for number in range(2):
            await made.uploads.defer("room0", pdf(tmp_path, number), connection=connection)
        assert (await made.uploads.report("default")).queued == 0
        await (connection.commit() if commits else connection.rollback())
        assert (await made.uploads.report("default")).queued == 2 * commits
        async with working(made):
            report = await made.finished()
    assert report.accepted == 2 * commits
    assert names_in(server.rooms["room0"]) == ["000.pdf", "001.pdf"] * commits


async def test_a_scheduled_upload(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """It is sent when its time has come, and does not keep the others of its room waiting."""
    async with application(dsn, server.url) as made:
        with pytest.raises(InvalidInput) as caught:
            await made.uploads.defer("room0", pdf(tmp_path), schedule_at=datetime(2030, 1, 1))  # noqa: DTZ001
        assert caught.value.field == "schedule_at"
        soon = datetime.now(UTC) + timedelta(seconds=1.5)
        await made.uploads.defer("room0", pdf(tmp_path, 0), schedule_at=soon)
        await made.uploads.defer("room0", pdf(tmp_path, 1))
        assert (await made.uploads.status()).scheduled == 1
        async with working(made):
            report = await made.finished()
    assert report.accepted == 2
    assert names_in(server.rooms["room0"]) == ["001.pdf", "000.pdf"]
    assert datetime.now(UTC) >= soon


async def test_the_status(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """It has what waits, for how long, for which rooms and why."""
    server.rooms["room0"].lock(60)
    async with application(dsn, server.url) as made:
        assert (await made.uploads.status()).oldest is None
        jobs = [UploadJob("room0", pdf(tmp_path, at, LARGE)) for at in range(3)]
        await made.uploads.defer_many(jobs, batch="term")
        async with working(made):
            await until(lambda: uploads_to(server, "room0") > 1)
            await anyio.sleep(0.3)
            found = await made.uploads.status("term")
            assert found.workers >= 1
        found = await made.uploads.status()
        assert (await made.uploads.status("other")).rooms == []
    (room,) = found.rooms
    assert (room.room_id, found.waiting, found.running) == ("room0", 3, 0)
    assert found.oldest == room.oldest > 0.3
    assert found.causes == {room.cause: 3}
    assert room.cause


@pytest.mark.usefixtures("soon_unreadable")
async def test_failed_uploads_are_retried(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """What was refused or has failed is sent; what is unknown only with ``resend``."""
    server.rooms["room0"].presenter = False
    server.lose_next_reply(path="/room/uploadWhiteboardFile")
    async with application(dsn, server.url) as made:
        await made.uploads.defer("room1", pdf(tmp_path, 0))
        async with working(made):
            await made.finished()
            await made.uploads.defer("room0", pdf(tmp_path, 1))
            await made.uploads.defer("room2", tmp_path / "002.pdf")
            before = await made.finished()
            assert (before.unknown, before.refused, before.failed) == (1, 1, 1)
            server.rooms["room0"].presenter = True
            pdf(tmp_path, 2)
            assert await made.uploads.retry("default", room_id="room2") == 1
            assert (await made.finished()).accepted == 1
            assert await made.uploads.retry("default") == 1
            after = await made.finished()
            assert (after.accepted, after.unknown) == (2, 1)
            assert await made.uploads.retry("default", resend=True) == 1
            assert (await made.finished()).accepted == 3
            assert await made.uploads.retry("default", resend=True) == 0
    assert len(server.rooms["room1"].accepted) == 2


async def test_queued_uploads_are_cancelled(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """What waits has failed at once, what is sent is cancelled; other batches go on."""
    server.rooms["room1"].processing_seconds = 60
    async with application(dsn, server.url) as made:
        for number in range(3):
            await made.uploads.defer("room0", pdf(tmp_path, number), batch="term")
        await made.uploads.defer("room1", pdf(tmp_path, 3), batch="term")
        await made.uploads.defer("room0", pdf(tmp_path, 4))
        assert await made.uploads.cancel("term", room_id="room0") == 3
        async with working(made, abort_job_polling_interval=0.1):
            await until(lambda: uploads_to(server, "room1") > 0)
            assert await made.uploads.cancel("term") == 1
            report = await made.reported("term", queued=0)
            assert await made.uploads.cancel("term") == 0
            others = await made.reported("default", queued=0)
    assert others.accepted == 1
    assert [outcome.status for outcome in report.outcomes] == ["failed"] * 3 + ["unknown"]
    assert kind_of(report.outcomes[0]) == "UploadCancelled"
    assert names_in(server.rooms["room0"]) == ["004.pdf"]
