"""How an upload looks, asks, sends and waits; in virtual time, through a scripted transport."""

from __future__ import annotations

import re
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from meeting_async import (
    Document,
    Event,
    LockPolicy,
    MeetingClient,
    Queued,
    RetryScheduled,
    UploadReceipt,
    Verdict,
    WaitingForRoom,
)
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    DocumentRefused,
    RoomBusy,
    Throttled,
    TransferTimeout,
    TransportError,
    UploadOutcomeUnknown,
)
from meeting_async.rooms import LocalRoomLocks
from support.fake_rooms import (
    Act,
    accepted,
    busy,
    cut_off,
    failing,
    free,
    lost,
    record,
    refused,
    reply,
    unreachable,
)
from support.fakes import (
    ASKED,
    IN_DOCUMENT,
    KEY,
    LARGE,
    PDF,
    SECRET,
    EventRecorder,
    Scripted,
    client_of,
    course,
    headers_of,
    locked_until,
    upload,
)
from support.peer import Peer
from support.sending import until

Run = Callable[..., Any]
HTML_503 = (b"<h1>503</h1>", "5")
"""What the built-in error page of a cache looks like: a page, and a Retry-After."""
SUCCESS = record("SUCCESS")


COURSES: list[tuple[str, list[Act], dict[str, Any], Any, float, float]] = [
    ("accepted", [accepted(replying=3)], {}, UploadReceipt, 3, 3),
    ("too large", [reply(413, b"<html>", take=1)], {}, DocumentRefused, 0, 0),
    ("never sent, then sent", [unreachable(), accepted()], {}, UploadReceipt, 0.25, 0.5),
    (
        "not one byte, says the transport",
        [failing(ConnectFailed("no"), take=1)] * 4 + [accepted()],
        {}, UploadReceipt, 3.75, 7.5,
    ),
    ("but all of it was out", [failing(ConnectFailed("no"))], {}, UploadOutcomeUnknown, 0, 0),
    ("cut off twice", [cut_off(), cut_off(IN_DOCUMENT), accepted()], {}, UploadReceipt, 0.75, 1.5),
    ("throttled early", [reply(503, *HTML_503, take=1), accepted()], {}, UploadReceipt, 5, 6.25),
    ("a cache is impatient", [reply(503, *HTML_503)], {}, UploadOutcomeUnknown, 0, 0),
    ("an early success", [accepted(take=1)], {}, UploadOutcomeUnknown, 0, 0),
    ("lost", [lost(replying=7)], {}, UploadOutcomeUnknown, 7, 7),
    (
        "409 and 503 in turn",
        [busy(), reply(503, record("X"), "1"), busy(), reply(503, record("X"), "1"), accepted()],
        {}, UploadReceipt, 2.5, 12,
    ),
    ("at the edge of the timeout", [busy()], {"timeout": 0.3}, RoomBusy, 0, 0),
    ("no time for the hint", [reply(429, b"", "5")], {"timeout": 4}, Throttled, 0, 0),
    (
        "at least once",
        [lost(), busy(), free(), accepted()],
        {"delivery": "at_least_once"},
        UploadReceipt, 0.6, 1.2,
    ),
    (
        "at least once without the form",
        [lost(), accepted()],
        {"delivery": "at_least_once", "probe": False},
        UploadReceipt, 300, 300,
    ),
    (
        "at least once without questions",
        [lost(), accepted()],
        {"delivery": "at_least_once", "preflight": False},
        UploadReceipt, 300, 300,
    ),
    ("lost, refused", [lost(), free(), refused()], {"delivery": "at_least_once"},
     UploadOutcomeUnknown, 0.25, 0.5),
    ("large", [free(), accepted()], {"data": ASKED}, UploadReceipt, 0, 0),
    (
        "large, a lost race",
        [free(), busy(sending=2), free(), accepted()],
        {"data": ASKED},
        UploadReceipt, 2 + 1.1, 2 + 10.9,
    ),
    ("large, without the form", [accepted()], {"data": ASKED, "probe": False}, UploadReceipt, 0, 0),
    (
        "large, without questions",
        [busy(), accepted()],
        {"data": ASKED, "preflight": False},
        UploadReceipt, 0.3, 0.7,
    ),
]  # fmt: skip


