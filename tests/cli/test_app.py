"""The command line as such: help, mistakes, what is missing, completion; ``serve``, ``demo``."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import time
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from meeting_async import Batch, MeetingClient, UploadOutcome, __version__
from meeting_async.cli.app import app
from meeting_async.cli.demo import stage
from meeting_async.testing import MeetingServer
from support import raw_http
from support.command_line import Result, call, finish, names_in, run, shell, start
from support.documents import PDF
from support.interpreter import Interpreter
from support.systems import IS_WINDOWS

Capture = pytest.CaptureFixture[str]


def test_help_loads_no_work(python: Interpreter) -> None:
    """Who asks for help does not wait for what only a command needs, nor have all extras."""
    heavy = (
        "jinja2", "rich.progress", "meeting_async.testing", "meeting_async.cli.delivery",
        "meeting_async.manifests", "meeting_async.reports", "procrastinate", "psycopg",
        "meeting_async.procrastinate",
    )  # fmt: skip
    code, out, err = python.run(
        "import sys; from meeting_async.cli import main; main(['--help']); "
        "main(['queue', 'defer', '--help']); "
        f"print(*[name for name in {heavy} if name in sys.modules], file=sys.stderr)",
        Path.cwd(),
    )
    assert (code, err.strip()) == (0, "")
    assert "Upload by workers on many machines" in out


def test_help_says_what_is_needed(capsys: Capture) -> None:
    """Environment, exit codes, several files; and no option takes a secret. Version too.

    An option that several commands have says what it does in this one.
    """
    version = call(capsys, "--version")
    assert (version.code, version.out.strip()) == (0, __version__)
    for words in ("upload", "upload room01 a.pdf", "queue", "queue status"):
        assert call(capsys, *words.split(), "--version") == version
    top = call(capsys, "--help").out
    for word in ("MEETING_BASE_URL", "MEETING_API_SECRET_FILE", "demo", "serve", " 75 ", " 130 "):
        assert word in top
    assert "upload [OPTIONS] ROOM_ID FILE..." in call(capsys, "upload", "room01", "--help").out
    for command, defaults in DEFAULTS.items():
        text = " ".join(re.sub("[│─]", " ", call(capsys, command, "--help").out).split())
        assert not re.search(r"--[\w-]*(secret|key|password)", text)
        assert ("--no-" in text) == (command == "serve")  # who wants no --debug leaves it out
        assert re.findall(r"\[default: (.*?)\]", text) == defaults.split()
        if command not in {"serve", "demo"}:
            found = [word in text for word in OF_SENDING]
            assert found == [command in {"upload", "batch"}] * len(OF_SENDING)


DEFAULTS = {
    **dict.fromkeys(["room", "check", "upload", "demo"], ""),
    "batch": "32 session",
    "serve": "127.0.0.1 8080 30MiB 300.0 0.0 True False False shared 0.0",
}
"""What each command takes unless told otherwise."""

OF_SENDING = ("document", "Print only failures", "Time limit in seconds for each document")


@pytest.mark.parametrize(
    ("arguments", "told", "hint"),
    [
        (["upload", "room01"], "FILE", "see `meeting-async upload --help`"),
        (["uplod", "room01"], 'Did you mean "upload"', "see `meeting-async --help`"),
        (["room", "r", "--tiemout", "3"], "mean --timeout?", "`meeting-async room --help`"),
        (["upload", "r", "a.pdf", "--tiemout", "3"], "mean --timeout?", "`meeting-async upload"),
        (["batch", "--jurnal", "j.db", "m.csv"], "mean --journal?", "`meeting-async batch"),
        (["upload", "r", "--zzz=1"], "--zzz. Write a path as ./-name.", "`meeting-async upload"),
        (["queue", "--zzz"], 'Unknown command "--zzz"', "`meeting-async queue --help`"),
        *(
            (["upload", option, "x"], "`meeting-async batch FOLDER` sends", "`meeting-async upload")
            for option in ("-r", "-R", "--recursive")
        ),
        (["upload", "r", "a.pdf", "--max-wait", "-1"], "--max-wait", "`meeting-async upload"),
        (["batch", "m.csv", "--wait-active", "0"], "--wait-active", "`meeting-async batch"),
        (["room", "r", "--timeout", "0"], "--timeout", "`meeting-async room --help`"),
        (["batch", "m.csv", "--concurrency", "0"], "concurrency", "`meeting-async batch --help`"),
        (["room", "room01"], "MEETING_API_SECRET are not set", "`meeting-async serve` runs a"),
        (["room", "room01", "--json"], "MEETING_API_SECRET are not set", "prints what to export"),
    ],
)
def test_mistakes_on_the_command_line(
    capsys: Capture, arguments: list[str], told: str, hint: str
) -> None:
    """Exit code 2, one line that says what is wrong, and one with the command that helps."""
    done = call(capsys, *arguments)
    assert done.code == 2
    error, help_ = done.err.splitlines()
    assert told in error
    assert hint in help_
    assert ("--json" in arguments) == bool(done.out)


def test_a_path_that_looks_like_an_option(server: MeetingServer, capsys: Capture) -> None:
    """It can be sent all the same: after ``--``, or with its folder; or like a list of JSON."""
    for name in ("-a.pdf", "[1] a.pdf", "[1]"):
        Path(name).write_bytes(PDF)
    for words in (["./-a.pdf"], ["--", "-a.pdf"], ["[1] a.pdf"], ["[1]"]):
        assert call(capsys, "upload", "room01", *words).code == 0
    assert names_in(server, "room01") == ["-a.pdf", "-a.pdf", "[1] a.pdf", "[1]"]


@pytest.mark.parametrize("command", ["room room01", "upload room01 a.pdf", "batch m.csv"])
def test_hints_name_the_server(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """``--url`` wins over the environment; and a key may belong to another server."""
    monkeypatch.setenv("MEETING_API_KEY", "other")
    monkeypatch.setenv("MEETING_BASE_URL", "https://meet.example.com")
    done = call(capsys, *command.split(), "--url", server.url)
    assert f"MEETING_API_SECRET belong to {server.url}\n" in done.err
    assert "meet.example.com" not in done.err


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
    monkeypatch.setattr("meeting_async.cli.entries.check_content", lambda *_, **__: 1 / 0)
    done = call(capsys, "upload", "room01", "a.pdf")  # whose check is in a thread
    assert (done.code, "error: ZeroDivisionError: " in done.err) == (1, True)


def test_an_unforeseen_error_hides_nothing(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was delivered before is told, and is not called failed."""
    outcomes = Batch.__aiter__

    async def fail(batch: Batch) -> AsyncIterator[UploadOutcome]:
        async for outcome in outcomes(batch):
            if outcome.delivered:
                raise AssertionError
            yield outcome

    monkeypatch.setattr(Batch, "__aiter__", fail)
    done = call(capsys, "upload", "room01", "a.pdf", "--json")
    assert "error: AssertionError\n" in done.err
    (document, summary) = done.objects
    assert document["delivered"] is True
    assert done.code == summary["exit_code"] == 0
    assert call(capsys, "upload", "room01", "a.pdf", "b.pdf").code == 1


