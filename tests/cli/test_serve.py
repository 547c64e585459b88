"""``serve``: what it prints can be pasted, requests are told, and it ends when it is told to."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.command_line import PROGRAM, Result, call, finish, start


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
    """It may be a real one, and terminals remember; with it uploads are accepted."""
    with _serving("--room", "r1", MEETING_API_SECRET="s3cr3t-of-mine", MEETING_API_KEY="k") as (
        said,
        found,
    ):
        exports = re.search(r"export MEETING_BASE_URL=\S+", said)
        assert exports is not None
        done = _paste(
            f"{exports[0]} MEETING_API_KEY=k MEETING_API_SECRET=s3cr3t-of-mine\n"
            "meeting-async upload r1 a.pdf"
        )
    assert done.code == 0
    assert "s3cr3t" not in said + found["result"].err


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    """Limits, rooms and addresses that cannot be used are told in a line."""
    assert "--max-size is not a size" in call(capsys, "serve", "--max-size", "30MB").err
    assert call(capsys, "serve", "--room", "").code == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = call(capsys, "serve", "--port", taken.getsockname()[1])
    assert (done.code, "Address already in use" in done.err) == (1, True)


def test_a_secret_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is not text cannot be a secret of the server."""
    (tmp_path / "secret").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("MEETING_API_SECRET_FILE", str(tmp_path / "secret"))
    done = call(capsys, "serve")
    assert (done.code, "MEETING_API_SECRET_FILE holds what is not UTF-8" in done.err) == (2, True)
