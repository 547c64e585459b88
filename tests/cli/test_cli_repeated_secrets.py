"""A page that repeats what it was sent, and the command line: neither output nor files show it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.command_line import Result, call
from support.peer import Peer
from support.repeating import GREETING, KEY, SECRET, Repeater, repeating
from support.telling import containing, files

Capture = pytest.CaptureFixture[str]

PLACES = ["page", "msg", "status_code", "header", "field"]
HOWS: list[list[str]] = [["--debug"], ["--json"], ["--debug", "--json"]]


@contextmanager
def repeating_at(
    statuses: list[int], repeats: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Repeater, int]]:
    """Run a server that repeats what it is sent; the environment leads to it.

    Yield it with the number of its different answers.
    """
    places = [place for place in PLACES if repeats == "document" or place != "page"]  # asked again
    each = [repeating(place, status) for place in places for status in statuses]
    if 502 not in statuses:  # once, at last: then documents ask first, and wait at another 5xx
        each += [repeating("page", 502), repeating("msg", 502)]
    repeater = Repeater(each, repeats)
    with Peer(repeater) as peer:
        monkeypatch.setenv("MEETING_BASE_URL", peer.url)
        monkeypatch.setenv("MEETING_API_KEY", KEY)
        monkeypatch.setenv("MEETING_API_SECRET", SECRET)
        yield repeater, len(each)


def leaked(repeater: Repeater, done: list[Result]) -> list[str]:
    """Tell where a secret is: in the output of commands, or in the files that they have written."""
    assert len(repeater.seen) > 1
    assert any(GREETING in one.out + one.err for one in done)
    outputs = [("stdout", one.out) for one in done] + [("stderr", one.err) for one in done]
    return containing([*outputs, *files(Path())], repeater.seen)


def test_uploads_print_no_secret(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """As text, as JSON, and with the log of ``--debug``."""
    with repeating_at([200, 400, 502], "document", monkeypatch) as (repeater, count):
        done = [
            call(capsys, "upload", f"room{number}", "a.pdf", "--max-wait", 0, *HOWS[number % 3])
            for number in range(count)
        ]
    assert {one.code for one in done} == {0, 1, 3}
    assert leaked(repeater, done) == []


def test_rooms_print_no_secret(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the JSON that a server sent is printed with what it repeats."""
    with repeating_at([200, 400, 502], "check", monkeypatch) as (repeater, count):
        done = [
            call(capsys, "room", f"room{number}", *HOWS[number % 3]) for number in range(count * 3)
        ]
    assert {one.code for one in done} == {0, 1}
    assert leaked(repeater, done) == []


@pytest.mark.parametrize(
    "how", [pytest.param([], id="text"), pytest.param(["--json"], marks=pytest.mark.nightly)]
)
def test_batches_write_no_secret(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, how: list[str]
) -> None:
    """Neither into what is printed, nor into the journal or the report."""
    arguments = ("--journal", "j.db", "--report", "r.html", "--max-wait", 0, "--concurrency", 1)
    with repeating_at([200, 400], "document", monkeypatch) as (repeater, count):
        lines = ["room_id,document", *(f"class{number},a.pdf" for number in range(count))]
        Path("m.csv").write_text("\n".join(lines))
        done = [call(capsys, "batch", "m.csv", *arguments, *how)]
    assert Path("r.html").exists()
    assert Path("j.db").exists()
    assert leaked(repeater, done) == []
