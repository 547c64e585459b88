"""Deadline and cancellation, striking at each point of a course."""

from collections.abc import Sequence
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from _courses import (
    BOTH,
    MIB,
    PDF,
    InVirtualTime,
    connected,
    cut_off,
    deliver,
    lost,
    refused,
    virtually,
)
from _fakes import (
    Act,
    EventRecorder,
    FakeTransport,
    Take,
    accepted,
    busy,
    hanging,
    reply,
)
from meeting_async import (
    AttemptStarted,
    BytesSent,
    Event,
    Finished,
    MeetingClient,
    RetryScheduled,
    SignedHeaders,
    WaitingForRoom,
)
from meeting_async.errors import (
    DeadlineExceeded,
    MeetingError,
    RoomBusy,
    UploadOutcomeUnknown,
)

pytestmark = pytest.mark.anyio

# --- deadline ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "phase"),
    [
        ([hanging(take=Take.NOTHING)], "sending"),
        ([accepted(connecting=20)], "sending"),
        ([hanging(take=Take.HEAD)], "sending"),
        ([accepted(sending=20)], "sending"),
        ([cut_off(replying=20)], "sending"),
        ([busy(retry_after="50")], "lock"),
        ([refused(), reply(429, b"", retry_after="50")], "try again"),
    ],
    ids=["connecting", "slow connect", "body", "slow body", "edge", "lock wait", "backoff"],
)
@pytest.mark.parametrize("mode", BOTH)
def test_the_deadline_before_the_boundary(script: Sequence[Act], phase: str, mode: str) -> None:
    """It strikes to the second, says what was going on, and that nothing reached the room."""
    course = virtually(*script, document=MIB, deadline=10, delivery=mode)
    error = course.error
    assert type(error) is DeadlineExceeded
    assert isinstance(error, TimeoutError)
    assert (error.operation, error.seconds) == ("room/uploadWhiteboardFile", 10)
    assert phase in error.phase
    assert course.seconds == 10
    assert len(error.attempts) == course.sends
    assert course.verdict != "unknown"
    assert course.transport.running == 0


def test_the_deadline_in_the_queue(in_virtual_time: InVirtualTime) -> None:
    """Waiting behind a sibling counts; nothing was sent."""

    async def main() -> None:
        transport, recorder = FakeTransport(accepted(replying=60)), EventRecorder()
        async with connected(transport) as client, anyio.create_task_group() as group:
            job = partial(client.upload_whiteboard_file, "room01", PDF, filename="deck.pdf")
            group.start_soon(job)
            await anyio.sleep(1)
            with pytest.raises(DeadlineExceeded, match="its turn") as caught:
                await client.with_options(on_event=recorder).upload_whiteboard_file(
                    "room01", PDF, filename="second.pdf", deadline=10
                )
            assert anyio.current_time() == 11
            assert caught.value.attempts == ()
        assert recorder.kinds == ["Queued", "Finished"]
        assert len(transport.exchanges) == 1

    in_virtual_time(main)


def test_the_deadline_in_the_signer() -> None:
    """A signer that fetches its key counts, too."""

    class SlowSigner:
        async def sign(self, _: bytes, /) -> SignedHeaders:
            await anyio.sleep(60)
            raise AssertionError("unreachable")

    course = virtually(signer=SlowSigner(), deadline=10)
    assert type(course.error) is DeadlineExceeded
    assert (course.seconds, course.sends) == (10, 0)


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize(
    "script",
    [[hanging()], [accepted(replying=20)], [busy(retry_after="5"), accepted(replying=20)]],
)
def test_the_deadline_after_the_boundary(script: Sequence[Act], mode: str) -> None:
    """The document is out: the answer is unknown, not "timed out"."""
    course = virtually(*script, deadline=10, delivery=mode)
    error = course.error
    assert type(error) is UploadOutcomeUnknown
    assert error.reason.endswith("deadline of 10 s struck while waiting for the reply")
    assert error.lock_free_in == 300
    assert course.seconds == 10
    assert (course.verdicts[-1], course.verdict) == ("unknown", "unknown")


def test_the_deadline_while_waiting_out_our_own_lock() -> None:
    """At least once: struck between the attempts, the first one is still unknown."""
    course = virtually(lost(), deadline=100, delivery="at_least_once")
    assert type(course.error) is UploadOutcomeUnknown
    assert "deadline" in course.error.reason
    assert course.error.lock_free_in == 200
    assert (course.sends, course.seconds, course.verdict) == (1, 100, "unknown")


