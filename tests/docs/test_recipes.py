"""What the pages of recipes say beyond what their programs print.

Browsers that disconnect, bars on a terminal, and real programs for the client for threads: a Django
project, Flask, gunicorn, a Celery worker.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import export, until
from support.programs import drawn_by, run_to_its_end
from support.raw_http import document as form
from support.sites import Browser, Site, serving

DOCS = Path(__file__).parents[2] / "docs"
PROGRAM = re.compile(
    r"^```python\n((?:(?!^```).)*)^```\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE
)


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
    until(lambda: site.connections(meeting)[0] == 0)
    room.unlock()
    with site.browser() as browser:
        assert [line for line in events(browser, "next.pdf") if line][-1].startswith("data: ")
    assert [file.name for file in room.accepted] == ["next.pdf"]


@pytest.mark.nightly
@pytest.mark.parametrize("heading", ["A progress bar for one upload", "A batch with tqdm"])
def test_bars_on_a_terminal(meeting: MeetingServer, tmp_path: Path, heading: str) -> None:
    """On a terminal the bar is drawn, and it gets to its end."""
    (tmp_path / "deck.pdf").write_bytes(b"%PDF-1.7" + bytes(2**20))
    for room_id in ("room01", "room02"):
        meeting.add_room(room_id)
    for name in ("@eaDir/a.pdf", "room01/.~lock.a.odp#", "room01/a.pdf.part", ".git/a.pdf"):
        (tmp_path / "slides" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "slides" / name).write_bytes(b"%PDF-1.7")  # not a document of a room
    table = "room_id,document\nroom01,deck.pdf\nroom02,deck.pdf\n"
    (tmp_path / "term.csv").write_text(table)
    (program,) = programs("recipes.md", heading)
    command = [sys.executable, "-W", "error", "-c", program]
    environment = {**os.environ, "TERM": "xterm"}
    code, drawn = drawn_by(command, columns=100, cwd=tmp_path, env=environment)
    assert code == 0, drawn
    assert re.search("100%|1.0/1.0 MB", drawn)
    assert [file.name for file in meeting.rooms["room01"].received] in (["1.pdf"], ["deck.pdf"])


# --- synchronous.md ------------------------------------------------------------------------------


PAGE = (DOCS / "synchronous.md").read_text("utf-8")


@pytest.mark.parametrize(("code", "output"), re.findall(PROGRAM, PAGE))
def test_programs_for_threads(
    meeting: MeetingServer, tmp_path: Path, code: str, output: str
) -> None:
    """They print what the page says."""
    meeting.add_room("room01")
    (tmp_path / "deck.pdf").write_bytes(b"%PDF-1.7")
    assert run_to_its_end([sys.executable, "-W", "error", "-c", code], tmp_path) == output


DJANGO = """
from django.urls import path
SECRET_KEY, ALLOWED_HOSTS, INSTALLED_APPS, ROOT_URLCONF = "x", ["*"], ["slides"], "project"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"

def upload(request, room_id):
    from slides import views
    return views.upload(request, room_id)

urlpatterns = [path("rooms/<room_id>/documents", upload)]
"""
MODELS = """
from django.db import models
class Deck(models.Model):
    room_id = models.TextField()
    file = models.FileField()
"""
USE_DJANGO = """
import django
django.setup()
from django.core.files.base import ContentFile
from django.core.management import call_command
from django.test import Client
from slides.models import Deck
call_command("migrate", run_syncdb=True, verbosity=0)
for number in range(3):
    Deck.objects.create(room_id="room01", file=ContentFile(b"%PDF-1.7", f"{number}.pdf"))
call_command("upload_decks")
for room_id in ("room01", "nowhere"):
    files = {"document": ContentFile(b"%PDF-1.7", "deck.pdf")}
    answer = Client().post(f"/rooms/{room_id}/documents", files)
    print(answer.status_code, answer.json()["delivered"])
"""


@pytest.fixture
def django(meeting: MeetingServer, tmp_path: Path) -> dict[str, str]:
    """Put the view and the command of the page into a project; return what runs it."""
    view, command = programs("synchronous.md", "Django")
    files = {"project.py": DJANGO, "slides/models.py": MODELS, "slides/views.py": view}
    files["slides/management/commands/upload_decks.py"] = command
    for name, code in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(code, "utf-8")
    meeting.add_room("room01")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    return {**os.environ, "DJANGO_SETTINGS_MODULE": "project", "PYTHONPATH": path}


def test_django(django: dict[str, str], tmp_path: Path) -> None:
    """A view, and a command whose jobs come from the ORM, in a project."""
    command = [sys.executable, "-W", "error", "-c", USE_DJANGO]
    printed = run_to_its_end(command, tmp_path, django)
    told = [f"{number}.pdf for room01: accepted" for number in range(3)]
    assert printed.splitlines() == [*told, "200 True", "404 False"]


USED = {
    "Django": """
