"""``docs/queue.md``: its commands, programs and statements run in the order of the page."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import psycopg
import pytest

from meeting_async.cli.app import app as cli_app
from meeting_async.procrastinate import SCHEMA, WhiteboardUploads
from meeting_async.procrastinate._connect import CONNECTIONS
from meeting_async.procrastinate._worker import ENDING_SECONDS, POLL_SECONDS
from meeting_async.testing import MeetingServer
from support.command_line import until, variables
from support.postgres import PostgresServer, needs_postgres
from support.programs import PATIENCE, run_to_its_end

PAGE = (Path(__file__).parents[2] / "docs" / "queue.md").read_text("utf-8")
APPLY = "meeting-async queue apply-schema"


def blocks(language: str, heading: str) -> list[str]:
    """Return the blocks of a language in a section."""
    text = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def command_for(end: str, batch: str = "web") -> str:
    """Return the command of the page's table that ends like this."""
    found = re.search(rf"`(meeting-async queue {end})`", PAGE)
    assert found
    return found[1].replace("BATCH", batch)


@attrs.frozen
class Machine:
    """What a new user has: an empty folder and database, and rooms as in `meeting-async serve`."""

    folder: Path
    dsn: str
    meeting: MeetingServer

    @property
    def environment(self) -> dict[str, str]:
        """Return what the page says to export."""
        return {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            **variables(self.meeting),
            "MEETING_QUEUE_DSN": self.dsn,
            "PYTHONWARNINGS": "error",
        }

    def write(self, files: Mapping[str, str]) -> None:
        """Save files; what is there already gets longer."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(textwrap.dedent(text))

    def run(self, *command: str, **environment: str) -> str:
        """Run a program to its end and return what it prints; it must succeed and not warn."""
        return run_to_its_end(command, self.folder, {**self.environment, **environment})

    def shell(self, block: str) -> str:
        """Paste a block into a shell."""
        return self.run("bash", "-euc", block)

    def states(self) -> set[object]:
        """Return the states of the uploads."""
        with psycopg.connect(self.dsn) as connection:
            return {row[0] for row in connection.execute("SELECT state FROM meeting_async_uploads")}

    @contextlib.contextmanager
    def working(self, command: str, count: int = 1) -> Iterator[None]:
        """Run workers until all is uploaded; then stop them as a service manager does."""
        with contextlib.ExitStack() as stack:
            log = stack.enter_context((self.folder / "worker.log").open("w"))
            where = {"cwd": self.folder, "env": self.environment, "stdout": log, "stderr": log}
            workers = [subprocess.Popen(command.split(), **where) for _ in range(count)]  # type: ignore[call-overload] # of a mapping
            for worker in workers:
                stack.callback(worker.wait)
                stack.callback(worker.kill)
            yield
            until(lambda: not self.states() & {"ready", "sent"})
            for worker in workers:
                worker.send_signal(signal.SIGTERM)
            assert [worker.wait(PATIENCE) for worker in workers] == [0] * count


@pytest.fixture
def machine(tmp_path: Path, postgres: PostgresServer) -> Iterator[Machine]:
    """Make what a new user has."""
    meeting = MeetingServer()
    for number in (1, 2, 3):
        meeting.add_room(f"room0{number}")
    with meeting.run():
        yield Machine(tmp_path, postgres.new_database(), meeting)


def files(*headings: str) -> dict[str, str]:
    """Return the Python files of sections by the names in their first lines."""
    found = {}
    for block in [block for heading in headings for block in blocks("python", heading)]:
        name = re.match(r"# (\S+\.py)\n", block)
        assert name, block
        found[name[1]] = block
    return found


PROGRAMS = files("Set up", "Defer", "Run workers")

REPORT_PROGRAM = """
import asyncio
from queue_app import app, uploads

async def main():
    async with app.open_async():
        report = await uploads.report("web")
    print(report.accepted, "accepted,", report.queued, "queued")
    for outcome in report.outcomes:
        if not outcome.delivered:
            print(outcome.room_id, outcome.document, outcome.status, outcome.error)

asyncio.run(main())
"""

MANIFEST = "room_id,document\n" + "".join(
    f"room0{number % 3 + 1},document-{number}.txt\n" for number in range(1, 101)
)


@pytest.fixture
def programs(machine: Machine) -> Machine:
    """Save the programs of the page with their slides, and make the tables."""
    slides = {"slides/1.pdf": "%PDF-1.7", "slides/2.pdf": "%PDF-1.7"}
    machine.write({**PROGRAMS, "report.py": REPORT_PROGRAM, **slides})
    machine.shell(APPLY)
    return machine


REQUESTS = """
from fastapi.testclient import TestClient
from web import web

with TestClient(web) as browser:
    for room_id, number in [("room01", 1), ("room01", 2), ("room01", 1), ("room99", 1)]:
        answer = browser.post(f"/rooms/{room_id}/slides/{number}")
        print(answer.status_code, answer.json()["new"])
