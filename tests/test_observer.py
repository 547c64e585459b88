"""What is told while a call runs: events in order, progress, the log; no observer can do harm."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from _fakes import (
    Act,
    EventRecorder,
    FakeTransport,
    Take,
    accepted,
    busy,
    failing,
    hanging,
    record,
    reply,
)
from meeting_async import (
    AttemptStarted,
    BytesSent,
    Event,
    Finished,
    LockPolicy,
    MeetingClient,
    Queued,
    RetryPolicy,
    RetryScheduled,
    UploadReceipt,
    WaitingForRoom,
)
from meeting_async._observer import Observer
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    MeetingError,
    ProcessingFailed,
    RequestRefused,
    RoomBusy,
    RoomNotActive,
    UploadOutcomeUnknown,
)

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7\nslides\n%%EOF\n"
TEN_MIB = b"%PDF" + bytes(10 * 1024**2 - 4)
InVirtualTime = Callable[..., Any]


def connected(transport: FakeTransport, **settings: Any) -> MeetingClient:
    """Make a client of the scripted transport that waits for milliseconds only."""
    quick = {
        "lock": LockPolicy(jitter=0, min_delay=0.001),
        "retry": RetryPolicy(initial_delay=0.001, max_delay=0.001),
    }
    return MeetingClient(
        "https://meet.test",
        api_key="key",
        api_secret="secret",
        transport=transport,
        **{**quick, **settings},
    )


async def upload(client: MeetingClient, data: bytes = PDF, **how: Any) -> UploadReceipt:
    """Upload to room01."""
    return await client.upload_whiteboard_file("room01", data, filename="deck.pdf", **how)


async def told(*script: Act, **settings: Any) -> EventRecorder:
    """Upload along a script, whatever comes of it, and return the events."""
    recorder = EventRecorder()
    how = {name: settings.pop(name) for name in ("max_wait", "deadline") if name in settings}
    async with connected(FakeTransport(*script), on_event=recorder, **settings) as client:
        try:
            await upload(client, **how)
        except MeetingError as error:
            assert recorder.of(Finished)[0].error is error  # noqa: PT017 - where there is one
    return recorder


# --- events in order -----------------------------------------------------------------------------

ONE = ["AttemptStarted", "BytesSent"]


@pytest.mark.parametrize(
    ("script", "kinds", "verdict", "attempts"),
    [
        ([accepted()], [*ONE, "Finished"], "accepted", 1),
        (
            [busy(retry_after="0"), accepted()],
            [*ONE, "WaitingForRoom", *ONE, "Finished"],
            "accepted",
            2,
        ),
        (
            [failing(ConnectFailed("refused"), take=Take.NOTHING), accepted()],
            ["AttemptStarted", "RetryScheduled", *ONE, "Finished"],
            "accepted",
            2,
        ),
        (
            [failing(ConnectionLost("reset"), take=Take.HEAD) for _ in range(3)],
            ["AttemptStarted", "RetryScheduled"] * 2 + ["AttemptStarted", "Finished"],
            "partial",
            3,
        ),
        ([failing(ConnectionLost("reset"))], [*ONE, "Finished"], "unknown", 1),
        ([reply(400, record("ROOM_NOT_ACTIVE"))], [*ONE, "Finished"], "refused", 1),
        ([reply(500, record("INTERNAL_SERVER_ERROR"))], [*ONE, "Finished"], "failed", 1),
        (
            [reply(429, retry_after="0")] * 5,
            [*ONE, "RetryScheduled"] * 4 + [*ONE, "Finished"],
            "throttled",
            5,
        ),
    ],
    ids=["accepted", "busy", "never sent", "partial", "unknown", "refused", "failed", "throttled"],
)
async def test_the_events_of_typical_courses(
    script: list[Act], kinds: list[str], verdict: str, attempts: int
) -> None:
    """Each attempt begins and reports; each wait is announced; the end comes once and last."""
    recorder = await told(*script)
    assert recorder.kinds == kinds
    (finished,) = recorder.of(Finished)
    assert (finished.verdict, finished.attempts) == (verdict, attempts)
    assert (finished.error is None) is (verdict == "accepted")
    assert len({event.call for event in recorder.events}) == 1
    assert [e.attempt for e in recorder.of(AttemptStarted)] == list(range(1, attempts + 1))


async def test_every_event_names_call_room_and_document() -> None:
    """The common fields are the same in all events of a call, and the number in no other's."""
    first, second = await told(busy(retry_after="0"), accepted()), await told(accepted())
    for event in first.events:
        assert event.operation == "room/uploadWhiteboardFile"
        assert (event.room_id, event.document) == ("room01", "deck.pdf")
    assert first.events[0].call != second.events[0].call


