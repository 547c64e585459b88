"""Factories: called for every attempt, closed after it, and never trusted to do the same twice."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from _peer import descriptors
from _streams import DATA, Producer, content_of, pieces, temporary_files
from meeting_async import Document
from meeting_async._factories import FactorySource
from meeting_async._pace import CHUNK_BYTES
from meeting_async.errors import (
    DocumentChanged,
    DocumentTooLarge,
    DocumentUnreadable,
    InvalidInput,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """See that no test leaves a spool behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    assert temporary_files() == []


class Counting:
    """A factory that remembers what it made."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.made: list[Any] = []
        self.threads: set[int] = set()

    def __call__(self) -> Any:
        """Make one more."""
        self.threads.add(threading.get_ident())
        self.made.append(self.make())
        return self.made[-1]


def held(factory: Any, size: int | None = None, max_size: int | None = None) -> Any:
    """Hold what a factory makes."""
    return FactorySource(factory, size).held("deck.pdf", max_size)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a document."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(DATA)
    return path


@pytest.mark.parametrize("size", [None, len(DATA)])
@pytest.mark.parametrize("kind", ["file", "memory", "bytes", "path"])
async def test_it_is_called_for_every_attempt(path: Path, size: int | None, kind: str) -> None:
    """Once more to measure, unless the size was declared; nothing stays open in between."""
    makes: dict[str, Callable[[], Any]] = {
        "file": lambda: path.open("rb"),
        "memory": lambda: io.BytesIO(DATA),
        "bytes": lambda: DATA,
        "path": lambda: path,
    }
    factory, before = Counting(makes[kind]), descriptors()
    async with held(factory, size) as content:
        for _ in range(3):
            assert descriptors() == before
            assert await content_of(content) == DATA
    assert len(factory.made) == 3 + (size is None)
    assert all(getattr(made, "closed", True) for made in factory.made if kind != "bytes")
    assert threading.get_ident() not in factory.threads


async def test_a_stream_of_unknown_size_is_spooled_once() -> None:
    """Reading it twice could bring two documents."""
    producer = Producer(pieces())
    factory = Counting(producer)
    async with held(factory) as content:
        for _ in range(3):
            assert await content_of(content) == DATA
    assert len(factory.made) == 1
    assert producer.closed


async def test_a_stream_of_declared_size_is_made_again() -> None:
    """Each attempt streams straight through, without a spool."""
    producer = Producer(pieces())
    factory = Counting(producer)
    async with held(factory, len(DATA)) as content:
        for _ in range(3):
            assert await content_of(content) == DATA
            assert producer.closed
            assert temporary_files() == []
    assert len(factory.made) == 3


async def test_a_coroutine_function_is_awaited_on_the_loop(path: Path) -> None:
    """So it may open what belongs to the loop."""
    threads = set()

    async def factory() -> Any:
        await anyio.lowlevel.checkpoint()
        threads.add(threading.get_ident())
        return await anyio.open_file(path, "rb")

    before = descriptors()
    async with held(factory) as content:
        assert await content_of(content) == DATA
    assert threads == {threading.get_ident()}
    assert descriptors() == before


async def test_a_function_may_return_a_coroutine() -> None:
    """As a lambda around a coroutine function does."""

    async def make() -> bytes:
        return DATA

    async with held(lambda: make()) as content:  # noqa: PLW0108 - the point
        assert await content_of(content) == DATA


async def test_another_size_is_a_change(path: Path) -> None:
    """Noticed before anything is sent of it, or, for a stream, before it is complete."""
    async with held(lambda: path.open("rb")) as content:
        measure = await content.measure()
        os.truncate(path, len(DATA) - 1)
        with pytest.raises(DocumentChanged, match="2,999,999 bytes instead of 3,000,000"):
            async with content.open(measure):
                pass
    with pytest.raises(DocumentChanged, match="declared"):
        async with held(Producer(pieces(DATA[:-1])), len(DATA)) as content:
            await content_of(content)


async def test_a_declared_size_above_the_limit_is_refused_unasked() -> None:
    """The factory is not called."""
    factory = Counting(lambda: DATA)
    with pytest.raises(DocumentTooLarge):
        async with held(factory, 10, 9):
            pass
    assert factory.made == []


async def test_a_stream_is_read_no_further_than_the_limit() -> None:
    """As any stream is."""
    producer = Producer(pieces())
    with pytest.raises(DocumentTooLarge):
        async with held(producer, max_size=1_000_000):
            pass
    assert producer.given == 15
    assert producer.closed


async def test_what_a_factory_raises_is_the_cause() -> None:
    """The document is unreadable."""

    def fail() -> Any:
        raise LookupError("no such report")

    with pytest.raises(DocumentUnreadable, match="no such report") as caught:
        async with held(fail):
            pass
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize("bad", [None, 3, ["x"]])
async def test_a_factory_that_makes_nothing_is_told(bad: Any) -> None:
    """With what it returned."""
    with pytest.raises(TypeError, match=f"factory must return .* not {type(bad).__name__}"):
        async with held(lambda: bad):
            pass


async def test_a_factory_that_makes_text_is_told(path: Path) -> None:
    """And what it opened is closed."""
    factory = Counting(lambda: path.open(encoding="utf-8"))
    with pytest.raises(TypeError, match="text file"):
        async with held(factory):
            pass
    assert factory.made[0].closed


async def test_closing_that_fails_undoes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An upload that has succeeded stays so."""

    class Sticky(io.BytesIO):
        def close(self) -> None:
            raise OSError("cannot close")

    async with held(lambda: Sticky(DATA)) as content:
        assert await content_of(content) == DATA
    assert "cannot close" in caplog.text


@pytest.mark.parametrize("after", [0.0, 0.005, 0.02])
async def test_cancellation_closes_what_was_opened(path: Path, after: float) -> None:
    """Amid an attempt, on files and on generators."""
    before, factory = descriptors(), Counting(lambda: path.open("rb"))
    producer = Producer(pieces(), pause=0.001)
    for made, size in ((factory, None), (producer, len(DATA))):
        with anyio.move_on_after(after) as scope:
            async with held(made, size) as content:
                while True:
                    await content_of(content, CHUNK_BYTES)
                    await anyio.sleep(0.001)
        assert scope.cancelled_caught
    assert producer.closed or not producer.given
    assert all(file.closed for file in factory.made)
    assert descriptors() == before


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "3"])
def test_a_size_is_a_positive_number_of_bytes(size: Any) -> None:
    """For factories and streams alike."""
    with pytest.raises(InvalidInput, match="size is not a positive number"):
        Document.from_factory(lambda: DATA, "deck.pdf", size=size)
    with pytest.raises(InvalidInput, match="size is not a positive number"):
        Document.from_stream(io.BytesIO(DATA), "deck.pdf", size=size)


def test_arguments_are_checked_at_once() -> None:
    """Before any call."""

    async def produce() -> AsyncIterator[bytes]:
        yield DATA

    with pytest.raises(TypeError, match="factory must be callable, not bytes"):
        Document.from_factory(DATA, "deck.pdf")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="size is needed with replayable=False"):
        Document.from_stream(produce(), "deck.pdf", replayable=False)
    with pytest.raises(TypeError, match="file must be an open binary file, not str"):
        Document.from_file("deck.pdf")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="filename"):
        Document.from_factory(produce, None)  # type: ignore[arg-type]
