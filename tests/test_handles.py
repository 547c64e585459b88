"""Open files that are read by seeking: in memory, spooled, compressed, asynchronous."""

from __future__ import annotations

import gzip
import io
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import aiofiles  # type: ignore[import-untyped]
import anyio
import anyio.lowlevel
import pytest

from _streams import DATA, content_of, largest_gap
from meeting_async._handles import AsyncHandleSource, HandleSource
from meeting_async._pace import CHUNK_BYTES
from meeting_async.errors import DocumentChanged, DocumentUnreadable

pytestmark = pytest.mark.anyio

START = 100


def handle(data: bytes = DATA, kind: type = io.BytesIO) -> Any:
    """Open data in memory, at an offset."""
    file = kind(data)
    file.seek(START)
    return file


class Elsewhere(io.BytesIO):
    """A file of somebody's own, which is read in threads."""

    threads: set[int]

    def read(self, size: int | None = -1, /) -> bytes:
        """Note the thread."""
        self.__dict__.setdefault("threads", set()).add(threading.get_ident())
        return super().read(size)


async def held(source: Any) -> Any:
    """Hold a source that needs nothing kept."""
    async with source.held("deck.pdf", None) as content:
        return content


@pytest.mark.parametrize("kind", [io.BytesIO, Elsewhere])
@pytest.mark.parametrize("data", [DATA, DATA[: CHUNK_BYTES - 1]], ids=["large", "small"])
async def test_the_rest_of_it_is_read_each_time(kind: type, data: bytes) -> None:
    """From where it stands (isola#176); afterwards it stands there again, and is open."""
    file = handle(data, kind)
    content = await held(HandleSource(file, file))
    for _ in range(3):
        assert await content_of(content) == data[START:]
        assert file.tell() == START
    assert not file.closed


async def test_a_spooled_temporary_file_is_read(tmp_path: Path) -> None:
    """In memory and on disk; it is not rolled over by our looking at it."""
    for limit in (0, 100):
        with tempfile.SpooledTemporaryFile(limit, dir=str(tmp_path)) as file:
            file.write(DATA)
            file.seek(START)
            content = await held(HandleSource(file, file))
            assert await content_of(content) == DATA[START:]
            assert file.tell() == START


async def test_what_is_compressed_is_read_as_it_reads(tmp_path: Path) -> None:
    """A GzipFile brings the document, not what is in its descriptor."""
    with gzip.open(tmp_path / "deck.pdf.gz", "wb") as packed:
        packed.write(DATA)
    with gzip.open(tmp_path / "deck.pdf.gz") as file:
        assert await content_of(await held(HandleSource(file, file))) == DATA


async def test_only_memory_is_read_on_the_loop() -> None:
    """A BytesIO is at hand; any other file may block, and is read in threads."""
    file = handle(kind=Elsewhere)
    await content_of(await held(HandleSource(file, file)))
    assert threading.get_ident() not in file.threads


async def test_many_uploads_may_read_one_file() -> None:
    """They neither disturb each other nor wait for each other's sending."""
    file = handle(kind=Elsewhere)
    seek = file.seek

    def unhurried(*args: int) -> int:
        place: int = seek(*args)
        time.sleep(0.001)  # for others to come between
        return place

    file.seek = unhurried
    contents = []

    async def read() -> None:
        source = HandleSource(file, file)  # as each call makes its own
        contents.append(await content_of(await held(source), 50_000))

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(read)
    assert contents == [DATA[START:]] * 5


@pytest.mark.parametrize("size", [START, START + 10, 2 * len(DATA)])
@pytest.mark.parametrize("kind", [io.BytesIO, Elsewhere])
async def test_another_size_is_a_change(kind: type, size: int) -> None:
    """Cut or longer, between measuring and the end of the attempt."""
    file = handle(kind=kind)
    content = await held(HandleSource(file, file))
    measure = await content.measure()

    async def change_midway() -> None:
        async with content.open(measure) as reader:
            await reader.read(CHUNK_BYTES)
            if size > len(DATA):
                file.seek(0, io.SEEK_END)
                file.write(b"more")
            file.truncate(size)
            file.seek(START)
            await reader.finish()

    with pytest.raises(DocumentChanged, match="bytes instead of"):
        await change_midway()


async def test_a_file_that_shrank_before_a_small_attempt_is_a_change() -> None:
    """What is read in one go is checked, too."""
    file = handle(DATA[:1000])
    content = await held(HandleSource(file, file))
    measure = await content.measure()
    file.truncate(500)
    with pytest.raises(DocumentChanged, match="500 bytes instead of 1,000"):
        async with content.open(measure):
            pass


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda _size: "text", "'text' instead of bytes"),
        (lambda _size: None, "None"),
        (lambda size: bytes(size + 1), "brought"),
    ],
)
@pytest.mark.parametrize("data", [DATA, DATA[:1000]], ids=["large", "small"])
async def test_bad_reads_are_named(bad: Any, said: str, data: bytes) -> None:
    """Text, nothing, too much."""
    file = handle(data, Elsewhere)
    content = await held(HandleSource(file, file))
    measure = await content.measure()
    file.read = bad
    with pytest.raises(DocumentUnreadable, match=said):
        async with content.open(measure) as reader:
            await reader.read(CHUNK_BYTES)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), EOFError("torn archive")])
