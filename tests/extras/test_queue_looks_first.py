"""A worker of the queue looks before it sends, as a batch does: on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import procrastinate
import pytest

from meeting_async import MeetingClient, UploadJob
from meeting_async.procrastinate import QueueReport, WhiteboardUploads, _brake
from meeting_async.testing import MeetingServer
from support.postgres import PostgresServer, needs_postgres, postgres_running

pytestmark = [pytest.mark.anyio, pytest.mark.nightly, needs_postgres]

CHECK, UPLOAD = "getActiveRoomInfo", "uploadWhiteboardFile"
ROOMS, EACH = 4, 3


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """Run one PostgreSQL for all tests."""
    with postgres_running() as server:
        yield server


@pytest.fixture
def server() -> Iterator[MeetingServer]:
    """Run a meeting server with some rooms."""
    server = MeetingServer()
    for number in range(ROOMS):
        server.add_room(f"room{number}")
    with server.run():
        yield server


@asynccontextmanager
async def queue(
    postgres: PostgresServer, url: str
) -> AsyncIterator[tuple[procrastinate.App, WhiteboardUploads]]:
    """Open a new queue for a server."""
    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=postgres.new_database())
    )
    async with (
        app.open_async(),
        MeetingClient(url, api_key="devkey", api_secret="devsecret") as client,
    ):
        uploads = WhiteboardUploads(app, client=client)
        await app.schema_manager.apply_schema_async()
        await uploads.apply_schema()
        yield app, uploads


async def work(
    app: procrastinate.App, uploads: WhiteboardUploads, folder: Path, batch: str = "term"
) -> QueueReport:
    """Defer three documents of eight bytes for each room, and work until all have an outcome."""
    document = folder / f"{batch}.pdf"
    document.write_bytes(b"%PDF-1.7")
    jobs = [UploadJob(f"room{n % ROOMS}", document, key=str(n)) for n in range(ROOMS * EACH)]
    await uploads.defer_many(jobs, batch=batch)
    with anyio.fail_after(40):
        while (report := await uploads.report(batch)).queued:
            await app.run_worker_async(
                queues=[uploads.queue], wait=False, concurrency=4, install_signal_handlers=False
            )
            await anyio.sleep(0.05)
    return report


async def worked(postgres: PostgresServer, server: MeetingServer, folder: Path) -> QueueReport:
    """Do so in a queue of its own."""
    async with queue(postgres, server.url) as (app, uploads):
        return await work(app, uploads, folder)


async def test_restarts_that_nobody_sees(postgres: PostgresServer, tmp_path: Path) -> None:
    """While a worker idles, again and again: no document lands in another class's room."""
    server = MeetingServer(mixes_up_rooms=True)
    for number in range(ROOMS):
        server.add_room(f"room{number}")
    async with AsyncExitStack() as stack:
        port = 0
        made: tuple[procrastinate.App, WhiteboardUploads] | None = None
        for batch in ("first", "second", "third"):
            async with server.run(port=port) as url:
                port = int(url.rpartition(":")[2])
                if made is None:
                    made = await stack.enter_async_context(queue(postgres, url))
                assert (await work(*made, tmp_path, batch)).accepted == ROOMS * EACH
            for number in range(ROOMS):
                received = [file.name for file in server.rooms[f"room{number}"].received]
                assert received.count(f"{batch}.pdf") == EACH


def methods(server: MeetingServer, room: str) -> list[str]:
    """Name the requests for a room."""
    return [r.path.rpartition("/")[2] for r in server.requests if r.room_id == room]


async def test_a_worker_asks_before_each_document(
    postgres: PostgresServer, server: MeetingServer, tmp_path: Path
) -> None:
    """However small it is."""
    report = await worked(postgres, server, tmp_path)
    assert report.accepted == ROOMS * EACH
    for number in range(ROOMS):
        assert methods(server, f"room{number}") == [CHECK, UPLOAD] * EACH


async def test_the_empty_form_overrules_the_check(
    postgres: PostgresServer, server: MeetingServer, tmp_path: Path
) -> None:
    """Rooms that the check does not know get their documents."""
    server.refuse_next("ROOM_NOT_FOUND", path=f"/room/{CHECK}", times=99)
    report = await worked(postgres, server, tmp_path)
    assert report.accepted == ROOMS * EACH
    assert all(len(room.received) == EACH for room in server.rooms.values())
    for number in range(ROOMS):
        found = [r for r in server.requests if r.room_id == f"room{number}"]
        assert found[0].path.endswith(CHECK)
        form = next(request for request in found if not request.path.endswith(CHECK))
        assert form.status == 400


async def test_a_proxy_without_its_server_is_no_answer(
    postgres: PostgresServer,
    server: MeetingServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While checks get 502 nothing is sent; then everything is accepted."""
    monkeypatch.setattr(_brake, "FIRST_PAUSE", 0.2)
    monkeypatch.setattr(_brake, "LONGEST_PAUSE", 0.4)
    server.reply_next(502, body=b"<html>Bad Gateway", path=f"/room/{CHECK}", times=3 * ROOMS)
    report = await worked(postgres, server, tmp_path)
    assert report.accepted == ROOMS * EACH
    assert [request.status for request in server.requests][: 3 * ROOMS] == [502] * 3 * ROOMS
    assert all(len(room.accepted) == EACH for room in server.rooms.values())
