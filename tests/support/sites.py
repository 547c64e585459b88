"""The applications of ``docs/frameworks`` under a server, and a browser on raw sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import attrs

from meeting_async.testing import MeetingServer
from support.command_line import until, variables
from support.ports import free_port
from support.raw_http import FORM

APPLICATIONS = Path(__file__).parents[2] / "docs" / "frameworks"

_RUN = """
import signal, socket, sys, uvicorn
# uvicorn raises a signal again at its end; a normal exit warns of what was not closed.
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
name, fd, grace = sys.argv[1:]
config = uvicorn.Config(
    f"{name}_app:app", http="h11", access_log=False, lifespan="on",
    timeout_graceful_shutdown=int(grace),
)
uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(fd))])
"""

PATIENCE = 40.0
"""Seconds for what should happen at once, the start of an application included: a busy machine."""

_LISTENS = "0A"
"""The kernel's TCP_LISTEN, as proc(5) prints it."""


@attrs.define(eq=False)
class Site:
    """An application in a process of its own."""

    name: str
    port: int
    folder: Path
    """For temporary files (``tmp``), batches and documents."""
    _process: subprocess.Popen[str]
    log: str = ""
    """What it wrote; known when it has stopped."""

    def browser(self) -> Browser:
        """Connect to it."""
        return Browser(socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE))

    def is_listening(self) -> bool:
        """Tell whether it can be connected to."""
        with contextlib.suppress(OSError), self.browser():
            return True
        return False

    def descriptors(self) -> list[str]:
        """Return what files and sockets it has open."""
        found = []
        for entry in Path(f"/proc/{self._process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(str(entry.readlink()))
        return sorted(found)

    def connections(self, meeting: MeetingServer) -> tuple[int, int]:
        """Count its connections from browsers, and those to the meeting server, by proc(5)."""
        far = f":{int(meeting.url.rpartition(':')[2]):04X}"
        mine = {path[8:-1] for path in self.descriptors() if path.startswith("socket:")}
        table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        peers = [row[2] for row in table if row[9] in mine and row[3] != _LISTENS]
        there = sum(peer.endswith(far) for peer in peers)
        return len(peers) - there, there

    def temporary_files(self) -> list[str]:
        """Return its temporary files, those without a name included."""
        tmp = self.folder / "tmp"
        opened = [path for path in self.descriptors() if path.startswith(str(tmp))]
        return opened + [path.name for path in tmp.iterdir()]

    def terminate(self) -> None:
        """Begin to stop it, as a supervisor does."""
        self._process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        """Wait for its end; return the exit code."""
        self.log += self._process.communicate(timeout=PATIENCE + 10)[0]
        print(self.log)  # noqa: T201 - pytest shows it if the test fails
        return self._process.returncode

    def stop(self) -> None:
        """Stop it and wait for its end."""
        self.terminate()
        assert self.ended() in {0, -signal.SIGTERM}  # it may have no handlers yet


@contextlib.contextmanager
def serving(
    name: str,
    meeting: MeetingServer,
    folder: Path,
    *,
    grace: int = 1,
    server: str = "uvicorn",
    applications: Path = APPLICATIONS,
    **environment: str,
) -> Iterator[Site]:
    """Run an application until the block ends: ``app`` of the module ``<name>_app``."""
    for subfolder in ("tmp", "batches", "documents"):
        (folder / subfolder).mkdir(parents=True, exist_ok=True)
    settings = {
        **variables(meeting),
        "TMPDIR": str(folder / "tmp"),
        "BATCHES_FOLDER": str(folder / "batches"),
        "DOCUMENTS_FOLDER": str(folder / "documents"),
        "PYTHONPATH": os.pathsep.join([str(folder), str(applications), *filter(None, sys.path)]),
        "HOME": str(folder),  # where gunicorn puts a socket
    }
    worker = (APPLICATIONS / "gunicorn_worker.py").read_text("utf-8")
    (folder / "gunicorn_worker.py").write_text(worker.replace(": 30}", f": {grace}}}"), "utf-8")
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        port = free_port() if server == "granian" else listener.getsockname()[1]
        process = subprocess.Popen(
            [
                *(sys.executable, "-W", "always::ResourceWarning"),
                *_command(server, name, str(listener.fileno()), str(port), str(grace)),
            ],
            env={**os.environ, **settings, **environment},
            pass_fds=[listener.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    site = Site(name, port, folder, process)
    try:
        if server == "granian":  # it takes no socket that listens already
            until(site.is_listening)
        yield site
    finally:
        if process.returncode is None:
            site.stop()


def _command(server: str, name: str, fd: str, port: str, grace: str) -> list[str]:
    if server == "uvicorn":
        return ["-c", _RUN, name, fd, grace]
    if server == "granian":
        limits = ["--interface", "asgi", "--workers-kill-timeout", "400"]
        return ["-m", "granian", *limits, "--port", port, f"{name}_app:app"]
    if server.startswith("gunicorn"):
        worker = "asgi" if server == "gunicorn, asgi" else "gunicorn_worker.Worker"
        limits = ["--graceful-timeout", "400", "--timeout", "400", "--worker-class", worker]
        return ["-m", "gunicorn", *limits, "--bind", f"fd://{fd}", f"{name}_app:app"]
    settings = str(APPLICATIONS / "hypercorn.toml")
    options = ["--config", settings, "--bind", f"fd://{fd}", "--graceful-timeout", grace]
    if server == "hypercorn on trio":  # which notices SIGTERM only as a parent of workers
        options += ["--worker-class", "trio", "--workers", "1"]
    return ["-m", "hypercorn", *options, f"{name}_app:app"]


@attrs.define(eq=False)
class Browser:
    """One connection that sends exactly what it is told to, and can disconnect at any moment."""

    _socket: socket.socket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def cut(self) -> None:
        """Disconnect, as a closed tab does."""
        self._socket.close()

    def request(self, method: str, path: str, length: int | None = None, *lines: str) -> None:
        """Send the head of a request."""
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", *lines]
        head += [] if length is None else [f"Content-Length: {length}"]
        self.send("\r\n".join([*head, "", ""]).encode())

    def post(self, path: str, form: bytes) -> None:
        """Send the head of a form, and as much of it as there is."""
        self.request("POST", path, len(form), f"Content-Type: {FORM}")
        self.send(form)

    def answer(self) -> tuple[int, dict[str, str], Any]:
        """Read the reply to its end: status, headers, JSON or text."""
        reply = self.reply()
        body = reply.read()
        is_json = reply.headers.get_content_type() == "application/json"
        headers = {name.lower(): value for name, value in reply.getheaders()}
        return reply.status, headers, json.loads(body) if is_json else body.decode()

    def reply(self) -> http.client.HTTPResponse:
        """Read the head of the reply."""
        reply = http.client.HTTPResponse(self._socket)
        reply.begin()
        return reply

    def put(self, room_id: str, data: bytes, length: int | None = None) -> None:
        """Send a document as a body, or only the beginning of one that is longer."""
        self.request("PUT", f"/rooms/{room_id}/documents/body.pdf", length or len(data))
        self.send(data)

    def post_order(self, order: bytes) -> tuple[int, dict[str, str], Any]:
        """Order a batch, and read the answer."""
        self.request("POST", "/batches", len(order), "Content-Type: application/json")
        self.send(order)
        return self.answer()

    def order(self, *jobs: object) -> str:
        """Begin a batch and return the path of its events."""
        status, _, body = self.post_order(json.dumps({"jobs": jobs}).encode())
        assert status == 202
        return str(body["events"])

    def events(self, path: str, *lines: str) -> Iterator[Told]:
        """Listen to a batch until the site ends the stream."""
        self.request("GET", path, None, "Accept: text/event-stream", *lines)
        reply = self.reply()
        assert (reply.status, reply.headers.get_content_type()) == (200, "text/event-stream")
        fields: dict[str, str] = {}
        for line in map(bytes.decode, reply):
            name, colon, value = line.rstrip("\n").partition(": ")
            if colon:
                fields[name] = value
            elif fields:
                yield Told(fields["id"], fields["event"], json.loads(fields["data"]))
                fields = {}


class Told(NamedTuple):
    """A server-sent event."""

    id: str
    event: str
    data: dict[str, Any]