@pytest.mark.parametrize(
    ("package", "command", "extra"),
    [
        ("cyclopts", "['--help']", "cli"),
        ("rich", "['upload', 'room01', 'a.pdf']", "cli"),
        ("jinja2", "['batch', 'm.csv', '--report', 'r.html']", "cli"),
        ("python_multipart", "['serve']", "cli,testing"),
        ("python_multipart", "['demo']", "cli,testing"),
        ("procrastinate", "['queue', 'apply-schema']", "cli,procrastinate"),
        ("psycopg", "['queue', 'apply-schema']", "cli,procrastinate"),
    ],
)
def test_missing_extras_are_told_alike(
    server: MeetingServer, python: Interpreter, package: str, command: str, extra: str
) -> None:
    """One line with what to install, exit code 2, and nothing is sent."""
    code, _, err = python.run(
        f"import sys; sys.modules[{package!r}] = None; from meeting_async.cli import main; "
        f"sys.exit(main({command}))",
        Path.cwd(),
    )
    told = f'error: {package} is not installed: pip install ".[{extra}]" in a clone'
    assert err.splitlines()[-1] == f"meeting-async: {told}"
    assert (code, server.requests) == (2, [])


COMPLETED = {
    "upl": "upload",
    "upload room01 --max-w": "--max-wait",
    "upload room01 a": "a.pdf",
    "upload room01 b.pdf a": "a.pdf",
    "batch a": "a.pdf",
    "batch m.csv --journal a": "a.pdf",
    "batch m.csv --report a": "a.pdf",
    "check --ca-file a": "a.pdf",
    "check --cert a": "a.pdf",
    "queue defer a": "a.pdf",
}


