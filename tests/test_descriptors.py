"""Descriptors: one buffer, fresh bytes, closed by whoever uses them last."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from _peer import descriptors
from meeting_async._descriptors import Descriptor, read_at
from meeting_async.errors import DocumentUnreadable

DATA = bytes(range(256)) * 1000
LIMIT = 100_000

pytestmark = pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="Linux only")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a file, which is then in the page cache."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(DATA)
    return path


def opened(path: Path) -> Descriptor:
    """Open a file."""
    descriptor = Descriptor("deck.pdf")
    descriptor.open(lambda: os.open(path, os.O_RDONLY))
    return descriptor


def test_bytes_at_hand_are_fresh(path: Path) -> None:
    """What was handed on does not change with the next read, however the buffer is used."""
    descriptor = opened(path)
    first = descriptor.at_hand(LIMIT, 0)
    second = descriptor.at_hand(LIMIT, LIMIT)
    last = descriptor.at_hand(LIMIT, 200_000)
    descriptor.close()
    assert type(first) is bytes
    assert (first, second, last) == (DATA[:LIMIT], DATA[LIMIT : 2 * LIMIT], DATA[200_000:])


def test_one_buffer_serves_all_reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one for each would cost its zeros."""
    buffers = []
    preadv = os.preadv

    def noting(fd: int, views: Any, *rest: Any) -> int:
        buffers.append(views[0].obj)
        return preadv(fd, views, *rest)

    monkeypatch.setattr(os, "preadv", noting)
    descriptor = opened(path)
    for offset in range(0, 200_000, 10_000):
        assert descriptor.at_hand(10_000, offset) == DATA[offset : offset + 10_000]
    descriptor.close()
    assert len(set(map(id, buffers))) == 1


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EOPNOTSUPP, errno.EIO])
def test_what_is_not_at_hand_is_for_a_thread(
    path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the file system cannot tell, or fails: the thread finds out."""

    def refusing(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "preadv", refusing)
    descriptor = opened(path)
    assert descriptor.at_hand(LIMIT, 0) is None
    assert descriptor.fetch(LIMIT, 0) == DATA[:LIMIT]
    descriptor.close()


def test_the_end_is_for_a_thread_to_confirm(path: Path) -> None:
    """Nothing at hand is no proof that nothing is there."""
    descriptor = opened(path)
    assert descriptor.at_hand(LIMIT, len(DATA)) is None
    assert descriptor.fetch(LIMIT, len(DATA)) == b""
    descriptor.close()


def test_errors_are_mapped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails makes the document unreadable."""

    def failing(*_: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", failing)
    descriptor = opened(path)
    with pytest.raises(DocumentUnreadable, match="Input/output error"):
        descriptor.fetch(LIMIT, 0)
    descriptor.close()


def test_a_closed_one_says_so(path: Path) -> None:
    """Closing twice is fine."""
    before = descriptors()
    descriptor = opened(path)
    descriptor.close()
    descriptor.close()
    with pytest.raises(DocumentUnreadable, match="closed meanwhile"):
        descriptor.fetch(LIMIT, 0)
    assert descriptors() == before


@pytest.mark.parametrize("stage", ["opening", "reading"])
def test_whoever_is_last_closes(path: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that outlives its task reads from its own file to the end, and closes it."""
    before, started, go_on = descriptors(), threading.Event(), threading.Event()

    def held() -> None:
        started.set()
        assert go_on.wait(5)

    def open_slowly() -> int:
        if stage == "opening":
            held()
        return os.open(path, os.O_RDONLY)

    def read_slowly(fd: int) -> bytes:
        if stage == "reading":
            held()
        return read_at(fd, 10, 0)

    descriptor, result = Descriptor("deck.pdf"), []

    def work() -> None:
        descriptor.open(open_slowly)
        if stage == "reading":
            result.append(descriptor.use(read_slowly))

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(5)
    descriptor.close()
    go_on.set()
    thread.join(5)
    assert result == ([DATA[:10]] if stage == "reading" else [])
    assert descriptors() == before
