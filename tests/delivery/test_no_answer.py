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
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    MeetingError,
    RoomBusy,
    ServerFailed,
    TransferTimeout,
    UnexpectedReply,
)
from support.fake_rooms import (
    Act,
    FakeRooms,
    Visit,
    absent,
    accepted,
    busy,
    client_of,
    conversion_failed,
    failing,
    job,
    lost,
    refused,
    reply,
    unreachable,
)
from support.tables import LOOPS, crossed

Run = Callable[..., Any]
Interval = tuple[float, float]

PAGE = b"<html><h1>Bad Gateway</h1><hr>nginx</html>"
SILENCE = 15
"""Seconds that a question waits for its answer."""
NO_ANSWERS: dict[str, tuple[Act, type[MeetingError]]] = {
    "502": (reply(502, PAGE), UnexpectedReply),
    "503": (reply(503, PAGE), UnexpectedReply),
    "504": (reply(504, PAGE, replying=3), UnexpectedReply),
    "500": (reply(500, PAGE), UnexpectedReply),
    "500 of its own": (conversion_failed(), ServerFailed),
    "reset": (lost(), ConnectionLost),
    "silence": (failing(TransferTimeout("no reply"), replying=SILENCE), TransferTimeout),
}
CHECK, FORM = {"question"}, {"probe"}
TARGETS: dict[str, dict[str, Any]] = {
    "check": {"targets": CHECK},
    "form": {"targets": FORM},
    "both": {"targets": CHECK | FORM},
    "form of a room that the check denies": {"targets": FORM, "check": absent()},
}

SMALL, LARGE = b"%PDF-1.7", b"%PDF-1.7".ljust(64 * 1024 + 1, b"\n")

MAX_OUTAGE = 60
"""Seconds: the default of ``RetryPolicy``."""
EVER = 9999

TIMES: dict[str, tuple[list[Interval], list[Interval]]] = {
    "at first": ([(0, 30)], []),
    "before a lock": ([(0, 12)], [(5, 40)]),
    "between": ([(4, 25)], [(0, 30)]),
    "until the next lock": ([(8, 25)], [(0, 10), (20, 40)]),
    "in turn": ([(0, 9), (14, 21)], [(6, 18), (20, 30)]),
    "again and again": ([(t, t + 5) for t in range(2, 180, 25)], [(0, 180)]),
}
"""When there are no answers, and when another client locks the room."""


def within(intervals: Sequence[Interval], now: float) -> bool:
    """Tell whether it is one of these times."""
    return any(start <= now < end for start, end in intervals)


@attrs.define(kw_only=True)
class Scene:
    """What happens when."""

    no_answer: Act
    targets: set[str]
    """What gets no answer during an outage; with empty forms documents get none and are lost."""
    outages: list[Interval]
    locks: list[Interval] = attrs.field(factory=list)
    check: Act = attrs.field(factory=accepted)

    def __call__(self, visit: Visit) -> Act:
        """Answer a request."""
        now = anyio.current_time()
        kind = "probe" if visit.kind == "upload" else visit.kind
        if within(self.outages, now) and kind in self.targets:
            return self.no_answer
        if visit.kind == "question":
            return self.check
        if within(self.locks, now):
            return busy()
        return refused() if visit.kind == "probe" else accepted()


async def upload(client: Any, data: bytes, room: str = "room01", **how: Any) -> Any:
    """Upload, and return the receipt or the error."""
    try:
        return await client.upload_whiteboard_file(room, data, filename="deck.pdf", **how)
    except MeetingError as error:
        return error


def course(
    run: Run, answer: Callable[[Visit], Act], data: bytes, **how: Any
) -> tuple[Any, FakeRooms, float]:
    """Upload one document: the receipt or the error, the requests, the seconds."""
    rooms = FakeRooms(answer, ask=answer)
    timeout = how.pop("timeout", None)

    async def main() -> tuple[Any, float]:
        async with client_of(rooms, preflight=True, **how) as client:
            return await upload(client, data, timeout=timeout), anyio.current_time()

    outcome, seconds = run(main)
    return outcome, rooms, seconds


