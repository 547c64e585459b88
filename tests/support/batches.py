"""Batches in process, on the loop's own clock or on one that jumps."""

from __future__ import annotations

from typing import Any

from meeting_async import BatchReport
from support import virtual_time
from support.fake_rooms import FakeRooms, client_of


async def run(
    jobs: Any, rooms: FakeRooms, settings: dict[str, Any] | None = None, **how: Any
) -> BatchReport:
    """Run a batch to its end and return its report; each job has one outcome."""
    async with client_of(rooms, **settings or {}) as client:
        async with client.upload_many(jobs, **how) as batch:
            pass
    assert rooms.collisions == []
    assert len(statuses(batch.report)) == batch.report.total
    return batch.report


def ran(
    jobs: Any,
    rooms: FakeRooms,
    settings: dict[str, Any] | None = None,
    *,
    backend: str = "asyncio",
    **how: Any,
) -> BatchReport:
    """Do the same in virtual time."""
    return virtual_time.run(backend, lambda: run(jobs, rooms, settings, **how))


def statuses(report: BatchReport) -> list[str]:
    """Return what became of the jobs that were read, in the order of the input."""
    assert [outcome.index for outcome in report.outcomes] == list(range(report.total))
    return [outcome.status for outcome in report.outcomes]
