"""The queue in a Django project, as ``docs/queue.md`` describes it: two programs and PostgreSQL."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import psycopg
import pytest

from meeting_async.testing import MeetingServer
from support.postgres import PostgresServer, needs_postgres, postgres_running
from support.programs import PATIENCE, run_to_its_end
from support.sites import eventually

pytestmark = [pytest.mark.nightly, needs_postgres]

PAGE = (Path(__file__).parents[2] / "docs" / "queue.md").read_text("utf-8")
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
        ALLOWED_HOSTS = ["testserver"]
        MEDIA_ROOT = Path(__file__).parent / "media"
        ROOT_URLCONF = "urls"
        SECRET_KEY = "for tests"
        USE_TZ = True
        DATABASES = {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": os.environ["TEST_DATABASE"],
                "USER": "tester",
                "HOST": "127.0.0.1",
                "PORT": os.environ["TEST_PORT"],
            }
        }
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
    "slides/migrations/__init__.py": "",
    "slides/views.py": """
        @transaction.atomic
        def show_slides_and_fail(request, room_id):
            show_slides(request, room_id)
            raise RuntimeError("after the upload was deferred")
        """,
    "requests.py": """
        import django, json, os
        from django.core.files.uploadedfile import SimpleUploadedFile
        os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
        django.setup()
        from django.test import Client
        browser = Client(raise_request_exception=False)
        def post(path, name):
            file = SimpleUploadedFile(name, b"%PDF-1.7")
            return browser.post(path, {"document": file}).status_code
        """,
}
"""What a project has besides the files of the page, or in them."""

DEFER = """
codes = [post(f"/rooms/room0{n % 2 + 1}/slides", f"deck{n}.pdf") for n in range(6)]
codes += [post("/fails/room01", "rolled-back.pdf"), post("/rooms/room99/slides", "lost.pdf")]
print(json.dumps(codes))
"""

REPORT = """
from slides.models import Slides
print(json.dumps([browser.get("/report").json(), Slides.objects.count()]))
"""


@attrs.frozen
class Project:
    """A Django project in a folder of its own."""

    folder: Path
    environment: dict[str, str]

    def command(self, *arguments: str) -> list[str]:
        """Return a command of ``manage.py``; warnings of our modules are errors."""
        return [sys.executable, "-W", "error:::meeting_async", "manage.py", *arguments]

    def run(self, command: list[str]) -> str:
        """Run a program, which must succeed, and return what it prints."""
        return run_to_its_end(command, self.folder, self.environment)

    def requests(self, code: str) -> list[object]:
        """Let Django's test client make requests, in a process without a worker."""
        program = (self.folder / "requests.py").read_text("utf-8") + code
        answers: list[object] = json.loads(self.run([sys.executable, "-c", program]))
        return answers

    @property
    def report(self) -> list[object]:
        """Return the sums of the batch and the number of rows of the model."""
        return self.requests(REPORT)


def unindented(code: str) -> str:
    """Remove the indentation that a text has only here."""
    return re.sub(r"^ {8}", "", code, flags=re.MULTILINE)


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """Run a PostgreSQL server."""
    with postgres_running() as server:
        yield server


@pytest.fixture
def meeting() -> Iterator[MeetingServer]:
    """Run a meeting server with two rooms."""
    server = MeetingServer()
    for room_id in ("room01", "room02"):
        server.add_room(room_id)
    with server.run():
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    """Make an empty database."""
    return postgres.new_database()


@pytest.fixture
def project(
    tmp_path: Path, postgres: PostgresServer, database: str, meeting: MeetingServer
) -> Project:
    """Write the files of the page, and what a project needs besides."""
    code = re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    django = [*code[[name for name, _ in code].index("settings.py") :]]
    assert len(django) == 5
    for name, text in [*django, *((name, unindented(text)) for name, text in PROJECT.items())]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    environment = {
        **os.environ,
        "TEST_PORT": str(postgres.port),
        "TEST_DATABASE": database.rpartition("/")[2],
        "MEETING_BASE_URL": meeting.url,
        "MEETING_API_KEY": meeting.api_key,
        "MEETING_API_SECRET": meeting.api_secret,
    }
    return Project(tmp_path, environment)


def test_a_project(project: Project, meeting: MeetingServer, database: str) -> None:
    """Views defer in their transaction, a worker uploads, and the report is that of the page."""
    shell = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[-1]
    *prepare, work = [line.split()[2:] for line in shell.strip().splitlines()]
    for command in prepare:
        project.run(project.command(*command))
    assert project.requests(DEFER) == [202] * 6 + [500, 202]
    assert project.report == [{"accepted": 0, "queued": 7}, 7]
    log = project.folder / "worker.log"
    with (
        log.open("w", encoding="utf-8") as output,
        subprocess.Popen(
            project.command(*work),
            cwd=project.folder,
            env=project.environment,
            stdout=output,
            stderr=output,
        ) as worker,
    ):
        try:
            with psycopg.connect(database, autocommit=True) as connection:
                left = "SELECT 1 FROM meeting_async_uploads WHERE state IN ('ready', 'sent')"
                assert eventually(lambda: connection.execute(left).fetchall() == [])
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(PATIENCE) == 0
        finally:
            worker.kill()
    text = log.read_text("utf-8")
    assert "unclosed" not in text
    assert "rolled-back" not in text
    assert project.report == [{"accepted": 6, "queued": 0}, 7]
    received = {name: room.received for name, room in meeting.rooms.items()}
    names = {name: [re.sub(r"\D", "", file.name) for file in received[name]] for name in received}
    assert {name: len(files) for name, files in names.items()} == {"room01": 3, "room02": 3}
    assert all(numbers == sorted(numbers) for numbers in names.values())


def test_the_migration_can_be_undone(project: Project, database: str) -> None:
    """Nothing of this package is left in the database."""
    project.run(project.command("migrate"))
    project.run(project.command("migrate", "slides", "zero"))
    with psycopg.connect(database) as connection:
        named = "SELECT relname FROM pg_class WHERE relname LIKE 'meeting_async%'"
        assert connection.execute(named).fetchall() == []
