"""``upload``, ``room`` and ``batch``: what is delivered, exit codes, results, and what is said."""

from __future__ import annotations

import itertools
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from anyio.from_thread import start_blocking_portal

from meeting_async import MeetingClient, errors
from meeting_async.cli.console import Output
from meeting_async.cli.delivery import tell_details
from meeting_async.testing import MeetingServer
from support.command_line import Result, call, manifest, names_in, until
from support.documents import PDF, PNG
from support.reports import attempt, outcome, report_of
from support.systems import NO_SUCH_FILE

Capture = pytest.CaptureFixture[str]
Stdin = Callable[[bytes | Path], None]


def test_documents_are_accepted_in_their_order(server: MeetingServer, capsys: Capture) -> None:
    """Files and links; a line for each on stdout, and nothing else there but the sums.

    The query of a link may be a credential and is not shown.
    """
    link = server.host_file("plan.pdf", PDF) + "?token=secret"
    done = call(capsys, "upload", "room01", "b.pdf", link, "a.pdf")
    assert done.code == 0
    assert names_in(server, "room01") == ["b.pdf", "plan.pdf", "a.pdf"]
    first, second, third, sums = done.out.splitlines()
    assert first.startswith("b.pdf: accepted by room01 (22 bytes, ")
    assert "/plan.pdf?…: accepted by room01 (" in second
    assert third.startswith("a.pdf: accepted by room01 (22 bytes, ")
    assert "attempt" not in done.out
    assert "token" not in done.out + done.err
    assert sums == "room01: 3 of 3 documents delivered."


def somebody_uploads(server: MeetingServer, seconds: int) -> None:
    """Let the room be taken once; a wait of so long either fits into a limit or does not."""
    record = {"status": False, "msg": "another upload", "status_code": "CONFLICT"}
    hint, path = {"Retry-After": f"{seconds}"}, "/room/uploadWhiteboardFile"
    server.reply_next(409, json=record, headers=hint, path=path)


HAPPENS: dict[str, Callable[[MeetingServer], object]] = {
    "nothing": lambda _: None,
    "a wrong secret": lambda server: server.refuse_next(
        "INVALID_TOKEN_OR_SIGNATURE", path="/room/getActiveRoomInfo"
    ),
    "the reply is lost": lambda server: server.lose_next_reply(path="/room/uploadWhiteboardFile"),
    "somebody uploads": lambda server: server.rooms["room01"].lock(60),
    "somebody uploads for 30 s": lambda server: somebody_uploads(server, 30),
    "the room ends": lambda server: setattr(server.rooms["room01"], "active", False),
    "the presenter leaves": lambda server: setattr(server.rooms["room01"], "presenter", False),
    "no meeting server": lambda server: server.reply_next(
        404, body=b"<html>", path="/room/getActiveRoomInfo"
    ),
    "a proxy answers": lambda server: server.reply_next(
        502, headers={"Retry-After": "60"}, path="/room/getActiveRoomInfo"
    ),
    "nginx refuses": lambda server: server.reply_next(413, body=b"<html><center>nginx</center>"),
}


@attrs.frozen
class Ending:
    """A command, and how it ends."""

    happens: str
    arguments: str
    """After ``upload room01``."""
    code: int = attrs.field(kw_only=True)
    told: str = attrs.field(kw_only=True)
    """Part of an error line, as is the hint."""
    hint: str = attrs.field(default="", kw_only=True)


