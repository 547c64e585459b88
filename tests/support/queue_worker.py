"""Workers of a queue, and commands, in processes of their own."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import attrs
import procrastinate

from meeting_async import Document, MeetingClient
from meeting_async.cli import main as command_line
from meeting_async.cli.queue import work as _imported_early  # noqa: F401 - forks have it
from meeting_async.procrastinate import WhiteboardUploads, connector
from support.forks import forked

STALLED_AFTER = 3.0
"""Seconds without a heartbeat after which a worker counts as dead: the fewest that it can be."""
JUMP = 600.0
"""Seconds by which the wall clock of a worker jumps: forth at SIGUSR1, back at SIGUSR2."""
KEYS: dict[str, Any] = {"api_key": "devkey", "api_secret": "devsecret"}


@attrs.frozen(kw_only=True)
class Order:
    """What an application is: for what database and server, with what settings."""

    dsn: str
    url: str
    client: Mapping[str, Any] = attrs.field(factory=dict)
    settings: Mapping[str, Any] = attrs.field(factory=dict)
    """Of ``WhiteboardUploads``."""
    run: Mapping[str, Any] = attrs.field(factory=dict)
    """Of ``run_worker``."""

    def open(self) -> tuple[procrastinate.App, MeetingClient, WhiteboardUploads]:
        """Make the three things that a program of ``docs/queue.md`` has."""
        app = procrastinate.App(connector=connector(self.dsn))
        client = MeetingClient(self.url, **{**KEYS, **self.client})
        settings = {"stalled_after": STALLED_AFTER, **self.settings}
        return app, client, WhiteboardUploads(app, client=client, **settings)


async def documents(reference: str) -> Document:
    """Find the file that a reference names, or hang."""
    if reference == "hangs":
        await anyio.sleep_forever()
    return Document.from_path(reference)


class Process:
    """A worker, or a command of the command line; what it prints goes to a file."""

    def __init__(self, log: Path, program: Order | tuple[str, ...], **environment: str) -> None:
        self.log, self.program = log, program
        self._process = forked(_run, log, program, environment)

    @property
    def code(self) -> int | None:
        """How it has ended, if it has."""
        return self._process.exitcode

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self.log.read_text("utf-8") if self.log.exists() else ""

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._process.pid and self.code is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End it at once, if it runs, and wait for that."""
        self.signal(signal.SIGKILL)
        self._process.join()

    async def ended(self, seconds: float) -> int:
        """Wait for its end, and return its exit code."""
        ends_at = time.monotonic() + seconds
        while (code := self.code) is None:
            assert time.monotonic() < ends_at, f"it runs after {seconds} s: {self.text[-3000:]}"
            await anyio.sleep(0.02)
        print(self.text)  # noqa: T201 - pytest shows it if the test fails
        return code


# --- in the other process ------------------------------------------------------------------------


def _run(log: Path, program: Order | tuple[str, ...], environment: Mapping[str, str]) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if isinstance(program, tuple):
        sys.exit(command_line(program))
    logging.basicConfig(level=logging.INFO)
    _follow_jumps()
    asyncio.run(_work(program))


async def _work(order: Order) -> None:
    app, client, uploads = order.open()
    async with app.open_async(), client:
        await uploads.run_worker(**order.run)


def _follow_jumps() -> None:
    """Let the wall clock jump when a signal comes, also for what was imported before."""
    really, as_date, offset = time.time, dt.datetime, 0.0

    def jump(number: int, _frame: object) -> None:
        nonlocal offset
        offset += JUMP if number == signal.SIGUSR1 else -JUMP

    class Anything(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, as_date)

    class Shifted(as_date, metaclass=Anything):  # type: ignore[valid-type, misc] # a variable
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return as_date.now(tz) + dt.timedelta(seconds=offset)

    time.time = lambda: really() + offset
    ours = [name for name in sys.modules if name.startswith("meeting_async")]
    for module in [dt, *(sys.modules[name] for name in ours)]:
        if vars(module).get("datetime") is as_date:
            vars(module)["datetime"] = Shifted
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, jump)
