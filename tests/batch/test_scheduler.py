"""Which job begins next, and how many run: pure order, permits, and the time that it all takes."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meeting_async._batch.scheduler import PATIENCE, Scheduler

pytestmark = pytest.mark.anyio


class Course:
    """A scheduler, and what it let begin."""

    def __init__(self, limit: int = 1, **lengths: int) -> None:
        """Give rooms so many jobs, called a0, a1, ..."""
        self.begun: list[str] = []
        self.scheduler = Scheduler[str](lambda _room, job: self.begun.append(job), limit=0)
        for room, length in lengths.items():
            for number in range(length):
                self.scheduler.add(room, f"{room}{number}")
        self.scheduler.set_limit(limit)

    def end(self, room: str) -> None:
        """End the job of a room."""
        self.scheduler.finish(room)
        self.scheduler.release()


def test_no_room_starves() -> None:
    """A short room beside one that is filled up again and again; a job that returns beside both."""
    course = Course(long=9, short=1)
    course.scheduler.rejoin(lambda: course.begun.append("returned0"))
    for number in range(20 * PATIENCE):
        if course.begun[-1] == "returned0":
            course.scheduler.release()
            continue
        course.scheduler.add("long", f"long{number}")
        course.end(course.begun[-1].rstrip("0123456789"))
    assert {"short0", "returned0"} <= set(course.begun)


def test_a_step_takes_constant_time() -> None:
    """Twenty times the rooms: about twenty times as long, and not four hundred times."""

    def seconds_for(rooms: int) -> float:
        began, course = time.process_time(), Course(0)
        for number in range(3 * rooms):
            course.scheduler.add(str(number % rooms), str(number % rooms))
        course.scheduler.set_limit(1)
        for _ in range(3 * rooms):
            course.end(course.begun[-1])
        return time.process_time() - began

    few = min(seconds_for(500) for _ in range(3))
    assert seconds_for(10_000) < 20 * few * 5


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "more", "finish", "rejoin", "alone", "drop"]),
        st.sampled_from("abcd"),
    ),
    max_size=80,
)


@settings(max_examples=200, derandomize=True, database=None)
@given(steps)
def test_any_order_of_calls_keeps_order_and_permits(steps: list[tuple[str, str]]) -> None:
    """A room's jobs begin in order, one at a time; no permit is lost, none is given twice.

    While one is to be alone, there is one permit.
    """
    queues: dict[str, list[int]] = {room: [] for room in "abcd"}
    running: dict[str, bool] = {}
    """Rooms in which a job has begun, and whether it has a permit."""

    alone: set[str] = set()
    """Rooms whose job is to be alone."""

    def begin(room: str, job: int) -> None:
        assert room not in running
        assert not (alone and any(running.values()))
        assert queues[room].pop(0) == job
        running[room] = True

    def grant(room: str) -> None:
        assert not running[room]
        assert not (alone and any(running.values()))
        running[room] = True

    scheduler = Scheduler(begin)
    for number, (step, room) in enumerate(steps):
        has_permit = running.get(room)
        if step == "add":
            queues[room].append(number)
            scheduler.add(room, number)
        elif step == "more":
            scheduler.set_limit(min(4, scheduler.limit + 1))
        elif step == "finish" and has_permit:
            del running[room]
            alone.discard(room)
            scheduler.finish(room)
            scheduler.set_alone(room, is_alone=False)
            scheduler.release()
        elif step in {"rejoin", "alone"} and has_permit:
            running[room] = False
            if step == "alone":
                alone.add(room)
                scheduler.set_alone(room, is_alone=True)
            scheduler.release()
            scheduler.rejoin(partial(grant, room))
        elif step == "drop":
            left, queues[room] = queues[room], []
            assert scheduler.drop(room) == left
        assert scheduler.in_use == sum(running.values()) <= scheduler.limit
        assert not any(running.get(room) for room in alone) or scheduler.in_use == 1
        ready = [queue for r, queue in queues.items() if queue and r not in running]
        is_waiting = bool(ready) or not all(running.values())
        assert scheduler.is_full or not is_waiting
        assert scheduler.is_full is (scheduler.in_use >= (1 if alone else scheduler.limit))
    assert sorted(scheduler.drop_all()) == sorted(job for queue in queues.values() for job in queue)


# --- permits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_permit_goes_past_a_task_that_is_cancelled(is_early: bool) -> None:
    """Before it comes, or when the task has it and has not run yet (asyncio's own does that)."""
    scheduler = Scheduler[int](lambda _room, _job: None)
    scheduler.in_use = 1
    first, second = (asyncio.create_task(scheduler.acquire()) for _ in "ab")
    await anyio.wait_all_tasks_blocked()
    if is_early:
        first.cancel()
        await asyncio.wait([first])
    scheduler.release()
    first.cancel()
    await asyncio.wait_for(second, 20)
    assert first.cancelled()
    assert scheduler.in_use == 1