ENDINGS = [
    Ending(
        "a wrong secret",
        "a.pdf",
        code=1,
        told="are there quotes or blanks",
        hint="check that MEETING_API_KEY and",
    ),
    Ending("the room ends", "a.pdf", code=1, told="HTTP", hint="open it first"),
    Ending(
        "the reply is lost", "a.pdf", code=3, told="is unknown", hint="look into the room before"
    ),
    Ending(
        "somebody uploads",
        "a.pdf --max-wait 0",
        code=75,
        told="room 'room01' is busy",
        hint="--max-wait SECONDS",
    ),
    Ending(
        "somebody uploads for 30 s",
        "a.pdf --timeout 20",
        code=75,
        told="allows no more",
        hint="--timeout SECONDS",
    ),
    Ending(
        "the presenter leaves",
        "a.pdf",
        code=1,
        told="HTTP 400 USER_NOT_ACTIVE",
        hint="presenter role must be in",
    ),
    Ending(
        "no meeting server",
        "a.pdf",
        code=1,
        told="HTTP 404",
        hint="MEETING_BASE_URL or --url: is http://127.0",
    ),
    Ending(
        "a proxy answers",
        "a.pdf --timeout 20",
        code=1,
        told="HTTP 502",
        hint="wrong on the way to http://127.0",
    ),
    Ending(
        "nginx refuses",
        "a.pdf",
        code=1,
        told="larger than the server",
        hint="client_max_body_size of nginx",
    ),
    Ending("nothing", "image.png", code=2, told="PNG image"),
    Ending(
        "nothing",
        "a.pdf nope.pdf",
        code=2,
        told=f"nope.pdf' cannot be read: {NO_SUCH_FILE}",
        hint="was sent",
    ),
    Ending("nothing", "a.pdf slides", code=2, told="'slides'): use `meeting-async batch FOLDER`"),
    Ending("nothing", "-", code=2, told="--filename"),
    Ending("nothing", "- --filename=", code=2, told="error: -: filename"),
    Ending("nothing", "a.pdf b.pdf --filename x.pdf", code=2, told="one by one"),
    Ending("nothing", "ftp://example.com/x.pdf", code=2, told="http(s) URL"),
]


@pytest.mark.parametrize(
    "ending", ENDINGS, ids=lambda ending: f"{ending.happens}-{ending.arguments}"
)
def test_exit_code_and_hint(server: MeetingServer, capsys: Capture, ending: Ending) -> None:
    """1 refused, 2 a mistake (then nothing is sent), 3 unknown, 75 busy; one line says why.

    No text says the same twice, and none is a traceback.
    """
    Path("image.png").write_bytes(PNG)
    Path("slides").mkdir()
    HAPPENS[ending.happens](server)
    done = call(capsys, "upload", "room01", *ending.arguments.split())
    assert done.code == ending.code
    assert ending.told in done.err
    assert ending.hint in done.err
    assert "=True" not in done.err  # that is for Python
    assert ending.code in {1, 3, 75} or not server.requests
    assert "Traceback" not in done.err
    for line in done.err.splitlines():
        assert line.startswith("meeting-async: ")
        assert line.count("nope.pdf") <= 1
        assert line.count("such room") <= 1


def test_waiting_is_told(server: MeetingServer, capsys: Capture) -> None:
    """Somebody who waits learns what for; the wait ends in success."""
    somebody_uploads(server, 0)
    done = call(capsys, "upload", "room01", "a.pdf")
    assert done.code == 0
    assert "a.pdf to room room01: the room is locked, again in" in done.err
    assert ", 2 attempts)" in done.out
    somebody_uploads(server, 0)
    Path("m.csv").write_text("room_id,document\nroom01,b.pdf\n")
    assert ", a room was locked " in call(capsys, "batch", "m.csv").out


