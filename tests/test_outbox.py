"""Outcomes on their way to who takes them."""

from __future__ import annotations

import anyio
import pytest

from meeting_async._jobs import UploadOutcome
from meeting_async._outbox import Outbox

pytestmark = pytest.mark.anyio


def outcome(index: int) -> UploadOutcome:
    """Make one."""
    return UploadOutcome(index=index, room_id="room01", document="a.pdf", status="accepted")


async def test_first_in_first_out() -> None:
    """What is left is taken after the end, too; then there is nothing, however often one asks."""
    outbox = Outbox()
    for index in range(3):
        outbox.put(outcome(index))
    outbox.close()
    assert [(await outbox.take()) for _ in range(5)] == [*map(outcome, range(3)), None, None]


async def test_a_reader_waits_for_the_next() -> None:
    """Or for the end."""
    outbox, taken = Outbox(), []

    async def take() -> None:
        taken.append(await outbox.take())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        await anyio.wait_all_tasks_blocked()
        assert taken == []
        outbox.put(outcome(7))
        await anyio.wait_all_tasks_blocked()
        assert taken == [outcome(7)]
        tasks.start_soon(take)
        await anyio.wait_all_tasks_blocked()
        outbox.close()
    assert taken == [outcome(7), None]


async def test_taking_lets_others_run() -> None:
    """A reader that always finds something does not keep the loop to itself."""
    outbox, ran = Outbox(), []

    async def run() -> None:
        ran.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for index in range(3):
            outbox.put(outcome(index))
            await outbox.take()
        assert ran == [True]
