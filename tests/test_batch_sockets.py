"""Batches on real sockets: what is open while rooms are locked, what is left of a cut-off one."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from _peer import Connection, Peer, answering, descriptors, reply
from _wires import cancelled_natively, living_tasks, meeting, nothing_left, until
from meeting_async import Batch, LockPolicy, MeetingClient, UploadJob
from meeting_async.testing import MeetingServer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

ROOMS, EACH = 6, 3
TIMES = 25
"""Batches that are cut off at random."""


@pytest.fixture
def jobs(tmp_path: Path) -> list[UploadJob]:
    """Make documents of a megabyte for some rooms."""
    found = []
    for number in range(ROOMS * EACH):
        path = tmp_path / f"{number}.pdf"
        path.write_bytes(b"%PDF-1.7\n" + bytes([number]) * 1_000_000)
        found.append(UploadJob(f"room{number % ROOMS}", path))
    return found


@pytest.fixture
def server() -> Iterator[MeetingServer]:
    """Run the server for development."""
    server = MeetingServer()
    for number in range(ROOMS):
        server.add_room(f"room{number}")
    with server.run():
        yield server


async def test_every_document_arrives_in_order(
    server: MeetingServer, jobs: list[UploadJob]
) -> None:
    """At the real server, whole."""
    client = MeetingClient(server.url, api_key="devkey", api_secret="devsecret")
    async with client, client.upload_many(jobs, concurrency=4) as batch:
        report = await batch.wait()
    assert report.accepted == len(jobs)
    for number in range(ROOMS):
        files = server.rooms[f"room{number}"].received
        expected = [f"{number + ROOMS * n}.pdf" for n in range(EACH)]
        assert [file.name for file in files] == expected
        assert {file.size for file in files} == {1_000_009}


async def test_what_waits_holds_no_descriptor(jobs: list[UploadJob]) -> None:
    """All rooms are locked: connections are closed or idle, and no file is open."""
    lock = LockPolicy(min_delay=30, max_delay=60)
    async with meeting("tcp", locked, lock=lock) as (client, peer):
        before, tasks = descriptors(peer), living_tasks()
        async with client.upload_many(jobs, concurrency=4) as batch:
            await until(lambda: refused(peer) == ROOMS, "not all rooms were tried", seconds=10)
            await until(lambda: batch._slots.free == 4, "slots are held")
            await nothing_left(peer, before, tasks + ROOMS + 2, kept=4)
    assert (batch.report.failed, batch.report.skipped) == (ROOMS, len(jobs) - ROOMS)


def refused(peer: Peer) -> int:
    """Count the uploads that a peer was sent."""
    return sum(b"Room-Id" in request.head for request in list(peer.requests))


def locked(connection: Connection) -> None:
    """Answer questions, and refuse uploads."""
    while connection.read_head():
        connection.read_body(keep=False)
        is_upload = b"Room-Id" in connection.request.head
        connection.send(reply(409) if is_upload else reply())


async def test_cut_off_at_random_moments(jobs: list[UploadJob]) -> None:
    """No descriptor and no task is left, every job has its outcome, the next batch works."""
    dice = random.Random(5)
    async with meeting("tcp", answering(reply())) as (client, peer):
        typical = await seconds_of(client, jobs)
        before, tasks = descriptors(peer), living_tasks()
        for number in range(TIMES):
            batch = client.upload_many(renamed(jobs, number), concurrency=4)
            with anyio.move_on_after(typical * dice.random()) as scope:
                async with batch:
                    await batch.wait()
            check(batch, len(jobs))
            assert scope.cancelled_caught or batch.report.accepted == len(jobs)
            await nothing_left(peer, before, tasks, f" by batch {number}", kept=4)
        await seconds_of(client, renamed(jobs, TIMES))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_cancelled_at_every_await(jobs: list[UploadJob], anyio_backend: str) -> None:
    """``Task.cancel`` strikes the caller once, wherever it waits."""
    async with meeting("tcp", answering(reply())) as (client, peer):
        await seconds_of(client, jobs)
        before, tasks = descriptors(peer), living_tasks()
        for number in range(1, len(jobs) + 9):
            batch = client.upload_many(renamed(jobs, number), concurrency=4)

            async def run(batch: Batch = batch) -> None:
                async with batch:
                    await batch.wait()

            struck = await cancelled_natively(run(), number)
            assert batch.report.total == len(jobs) or struck.cancelled
            await nothing_left(peer, before, tasks, f" by await {number}", kept=4)
            if not struck.waited:
                break
    assert number > 3


async def seconds_of(client: MeetingClient, jobs: list[UploadJob]) -> float:
    """Run a whole batch and return how long it takes."""
    began = time.monotonic()
    async with client.upload_many(jobs, concurrency=4) as batch:
        assert (await batch.wait()).accepted == len(jobs)
    return time.monotonic() - began


def renamed(jobs: list[UploadJob], number: int) -> list[UploadJob]:
    """Take other rooms: those of unknown outcome stay shut."""
    return [UploadJob(f"{job.room_id}-{number}", job.document) for job in jobs]


def check(batch: Batch, most: int) -> None:
    """Assert that each job that was read has one outcome."""
    outcomes = batch.report.outcomes
    assert [outcome.index for outcome in outcomes] == list(range(len(outcomes)))
    assert len(outcomes) in {0, most}
    assert batch._slots.free == 4
