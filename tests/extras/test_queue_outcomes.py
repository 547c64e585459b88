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
from support.postgres import PostgresServer, needs_postgres
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


@pytest.mark.nightly
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


@pytest.mark.nightly
@pytest.mark.parametrize("skew", [3600, -3600])
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


VERSION_1 = """
CREATE TABLE meeting_async_uploads (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, server text NOT NULL, batch text NOT NULL,
    identity text NOT NULL, key text, room_id text NOT NULL, kind text NOT NULL,
    source text NOT NULL, filename text, content_type text, state text NOT NULL DEFAULT 'ready',
    run integer NOT NULL DEFAULT 0, is_running boolean NOT NULL DEFAULT false,
    suspected_at timestamptz, deferred_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz, sent_at timestamptz, changed_at timestamptz NOT NULL DEFAULT now(),
    size bigint, fingerprint text, error text, reason text,
    attempts jsonb NOT NULL DEFAULT '[]', retry jsonb, UNIQUE (server, batch, identity)
);
COMMENT ON TABLE meeting_async_uploads IS 'meeting-async, version 1';
INSERT INTO meeting_async_uploads
    (server, batch, identity, room_id, kind, source, filename, state, run, is_running)
SELECT 'SERVER', 'term', number::text, 'room0', 'path', 'FOLDER/00' || number || '.pdf',
    '00' || number || '.pdf', CASE number WHEN 0 THEN 'accepted' ELSE 'ready' END, number * 4,
    number = 1
FROM generate_series(0, 3) AS number;
INSERT INTO procrastinate_jobs (queue_name, task_name, lock, args, status, attempts)
SELECT 'whiteboard HOST', 'meeting_async:upload', 'SERVER room0',
    jsonb_build_object('upload_id', id),
    (CASE id WHEN 1 THEN 'succeeded' WHEN 2 THEN 'doing' ELSE 'todo' END)::procrastinate_job_status,
    CASE id WHEN 2 THEN 1 ELSE 0 END
FROM meeting_async_uploads;
"""
"""A table as an earlier version has left it: one upload is accepted, one worker was killed."""


async def test_a_table_of_the_first_version(
    postgres: PostgresServer, server: MeetingServer, tmp_path: Path
) -> None:
    """What was queued in it is delivered after ``apply_schema``, in order."""
    for number in range(4):
        pdf(tmp_path, number)
    async with application(postgres.new_database(), server.url) as made:
        await made.app.schema_manager.apply_schema_async()
        base, host = made.uploads._session.base, server.url.partition("//")[2]
        old = VERSION_1.replace("SERVER", base).replace("HOST", host)
        await made.app.connector.execute_query_async(old.replace("FOLDER", str(tmp_path)))
        for _ in range(2):
            await made.uploads.apply_schema()
        await made.uploads.defer("room0", pdf(tmp_path, 4), batch="term")
        async with working(made):
            report = await made.finished("term")
    assert (report.accepted, report.total) == (5, 5)
    assert names_in(server.rooms["room0"]) == ["001.pdf", "002.pdf", "003.pdf", "004.pdf"]
