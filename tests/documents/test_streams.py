"""Streams: spooled or sent as they come, used once, checked, closed."""

from __future__ import annotations

import array
import asyncio
import math
import os
import sys
import threading
import time
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from documents.sources import (
    OnlyReads,
    Producer,
    attempt,
    form_of,
    pieces,
    prepared_document,
    uploaded,
)
from meeting_async import Document
from meeting_async.errors import (
    DocumentChanged,
    DocumentTooLarge,
    DocumentUnreadable,
    ResourceExhausted,
)
from meeting_async.web import http_answer, public_detail
from support.leaks import descriptors, temporary_files, threads_idle
from support.systems import OWNER_ONLY

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
    """Makes an iterator each time; it can be closed, which is its owner's to do; it has no hash."""

    __hash__ = None  # type: ignore[assignment]  # on purpose

    def __init__(self, items: Sequence[Any]) -> None:
        self.producer = Producer(items)
        self.is_closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.producer()

    async def aclose(self) -> None:
        """Close."""
        self.is_closed = True


class Reads:
    """Has a ``read``, which returns less than it could, and cannot seek."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = iter(items)

    def read(self, _size: int) -> Any:
        """Return an item, or raise it."""
        item = next(self.items, b"")
        if isinstance(item, Exception):
            raise item
        return item


class AsyncReads(Reads):
    """Has an asynchronous ``read``; iterating over it gives lines, as over asyncio's streams."""

    async def read(self, size: int) -> Any:
        """Return an item, or raise it."""
        await anyio.lowlevel.checkpoint()
        return super().read(size)

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise AssertionError("lines are not wanted")


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
    "iterable": (lambda: Iterable(pieces(DATA)), DATA),
    "items": (
        Producer(ITEMS),
        DATA[:900_000] + WORDS.tobytes() + bytes(range(0, 100, 2)),
    ),
    "one buffer": (reusing, DATA),
}


@pytest.mark.parametrize(("make", "wanted"), STREAMS.values(), ids=STREAMS)
@both_ways
async def test_streams_of_each_kind_arrive(make: Any, wanted: bytes, how: Any) -> None:
    """Byte for byte (the contract of all sources has more kinds)."""
    assert await how(make(), size=len(wanted)) == wanted
    assert temporary_files() == []


TORN = ConnectionResetError("the storage hung up")
FAULTS: dict[str, tuple[list[Any], type[Exception], str]] = {
    **{
        repr(item)[:9]: ([DATA[:9], item], DocumentUnreadable, "instead of bytes")
        for item in ("text", None, 7)
    },
    "its own error": ([DATA[:9], TORN], DocumentUnreadable, "the storage hung up"),
    "nothing": ([], DocumentChanged, f"after 0 of the declared {SIZE:,} bytes"),
    "one byte less": (pieces(DATA[:-1]), DocumentChanged, f"of the declared {SIZE:,} bytes"),
    "one byte more": ([*pieces(DATA), b"x"], DocumentChanged, f"than the declared {SIZE:,} bytes"),
}


@both_ways
@pytest.mark.parametrize(("items", "error", "said"), FAULTS.values(), ids=FAULTS)
async def test_a_faulty_stream_is_never_a_whole_form(
    how: Any, items: list[Any], error: type[Exception], said: str
) -> None:
    """The error names the document and the fault, and the generator is closed."""
    several, one = Iterable(items), Producer(items)
    for stream in (one(), several, Reads(items), AsyncReads(items)):
        with pytest.raises(error, match=said) as caught:
            await how(stream, SIZE)
        assert getattr(caught.value, "document", None) == "deck.pdf"
        assert caught.value.__cause__ is TORN or TORN not in items
        assert temporary_files() == []
    assert one.closed
    assert several.producer.closed
    assert not several.is_closed


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


