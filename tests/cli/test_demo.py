"""``demo``: it says what it did, nothing else, and notices if that was not as expected."""

from __future__ import annotations

import re

import pytest

from meeting_async.cli.demo import stage
from meeting_async.testing import MeetingServer
from support.command_line import Result, call

Capture = pytest.CaptureFixture[str]
KINDS = ("handout.pdf", "timetable.txt", "syllabus.pdf", "diagram.png", "too-large.pdf")


def _check(done: Result) -> None:
    lines = done.out.splitlines()
    start = "\n".join(lines[:10])
    for name in KINDS:
        assert name in start
    assert "refused, not sent" in start
    assert "waited: the room was locked" in start
    assert max(map(len, lines)) < 80
    last = done.out.rstrip().rpartition("\n\n")[2].replace("\n", " ")
    assert re.fullmatch(r"Everything was as expected: [^.]+, in \d+\.\d s\.", last)
    assert done.err == ""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let it take less time to be watched."""
    if "nightly" not in request.keywords:
        monkeypatch.setattr(stage, "PROCESSING_SECONDS", 0.1)
        monkeypatch.setattr(stage, "LOCK_SECONDS", 1.0)


def test_what_it_says(capsys: Capture) -> None:
    """Ten lines on every kind of document, and one sentence in the end."""
    done = call(capsys, "demo")
    assert done.code == 0
    _check(done)
    assert re.search(r"first run +\d+ accepted, then stopped", done.out)
    assert re.search(r"second run +\d+ accepted, \d+ accepted before, 5 without a room", done.out)


@pytest.mark.nightly
def test_it_notices_what_is_wrong(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A demonstration that cannot fail would prove nothing."""
    lock = MeetingServer.add_room

    def add_room(server: MeetingServer, room_id: str, **facts: object) -> object:
        room = lock(server, room_id, **facts)  # type: ignore[arg-type]  # as they come
        room.fail_conversion = room_id in {"room01", "class02"}
        return room

    monkeypatch.setattr(MeetingServer, "add_room", add_room)
    done = call(capsys, "demo")
    assert done.code == 1
    assert "not as expected: handout.pdf to room01: " in done.err
    assert "class02 received nothing" in done.err
    assert done.out.splitlines()[-1].startswith("Not everything was as expected: ")
