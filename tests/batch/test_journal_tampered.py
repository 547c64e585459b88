"""A journal whose files somebody else changes stops its batch before the next document."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from meeting_async import BatchReport, UploadJob
from meeting_async.errors import JournalError
from support.fake_rooms import FakeRooms, Visit
from support.journal_files import files_of, running_batch

pytestmark = pytest.mark.anyio

JOBS = [UploadJob("room01", b"%PDF-1.7", filename=f"{number}.pdf") for number in range(6)]


def _delete(path: Path) -> None:
    path.unlink()


def _move_away(path: Path) -> None:
    path.rename(path.with_name("moved"))


def _replace(path: Path) -> None:
    """Put a copy in its place, as programs that synchronise folders do."""
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name(f"{path.parent.name} moved"))


REST_SECONDS = 0.5
"""By then the outcome of the third document is written. A file that shrinks amid a write, which
makes it as long as it should be, cannot be told from an intact one."""

CHANGES = [_delete, _move_away, _replace, _empty, _halve, _move_folder]
Change = Callable[[Path], None]
Strike = Callable[[], Awaitable[object]]


class StruckRooms(FakeRooms):
    """Rooms with which something else happens when the fourth document is about to be sent."""

    def __init__(self, strike: Strike) -> None:
        super().__init__()
        self._strike = strike

    async def send(self, request: Any, /) -> Any:
        """Strike before any byte of the fourth document is taken, once the journal is at rest."""
        if not isinstance(request.body, bytes) and len(self.uploads) == 3:
            await anyio.sleep(REST_SECONDS)
            await self._strike()
        return await super().send(request)


def struck_at_end(strike: Strike) -> FakeRooms:
    """Make rooms with which something happens when the third document was sent to its end."""

    async def at_end(_visit: Visit) -> None:
        if len(rooms.uploads) == 3:
            await strike()

    rooms = FakeRooms(at_end=at_end)
    return rooms


WHEN: dict[str, Callable[[Strike], FakeRooms]] = {
    "after the third document": struck_at_end,
    "at the fourth document": StruckRooms,
}


async def run_touched(path: Path, change: Change, when: str) -> BatchReport:
    """Run a batch of six documents; a file changes around the third. See what was sent."""

    async def strike() -> None:
        await anyio.to_thread.run_sync(change, path)

    rooms = WHEN[when](strike)
    journal = path.with_name("term.db")
    async with running_batch(journal, JOBS, rooms, concurrency=1) as batch:
        report = await batch.wait()
    complete = [visit.name for visit in rooms.uploads if visit.is_complete]
    assert complete == ["0.pdf", "1.pdf", "2.pdf"]
    return report


def check_stopped(report: BatchReport) -> None:
    """See that the journal stopped the batch, and that nothing was tried after that."""
    assert isinstance(report.stopped_by, JournalError)
    statuses = [outcome.status for outcome in report.outcomes]
    assert statuses[:3] == ["accepted"] * 3
    assert statuses[3] in {"failed", "skipped"}
    assert statuses[4:] == ["skipped"] * 2


CASES = [
    pytest.param(
        end, change, when, marks=() if (number + turn) % 2 == bool(end) else pytest.mark.nightly
    )
    for end in ("", "-wal")
    for number, change in enumerate(CHANGES)
    for turn, when in enumerate(WHEN)
]
"""All there are; by day each change of each file at one of the two moments."""


@pytest.mark.parametrize(("end", "change", "when"), CASES)
async def test_a_file_that_changes_stops_the_batch(
    tmp_path: Path, end: str, change: Change, when: str
) -> None:
    """Deleted, replaced or truncated, file or log: no other document is sent to its end."""
    check_stopped(await run_touched(tmp_path / f"term.db{end}", change, when))


@pytest.mark.both_loops
async def test_every_file_counts(tmp_path: Path) -> None:
    """Whatever files a journal has while a batch runs: each of them stops it."""
    ends: list[str] = []

    async def look(_visit: Visit) -> None:
        ends[:] = await anyio.to_thread.run_sync(files_of, tmp_path / "first.db")

    rooms = FakeRooms(at_end=look)
    async with running_batch(tmp_path / "first.db", JOBS[:1], rooms) as batch:
        await batch.wait()
    assert set(ends) >= {"", "-wal"}
    for end in ends:
        folder = tmp_path / f"without {end}"
        folder.mkdir()
        path = folder / f"term.db{end}"
        check_stopped(await run_touched(path, _delete, "at the fourth document"))
