"""The retry loop end to end: every verdict in every mode, what is sent again, what is told.

More of it: ``test_delivery_waiting``, ``…_endings``, ``…_attempts`` and ``…_calls``.
"""

import copy
import pickle
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from _courses import (
    BOTH,
    MIB,
    OWN_500,
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
    failing,
    hanging,
    record,
    reply,
)
from meeting_async import (
    Event,
    Finished,
    LockPolicy,
    Queued,
    RetryPolicy,
    RetryScheduled,
    UploadReceipt,
)
from meeting_async._pace import LARGEST_CHUNK
from meeting_async.errors import (
    AuthenticationFailed,
    ConnectFailed,
    ConnectionLost,
    DocumentChanged,
    DocumentRefused,
    MeetingError,
    ProcessingFailed,
    RequestRefused,
    RoomBusy,
    RoomNotActive,
    Throttled,
    TransferTimeout,
    TransportError,
    UploadInterrupted,
    UploadOutcomeUnknown,
)

pytestmark = pytest.mark.anyio

# --- each verdict in each mode -------------------------------------------------------------------


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize(
    ("act", "error", "status"),
    [
        *[(reply(status, b"<h1>"), RequestRefused, status) for status in (300, 301, 302, 307, 308)],
        (reply(304), RequestRefused, 304),
        *[(reply(status, b"<h1>"), RequestRefused, status) for status in (400, 403, 404, 405, 422)],
        (reply(400, record("INVALID_PARAMETERS")), RequestRefused, 400),
        (reply(400, record("ROOM_NOT_ACTIVE")), RoomNotActive, 400),
        (reply(401, record("INVALID_API_KEY")), AuthenticationFailed, 401),
        (reply(413, b"<h1>"), DocumentRefused, 413),
        (reply(200, record("ROOM_NOT_ACTIVE")), RoomNotActive, 200),
        (reply(200, {"status": False}), RequestRefused, 200),
        (reply(401, b"", take=Take.HEAD), AuthenticationFailed, 401),
        (reply(413, b"", take=Take.DOCUMENT), DocumentRefused, 413),
    ],
)
def test_refused_is_final(mode: str, act: Act, error: type[Exception], status: int) -> None:
    """Other 4xx, any 3xx and ``status: false`` end an upload at once; nothing is sent again."""
    course = virtually(act, delivery=mode)
    assert (course.error.status, course.error.room_id) == (status, "room01")
    assert type(course.error) is error
    assert (course.sends, course.seconds, course.verdict) == (1, 0, "refused")
    assert course.verdicts == ["refused"]


@pytest.mark.parametrize("mode", BOTH)
def test_failed_is_final(mode: str) -> None:
    """A 5xx with the server's own record is its word: the conversion failed."""
    for status in (500, 502, 503):
        course = virtually(reply(status, record("X", "conversion failed")), delivery=mode)
        assert type(course.error) is ProcessingFailed
        assert (course.error.status, course.error.msg) == (status, "conversion failed")
        assert (course.sends, course.verdicts, course.verdict) == (1, ["failed"], "failed")


@pytest.mark.parametrize("mode", BOTH)
def test_accepted_is_the_end(mode: str) -> None:
    """200 with ``status: true`` makes a receipt that tells everything."""
    course = virtually(reply(200, record("SUCCESS", "taken", extra=1), replying=5), delivery=mode)
    receipt = course.outcome
    assert isinstance(receipt, UploadReceipt)
    assert (receipt.room_id, receipt.document, receipt.size) == ("room01", "deck.pdf", len(PDF))
    assert (receipt.msg, receipt.status_code, receipt.seconds) == ("taken", "SUCCESS", 5)
    assert receipt.raw["extra"] == 1
    (attempt,) = receipt.attempts
    assert (attempt.number, attempt.started, attempt.seconds) == (1, 0, 5)
    assert (attempt.verdict, attempt.status, attempt.bytes_sent) == ("accepted", 200, len(PDF))
    assert course.verdict == "accepted"
    assert course.transport.exchanges[0].document == PDF


UNKNOWN = [
    lost(),
    failing(TransferTimeout("silence")),
    failing(TransportError("anything")),
    reply(200, b"<h1>welcome</h1>"),
    reply(200, b""),
    reply(200, b"null"),
    reply(200, []),
    reply(200, {}),
    reply(200, {"status": "true", "msg": "", "status_code": "SUCCESS"}),
    reply(200, {"status": 1}),
    reply(200, b'{"status": true, "status": true}'),
    reply(200, b'{"status": tru'),
    reply(201, record("SUCCESS")),
    reply(204),
    reply(408, b"<h1>"),
    reply(408, record("X")),
    reply(500, b"<h1>"),
    reply(500, {"status": False, "msg": "no code"}),
    reply(502, b"<h1>"),
    reply(503, b"<h1>"),
    reply(503, b"<h1>", retry_after="soon"),
    reply(504, b"<h1>"),
]


