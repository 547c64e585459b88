"""The command line as such: help, mistakes, what is missing, completion; and ``serve``."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meeting_async import Batch, MeetingClient, UploadOutcome, __version__
from meeting_async.testing import MeetingServer
from support import raw_http
from support.command_line import PDF, PROGRAM, Result, call, finish, names_in, run, start
from support.interpreter import Interpreter

Capture = pytest.CaptureFixture[str]


def test_help_loads_no_work(python: Interpreter) -> None:
    """Who asks for help does not wait for what only a command needs."""
    heavy = (
        "jinja2", "rich.progress", "meeting_async.testing", "meeting_async.cli.delivery",
        "meeting_async.cli.batch.manifest",
    )  # fmt: skip
    code, _, err = python.run(
        "import sys; from meeting_async.cli import main; main(['--help']); "
        f"print(*[name for name in {heavy} if name in sys.modules], file=sys.stderr)",
        Path.cwd(),
    )
    assert (code, err.strip()) == (0, "")


def test_help_says_what_is_needed(capsys: Capture) -> None:
    """Environment, exit codes, several files; and no option takes a secret. Version too."""
    version = call(capsys, "--version")
    assert (version.code, version.out.strip()) == (0, __version__)
    top = call(capsys, "--help").out
    for word in ("MEETING_BASE_URL", "MEETING_API_SECRET_FILE", "demo", "serve", " 75 ", " 130 "):
        assert word in top
    assert "upload [OPTIONS] ROOM_ID FILE..." in call(capsys, "upload", "--help").out
    for command in ("room", "upload", "batch", "serve", "demo"):
        shown = call(capsys, command, "--help").out
        assert "secret" not in shown.replace("Key and secret come from", "").replace(
            "MEETING_API_SECRET", ""
        )


@pytest.mark.parametrize(
    ("arguments", "told", "hint"),
    [
        (["uplod"], 'Did you mean "upload"', "see `meeting-async --help`"),
        (["upload", "room01"], "FILE", "see `meeting-async upload --help`"),
        (["uplod", "room01"], 'Did you mean "upload"', "see `meeting-async --help`"),
        (["room", "r", "--tiemout", "3"], "mean --timeout?", "`meeting-async room --help`"),
        (["upload", "r", "a.pdf", "--tiemout", "3"], "mean --timeout?", "`meeting-async upload"),
        (["batch", "--jurnal", "j.db", "m.csv"], "mean --journal?", "`meeting-async batch"),
        (["upload", "r", "--zzz=1"], "Unknown option: --zzz.", "`meeting-async upload --help`"),
        (["upload", "-r", "folder"], "`meeting-async batch FOLDER` sends", "`meeting-async upload"),
        (["batch", "m.csv", "--concurrency", "0"], "concurrency", "`meeting-async batch --help`"),
        (["room", "room01"], "MEETING_API_SECRET are not set", "`meeting-async serve` runs a"),
        (["room", "room01", "--json"], "MEETING_API_SECRET are not set", "prints what to export"),
    ],
)
def test_mistakes(capsys: Capture, arguments: list[str], told: str, hint: str) -> None:
    """Exit code 2, one line that says what is wrong, and one with the command that helps."""
    done = call(capsys, *arguments)
    assert done.code == 2
    error, help_ = done.err.splitlines()
    assert told in error
    assert hint in help_
    assert ("--json" in arguments) == bool(done.out)


def test_a_path_that_looks_like_an_option(server: MeetingServer, capsys: Capture) -> None:
    """It can be sent all the same: after ``--``, or with its folder."""
    Path("-a.pdf").write_bytes(PDF)
    for words in (["./-a.pdf"], ["--", "-a.pdf"]):
        assert call(capsys, "upload", "room01", *words).code == 0
    assert names_in(server, "room01") == ["-a.pdf", "-a.pdf"]


def test_a_folder_is_for_batch(server: MeetingServer, capsys: Capture) -> None:
    """``upload`` says so instead of calling it unreadable."""
    Path("slides").mkdir()
    done = call(capsys, "upload", "room01", "a.pdf", "slides")
    assert (done.code, server.requests) == (2, [])
    assert "'slides'): use `meeting-async batch FOLDER`" in done.err


@pytest.mark.parametrize("command", ["room", "check", "upload", "batch"])
def test_help_speaks_of_its_command(capsys: Capture, command: str) -> None:
    """An option that several commands have says what it does in this one."""
    text = " ".join(re.sub("[│─]", " ", call(capsys, command, "--help").out).split())
    sends = command in {"upload", "batch"}
    assert ("document" in text) == sends
    assert ("Print only failures" in text) == sends
    assert ("Time limit in seconds for each document" in text) == sends


@pytest.mark.parametrize("name", ["--dry-run", "--check"])
def test_a_manifest_is_checked_under_both_names(capsys: Capture, name: str) -> None:
    """Without a server."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\n")
    done = call(capsys, "batch", "m.csv", name)
    assert (done.code, done.out.startswith("m.csv: 1 document for 1 room")) == (0, True)


