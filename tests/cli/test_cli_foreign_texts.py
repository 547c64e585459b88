"""What a server writes and repeats, in the output of each command and in the files that it makes.

Everything is one printable line on a terminal, in JSON lines and in a report; no secret is in it.
"""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import Result, call
from support.peer import Peer
from support.repeating import GREETING, KEY, SECRET, Answer, Repeater, as_bytes, page
from support.telling import containing, files

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
COMMANDS = {
    # command, of which ROOM is a room: what is answered with such a text
    "upload ROOM a.pdf --max-wait 0": "document",
    "upload ROOM a.pdf --max-wait 0 --debug": "document",
    "upload ROOM a.pdf --max-wait 0 --debug --json": "document",
    "room ROOM": "check",
    "room ROOM --debug --json": "check",
    "batch m.csv --journal j.db --report r.html --max-wait 0 --concurrency 1": "document",
    "batch m.csv --journal j.db --report r.html --max-wait 0 --concurrency 1 --json": "document",
}
MOST = 4096
"""Characters of one line on a terminal, which is some fifty lines of it."""
MOST_OF_JSON = 16_384
"""Characters of one line with all fields of a document; the whole reply about a room is more."""


def answers(text: str, repeats: str) -> list[Answer]:
    """Make answers with a text, and with what the request has sent, in each place."""
    places = ["msg", "status_code", "header", "field", "page"]

    def answering(place: str, status: int) -> Answer:
        shown = "" if place == "header" else text[:2000] if status == 200 else text
        return lambda values: as_bytes(status, page(place, status, [*values, shown]))

    # After a page of a proxy documents ask first, and a check is repeated.
    usual = [answering(place, status) for status in (200, 302, 400) for place in places[:-1]]
    pages = [("page", 400), ("page", 502)] if repeats == "document" else [("page", 404)]
    return [*usual, *(answering(place, status) for place, status in [*pages, ("msg", 502)])]


def unfit(done: list[Result], most: int) -> list[str]:
    """Return the beginnings of lines that are not printable or too long."""
    lines = [line for one in done for line in [*one.out.split("\n"), *one.err.split("\n")]]
    return [line[:200] for line in lines if not line.isprintable() or len(line) > most]


def check_objects(done: list[Result]) -> None:
    """See that what is said in JSON is lines as well, which strict tools can read."""
    for found in [found for one in done for found in one.objects]:
        own = {name: value for name, value in found.items() if name != "reply"}
        json.dumps(own, ensure_ascii=False).encode("utf-8")  # no half character
        said = [found.get("msg"), *(found.get("error") or {}).values()]
        texts = [one for one in said if isinstance(one, str)]
        assert [one for one in texts if not one.isprintable() or len(one) > MOST] == []


def check_report() -> None:
    """See that a report has nothing that is not printable, and that it is short."""
    html = Path("r.html").read_bytes().decode()
    shown = unescape(re.sub(r"<[^>]*>", "", html))
    assert {letter for letter in shown if not letter.isprintable()} <= {"\n"}
    assert READABLE in shown
    assert max(len(line) for line in shown.split("\n")) <= MOST_OF_JSON
    assert max(len(value) for value in re.findall(r'="([^"]*)"', html)) <= MOST_OF_JSON


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=name, marks=pytest.mark.nightly if name == "long" else ())
        for name, text in TEXTS.items()
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_foreign_texts(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str, text: str
) -> None:
    """As text, as JSON, with the log of ``--debug``, in a journal, in a report."""
    each = answers(text, COMMANDS[command])
    repeater, is_batch = Repeater(each, COMMANDS[command]), command.startswith("batch")
    lines = ["room_id,document", *(f"class{number},a.pdf" for number in range(len(each)))]
    Path("m.csv").write_text("\n".join(lines))
    with Peer(repeater) as peer:
        for name, value in (("BASE_URL", peer.url), ("API_KEY", KEY), ("API_SECRET", SECRET)):
            monkeypatch.setenv(f"MEETING_{name}", value)
        done = [
            call(capsys, *command.replace("ROOM", f"class{number}").split())
            for number in range(1 if is_batch else len(each))
        ]
    is_room = command.startswith("room")
    assert {one.code for one in done} == ({3} if is_batch else {0, 1} if is_room else {0, 1, 3})
    assert any(GREETING in one.out + one.err and READABLE in one.out + one.err for one in done)
    most = MOST_OF_JSON if "--json" in command else MOST
    assert unfit(done, 3 * MOST_OF_JSON if is_room else most) == []
    if "--json" in command:
        check_objects(done)
    if is_batch:
        assert Path("j.db").exists()
        check_report()
    outputs = [("stdout", one.out) for one in done] + [("stderr", one.err) for one in done]
    assert len(repeater.seen) > 1
    assert containing([*outputs, *files(Path())], {*repeater.seen, SECRET}) == []


def test_the_log_of_a_retry_is_lines(server: MeetingServer, capsys: Capture) -> None:
    """``--debug`` says why a document is sent again, which is what the server said."""
    text = TEXTS["forged"] + TEXTS["signs"]
    record = json.dumps({"status": False, "msg": text, "status_code": text}).encode("ascii")
    headers = [("Content-Type", "application/json"), ("Retry-After", "0")]
    path = "/room/uploadWhiteboardFile"
    server.reply_next(429, path=path, body=record, headers=headers)
    done = call(capsys, "upload", "room01", "a.pdf", "--debug")
    assert done.code == 0
    assert READABLE in done.err
    assert unfit([done], MOST) == []