@pytest.mark.both_loops
@pytest.mark.parametrize(
    ("script", "how", "expected", "least", "most"),
    [pytest.param(*row[1:], id=row[0]) for row in COURSES],
)
def test_courses(
    run: Run, script: list[Act], how: dict[str, Any], expected: Any, least: float, most: float
) -> None:
    """What each course comes to, after how long; no request more than the script has.

    Every attempt takes the same steps: the check, the form if it is asked for, the document.
    """
    went = run(lambda: course(*script, **how))
    outcome, transport, seconds = went.outcome, went.transport, went.seconds
    assert type(outcome) is expected, outcome
    assert least <= seconds <= most
    assert len(transport.kinds) == len(script)
    assert not transport.collisions
    steps = "".join(visit.kind[0] for visit in transport.visits)
    assert re.fullmatch("(qp?u?)+" if how.get("preflight", True) else "u+", steps)
    attempts = outcome.attempts
    assert [a.number for a in attempts] == list(range(1, len(transport.uploads) + 1))
    if isinstance(outcome, UploadReceipt):
        data = how.get("data", PDF)
        assert bytes(transport.uploads[-1].sent).count(data) == 1
        assert (outcome.room_id, outcome.document) == ("room01", "deck.pdf")
        assert (outcome.size, outcome.attempts[-1].bytes_sent) == (len(data), len(data))
        assert (outcome.status_code, outcome.raw["status"]) == ("SUCCESS", True)
        assert outcome.seconds == seconds
    else:
        facts = (outcome.operation, outcome.room_id, outcome.document)
        assert facts == ("room/uploadWhiteboardFile", "room01", "deck.pdf")


# --- the closing boundary -------------------------------------------------------------------------


def closing_of(transport: Scripted) -> int:
    """Return the length of a form's end, as its content type announces it."""
    boundary = headers_of(transport.visits[0])["content-type"].partition("boundary=")[2].strip('"')
    end = f"\r\n--{boundary}--\r\n".encode()
    assert transport.visits[0].sent.endswith(end)
    return len(end)


@pytest.mark.both_loops
@pytest.mark.parametrize("data", [PDF, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("error", [ConnectionLost, TransferTimeout])
def test_any_byte_of_the_closing_boundary_counts(run: Run, error: Any, data: bytes) -> None:
    """When all but 0, 1, 2 … bytes of its line were sent, the outcome is unknown: sent once.

    When none of them was, no server can have the form: it is sent again.
    """
    how: Any = {"data": data, "probe": False}

    def verdicts(missing: int) -> list[Verdict]:
        script = [failing(error("gone"), missing=missing), accepted()]
        went = run(lambda: course(*script, **how))
        outcome, transport = went.outcome, went.transport
        found = [attempt.verdict for attempt in outcome.attempts]
        assert len(transport.uploads) == len(found)
        assert isinstance(outcome, UploadReceipt if len(found) == 2 else UploadOutcomeUnknown)
        return found

    transport = run(lambda: course(accepted(), **how, preflight=False)).transport
    closing, again = closing_of(transport), [Verdict.PARTIAL, Verdict.ACCEPTED]
    assert [verdicts(missing) for missing in range(closing)] == [[Verdict.UNKNOWN]] * closing
    assert [verdicts(missing) for missing in (closing, closing + 1)] == [again] * 2


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (accepted(missing=0), Verdict.ACCEPTED),
        (accepted(missing=1), Verdict.UNKNOWN),
        (accepted(missing=500), Verdict.UNKNOWN),
        (refused(missing=500), Verdict.REFUSED),
        (busy(missing=500), Verdict.BUSY),
    ],
)
def test_a_reply_that_came_early(run: Run, act: Act, expected: Verdict) -> None:
    """A success before the last byte of the form is none; a refusal counts."""
    went = run(lambda: course(act, accepted()))
    assert went.outcome.attempts[0].verdict is expected


# --- ask, then send ------------------------------------------------------------------------------


