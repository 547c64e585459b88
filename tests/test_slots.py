"""Who gets the next free slot of a batch."""

from __future__ import annotations

import anyio
import anyio.abc
import attrs
import pytest

from meeting_async._slots import TURN, Slot, Slots

pytestmark = pytest.mark.anyio

BEGUN = "begun"


@attrs.define
class Hall:
    """Slots with a queue beside them; ``log`` tells who got one, in order."""

    slots: Slots = attrs.field(init=False)
    longest: int = 0
    queued: int = 0
    log: list[str] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.slots = Slots(1, lambda: self.longest, lambda: self.queued, self._begin)

    def _begin(self) -> None:
        self.queued -= 1
        self.longest = min(self.longest, self.queued)
        self.log.append(BEGUN)

    async def claim(self, name: str, left: int) -> None:
        """Stand in line under a name; the slot is kept."""
        await self.slots.claim(left)
        self.log.append(name)


async def served(hall: Hall, slots: int) -> list[str]:
    """Free so many slots, one after another, and return who got them."""
    await anyio.wait_all_tasks_blocked()
    hall.log.clear()
    for _ in range(slots):
        hall.slots.give_back()
        await anyio.wait_all_tasks_blocked()
    return hall.log[:]


async def line(tasks: anyio.abc.TaskGroup, hall: Hall, **lefts: int) -> None:
    """Let some stand in line, in this order."""
    for name, left in lefts.items():
        tasks.start_soon(hall.claim, name, left)
        await anyio.wait_all_tasks_blocked()


async def test_nobody_else_wants_it() -> None:
    """Who comes back gets what is free at once."""
    hall = Hall()
    await hall.claim("only", 1)
    assert (hall.log, hall.slots.free) == (["only"], 0)


async def test_who_begins_goes_first_but_for_one_slot_in_so_many() -> None:
    """Then who has stood in line for longest goes, however little his room has left."""
    hall = Hall(longest=5, queued=100)
    async with anyio.create_task_group() as tasks:
        hall.slots.offer()
        await line(tasks, hall, old=1, new=9)
        beginnings = [BEGUN] * (TURN - 1)
        assert await served(hall, 2 * TURN) == [*beginnings, "old", *beginnings, "new"]


async def test_turns_are_counted_only_while_somebody_stands_in_line() -> None:
    """What was begun before he came does not count for him."""
    hall = Hall(longest=5, queued=100)
    async with anyio.create_task_group() as tasks:
        hall.slots.offer()
        await served(hall, 3 * TURN)
        await line(tasks, hall, late=1)
        assert await served(hall, TURN) == [*[BEGUN] * (TURN - 1), "late"]


async def test_a_room_that_decides_when_all_ends_goes_first() -> None:
    """Its jobs, one after another, take as long as all that is queued takes in all slots."""
    hall = Hall(longest=5, queued=21)
    async with anyio.create_task_group() as tasks:
        hall.slots.offer()
        await line(tasks, hall, short=19, long=20)
        assert await served(hall, 1) == ["long"]
        assert await served(hall, 2) == [BEGUN, "short"]


async def test_with_nothing_to_begin_the_oldest_goes() -> None:
    """Long rooms do not keep short ones from looking whether they are free."""
    hall = Hall(queued=100)  # of rooms that are busy
    async with anyio.create_task_group() as tasks:
        hall.slots.free = 0
        await line(tasks, hall, old=1, new=99, newer=2)
        assert await served(hall, 3) == ["old", "new", "newer"]


async def test_who_gives_up_leaves_nothing_behind() -> None:
    """Neither a place in the line nor a slot that was granted meanwhile."""
    hall = Hall()
    hall.slots.free = 0
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await hall.claim("gone", 9)
        await line(tasks, hall, next=1)
        assert await served(hall, 2) == ["next"]
    assert hall.slots.free == 1


async def test_granted_and_cancelled_at_once() -> None:
    """The slot goes on to whoever is next, whether the claim came back or was cut off."""
    hall = Hall()
    hall.slots.free = 0
    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def leave() -> None:
            with scope:
                await hall.claim("gone", 9)
                hall.slots.give_back()

        tasks.start_soon(leave)
        await line(tasks, hall, next=1)
        hall.slots.give_back()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
    assert (hall.log[-1], hall.slots.free) == ("next", 0)


async def test_a_slot_is_held_once() -> None:
    """Claiming what is held and giving back what is not change nothing."""
    slots = Slots(1, lambda: 0, lambda: 0, _never)
    slots.free = 0
    slot = Slot(slots, lambda: 1)
    await slot.claim()
    slot.give_back()
    slot.give_back()
    assert slots.free == 1
    await slot.claim()
    assert (slots.free, slot.is_held) == (0, True)


def _never() -> None:
    raise AssertionError("there is nothing to begin")
