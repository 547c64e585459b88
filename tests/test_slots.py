"""Slots: never more than there are, nobody loses one, nobody waits for ever."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import attrs
import pytest

from _wires import cancelled_by_scope
from meeting_async._slots import FAIR_TURNS, Slot, Slots

pytestmark = pytest.mark.anyio


@attrs.define
class Fresh:
    """Rooms that have not begun: so many, each with a queue of such a length."""

    rooms: int = 0
    length: int = 1
    behind: int = 0
    """Jobs in queues of rooms that are busy."""
    begun: int = 0

    def longest(self) -> int:
        """Return the longest queue."""
        return self.length if self.rooms else 0

    def queued(self) -> int:
        """Return the jobs in all queues."""
        return self.rooms * self.length + self.behind

    def begin(self) -> None:
        """Begin one."""
        self.rooms -= 1
        self.begun += 1


def slots_of(free: int, fresh: Fresh | None = None) -> Slots:
    """Make slots."""
    fresh = fresh or Fresh()
    slots = Slots(max(free, 1), fresh.longest, fresh.begin, fresh.queued)
    slots.free = free
    return slots


def test_what_is_free_is_given_to_rooms() -> None:
    """No more than there is, and no more than there are rooms."""
    fresh = Fresh(rooms=5)
    slots = slots_of(3, fresh)
    slots.offer()
    assert (slots.free, fresh.begun) == (0, 3)
    for _ in range(3):
        slots.give_back()
    assert (slots.free, fresh.begun) == (1, 5)


async def test_a_slot_is_held_once() -> None:
    """Giving back and claiming are idempotent."""
    slots = slots_of(1)
    slot = Slot(slots, lambda: 1, is_held=False)
    await slot.claim()
    await slot.claim()
    assert (slots.free, slot.is_held) == (0, True)
    slot.give_back()
    slot.give_back()
    assert (slots.free, slot.is_held) == (1, False)


async def ordered(slots: Slots, lefts: dict[str, int]) -> list[str]:
    """Let several claim in turn; return the order in which they get the one slot."""
    came: list[str] = []

    async def claim(name: str, left: int) -> None:
        await slots.claim(left)
        came.append(name)
        slots.give_back()

    async with anyio.create_task_group() as group:
        for name, left in lefts.items():
            group.start_soon(claim, name, left)
            await anyio.wait_all_tasks_blocked()
        slots.give_back()
    return came


async def test_who_has_most_left_goes_first() -> None:
    """Then who came first."""
    slots = slots_of(0)
    slots._given = 1
    assert await ordered(slots, {"a": 1, "b": 3, "c": 3, "d": 2}) == ["b", "c", "d", "a"]
    assert slots.free == 1


async def test_now_and_then_the_oldest_goes_first() -> None:
    """However little is left in its room."""
    slots = slots_of(0)
    slots._given = 3 * FAIR_TURNS
    assert await ordered(slots, {"a": 1, "b": 3, "c": 2}) == ["a", "b", "c"]


async def test_with_nothing_to_begin_the_oldest_goes_unless_one_decides() -> None:
    """Long rooms do not keep short ones from seeing whether they are free."""
    slots = slots_of(0, Fresh(behind=4))
    slots._given = 1
    assert await ordered(slots, {"a": 1, "b": 3, "c": 2}) == ["a", "b", "c"]
    slots = slots_of(0, Fresh(behind=3))
    slots._given = 1
    assert await ordered(slots, {"a": 1, "b": 3, "c": 2}) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("length", "given", "begun"),
    [(1, 1, 0), (2, 1, 0), (3, 1, 1), (3, 0, 0), (2, FAIR_TURNS // 2, 1), (1, FAIR_TURNS // 2, 1)],
)
async def test_rooms_that_have_not_begun_compete(length: int, given: int, begun: int) -> None:
    """They go first, unless who has begun decides when all is over; each side has its turns."""
    fresh = Fresh()
    slots = slots_of(0, fresh)
    slots._given = given
    async with anyio.create_task_group() as group:
        group.start_soon(slots.claim, 2)
        await anyio.wait_all_tasks_blocked()
        fresh.rooms, fresh.length = 1, length
        slots.give_back()
        assert fresh.begun == begun
        if begun:
            slots.give_back()
    assert slots.free == 0


async def test_neither_side_waits_for_ever() -> None:
    """Whatever the queues are: within so many turns each side has had one."""
    fresh = Fresh()
    slots = slots_of(0, fresh)
    claimed: list[int] = []

    async def claims(left: int) -> None:
        while True:
            await slots.claim(left)
            claimed.append(left)
            slots.give_back()

    async with anyio.create_task_group() as group:
        for left in (1, 50):
            group.start_soon(claims, left)
        await anyio.wait_all_tasks_blocked()
        fresh.rooms, fresh.length = 10**9, 5
        slots.free = 1
        while len(claimed) < 4 * FAIR_TURNS:
            slots.offer()
            if slots.free == 0 and fresh.begun:
                slots.give_back()
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert claimed.count(1) >= 2
    assert fresh.begun >= 2


async def test_a_claim_that_is_cancelled() -> None:
    """It leaves the line, and the next one gets the slot."""
    slots = slots_of(0)
    got: list[str] = []

    async def claim(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            await slots.claim(1)
            got.append(name)

    first, second = anyio.CancelScope(), anyio.CancelScope()
    async with anyio.create_task_group() as group:
        group.start_soon(claim, "first", first)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(claim, "second", second)
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        await anyio.wait_all_tasks_blocked()
        slots.give_back()
    assert got == ["second"]
    assert slots.free == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_claim_that_is_cancelled_when_it_has_its_slot(anyio_backend: str) -> None:
    """The next one gets it."""
    slots = slots_of(0)
    first, second = (asyncio.create_task(slots.claim(1)) for _ in range(2))
    await anyio.wait_all_tasks_blocked()
    slots.give_back()
    first.cancel()
    await second
    assert first.cancelled()
    assert slots.free == 0


async def test_a_claim_cancelled_at_every_await() -> None:
    """No slot is lost."""
    for number in range(1, 4):
        slots = slots_of(1)

        async def main(slots: Slots = slots) -> None:
            slot = Slot(slots, lambda: 1, is_held=False)
            await slot.claim()
            slot.give_back()

        await cancelled_by_scope(main(), number)
        assert slots.free == 1


async def test_closed_claims_are_forgotten() -> None:
    """A million waits leave nothing behind."""
    slots = slots_of(1)
    for _ in range(1000):
        await slots.claim(1)
        slots.give_back()
    assert (len(slots._by_left), len(slots._by_age)) == (0, 0)
