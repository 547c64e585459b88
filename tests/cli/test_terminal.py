"""The live display of a batch in a real terminal: 80 columns, resumed, resized, interrupted."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import accepted, call, manifest, until
from support.terminal import Terminal, needs_tmux, terminal

pytestmark = [needs_tmux]


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Terminal]:
    """Open a terminal."""
    with terminal(tmp_path) as window:
        yield window


def _slow(server: MeetingServer, rooms: int, seconds: float) -> None:
    for room in range(rooms):
        server.rooms[f"class{room}"].processing_seconds = seconds


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


@pytest.mark.nightly
def test_a_resumed_batch_at_80_columns(
    server: MeetingServer, capsys: pytest.CaptureFixture[str], window: Terminal
) -> None:
    """Sums, speed and time left are all there, each in full."""
    manifest(server, rooms=2, documents=100)
    lines = Path("m.csv").read_text().splitlines()
    Path("part.csv").write_text("\n".join(lines[: 1 + 120]))
    assert call(capsys, "batch", "part.csv", "--journal", "j.db").code == 0
    _slow(server, 2, 0.1)
    window.start(80, 24, "batch", "m.csv", "--journal", "j.db")
    window.until_shown("120 accepted before", " left")
    shown = window.lines()
    (sums,) = [line for line in shown if "accepted before" in line]
    assert re.fullmatch(r"\d+ accepted, 120 accepted before", sums)
    (total,) = [line for line in shown if "of 200 documents" in line]
    assert re.search(r"/s, (\d+ min \d+ s|[\d.]+ s) left$", total), total
    assert "…" not in "".join(shown)
    window.ask("send-keys", "C-c")
    window.until_shown("ended with 130")


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
        server.rooms[f"class{room}"].unlock()
    _slow(server, 3, 0.5)
    until(lambda: accepted(server) >= 6)
    window.ask("send-keys", "C-c")
    shown = window.until_shown("stopping")
    assert not any(" left" in line for line in shown if "30 documents" in line)
    window.until_shown("ended with 130", "Interrupted: ")
    rest = window.lines(with_history=True)
    assert not any("━" in line for line in rest)
    assert not any(re.match(r"\d+ accepted", line) for line in rest)
