"""A folder with documents, an environment without settings, and a server to export."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import PDF, export


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MEETING_")]:
        monkeypatch.delenv(name)
    for name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.delenv(name, raising=False)  # nothing left in a buffer; compiled each time
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    for name in ("a.pdf", "b.pdf", "c.pdf"):
        Path(name).write_bytes(PDF)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MeetingServer]:
    """Run a server with three rooms; the environment leads to it."""
    server = MeetingServer()
    for room_id in ("room01", "room02", "room03"):
        server.add_room(room_id)
    with server.run():
        export(monkeypatch, server)
        yield server
