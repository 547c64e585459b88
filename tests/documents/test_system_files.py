"""Files that the system makes up when they are read: they have content, but no size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from meeting_async import Document
from meeting_async.errors import DocumentEmpty, DocumentError
from support.fake_rooms import FakeRooms, client_of

pytestmark = pytest.mark.anyio

MADE_UP = "/proc/self/status"

has_proc = pytest.mark.skipif(not os.path.exists(MADE_UP), reason="there is no /proc")


@pytest.fixture
def opened() -> Iterator[BinaryIO]:
    """Open one."""
    with open(MADE_UP, "rb") as file:
        yield file


@has_proc
@pytest.mark.both_loops
async def test_a_file_below_proc_is_not_called_empty(opened: BinaryIO) -> None:
    """By its path or open: the error says what is true, and nothing is sent."""
    assert (os.stat(MADE_UP).st_size, Path(MADE_UP).read_bytes()[:5]) == (0, b"Name:")
    rooms = FakeRooms()
    async with client_of(rooms) as client:
        for document in (MADE_UP, Path(MADE_UP), Document.from_path(MADE_UP), opened):
            with pytest.raises(DocumentError) as caught:
                await client.upload_whiteboard_file("room01", document)
            assert "empty" not in str(caught.value)
    assert not rooms.uploads


async def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    """A regular one, which is told from the others."""
    path = tmp_path / "deck.pdf"
    path.touch()
    async with client_of(FakeRooms()) as client:
        with pytest.raises(DocumentEmpty, match="empty"):
            await client.upload_whiteboard_file("room01", path)
