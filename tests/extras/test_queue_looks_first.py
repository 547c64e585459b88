"""A worker of the queue looks before it sends, as a batch does: on a real PostgreSQL."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from meeting_async import UploadJob
from meeting_async.procrastinate import QueueReport, _brake
from meeting_async.testing import MeetingServer
from support.postgres import needs_postgres
from support.queues import Application, application, queue_and_worker, working

pytestmark = [pytest.mark.anyio, pytest.mark.nightly, needs_postgres]

CHECK, UPLOAD = "getActiveRoomInfo", "uploadWhiteboardFile"
ROOMS, EACH = 4, 3


async def work(made: Application, folder: Path, batch: str = "term") -> QueueReport:
    """Defer three documents of eight bytes for each room, and wait until all have an outcome."""
    document = folder / f"{batch}.pdf"
    document.write_bytes(b"%PDF-1.7")
    jobs = [UploadJob(f"room{n % ROOMS}", document, key=str(n)) for n in range(ROOMS * EACH)]
    await made.uploads.defer_many(jobs, batch=batch)
    return await made.finished(batch)


async def worked(dsn: str, server: MeetingServer, folder: Path) -> QueueReport:
    """Do so with a worker."""
    async with queue_and_worker(dsn, server) as made:
        return await work(made, folder)


async def test_restarts_that_nobody_sees(dsn: str, tmp_path: Path) -> None:
    """While a worker idles, again and again: no document lands in another class's room."""
    server = MeetingServer(mixes_up_rooms=True)
    for number in range(ROOMS):
        server.add_room(f"room{number}")
    async with AsyncExitStack() as stack:
        port = 0
        made: Application | None = None
        for batch in ("first", "second", "third"):
            async with server.run(port=port) as url:
                port = int(url.rpartition(":")[2])
                if made is None:
                    made = await stack.enter_async_context(application(dsn, url))
                    await stack.enter_async_context(working(made))
                assert (await work(made, tmp_path, batch)).accepted == ROOMS * EACH
            for number in range(ROOMS):
                received = [file.name for file in server.rooms[f"room{number}"].received]
                assert received.count(f"{batch}.pdf") == EACH


def methods(server: MeetingServer, room: str) -> list[str]:
    """Name the requests for a room."""
    return [r.path.rpartition("/")[2] for r in server.requests if r.room_id == room]


async def test_a_worker_asks_before_each_document(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """However small it is."""
    report = await worked(dsn, server, tmp_path)
    assert report.accepted == ROOMS * EACH
    for number in range(ROOMS):
        assert methods(server, f"room{number}") == [CHECK, UPLOAD] * EACH


async def test_the_empty_form_overrules_the_check(
    dsn: str, server: MeetingServer, tmp_path: Path
) -> None:
    """Rooms that the check does not know get their documents."""
    server.refuse_next("ROOM_NOT_FOUND", path=f"/room/{CHECK}", times=99)
    report = await worked(dsn, server, tmp_path)
    assert report.accepted == ROOMS * EACH
    assert all(len(server.rooms[f"room{n}"].received) == EACH for n in range(ROOMS))
    for number in range(ROOMS):
        found = [r for r in server.requests if r.room_id == f"room{number}"]
        assert found[0].path.endswith(CHECK)
        form = next(request for request in found if not request.path.endswith(CHECK))
        assert form.status == 400


async def test_a_proxy_without_its_server_is_no_answer(
    dsn: str,
    server: MeetingServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While checks get 502 nothing is sent; then everything is accepted."""
    monkeypatch.setattr(_brake, "FIRST_PAUSE", 0.2)
    monkeypatch.setattr(_brake, "LONGEST_PAUSE", 0.4)
    server.reply_next(502, body=b"<html>Bad Gateway", path=f"/room/{CHECK}", times=3 * ROOMS)
    report = await worked(dsn, server, tmp_path)
    assert report.accepted == ROOMS * EACH
    assert [request.status for request in server.requests][: 3 * ROOMS] == [502] * 3 * ROOMS
    assert all(len(server.rooms[f"room{n}"].accepted) == EACH for n in range(ROOMS))
