"""A proxy's answer is no answer: to the check of a room as to an empty form.

A room that another client has locked at times, behind a proxy whose server is away at times. In
virtual time, in process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import anyio
import attrs
import pytest

from meeting_async import RetryPolicy, UploadReceipt
from meeting_async.errors import MeetingError, RoomBusy, TransferTimeout, UploadOutcomeUnknown
from support.fake_rooms import (
    Act,
    FakeRooms,
    Visit,
    accepted,
    busy,
    client_of,
    conversion_failed,
    failing,
    job,
    lost,
    record,
    refused,
    reply,
)
from support.tables import LOOPS, crossed

Run = Callable[..., Any]

PAGE = b"<html><h1>Bad Gateway</h1><hr>nginx</html>"
SILENCE = 15
"""Seconds that a question waits for its answer."""
NO_ANSWERS: dict[str, Act] = {
    "502": reply(502, PAGE),
    "503": reply(503, PAGE),
    "504": reply(504, PAGE, replying=3),
    "500": reply(500, PAGE),
    "reset": lost(),
    "silence": failing(TransferTimeout("no reply"), replying=SILENCE),
}
CHECK, FORM = {"question"}, {"probe"}
TARGETS = {"check": CHECK, "form": FORM, "both": CHECK | FORM}

SMALL, LARGE = b"%PDF-1.7", b"%PDF-1.7".ljust(64 * 1024 + 1, b"\n")
SIZES = {"small": SMALL, "large": LARGE}

MAX_OUTAGE = 60
"""Seconds: the default of ``RetryPolicy``."""
MOST = MAX_OUTAGE + SILENCE + 21
"""Seconds within which a call ends that never gets an answer: a last wait, a last question."""

Interval = tuple[float, float]


def within(intervals: Sequence[Interval]) -> bool:
    """Tell whether it is now one of these times."""
    return any(start <= anyio.current_time() < end for start, end in intervals)


@attrs.define
class Scene:
    """What happens when; each attribute may be changed while it happens."""

    no_answer: Act
    targets: set[str]
    """What gets no answer during an outage; with empty forms documents get none and are lost."""
    outages: list[Interval] = attrs.field(factory=list)
    locks: list[Interval] = attrs.field(factory=list)
    """Of other clients."""
    check: Act = attrs.field(factory=accepted)
    """What the check says when it is answered."""
    upload: Callable[[Visit], Act] = lambda _visit: accepted()
    """What becomes of a document in a free room."""

    def __call__(self, visit: Visit) -> Act:
        """Answer a request."""
        kind = "probe" if visit.kind == "upload" else visit.kind
        if within(self.outages) and kind in self.targets:
            return self.no_answer
        if visit.kind == "question":
            return self.check
        if within(self.locks):
            return busy()
        return refused() if visit.kind == "probe" else self.upload(visit)

    @property
    def rooms(self) -> FakeRooms:
        """Make the transport."""
        return FakeRooms(self, ask=self)


async def upload(
    client: Any, data: bytes, name: str = "deck.pdf", room: str = "room01", **how: Any
) -> Any:
    """Upload, and return the receipt or the error."""
    try:
        return await client.upload_whiteboard_file(room, data, filename=name, **how)
    except MeetingError as error:
        return error


def course(run: Run, scene: Scene, data: bytes, **settings: Any) -> tuple[Any, FakeRooms, float]:
    """Upload one document: the receipt or the error, the requests, the seconds."""
    rooms = scene.rooms

    async def main() -> tuple[Any, float]:
        async with client_of(rooms, **settings) as client:
            return await upload(client, data), anyio.current_time()

    outcome, seconds = run(main)
    return outcome, rooms, seconds


def begun(rooms: FakeRooms) -> list[float]:
    """Return when each document was sent."""
    return [visit.began for visit in rooms.uploads]


# --- the first contact ---------------------------------------------------------------------------


@crossed(no_answer=NO_ANSWERS, data=SIZES, anyio_backend=LOOPS)
def test_the_check_is_asked_until_it_is_answered(run: Run, no_answer: Act, data: bytes) -> None:
    """Nothing of the document is sent before; the server may be away for half a minute."""
    outcome, rooms, seconds = course(run, Scene(no_answer, CHECK, [(0, 30)]), data)
    assert isinstance(outcome, UploadReceipt)
    (sent,) = begun(rooms)
    assert 30 <= sent <= seconds <= 30 + SILENCE + 21
    asked = [visit.began for visit in rooms.questions]
    assert all(later - earlier >= 0.25 for earlier, later in pairwise(asked))
    assert len(asked) < 20


@crossed(no_answer=NO_ANSWERS, data=SIZES)
def test_a_check_without_an_answer_before_a_lock(run: Run, no_answer: Act, data: bytes) -> None:
    """Then the room is waited for as ever: the document is sent once in vain, and once."""
    scene = Scene(no_answer, CHECK, [(0, 12)], [(5, 40)])
    outcome, rooms, _ = course(run, scene, data)
    assert isinstance(outcome, UploadReceipt)
    assert begun(rooms)[0] >= 12
    assert [visit.is_accepted for visit in rooms.uploads].count(True) == 1
    if data is LARGE:
        assert len(rooms.uploads) == 2
        assert begun(rooms)[1] >= 40


@crossed(no_answer=NO_ANSWERS, targets=TARGETS, anyio_backend=LOOPS)
def test_a_room_that_the_check_does_not_know(run: Run, no_answer: Act, targets: set[str]) -> None:
    """The empty form decides as soon as it is answered; 409 before and after is a lock."""
    scene = Scene(no_answer, targets, [(0, 9), (14, 21)], [(6, 18), (20, 30)])
    scene.check = reply(200, record("ROOM_NOT_ACTIVE"))
    outcome, rooms, _ = course(run, scene, LARGE)
    assert isinstance(outcome, UploadReceipt)
    (sent,) = begun(rooms)
    assert sent >= scene.outages[0][1]
    closed = scene.locks + (scene.outages if targets & FORM else [])
    assert not any(start <= sent < end for start, end in closed)


# --- amid a lock ---------------------------------------------------------------------------------

LOCKS: dict[str, tuple[list[Interval], list[Interval]]] = {
    "between": ([(0, 30)], [(4, 25)]),
    "at its end": ([(0, 10)], [(4, 25)]),
    "until the next lock": ([(0, 10), (20, 40)], [(8, 25)]),
    "again and again": ([(0, 60)], [(t, t + 3) for t in range(4, 60, 25)]),
}


@crossed(no_answer=NO_ANSWERS, times=LOCKS, anyio_backend=LOOPS)
def test_a_waiting_document_stays_here(
    run: Run, no_answer: Act, times: tuple[list[Interval], list[Interval]]
) -> None:
    """What a proxy says to an empty form never means that the room is free."""
    locks, outages = times
    scene = Scene(no_answer, CHECK | FORM, outages, locks)
    outcome, rooms, _ = course(run, scene, LARGE)
    assert isinstance(outcome, UploadReceipt)
    first, second = begun(rooms)  # the first one met the lock
    assert first == 0
    assert not any(start <= second < end for start, end in locks + outages)
    assert second <= max(end for _, end in locks + outages) + 40


def test_every_true_answer_ends_the_outage(run: Run) -> None:
    """409 and no answer in turn, for three minutes: the room is waited for, as it is locked."""
    outages: list[Interval] = [(t, t + 5) for t in range(2, 180, 15)]
    scene = Scene(NO_ANSWERS["502"], FORM, outages, [(0, 180)])
    outcome, rooms, _ = course(run, scene, LARGE)
    assert isinstance(outcome, UploadReceipt)
    assert len(rooms.uploads) == 2
    assert begun(rooms)[1] >= 180


# --- a room in doubt -----------------------------------------------------------------------------


@crossed(no_answer=NO_ANSWERS, targets=TARGETS, data=SIZES, anyio_backend=LOOPS)
def test_a_doubt_is_not_cleared(run: Run, no_answer: Act, targets: set[str], data: bytes) -> None:
    """After an unknown outcome the next document waits for answers of the server itself.

    409s come before it (the first document had to wait) and after it (the server converts that).
    """
    scene = Scene(no_answer, targets, locks=[(0, 5)], upload=lambda _visit: lost())
    rooms = scene.rooms

    async def main() -> None:
        async with client_of(rooms) as client:
            assert isinstance(await upload(client, LARGE, "first.pdf"), UploadOutcomeUnknown)
            now = anyio.current_time()
            scene.outages, scene.locks = [(now, now + 12)], [(now, now + 25)]
            scene.upload = lambda _visit: accepted()
            count = len(rooms.visits)
            assert isinstance(await upload(client, data, "second.pdf"), UploadReceipt)
        later = rooms.visits[count:]
        (sent,) = [visit.began for visit in later if visit.kind == "upload"]
        assert sent >= now + 25
        assert later[0].kind == "question"
        assert later[-2].kind == "probe"
        assert anyio.current_time() < now + 60

    run(main)


@pytest.mark.parametrize("no_answer", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_at_least_once_waits_for_answers(run: Run, no_answer: Act) -> None:
    """The second attempt of a document that may have arrived is sent into a free room, once."""
    scene = Scene(no_answer, CHECK | FORM, [(0, 12)], [(0, 25)])
    first: list[Visit] = []

    def answer(visit: Visit) -> Act:
        if visit.kind == "upload" and not first:
            first.append(visit)
            return lost()
        return scene(visit) if first else accepted()

    rooms = FakeRooms(answer, ask=answer)

    async def main() -> None:
        async with client_of(rooms, delivery="at_least_once") as client:
            assert isinstance(await upload(client, SMALL), UploadReceipt)

    run(main)
    _, second = begun(rooms)
    assert second >= 25


# --- for ever ------------------------------------------------------------------------------------


@crossed(no_answer={**NO_ANSWERS, "500 of its own": conversion_failed()}, data=SIZES)
def test_a_check_that_is_never_answered(run: Run, no_answer: Act, data: bytes) -> None:
    """After a minute of asking the call ends; nothing was sent, and the error does not say busy."""
    outcome, rooms, seconds = course(run, Scene(no_answer, CHECK, [(0, 9999)]), data)
    assert isinstance(outcome, MeetingError)
    assert not isinstance(outcome, UploadOutcomeUnknown | RoomBusy)
    assert (outcome.room_id, outcome.document) == ("room01", "deck.pdf")
    assert rooms.uploads == []
    assert len(rooms.questions) >= 3
    assert MAX_OUTAGE / 2 <= seconds <= MOST


@crossed(no_answer=NO_ANSWERS, anyio_backend=LOOPS)
def test_an_empty_form_that_is_never_answered(run: Run, no_answer: Act) -> None:
    """The same in a room that the check does not know, amid a lock, and in a room in doubt."""
    scene = Scene(no_answer, FORM, [(0, 9999)], check=reply(200, record("ROOM_NOT_FOUND")))
    outcome, rooms, seconds = course(run, scene, LARGE)
    assert isinstance(outcome, MeetingError)
    assert not isinstance(outcome, UploadOutcomeUnknown | RoomBusy)
    assert rooms.uploads == []
    assert MAX_OUTAGE / 2 <= seconds <= MOST

    scene = Scene(no_answer, CHECK | FORM, [(5, 9999)], [(0, 9999)])
    outcome, rooms, seconds = course(run, scene, LARGE)
    assert isinstance(outcome, MeetingError)
    assert not isinstance(outcome, UploadOutcomeUnknown)
    assert begun(rooms) == [0]
    assert 5 + MAX_OUTAGE / 2 <= seconds <= 5 + MOST

    scene = Scene(no_answer, FORM, upload=lambda _visit: lost())
    rooms = scene.rooms

    async def in_doubt() -> float:
        async with client_of(rooms) as client:
            assert isinstance(await upload(client, SMALL), UploadOutcomeUnknown)
            scene.outages = [(0, 9999)]
            outcome = await upload(client, SMALL)
            assert isinstance(outcome, MeetingError)
            assert not isinstance(outcome, UploadOutcomeUnknown | RoomBusy)
            return anyio.current_time()

    assert MAX_OUTAGE / 2 <= run(in_doubt) <= MOST
    assert begun(rooms) == [0]


@pytest.mark.parametrize("max_outage", [0, 5, 300])
def test_the_outage_is_limited_by_its_policy(run: Run, max_outage: float) -> None:
    """``RetryPolicy.max_outage`` counts for answers of a proxy, too; 0 is one question."""
    scene, policy = Scene(NO_ANSWERS["502"], CHECK, [(0, 9999)]), RetryPolicy(max_outage=max_outage)
    outcome, rooms, seconds = course(run, scene, LARGE, retry=policy)
    assert isinstance(outcome, MeetingError)
    assert rooms.uploads == []
    assert max_outage / 4 <= seconds <= max_outage + (21 if max_outage else 0)
    assert max_outage or len(rooms.questions) == 1


def test_a_timeout_ends_an_outage(run: Run) -> None:
    """With nothing sent, and no later than 0.25 s after it."""
    scene = Scene(NO_ANSWERS["502"], CHECK, [(0, 9999)])
    rooms = scene.rooms

    async def main() -> None:
        async with client_of(rooms) as client:
            outcome = await upload(client, SMALL, timeout=10)
        assert isinstance(outcome, MeetingError)
        assert not isinstance(outcome, UploadOutcomeUnknown | RoomBusy)
        assert anyio.current_time() <= 10.25

    run(main)
    assert rooms.uploads == []


# --- in a batch ----------------------------------------------------------------------------------


@crossed(no_answer=NO_ANSWERS, anyio_backend=LOOPS)
def test_a_batch_outlasts_a_proxy_without_its_server(run: Run, no_answer: Act) -> None:
    """Thirty documents for ten rooms: unknown is what was being answered, all else is accepted."""
    away = (4.5, 24.5)

    def answer(visit: Visit) -> Act:
        if within([away]):
            return no_answer
        if visit.kind != "upload":
            return accepted() if visit.kind == "question" else refused()
        is_cut = anyio.current_time() < away[0] < anyio.current_time() + 3
        return lost(replying=away[0] - anyio.current_time()) if is_cut else accepted(replying=3)

    async def main() -> None:
        rooms = FakeRooms(answer, ask=answer)
        jobs = [job(f"room{n % 10}", n, LARGE if n % 3 else SMALL) for n in range(30)]
        async with client_of(rooms) as client, client.upload_many(jobs) as batch:
            report = await batch.wait()
        being_answered = [v for v in rooms.uploads if v.began < away[0] < v.began + 3]
        assert report.unknown == len(being_answered) == 10
        assert report.accepted == 20
        assert len(rooms.uploads) == 30
        assert sum(visit.is_accepted for visit in rooms.uploads) == 20

    run(main)


def test_many_rooms_outlast_the_same_outage(run: Run) -> None:
    """Each of a hundred rooms is asked for until the server is back: no call gives up earlier."""
    rooms = Scene(NO_ANSWERS["502"], CHECK, [(0, 30)]).rooms
    ended: list[Any] = []

    async def main() -> None:
        async with client_of(rooms) as client, anyio.create_task_group() as group:

            async def one(room: str) -> None:
                ended.append(await upload(client, SMALL, room=room))

            for number in range(100):
                group.start_soon(one, f"room{number:02}")

    run(main)
    assert [type(outcome) for outcome in ended] == [UploadReceipt] * 100
    assert len(rooms.uploads) == 100
    assert all(visit.began >= 30 for visit in rooms.uploads)
