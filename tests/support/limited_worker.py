"""A process that runs batches and commands to a bad end: files cannot grow, it is killed, frozen.

It imports everything once and forks for each order. Beyond a limit of size the operating system
refuses every write, as a full disk does; or, if the order says so, it kills the fork in the middle
of that write. The fork is also killed, or stopped for a while, after so many seconds, or killed
when SQLite is about to execute the n-th statement. Orders come as lines of JSON on the input; each
is answered with what was told.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import attrs

from meeting_async import AttemptStarted, Batch, Event, LockPolicy, MeetingClient, UploadJob
from meeting_async.cli import main as command_line
from meeting_async.errors import MeetingError
from support.fake_rooms import Visit
from support.journals import acting_rooms, jobs_of, name_of, running_batch, traced

TESTS = Path(__file__).parent.parent

Tell = Callable[..., None]

KILL = 9
"""The signal that nobody can catch; on Windows its name is unknown, and its number works."""

WINDOW = 2.0
"""Seconds for which the server of a batch on a socket holds a room at most."""

_DEADLY = {"is_deadly", "kill_after", "kill_at"}
"""What in an order may end the fork."""

LONGEST = 600.0
"""Seconds for a fork that nothing ends."""


@attrs.frozen(kw_only=True)
class Told:
    """What is known of a fork. Documents go by their names."""

    status: int = 0
    """Exit status of the fork; the negative number of a signal that killed it."""
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


@attrs.frozen
class LimitedWorker:
    """Gives orders. What ends a fork: ``limit``, ``is_deadly``, ``kill_after``, ``kill_at``."""

    process: subprocess.Popen[str]

    def run_batch(self, journal: Path, numbers: Iterable[int], **how: Any) -> Told:
        """Run a batch of the jobs with these numbers in process, ``rounds`` times."""
        return self.order(journal=str(journal), numbers=list(numbers), **how)

    def run_command(self, *arguments: str, **how: Any) -> Told:
        """Run a command here, with this environment."""
        place = {"folder": os.getcwd(), "environment": dict(os.environ)}
        return self.order(arguments=arguments, **place, **how)

    def order(self, **order: Any) -> Told:
        """Have an order carried out; one with a ``url`` is a batch of the server there."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        told = Told(**json.loads(self.process.stdout.readline()))
        is_killed = told.status < 0 and not _DEADLY.isdisjoint(order)
        assert told.status == 0 or is_killed, f"status {told.status}\n{told.stderr}"
        return told


@contextlib.contextmanager
def limited_worker(*modules: str) -> Iterator[LimitedWorker]:
    """Start what forks; it imports some more modules before."""
    command, pipe = [sys.executable, "-m", "support.limited_worker", *modules], subprocess.PIPE
    with subprocess.Popen(command, cwd=TESTS, stdin=pipe, stdout=pipe, text=True) as process:
        yield LimitedWorker(process)
        assert process.stdin is not None
        process.stdin.close()


# --- the fork ------------------------------------------------------------------------------------


def _limit(limit: int | None = None, *, is_deadly: bool = False) -> None:
    if limit is None:
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if is_deadly else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _tell(out: int, what: str, *facts: object) -> None:
    os.write(out, (json.dumps([what, *facts]) + "\n").encode())


def _work(order: dict[str, Any], out: int) -> None:
    tell = partial(_tell, out)
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
                tell("outcome", outcome.document, outcome.status)
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


# --- the process that forks ----------------------------------------------------------------------


def _forked(order: dict[str, Any]) -> Told:
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(source)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it may be a file, which cannot grow
        status = 1
        try:
            _work(order, sink)
            status = 0
        except BaseException:
            _tell(sink, "stderr", traceback.format_exc())
            raise
        finally:
            os._exit(status)
    os.close(sink)
    text = _read(source, pid, order)
    _, status = os.waitpid(pid, 0)
    return _told(os.waitstatus_to_exitcode(status), text)


def _told(status: int, text: bytes) -> Told:
    facts: dict[str, list[Any]] = {}
    for line in text.splitlines():
        what, *fact = json.loads(line)
        facts.setdefault(what, []).append(fact[0] if len(fact) == 1 else fact)
    return Told(
        status=status,
        begun=facts.get("begun", []),
        complete=facts.get("complete", []),
        outcomes=dict(facts.get("outcome", [])),
        errors=facts.get("error", []),
        code=facts.get("code", [None])[0],
        stderr="".join(facts.get("stderr", [])),
    )


def _started(order: dict[str, Any]) -> Told:
    """Do the same where nothing forks: in a process that begins anew."""
    command, pipe = [sys.executable, "-m", "support.limited_worker", "--here"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        process.stdout.readline()  # it has imported everything
        killer = threading.Timer(order.get("kill_after", LONGEST), os.kill, [process.pid, KILL])
        killer.start()
        text = process.stdout.read()
        killer.cancel()
    return _told(-KILL if process.returncode == KILL else process.returncode, text)


def _read(source: int, pid: int, order: dict[str, Any]) -> bytes:
    """Read a pipe to its end; kill or freeze the process that writes to it when it is time."""
    text, end = b"", time.monotonic() + order.get("kill_after", LONGEST)
    with open(source, "rb", buffering=0) as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                os.kill(pid, signal.SIGSTOP if "frozen" in order else KILL)
                time.sleep(order.get("frozen", 0))
                os.kill(pid, signal.SIGCONT)
                end += LONGEST
            elif data := pipe.read(65_536):
                text += data
            else:
                return text


def main() -> None:
    """Follow the orders on the input."""
    if sys.argv[1:] == ["--here"]:
        order = json.loads(sys.stdin.readline())
        os.write(1, b"\n")
        _work(order, 1)
        return
    for name in sys.argv[1:]:
        importlib.import_module(name)
    carry_out = _forked if hasattr(os, "fork") else _started
    for line in sys.stdin:
        sys.stdout.write(json.dumps(attrs.asdict(carry_out(json.loads(line)))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