from slides.views import client
from django.core.wsgi import get_wsgi_application
app = get_wsgi_application()
client.check()
""",
    "Flask": f"{programs('synchronous.md', 'Flask')[0]}\nclient.check()\n",
}
"""Applications whose client is used before the server forks."""
SERVERS = {
    "gunicorn": [
        "-m",
        "gunicorn",
        "--preload",
        "--workers=2",
        "--threads=4",
        "--bind=fd://{}",
        "app:app",
    ],
    "uwsgi": [
        *(
            "-c",
            "import os, sys; os.execvp('uwsgi', sys.argv)",
            "--http-socket=fd://{}",
            "--master",
        ),
        *("--processes=2", "--threads=4", "--module=app:app", "--die-on-term"),
    ],
}


@pytest.mark.nightly
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("framework", USED)
def test_servers_that_fork(
    django: dict[str, str], meeting: MeetingServer, tmp_path: Path, framework: str, server: str
) -> None:
    """The client was used before the fork, of which uWSGI does not tell Python.

    At SIGTERM gunicorn waits for the answers.
    """
    if server == "uwsgi" and shutil.which("uwsgi") is None:
        pytest.skip("there is no uwsgi (pip install uwsgi)")
    (tmp_path / "app.py").write_text(USED[framework], "utf-8")
    room = meeting.rooms["room01"]
    with server_of(SERVERS[server], tmp_path, django) as site:
        with contextlib.ExitStack() as stack:
            browsers = [stack.enter_context(site.browser()) for _ in range(8)]
            for browser in browsers:
                browser.post("/rooms/room01/documents", form(b"%PDF-1.7"))
            assert [browser.answer()[0] for browser in browsers] == [200] * 8
        if server == "gunicorn":
            room.processing_seconds = 2
            with site.browser() as browser:
                browser.post("/rooms/room01/documents", form(b"%PDF-1.7"))
                until(lambda: len(room.accepted) == 9)
                site.terminate()
                assert browser.answer()[0] == 200
            assert site.ended() == 0
    assert "Traceback" not in site.log


@contextlib.contextmanager
def server_of(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[Site]:
    """Run an application under a server's command, ``{}`` of which is the listening socket."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        port, fd = listener.getsockname()[1], listener.fileno()
        process = subprocess.Popen(
            [sys.executable, *(word.format(fd) for word in command)],
            cwd=folder,
            env={**environment, "HOME": str(folder)},  # where gunicorn puts a socket
            pass_fds=[fd],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    site = Site(command[1], port, folder, process)
    try:
        yield site
    finally:
        if process.returncode is None:
            site.stop()


def test_flask(meeting: MeetingServer, tmp_path: Path) -> None:
    """The application answers a form, and an error with its status."""
    meeting.add_room("room01")
    (code,) = programs("synchronous.md", "Flask")
    code += """
for room_id in ("room01", "nowhere"):
    form = {"document": (__import__("io").BytesIO(b"%PDF-1.7"), "deck.pdf")}
    answer = app.test_client().post(f"/rooms/{room_id}/documents", data=form)
    print(answer.status_code, answer.json["delivered"])
"""
    printed = run_to_its_end([sys.executable, "-W", "error", "-c", code], tmp_path)
    assert printed == "200 True\n404 False\n"


CELERY = """
folders = {"data_folder_in": "queue", "data_folder_out": "queue", "processed_folder": "done"}
app.conf.update(broker_url="filesystem://", broker_transport_options=folders)
app.conf.result_backend = "file://results"
client.check()  # before the fork
"""

FOR_TESTS = {"max_wait=60": "max_wait=0.3", "retry_backoff=10": "retry_backoff=1"}


@pytest.mark.nightly
@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_a_celery_worker(meeting: MeetingServer, tmp_path: Path, pool: str) -> None:
    """It retries what was not delivered, and never what may have arrived; a soft limit is told."""
    busy, lost, slow, others = (
        meeting.add_room(name) for name in ("busy", "lost", "slow", "others")
    )
    code = programs("synchronous.md", "Celery")[0] + CELERY
    for text, instead in FOR_TESTS.items():
        assert text in code
        code = code.replace(text, instead)
    (tmp_path / "slides.py").write_text(code, encoding="utf-8")
    (tmp_path / "deck.pdf").write_bytes(b"%PDF-1.7")
    for folder in ("queue", "done", "results"):
        (tmp_path / folder).mkdir()
    log = tmp_path / "log"

    def send(*rooms: str, **options: float) -> None:
        call = "slides.upload.apply_async"
        lines = [f"{call}(({room!r}, 'deck.pdf'), **{options})" for room in rooms]
        program = "\n".join(["import slides", *lines])
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)

    def has_logged(text: str) -> bool:
        return text in log.read_text("utf-8")

    command = [sys.executable, "-m", "celery", "-A", "slides", "worker", "--pool", pool, "-c", "2"]
    with (
        log.open("w", encoding="utf-8") as output,
        subprocess.Popen(
            [*command, "-l", "INFO"], cwd=tmp_path, stdout=output, stderr=output
        ) as worker,
    ):
        try:
            meeting.lose_next_reply()
            send("lost")
            until(lambda: has_logged("UploadOutcomeUnknown"))
            if pool == "prefork":  # others have no limits
                slow.processing_seconds = 5
                send("slow", soft_time_limit=1)
                told = "SoftTimeLimitExceeded has ended a call: 'deck.pdf' may have arrived in room"
                until(lambda: has_logged(told))
            busy.lock()
            send("busy", *["others"] * 4)
            until(lambda: has_logged("Retry in"))
            busy.unlock()
            until(lambda: len(busy.received) == 1)
            until(lambda: len(others.received) == 4)
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
    assert len(lost.received) == 1
    retried = re.findall(r"Retry in .*?: (\w+)\(", log.read_text("utf-8"))
    assert set(retried) == {"RoomBusy"}
