"""``upload`` and ``room``: exit codes, results and what is said about them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import PDF, PNG, Result, call, names_in, run

Capture = pytest.CaptureFixture[str]


def test_documents_are_accepted_in_their_order(server: MeetingServer, capsys: Capture) -> None:
    """Several files; a line for each on stdout, and nothing else there but the sums."""
    done = call(capsys, "upload", "room01", "b.pdf", "a.pdf")
    assert done.code == 0
    assert names_in(server, "room01") == ["b.pdf", "a.pdf"]
    first, second, sums = done.out.splitlines()
    assert first.startswith("b.pdf: accepted by room01 (22 bytes, ")
    assert second.startswith("a.pdf: accepted by room01 (22 bytes, ")
    assert "attempt" not in done.out
    assert sums == "room01: 2 of 2 documents delivered."


def _refuse_secret(server: MeetingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEETING_API_SECRET", "wrong")


def _lose_reply(server: MeetingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.lose_next_reply(path="/room/uploadWhiteboardFile")


def _lock(server: MeetingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.rooms["room01"].lock(60)


def _end(server: MeetingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.rooms["room01"].active = False


def _leave(server: MeetingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.rooms["room01"].presenter = False


def _refuse_size(server: MeetingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.reply_next(413, body=b"<html><center>nginx</center></html>")


@pytest.mark.parametrize(
    ("arguments", "happens", "code", "told", "hint"),
    [
        (["a.pdf"], _refuse_secret, 1, "authentication failed", "check that MEETING_API_KEY and"),
        (["a.pdf"], _refuse_secret, 1, "are there quotes or blanks around it?", ""),
        (["a.pdf"], _end, 1, "HTTP", "open it first"),
        (["a.pdf"], _lose_reply, 3, "is unknown", "look into the room before"),
        (["a.pdf", "--max-wait", "0"], _lock, 75, "room 'room01' is busy", "--max-wait SECONDS"),
        (["a.pdf", "--timeout", "0.6"], _lock, 75, "timeout allows no more", "--timeout SECONDS"),
        (["a.pdf"], _leave, 1, "HTTP 400 USER_NOT_ACTIVE", "presenter role must be in the room"),
        (["a.pdf"], _refuse_size, 1, "larger than the server", "client_max_body_size of nginx"),
        (["image.png"], None, 2, "PNG image", ""),
        (["nope.pdf"], None, 2, "nope.pdf' cannot be read: No such file", ""),
        (["a.pdf", "nope.pdf"], None, 2, "nothing was sent", ""),
        (["-"], None, 2, "--filename", ""),
        (["a.pdf", "b.pdf", "--filename", "x.pdf"], None, 2, "one by one", ""),
        (["ftp://example.com/x.pdf"], None, 2, "http(s) URL", ""),
        (["--jsn", "a.pdf"], None, 2, "--jsn", "meeting-async upload --help"),
        (["--timeout", "0", "a.pdf"], None, 2, "timeout", "meeting-async upload --help"),
    ],
)
def test_exit_code_and_hint(
    server: MeetingServer,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    happens: object,
    code: int,
    told: str,
    hint: str,
) -> None:
    """1 refused, 2 a mistake (then nothing is sent), 3 unknown, 75 busy; one line says why.

    No text says the same twice, and none is a traceback.
    """
    Path("image.png").write_bytes(PNG)
    if callable(happens):
        happens(server, monkeypatch)
    done = call(capsys, "upload", "room01", *arguments)
    assert done.code == code
    assert told in done.err
    assert hint in done.err
    assert code in {1, 3, 75} or not server.requests
    assert "Traceback" not in done.err
    for line in done.err.splitlines():
        assert line.startswith("meeting-async: ")
        assert line.count("nope.pdf") <= 1
        assert line.count("such room") <= 1


def test_a_room_that_is_not_there_skips_the_rest(server: MeetingServer, capsys: Capture) -> None:
    """The next document would get the same answer; the hint names the host."""
    done = call(capsys, "upload", "nowhere", "a.pdf", "b.pdf")
    assert done.code == 1
    assert "b.pdf: skipped" in done.err
    assert "hint: there is no session in room nowhere" in done.err


def test_waiting_is_told(server: MeetingServer, capsys: Capture) -> None:
    """Somebody who waits learns what for; the wait ends in success."""
    server.rooms["room01"].lock(0.6)
    done = call(capsys, "upload", "room01", "a.pdf")
    assert done.code == 0
    assert "a.pdf to room room01: the room is locked, again in" in done.err
    assert " attempts)" in done.out


def test_a_limit_of_the_environment(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``MEETING_TIMEOUT`` covers the wait for a room; ``--timeout`` replaces it."""
    server.rooms["room01"].lock(2)
    monkeypatch.setenv("MEETING_TIMEOUT", "0.6")
    assert "timeout allows no more" in call(capsys, "upload", "room01", "a.pdf").err
    assert not server.rooms["room01"].accepted
    assert call(capsys, "upload", "room01", "a.pdf", "--timeout", "60").code == 0


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_stdin(server: MeetingServer, kind: str) -> None:
    """``-`` with ``--filename``: the bytes that come, under that name."""
    arguments = ("upload", "room01", "-", "--filename", "week 1.pdf")
    if kind == "file":
        with Path("a.pdf").open("rb") as file:
            done = run(*arguments, stdin=file)
    else:
        with subprocess.Popen(["cat", "a.pdf", "b.pdf"], stdout=subprocess.PIPE) as cat:
            done = run(*arguments, stdin=cat.stdout)
    assert (done.code, done.err.count("\n")) == (0, 1)
    (received,) = server.rooms["room01"].received
    assert (received.name, received.size) == ("week 1.pdf", len(PDF) * (2 if kind == "pipe" else 1))


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
    assert call(capsys, "upload", "room01", "a.pdf", "-q") == Result(0, "", "")
    done = call(capsys, "upload", "room01", "a.pdf", "--quiet", "--json")
    assert [found["type"] for found in done.objects] == ["document", "summary"]
    assert done.err == ""
    assert "nope.pdf" in call(capsys, "upload", "room01", "nope.pdf", "-q").err


