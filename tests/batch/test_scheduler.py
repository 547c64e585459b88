"""Which job begins next, and how many run: pure order, permits, and the time that it all takes."""

from __future__ import annotations

import time
from collections import Counter

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meeting_async._batch.limiter import ConcurrencyLimiter
from meeting_async._batch.scheduler import PATIENCE, RETURN_DELAY, RoomScheduler
from support.batch_simulation import SHAPES, SLOW, load, simulate

pytestmark = pytest.mark.anyio

quick = settings(
    max_examples=200,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def filled(**lengths: int) -> RoomScheduler[str]:
    """Make a scheduler whose rooms have so many jobs, called a0, a1, ..."""
    scheduler: RoomScheduler[str] = RoomScheduler()
    for room, length in lengths.items():
        for number in range(length):
            scheduler.add(room, f"{room}{number}")
    return scheduler


def begun(scheduler: RoomScheduler[str]) -> str | None:
    """Return the job that begins next."""
    candidate = scheduler.next()
    return candidate.job if candidate else None


def done_in_turn(scheduler: RoomScheduler[str]) -> list[str]:
    """Do one job after another; return their names."""
    names = []
    while (candidate := scheduler.next()) is not None:
        names.append(candidate.job or "")
        scheduler.finish(candidate.room)
    return names


def test_the_room_with_most_left_goes_first() -> None:
    """Within a room in order; among equals the one that was ready first."""
    assert done_in_turn(filled(a=1, b=3, c=2)) == ["b0", "c0", "b1", "a0", "c1", "b2"]


def test_a_room_whose_job_runs_waits() -> None:
    """However long its queue is; what comes meanwhile goes behind."""
    scheduler = filled(a=2, b=1)
    assert (begun(scheduler), begun(scheduler), begun(scheduler)) == ("a0", "b0", None)
    scheduler.add("b", "b1")
    assert begun(scheduler) is None
    scheduler.finish("b")
    assert begun(scheduler) == "b1"
    scheduler.finish("a")
    assert (begun(scheduler), len(scheduler)) == ("a1", 0)


def test_dropping_jobs() -> None:
    """Those that have begun go on; a room can be used again."""
    scheduler = filled(a=3, b=2, c=1)
    assert begun(scheduler) == "a0"
    assert scheduler.drop("a") == ["a1", "a2"]
    scheduler.finish("a")
    assert sorted(scheduler.drop_all()) == ["b0", "b1", "c0"]
    assert (len(scheduler), begun(scheduler), scheduler.drop("x")) == (0, None, [])
    scheduler.add("b", "again")
    assert begun(scheduler) == "again"


def test_a_job_that_returns_goes_behind_what_has_not_begun() -> None:
    """Unless what is left in its room decides when the batch ends."""
    scheduler = filled(returning=2, **{f"fresh{number}": 2 for number in range(20)})
    assert begun(scheduler) == "returning0"
    behind: list[str] = []
    scheduler.rejoin("returning", lambda: behind.append("returning"), permits=2)
    assert str(begun(scheduler)).startswith("fresh")
    scheduler = filled(returning=21, **{f"fresh{number}": 2 for number in range(20)})
    assert begun(scheduler) == "returning0"
    candidate = scheduler.rejoin("returning", lambda: None, permits=2)
    assert scheduler.next() is candidate


def test_nobody_waits_for_ever() -> None:
    """A short room beside one that is filled up again and again; a job that returns beside both."""
    scheduler = filled(long=9, short=1)
    came: list[str] = []
    scheduler.rejoin("returned", lambda: came.append("returned"), permits=1)
    for number in range(20 * PATIENCE + RETURN_DELAY):
        candidate = scheduler.next()
        assert candidate is not None
        if candidate.granted:
            candidate.granted()
            continue
        came.append(candidate.room)
        scheduler.add("long", f"more{number}")
        scheduler.finish(candidate.room)
    assert {"short", "returned"} <= set(came)


def test_a_step_takes_constant_time() -> None:
    """Twenty times the rooms: about twenty times as long, and not four hundred times."""

    def seconds_for(rooms: int) -> float:
        scheduler: RoomScheduler[int] = RoomScheduler()
        began = time.process_time()
        for number in range(3 * rooms):
            scheduler.add(str(number % rooms), number)
        while (candidate := scheduler.next()) is not None:
            scheduler.finish(candidate.room)
        return time.process_time() - began

    few = min(seconds_for(500) for _ in range(3))
    assert seconds_for(10_000) < 20 * few * 5


def test_turns_that_are_over_are_forgotten() -> None:
    """A room that gets a thousand jobs, or returns a thousand times, has one candidate."""
    scheduler = filled(a=1000)
    for _ in range(1000):
        scheduler.withdraw(scheduler.rejoin("b", lambda: None, permits=1))
    assert len(scheduler._heap) < 100


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "next", "finish", "rejoin", "withdraw", "drop"]),
        st.sampled_from("abcd"),
    ),
    max_size=80,
)


