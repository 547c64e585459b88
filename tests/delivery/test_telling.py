"""What a call tells while it runs: events, the log, and no secret in either."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from meeting_async import (
    AttemptStarted,
    BytesSent,
    Document,
    Event,
    Finished,
    RetryScheduled,
    Started,
    Verdict,
    WaitingForRoom,
)
from meeting_async.errors import ConfigurationError, UploadOutcomeUnknown
from meeting_async.testing import run_in_virtual_time
from support.fake_rooms import (
    Act,
    FakeRooms,
    absent,
    accepted,
    busy,
    conversion_failed,
    cut_off,
    free,
    hanging,
    job,
    lost,
    record,
    reply,
    unreachable,
)
from support.fakes import ASKED, PDF, EventRecorder, Scripted, client_of, course, upload

Run = Callable[..., Any]
ONE, TWO, LAST = ["AttemptStarted", "BytesSent"], ["AttemptStarted", *["BytesSent"] * 2], "Finished"
LINK = Document.from_link("https://f.test/a?b")


async def told(*script: Act, **how: Any) -> EventRecorder:
    """Upload along a script, whatever comes of it, and return the events."""
    return (await course(*script, **how)).recorder


@pytest.mark.parametrize(
    ("script", "how", "kinds", "verdict", "attempts"),
    [
        ([accepted()], {}, [*ONE, "Finished"], "accepted", 1),
        ([busy(), accepted()], {}, [*ONE, "WaitingForRoom", *ONE, "Finished"], "accepted", 2),
        ([unreachable(), accepted()], {}, [ONE[0], "RetryScheduled", *ONE, LAST], "accepted", 2),
        ([cut_off()] * 3, {}, [ONE[0], "RetryScheduled"] * 2 + [ONE[0], "Finished"], "partial", 3),
        ([busy()], {"max_wait": 0}, [*ONE, "Finished"], "busy", 1),
        ([reply(429, b"", "0")] * 5, {}, [*ONE, "RetryScheduled"] * 4 + [*ONE, LAST],
         "throttled", 5),
        ([], {"checks": reply(401, record("INVALID_API_KEY"))}, ["Finished"], "refused", 0),
        ([reply(400, record("ROOM_NOT_FOUND"))], {"data": ASKED}, ["Finished"], "refused", 0),
        ([free(), accepted()], {"data": ASKED}, [*TWO, LAST], "accepted", 1),
        ([busy(), free(), accepted()], {"data": ASKED}, ["WaitingForRoom", *TWO, LAST],
         "accepted", 1),
        ([unreachable(), free(), accepted()], {"data": ASKED}, ["RetryScheduled", *TWO, LAST],
         "accepted", 2),
        ([busy()], {"data": ASKED, "max_wait": 0}, ["Finished"], "busy", 0),
        ([hanging(take=1)], {"timeout": 5}, [ONE[0], "Finished"], "partial", 1),
        ([accepted()], {"data": LINK}, [ONE[0], "Finished"], "accepted", 1),
    ],
)  # fmt: skip
def test_the_events_of_typical_courses(
    run: Run, script: list[Act], how: dict[str, Any], kinds: list[str], verdict: str, attempts: int
) -> None:
    """The call and each attempt begin and report, waits are announced, the end comes once, last."""
    recorder = run(lambda: told(*script, **how))
    assert recorder.kinds == ["Started", *kinds]
    assert (recorder.finished.verdict, recorder.finished.attempts) == (verdict, attempts)
    assert (recorder.finished.error is None) is (verdict == "accepted")
    started = [event.attempt for event in recorder.of(AttemptStarted)]
    assert started == [*range(1, attempts + 1)][attempts - len(started) :]
    assert len({event.call for event in recorder.events}) == 1
    for event in recorder.events:
        facts = (event.operation, event.room_id, event.host)
        assert facts == ("room/uploadWhiteboardFile", "room01", "meet.test:443")
        known = (None,) if isinstance(event, Started) else ("deck.pdf", "https://f.test/a?…")
        assert event.document in known


def test_waits_and_retries_say_why_and_how_long(run: Run) -> None:
    """The delay, the time waited so far, the limit; the verdict and what was seen."""
    script = [busy(), reply(503, record("X", msg="come back"), "5"), unreachable(), accepted()]
    recorder = run(lambda: told(*script, max_wait=100))
    (wait,) = recorder.of(WaitingForRoom)
    assert (wait.attempt, wait.waited, wait.max_wait) == (1, 0, 100)
    throttled, unsent = recorder.of(RetryScheduled)
    assert (throttled.attempt, throttled.verdict) == (2, Verdict.THROTTLED)
    assert "503" in throttled.reason
    assert 5 <= throttled.retry_in <= 6.25
    assert (unsent.attempt, unsent.verdict) == (3, Verdict.NEVER_SENT)
    assert "refused" in unsent.reason
    total = wait.retry_in + throttled.retry_in + unsent.retry_in
    assert recorder.times[-1] == pytest.approx(total)
    assert recorder.finished.seconds == pytest.approx(total)


# --- sums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "how", "sent", "resent", "sending"),
    [
        ([accepted(sending=3, replying=2)], {}, 1000, 0, 0),
        ([cut_off(), accepted()], {}, 1000, 0, 0),  # before the document
        ([lost(sending=3)], {}, 1000, 0, 0),
        ([reply(429, b"", "5"), accepted()], {}, 2000, 1000, 0),
        ([busy(sending=2), accepted(sending=3)], {}, 2000, 1000, 0),
        ([busy(), busy(sending=2), accepted()], {}, 3000, 2000, 2),
        ([busy(), conversion_failed(sending=3)], {}, 2000, 1000, 0),
        ([busy(), lost(sending=3)], {}, 2000, 1000, 0),
        ([busy(), hanging(sending=3)], {"timeout": 60}, 2000, 1000, 0),
        ([busy()], {"max_wait": 0.1}, 1000, 0, 0),
        ([accepted()], {"data": LINK}, 0, 0, 0),
        ([], {"data": b""}, 0, 0, 0),
        ([busy(), busy(), free(), accepted(sending=3)], {"data": ASKED}, len(ASKED), 0, 0),
    ],
)
def test_the_sums_of_a_call(
    run: Run, script: list[Act], how: dict[str, Any], sent: int, resent: int, sending: float
) -> None:
    """Bytes, those sent again, and the wait for the room: the waits, and sending in vain."""
    recorder = run(lambda: told(*script, **how))
    waits = sum(event.retry_in for event in recorder.of(WaitingForRoom))
    finished = recorder.finished
    assert (finished.bytes_sent, finished.bytes_resent) == (sent, resent)
    assert finished.waited == pytest.approx(waits + sending)


@pytest.mark.parametrize("seconds", [2, 12])
def test_the_queue_counts_as_waiting(run: Run, seconds: float) -> None:
    """Behind another upload of this application, also if the wait is cut short."""

    async def main() -> float:
        transport, recorder = Scripted(accepted(replying=10), accepted(replying=3)), EventRecorder()
        async with client_of(transport) as client, anyio.create_task_group() as group:
            group.start_soon(upload, client)
            await anyio.sleep(1)
            with anyio.move_on_after(seconds):
                await upload(client, on_event=recorder)
        assert recorder.kinds[:2] == ["Started", "Queued"]
        return recorder.finished.waited

    assert run(main) == pytest.approx(min(seconds, 9))


def test_the_calls_of_a_job_count_once(run: Run) -> None:
    """A job whose room ended sends its document in two calls; their sums are those of the job."""

    async def main() -> None:
        acts = iter([busy(), absent(), busy(), accepted()])
        recorder = EventRecorder()
        rooms = FakeRooms(lambda _: next(acts), ask=lambda _: accepted())
        async with client_of(rooms, on_event=recorder) as client:
            async with client.upload_many([job("room01", 0, PDF)], wait_active=60) as batch:
                (outcome,) = (await batch.wait()).outcomes
        finished = recorder.of(Finished)
        assert outcome.bytes_sent == 4000 == sum(event.bytes_sent for event in finished)
        uploads = [event for event in finished if "upload" in event.operation]
        assert len(outcome.attempts) == 4 == sum(event.attempts for event in uploads)
        assert outcome.bytes_resent == 3000 == sum(event.bytes_resent for event in finished)

    run(main)


# --- observers -----------------------------------------------------------------------------------


def test_an_observer_of_a_single_call(run: Run) -> None:
    """``on_event=`` of a call replaces the client's for this call."""

    async def main() -> None:
        client_wide, own = EventRecorder(), EventRecorder()
        transport = Scripted(then=lambda _: accepted())
        async with client_of(transport, on_event=client_wide) as client:
            await upload(client, on_event=own)
            await client.call("room/create", on_event=own)
            await client.get_active_room_info("room01", on_event=own)
            await client.wait_until_active("room01", 5, on_event=own)
            assert not client_wide.events
            assert len(own.of(Finished)) == 4
            await client.call("room/create")
            assert client_wide.kinds == ["Started", "AttemptStarted", "Finished"]
            await client.call("/room/create")
            assert {event.operation for event in client_wide.events} == {"room/create"}

    run(main)


