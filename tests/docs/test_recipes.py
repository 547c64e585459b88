"""What the pages of recipes say beyond what their programs print.

Browsers that disconnect, bars on a terminal, processes that fork, and a real Celery worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import export
from support.programs import run_to_its_end
from support.raw_http import document as form
from support.sites import Browser, Site, eventually, serving
from support.terminal import drawn_by

DOCS = Path(__file__).parents[2] / "docs"


def programs(page: str, heading: str) -> list[str]:
    """Return the programs of a section."""
    section = (DOCS / page).read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Iterator[MeetingServer]:
    """Run a meeting server that the environment names."""
    server = MeetingServer()
    with server.run():
        export(monkeypatch, server)
        yield server


# --- recipes.md ----------------------------------------------------------------------------------


@pytest.fixture
def site(meeting: MeetingServer, tmp_path: Path) -> Iterator[Site]:
    """Serve the application that sends events, without the lines that try it."""
    (program,) = programs("recipes.md", "Server-sent events for one upload")
    code = program.split("\nwith TestClient")[0]
    (tmp_path / "recipe_app.py").write_text(code, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    with serving("recipe", meeting, tmp_path, PYTHONPATH=path) as site:
        yield site
    assert "Traceback" not in site.log
    assert "Task exception was never retrieved" not in site.log


def events(browser: Browser, name: str = "deck.pdf") -> Iterator[str]:
    """Send a form and yield the lines of the answer as they come."""
    browser.post("/rooms/room01/documents", form(b"%PDF-1.7", name))
    for line in browser.reply():
        yield line.decode().strip()


@pytest.mark.nightly
def test_a_browser_sees_what_happens(site: Site, meeting: MeetingServer) -> None:
    """The room is busy, then the document is sent, then it is there; each is told when it is so."""
    room = meeting.add_room("room01")
    room.lock()
    with site.browser() as browser:
        told = events(browser)
        assert next(line for line in told if line == "event: waiting")
        room.unlock()
        assert [line for line in told if line][-1].startswith('data: {"delivered": true')
    assert [file.name for file in room.received] == ["deck.pdf"]


@pytest.mark.nightly
def test_a_browser_that_goes_takes_its_upload_with_it(site: Site, meeting: MeetingServer) -> None:
    """While it waits for the room: it is cancelled, its room lock is free, and nothing arrives."""
    room = meeting.add_room("room01")
    room.lock()
    with site.browser() as browser:
        assert next(line for line in events(browser) if line == "event: waiting")
        browser.cut()
    assert eventually(lambda: site.connections(meeting)[0] == 0)
    room.unlock()
    with site.browser() as browser:
        assert [line for line in events(browser, "next.pdf") if line][-1].startswith("data: ")
    assert [file.name for file in room.accepted] == ["next.pdf"]


@pytest.mark.nightly
@pytest.mark.parametrize("heading", ["A progress bar for one upload", "A folder with tqdm"])
def test_bars_on_a_terminal(meeting: MeetingServer, tmp_path: Path, heading: str) -> None:
    """On a terminal the bar is drawn, and it gets to its end."""
    (tmp_path / "deck.pdf").write_bytes(b"%PDF-1.7" + bytes(2**20))
    for room_id in ("room01", "room02"):
        meeting.add_room(room_id)
    for name in ("@eaDir/a.pdf", "room01/.~lock.a.odp#", "room01/a.pdf.part", ".git/a.pdf"):
        (tmp_path / "slides" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "slides" / name).write_bytes(b"%PDF-1.7")  # not a document of a room
    (program,) = programs("recipes.md", heading)
    command = [sys.executable, "-W", "error", "-c", program]
    environment = {**os.environ, "TERM": "xterm"}
    code, drawn = drawn_by(command, columns=100, cwd=tmp_path, env=environment)
    assert code == 0, drawn
    assert re.search("100%|1.0/1.0 MB", drawn)
    assert [file.name for file in meeting.rooms["room01"].received] in (["1.pdf"], ["deck.pdf"])


# --- synchronous.md ------------------------------------------------------------------------------


def recipe(heading: str) -> str:
    """Return the code of an example up to where it starts a server of its own."""
    code, *rest = programs("synchronous.md", heading)[0].split("\nserver = ")
    assert rest
    return code + "\n"


FORKED = """
import sys

def put(room_id):
    files = {"document": SimpleUploadedFile("deck.pdf", b"%PDF-1.7")}
    assert upload(RequestFactory().post("/", files), room_id).status_code == 200

