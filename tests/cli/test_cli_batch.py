"""``batch``: what is delivered, in which order, and what is said in the end."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from meeting_async import MeetingClient
from meeting_async.testing import MeetingServer
from support.command_line import call, manifest, names_in, start, until

Capture = pytest.CaptureFixture[str]


def test_everything_is_delivered_in_order(server: MeetingServer, capsys: Capture) -> None:
    """Of each room; the sums are on stdout, and nothing else is."""
    link = server.host_file("plan.pdf", b"%PDF-1.7")
    Path("m.csv").write_text(
        f"room_id,document,filename\nroom01,b.pdf,Week 2.pdf\nroom02,a.pdf\nroom01,{link}\n"
    )
    done = call(capsys, "batch", "m.csv")
    assert done.code == 0
    assert names_in(server, "room01") == ["Week 2.pdf", "plan.pdf"]
    assert names_in(server, "room02") == ["a.pdf"]
    sums, traffic = done.out.splitlines()
    assert sums == "m.csv: 3 of 3 documents delivered."
    assert traffic.startswith("44 bytes sent in ")


@pytest.mark.parametrize("kind", ["folder", "stdin"])
def test_other_sources(server: MeetingServer, capsys: Capture, kind: str) -> None:
    """A folder, whose journal and report may lie in it; or a manifest on stdin."""
    if kind == "folder":
        Path("term", "room03").mkdir(parents=True)
        Path("a.pdf").rename("term/room03/week 1.pdf")
        for _ in range(2):  # at the second time they are there
            report, journal = "term/report.html", "term/term.db"
            done = call(capsys, "batch", "term", "--report", report, "--journal", journal)
            assert done.code == 0
    else:
        process = start("batch", "-", stdin=subprocess.PIPE)
        process.communicate("room_id,document,filename\nroom03,a.pdf,week 1.pdf\n", timeout=50)
        assert process.returncode == 0
    assert names_in(server, "room03") == ["week 1.pdf"]


def test_missing_rooms_are_one_line_each(server: MeetingServer, capsys: Capture) -> None:
    """However many documents they were to get; the worst comes first."""
    Path("m.csv").write_text(
        "room_id,document,key\n" + "".join(f"nope,a.pdf,{n}\n" for n in range(5)) + "room01,b.pdf\n"
    )
    server.add_room("last")
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
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\n")
    assert call(capsys, "batch", "m.csv", "--wait-active", "40").code == 0


def test_busy_rooms(server: MeetingServer, capsys: Capture) -> None:
    """Exit code 75 if nothing is worse; ``--max-wait`` is for each document."""
    server.rooms["room01"].lock(60)
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nroom02,a.pdf\n")
    done = call(capsys, "batch", "m.csv", "--max-wait", "0")
    assert (done.code, names_in(server, "room02")) == (75, ["a.pdf"])
    assert "failed: 1 document for room room01: Room busy: another upload" in done.out


def test_unknown_hides_nothing_and_is_hidden_by_nothing(
    server: MeetingServer, capsys: Capture
) -> None:
    """Exit code 3, whatever else happened; it is sent again only if asked for."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nnope,b.pdf\n")
    server.lose_next_reply(path="/room/uploadWhiteboardFile")
    arguments = ("batch", "m.csv", "--journal", "j.db", "--concurrency", "1")
    first = call(capsys, *arguments)
    again = call(capsys, *arguments)
    assert (first.code, again.code, len(server.rooms["room01"].accepted)) == (3, 3, 1)
    assert "hint: unknown documents are sent again only with --on-unknown resend" in again.err
    assert call(capsys, *arguments, "--on-unknown", "resend").code == 1
    assert len(server.rooms["room01"].accepted) == 2


def test_going_on(server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a journal the same command sends only what is missing; the hint is that command."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nroom 4,b.pdf\n")
    arguments = ["batch", "m.csv", "--journal", "my term.db"]
    monkeypatch.setattr("sys.argv", ["meeting-async", *arguments])
    done = call(capsys, *arguments)
    assert done.code == 1
    assert "hint: run `meeting-async batch m.csv --journal 'my term.db'` again" in done.err
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nroom02,b.pdf\n")
    done = call(capsys, *arguments)
    assert (done.code, names_in(server, "room01")) == (0, ["a.pdf"])
    assert "2 of 2 documents delivered (1 by an earlier run)." in done.out


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


def test_a_journal_in_use(server: MeetingServer, capsys: Capture) -> None:
    """Exit code 2 and one line; nothing is sent."""
    manifest(server, rooms=1, documents=1)

    async def hold() -> None:
        async with MeetingClient.from_env() as client, client.upload_many([], journal="j.db"):
            begun.set()
            await anyio.to_thread.run_sync(done.wait)

    begun, done = threading.Event(), threading.Event()
    other = threading.Thread(target=anyio.run, args=(hold,), daemon=True)
    other.start()
    assert begun.wait(50)
    found = call(capsys, "batch", "m.csv", "--journal", "j.db")
    done.set()
    other.join()
    assert (found.code, "another" in found.err, server.requests) == (2, True, [])


@pytest.mark.parametrize("report", ["nowhere/r.html", "."])
def test_a_report_that_could_not_be_written(
    server: MeetingServer, capsys: Capture, report: str
) -> None:
    """That is found out before hours of work."""
    manifest(server, rooms=1, documents=1)
    done = call(capsys, "batch", "m.csv", "--report", report)
    assert (done.code, "--report" in done.err, server.requests) == (2, True, [])


def test_quiet(server: MeetingServer, capsys: Capture) -> None:
    """``--quiet`` leaves only what went wrong."""
    manifest(server, rooms=2, documents=2)
    done = call(capsys, "batch", "m.csv", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
