"""What is shown while documents are sent: words for events, bars on a terminal, lines elsewhere.

Also in a real terminal: 80 columns, resumed, resized, interrupted.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
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
from meeting_async._text import duration, size
from meeting_async.cli.console import Output
from meeting_async.cli.display import Bars, Lines, words_for
from meeting_async.testing import MeetingServer
from support.command_line import PROGRAM, accepted, call, manifest, until
from support.programs import Process, drawn_by, run_to_its_end
from support.reports import LOST, STOPPED, attempt, outcome, report_of

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
    sizes = (1, 1023, 1024, 1024**2 - 1, 30 * 1024**2, 5 * 1024**3, 2000 * 1024**4)
    assert [size(n) for n in sizes] == [
        "1 byte", "1,023 bytes", "1.0 KiB", "1.0 MiB", "30.0 MiB", "5.0 GiB", "2,000.0 TiB"
    ]  # fmt: skip
    times = (0, 0.0123, 0.9996, 1, 59.96, 61.4, 3599.6, 90_060)
    assert [duration(s) for s in times] == [
        "0 s", "12 ms", "1.0 s", "1.0 s", "1 min 0 s", "1 min 1 s", "1 h 0 min", "25 h 1 min"
    ]  # fmt: skip


TERMINAL: dict[str, Any] = {"force_terminal": True, "legacy_windows": False}
"""Options of a console."""


def _bars(width: int = 80, height: int = 24, **facts: Any) -> Bars:
    console = Console(file=io.StringIO(), width=width, height=height, **TERMINAL)
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
    """What was skipped is not done, and no time is left; one document needs no sums."""
    stopped = [outcome(n, status="skipped", error=STOPPED) for n in range(6, 10)]
    failed = [outcome(n, status="failed", error=LOST) for n in range(1, 6)]
    bars, one = _bars(documents=10), _bars(documents=1)
    sent = outcome(0, attempts=(attempt(bytes_sent=3 * 1024**2),))
    bars.report = report_of([sent, *failed, *stopped])
    time.sleep(0.02)  # more than a step of Windows' clock, or there would be no speed
    sums, total, *_ = _frame(bars)
    assert sums == "1 accepted, 5 failed, 4 skipped"
    assert re.fullmatch(r"6 of 10 documents .*━ .*[\d.,]+ [MGT]iB/s", total)
    one.report = report_of([sent])
    assert _frame(one) == []


@pytest.mark.parametrize("is_stopping", [False, True])
def test_the_time_left_is_of_this_run(monkeypatch: pytest.MonkeyPatch, is_stopping: bool) -> None:
    """What was delivered before takes no time; after Ctrl-C the rest is not sent at all.

    Sums, speed and time are shown in full at 80 columns.
    """
    bars = _bars(documents=1000)
    before = [outcome(n) for n in range(100)]
    bars.report = report_of(before)
    bars.tick()
    earlier = [outcome(100 + n, status="skipped") for n in range(400)]
    bars.report = report_of([*before, *earlier, *(outcome(500 + n) for n in range(10))])
    bars.is_stopping = is_stopping
    now = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: now() + 100)  # so it took 10 s for each
    words = "stopping" if is_stopping else r"1 h 2[12] min left"
    sums, total = _frame(bars)
    assert sums == "110 accepted, 400 accepted before"
    assert re.fullmatch(rf"510 of 1,?000 documents .* [\d.]+ KiB/s, {words}", total)
    assert "…" not in total


def test_a_frame_is_erased_also_if_it_was_wrapped() -> None:
    """A terminal that has got narrower shows a long line in several rows.

    Where it can, it is told not to: what is drawn before the program learns of it is cut.
    """
    console = Console(file=io.StringIO(), width=80, height=24, color_system=None, **TERMINAL)
    bars = Bars(Output(), console, documents=2)
    with bars:
        bars(_event(AttemptStarted, attempt=1, document="a long name of a document.pdf"))
        bars._progress.refresh()
        erased = []
        for console.width in (20, 80):
            written = console.file.tell()
            bars._progress.refresh()
            console.file.seek(written)
            begin, end = console.file.read().split("accepted")
            erased.append(begin.count("\x1b[1A"))
            assert begin.rstrip("0 ").endswith("\x1b[?7l")
            assert end.endswith("\x1b[?7h")
    # Sums, total and upload were a row each, and are one, three and three now; then one each again.
    assert erased == [6, 2]


@pytest.mark.parametrize("width", [40, 80])
def test_long_texts_leave_room_for_each_other(width: int) -> None:
    """Name, bar and words are all there, and the terminal's ^C does not wrap the last line."""
    bars = _bars(width, 7, documents=8)  # as many lines as it needs
    bars.report = report_of(
        [outcome(n, status=s) for n, s in enumerate(("failed", "refused", "unknown"))]
    )
    for number in range(2):
        bars(_event(WaitingForRoom, number, document=f"{'long ' * 20}.pdf", **WAIT))
    shown = _frame(bars)
    assert len(shown) == 4
    sums = "0 accepted, 1 refused, 1 failed, 1 unknown"
    assert shown[0] == (sums if width == 80 else "0 accepted, 1 refused, 1 failed, 1 un…")
    for line in shown[1:]:
        assert re.match(r"(3 of 8|room01) .*[━╸╺]{10} (\d+ ms|[\d.]+ s|the room)", line)
        assert len(line) <= width - 2


