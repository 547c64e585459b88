"""What the command line shows: text, exit codes, lines and bars. No server and no loop."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

import pytest

from _terminal import Terminal, lines_of
from meeting_async import (
    AttemptStarted,
    BytesSent,
    Event,
    Finished,
    Queued,
    RetryScheduled,
    WaitingForRoom,
    errors,
)
from meeting_async.cli._console import console_on, has_bars, printable
from meeting_async.cli._outcomes import ExitCode, Outcome, combined, readable_size
from meeting_async.cli._progress import LINE_INTERVAL, Bars, Lines, display_on
from meeting_async.cli._status import Status, status_after


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what would tell rich how to draw."""
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 漢字 🎓", "plain ü 漢字 🎓"),
        ("a\nb\tc", "a b c"),
        ("\x1b[31mred\x07", "\ufffd[31mred\ufffd"),
        ("fdp.\u202egpj", "fdp.\ufffdgpj"),
        ("\udc80", "\ufffd"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    """Nothing that is printed can steer a terminal or turn its text around."""
    assert printable(text) == shown


# --- exit codes and outcomes ---------------------------------------------------------------------

FACTS = ("room/uploadWhiteboardFile", "room01", 400, None, "no")


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (errors.UploadOutcomeUnknown("room01", "a", 1, 1, "lost", 300.0), "unknown", 3),
        (errors.RoomBusy("room01", 330.0, "409"), "busy", 75),
        (errors.InvalidInput("x", "y", "is bad", "mend it"), "refused", 2),
        (errors.ConfigurationError("x", "y", "is bad", "mend it"), "refused", 2),
        (errors.DocumentUnreadable("a", "no such file"), "failed", 2),
        (errors.DocumentChanged("a", "it is gone"), "failed", 1),
        (errors.DocumentEmpty("a"), "refused", 1),
        (errors.DocumentTooLarge("a", 2, 1), "refused", 1),
        (errors.RoomNotActive(*FACTS), "refused", 1),
        (errors.ProcessingFailed(*FACTS), "failed", 1),
        (errors.Throttled(*FACTS, None), "failed", 1),
        (errors.DeadlineExceeded("x", 1.0, "sending"), "failed", 1),
        (errors.UploadInterrupted("reset", "room01", "a", 5), "failed", 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_has_an_outcome_and_a_code(
    error: errors.MeetingError, outcome: str, code: int
) -> None:
    """The table that scripts rely on."""
    error.add_note("a note")
    ended = Outcome(room_id="room01", document="a", outcome="cancelled", size=1)
    ended = ended.failed(error, seconds=1.25)
    assert (ended.outcome, ended.exit_code, ended.as_json()["seconds"]) == (outcome, code, 1.25)
    assert ended.as_json()["error"] == {
        "type": type(error).__name__, "message": str(error), "notes": ["a note"]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("codes", "code"),
    [([], 0), ([0, 0], 0), ([0, 75], 75), ([75, 1, 0], 1), ([1, 3, 75, 2], 3), ([2, 75], 2)],
)
def test_the_worst_code_wins(codes: list[int], code: int) -> None:
    """Unknown before failed before busy."""
    assert combined(map(ExitCode, codes)) == code


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1024.0 KiB"),
        (30 * 2**20, "30.0 MiB"),
    ],
)
def test_readable_size(size: int, text: str) -> None:
    """In the units of ``max_size_whiteboard_file``."""
    assert readable_size(size) == text


# --- progress ------------------------------------------------------------------------------------


def event(kind: type[Event], call: int = 1, **facts: Any) -> Event:
    """Make an event of an upload."""
    common: Mapping[str, Any] = {"operation": "room/uploadWhiteboardFile", "document": "deck.pdf"}
    return kind(**{"call": call, "room_id": "room01", **common, **facts})


STATUSES = [
    (event(Queued, shut_for=0.0), "waiting for its turn", 0),
    (event(Queued, shut_for=9.0), "shut after an unknown outcome, goes on in 8.0 s", 0),
    (event(AttemptStarted, attempt=1), "sending", 0),
    (event(AttemptStarted, attempt=2), "sending (attempt 2)", 0),
    (event(BytesSent, attempt=1, sent=1, total=4), "sending 25%", 0.25),
    (event(BytesSent, attempt=3, sent=4, total=4), "sent, waiting for the answer", 1),
    (
        event(WaitingForRoom, attempt=2, retry_in=1.5, waited=1.0, max_wait=330.0),
        "room is busy: attempt 3 in 0.5 s",
        0,
    ),
    (
        event(RetryScheduled, attempt=1, retry_in=0.5, verdict="partial", reason="reset"),
        "reset: attempt 2 in 0.0 s",
        0,
    ),
    (event(Finished, verdict="accepted", attempts=1, seconds=2.0), "delivered in 2.0 s", 1),
    (
        event(Finished, verdict="accepted", attempts=3, seconds=2.0),
        "delivered in 2.0 s, 3 attempts",
        1,
    ),
    (event(Finished, verdict="busy", attempts=1, seconds=2.0), "busy after 2.0 s", 0),
]