def test_a_limit_of_the_environment(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``MEETING_TIMEOUT`` covers the wait for a room; ``--timeout`` replaces it."""
    somebody_uploads(server, 30)
    monkeypatch.setenv("MEETING_TIMEOUT", "20")
    assert "timeout allows no more" in call(capsys, "upload", "room01", "a.pdf").err
    assert not server.rooms["room01"].accepted
    monkeypatch.setenv("MEETING_TIMEOUT", "0.000001")
    assert call(capsys, "upload", "room01", "a.pdf").code == 1
    assert call(capsys, "upload", "room01", "a.pdf", "--timeout", "60").code == 0


@pytest.mark.parametrize("content", [PDF + PDF, Path("a.pdf")], ids=["pipe", "file"])
def test_a_document_on_stdin(
    server: MeetingServer,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    stdin: Stdin,
    content: bytes | Path,
) -> None:
    """``-`` with ``--filename``: the bytes that come, under that name, up to the limit."""
    stdin(content)
    done = call(capsys, "upload", "room01", "-", "--filename", "week 1.pdf", "--json")
    assert (done.code, done.err.count("\n")) == (0, 1)
    (received,) = server.rooms["room01"].received
    size = len(content if isinstance(content, bytes) else PDF)
    assert (received.name, received.size) == ("week 1.pdf", size)
    assert (done.objects[0]["place"], done.objects[0]["size"]) == ("week 1.pdf", size)
    stdin(content)
    monkeypatch.setenv("MEETING_MAX_SIZE_WHITEBOARD_FILE", f"{size - 1}")
    done = call(capsys, "upload", "room01", "-", "--filename", "week 1.pdf")
    assert (done.code, "FILE must be the limit of the server" in done.err) == (1, True)


@pytest.mark.parametrize("command", ["upload room01 - --filename x.pdf", "batch -"])
def test_closed_stdin_is_a_mistake(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """As with ``<&-``: exit code 2, for a document and for a manifest."""
    monkeypatch.setattr(sys, "stdin", None)
    done = call(capsys, *command.split())
    assert (done.code, "is closed" in done.err) == (2, True)


def test_quiet_says_only_what_went_wrong(server: MeetingServer, capsys: Capture) -> None:
    """Nothing for what is accepted; results of ``--json`` all the same."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nroom02,b.pdf\n")
    for command in ("upload room01 a.pdf -q", "batch m.csv --quiet"):
        assert call(capsys, *command.split()) == Result(0, "", "")
    done = call(capsys, "upload", "room01", "a.pdf", "--quiet", "--json")
    assert [found["type"] for found in done.objects] == ["document", "summary"]
    assert done.err == ""
    assert "nope.pdf" in call(capsys, "upload", "room01", "nope.pdf", "-q").err


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("upload room01 http://me:s3cr3t@127.0.0.1:1/a.pdf --json", 2),
        ("batch m.csv --journal j.db --timeout 1 --proxy http://me:s3cr3t@127.0.0.1:1", 1),
        ("batch m.csv --journal j.db --timeout 1 --proxy=http://me:s3cr3t@127.0.0.1:1", 1),
    ],
)
def test_passwords_are_not_shown(
    server: MeetingServer,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    code: int,
) -> None:
    """Neither that of a link nor that of a proxy, which the command to run again has."""
    monkeypatch.setattr("sys.argv", ["meeting-async", *command.split()])
    done = call(capsys, *command.split())
    told = done.out + done.err
    assert (done.code, "s3cr3t" in told) == (code, False)
    assert "http://(hidden)@127.0.0.1:1" in told
    assert ("`meeting-async check` says what is wrong on the way to" in told) == (code == 1)


# --- JSON ----------------------------------------------------------------------------------------

DOCUMENT = {
    "type", "room_id", "document", "outcome", "delivered", "size", "seconds", "attempts", "msg",
    "error", "place", "key", "started", "waited", "bytes_sent", "bytes_resent",
    "session", "found",
}  # fmt: skip


