"""Files on disk: measured once, opened for each attempt, checked to the last byte."""

from __future__ import annotations

import builtins
import contextlib
import errno
import itertools
import os
import resource
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from meeting_async import _threads as threads
from meeting_async._documents.document import Document
from meeting_async._documents.files import WHOLE_BYTES
from meeting_async._documents.prepared import MultipartBody, Prepared
from meeting_async.errors import (
    DocumentChanged,
    DocumentEmpty,
    DocumentError,
    DocumentUnreadable,
    MeetingError,
    ResourceExhausted,
)
from support.gaps import loop_stays_free
from support.leaks import descriptors, threads_idle
from support.sources import (
    LARGE,
    SMALL,
    START,
    attempt,
    content_in,
    form_of,
    prepared_document,
    uploaded,
)

pytestmark = pytest.mark.anyio

OLD = (1_600_000_000, 1_600_000_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a large document whose time stamp is old, so that a later write shows."""
    path = tmp_path / "documents" / "deck.pdf"
    path.parent.mkdir()
    path.write_bytes(LARGE)
    os.utime(path, OLD)
    return path


@pytest.fixture(params=["large", "small"])
def sized(request: pytest.FixtureRequest, path: Path) -> Path:
    """Choose the size of the document."""
    if request.param == "small":
        os.truncate(path, len(SMALL))
        os.utime(path, OLD)
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


async def sent_until(
    prepared: Prepared, happening: Callable[[], object], *, at: int
) -> tuple[MultipartBody, bytes, MeetingError | None]:
    """Take a form's chunks; ``happening`` happens after chunk number ``at``. Return what came."""
    form, error = bytearray(), None
    async with form_of(prepared) as body:
        try:
            for number in itertools.count():
                form += await anext(body)
                if number == at:
                    happening()
        except StopAsyncIteration:
            pass
        except MeetingError as caught:
            error = caught
    return body, bytes(form), error


def content_of(path: Path) -> bytes:
    """Read a file."""
    return path.read_bytes()


# --- what is not a document ----------------------------------------------------------------------


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
    path.write_bytes(LARGE)
    path.chmod(0)


NO_DOCUMENTS = [os.mkfifo, _directory, _dangling, _loop, _socket, _zeros, _nothing, _forbidden]


@pytest.mark.parametrize("make", NO_DOCUMENTS, ids=lambda make: make.__name__)
async def test_what_is_not_a_document_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """Anything but a readable regular file is named once and never waited for."""
    path = tmp_path / "it.pdf"
    make(path)
    before = descriptors()
    with anyio.fail_after(30), unprivileged(), pytest.raises(DocumentUnreadable) as caught:
        await uploaded(path)
    assert caught.value.document == str(path)
    assert str(caught.value).count("it.pdf") == 1
    assert str(caught.value).count("cannot be read") == 1
    assert descriptors() == before


async def test_the_cause_is_kept(tmp_path: Path) -> None:
    """The error of the operating system is the cause, for those who want its errno."""
    with pytest.raises(DocumentUnreadable, match="No such file") as caught:
        await uploaded(tmp_path / "deck.pdf")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    with pytest.raises(DocumentUnreadable, match="null"):
        await uploaded("deck\0.pdf")


async def test_an_open_file_that_is_not_regular_is_refused() -> None:
    """It has no size, and no end."""
    with (
        Path("/dev/zero").open("rb") as file,  # noqa: ASYNC230 - a test of open files
        anyio.fail_after(30),
        pytest.raises(DocumentUnreadable, match="not a regular file"),
    ):
        await uploaded(file)


async def test_a_file_at_its_end_is_empty(path: Path) -> None:
    """The note says why, and what to do."""
    with path.open("rb") as file:
        for offset in (len(LARGE), len(LARGE) + 10):
            file.seek(offset)
            with pytest.raises(DocumentEmpty) as caught:
                await uploaded(file)
            assert "seek(0)" in caught.value.__notes__[0]


# --- files that change ---------------------------------------------------------------------------


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _shrink_by_one(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _delete(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(path.stat().st_mtime_ns,) * 2)
    other.replace(path)


def _rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"X" * path.stat().st_size)


def _rewrite_and_restore_time(path: Path) -> None:
    """As ``cp --preserve`` and ``rsync --inplace --times`` do."""
    _rewrite(path)
    os.utime(path, OLD)


def _to_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _to_zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _parent_swapped(path: Path) -> None:
    """Nothing of the file itself changes; another one has its path."""
    content = path.read_bytes()
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.mkdir()
    path.write_bytes(content)


def _parent_to_file(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.write_bytes(b"")


def _take_permissions(path: Path) -> None:
    path.chmod(0)


def _rename_and_delete(path: Path) -> None:
    path.rename(path.with_name("renamed")).unlink()


CHANGES = [
    *(_grow, _shrink_by_one, _empty, _delete, _replace, _rewrite, _rewrite_and_restore_time),
    *(_to_directory, _to_fifo, _to_zeros, _parent_swapped, _parent_to_file),
]
OPEN_CHANGES = [_grow, _shrink_by_one, _empty, _rewrite]
change_them = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)


@change_them
async def test_a_change_before_an_attempt_is_noticed(
    sized: Path, change: Callable[[Path], None]
) -> None:
    """Nothing of a file is sent that is not the one that was measured."""
    async with prepared_document(sized) as prepared:
        assert await attempt(prepared) == content_of(sized)
        change(sized)
        before = descriptors()
        with anyio.fail_after(30):
            body, form, error = await sent_until(prepared, lambda: None, at=-1)
    assert isinstance(error, DocumentChanged | DocumentUnreadable)
    assert str(sized) in str(error)
    assert (body.taken, form) == (0, b"")
    assert descriptors() == before


@change_them
@pytest.mark.parametrize("at", [1, 3], ids=["midway", "at the end"])
async def test_a_change_during_an_attempt_is_noticed(
    path: Path, change: Callable[[Path], None], at: int
) -> None:
    """Whatever happens to the file on the way, the closing boundary is never yielded."""
    before = descriptors()
    async with prepared_document(path) as prepared:
        with anyio.fail_after(30):
            body, form, error = await sent_until(prepared, lambda: change(path), at=at)
        assert isinstance(error, DocumentChanged | DocumentUnreadable)
        assert body.taken == len(form) < body.length
        assert not form.endswith(b"--\r\n")
    assert descriptors() == before  # the kept error has a traceback


@pytest.mark.parametrize("change", OPEN_CHANGES)
@pytest.mark.parametrize("at", [-1, 1, 3], ids=["before", "midway", "at the end"])
async def test_a_change_of_an_open_file_is_noticed(
    path: Path, change: Callable[[Path], None], at: int
) -> None:
    """Before the attempt and during it."""
    with path.open("rb") as file:
        async with prepared_document(file) as prepared:
            if at < 0:
                change(path)
            body, _, error = await sent_until(prepared, lambda: change(path), at=at)
    assert isinstance(error, DocumentChanged)
    assert error.document == "deck.pdf"
    assert body.taken < body.length


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_grow, f"{len(LARGE) + 4:,} bytes instead of {len(LARGE):,}"),
        (_shrink_by_one, f"{len(LARGE) - 1:,} bytes instead of {len(LARGE):,}"),
        (_delete, "gone"),
        (_parent_to_file, "gone"),
        (_replace, "another file"),
        (_rewrite, "written to"),
    ],
)
async def test_the_error_says_what_changed(
    path: Path, change: Callable[[Path], None], said: str
) -> None:
    """The message names the difference."""
    async with prepared_document(path) as prepared:
        change(path)
        with pytest.raises(DocumentChanged, match=said):
            await attempt(prepared)


