"""The command line: real processes for what users and scripts rely on, in process for the rest."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from _cli import PDF, PROGRAM, SECONDS, heeding_ctrl_c, interrupt_when, run, until
from _terminal import Terminal, lines_of
from meeting_async import ActiveRoom, Event, WaitingForRoom
from meeting_async.cli import _room, main
from meeting_async.cli._console import prepared_streams
from meeting_async.cli._progress import Lines
from meeting_async.testing import MeetingServer, Room

PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)
UPLOAD = "/room/uploadWhiteboardFile"


@pytest.fixture(scope="module", autouse=True)
def _ctrl_c_works() -> Iterator[None]:
    """Heed Ctrl-C wherever the tests run."""
    with heeding_ctrl_c():
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[MeetingServer]:
    """Serve in this process; each test makes a room of its own."""
    served = MeetingServer()
    with served.run():
        yield served


@pytest.fixture
def room(server: MeetingServer, request: pytest.FixtureRequest) -> Room:
    """Add a room named after the test."""
    return server.add_room(re.sub(r"\W", "-", request.node.name))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, server: MeetingServer) -> None:
    """Export what `serve` would tell to export, and nothing else of ours."""
    for name in [*os.environ]:
        if name.startswith("MEETING_") or name in {"FORCE_COLOR", "NO_COLOR"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("MEETING_BASE_URL", server.url)
    monkeypatch.setenv("MEETING_API_KEY", server.api_key)
    monkeypatch.setenv("MEETING_API_SECRET", server.api_secret)


@pytest.fixture
def deck(tmp_path: Path) -> Path:
    """Make a document."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(PDF)
    return path


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """Make an image."""
    path = tmp_path / "scan.png"
    path.write_bytes(PNG)
    return path


# --- processes -----------------------------------------------------------------------------------


def test_help_names_the_commands_and_imports_none_of_their_work() -> None:
    """What only a command needs is not waited for by those who ask for help."""
    code = (
        "import sys; from meeting_async.cli import main; code = main(['--help']);"
        "print('\\nLOADED', *sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=SECONDS
    )
    shown, _, loaded = done.stdout.partition("LOADED ")
    assert all(command in shown for command in ("demo", "serve", "room", "upload"))
    assert "MEETING_API_SECRET" in shown
    assert "meeting_async.cli._app" in loaded.split()
    late = {"uvicorn", "starlette", "markdown_it", "meeting_async.testing"} | {
        f"meeting_async.cli._{name}" for name in ("demo", "upload", "serve", "room", "progress")
    }
    assert late & {*loaded.split()} == set()


def test_script_is_installed_and_knows_its_version() -> None:
    """The entry point of pyproject.toml leads here, too."""
    script = shutil.which("meeting-async", path=str(Path(sys.executable).parent))
    assert script
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == importlib.metadata.version("meeting-async")


def test_accepted_documents_exit_0(room: Room, deck: Path) -> None:
    """A result for each document on stdout, progress on stderr."""
    done = run("upload", room.room_id, deck, deck)
    assert done.returncode == 0
    line = (
        rf"{re.escape(str(deck))}: accepted by {room.room_id} \(22 bytes, [\d.]+ s, 1 attempt\)\n"
    )
    assert re.fullmatch(line * 2, done.stdout)
    assert f"{room.room_id}  deck.pdf  sending\n" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert [file.name for file in room.received] == ["deck.pdf", "deck.pdf"]


def test_one_refused_document_exits_1(room: Room, deck: Path, picture: Path) -> None:
    """The others are uploaded all the same; nobody sees a traceback."""
    done = run("upload", room.room_id, picture, deck)
    assert done.returncode == 1
    assert f"meeting-async: {picture}: error: 'scan.png' is a PNG image" in done.stderr
    assert "Traceback" not in done.stderr
    assert [file.name for file in room.received] == ["deck.pdf"]


