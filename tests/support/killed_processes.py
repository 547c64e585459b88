"""Batches and commands that come to a bad end: files cannot grow, they are killed, frozen.

Each order is carried out in a process of its own. Beyond a limit of size the operating system
refuses every write, as a full disk does; or, if the order says so, it kills the process in the
middle of that write. The process is also killed, or stopped for a while, after so many seconds, or
killed when SQLite is about to execute the n-th statement.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sqlite3
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import anyio
import attrs

from meeting_async import AttemptStarted, Batch, Event, LockPolicy, MeetingClient, UploadJob
from meeting_async.cli import main as command_line
from meeting_async.errors import MeetingError
from support.fake_rooms import Visit
from support.forks import CONTEXT, forked
from support.journals import acting_rooms, jobs_of, name_of, running_batch, traced

Tell = Callable[[str, object], None]

KILL = 9
"""The signal that nobody can catch; on Windows its name is unknown, and its number works."""

WINDOW = 2.0
"""Seconds for which the server of a batch on a socket holds a room at most."""

_DEADLY = {"is_deadly", "kill_after", "kill_at"}
"""What in an order may end the process."""

LONGEST = 600.0
"""Seconds for a process that nothing ends."""


@attrs.frozen(kw_only=True)
class Told:
    """What is known of a process. Documents go by their names."""

    status: int = 0
    """Exit status; the negative number of a signal that killed it."""
    begun: list[str] = attrs.field(factory=list)
    """Documents of which an attempt began, in order."""
    complete: list[str] = attrs.field(factory=list)
    """Documents that were sent to their end, in order; not of a batch on a socket."""
    outcomes: dict[str, str] = attrs.field(factory=dict)
    """Those that had an outcome, and which."""
    errors: list[str] = attrs.field(factory=list)
    """What prevented or stopped a batch: name of the class, and text."""
    code: int | None = None
    """Exit code of a command."""
    stderr: str = ""

    @property
    def in_flight(self) -> set[str]:
        """Documents that were begun, and not known to be over, when the process ended."""
        return set(self.begun) - set(self.outcomes)


def run_batch(journal: Path, numbers: Iterable[int], **how: Any) -> Told:
    """Run a batch of the jobs with these numbers without a socket, ``rounds`` times."""
    return carry_out(journal=str(journal), numbers=list(numbers), **how)


def run_command(*arguments: str, **how: Any) -> Told:
    """Run a command here, with this environment."""
    return carry_out(arguments=arguments, folder=os.getcwd(), environment=dict(os.environ), **how)


def carry_out(**order: Any) -> Told:
    """Carry out an order; one with a ``url`` is a batch of the server there.

    What ends the process: ``limit``, ``is_deadly``, ``kill_after``, ``kill_at``.
    """
    source, sink = CONTEXT.Pipe(duplex=False)
    process = forked(_carry_out, order, sink)
    sink.close()
    source.recv()  # it has imported everything
    facts = _read(source, process.pid, order)
    process.join()
    assert process.exitcode is not None
    told = Told(
        status=-KILL if process.exitcode == KILL else process.exitcode,  # as Windows says it
        begun=facts["begun"],
        complete=facts["complete"],
        outcomes=dict(facts["outcome"]),
        errors=facts["error"],
        code=next(iter(facts["code"]), None),
        stderr="".join(facts["stderr"]),
    )
    is_killed = told.status < 0 and not _DEADLY.isdisjoint(order)
    assert told.status == 0 or is_killed, f"status {told.status}\n{told.stderr}"
    return told


def _read(source: Connection, pid: int | None, order: dict[str, Any]) -> dict[str, list[Any]]:
    """Read all that is told; kill or freeze the process that tells it when it is time."""
    facts: dict[str, list[Any]] = defaultdict(list)
    end = time.monotonic() + order.get("kill_after", LONGEST)
    with source, contextlib.suppress(EOFError, OSError):  # also in the middle of a message
        while True:
            if source.poll(max(0.0, end - time.monotonic())):
                what, fact = source.recv()
                facts[what].append(fact)
                continue
            assert pid
            os.kill(pid, signal.SIGSTOP if "frozen" in order else KILL)
            if "frozen" in order:
                time.sleep(order["frozen"])
                os.kill(pid, signal.SIGCONT)
            end += LONGEST
    return facts


# --- in the other process ------------------------------------------------------------------------


def _carry_out(order: dict[str, Any], sink: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it may be a file, which cannot grow
    sink.send("ready")

    def tell(what: str, fact: object) -> None:
        sink.send((what, fact))

    try:
        _work(order, tell)
    except BaseException:
        tell("stderr", traceback.format_exc())
        raise


def _limit(limit: int | None = None, *, is_deadly: bool = False) -> None:
    if limit is None:
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if is_deadly else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _work(order: dict[str, Any], tell: Tell) -> None:
    os.umask(order.get("umask", 0o022))
    if "arguments" in order:
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
    if (statement := order.get("kill_at")) is not None:
        _be_killed_at(statement)
    _limit(**{name: order[name] for name in ("limit", "is_deadly") if name in order})
    if "arguments" in order:
        sys.stderr = sys.stdout = _TellingStream(tell)
        tell("code", int(command_line(order["arguments"])))
        return
    for _ in range(order.get("rounds", 1)):
        anyio.run(_batch, order, tell, backend=order.get("backend", "asyncio"))


def _be_killed_at(statement: int) -> None:
    """Let SQLite see to it that the process ends when it is about to execute a statement."""
    left = iter(range(statement - 1))

    def count(_: str) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), KILL)

    cast("Any", sqlite3).connect = traced(count)


class _TellingStream(io.TextIOBase):
    """Tells what is written."""

    encoding = "utf-8"

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def write(self, text: str) -> int:
        self._tell("stderr", text)
        return len(text)


async def _batch(order: dict[str, Any], tell: Tell) -> None:
    try:
        async with (_on_a_socket if "url" in order else _in_process)(order, tell) as batch:
            async for outcome in batch:
                tell("outcome", (outcome.document, outcome.status))
    except MeetingError as error:
        tell("error", f"{type(error).__name__}: {error}")
        return
    if (stopped := batch.report.stopped_by) is not None:
        tell("error", f"{type(stopped).__name__}: {stopped}")


def _in_process(order: dict[str, Any], tell: Tell) -> contextlib.AbstractAsyncContextManager[Batch]:
    async def tell_of(visit: Visit) -> None:
        tell("complete", visit.name)

    return running_batch(order["journal"], jobs_of(order["numbers"]), acting_rooms(at_end=tell_of))


@contextlib.asynccontextmanager
async def _on_a_socket(order: dict[str, Any], tell: Tell) -> AsyncGenerator[Batch]:
    def on_event(event: Event) -> None:
        if isinstance(event, AttemptStarted) and event.document:
            tell("begun", event.document)

    jobs = [
        UploadJob(f"room{number % order['rooms']:02}", Path(order["folder"], name_of(number)))
        for number in range(order["jobs"])
    ]
    settings: dict[str, Any] = {"api_key": "devkey", "api_secret": "devsecret"}
    settings |= {"lock": LockPolicy(window=WINDOW), "on_event": on_event}
    how = {name: order[name] for name in ("journal", "concurrency", "delivery") if name in order}
    async with MeetingClient(order["url"], **settings) as client:
        async with client.upload_many(jobs, **how) as batch:
            yield batch
