"""What the queue's commands say of documents that may have arrived."""

from __future__ import annotations

from datetime import UTC, datetime

import attrs
import pytest

from meeting_async import Finished, UploadOutcome, Verdict
from meeting_async.errors import UploadFailed, UploadInterrupted, UploadOutcomeUnknown

pytest.importorskip("procrastinate", reason="the extra `procrastinate` is not installed")

from meeting_async.cli.console import Output
from meeting_async.cli.queue.outcomes import Results
from meeting_async.cli.queue.work import WorkerLog
from meeting_async.cli.results import groups_of
from meeting_async.procrastinate import QueueReport

UNKNOWN = UploadOutcome(
    index=0,
    room_id="room01",
    document="deck.pdf",
    status="unknown",
    error=UploadOutcomeUnknown("the worker ended", 8, 8, 300.0),
)


@pytest.mark.parametrize(
    ("outcomes", "queued", "code"),
    [([UNKNOWN], 2, 3), ([UNKNOWN], 0, 3), ([], 2, 75), ([], 0, 0)],
)
def test_unknown_wins_over_queued(outcomes: list[UploadOutcome], queued: int, code: int) -> None:
    """Whoever tries again at 75 would not look at a document that may have arrived."""
    report = QueueReport()
    report.queued = queued
    for outcome in outcomes:
        report._add(outcome)
    assert Results("term", "http://meet.test", report, datetime.now(UTC)).code == code


def test_documents_that_were_cut_off_have_one_reason() -> None:
    """However far each has come: a line for each of a thousand would hide all others."""
    cut = UploadInterrupted("the peer closed the connection", "meet.test:443")
    outcomes = []
    for number, sent in enumerate([65_536, 5_411_044]):
        cut.room_id, cut.document, cut.bytes_sent = f"room{number}", "a 'deck'.pdf", sent
        error = UploadFailed("UploadInterrupted", str(cut))
        error.room_id, error.document = cut.room_id, cut.document
        outcomes.append(attrs.evolve(UNKNOWN, room_id=cut.room_id, status="failed", error=error))
    (group,) = groups_of(outcomes)
    assert str(group) == (
        "failed: 2 documents for 2 rooms: Upload interrupted: "
        "meet.test:443: the peer closed the connection"
    )


def test_a_question_of_a_paused_worker_is_no_document(capsys: pytest.CaptureFixture[str]) -> None:
    """The answer to it is not printed as a document that was accepted."""
    WorkerLog(Output(), quiet=False).tell(
        Finished(
            call=1,
            operation="room/getActiveRoomInfo",
            host="meet.test:443",
            room_id="room01",
            document=None,
            verdict=Verdict.ACCEPTED,
            attempts=1,
            seconds=0.1,
        )
    )
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("quiet", [True, False])
def test_a_worker_says_what_it_has_cut_off(capsys: pytest.CaptureFixture[str], quiet: bool) -> None:
    """One line on stderr, also with --quiet; no error of the call says it."""
    log = WorkerLog(Output(), quiet=quiet)
    log.tell(
        Finished(
            call=1,
            operation="room/uploadWhiteboardFile",
            host="meet.test:443",
            room_id="room01",
            document="deck.pdf",
            verdict=Verdict.UNKNOWN,
            attempts=1,
            seconds=4.0,
        )
    )
    said = capsys.readouterr()
    assert said.out == ""
    assert "deck.pdf" in said.err
    assert "unknown" in said.err
    assert "room01" in said.err
    assert said.err.count("\n") == 1