def test_the_deadline_is_over_everything() -> None:
    """Attempts, backoffs and lock waits together, not each."""
    course = virtually(refused(), then=lambda _: busy(retry_after="10"), deadline=25)
    assert type(course.error) is DeadlineExceeded
    assert (course.seconds, course.sends) == (25, 4)


def test_a_deadline_that_does_not_strike() -> None:
    """An answer that comes in time is the answer."""
    assert virtually(accepted(replying=9.99), deadline=10).accepted
    assert type(virtually(busy(), max_wait=0, deadline=10).error) is RoomBusy
    assert virtually(accepted(replying=1000), deadline=float("inf")).accepted


async def test_a_deadline_on_the_real_clock() -> None:
    """Both event loops: the deadline strikes in the body, and after it."""
    before = await deliver(hanging(take=Take.HEAD), deadline=0.05)
    assert type(before.error) is DeadlineExceeded
    after = await deliver(hanging(), deadline=0.05)
    assert type(after.error) is UploadOutcomeUnknown


# --- cancellation --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "moment", "verdict", "shut"),
    [
        ([hanging(take=Take.NOTHING)], AttemptStarted, "cancelled", False),
        ([hanging(take=Take.HEAD)], AttemptStarted, "cancelled", False),
        ([hanging(take=Take.DOCUMENT)], AttemptStarted, "cancelled", False),
        ([busy()], WaitingForRoom, "cancelled", False),
        ([refused()], RetryScheduled, "cancelled", False),
        ([hanging()], BytesSent, "unknown", True),
        ([lost()], RetryScheduled, "unknown", True),
    ],
    ids=["connecting", "head", "edge", "lock wait", "backoff", "reply", "window"],
)
async def test_cancellation_passes_untouched(
    script: Sequence[Act], moment: type[Event], verdict: str, shut: bool
) -> None:
    """Never swallowed, never repeated; the room stays shut only if the document may be in it."""
    transport, recorder = FakeTransport(*script, then=lambda _: accepted()), EventRecorder()
    raised: list[BaseException] = []

    async def run(client: MeetingClient) -> None:
        try:
            await client.upload_whiteboard_file("room01", PDF, filename="deck.pdf")
        except BaseException as error:
            raised.append(error)
            raise

    mode = "at_least_once" if script[0].take is Take.EVERYTHING else "at_most_once"
    async with connected(transport, on_event=recorder, delivery=mode) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(run, client)
            await recorder.until(moment)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert isinstance(raised[0], anyio.get_cancelled_exc_class())
        assert len(raised) == len(transport.exchanges) == 1
        assert transport.running == 0
        assert recorder.kinds[-1] == "Finished"
        finished = recorder.of(Finished)[0]
        assert (finished.verdict, finished.error) == (verdict, None)
        if shut:
            with pytest.raises(RoomBusy):
                await client.upload_whiteboard_file("room01", PDF, filename="x.pdf", max_wait=0)
        else:
            await client.upload_whiteboard_file("room01", PDF, filename="x.pdf", max_wait=0)


def test_a_cancelled_task_of_asyncio_raises_cancelled_error() -> None:
    """``Task.cancel`` reaches the caller as ``CancelledError`` with its message."""
    import asyncio

    async def main() -> None:
        transport = FakeTransport(hanging())
        async with connected(transport) as client:
            job = client.upload_whiteboard_file("room01", PDF, filename="deck.pdf")
            task = asyncio.ensure_future(job)
            await asyncio.sleep(0.02)
            task.cancel("because")
            with pytest.raises(asyncio.CancelledError, match="because"):
                await task
            assert task.cancelled()

    asyncio.run(main())


def test_a_timeout_of_the_caller(in_virtual_time: InVirtualTime) -> None:
    """``fail_after`` around an upload gives the caller's own ``TimeoutError``, not one of ours."""

    async def main() -> None:
        async with connected(FakeTransport(hanging())) as client:
            with pytest.raises(TimeoutError) as caught, anyio.fail_after(5):
                await client.upload_whiteboard_file("room01", PDF, filename="deck.pdf")
            assert not isinstance(caught.value, MeetingError)

    in_virtual_time(main)
