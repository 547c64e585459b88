"""What must hold after any schedule: the promises of the library, checked against the model's log.

Each promise is a function that takes a :class:`Run` or a :class:`Call`, and raises
``AssertionError``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import groupby, pairwise

from _model import WINDOW, Contact
from _runs import LOCK, Call, Run
from _schedules import ROOMS
from meeting_async import RetryScheduled, UploadReceipt, WaitingForRoom
from meeting_async.errors import (
    DeadlineExceeded,
    MeetingError,
    RoomBusy,
    UploadOutcomeUnknown,
)

ROUNDING = 1e-6
"""Seconds: sums of floats."""
LAST = 0.001
"""Seconds: an attempt this close to the end of a budget is the last one."""

Promise = Callable[[Run], None] | Callable[[Call], None]


def check(run: Run, promises: Collection[Promise] = ()) -> None:
    """Check every promise, or only these."""
    for promise in OF_THE_CLIENT:
        if not promises or promise in promises:
            promise(run)
    for call in run.calls:
        for one in OF_A_CALL:
            if not promises or one in promises:
                one(call)


# --- the promises of a client --------------------------------------------------------------------


def siblings_never_meet(run: Run) -> None:
    """No two uploads to one room at the same time."""
    for earlier, later in _neighbours(run):
        assert earlier.ended is not None
        assert later.began >= earlier.ended, (earlier, later)


def no_attempt_on_our_own_lock(run: Run) -> None:
    """After an unknown outcome nobody tries before the lock must be free, whoever asks."""
    for room in ROOMS:
        shut = 0.0
        for contact in run.server.contacts:
            if contact.room == room:
                assert contact.began >= shut - ROUNDING, (contact, shut)
                if not contact.settled:
                    shut = max(shut, (contact.ended or 0.0) + WINDOW)


def rooms_open_again(run: Run) -> None:
    """However the uploads ended, the next one to each room is delivered at once."""
    for call in run.calls[-len(ROOMS) :]:
        assert isinstance(call.outcome, UploadReceipt), call.outcome
        assert len(call.contacts) == 1
        assert call.outcome.seconds <= ROUNDING


def _neighbours(run: Run) -> Iterator[tuple[Contact, Contact]]:
    for room in ROOMS:
        yield from pairwise(contact for contact in run.server.contacts if contact.room == room)


# --- the promises of a call ----------------------------------------------------------------------


def at_most_once(call: Call) -> None:
    """At most one document per call gets into the room, unless the caller asked otherwise."""
    if call.job.delivery == "at_most_once":
        assert len(call.accepted) <= 1, call.accepted


def accepted_means_accepted(call: Call) -> None:
    """Give receipts for a document that is in the room, by the attempt that was last."""
    if isinstance(call.outcome, UploadReceipt):
        assert call.contacts[-1].form is not None
        assert call.outcome.document == call.name
        assert call.outcome.size == call.job.size
        assert call.outcome.room_id == call.job.room
        assert call.verdict == "accepted"


def no_maybe_is_called_a_no(call: Call) -> None:
    """Any error but one says that nothing got into the room, and that is so."""
    if isinstance(call.outcome, MeetingError) and not _is_unknown(call):
        assert call.accepted == []
        assert call.unsettled == []
    if call.outcome is None and call.accepted:
        assert call.verdict == "unknown"


def no_no_is_called_a_maybe(call: Call) -> None:
    """Call unknown only what had an attempt of which nobody can know."""
    if _is_unknown(call) or call.verdict == "unknown":
        assert call.unsettled
    assert (call.outcome is None) <= (call.job.cancelled_after is not None)


def documents_arrive_as_given(call: Call) -> None:
    """Byte for byte, under their name."""
    for contact in call.accepted:
        assert contact.form is not None
        assert contact.form.field == "document"
        assert contact.form.filename == call.name
        assert contact.form.content == call.content


def unknown_says_all_that_is_known(call: Call) -> None:
    """Which document, which room, how much was sent, what was seen, when the lock is free."""
    error = call.outcome
    if not isinstance(error, UploadOutcomeUnknown):
        return
    assert (error.room_id, error.document, error.size) == (
        call.job.room,
        call.name,
        call.job.size,
    )
    lost_at = call.unsettled[-1].ended
    assert lost_at is not None
    assert abs(error.lock_free_in - max(0.0, lost_at + WINDOW - call.ended)) <= ROUNDING
    assert error.bytes_sent == max(attempt.bytes_sent for attempt in error.attempts)
    assert error.reason
    if call.contacts[-1].settled:
        assert "an earlier attempt was lost" in error.reason or "deadline" in error.reason


def attempts_are_told_as_they_were(call: Call) -> None:
    """Tell number, time, duration, status and bytes of every attempt."""
    if call.outcome is None:
        return
    attempts = call.outcome.attempts
    assert [attempt.number for attempt in attempts] == [one.number for one in call.contacts]
    for attempt, contact in zip(attempts, call.contacts, strict=True):
        assert abs(call.began + attempt.started - contact.began) <= ROUNDING
        assert abs(call.began + attempt.started + attempt.seconds - (contact.ended or 0)) < ROUNDING
        assert attempt.status == (contact.reply.status if contact.reply else None)
        assert attempt.bytes_sent <= min(contact.taken, call.job.size)
        assert attempt.bytes_sent == call.job.size or not contact.complete
        assert (attempt.verdict == "unknown") == (not contact.settled)


def no_wait_exceeds_its_budget(call: Call) -> None:
    """``max_wait`` counts from the first 409; the deadline, for everything."""
    if call.job.deadline is not None:
        assert call.ended <= call.began + call.job.deadline + ROUNDING
    busy = [one for one in call.contacts if one.reply is not None and one.reply.status == 409]
    for earlier, later in pairwise(call.contacts):
        if earlier in busy:
            latest = (busy[0].ended or 0.0) + call.max_wait
            assert later.began <= latest + ROUNDING
    for event in call.recorder.of(WaitingForRoom):
        assert event.max_wait == call.max_wait
        assert event.waited + event.retry_in <= call.max_wait + ROUNDING


def nobody_gives_up_early(call: Call) -> None:
    """Each error about time has had all of it; each wait for a room is a real one."""
    error = call.outcome
    if isinstance(error, RoomBusy) and call.contacts:
        is_spent = "could not be read a second time" in str(getattr(error, "__notes__", ""))
        assert error.waited >= call.max_wait - LAST or (is_spent and call.job.comes_once)
    elif isinstance(error, RoomBusy):
        assert call.max_wait == 0
        assert "unknown outcome" in error.reason
    if isinstance(error, DeadlineExceeded):
        assert call.ended >= call.began + (call.job.deadline or 0.0) - ROUNDING
    for event in call.recorder.of(WaitingForRoom):
        left = event.max_wait - event.waited
        assert event.retry_in >= min(LOCK.min_delay * (1 - LOCK.jitter), left) - ROUNDING


def repetitions_are_limited(call: Call) -> None:
    """Bound attempts (no busy room counts), interruptions in a row, and every backoff."""
    if call.job.comes_once:
        assert sum(one.reached_document(call.job.size) for one in call.contacts) <= 1
    others = [one for one in call.contacts if one.reply is None or one.reply.status != 409]
    assert len(others) <= call.retry.max_attempts
    if call.job.delivery == "at_most_once" and call.outcome is not None:
        verdicts = [attempt.verdict for attempt in call.outcome.attempts]
        rows = [len(list(row)) for kind, row in groupby(verdicts) if kind == "partial"]
        assert max(rows, default=0) <= 1 + call.retry.max_interruptions
    for event in call.recorder.of(RetryScheduled):
        longest = max(call.retry.max_delay, call.retry.max_retry_after)
        assert event.retry_in <= (WINDOW if event.verdict == "unknown" else longest)


def _is_unknown(call: Call) -> bool:
    return isinstance(call.outcome, UploadOutcomeUnknown)


OF_THE_CLIENT: list[Callable[[Run], None]] = [
    siblings_never_meet,
    no_attempt_on_our_own_lock,
    rooms_open_again,
]
OF_A_CALL: list[Callable[[Call], None]] = [
    at_most_once,
    accepted_means_accepted,
    no_maybe_is_called_a_no,
    no_no_is_called_a_maybe,
    documents_arrive_as_given,
    unknown_says_all_that_is_known,
    attempts_are_told_as_they_were,
    no_wait_exceeds_its_budget,
    nobody_gives_up_early,
    repetitions_are_limited,
]