def test_completion(tmp_path: Path) -> None:
    """Commands, options, and files wherever a path is expected, as in any other command."""
    arguments = ("--install-completion", "--shell", "bash", "--output", "script")
    assert run(*arguments, env={**os.environ, "HOME": str(tmp_path)}).code == 0
    asked = [
        f"COMPREPLY=(); COMP_WORDS=(meeting-async {words}); COMP_CWORD={len(words.split())}; "
        '_meeting_async; echo "${COMPREPLY[*]}"'
        for words in COMPLETED
    ]
    done = shell("\n".join(["source ./script", *asked]))
    assert dict(zip(COMPLETED, done.out.splitlines(), strict=True)) == COMPLETED


@pytest.mark.filterwarnings("default")
def test_logs_and_warnings_are_lines(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the library warns of is shown once; what the command tells itself is not repeated.

    Of other packages only errors are shown.
    """
    monkeypatch.setenv("FORCE_COLOR", "1")  # it makes no terminal of a file: bars would be noise
    server.add_room("an odd room that no other test has")
    done = call(capsys, "upload", "an odd room that no other test has", "a.pdf")
    assert done.err.count("known servers refuse it") == 1
    assert len(done.err.splitlines()) == 3  # sending, the warning, and what was refused
    assert "DEBUG" not in done.err.upper()
    done = call(capsys, "upload", "room01", "a.pdf", "--debug")
    assert re.search("debug: call .*: accepted in ", done.err)
    monkeypatch.setenv("MEETING_API_SECRET", f"{server.api_secret}\n")
    assert "meeting-async: warning: " in call(capsys, "room", "room01").err

    def log(*_: object, **__: object) -> None:
        for level in (logging.WARNING, logging.ERROR):
            logging.getLogger("asyncio").log(level, "told")

    monkeypatch.setattr(MeetingClient, "get_active_room_info", log)
    told = call(capsys, "room", "room01").err
    assert ("meeting-async: error: told\n" in told, "warning: told" in told) == (True, False)


# --- serve and demo ------------------------------------------------------------------------------


@attrs.define
class Served:
    """What ``serve`` has said, and how it ended."""

    said: str = ""
    result: Result | None = None

    @property
    def url(self) -> str:
        """The URL that it tells others to use."""
        found = re.search(r"MEETING_BASE_URL *= *'?(\S+?)'?\n", self.said)
        assert found is not None
        return found[1]


IN_BASH = not IS_WINDOWS
"""Whether what it prints is for bash, and not for PowerShell."""


@contextmanager
def _serving(*arguments: object, **environ: str) -> Iterator[Served]:
    """Serve while the block runs."""
    process, served = (
        start("serve", "--port", 0, *arguments, env={**os.environ, **environ}),
        Served(),
    )
    assert process.stdout is not None
    while "hello.txt\n" not in served.said or served.said.count("signature%%") < 2 * IN_BASH:
        line = process.stdout.readline()
        assert line, finish(process)
        served.said += line
    try:
        yield served
    finally:
        process.terminate()
        served.result = finish(process)
        assert served.result.code == 0 or IS_WINDOWS  # where that ends it at once


def _answers(url: str) -> tuple[tuple[int, str], int]:
    """Return the answers to a document for a room without a presenter, and to a mere header."""
    fresh = {"room_id": "fresh", "metadata": {"room_title": "Fresh", "room_features": {}}}
    assert raw_http.talk(url, raw_http.call("/auth/room/create", fresh)).status == 200
    hello = raw_http.upload(raw_http.document(b"Hello\n", "hello.txt"), room="fresh")
    return raw_http.talk(url, hello).code, raw_http.talk(url, raw_http.upload()).status


def test_what_it_prints_works_when_pasted() -> None:
    """Exports, this command line and curl; each request is one line, Ctrl-C or SIGTERM the end.

    A presenter is needed, and a PDF may be a header only.
    """
    with _serving() as served:
        pasted = served.said.partition("For the shell that uploads:")[2]
        done = shell(pasted)
        assert _answers(served.url) == ((400, "USER_NOT_ACTIVE"), 200)
    assert "hello.txt: accepted by room01" in done.out
    assert done.out.count('"status": true') == 2
    assert served.result is not None
    assert served.result.err.splitlines()[-1] == "meeting-async: stopped"
    requests = [line for line in served.result.err.splitlines() if " POST " in line]
    assert len(requests) == 4 + 3
    assert re.match(r"meeting-async: \d\d:\d\d:\d\d POST /auth/room/\w+ room01 ", requests[0])
    assert " room01 'hello.txt' 200 " in "".join(requests)


def test_a_secret_that_was_given_is_not_printed() -> None:
    """It may be a real one, and terminals remember; with it calls are accepted."""
    secret, body = "s3cr3t-of-mine", b'{"room_id": "r1"}'
    with _serving("--room", "r1", MEETING_API_SECRET=secret, MEETING_API_KEY="k") as served:
        signature = raw_http.sign(body, secret.encode())
        raw = raw_http.call(raw_http.INFO, body, API_KEY="k", HASH_SIGNATURE=signature)
        assert raw_http.talk(served.url, raw).code == (200, "SUCCESS")
    assert "s3cr3t" not in str(served)


def test_what_serve_is_told() -> None:
    """No presenter is needed; a header alone and a second DOCX fail; the limit, and durations.

    A stored file is somewhere else.
    """
    rules = ("--no-presenter-required", "--strict-pdf", "--office-documents-clash")
    slow = ("--processing-seconds", 0.3, "--holds-forms", 0.2, "--stored-files", "redirected")
    file = raw_http.request("/download/uploadedFile/RM_1/hello.txt", b"", {}, "HEAD")
    docx = raw_http.document(b"PK\x03\x04" + bytes(26) + b"PK\x03\x04" + bytes(26) + b"word/")
    with _serving("--quiet", *rules, "--max-size", "1KiB", *slow) as served:
        began = time.monotonic()
        assert _answers(served.url) == ((200, "SUCCESS"), 500)
        assert time.monotonic() - began >= 0.5
        assert raw_http.talk(served.url, file).status == 307
        with raw_http.connect(served.url) as one, raw_http.connect(served.url) as two:
            one.sendall(raw_http.upload(docx, "room01"))
            two.sendall(raw_http.upload(docx, "room02"))
            answers = {raw_http.read_answer(peer).status for peer in (one, two)}
        assert answers == {200, 500}
        large = raw_http.upload(raw_http.document(b" " * 1025, "notes.txt"))
        assert raw_http.talk(served.url, large).status == 413
    assert "Documents up to 1.0 KiB" in served.said
    assert served.result is not None
    stopped = "" if IS_WINDOWS else "meeting-async: stopped\n"
    assert (served.result.out.strip(), served.result.err) == ("", stopped)


def test_the_container_file_of_the_docs() -> None:
    """It copies what the package is built from, and its command listens to the outside."""
    root = Path(__file__).parents[2]
    shown = (root / "docs" / "command-line.md").read_text().partition("```dockerfile\n")[2]
    lines = shown.partition("```")[0].splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert copied == {"pyproject.toml", project["readme"], *project["license-files"], "src"}
    program, *command = json.loads(lines[-1].removeprefix("CMD "))
    found, given, _ = app.parse_args(command, exit_on_error=False, print_error=False)
    assert (program, found.__name__) == ("meeting-async", "serve")
    assert given.kwargs == {"host": "0.0.0.0"}


def test_mistakes_of_serve(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits, rooms, addresses and secrets that cannot be used are told in a line."""
    assert "--max-size is not a size" in call(capsys, "serve", "--max-size", "30MB").err
    assert call(capsys, "serve", "--room", "").code == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = call(capsys, "serve", "--port", taken.getsockname()[1])
    assert (done.code, "another port with --port" in done.err) == (1, True)
    Path("secret").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("MEETING_API_SECRET_FILE", "secret")
    done = call(capsys, "serve")
    assert (done.code, "MEETING_API_SECRET_FILE is not UTF-8 text" in done.err) == (2, True)


@pytest.fixture
def _short_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "PROCESSING_SECONDS", 0.1)
    monkeypatch.setattr(stage, "LOCK_SECONDS", 1.0)
    monkeypatch.setattr(stage, "LIMIT", 1024**2)


