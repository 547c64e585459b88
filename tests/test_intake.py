"""Reading jobs: from whatever they come as, no further ahead than is useful."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from _batches import PDF, job
from meeting_async import Document, UploadJob
from meeting_async._intake import BREATH, MOST_BYTES, NOTHING, Held, Window, held_by, reading

pytestmark = pytest.mark.anyio

THIRD = MOST_BYTES // 3


async def is_let_in(window: Window, held: Held = NOTHING) -> bool:
    """Tell whether a job would be let in at once; one that would not be is not read."""
    entered = anyio.Event()

    async def enter() -> None:
        await window.enter(held)
        entered.set()

    async with anyio.create_task_group() as group:
        group.start_soon(enter)
        await anyio.wait_all_tasks_blocked()
        is_in = entered.is_set()
        group.cancel_scope.cancel()
    if not is_in:  # it counts however its wait ends
        window.unload(held)
        window.leave()
    return is_in


# --- the window ----------------------------------------------------------------------------------


async def test_no_more_jobs_than_the_limit() -> None:
    """One that is left makes room for one; an unloaded document alone does not."""
    window = Window(2)
    assert await is_let_in(window)
    assert await is_let_in(window)
    assert not await is_let_in(window)
    window.unload(NOTHING)
    assert not await is_let_in(window)
    window.leave()
    assert await is_let_in(window)
    assert not await is_let_in(window)


async def test_no_more_bytes_than_the_limit() -> None:
    """Three thirds fit, not a byte more; a job without bytes is let in all the same."""
    window = Window(100)
    for number in range(3):
        assert await is_let_in(window, Held(number, THIRD))
    assert not await is_let_in(window, Held(9, THIRD))
    assert await is_let_in(window)
    window.unload(Held(1, THIRD))
    assert await is_let_in(window, Held(9, THIRD))


async def test_a_document_above_the_limit() -> None:
    """It is let in when no other is in memory, though outcomes wait to be taken."""
    window, huge = Window(100), Held(1, MOST_BYTES + 1)
    assert await is_let_in(window, Held(2, 1))
    assert not await is_let_in(window, huge)
    window.unload(Held(2, 1))
    assert await is_let_in(window, huge)
    assert not await is_let_in(window, Held(3, 1))


async def test_one_document_in_many_jobs_is_in_memory_once() -> None:
    """It weighs until the last of them is done."""
    window, deck, other = Window(100), Held(1, MOST_BYTES), Held(2, 1)
    for _ in range(5):
        assert await is_let_in(window, deck)
    for _ in range(4):
        window.unload(deck)
        assert not await is_let_in(window, other)
    window.unload(deck)
    assert await is_let_in(window, other)


async def test_who_waits_is_woken() -> None:
    """By an outcome that is taken, and by a document that is done."""
    for release in ("leave", "unload"):
        window, held = Window(1 if release == "leave" else 9), Held(1, MOST_BYTES)
        await window.enter(held)
        async with anyio.create_task_group() as group:
            group.start_soon(window.enter, Held(2, 1))
            await anyio.wait_all_tasks_blocked()
            if release == "leave":
                window.leave()
            window.unload(held)


async def test_a_wait_that_is_cut_short_counts() -> None:
    """The job was read: somebody will say what becomes of it."""
    window = Window(1)
    await window.enter(Held(1, 5))
    with anyio.move_on_after(0.01) as scope:
        await window.enter(Held(2, 5))
    assert scope.cancelled_caught
    assert (window._jobs, window._bytes) == (2, 10)


# --- what a job keeps in memory ------------------------------------------------------------------


def test_what_jobs_keep_in_memory() -> None:
    """Bytes of all kinds; what is on disk or a stream keeps nothing."""
    data = bytes(100)
    buffer = bytearray(100)
    for document in (data, buffer, memoryview(data)[:50], memoryview(buffer)):
        assert held_by(job("a", 0, document)).size == len(document)
    assert held_by(UploadJob("a", Document.from_bytes(data, "x.pdf"))).size == 100
    assert held_by(job("a", 0, data)) == held_by(job("b", 1, data))
    assert held_by(job("a", 0, data)) != held_by(job("a", 0, bytes(bytearray(100))))
    for other in ("deck.pdf", Document.from_link("https://host/deck.pdf"), object(), None):
        assert held_by(UploadJob("a", other)) == NOTHING  # type: ignore[arg-type]


def test_a_released_view_keeps_nothing() -> None:
    """It is refused when its turn comes, and not before."""
    view = memoryview(PDF)
    view.release()
    assert held_by(job("a", 0, view)) == NOTHING


# --- reading -------------------------------------------------------------------------------------


async def read(jobs: Any, most: int = 10**9) -> list[UploadJob]:
    """Read jobs, and leave early after so many."""
    found = []
    async with reading(jobs) as each:
        async for one in each:
            found.append(one)
            if len(found) == most:
                break
    return found


JOBS = [job("a", number) for number in range(5)]


class Again:
    """Can be read asynchronously, any number of times, and is no generator."""

    def __aiter__(self) -> AsyncIterator[UploadJob]:
        self._left = iter(JOBS)
        return self

    async def __anext__(self) -> UploadJob:
        for one in self._left:
            return one
        raise StopAsyncIteration


async def test_whatever_they_come_as() -> None:
    """A list, an iterator, a generator, an asynchronous one, an asynchronous iterable."""

    def plain() -> Iterator[UploadJob]:
        yield from JOBS

    async def asynchronous() -> AsyncIterator[UploadJob]:
        for one in JOBS:
            yield one

    for jobs in (JOBS, tuple(JOBS), iter(JOBS), plain(), asynchronous(), Again()):
        assert await read(jobs) == JOBS


@pytest.mark.parametrize("most", [1, 10**9])
async def test_generators_are_closed(most: int) -> None:
    """At the end, and when they are left early."""
    closed = []

    def plain() -> Iterator[UploadJob]:
        try:
            yield from JOBS
        finally:
            closed.append("plain")

    async def asynchronous() -> AsyncIterator[UploadJob]:
        try:
            for one in JOBS:
                yield one
        finally:
            await anyio.lowlevel.checkpoint()
            closed.append("asynchronous")

    await read(plain(), most)
    await read(asynchronous(), most)
    assert closed == ["plain", "asynchronous"]


async def test_others_run_while_a_long_list_is_read() -> None:
    """A list never waits; every so many jobs there is a pause for others."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        await read(itertools.repeat(JOBS[0]), 20 * BREATH)
        group.cancel_scope.cancel()
    assert 15 <= turns <= 25


async def test_errors_come_through() -> None:
    """As the objects that they are."""
    error = KeyError("column")

    def plain() -> Iterator[UploadJob]:
        yield JOBS[0]
        raise error

    with pytest.raises(KeyError) as caught:
        await read(plain())
    assert caught.value is error
