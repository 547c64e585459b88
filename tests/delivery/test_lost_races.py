"""A document that is always too late: how often it is sent, and when its upload gives up.

The server says *free* to empty forms and 409 to documents, as if somebody else were always faster,
or as if it lied. In virtual time, in process; a document takes 0.1 s to send.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from meeting_async import UploadReceipt
from meeting_async.errors import MeetingError, RoomBusy
from support.fake_rooms import (
    Act,
    FakeRooms,
    Visit,
    accepted,
    busy,
    client_of,
    job,
    refused,
)
from support.tables import LOOPS, crossed

Run = Callable[..., Any]

HOUR = 3600.0
MOST = {1: 200, 6: 400}
"""Times that a document is sent at most in so many hours."""
MIB = b"%PDF-1.7".ljust(1024**2, b"\n")

WINDOW, GRACE = 300, 30
"""Seconds that a lock lasts at most, and for which an upload waits longer."""


def at_random(share: float, seed: int = 1) -> Callable[[], Iterator[bool]]:
    """Say *free* this often."""

    def answers() -> Iterator[bool]:
        chance = random.Random(seed)
        while True:
            yield chance.random() < share

    return answers


def turns(*cycle: bool, first: tuple[bool, ...] = ()) -> Callable[[], Iterator[bool]]:
    """Say *free* (true) or 409 in turn."""

    def answers() -> Iterator[bool]:
        yield from first
        while True:
            yield from cycle

    return answers


def growing_runs() -> Iterator[bool]:
    """Say *free* for some questions in a row, then 409 for some, ever longer."""
    length = 1
    while True:
        yield from [False] * length
        yield from [True] * length
        length += 1


ANSWERS: dict[str, Callable[[], Iterator[bool]]] = {
    "half at random": at_random(0.5),
    "30 % at random": at_random(0.3),
    "90 % at random": at_random(0.9, 2),
    "5 % at random": at_random(0.05, 3),
    "in turn": turns(False, True),
    "two of three": turns(True, True, False),
    "one of ten": turns(*[False] * 9, True),
    "free after one 409": turns(True, first=(False,)),
    "free after ten 409s": turns(True, first=(False,) * 10),
    "in growing runs": growing_runs,
}
ALWAYS_FREE = {"always free": turns(True)}
QUICK = {"half at random", "30 % at random", "in turn", "free after one 409"}
"""What the test command has time for; the others run every night."""


def nightly_but(*quick: str) -> pytest.MarkDecorator:
    """Run a test with all answers, most of them every night."""
    rows = [
        pytest.param(answers, id=name, marks=() if name in quick else pytest.mark.nightly)
        for name, answers in ANSWERS.items()
    ]
    return pytest.mark.parametrize("answers", rows)


class TooLate(FakeRooms):
    """A server on which documents for room01 always get 409, whatever empty forms are told.

    It counts them, and ends the test when there are too many. Another room is locked until ``end``.
    """

    def __init__(self, answers: Callable[[], Iterator[bool]], *, end: float = 0.0) -> None:
        super().__init__(self._take, ask=self._say)
        self.times: list[float] = []
        """When documents for room01 were sent."""
        self._says, self._end = answers(), end
        self._last: Visit | None = None

    def _say(self, visit: Visit) -> Act:
        if visit.kind == "question":
            return accepted()
        is_free = next(self._says) if visit.room == "room01" else visit.began >= self._end
        return refused() if is_free else busy()

    def _take(self, visit: Visit) -> Act:
        if visit.room != "room01":
            return accepted() if visit.began >= self._end else busy()
        if self._last is not None:
            self._last.sent.clear()  # else gigabytes come together
        self._last = visit
        self.times.append(visit.began)
        if self.sent(6) > MOST[6] or self.sent(1) > MOST[1]:
            raise AssertionError(f"sent {len(self.times)} times in {visit.began:.0f} s")
        return busy(sending=0.1)

    def sent(self, hours: float = 9999) -> int:
        """Count how often the document was sent within the first hours."""
        return sum(time <= hours * HOUR for time in self.times)


async def upload(client: Any, room: str = "room01", **how: Any) -> Any:
    """Upload 1 MiB, and return the receipt or the error."""
    try:
        return await client.upload_whiteboard_file(room, MIB, filename="deck.pdf", **how)
    except MeetingError as error:
        return error


def waiting(run: Run, rooms: FakeRooms, **how: Any) -> tuple[Any, float]:
    """Upload to the room; return the receipt or the error, and the seconds."""

    async def main() -> tuple[Any, float]:
        async with client_of(rooms) as client:
            return await upload(client, **how), anyio.current_time()

    found: tuple[Any, float] = run(main)
    return found


# --- how often -----------------------------------------------------------------------------------


@nightly_but(*QUICK)
def test_an_hour_costs_two_hundred_documents(
    run: Run, answers: Callable[[], Iterator[bool]]
) -> None:
    """At most, whatever the server says to empty forms; then ``max_wait`` is over."""
    rooms = TooLate(answers)
    outcome, seconds = waiting(run, rooms, max_wait=HOUR)
    assert isinstance(outcome, RoomBusy)
    assert HOUR * 0.75 <= seconds <= HOUR + 1
    assert rooms.sent() <= MOST[1]


@nightly_but("free after one 409")
def test_six_hours_cost_four_hundred_documents(
    run: Run, answers: Callable[[], Iterator[bool]]
) -> None:
    """The pauses grow with each race that was lost."""
    rooms = TooLate(answers)
    outcome, seconds = waiting(run, rooms, max_wait=6 * HOUR)
    assert isinstance(outcome, RoomBusy)
    assert 6 * HOUR * 0.75 <= seconds <= 6 * HOUR + 1
    assert rooms.sent(1) <= MOST[1]
    assert rooms.sent() <= MOST[6]


@pytest.mark.nightly
@pytest.mark.both_loops
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.8])
def test_six_hours_at_random(run: Run, share: float, seed: int) -> None:
    """Four hundred documents at most, however often the server says *free*."""
    rooms = TooLate(at_random(share, seed + 10))
    outcome, _ = waiting(run, rooms, max_wait=6 * HOUR)
    assert isinstance(outcome, RoomBusy)
    assert rooms.sent(1) <= MOST[1]
    assert rooms.sent() <= MOST[6]


@nightly_but("free after one 409")
def test_a_server_that_was_honest_elsewhere(
    run: Run, answers: Callable[[], Iterator[bool]]
) -> None:
    """Honest answers in another room are no licence for this one."""
    rooms = TooLate(answers, end=60)

    async def main() -> None:
        async with client_of(rooms) as client:
            assert isinstance(await upload(client, "room02"), UploadReceipt)
            began = anyio.current_time()
            assert isinstance(await upload(client, max_wait=HOUR), RoomBusy)
            assert anyio.current_time() - began <= HOUR + 1

    run(main)
    assert rooms.sent() <= MOST[1] + 2


@nightly_but("free after one 409")
def test_a_batch_sends_no_more(run: Run, answers: Callable[[], Iterator[bool]]) -> None:
    """Each of its documents is sent two hundred times at most in its hour."""
    rooms = TooLate(answers)

    async def main() -> None:
        jobs = [job("room01", number, MIB) for number in range(2)]
        async with (
            client_of(rooms) as client,
            client.upload_many(jobs, max_wait=HOUR) as batch,
        ):
            report = await batch.wait()
        assert [type(outcome.error) for outcome in report.outcomes] == [RoomBusy] * 2

    run(main)
    assert rooms.sent() <= 2 * MOST[1]


# --- how long ------------------------------------------------------------------------------------


@crossed(answers=ANSWERS | ALWAYS_FREE, anyio_backend=LOOPS)
def test_one_lock_counts_until_an_upload_got_in(
    run: Run, answers: Callable[[], Iterator[bool]]
) -> None:
    """Without ``max_wait`` an upload gives up 300 s and 30 s after the first 409, not later."""
    rooms = TooLate(answers)

    async def main() -> tuple[Any, float]:
        async with client_of(rooms) as client:
            with anyio.move_on_after(HOUR):
                return await upload(client), anyio.current_time()
        return None, anyio.current_time()

    outcome, seconds = run(main)
    assert isinstance(outcome, RoomBusy)
    assert WINDOW <= seconds <= WINDOW + GRACE + 5


def test_the_next_upload_waits_for_a_lock_of_its_own(run: Run) -> None:
    """Each of two uploads that are always too late waits 330 s."""
    rooms = TooLate(ANSWERS["half at random"])

    async def main() -> None:
        async with client_of(rooms) as client:
            for _ in range(2):
                began = anyio.current_time()
                with anyio.fail_after(HOUR):
                    assert isinstance(await upload(client), RoomBusy)
                assert WINDOW <= anyio.current_time() - began <= WINDOW + GRACE + 5

    run(main)


# --- honest servers ------------------------------------------------------------------------------


def locked_until(end: float) -> Callable[[Visit], Act]:
    """Answer as a room that another client has locked."""

    def answer(visit: Visit) -> Act:
        if visit.kind == "question":
            return accepted()
        if anyio.current_time() + (0.1 if visit.kind == "upload" else 0) < end:
            return busy(sending=0.1)
        return accepted(sending=0.1) if visit.kind == "upload" else refused()

    return answer


@pytest.mark.both_loops
@pytest.mark.parametrize("end", [5, 120, 299])
def test_an_honest_lock_costs_one_document(run: Run, end: float) -> None:
    """A single waiter gets in within 3 s after the lock: sent once in vain, and once."""
    rooms = FakeRooms(locked_until(end), ask=locked_until(end))
    outcome, seconds = waiting(run, rooms)
    assert isinstance(outcome, UploadReceipt)
    assert end <= seconds <= end + 3
    assert [visit.is_accepted for visit in rooms.uploads] == [False, True]


def test_one_race_that_was_lost_honestly(run: Run) -> None:
    """Somebody else was faster once; the upload gets in soon after that lock has ended, too."""
    ends = [60.0]

    def answer(visit: Visit) -> Act:
        if visit.kind == "probe" and anyio.current_time() >= ends[0] and len(ends) == 1:
            ends.append(anyio.current_time() + 60)  # of who takes the room while we send
            return refused()
        return locked_until(ends[-1])(visit)

    rooms = FakeRooms(answer, ask=answer)
    outcome, seconds = waiting(run, rooms)
    assert isinstance(outcome, UploadReceipt)
    assert ends[-1] <= seconds <= ends[-1] + 10
    assert [visit.is_accepted for visit in rooms.uploads] == [False, False, True]
