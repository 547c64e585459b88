"""Streams: spooled or sent as they come, cut into chunks, checked, closed."""

from __future__ import annotations

import array
import asyncio
import io
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from _peer import descriptors
from _streams import DATA, SIZE, Producer, content_of, largest_gap, pieces, temporary_files
from meeting_async import _streams
from meeting_async._pace import CHUNK_BYTES
from meeting_async._streams import OnceContent, StreamSource
from meeting_async.errors import DocumentChanged, DocumentTooLarge, DocumentUnreadable

pytestmark = pytest.mark.anyio

NAME = "deck.pdf"


@pytest.fixture(autouse=True)
def _own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """See that no test leaves a spool behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    assert temporary_files() == []


async def spooled(stream: Any, max_size: int | None = None, size: int | None = None) -> bytes:
    """Read a stream by way of its spool, twice."""
    async with StreamSource(stream, size).held(NAME, max_size) as content:
        first = await content_of(content)
        assert await content_of(content) == first
        return first


async def passed(stream: Any, size: int = SIZE) -> bytes:
    """Read a stream as it comes."""
    async with StreamSource(stream, size, replayable=False).held(NAME, None) as content:
        return await content_of(content)


def opened(kind: str, producer: Producer) -> Any:
    """Make a stream of one kind."""
    if kind == "generator":
        return producer()
    if kind == "iterable":
        return Iterable(producer)
    return {"reads": Reads, "async reads": AsyncReads}[kind](b"".join(producer.items))


class Iterable:
    """Makes an iterator each time."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.producer()


class Reads:
    """Has a ``read`` and cannot seek."""

    def __init__(self, data: bytes) -> None:
        self.file = io.BytesIO(data)

    def read(self, size: int) -> Any:
        """Bring less than was asked for, now and then."""
        return self.file.read(min(size, 100_001))


class AsyncReads(Reads):
    """Has an asynchronous ``read``; iterating over it gives lines, as over asyncio's streams."""

    async def read(self, size: int) -> Any:
        """Bring bytes."""
        await anyio.lowlevel.checkpoint()
        return super().read(size)

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise AssertionError("lines are not wanted")


KINDS = ["generator", "iterable", "reads", "async reads"]


# Both ways


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [spooled, passed])
async def test_streams_of_each_kind_arrive(kind: str, how: Any) -> None:
    """Byte for byte, in chunks of at most what is asked for."""
    producer = Producer(pieces())
    assert await how(opened(kind, producer)) == DATA


async def test_a_pipe_is_a_stream() -> None:
    """A file object that cannot seek; it is not closed."""
    read_end, write_end = os.pipe()

    def feed() -> None:
        with os.fdopen(write_end, "wb") as file:
            file.write(DATA)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    with os.fdopen(read_end, "rb") as file:
        assert await spooled(file) == DATA
        assert not file.closed
    thread.join(5)


@pytest.mark.parametrize("how", [spooled, passed])
async def test_items_of_any_size_and_kind(how: Any) -> None:
    """Empty ones are skipped; buffers of any item size and layout count in bytes."""
    words = array.array("I", range(1000))
    items = [
        *(b"", DATA[:1], b"", bytearray(DATA[1:7]), memoryview(DATA)[7:300_000], b"", b""),
        *(memoryview(words), memoryview(bytes(range(100)))[::2], b""),
    ]
    wanted = DATA[:300_000] + words.tobytes() + bytes(range(0, 100, 2))
    producer = Producer(items)
    stream = producer()
    if how is passed:
        assert await passed(stream, len(wanted)) == wanted
    else:
        assert await spooled(stream) == wanted
    assert producer.closed


@pytest.mark.parametrize("how", [spooled, passed])
async def test_a_producer_may_use_its_buffer_again(how: Any) -> None:
    """As with ``readinto``: an item is good until the next one is asked for."""

    async def produce() -> AsyncIterator[memoryview]:
        buffer = bytearray(100_000)
        for piece in pieces(DATA, 100_000):
            buffer[: len(piece)] = piece
            yield memoryview(buffer)[: len(piece)]

    assert await how(produce()) == DATA