def test_the_wall_clock_does_not_matter(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It jumps an hour between any two looks at it."""
    now = [time.time()]

    def jumping() -> float:
        now[0] += 3600
        return now[0]

    monkeypatch.setattr(time, "time", jumping)
    went = run(lambda: course(busy(), accepted(), accepted(), data=ASKED, timeout=5))
    assert isinstance(went.outcome, UploadReceipt)
    assert went.seconds < 1


@pytest.mark.both_loops
@pytest.mark.anyio
async def test_a_load_balancer_that_hangs_up_leaves_no_doubt() -> None:
    """On a real socket: a small document of which nobody took a byte was not sent."""
    with Peer(lambda connection: None) as peer:

        async def data() -> AsyncIterator[bytes]:
            await until(lambda: peer.connected and not peer.open)
            yield PDF

        document = Document.from_stream(data(), "deck.pdf", size=len(PDF), replayable=False)
        keys: Any = {"api_key": KEY, "api_secret": SECRET}
        async with MeetingClient(peer.url, **keys, preflight=False) as client:
            with pytest.raises(TransportError):  # an unknown outcome is none
                await client.upload_whiteboard_file("room01", document)


# --- rooms that are taken ------------------------------------------------------------------------


@pytest.mark.parametrize("max_wait", [0, 0.1, 5])
def test_busy_with_an_upload_from_here(run: Run, max_wait: float) -> None:
    """``RoomBusy`` says whose it is, exactly when ``max_wait`` is over."""

    async def main() -> None:
        transport = Scripted(accepted(replying=10))
        async with client_of(transport) as client, anyio.create_task_group() as group:
            group.start_soon(upload, client)
            await anyio.sleep(1)
            recorder = EventRecorder()
            with pytest.raises(RoomBusy, match="another upload of this application has") as caught:
                await upload(client, max_wait=max_wait, on_event=recorder)
            assert recorder.kinds == ["Started", *(["Queued"] if max_wait else []), "Finished"]
            assert recorder.finished.verdict is Verdict.BUSY
            assert anyio.current_time() == 1 + max_wait
            assert caught.value.waited == pytest.approx(max_wait)
            assert recorder.finished.waited == pytest.approx(max_wait)
            assert caught.value.free_in is None

    run(main)


def test_busy_with_another_client(run: Run) -> None:
    """The server's words, how long it was waited, and when the room must be free."""
    went = run(lambda: course(*[busy()] * 9, data=ASKED, max_wait=5))
    outcome, seconds = went.outcome, went.seconds
    assert isinstance(outcome, RoomBusy)
    assert 4.5 <= seconds <= 5
    assert (outcome.held_by, outcome.waited) == ("another client", seconds)
    assert outcome.free_in == pytest.approx(300 - seconds)
    assert outcome.reason == "scripted"


def test_without_a_limit_an_upload_waits_behind_those_from_here(run: Run) -> None:
    """As long as they make progress: beyond any lock's life."""

    async def main() -> None:
        transport = Scripted(then=lambda _: accepted(replying=200))
        async with client_of(transport) as client, anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(upload, client)
        assert anyio.current_time() == 1000
        assert len(transport.uploads) == 5

    run(main)


@pytest.mark.both_loops
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("act", "event", "rooms"),
    [(Act(), Queued, 1), (unreachable(), RetryScheduled, 40), (busy(take=0), WaitingForRoom, 40)],
    ids=["behind another upload", "without a connection", "for a locked room"],
)
async def test_waiting_holds_no_bytes(
    act: Act, event: type[Event], rooms: int, tmp_path: Path
) -> None:
    """Forty uploads of a file of 200 KiB wait in less than 2 MiB of memory."""
    path, recorder = tmp_path / "deck.pdf", EventRecorder()
    path.write_bytes(PDF.ljust(200 * 1024))
    transport = Scripted(*[act] * rooms, then=lambda _: busy(take=0))
    async with client_of(transport) as client, anyio.create_task_group() as group:
        names = [f"room{number % rooms}" for number in range(40)]
        tracemalloc.start()
        for name in names:
            waiting = partial(client.upload_whiteboard_file, on_event=recorder)
            group.start_soon(waiting, name, path)
        await until(lambda: len({one.call for one in recorder.of(event)}) == 40 - (rooms == 1))
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        group.cancel_scope.cancel()
    assert held < 2 * 1024**2


def test_locks_that_fail(run: Run) -> None:
    """Before an upload that is its error; what comes after it is in ``test_accepted.py``."""

    class Failing(LocalRoomLocks):
        @asynccontextmanager
        async def acquire(self, room: str, *, timeout: float | None) -> Any:
            await anyio.sleep(seconds)
            if room:
                raise ConnectionError("no redis")
            yield

    async def main(error: type[Exception], words: str) -> None:
        transport = Scripted()
        async with client_of(transport, room_locks=Failing()) as client:
            with pytest.raises(error, match=words):
                await upload(client, timeout=5)
        assert not transport.visits

    seconds = 0
    run(main, ConnectionError, "no redis")
    seconds = 60  # a Redis that does not answer
    run(main, DeadlineExceeded, "waiting for the room's lock elsewhere")


def test_a_policy_of_the_client_and_one_of_the_call(run: Run) -> None:
    """``max_wait=`` of an upload replaces the policy's."""

    async def main() -> None:
        transport = Scripted(then=locked_until(1000), checks=accepted())
        lock = LockPolicy(max_wait=3)
        async with client_of(transport, preflight=True) as client:
            with pytest.raises(RoomBusy):
                await upload(client.with_options(lock=lock), ASKED)
            assert 2.5 <= anyio.current_time() <= 3
            with pytest.raises(RoomBusy):
                await upload(client.with_options(lock=lock), ASKED, max_wait=20)
            assert 22 <= anyio.current_time() <= 23

    run(main)