@pytest.mark.usefixtures("_short_demo")
def test_the_demo(capsys: Capture) -> None:
    """Ten lines on every kind of document, and one sentence in the end; nothing else is said."""
    done = call(capsys, "demo")
    lines = done.out.splitlines()
    begin = "\n".join(lines[:10])
    kinds = ("handout.pdf", "timetable.txt", "syllabus.pdf", "diagram.png", "too-large.pdf")
    for word in (*kinds, "refused, not sent", "waited: the room was locked"):
        assert word in begin
    ((there, *second),) = re.findall(
        r"first run +killed \(kill -9\) when the server had (\d+) documents\n"
        r"  second run +(\d+) accepted before, (\d+) found there, (\d+) sent, 5 without",
        done.out,
    )
    before, found, rest = map(int, second)
    assert (before + found + rest, before + found >= int(there) >= 10) == (25, True)
    last = done.out.rstrip().rpartition("\n\n")[2].replace("\n", " ")
    assert re.fullmatch(r"Everything was as expected: 30 doc[^.]+, in \d+\.\d s\.", last)
    assert (done.code, done.err, max(map(len, lines)) < 80) == (0, "", True)


@pytest.mark.usefixtures("_short_demo")
def test_the_demo_notices_what_is_wrong(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A demonstration that cannot fail would prove nothing."""
    add = MeetingServer.add_room

    def add_room(server: MeetingServer, room_id: str, **facts: Any) -> object:
        room = add(server, room_id, **facts)
        room.fail_conversion = room_id in {"room01", "class02"}
        return room

    monkeypatch.setattr(MeetingServer, "add_room", add_room)
    done = call(capsys, "demo")
    assert done.code == 1
    assert "not as expected: handout.pdf to room01: " in done.err
    assert "handout.pdf     to room01  NOT ACCEPTED" in done.out
    assert "class02 received nothing instead of week-1.pdf, week-2.pdf, " in done.err
    assert done.out.splitlines()[-1].startswith("Not everything was as expected: ")


@pytest.mark.nightly
def test_the_demo_is_cut_short() -> None:
    """As somebody tries it: ``head`` is no error; Ctrl-C ends it with 130 and no traceback."""
    done = shell("meeting-async demo | head -3; exit ${PIPESTATUS[0]}")
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 3)
    process = start("demo")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert (done.code, done.err) == (130, "meeting-async: interrupted\n")
