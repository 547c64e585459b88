"""Workers of a queue whose packets to the database are dropped: nobody resets, nobody answers."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from ipaddress import IPv4Address
from pathlib import Path

import anyio
import attrs
import psycopg
import pytest

from extras.queues import WINDOW, Queue, queue_at
from meeting_async.testing import MeetingServer
from support.command_line import PROGRAM
from support.postgres import needs_postgres, postgres_running

pytestmark = [needs_postgres, pytest.mark.nightly, pytest.mark.timeout(300), pytest.mark.anyio]

ENDED = 60.0
"""Longest time in seconds for a worker that sends nothing."""
ENDED_SENDING = 120.0
"""The same for one whose upload goes no further (``Timeouts.send_stall``: 30)."""


# --- the network ---------------------------------------------------------------------------------

DATABASE, SERVER = 1, 5
"""Last numbers of two addresses of this side. Each has its own partner, the next number."""

_OUTSIDE, _INSIDE = "02:00:00:00:00:01", "02:00:00:00:00:02"
_NOWHERE = "02:00:00:00:00:ff"
"""Address of no interface: what is sent to it is dropped, and nobody says so."""


@attrs.frozen
class Namespace:
    """A network namespace whose programs reach two addresses of this machine."""

    name: str
    subnet: IPv4Address

    def address(self, number: int) -> str:
        """Return one of the addresses of the link, such as that of ``DATABASE``."""
        return str(self.subnet + number)

    def command(self, *command: str) -> list[str]:
        """Return the command that runs a program inside."""
        return ["ip", "netns", "exec", self.name, *command]

    def drop(self) -> None:
        """Drop all packets to and from ``DATABASE``: no reset, and no answer of any kind."""
        self._neighbours(_NOWHERE, _NOWHERE)

    def restore(self) -> None:
        """Let packets arrive again."""
        self._neighbours(_INSIDE, _OUTSIDE)

    def _neighbours(self, inside: str, outside: str) -> None:
        dev = ["dev", self.name, "nud", "permanent"]
        _ip("neigh", "replace", self.address(DATABASE + 1), "lladdr", inside, *dev)
        to_outside = [self.address(DATABASE), "lladdr", outside, *dev]
        _ip("-n", self.name, "neigh", "replace", *to_outside)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@pytest.fixture
def link() -> Iterator[Namespace]:
    """Make a namespace and a link to it; skip the test where that is not possible."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and `ip` (Debian: apt install iproute2) for a network namespace")
    number = secrets.randbelow(2**14)  # eight addresses each of RFC 2544's 198.18.0.0/15
    made = Namespace(f"test{number}", IPv4Address("198.18.0.0") + 8 * number)
    name, peer = made.name, ["peer", "name", made.name, "netns", made.name, "address", _INSIDE]
    with contextlib.ExitStack() as stack:
        try:
            _ip("netns", "add", name)
            stack.callback(
                _ip, "netns", "del", name
            )  # with the link, as soon as nothing runs there
            _ip("link", "add", name, "address", _OUTSIDE, "type", "veth", *peer)
        except OSError as error:
            pytest.skip(f"network namespaces and links to them cannot be made here: {error}")
        for number in (DATABASE, SERVER):
            _ip("addr", "add", f"{made.address(number)}/30", "dev", name)
            _ip("-n", name, "addr", "add", f"{made.address(number + 1)}/30", "dev", name)
        _ip("link", "set", name, "up")
        _ip("-n", name, "link", "set", name, "up")
        made.restore()
        yield made


# --- workers -------------------------------------------------------------------------------------


@attrs.frozen
class Worker:
    """A worker in a network namespace that has delivered a document, as an operator runs it."""

    queue: Queue
    link: Namespace
    process: subprocess.Popen[bytes]
    log: Path

    async def ended(self, seconds: float = ENDED) -> int:
        """Wait for its end, and return its exit code."""
        await self.queue.until(lambda: self.process.poll() is not None, seconds)
        return self.process.returncode


@pytest.fixture
async def worker(link: Namespace, tmp_path: Path) -> AsyncIterator[Worker]:
    """Run a worker that always reaches the meeting server, and may lose the database."""
    server = MeetingServer(lock_seconds=WINDOW)
    for number in range(2):
        server.add_room(f"room{number}")
    with postgres_running(link.address(DATABASE)) as postgres:
        dsn = postgres.new_database()
        async with (
            server.run(link.address(SERVER)),
            queue_at(dsn, server, tmp_path, allow_plaintext=True) as queue,
        ):
            await queue.app.schema_manager.apply_schema_async()
            await queue.uploads.apply_schema()
            await queue.defer("room0")
            environment = {
                **os.environ,
                "MEETING_BASE_URL": server.url,
                "MEETING_API_KEY": "devkey",
                "MEETING_API_SECRET": "devsecret",
                "MEETING_ALLOW_PLAINTEXT": "1",
                "MEETING_QUEUE_DSN": dsn.replace("127.0.0.1", link.address(DATABASE)),
            }
            log = tmp_path / "log"
            command = link.command(*PROGRAM, "queue", "worker")
            for _ in range(3):  # as a service manager: a busy machine may not reach its database
                with log.open("ab") as output:
                    process = subprocess.Popen(  # noqa: ASYNC220 - takes a moment
                        command, env=environment, stdout=output, stderr=output
                    )
                try:
                    with anyio.move_on_after(60):
                        while not queue.accepted() and process.poll() is None:  # noqa: ASYNC110
                            await anyio.sleep(0.05)
                    if process.poll() is None:
                        await queue.reported()
                        yield Worker(queue, link, process, log)
                        return
                finally:
                    process.kill()
                    process.wait()
            pytest.fail(f"it ends each time: {log.read_text()}")


async def test_an_idle_worker_ends_with_its_sessions(worker: Worker) -> None:
    """It says why. The database frees its connections, or restarts would use up all of them."""

    def has_sessions() -> bool:
        query = "SELECT FROM pg_stat_activity WHERE client_addr <> '127.0.0.1'"
        with psycopg.connect(worker.queue.order.dsn) as connection:
            return connection.execute(query).fetchone() is not None

    assert has_sessions()
    worker.link.drop()
    assert await worker.ended() == 1
    assert "the queue's database" in worker.log.read_text()
    await worker.queue.until(lambda: not has_sessions())


async def test_another_worker_sends_what_was_on_its_way(worker: Worker) -> None:
    """The first one ends when its upload has; the document arrives once."""
    queue = worker.queue
    queue.server.stall_next_upload(after=1_000_000)
    await queue.defer("room1", size=16 * 1024**2)
    await queue.until(lambda: queue.sent("room1", 1_000_000))
    worker.link.drop()
    async with queue.working():
        await queue.check(await queue.reported())
        assert await worker.ended(ENDED_SENDING) == 1


async def test_a_worker_that_is_told_to_stop(worker: Worker) -> None:
    """It ends although it cannot say so to its database, and with exit code 0."""
    worker.link.drop()
    worker.process.send_signal(signal.SIGTERM)
    assert await worker.ended() == 0


async def test_a_short_interruption(worker: Worker) -> None:
    """After ten seconds without packets the same worker goes on."""
    worker.link.drop()
    await anyio.sleep(10)
    worker.link.restore()
    await worker.queue.defer("room1")
    await worker.queue.check(await worker.queue.reported())
    await anyio.sleep(15)
    assert worker.process.poll() is None
    worker.process.send_signal(signal.SIGTERM)
    assert await worker.ended() == 0