@pytest.mark.parametrize("act", UNKNOWN)
def test_unknown_at_most_once_is_never_sent_again(act: Act) -> None:
    """After the boundary, whatever is no valid answer ends as ``UploadOutcomeUnknown``."""
    course = virtually(act)
    error = course.error
    assert type(error) is UploadOutcomeUnknown
    assert not isinstance(error, OSError)
    assert (error.room_id, error.document) == ("room01", "deck.pdf")
    assert (error.size, error.bytes_sent, error.lock_free_in) == (len(PDF), len(PDF), 300)
    assert error.__cause__ is (act.result if isinstance(act.result, Exception) else None)
    assert error.reason
    assert (course.sends, course.seconds) == (1, 0)
    assert (course.verdicts, course.verdict) == (["unknown"], "unknown")


@pytest.mark.parametrize("act", UNKNOWN)
def test_unknown_at_least_once_is_sent_again_after_the_window(act: Act) -> None:
    """Exactly one more send, when the lock that the first one may hold has ended."""
    course = virtually(act, accepted(), delivery="at_least_once")
    assert course.accepted
    assert course.began == [0, 300]
    assert course.verdicts == ["unknown", "accepted"]
    (retry,) = course.recorder.of(RetryScheduled)
    assert (retry.verdict, retry.retry_in) == ("unknown", 300)


def test_unknown_at_least_once_ends_with_the_attempts() -> None:
    """It is not repeated for ever, and the window is the policy's."""
    course = virtually(
        then=lambda _: lost(),
        delivery="at_least_once",
        retry=RetryPolicy(max_attempts=3),
        lock=LockPolicy(window=60),
    )
    assert type(course.error) is UploadOutcomeUnknown
    assert course.began == [0, 60, 120]
    assert course.verdicts == ["unknown"] * 3


@pytest.mark.parametrize("mode", BOTH)
def test_never_sent_backs_off(mode: str) -> None:
    """Five attempts with doubling delays between half and all of their ceiling."""
    script = [refused() for _ in range(5)]
    course = virtually(*script, delivery=mode)
    assert course.sends == 5
    for wait, ceiling in zip(course.waits, [0.5, 1, 2, 4], strict=True):
        assert ceiling / 2 <= wait <= ceiling
    assert course.verdicts == ["never sent"] * 5
    assert [attempt.bytes_sent for attempt in course.error.attempts] == [0] * 5
    assert course.verdict == "never sent"
    assert course.error is script[-1].result


def test_backoff_is_spread_and_capped() -> None:
    """Two uploads do not march in step, and no delay exceeds the policy's."""
    policy = RetryPolicy(max_attempts=9, initial_delay=1, max_delay=3)
    first = virtually(then=lambda _: refused(), retry=policy)
    second = virtually(then=lambda _: refused(), retry=policy)
    assert len(first.waits) == 8
    assert max(first.waits) <= 3
    assert all(1.5 <= wait <= 3 for wait in first.waits[2:])
    assert first.waits != second.waits


@pytest.mark.parametrize("take", [Take.NOTHING, Take.HEAD, Take.DOCUMENT])
def test_max_attempts_of_one_repeats_nothing(take: Take) -> None:
    """``RetryPolicy(max_attempts=1)`` is how to switch repetitions off."""
    course = virtually(cut_off(take), retry=RetryPolicy(max_attempts=1))
    assert isinstance(course.error, TransportError)
    assert course.sends == 1


async def test_a_failure_before_the_first_byte_was_never_sent() -> None:
    """Any transport error counts as never sent while no byte of the body was taken."""
    quick = RetryPolicy(initial_delay=0.001)
    script = [failing(TransferTimeout("slow"), take=Take.NOTHING) for _ in range(4)]
    course = await deliver(*script, accepted(), retry=quick)
    assert course.verdicts == ["never sent"] * 4 + ["accepted"]