async def test_large_items_are_cut_without_copies() -> None:
    """An item of 100 MB is handed on as views and single chunks."""
    item = bytes(100_000_000)
    cut = _streams._Pieces(NAME, Producer([item])())
    total, chunks = 0, 0
    while piece := await cut.next():
        assert piece.obj is item
        assert len(piece) <= CHUNK_BYTES
        total, chunks = total + len(piece), chunks + 1
    assert (total, chunks) == (len(item), -(-len(item) // CHUNK_BYTES))


@pytest.mark.parametrize("item", ["text", None, 7, [1], object()])
@pytest.mark.parametrize("how", [spooled, passed])
async def test_items_that_are_no_bytes_are_named(how: Any, item: Any) -> None:
    """One clear error, and the generator is closed."""
    producer = Producer([b"good", item])
    with pytest.raises(DocumentUnreadable, match=r"None|instead of bytes") as caught:
        await how(producer())
    assert caught.value.document == NAME
    assert producer.closed


@pytest.mark.parametrize("bad", ["text", None, 7])
@pytest.mark.parametrize("kind", ["reads", "async reads"])
async def test_reads_that_bring_no_bytes_are_named(kind: str, bad: Any) -> None:
    """A ``read`` of text, or of a file that does not wait."""
    stream = opened(kind, Producer([b"good"]))
    stream.file.read = lambda _size: bad
    with pytest.raises(DocumentUnreadable, match=r"None|instead of bytes"):
        await spooled(stream)


@pytest.mark.parametrize("how", [spooled, passed])
async def test_what_a_stream_raises_is_the_cause(how: Any) -> None:
    """The document is unreadable, in the words of the stream."""
    torn = ConnectionResetError("the storage hung up")
    producer = Producer([b"good", torn])
    with pytest.raises(DocumentUnreadable, match="the storage hung up") as caught:
        await how(producer())
    assert caught.value.__cause__ is torn
    assert producer.closed


@pytest.mark.parametrize("how", [spooled, passed])
async def test_an_error_half_way_through_reads_is_the_cause(how: Any) -> None:
    """An OSError of a ``read`` that cannot seek."""
    stream = Reads(DATA)
    full = stream.read

    def read(size: int) -> Any:
        if stream.file.tell() > SIZE // 2:
            raise OSError(5, "Input/output error")
        return full(size)

    stream.read = read  # type: ignore[method-assign]
    with pytest.raises(DocumentUnreadable, match="Input/output error"):
        await how(stream)


@pytest.mark.parametrize("how", [spooled, passed])
@pytest.mark.parametrize("difference", [-1, 1, -(SIZE % 70_000), -SIZE // 2, SIZE])
async def test_another_size_than_declared_is_a_change(how: Any, difference: int) -> None:
    """More or fewer bytes than declared never become a whole form."""
    producer = Producer(pieces())
    with pytest.raises(DocumentChanged, match=rf"declared {len(DATA) + difference:,} bytes"):
        await how(producer(), size=len(DATA) + difference)
    assert producer.closed


@pytest.mark.parametrize("replayable", [True, False])
async def test_a_stream_is_good_for_one_upload(replayable: bool) -> None:
    """The second upload is told so, and what to use instead."""
    source = StreamSource(Producer([b"data"])(), 4, replayable)
    async with source.held(NAME, None) as content:
        assert await content_of(content) == b"data"
    with pytest.raises(DocumentUnreadable, match=r"once; use Document\.from_factory"):
        async with source.held(NAME, None):
            pass


async def test_a_declared_size_above_the_limit_is_refused_unread() -> None:
    """Nothing is taken from the stream, and it is closed."""
    producer = Producer([b"data"])
    stream = producer()
    with pytest.raises(DocumentTooLarge):
        async with StreamSource(stream, 4).held(NAME, 3):
            pass
    assert producer.given == 0
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


# Spooled


async def test_a_stream_is_read_no_further_than_the_limit() -> None:
    """One that never ends is left as soon as it is too large."""
    producer = Producer(iter(lambda: bytes(1000), None))
    with pytest.raises(DocumentTooLarge) as caught:
        await spooled(producer(), max_size=2_000_000)
    assert producer.given == 2001
    assert producer.closed
    assert (caught.value.size, caught.value.limit) == (2_001_000, 2_000_000)
    assert "may be larger" in "".join(caught.value.__notes__)


async def test_a_stream_of_the_limit_fits() -> None:
    """Equality is allowed."""
    assert len(await spooled(Producer(pieces(bytes(2_000_000)))(), max_size=2_000_000)) == 2_000_000


async def test_a_spool_is_gone_when_the_upload_is() -> None:
    """It is on disk during the block, in one file that nobody else may read, and not open."""
    before = descriptors()
    async with StreamSource(Producer(pieces())()).held(NAME, None) as content:
        (path,) = temporary_files()
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.stat().st_size == len(DATA)
        assert descriptors() == before
        assert await content_of(content) == DATA
    assert temporary_files() == []


async def test_a_spool_is_gone_when_the_upload_fails() -> None:
    """Whatever the error."""

    async def fail() -> None:
        async with StreamSource(Producer(pieces())()).held(NAME, None):
            assert len(temporary_files()) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_the_generator_is_closed_before_the_spool_is_sent() -> None:
    """What it holds is free while the upload waits for its room."""
    producer = Producer(pieces())
    async with StreamSource(producer()).held(NAME, None):
        assert producer.closed


# As it comes


async def test_a_stream_is_not_read_ahead_of_its_sending() -> None:
    """Nothing is taken until the first chunk is asked for; then it is spent."""
    producer = Producer(pieces())
    async with StreamSource(producer(), len(DATA), replayable=False).held(NAME, None) as content:
        assert isinstance(content, OnceContent)
        measure = await content.measure()
        for _ in range(2):  # such as two attempts without a connection
            async with content.open(measure):
                pass
        assert (content.spent, producer.given) == (False, 0)
        async with content.open(measure) as reader:
            assert await reader.read(10) == DATA[:10]
            assert (content.spent, producer.given) == (True, 1)
        with pytest.raises(DocumentUnreadable, match="read already"):
            async with content.open(measure):
                pass
    assert producer.closed


# Closing


@pytest.mark.parametrize("replayable", [True, False])
async def test_a_generator_may_take_its_time_to_close(replayable: bool) -> None:
    """Its cleanup is awaited, on cancellation too."""
    cleaned = []

    async def produce() -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(100_000)
        finally:
            await anyio.sleep(0.05)
            cleaned.append(True)

    with anyio.move_on_after(0.1) as scope:
        async with StreamSource(produce(), 1 << 40, replayable).held(NAME, None) as content:
            while True:
                await content_of(content)
    assert scope.cancelled_caught
    assert cleaned == [True]


async def test_a_generator_that_hangs_when_closed_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It gets some seconds; one that fails is logged. Neither undoes the upload."""
    monkeypatch.setattr(_streams, "CLOSE_SECONDS", 0.05)

    async def produce(cleanup: Any) -> AsyncIterator[bytes]:
        try:
            yield b"data"
            yield b"more"
        finally:
            await cleanup()

    async def fail() -> None:
        raise ZeroDivisionError

    for cleanup in (anyio.sleep_forever, fail):
        stream = StreamSource(produce(cleanup), 8, replayable=False)
        async with (
            stream.held(NAME, None) as content,
            content.open(await content.measure()) as reader,
        ):
            assert await reader.read(4) == b"data"
    assert "ZeroDivisionError" in caplog.text


async def test_somebodys_stream_object_stays_open() -> None:
    """An iterator that is no generator is its owner's to close."""

    class Stream(anyio.abc.ByteReceiveStream):
        closed = 0
        left = 3

        async def receive(self, max_bytes: int = 65536) -> bytes:
            self.left -= 1
            if self.left < 0:
                raise anyio.EndOfStream
            return bytes(1000)

        async def aclose(self) -> None:
            self.closed += 1

    stream = Stream()
    assert await spooled(stream) == bytes(3000)
    assert stream.closed == 0


@pytest.mark.parametrize("after", [0.0, 0.01, 0.03, 0.06, 0.1])
@pytest.mark.parametrize("how", [spooled, passed])
async def test_cancellation_leaves_nothing(how: Any, after: float) -> None:
    """While spooling, reading the spool or sending as it comes: no file, descriptor or task."""
    before, producer = descriptors(), Producer(pieces(bytes(40_000_000)), pause=0.0001)
    with anyio.move_on_after(after) as scope:
        await how(producer(), size=40_000_000)
    assert scope.cancelled_caught
    assert producer.closed or producer.given == 0
    assert temporary_files() == []
    assert descriptors() == before


@pytest.mark.parametrize("after", [0.01, 0.03, 0.06, 0.1])
def test_asyncios_own_cancellation_leaves_nothing(after: float) -> None:
    """``asyncio.timeout`` breaks through shields; the thread that still writes deletes the file."""
    before, producer = descriptors(), Producer(pieces(bytes(40_000_000)), pause=0.0001)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(spooled(producer(), size=40_000_000), after)
        await asyncio.sleep(0.2)
        assert temporary_files() == []

    asyncio.run(main())
    assert producer.closed
    assert descriptors() == before


async def test_a_read_that_never_returns_does_not_hold_a_cancellation() -> None:
    """An idle pipe: the caller goes on at once, the thread when the pipe does."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as file, os.fdopen(write_end, "wb") as other:
        with anyio.fail_after(2), anyio.move_on_after(0.05) as scope:
            await spooled(file)
        other.close()
        await anyio.sleep(0.1)  # the thread ends before its file does
    assert scope.cancelled_caught


# The loop


@pytest.mark.alone
@pytest.mark.parametrize("items", [b"", b"x"])
async def test_a_stream_that_never_waits_lets_others_work(items: bytes) -> None:
    """Not even one of countless tiny or empty items holds the loop, or a cancellation."""

    async def produce() -> AsyncIterator[bytes]:
        while True:
            yield items

    gaps = []
    for _ in range(10):  # another process may take the processor away: the best one counts
        async with largest_gap() as gap:
            with anyio.move_on_after(0.2):
                await spooled(produce())
        gaps.append(gap[0])
        if gap[0] < 0.02:
            break
    assert min(gaps) < 0.02


@pytest.mark.alone
@pytest.mark.parametrize("how", [spooled, passed])
@pytest.mark.parametrize("kind", ["reads", "async reads"])
async def test_a_slow_stream_does_not_hold_the_loop(how: Any, kind: str) -> None:
    """With 50 ms per read the loop never stands still for 20 ms."""
    gaps = []
    for _ in range(10):  # another process may take the processor away: the best one counts
        stream = opened(kind, Producer([DATA[:500_000]]))
        _slow_down(stream)
        async with largest_gap() as gap:
            assert await how(stream, size=500_000) == DATA[:500_000]
        gaps.append(gap[0])
        if gap[0] < 0.02:
            break
    assert min(gaps) < 0.02


def _slow_down(stream: Any) -> None:
    import time

    read = stream.read

    def slow(size: int) -> Any:
        time.sleep(0.05)
        return read(size)

    async def slowly(size: int) -> Any:
        await anyio.sleep(0.05)
        return await read(size)

    stream.read = slowly if isinstance(stream, AsyncReads) else slow
