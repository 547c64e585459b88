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
    RetryPolicy,
    RetryScheduled,
    UploadReceipt,
    Verdict,
    WaitingForRoom,
)
from meeting_async.errors import (
    ConnectFailed,
    DocumentRefused,
    MeetingError,
    ProcessingFailed,
    RoomBusy,
    Throttled,
    TransportError,
    UploadInterrupted,
    UploadOutcomeUnknown,
)
from meeting_async.rooms import LocalRoomLocks
from support.fake_rooms import (
    Act,
    accepted,
    busy,
    conversion_failed,
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
    PDF,
    SECRET,
    EventRecorder,
    Scripted,
    client_of,
    headers_of,
    locked_until,
    signature,
)
from support.peer import Peer
from support.sending import until

Run = Callable[..., Any]
HTML_503 = (b"<h1>503</h1>", "5")
"""What the built-in error page of a cache looks like: a page, and a Retry-After."""
SUCCESS = record("SUCCESS")


async def upload(
    client: MeetingClient, data: bytes = PDF, room: str = "room01", **how: Any
) -> UploadReceipt:
    """Upload to room01."""
    return await client.upload_whiteboard_file(room, data, filename="deck.pdf", **how)


async def course(*script: Act, data: bytes = PDF, **settings: Any) -> tuple[Any, Scripted, float]:
    """Upload along a script to a room that is active; return the outcome, and how long it took."""
    transport = Scripted(*script, checks=accepted())
    settings = {"preflight": True, **settings}
    how = {name: settings.pop(name) for name in ("max_wait", "timeout") if name in settings}
    async with client_of(transport, **settings) as client:
        try:
            outcome: Any = await upload(client, data, **how)
        except MeetingError as error:
            outcome = error
    return outcome, transport, anyio.current_time()


COURSES: list[tuple[str, list[Act], dict[str, Any], Any, float, float]] = [
    ("accepted", [accepted(replying=3)], {}, UploadReceipt, 3, 3),
    ("too large", [reply(413, b"<html>", take=1)], {}, DocumentRefused, 0, 0),
    ("busy, then failed", [busy(), conversion_failed()], {}, ProcessingFailed, 0.3, 0.7),
    ("never sent, then sent", [unreachable(), accepted()], {}, UploadReceipt, 0.25, 0.5),
    (
        "not one byte, says the transport",
        [failing(ConnectFailed("no"), take=1)] * 4 + [accepted()],
        {}, UploadReceipt, 3.75, 7.5,
    ),
    ("but all of it was out", [failing(ConnectFailed("no"))], {}, UploadOutcomeUnknown, 0, 0),
    ("cut off twice", [cut_off(), cut_off(IN_DOCUMENT), accepted()], {}, UploadReceipt, 0.75, 1.5),
    ("cut off three times", [cut_off()] * 3, {}, UploadInterrupted, 0.75, 1.5),
    ("throttled", [reply(429, b"", "5"), accepted()], {}, UploadReceipt, 5, 6.25),
    ("throttled early", [reply(503, *HTML_503, take=1), accepted()], {}, UploadReceipt, 5, 6.25),
    ("throttled itself", [reply(503, record("X"), "5"), accepted()], {}, UploadReceipt, 5, 6.25),
    ("throttled for ever", [reply(429, b"", "0")] * 5, {}, Throttled, 3.75, 7.5),
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
    ("never wait", [busy()], {"max_wait": 0}, RoomBusy, 0, 0),
    (
        "nothing is sent again",
        [lost()],
        {"retry": RetryPolicy(max_attempts=100)},
        UploadOutcomeUnknown, 0, 0,
    ),
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
    ("large, never wait", [busy()], {"data": ASKED, "max_wait": 0}, RoomBusy, 0, 0),
    ("large, locked", [busy(), free(), accepted()], {"data": ASKED}, UploadReceipt, 0.3, 0.7),
    (
        "large, a lost race",
        [free(), busy(sending=2), free(), accepted()],
        {"data": ASKED},
        UploadReceipt, 2 + 1.4, 2 + 12.6,
    ),
    (
        "large, cut off",
        [free(), cut_off(), busy(), free(), accepted()],
        {"data": ASKED},
        UploadReceipt, 0.6, 1.2,
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
    outcome, transport, seconds = run(lambda: course(*script, **how))
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
        assert outcome.size == len(data)
        assert outcome.seconds == seconds
    else:
        facts = (outcome.operation, outcome.room_id, outcome.document)
        assert facts == ("room/uploadWhiteboardFile", "room01", "deck.pdf")


def test_a_request_as_the_interface_says(run: Run) -> None:
    """Signed over the room, a form with one field, an exact length."""

    async def main() -> None:
        transport = Scripted(accepted())
        async with client_of(transport) as client:
            receipt = await upload(client, room="raum-ä")
        (visit,) = transport.visits
        headers = headers_of(visit)
        assert visit.request.url == "https://meet.test/auth/room/uploadWhiteboardFile"
        assert (headers["room-id"], headers["hash-signature"]) == (
            "raum-ä",
            signature("raum-ä".encode()),
        )
        assert int(headers["content-length"]) == len(visit.sent)
        assert bytes(visit.sent).count(b"form-data; name=") == 1
        assert receipt.raw["status_code"] == "SUCCESS"

    run(main)


# --- ask, then send ------------------------------------------------------------------------------


def test_the_wall_clock_does_not_matter(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It jumps an hour between any two looks at it."""
    now = [time.time()]

    def jumping() -> float:
        now[0] += 3600
        return now[0]

    monkeypatch.setattr(time, "time", jumping)
    outcome, _, seconds = run(lambda: course(busy(), accepted(), accepted(), data=ASKED, timeout=5))
    assert isinstance(outcome, UploadReceipt)
    assert seconds < 1


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
    outcome, _, seconds = run(lambda: course(*[busy()] * 9, data=ASKED, max_wait=5))
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
        await until(lambda: len(recorder.of(event)) == 40 - (rooms == 1))
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        group.cancel_scope.cancel()
    assert held < 2 * 1024**2


@pytest.mark.parametrize("fails", ["acquire", "release"])
def test_locks_that_fail(run: Run, fails: str, caplog: pytest.LogCaptureFixture) -> None:
    """Before an upload that is its error; after it, nothing changes what became of the document."""

    class Failing(LocalRoomLocks):
        @asynccontextmanager
        async def acquire(self, room: str, *, timeout: float | None) -> Any:
            if fails == "acquire":
                raise ConnectionError("no redis")
            yield
            raise ConnectionError("no redis")

    async def main() -> None:
        transport = Scripted(accepted())
        async with client_of(transport, room_locks=Failing()) as client:
            if fails == "acquire":
                with pytest.raises(ConnectionError):
                    await upload(client)
                assert not transport.visits
            else:
                assert isinstance(await upload(client), UploadReceipt)
                assert "no redis" in caplog.text

    run(main)


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