@pytest.mark.parametrize(
    ("happened", "text", "share"), STATUSES, ids=[text for _, text, _ in STATUSES]
)
def test_status_tells_what_goes_on(happened: Event, text: str, share: float) -> None:
    """A second after the event, so that countdowns have counted."""
    status = status_after(happened, 100.0)
    assert (status.text(101.0), status.share) == (text, share)


def test_status_of_an_event_of_the_future() -> None:
    """A kind of event that is not known yet changes no display."""
    assert status_after(event(Event), 0.0) == Status()


def test_lines_tell_what_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Milestones of the first attempt, each wait, now and then the progress, and the end."""
    now = 1000.0
    monkeypatch.setattr("meeting_async.cli._progress.time.monotonic", lambda: now)
    stream = io.StringIO()
    with Lines(console_on(stream), stays=True) as lines:
        lines.expect("room01", "deck.pdf", "the deck")
        lines(event(AttemptStarted, attempt=1))
        lines(event(BytesSent, attempt=1, sent=1, total=4))
        now += LINE_INTERVAL
        lines(event(BytesSent, attempt=1, sent=2, total=4))
        lines(event(BytesSent, attempt=1, sent=4, total=4))
        lines(event(WaitingForRoom, attempt=1, retry_in=0.5, waited=0.0, max_wait=330.0))
        lines(event(AttemptStarted, attempt=2))
        lines(event(BytesSent, attempt=2, sent=4, total=4))
        lines(event(Finished, verdict="accepted", attempts=2, seconds=11.0))
        lines(event(AttemptStarted, 2, attempt=1, document="a.pdf"))
    assert stream.getvalue().splitlines() == [
        "room01  the deck  sending",
        "room01  the deck  sending 50%",
        "room01  the deck  sent, waiting for the answer",
        "room01  the deck  room is busy: attempt 2 in 0.5 s",
        "room01  the deck  delivered in 11.0 s, 2 attempts",
        "room01  a.pdf     sending",
    ]


def test_lines_are_never_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log has no width; and ends that are told elsewhere are not told here."""
    monkeypatch.setenv("COLUMNS", "20")
    stream = io.StringIO()
    with Lines(console_on(stream), stays=False) as lines:
        lines(event(AttemptStarted, attempt=1, document="long " * 20 + "\x1b[31m[red]"))
        lines(event(Finished, verdict="accepted", attempts=2, seconds=11.0))
    assert stream.getvalue() == f"room01  {'long ' * 20}\ufffd[31m[red]  sending\n"


def test_bars_are_redrawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal; announced uploads are there from the start, in their order."""
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    display = display_on(console_on(terminal.stream), stays=True)
    assert isinstance(display, Bars)
    with display:
        display.expect("room01", "deck.pdf", "the [deck]")
        display.expect("room01", "deck.pdf", "the deck again")
        display(event(AttemptStarted, 7, attempt=1))
        display(event(BytesSent, 7, attempt=1, sent=1, total=2))
        display(event(AttemptStarted, 8, attempt=1))
        display(event(Finished, 8, verdict="accepted", attempts=1, seconds=1.0))
    shown = terminal.close()
    first, second = lines_of(shown)[-2:]
    assert re.fullmatch("room01  the .deck.      \u2501+[\u2578\u257a]?\u2501+  sending 50%", first)
    assert re.fullmatch("room01  the deck again  \u2501{16}  delivered in 1.0 s", second)
    assert "\x1b[?25l" in shown  # the cursor was hidden …
    assert "\x1b[?25h" in shown  # … and is back


def test_names_give_way_to_what_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal of 80 columns, with names of any length."""
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    with Bars(console_on(terminal.stream), stays=True) as bars:
        bars(event(AttemptStarted, attempt=12, room_id="r" * 60, document="d" * 60 + ".pdf"))
    (line,) = {*lines_of(terminal.close())}
    assert re.fullmatch("r+\u2026  d+\u2026  \u2501{16}  sending .attempt 12.", line)
    assert len(line) == 80


@pytest.mark.parametrize(
    ("environ", "is_terminal", "bars"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "xterm", "FORCE_COLOR": "1"}, False, False),
    ],
)
def test_bars_are_for_terminals(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], is_terminal: bool, bars: bool
) -> None:
    """Neither a file nor a dumb terminal gets them, whatever is said about colours."""
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    terminal = Terminal()
    stream = terminal.stream if is_terminal else io.StringIO()
    assert has_bars(console_on(stream)) is bars
    terminal.close()
