"""What is shown while documents are sent: words for events, bars on a terminal, lines elsewhere.

Also in a real terminal: 80 columns, resumed, resized, interrupted.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from meeting_async import (
    AttemptStarted,
    BytesSent,
    Event,
    Finished,
    Queued,
    RetryScheduled,
    Started,
    Verdict,
    WaitingForRoom,
    WaitingUntilActive,
)
from meeting_async.cli.console import Output
from meeting_async.cli.display import Bars, Lines, words_for
from meeting_async.cli.words import duration, size
from meeting_async.testing import MeetingServer
from support.command_line import PROGRAM, accepted, call, manifest, until
from support.reports import LOST, STOPPED, attempt, outcome, report_of
from support.terminal import Process, Terminal, drawn_by, needs_tmux, terminal

Capture = pytest.CaptureFixture[str]


def _event(kind: type[Event], call: int = 1, **facts: Any) -> Any:
    common: dict[str, Any] = {"operation": "room/upload", "host": "h:1", "room_id": "room01"}
    return kind(call=call, document=facts.pop("document", "a.pdf"), **common, **facts)


WAIT: dict[str, Any] = {"attempt": 1, "retry_in": 2.0, "waited": 1.0, "max_wait": None}
CUT: dict[str, Any] = {"attempt": 1, "retry_in": 2.0, "verdict": Verdict.PARTIAL, "reason": "cut"}
AWAY: dict[str, Any] = {
    **CUT,
    "verdict": Verdict.NEVER_SENT,
    "reason": "no connection",
    "limit": "for up to 60 s",
}
NOT_ACTIVE: dict[str, Any] = {"retry_in": 2.0, "waited": 1.0, "max_wait": 9.0}


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (_event(Queued), "waiting behind another upload"),
        (_event(Queued, for_place=True), "waiting for a place in the batch"),
        (_event(AttemptStarted, attempt=1), "sending"),
        (_event(AttemptStarted, attempt=2), "sending (attempt 2)"),
        (_event(BytesSent, attempt=1, sent=50, total=100), "sending 50%"),
        (_event(BytesSent, attempt=1, sent=100, total=100), "sent, waiting for the answer"),
        (_event(WaitingForRoom, **WAIT), "the room is locked, again in 2.0 s"),
        (_event(WaitingUntilActive, **NOT_ACTIVE), "the room is not active yet, again in 2.0 s"),
        (_event(RetryScheduled, **CUT), "cut, again in 2.0 s"),
        (_event(RetryScheduled, **AWAY), "h:1: no connection, again in 2.0 s, for up to 60 s"),
    ],
)
def test_every_event_has_words(event: Event, words: str) -> None:
    """With the time, where something is due."""
    assert words_for(event) == words


def test_amounts_are_readable() -> None:
    """Sizes in the units of limits, times to three digits."""
    assert [size(n) for n in (1, 1023, 1024, 1024**2 - 1, 30 * 1024**2, 5 * 1024**3)] == [
        "1 byte", "1,023 bytes", "1.0 KiB", "1.0 MiB", "30.0 MiB", "5.0 GiB"
    ]  # fmt: skip
    assert [duration(s) for s in (0, 0.0123, 1, 59.96, 3599.6, 90_000)] == [
        "0 s", "12 ms", "1.0 s", "1 min 0 s", "1 h 0 min", "25 h 0 min"
    ]  # fmt: skip


def _bars(width: int = 80, height: int = 24, **facts: Any) -> Bars:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True)
    return Bars(Output(), console, **facts)


def _frame(bars: Bars) -> list[str]:
    """Return the lines that are drawn first."""
    with bars:
        pass
    file = bars._console.file
    assert isinstance(file, io.StringIO)
    first, text = file.getvalue().partition("\x1b[2K")[0], re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\r")
    return [line.rstrip() for line in text.sub("", first).splitlines()]


def test_bars_are_honest_after_a_stop() -> None:
    """What was skipped is not done."""
    stopped = [outcome(n, status="skipped", error=STOPPED) for n in range(2, 10)]
    bars = _bars(documents=10)
    sent = outcome(0, attempts=(attempt(bytes_sent=3 * 1024**2),))
    bars.report = report_of([sent, outcome(1, status="failed", error=LOST), *stopped])
    sums, total, *_ = _frame(bars)
    assert sums == "1 accepted, 1 failed, 8 skipped"
    assert re.fullmatch(r"2 of 10 documents .*━ .*[\d.,]+ [MGT]iB/s", total)


@pytest.mark.parametrize("is_stopping", [False, True])
def test_the_time_left_is_of_this_run(monkeypatch: pytest.MonkeyPatch, is_stopping: bool) -> None:
    """What an earlier run delivered takes no time; after Ctrl-C the rest is not sent at all.

    Sums, speed and time are shown in full at 80 columns.
    """
    bars = _bars(documents=1000)
    bars.tick()
    earlier = [outcome(n, status="skipped") for n in range(500)]
    bars.report = report_of([*earlier, *(outcome(500 + n) for n in range(10))])
    bars.is_stopping = is_stopping
    now = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: now() + 100)  # so it took 10 s for each
    words = "stopping" if is_stopping else r"1 h 2[12] min left"
    sums, total = _frame(bars)
    assert sums == "10 accepted, 500 accepted before"
    assert re.fullmatch(rf"510 of 1,?000 documents .* [\d.]+ bytes/s, {words}", total)
    assert "…" not in total


def test_a_frame_is_erased_also_if_it_was_wrapped() -> None:
    """A terminal that has got narrower shows a long line in several rows."""
    console = Console(
        file=io.StringIO(), width=80, height=24, force_terminal=True, color_system=None
    )
    bars = Bars(Output(), console, documents=2)
    with bars:
        bars(_event(AttemptStarted, attempt=1, document="a long name of a document.pdf"))
        bars._progress.refresh()
        console.width = 20
        written = console.file.tell()
        bars._progress.refresh()
        console.file.seek(written)
        erased = console.file.read().split("accepted")[0]
    # Sums, total and upload were a row each, and are one, three and three now.
    assert erased.count("\x1b[1A") == 6


@pytest.mark.parametrize("width", [50, 80])
def test_long_texts_leave_room_for_each_other(width: int) -> None:
    """Name, bar and words are all there, and the terminal's ^C does not wrap the last line."""
    bars = _bars(width, documents=8)
    bars.report = report_of([outcome(n, status=s) for n, s in enumerate(("failed", "refused"))])
    for number in range(2):
        bars(_event(WaitingForRoom, number, document=f"{'long ' * 20}.pdf", **WAIT))
    shown = _frame(bars)
    assert len(shown) == 4
    assert shown[0] == "0 accepted, 1 refused, 1 failed"
    for line in shown[1:]:
        assert re.match(r"(2 of 8|room01) .*[━╸╺]{10} (\d+ ms|[\d.]+ s|the room)", line)
        assert len(line) <= width - 2