async def test_what_a_file_raises_is_the_cause(error: Exception) -> None:
    """Half-way through, with its words."""
    file = handle(kind=Elsewhere)
    content = await held(HandleSource(file, file))
    measure = await content.measure()

    def fail(_size: int) -> bytes:
        raise error

    async def read() -> None:
        async with content.open(measure) as reader:
            await reader.read(CHUNK_BYTES)
            file.read = fail
            while True:
                await reader.read(CHUNK_BYTES)

    with pytest.raises(DocumentUnreadable, match=r"Input|torn") as caught:
        await read()
    assert caught.value.__cause__ is error


async def test_a_file_that_is_closed_meanwhile_is_unreadable() -> None:
    """Between two attempts, by whoever owns it."""
    file = handle()
    content = await held(HandleSource(file, file))
    measure = await content.measure()
    file.close()
    with pytest.raises(DocumentUnreadable, match="closed"):
        async with content.open(measure) as reader:
            await reader.read(10)


async def test_an_error_of_the_attempt_comes_through_as_it_is() -> None:
    """Neither grouped nor mapped."""
    file = handle()
    content = await held(HandleSource(file, file))
    with pytest.raises(ZeroDivisionError):
        async with content.open(await content.measure()):
            raise ZeroDivisionError


@pytest.mark.alone
async def test_a_slow_file_does_not_hold_the_loop() -> None:
    """With 50 ms per read the loop never stands still for 20 ms."""
    file = handle(DATA[: 4 * CHUNK_BYTES], Elsewhere)
    read = file.read

    def slow(size: int) -> bytes:
        time.sleep(0.05)
        return bytes(read(size))

    file.read = slow
    gaps = []
    for _ in range(10):  # another process may take the processor away: the best one counts
        async with largest_gap() as gap:
            await content_of(await held(HandleSource(file, file)))
        gaps.append(gap[0])
        if gap[0] < 0.02:
            break
    assert min(gaps) < 0.02


@pytest.mark.parametrize("after", [0.0, 0.02, 0.07, 0.12])
async def test_a_cancelled_attempt_leaves_the_position(after: float) -> None:
    """Cancelled amid a read: it stands where it stood."""
    file = handle(kind=Elsewhere)
    read = file.read

    def slow(size: int) -> bytes:
        time.sleep(0.01)
        return bytes(read(size))

    file.read = slow
    with anyio.move_on_after(after):
        while True:
            await content_of(await held(HandleSource(file, file)))
    assert file.tell() == START


# Asynchronous ones


class Asynchronous:
    """A file with asynchronous methods, on either loop."""

    def __init__(self, data: bytes = DATA) -> None:
        self.file = handle(data)
        self.closed = False

    async def read(self, size: int = -1) -> Any:
        """Read."""
        await anyio.lowlevel.checkpoint()
        return self.file.read(size)

    async def seek(self, offset: int, whence: int = 0) -> int:
        """Go somewhere."""
        await anyio.lowlevel.checkpoint()
        return int(self.file.seek(offset, whence))

    async def tell(self) -> int:
        """Say where it is."""
        await anyio.lowlevel.checkpoint()
        return int(self.file.tell())


@pytest.mark.parametrize("data", [DATA, DATA[:1000]], ids=["large", "small"])
async def test_an_asynchronous_file_is_read_each_time(data: bytes) -> None:
    """The rest of it, and it stands where it stood."""
    file = Asynchronous(data)
    content = await held(AsyncHandleSource(file))
    for _ in range(2):
        assert await content_of(content) == data[START:]
        assert file.file.tell() == START


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_aiofiles_file_is_read(tmp_path: Path) -> None:
    """The real thing."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(DATA)
    async with aiofiles.open(path, "rb") as file:
        await file.seek(START)
        content = await held(AsyncHandleSource(file))
        for _ in range(2):
            assert await content_of(content) == DATA[START:]
        assert await file.tell() == START


async def test_uploads_take_turns_at_an_asynchronous_file() -> None:
    """One attempt at a time, so that none reads from another one's position."""
    file, contents = Asynchronous(), []

    async def read() -> None:
        contents.append(await content_of(await held(AsyncHandleSource(file))))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(read)
    assert contents == [DATA[START:]] * 3


async def test_an_asynchronous_file_that_changes_or_fails() -> None:
    """As with the others: changed, unreadable, with the cause."""
    file = Asynchronous()
    content = await held(AsyncHandleSource(file))
    measure = await content.measure()

    async def read(happening: Any) -> None:
        async with content.open(measure) as reader:
            await reader.read(10)
            happening()
            await reader.read(10)
            await reader.finish()

    with pytest.raises(DocumentChanged):
        await read(lambda: file.file.truncate(1000))
    file.file = handle()
    with pytest.raises(DocumentUnreadable, match="closed"):
        await read(file.file.close)


async def test_a_file_closed_after_its_last_byte_undoes_nothing() -> None:
    """The attempt may have succeeded; that its position cannot be put back is no failure."""
    file = Asynchronous()
    content = await held(AsyncHandleSource(file))
    async with content.open(await content.measure()):
        file.file.close()


async def test_cancelling_an_asynchronous_file_frees_it() -> None:
    """The next attempt finds it free and in its place."""
    file = Asynchronous()
    content = await held(AsyncHandleSource(file))
    with anyio.move_on_after(0.01) as scope:
        async with content.open(await content.measure()):
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert file.file.tell() == START
    with anyio.fail_after(2):
        assert await content_of(content) == DATA[START:]