def test_json_has_one_shape(server: MeetingServer, capsys: Capture) -> None:
    """The same objects for ``upload`` and ``batch``, as ``docs/command-line.md`` lists them."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nnope,b.pdf\nnope,c.pdf\n")
    began = time.monotonic()
    uploaded = call(capsys, "upload", "room01", "a.pdf", "--json").objects
    took = time.monotonic() - began
    done = call(capsys, "batch", "m.csv", "--json")
    assert "hint: there is no session in room nope" in done.err
    batched = done.objects
    for objects in (uploaded, batched):
        assert {found["type"] for found in objects} == {"document", "summary"}
        assert all(set(found) == DOCUMENT for found in objects[:-1])
    assert set(uploaded[-1]) == set(batched[-1])
    assert (uploaded[-1]["exit_code"], batched[-1]["exit_code"]) == (0, 1)
    refused = next(found for found in batched if found["outcome"] == "refused")
    facts = [refused["error"][name] for name in ("type", "status", "status_code")]
    assert facts == ["RoomNotFound", 400, "ROOM_NOT_FOUND"]
    assert refused["place"] == "m.csv:3"
    assert [found["size"] for found in batched[:-1]] == [len(PDF)] * 3
    one, sums = uploaded
    assert 0 <= one["waited"] <= one["seconds"] <= one["started"] + one["seconds"] <= took
    assert one["waited"] <= sums["waited"] <= sums["seconds"] <= took
    page = Path(__file__).parents[2] / "docs" / "command-line.md"
    documented = page.read_text()
    for name in {*DOCUMENT, *uploaded[-1]}:
        assert f"`{name}`" in documented


def test_json_of_what_ends_a_command_early(server: MeetingServer, capsys: Capture) -> None:
    """Mistakes and errors are objects, too."""
    done = call(capsys, "upload", "room01", "nope.pdf", "--json")
    assert (done.code, done.objects[0]["type"]) == (2, "mistake")
    for command, code, kind, status in (
        ("room nope --json", 1, "RoomNotFound", 200),
        ("room nope --json=true --max-wait x", 2, "UsageError", None),
    ):
        done = call(capsys, *command.split())
        (found,) = done.objects
        assert (found["type"], found["exit_code"], found["error"]["type"]) == ("error", code, kind)
        assert {*found["error"]} == {"type", "message", "status", "status_code"}
        assert found["error"]["status"] == status
        assert found["error"]["message"] in done.err
        assert done.code == code


# --- room ----------------------------------------------------------------------------------------


def test_room_with_json(server: MeetingServer, capsys: Capture) -> None:
    """The server's reply as it is."""
    (found,) = call(capsys, "room", "room01", "--json").objects
    assert (found["type"], found["room_id"]) == ("room", "room01")
    assert found["reply"]["room"]["room_info"]["room_id"] == "room01"


FACTS: list[tuple[dict[str, object], list[dict[str, str]], str]] = [
    ({"creation_time": 10**18}, [], r"running unknown; since 10{18}; participants 0; .*"),
    ({"creation_time": 10**30}, [], r"running unknown; since 10{30}; .*; recording unknown"),
    (
        {"room_title": "room01", "is_running": True, "is_recording": False, "sid": "RM_1"},
        [{"name": "Ann\x1b[31m", "identity": "1"}, {"identity": "2"}, {}],
        r"running yes; participants 3 \(Ann\ufffd\[31m, 2, somebody\); recording no; session RM_1",
    ),
    (
        {"room_title": "Algebra", "creation_time": 10**9, "joined_participants": 7},
        [{"name": "Ann"}],
        r"title Algebra; .*; since 2001-09-0[89] \d\d:\d\d:40 [^;]+; participants 7 \(Ann\); .*",
    ),
    ({"creation_time": 10**12, "is_breakout_room": True}, [], ".*; breakout of another room"),
    ({"is_breakout_room": True, "parent_room_id": "main"}, [], ".*; breakout of main"),
]
"""What the server says of a room and of who is there, and the lines for people."""


@pytest.mark.parametrize(("info", "people", "told"), FACTS)
def test_facts_of_a_room(
    server: MeetingServer,
    capsys: Capture,
    info: dict[str, object],
    people: list[dict[str, str]],
    told: str,
) -> None:
    """Nothing is required, and a time may be anything."""
    room = {"room_info": info, "participants_info": people}
    record = {"status": True, "msg": "", "status_code": "", "room": room}
    server.reply_next(200, json=record, path="/room/getActiveRoomInfo")
    done = call(capsys, "room", "room01")
    lines = re.sub(" +", " ", "; ".join(done.out.splitlines()))
    assert (done.code, bool(re.fullmatch(f"room room01; {told}", lines))) == (0, True), lines


def test_room_tells_repetitions(server: MeetingServer, capsys: Capture) -> None:
    """Progress goes to stderr; ``-q`` leaves it out, and not what was asked for."""
    told = []
    for options in ([], ["-q"]):
        server.reply_next(503, headers=[("Retry-After", "0")], path="/room/getActiveRoomInfo")
        told.append(call(capsys, "room", "room01", *options))
    loud, quiet = told
    assert (loud.code, quiet) == (0, Result(0, loud.out, ""))
    assert "meeting-async: room room01: " in loud.err
    assert "again in" in loud.err
    assert "sending" not in loud.err  # it is no document
    assert loud.out


# --- batch ---------------------------------------------------------------------------------------