async def coroutine_function(event: Event) -> None:
    """Be what many would try first."""


class CoroutineObject:
    """The same as an object."""

    async def __call__(self, event: Event) -> None:
        """Wait."""


@pytest.mark.anyio
async def test_an_observer_is_a_plain_function() -> None:
    """A coroutine function is refused where it is given; a client's is in ``test_mistakes.py``."""
    document = Document.from_bytes(PDF, "a.pdf")
    async with client_of(Scripted()) as client:
        for on_event in (CoroutineObject(), functools.partial(coroutine_function), 7):
            calls: list[Callable[[Any], Any]] = [
                lambda own: client.with_options(**own),
                lambda own: client.upload_whiteboard_file("room01", document, **own),
                lambda own: client.call("room/create", **own),
                lambda own: client.get_active_room_info("room01", **own),
                lambda own: client.wait_until_active("room01", 5, **own),
                lambda own: client.upload_many([], **own),
            ]
            for call in calls:
                with pytest.raises(ConfigurationError, match="on_event"):
                    await call({"on_event": on_event})


@pytest.mark.parametrize("error", [RuntimeError("boom"), asyncio.CancelledError()])
def test_an_observer_that_raises_changes_nothing(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """The call goes on, and the log has the traceback."""

    def on_event(event: Event) -> None:
        raise error

    async def main() -> Any:
        async with client_of(Scripted(busy(), accepted()), on_event=on_event) as client:
            return await upload(client)

    assert run_in_virtual_time(main).size == len(PDF)
    warnings = [entry for entry in caplog.records if "observer raised" in entry.getMessage()]
    assert len(warnings) == 7
    assert all(entry.exc_info for entry in warnings)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_observer_may_end_the_program(error: type[BaseException]) -> None:
    """Ctrl-C inside an observer ends the program as anywhere else."""

    def on_event(event: Event) -> None:
        raise error

    async def main() -> None:
        async with client_of(Scripted(accepted()), on_event=on_event) as client:
            await client.call("room/create")

    with pytest.raises(error):
        asyncio.run(main())


# --- progress ------------------------------------------------------------------------------------

TEN_MIB = b"%PDF".ljust(10 * 1024**2, b"\n")


def test_progress_is_told_ten_times_a_second(run: Run) -> None:
    """Growing, never above the size, and the whole at the end of the document."""
    recorder = run(lambda: told(accepted(sending=10, replying=5), data=TEN_MIB, preflight=False))
    sent = [event.sent for event in recorder.of(BytesSent)]
    assert 20 <= len(sent) <= 102
    assert sent == sorted(set(sent))
    assert sent[-1] == len(TEN_MIB)
    assert {event.total for event in recorder.of(BytesSent)} == {len(TEN_MIB)}
    told_at = zip(recorder.times, recorder.events, strict=True)
    moments = [moment for moment, event in told_at if isinstance(event, BytesSent)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments[:-1])]
    assert min(gaps) >= 0.099