def test_url_names_another_server(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--url`` wins over the environment, and hints name its host."""
    monkeypatch.setenv("MEETING_BASE_URL", "http://127.0.0.1:9")
    assert call(capsys, "upload", "room01", "a.pdf", "--url", server.url).code == 0
    with MeetingServer(api_secret="another").run() as url:
        done = call(capsys, "room", "room01", "--url", url)
    assert f"belong to {url}\n" in done.err
    assert "127.0.0.1:9" not in done.err


def test_links(server: MeetingServer, capsys: Capture) -> None:
    """The server downloads them; a query may be a credential and is not shown."""
    link = server.host_file("plan.pdf", PDF) + "?token=secret"
    done = call(capsys, "upload", "room01", link)
    assert done.code == 0
    assert "plan.pdf" in done.out
    assert "token" not in done.out + done.err
    assert names_in(server, "room01") == ["plan.pdf"]


def test_nothing_can_steer_a_terminal(server: MeetingServer, capsys: Capture) -> None:
    """Neither a name nor what a server says: escapes and marks of direction are replaced."""
    name = "\x1b[2J\u202efdp.pdf"
    Path(name).write_bytes(PNG)
    done = call(capsys, "upload", "room01", name)
    server.reply_next(400, json={"status": False, "msg": "no \x1b[2J\u202e", "status_code": "X"})
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\n")
    told = call(capsys, "batch", "m.csv")
    assert (done.code, "Request refused: no" in told.out) == (2, True)
    assert not {"\x1b", "\u202e"} & set(done.out + done.err + told.out + told.err)


# --- JSON ----------------------------------------------------------------------------------------

DOCUMENT = {
    "type", "room_id", "document", "outcome", "delivered", "size", "seconds", "attempts", "msg",
    "error", "place", "key", "started", "waited", "bytes_sent", "bytes_resent",
}  # fmt: skip


def test_json_has_one_shape(server: MeetingServer, capsys: Capture) -> None:
    """The same objects for ``upload`` and ``batch``, as ``docs/command-line.md`` lists them."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nnope,b.pdf\n")
    uploaded = call(capsys, "upload", "room01", "a.pdf", "--json").objects
    batched = call(capsys, "batch", "m.csv", "--json").objects
    for objects in (uploaded, batched):
        assert {found["type"] for found in objects} == {"document", "summary"}
        assert all(set(found) == DOCUMENT for found in objects[:-1])
    assert set(uploaded[-1]) == set(batched[-1])
    assert (uploaded[-1]["exit_code"], batched[-1]["exit_code"]) == (0, 1)
    refused = next(found for found in batched if found["outcome"] == "refused")
    assert refused["error"]["type"] == "RoomNotFound"
    assert refused["place"] == "m.csv:3"
    page = Path(__file__).parents[2] / "docs" / "command-line.md"
    documented = page.read_text()
    for name in {*DOCUMENT, *uploaded[-1]}:
        assert f"`{name}`" in documented


def test_json_of_what_ends_a_command_early(server: MeetingServer, capsys: Capture) -> None:
    """Mistakes and errors are objects, too."""
    done = call(capsys, "upload", "room01", "nope.pdf", "--json")
    assert (done.code, done.objects[0]["type"]) == (2, "mistake")
    done = call(capsys, "room", "nope", "--json")
    assert (done.code, done.objects[0]["error"]["type"]) == (1, "RoomNotFound")


# --- room ----------------------------------------------------------------------------------------


def test_room_is_shown(server: MeetingServer, capsys: Capture) -> None:
    """Facts for people; the server's reply as it is for programs."""
    server.rooms["room01"].participants = ("Ann\x1b[31m",)
    done = call(capsys, "room", "room01")
    assert done.code == 0
    assert "participants  2 (Presenter, Ann\ufffd[31m)" in done.out
    (found,) = call(capsys, "room", "room01", "--json").objects
    assert found["type"] == "room"
    assert found["reply"]["room"]["room_info"]["room_id"] == "room01"


def test_room_needs_nothing_in_the_reply(server: MeetingServer, capsys: Capture) -> None:
    """Nothing is required, and a time may be anything."""
    room = {"room_info": {"creation_time": 10**18}}
    record = {"status": True, "msg": "", "status_code": "", "room": room}
    server.reply_next(200, json=record, path="/room/getActiveRoomInfo")
    done = call(capsys, "room", "room01")
    assert done.code == 0
    assert "running       unknown" in done.out


def test_room_tells_repetitions(server: MeetingServer, capsys: Capture) -> None:
    """Progress goes to stderr."""
    server.reply_next(503, headers=[("Retry-After", "0")], path="/room/getActiveRoomInfo")
    done = call(capsys, "room", "room01")
    assert done.code == 0
    assert "room room01: " in done.err
    assert "again in" in done.err