def test_a_wait_says_how_long(in_virtual_time: InVirtualTime) -> None:
    """``WaitingForRoom`` carries the delay, the time waited so far and the budget."""
    script = [busy(), busy(), busy(retry_after="7"), accepted()]
    recorder = in_virtual_time(partial(told, *script, lock=LockPolicy(jitter=0)))
    waits = [(e.attempt, e.retry_in, e.waited, e.max_wait) for e in recorder.of(WaitingForRoom)]
    assert waits == [(1, 0.5, 0, 330), (2, 2, 0.5, 330), (3, 7, 2.5, 330)]
    assert recorder.times[-1] == 9.5
    assert recorder.of(Finished)[0].seconds == 9.5


async def test_a_retry_says_why() -> None:
    """``RetryScheduled`` carries verdict, what was seen, and the delay."""
    recorder = await told(
        reply(503, record("X", "come back later"), retry_after="0"),
        failing(ConnectFailed("refused"), take=Take.NOTHING),
        accepted(),
    )
    throttled, never_sent = recorder.of(RetryScheduled)
    assert (throttled.attempt, throttled.retry_in, throttled.verdict) == (1, 0, "throttled")
    assert "503" in throttled.reason
    assert "come back later" in throttled.reason
    assert (never_sent.attempt, never_sent.verdict) == (2, "never sent")
    assert "refused" in never_sent.reason
    assert 0 < never_sent.retry_in <= 0.001


async def test_a_queued_upload_says_so_first() -> None:
    """``Queued`` comes before anything else, with 0 behind a sibling."""
    transport, recorder = FakeTransport(hanging(), accepted()), EventRecorder()
    async with connected(transport) as client, anyio.create_task_group() as group:
        group.start_soon(upload, client)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(upload, client.with_options(on_event=recorder))
        await anyio.wait_all_tasks_blocked()
        assert recorder.kinds == ["Queued"]
        assert recorder.of(Queued)[0].shut_for == 0
        group.cancel_scope.cancel()
    assert recorder.kinds == ["Queued", "Finished"]
    finished = recorder.of(Finished)[0]
    assert (finished.verdict, finished.attempts) == ("cancelled", 0)


async def test_an_upload_that_does_not_queue_says_so() -> None:
    """``max_wait=0`` behind a sibling: the only event is the end."""
    transport, recorder = FakeTransport(hanging()), EventRecorder()
    async with connected(transport) as client, anyio.create_task_group() as group:
        group.start_soon(upload, client)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5), pytest.raises(RoomBusy):
            await upload(client.with_options(on_event=recorder), max_wait=0)
        group.cancel_scope.cancel()
    assert recorder.kinds == ["Finished"]
    finished = recorder.of(Finished)[0]
    assert (finished.verdict, finished.attempts) == ("busy", 0)


async def test_the_events_of_a_json_call() -> None:
    """A JSON call has no document and no progress; its room is named where there is one."""
    recorder = EventRecorder()
    async with connected(FakeTransport(accepted(), accepted()), on_event=recorder) as client:
        await client.get_active_room_info("room01")
        await client.call("room/list")
    assert recorder.kinds == ["AttemptStarted", "Finished"] * 2
    assert [event.room_id for event in recorder.events] == ["room01"] * 2 + [None] * 2
    assert {event.document for event in recorder.events} == {None}


