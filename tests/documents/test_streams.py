"""Streams: spooled or sent as they come, used once, checked, closed."""

from __future__ import annotations

import array
import asyncio
import io
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from meeting_async import Document
from meeting_async.errors import (
    DocumentChanged,
    DocumentEmpty,
    DocumentTooLarge,
    DocumentTypeRefused,
    DocumentUnreadable,
    InvalidInput,
)
from support.gaps import loop_stays_free
from support.leaks import descriptors, temporary_files, threads_idle
from support.sources import Producer, attempt, form_of, pieces, prepared_document, uploaded

pytestmark = pytest.mark.anyio

DATA = bytes(range(250)) * 8_000
"""More than a spool keeps in memory."""
SIZE = len(DATA)
IN_MEMORY = MIB = 1024**2
"""Most bytes that a spool keeps there."""


async def spooled(stream: Any, size: int | None = None, **checks: Any) -> bytes:
    """Upload a stream by way of its spool, in two attempts."""
    return await uploaded(Document.from_stream(stream, "deck.pdf", size=size), 2, **checks)


async def passed(stream: Any, size: int = SIZE, **checks: Any) -> bytes:
    """Upload a stream as it comes."""
    document = Document.from_stream(stream, "deck.pdf", size=size, replayable=False)
    return await uploaded(document, **checks)


both_ways = pytest.mark.parametrize("how", [spooled, passed])


class Iterable:
    """Makes an iterator each time; it has no hash."""

    __hash__ = None  # type: ignore[assignment]  # on purpose

    def __init__(self, data: bytes) -> None:
        self.producer = Producer(pieces(data))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Iterable)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.producer()


class Reads:
    """Has a ``read`` and cannot seek."""

    def __init__(self, data: bytes) -> None:
        self.file = io.BytesIO(data)

    def read(self, size: int) -> Any:
        """Return less than was asked for, now and then."""
        return self.file.read(min(size, 100_001))


class AsyncReads(Reads):
    """Has an asynchronous ``read``; iterating over it gives lines, as over asyncio's streams."""

    async def read(self, size: int) -> Any:
        """Return bytes."""
        await anyio.lowlevel.checkpoint()
        return super().read(size)

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise AssertionError("lines are not wanted")


class Slotted:
    """A stream that takes no weak references and cannot seek."""

    __slots__ = ("file",)

    def __init__(self, data: bytes) -> None:
        self.file = io.BytesIO(data)

    def read(self, size: int) -> bytes:
        """Return bytes."""
        return self.file.read(size)


# --- both ways -----------------------------------------------------------------------------------


WORDS = array.array("I", range(1000))
ITEMS = [
    *(b"", DATA[:1], b"", bytearray(DATA[1:7]), memoryview(DATA)[7:900_000], b"", b""),
    *(memoryview(WORDS), memoryview(bytes(range(100)))[::2], b""),
]
"""Empty ones are skipped; buffers of any item size and layout count in bytes."""


async def reusing() -> AsyncIterator[memoryview]:
    """Use one buffer again and again, as ``readinto`` does: an item is valid until the next."""
    buffer = bytearray(100_000)
    for piece in pieces(DATA, 100_000):
        buffer[: len(piece)] = piece
        yield memoryview(buffer)[: len(piece)]


STREAMS: dict[str, tuple[Any, bytes]] = {
    "iterable": (lambda: Iterable(DATA), DATA),
    "read": (lambda: Reads(DATA), DATA),
    "asynchronous read": (lambda: AsyncReads(DATA), DATA),
    "items": (
        Producer(ITEMS),
        DATA[:900_000] + WORDS.tobytes() + bytes(range(0, 100, 2)),
    ),
    "one buffer": (reusing, DATA),
}


@pytest.mark.both_loops
@pytest.mark.parametrize(("make", "wanted"), STREAMS.values(), ids=STREAMS)
@both_ways
async def test_streams_of_each_kind_arrive(make: Any, wanted: bytes, how: Any) -> None:
    """Byte for byte (generators and pipes are in the contract of all sources)."""
    assert await how(make(), size=len(wanted)) == wanted
    assert temporary_files() == []