def test_bars_fit_the_terminal() -> None:
    """As many rooms as it has lines for; a finished upload has no bar any more."""
    bars = _bars(height=10, documents=100)
    for number in range(20):
        bars(_event(AttemptStarted, number, attempt=1, document=f"{number}.pdf"))
    bars(_event(WaitingForRoom, 1, **WAIT))
    bars(_event(Finished, 0, verdict=Verdict.ACCEPTED, attempts=1, seconds=1.0))
    bars(_event(AttemptStarted, 99, attempt=1, document=None))  # a JSON call
    bars(_event(Started, 98))  # it may be refused at once, and an empty bar says nothing
    shown = _frame(bars)
    assert len(shown) <= 10 - 2
    assert "room01  1.pdf" in shown[2]
    assert "the room is locked, again in" in shown[2]
    assert shown[-1] == "and 14 more"
    assert all(len(line) <= 80 for line in shown)


def test_lines_do_not_repeat_themselves(capsys: Capture) -> None:
    """A room is not told each time it is asked, nor each upload that cannot reach the server.

    Of that the first retry tells, with the address and the reason: it may be the wrong port.
    """
    one, batch = Lines(Output(), 1, detailed=True), Lines(Output(), 2, detailed=False)
    for _ in range(5):
        one(_event(WaitingForRoom, **WAIT))
    one(_event(AttemptStarted, attempt=1))
    assert len(capsys.readouterr().err.splitlines()) == 2
    for facts in (AWAY, {**AWAY, "limit": ""}):
        batch(_event(RetryScheduled, **facts))
    told = "meeting-async: h:1: no connection, again in 2.0 s, for up to 60 s\n"
    assert capsys.readouterr().err == told


