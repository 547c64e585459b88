"""How an upload looks, asks, sends and waits; in virtual time, through a scripted transport."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
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
    AuthenticationFailed,
    ConnectFailed,
    DocumentRefused,
    MeetingError,
    ProcessingFailed,
    RequestRefused,
    RoomBusy,
    RoomNotActive,
    RoomNotFound,
    Throttled,
    TransportError,
    UnexpectedReply,
    UploadInterrupted,
    UploadOutcomeUnknown,
)
from meeting_async.rooms import LocalRoomLocks
from support.fake_rooms import (
    Act,
    absent,
    accepted,
    busy,
    conversion_failed,
    cut_off,
    failing,
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
    headers_of,
    locked_until,
    signature,
)
from support.peer import Peer
from support.sending import until

Run = Callable[..., Any]
HTML_503 = (b"<h1>503</h1>", "5")
"""What the built-in error page of a cache looks like: a page, and a Retry-After."""


async def upload(
    client: MeetingClient, data: bytes = PDF, room: str = "room01", **how: Any
) -> UploadReceipt:
    """Upload to room01."""
    return await client.upload_whiteboard_file(room, data, filename="deck.pdf", **how)


async def course(*script: Act, data: bytes = PDF, **settings: Any) -> tuple[Any, Scripted, float]:
    """Upload along a script; return what came of it, the transport, and how long it took."""
    transport = Scripted(*script)
    how = {name: settings.pop(name) for name in ("max_wait", "timeout") if name in settings}
    async with client_of(transport, **settings) as client:
        try:
            outcome: Any = await upload(client, data, **how)
        except MeetingError as error:
            outcome = error
    return outcome, transport, anyio.current_time()


COURSES: list[tuple[str, list[Act], dict[str, Any], Any, float, float]] = [
    ("accepted", [accepted(replying=3)], {}, UploadReceipt, 3, 3),
    ("refused", [refused()], {}, RequestRefused, 0, 0),
    ("too large", [reply(413, b"<html>", take=1)], {}, DocumentRefused, 0, 0),
    ("not active", [absent()], {}, RoomNotActive, 0, 0),
    ("redirected", [reply(302, b"")], {}, RequestRefused, 0, 0),
    ("conversion failed", [conversion_failed()], {}, ProcessingFailed, 0, 0),
    ("busy, then failed", [busy(), conversion_failed()], {}, ProcessingFailed, 0.3, 0.7),
    ("never sent, then sent", [unreachable(), accepted()], {}, UploadReceipt, 0.25, 0.5),
    (
        "not one byte, says the transport",
        [failing(ConnectFailed("no"), take=1)] * 4 + [accepted()],
        {}, UploadReceipt, 2.5, 7.5,
    ),
    ("but all of it was out", [failing(ConnectFailed("no"))], {}, UploadOutcomeUnknown, 0, 0),
    ("cut off twice", [cut_off(), cut_off(IN_DOCUMENT), accepted()], {}, UploadReceipt, 0.75, 1.5),
    ("cut off three times", [cut_off()] * 3, {}, UploadInterrupted, 0.75, 1.5),
    ("throttled", [reply(429, b"", "5"), accepted()], {}, UploadReceipt, 5, 6.25),
    ("throttled early", [reply(503, *HTML_503, take=1), accepted()], {}, UploadReceipt, 5, 6.25),
    ("throttled itself", [reply(503, record("X"), "5"), accepted()], {}, UploadReceipt, 5, 6.25),
    ("throttled for ever", [reply(429, b"", "0")] * 5, {}, Throttled, 1, 1.25),
    ("a cache is impatient", [reply(503, *HTML_503)], {}, UploadOutcomeUnknown, 0, 0),
    ("a proxy is impatient", [reply(504, b"<html>")], {}, UploadOutcomeUnknown, 0, 0),
    ("request timeout", [reply(408, b"")], {}, UploadOutcomeUnknown, 0, 0),
    ("a foreign page", [reply(200, b"<html>")], {}, UploadOutcomeUnknown, 0, 0),
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
    ("wait too short", [busy()], {"max_wait": 0.1}, RoomBusy, 0, 0),
    (
        "nothing is sent again",
        [lost()],
        {"retry": RetryPolicy(max_attempts=100)},
        UploadOutcomeUnknown, 0, 0,
    ),
    (
        "at least once",
        [lost(), busy(), reply(400, record("INVALID_PARAMETERS")), accepted()],
        {"delivery": "at_least_once"},
        UploadReceipt, 0.6, 1.2,
    ),
    (
        "at least once without questions",
        [lost(), accepted()],
        {"delivery": "at_least_once", "probe": False},
        UploadReceipt, 300, 300,
    ),
    (
        "lost, then refused",
        [lost(), reply(400, record("INVALID_PARAMETERS")), refused()],
        {"delivery": "at_least_once"},
        UploadOutcomeUnknown, 0.25, 0.5,
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
    """What each course comes to, after how long; no request more than the script has."""
    outcome, transport, seconds = run(lambda: course(*script, **how))
    assert type(outcome) is expected, outcome
    assert least <= seconds <= most
    assert len(transport.visits) == len(script)
    assert not transport.collisions
    attempts = outcome.attempts
    assert [a.number for a in attempts] == list(range(1, len(transport.uploads) + 1))
    if isinstance(outcome, UploadReceipt):
        assert bytes(transport.uploads[-1].sent).count(PDF) == 1
        assert (outcome.room_id, outcome.document, outcome.size) == ("room01", "deck.pdf", len(PDF))
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


@pytest.mark.parametrize("seconds", [10, 299, 301])
def test_ask_then_send(run: Run, seconds: float) -> None:
    """One body for the first 409, questions of 300 bytes, one body when the room is free."""

    async def main() -> None:
        transport, recorder = Scripted(then=locked_until(seconds)), EventRecorder()
        async with client_of(transport, on_event=recorder) as client:
            receipt = await upload(client, ASKED)
        assert [visit.kind for visit in transport.uploads] == ["upload"] * 2
        assert all(len(visit.sent) < 400 for visit in transport.of("probe"))
        assert seconds <= receipt.seconds <= seconds + 2.5
        begun = [visit.began for visit in transport.visits[:-1]]
        gaps = [later - earlier for earlier, later in pairwise(begun)]
        assert 0.375 <= gaps[0] <= 0.625
        assert 1 <= gaps[1] <= 2.5
        assert all(1.5 <= gap <= 2.5 for gap in gaps[2:])
        assert [event.retry_in for event in recorder.of(WaitingForRoom)] == pytest.approx(gaps)
        assert transport.uploads[-1].began == transport.of("probe")[-1].began

    run(main)


@pytest.mark.parametrize(
    "answer",
    [
        reply(400, record("INVALID_PARAMETERS")),
        reply(400, record("INTERNAL_SERVER_ERROR")),
        reply(500, record("INTERNAL_SERVER_ERROR")),
        accepted(),
    ],
)
def test_any_other_answer_of_the_server_means_free(run: Run, answer: Act) -> None:
    """The interface leaves the answer to an empty form open."""
    outcome, transport, _ = run(lambda: course(busy(), answer, accepted(), data=ASKED))
    assert isinstance(outcome, UploadReceipt)
    assert transport.kinds == ["upload", "probe", "upload"]


@pytest.mark.parametrize(
    "answer",
    [
        reply(200, b"<html>"),
        reply(400, b"<html>"),
        reply(502, b"<html>"),
        reply(503, b"", "9"),
        lost(),
        unreachable(),
    ],
)
def test_no_answer_of_the_server_is_asked_again(run: Run, answer: Act) -> None:
    """A proxy does not know whether the room is free."""
    free = reply(400, record("INVALID_PARAMETERS"))
    outcome, transport, _ = run(
        lambda: course(busy(), answer, busy(), free, accepted(), data=ASKED)
    )
    assert isinstance(outcome, UploadReceipt)
    assert transport.kinds == ["upload", "probe", "probe", "probe", "upload"]


def test_a_server_that_lies_about_its_rooms(run: Run) -> None:
    """Two vain bodies in a row, and no client asks this server any more; it ends after 330 s."""

    async def main() -> None:
        transport = Scripted(then=lambda visit: accepted() if visit.kind == "probe" else busy())
        async with client_of(transport, preflight=False) as client:
            with pytest.raises(RoomBusy):
                await upload(client, LARGE)
            assert len(transport.of("probe")) == 2
            assert transport.kinds[:5] == ["upload", "probe", "upload", "probe", "upload"]
            assert len(transport.uploads) < 80
            assert anyio.current_time() <= 330 + 5  # the last lock was seen within 5 s
            with pytest.raises(RoomBusy):
                await upload(client, LARGE, "room02")
            assert len(transport.of("probe")) == 2

    run(main)


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


# --- look before you send ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (reply(401, record("INVALID_API_KEY")), AuthenticationFailed),
        (reply(401, record("INVALID_TOKEN_OR_SIGNATURE")), AuthenticationFailed),
        (reply(401, b"<html>"), AuthenticationFailed),
        (reply(200, b"<html>"), UnexpectedReply),
        (reply(404, b"<html>"), UnexpectedReply),
        (reply(302, b""), UnexpectedReply),
    ],
)
def test_a_wrong_setting_costs_300_bytes(run: Run, answer: Act, error: type[MeetingError]) -> None:
    """A wrong URL, key or secret is found out before anything of the document is sent."""
    outcome, transport, _ = run(lambda: course(answer, preflight=True))
    assert type(outcome) is error
    assert transport.kinds == ["question"]
    request = transport.visits[0].request
    assert (
        sum(len(name) + len(value) for name, value in request.headers)
        + len(transport.visits[0].sent)
        < 400
    )
    assert outcome.document == "deck.pdf"


@pytest.mark.parametrize("denied", ["ROOM_NOT_FOUND", "ROOM_NOT_ACTIVE", "INVALID_PARAMETERS"])
def test_the_empty_form_overrules_the_check(run: Run, denied: str) -> None:
    """A check that denies a running room does not keep a document from it."""
    answers = reply(200, record(denied)), reply(400, record("INVALID_PARAMETERS")), accepted()
    outcome, transport, _ = run(lambda: course(*answers, preflight=True))
    assert isinstance(outcome, UploadReceipt)
    assert transport.kinds == ["question", "probe", "upload"]


@pytest.mark.parametrize(
    ("code", "error"), [("ROOM_NOT_FOUND", RoomNotFound), ("ROOM_NOT_ACTIVE", RoomNotActive)]
)
def test_two_answers_deny_a_room(run: Run, code: str, error: type[MeetingError]) -> None:
    """Then nothing of the document is sent."""
    answers = absent(), reply(400, record(code))
    outcome, transport, _ = run(lambda: course(*answers, preflight=True))
    assert type(outcome) is error
    assert transport.kinds == ["question", "probe"]


@pytest.mark.parametrize(
    "answer",
    [reply(500, record("INTERNAL_SERVER_ERROR")), reply(408, b""), reply(502, b"<html>"), lost()],
)
def test_a_check_without_answer_is_repeated(run: Run, answer: Act) -> None:
    """Nothing is sent before the server has answered; a lost attempt makes it ask again."""
    script = [answer, answer, accepted(), reply(429, b"", "5"), accepted()]
    outcome, transport, _ = run(lambda: course(*script, preflight=True))
    assert isinstance(outcome, UploadReceipt)
    assert transport.kinds == ["question", "question", "question", "upload", "upload"]


@pytest.mark.parametrize("status", [429, 503])
def test_a_check_that_is_throttled_waits(run: Run, status: int) -> None:
    """Not one byte of the document follows before the hint."""
    script = [reply(status, b"", "30"), accepted(), accepted()]
    outcome, transport, seconds = run(lambda: course(*script, preflight=True))
    assert isinstance(outcome, UploadReceipt)
    assert transport.kinds == ["question", "question", "upload"]
    assert seconds >= 30


def test_who_is_looked_for(run: Run) -> None:
    """Every document, once per room and 30 s, for derived clients, too; or never."""

    async def main() -> None:
        transport = Scripted(then=lambda _: accepted())
        async with client_of(transport, preflight=True) as client:
            await upload(client, PDF)
            await upload(client.with_options(allow_images=True), LARGE)
            assert transport.kinds == ["question", "upload", "upload"]
            await upload(client, LARGE, "room02")
            await client.get_active_room_info("room03")
            await upload(client, LARGE, "room03")
            assert transport.kinds[3:] == ["question", "upload", "question", "upload"]
            await anyio.sleep(29.9)
            await upload(client, LARGE)
            await anyio.sleep(0.2)
            await upload(client, LARGE)
            assert transport.kinds[7:] == ["upload", "question", "upload"]
            await upload(client.with_options(preflight=False), LARGE, "room04")
            assert transport.kinds[10:] == ["upload"]

    run(main)


@pytest.mark.parametrize(
    ("trouble", "kinds"),
    [
        (lost(), ["question", "probe", "upload"]),
        (reply(502, b"<html>"), ["question", "probe", "upload"]),
        (conversion_failed(), ["question", "upload"]),
    ],
)
def test_trouble_makes_it_look_again(run: Run, trouble: Act, kinds: list[str]) -> None:
    """The server may have been restarted."""

    async def main() -> None:
        transport = Scripted(accepted(), trouble, then=lambda _: accepted())
        async with client_of(transport, preflight=True) as client:
            with pytest.raises(MeetingError):
                await upload(client, PDF)
            await upload(client, PDF)
            assert transport.kinds == ["question", "upload", *kinds]

    run(main)


def test_a_look_that_finds_nobody_is_an_attempt(run: Run) -> None:
    """Without a connection the upload backs off, and looks again."""
    script = [unreachable(), unreachable(), accepted(), accepted()]
    outcome, transport, seconds = run(lambda: course(*script, preflight=True))
    assert isinstance(outcome, UploadReceipt)
    assert transport.kinds == ["question", "question", "question", "upload"]
    assert 0.75 <= seconds <= 1.5
    assert [a.verdict for a in outcome.attempts] == [Verdict.NEVER_SENT] * 2 + [Verdict.ACCEPTED]


# --- rooms that are taken ------------------------------------------------------------------------


def test_uploads_from_here_take_turns(run: Run) -> None:
    """First come, first served; nobody sends a body that would get 409; other rooms go on."""

    async def main() -> None:
        transport, order = Scripted(then=lambda _: accepted(replying=10)), []
        async with client_of(transport) as client, anyio.create_task_group() as group:

            async def one(name: str, room: str) -> None:
                await client.upload_whiteboard_file(room, PDF, filename=name)
                order.append((name, anyio.current_time()))

            for number in range(4):
                group.start_soon(one, f"{number}.pdf", "room01")
                await anyio.sleep(0.1)
            group.start_soon(one, "other.pdf", "room02")
        names = [name for name, _ in order]
        assert names == ["0.pdf", "other.pdf", "1.pdf", "2.pdf", "3.pdf"]
        assert order[-1][1] == 40
        assert not transport.collisions

    run(main)


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


@pytest.mark.parametrize(("max_wait", "free_in"), [(0, 290), (0.1, 290), (4, 286)])
def test_busy_with_our_own_unknown_outcome(run: Run, max_wait: float, free_in: float) -> None:
    """It asks, and waits no longer than ``max_wait``: nobody waits 300 s for that."""

    async def main() -> None:
        transport = Scripted(lost(), then=locked_until(1000))
        async with client_of(transport) as client:
            with pytest.raises(UploadOutcomeUnknown) as lost_one:
                await upload(client)
            assert lost_one.value.lock_free_in == 300
            await anyio.sleep(10)
            with pytest.raises(RoomBusy, match="an upload of unknown outcome has") as caught:
                await upload(client, max_wait=max_wait)
            assert set(transport.kinds[1:]) == {"probe"}
            assert 10 <= anyio.current_time() <= 10 + max_wait
            assert caught.value.free_in == pytest.approx(free_in, abs=1)

    run(main)


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


@pytest.mark.parametrize("data", [PDF, LARGE])
@pytest.mark.parametrize("locked", [0, 6])
def test_after_an_unknown_outcome_the_next_upload_asks_first(
    run: Run, data: bytes, locked: float
) -> None:
    """It sends its document as soon as the room is free, not after 300 s, and only once."""

    async def main() -> None:
        transport = Scripted(lost(), then=locked_until(locked))
        async with client_of(transport, preflight=False) as client:
            with pytest.raises(UploadOutcomeUnknown):
                await upload(client, data)
            await upload(client.with_options(allow_images=True), data)
            assert transport.kinds[:2] == ["upload", "probe"]
            assert len(transport.uploads) == 2
            assert anyio.current_time() <= locked + 2.5
            await upload(client, data)
            assert transport.kinds[-1] == "upload"
            assert len(transport.uploads) == 3

    run(main)


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


def test_doubt_ends_with_the_lock(run: Run) -> None:
    """After 300 s the lock must have ended, so there is nothing to ask for."""

    async def main() -> None:
        transport = Scripted(lost(), accepted(), then=lambda _: accepted())
        async with client_of(transport) as client:
            with pytest.raises(UploadOutcomeUnknown):
                await upload(client)
            await upload(client, room="room02")  # another room is not in doubt
            await anyio.sleep(300)
            await upload(client)
        assert transport.kinds == ["upload"] * 3

    run(main)


class SlowLocks(LocalRoomLocks):
    """Locks that take a second to say that they were released, as those of several processes do."""

    @asynccontextmanager
    async def acquire(self, room: str, *, timeout: float | None) -> Any:
        """Hold the lock of a room."""
        try:
            async with super().acquire(room, timeout=timeout):
                yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)


@pytest.mark.parametrize("end", ["lost", "timeout", "cancelled"])
def test_who_queues_behind_a_lost_upload_asks_first(run: Run, end: str) -> None:
    """The doubt is there before the room's lock is given to the next upload."""

    async def main() -> None:
        transport = Scripted(
            lost(replying=5) if end == "lost" else Act(), then=lambda _: accepted()
        )
        async with (
            client_of(transport, room_locks=SlowLocks()) as client,
            anyio.create_task_group() as group,
        ):

            async def first() -> None:
                with anyio.move_on_after(5 if end == "cancelled" else 100):
                    with pytest.raises(UploadOutcomeUnknown):
                        await upload(client, timeout=5 if end == "timeout" else None)

            group.start_soon(first)
            await anyio.sleep(0.1)
            group.start_soon(upload, client)
        assert transport.kinds == ["upload", "probe", "upload"]

    run(main)