def test_missing_environment_exits_2_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the variable."""
    monkeypatch.delenv("MEETING_BASE_URL")
    done = run("room", "room01")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "meeting-async: error: MEETING_BASE_URL is not set (got nothing): export it\n"
    )


def test_unknown_outcome_exits_3(server: MeetingServer, room: Room, deck: Path) -> None:
    """A proxy's 504 after the whole document says nothing about the document."""
    server.reply_next(504, body=b"<html>", path=UPLOAD)
    done = run("upload", room.room_id, deck)
    assert done.returncode == 3
    assert "whether it arrived is unknown" in done.stderr


def test_busy_room_exits_75(room: Room, deck: Path) -> None:
    """``--no-wait`` does not wait; the code tells scripts to come again later."""
    room.lock()
    done = run("upload", room.room_id, deck, "--no-wait")
    assert done.returncode == 75
    assert f"room '{room.room_id}' is busy" in done.stderr


def test_json_has_an_object_for_each_document(room: Room, deck: Path, picture: Path) -> None:
    """One line each on stdout, whatever is said on stderr."""
    done = run("upload", room.room_id, deck, picture, "--json")
    accepted, refused = map(json.loads, done.stdout.splitlines())
    assert accepted.pop("seconds") > 0
    assert accepted == {
        "room_id": room.room_id,
        "document": str(deck),
        "outcome": "accepted",
        "size": len(PDF),
        "attempts": 1,
        "msg": "file uploaded successfully",
        "error": None,
    }
    assert (refused["outcome"], refused["size"], refused["attempts"]) == ("refused", len(PNG), 0)
    assert refused["error"]["type"] == "DocumentTypeRefused"
    assert "PNG image" in refused["error"]["message"]


