"""Every upload of a queue ends with one outcome, whatever happens to its job or to a clock."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from meeting_async.procrastinate import _table
from meeting_async.testing import MeetingServer
from support.postgres import needs_postgres
from support.queues import (
    LARGE,
    Application,
    application,
    kind_of,
    names_in,
    pdf,
    until,
    uploads_to,
    working,
)

pytestmark = [pytest.mark.anyio, needs_postgres]

TESTS = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let recovery find sooner that a job and its row disagree."""
    monkeypatch.setattr(_table, "SETTLED_SECONDS", 0.5)


async def end_job(made: Application, how: str) -> None:
    """End the only job by hand, in one of the ways that procrastinate has."""
    (job,) = await made.jobs()
    if how == "cancelled":
        assert await made.app.job_manager.cancel_job_by_id_async(job.id or 0)
    elif how == "cancelled and deleted":
        assert await made.app.job_manager.cancel_job_by_id_async(job.id or 0, delete_job=True)
    else:
        await made.app.connector.execute_query_async(
            "DELETE FROM procrastinate_jobs WHERE id = %(id)s", id=job.id
        )


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("cancelled", "cancelled"),
        ("cancelled and deleted", "deleted"),
        ("deleted with SQL", "deleted"),
    ],
)
async def test_a_job_that_is_gone(
    dsn: str, server: MeetingServer, tmp_path: Path, how: str, told: str
) -> None:
    """Its upload has failed and says why; the room goes on with its next document."""
    async with application(dsn, server.url) as made:
        for number in range(3):
            await made.uploads.defer("room0", pdf(tmp_path, number))
        await end_job(made, how)
        async with working(made):
            report = await made.finished()
    assert [outcome.status for outcome in report.outcomes] == ["failed", "accepted", "accepted"]
    assert kind_of(report.outcomes[0]) == "UploadCancelled"
    assert (
        f"its job was {how.split(maxsplit=1)[0]}" in str(report.outcomes[0].error)
        or "deleted" in how
    )
    assert names_in(server.rooms["room0"]) == ["001.pdf", "002.pdf"]


async def test_a_job_that_is_aborted_while_its_room_is_locked(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """It is put back and aborted at about the same time: it has failed, and nothing hangs."""
    room = server.rooms["room0"]
    room.lock(60)
    async with application(dsn, server.url) as made:
        await made.uploads.defer("room0", pdf(tmp_path, 0, LARGE))
        async with working(made, abort_job_polling_interval=0.1):
            await until(lambda: uploads_to(server, "room0") > 0)
            (job,) = await made.jobs()
            await made.app.job_manager.cancel_job_by_id_async(job.id or 0, abort=True)
            report = await made.reported("default", queued=0)
            room.unlock()
            await anyio.sleep(0.5)
    assert [outcome.status for outcome in report.outcomes] == ["failed"]
    assert room.accepted == ()


@pytest.mark.parametrize("skew", [3600, pytest.param(-3600, marks=pytest.mark.nightly)])
async def test_a_worker_whose_clock_is_wrong(
    dsn: str, server: MeetingServer, tmp_path: Path, skew: int
) -> None:
    """A clock one hour ahead, or behind, changes nothing: a locked room is asked at its pace."""
    room = server.rooms["room0"]
    room.lock(60)
    order = json.dumps({"dsn": dsn, "url": server.url, "log": str(tmp_path / "log")})
    command = [sys.executable, "-m", "support.skew", str(skew), "support.queue_worker", order]
    async with application(dsn, server.url) as made:
        for number in range(2):
            await made.uploads.defer("room0", pdf(tmp_path, number, LARGE))
        process = await asyncio.to_thread(subprocess.Popen, command, cwd=TESTS)
        try:
            await until(lambda: uploads_to(server, "room0") > 3)
            room.unlock()
            report = await made.finished()
        finally:
            process.terminate()
            assert await asyncio.to_thread(process.wait, 30) == 0
    assert report.accepted == 2
    assert names_in(room) == ["000.pdf", "001.pdf"]
    assert uploads_to(server, "room0") <= 20
