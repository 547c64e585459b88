"""``meeting-async batch``: a manifest or a folder is read and checked as a whole, then delivered.

``rows`` reads the text of a manifest and ``manifest`` makes entries of it or of a folder. Sending
is not done here but in ``cli/delivery.py``.
"""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from meeting_async.cli.console import PROGRAM, Output
from meeting_async.cli.options import (
    DEFAULTS,
    Common,
    PositiveSeconds,
    Printed,
    Seconds,
    max_size,
    refuse_options,
)

if TYPE_CHECKING:
    from meeting_async.cli.batch.manifest import Manifest


def batch(
    source: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    journal: str | None = None,
    report: str | None = None,
    check: bool = False,
    concurrency: Annotated[int, Parameter(validator=Number(gte=1), show_default=True)] = 32,
    max_wait: Seconds | None = None,
    wait_active: PositiveSeconds | None = None,
    on_unknown: Annotated[Literal["report", "resend"], Parameter(show_default=True)] = "report",
    common: Common = DEFAULTS,
    output: Printed,
) -> int:
    """Put many documents into many rooms, in the order of each room.

    SOURCE is a folder ROOM_ID/file..., or a manifest ("-": stdin) that is
    checked as a whole before anything is sent: CSV whose first line names the
    columns room_id, document (path or link) and as needed filename and key,
    or a JSON object with these fields on each line. Relative paths start at the
    manifest's folder.

    Ctrl-C lets the uploads in flight end; a second one cuts them off.

    Args:
        source: Manifest, "-" or folder.
        journal: File that remembers what was accepted, so that the same command goes on later.
        report: HTML file to write the report to.
        check: Only check the manifest and the documents; no server is needed.
        concurrency: Uploads at the same time; those that wait for a room do not count.
        max_wait: Seconds to wait for a busy room, for each document; 0 does not wait.
        wait_active: Seconds to wait for a room that is not active; otherwise it is skipped.
        on_unknown: "resend" sends again what may have arrived: a room may show it twice.
        common: What all commands take.
        output: Where to print.

    """
    from meeting_async.cli.batch.manifest import manifest_of
    from meeting_async.cli.delivery import Order, deliver

    refuse_options("batch", [source])
    client = None if check else common.client()
    started = time.monotonic()
    ours = [f"{journal}{suffix}" for suffix in ("", "-wal", "-shm") if journal]
    manifest = manifest_of(source, besides=[*ours, *([report] if report else [])])
    manifest.flaws.find_in(manifest.entries, max_size())
    if manifest.flaws.count:
        return manifest.flaws.tell(output)
    sums = f"{manifest}, checked in {time.monotonic() - started:.1f} s"
    if client is None:
        return _tell_check(manifest, sums, output)
    if report is not None:
        _check_report(report)
    if not common.quiet:
        output.note(sums)
    order = Order(
        manifest.name,
        manifest.entries,
        {
            "concurrency": concurrency,
            "journal": journal,
            "max_wait": max_wait,
            "on_unknown": on_unknown,
            "timeout": common.timeout,
            "wait_active": wait_active,
        },
        report=report,
        server=common.server,
        quiet=common.quiet,
        resumption=_resumption(journal),
    )
    return deliver(client, order, output)


def _tell_check(manifest: Manifest, sums: str, output: Output) -> int:
    if output.as_json:
        output.say_object("check", manifest.sums)
    else:
        output.tell(sums)
    return output.code()


def _resumption(journal: str | None) -> str:
    """Say how to send what is left."""
    command = shlex.join([PROGRAM, *sys.argv[1:]])
    if journal is not None:
        return f"`{command}` goes on: what was accepted is not sent again"
    return "run again, this sends everything again; with --journal FILE it goes on where it ended"


def _check_report(path: str) -> None:
    """Find out before the batch whether the report can be written."""
    from meeting_async.cli import report as _  # noqa: F401 - a missing package is told now
    from meeting_async.errors import InvalidInput

    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise InvalidInput("--report", repr(path), problem, "give another path") from error