"""


# --- the page ------------------------------------------------------------------------------------


def test_every_block_is_of_a_known_kind() -> None:
    """No block of code is left out by the tests below, and the names in the text exist."""
    assert list(PROGRAMS) == ["queue_app.py", "web.py", "worker.py"]
    kinds = re.findall(r"^```(\w+)$", PAGE, re.MULTILINE)
    assert kinds.count("python") == len(PROGRAMS) + len(files("Django"))
    assert sorted(set(kinds)) == ["ini", "python", "sh", "sql"]
    assert kinds.count("sh") == 8
    (version,) = re.findall("its version, now ([0-9]+)", PAGE)
    assert f"IS 'meeting-async, version {version}'" in SCHEMA
    names = set(re.findall(r"`(?:await )?uploads\.(\w+)\(", PAGE))
    assert names >= {"defer_many", "outcomes", "drop", "status", "report", "retry", "cancel"}
    assert [name for name in names if not hasattr(WhiteboardUploads, name)] == []


def test_the_systemd_units() -> None:
    """They start the command that there is, and wait for its end longer than its uploads take."""
    (unit,) = blocks("ini", "Run workers")
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit)
    service = parser["Service"]
    program, *command = service["ExecStart"].split()
    assert program.endswith("/meeting-async")
    assert service["Restart"] == "always"
    found, given, _ = cli_app.parse_args(command, exit_on_error=False, print_error=False)
    assert (found.__name__, given.kwargs["grace"]) == ("worker", 600)
    grace = re.search(r"terminationGracePeriodSeconds: (\d+)", PAGE)
    assert grace
    assert int(service["TimeoutStopSec"]) == int(grace[1]) > given.kwargs["grace"] + ENDING_SECONDS


def test_figures_equal_the_code() -> None:
    """Those of the page are the code's."""
    defaults: Any = WhiteboardUploads.run_worker.__kwdefaults__
    told = (
        f"every {POLL_SECONDS} s",
        f"at most {['no', 'one', 'two', 'three', 'four'][CONNECTIONS]} connections",
        f"After `grace` seconds ({defaults['grace']:g})",
        f"run_worker(concurrency={defaults['concurrency']})",
    )
    assert [text for text in told if text not in PAGE] == []


# --- the commands and programs -------------------------------------------------------------------


@pytest.mark.nightly
@needs_postgres
def test_the_commands_deliver_a_hundred_documents(machine: Machine) -> None:
    """From an empty database to 100 documents in their rooms, with two workers."""
    install, export, apply = blocks("sh", "Set up")
    (defer,), (worker,) = blocks("sh", "Defer"), blocks("sh", "Run workers")
    report, status = blocks("sh", "Watch")
    assert install.startswith("pip install ")
    assert export.startswith("export MEETING_QUEUE_DSN=postgresql://")
    documents = {f"document-{number}.txt": "Document" for number in range(1, 101)}
    machine.write({"term.csv": MANIFEST, **documents})
    for _ in range(2):  # existing tables stay, and nothing is added again
        assert apply.strip() == APPLY
        machine.shell(apply)
        machine.shell(defer)
    assert "100 waiting" in machine.shell(status)
    with machine.working(worker, count=2):
        assert "100 of 100" in machine.shell(report)
    received = [file.name for room in machine.meeting.rooms.values() for file in room.received]
    assert sorted(received) == sorted(f"document-{number}.txt" for number in range(1, 101))
    for room in machine.meeting.rooms.values():
        numbers = [int(re.sub(r"\D", "", file.name)) for file in room.received]
        assert numbers == sorted(numbers)
    assert "<html" in (machine.folder / "term.html").read_text("utf-8")


@pytest.mark.nightly
@needs_postgres
def test_the_same_in_python(programs: Machine) -> None:
    """A web application defers references, a worker uploads them, and the report has them.

    They were deferred for another address of the server, as after a move.
    """
    old, new = "https://old.example.com", "https://new.example.com"
    answers = programs.run(sys.executable, "-c", REQUESTS, MEETING_BASE_URL=old).splitlines()
    assert answers == ["202 True", "202 True", "202 False", "202 True"]
    (statement,) = blocks("sql", "Deploy")
    with psycopg.connect(programs.dsn) as connection:
        assert connection.execute(statement.replace(new, programs.meeting.url)).rowcount == 3
    with programs.working("python worker.py"):
        pass
    first, second = programs.run(sys.executable, "report.py").splitlines()
    assert first == "2 accepted, 0 queued"
    assert second.startswith("room99 1 refused upload of 'slides.pdf' to room 'room99': ")
    assert [file.name for file in programs.meeting.rooms["room01"].received] == ["slides.pdf"] * 2