@pytest.mark.both_loops
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("act", "event", "rooms"),
    [(Act(), Queued, 1), (unreachable(), RetryScheduled, 40), (lost(), WaitingForRoom, 40)],
    ids=["behind another upload", "without a connection", "for a room in doubt"],
)
async def test_waiting_holds_no_bytes(
    act: Act, event: type[Event], rooms: int, tmp_path: Path
) -> None:
    """Forty uploads of a file of 200 KiB wait in less than 2 MiB of memory."""
    path, recorder = tmp_path / "deck.pdf", EventRecorder()
    path.write_bytes(PDF.ljust(200 * 1024))
    transport = Scripted(*[act] * rooms, then=lambda _: busy())
    async with client_of(transport) as client, anyio.create_task_group() as group:
        names = [f"room{number % rooms}" for number in range(40)]
        if event is WaitingForRoom:
            for name in names:
                with pytest.raises(UploadOutcomeUnknown):
                    await upload(client, room=name)
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
        transport = Scripted(then=locked_until(1000))
        lock = LockPolicy(max_wait=3)
        async with client_of(transport) as client:
            with pytest.raises(RoomBusy):
                await upload(client.with_options(lock=lock), ASKED)
            assert 2.5 <= anyio.current_time() <= 3
            with pytest.raises(RoomBusy):
                await upload(client.with_options(lock=lock), ASKED, max_wait=20)
            assert 22 <= anyio.current_time() <= 23

    run(main)