@quick
@given(steps)
def test_any_order_of_calls(steps: list[tuple[str, str]]) -> None:
    """A room's jobs begin in order, one at a time; what was asked for is given once."""
    scheduler: RoomScheduler[int] = RoomScheduler()
    queues: dict[str, list[int]] = {room: [] for room in "abcd"}
    running: set[str] = set()
    waiting: dict[str, object] = {}
    for number, (step, room) in enumerate(steps):
        if step == "add":
            scheduler.add(room, number)
            queues[room].append(number)
        elif step == "next":
            candidate = scheduler.next()
            ready = {r for r, queue in queues.items() if queue and r not in running}
            if candidate is None:
                assert not ready
                assert not waiting
            elif candidate.granted:
                assert waiting.pop(candidate.room) is candidate
            else:
                assert candidate.room in ready
                assert candidate.job == queues[candidate.room].pop(0)
                running.add(candidate.room)
        elif step == "finish" and room in running and room not in waiting:
            running.remove(room)
            scheduler.finish(room)
        elif step == "rejoin" and room in running and room not in waiting:
            waiting[room] = scheduler.rejoin(room, lambda: None, permits=2)
        elif step == "withdraw" and room in waiting:
            scheduler.withdraw(waiting.pop(room))  # type: ignore[arg-type]  # it is a turn
        elif step == "drop":
            assert scheduler.drop(room) == queues[room]
            queues[room] = []
        assert len(scheduler) == sum(map(len, queues.values()))


# --- how long it takes ---------------------------------------------------------------------------

LOADS = [(shape, locked, None) for locked in (0.0, 0.3) for shape in SHAPES]


@pytest.mark.parametrize(("shape", "locked", "pace"), [*LOADS, ("uniform", 0.3, SLOW)])
def test_the_total_time_is_near_the_least_possible(shape: str, locked: float, pace: object) -> None:
    """200 rooms, 32 permits: at most 1.05 times what no order can beat, locked rooms or not."""
    ratios = []
    for seed in range(1, 6):
        made = load(shape, 200, locked=locked, seed=seed, **({"pace": pace} if pace else {}))  # type: ignore[arg-type]  # as above
        ratios.append(simulate(made, permits=32, seed=seed).seconds / made.bound(32))
    assert max(ratios) <= 1.05


# --- permits -------------------------------------------------------------------------------------


async def test_no_more_permits_than_there_are() -> None:
    """Whatever order jobs begin, wait and end in; a cancelled wait loses none."""
    scheduler: RoomScheduler[int] = RoomScheduler()
    running: Counter[str] = Counter()
    peak = 0

    def begin(room: str, _job: int) -> None:
        tasks.start_soon(work, room)

    async def work(room: str) -> None:
        nonlocal peak
        running[room] += 1
        peak = max(peak, limiter.in_use)
        assert running[room] == 1
        await anyio.lowlevel.checkpoint()
        limiter.release()
        with anyio.move_on_after(0 if room == "room3" else 1) as scope:
            await limiter.acquire(room)
        running[room] -= 1
        scheduler.finish(room)
        if not scope.cancelled_caught:
            limiter.release()
        limiter.dispatch()

    limiter = ConcurrencyLimiter(scheduler, begin, limit=3)
    async with anyio.create_task_group() as tasks:
        for number in range(100):
            scheduler.add(f"room{number % 10}", number)
        limiter.dispatch()
    assert (peak, limiter.in_use, len(scheduler)) == (3, 0, 0)


@pytest.mark.both_loops
async def test_a_permit_that_comes_with_a_cancellation_goes_on() -> None:
    """To the next one that waits."""
    scheduler: RoomScheduler[int] = RoomScheduler()
    limiter = ConcurrencyLimiter(scheduler, lambda _room, _job: None)
    limiter.in_use, got = 1, []

    async def acquire(room: str, scope: anyio.CancelScope) -> None:
        with scope:
            await limiter.acquire(room)
            got.append(room)
            limiter.release()

    first = anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(acquire, "first", first)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(acquire, "second", anyio.CancelScope())
        await anyio.wait_all_tasks_blocked()
        limiter.release()
        first.cancel()
    assert got[-1] == "second"
    assert limiter.in_use == 0


async def test_the_limit_can_grow() -> None:
    """One goes ahead; then as many as may."""
    begun: list[str] = []
    scheduler = filled(a=1, b=1, c=1, d=1)
    limiter = ConcurrencyLimiter(scheduler, lambda room, _job: begun.append(room))
    limiter.dispatch()
    assert begun == ["a"]
    limiter.set_limit(3)
    assert begun == ["a", "b", "c"]
