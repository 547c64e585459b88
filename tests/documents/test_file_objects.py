"""Open files that are read by their methods: in memory, spooled, compressed, somebody's own."""

from __future__ import annotations

import gc
import io
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from meeting_async.errors import DocumentChanged, DocumentUnreadable
from support.gaps import loop_stays_free
from support.leaks import threads_idle
from support.sources import (
    LARGE,
    SMALL,
    START,
    attempt,
    form_of,
    named,
    prepared_document,
    uploaded,
)

pytestmark = pytest.mark.anyio

sizes = pytest.mark.parametrize("data", [LARGE, SMALL], ids=["large", "small"])


class OwnFile(io.BytesIO):
    """A file of somebody's own."""


def own_file(data: bytes = LARGE) -> Any:
    """Open one at an offset."""
    file = OwnFile(data)
    file.seek(START)
    return file


# --- one lock per object -------------------------------------------------------------------------


async def test_a_file_lives_as_long_as_its_document() -> None:
    """And no longer: the library keeps no file of anybody's."""
    file = own_file()
    gone = weakref.ref(file)
    document = named(file)
    del file
    assert await _uploaded_content(document) == LARGE[START:]
    assert gone() is not None
    del document
    await threads_idle()
    gc.collect()
    assert gone() is None


async def _uploaded_content(document: Any) -> bytes:
    return await uploaded(document)


# --- changes and failures ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [START, START + 10, 2 * len(LARGE)])
async def test_another_size_is_a_change(size: int) -> None:
    """Cut or longer, before an attempt or between the first read and the closing boundary."""
    for happens_at in (0, 2):
        file = own_file()
        async with prepared_document(file) as prepared, form_of(prepared) as body:
            for _ in range(happens_at):
                await anext(body)
            _resize(file, size)
            with pytest.raises(DocumentChanged, match=r"bytes instead of|ended after"):
                [chunk async for chunk in body]
            assert body.taken < body.length


def _resize(file: Any, size: int) -> None:
    if size > len(LARGE):
        file.seek(0, io.SEEK_END)
        file.write(b"more")
    file.truncate(size)
    file.seek(START)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda _size: "text", "'text' instead of bytes"),
        (lambda _size: None, "None instead of bytes"),
        (lambda size: bytes(size + 1), "returned"),
        (lambda _size: 7, "7 instead of bytes"),
    ],
)
@sizes
async def test_bad_reads_are_named(bad: Any, said: str, data: bytes) -> None:
    """Text, nothing, too much."""
    file = own_file(data)
    async with prepared_document(file) as prepared:
        file.read = bad
        with pytest.raises(DocumentUnreadable, match=said) as caught:
            await attempt(prepared)
        assert caught.value.document == "deck.pdf"
    with pytest.raises(DocumentUnreadable, match=said):
        await uploaded(file)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
@sizes
async def test_buffers_are_bytes(kind: Any, data: bytes) -> None:
    """A ``read`` may return any buffer."""
    file = own_file(data)
    read = file.read
    file.read = lambda size: kind(read(size))
    assert await uploaded(file, 2) == data[START:]


async def test_a_file_that_ends_early_is_never_complete() -> None:
    """Its end is where it was, and its reads bring less."""
    for data in (LARGE, SMALL):
        file = own_file(data)
        async with prepared_document(file) as prepared:
            file.read = lambda _size: b""
            with pytest.raises(DocumentChanged, match="ended after 0 of"):
                await attempt(prepared)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), EOFError("torn archive")])
async def test_what_a_file_raises_is_the_cause(error: Exception) -> None:
    """Half-way through, with its words."""
    file, reads = own_file(), [0]
    read = file.read

    def failing(size: int) -> Any:
        reads[0] += 1
        if reads[0] > 3:
            raise error
        return read(size)

    file.read = failing
    with pytest.raises(DocumentUnreadable, match=r"Input|torn") as caught:
        await uploaded(file)
    assert caught.value.__cause__ is error
    assert file.tell() == START


async def test_a_file_that_is_closed_meanwhile_is_unreadable() -> None:
    """Between two attempts, by its owner; and the same for a ``BytesIO``."""
    for file in (own_file(), io.BytesIO(LARGE)):
        async with prepared_document(file) as prepared:
            file.close()
            with pytest.raises(DocumentUnreadable, match="closed"):
                await attempt(prepared)


# --- slow and dead files -------------------------------------------------------------------------


@pytest.mark.both_loops
async def test_a_slow_file_does_not_hold_the_loop() -> None:
    """With 50 ms per read the loop never stands still for 20 ms."""
    file = own_file()
    read = file.read

    def slow(size: int) -> Any:
        time.sleep(0.05)
        return read(size)

    file.read = slow

    async def upload() -> None:
        assert await uploaded(file) == LARGE[START:]

    assert await loop_stays_free(upload)


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """Let what hangs go on when the test is over."""
    end = threading.Event()
    yield end
    end.set()


@pytest.mark.both_loops
async def test_a_read_that_never_returns_is_abandoned(end: threading.Event) -> None:
    """The caller goes on at once, and so does an upload of another object; position put back."""
    file, healthy = own_file(), own_file()
    read = file.read

    def hanging(size: int) -> Any:
        end.wait()
        return read(size)

    file.read = hanging
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for _ in range(40):
                group.start_soon(uploaded, file)
            await anyio.sleep(0.02)
            group.cancel_scope.cancel()
        assert await uploaded(healthy) == LARGE[START:]
    assert not end.is_set()
    end.set()
    await threads_idle()
    assert file.tell() == START
