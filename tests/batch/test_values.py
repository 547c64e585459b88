"""Jobs, outcomes and reports: values, sums, and what an error means."""

from __future__ import annotations

import pickle

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meeting_async import Attempt, Document, Verdict, errors
from meeting_async._batch.results import (
    BatchReport,
    UploadJob,
    UploadOutcome,
    ends_batch,
    ends_room,
    status_of,
)

REPLY = (400, "NAME", "no")
STATUSES = ["accepted", "refused", "failed", "unknown", "skipped"]


def attempt(number: int, seconds: float, verdict: Verdict, sent: int = 0) -> Attempt:
    """Make an attempt; each begins two seconds after the end of the one before."""
    return Attempt(number, number * (seconds + 2), seconds, verdict, None, "scripted", sent)


def outcome(index: int = 0, status: str = "accepted", **facts: object) -> UploadOutcome:
    """Make an outcome."""
    given = {"room_id": "r", "document": f"{index}.pdf", "status": status, **facts}
    return UploadOutcome(index=index, **given)  # type: ignore[arg-type]  # as the test says


def unknown_because(cause: Exception) -> errors.UploadOutcomeUnknown:
    """Make the error of an upload that was lost, and met another one afterwards."""
    error = errors.UploadOutcomeUnknown("reset", 1, 1, 300.0)
    error.__cause__ = cause
    return error


# Error; status of its job; whether it ends the batch once the server is verified, or before; room.
MEANINGS: list[tuple[Exception, str, bool, bool, bool]] = [
    (errors.UploadOutcomeUnknown("reset", 1, 1, 300.0), "unknown", False, False, False),
    (errors.RequestRefused(*REPLY), "refused", False, True, False),
    (errors.AuthenticationFailed(*REPLY), "refused", True, True, False),
    (unknown_because(errors.AuthenticationFailed(*REPLY)), "unknown", True, True, False),
    (errors.RoomNotFound(*REPLY), "refused", False, True, True),
    (errors.RoomNotActive(*REPLY), "refused", False, True, True),
    (errors.DocumentRefused(*REPLY), "refused", False, True, False),
    (errors.InvalidInput("room_id", "''", "is empty", "give one"), "refused", False, False, False),
    (errors.DocumentEmpty("d"), "refused", False, False, False),
    (errors.DocumentTooLarge("d", 2, 1), "refused", False, False, False),
    (errors.DocumentTypeRefused("d", "PNG image"), "refused", False, False, False),
    (errors.DocumentUnreadable("d", "gone"), "failed", False, False, False),
    (errors.DocumentChanged("d", "shorter"), "failed", False, False, False),
    (errors.Throttled(*REPLY), "failed", False, True, False),
    (errors.ProcessingFailed(*REPLY), "failed", False, True, False),
    (errors.UnexpectedReply(*REPLY), "failed", False, True, False),
    (errors.RoomBusy(330.0, "another client", 0.0), "failed", False, False, False),
    (errors.DeadlineExceeded(5.0, "sending"), "failed", False, False, False),
    (errors.RoomLocksUnavailable("down"), "failed", False, False, False),
    (errors.ConnectionLost("reset"), "failed", False, True, False),
    (errors.ConnectFailed("refused"), "failed", False, True, False),
    (errors.ResourceExhausted("no descriptor"), "failed", False, False, False),
    (errors.UploadInterrupted("reset", "host:443", 5), "failed", False, True, False),
    (errors.JournalError("j.db", "is full"), "failed", True, True, False),
    (errors.BatchStopped("before it was sent"), "failed", False, False, False),
    (KeyError("anything"), "failed", False, False, False),
]


@pytest.mark.parametrize(
    ("error", "status", "ends", "ends_before", "room"),
    MEANINGS,
    ids=[type(row[0]).__name__ for row in MEANINGS],
)
def test_what_an_error_means(
    error: Exception, status: str, ends: bool, ends_before: bool, room: bool
) -> None:
    """For its job; for the batch, if every further job would meet it; for its room."""
    assert status_of(error) == status
    is_outage = type(error) is errors.ConnectFailed
    assert ends_batch(error, is_verified=True, is_gone=False) is ends
    assert ends_batch(error, is_verified=True, is_gone=True) is (ends or is_outage)
    assert ends_batch(error, is_verified=False, is_gone=False) is ends_before
    assert ends_room(error) is room