def is_in_order(rooms: FakeRooms, *, asks: bool) -> bool:
    """Tell whether each document came right after its questions, and nothing at once again."""
    attempts = " ".join(visit.kind for visit in rooms.visits)
    questions = "question probe upload" if asks else "question upload"
    times = [visit.began for visit in rooms.questions]
    return attempts.count("upload") == attempts.count(questions) and all(
        later - earlier >= 0.25 for earlier, later in pairwise(times)
    )


# --- until it is answered ------------------------------------------------------------------------


@crossed(no_answer=NO_ANSWERS, times=TIMES, targets=TARGETS, anyio_backend=LOOPS)
def test_a_large_document_is_sent_once(
    run: Run, no_answer: Any, times: Any, targets: dict[str, Any]
) -> None:
    """What a proxy says to a question never means that the room is there, or free."""
    outages, locks = times
    scene = Scene(no_answer=no_answer[0], outages=outages, locks=locks, **targets)
    outcome, rooms, seconds = course(run, scene, LARGE)
    assert isinstance(outcome, UploadReceipt)
    (sent,) = rooms.uploads
    assert not within(outages + locks, sent.began)
    assert is_in_order(rooms, asks=True)
    assert seconds <= max(end for _, end in outages + locks) + SILENCE + 21
    assert len(rooms.questions) < 10 + seconds


@crossed(no_answer=NO_ANSWERS, times=TIMES, anyio_backend=LOOPS)
def test_a_small_document_waits_for_the_check(run: Run, no_answer: Any, times: Any) -> None:
    """It may meet a lock, but no server that was not asked about the room."""
    outages, locks = times
    scene = Scene(no_answer=no_answer[0], targets=CHECK, outages=outages, locks=locks)
    outcome, rooms, _ = course(run, scene, SMALL)
    assert isinstance(outcome, UploadReceipt)
    assert [visit.is_accepted for visit in rooms.uploads].count(True) == 1
    assert not any(within(outages, visit.began) for visit in rooms.uploads)
    assert is_in_order(rooms, asks=False)


