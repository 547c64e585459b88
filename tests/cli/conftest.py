"""A folder with documents and a manifest, no settings, and a server to export."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import export
from support.documents import PDF


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.delenv(name, raising=False)  # nothing left in a buffer; compiled each time
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    for name in ("a.pdf", "b.pdf", "c.pdf"):
        Path(name).write_bytes(PDF)
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\n")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MeetingServer]:
    """Run a server with three rooms; the environment leads to it."""
    server = MeetingServer()
    for room_id in ("room01", "room02", "room03"):
        server.add_room(room_id)
    with server.run():
        export(monkeypatch, server)
        yield server


@pytest.fixture
def stdin() -> Iterator[Callable[[bytes | Path], None]]:
    """Give commands in this process a file, or a pipe with some bytes, as their stdin."""
    before = os.dup(0)

    def give(content: bytes | Path) -> None:
        if isinstance(content, Path):
            source = os.open(content, os.O_RDONLY)
        else:
            source, writing = os.pipe()
            os.write(writing, content)
            os.close(writing)
        os.dup2(source, 0)
        os.close(source)

    yield give
    os.dup2(before, 0)
    os.close(before)
