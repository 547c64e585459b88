"""What ``docs/recipes.md`` says beyond what its programs print: disconnects, bars on a terminal."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from meeting_async.testing import MeetingServer
from support.sites import Browser, Site, eventually, form, serving

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text("utf-8")

pytestmark = pytest.mark.nightly


def programs(heading: str) -> list[str]:
    """Return the programs of a section."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


@pytest.fixture
def meeting() -> Iterator[MeetingServer]:
    """Run a meeting server."""
    server = MeetingServer()
    with server.run():
        yield server


@pytest.fixture
def site(meeting: MeetingServer, tmp_path: Path) -> Iterator[Site]:
    """Serve the application that sends events, without the lines that try it."""
    (program,) = programs("Server-sent events for one upload")
    code = program.split("\nwith TestClient")[0]
    (tmp_path / "recipe_app.py").write_text(code, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    with serving("recipe", meeting, tmp_path, PYTHONPATH=path) as site:
        yield site
    assert "Traceback" not in site.log
    assert "Task exception was never retrieved" not in site.log


def events(browser: Browser, name: str = "deck.pdf") -> Iterator[str]:
    """Send a form and yield the lines of the answer as they come."""
    browser.post("/rooms/room01/documents", form(b"%PDF-1.7", name))
    for line in browser.reply():
        yield line.decode().strip()


def test_a_browser_sees_what_happens(site: Site, meeting: MeetingServer) -> None:
    """The room is busy, then the document is sent, then it is there; each is told when it is so."""
    room = meeting.add_room("room01")
    room.lock()
    with site.browser() as browser:
        told = events(browser)
        assert next(line for line in told if line == "event: waiting")
        room.unlock()
        assert [line for line in told if line][-1].startswith('data: {"delivered": true')
    assert [file.name for file in room.received] == ["deck.pdf"]


def test_a_browser_that_goes_takes_its_upload_with_it(site: Site, meeting: MeetingServer) -> None:
    """While it waits for the room: it is cancelled, its room lock is free, and nothing arrives."""
    room = meeting.add_room("room01")
    room.lock()
    with site.browser() as browser:
        assert next(line for line in events(browser) if line == "event: waiting")
        browser.cut()
    assert eventually(lambda: site.connections(meeting)[0] == 0)
    room.unlock()
    with site.browser() as browser:
        assert [line for line in events(browser, "next.pdf") if line][-1].startswith("data: ")
    assert [file.name for file in room.accepted] == ["next.pdf"]


@pytest.mark.parametrize("heading", ["A progress bar for one upload", "A folder with tqdm"])
def test_bars_on_a_terminal(meeting: MeetingServer, tmp_path: Path, heading: str) -> None:
    """On a terminal the bar is drawn, and it gets to its end."""
    (tmp_path / "deck.pdf").write_bytes(b"%PDF-1.7" + bytes(2**20))
    for room_id in ("room01", "room02"):
        meeting.add_room(room_id)
    (program,) = programs(heading)
    assert re.search("100%|1.0/1.0 MB", on_a_terminal(program, meeting, tmp_path))


def on_a_terminal(code: str, meeting: MeetingServer, folder: Path) -> str:
    """Run a program on a terminal of 100 columns and return all that it drew."""
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (24, 100))
    variables = {
        "MEETING_BASE_URL": meeting.url,
        "MEETING_API_KEY": meeting.api_key,
        "MEETING_API_SECRET": meeting.api_secret,
        "TERM": "xterm",
    }
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {**os.environ, **variables}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave
    ) as process:
        os.close(slave)
        drawn = b""
        with contextlib.suppress(OSError):  # Linux says EIO when nobody has the other end
            while data := os.read(master, 65536):
                drawn += data
        os.close(master)
        assert process.wait(40) == 0, drawn.decode()
    return drawn.decode()
