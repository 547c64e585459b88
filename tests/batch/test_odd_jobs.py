"""A job that cannot be sent is one outcome of its batch, whatever is odd about it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meeting_async import UploadJob
from support.fake_rooms import FakeRooms
from support.journal_files import running_batch

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

PDF = b"%PDF-1.7"
LATIN = os.fsdecode(b"w\xf6che.pdf")
"""A name as an old archive brings it: not UTF-8."""


class Raising(io.BytesIO):
    """A file of a program of yours that raises at an attribute or a method."""

    def __init__(self, where: str) -> None:
        super().__init__(PDF)
        self.where = where

    def __getattribute__(self, name: str) -> Any:
        """Raise for one name."""
        if name == object.__getattribute__(self, "__dict__").get("where"):
            raise ZeroDivisionError(name)
        return super().__getattribute__(name)


ODD: dict[str, Callable[[Path], UploadJob]] = {
    "a path that is not UTF-8": lambda folder: UploadJob("odd", folder / LATIN),
    "as text": lambda folder: UploadJob("odd", str(folder / LATIN)),
    "with a name": lambda folder: UploadJob("odd", folder / LATIN, filename="week.pdf"),
    "with a key": lambda folder: UploadJob("odd", folder / LATIN, key="week"),
    "a name that is not UTF-8": lambda _: UploadJob("odd", PDF, filename="w\udcf6che.pdf"),
    "half a character": lambda _: UploadJob("odd", PDF, filename="\ud83d.pdf"),
    "a room that is not UTF-8": lambda _: UploadJob("o\udcf6d", PDF, filename="a.pdf"),
    "a key that is not UTF-8": lambda _: UploadJob("odd", PDF, filename="a.pdf", key="\udcf6"),
    "a file that is not there": lambda folder: UploadJob("odd", folder / "nowhere.pdf"),
    "a link to itself": lambda folder: UploadJob("odd", folder / "loop.pdf"),
    "a file whose name raises": lambda _: UploadJob("odd", Raising("name")),
    "a file that cannot be read": lambda _: UploadJob("odd", Raising("read"), filename="a.pdf"),
    "a file that cannot seek": lambda _: UploadJob("odd", Raising("seek"), filename="a.pdf"),
    "a file without an end": lambda _: UploadJob("odd", Raising("tell"), filename="a.pdf"),
}


async def test_each_odd_job_is_one_outcome(tmp_path: Path) -> None:
    """With a journal: the others are delivered, once, and the next run says the same."""
    tmp_path.joinpath(LATIN).write_bytes(PDF)
    tmp_path.joinpath("loop.pdf").symlink_to("loop.pdf")
    for already in (0, len(ODD) + 1):
        good = [UploadJob(f"room{n % 3}", PDF, filename=f"{n}.pdf") for n in range(len(ODD) + 1)]
        odd = [make(tmp_path) for make in ODD.values()]
        jobs = [job for pair in zip(odd, good, strict=False) for job in pair] + good[-1:]
        rooms = FakeRooms()
        async with running_batch(tmp_path / "term.db", jobs, rooms) as batch:
            outcomes = sorted([one async for one in batch], key=lambda one: one.index)
        assert [outcome.index for outcome in outcomes] == list(range(len(jobs)))
        assert batch.report.stopped_by is None
        assert batch.report.already_delivered >= already
        for outcome, job in zip(outcomes, jobs, strict=True):
            if job in good:
                assert outcome.delivered
            elif not outcome.delivered:
                assert outcome.status in {"refused", "failed"}
                assert outcome.error is not None
                assert str(outcome.error).isprintable()
