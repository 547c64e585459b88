"""`meeting-async serve`: as a process beside others, and in this one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from _cli import PDF, PROGRAM, SECONDS, heeding_ctrl_c, interrupt_when, run
from meeting_async.cli import main
from meeting_async.testing import MeetingServer


@pytest.fixture(scope="module", autouse=True)
def _ctrl_c_works() -> Iterator[None]:
    """Heed Ctrl-C wherever the tests run."""
    with heeding_ctrl_c():
        yield


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what would configure the command line."""
    for name in [*os.environ]:
        if name.startswith("MEETING_"):
            monkeypatch.delenv(name)


@pytest.fixture
def deck(tmp_path: Path) -> Path:
    """Make a document."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(PDF)
    return path


class Serving:
    """A `meeting-async serve` in a process of its own, and what it printed."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, "serve", "--port=0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={name: text for name, text in os.environ.items() if "MEETING" not in name},
        )
        assert self.process.stdout
        self.lines: list[str] = []
        while not self.lines or "HASH-SIGNATURE" not in self.lines[-1]:
            self.lines.append(self.process.stdout.readline())
            assert self.lines[-1], "it ended"
        self.exports = dict(re.findall(r"^export (\w+)=(\S+)$", "".join(self.lines), re.MULTILINE))

    def end(self, number: int) -> tuple[int, str]:
        """Send a signal; return the exit code and what was said at the end."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, said


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    """Run `meeting-async serve`, and in the end press Ctrl-C."""
    served = Serving("--room=algebra", "--room=history", "--room=algebra", "--max-size=1MiB")
    yield served
    assert served.end(signal.SIGINT) == (0, "meeting-async: stopped\n")


def test_upload_to_serve_by_path_and_by_link(serving: Serving, deck: Path) -> None:
    """Two processes that know of each other only what was printed."""
    files = MeetingServer()
    with files.run():
        link = files.host_file("linked.pdf", PDF)
        done = run("upload", "algebra", deck, link, **serving.exports)
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].startswith(f"{link}: accepted by algebra (a link, ")
    assert done.stdout.splitlines()[0].startswith(f"{deck}: accepted by algebra (22 bytes, ")


@pytest.mark.parametrize(
    ("secret", "status"), [("devsecret", "200"), ("another", "401")], ids=["right", "wrong"]
)
def test_printed_curl_lines_do_what_they_say(
    serving: Serving, deck: Path, secret: str, status: str
) -> None:
    """Curl and openssl, pasted: an independent client is accepted, a wrong signature refused."""
    if not shutil.which("curl") or not shutil.which("openssl"):
        pytest.skip("needs curl and openssl")
    start = next(i for i, line in enumerate(serving.lines) if line.startswith("signature="))
    script = "".join(serving.lines[start:]).replace("curl -sS", "curl -sS -w '\\n%{http_code}'")
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=deck.parent,
        env={**os.environ, **serving.exports, "MEETING_API_SECRET": secret},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    record, _, code = done.stdout.rpartition("\n")
    assert code == status
    assert json.loads(record)["status"] is (status == "200")


def test_serve_obeys_its_options(
    serving: Serving,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rooms are those of ``--room``, its size limit that of ``--max-size``."""
    for name, text in serving.exports.items():
        monkeypatch.setenv(name, text)
    large = tmp_path / "large.pdf"
    large.write_bytes(PDF + bytes(1024**2))
    assert main(["upload", "history", str(large)]) == 1
    assert "HTTP 413 INVALID_PARAMETERS: the file is too large" in capsys.readouterr().err
    assert main(["room", "room01"]) == 1
    assert "ROOM_NOT_FOUND" in capsys.readouterr().err


# --- serve, in process ---------------------------------------------------------------------------


def free_port() -> int:
    """Find a port that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def answers(port: int) -> Callable[[], bool]:
    """Tell whether a server has begun to answer on the port."""

    def asked() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).status_code > 0
        except httpx.TransportError:
            return False

    return asked


def test_serve_ends_cleanly_on_sigterm(capsys: pytest.CaptureFixture[str]) -> None:
    """The defaults: three rooms and development credentials; SIGTERM is no failure."""
    port, before = free_port(), signal.getsignal(signal.SIGTERM)
    interrupt_when(answers(port), signal.SIGTERM)
    assert main(["serve", f"--port={port}"]) == 0
    assert signal.getsignal(signal.SIGTERM) == before
    shown = capsys.readouterr()
    assert "room01, room02, room03" in shown.out
    exports = re.findall(r"^export .*", shown.out, re.MULTILINE)
    assert exports == [
        f"export MEETING_BASE_URL=http://127.0.0.1:{port}",
        "export MEETING_API_KEY=devkey",
        "export MEETING_API_SECRET=devsecret",
    ]
    assert shown.err == "meeting-async: stopped\n"


def test_serve_never_shows_a_secret_that_it_was_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Terminals and logs remember; on other interfaces the missing TLS is mentioned."""
    (tmp_path / "secret").write_text("hush\n")
    monkeypatch.setenv("MEETING_API_SECRET_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("MEETING_API_KEY", "it's mine")
    port = free_port()
    interrupt_when(answers(port))
    assert main(["serve", f"--port={port}", "--host=0.0.0.0", "--room=a b"]) == 0
    shown = capsys.readouterr()
    assert "hush" not in shown.out + shown.err
    assert 'export MEETING_API_SECRET="${MEETING_API_SECRET:?' in shown.out
    assert """export MEETING_API_KEY='it'"'"'s mine'\n""" in shown.out
    assert "export MEETING_ALLOW_PLAINTEXT=1" in shown.out
    assert "meeting-async upload 'a b' deck.pdf" in shown.out


def test_serve_stops_when_interrupted_before_it_listens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ctrl-C while the welcome is printed is as good as a later one."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(MeetingServer, "serve_forever", interrupted)
    assert main(["serve"]) == 0
    assert capsys.readouterr().err == "meeting-async: stopped\n"


def test_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """And exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", f"--port={port}"]) == 1
    assert capsys.readouterr().err == (
        f"meeting-async: error: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    )


@pytest.mark.parametrize("host", ["nobody.invalid", "a..b"])
def test_host_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str], host: str) -> None:
    """Names that do not exist, and names that cannot."""
    assert main(["serve", f"--host={host}", "--port=0"]) == 1
    assert re.fullmatch(r"meeting-async: error: cannot listen on .*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-size=30MB"],
        ["--max-size=0"],
        ["--port=70000"],
        ["--port=-1"],
        ["--lock-seconds=0"],
        ["--processing-seconds=-1"],
        ["--room="],
        ["stray"],
    ],
    ids=str,
)
def test_serve_refuses_bad_arguments(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """With exit code 2, before it listens."""
    assert main(["serve", "--port=0", *arguments]) == 2
    assert capsys.readouterr().err.startswith("meeting-async: error: ")


def test_serve_refuses_a_secret_that_is_no_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The variable is named, the content is not shown."""
    (tmp_path / "secret").write_bytes(b"\xff\xfehush")
    monkeypatch.setenv("MEETING_API_SECRET_FILE", str(tmp_path / "secret"))
    assert main(["serve"]) == 2
    shown = capsys.readouterr().err
    assert "MEETING_API_SECRET_FILE holds what is not UTF-8 text" in shown
    assert "hush" not in shown