def test_a_slow_observer_gets_less_progress() -> None:
    """One that takes 0.9 s per event takes a tenth of the time, not all of it."""
    slept: list[float] = []

    async def main() -> float:
        loop: Any = asyncio.get_running_loop()

        def on_event(event: Event) -> None:
            if isinstance(event, BytesSent):  # as if it had blocked the loop
                slept.append(0.9)

        def clock() -> float:
            return float(real() + sum(slept))

        real = loop.time
        loop.time = clock
        transport = Scripted(accepted(sending=60))
        async with client_of(transport, on_event=on_event, preflight=False) as client:
            await upload(client, TEN_MIB)
        return clock()

    seconds = run_in_virtual_time(main, backend="asyncio")
    assert sum(slept) <= 0.2 * 60
    assert seconds <= 60 * 1.25


# --- the log -------------------------------------------------------------------------------------


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Any:
    """Collect what the library logs, at every level."""
    with caplog.at_level(logging.DEBUG, "meeting_async"):
        yield caplog


def test_the_log_needs_no_observer(log: Any) -> None:
    """What is logged of each event is in ``test_what_is_told.py``."""

    async def main() -> None:
        async with client_of(Scripted(lost())) as client:
            with pytest.raises(UploadOutcomeUnknown):
                await upload(client)

    asyncio.run(main())
    lines = [entry for entry in log.records if entry.name == "meeting_async"]
    levels = [f"{entry.levelname} {entry.action}" for entry in lines]
    assert levels == ["DEBUG AttemptStarted", "ERROR Finished"]


def test_unusual_rooms_are_warned_about_once(log: Any) -> None:
    """Known servers refuse ids with other characters; the interface allows them."""

    async def main() -> None:
        async with client_of(Scripted(then=lambda _: accepted())) as client:
            for room in ("an odd room", "an odd room", "room-01_x"):
                await upload(client, room=room)

    asyncio.run(main())
    warnings = [entry for entry in log.records if entry.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "an odd room" in warnings[0].getMessage()
