"""The batch of the demonstration: stopped half-way, then run again with its journal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import anyio
import attrs

from meeting_async import BatchReport, Document, LockPolicy, MeetingClient, UploadJob
from meeting_async.cli._batch_display import BatchDisplay, batch_display_on
from meeting_async.cli._batch_rooms import BatchRooms
from meeting_async.cli._batch_tally import Tally
from meeting_async.cli._console import console_on, say
from meeting_async.cli._demo_account import Account
from meeting_async.cli._demo_report import Made
from meeting_async.cli._documents import pdf

if TYPE_CHECKING:
    from meeting_async.testing import MeetingServer

ROOMS = tuple(f"class{number:02}" for number in range(1, 13))
ABSENT = "class07"
LOCKED = "class03"
WEEKS = 5
"""Documents for each room."""
CONCURRENCY = 8
STOP_AFTER = 24
"""Documents that are over when the first run is stopped; those in flight then make it half."""
LOCK_SECONDS = 2.0
"""How long somebody else holds a room: for longer than the first run takes."""
PROCESSING_SECONDS = 0.25
"""What the server takes to convert a document: two frames of the display."""
LOCK_POLICY = LockPolicy(max_delay=1.0)
"""For a lock of seconds; the default is made for one of minutes."""
LINE_INTERVAL = 0.5
"""Seconds between two plain lines; a batch of hours needs fewer."""


@attrs.frozen(kw_only=True)
class BatchStage:
    """The server with the rooms of the batch, and their documents."""

    server: MeetingServer
    documents: Mapping[str, Sequence[Made]]
    """Those of each room, in their order."""
    journal: Path
    lock_seconds: float = LOCK_SECONDS

    @classmethod
    def set_up(
        cls,
        server: MeetingServer,
        folder: Path,
        *,
        lock_seconds: float = LOCK_SECONDS,
        processing_seconds: float = PROCESSING_SECONDS,
    ) -> Self:
        """Open the rooms but one, and make documents for all of them in ``folder``."""
        for room_id in ROOMS:
            if room_id != ABSENT:
                server.add_room(room_id).processing_seconds = processing_seconds
        documents = {room_id: _documents_for(room_id, folder / room_id) for room_id in ROOMS}
        journal = folder / "batch.db"
        return cls(server=server, documents=documents, journal=journal, lock_seconds=lock_seconds)

    @property
    def jobs(self) -> list[UploadJob]:
        """The batch, as a school would have it: week by week, room by room."""
        weeks = zip(*self.documents.values(), strict=True)
        return [
            UploadJob(room_id, made.document)
            for week in weeks
            for room_id, made in zip(self.documents, week, strict=True)
        ]

    @property
    def size(self) -> int:
        """Bytes of all documents."""
        return sum(made.size for room in self.documents.values() for made in room)


def _documents_for(room_id: str, folder: Path) -> list[Made]:
    """Make a document for each week; no two of the batch are alike."""
    folder.mkdir()
    documents = []
    for week in range(1, WEEKS + 1):
        path, content = folder / f"week-{week}.pdf", pdf([room_id, f"Week {week}"])
        path.write_bytes(content)
        documents.append(Made.of(path.name, content, Document.from_path(path)))
    return documents


def perform_batch(stage: BatchStage) -> Account:
    """Run the batch, stop it half-way, run it again, and say what came of it."""
    say(f"\nA batch of {len(stage.jobs)} documents for {ROOMS[0]} to {ROOMS[-1]}, with a journal.")
    say(f"Somebody else holds {LOCKED} for {stage.lock_seconds:g} s; there is no {ABSENT}.")
    say("It is stopped half-way, and the same jobs are run again.\n")
    account = anyio.run(_both_runs, stage)
    say("")
    console_on(sys.stdout).print(account.table())
    return account


async def _both_runs(stage: BatchStage) -> Account:
    server = stage.server
    server.rooms[LOCKED].lock(stage.lock_seconds)
    async with MeetingClient(
        server.url, api_key=server.api_key, api_secret=server.api_secret, lock=LOCK_POLICY
    ) as client:
        say("First run:")
        first = await _run(client, stage, stop_at=STOP_AFTER)
        say("Second run:")
        second = await _run(client, stage)
    rooms = {room_id: server.rooms[room_id] for room_id in ROOMS if room_id in server.rooms}
    received = {room_id: room.received for room_id, room in rooms.items()}
    return Account(stage.documents, received, first, second, LOCKED, ABSENT)


async def _run(
    client: MeetingClient, stage: BatchStage, *, stop_at: int | None = None
) -> BatchReport:
    """Run the batch with its display; when ``stop_at`` documents are over, stop it."""
    jobs, display, tally = stage.jobs, *_display_of(stage)
    with display:
        async with (
            client.with_options(on_event=display).upload_many(
                jobs, concurrency=CONCURRENCY, journal=stage.journal
            ) as batch,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(_tick, display)
            async for outcome in batch:
                display.over(outcome, outcome.size or 0)
                if tally.done == stop_at:
                    batch.stop()
                    display.note("stopped: what is in flight comes to its end")
            tasks.cancel_scope.cancel()
    return batch.report


def _display_of(stage: BatchStage) -> tuple[BatchDisplay, Tally]:
    rooms = (job.room_id for job in stage.jobs)
    tally = Tally.of(rooms, size=stage.size, now=time.monotonic())
    return batch_display_on(console_on(sys.stdout), tally, BatchRooms(), is_plain=False), tally


async def _tick(display: BatchDisplay) -> None:
    while True:
        await anyio.sleep(LINE_INTERVAL)
        display.tick()
