"""Files on disk: measured once, opened for each attempt, checked to the last byte."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import errno
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import pytest

from _peer import descriptors
from _streams import largest_gap
from meeting_async import _threads
from meeting_async._files import OpenFileSource, PathSource
from meeting_async._limits import HEAD_BYTES
from meeting_async._multipart import MultipartBody, plan_document
from meeting_async._pace import CHUNK_BYTES
from meeting_async._sources import Content, Measure
from meeting_async.errors import DocumentChanged, DocumentUnreadable

pytestmark = pytest.mark.anyio

SIZE = 700_000
"""Three chunks of an upload."""

DATA = bytes(range(256)) * (SIZE // 256) + b"the end of it"

FREE_GAP = 0.020
"""Seconds for which the loop may at most stand still."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a document whose time stamp is old, so that any later write shows."""
    path = tmp_path / "documents" / "deck.pdf"
    path.parent.mkdir()
    path.write_bytes(DATA)
    os.utime(path, (1_600_000_000, 1_600_000_000))
    return path


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Be nobody for a moment, as permissions do not bind root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


async def read_all(source: Content, measure: Measure, limit: int = 100_000) -> bytes:
    """Read a source to its end and let it say that it is unchanged."""
    content = bytearray()
    async with source.open(measure) as reader:
        while chunk := await reader.read(limit):
            assert len(chunk) <= limit
            content += chunk
        await reader.finish()
    return bytes(content)


class Form:
    """A form made of a source, as an upload sends it, with something happening on the way."""

    def __init__(self, source: Content, measure: Measure) -> None:
        self.source = source
        self.measure = measure
        self.sent = bytearray()
        self.complete = False

    async def send(self, happening: Callable[[], object], *, at: int) -> None:
        """Take the form's chunks; ``happening`` happens when chunk number ``at`` has been taken."""
        plan = plan_document("deck.pdf", "application/pdf", self.measure.size, boundary="b" * 32)
        async with self.source.open(self.measure) as reader:
            body = MultipartBody(plan, reader)
            async with contextlib.aclosing(body):
                number = 0
                async for chunk in body:
                    self.sent += chunk
                    self.complete = body.complete
                    if number == at:
                        happening()
                    number += 1


# Files that stay as they are


async def test_a_file_is_measured(path: Path) -> None:
    """Size and first bytes are found out without keeping the file open."""
    before = descriptors()
    measure = await PathSource(str(path)).measure()
    assert (measure.size, measure.head) == (len(DATA), DATA[:HEAD_BYTES])
    assert descriptors() == before


@pytest.mark.parametrize("limit", [1 << 20, 65536, 99_999])
async def test_a_file_is_read_afresh_each_time(path: Path, limit: int) -> None:
    """Every opening reads the same bytes from the start, in reads of any size."""
    source = PathSource(str(path))
    measure = await source.measure()
    assert await read_all(source, measure, limit) == DATA
    assert await read_all(source, measure, limit) == DATA


async def test_a_file_that_is_not_in_memory_is_read(path: Path) -> None:
    """What the operating system has to fetch from the disk arrives complete."""
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    source = PathSource(str(path))
    measure = await source.measure()
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    assert await read_all(source, measure) == DATA


