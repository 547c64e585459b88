"""``docs/queue.md``: its commands, programs and statements run in the order of the page."""

from __future__ import annotations

import configparser
import contextlib
import inspect
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

from meeting_async.cli.app import app as cli_app
from meeting_async.procrastinate import SCHEMA, WhiteboardUploads
from meeting_async.procrastinate._runner import ENDING_SECONDS
from meeting_async.procrastinate._statements import VERSION
from meeting_async.testing import MeetingServer
from support.postgres import PostgresServer, needs_postgres, postgres_running
from support.programs import PATIENCE, run_to_its_end
from support.sites import eventually

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "queue.md").read_text("utf-8")


def blocks(language: str, heading: str = "") -> list[str]:
    """Return the blocks of a language, of the whole page or of a section."""
    text = PAGE
    if heading:
        text = re.split(r"^#{2,3} ", text.split(f" {heading}\n")[1], flags=re.MULTILINE)[0]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def files(heading: str = "") -> dict[str, str]:
    """Return the Python files of the page, or of a section, by the names in their first lines."""
    found = {}
    for block in blocks("python", heading):
        name = re.match(r"# (\S+\.py)\n", block)
        assert name, block
        found[name[1]] = block
    return found


@attrs.frozen
class Machine:
    """An empty folder, an empty database and a meeting server."""

    folder: Path
    dsn: str
    meeting: MeetingServer

    @property
    def environment(self) -> dict[str, str]:
        """Return what the page says to export."""
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {
            **os.environ,
            "PATH": programs,
            "MEETING_BASE_URL": self.meeting.url,
            "MEETING_API_KEY": self.meeting.api_key,
            "MEETING_API_SECRET": self.meeting.api_secret,
            "MEETING_QUEUE_DSN": self.dsn,
            "PYTHONWARNINGS": "error",
        }

    def write(self, heading: str) -> None:
        """Save the files of a section."""
        for name, code in files(heading).items():
            (self.folder / name).write_text(code, encoding="utf-8")

    def run(self, *command: str) -> str:
        """Run a program to its end and return what it prints; it must succeed and not warn."""
        return run_to_its_end(command, self.folder, self.environment)

    def shell(self, block: str) -> str:
        """Paste a block into a shell."""
        return self.run("bash", "-euc", block)

    @contextlib.contextmanager
    def working(self, *command: str, count: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
        """Run workers while the block runs; then stop them as a service manager does."""
        with contextlib.ExitStack() as stack:
            workers = []
            for number in range(count):
                log = stack.enter_context((self.folder / f"worker-{number}.log").open("w"))
                workers.append(
                    subprocess.Popen(
                        command,
                        cwd=self.folder,
                        env=self.environment,
                        stdout=log,
                        stderr=log,
                        text=True,
                    )
                )
            try:
                yield workers
                for worker in workers:
                    worker.send_signal(signal.SIGTERM)
                assert [worker.wait(PATIENCE) for worker in workers] == [0] * count
            finally:
                for worker in workers:
                    worker.kill()
                    worker.wait()

    def query(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement of the page, or one of a test."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """Run one PostgreSQL server for all tests."""
    with postgres_running() as server:
        yield server


@pytest.fixture
def machine(tmp_path: Path, postgres: PostgresServer) -> Iterator[Machine]:
    """Make what a new user has, and the rooms of ``meeting-async serve``."""
    meeting = MeetingServer()
    for number in (1, 2, 3):
        meeting.add_room(f"room0{number}")
    with meeting.run():
        yield Machine(tmp_path, postgres.new_database(), meeting)


@pytest.fixture
def programs(machine: Machine) -> Machine:
    """Save the programs of the page, and make the tables."""
    for heading in ("Set up", "Defer", "Run workers", "Watch"):
        machine.write(heading)
    machine.run(sys.executable, "-c", TABLES)
    (machine.folder / "slides").mkdir()
    return machine


TABLES = """
import asyncio
from queue_app import app, uploads

async def main():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await uploads.apply_schema()

asyncio.run(main())
"""

REQUESTS = """
import sys
from fastapi.testclient import TestClient
from web import web

with TestClient(web) as browser:
    for room_id, number in [("room01", 1), ("room01", 2), ("room01", 1), ("room99", 1)]:
        answer = browser.post(f"/rooms/{room_id}/slides/{number}")
        print(answer.status_code, answer.json()["new"])
"""


def states(machine: Machine) -> set[object]:
    """Return the states of the uploads."""
    return {row[0] for row in machine.query("SELECT state FROM meeting_async_uploads")}


def ended(machine: Machine) -> bool:
    """Tell whether every upload has an outcome."""
    return not states(machine) & {"ready", "sent"}


# --- the page ------------------------------------------------------------------------------------


def test_every_block_is_of_a_known_kind() -> None:
    """No block of code is left out by the tests below and those of Django."""
    assert set(files()) == {
        "queue_app.py",
        "web.py",
        "worker.py",
        "report.py",
        "settings.py",
        "slides/models.py",
        "slides/tasks.py",
        "slides/migrations/0001_uploads.py",
        "slides/views.py",
    }
    kinds = re.findall(r"^```(\w+)$", PAGE, re.MULTILINE)
    assert sorted(set(kinds)) == ["ini", "python", "sh", "sql", "text", "yaml"]
    assert [kinds.count(kind) for kind in ("sh", "sql", "text", "ini", "yaml")] == [8, 1, 1, 1, 1]


def test_the_version_of_the_table() -> None:
    """The page names the version that the schema has."""
    version = re.search(r"IS 'meeting-async, version (\d+)'", SCHEMA)
    assert version
    assert f"has its version, now {version[1]};" in PAGE
    assert int(version[1]) == VERSION


def test_methods_of_the_page_exist() -> None:
    """What the text calls is there."""
    names = set(re.findall(r"`(?:await )?uploads\.(\w+)\(", PAGE))
    assert names >= {"defer_many", "outcomes", "drop", "status", "retry", "cancel"}
    assert [name for name in names if not hasattr(WhiteboardUploads, name)] == []


def test_settings_equal_the_code() -> None:
    """The table of settings has each argument with its default, in the order of the code."""
    page = (DOCS / "settings.md").read_text("utf-8").split("\n## WhiteboardUploads\n")[1]
    parameters = list(inspect.signature(WhiteboardUploads).parameters.values())
    assert re.findall(r"^\| `(\w+)` \| `?([^|`]*)`? \|", page, re.MULTILINE) == [
        (one.name, "required" if one.default is one.empty else str(one.default))
        for one in parameters
    ]


# --- the commands --------------------------------------------------------------------------------


@pytest.mark.nightly
@needs_postgres
def test_the_commands(machine: Machine) -> None:
    """From an empty database to 100 documents in their rooms, with two workers."""
    install, export, apply = blocks("sh", "Set up")
    (defer,), (worker,) = blocks("sh", "Defer"), blocks("sh", "Run workers")
    report, status = blocks("sh", "Watch")
    assert install.startswith("pip install ")
    assert export.startswith("export MEETING_QUEUE_DSN=postgresql://")
    for _ in range(2):  # "what is there already stays"
        machine.shell(apply)
    for _ in range(2):  # "so you can repeat the command"
        machine.shell(defer)
    assert "100 waiting" in machine.shell(status)
    with machine.working(*worker.split(), count=2):
        said = machine.shell(report)
    assert "100" in said
    received = [file.name for room in machine.meeting.rooms.values() for file in room.received]
    assert sorted(received) == sorted(f"document-{number}.txt" for number in range(1, 101))
    for room in machine.meeting.rooms.values():
        numbers = [int(re.sub(r"\D", "", file.name)) for file in room.received]
        assert numbers == sorted(numbers)
    assert "<html" in (machine.folder / "term.html").read_text("utf-8")


def test_the_units() -> None:
    """They start the command that there is, and wait for its end longer than its uploads take."""
    (unit,), (pod,) = blocks("ini", "Run workers"), blocks("yaml", "Run workers")
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit)
    service = parser["Service"]
    program, *command = service["ExecStart"].split()
    assert program.endswith("/meeting-async")
    assert service["Restart"] == "always"
    listed = re.search(r"command: \[meeting-async, (.*)\]", pod)
    assert listed
    assert listed[1].replace('"', "").split(", ") == command
    found, given, _ = cli_app.parse_args(command, exit_on_error=False, print_error=False)
    assert (found.__name__, given.kwargs["grace"]) == ("worker", 600)
    grace = re.search(r"terminationGracePeriodSeconds: (\d+)", pod)
    assert grace
    assert int(service["TimeoutStopSec"]) == int(grace[1]) > given.kwargs["grace"] + ENDING_SECONDS


# --- in Python -----------------------------------------------------------------------------------


@pytest.mark.nightly
@needs_postgres
def test_the_same_in_python(programs: Machine) -> None:
    """A web application defers references, a worker uploads them, the report is as shown."""
    for number in (1, 2):
        (programs.folder / "slides" / f"{number}.pdf").write_bytes(b"%PDF-1.7")
    answers = programs.run(sys.executable, "-c", REQUESTS).splitlines()
    assert answers == ["202 True", "202 True", "202 False", "202 True"]
    with programs.working(sys.executable, "worker.py"):
        assert eventually(lambda: ended(programs))
    assert [programs.run(sys.executable, "report.py")] == blocks("text", "Watch")
    assert [file.name for file in programs.meeting.rooms["room01"].received] == ["slides.pdf"] * 2


# --- operations ----------------------------------------------------------------------------------


@pytest.mark.nightly
@needs_postgres
def test_what_to_do_when(programs: Machine) -> None:
    """The commands of the table do what it says; what may have arrived is sent only if told."""
    slides = programs.folder / "slides"
    (slides / "2.pdf").write_bytes(b"%PDF-1.7")
    (slides / "1.pdf").write_bytes(b"%PDF-1.7")
    programs.meeting.lose_next_reply(path="/room/uploadWhiteboardFile")
    programs.run(sys.executable, "-c", REQUESTS.replace('("room99", 1)', '("room01", 1)'))
    with programs.working(sys.executable, "worker.py"):
        assert eventually(lambda: ended(programs))
        programs.run(sys.executable, "-c", REQUESTS)
        assert eventually(lambda: ended(programs))
        assert states(programs) == {"accepted", "refused", "unknown"}
        programs.meeting.add_room("room99")
        programs.shell(command_for("queue retry BATCH`").replace("BATCH", "web"))
        assert eventually(lambda: states(programs) == {"accepted", "unknown"})
        programs.shell(command_for("queue retry BATCH --resend`").replace("BATCH", "web"))
        assert eventually(lambda: states(programs) == {"accepted"})
    programs.run(sys.executable, "-c", REQUESTS.replace('("room99", 1)', '("room02", 7)'))
    programs.shell(command_for("queue cancel BATCH`").replace("BATCH", "web"))
    assert states(programs) == {"accepted", "failed"}


def command_for(end: str) -> str:
    """Return the command of the table that ends like this."""
    found = re.search(rf"`(meeting-async {re.escape(end[:-1])})`", PAGE)
    assert found
    return found[1]


@pytest.mark.nightly
@needs_postgres
def test_another_address(programs: Machine) -> None:
    """What was deferred for one address is uploaded to another one."""
    (programs.folder / "slides" / "1.pdf").write_bytes(b"%PDF-1.7")
    (programs.folder / "slides" / "2.pdf").write_bytes(b"%PDF-1.7")
    old = {"MEETING_BASE_URL": "https://old.example.com"}
    code = f"import os; os.environ.update({old})\n{REQUESTS}"
    programs.run(sys.executable, "-c", code)
    (statement,) = blocks("sql", "Deploy")
    port = programs.meeting.url.rpartition(":")[2]
    # Other than the page's addresses, that of the test has a port and no TLS.
    statement = statement.replace("https://new.example.com", programs.meeting.url)
    for old_text, text in {
        "'old.example.com'": "'old.example.com:443'",
        "'new.example.com'": f"'127.0.0.1:{port}'",
    }.items():
        assert old_text in statement
        statement = statement.replace(old_text, text)
    programs.query(statement)
    with programs.working(sys.executable, "worker.py"):
        assert eventually(lambda: ended(programs))
    assert [programs.run(sys.executable, "report.py")] == blocks("text", "Watch")