async def test_permissions_that_are_taken_away_are_noticed(path: Path) -> None:
    """A file that may no longer be read is unreadable, with the reason."""
    async with prepared_document(path) as prepared:
        _take_permissions(path)
        with unprivileged(), pytest.raises(DocumentUnreadable, match="denied"):
            await attempt(prepared)


async def test_an_open_file_may_be_renamed_deleted_and_closed(path: Path) -> None:
    """Its bytes stay; even when another file gets the number of its descriptor."""
    other = path.with_name("other")
    other.write_bytes(b"X" * len(LARGE))
    file = path.open("rb")
    number = file.fileno()
    async with prepared_document(file) as prepared:
        _rename_and_delete(path)
        assert await attempt(prepared) == LARGE
        async with form_of(prepared) as body:
            form = await anext(body)
            file.close()
            with other.open("rb") as taking_its_number:
                assert taking_its_number.fileno() == number
                async for chunk in body:
                    form += chunk
        assert LARGE in form
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


def _swap_at_opening(monkeypatch: pytest.MonkeyPatch, happening: Callable[[], object]) -> None:
    """Let something happen between a look at a file and its opening."""

    def patched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.undo()
            happening()
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(os, "open", patched(os.open))
    monkeypatch.setattr(builtins, "open", patched(builtins.open))