async def test_a_system_without_nowait_reads_in_threads(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system promises nothing, no byte is read on the loop's thread."""
    monkeypatch.delattr(os, "RWF_NOWAIT")
    threads: set[int] = set()
    pread = os.pread

    def noting(fd: int, limit: int, offset: int) -> bytes:
        threads.add(threading.get_ident())
        return pread(fd, limit, offset)

    monkeypatch.setattr(os, "pread", noting)
    source = PathSource(str(path))
    assert await read_all(source, await source.measure()) == DATA
    assert threads
    assert threading.get_ident() not in threads


async def test_short_reads_are_put_together(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that returns less than was asked for loses nothing."""
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, limit, offset: pread(fd, min(limit, 777), offset))
    monkeypatch.setattr(
        os,
        "preadv",
        lambda fd, buffers, offset, flags=0: preadv(
            fd, [memoryview(buffers[0])[:999]], offset, flags
        ),
    )
    source = PathSource(str(path))
    assert await read_all(source, await source.measure()) == DATA


async def test_a_symbolic_link_is_followed(path: Path) -> None:
    """A link to a document is that document."""
    link = path.with_name("link.pdf")
    link.symlink_to(path)
    source = PathSource(str(link))
    assert await read_all(source, await source.measure()) == DATA


async def test_a_file_held_by_a_file_server_is_read(path: Path) -> None:
    """A lease, as Samba takes it for its clients, delays the opening and does not fail it."""
    holder = (
        "import fcntl, os, signal, sys, time\n"
        "fd = os.open(sys.argv[1], os.O_RDWR)\n"
        "signal.signal(signal.SIGIO, lambda *_: (time.sleep(0.1), os._exit(0)))\n"
        "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
        "print('held', flush=True)\n"
        "time.sleep(10)\n"
    )
    async with await anyio.open_process([sys.executable, "-c", holder, str(path)]) as process:
        assert process.stdout
        assert (await process.stdout.receive()).startswith(b"held")
        try:
            measure = await PathSource(str(path)).measure()
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has given up the lease
                process.kill()
    assert measure.size == len(DATA)


# What is no document


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.mkdir()


def _dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock, contextlib.chdir(path.parent):
        sock.bind(path.name)


def _zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _nothing(_path: Path) -> None:
    pass


def _forbidden(path: Path) -> None:
    path.write_bytes(DATA)
    path.chmod(0)


NO_DOCUMENTS = [_fifo, _directory, _dangling, _loop, _socket, _zeros, _nothing, _forbidden]


@pytest.mark.parametrize("make", NO_DOCUMENTS, ids=lambda make: make.__name__)
async def test_what_is_no_document_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """Anything but a readable regular file is named and never waited for."""
    path = tmp_path / "it.pdf"
    make(path)
    before = descriptors()
    with anyio.fail_after(2), unprivileged(), pytest.raises(DocumentUnreadable) as caught:
        await PathSource(str(path)).measure()
    assert caught.value.document == str(path)
    assert caught.value.reason
    assert descriptors() == before


async def test_nul_in_a_path_is_refused() -> None:
    """The operating system's ValueError becomes ours."""
    with pytest.raises(DocumentUnreadable, match="null"):
        await PathSource("deck\0.pdf").measure()


async def test_the_cause_is_kept(tmp_path: Path) -> None:
    """What the operating system said is the cause, for those who want its errno."""
    with pytest.raises(DocumentUnreadable, match="No such file") as caught:
        await PathSource(str(tmp_path / "deck.pdf")).measure()
    assert isinstance(caught.value.__cause__, FileNotFoundError)


# Files that change


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _shrink(path: Path) -> None:
    os.truncate(path, SIZE // 2)


def _shrink_by_one(path: Path) -> None:
    os.truncate(path, len(DATA) - 1)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _delete(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(DATA)
    os.utime(other, ns=(path.stat().st_mtime_ns,) * 2)
    other.replace(path)


def _rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"X" * len(DATA))


def _rewrite_the_end(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"X")


def _rewrite_and_restore_time(path: Path) -> None:
    """As ``cp --preserve`` and ``rsync --inplace --times`` do."""
    stamp = path.stat().st_mtime_ns
    _rewrite(path)
    os.utime(path, ns=(stamp, stamp))


def _shrink_and_grow_back(path: Path) -> None:
    os.truncate(path, 10)
    path.write_bytes(DATA[::-1])


def _to_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _to_zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _to_link(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(DATA)
    path.unlink()
    path.symlink_to(other)


def _parent_gone(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def _parent_swapped(path: Path) -> None:
    """Nothing of the file itself changes; another one has its path."""
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.mkdir()
    path.write_bytes(DATA)


def _parent_to_file(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.write_bytes(b"")


def _take_permissions(path: Path) -> None:
    path.chmod(0)


CHANGES = [
    _grow,
    _shrink,
    _shrink_by_one,
    _empty,
    _delete,
    _replace,
    _rewrite,
    _rewrite_the_end,
    _rewrite_and_restore_time,
    _shrink_and_grow_back,
    _to_directory,
    _to_fifo,
    _to_zeros,
    _to_link,
    _parent_gone,
    _parent_swapped,
    _parent_to_file,
]
change_them = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)


@change_them
async def test_a_change_before_the_opening_is_noticed(
    path: Path, change: Callable[[Path], None]
) -> None:
    """A file that is not the one that was measured is not even opened for an attempt."""
    source = PathSource(str(path))
    measure = await source.measure()
    change(path)
    form, before = Form(source, measure), descriptors()
    with anyio.fail_after(2), pytest.raises((DocumentChanged, DocumentUnreadable)) as caught:
        await form.send(lambda: None, at=-1)
    assert str(path) in str(caught.value)
    assert form.sent == b""
    assert descriptors() == before


@change_them
@pytest.mark.parametrize("at", [1, 3], ids=["midway", "at the end"])
async def test_a_change_during_the_reading_is_noticed(
    path: Path, change: Callable[[Path], None], at: int
) -> None:
    """Whatever happens to the file on the way, the closing boundary never goes out."""
    source = PathSource(str(path))
    form, before = Form(source, await source.measure()), descriptors()
    with anyio.fail_after(2), pytest.raises((DocumentChanged, DocumentUnreadable)):
        await form.send(lambda: change(path), at=at)
    assert not form.complete
    assert not form.sent.endswith(b"--\r\n")
    assert descriptors() == before


async def test_a_changed_symbolic_link_is_noticed(path: Path) -> None:
    """A link that is made to point elsewhere is another document."""
    link, other = path.with_name("link.pdf"), path.with_name("other.pdf")
    link.symlink_to(path)
    _replace(path)
    other.write_bytes(DATA)
    source = PathSource(str(link))
    measure = await source.measure()
    link.unlink()
    link.symlink_to(other)
    with pytest.raises(DocumentChanged, match="another file"):
        await read_all(source, measure)


async def test_permissions_that_are_taken_away_are_noticed(path: Path) -> None:
    """A file that may no longer be read is unreadable, with the reason."""
    source = PathSource(str(path))
    measure = await source.measure()
    _take_permissions(path)
    with unprivileged(), pytest.raises(DocumentUnreadable, match="denied") as caught:
        await read_all(source, measure)
    assert isinstance(caught.value.__cause__, PermissionError)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_grow, f"{len(DATA) + 4:,} bytes instead of {len(DATA):,}"),
        (_shrink, f"{SIZE // 2:,} bytes instead of {len(DATA):,}"),
        (_delete, "gone"),
        (_replace, "another file"),
        (_rewrite, "written to"),
    ],
)
async def test_the_error_says_what_changed(
    path: Path, change: Callable[[Path], None], said: str
) -> None:
    """The message names the difference."""
    source = PathSource(str(path))
    measure = await source.measure()
    change(path)
    with pytest.raises(DocumentChanged, match=said):
        await read_all(source, measure)


def _is_document(path: Path, form: bytearray) -> bool:
    return path.is_file() and path.read_bytes() + b"\r\n--" in form


def before_the_next_opening(
    monkeypatch: pytest.MonkeyPatch, happening: Callable[[], object]
) -> None:
    """Let something happen between a look at a file and its opening, whichever way it is opened."""

    def patched(opened: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.undo()
            happening()
            return opened(*args, **kwargs)

        return call

    monkeypatch.setattr(os, "open", patched(os.open))
    monkeypatch.setattr(builtins, "open", patched(builtins.open))


@pytest.mark.parametrize("stage", ["measuring", "opening"])
@pytest.mark.parametrize("change", [_grow, _shrink, _replace, _to_zeros, _to_directory])
async def test_a_change_between_look_and_opening_is_noticed(
    path: Path, change: Callable[[Path], None], stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes between two looks at it is never delivered cut or mixed."""
    source = PathSource(str(path))
    if stage == "measuring":
        before_the_next_opening(monkeypatch, lambda: change(path))
    try:
        form = Form(source, await source.measure())
        if stage == "opening":
            before_the_next_opening(monkeypatch, lambda: change(path))
        await form.send(lambda: None, at=-1)
    except (DocumentChanged, DocumentUnreadable):
        return
    assert stage == "measuring"
    assert not form.sent or _is_document(path, form.sent)


@pytest.mark.alone
@pytest.mark.parametrize("stage", ["measuring", "opening"])
async def test_a_fifo_in_the_files_place_holds_no_thread(
    path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening it would wait for its other end for ever, and a thread cannot be cancelled."""

    def release() -> None:
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))

    source = PathSource(str(path))
    if stage == "measuring":
        before_the_next_opening(monkeypatch, lambda: _to_fifo(path))
    timer = threading.Timer(0.5, release)  # or this test would hang, too
    timer.start()
    started = time.perf_counter()
    with pytest.raises((DocumentChanged, DocumentUnreadable)):
        await _read_after(source, monkeypatch, path if stage == "opening" else None)
    seconds = time.perf_counter() - started
    timer.cancel()
    assert seconds < 0.4


async def _read_after(
    source: PathSource, monkeypatch: pytest.MonkeyPatch, path: Path | None
) -> None:
    measure = await source.measure()
    if path is not None:
        before_the_next_opening(monkeypatch, lambda: _to_fifo(path))
    await read_all(source, measure)


async def test_an_error_midway_is_mapped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails half-way makes the document unreadable; the cause is kept."""
    pread, preadv = os.pread, os.preadv

    def failing(fd: int, what: Any, offset: int, *rest: int) -> Any:
        if offset > SIZE // 2:
            raise OSError(errno.EIO, "Input/output error")
        return (preadv if rest else pread)(fd, what, offset, *rest)

    monkeypatch.setattr(os, "pread", failing)
    monkeypatch.setattr(os, "preadv", failing)
    source = PathSource(str(path))
    form, before = Form(source, await source.measure()), descriptors()
    with pytest.raises(DocumentUnreadable, match="Input/output error") as caught:
        await form.send(lambda: None, at=-1)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EIO
    assert SIZE // 2 < len(form.sent) < len(DATA)
    assert descriptors() == before


# Slow storage


@pytest.fixture
def slow_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be at hand, and every read, look and opening take 50 ms of its thread.

    Only the document is slow: a failure is shown with many a look at other files.
    """

    def slow(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, int) or os.fspath(file) == str(path):
                time.sleep(0.05)
            return function(file, *args, **kwargs)

        return call

    def not_at_hand(_fd: int, _buffers: Any, _offset: int, flags: int = 0) -> int:
        assert flags == os.RWF_NOWAIT
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "preadv", not_at_hand)
    for name in ("open", "stat", "fstat", "read", "pread"):
        monkeypatch.setattr(os, name, slow(getattr(os, name)))


@pytest.mark.alone
@pytest.mark.usefixtures("slow_disk")
async def test_slow_storage_does_not_hold_the_loop(path: Path) -> None:
    """With 50 ms per operation on the file the loop never stands still for 20 ms."""
    source = PathSource(str(path))
    measured = []
    for _ in range(10):  # another process may take the processor away: the best one counts
        async with largest_gap() as gaps:
            assert await read_all(source, await source.measure(), SIZE // 4) == DATA
        measured.append(gaps[0])
        if gaps[0] < FREE_GAP:
            break
    print(f"largest gap {min(measured) * 1000:.1f} ms")  # noqa: T201 - the figure is wanted
    assert min(measured) < FREE_GAP


@pytest.mark.usefixtures("slow_disk")
async def test_other_users_of_threads_do_not_hold_reads_up(path: Path) -> None:
    """Reads go on while every one of the loop's default threads is taken."""
    limiter = anyio.to_thread.current_default_thread_limiter()
    borrowers = [object() for _ in range(int(limiter.total_tokens))]
    for borrower in borrowers:
        limiter.acquire_on_behalf_of_nowait(borrower)
    try:
        with anyio.fail_after(5):
            source = PathSource(str(path))
            assert await read_all(source, await source.measure(), SIZE) == DATA
    finally:
        for borrower in borrowers:
            limiter.release_on_behalf_of(borrower)


@pytest.mark.alone
@pytest.mark.usefixtures("slow_disk")
async def test_many_slow_reads_leave_other_threads_alone(path: Path) -> None:
    """However many documents are read, somebody else's thread work starts at once."""
    limiter = anyio.to_thread.current_default_thread_limiter()
    source = PathSource(str(path))
    waited = []
    for _ in range(10):  # another process may take the processor away: the best one counts
        async with anyio.create_task_group() as group:
            for _ in range(_threads.READ_THREADS * 2):
                group.start_soon(source.measure)
            await anyio.sleep(0.03)
            assert limiter.borrowed_tokens == 0
            started = time.perf_counter()
            await anyio.to_thread.run_sync(threading.get_ident)
            waited.append(time.perf_counter() - started)
        if waited[-1] < 0.05:
            break
    assert min(waited) < 0.05


# Descriptors


async def test_a_descriptor_is_closed_when_the_block_fails(path: Path) -> None:
    """An attempt that fails elsewhere leaves no open file."""
    source = PathSource(str(path))
    measure, before = await source.measure(), descriptors()

    async def fail() -> None:
        async with source.open(measure) as reader:
            await reader.read(1)
            assert descriptors() != before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert descriptors() == before


@pytest.mark.usefixtures("slow_disk")
@pytest.mark.parametrize("after", [0.02, 0.13, 0.25, 0.32])
async def test_a_descriptor_is_closed_on_cancellation(path: Path, after: float) -> None:
    """Cancelled while measuring, opening, reading or checking: no open file stays behind."""
    source, before = PathSource(str(path)), descriptors()
    with anyio.move_on_after(after) as scope:
        while True:
            await read_all(source, await source.measure(), SIZE)
    assert scope.cancelled_caught
    assert descriptors() == before


@pytest.mark.usefixtures("slow_disk")
@pytest.mark.parametrize("after", [0.17, 0.22, 0.27, 0.32])
def test_a_descriptor_is_closed_when_asyncio_cancels(path: Path, after: float) -> None:
    """``asyncio.timeout`` and ``Task.cancel`` break through shields; no file stays open either."""
    source, before = PathSource(str(path)), descriptors()

    async def read_for_ever() -> None:
        while True:
            await read_all(source, await source.measure(), SIZE)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read_for_ever(), after)
        await asyncio.sleep(0.2)

    others = set(threading.enumerate())
    asyncio.run(main())
    for thread in set(threading.enumerate()) - others:  # they finish what they were about
        thread.join(5)
    assert descriptors() == before


async def test_a_cancelled_read_is_not_taken_for_a_change(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancellation passes through as it is, while the thread reads and when it has read."""
    started, go_on = threading.Event(), threading.Event()
    pread = os.pread

    def held(fd: int, limit: int, offset: int) -> bytes:
        started.set()
        assert go_on.wait(5)
        return pread(fd, limit, offset)

    source, before = PathSource(str(path)), descriptors()
    measure = await source.measure()
    monkeypatch.delattr(os, "RWF_NOWAIT")
    monkeypatch.setattr(os, "pread", held)

    async def cancel(scope: anyio.CancelScope) -> None:
        await anyio.to_thread.run_sync(started.wait)
        scope.cancel()
        go_on.set()

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(cancel, scope)
            await read_all(source, measure)
    assert scope.cancelled_caught
    assert descriptors() == before


# Files that the caller has open


OFFSET = 100
SMALL = 5000


@pytest.fixture(params=[len(DATA), SMALL], ids=["large", "small"])
def whole(request: pytest.FixtureRequest, path: Path) -> bytes:
    """Cut the document to more than a chunk, or less, and return it."""
    cut(path, request.param)
    return DATA[: request.param]


def cut(path: Path, size: int) -> None:
    """Cut the document; its time stamp stays old, so that any later write shows."""
    os.truncate(path, size)
    os.utime(path, (1_600_000_000, 1_600_000_000))


def source_of(file: Any) -> OpenFileSource:
    """Make the source of an open file."""
    return OpenFileSource(file, file, "deck.pdf")


@pytest.mark.parametrize("mode", ["rb", "r+b"])
@pytest.mark.parametrize("buffering", [0, -1])
async def test_the_rest_of_an_open_file_is_read(
    path: Path, whole: bytes, mode: str, buffering: int
) -> None:
    """From its position, the same at every attempt (isola#176); it stays there, and open."""
    with path.open(mode, buffering=buffering) as file:
        file.read(OFFSET)
        before, source = descriptors(), source_of(file)
        measure = await source.measure()
        assert (measure.size, measure.start) == (len(whole) - OFFSET, OFFSET)
        assert measure.head == whole[OFFSET:][:HEAD_BYTES]
        for _ in range(2):
            assert await read_all(source, measure) == whole[OFFSET:]
            assert file.tell() == OFFSET
        assert descriptors() == before
        assert file.read(5) == whole[OFFSET : OFFSET + 5]


async def test_a_position_behind_the_end_leaves_nothing(path: Path) -> None:
    """Not less than nothing."""
    with path.open("rb") as file:
        file.seek(len(DATA) + 10)
        measure = await source_of(file).measure()
    assert (measure.size, measure.head) == (0, b"")


async def test_what_was_written_before_is_no_change() -> None:
    """Even what was still in the buffer of a temporary file, and gets to the disk later."""
    with tempfile.TemporaryFile() as file:
        file.write(DATA)
        file.seek(OFFSET)
        file.write(b"new")
        source = source_of(file)
        measure = await source.measure()
        await anyio.sleep(0.02)  # more than the grain of the file system's clock
        file.flush()
        assert await read_all(source, measure) == DATA[OFFSET + 3 :]
        file.seek(OFFSET)
        measure = await source.measure()
        assert await read_all(source, measure) == b"new" + DATA[OFFSET + 3 :]


async def test_an_open_file_may_be_renamed_and_deleted(path: Path, whole: bytes) -> None:
    """Its bytes stay where they are."""
    with path.open("rb") as file:
        source = source_of(file)
        measure = await source.measure()
        async with source.open(measure) as reader:
            _parent_gone(path)
            _delete(path.parent.with_name("elsewhere") / path.name)
            content = bytearray()
            while chunk := await reader.read(SIZE):
                content += chunk
            await reader.finish()
        assert content == whole
        assert await read_all(source, measure) == whole


@pytest.mark.parametrize("change", [_grow, _shrink_by_one, _rewrite, _empty])
@pytest.mark.parametrize("at", [-1, 1, 3], ids=["before", "midway", "at the end"])
async def test_a_change_of_an_open_file_is_noticed(
    path: Path, change: Callable[[Path], None], at: int
) -> None:
    """Before the attempt and during it, the closing boundary never goes out."""
    with path.open("rb") as file:
        source = source_of(file)
        form = Form(source, await source.measure())
        if at < 0:
            change(path)
        with pytest.raises(DocumentChanged, match="deck"):
            await form.send(lambda: change(path), at=at)
    assert not form.complete


async def test_an_open_file_that_is_closed_midway_is_still_read(path: Path) -> None:
    """Even when another file gets the number of its descriptor; the next attempt is told."""
    before = descriptors()
    file = path.open("rb")
    source = source_of(file)
    measure = await source.measure()
    other = path.with_name("other")
    other.write_bytes(b"X" * len(DATA))
    content = bytearray()
    async with source.open(measure) as reader:
        content += await reader.read(1000)
        number = file.fileno()
        file.close()
        with other.open("rb") as taking_its_number:
            assert taking_its_number.fileno() == number
            while chunk := await reader.read(SIZE):
                content += chunk
        await reader.finish()
    assert content == DATA
    with pytest.raises(DocumentUnreadable, match="closed"):
        await read_all(source, measure)
    assert descriptors() == before


async def test_an_open_file_that_is_no_regular_one_is_refused() -> None:
    """It has no size, and no end."""
    with open("/dev/zero", "rb") as file:  # noqa: ASYNC230, PTH123 - a test of open files
        source = source_of(file)
        with anyio.fail_after(2), pytest.raises(DocumentUnreadable, match="not a regular file"):
            await source.measure()


async def test_an_open_file_is_known_by_its_name(path: Path) -> None:
    """In errors it is what the room would see."""
    with path.open("rb") as file:
        async with OpenFileSource(file, file).held("slides.pdf", None) as content:
            measure = await content.measure()
            _grow(path)
            with pytest.raises(DocumentChanged) as caught:
                await read_all(content, measure)
    assert caught.value.document == "slides.pdf"


# Small files


@pytest.mark.parametrize("kind", ["path", "open file"])
async def test_a_small_attempt_is_one_hop(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened, read, checked and closed in one go, as measuring is; nothing stays open."""
    cut(path, CHUNK_BYTES)
    hops = []
    run_sync = anyio.to_thread.run_sync

    async def counting(*args: Any, **kwargs: Any) -> Any:
        hops.append(1)
        return await run_sync(*args, **kwargs)

    monkeypatch.setattr(anyio.to_thread, "run_sync", counting)
    with path.open("rb") as file:
        source = PathSource(str(path)) if kind == "path" else source_of(file)
        before = descriptors()
        measure = await source.measure()
        assert len(hops) == 1
        async with source.open(measure) as reader:
            assert descriptors() == before
            assert await reader.read(CHUNK_BYTES) == DATA[:CHUNK_BYTES]
            await reader.finish()
        assert len(hops) == 2


@change_them
async def test_a_change_of_a_small_file_is_noticed(
    path: Path, change: Callable[[Path], None]
) -> None:
    """Between measuring and the attempt; while it is sent it is in memory."""
    cut(path, SMALL)
    source = PathSource(str(path))
    measure = await source.measure()
    change(path)
    with anyio.fail_after(2), pytest.raises((DocumentChanged, DocumentUnreadable)):
        await read_all(source, measure)


async def test_a_small_file_that_changes_while_it_is_read_is_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut, or written to, between the reading and the check."""
    cut(path, SMALL)
    source = PathSource(str(path))
    measure = await source.measure()
    pread = os.pread

    def changing(fd: int, limit: int, offset: int) -> bytes:
        os.truncate(path, SMALL - 1)
        return pread(fd, limit, offset)

    monkeypatch.setattr(os, "pread", changing)
    with pytest.raises(DocumentChanged, match="4,999 bytes"):
        await read_all(source, measure)


async def test_short_reads_of_a_small_file_are_put_together(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a disk that fails makes it unreadable."""
    cut(path, SMALL)
    source, pread = PathSource(str(path)), os.pread
    measure = await source.measure()
    monkeypatch.setattr(os, "pread", lambda fd, limit, offset: pread(fd, min(limit, 7), offset))
    assert await read_all(source, measure) == DATA[:SMALL]

    def failing(*_: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", failing)
    before = descriptors()
    with pytest.raises(DocumentUnreadable, match="Input/output error"):
        await read_all(source, measure)
    assert descriptors() == before
