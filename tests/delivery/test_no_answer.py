"""A proxy's answer is no answer, and its server comes back: in virtual time, in process.

Whatever else is said to the check of a room and to an empty form is in ``test_promises.py`` (drawn)
and ``test_questions_first.py`` (tables).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from meeting_async import RetryPolicy, UploadReceipt
from meeting_async.errors import (
    ConnectFailed,
    MeetingError,
    RoomBusy,
    TransferTimeout,
    UnexpectedReply,
)
from support.fake_rooms import (
    Act,
    FakeRooms,
    Visit,
    accepted,
    client_of,
    conversion_failed,
    failing,
    job,
    lost,
    refused,
    reply,
    unreachable,
)
from support.tables import LOOPS, crossed

Run = Callable[..., Any]

PAGE = b"<html><h1>Bad Gateway</h1><hr>nginx</html>"
NO_ANSWERS: dict[str, Act] = {
    "502": reply(502, PAGE),
    "503": reply(503, PAGE),
    "504": reply(504, PAGE, replying=3),
    "500": reply(500, PAGE),
    "500 of its own": conversion_failed(),
    "reset": lost(),
    "silence": failing(TransferTimeout("no reply"), replying=15),
}
SMALL, LARGE = b"%PDF-1.7", b"%PDF-1.7".ljust(64 * 1024 + 1, b"\n")


def away_for(seconds: float, no_answer: Act, *, uploading: float = 0.0) -> FakeRooms:
    """Make rooms whose check gets no answer for some time."""

    def ask(visit: Visit) -> Act:
        if visit.kind == "probe":
            return refused()
        return no_answer if anyio.current_time() < seconds else accepted()

    return FakeRooms(ask=ask, seconds=uploading)


async def upload(client: Any, data: bytes, room: str = "room01", **how: Any) -> Any:
    """Upload, and return the receipt or the error."""
    try:
        return await client.upload_whiteboard_file(room, data, filename="deck.pdf", **how)
    except MeetingError as error:
        return error


@pytest.mark.parametrize("max_outage", [0, 5, 300])
def test_the_outage_is_limited_by_its_policy(run: Run, max_outage: float) -> None:
    """``RetryPolicy.max_outage`` counts for answers of a proxy, too; 0 is one question."""
    rooms = away_for(9999, reply(502, PAGE))

    async def main() -> tuple[Any, float]:
        async with client_of(rooms, retry=RetryPolicy(max_outage=max_outage)) as client:
            return await upload(client, LARGE), anyio.current_time()

    outcome, seconds = run(main)
    assert isinstance(outcome, UnexpectedReply)
    assert rooms.uploads == []
    assert max_outage <= seconds <= max_outage + 0.25
    assert max_outage or len(rooms.questions) == 1


def test_who_waits_behind_a_document_is_told_of_no_outage_that_is_over(run: Run) -> None:
    """The server was away, and its answers to questions show that it is back: the room is busy."""
    rooms = away_for(3, unreachable(), uploading=100)

    async def main() -> list[Any]:
        client = client_of(rooms)
        found: list[Any] = []
        async with client, anyio.create_task_group() as group:
            group.start_soon(upload, client, LARGE)
            for start in (0.1, 20):
                await anyio.sleep_until(start)
                found.append(await upload(client, LARGE, max_wait=2))
        return found

    assert [type(outcome) for outcome in run(main)] == [ConnectFailed, RoomBusy]


@crossed(no_answer=NO_ANSWERS, anyio_backend=LOOPS)
def test_a_batch_outlasts_a_proxy_without_its_server(run: Run, no_answer: Act) -> None:
    """Thirty documents for ten rooms: unknown is what was being answered, all else is accepted."""
    away = (4.5, 24.5)

    def answer(visit: Visit) -> Act:
        now = anyio.current_time()
        if away[0] <= now < away[1]:
            return no_answer
        if visit.kind != "upload":
            return accepted() if visit.kind == "question" else refused()
        is_cut = now < away[0] < now + 3
        return lost(replying=away[0] - now) if is_cut else accepted(replying=3)

    async def main() -> None:
        rooms = FakeRooms(answer, ask=answer)
        jobs = [job(f"room{n % 10}", n, LARGE if n % 3 else SMALL) for n in range(30)]
        async with client_of(rooms) as client, client.upload_many(jobs) as batch:
            report = await batch.wait()
        being_answered = [v for v in rooms.uploads if v.began < away[0] < v.began + 3]
        assert report.unknown == len(being_answered) == 10
        assert report.accepted == 20
        assert len(rooms.uploads) == 30
        assert sum(visit.is_accepted for visit in rooms.uploads) == 20

    run(main)


def test_many_rooms_outlast_the_same_outage(run: Run) -> None:
    """Each of a hundred rooms is asked for until the server is back: no call gives up earlier."""
    rooms, ended = away_for(30, reply(502, PAGE)), list[Any]()

    async def main() -> None:
        async with client_of(rooms) as client, anyio.create_task_group() as group:

            async def one(room: str) -> None:
                ended.append(await upload(client, SMALL, room))

            for number in range(100):
                group.start_soon(one, f"room{number:02}")

    run(main)
    assert [type(outcome) for outcome in ended] == [UploadReceipt] * 100
    assert len(rooms.uploads) == 100
    assert all(visit.began >= 30 for visit in rooms.uploads)
