"""A journal and the sessions of its rooms: what is due again, what was lost between two runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from meeting_async import BatchReport, MeetingClient, RetryPolicy, UploadJob
from meeting_async.evidence import Answer, Finding, Send, Sought
from meeting_async.testing import MeetingServer
from support.batches import statuses

pytestmark = pytest.mark.anyio

JOBS = [UploadJob("room01", b"%PDF-1.7 " + name.encode(), filename=name) for name in "ab"]
CHECK = "/room/getActiveRoomInfo"


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


async def run(
    server: MeetingServer, path: Path, jobs: list[UploadJob] = JOBS, **how: Any
) -> BatchReport:
    """Run the jobs once, with a proxy in front that keeps a form for less than 2 s."""
    keys: dict[str, Any] = {"api_key": server.api_key, "api_secret": server.api_secret}
    retry = RetryPolicy(settle_after=2.0)
    async with MeetingClient(server.url, retry=retry, **keys, **how) as client:
        async with client.upload_many(jobs, journal=str(path), concurrency=2) as batch:
            return await batch.wait()


def renew(server: MeetingServer) -> None:
    """End the session in the room, and begin the next one."""
    server.rooms["room01"].end()
    server.add_room("room01")


def listed(server: MeetingServer) -> list[str]:
    """Return what the room shows, in this session."""
    return [file.name for file in server.rooms["room01"].received]


async def test_a_question_about_the_session_is_asked_again(
    server: MeetingServer, path: Path
) -> None:
    """A server that fails once stops no batch: an upload would ask again, too."""
    assert statuses(await run(server, path)) == ["accepted"] * 2
    record = {"status": False, "msg": "failed", "status_code": "INTERNAL_SERVER_ERROR"}
    server.reply_next(500, json=record, path=CHECK)
    report = await run(server, path)
    assert (statuses(report), report.already_delivered) == (["skipped"] * 2, 2)


async def test_a_form_that_arrives_between_two_runs(server: MeetingServer, path: Path) -> None:
    """And between two sessions: found in the second one, as the journal says from then on."""
    server.lose_next_reply(arrives_after=1.0)
    assert statuses(await run(server, path)) == ["unknown", "accepted"]
    renew(server)
    for expected in (["accepted"] * 2, ["skipped"] * 2):
        report = await run(server, path, delivery="exactly_once")
        assert statuses(report) == expected
        await anyio.sleep(1.5)
        assert sorted(listed(server)) == ["a", "b"]
        assert {one.session for one in report.outcomes} == {server.rooms["room01"].sid}


class NotYet:
    """Evidence that takes its time, and finds nothing."""

    async def find(self, sought: Sought, send: Send, /) -> Finding:
        """Find nothing."""
        await anyio.sleep(0.05)
        return Finding(Answer.NOT_FOUND, "not yet")


async def test_what_is_read_meanwhile_disturbs_no_question(
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