@pytest.mark.parametrize("take", [Take.HEAD, 200_000, 600_000, Take.DOCUMENT])
def test_partial_at_most_once_is_sent_three_times(take: Take | int) -> None:
    """Cut off before the boundary: again, twice in a row at most, then ``UploadInterrupted``."""
    script = [cut_off(take) for _ in range(3)]
    course = virtually(*script, document=MIB)
    error = course.error
    assert type(error) is UploadInterrupted
    assert isinstance(error, ConnectionError)
    assert error.__cause__ is script[-1].result
    assert (error.room_id, error.document, error.reason) == ("room01", "deck.pdf", "reset")
    assert course.sends == 3
    assert (course.verdicts, course.verdict) == (["partial"] * 3, "partial")
    handed = [len(exchange.document) for exchange in course.transport.exchanges]
    assert error.bytes_sent == error.attempts[-1].bytes_sent
    assert handed[-1] - LARGEST_CHUNK <= error.bytes_sent <= handed[-1]


def test_partial_at_least_once_is_sent_until_the_attempts_are_spent() -> None:
    """The other mode goes on to ``max_attempts``."""
    course = virtually(*[cut_off() for _ in range(5)], delivery="at_least_once")
    assert type(course.error) is UploadInterrupted
    assert course.sends == 5


@pytest.mark.parametrize("between", [busy(), refused(), reply(429, retry_after="0")])
def test_only_interruptions_in_a_row_count(between: Act) -> None:
    """A 409, or anything else between two interruptions, begins a new row."""
    script = [cut_off(), cut_off(), between, cut_off(), accepted()]
    course = virtually(*script, retry=RetryPolicy(max_attempts=9))
    assert course.accepted
    assert course.sends == 5
    again = virtually(
        *[cut_off(), cut_off(), between, cut_off(), cut_off(), cut_off()],
        retry=RetryPolicy(max_attempts=9),
    )
    assert type(again.error) is UploadInterrupted
    assert again.sends == 6


def test_max_interruptions_is_the_policys() -> None:
    """0 never sends again what was begun."""
    course = virtually(cut_off(), retry=RetryPolicy(max_interruptions=0))
    assert type(course.error) is UploadInterrupted
    assert course.sends == 1


@pytest.mark.parametrize(
    "act",
    [
        reply(500, b"<h1>", take=Take.HEAD),
        reply(502, b"<h1>", take=Take.DOCUMENT),
        reply(408, b"<h1>", take=Take.HEAD),
        reply(200, b"<h1>", take=Take.DOCUMENT),
        reply(204, take=Take.HEAD),
    ],
    ids=["500", "502", "408", "200 foreign", "204"],
)
def test_an_early_reply_that_refuses_nothing_is_partial(act: Act) -> None:
    """Before the boundary no server can have parsed the form, whatever it says."""
    course = virtually(act, accepted())
    assert course.accepted
    assert course.verdicts == ["partial", "accepted"]


@pytest.mark.parametrize("take", [Take.HEAD, Take.DOCUMENT])
def test_an_early_success_contradicts_itself(take: Take) -> None:
    """Said to be accepted before it was complete: no receipt, and nothing is sent again."""
    course = virtually(accepted(take=take))
    assert type(course.error) is UploadOutcomeUnknown
    assert (course.sends, course.verdicts) == (1, ["unknown"])


async def test_an_early_409_is_busy() -> None:
    """A refusal counts even when it comes before the end of the body."""
    lock = LockPolicy(min_delay=0.001)
    course = await deliver(busy(take=Take.HEAD), accepted(), lock=lock)
    assert course.verdicts == ["busy", "accepted"]


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize("error", [ConnectFailed("refused"), ConnectionLost("reset")])
def test_the_boundary_counts_more_than_the_name_of_the_error(
    mode: str, error: TransportError
) -> None:
    """Once the closing boundary was handed over, no error of a transport makes it "never sent"."""
    course = virtually(failing(error), then=lambda _: accepted(), delivery=mode)
    if mode == "at_most_once":
        assert type(course.error) is UploadOutcomeUnknown
        assert course.sends == 1
    else:
        assert course.began == [0, 300]


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize("status", [429, 503])
def test_throttled_obeys_the_hint(mode: str, status: int) -> None:
    """429, and 503 with Retry-After, are repeated after the hint, also with the body complete."""
    act = reply(status, record("X", "slow down"), retry_after="30")
    course = virtually(act, accepted(), delivery=mode)
    assert course.accepted
    assert course.began == [0, 30]
    assert course.verdicts == ["throttled", "accepted"]


def test_throttled_for_ever() -> None:
    """It ends as ``Throttled`` with the server's last hint."""
    course = virtually(then=lambda _: reply(429, b"", retry_after="1.5"))
    assert type(course.error) is Throttled
    assert (course.error.status, course.error.retry_after) == (429, 1.5)
    assert course.began == [0, 1.5, 3, 4.5, 6]
    assert course.verdict == "throttled"