def test_bars_fit_the_terminal() -> None:
    """As many rooms as it has lines for; a finished upload has no bar any more."""
    bars = _bars(height=10, documents=100)
    for number in range(20):
        bars(_event(AttemptStarted, number, attempt=1, document=f"{number}.pdf"))
    bars(_event(WaitingForRoom, 1, **WAIT))
    bars(_event(Finished, 0, verdict=Verdict.ACCEPTED, attempts=1, seconds=1.0))
    bars(_event(AttemptStarted, 99, attempt=1, document=None))  # a JSON call
    bars(_event(BytesSent, 2, attempt=1, sent=1, total=2, document="[2]\x1b.pdf"))
    bars(_event(RetryScheduled, 3, **{**CUT, "reason": "[b]cut"}))
    bars(_event(Started, 98))  # it may be refused at once, and an empty bar says nothing
    bars(_event(Finished, 98, verdict=Verdict.FAILED, attempts=0, seconds=0.0))
    assert _frame(_bars(height=2, documents=2))[1].startswith("0 of 2 documents")
    shown = _frame(bars)
    assert len(shown) <= 10 - 2
    assert "room01  1.pdf" in shown[2]
    assert "the room is locked, again in" in shown[2]
    assert re.fullmatch(r"room01  2\.pdf +━{5}[╸╺ ].* sending 50%", shown[3])
    assert "[b]cut, again in" in shown[4]
    assert shown[-1] == "and 14 more"
    assert all(len(line) <= 80 for line in shown)


def test_lines_do_not_repeat_themselves(capsys: Capture) -> None:
    """A room is not told each time it is asked, nor each upload that cannot reach the server.

    Of that the first retry tells, with the address and the reason: it may be the wrong port.
    What is sent for long says so every ten seconds.
    """
    one, batch = Lines(Output(), 1, detailed=True), Lines(Output(), 2, detailed=False)
    for _ in range(5):
        one(_event(WaitingForRoom, **WAIT))
    for attempt_ in (1, 2):
        one(_event(AttemptStarted, attempt=attempt_))
        one(_event(BytesSent, attempt=attempt_, sent=1, total=2))
    assert len(capsys.readouterr().err.splitlines()) == 2
    now = time.monotonic
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.monotonic", lambda: now() + 10)
        for _ in range(2):
            one(_event(BytesSent, attempt=2, sent=1, total=2))
    told = "meeting-async: a.pdf to room room01: sending 50% (attempt 2)\n"
    assert capsys.readouterr().err == told
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
    lines.tick()
    told = capsys.readouterr().err
    assert told == "meeting-async: 2 of 3 documents: 1 accepted, 1 accepted before\n"


