"""Batches in process, on the loop's own clock or on one that jumps; and jobs for them."""

from __future__ import annotations

from typing import Any

from meeting_async import BatchReport, UploadJob
from meeting_async.testing import run_in_virtual_time
from support.documents import PDF
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
    return run_in_virtual_time(lambda: run(jobs, rooms, settings, **how), backend=backend)


def statuses(report: BatchReport) -> list[str]:
    """Return what became of the jobs that were read, in the order of the input."""
    assert [outcome.index for outcome in report.outcomes] == list(range(report.total))
    return [outcome.status for outcome in report.outcomes]


def job(room: str, number: int = 0, document: Any = PDF, **facts: Any) -> UploadJob:
    """Make a job whose document has a name of its own."""
    return UploadJob(room, document, filename=facts.pop("name", f"{room}-{number}.pdf"), **facts)


def jobs_for(rooms: int, each: int) -> list[UploadJob]:
    """Make jobs for so many rooms in turn."""
    return [job(f"room{room:02}", number) for number in range(each) for room in range(rooms)]