async def test_what_is_refused_beforehand_tells_nothing() -> None:
    """No call begins with an argument that cannot be used."""
    recorder, transport = EventRecorder(), FakeTransport()
    async with connected(transport, on_event=recorder) as client:
        with pytest.raises(ValueError, match="room_id"):
            await client.upload_whiteboard_file("", PDF, filename="deck.pdf")
    assert not recorder.events


# --- progress ------------------------------------------------------------------------------------


def progress(recorder: EventRecorder) -> list[tuple[float, int, int, int]]:
    """List when, attempt, sent and total of each progress event."""
    return [
        (time, event.attempt, event.sent, event.total)
        for time, event in zip(recorder.times, recorder.events, strict=True)
        if isinstance(event, BytesSent)
    ]


def test_progress_is_throttled(in_virtual_time: InVirtualTime) -> None:
    """Ten MiB in two seconds: about ten events a second, growing, and the last one is the total."""
    recorder = EventRecorder()

    async def main() -> None:
        async with connected(FakeTransport(accepted(sending=2)), on_event=recorder) as client:
            await upload(client, TEN_MIB)

    in_virtual_time(main)
    seen = progress(recorder)
    times, sent = [time for time, *_ in seen], [event[2] for event in seen]
    assert {total for *_, total in seen} == {len(TEN_MIB)}
    assert sent == sorted(set(sent))
    assert sent[-1] == len(TEN_MIB)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert all(gap >= 0.1 - 1e-9 for gap in gaps[:-1])
    assert max(gaps) < 0.2
    assert 10 < len(seen) <= 21


def test_progress_of_repeated_attempts_never_exceeds_the_total(
    in_virtual_time: InVirtualTime,
) -> None:
    """Each attempt counts from the start of the document."""
    recorder, half = EventRecorder(), len(TEN_MIB) // 2
    script = [failing(ConnectionLost("reset"), take=half, sending=4) for _ in range(2)]

    async def main() -> None:
        transport = FakeTransport(*script, accepted(sending=4))
        async with connected(transport, on_event=recorder) as client:
            await upload(client, TEN_MIB)

    in_virtual_time(main)
    by_attempt = {
        number: [sent for _, attempt, sent, _ in progress(recorder) if attempt == number]
        for number in (1, 2, 3)
    }
    assert [sent == sorted(sent) for sent in by_attempt.values()] == [True] * 3
    assert max(by_attempt[1]) <= half + 256 * 1024
    assert by_attempt[2][0] < half
    assert by_attempt[3][-1] == len(TEN_MIB)
    assert max(event.sent for event in recorder.of(BytesSent)) == len(TEN_MIB)


def test_the_throttle_by_itself(in_virtual_time: InVirtualTime) -> None:
    """Due at once, then every 0.1 s, and at the end in any case; never without a callback."""

    async def main() -> list[bool]:
        observer = Observer(lambda _: None)
        due = [observer.wants_progress(done=False)]
        for seconds in (0.05, 0.05, 0.099, 0.001):
            await anyio.sleep(seconds)
            due.append(observer.wants_progress(done=False))
        due.append(observer.wants_progress(done=True))
        due.append(Observer().wants_progress(done=True))
        return due

    assert in_virtual_time(main) == [True, False, True, False, True, True, False]


# --- observers that misbehave --------------------------------------------------------------------

Misbehaving = Callable[[Event], Awaitable[None] | None]


def raising(error: BaseException) -> Misbehaving:
    """Raise on every event."""

    def on_event(_: Event) -> None:
        raise error

    return on_event


def raising_later(error: BaseException) -> Misbehaving:
    """Raise on every event, from a coroutine that has waited."""

    async def on_event(_: Event) -> None:
        await anyio.lowlevel.checkpoint()
        raise error

    return on_event


