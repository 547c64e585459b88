"""What a journal knows a job by, and how it sees that a file is no longer the same."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from meeting_async import Document
from meeting_async._identity import identity_of, stamp_of, stamp_of_file

SECRET = "token=c0ffee-is-a-secret"
LINK = f"https://files.example.com/deck.pdf?{SECRET}"


def name_of(
    document: object = "deck.pdf",
    *,
    room: str = "room01",
    filename: str | None = None,
    key: str | None = None,
) -> str:
    """Name the job that uploads something."""
    return identity_of(room, Document.of(document, filename=filename), key)


def file_with(path: Path, content: bytes, *, mtime: float | None = None) -> str | None:
    """Write a file and return its stamp."""
    path.write_bytes(content)
    if mtime is not None:
        os.utime(path, (mtime, mtime))
    return stamp_of(Document.of(path))


def test_the_same_job_has_the_same_name_each_time() -> None:
    """Whatever objects it is made of, and in whatever process: nothing in it is random."""
    assert name_of("deck.pdf") == name_of(Path("deck.pdf"))
    assert name_of(b"%PDF", filename="a.pdf") == name_of(bytearray(b"%PDF"), filename="a.pdf")
    assert name_of(Document.from_link(LINK)) == name_of(Document.from_link(LINK))
    assert name_of("deck.pdf") == '["room01", "deck.pdf", "path", "deck.pdf"]'


def test_jobs_that_differ_have_different_names() -> None:
    """By room, by name, by path, by content, by link, by kind."""
    names = [
        name_of(),
        name_of(room="room02"),
        name_of("other.pdf"),
        name_of("folder/deck.pdf"),
        name_of(filename="slides.pdf"),
        name_of(b"%PDF", filename="deck.pdf"),
        name_of(b"%PDF-1.7", filename="deck.pdf"),
        name_of(Document.from_link(LINK)),
        name_of(Document.from_link(LINK + "0")),
        name_of(stream(), filename="deck.pdf"),
        name_of(key="deck.pdf"),
        name_of(key="7"),
    ]
    assert len(set(names)) == len(names)


def test_parts_cannot_run_into_each_other() -> None:
    """A quote or a comma in a room's id makes no other job of it."""
    assert name_of(room='r", "deck.pdf') != name_of(room="r", filename='deck.pdf", "deck.pdf')
    assert name_of(key='["room01", "deck.pdf", "path", "deck.pdf"]') != name_of()


def test_a_key_is_all_that_counts() -> None:
    """A row of a table stays the same row, whatever is in it now."""
    assert name_of(key="7") == name_of("other.pdf", room="room02", key="7")


def test_a_name_holds_no_secret_and_can_be_stored() -> None:
    """A link's query may be a credential; a path may be no Unicode text; a key may be anything."""
    assert "c0ffee" not in name_of(Document.from_link(LINK))
    odd = name_of(os.fsdecode(b"\xff/deck.pdf"), key=None)
    for name in (odd, name_of(key="\ud800 \0 é"), name_of("f\u00fcr/deck.pdf")):
        assert name.isascii()
        assert name.isprintable()


async def stream() -> AsyncIterator[bytes]:
    """Yield a document."""
    yield b"%PDF"


@pytest.mark.anyio
async def test_a_measured_file_has_the_stamp_of_the_file(tmp_path: Path) -> None:
    """So that what was sent is compared with what is there later; other documents have none."""
    deck = tmp_path / "deck.pdf"
    deck.write_bytes(b"%PDF-1.7")
    document = Document.from_path(deck)
    async with document.held(max_size=None, allow_images=False) as held:
        there = await anyio.to_thread.run_sync(stamp_of, document)
        assert stamp_of_file(document, held.measure) == there
        assert there is not None
    document = Document.from_bytes(b"%PDF-1.7", "deck.pdf")
    async with document.held(max_size=None, allow_images=False) as held:
        assert stamp_of_file(document, held.measure) is None


def test_what_is_no_file_has_no_stamp() -> None:
    """Bytes are their own; a link and a stream cannot be asked."""
    documents = [b"%PDF", stream(), io.BytesIO(b"%PDF")]
    assert [stamp_of(Document.of(one, filename="a.pdf")) for one in documents] == [None] * 3
    assert stamp_of(Document.from_link(LINK)) is None


def test_a_file_that_is_left_alone_keeps_its_stamp(tmp_path: Path) -> None:
    """To read it changes nothing."""
    path = tmp_path / "deck.pdf"
    stamp = file_with(path, b"%PDF-1.7")
    assert stamp is not None
    assert path.read_bytes() == b"%PDF-1.7"
    assert stamp_of(Document.of(path)) == stamp_of(Document.of(str(path))) == stamp


def test_a_file_that_is_written_again_has_another_stamp(tmp_path: Path) -> None:
    """One of another size, at the same second; one of the same size, later; one replaced."""
    path = tmp_path / "deck.pdf"
    stamps = [
        file_with(path, b"%PDF-1.7", mtime=1_700_000_000),
        file_with(path, b"%PDF-1.77", mtime=1_700_000_000),
        file_with(path, b"%PDF-1.8", mtime=1_700_000_001),
        file_with(path, b"%PDF-1.9", mtime=1_700_000_002.000001),
    ]
    assert len(set(stamps)) == len(stamps)


def test_a_touched_file_counts_as_changed(tmp_path: Path) -> None:
    """Nobody can tell without reading it all; to ask is better than to be wrong."""
    path = tmp_path / "deck.pdf"
    stamp = file_with(path, b"%PDF-1.7", mtime=1_700_000_000)
    os.utime(path, (1_700_000_007, 1_700_000_007))
    assert stamp_of(Document.of(path)) != stamp


@pytest.mark.parametrize("name", ["gone.pdf", "a\0b.pdf", "x" * 300 + ".pdf", "file/deck.pdf"])
def test_a_file_that_cannot_be_asked_has_no_stamp(tmp_path: Path, name: str) -> None:
    """The upload will say why."""
    (tmp_path / "file").touch()
    document = Document.of(f"{tmp_path}/{name}", filename="deck.pdf")
    assert stamp_of(document) is None
