"""Which room is next: order within a room, the longest queue first, and nobody forgotten."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from meeting_async import _queues
from meeting_async._queues import PATIENCE, RoomQueues

SHORT = 3
"""In place of PATIENCE, where a model looks at few steps."""
ROOMS = st.sampled_from("abcd")


def filled(**lengths: int) -> RoomQueues[str]:
    """Make queues of such lengths; the jobs are called a0, a1, ..."""
    queues: RoomQueues[str] = RoomQueues()
    for room, length in lengths.items():
        for number in range(length):
            queues.put(room, f"{room}{number}")
    return queues


def taken(queues: RoomQueues[str]) -> list[str]:
    """Do one job after another; return their names."""
    names = []
    while (found := queues.take()) is not None:
        names.append(found[1])
        queues.done(found[0])
    return names


def test_nothing_to_do() -> None:
    """An empty set of queues has no next job, and says so."""
    queues: RoomQueues[str] = RoomQueues()
    assert queues.take() is None
    assert (len(queues), queues.longest, queues.left("a")) == (0, 0, 0)
    assert "a" not in queues
    assert (list(queues.drain("a")), queues.drain_all()) == ([], [])


def test_a_room_gets_its_jobs_in_order() -> None:
    """First come, first served."""
    assert taken(filled(a=5)) == ["a0", "a1", "a2", "a3", "a4"]


def test_the_room_with_most_left_goes_first() -> None:
    """Whatever came first; among equals the one that has stood there for longest."""
    queues = filled(a=1, b=3, c=2)
    assert queues.longest == 3
    assert taken(queues) == ["b0", "c0", "b1", "a0", "c1", "b2"]


def test_a_busy_room_waits_for_the_end_of_its_job() -> None:
    """However long its queue is."""
    queues = filled(a=9, b=1)
    assert queues.take() == ("a", "a0")
    assert (queues.longest, queues.left("a"), len(queues)) == (1, 8, 9)
    assert queues.take() == ("b", "b0")
    assert queues.take() is None
    assert ("a" in queues, "b" in queues) == (True, True)
    queues.done("b")
    assert "b" not in queues
    assert queues.take() is None
    queues.done("a")
    assert queues.take() == ("a", "a1")


def test_what_comes_while_a_room_is_busy() -> None:
    """It stands behind, and makes the room ready when the job is done."""
    queues = filled(a=1)
    assert queues.take() == ("a", "a0")
    queues.put("a", "a1")
    assert queues.take() is None
    queues.done("a")
    assert queues.take() == ("a", "a1")


def test_draining_a_room_leaves_the_others() -> None:
    """The jobs come in order; a job that was begun is not among them."""
    queues = filled(a=3, b=2)
    assert queues.drain("a") == ["a0", "a1", "a2"]
    assert ("a" in queues, len(queues)) == (False, 2)
    assert queues.take() == ("b", "b0")
    assert queues.drain("b") == ["b1"]
    assert "b" in queues
    queues.done("b")
    assert (len(queues), queues.longest, "b" in queues) == (0, 0, False)


def test_draining_everything() -> None:
    """Busy rooms are drained, too, and may be used again."""
    queues = filled(a=2, b=1)
    queues.take()
    assert sorted(queues.drain_all()) == ["a1", "b0"]
    queues.done("a")
    queues.put("a", "again")
    assert taken(queues) == ["again"]


def test_a_room_that_is_not_busy_cannot_be_done() -> None:
    """That would be a mistake of the caller's, and it shows."""
    with pytest.raises(KeyError):
        filled(a=1).done("a")


def test_a_short_queue_is_not_passed_by_for_ever() -> None:
    """Though a long one is filled up again and again."""
    queues = filled(long=9, short=1)
    rooms = []
    for number in range(2 * PATIENCE):
        room, _ = queues.take() or ("", "")
        rooms.append(room)
        queues.put("long", f"more{number}")
        queues.done(room)
    assert rooms.index("short") == PATIENCE
    assert rooms.count("short") == 1


def test_a_step_takes_constant_time() -> None:
    """Twenty times the rooms: about twenty times as long, and not four hundred times."""
    few = min(seconds_for(1_000) for _ in range(3))
    assert seconds_for(20_000) < 20 * few * 5


def seconds_for(rooms: int) -> float:
    """Put two jobs into each of so many rooms, do them all, and return how long it took."""
    queues: RoomQueues[int] = RoomQueues()
    began = time.process_time()
    for number in range(2 * rooms):
        queues.put(str(number % rooms), number)
    done = 0
    while (found := queues.take()) is not None:
        queues.done(found[0])
        done += 1
    assert done == 2 * rooms
    return time.process_time() - began


class AgainstAModel(RuleBasedStateMachine):
    """Any order of calls: a model of plain lists has the same rooms, jobs and choices."""

    def __init__(self) -> None:
        super().__init__()
        self.queues: RoomQueues[int] = RoomQueues()
        self.model: dict[str, list[int]] = {}
        self.busy: set[str] = set()
        self.ready_since: list[str] = []
        self.number = 0
        self.taken = 0
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(_queues, "PATIENCE", SHORT)

    def teardown(self) -> None:
        """Put the number back."""
        self.patch.undo()

    def ready(self) -> dict[str, list[int]]:
        """Return the queues from which a job may be begun."""
        return {room: jobs for room, jobs in self.model.items() if jobs and room not in self.busy}

    def note_ready(self) -> None:
        """Keep the ready rooms in the order in which they became so."""
        ready = self.ready()
        kept = [room for room in self.ready_since if room in ready]
        self.ready_since = kept + [room for room in ready if room not in kept]

    @rule(room=ROOMS)
    def put(self, room: str) -> None:
        """Let a job come."""
        self.number += 1
        self.queues.put(room, self.number)
        self.model.setdefault(room, []).append(self.number)
        self.note_ready()

    @rule()
    def take(self) -> None:
        """Begin a job: the first of a longest queue, or now and then of the oldest one."""
        ready, found = self.ready(), self.queues.take()
        if found is None:
            assert not ready
            return
        room, job = found
        self.taken += 1
        if self.taken % (SHORT + 1) == 0:
            assert room == next(room for room in self.ready_since if room in ready)
        else:
            assert len(ready[room]) == max(map(len, ready.values()))
        self.ready_since.remove(room)
        assert self.model[room].pop(0) == job
        self.busy.add(room)

    @precondition(lambda self: self.busy)
    @rule(choice=st.randoms(use_true_random=False))
    def done(self, choice: object) -> None:
        """End a job."""
        room = choice.choice(sorted(self.busy))  # type: ignore[attr-defined]
        self.busy.remove(room)
        self.queues.done(room)
        self.note_ready()

    @rule(room=ROOMS)
    def drain(self, room: str) -> None:
        """Give up a room."""
        assert list(self.queues.drain(room)) == self.model.pop(room, [])
        self.note_ready()

    @rule()
    def drain_all(self) -> None:
        """Give up all."""
        left = sorted(job for jobs in self.model.values() for job in jobs)
        assert sorted(self.queues.drain_all()) == left
        self.model.clear()
        self.note_ready()

    @invariant()
    def agrees(self) -> None:
        """Count the same as the model."""
        assert len(self.queues) == sum(map(len, self.model.values()))
        assert self.queues.longest == max(map(len, self.ready().values()), default=0)
        for room in "abcd":
            assert self.queues.left(room) == len(self.model.get(room, []))
            assert (room in self.queues) == (bool(self.model.get(room)) or room in self.busy)


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
