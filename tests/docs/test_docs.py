"""Every Python example of README and docs runs, as pasted, in an empty folder."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from meeting_async.testing import MeetingServer
from support.certificates import make_certificate
from support.command_line import variables
from support.interpreter import Interpreter, interpreter
from support.peer import PATIENCE, Connection, Peer, Script, relaying, reply
from support.redis_server import BINARY, redis_running

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
TESTED_APART = {"queue": "test_queue_page.py", "synchronous": "test_recipes.py"}
"""Pages whose examples are several programs that work together, and the tests that run them."""

EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)")


def examples(page: str) -> list[tuple[str, str]]:
    """Return each Python block of a page with the output that directly follows it."""
    return EXAMPLE.findall(page)


def blocks(page: str) -> int:
    """Count the Python blocks, however their fences are written."""
    return len(re.findall(r"^[ \t]*(?:```+|~~~+)[ \t]*(?:python|py)\b", page, re.MULTILINE))


def broken_links(page: str, folder: Path) -> list[str]:
    """Return the links to files that are not there, or to headings that no page has."""
    found = []
    for path, heading in LINK.findall(page):
        target = folder / path
        text = page if not path else target.read_text("utf-8") if target.is_file() else None
        if text is None or (heading and heading not in anchors(text)):
            found.append(f"{path}#{heading}")
    return found


def anchors(page: str) -> set[str]:
    """Return what headings can be linked as: lower case, words joined by hyphens."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@contextlib.contextmanager
def surroundings(code: str, folder: Path) -> Iterator[dict[str, str]]:
    """Yield the environment, with what the page says a reader has.

    A Redis server for an example that names ``REDIS_URL``; a document and a meeting server with two
    rooms for one that takes its server from the environment; with a private certificate authority,
    and behind a proxy, if the example names them.
    """
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # ours are not a reader's
    with contextlib.ExitStack() as stack:
        if "REDIS_URL" in code:
            if BINARY is None:
                pytest.skip("there is no redis-server (Debian: redis-server)")
            port = stack.enter_context(redis_running()).port
            environment["REDIS_URL"] = f"redis://127.0.0.1:{port}"
        if "from_env(" in code and "MeetingServer(" not in code:
            environment |= stack.enter_context(own_server(folder))
        if "company-ca.pem" in code or "COMPANY_PROXY" in code:
            environment |= stack.enter_context(with_tls(environment, folder))
        if "COMPANY_PROXY" in code:
            environment |= stack.enter_context(behind_a_proxy(environment))
        yield environment


@contextlib.contextmanager
def own_server(folder: Path) -> Iterator[dict[str, str]]:
    """Run what a reader has: a meeting server, a document and a table; yield the variables."""
    (folder / "deck.pdf").write_bytes(b"%PDF-1.7")
    (folder / "term.csv").write_text("room_id,document\nroom01,deck.pdf\nroom02,deck.pdf\n")
    server = MeetingServer()
    for room_id in ("room01", "room02"):
        server.add_room(room_id)
    with server.run():
        yield variables(server)


@contextlib.contextmanager
def with_tls(environment: dict[str, str], folder: Path) -> Iterator[dict[str, str]]:
    """Put TLS in front of the server, with a certificate that no usual authority knows."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl (Debian: openssl)")
    key, certificate = make_certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with Peer(forwarding(environment["MEETING_BASE_URL"]), tls=context) as front:
        certificate.rename(folder / "company-ca.pem")
        yield {"MEETING_BASE_URL": front.url}


def forwarding(url: str) -> Script:
    """Pass requests on to a server, one after the other."""

    def script(connection: Connection) -> None:
        while connection.read_head():
            connection.read_body()
            request, *lines = connection.request.head.decode().strip().split("\r\n")
            method, path, _ = request.split()
            server = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
            with contextlib.closing(server):
                headers = dict(line.split(": ", 1) for line in lines)
                server.request(method, path, bytes(connection.request.body), headers)
                answer = server.getresponse()
                connection.send(reply(answer.status, answer.read()))

    return script


@contextlib.contextmanager
def behind_a_proxy(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """Run a proxy that makes tunnels to the server; it must be used."""
    port = urlsplit(environment["MEETING_BASE_URL"]).port
    assert port
    with Peer(relaying(port)) as proxy:
        yield {"COMPANY_PROXY": proxy.url}
        assert proxy.connected


def marks(code: str) -> list[pytest.MarkDecorator]:
    """Return the mark of an example that needs what only the group ``nightly`` installs."""
    return [pytest.mark.nightly] if "from tqdm import" in code else []


def every_example() -> list[object]:
    """Return all examples as parameters, named after their pages."""
    return [
        pytest.param(code, output, id=f"{path.stem}-{number}", marks=marks(code))
        for path in PAGES
        if path.stem not in TESTED_APART
        for number, (code, output) in enumerate(examples(path.read_text("utf-8")), 1)
    ]


def test_each_example_has_its_output() -> None:
    """No Python block stands without the output it is checked against."""
    for path in PAGES:
        page = path.read_text("utf-8")
        if path.stem in TESTED_APART:
            assert (Path(__file__).parent / TESTED_APART[path.stem]).is_file()
        else:
            assert len(examples(page)) == blocks(page), path
    assert {"rooms", "signers", "transports"} <= {path.stem for path in PAGES}
    assert len(every_example()) >= 2


def is_test_module(code: str) -> bool:
    """Tell tests, which pytest runs, from programs."""
    return re.search(r"^(?:async )?def test_", code, re.MULTILINE) is not None


@pytest.fixture(scope="module")
def python() -> Iterator[Interpreter]:
    """Start what runs the examples."""
    loops = ["anyio._backends._asyncio", "anyio._backends._trio"]
    with interpreter(*loops, "httpx", "pytest", "python_multipart", "sqlite3") as python:
        yield python


RUN_TESTS = """
import pytest, sys
plugins = ["-p", "anyio", "-p", "meeting_async", "-p", "no:cacheprovider", "--assert=plain"]
sys.exit(pytest.main(["-W", "error", "-rA", *plugins]))
"""


def run(python: Interpreter, code: str, folder: Path) -> tuple[str, str]:
    """Run an example as a program of its own, with warnings as errors; return what it prints.

    Of a test module that is one line per test, as ``pytest -rA`` says at its end.
    """
    program = code
    if is_test_module(code):
        (folder / "test_slides.py").write_text(code, encoding="utf-8")
        program = RUN_TESTS
    with surroundings(code, folder) as environment:
        _, stdout, stderr = python.run(program, folder, environment)
    if is_test_module(code):
        stdout = "".join(re.findall(r"^(?:PASSED|FAILED|ERROR) test_.*\n", stdout, re.MULTILINE))
    return stdout, stderr


@pytest.mark.parametrize(("code", "output"), every_example())
def test_example(python: Interpreter, code: str, output: str, tmp_path: Path) -> None:
    """The example prints its output."""
    assert run(python, code, tmp_path) == (output, "")


def test_links_lead_somewhere() -> None:
    """Files and headings that a page links to are there."""
    for path in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]:
        assert broken_links(path.read_text("utf-8"), path.parent) == [], path


def test_two_commands_come_first() -> None:
    """The first two shell blocks are the demo and the tests; the continuous check relies on it."""
    readme = PAGES[0].read_text("utf-8")
    demo, tests, *_ = re.findall(r"^```sh\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert demo.strip().endswith("meeting-async demo")
    assert "pytest" in tests