async def gives_up_itself(_: Event) -> None:
    """Cancel a scope of its own."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anyio.sleep_forever()


def returns_junk(_: Event) -> Any:
    """Return something that is no awaitable."""
    return object()


ERRORS = [
    RuntimeError("boom"),
    TimeoutError("boom"),
    RequestRefused("x", None, 400, None, "boom"),
    ExceptionGroup("boom", [ValueError("boom")]),
    StopIteration("boom"),
]
COURSES: list[tuple[list[Act], type[Exception] | None]] = [
    ([busy(retry_after="0"), accepted()], None),
    ([reply(400, record("ROOM_NOT_ACTIVE"))], RoomNotActive),
    ([failing(ConnectionLost("reset"))], UploadOutcomeUnknown),
]


@pytest.mark.parametrize(
    "on_event",
    [
        *[raising(error) for error in ERRORS],
        *[raising_later(error) for error in ERRORS[:4]],
        gives_up_itself,
        returns_junk,
    ],
)
@pytest.mark.parametrize(("script", "error"), COURSES, ids=["accepted", "refused", "unknown"])
async def test_no_observer_changes_the_outcome(
    on_event: Misbehaving, script: list[Act], error: type[Exception] | None
) -> None:
    """Whatever an observer raises or returns: the same attempts, the same result or error."""
    transport = FakeTransport(*script)
    async with connected(transport, on_event=on_event) as client:
        if error is None:
            assert (await upload(client)).status_code == "SUCCESS"
        else:
            with pytest.raises(error) as caught:
                await upload(client)
            assert "boom" not in str(caught.value)
    assert len(transport.exchanges) == len(script)


@pytest.mark.parametrize("make", [raising, raising_later], ids=["sync", "async"])
@pytest.mark.parametrize("script", [[accepted()], [busy(retry_after="0"), accepted()]])
def test_a_cancelled_error_of_an_observer_is_its_own(
    make: Callable[[BaseException], Misbehaving], script: list[Act]
) -> None:
    """A ``CancelledError`` that nobody asked for does not end the upload."""

    async def main() -> str:
        on_event = make(asyncio.CancelledError("stray"))
        async with connected(FakeTransport(*script), on_event=on_event) as client:
            return (await upload(client)).status_code

    assert asyncio.run(main()) == "SUCCESS"


def test_an_observer_that_awaits_a_cancelled_task() -> None:
    """The usual way to a stray ``CancelledError``: awaiting a task that somebody cancelled."""

    async def on_event(_: Event) -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    async def main() -> str:
        async with connected(FakeTransport(accepted()), on_event=on_event) as client:
            return (await upload(client)).status_code

    assert asyncio.run(main()) == "SUCCESS"


def test_a_slow_observer_is_cut_off(in_virtual_time: InVirtualTime) -> None:
    """An observer that never returns costs one second per event and nothing else."""
    cut = []

    async def on_event(event: Event) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cut.append(type(event).__name__)

    async def main() -> tuple[str, float]:
        async with connected(FakeTransport(accepted()), on_event=on_event) as client:
            receipt = await upload(client)
        return receipt.status_code, anyio.current_time()

    assert in_virtual_time(main) == ("SUCCESS", 3)
    assert cut == [*ONE, "Finished"]


def test_an_observer_that_is_not_that_slow_is_awaited(in_virtual_time: InVirtualTime) -> None:
    """Events of an asynchronous observer come one after another, in order, to their end."""
    ended = []

    async def on_event(event: Event) -> None:
        await anyio.sleep(0.9)
        ended.append(type(event).__name__)

    async def main() -> None:
        transport = FakeTransport(busy(), accepted())
        async with connected(transport, on_event=on_event) as client:
            await upload(client)

    in_virtual_time(main)
    assert ended == [*ONE, "WaitingForRoom", *ONE, "Finished"]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_observer_may_stop_the_upload(asynchronous: bool) -> None:
    """Cancelling the scope around the upload is how a caller stops it, from an observer as well."""
    transport, kinds = FakeTransport(hanging(), accepted()), []
    with anyio.CancelScope() as scope:

        def stop(event: Event) -> None:
            kinds.append(event)
            if isinstance(event, AttemptStarted):
                scope.cancel()

        async def stop_later(event: Event) -> None:
            stop(event)

        on_event: Misbehaving = stop_later if asynchronous else stop
        async with connected(transport, on_event=on_event) as client:
            await upload(client)
    assert scope.cancelled_caught
    finished = kinds[-1]
    assert isinstance(finished, Finished)
    assert finished.verdict == "cancelled"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_the_end_of_the_program_is_no_misbehaviour(error: type[BaseException]) -> None:
    """Ctrl-C inside an observer ends the program as anywhere else."""
    event = Finished(
        call=1,
        operation="x",
        room_id=None,
        document=None,
        verdict="accepted",
        attempts=1,
        seconds=0,
    )
    with pytest.raises(error):
        await Observer(raising(error())).tell(event)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_the_end_of_the_program_comes_without_a_group(
    in_virtual_time: InVirtualTime, error: type[BaseException]
) -> None:
    """From an asynchronous observer as well: no exception group reaches the user."""

    async def main() -> None:
        async with connected(FakeTransport(accepted()), on_event=raising_later(error())) as client:
            await upload(client)

    with pytest.raises(error):
        in_virtual_time(main)


def test_a_cancelled_call_still_tells_a_slow_observer(in_virtual_time: InVirtualTime) -> None:
    """``Finished`` reaches an asynchronous observer of a call that was cancelled, or cut off."""
    ended = []

    async def on_event(event: Event) -> None:
        await anyio.sleep(0.5)
        ended.append(event)

    async def main() -> float:
        async with connected(FakeTransport(hanging()), on_event=on_event) as client:
            with anyio.move_on_after(10):
                await upload(client)
        return anyio.current_time()

    assert in_virtual_time(main) == 10.5
    assert isinstance(ended[-1], Finished)
    assert ended[-1].verdict == "unknown"


def test_a_cancellation_during_an_event_is_obeyed(in_virtual_time: InVirtualTime) -> None:
    """A caller who gives up while an observer dawdles is not kept."""

    async def on_event(event: Event) -> None:
        await anyio.sleep(0.6 if isinstance(event, AttemptStarted) else 0)

    async def main() -> tuple[bool, float, int]:
        transport = FakeTransport(accepted())
        async with connected(transport, on_event=on_event) as client:
            with anyio.move_on_after(0.5) as scope:
                await upload(client)
        return scope.cancelled_caught, anyio.current_time(), len(transport.exchanges)

    assert in_virtual_time(main) == (True, 0.5, 0)


# --- the log -------------------------------------------------------------------------------------


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Collect what the library logs, at every level."""
    with caplog.at_level(logging.DEBUG, "meeting_async"):
        yield caplog