@pytest.mark.parametrize(
    ("hint", "low", "high"),
    [
        ("0", 0, 0),
        ("1.5", 1.5, 1.5),
        ("60", 60, 60),
        ("61", 60, 60),
        ("9999999999", 60, 60),
        ("-1", 0.25, 0.5),
        ("1e400", 0.25, 0.5),
        ("NaN", 0.25, 0.5),
        ("soon", 0.25, 0.5),
        ("", 0.25, 0.5),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Wed, 21 Oct 2099 07:28:00 GMT", 60, 60),
        ("Wed, 99 Oct 2099 07:28:00 GMT", 0.25, 0.5),
    ],
)
def test_hints_of_a_throttling_server(hint: str, low: float, high: float) -> None:
    """A valid Retry-After wins and is capped; junk leaves the backoff as it is."""
    course = virtually(reply(429, b"", retry_after=hint), accepted())
    assert low <= course.waits[0] <= high


def test_a_hint_as_a_date() -> None:
    """An HTTP date counts from now."""
    moment = format_datetime(datetime.now(UTC) + timedelta(seconds=31), usegmt=True)
    course = virtually(reply(429, b"", retry_after=moment), accepted())
    assert 25 < course.waits[0] <= 31


# --- an unknown outcome is never called a no -----------------------------------------------------


def test_unknown_then_busy_then_accepted() -> None:
    """At least once: after the window the lock may still be held by somebody else."""
    course = virtually(lost(), busy(), accepted(), delivery="at_least_once")
    assert course.accepted
    assert course.began == [0, 300, 300.5]
    assert course.verdicts == ["unknown", "busy", "accepted"]


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ([lost()] + [busy()] * 100, RoomBusy),
        ([lost(), reply(400, record("ROOM_NOT_ACTIVE"))], RoomNotActive),
        ([lost(), OWN_500], ProcessingFailed),
        ([lost()] + [reply(429, b"", retry_after="1")] * 4, Throttled),
        ([lost(), refused(), refused(), refused(), refused()], ConnectFailed),
        ([lost(), cut_off(), cut_off(), cut_off(), cut_off()], UploadInterrupted),
        ([lost(), failing(RuntimeError("foreign"), take=Take.NOTHING)], RuntimeError),
    ],
    ids=["busy", "refused", "failed", "throttled", "never sent", "partial", "foreign"],
)
def test_unknown_stays_unknown(script: Sequence[Act], cause: type[Exception]) -> None:
    """At least once: a later "no" is about the later attempt; the first may still arrive."""
    course = virtually(*script, delivery="at_least_once")
    error = course.error
    assert type(error) is UploadOutcomeUnknown
    assert type(error.__cause__) is cause
    assert error.bytes_sent == len(PDF)
    assert error.reason.startswith("an earlier attempt was lost, then: ")
    assert error.attempts[0].verdict == "unknown"
    assert len(error.attempts) == course.sends
    assert course.verdict == "unknown"
    assert course.began[1] == 300


