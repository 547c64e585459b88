"""Jobs and outcomes: values, what an error makes of a job, what is derived from attempts."""

from __future__ import annotations

import pickle

import attrs
import pytest

from meeting_async import Document, UploadJob, UploadOutcome, errors
from meeting_async._attempts import Attempt
from meeting_async._jobs import status_of

REPLY = ("room/uploadWhiteboardFile", "room01", 400, "NAME", "no")

ERRORS = [
    (errors.UploadOutcomeUnknown("r", "d", 1, 1, "reset", 300.0), "unknown"),
    (errors.RequestRefused(*REPLY), "refused"),
    (errors.AuthenticationFailed(*REPLY), "refused"),
    (errors.RoomNotFound(*REPLY), "refused"),
    (errors.RoomNotActive(*REPLY), "refused"),
    (errors.DocumentRefused(*REPLY), "refused"),
    (errors.InvalidInput("room_id", "''", "is empty", "give one"), "refused"),
    (errors.DocumentEmpty("d"), "refused"),
    (errors.DocumentTooLarge("d", 2, 1), "refused"),
    (errors.DocumentTypeRefused("d", "PNG image"), "refused"),
    (TypeError("no document"), "refused"),
    (errors.DocumentUnreadable("d", "gone"), "failed"),
    (errors.DocumentChanged("d", "shorter"), "failed"),
    (errors.Throttled(*REPLY, None), "failed"),
    (errors.ServerFailed(*REPLY), "failed"),
    (errors.ProcessingFailed(*REPLY), "failed"),
    (errors.UnexpectedReply(*REPLY), "failed"),
    (errors.RoomBusy("r", 330.0, "409"), "failed"),
    (errors.DeadlineExceeded("op", 5.0, "sending"), "failed"),
    (errors.RoomGateUnavailable("r", "down"), "failed"),
    (errors.ConnectFailed("refused"), "failed"),
    (errors.UploadInterrupted("reset", "r", "d", 5), "failed"),
    (errors.JournalError("j.db", "is full"), "failed"),
    (errors.BatchStopped("before it was sent"), "failed"),
    (KeyError("anything"), "failed"),
]


@pytest.mark.parametrize(("error", "status"), ERRORS, ids=lambda e: type(e).__name__)
def test_what_an_error_makes_of_a_job(error: Exception, status: str) -> None:
    """Unknown if it may have arrived, refused if it would be again, else failed."""
    assert status_of(error) == status


def attempt(number: int, seconds: float, verdict: str, sent: int) -> Attempt:
    """Make an attempt."""
    return Attempt(number, 0.0, seconds, verdict, None, "as the test says", sent)


def outcome(status: str = "accepted", **facts: object) -> UploadOutcome:
    """Make an outcome."""
    given = {"index": 0, "room_id": "r", "document": "d.pdf", "status": status, **facts}
    return UploadOutcome(**given)  # type: ignore[arg-type]


def test_what_attempts_add_up_to() -> None:
    """Bytes, those that went out again, waits, and how often the room was locked."""
    attempts = (
        attempt(1, 1.0, "busy", 100),
        attempt(2, 2.0, "partial", 40),
        attempt(3, 1.5, "busy", 100),
        attempt(4, 3.0, "accepted", 100),
    )
    done = outcome(attempts=attempts, seconds=20.0)
    assert (done.bytes_sent, done.bytes_resent) == (340, 240)
    assert (done.waited, done.conflicts) == (12.5, 2)


def test_an_outcome_without_attempts() -> None:
    """Nothing was sent; all of its time was waiting."""
    skipped = outcome("skipped", seconds=2.0)
    assert (skipped.bytes_sent, skipped.bytes_resent, skipped.conflicts) == (0, 0, 0)
    assert skipped.waited == 2.0


def test_waits_are_never_negative() -> None:
    """Two clocks' roundings may differ."""
    assert outcome(attempts=(attempt(1, 1.0, "accepted", 1),), seconds=0.9).waited == 0


@pytest.mark.parametrize(
    ("status", "error", "is_good"),
    [
        ("accepted", None, True),
        ("skipped", None, True),
        ("skipped", KeyError(), False),
        ("refused", KeyError(), False),
        ("failed", KeyError(), False),
        ("unknown", KeyError(), False),
    ],
)
def test_what_is_good(status: str, error: Exception | None, is_good: bool) -> None:
    """What is in the room, from this run or from an earlier one."""
    assert outcome(status, error=error).is_good is is_good


def test_values() -> None:
    """Frozen; an outcome travels between processes; documents do not show in a repr."""
    job = UploadJob("room01", Document.from_bytes(b"geheim", "d.pdf"), key="k")
    assert "geheim" not in repr(job)
    assert (job.filename, job.content_type, job.key) == (None, None, "k")
    done = outcome(attempts=(attempt(1, 1.0, "accepted", 1),))
    assert pickle.loads(pickle.dumps(done)) == done
    for value, field in ((job, "room_id"), (done, "status")):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, field, "x")