def child(room_id, end):
    if os.fork():
        return
    threads = [threading.Thread(target=put, args=[room_id]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [pid == os.getpid() for pid in started].count(True) == 1
    end(0)

child("worker", sys.exit)  # as a server forks its workers
child("worker", sys.exit)
assert [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)] == [0, 0]
put("parent")
child("late", os._exit)  # as multiprocessing forks, here with a portal that works in the parent
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
put("parent")
"""


def test_a_portal_for_each_process(meeting: MeetingServer, tmp_path: Path) -> None:
    """Parent and children upload, the children from several threads, and all of them exit."""
    rooms = {name: meeting.add_room(name) for name in ("parent", "worker", "late")}
    warnings = ["-W", "error", "-W", "ignore:This process:DeprecationWarning"]  # threads, and forks
    program = [sys.executable, *warnings, "-c", recipe("Django: sync views") + FORKED]
    with subprocess.Popen(
        program, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            errors = process.communicate(timeout=40)[1]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # children that hang
    assert (process.returncode, errors) == (0, "")
    counts = {name: len(room.received) for name, room in rooms.items()}
    assert counts == {"parent": 2, "worker": 6, "late": 3}


CELERY = """
folders = {"data_folder_in": "queue", "data_folder_out": "queue", "processed_folder": "done"}
app.conf.update(broker_url="filesystem://", broker_transport_options=folders)
app.conf.result_backend = "file://results"

@worker_process_shutdown.connect
def check(**_):
    try:
        portal.call(int)
    except RuntimeError as error:
        print(f"after the end: {error}")
"""

FOR_TESTS = {
    'MeetingClient(url, api_key="devkey", api_secret="devsecret")': "MeetingClient.from_env()",
    "max_wait=60": "max_wait=0.3",
    "countdown=10": "countdown=1",
}


READ = """
import json, pathlib, slides
results = [slides.app.AsyncResult(path.name.removeprefix("celery-task-meta-"))
           for path in pathlib.Path("results").iterdir()]
facts = [result.result.args[0] for result in results if result.state == "FAILURE"]
print(json.dumps([[one["error"], one["room_id"]] for one in facts]))
"""


def known(folder: Path) -> Any:
    """Return error and room of each failed task, as another process reads them."""
    return json.loads(run_to_its_end([sys.executable, "-c", READ], folder, os.environ))


@pytest.mark.nightly
def test_a_celery_worker(meeting: MeetingServer, tmp_path: Path) -> None:
    """Its processes upload; they retry what was not delivered, and never what may have arrived.

    Another process reads from the result what is known of the document.
    """
    busy, lost, others = (meeting.add_room(name) for name in ("busy", "lost", "others"))
    code = recipe("Celery") + CELERY
    for text, instead in FOR_TESTS.items():
        assert text in code
        code = code.replace(text, instead)
    (tmp_path / "slides.py").write_text(code, encoding="utf-8")
    (tmp_path / "deck.pdf").write_bytes(b"%PDF-1.7")
    for folder in ("queue", "done", "results"):
        (tmp_path / folder).mkdir()
    log = tmp_path / "log"

    def send(*rooms: str) -> None:
        lines = ["import slides", *[f"slides.upload.delay({room!r}, 'deck.pdf')" for room in rooms]]
        subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=tmp_path, check=True)

    command = [sys.executable, "-m", "celery", "-A", "slides", "worker", "-c", "2", "-l", "INFO"]
    with (
        log.open("w", encoding="utf-8") as output,
        subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output) as worker,
    ):
        try:
            meeting.lose_next_reply()
            send("lost")
            assert eventually(lambda: "UploadOutcomeUnknown" in log.read_text("utf-8"))
            assert eventually(lambda: known(tmp_path) == [["UploadOutcomeUnknown", "lost"]])
            busy.lock()
            send("busy", *["others"] * 4)
            assert eventually(lambda: len(others.received) == 4)
            assert eventually(lambda: "Retry in" in log.read_text("utf-8"))
            busy.unlock()
            assert eventually(lambda: len(busy.received) == 1)
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
    text = log.read_text("utf-8")
    assert len(lost.received) == 1
    retried = re.findall(r"Retry in .*?: UploadError\(.*?'error': '(\w+)'", text)
    assert set(retried) == {"RoomBusy"}
    assert len(retried) == text.count("Retry in")
    assert text.count("after the end: This portal is not running") == 2