TORN = ConnectionResetError("the storage hung up")
FAULTS: dict[str, tuple[list[Any], type[Exception], str]] = {
    **{
        repr(item)[:9]: ([DATA[:9], item], DocumentUnreadable, "instead of bytes")
        for item in ("text", None, 7, [1], object())
    },
    "its own error": ([DATA[:9], TORN], DocumentUnreadable, "the storage hung up"),
    "nothing": ([], DocumentChanged, f"after 0 of the declared {SIZE:,} bytes"),
    "one byte less": (pieces(DATA[:-1]), DocumentChanged, f"of the declared {SIZE:,} bytes"),
    "a piece less": (pieces(DATA)[:-1], DocumentChanged, f"of the declared {SIZE:,} bytes"),
    "one byte more": ([*pieces(DATA), b"x"], DocumentChanged, f"than the declared {SIZE:,} bytes"),
    "twice": (pieces(DATA * 2), DocumentChanged, f"than the declared {SIZE:,} bytes"),
}


@both_ways
@pytest.mark.parametrize(("items", "error", "said"), FAULTS.values(), ids=FAULTS)
async def test_a_faulty_stream_is_never_a_whole_form(
    how: Any, items: list[Any], error: type[Exception], said: str
) -> None:
    """The error names the document and the fault, and the generator is closed."""
    several = Iterable(b"")
    several.producer = Producer(items)
    one = Producer(items)
    for stream, producer in [(one(), one), (several, several.producer)]:
        with pytest.raises(error, match=said) as caught:
            await how(stream, SIZE)
        assert getattr(caught.value, "document", None) == "deck.pdf"
        assert caught.value.__cause__ is TORN or TORN not in items
        assert producer.closed
        assert temporary_files() == []


@pytest.mark.parametrize("kind", [Reads, AsyncReads])
@pytest.mark.parametrize("item", ["text", None, 7])
@both_ways
async def test_a_read_that_returns_no_bytes_is_named(how: Any, kind: Any, item: Any) -> None:
    """As the items of an iterable are."""
    stream = kind(b"")
    stream.file.read = lambda _size: item
    with pytest.raises(DocumentUnreadable, match="instead of bytes"):
        await how(stream)


@both_ways
async def test_a_declared_size_above_the_limit_is_refused_unread(how: Any) -> None:
    """Nothing is taken from the stream, and it is closed."""
    producer = Producer([b"data"])
    stream = producer()
    with pytest.raises(DocumentTooLarge):
        await how(stream, 4, max_size=3)
    assert producer.given == 0
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@pytest.mark.parametrize(
    ("data", "error"), [(b"", DocumentEmpty), (b"\x89PNG\r\n\x1a\n", DocumentTypeRefused)]
)
async def test_a_spool_is_checked_as_any_document(data: bytes, error: type[Exception]) -> None:
    """There is something in it, and it is no image."""
    with pytest.raises(error):
        await spooled(Producer([b"", data])(), allow_images=False)


# --- used once -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Iterable, Slotted, Reads, AsyncReads])
@pytest.mark.parametrize("wrapped", [True, False])
async def test_a_stream_is_good_for_one_upload(kind: Any, wrapped: bool) -> None:
    """A second upload is refused, by another document too, after the first one or during it."""
    stream = kind(DATA)
    values = [Document.from_stream(stream, "a.pdf") if wrapped else stream for _ in range(3)]
    contents, refusals = [], []

    async def upload(value: Any) -> None:
        try:
            contents.append(await uploaded(value))
        except DocumentUnreadable as error:
            refusals.append(str(error))

    async with anyio.create_task_group() as group:
        group.start_soon(upload, values[0])
        group.start_soon(upload, values[1])
    del values[:2]
    await upload(values.pop())
    assert contents == [DATA]
    assert len(refusals) == 2
    assert all("already used for an upload" in refusal for refusal in refusals)


async def test_used_streams_are_forgotten_with_their_objects() -> None:
    """A new stream that gets the place of an old one in memory is a new stream."""
    for _ in range(200):
        assert await uploaded(Producer([b"data"])()) == b"data"
        assert await uploaded(Slotted(b"data")) == b"data"


# --- spooled -------------------------------------------------------------------------------------


async def test_a_stream_is_read_no_further_than_the_limit() -> None:
    """One that never ends is left as soon as it is too large; just the limit fits."""
    producer = Producer(iter(lambda: bytes(1000), None))
    with pytest.raises(DocumentTooLarge) as caught:
        await spooled(producer(), max_size=2_000_000)
    assert producer.given == 2001
    assert producer.closed
    assert (caught.value.size, caught.value.limit) == (2_001_000, 2_000_000)
    assert "may be larger" in "".join(caught.value.__notes__)
    assert await spooled(Producer(pieces(DATA))(), max_size=SIZE) == DATA