def test_ctrl_c_exits_130_in_one_line(room: Room, deck: Path) -> None:
    """The line says what is known of the document; there is no traceback."""
    room.lock()
    process = subprocess.Popen(
        [*PROGRAM, "upload", room.room_id, deck], stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stderr
        seen = ""
        while "room is busy" not in seen:
            seen = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = [line for line in process.stderr if line.startswith("meeting-async")]
        others = process.wait(SECONDS)
    assert others == 130
    assert rest == [f"meeting-async: interrupted: {deck} did not reach {room.room_id}\n"]


def test_nobody_reading_is_no_error(room: Room) -> None:
    """As in ``meeting-async room … | true``: no traceback, the shells' code for SIGPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*PROGRAM, "room", room.room_id],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=SECONDS,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


# --- room ----------------------------------------------------------------------------------------


def test_room_is_summarised(server: MeetingServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, and no way for them to steer the terminal."""
    server.add_room("summary", title="Algebra \x1b[31m[bold]", participants=["Ann", "Bob\n"])
    assert main(["room", "summary"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["title"] == "Algebra \ufffd[31m[bold]"
    assert lines["participants"] == "3 (Presenter, Ann, Bob )"
    assert (lines["running"], lines["recording"]) == ("yes", "no")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", lines["since"])


def test_room_of_few_words_is_summarised() -> None:
    """Nothing in a reply is required, and a time may be anything."""
    bare = ActiveRoom.from_reply("room01", {})
    assert dict(_room._facts(bare)) == {
        "room": "room01", "running": "not told", "participants": "0", "recording": "not told"
    }  # fmt: skip
    info = {"is_breakout_room": 1, "creation_time": 10**17, "joined_participants": 4}
    odd = ActiveRoom.from_reply("room01", {"room": {"room_info": info}})
    assert {"breakout of": "another room", "since": str(10**17)}.items() <= dict(
        _room._facts(odd)
    ).items()


def test_room_json_is_the_reply(room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    """As the server sent it, unknown fields included."""
    assert main(["room", room.room_id, "--json"]) == 0
    reply = json.loads(capsys.readouterr().out)
    assert reply["room"]["room_info"]["sid"] == room.sid
    assert reply["status_code"] == "SUCCESS"


def test_room_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing on stdout, exit code 1."""
    assert main(["room", "nowhere", "--json"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("meeting-async: error: room/getActiveRoomInfo for room 'nowhere'")
    assert shown.err.count("\n") == 1


def test_room_tells_of_retries(
    server: MeetingServer, room: Room, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody who waits learns what for."""
    server.reply_next(503, headers=[("Retry-After", "0")], path="/room/getActiveRoomInfo")
    assert main(["room", room.room_id]) == 0
    assert re.fullmatch(rf"{room.room_id}  .*: attempt 2 in 0.0 s\n", capsys.readouterr().err)


# --- upload --------------------------------------------------------------------------------------


def test_upload_under_another_name(
    room: Room, deck: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A locked room is waited for, and the wait is told."""
    room.lock(1)  # a busy machine takes its time until the first attempt
    assert main(["upload", room.room_id, str(deck), "--filename", "Ünit 1.pdf"]) == 0
    assert [file.name for file in room.received] == ["Ünit 1.pdf"]
    shown = capsys.readouterr()
    assert "room is busy: attempt 2 in 0." in shown.err
    assert re.search(r", [2-9] attempts\)$", shown.out.rstrip())


def test_max_wait_and_deadline_reach_the_library(
    room: Room, deck: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One ends in "busy", the other in "failed"."""
    room.lock()
    assert main(["upload", room.room_id, str(deck), "--max-wait=0.1", "--json"]) == 75
    assert main(["upload", room.room_id, str(deck), "--deadline=0.1", "--json"]) == 1
    busy, failed = map(json.loads, capsys.readouterr().out.splitlines())
    assert (busy["outcome"], busy["attempts"]) == ("busy", 2)
    assert failed["error"]["type"] == "DeadlineExceeded"


@pytest.mark.parametrize(
    ("secret", "room_id", "hinted"), [("wrong", "room", True), (None, "nowhere", False)]
)
def test_what_no_document_can_change_is_found_out_once(
    *,
    server: MeetingServer,
    deck: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    secret: str | None,
    room_id: str,
    hinted: bool,
) -> None:
    """A wrong secret or room stops at the first document; the rest is skipped, and says so."""
    if secret:
        monkeypatch.setenv("MEETING_API_SECRET", secret)
    before = len(server.requests)
    assert main(["upload", room_id, str(deck), str(deck), "--json"]) == 1
    assert len(server.requests) - before == 1
    shown = capsys.readouterr()
    refused, skipped = map(json.loads, shown.out.splitlines())
    assert (refused["outcome"], skipped["outcome"]) == ("refused", "skipped")
    assert ("hint: The API secret differs" in shown.err) is hinted
    assert f"{deck}: skipped: the room would refuse it, too" in shown.err


def test_missing_files_exit_2_and_nothing_is_sent(
    room: Room, deck: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error in the last argument is found before the first document goes out."""
    paths = map(str, (deck, tmp_path / "nope.pdf", tmp_path))
    assert main(["upload", room.room_id, *paths]) == 2
    shown = capsys.readouterr()
    missing, directory = shown.err.splitlines()
    assert "nope.pdf' cannot be read: No such file or directory" in missing
    assert "it is not a regular file" in directory
    assert (shown.out, room.received) == ("", ())


def test_no_wait_does_not_try_a_busy_room_again(
    server: MeetingServer, room: Room, deck: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next document would only burn its bytes; scripts learn to come again later."""
    room.lock()
    before = len(server.requests)
    assert main(["upload", room.room_id, str(deck), str(deck), "--no-wait", "--json"]) == 75
    assert len(server.requests) - before == 1
    outcomes = [json.loads(line)["outcome"] for line in capsys.readouterr().out.splitlines()]
    assert outcomes == ["busy", "skipped"]


def test_a_link_is_downloaded_by_the_server(
    server: MeetingServer, room: Room, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its query may be a credential and is not shown."""
    link = server.host_file("linked.pdf", PDF)
    assert main(["upload", room.room_id, f"{link}?key=hush", "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["document"], outcome["size"]) == (f"{link}?\u2026", None)
    assert [file.via for file in room.received] == ["document_link"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "ROOM_ID"),
        (["room01"], "FILE_OR_URL"),
        (["room 01 ", "a.pdf"], "room_id"),
        (["room01", "ftp://files/a.pdf"], "is not an http(s) URL"),
        (["room01", "http://files/a.pdf", "--filename=b.pdf"], "cannot be given for a link"),
        (["room01", "a.pdf", "b.pdf", "--filename=c.pdf"], "is given for several documents"),
        (["room01", "a.pdf", "--max-wait=-1"], "--max-wait"),
        (["room01", "a.pdf", "--max-wait=nan"], "wait"),
        (["room01", "a.pdf", "--deadline=0"], "--deadline"),
        (["room01", "a.pdf", "--no-wait", "--max-wait=3"], "contradicts it"),
        (["room01", "a.pdf", "--secret=x"], "Unknown option"),
    ],
    ids=str,
)
def test_upload_refuses_bad_arguments(
    *,
    server: MeetingServer,
    deck: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    """With exit code 2 and nothing sent."""
    monkeypatch.chdir(deck.parent)
    for name in ("a.pdf", "b.pdf"):
        shutil.copy(deck, name)
    before = len(server.requests)
    assert main(["upload", *arguments]) == 2
    assert complaint in capsys.readouterr().err
    assert len(server.requests) == before


def test_ctrl_c_while_a_room_is_waited_for(
    room: Room,
    deck: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The object for the interrupted document is printed, too."""
    show = Lines.__call__

    def press(lines: Lines, event: Event) -> None:
        show(lines, event)
        if isinstance(event, WaitingForRoom):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Lines, "__call__", press)
    room.lock()
    assert main(["upload", room.room_id, str(deck), "--json"]) == 130
    shown = capsys.readouterr()
    assert json.loads(shown.out)["outcome"] == "cancelled"
    last = shown.err.splitlines()[-1]
    assert last == f"meeting-async: interrupted: {deck} did not reach {room.room_id}"


@pytest.mark.parametrize("as_json", [True, False])
def test_ctrl_c_after_the_end_of_a_document(
    room: Room, deck: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    """What may have reached the room is not called cancelled."""
    room.processing_seconds = 60.0
    interrupt_when(lambda: room.accepted)
    assert main(["upload", room.room_id, str(deck), *["--json"] * as_json]) == 130
    shown = capsys.readouterr()
    assert [json.loads(line)["outcome"] for line in shown.out.splitlines()] == ["unknown"] * as_json
    assert f"interrupted: {deck} may or may not reach {room.room_id}" in shown.err


def test_configuration_errors_speak_of_variables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the command line there are no keyword arguments."""
    monkeypatch.setenv("MEETING_BASE_URL", "http://meet.example.com")
    assert main(["room", "room01"]) == 2
    shown = capsys.readouterr().err
    assert "MEETING_BASE_URL would send credentials in clear text" in shown
    assert "MEETING_ALLOW_PLAINTEXT=1" in shown


def test_bars_vanish_for_the_result(server: MeetingServer, deck: Path) -> None:
    """On a real terminal: a bar while it lasts, and then only the result."""
    room = server.add_room("room01")
    room.lock()

    def unlock() -> None:
        until(lambda: any((r.room_id, r.status) == ("room01", 409) for r in server.requests))
        time.sleep(0.4)  # four frames or so
        room.unlock()

    threading.Thread(target=unlock, daemon=True).start()
    terminal = Terminal()
    done = subprocess.run(
        [*PROGRAM, "upload", "room01", "deck.pdf"],
        stdout=terminal.stream,
        stderr=terminal.stream,
        cwd=deck.parent,
        env={**os.environ, "TERM": "xterm-256color"},
        timeout=SECONDS,
        check=False,
    )
    shown = terminal.close()
    assert done.returncode == 0
    assert re.search(r"room01.*deck\.pdf.*\u2501.*room is busy: attempt \d in \d\.\d s", shown)
    bar, _, result = shown.rpartition("\x1b[2K")  # what erases a line: the bar's, in the end
    assert "\u2501" in bar
    assert lines_of(result)[0].startswith("deck.pdf: accepted by room01 (22 bytes, ")


# --- errors, streams, extras ---------------------------------------------------------------------


def test_debug_shows_the_traceback_and_the_log(
    room: Room, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before or after the command; the exit code stays the same."""
    logger, root = logging.getLogger("meeting_async"), logging.getLogger()
    before = (logger.level, [*root.handlers])
    assert main(["--debug", "room", "nowhere"]) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "meeting-async: debug: call " in shown
    assert "devsecret" not in shown
    assert main(["room", room.room_id, "--debug"]) == 0
    assert (logger.level, [*root.handlers]) == before


def test_warnings_of_the_library_are_lines(
    server: MeetingServer,
    deck: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From its log and from `warnings`, without file names and source lines."""
    monkeypatch.setenv("MEETING_API_SECRET", "devsecret\n")
    server.add_room("room.01")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["upload", "room.01", str(deck)]) == 0
    shown = capsys.readouterr().err
    assert "meeting-async: warning: room id 'room.01' has characters" in shown
    assert "meeting-async: warning: api_secret ends with a line break" in shown
    assert "UserWarning" not in shown


@pytest.mark.parametrize(
    ("name", "level", "action", "is_shown"),
    [
        ("meeting_async", logging.WARNING, "UnusualRoom", True),
        ("meeting_async", logging.WARNING, "RetryScheduled", False),
        ("meeting_async.any", logging.INFO, None, False),
        ("another", logging.ERROR, None, True),
        ("another", logging.WARNING, None, False),
    ],
)
def test_logs_are_shown_where_they_are_news(
    *,
    capsys: pytest.CaptureFixture[str],
    name: str,
    level: int,
    action: str | None,
    is_shown: bool,
) -> None:
    """What progress tells is not said twice; packages below warn of what nobody here can mend."""
    with prepared_streams(debug=False):
        logging.getLogger(name).log(level, "a message", extra={"action": action})
    said = f"meeting-async: {logging.getLevelName(level).lower()}: a message\n"
    assert capsys.readouterr().err == (said if is_shown else "")


def test_any_other_error_is_a_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug of ours is no reason for a page of text."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("this should\nnot happen")

    monkeypatch.setattr(_room, "room", broken)
    assert main(["room", "room01"]) == 1
    assert capsys.readouterr().err == (
        "meeting-async: error: RuntimeError: this should not happen (--debug shows where)\n"
    )


def test_ctrl_c_outside_an_upload(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 130 and one line."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_room, "room", interrupted)
    assert main(["room", "room01"]) == 130
    assert capsys.readouterr().err == "meeting-async: interrupted\n"


@pytest.mark.parametrize("command", [[], ["--help"], ["upload", "--help"], ["--version"]])
def test_asking_for_help_is_no_error(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """On stdout, exit code 0."""
    assert main(command) == 0
    shown = capsys.readouterr()
    assert shown.out
    assert shown.err == ""


@pytest.mark.parametrize("missing", ["cyclopts", "rich"])
def test_missing_extra_of_the_command_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """One line with what to install."""
    for name in [*sys.modules]:
        if name.partition(".")[0] == "cyclopts" or name == "meeting_async.cli._app":
            monkeypatch.delitem(sys.modules, name)
        if name.partition(".")[0] == missing:
            monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["--help"]) == 2
    assert capsys.readouterr().err == (
        f'meeting-async: this needs {missing}: pip install "meeting-async[cli]"\n'
    )


def test_python_dash_m() -> None:
    """Where the script is not on the path."""
    command = [sys.executable, "-m", "meeting_async", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == importlib.metadata.version("meeting-async")


def test_another_missing_module_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not called a missing extra."""
    monkeypatch.delitem(sys.modules, "meeting_async.cli._app")
    monkeypatch.setitem(sys.modules, "meeting_async.cli._extras", None)
    with pytest.raises(ModuleNotFoundError, match="_extras"):
        main(["--help"])


@pytest.mark.parametrize("command", ["demo", "serve"])
def test_missing_extra_of_the_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """One line with what to install."""
    monkeypatch.setitem(sys.modules, "meeting_async.testing", None)
    assert main([command]) == 2
    assert capsys.readouterr().err.endswith('pip install "meeting-async[cli,testing]"\n')


def test_output_survives_poor_encodings(server: MeetingServer) -> None:
    """A terminal that knows ASCII only gets all the facts."""
    server.add_room("ascii", title="Übung")
    done = run("room", "ascii", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "title         \\xdcbung\n" in done.stdout