@pytest.mark.parametrize("stage", ["measuring", "opening"])
async def test_a_fifo_in_the_files_place_blocks_no_thread(
    path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening it would wait for its other end for ever."""

    async def upload() -> None:
        if stage == "measuring":
            _swap_at_opening(monkeypatch, lambda: _to_fifo(path))
        async with prepared_document(path) as prepared:
            _swap_at_opening(monkeypatch, lambda: _to_fifo(path))
            await attempt(prepared)

    with anyio.fail_after(30), pytest.raises((DocumentChanged, DocumentUnreadable)):
        await upload()


# --- reading -------------------------------------------------------------------------------------


async def test_short_reads_are_put_together(sized: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that returns less than was asked for loses nothing."""
    content, pread, preadv = content_of(sized), os.pread, os.preadv

    def short_preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        return preadv(fd, [memoryview(buffers[0])[:9999]], offset, flags)

    monkeypatch.setattr(os, "pread", lambda fd, limit, at: pread(fd, min(limit, 777), at))
    monkeypatch.setattr(os, "preadv", short_preadv)
    assert await uploaded(sized, 2) == content
    monkeypatch.delattr(os, "RWF_NOWAIT")
    assert await uploaded(sized, 2) == content


async def test_without_a_promise_nothing_is_read_on_the_loop(
    sized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system has no ``RWF_NOWAIT``, or the file system refuses it, threads read."""
    content, seen, pread = content_of(sized), set[int](), os.pread

    def noting(fd: int, limit: int, offset: int) -> bytes:
        seen.add(threading.get_ident())
        return pread(fd, limit, offset)

    def refusing(*_: Any) -> int:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "pread", noting)
    monkeypatch.setattr(os, "preadv", refusing)
    assert await uploaded(sized) == content
    monkeypatch.delattr(os, "RWF_NOWAIT")
    assert await uploaded(sized) == content
    assert seen
    assert threading.get_ident() not in seen


async def test_a_disk_that_fails_makes_it_unreadable(
    sized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-way or at once, with the cause; an error that is kept keeps no descriptor open."""
    before, pread, kept = descriptors(), os.pread, list[BaseException]()
    fails_from = 0 if len(content_of(sized)) == len(SMALL) else len(LARGE) // 2

    def failing(fd: int, limit: int, offset: int) -> bytes:
        if offset >= fails_from and offset + limit > 32:
            raise OSError(errno.EIO, "Input/output error")
        return pread(fd, limit, offset)

    monkeypatch.setattr(os, "pread", failing)
    monkeypatch.delattr(os, "RWF_NOWAIT")
    try:
        await uploaded(sized)
    except DocumentUnreadable as error:
        kept.append(error)
    assert isinstance(kept[0].__cause__, OSError)
    assert kept[0].__cause__.errno == errno.EIO
    assert "Input/output error" in str(kept[0])
    assert descriptors() == before


async def test_no_descriptor_left_is_this_machines_trouble(sized: Path) -> None:
    """Opening fails with ``ResourceExhausted``, at preparing and at an attempt; then it goes on."""
    content, limits = content_of(sized), resource.getrlimit(resource.RLIMIT_NOFILE)
    await uploaded(sized)  # imports, threads
    async with prepared_document(sized) as prepared:
        taken = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            with pytest.raises(ResourceExhausted, match=r"deck.pdf.*Too many open files"):
                await attempt(prepared)
            with pytest.raises(ResourceExhausted, match=r"deck.pdf.*Too many open files"):
                await uploaded(sized)
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
    os.truncate(path, WHOLE_BYTES)
    calls, run = [], threads._threads.run

    def counting(function: Callable[[], object]) -> None:
        calls.append(function)
        run(function)

    monkeypatch.setattr(threads._threads, "run", counting)
    with path.open("rb") as file:
        async with prepared_document(path if kind == "path" else file) as prepared:
            for expected in (2, 3, 4):
                assert await attempt(prepared) == LARGE[:WHOLE_BYTES]
                assert len(calls) == expected


async def test_a_small_file_that_changes_while_it_is_read_is_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the reading and the check."""
    os.truncate(path, len(SMALL))
    pread = os.pread

    def changing(fd: int, limit: int, offset: int) -> bytes:
        os.truncate(path, len(SMALL) - 1)
        return pread(fd, limit, offset)

    async with prepared_document(path) as prepared:
        monkeypatch.setattr(os, "pread", changing)
        with pytest.raises(DocumentChanged, match="4,999 bytes"):
            await attempt(prepared)


async def test_a_large_file_is_closed_in_a_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing may block, too, where a file system asks its server."""
    closed, close = [], os.close

    def noting(number: int) -> None:
        if Path(f"/proc/self/fd/{number}").readlink() == path:
            closed.append(threading.get_ident())
        close(number)

    monkeypatch.setattr(os, "close", noting)
    assert await uploaded(path) == LARGE
    assert len(closed) == 2
    assert threading.get_ident() not in closed


# --- slow and dead storage -----------------------------------------------------------------------


@pytest.fixture
def slow_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every call for the document take 50 ms of its thread, and promise nothing."""

    def slow(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, int) or os.fspath(file) == str(path):
                time.sleep(0.05)
            return function(file, *args, **kwargs)

        return call

    monkeypatch.delattr(os, "RWF_NOWAIT")
    for name in ("open", "stat", "fstat", "pread"):
        monkeypatch.setattr(os, name, slow(getattr(os, name)))


@pytest.mark.usefixtures("slow_disk")
@pytest.mark.both_loops
async def test_slow_storage_does_not_hold_the_loop(path: Path) -> None:
    """With 50 ms per call the loop never stands still for 20 ms."""

    async def upload() -> None:
        assert await uploaded(path) == LARGE

    assert await loop_stays_free(upload)


@pytest.mark.both_loops
@pytest.mark.parametrize("blocking", ["stat", "open", "pread", "fstat"])
async def test_dead_storage_holds_up_neither_its_caller_nor_others(
    path: Path, blocking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that never returns is left at once on cancellation, and so are forty."""
    end, healthy = threading.Event(), path.with_name("healthy.pdf")
    healthy.write_bytes(SMALL)
    before, function = descriptors(), getattr(os, blocking)
    numbers = set[int]()

    def hanging(file: Any, *args: Any, **kwargs: Any) -> Any:
        if file in numbers or (not isinstance(file, int) and os.fspath(file) == str(path)):
            end.wait()
        return function(file, *args, **kwargs)

    opening = os.open

    def noting(file: Any, *args: Any) -> int:
        number = opening(file, *args)
        if os.fspath(file) == str(path):
            numbers.add(number)
        return number

    if blocking in {"pread", "fstat"}:
        monkeypatch.setattr(os, "open", noting)
    monkeypatch.setattr(os, blocking, hanging)
    try:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for _ in range(40):
                    group.start_soon(uploaded, path)
                await anyio.sleep(0.05)
                group.cancel_scope.cancel()
            numbers.clear()
            assert await uploaded(healthy) == SMALL
        assert not end.is_set()
    finally:
        end.set()
    await threads_idle()
    assert descriptors() == before


async def test_the_bytes_of_an_abandoned_read_are_not_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that returns after its attempt was cancelled spoils no other attempt."""
    end, pread, hangs = threading.Event(), os.pread, [True]

    def hanging(fd: int, limit: int, offset: int) -> bytes:
        if offset and hangs[0]:
            end.wait()
            return b"X" * limit
        return pread(fd, limit, offset)

    monkeypatch.delattr(os, "RWF_NOWAIT")
    monkeypatch.setattr(os, "pread", hanging)
    async with prepared_document(path) as prepared:
        with anyio.move_on_after(0.05) as scope:
            await attempt(prepared)
        assert scope.cancelled_caught
        hangs[0] = False
        assert await attempt(prepared) == LARGE
        end.set()
        assert await attempt(prepared) == LARGE


async def test_a_huge_file_is_refused_without_being_read(tmp_path: Path) -> None:
    """Nothing of a terabyte is read but its first bytes."""
    path = tmp_path / "deck.pdf"
    path.touch()
    os.truncate(path, 1 << 40)
    with anyio.fail_after(30), pytest.raises(DocumentError, match="more than"):
        await uploaded(path, max_size=30 * 1024**2)


async def test_a_waiting_body_holds_nothing(path: Path) -> None:
    """The document is opened when the body is first read: not while a connection is awaited."""
    before = descriptors()
    async with prepared_document(Document.from_path(path)) as prepared:
        async with form_of(prepared) as body:
            assert descriptors() == before
            form = b"".join([chunk async for chunk in body])
        assert descriptors() == before
    assert LARGE in form
    assert content_in(body, form) == LARGE
