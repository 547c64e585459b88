"""A process whose files cannot grow beyond a size: it runs batches and commands on a full disk.

It imports everything once and forks for each order. Beyond the limit the operating system refuses
every write, as a full disk does; or, if the order says so, it kills the fork in the middle of that
write. Orders come as lines of JSON on the input; each is answered with what was told.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import attrs

from meeting_async.cli import main as command_line
from meeting_async.errors import MeetingError
from support.fake_rooms import Visit
from support.journal_files import acting_rooms, jobs_of, running_batch

TESTS = Path(__file__).parent.parent


@attrs.frozen(kw_only=True)
class Told:
    """What is known of a fork."""

    status: int = 0
    """Exit status of the fork; the negative number of a signal that killed it."""
    complete: list[str] = attrs.field(factory=list)
    """Documents that were sent to their end, in order."""
    outcomes: dict[str, str] = attrs.field(factory=dict)
    """Those that had an outcome, and which."""
    errors: list[str] = attrs.field(factory=list)
    """What prevented or stopped a batch: name of the class, and text."""
    code: int | None = None
    """Exit code of a command."""
    stderr: str = ""


@attrs.frozen
class LimitedWorker:
    """Gives orders."""

    process: subprocess.Popen[str]

    def run_batch(self, journal: Path, numbers: Iterable[int], **how: Any) -> Told:
        """Run a batch of the jobs with these numbers.

        ``how`` is ``rounds`` and what limits it (``limit``, ``is_deadly``, ``umask``).
        """
        return self._order(journal=str(journal), numbers=list(numbers), **how)

    def run_command(self, *arguments: str, **how: Any) -> Told:
        """Run a command here, with this environment; ``how`` is what limits it."""
        place = {"folder": os.getcwd(), "environment": dict(os.environ)}
        return self._order(arguments=arguments, **place, **how)

    def _order(self, **order: Any) -> Told:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return Told(**json.loads(self.process.stdout.readline()))


@contextlib.contextmanager
def limited_worker(*modules: str) -> Iterator[LimitedWorker]:
    """Start what forks; it imports some more modules before."""
    command, pipe = [sys.executable, "-m", "support.limited_worker", *modules], subprocess.PIPE
    with subprocess.Popen(command, cwd=TESTS, stdin=pipe, stdout=pipe, text=True) as process:
        yield LimitedWorker(process)
        assert process.stdin is not None
        process.stdin.close()


# --- the fork ------------------------------------------------------------------------------------


def _limit(limit: int | None, *, is_deadly: bool) -> None:
    if limit is None:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if is_deadly else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _tell(out: int, what: str, *facts: object) -> None:
    os.write(out, (json.dumps([what, *facts]) + "\n").encode())


def _work(order: dict[str, Any], out: int) -> None:
    tell = partial(_tell, out)
    os.umask(order.get("umask", 0o022))
    limits = {"is_deadly": order.get("is_deadly", False)}
    if "arguments" in order:
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        _limit(order.get("limit"), **limits)
        with _stderr_into(tell):
            tell("code", int(command_line(order["arguments"])))
        return
    _limit(order.get("limit"), **limits)
    for _ in range(order.get("rounds", 1)):
        anyio.run(_batch, order, tell)


@contextlib.contextmanager
def _stderr_into(tell: Any) -> Iterator[None]:
    class Stream:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            tell("stderr", text)
            return len(text)

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return False

    sys.stderr = sys.stdout = Stream()
    yield


async def _batch(order: dict[str, Any], tell: Any) -> None:
    async def tell_of(visit: Visit) -> None:
        tell("complete", visit.name)

    rooms = acting_rooms(at_end=tell_of)
    jobs = jobs_of(order["numbers"])
    try:
        async with running_batch(order["journal"], jobs, rooms) as batch:
            async for outcome in batch:
                tell("outcome", outcome.document, outcome.status)
    except MeetingError as error:
        tell("error", f"{type(error).__name__}: {error}")
        return
    if (stopped := batch.report.stopped_by) is not None:
        tell("error", f"{type(stopped).__name__}: {stopped}")


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
    with open(source, encoding="utf-8") as pipe:
        lines = [json.loads(line) for line in pipe]
    _, status = os.waitpid(pid, 0)
    codes = [line[1] for line in lines if line[0] == "code"]
    return Told(
        status=os.waitstatus_to_exitcode(status),
        complete=[line[1] for line in lines if line[0] == "complete"],
        outcomes={line[1]: line[2] for line in lines if line[0] == "outcome"},
        errors=[line[1] for line in lines if line[0] == "error"],
        code=codes[0] if codes else None,
        stderr="".join(line[1] for line in lines if line[0] == "stderr"),
    )


def main() -> None:
    """Follow the orders on the input."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(attrs.asdict(_forked(json.loads(line)))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
