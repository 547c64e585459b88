"""Several uploads to one room of a server that is down: all are told of the outage, together.

In virtual time, in process.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest

from meeting_async import MeetingClient, RetryPolicy, UploadReceipt
from meeting_async.errors import ConnectFailed, DeadlineExceeded, MeetingError, RoomBusy
from support.fake_rooms import Act, FakeRooms, Visit, accepted, client_of, jobs_for, unreachable
from support.tables import LOOPS, crossed

Run = Callable[..., Any]

SIZES = {"small": b"%PDF-1.7", "large": b"%PDF-1.7".ljust(300_000, b"\n")}
MAX_OUTAGE, SLACK = 60, 21
"""Seconds: how long an upload tries to connect, and a last wait with its attempt."""


def dead_from(start: float, end: float = 9999) -> FakeRooms:
    """Make a server that cannot be reached from a moment on; a conversion takes 5 s."""

    def answer(visit: Visit) -> Act:
        if start <= anyio.current_time() < end:
            return unreachable()
        return accepted(replying=5 if visit.kind == "upload" else 0)

    return FakeRooms(answer, ask=answer)


@attrs.frozen
class Ended:
    """How a call ended."""

    outcome: Any
    seconds: float
    """From the call."""
    at: float


async def all_of(client: MeetingClient, data: bytes, *calls: tuple[float, dict[str, Any]]) -> Any:
    """Call at these moments with these arguments; return how each call ended."""
    ended: dict[int, Ended] = {}

    async def one(number: int, began: float, how: dict[str, Any]) -> None:
        await anyio.sleep(began)
        began = anyio.current_time()
        try:
            outcome: Any = await client.upload_whiteboard_file(
                "room01", data, filename=f"{number}.pdf", **how
            )
        except MeetingError as error:
            outcome = error
        now = anyio.current_time()
        ended[number] = Ended(outcome, now - began, now)

    async with anyio.create_task_group() as group:
        for number, (began, how) in enumerate(calls):
            group.start_soon(one, number, began, how)
    return [ended[number] for number in range(len(calls))]


def course(
    run: Run, rooms: FakeRooms, data: bytes, *calls: tuple[float, dict[str, Any]], **settings: Any
) -> list[Ended]:
    """Call with a client of these rooms."""

    async def main() -> Any:
        async with client_of(rooms, **settings) as client:
            return await all_of(client, data, *calls)

    found: list[Ended] = run(main)
    return found


HOW: dict[str, tuple[dict[str, Any], ...]] = {
    "no limit": ({}, {}, {}),
    "later ones wait 5 s": ({}, {"max_wait": 5}, {"max_wait": 5}),
    "all wait 5 s": ({"max_wait": 5},) * 3,
    "the last one waits 5 s": ({}, {}, {"max_wait": 5}),
}
CALLS = {"at once": (0, 0, 0), "one after another": (0, 0.5, 10), "late": (0, 30, 50)}


@crossed(how=HOW, calls=CALLS, data=SIZES, anyio_backend=LOOPS)
def test_all_are_told_of_the_outage(
    run: Run, how: tuple[dict[str, Any], ...], calls: tuple[float, ...], data: bytes
) -> None:
    """Each within 81 s of its call, with ``ConnectFailed``; a room that nobody has is not busy."""
    rooms = dead_from(0)
    ended = course(run, rooms, data, *zip(calls, how, strict=True))
    assert [type(one.outcome) for one in ended] == [ConnectFailed] * 3
    assert all(one.seconds <= MAX_OUTAGE + SLACK for one in ended), ended
    for number, one in enumerate(ended):
        facts = one.outcome
        assert (facts.room_id, facts.document) == ("room01", f"{number}.pdf")
    assert all(not visit.sent for visit in rooms.uploads)


@crossed(data=SIZES, anyio_backend=LOOPS)
def test_calls_of_one_moment_end_together(run: Run, data: bytes) -> None:
    """Ten uploads wait for one minute, not for ten; the first one does not end earlier."""
    ended = course(run, dead_from(0), data, *[(0, {})] * 10)
    assert [type(one.outcome) for one in ended] == [ConnectFailed] * 10
    assert all(MAX_OUTAGE / 2 <= one.at <= MAX_OUTAGE + SLACK for one in ended), ended
    texts = [str(one.outcome) for one in ended]  # one upload tried, and the others waited for it
    tried = re.compile(r"refused; after (\d+ attempts in )?[3-8]\d s.*; nothing was sent$")
    assert all(map(tried.search, texts))
    assert ["attempts" in text for text in texts].count(True) == 1


@crossed(data=SIZES, anyio_backend=LOOPS)
def test_a_server_that_dies_during_an_upload(run: Run, data: bytes) -> None:
    """The first document is delivered; who waited behind it is told of the outage."""
    rooms = dead_from(1)
    calls = [(0.0, {}), (0.5, {}), (0.5, {"max_wait": 20}), (0.5, {})]
    first, *others = course(run, rooms, data, *calls)
    assert isinstance(first.outcome, UploadReceipt)
    assert [type(one.outcome) for one in others] == [ConnectFailed] * 3
    assert all(one.seconds <= 5 + MAX_OUTAGE + SLACK for one in others), others


@crossed(data=SIZES, anyio_backend=LOOPS)
def test_a_server_that_comes_back(run: Run, data: bytes) -> None:
    """All documents are delivered, in the order of their calls, one after another."""
    rooms = dead_from(0, 30)
    ended = course(run, rooms, data, *[(n * 0.1, {}) for n in range(4)])
    assert [type(one.outcome) for one in ended] == [UploadReceipt] * 4
    assert rooms.names("room01") == [f"{number}.pdf" for number in range(4)]
    assert not rooms.collisions


def test_a_room_that_is_busy_is_busy(run: Run) -> None:
    """Behind an upload that is being converted, ``max_wait`` ends in ``RoomBusy`` as ever."""
    rooms = FakeRooms(lambda _: accepted(replying=60))
    _, second = course(run, rooms, SIZES["small"], (0, {}), (1, {"max_wait": 5}))
    assert isinstance(second.outcome, RoomBusy)
    assert second.seconds == pytest.approx(5)


def test_a_timeout_counts_amid_an_outage(run: Run) -> None:
    """It ends a call behind another one, with nothing sent, at most 0.25 s late."""
    _, second = course(run, dead_from(0), SIZES["small"], (0, {}), (1, {"timeout": 10}))
    assert isinstance(second.outcome, DeadlineExceeded | ConnectFailed)
    assert second.seconds <= 10.25


@pytest.mark.parametrize("max_outage", [0, 10])
def test_a_shorter_outage(run: Run, max_outage: float) -> None:
    """``RetryPolicy.max_outage`` counts from each call, also for those that wait."""
    policy = RetryPolicy(max_outage=max_outage)
    ended = course(run, dead_from(0), SIZES["small"], *[(0, {})] * 3, retry=policy)
    assert [type(one.outcome) for one in ended] == [ConnectFailed] * 3
    assert all(one.seconds <= max_outage + (SLACK if max_outage else 1) for one in ended), ended


@crossed(data=SIZES, anyio_backend=LOOPS)
def test_a_batch_ends_in_a_minute(run: Run, data: bytes) -> None:
    """A server that is down ends it; nobody's room was busy."""

    async def main() -> None:
        jobs = [attrs.evolve(one, document=data) for one in jobs_for(2, 3)]
        async with client_of(dead_from(0)) as client, client.upload_many(jobs) as batch:
            report = await batch.wait()
        assert isinstance(report.stopped_by, ConnectFailed)
        assert (report.accepted, report.unknown) == (0, 0)
        errors = [type(outcome.error) for outcome in report.outcomes]
        assert errors == [ConnectFailed] * 6
        assert anyio.current_time() <= MAX_OUTAGE + SLACK

    run(main)


def test_a_batch_whose_server_dies(run: Run) -> None:
    """With ``max_wait`` for its jobs, too, the outage is what ends it."""

    async def main() -> None:
        rooms = dead_from(7)
        async with (
            client_of(rooms) as client,
            client.upload_many(jobs_for(2, 5), max_wait=5) as batch,
        ):
            report = await batch.wait()
        assert isinstance(report.stopped_by, ConnectFailed)
        assert report.accepted == sum(visit.is_accepted for visit in rooms.uploads) >= 1
        assert not any(isinstance(outcome.error, RoomBusy) for outcome in report.outcomes)
        assert anyio.current_time() <= 7 + 5 + MAX_OUTAGE + SLACK

    run(main)
