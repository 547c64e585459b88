"""A journal that an earlier edition wrote is read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from meeting_async import BatchReport, Document, MeetingClient, UploadJob
from support.fake_rooms import FakeRooms

JOURNAL = Path(__file__).parent / "fixtures/format-2.db"
"""Made by the edition before 0.2.0, at http://localhost: two documents accepted, one unknown."""

JOBS = [
    UploadJob(room, Document.from_bytes(content, name), key=key)
    for room, content, name, key in (
        ("room01", b"%PDF-1.7 one", "one.pdf", "first"),
        ("room02", b"%PDF-1.7 two", "two.pdf", "second"),
        ("room03", b"%PDF-1.7 three", "three.pdf", "third"),
        ("room03", b"%PDF-1.7 four", "four.pdf", "fourth"),
    )
]


async def run(path: Path, rooms: FakeRooms) -> BatchReport:
    """Run the batch with a journal."""
    keys: Any = {"api_key": "devkey", "api_secret": "devsecret"}
    async with MeetingClient("http://localhost", **keys, transport=rooms) as client:
        async with client.upload_many(JOBS, journal=path) as running:
            return await running.wait()


@pytest.mark.anyio
async def test_the_journal_of_an_earlier_edition_is_read(tmp_path: Path) -> None:
    """What it knows counts: nothing that was accepted, or may have been, is sent again."""
    path = Path(shutil.copy(JOURNAL, tmp_path / "term.db"))
    rooms = FakeRooms()
    report = await run(path, rooms)
    statuses = [outcome.status for outcome in report.outcomes]
    assert statuses == ["skipped", "skipped", "unknown", "accepted"]
    assert report.already_delivered == 2
    assert [visit.name for visit in rooms.uploads] == ["four.pdf"]