def test_a_manifest_on_stdin_or_a_folder(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch, stdin: Stdin
) -> None:
    """A manifest on stdin; or a folder, whose journal and report may lie in it.

    It does not matter from where, nor that the first run was killed while it made its journal.
    """
    stdin(b"room_id,document,filename\nroom02,a.pdf,week 1.pdf\n")
    assert "stdin: 1 of 1 document delivered." in call(capsys, "batch", "-").out
    Path("term", "room03").mkdir(parents=True)
    Path("a.pdf").rename("term/room03/week 1.pdf")
    for more in ([], ["--journal", "../new.db"]):
        with monkeypatch.context() as inside:
            inside.chdir("term/room03")
            done = call(capsys, "batch", "..", "--check", *more)
        assert (done.code, done.out.count("..: 1 document for 1 room, 22 bytes")) == (0, 1)
        Path("term/new.db-journal").touch()
    Path("term/new.db-journal").unlink()
    Path("term", "term.db").symlink_to("../elsewhere.db")
    for _ in range(2):  # at the second time they are there
        report, journal = "term/report.html", "term/term.db"
        done = call(capsys, "batch", "term", "--report", report, "--journal", journal)
        assert done.code == 0
    assert names_in(server, "room02") == names_in(server, "room03") == ["week 1.pdf"]


def test_missing_rooms_are_one_line_each(server: MeetingServer, capsys: Capture) -> None:
    """However many documents they were to get; the worst comes first."""
    Path("m.csv").write_text(
        "room_id,document,key\n" + "".join(f"nope,a.pdf,{n}\n" for n in range(5)) + "room01,b.pdf\n"
    )
    server.lose_next_reply(path="/room/uploadWhiteboardFile")
    done = call(capsys, "batch", "m.csv", "--concurrency", "1", "--report", "r.html")
    _, _, *attention = done.out.splitlines()
    told = "without an active room: 5 documents for room nope: Room not found"
    assert attention[-1].startswith(told)
    assert done.err.count("m.csv:") == 1 + done.err.count("is unknown") + done.err.count("refused:")


def test_waiting_for_rooms(server: MeetingServer, capsys: Capture) -> None:
    """``--wait-active`` waits for a room that is not there yet."""
    room = server.rooms["room01"]
    room.active = False

    def begin() -> None:
        until(lambda: server.requests)
        room.active = True

    threading.Thread(target=begin, daemon=True).start()
    assert call(capsys, "batch", "m.csv", "--wait-active", "40").code == 0


def test_busy_rooms(server: MeetingServer, capsys: Capture) -> None:
    """Exit code 75 if nothing is worse; ``--max-wait`` is for each document."""
    server.rooms["room01"].lock(60)
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nroom02,a.pdf\n")
    done = call(capsys, "batch", "m.csv", "--max-wait", "0")
    assert (done.code, names_in(server, "room02")) == (75, ["a.pdf"])
    assert "failed: 1 document for room room01: Room busy: another upload" in done.out
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nnope,a.pdf\n")
    assert call(capsys, "batch", "m.csv", "--max-wait", "0").code == 1


