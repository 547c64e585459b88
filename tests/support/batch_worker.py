"""A process that runs a batch with a journal, over and over, and is killed in the middle of it.

It imports everything once and forks for each run: the fork is the process that is killed, with
SIGKILL, after so many seconds or when SQLite is about to execute the n-th statement. Orders come as
lines of JSON on the input; each is answered with what the run told before it ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any, cast

import anyio
import attrs

from meeting_async import AttemptStarted, Event, LockPolicy, MeetingClient, UploadJob

WINDOW = 2.0
"""Seconds for which the server holds a room at most."""

LARGE = 300 * 1024
"""Bytes of every tenth document: it goes out in several chunks."""


@attrs.frozen(kw_only=True)
class Order:
    """A run of a batch, and its end."""

    url: str
    journal: str
    folder: str
    """Where its documents are."""
    jobs: int = 300
    rooms: int = 30
    concurrency: int = 8
    on_unknown: str | None = None
    backend: str = "asyncio"
    kill_after: float | None = None
    """Seconds."""
    kill_at: int | None = None
    """Number of the statement."""
    frozen: float | None = None
    """Seconds for which the process is stopped instead of killed."""


@attrs.frozen(kw_only=True)
class Told:
    """What is known of a run. Documents go by their names."""

    killed: bool
    begun: tuple[str, ...]
    """Documents of which an attempt began, in order."""
    outcomes: dict[str, str]
    """Those that had an outcome before the process ended, and which."""

    @property
    def in_flight(self) -> set[str]:
        """Documents that were begun, and not known to be over, when the process ended."""
        return set(self.begun) - set(self.outcomes)


def make_documents(folder: Path, jobs: int) -> None:
    """Make the documents of a batch."""
    for number in range(jobs):
        size = LARGE if number % 10 == 9 else 1000 + number
        (folder / name_of(number)).write_bytes(b"%PDF-1.7\n".ljust(size, b"x"))


def name_of(number: int) -> str:
    """Name a document."""
    return f"{number:03}.pdf"


# --- the process that is killed ------------------------------------------------------------------


def _run(order: Order, out: int) -> None:
    """Run the batch, telling on a pipe what begins and what ends."""

    def tell(*words: str) -> None:
        os.write(out, (" ".join(words) + "\n").encode())

    def on_event(event: Event) -> None:
        if isinstance(event, AttemptStarted) and event.document:
            tell("begun", event.document)

    async def main() -> None:
        client = MeetingClient(
            order.url,
            api_key="devkey",
            api_secret="devsecret",
            lock=LockPolicy(window=WINDOW),
            on_event=on_event,
        )
        jobs = [
            UploadJob(f"room{number % order.rooms:02}", Path(order.folder, name_of(number)))
            for number in range(order.jobs)
        ]
        how: dict[str, Any] = {"concurrency": order.concurrency, "on_unknown": order.on_unknown}
        async with client, client.upload_many(jobs, journal=order.journal, **how) as batch:
            async for outcome in batch:
                tell("over", outcome.document, outcome.status)

    if order.kill_at is not None:
        _be_killed_at(order.kill_at)
    anyio.run(main, backend=order.backend)


def _be_killed_at(statement: int) -> None:
    """Let SQLite see to it that the process ends when it is about to execute a statement."""
    connect = sqlite3.connect
    left = statement

    def count(_: str) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def connected(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(count)
        return connection

    cast("Any", sqlite3).connect = connected


# --- the process that forks ----------------------------------------------------------------------


def _forked(order: Order) -> Told:
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(source)
        try:
            _run(order, sink)
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.close(sink)
    text = _read(source, pid, order)
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    lines = [line.split() for line in text.decode().splitlines()]
    return Told(
        killed=killed,
        begun=tuple(line[1] for line in lines if line[0] == "begun"),
        outcomes={line[1]: line[2] for line in lines if line[0] == "over"},
    )


def _read(source: int, pid: int, order: Order) -> bytes:
    """Read a pipe to its end; kill or freeze the process that writes to it when it is time."""
    seconds = 600 if order.kill_after is None else order.kill_after
    text, end = b"", time.monotonic() + seconds
    with open(source, "rb", buffering=0) as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                os.kill(pid, signal.SIGKILL if order.frozen is None else signal.SIGSTOP)
                time.sleep(order.frozen or 0)
                os.kill(pid, signal.SIGCONT)
                end += 600
            elif data := pipe.read(65_536):
                text += data
            else:
                return text


def main() -> None:
    """Follow the orders on the input."""
    for line in sys.stdin:
        told = _forked(Order(**json.loads(line)))
        sys.stdout.write(json.dumps(attrs.asdict(told)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
