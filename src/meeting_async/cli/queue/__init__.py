"""``meeting-async queue``: uploads by workers on many machines, through a queue in PostgreSQL.

The uploads are those of :mod:`meeting_async.procrastinate`. ``database`` connects and makes the
tables, ``work`` puts uploads into the queue and runs a worker, ``outcomes`` shows the results, and
``operate`` is for what waits or has failed.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from meeting_async.cli.batch import tell_check
from meeting_async.cli.console import Output, version
from meeting_async.cli.options import DryRun, File, Json, Printed, Server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from meeting_async.manifests._source import Manifest
    from meeting_async.procrastinate import WhiteboardUploads

_DSN_HELP = (
    "Database of the queue (postgresql://...), instead of MEETING_QUEUE_DSN. Other users of this "
    "machine can see it: give a password by the variable, PGPASSWORD or ~/.pgpass."
)
Dsn = Annotated[str | None, Parameter(help=_DSN_HELP)]

DEFAULTS = Server()

queue: App = App(
    name="queue",
    help="Upload by workers on many machines, through PostgreSQL.",
    version=version,
)


@queue.command
def apply_schema(*, dsn: Dsn = None, debug: bool = False, output: Printed) -> int:
    """Make the queue's tables in the database. What is there already stays.

    Args:
        dsn: Database of the queue.
        debug: Show tracebacks and the library's log.
        output: Where to print.

    """
    from meeting_async.cli.queue import database
    from meeting_async.cli.queue.database import run

    output.tell(run(database.apply_schema, dsn))
    return output.code()


@queue.command
def defer(
    source: Annotated[File, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    batch: str | None = None,
    check: DryRun = False,
    dsn: Dsn = None,
    json: Json = False,
    common: Server = DEFAULTS,
    output: Printed,
) -> int:
    """Put many uploads into the queue.

    SOURCE is a folder or a manifest ("-": stdin), as for `batch`. Everything is
    checked before anything is queued. What the batch has already is not queued
    again, so the same command can be repeated. Workers read the documents at
    the same paths.

    Args:
        source: Manifest, "-" or folder.
        batch: Name under which `report` finds the uploads. Default: name of the file or folder.
        check: Only check the manifest and the documents. This needs no server and no database.
        dsn: Database of the queue.
        json: Print JSON.
        common: Options of all commands.
        output: Where to print.

    """
    from meeting_async.cli.entries import check_of_files, tell_flaws
    from meeting_async.cli.results import ExitCode
    from meeting_async.manifests._source import manifest_of

    name = "" if check else _batch_name(source, batch)
    manifest = manifest_of(source, field="SOURCE")
    manifest.flaws.find_in(manifest.entries, check_of_files())
    manifest.find_unstorable()
    if manifest.flaws.count:
        tell_flaws(manifest.flaws, output)
        return ExitCode.USAGE
    if check:
        return tell_check(manifest, str(manifest), output)
    return _defer(manifest, name, dsn, common, output)


def _batch_name(source: str, batch: str | None) -> str:
    from meeting_async.errors import InvalidInput

    if source == "-" and batch is None:
        raise InvalidInput("--batch", "", "is not set", "give a manifest on stdin a name")
    return os.path.basename(os.path.abspath(source)) if batch is None else batch


def _defer(manifest: Manifest, batch: str, dsn: str | None, common: Server, output: Output) -> int:
    from meeting_async.cli.queue import work
    from meeting_async.cli.queue.database import run

    new = run(work.defer, dsn, common.client(), work.jobs_of(manifest.entries), batch)
    known = len(manifest.entries) - new
    if output.as_json:
        counts = {"batch": batch, "new": new, "known": known}
        output.say_object("deferred", {**counts, **manifest.sums})
    else:
        output.tell(str(manifest))
        output.tell(f"batch {batch!r}: {new:,} new, {known:,} deferred before")
    return output.code()


@queue.command
def worker(
    *,
    concurrency: Annotated[int, Parameter(validator=Number(gte=1), show_default=True)] = 32,
    grace: Annotated[float, Parameter(validator=Number(gte=0), show_default=True)] = 600,
    delivery: Literal["at_most_once", "at_least_once", "exactly_once"] | None = None,
    dsn: Dsn = None,
    common: Server = DEFAULTS,
    output: Printed,
) -> int:
    """Upload what is in the queue, until Ctrl-C or SIGTERM.

    The running uploads then end normally. The exit code is 1 if the database
    cannot be reached, or the key is wrong: let a service manager start the
    worker again.

    Args:
        concurrency: Maximum of uploads at the same time.
        grace: Seconds for the running uploads to end when the worker is stopped.
        delivery: What becomes of documents of unknown outcome. Default: they are reported.
        dsn: Database of the queue.
        common: Options of all commands.
        output: Where to print.

    """
    from meeting_async.cli.queue import work
    from meeting_async.cli.queue.database import run

    log = work.WorkerLog(output, quiet=common.quiet)
    chosen = {"delivery": delivery} if delivery else {}
    client = common.client(on_event=log.tell, **chosen)
    with output.in_thread(is_hurried=True):
        run(partial(work.run, dsn, client, log, concurrency=concurrency, grace=grace))
    output.note("stopped")
    return 0


@queue.command(name="report")
def show(
    batch: str,
    /,
    *,
    report: File | None = None,
    wait: bool = False,
    dsn: Dsn = None,
    json: Json = False,
    common: Server = DEFAULTS,
    output: Printed,
) -> int:
    """Show the results of a batch so far.

    The exit code is 75 while documents are queued, and 3 if one may or may not have arrived.

    Args:
        batch: Name of the batch.
        report: HTML file to write the report to.
        wait: Wait until no document is queued.
        dsn: Database of the queue.
        json: Print JSON.
        common: Options of all commands.
        output: Where to print.

    """
    from meeting_async.cli.queue import outcomes
    from meeting_async.cli.queue.database import run

    if report is not None:
        from meeting_async.reports._file import check_report

        check_report(report, field="--report")
    query = outcomes.Query(batch, common.server, output, wait=wait, quiet=common.quiet)
    results = run(query.results, dsn, common.client())
    code = results.tell(output)
    if report is not None:
        results.write_page(report, output)
    return code


@queue.command
def status(
    batch: str | None = None,
    /,
    *,
    dsn: Dsn = None,
    json: Json = False,
    common: Server = DEFAULTS,
    output: Printed,
) -> int:
    """Show what waits, for how long, for which rooms, and why.

    Args:
        batch: Name of a batch. Default: all.
        dsn: Database of the queue.
        json: Print JSON.
        common: Options of all commands.
        output: Where to print.

    """
    from meeting_async.cli.queue import operate
    from meeting_async.cli.queue.database import run

    operate.tell(run(operate.status, dsn, common.client(), batch), output)
    return output.code()


@queue.command
def retry(
    batch: str,
    /,
    *,
    room: str | None = None,
    resend: bool = False,
    dsn: Dsn = None,
    json: Json = False,
    common: Server = DEFAULTS,
    output: Printed,
) -> int:
    """Queue again what was refused or has failed.

    Args:
        batch: Name of the batch.
        room: Only documents for this room.
        resend: Also send again what may have arrived. Look into the rooms first.
        dsn: Database of the queue.
        json: Print JSON.
        common: Options of all commands.
        output: Where to print.

    """
    return _change(
        "queued again",
        dsn,
        common,
        batch,
        lambda uploads: uploads.retry(batch, room_id=room, resend=resend),
        output,
    )


@queue.command
def cancel(
    batch: str,
    /,
    *,
    room: str | None = None,
    dsn: Dsn = None,
    json: Json = False,
    common: Server = DEFAULTS,
    output: Printed,
) -> int:
    """Give up what has no result yet; running uploads are cancelled.

    Args:
        batch: Name of the batch.
        room: Only documents for this room.
        dsn: Database of the queue.
        json: Print JSON.
        common: Options of all commands.
        output: Where to print.

    """
    return _change(
        "cancelled",
        dsn,
        common,
        batch,
        lambda uploads: uploads.cancel(batch, room_id=room),
        output,
    )


def _change(
    done: str,
    dsn: str | None,
    common: Server,
    batch: str,
    change: Callable[[WhiteboardUploads], Awaitable[int]],
    output: Output,
) -> int:
    from meeting_async.cli.queue import operate
    from meeting_async.cli.queue.database import run

    count = run(operate.changed, dsn, common, batch, change)
    if output.as_json:
        output.say_object(done.replace(" ", "_"), {"batch": batch, "documents": count})
    else:
        output.tell(f"batch {batch!r}: {count:,} {done}")
    return output.code()