def test_unknown_decides_the_exit_code_and_hides_nothing(
    server: MeetingServer, capsys: Capture
) -> None:
    """Exit code 3, whatever else happened; it is sent again only if asked for."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nnope,b.pdf\n")
    server.lose_next_reply(path="/room/uploadWhiteboardFile")
    arguments = ("batch", "m.csv", "--journal", "j.db", "--concurrency", "1")
    first = call(capsys, *arguments)
    again = call(capsys, *arguments)
    assert (first.code, again.code, len(server.rooms["room01"].accepted)) == (3, 3, 1)
    assert "hint: the same command with --delivery exactly_once finds out" in again.err
    assert "to resume" in again.err  # the other one was refused
    assert call(capsys, *arguments, "--delivery", "at_least_once").code == 1
    assert len(server.rooms["room01"].accepted) == 2
    Path("m.csv").write_text("room_id,document\nroom02,a.pdf\n")
    server.lose_next_reply(path="/room/uploadWhiteboardFile")
    assert "to resume" not in call(capsys, "batch", "m.csv", "--journal", "k.db").err
    server.lose_next_reply(path="/room/uploadWhiteboardFile")
    done = call(capsys, "batch", "m.csv")
    assert "another run sends everything again" in done.err
    assert "--delivery" not in done.err  # it needs a journal


REASONS: list[tuple[Exception, str]] = [
    (errors.DocumentTypeRefused("a.pdf", "a PNG image"), "Document type refused: a PNG image"),
    (errors.InvalidInput("room_id", "''", "is empty", "give one"), "Invalid input: is empty"),
    (errors.RoomBusy(1.0, "another upload", None), "Room busy: another upload"),
    (errors.DeadlineExceeded(1.0, "waiting"), "Deadline exceeded"),
    (errors.ProcessingFailed(500, None, "no pages"), "Processing failed: no pages (HTTP 500)"),
    (errors.UploadFailed("KeyError", "'x'"), "Key error: 'x'"),
    (ValueError("no such codec"), "Value error: no such codec"),
]


@pytest.mark.parametrize(("error", "told"), REASONS)
def test_reasons_are_words(capsys: Capture, error: Exception, told: str) -> None:
    """What the same reason has in common, without rooms and documents."""
    tell_details(report_of([outcome(status="failed", error=error)]), Output())
    line = capsys.readouterr().out.splitlines()[1]
    assert line == f"failed: 1 document for room room01: {told}"


def test_many_reasons_are_counted(capsys: Capture) -> None:
    """After 20, those of most documents first; traffic says what was sent more than once."""
    lost = [errors.ConnectFailed(f"reason {n}", "h") for n in range(22)]
    facts: dict[str, Any] = {"status": "failed", "attempts": (attempt(), attempt(2))}
    turns = enumerate([21, *range(21), *range(21)])
    outcomes = [outcome(n, error=lost[reason], **facts) for n, reason in turns]
    tell_details(report_of(outcomes), Output())
    traffic, *told = capsys.readouterr().out.splitlines()
    assert traffic.endswith(" of that were sent again")
    assert [line.rpartition(" ")[2] for line in told[:-1]] == [f"{n}" for n in range(20)]
    assert told[-1] == "… and 2 further reasons"
    tell_details(report_of(outcomes[:20]), Output())
    assert "further" not in capsys.readouterr().out


def test_one_upload_at_a_time(server: MeetingServer, capsys: Capture) -> None:
    """With ``--concurrency 1`` a room is asked when the document before has been accepted."""
    manifest(server, rooms=4, documents=1)
    server.processing_seconds = 0.1
    assert call(capsys, "batch", "m.csv", "--concurrency", "1").code == 0
    times = [(one.at, one.at + (one.seconds or 0)) for one in server.requests]
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(times))


def test_a_wrong_key_stops_a_batch(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a small call: no document leaves."""
    manifest(server, rooms=3, documents=2)
    monkeypatch.setenv("MEETING_API_KEY", "nobody")
    done = call(capsys, "batch", "m.csv", "--json", "--report", "r.html")
    assert (done.code, done.objects[-1]["stopped_by"]["type"]) == (1, "AuthenticationFailed")
    assert [request.path for request in server.requests] == ["/auth/room/getActiveRoomInfo"]
    assert "The batch ended early" in Path("r.html").read_text()
    monkeypatch.setenv("MEETING_API_KEY", server.api_key)
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nroom01,b.pdf\nroom02,c.pdf\n")
    for refusal in ("ROOM_NOT_FOUND", "INVALID_TOKEN_OR_SIGNATURE"):
        server.refuse_next(refusal, path="/room/uploadWhiteboardFile")
    done = call(capsys, "batch", "m.csv", "--concurrency", "1")
    assert "hint: check that MEETING_API_KEY" in done.err  # what stopped it, not what failed first


def test_a_journal_in_use(server: MeetingServer, capsys: Capture) -> None:
    """Exit code 2 and one line; nothing is sent."""
    manifest(server, rooms=1, documents=1)

    @asynccontextmanager
    async def held() -> AsyncIterator[None]:
        async with MeetingClient.from_env() as client, client.upload_many([], journal="j.db"):
            yield

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(held()):
        found = call(capsys, "batch", "m.csv", "--journal", "j.db")
    assert (found.code, "another" in found.err, server.requests) == (2, True, [])
