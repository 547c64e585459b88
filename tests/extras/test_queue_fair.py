"""A room with a long queue does not keep the others waiting."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from meeting_async import UploadJob
from meeting_async.testing import MeetingServer
from support.postgres import needs_postgres
from support.queues import Application, application, names_in, pdf, until, working

pytestmark = [pytest.mark.anyio, needs_postgres]

LONG, ROOMS = 50_000, 100

FILL = """
    INSERT INTO meeting_async_uploads (server, batch, identity, room_id, kind, source, filename)
    SELECT %(server)s, 'long', number::text, 'room0', 'path', %(path)s, number || '.pdf'
    FROM generate_series(1, %(count)s) AS number"""


async def fill(made: Application, path: Path, count: int) -> None:
    """Queue so many documents for one room, as ``defer_many`` does, and faster."""
    base = made.uploads._session.base
    await made.app.connector.execute_query_async(FILL, server=base, path=str(path), count=count)
    await made.uploads._table.advance(["room0"])
    await made.uploads._table.analyse()


async def fetch_seconds(made: Application) -> float:
    """Return how long a worker needs to find that there is nothing to do."""
    times = []
    for _ in range(15):
        began = time.perf_counter()
        row = await made.app.connector.execute_query_one_async(
            "SELECT id FROM procrastinate_fetch_job_v2(%(queues)s, NULL)",
            queues=[made.uploads.queue],
        )
        times.append(time.perf_counter() - began)
        assert row["id"] is None
    return min(times)


@pytest.mark.nightly
async def test_fetching_past_a_long_queue(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """While the first of 50,000 documents of a room is sent, a search takes below 5 ms."""
    async with application(dsn, server.url) as made:
        await fill(made, pdf(tmp_path), LONG)
        fetched = await made.app.connector.execute_query_one_async(
            "SELECT id FROM procrastinate_fetch_job_v2(%(queues)s, NULL)",
            queues=[made.uploads.queue],
        )
        assert fetched["id"] is not None
        assert await fetch_seconds(made) < 0.005


@pytest.mark.nightly
async def test_rooms_behind_a_long_queue(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """Documents of other rooms are sent at once; those of the long queue stay in their order."""
    path = pdf(tmp_path)
    for number in range(ROOMS):
        server.add_room(f"other{number}")
    async with application(dsn, server.url) as made:
        await fill(made, path, LONG)
        jobs = [UploadJob(f"other{number}", path) for number in range(ROOMS)]
        await made.uploads.defer_many(jobs, batch="others")
        async with working(made):
            await until(lambda: len(server.rooms["room0"].accepted) > 3)
            report = await made.reported("others", queued=0)
    assert report.accepted == ROOMS
    names = names_in(server.rooms["room0"])
    assert names == [f"{number + 1}.pdf" for number in range(len(names))]
    assert len(names) < ROOMS


async def test_deferring_behind_a_long_queue(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """It takes no longer for a thousand rooms because one of them has a long queue."""
    async with application(dsn, server.url) as made:
        await fill(made, path := pdf(tmp_path), LONG)
        jobs = [UploadJob(f"other{number}", path) for number in range(1000)]
        assert await made.uploads.defer_many(jobs, batch="others") == 1000
        assert len(await made.jobs()) == 1001