def test_unknown_then_changed(tmp_path: Path) -> None:
    """At least once: a document that is gone when it is to be sent again."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(PDF)
    recorder = EventRecorder()

    async def on_event(event: Event) -> None:
        recorder(event)
        if isinstance(event, RetryScheduled):
            await anyio.to_thread.run_sync(path.unlink)

    course = virtually(lost(), document=path, delivery="at_least_once", on_event=on_event)
    assert type(course.error) is UploadOutcomeUnknown
    assert type(course.error.__cause__) is DocumentChanged
    assert course.sends == 1
    assert [type(event) for event in recorder.events][-1] is Finished


def test_a_foreign_error_after_the_boundary_is_unknown() -> None:
    """A transport may break in its own way; what counts is that the form was complete."""
    foreign = RuntimeError("a bug of the transport")
    course = virtually(failing(foreign))
    assert type(course.error) is UploadOutcomeUnknown
    assert course.error.__cause__ is foreign
    assert "a bug of the transport" in course.error.reason
    assert "earlier attempt" not in course.error.reason
    assert (course.sends, course.verdicts) == (1, ["unknown"])


@pytest.mark.parametrize("take", [Take.NOTHING, Take.HEAD, Take.DOCUMENT])
@pytest.mark.parametrize("mode", BOTH)
def test_a_foreign_error_before_the_boundary_passes(take: Take, mode: str) -> None:
    """It propagates as the object that it is, at once, and is not repeated."""
    foreign = RuntimeError("a bug of the transport")
    course = virtually(failing(foreign, take=take), delivery=mode)
    assert course.error is foreign
    assert course.sends == 1
    assert course.recorder.of(Finished)[0].error is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("take", [Take.HEAD, Take.EVERYTHING])
async def test_the_end_of_the_program_passes(error: type[BaseException], take: Take) -> None:
    """Ctrl-C is never turned into an error of ours, and never repeated."""
    transport = FakeTransport(failing(error(), take=take))
    with pytest.raises(error):
        async with connected(transport) as client:
            await client.upload_whiteboard_file("room01", PDF, filename="deck.pdf")
    assert len(transport.exchanges) == 1


# --- what is remembered --------------------------------------------------------------------------


def test_attempts_tell_the_whole_course() -> None:
    """Number, start, length, verdict, status, reason and bytes of each, on a receipt."""
    course = virtually(
        refused(),
        cut_off(300_000, replying=2),
        busy(replying=3),
        accepted(replying=4),
        document=MIB,
        retry=RetryPolicy(max_attempts=9),
        delay=1000,
    )
    receipt = course.outcome
    assert isinstance(receipt, UploadReceipt)
    attempts = receipt.attempts
    assert [attempt.number for attempt in attempts] == [1, 2, 3, 4]
    assert [attempt.verdict for attempt in attempts] == [
        "never sent",
        "partial",
        "busy",
        "accepted",
    ]
    assert [attempt.status for attempt in attempts] == [None, None, 409, 200]
    assert [attempt.seconds for attempt in attempts] == pytest.approx([0, 2, 3, 4])
    began = [moment - 1000 for moment in course.began]
    assert [attempt.started for attempt in attempts] == pytest.approx(began)
    assert attempts[0].reason == "refused"
    assert "409" in attempts[2].reason
    assert attempts[0].bytes_sent == 0
    assert 0 < attempts[1].bytes_sent < len(MIB)
    assert attempts[3].bytes_sent == len(MIB)


@pytest.mark.parametrize(
    "script",
    [
        [busy(retry_after="60"), reply(400, b"no")],
        [refused(), OWN_500],
        [busy(), lost()],
        [refused(), cut_off(), cut_off(), cut_off()],
        [refused()] * 5,
        [reply(429, b"", retry_after="1")] * 5,
        [refused()] + [busy()] * 100,
        [refused(), hanging()],
        [refused(), hanging(take=Take.HEAD)],
    ],
)
def test_every_error_remembers_the_attempts(script: Sequence[Act]) -> None:
    """Oldest first, one per request, and still there after pickling and copying."""
    course = virtually(*script, deadline=1000)
    error = course.error
    assert isinstance(error, MeetingError)
    assert [attempt.number for attempt in error.attempts] == list(range(1, course.sends + 1))
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert (twin.attempts, str(twin)) == (error.attempts, str(error))


def test_hints_are_notes() -> None:
    """What a known code usually means is added for the one who has to mend it."""
    wrong_key = virtually(reply(401, record("INVALID_API_KEY"))).error
    redirect = virtually(reply(301, b"")).error
    assert any("API key" in note for note in wrong_key.__notes__)
    assert any("base URL" in note for note in redirect.__notes__)
    assert not hasattr(virtually(reply(400, b"")).error, "__notes__")


# --- turns ---------------------------------------------------------------------------------------


async def test_cancellation_in_the_queue() -> None:
    """A cancelled waiter sends nothing and the holder is not disturbed."""
    transport, recorder = FakeTransport(hanging(), accepted()), EventRecorder()
    async with connected(transport) as client, anyio.create_task_group() as group:
        job = partial(client.upload_whiteboard_file, "room01", PDF, filename="deck.pdf")
        group.start_soon(job)
        await anyio.wait_all_tasks_blocked()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as inner:
                waiting = client.with_options(on_event=recorder)
                inner.start_soon(
                    partial(waiting.upload_whiteboard_file, "room01", PDF, filename="deck.pdf")
                )
                await recorder.until(Queued)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        assert recorder.of(Finished)[0].verdict == "cancelled"
        assert (len(transport.exchanges), transport.running) == (1, 1)
        group.cancel_scope.cancel()


def test_json_calls_need_no_turn(in_virtual_time: InVirtualTime) -> None:
    """Asking for a room, or calling about it, goes past an upload that is going on in it."""

    async def main() -> float:
        transport = FakeTransport(hanging(), accepted(), accepted())
        async with connected(transport) as client, anyio.create_task_group() as group:
            group.start_soon(partial(client.upload_whiteboard_file, "room01", PDF, filename="x"))
            await anyio.sleep(1)
            await client.get_active_room_info("room01")
            await client.call("room/endRoom", {"room_id": "room01"})
            group.cancel_scope.cancel()
        return anyio.current_time()

    assert in_virtual_time(main) == 1