@pytest.mark.parametrize("command", ["room room01", "upload room01 a.pdf", "batch m.csv"])
def test_hints_name_the_server(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The one that was asked: a key may belong to another."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\n")
    monkeypatch.setenv("MEETING_API_KEY", "other")
    monkeypatch.setenv("MEETING_BASE_URL", "https://meet.example.com")
    done = call(capsys, *command.split(), "--url", server.url)
    assert f"MEETING_API_SECRET belong to {server.url}\n" in done.err


@pytest.mark.parametrize("command", ["room room01", "upload room01 a.pdf", "check"])
def test_a_fix_names_what_a_shell_knows(
    server: MeetingServer, capsys: Capture, command: str
) -> None:
    """Options and variables, not arguments of Python."""
    for url, fix in (
        ("http://me:pw@127.0.0.1", "give MEETING_API_KEY and MEETING_API_SECRET instead"),
        ("http://meet.test", "or MEETING_ALLOW_PLAINTEXT=1"),
    ):
        done = call(capsys, *command.split(), "--url", url)
        assert (done.code, "error: --url " in done.err, fix in done.err) == (2, True, True)


def test_errors_of_ours_are_one_line(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug is no reason for a page of text; ``--debug`` shows where it is."""
    monkeypatch.setattr(MeetingClient, "get_active_room_info", lambda *_, **__: 1 / 0)
    done = call(capsys, "room", "room01")
    assert done.code == 1
    assert "error: ZeroDivisionError: division by zero (--debug shows where)" in done.err
    assert "Traceback" not in done.err
    assert "Traceback" in call(capsys, "room", "room01", "--debug").err


def test_an_unforeseen_error_hides_nothing(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was delivered before is told, and is not called failed."""
    outcomes = Batch.__aiter__

    async def fail(batch: Batch) -> AsyncIterator[UploadOutcome]:
        async for outcome in outcomes(batch):
            if outcome.delivered:
                raise RuntimeError("no such thing")
            yield outcome

    monkeypatch.setattr(Batch, "__aiter__", fail)
    done = call(capsys, "upload", "room01", "a.pdf", "--json")
    assert "error: no such thing" in done.err
    (document, summary) = done.objects
    assert document["delivered"] is True
    assert done.code == summary["exit_code"] == 0


@pytest.mark.parametrize(
    ("package", "command", "extra"),
    [
        ("cyclopts", "['--help']", "cli"),
        ("rich", "['upload', 'room01', 'a.pdf']", "cli"),
        ("jinja2", "['batch', 'm.csv', '--report', 'r.html']", "cli"),
        ("python_multipart", "['serve']", "cli,testing"),
        ("python_multipart", "['demo']", "cli,testing"),
    ],
)
def test_missing_extras_are_told_alike(
    server: MeetingServer, python: Interpreter, package: str, command: str, extra: str
) -> None:
    """One line with what to install, exit code 2, and nothing is sent."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\n")
    code, _, err = python.run(
        f"import sys; sys.modules[{package!r}] = None; from meeting_async.cli import main; "
        f"sys.exit(main({command}))",
        Path.cwd(),
    )
    told = f'error: {package} is not installed: pip install ".[{extra}]" in a clone'
    assert err.splitlines()[-1] == f"meeting-async: {told}"
    assert (code, server.requests) == (2, [])


def test_completion(tmp_path: Path) -> None:
    """For the shells that cyclopts knows."""
    script = tmp_path / "completion"
    done = run(
        "--install-completion", "--shell", "bash", "--output", script,
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.code == 0
    assert "upload" in script.read_text()
    assert "--max-wait" in script.read_text()


WORDS = (
    "upload room01 ", "upload room01 b.pdf ", "batch ", "batch m.csv --journal ",
    "batch m.csv --report ", "check --ca-file ", "queue defer ",
)  # fmt: skip


@pytest.mark.parametrize("words", WORDS)
def test_completion_of_files(completion: Path, words: str) -> None:
    """Wherever a path is expected, as in any other command."""
    Path("week 1.pdf").write_bytes(PDF)
    asked = [*words.split(" ")[:-1], "a"]
    program = (
        f"source {completion}; COMP_WORDS=(meeting-async {' '.join(asked)}); "
        f"COMP_CWORD={len(asked)}; _meeting_async; printf '%s\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["a.pdf"]


@pytest.fixture(scope="module")
def completion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the completion of bash."""
    from meeting_async.cli.app import app

    script = tmp_path_factory.mktemp("completion") / "script"
    script.write_text(app.generate_completion(shell="bash"))
    return script


def test_a_room_is_shown_also_if_quiet(server: MeetingServer, capsys: Capture) -> None:
    """What was asked for is a result, not progress."""
    assert call(capsys, "room", "room01", "-q").out == call(capsys, "room", "room01").out != ""


def test_logs_and_warnings_are_lines(server: MeetingServer, capsys: Capture) -> None:
    """What the library warns of is shown once; what the command tells itself is not repeated."""
    server.add_room("an odd room that no other test has")
    Path("a.pdf").write_bytes(PDF)
    done = call(capsys, "upload", "an odd room that no other test has", "a.pdf")
    assert done.err.count("known servers refuse it") == 1
    assert len(done.err.splitlines()) == 3  # sending, the warning, and what was refused
    assert "DEBUG" not in done.err.upper()
    assert "debug: call" in call(capsys, "room", "room01", "--debug").err


@contextmanager
def _serving(*arguments: object, **environ: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Serve, and yield what was said and where the result will be."""
    process = start("serve", "--port", 0, *arguments, env={**os.environ, **environ})
    assert process.stdout is not None
    said = ""
    found: dict[str, Any] = {}
    while "getActiveRoomInfo" not in said or said.count("signature%%") < 2:
        line = process.stdout.readline()
        assert line, finish(process)
        said += line
    try:
        yield said, found
    finally:
        process.send_signal(signal.SIGTERM)
        found["result"] = finish(process)


def _paste(lines: str) -> Result:
    """Paste lines into a shell in which the command is on the path."""
    program = " ".join(PROGRAM)
    script = f'meeting-async() {{ {program} "$@"; }}\n{lines}'
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=50, check=False
    )
    return Result(done.returncode, done.stdout, done.stderr)


def test_what_it_prints_works_when_pasted() -> None:
    """Exports, this command line and curl; each request is one line, Ctrl-C or SIGTERM the end."""
    with _serving() as (said, found):
        pasted = said.partition("For the shell that uploads:")[2]
        pasted = pasted.replace("Then, with this command line:", "").replace("Or with curl:", "")
        done = _paste(pasted)
    assert "hello.txt: accepted by room01" in done.out
    assert done.out.count('"status": true') == 2
    result = found["result"]
    assert (result.code, result.err.splitlines()[-1]) == (0, "meeting-async: stopped")
    requests = [line for line in result.err.splitlines() if " POST " in line]
    assert len(requests) == 4
    assert re.match(r"meeting-async: \d\d:\d\d:\d\d POST /auth/room/\w+ room01 ", requests[0])


def test_a_secret_that_was_given_is_not_printed() -> None:
    """It may be a real one, and terminals remember; with it calls are accepted."""
    secret = "s3cr3t-of-mine"
    with _serving("--room", "r1", MEETING_API_SECRET=secret, MEETING_API_KEY="k") as (said, found):
        url = re.search(r"export MEETING_BASE_URL=(\S+)", said)
        assert url is not None
        raw = raw_http.call(raw_http.INFO, {"room_id": "r1"}, API_KEY="k")
        raw = raw.replace(raw_http.sign(b'{"room_id": "r1"}').encode(), _signed(secret).encode())
        assert raw_http.talk(url[1], raw).code == (200, "SUCCESS")
    assert "s3cr3t" not in said + found["result"].err


def _signed(secret: str) -> str:
    return raw_http.sign(b'{"room_id": "r1"}', secret.encode())


def test_the_container_file_of_the_docs() -> None:
    """It copies what the package is built from, and its command serves to the outside."""
    root = Path(__file__).parents[2]
    shown = (root / "docs" / "command-line.md").read_text().partition("```dockerfile\n")[2]
    lines = shown.partition("```")[0].splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert copied == {"pyproject.toml", project["readme"], *project["license-files"], "src"}
    program, command, *arguments = json.loads(lines[-1].removeprefix("CMD "))
    assert (program, command) == ("meeting-async", "serve")
    with _serving(*arguments) as (said, found):
        assert "http://127.0.0.1:" in said
    assert (arguments, found["result"].code) == (["--host", "0.0.0.0"], 0)


def test_mistakes_of_serve(capsys: pytest.CaptureFixture[str]) -> None:
    """Limits, rooms and addresses that cannot be used are told in a line."""
    assert "--max-size is not a size" in call(capsys, "serve", "--max-size", "30MB").err
    assert call(capsys, "serve", "--room", "").code == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = call(capsys, "serve", "--port", taken.getsockname()[1])
    assert (done.code, "another port with --port" in done.err) == (1, True)


def test_a_secret_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is not text cannot be a secret of the server."""
    (tmp_path / "secret").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("MEETING_API_SECRET_FILE", str(tmp_path / "secret"))
    done = call(capsys, "serve")
    assert (done.code, "MEETING_API_SECRET_FILE is not UTF-8 text" in done.err) == (2, True)
