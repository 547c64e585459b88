"""What an operator does with a queue: look what waits, retry, cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from meeting_async import MeetingClient
from meeting_async._text import counted, duration
from meeting_async.cli.console import Output
from meeting_async.cli.options import Server
from meeting_async.cli.queue.database import no_such_batch, uploads_in
from meeting_async.procrastinate import QueueStatus, WhiteboardUploads

MOST_ROOMS = 20
"""Rooms that are printed; ``--json`` has all."""


async def status(dsn: str | None, client: MeetingClient, batch: str | None) -> QueueStatus:
    """Return what is queued."""
    async with uploads_in(dsn, client) as (_, uploads):
        return await uploads.status(batch)


async def changed(
    dsn: str | None,
    common: Server,
    batch: str,
    change: Callable[[WhiteboardUploads], Awaitable[int]],
) -> int:
    """Change uploads of a batch, and return how many.

    Raises:
        InvalidInput: The server has no such batch.

    """
    async with uploads_in(dsn, common.client()) as (_, uploads):
        count = await change(uploads)
        if not count and (await uploads.report(batch, keep_outcomes=False)).began is None:
            raise no_such_batch(batch, common.server)
    return count


def tell(found: QueueStatus, output: Output) -> None:
    """Print a status."""
    sums = {name: getattr(found, name) for name in ("waiting", "running", "scheduled", "workers")}
    if output.as_json:
        rooms = [attrs.asdict(room) for room in found.rooms]
        facts = {**sums, "oldest_seconds": found.oldest, "causes": dict(found.causes)}
        output.say_object("status", {**facts, "rooms": rooms})
        return
    oldest = "" if found.oldest is None else f"; the oldest for {duration(max(found.oldest, 0))}"
    counts = ", ".join(f"{number:,} {name}" for name, number in sums.items() if name != "workers")
    output.tell(f"{counts}{oldest}; {counted(found.workers, 'worker')}")
    for cause, number in found.causes.items():
        output.tell(f"{number:,} wait for: {cause}")
    for room in found.rooms[:MOST_ROOMS]:
        age = duration(max(room.oldest, 0))
        output.tell(f"{room.room_id}: {room.waiting:,} waiting, {room.running:,} running, {age}")
    if len(found.rooms) > MOST_ROOMS:
        output.tell(f"... and {len(found.rooms) - MOST_ROOMS:,} more rooms (--json has all)")