@pytest.mark.nightly
@needs_postgres
def test_what_to_do_when(programs: Machine) -> None:
    """The commands of the table do what it says; what may have arrived is sent only if told."""
    request = f"python -c '{REQUESTS}'"
    programs.meeting.lose_next_reply(path="/room/uploadWhiteboardFile")
    for command, states in {
        request.replace("room99", "room01"): {"accepted", "unknown"},
        request: {"accepted", "unknown", "refused"},
        command_for("retry BATCH"): {"accepted", "unknown"},
        command_for("retry BATCH --resend"): {"accepted"},
    }.items():
        if command.endswith("retry web"):
            programs.meeting.add_room("room99")
        with programs.working("python worker.py"):
            programs.shell(command)
        assert programs.states() == states
    programs.run(sys.executable, "-c", REQUESTS.replace('("room99", 1)', '("room02", 7)'))
    programs.shell(command_for("cancel BATCH"))
    assert programs.states() == {"accepted", "failed"}
    assert "UploadCancelled" in programs.run(sys.executable, "report.py")


# --- Django --------------------------------------------------------------------------------------

PROJECT = {
    "manage.py": """
        import os, sys
        from django.core.management import execute_from_command_line
        os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
        execute_from_command_line(sys.argv)
        """,
    "settings.py": """
        import os
        from pathlib import Path
        from psycopg.conninfo import conninfo_to_dict
        INSTALLED_APPS = ["procrastinate.contrib.django", "slides"]
        ALLOWED_HOSTS = ["testserver"]
        MEDIA_ROOT = Path(__file__).parent / "media"
        ROOT_URLCONF = "urls"
        SECRET_KEY = "for tests"
        USE_TZ = True
        found = conninfo_to_dict(os.environ["MEETING_QUEUE_DSN"])
        database = {name.upper(): found[name] for name in ("user", "host", "port")}
        database |= {"ENGINE": "django.db.backends.postgresql", "NAME": found["dbname"]}
        DATABASES = {"default": database}
        """,
    "urls.py": """
        from django.urls import path
        from slides import views
        urlpatterns = [
            path("rooms/<room_id>/slides", views.show_slides),
            path("fails/<room_id>", views.show_slides_and_fail),
            path("report", views.report),
        ]
        """,
    "slides/__init__.py": "",
    "slides/models.py": """
        from django.db import models

        class Slides(models.Model):
            file = models.FileField(upload_to="slides")
        """,
    "slides/migrations/__init__.py": "",
    "slides/views.py": """

        def report(request):
            found = async_to_sync(uploads.report)("web")
            return JsonResponse({"accepted": found.accepted, "queued": found.queued})

        @transaction.atomic
        def show_slides_and_fail(request, room_id):
            show_slides(request, room_id)
            raise RuntimeError("after the upload was deferred")
        """,
}
"""What a project has besides the files of the page, or in them."""

BROWSER = """
import django, json, os
from django.core.files.uploadedfile import SimpleUploadedFile
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
django.setup()
from django.test import Client
from slides.models import Slides
browser = Client(raise_request_exception=False)

def post(path, name):
    return browser.post(path, {"document": SimpleUploadedFile(name, b"%PDF-1.7")}).status_code

"""

DEFER = """
codes = [post(f"/rooms/room0{n % 2 + 1}/slides", f"deck{n}.pdf") for n in range(6)]
codes += [post("/fails/room01", "rolled-back.pdf"), post("/rooms/room99/slides", "lost.pdf")]
print(json.dumps(codes))
"""

REPORT = """
print(json.dumps([browser.get("/report").json(), Slides.objects.count()]))
"""


@pytest.mark.nightly
@needs_postgres
def test_a_django_project(machine: Machine) -> None:
    """Views defer in their transaction, a worker uploads; undone, nothing is left."""
    machine.write(files("Django"))
    machine.write(PROJECT)

    def requests(code: str) -> list[object]:
        answers: list[object] = json.loads(machine.run("python", "-c", BROWSER + code))
        return answers

    (shell,) = blocks("sh", "Django")
    *prepare, work = [
        line.replace("python", "python -W ignore -W error:::meeting_async")
        for line in shell.splitlines()
    ]
    machine.shell("\n".join(prepare))
    assert requests(DEFER) == [202] * 6 + [500, 202]
    assert requests(REPORT) == [{"accepted": 0, "queued": 7}, 7]
    with machine.working(work):
        pass
    text = (machine.folder / "worker.log").read_text("utf-8")
    assert "unclosed" not in text
    assert "rolled-back" not in text
    assert requests(REPORT) == [{"accepted": 6, "queued": 0}, 7]
    received = {name: room.received for name, room in machine.meeting.rooms.items()}
    names = {name: [re.sub(r"\D", "", file.name) for file in received[name]] for name in received}
    assert {name: len(found) for name, found in names.items() if found} == {
        "room01": 3,
        "room02": 3,
    }
    assert all(numbers == sorted(numbers) for numbers in names.values())
    machine.shell(prepare[-1] + " slides zero")
    with psycopg.connect(machine.dsn) as connection:
        named = "SELECT relname FROM pg_class WHERE relname LIKE 'meeting_async%'"
        assert connection.execute(named).fetchall() == []
