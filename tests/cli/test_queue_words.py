"""What the queue's commands say of documents that may have arrived."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from meeting_async import Finished, UploadOutcome, Verdict
from meeting_async.errors import UploadOutcomeUnknown

pytest.importorskip("procrastinate", reason="the extra `procrastinate` is not installed")

from meeting_async.cli.console import Output
from meeting_async.cli.queue.outcomes import Results
from meeting_async.cli.queue.work import WorkerLog
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
