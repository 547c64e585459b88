"""When connections keep failing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from meeting_async._outage import SCOUT_SECONDS, THRESHOLD, Outage


def test_one_failure_says_little() -> None:
    """Only several in a row, of whatever calls, make an outage; one success ends it."""
    outage = Outage()
    for _ in range(THRESHOLD - 1):
        outage.note(reached=False)
        assert not outage.is_on
    outage.note(reached=True)
    for _ in range(THRESHOLD - 1):
        outage.note(reached=False)
        assert not outage.is_on
    outage.note(reached=False)
    assert outage.is_on
    outage.note(reached=True)
    assert not outage.is_on


def test_the_first_success_wakes_all(in_virtual_time: Callable[..., Any]) -> None:
    """At once, however long each was ready to wait."""
    woken: list[float] = []

    async def main() -> None:
        outage, began = Outage(), anyio.current_time()

        async def wait() -> None:
            await outage.wait(1000)
            woken.append(anyio.current_time() - began)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(wait)
            await anyio.sleep(7)
            outage.note(reached=False)  # this is no news
            await anyio.sleep(1)
            outage.note(reached=True)
        outage.note(reached=True)  # with nobody there

    in_virtual_time(main)
    assert woken == pytest.approx([8, 8, 8])


def test_patience_has_an_end(in_virtual_time: Callable[..., Any]) -> None:
    """Who has waited long enough tries by himself."""

    async def main() -> float:
        began = anyio.current_time()
        await Outage().wait(2.5)
        return anyio.current_time() - began

    assert in_virtual_time(main) == pytest.approx(2.5)


@pytest.mark.parametrize("crowd", [1, 10, 100])
def test_somebody_tries_every_other_second(in_virtual_time: Callable[..., Any], crowd: int) -> None:
    """Whether one waits or a hundred: all together make about one attempt in two seconds."""
    tries: list[float] = []

    async def main() -> None:
        outage = Outage()

        async def call(number: int) -> None:
            while True:
                await outage.wait(outage.patience(number / crowd))
                tries.append(anyio.current_time())
                outage.note(reached=False)

        with anyio.move_on_after(600):
            async with anyio.create_task_group() as group:
                for number in range(crowd):
                    group.start_soon(call, number)

    in_virtual_time(main)
    assert 600 / SCOUT_SECONDS / 2 <= len(tries) <= 600 / SCOUT_SECONDS * 2


def test_a_cancelled_one_leaves_no_trace(in_virtual_time: Callable[..., Any]) -> None:
    """The patience of the others is what it would be without it."""

    async def main() -> tuple[float, float]:
        outage = Outage()
        before = outage.patience(0.5)
        with anyio.move_on_after(1):
            await outage.wait(100)
        return before, outage.patience(0.5)

    before, after = in_virtual_time(main)
    assert before == after == SCOUT_SECONDS