@pytest.mark.parametrize("size", [IN_MEMORY, IN_MEMORY + 1])
async def test_a_spool_is_there_during_the_upload_only(size: int) -> None:
    """In memory up to 1 MiB, then in one file that nobody else may read, and that is not open."""
    before, producer = descriptors(), Producer(pieces(DATA[:size]))
    async with prepared_document(producer()) as prepared:
        assert producer.closed  # what it holds is free while the upload waits
        modes = [(path.stat().st_mode & 0o777, path.stat().st_size) for path in temporary_files()]
        assert modes == ([(0o600, size)] if size > IN_MEMORY else [])
        assert descriptors() == before
        assert await attempt(prepared) == DATA[:size]
        assert await attempt(prepared) == DATA[:size]
    assert temporary_files() == []


async def test_a_spool_is_gone_when_the_upload_fails() -> None:
    """Even if the caller keeps the error with its traceback."""

    async def fail() -> None:
        async with prepared_document(Iterable(DATA)):
            assert len(temporary_files()) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as kept:
        await fail()
    assert temporary_files() == []
    assert kept.value.__traceback__


async def test_a_spool_that_is_written_late_is_not_made_again() -> None:
    """A thread that comes to a write only after the upload was cancelled finds no file."""
    scope, late = anyio.CancelScope(), threading.Event()

    def wait_before_writing(event: str, arguments: tuple[Any, ...]) -> None:
        name = str(arguments[0]) if event == "open" else ""
        if "meeting-async-" in name and threading.current_thread().name == "meeting-async":
            is_second = os.path.exists(name) and os.path.getsize(name) > 0
            if is_second and not late.is_set():
                late.set()
                loop.call_soon_threadsafe(scope.cancel)
                time.sleep(0.5)

    loop = asyncio.get_running_loop()
    sys.addaudithook(wait_before_writing)  # stays, and does nothing after that
    with scope:
        await spooled(Iterable(bytes(5 * IN_MEMORY)))
    assert late.is_set()
    await threads_idle()
    assert temporary_files() == []


async def test_a_full_disk_makes_a_stream_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The note tells what could not be written."""
    folder = "/dev/full/nowhere"
    monkeypatch.setattr("tempfile.tempdir", folder)
    with pytest.raises(DocumentUnreadable) as caught:
        await spooled(Iterable(DATA))
    assert "temporary file" in caught.value.__notes__[0]


async def test_what_fails_in_a_cleanup_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It affects no upload: a spool that somebody has deleted, a generator that raises."""

    async def produce() -> AsyncGenerator[bytes, None]:
        try:
            yield DATA
            yield b""
        finally:
            raise ZeroDivisionError

    async with prepared_document(Iterable(DATA)) as prepared:
        assert await attempt(prepared) == DATA
        temporary_files()[0].unlink()
    with pytest.raises(DocumentTooLarge):
        await uploaded(produce(), max_size=1)
    actions = [getattr(record, "action", None) for record in caplog.records]
    assert actions == ["SpoolLeft", "StreamNotClosed"]


_EXIT = """
import asyncio, os, sys, tempfile
from meeting_async import MeetingClient

class Never:
    async def send(self, request):
        sending.set()
        await asyncio.Event().wait()
    async def aclose(self):
        pass

async def produce():
    yield bytes(3_000_000)

async def upload():
    keys = {"api_key": "key", "api_secret": "secret", "transport": Never(), "preflight": False}
    client = MeetingClient("https://meet.test", **keys)
    await client.upload_whiteboard_file("room01", produce(), filename="deck.pdf")

tempfile.tempdir = sys.argv[1]
loop, sending = asyncio.new_event_loop(), asyncio.Event()
task = loop.create_task(upload())
loop.run_until_complete(sending.wait())
if not os.fork():
    sys.exit(0)
os.wait()
print(len(os.listdir(tempfile.tempdir)))
"""


def test_a_spool_does_not_outlive_its_process(tmp_path: Path) -> None:
    """An interpreter that exits amid an upload deletes it; a forked child leaves it alone."""
    command = [sys.executable, "-c", _EXIT, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=58, check=False)
    assert (ended.stdout, ended.returncode) == ("1\n", 0), ended.stderr
    assert list(tmp_path.iterdir()) == []