def test_sums_are_told_now_and_then(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch in a log file says how far it is, in a line every ten seconds."""
    lines, one = Lines(Output(), 3, detailed=False), Lines(Output(), 1, detailed=False)
    lines.report = report_of([outcome(0), outcome(1, status="skipped")])
    lines.tick()
    assert capsys.readouterr().err == ""
    now = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: now() + 10)
    one.tick()  # its lines say it
    lines.tick()
    told = capsys.readouterr().err
    assert told == "meeting-async: 2 of 3 documents: 1 accepted, 1 accepted before\n"


def test_force_color_makes_no_terminal_of_a_file(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a log file bars would be noise."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = call(capsys, "upload", "room01", "a.pdf")
    assert "\x1b" not in done.out + done.err


# --- on a terminal -------------------------------------------------------------------------------


def test_on_a_terminal(server: MeetingServer) -> None:
    """Bars while it lasts, and then only the result; Ctrl-C typed there finishes the upload."""
    server.rooms["room01"].processing_seconds = 1.0

    def interrupt(process: Process) -> None:
        until(lambda: accepted(server))
        process.terminate()

    command = [*PROGRAM, "upload", "room01", "a.pdf", "b.pdf"]
    code, text = drawn_by(command, meanwhile=interrupt)
    assert (code, "━" in text, "sent, waiting for the answer" in text) == (130, True, True)
    lines = [re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", text)]
    assert not any(re.search("━ *$", line) for line in lines)  # a bar without words
    assert any(line.startswith("a.pdf: accepted by room01") for line in lines)
    assert any("1 of 2 documents delivered; 1 left to send" in line for line in lines)
    assert text.endswith("\n")
    assert "\x1b[?25h" in text.split("━")[-1]  # the cursor is back


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Terminal]:
    """Open a terminal."""
    with terminal(tmp_path) as window:
        yield window


def _is_one_frame(window: Terminal) -> bool:
    """Return whether sums, total and uploads are the last lines, and not above them, too."""
    lines = window.lines(with_history=True)
    above, frame = "".join(lines[:-5]), lines[-5:]
    return (
        frame[0].startswith("0 accepted")
        and frame[1].startswith("0 of 30 docum")
        and sorted(line[:6] for line in frame[2:]) == ["class0", "class1", "class2"]
        and "meeting-async: m.csv" in above
        and not re.search("━|accepted|class|of 30", above)
    )


@needs_tmux
@pytest.mark.nightly
def test_resizing_and_ctrl_c(server: MeetingServer, window: Terminal) -> None:
    """No row is left of an earlier size; after Ctrl-C it does not promise an end of the rest."""
    manifest(server, rooms=3, documents=10)
    for room in range(3):
        server.rooms[f"class{room}"].lock(60)
    window.start(80, 24, "batch", "m.csv")
    window.until_shown("0 of 30 documents", "class2  a.pdf")
    for columns in (52, 100, 41, 80):
        window.resize(columns, 24)
        time.sleep(0.5)  # else it may be looked at before it is drawn again
        until(lambda: _is_one_frame(window))
    for room in range(3):
        server.rooms[f"class{room}"].processing_seconds = 0.5
        server.rooms[f"class{room}"].unlock()
    until(lambda: accepted(server) >= 6)
    window.ask("send-keys", "C-c")
    shown = window.until_shown("stopping")
    assert not any(" left" in line for line in shown if "30 documents" in line)
    window.until_shown("ended with 130", "Interrupted: ")
    rest = window.lines(with_history=True)
    assert not any("━" in line for line in rest)
    assert not any(re.match(r"\d+ accepted", line) for line in rest)
