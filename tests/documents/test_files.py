"""Files: measured once, opened for each attempt, checked to the last byte."""

from __future__ import annotations

import asyncio
import bz2
import contextlib
import errno
import functools
import gc
import gzip
import io
import itertools
import lzma
import os
import socket
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from documents.sources import (
    LARGE,
    OLD,
    SMALL,
    START,
    OwnFile,
    attempt,
    before_calls,
    form_of,
    make_fifo,
    prepared_document,
    sent,
    uploaded,
)
from meeting_async.errors import (
    DocumentChanged,
    DocumentEmpty,
    DocumentTooLarge,
    DocumentUnreadable,
    MeetingError,
    ResourceExhausted,
)
from support.leaks import descriptors, temporary_files
from support.permissions import unprivileged
from support.sending import until
from support.systems import NO_SUCH_FILE

pytestmark = pytest.mark.anyio

WHOLE = 256 * 1024
"""Bytes of the largest file that is read in one call of a thread."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a large document whose time stamp is old, so that a later write shows."""
    path = tmp_path / "documents" / "deck.pdf"
    path.parent.mkdir()
    path.write_bytes(LARGE)
    os.utime(path, OLD)
    return path


def shortened(path: Path, size: int = len(SMALL)) -> Path:
    """Make a file small."""
    os.truncate(path, size)
    os.utime(path, OLD)
    return path


@pytest.fixture(params=["large", "small"])
def sized(request: pytest.FixtureRequest, path: Path) -> Path:
    """Choose the size of the document."""
    return shortened(path) if request.param == "small" else path


# --- what is not a document ----------------------------------------------------------------------


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock, contextlib.chdir(path.parent):
        sock.bind(path.name)


def _forbidden(path: Path) -> None:
    path.write_bytes(LARGE)
    path.chmod(0)


NO_DOCUMENTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (make_fifo, "not a regular file"),
    "directory": (Path.mkdir, "a directory"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), NO_SUCH_FILE),
    "loop of links": (lambda path: path.symlink_to(path), "symbolic links"),
    "socket": (_socket, "not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "nothing": (lambda _path: None, NO_SUCH_FILE),
    "forbidden": (_forbidden, "denied"),
    # It must not be called empty: the system makes it up when it is read.
    "made up": (lambda path: path.symlink_to("/proc/self/status"), "content, but no size"),
}


@pytest.mark.parametrize(("make", "said"), NO_DOCUMENTS.values(), ids=NO_DOCUMENTS)
async def test_what_is_not_a_document_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None], said: str
) -> None:
    """Anything but a readable regular file is named once and never waited for."""
    path = tmp_path / "it.pdf"
    make(path)
    before = descriptors()
    someone = unprivileged if said == "denied" else contextlib.nullcontext
    with anyio.fail_after(30), someone():
        with pytest.raises(DocumentUnreadable, match=said) as caught:
            await sent(path)
    assert caught.value.document == str(path)
    assert str(caught.value).count("it.pdf") == 1
    assert str(caught.value).count("cannot be read") == 1
    assert isinstance(caught.value.__cause__, OSError)
    assert descriptors() == before


async def test_an_open_file_without_an_end_is_refused() -> None:
    """As if its path were given."""
    with open("/dev/zero", "rb") as file, pytest.raises(DocumentUnreadable, match="not a regular"):  # noqa: ASYNC230 - a test of open files
        with anyio.fail_after(30):
            await sent(file, filename="deck.pdf")


async def test_an_impossible_path_is_unreadable() -> None:
    """Where the system raises no OSError."""
    with pytest.raises(DocumentUnreadable, match="null"):
        await sent("deck\0.pdf", filename="deck.pdf")


async def test_a_file_at_its_end_is_empty(path: Path) -> None:
    """The note says why, and what to do."""
    with path.open("rb") as file:
        for offset in (len(LARGE), len(LARGE) + 10):
            file.seek(offset)
            with pytest.raises(DocumentEmpty) as caught:
                await sent(file)
            assert "seek(0)" in caught.value.__notes__[0]


async def test_a_huge_file_is_refused_without_being_read(tmp_path: Path) -> None:
    """Nothing of a terabyte is read but its first bytes."""
    path = tmp_path / "deck.pdf"
    path.touch()
    os.truncate(path, 1 << 40)
    with anyio.fail_after(30), pytest.raises(DocumentTooLarge, match="more than"):
        await sent(path, settings={"max_size_whiteboard_file": "30MiB"})


# --- files that change ---------------------------------------------------------------------------