def test_what_attempts_add_up_to() -> None:
    """Bytes, those that were sent again, waits, and how often the room was locked."""
    made = outcome(
        attempts=(
            attempt(1, 1.0, Verdict.BUSY, 100),
            attempt(2, 2.0, Verdict.PARTIAL, 40),
            attempt(3, 1.5, Verdict.BUSY, 100),
            attempt(4, 3.0, Verdict.ACCEPTED, 100),
        ),
        seconds=20.0,
    )
    assert (made.bytes_sent, made.bytes_resent, made.waited, made.conflicts) == (340, 240, 12.5, 2)
    assert outcome(status="skipped", seconds=2.0).waited == 2.0
    rounded = outcome(attempts=(attempt(1, 1.0, Verdict.ACCEPTED, 1),), seconds=0.9)
    assert rounded.waited == 0


@pytest.mark.parametrize(
    ("status", "error", "delivered"),
    [
        ("accepted", None, True),
        ("skipped", None, True),
        ("skipped", KeyError(), False),
        ("refused", KeyError(), False),
        ("failed", KeyError(), False),
        ("unknown", KeyError(), False),
    ],
)
def test_what_is_delivered(status: str, error: Exception | None, delivered: bool) -> None:
    """What the room has, from this run or from an earlier one."""
    assert outcome(status=status, error=error).delivered is delivered


def test_values() -> None:
    """Frozen; an outcome travels between processes; documents do not show in a repr."""
    job = UploadJob("room01", Document.from_bytes(b"geheim", "d.pdf"), key="k")
    assert "geheim" not in repr(job)
    done = outcome(attempts=(attempt(1, 1.0, Verdict.ACCEPTED, 1),))
    assert pickle.loads(pickle.dumps(done)) == done
    for value, field in ((job, "room_id"), (done, "status")):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, field, "x")


def _made(index: int, status: str, is_done: bool, sent: int) -> UploadOutcome:
    attempts = (attempt(1, 1.0, Verdict.BUSY, sent), attempt(2, 2.0, Verdict.FAILED, sent))
    is_delivered = status == "accepted" or (status == "skipped" and is_done)
    return outcome(
        index,
        status,
        size=100,
        error=None if is_delivered else errors.ConnectFailed(f"no way to {index}"),
        seconds=5.0,
        attempts=attempts if sent else (),
    )


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(STATUSES), st.booleans(), st.integers(0, 100)), max_size=20),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_totals_add_up(made: list[tuple[str, bool, int]], dice: object, keep: bool) -> None:
    """For whatever comes in whatever order; the outcomes are in the order of the input."""
    outcomes = [_made(index, *facts) for index, facts in enumerate(made)]
    order = list(outcomes)
    dice.shuffle(order)  # type: ignore[attr-defined]  # it is a random.Random
    report = BatchReport(keep=keep)
    for one in order:
        report._add(one)
    not_tried = report.skipped + report.already_delivered
    counts = [report.accepted, report.refused, report.failed, report.unknown, not_tried]
    assert counts == [sum(o.status == status for o in outcomes) for status in STATUSES]
    assert report.total == sum(counts) == len(made)
    assert report.already_delivered == sum(o.delivered for o in outcomes) - report.accepted
    assert report.bytes_delivered == 100 * report.accepted
    for name in ("bytes_sent", "bytes_resent", "waited", "conflicts"):
        assert getattr(report, name) == pytest.approx(sum(getattr(o, name) for o in outcomes))
    assert report.outcomes == (outcomes if keep else [])
    bad = [o for o in order if not o.delivered]
    if not bad:
        report.raise_for_failures()
        return
    with pytest.raises(errors.BatchFailed) as caught:
        report.raise_for_failures()
    assert caught.value.__cause__ is bad[0].error
    assert bad[0].document in str(caught.value)
    assert f"{len(bad)} of {len(made)} documents" in str(caught.value)


def test_a_batch_that_ended_early() -> None:
    """It has failed, though all that was read is in its room."""
    report = BatchReport()
    report.raise_for_failures()
    report._add(outcome())
    report.stopped_by = KeyError("column")
    with pytest.raises(errors.BatchFailed, match="ended early, after 1 documents") as caught:
        report.raise_for_failures()
    assert caught.value.__cause__ is report.stopped_by


def test_a_repr_has_the_counts() -> None:
    """And no list of outcomes."""
    report = BatchReport(seconds=12.34)
    assert repr(report) == "<BatchReport of 0 jobs in 12.3 s>"
    for index in range(1002):
        report._add(outcome(index, "failed" if index else "accepted", error=KeyError()))
    report._add(outcome(2000, "skipped"))
    report.stopped_by = errors.JournalError("j.db", "is full")
    expected = "1,003 jobs in 12.3 s: 1 accepted, 1 already_delivered, 1,001 failed"  # none skipped
    assert repr(report) == f"<BatchReport of {expected}, stopped by JournalError>"
