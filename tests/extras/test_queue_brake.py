"""What goes wrong around the documents of a queue costs no document: it waits, and is delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import anyio
import pytest

from meeting_async import Document, RetryPolicy, Timeouts, UploadJob
from meeting_async.procrastinate import _brake
from meeting_async.testing import MeetingServer
from support.nginx import Nginx, needs_nginx
from support.postgres import needs_postgres
from support.queues import (
    KEYS,
    application,
    kind_of,
    names_in,
    pdf,
    queue_and_worker,
    until,
    working,
)
from support.redis_server import free_port

pytestmark = [pytest.mark.anyio, needs_postgres]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses."""
    monkeypatch.setattr(_brake, "KEY_SECONDS", 0.2)
    monkeypatch.setattr(_brake, "SHORTEST_SECONDS", 0.2)
    monkeypatch.setattr(_brake, "FIRST_PAUSE", 0.3)
    monkeypatch.setattr(_brake, "LONGEST_PAUSE", 1.2)
    monkeypatch.setattr(_brake, "HOLD_SECONDS", 1.0)


def jobs_for(folder: Path, count: int, rooms: int = 10) -> list[UploadJob]:
    """Make jobs for several rooms."""
    return [UploadJob(f"room{at % rooms}", pdf(folder, at)) for at in range(count)]


def check_order(server: MeetingServer, unknown: AbstractSet[str] = frozenset()) -> None:
    """Each room has its documents in the order of deferring, none twice."""
    for room in server.rooms.values():
        names = [name for name in names_in(room) if name not in unknown]
        assert names == sorted(set(names)), room.room_id


# --- a wrong key ---------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("wrong", [{"api_secret": "wrong"}, {"api_key": "wrong"}])
async def test_a_wrong_key_stops_its_worker_only(
    dsn: str, server: MeetingServer, tmp_path: Path, wrong: dict[str, str]
) -> None:
    """Beside a worker with the right key it ends by itself, and nothing is refused."""
    async with (
        application(dsn, server.url, **{**KEYS, **wrong}) as mistaken,
        application(dsn, server.url) as made,
    ):
        await made.uploads.defer_many(jobs_for(tmp_path, 20), batch="default")
        ending = asyncio.create_task(
            mistaken.app.run_worker_async(
                queues=[made.uploads.queue], concurrency=4, install_signal_handlers=False
            )
        )
        with anyio.fail_after(30):
            await ending
        assert (await made.uploads.report("default")).total == 0
        async with working(made):
            report = await made.finished()
    assert (report.accepted, report.refused, report.failed, report.unknown) == (20, 0, 0, 0)
    check_order(server)


# --- a document that one worker cannot read ------------------------------------------------------