async def test_an_open_file_may_be_renamed_deleted_and_closed(path: Path) -> None:
    """Its bytes stay; even when another file gets the number of its descriptor."""
    other = path.with_name("other")
    other.write_bytes(b"X" * len(LARGE))
    file = path.open("rb")
    number = file.fileno()
    async with prepared_document(file) as prepared:
        path.rename(path.with_name("renamed")).unlink()
        assert await attempt(prepared) == LARGE
        async with form_of(prepared) as body:
            form = await anext(body)
            file.close()
            with other.open("rb") as taking_its_number:
                assert taking_its_number.fileno() == number
                async for chunk in body:
                    form += chunk
        assert LARGE in form


@pytest.mark.parametrize("make", [lambda path: path.open("rb"), lambda _path: OwnFile()])
async def test_a_file_that_its_owner_closes_is_unreadable(path: Path, make: Any) -> None:
    """Between two attempts."""
    file = make(path)
    async with prepared_document(file) as prepared:
        file.close()
        with pytest.raises(DocumentUnreadable, match="closed"):
            await attempt(prepared)


async def test_what_was_written_before_is_not_a_change() -> None:
    """Even what was still in the buffer of a temporary file, and gets to the disk later."""
    with tempfile.TemporaryFile() as file:
        file.write(LARGE)
        file.seek(START)
        file.write(b"new")
        async with prepared_document(file) as prepared:
            await anyio.sleep(0.02)  # more than the grain of the file system's clock
            file.flush()
            assert await attempt(prepared) == LARGE[START + 3 :]