@pytest.mark.parametrize("no_answer", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_at_least_once_waits_for_answers(run: Run, no_answer: Any) -> None:
    """The second attempt of a document that may have arrived is sent into a free room, once."""
    first: list[Visit] = []
    scene = Scene(
        no_answer=no_answer[0], targets=CHECK | FORM, outages=[(0.1, 12)], locks=[(0.1, 25)]
    )

    def answer(visit: Visit) -> Act:
        if visit.kind == "upload" and not first:
            first.append(visit)
            return lost()
        return scene(visit)

    outcome, rooms, _ = course(run, answer, SMALL, delivery="at_least_once")
    assert isinstance(outcome, UploadReceipt)
    _, second = rooms.uploads
    assert second.began >= 25


# --- for ever ------------------------------------------------------------------------------------

LOCKED = {"targets": CHECK | FORM, "outages": [(5, EVER)], "locks": [(0, EVER)]}
SETTINGS = {**TARGETS, "amid a lock": LOCKED}


@crossed(no_answer=NO_ANSWERS, settings=SETTINGS, anyio_backend=LOOPS)
def test_questions_that_are_never_answered(
    run: Run, no_answer: Any, settings: dict[str, Any]
) -> None:
    """After a minute the call ends with what came instead; nothing was sent."""
    act, kind = no_answer
    settings = {"outages": [(0, EVER)], **settings}
    outcome, rooms, seconds = course(run, Scene(no_answer=act, **settings), LARGE)
    assert type(outcome) is kind
    assert (outcome.room_id, outcome.document) == ("room01", "deck.pdf")
    assert rooms.uploads == []
    assert len(rooms.questions) >= 3
    ((began, _),) = settings["outages"]
    assert began + MAX_OUTAGE <= seconds <= began + 3 + MAX_OUTAGE + SILENCE


@pytest.mark.parametrize("max_outage", [0, 5, 300])
def test_the_outage_is_limited_by_its_policy(run: Run, max_outage: float) -> None:
    """``RetryPolicy.max_outage`` counts for answers of a proxy, too; 0 is one question."""
    scene = Scene(no_answer=reply(502, PAGE), targets=CHECK, outages=[(0, EVER)])
    outcome, rooms, seconds = course(run, scene, LARGE, retry=RetryPolicy(max_outage=max_outage))
    assert isinstance(outcome, UnexpectedReply)
    assert rooms.uploads == []
    assert max_outage <= seconds <= max_outage + 0.25
    assert max_outage or len(rooms.questions) == 1


def test_a_timeout_ends_an_outage(run: Run) -> None:
    """With nothing sent, and no later than 0.25 s after it."""
    scene = Scene(no_answer=reply(502, PAGE), targets=CHECK, outages=[(0, EVER)])
    outcome, rooms, seconds = course(run, scene, SMALL, timeout=10)
    assert isinstance(outcome, UnexpectedReply)
    assert seconds <= 10.25
    assert rooms.uploads == []


def test_who_waits_behind_a_document_is_told_of_no_outage_that_is_over(run: Run) -> None:
    """The server was away, and its answers to questions show that it is back: the room is busy."""
    scene = Scene(no_answer=unreachable(), targets=CHECK, outages=[(0, 3)])

    def answer(visit: Visit) -> Act:
        return accepted(replying=100) if visit.kind == "upload" else scene(visit)

    async def main() -> list[Any]:
        client = client_of(FakeRooms(answer, ask=answer), preflight=True)
        found: list[Any] = []
        async with client, anyio.create_task_group() as group:
            group.start_soon(upload, client, LARGE)
            for start in (0.1, 20):
                await anyio.sleep_until(start)
                found.append(await upload(client, LARGE, max_wait=2))
        return found

    assert [type(outcome) for outcome in run(main)] == [ConnectFailed, RoomBusy]


# --- many ----------------------------------------------------------------------------------------


@crossed(no_answer=NO_ANSWERS, anyio_backend=LOOPS)
def test_a_batch_outlasts_a_proxy_without_its_server(
    run: Run, no_answer: tuple[Act, type[MeetingError]]
) -> None:
    """Thirty documents for ten rooms: unknown is what was being answered, all else is accepted."""
    away = (4.5, 24.5)

    def answer(visit: Visit) -> Act:
        now = anyio.current_time()
        if within([away], now):
            return no_answer[0]
        if visit.kind != "upload":
            return accepted() if visit.kind == "question" else refused()
        is_cut = now < away[0] < now + 3
        return lost(replying=away[0] - now) if is_cut else accepted(replying=3)

    async def main() -> None:
        rooms = FakeRooms(answer, ask=answer)
        jobs = [job(f"room{n % 10}", n, LARGE if n % 3 else SMALL) for n in range(30)]
        async with client_of(rooms, preflight=True) as client, client.upload_many(jobs) as batch:
            report = await batch.wait()
        being_answered = [v for v in rooms.uploads if v.began < away[0] < v.began + 3]
        assert report.unknown == len(being_answered) == 10
        assert report.accepted == 20
        assert len(rooms.uploads) == 30
        assert sum(visit.is_accepted for visit in rooms.uploads) == 20

    run(main)


def test_many_rooms_outlast_the_same_outage(run: Run) -> None:
    """Each of a hundred rooms is asked for until the server is back: no call gives up earlier."""
    scene = Scene(no_answer=reply(502, PAGE), targets=CHECK, outages=[(0, 30)])
    rooms, ended = FakeRooms(scene, ask=scene), list[Any]()

    async def main() -> None:
        async with client_of(rooms, preflight=True) as client, anyio.create_task_group() as group:

            async def one(room: str) -> None:
                ended.append(await upload(client, SMALL, room))

            for number in range(100):
                group.start_soon(one, f"room{number:02}")

    run(main)
    assert [type(outcome) for outcome in ended] == [UploadReceipt] * 100
    assert len(rooms.uploads) == 100
    assert all(visit.began >= 30 for visit in rooms.uploads)
