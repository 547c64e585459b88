"""``upload`` and ``batch`` look before they send: what a room, or a wrong address, costs."""

from __future__ import annotations

from collections import Counter

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import call, manifest

Capture = pytest.CaptureFixture[str]

CHECK, UPLOAD = "getActiveRoomInfo", "uploadWhiteboardFile"


def methods(server: MeetingServer) -> list[str]:
    """Name the requests that a server has seen."""
    return [request.path.rpartition("/")[2] for request in server.requests]


def test_small_documents_are_preceded_by_one_check(server: MeetingServer, capsys: Capture) -> None:
    """Two documents of 22 bytes cost one check."""
    assert call(capsys, "upload", "room01", "a.pdf", "b.pdf").code == 0
    assert methods(server) == [CHECK, UPLOAD, UPLOAD]


def test_a_batch_checks_each_room_once(server: MeetingServer, capsys: Capture) -> None:
    """Six documents for three rooms cost three checks."""
    manifest(server, rooms=3, documents=2)
    assert call(capsys, "batch", "m.csv").code == 0
    assert Counter(methods(server)) == {CHECK: 3, UPLOAD: 6}
    asked = Counter(request.room_id for request in server.requests if CHECK in request.path)
    assert set(asked.values()) == {1}


@pytest.mark.parametrize("command", ["upload", "batch"])
@pytest.mark.parametrize("stranger", ["404", "200", "302"])
def test_a_wrong_address_costs_one_check(
    server: MeetingServer,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    stranger: str,
) -> None:
    """The code is 1, not 3: nothing was sent, and the line says what to check."""
    manifest(server, rooms=2, documents=2)
    if stranger == "404":
        monkeypatch.setenv("MEETING_BASE_URL", f"{server.url}/wrong")
    else:
        headers = {"Location": "/login", "Content-Type": "text/html"}
        for path in (f"/room/{CHECK}", None):  # and everything else
            server.reply_next(
                int(stranger), body=b"<html>hello", headers=headers, path=path, times=99
            )
    arguments = ["room01", "a.pdf", "b.pdf"] if command == "upload" else ["m.csv"]
    done = call(capsys, command, *arguments)
    assert done.code == 1
    assert "check the base URL" in done.err
    assert "is unknown" not in done.err
    assert methods(server) == [CHECK]


def test_the_empty_form_overrules_the_check(server: MeetingServer, capsys: Capture) -> None:
    """A check that does not know the room does not keep the document from it."""
    server.refuse_next("ROOM_NOT_FOUND", path=f"/room/{CHECK}")
    assert call(capsys, "upload", "room01", "a.pdf").code == 0
    assert methods(server) == [CHECK, UPLOAD, UPLOAD]  # an empty form, and the document
    assert len(server.rooms["room01"].received) == 1
