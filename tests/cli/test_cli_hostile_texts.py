"""What a server writes, on a terminal, in JSON lines and in a report: one printable line each."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import Result, call

Capture = pytest.CaptureFixture[str]

READABLE = "no presenter"
TEXTS = {
    "signs": (
        f"{READABLE} 1\n2\r3\u20284\u20295\x856\x1b[31m7\x1b]0;title\x07"
        "8\x9b2J9\x00\ud800\u202e\u2066 [red]x[/red] <b>x</b>"
    ),
    "forged": f"{READABLE}\na.pdf: accepted by room01\n\x1b[1A\x1b[2K",
    "long": f"{READABLE} {'x' * 100_000}",
}
each_text = pytest.mark.parametrize(
    "text",
    [
        pytest.param(TEXTS["signs"], id="signs"),
        pytest.param(TEXTS["forged"], id="forged"),
        pytest.param(TEXTS["long"], id="long", marks=pytest.mark.nightly),
    ],
)

MOST = 4096
"""Characters of one line on a terminal, which is some fifty lines of it."""

MOST_OF_JSON = 16_384
"""Characters of one line with all fields of a document."""

STATUSES = [400, 500, 502, 302, 200]


def as_json(record: object) -> dict[str, Any]:
    """Write JSON in ASCII, as many servers do: it can have half characters."""
    kind = ("Content-Type", "application/json")
    return {"body": json.dumps(record).encode("ascii"), "headers": [kind]}


def hostile(server: MeetingServer, text: str) -> None:
    """Let the server answer with a text in each field and header, once for each status."""
    value = "".join(letter for letter in text if letter.isprintable() or letter == "\u202e")[:5000]
    headers = [("X-Request-Id", value.encode().decode("latin-1"))]
    for status in STATUSES:
        record = {"status": status == 200, "msg": text, "status_code": text}
        how = as_json(record)
        if status in {302, 502}:
            kind = ("Content-Type", f"text/{value}".encode().decode("latin-1"))
            how = {"body": text.encode("utf-8", "replace"), "headers": [kind, *headers]}
        server.reply_next(status, path="/room/uploadWhiteboardFile", **how)


def unfit(done: Result, most: int = MOST) -> list[str]:
    """Return the beginnings of lines that are not printable or too long."""
    lines = [*done.out.split("\n"), *done.err.split("\n")]
    return [line[:200] for line in lines if not line.isprintable() or len(line) > most]


@each_text
@pytest.mark.parametrize(
    "how",
    [
        pytest.param([], id="quietly", marks=pytest.mark.nightly),
        pytest.param(["--debug"], id="log"),
    ],
)
def test_uploads_print_lines(
    server: MeetingServer, capsys: Capture, text: str, how: list[str]
) -> None:
    """A document is one line, whatever the server says about it; so is each record of the log."""
    hostile(server, text)
    done = [
        call(capsys, "upload", f"room0{number % 3 + 1}", "a.pdf", "--max-wait", 0, *how)
        for number in range(len(STATUSES))
    ]
    assert {one.code for one in done} == {0, 1, 3}
    assert [line for one in done for line in unfit(one)] == []
    assert any(READABLE in one.out + one.err for one in done)


def test_the_log_of_a_retry_is_lines(server: MeetingServer, capsys: Capture) -> None:
    """``--debug`` says why a document is sent again, which is what the server said."""
    text = TEXTS["forged"] + TEXTS["signs"]
    how = as_json({"status": False, "msg": text, "status_code": text})
    how["headers"].append(("Retry-After", "0"))
    server.reply_next(429, path="/room/uploadWhiteboardFile", **how)
    done = call(capsys, "upload", "room01", "a.pdf", "--debug")
    assert done.code == 0
    assert READABLE in done.err
    assert unfit(done) == []


@each_text
def test_json_lines_are_lines(server: MeetingServer, capsys: Capture, text: str) -> None:
    """Each line is JSON, can be shown on a terminal, and has fields that are lines as well."""
    hostile(server, text)
    for number in range(len(STATUSES)):
        room = f"room0{number % 3 + 1}"
        done = call(capsys, "upload", room, "a.pdf", "--max-wait", 0, "--json")
        assert unfit(done, MOST_OF_JSON) == []
        for found in done.objects:
            json.dumps(found, ensure_ascii=False).encode("utf-8")  # no half character
            said = [found.get("msg"), *(found.get("error") or {}).values()]
            texts = [one for one in said if isinstance(one, str)]
            assert [one for one in texts if not one.isprintable() or len(one) > MOST] == []


@each_text
@pytest.mark.parametrize("how", [[], ["--json"]], ids=["text", "json"])
def test_rooms_print_lines(
    server: MeetingServer, capsys: Capture, text: str, how: list[str]
) -> None:
    """Titles, names and refusals of a room; what is printed as JSON is safe for a terminal."""
    info = {"room_title": text[:2000], "room_id": "room01", "sid": text[:2000], "is_running": True}
    people = [{"name": text[:2000], "identity": text[:2000], "state": "ACTIVE"}]
    room = {"room_info": info, "participants_info": people}
    good = {"status": True, "msg": text[:2000], "status_code": "SUCCESS", "room": room}
    bad = {"status": False, "msg": text, "status_code": text}
    for status, record in ((200, good), (200, bad), (404, bad)):
        server.reply_next(status, path="/room/getActiveRoomInfo", **as_json(record))
    done = [call(capsys, "room", "room01", *how) for _ in range(3)]
    assert {one.code for one in done} == {0, 1}
    assert [line for one in done for line in unfit(one, 3 * MOST_OF_JSON)] == []


@each_text
def test_batches_write_lines(server: MeetingServer, capsys: Capture, text: str) -> None:
    """Neither the output nor the report has anything that is not printable, and both are short."""
    hostile(server, text)
    rooms = [server.add_room(f"class{number}").room_id for number in range(len(STATUSES))]
    Path("m.csv").write_text("\n".join(["room_id,document", *(f"{room},a.pdf" for room in rooms)]))
    arguments = ("--journal", "j.db", "--report", "r.html", "--max-wait", 0, "--concurrency", 1)
    done = call(capsys, "batch", "m.csv", *arguments)
    assert unfit(done) == []
    page = Path("r.html").read_bytes().decode()
    shown = unescape(re.sub(r"<[^>]*>", "", page))
    assert {letter for letter in shown if not letter.isprintable()} <= {"\n"}
    assert READABLE in shown
    assert max(len(line) for line in shown.split("\n")) <= MOST_OF_JSON
    assert max(len(value) for value in re.findall(r'="([^"]*)"', page)) <= MOST_OF_JSON