@pytest.mark.parametrize("opening", [1, 2], ids=["measured", "sent"])
async def test_a_fifo_in_the_files_place_blocks_no_thread(
    path: Path, opening: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening it would wait for its other end for ever; none of its descriptors stays open."""
    before, openings = descriptors(), itertools.count(1)

    def swap(*_call: object) -> None:
        if next(openings) == opening:  # after a look at it, and before it is opened
            path.unlink()
            os.mkfifo(path)

    before_calls(monkeypatch, path, ["open"], swap)
    with anyio.fail_after(30), pytest.raises((DocumentChanged, DocumentUnreadable)):
        await uploaded(path)
    assert descriptors() == before


async def test_a_small_file_that_changes_while_it_is_read_is_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the reading and the check."""
    shortened(path)
    async with prepared_document(path) as prepared:
        before_calls(monkeypatch, path, ["read"], lambda *_: os.truncate(path, len(SMALL) - 1))
        with pytest.raises(DocumentChanged, match="4,999 bytes"):
            await attempt(prepared)


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("nowait", ["short", "refused", "missing"])
async def test_whatever_a_file_system_can_do_all_is_read(
    sized: Path, nowait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It returns less than was asked for; without ``RWF_NOWAIT`` only threads read."""
    content, seen, pread, preadv = sized.read_bytes(), set[int](), os.pread, os.preadv

    def short(fd: int, limit: int, offset: int) -> bytes:
        seen.add(threading.get_ident())
        return pread(fd, limit // 2 + 1, offset)

    def short_preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if nowait == "refused":
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return preadv(fd, [memoryview(buffers[0])[:9999]], offset, flags)

    monkeypatch.setattr(os, "pread", short)
    monkeypatch.setattr(os, "preadv", short_preadv)
    if nowait == "missing":
        monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    assert await uploaded(sized, 2) == content
    assert seen
    assert threading.get_ident() not in seen


async def test_a_disk_that_fails_makes_it_unreadable(
    sized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-way or at once, with the cause; an error that is kept keeps no descriptor open."""
    before, size, kept = descriptors(), sized.stat().st_size, list[DocumentUnreadable]()

    def failing(_name: str, _number: int, limit: int, offset: int) -> None:
        if limit > 32 and (offset >= size // 2 or size == len(SMALL)):
            raise OSError(errno.EIO, "Input/output error")

    before_calls(monkeypatch, sized, ["read"], failing)
    monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    try:
        await uploaded(sized)
    except DocumentUnreadable as error:
        kept.append(error)
    assert isinstance(kept[0].__cause__, OSError)
    assert kept[0].__cause__.errno == errno.EIO
    assert "Input/output error" in str(kept[0])
    await until(lambda: descriptors() == before)  # a thread closes it


async def test_no_descriptor_left_is_this_machines_trouble(sized: Path) -> None:
    """Opening fails with ``ResourceExhausted``, at preparing and at an attempt; then it goes on."""
    import resource

    content, limits = sized.read_bytes(), resource.getrlimit(resource.RLIMIT_NOFILE)
    await uploaded(sized)  # imports, threads
    async with prepared_document(sized) as prepared:
        taken = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            for trying in (attempt(prepared), uploaded(sized)):
                with pytest.raises(ResourceExhausted, match=r"deck.pdf.*Too many open files"):
                    await trying
        finally:
            for descriptor in taken:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert await attempt(prepared) == content


@pytest.mark.parametrize("kind", ["path", "open file"])
async def test_a_small_file_costs_one_call_of_a_thread(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preparing, and each attempt: it is opened, read, checked and closed there."""
    os.truncate(path, WHOLE)
    calls, wake = [], asyncio.BaseEventLoop.call_soon_threadsafe

    def counting(loop: Any, *args: Any, **how: Any) -> Any:
        calls.append(args)
        return wake(loop, *args, **how)

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", counting)
    with path.open("rb") as file:
        async with prepared_document(path if kind == "path" else file) as prepared:
            for expected in (2, 3, 4):
                assert await attempt(prepared) == LARGE[:WHOLE]
                assert len(calls) == expected


# --- file objects --------------------------------------------------------------------------------


def _raising(error: Exception) -> Callable[[int], bytes]:
    def read(_size: int) -> bytes:
        raise error

    return read


BAD_READS: dict[str, tuple[Callable[[int], Any], type[MeetingError], str]] = {
    "text": (lambda _size: "text", DocumentUnreadable, "'text' instead of bytes"),
    "too much": (lambda size: bytes(size + 1), DocumentUnreadable, "returned"),
    "nothing": (lambda _size: b"", DocumentChanged, "ended after 0 of"),
    "EOFError": (_raising(EOFError("torn archive")), DocumentUnreadable, "torn"),
    "no words": (_raising(ZeroDivisionError()), DocumentUnreadable, "ZeroDivisionError"),
}


@pytest.mark.parametrize("data", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize(("bad", "error", "said"), BAD_READS.values(), ids=BAD_READS)
async def test_bad_reads_of_a_file_object_are_named(
    bad: Any, error: type[MeetingError], said: str, data: bytes
) -> None:
    """Of an attempt, and of the first look; the position is where it was."""
    file: Any = OwnFile(data)
    async with prepared_document(file) as prepared:
        file.read = bad
        with pytest.raises(error, match=said) as caught:
            await attempt(prepared)
        assert caught.value.document == "deck.pdf"
    assert file.tell() == START
    if error is DocumentUnreadable:
        with pytest.raises(error, match=said) as caught:
            await uploaded(file)
        assert isinstance(caught.value.__cause__, Exception)


async def test_a_file_that_does_not_tell_its_position_keeps_it() -> None:
    """Nothing is put back that was never known."""
    file: Any = OwnFile(SMALL)
    file.tell = functools.partial(_raising(OSError("the share is gone")), 0)
    with pytest.raises(DocumentUnreadable, match="the share is gone"):
        await uploaded(file)
    del file.tell
    gc.collect()
    assert file.tell() == START


# --- files that are expensive to go back in -------------------------------------------------------


class Counting(io.BytesIO):
    """A packed file that counts what is read of it."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer)
        self.count += count
        return count


def _zip(data: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("deck.pdf", data)
    return packed.getvalue()


def _tar(data: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        info = tarfile.TarInfo("deck.pdf")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


PACKED: dict[str, tuple[Callable[[bytes], bytes], Callable[[Any], Any]]] = {
    "gzip": (gzip.compress, gzip.open),
    "bz2": (bz2.compress, bz2.open),
    "xz": (lzma.compress, lzma.open),
    "zip": (_zip, lambda file: zipfile.ZipFile(file).open("deck.pdf")),  # noqa: SIM115
    "tar": (_tar, lambda file: tarfile.open(fileobj=file).extractfile("deck.pdf")),  # noqa: SIM115
}


@pytest.mark.both_loops
@pytest.mark.parametrize("kind", PACKED)
async def test_a_packed_file_is_unpacked_once(kind: str) -> None:
    """For all attempts, and all rooms that get it at the same time; nothing of it stays."""
    data = b"%PDF-1.7" + os.urandom(2_000_000)
    pack, unpack = PACKED[kind]
    packed = pack(data)
    for rooms in (1, 8, 8):
        file, contents = Counting(packed), list[bytes]()

        async def upload() -> None:
            contents.append(await uploaded(document, 3))  # noqa: B023 - ends within this turn

        with unpack(file) as document:
            assert document.read(8) == data[:8]
            file.count = 0  # an archive has a list of contents
            async with anyio.create_task_group() as group:
                for _ in range(rooms):
                    group.start_soon(upload)
            assert contents == [data[8:]] * rooms
            assert document.tell() == 8
        assert file.count < 1.6 * len(packed)
        assert temporary_files() == []