def lines(log: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """List level and action of what the library logged."""
    return [
        (entry.levelname, getattr(entry, "action", "none"))
        for entry in log.records
        if entry.name == "meeting_async"
    ]


def test_the_log_tells_the_course(
    in_virtual_time: InVirtualTime, log: pytest.LogCaptureFixture
) -> None:
    """Waits are INFO, retries WARNING, the rest DEBUG; each record has its action."""
    script = [busy(), failing(ConnectFailed("refused"), take=Take.NOTHING), accepted()]
    recorder = in_virtual_time(partial(told, *script, lock=LockPolicy(jitter=0)))
    assert lines(log) == [
        ("DEBUG", "AttemptStarted"),
        ("INFO", "WaitingForRoom"),
        ("DEBUG", "AttemptStarted"),
        ("WARNING", "RetryScheduled"),
        ("DEBUG", "AttemptStarted"),
        ("DEBUG", "Finished"),
    ]
    number = recorder.events[0].call
    messages = [entry.getMessage() for entry in log.records]
    assert all(f"call {number}:" in message for message in messages)
    assert messages[1].endswith("room 'room01' is busy, next attempt in 0.5 s")
    assert "never sent" in messages[3]
    assert "accepted after 3 attempts" in messages[-1]


async def test_the_log_needs_no_observer(log: pytest.LogCaptureFixture) -> None:
    """Without ``on_event`` the log is the same."""
    async with connected(FakeTransport(reply(400, record("ROOM_NOT_ACTIVE")))) as client:
        with pytest.raises(RoomNotActive):
            await upload(client)
    assert lines(log) == [("DEBUG", "AttemptStarted"), ("DEBUG", "Finished")]
    assert "refused after 1 attempts" in log.messages[-1]


def test_the_log_tells_who_queues(
    in_virtual_time: InVirtualTime, log: pytest.LogCaptureFixture
) -> None:
    """An upload behind a sibling says so at DEBUG."""

    async def main() -> None:
        transport = FakeTransport(accepted(replying=1), accepted())
        async with connected(transport) as client, anyio.create_task_group() as group:
            group.start_soon(upload, client)
            await anyio.sleep(0.5)
            group.start_soon(upload, client)

    in_virtual_time(main)
    assert lines(log)[1] == ("DEBUG", "Queued")
    assert "room01" in log.messages[1]


async def test_a_misbehaving_observer_is_logged(log: pytest.LogCaptureFixture) -> None:
    """Once per event, as a warning with the traceback."""
    transport = FakeTransport(accepted())
    async with connected(transport, on_event=raising(RuntimeError("boom"))) as client:
        await upload(client)
    warnings = [entry for entry in log.records if entry.levelname == "WARNING"]
    assert len(warnings) == 3
    assert {entry.name for entry in warnings} == {"meeting_async"}
    assert "boom" in (log.text)
    assert all(entry.exc_info for entry in warnings)


def test_an_observer_that_was_cut_off_is_logged(
    in_virtual_time: InVirtualTime, log: pytest.LogCaptureFixture
) -> None:
    """The warning says after how long."""

    async def on_event(_: Event) -> None:
        await anyio.sleep(2)

    async def main() -> None:
        async with connected(FakeTransport(accepted()), on_event=on_event) as client:
            await client.get_active_room_info("room01")

    in_virtual_time(main)
    warnings = [entry.getMessage() for entry in log.records if entry.levelname == "WARNING"]
    assert len(warnings) == 2
    assert all("1 s" in message for message in warnings)


async def test_every_record_has_an_action(log: pytest.LogCaptureFixture) -> None:
    """Log processors can tell the messages apart without reading them."""
    transport = FakeTransport(busy(retry_after="0"), accepted(), accepted())
    async with connected(transport, on_event=raising(RuntimeError("boom"))) as client:
        await upload(client)
        await client.upload_whiteboard_file("an unusual room", PDF, filename="deck.pdf")
    assert [entry.getMessage() for entry in log.records if not hasattr(entry, "action")] == []


async def test_the_log_below_its_level_costs_no_record(caplog: pytest.LogCaptureFixture) -> None:
    """At WARNING an accepted upload is silent."""
    with caplog.at_level(logging.WARNING, "meeting_async"):
        await told(busy(), accepted())
    assert not caplog.records


@pytest.mark.parametrize(
    ("script", "how", "error"),
    [
        ([busy()], {"max_wait": 0}, RoomBusy),
        ([reply(500, record("INTERNAL_SERVER_ERROR"))], {}, ProcessingFailed),
    ],
)
async def test_finished_carries_what_the_caller_sees(
    script: list[Act], how: dict[str, Any], error: type[Exception]
) -> None:
    """The error in the last event is the very object that is raised, attempts included."""
    recorder = await told(*script, **how)
    (finished,) = recorder.of(Finished)
    assert isinstance(finished.error, error)
    assert [attempt.number for attempt in finished.error.attempts] == [1]
    assert finished.verdict == finished.error.attempts[-1].verdict
