"""The report: sums that agree with the outcomes, the order of the input, and one clear error."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meeting_async import BatchReport, UploadOutcome
from meeting_async._attempts import Attempt
from meeting_async.errors import BatchFailed, ConnectFailed

STATUSES = ["accepted", "refused", "failed", "unknown", "skipped"]


def outcome(index: int, status: str, *, is_good: bool = False, sent: int = 0) -> UploadOutcome:
    """Make an outcome with two attempts."""
    is_done = is_good or status == "accepted"
    attempts = (
        Attempt(1, 0.0, 1.0, "busy", 409, "locked", sent),
        Attempt(2, 3.0, 2.0, "x", None, "seen", sent),
    )
    return UploadOutcome(
        index=index,
        room_id="room01",
        document=f"{index}.pdf",
        status=status,  # type: ignore[arg-type]
        size=100,
        error=None if is_done else ConnectFailed(f"no way to {index}"),
        seconds=5.0,
        attempts=attempts if sent else (),
    )


outcomes = st.lists(
    st.builds(
        lambda status, is_good, sent: (status, is_good and status == "skipped", sent),
        st.sampled_from(STATUSES),
        st.booleans(),
        st.integers(0, 100),
    ),
    max_size=20,
)


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(outcomes, st.randoms(use_true_random=False), st.booleans())
def test_totals_add_up(made: list[tuple[str, bool, int]], dice: object, keep: bool) -> None:
    """For whatever comes in whatever order; the outcomes are in the order of the input."""
    made_of = [outcome(n, s, is_good=g, sent=b) for n, (s, g, b) in enumerate(made)]
    order = list(made_of)
    dice.shuffle(order)  # type: ignore[attr-defined]
    report = BatchReport(keep=keep)
    for one in order:
        report.add(one)
    counts = [report.accepted, report.refused, report.failed, report.unknown, report.skipped]
    assert counts == [sum(o.status == status for o in made_of) for status in STATUSES]
    assert report.total == sum(counts) == len(made)
    assert report.resumed == sum(good for _, good, _ in made)
    assert report.bytes_delivered == 100 * report.accepted
    assert report.bytes_sent == sum(o.bytes_sent for o in made_of)
    assert report.bytes_resent == sum(o.bytes_resent for o in made_of)
    assert report.waited == pytest.approx(sum(o.waited for o in made_of))
    assert report.conflicts == sum(o.conflicts for o in made_of)
    assert report.outcomes == (made_of if keep else [])
    bad = [o for o in order if not o.is_good]
    if not bad:
        report.raise_for_failures()
        return
    with pytest.raises(BatchFailed) as caught:
        report.raise_for_failures()
    error = caught.value
    assert error.__cause__ is bad[0].error
    assert bad[0].document in str(error)
    assert f"{len(bad)} of {len(made)} documents" in str(error)
    shown = (error.refused, error.failed, error.unknown, error.skipped)
    assert shown == (*counts[1:4], report.skipped - report.resumed)


def test_a_batch_that_ended_early() -> None:
    """Though all that was read is in its room."""
    report = BatchReport()
    report.raise_for_failures()
    report.add(outcome(0, "accepted"))
    report.stopped_by = KeyError("column")
    with pytest.raises(BatchFailed) as caught:
        report.raise_for_failures()
    assert str(caught.value) == "the batch ended early, after 1 documents: KeyError('column')"
    assert caught.value.__cause__ is report.stopped_by


def test_what_a_link_weighs() -> None:
    """Nobody knows; it counts nothing."""
    report = BatchReport()
    report.add(UploadOutcome(index=0, room_id="r", document="https://x/d", status="accepted"))
    assert (report.accepted, report.bytes_delivered) == (1, 0)


def test_a_repr_is_short() -> None:
    """It has the numbers and no list of outcomes."""
    report = BatchReport()
    for number in range(1000):
        report.add(outcome(number, "failed"))
    assert len(repr(report)) < 400