def test_a_terminal_that_cannot_redraw(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor's (``TERM=dumb``) has lines, too, with escapes for what it has no letters for."""
    monkeypatch.setenv("TERM", "dumb")
    Path("a.pdf").rename("ü.pdf")
    leader, follower = os.openpty()
    with open(follower, "w", encoding="ascii") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert call(capsys, "upload", "room01", "ü.pdf").code == 0
        told = os.read(leader, 65536)
    os.close(leader)
    assert told == b"meeting-async: \\xfc.pdf to room room01: sending\r\n"


# --- on a terminal -------------------------------------------------------------------------------


def test_on_a_terminal(server: MeetingServer) -> None:
    """Bars while it lasts, and then only the result; Ctrl-C typed there finishes the upload.

    No line is cut or wrapped, and names are shown as they are.
    """
    server.rooms["room01"].processing_seconds = 1.0
    name = f"[b]{'a' * 90}.pdf"
    Path("a.pdf").rename(name)
    Path(":bug:").mkdir()
    Path("c.pdf").rename(":bug:/c.pdf")

    def interrupt(process: Process) -> None:
        until(lambda: accepted(server) == 2)
        process.terminate()

    command = [*PROGRAM, "upload", "room01", name, "b.pdf", ":bug:/c.pdf"]
    environ = {**os.environ, "COLUMNS": "70"}
    code, text = drawn_by(command, meanwhile=interrupt, env=environ)
    assert code == 130
    for words in (
        *("━", "room01  [b]aaa", "sent, waiting for the answer"),
        *("1 of 3 documents", "1 accepted", "stopping"),
        *(f"{name}: accepted by room01 (22 bytes, ", "meeting-async: :bug:/c.pdf: skipped"),
    ):
        assert words in text
    lines = [re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", text)]
    assert not any(re.search("━ *$", line) for line in lines)  # a bar without words
    assert text.count("accepted by room01") == 2
    assert any("2 of 3 documents delivered; 1 left to send" in line for line in lines)
    note = "finishing the running uploads; press Ctrl-C again to cancel them"
    assert f"meeting-async: {note}" in lines
    assert text.endswith("\n")
    assert "\x1b[?25h" in text.split("━")[-1]  # the cursor is back


needs_tmux = pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux (Debian: tmux)")
_HIDDEN = {"COLUMNS", "LINES", "TMUX", "TMUX_PANE"}


class Terminal:
    """A window of tmux in which one command runs, and then its exit code stands."""

    def __init__(self, socket: Path) -> None:
        self._tmux = ["tmux", "-u", "-S", str(socket), "-f", os.devnull]

    def ask(self, *arguments: object) -> str:
        """Give tmux a command."""
        environ = {name: os.environ[name] for name in os.environ if name not in _HIDDEN}
        command = [*self._tmux, *map(str, arguments)]
        return run_to_its_end(command, environment={**environ, "LC_ALL": "C.UTF-8"})

    def start(self, columns: int, lines: int, *arguments: object) -> None:
        """Run the command line at the bottom of a window of that size.

        Where there is room below, tmux moves what wrapping adds into the history, out of reach.
        """
        command = shlex.join([*PROGRAM, *map(str, arguments)])
        script = f"seq {lines}; {command}; echo ended with $?; sleep 60"
        self.ask("new-session", "-d", "-x", columns, "-y", lines, "bash", "-c", script)

    def lines(self, *, with_history: bool = False) -> list[str]:
        """Return what it shows, and what has scrolled out of it."""
        history = ["-S", "-"] if with_history else []
        return self.ask("capture-pane", "-p", *history).rstrip("\n").split("\n")

    def until_shown(self, *texts: str) -> list[str]:
        """Wait until the screen shows all texts, and return its lines."""
        until(lambda: all(text in "\n".join(self.lines()) for text in texts))
        return self.lines()


@pytest.fixture
def window() -> Iterator[Terminal]:
    """Open a terminal; what runs in it ends with it."""
    with TemporaryDirectory(dir="/tmp") as folder:  # a socket's path has 107 bytes at most
        opened = Terminal(Path(folder, "tmux"))
        try:
            yield opened
        finally:
            with contextlib.suppress(AssertionError):
                opened.ask("kill-server")


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
        window.ask("resize-window", "-x", columns, "-y", 24)
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