# --- as it comes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [2, len(pieces(DATA)) + 2])
async def test_a_stream_is_not_read_ahead_of_its_sending(taken: int) -> None:
    """Attempts without a connection take nothing; the first that reads, however far, spends it."""
    producer = Producer(pieces(DATA))
    document = Document.from_stream(producer(), "deck.pdf", size=SIZE, replayable=False)
    async with prepared_document(document) as prepared:
        for _ in range(2):
            async with form_of(prepared):
                pass
        assert (prepared.is_consumed, producer.given) == (False, 0)
        async with form_of(prepared) as body:
            sent = [await anext(body) for _ in range(taken)]
        assert len(sent) == taken
        assert prepared.is_consumed
        with pytest.raises(DocumentUnreadable, match="already read"):
            await attempt(prepared)
    assert producer.closed


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "how", "said"),
    [
        *[(Iterable, {"size": size}, "positive number") for size in (0, -1, 1.5, True, "7")],
        (Iterable, {"replayable": False}, "is needed"),
        (io.BytesIO, {"size": SIZE}, "can seek"),
    ],
)
def test_unusable_arguments_are_refused(stream: Any, how: Any, said: str) -> None:
    """Before the stream is touched."""
    with pytest.raises(InvalidInput, match=said):
        Document.from_stream(stream(DATA), "deck.pdf", **how)


async def test_what_can_seek_needs_no_spool() -> None:
    """A file that is given as a stream stays in its place, and may go to many rooms."""
    file = io.BytesIO(DATA)
    for _ in range(2):
        assert await uploaded(Document.from_stream(file, "deck.pdf")) == DATA


# --- closing -------------------------------------------------------------------------------------


@both_ways
@pytest.mark.both_loops
async def test_a_generator_may_clean_up_on_cancellation(how: Any) -> None:
    """Its cleanup is awaited, for a moment: on a busy machine too short a one now and then."""
    cleaned: list[bool] = []

    async def produce(began: anyio.Event) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                began.set()
                yield bytes(100_000)
        finally:
            await anyio.sleep(0.001)
            cleaned.append(True)

    for _ in range(10):
        async with anyio.create_task_group() as group:
            began = anyio.Event()
            group.start_soon(how, produce(began), 1 << 40)
            await began.wait()
            await anyio.sleep(0.02)
            group.cancel_scope.cancel()
        if cleaned:
            break
    assert cleaned


@both_ways
@pytest.mark.both_loops
async def test_a_generator_that_hangs_when_closed_is_given_up(how: Any) -> None:
    """It cannot outlast the end of its call for long: a call ends within its timeout."""
    began = anyio.Event()

    async def produce() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                began.set()
                yield bytes(100_000)
        finally:
            await anyio.sleep_forever()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(how, produce(), 1 << 40)
            await began.wait()
            group.cancel_scope.cancel()


async def test_somebodys_stream_object_stays_open() -> None:
    """An iterator that is not a generator is its owner's to close."""

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


# --- time and memory -----------------------------------------------------------------------------


@pytest.mark.both_loops
@pytest.mark.parametrize("item", [b"", b"x"])
async def test_a_stream_that_never_waits_lets_others_work(item: bytes) -> None:
    """Not even one of countless tiny or empty items holds the loop, or a cancellation."""
    given, turns = 0, 0

    async def produce() -> AsyncIterator[bytes]:
        nonlocal given
        while True:
            given += 1
            yield item

    async def work() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    with anyio.move_on_after(0.1) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await spooled(produce())
    assert scope.cancelled_caught
    assert given > 100
    assert turns > given / 100


@both_ways
async def test_a_slow_stream_does_not_hold_the_loop(how: Any) -> None:
    """With 50 ms per read the loop never stands still for 20 ms."""

    class Slow(Reads):
        def read(self, size: int) -> Any:
            time.sleep(0.05)
            return super().read(size)

    async def upload() -> None:
        assert await how(Slow(DATA[:500_000]), size=500_000) == DATA[:500_000]

    assert await loop_stays_free(upload)


@pytest.mark.parametrize("kind", ["spooled", "passed", "path"])
async def test_64_megabytes_need_less_than_16_of_memory(kind: str, tmp_path: Path) -> None:
    """Spooled, sent as it comes, and from a file (aioboto3#273, obstore#540)."""
    piece, path = bytes(MIB), tmp_path / "deck.pdf"
    path.touch()
    os.truncate(path, 64 * MIB)
    size = 64 * MIB if kind == "passed" else None
    stream = Document.from_stream(
        Producer([piece] * 64)(), "deck.pdf", size=size, replayable=kind != "passed"
    )
    tracemalloc.start(1)
    try:
        async with prepared_document(path if kind == "path" else stream) as prepared:
            async with form_of(prepared) as body:
                async for _chunk in body:
                    await anyio.lowlevel.checkpoint()
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()
