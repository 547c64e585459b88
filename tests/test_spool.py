"""The spool: in memory while small, then on disk, written in threads, never left behind."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from _peer import descriptors
from _streams import content_of, temporary_files
from meeting_async import _spool
from meeting_async._files import PathSource
from meeting_async._pace import CHUNK_BYTES
from meeting_async._sources import BytesSource
from meeting_async._spool import MEMORY_BYTES, Spool
from meeting_async.errors import DocumentChanged, DocumentTooLarge, DocumentUnreadable

pytestmark = pytest.mark.anyio

CHUNK = os.urandom(CHUNK_BYTES)


@pytest.fixture(autouse=True)
def _own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """See that no test leaves a file behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    assert temporary_files() == []


async def filled(chunks: int, max_size: int | None = None, more: bytes = b"") -> Spool:
    """Make a spool of some chunks."""
    spool = Spool("deck.pdf", max_size)
    for _ in range(chunks):
        await spool.add(CHUNK)
    if more:
        await spool.add(more)
    return spool


@pytest.mark.parametrize(("more", "kind"), [(b"", BytesSource), (b"x", PathSource)])
async def test_up_to_1_mib_it_is_in_memory(more: bytes, kind: type) -> None:
    """One byte more is the temporary file's."""
    spool = await filled(MEMORY_BYTES // CHUNK_BYTES, more=more)
    source = await spool.finished()
    assert type(source) is kind
    assert len(temporary_files()) == (kind is PathSource)
    assert await content_of(source) == CHUNK * 4 + more
    await spool.aclose()


@pytest.mark.parametrize("chunks", [5, 6, 9, 40])
async def test_what_went_in_comes_out(chunks: int) -> None:
    """All of it, as often as it is read, and no descriptor stays open meanwhile."""
    before = descriptors()
    spool = await filled(chunks, more=b"the end")
    source = await spool.finished()
    assert descriptors() == before
    for _ in range(2):
        assert await content_of(source) == CHUNK * chunks + b"the end"
    await spool.aclose()
    assert descriptors() == before


async def test_only_its_owner_may_read_it() -> None:
    """A document may be confidential."""
    spool = await filled(5)
    (path,) = temporary_files()
    assert path.stat().st_mode & 0o777 == 0o600
    await spool.aclose()


async def test_it_is_written_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """And deleted in one: a disk may be slow."""
    threads: set[int] = set()

    def noting(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            threads.add(threading.get_ident())
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(tempfile, "mkstemp", noting(tempfile.mkstemp))
    monkeypatch.setattr(os, "unlink", noting(os.unlink))
    monkeypatch.setattr(_spool, "open", noting(open), raising=False)
    spool = await filled(6)
    await spool.finished()
    await spool.aclose()
    assert threads
    assert threading.get_ident() not in threads


async def test_the_limit_is_checked_with_each_piece() -> None:
    """In memory and on disk, and the byte that is too much is not kept."""
    for chunks in (2, 7):
        spool = await filled(chunks, max_size=chunks * CHUNK_BYTES)
        with pytest.raises(DocumentTooLarge):
            await spool.add(b"x")
        await spool.aclose()


async def test_a_full_disk_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its cause, and without a file."""

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_spool, "open", full, raising=False)
    spool = Spool("deck.pdf", None)
    with pytest.raises(DocumentUnreadable, match="No space left") as caught:
        await spool.add(CHUNK * 5)
    assert isinstance(caught.value.__cause__, OSError)
    monkeypatch.undo()
    await spool.aclose()


async def test_a_spool_that_somebody_deleted_is_a_change() -> None:
    """By the document's name, not by that of the spool."""
    spool = await filled(5)
    source = await spool.finished()
    measure = await source.measure()
    temporary_files()[0].unlink()
    with pytest.raises(DocumentChanged) as caught:
        async with source.open(measure):
            pass
    assert caught.value.document == "deck.pdf"
    await spool.aclose()


async def test_a_spool_that_cannot_be_deleted_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An upload that has succeeded stays so."""
    spool = await filled(5)
    (path,) = temporary_files()
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", lambda _path: (_ for _ in ()).throw(PermissionError(13, "no")))
        await spool.aclose()
    assert str(path) in caplog.text
    path.unlink()


@pytest.mark.parametrize("calls", [1, 2])
def test_whoever_is_last_deletes(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that outlives its task, as asyncio's cancellation does not wait for threads."""
    file, started, go_on = _spool._TemporaryFile(), threading.Event(), threading.Event()
    mkstemp = tempfile.mkstemp

    def slow(*args: Any, **kwargs: Any) -> Any:
        started.set()
        assert go_on.wait(5)
        return mkstemp(*args, **kwargs)

    monkeypatch.setattr(tempfile, "mkstemp", slow)
    thread = threading.Thread(target=file.append, args=(bytearray(CHUNK),))
    thread.start()
    assert started.wait(5)
    for _ in range(calls):
        file.delete()
    go_on.set()
    thread.join(5)
    assert temporary_files() == []
    file.append(bytearray(CHUNK))  # nor does one that comes later bring it back
    assert temporary_files() == []


async def test_closing_is_shielded() -> None:
    """A cancelled upload deletes its spool, too."""
    spool = await filled(5)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await spool.aclose()
    assert temporary_files() == []


async def test_closing_twice_and_early_is_fine() -> None:
    """A spool that was never used, or is closed already."""
    for chunks in (0, 1, 5):
        spool = await filled(chunks)
        await spool.aclose()
        await spool.aclose()


async def test_its_content_is_not_shown() -> None:
    """Only where it is, and how much."""
    spool = await filled(1)
    assert repr(spool) == f"<Spool, {CHUNK_BYTES} bytes in memory>"