async def test_the_rest_of_a_stream_is_no_document() -> None:
    """One that was read half-way is refused, also without support for weak references."""
    made = OnlyReads(bytes(MIB))
    with pytest.raises(DocumentTooLarge):
        await uploaded(made, max_size=MIB // 2)
    with pytest.raises(DocumentUnreadable, match="already used"):
        await uploaded(made)


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
    """In memory up to 1 MiB, then in one file that nobody else may read, and that is not open.

    It is gone in the end, even if the caller keeps an error with its traceback.
    """
    before, producer, kept = descriptors(), Producer(pieces(DATA[:size])), list[Exception]()
    try:
        async with prepared_document(producer()) as prepared:
            assert producer.closed  # what it holds is free while the upload waits
            found = [path.stat() for path in temporary_files()]
            modes = [(state.st_mode & 0o777, state.st_size) for state in found]
            assert modes == ([(OWNER_ONLY, size)] if size > IN_MEMORY else [])
            for _ in range(2):
                assert descriptors() == before
                assert await attempt(prepared) == DATA[:size]
            raise ZeroDivisionError  # noqa: TRY301 - as an upload fails
    except ZeroDivisionError as error:
        kept.append(error)
    assert temporary_files() == []
    assert kept[0].__traceback__


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
        await spooled(Iterable([bytes(IN_MEMORY)] * 5))
    assert late.is_set()
    await threads_idle()
    assert temporary_files() == []


@contextmanager
def nothing_can_be_written() -> Iterator[None]:
    """Be for a moment as on a read-only file system."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("folder", ["/dev/full/nowhere", pytest.param(None, id="none")])
async def test_a_disk_for_spools_that_fails_is_this_machines_trouble(
    monkeypatch: pytest.MonkeyPatch, folder: str | None
) -> None:
    """It is not the browser's fault: 503, with the folder and the variable that names another.

    So it is if there is no folder in which anything can be written.
    """
    monkeypatch.setattr("tempfile.tempdir", folder)
    expected = pytest.raises(ResourceExhausted, match=f"{folder or '/tmp'}.*TMPDIR")
    with nullcontext() if folder else nothing_can_be_written(), expected as caught:
        await spooled(Iterable([DATA]))
    assert http_answer(caught.value).status == 503
    assert public_detail(caught.value) == "uploads are not possible now: try again later"


async def test_what_fails_in_a_cleanup_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It affects no upload: a spool that somebody has deleted, a generator that raises."""

    async def produce() -> AsyncGenerator[bytes, None]:
        try:
            yield DATA
            yield b""
        finally:
            raise ZeroDivisionError

    async with prepared_document(Iterable([DATA])) as prepared:
        assert await attempt(prepared) == DATA
        temporary_files()[0].unlink()
    with pytest.raises(DocumentTooLarge):
        await uploaded(produce(), max_size=1)
    actions = [getattr(record, "action", None) for record in caplog.records]
    assert actions == ["SpoolLeft", "StreamNotClosed"]


# --- as it comes ---------------------------------------------------------------------------------


async def test_a_stream_is_not_read_ahead_of_its_sending() -> None:
    """Attempts without a connection take nothing; the first that reads, however far, spends it."""
    producer = Producer(pieces(DATA))
    document = Document.from_stream(producer(), "deck.pdf", size=SIZE, replayable=False)
    async with prepared_document(document) as prepared:
        for _ in range(2):
            async with form_of(prepared):
                pass
        assert (prepared.is_consumed, producer.given) == (False, 0)
        async with form_of(prepared) as body:
            await anext(body)
            await anext(body)
        assert (prepared.is_consumed, producer.given) == (True, 1)
        with pytest.raises(DocumentUnreadable, match="already read"):
            await attempt(prepared)
    assert producer.closed


# --- closing -------------------------------------------------------------------------------------


@both_ways
@pytest.mark.both_loops
@pytest.mark.parametrize("hangs", [False, True], ids=["", "hangs"])
async def test_a_generator_may_clean_up_on_cancellation(how: Any, hangs: bool) -> None:
    """Its cleanup is awaited, for a moment: on a busy machine too short a one now and then.

    One that hangs is given up: a call ends within its timeout.
    """
    cleaned: list[bool] = []

    async def produce(began: anyio.Event) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                began.set()
                yield bytes(100_000)
        finally:
            await anyio.sleep(math.inf if hangs else 0.001)
            cleaned.append(True)

    with anyio.fail_after(30):
        for _ in range(1 if hangs else 10):
            async with anyio.create_task_group() as group:
                began = anyio.Event()
                group.start_soon(how, produce(began), 1 << 40)
                await began.wait()
                await anyio.sleep(0.02)
                group.cancel_scope.cancel()
            if cleaned:
                break
    assert bool(cleaned) != hangs


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
            if given == 10_000:
                scope.cancel()
            yield item

    async def work() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await spooled(produce())
    assert scope.cancelled_caught
    assert 10_000 <= given < 11_000
    assert turns > given / 100


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
