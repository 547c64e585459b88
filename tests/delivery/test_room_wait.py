"""How soon a waiting upload asks again, and starts when the lock has ended; in virtual time.

Before a large document an empty form asks; a small one is itself the question.
"""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import anyio
import pytest

from meeting_async import LockPolicy
from meeting_async.errors import RoomBusy
from meeting_async.testing import run_in_virtual_time
from support.documents import PDF
from support.fake_rooms import Act, FakeRooms, Visit, accepted, busy, client_of, free

SIZES = {"small": PDF, "large": PDF.ljust(65 * 1024)}
FOREVER = 1e9


def rooms_locked_for(seconds: float, **how: Any) -> FakeRooms:
    """Make rooms that say so to forms and documents."""

    def is_locked() -> bool:
        return anyio.current_time() < seconds

    def answer(_visit: Visit) -> Act:
        return busy(**how) if is_locked() else accepted()

    def ask(visit: Visit) -> Act:
        if visit.kind == "question":
            return accepted()
        return busy(**how) if is_locked() else free()

    return FakeRooms(answer, ask=ask)


def asked(rooms: FakeRooms) -> list[float]:
    """Return when an upload asked whether the room is free."""
    visits = rooms.of("probe") or rooms.uploads
    return [visit.began for visit in visits]


def waited(rooms: FakeRooms, document: bytes, max_wait: float = 70, **lock: Any) -> list[float]:
    """Wait in vain; return how long the upload waited each time."""

    async def main() -> None:
        async with client_of(rooms, lock=LockPolicy(max_wait=max_wait, **lock)) as client:
            with pytest.raises(RoomBusy):
                await client.upload_whiteboard_file("room01", document, filename="deck.pdf")

    run_in_virtual_time(main)
    return [after - before for before, after in itertools.pairwise(asked(rooms))]


@pytest.mark.parametrize("document", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(("lock", "most"), [(1, 0.3), (5, 0.5), (30, 1.2)])
def test_the_document_starts_soon_after_the_release(
    lock: float, most: float, document: bytes
) -> None:
    """The shorter the lock, the sooner: mean seconds, of 60 uploads."""
    every = [rooms_locked_for(lock) for _ in range(60)]

    async def upload(rooms: FakeRooms) -> None:
        async with client_of(rooms) as client:
            await client.upload_whiteboard_file("room01", document, filename="deck.pdf")

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for rooms in every:
                group.start_soon(upload, rooms)

    run_in_virtual_time(main)
    assert statistics.fmean(rooms.uploads[-1].began - lock for rooms in every) <= most
    assert document is PDF or all(len(rooms.uploads) == 1 for rooms in every)


@pytest.mark.parametrize("document", SIZES.values(), ids=SIZES)
def test_a_question_follows_after_a_tenth_of_the_time(document: bytes) -> None:
    """Give or take 25 %; after at least 0.3 s and at most 2 s."""
    for _ in range(10):
        rooms = rooms_locked_for(FOREVER)
        delays = waited(rooms, document, max_wait=45)
        for lasted, delay in zip(asked(rooms), delays[:-1], strict=False):  # the last is cut short
            assert max(0.3, min(0.075 * lasted, 1.2)) <= delay + 1e-6, lasted
            assert delay - 1e-6 <= min(max(0.5, 0.125 * lasted), 2), lasted


DELAYS: dict[str, tuple[dict[str, Any], dict[str, Any], float, float]] = {
    "min_delay=0.25": ({"min_delay": 0.25}, {}, 0.25, 2),
    "min_delay=5": ({"min_delay": 5}, {}, 3.75, 6.25),
    "Retry-After: 0": ({}, {"retry_after": "0"}, 0.3, 2),
    "Retry-After: 1": ({}, {"retry_after": "1"}, 1, 2),
    "Retry-After: 9": ({}, {"retry_after": "9"}, 9, 11.25),
}
"""Settings, what the server says with each 409, least and most seconds between two questions."""


@pytest.mark.parametrize("document", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(("lock", "answer", "least", "most"), DELAYS.values(), ids=DELAYS)
def test_settings_and_hints_bound_each_delay(
    lock: dict[str, Any], answer: dict[str, Any], least: float, most: float, document: bytes
) -> None:
    """A hint of the server makes a delay longer, never shorter."""
    delays = waited(rooms_locked_for(FOREVER, **answer), document, max_wait=300, **lock)[:-1]
    assert least <= min(delays) + 1e-6
    assert max(delays) <= most + 1e-6
    assert min(delays) <= least * 1.34
    assert max(delays) >= most * 0.7


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_after_lost_races_questions_are_rarer(lost: int) -> None:
    """Every 2 to 3 s: in a crowd each question may become a document that comes too late."""

    def ask(visit: Visit) -> Act:
        is_free = visit.kind == "probe" and 1 < visit.number <= 1 + lost
        return accepted() if visit.kind == "question" else free() if is_free else busy()

    rooms = FakeRooms(lambda _visit: busy(), ask=ask)
    delays = waited(rooms, SIZES["large"])
    assert len(rooms.uploads) == lost
    assert all(1.8 <= delay <= 3.2 for delay in delays[lost + 1 : -1])


LOCKS = {
    "usual": {},
    "without questions": {"probe": False},
    "without questions, hurried": {"probe": False, "min_delay": 0.25},
}


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_at_most_200_documents_in_an_hour(lock: dict[str, Any]) -> None:
    """Whatever the settings, and although each form is told that the room is free."""

    def ask(visit: Visit) -> Act:
        return accepted() if visit.kind == "question" else free()

    every = [FakeRooms(lambda _: busy(), ask=ask) for _ in range(10)]

    async def upload(rooms: FakeRooms) -> None:
        async with client_of(rooms, lock=LockPolicy(max_wait=3600, **lock)) as client:
            with pytest.raises(RoomBusy):
                await client.upload_whiteboard_file("room01", PDF, filename="deck.pdf")

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for rooms in every:
                group.start_soon(upload, rooms)

    run_in_virtual_time(main)
    assert max(len(rooms.uploads) for rooms in every) <= 200