async def test_a_worker_without_the_file_share(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """It puts back what it cannot read, and another worker delivers it."""

    def find(reference: str) -> Document:
        return Document.from_bytes(b"%PDF-1.7\n", filename=f"{reference}.pdf")

    def miss(reference: str) -> Document:
        raise FileNotFoundError(reference)

    async with (
        application(dsn, server.url, documents=miss) as without,
        application(dsn, server.url, documents=find) as made,
    ):
        await made.uploads.defer("room0", "a")
        async with working(without):
            await anyio.sleep(1.0)
        assert (await made.uploads.report("default")).queued == 1
        await made.app.connector.execute_query_async(
            "UPDATE procrastinate_jobs SET scheduled_at = now()"
        )
        async with working(made):
            assert (await made.finished()).accepted == 1
    assert names_in(server.rooms["room0"]) == ["a.pdf"]


@pytest.mark.usefixtures("soon_unreadable")
async def test_a_function_that_hangs_or_raises(dsn: str, server: MeetingServer) -> None:
    """``documents`` has a time limit; what it raises is reported with its type."""

    async def find(reference: str) -> Document:
        if reference == "hangs":
            await anyio.sleep_forever()
        raise KeyError(reference)

    settings = {"documents_timeout": 0.1}
    async with queue_and_worker(dsn, server, documents=find, settings=settings) as made:
        await made.uploads.defer("room0", "hangs")
        await made.uploads.defer("room1", "r0")
        report = await made.finished()
    hangs, raises = report.outcomes
    assert [hangs.status, raises.status] == ["failed", "failed"]
    assert kind_of(hangs) == "TimeoutError"
    assert str(raises.error) == "KeyError: 'r0'"


# --- a server that is away -----------------------------------------------------------------------


@pytest.mark.nightly
async def test_a_server_that_is_away(dsn: str, tmp_path: Path) -> None:
    """What it was answering is unknown; all else is accepted after its return, in order."""
    server, port = MeetingServer(lock_seconds=2.0, processing_seconds=0.3), free_port()
    for number in range(10):
        server.add_room(f"room{number}")
    options: dict[str, Any] = {
        "retry": RetryPolicy(initial_delay=0.25, max_outage=0.5),
        # A server in this process may end without closing a connection.
        "timeouts": Timeouts(upload_reply=4.0),
    }
    async with application(dsn, f"http://127.0.0.1:{port}", **options) as made:
        await made.uploads.defer_many(jobs_for(tmp_path, 40), batch="default")
        async with working(made, concurrency=4):
            async with server.run(port=port):
                await until(lambda: len(server.rooms["room0"].accepted) > 0)
            await anyio.sleep(2.0)
            async with server.run(port=port):
                report = await made.finished()
    assert report.unknown <= 4
    assert report.accepted + report.unknown == 40, report
    unknown = {one.document for one in report.outcomes if one.status == "unknown"}
    check_order(server, unknown)


@pytest.mark.nightly
async def test_answers_of_a_proxy_only(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """While uploads get a 503 that is not the server's, a worker risks a few documents, not all."""
    path = "/room/uploadWhiteboardFile"
    server.reply_next(503, path=path, times=1000)
    async with application(dsn, server.url) as made:
        await made.uploads.defer_many(jobs_for(tmp_path, 60), batch="default")
        async with working(made, concurrency=4):
            await anyio.sleep(4.0)
            unknown = (await made.uploads.report("default")).unknown
    assert 3 <= unknown <= 4 + 8


@pytest.mark.nightly
async def test_a_server_that_throttles(dsn: str, server: MeetingServer, tmp_path: Path) -> None:
    """429 for longer than one call would try costs no document."""
    server.reply_next(429, path="/room/uploadWhiteboardFile", times=6)
    retry = RetryPolicy(max_attempts=2, initial_delay=0.25)
    async with queue_and_worker(dsn, server, retry=retry) as made:
        await made.uploads.defer_many(jobs_for(tmp_path, 6, rooms=2), batch="default")
        report = await made.finished()
    assert report.accepted == 6
    check_order(server)


@pytest.mark.nightly
@needs_nginx
async def test_a_server_behind_nginx_that_is_away(dsn: str, tmp_path: Path) -> None:
    """Nginx answers 502 meanwhile: at most what was on its way is unknown, all else arrives."""
    server, port = MeetingServer(lock_seconds=2.0, processing_seconds=0.2), free_port()
    for number in range(10):
        server.add_room(f"room{number}")
    location = f"location / {{ proxy_pass http://127.0.0.1:{port}; proxy_read_timeout 4s; }}"
    with Nginx(tmp_path, location) as proxy:
        async with application(dsn, proxy.url) as made:
            await made.uploads.defer_many(jobs_for(tmp_path, 40), batch="default")
            async with working(made, concurrency=4):
                async with server.run(port=port):
                    await until(lambda: len(server.rooms["room0"].accepted) > 0)
                await anyio.sleep(4.0)
                async with server.run(port=port):
                    report = await made.finished()
    assert report.unknown <= 4
    assert report.accepted + report.unknown == 40, report
    unknown = {one.document for one in report.outcomes if one.status == "unknown"}
    check_order(server, unknown)


@pytest.mark.nightly
@pytest.mark.parametrize("delivery", ["at_most_once", "at_least_once"])
async def test_a_wrong_key_after_an_unknown_outcome(
    dsn: str, server: MeetingServer, tmp_path: Path, delivery: str
) -> None:
    """What may have arrived is told, or is sent again by a worker with the right key."""
    server.lose_next_reply(path="/room/uploadWhiteboardFile")
    options: dict[str, Any] = {"delivery": delivery}
    async with application(dsn, server.url, **options) as made:
        await made.uploads.defer("room0", pdf(tmp_path))
        async with working(made):
            await until(lambda: len(server.rooms["room0"].accepted) == 1)
            server.api_secret = "another"
            await anyio.sleep(2.0)
        server.api_secret = KEYS["api_secret"]
    async with queue_and_worker(dsn, server, **options) as made:
        outcome = await made.only_outcome()
    resends = delivery == "at_least_once"
    assert outcome.status == ("accepted" if resends else "unknown")
    assert len(server.rooms["room0"].accepted) == 1 + resends
